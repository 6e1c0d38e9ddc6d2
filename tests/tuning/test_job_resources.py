"""What is reserved for a job on several workers, and for one of a family that has one."""

from dataclasses import replace

import pytest

from benchmd_ray.settings.definition import Settings, updated
from benchmd_ray.tuning.limits import Place
from benchmd_ray.tuning.search import WAITING, resources
from benchmd_ray.tuning.stages import Arm, FamilyWork, Transfer, TrialContext


@pytest.fixture
def work(tmp_path):
    several = updated(Settings(), {"execution": {"workers": 2}})
    head = updated(several, {"execution": {"workers": 1}})
    families = {
        name: FamilyWork(name, Transfer(), (Arm("ecg", settings),), ())
        for name, settings in (("finetune", several), ("linear", head))
    }
    return TrialContext(families, tmp_path)


def test_a_job_of_workers_waits_and_another_has_the_resources_of_one(work):
    place = Place(cpus=8.0, gpus=2.0, at_once=1, workers=2)
    job = {"gpus": place.gpus}
    assert resources(job | {"family": "finetune"}, work, place) == WAITING
    assert resources(job | {"family": "linear"}, work, place) == {"CPU": 4.0, "GPU": 1.0}


def test_a_job_without_workers_has_its_share_or_a_whole_gpu(work):
    place = replace(Place(cpus=2.0, gpus=0.25, at_once=4), workers=1)
    for gpus in (0.25, 1.0):
        job = {"family": "linear", "gpus": gpus}
        assert resources(job, work, place) == {"CPU": 2.0, "GPU": gpus}
