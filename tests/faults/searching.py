"""A search of real trials without the service: ``python searching.py RAY SEARCH CATALOG...``.

``CATALOG...`` are the inner catalogs of its evaluations, in order.
"""

import sys

from benchmd_ray.cluster.connection import connected
from benchmd_ray.console.progress import Display
from benchmd_ray.settings.definition import load_settings
from benchmd_ray.storage.location import location
from benchmd_ray.tuning.families import Family
from benchmd_ray.tuning.limits import Budget, Limits, Place
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.search import search
from benchmd_ray.tuning.spaces import Parameter, Space
from benchmd_ray.tuning.stages import Arm, FamilyWork, Transfer, TrialContext
from benchmd_ray.tuning.study import Study
from benchmd_ray.tuning.trial_files import keep_best

SMALL = (
    "encoder=tiny",
    "encoder.patch_size=125",
    "execution.device=cpu",
    "execution.precision=float32",
    "execution.checkpoint_every=1",
    "execution.checkpoint_seconds=0",
    "transfer.mode=finetune",
    "transfer.batch_size=16",
    "transfer.epochs=10",
)
SPACE = Space("made", (Parameter("transfer.optimiser.lr", "log float", 1e-3, low=1e-5, high=0.1),))
FAMILY = Family("scratch", "finetune-full", SPACE, (load_settings(assignments=SMALL),))
BUDGET = Budget(trials=4, evaluations=10)
"""The trials, and two further evaluations of the start and two others."""


def study_of(place):
    """The study of a search in a folder or on S3."""
    return Study(place / "journal", [FAMILY], Method(sampler="random"))


def main(address, place, *catalogs):
    """Run the search, or resume it."""
    folder = location(place)
    family = FamilyWork("scratch", Transfer(), (Arm("ecg", FAMILY.settings[0]),), ())
    work = TrialContext({FAMILY.name: family}, folder)
    with connected(None if address == "local" else address, cpus=2):
        study = study_of(folder)
        limits = Limits(
            study,
            BUDGET,
            Place(1.0, 0.0, 2),
            lambda: False,
            Display(),
            lost=lambda number, reason: sys.stderr.write(f"lost {number}: {reason}\n"),
        )
        search(
            work,
            limits,
            lambda number: keep_best(folder, (0, 1)),
            lambda evaluation: [location(catalogs[evaluation])],
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
