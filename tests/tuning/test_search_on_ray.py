"""Searches by Ray Tune that lose processes: what was done is not repeated, and nothing is lost."""

import faulty
import pytest
from ray import cloudpickle

from benchmd_ray.console.progress import Display
from benchmd_ray.errors import Transient
from benchmd_ray.settings.definition import Settings
from benchmd_ray.tuning.families import Family
from benchmd_ray.tuning.limits import Budget, Limits, Place
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.search import search
from benchmd_ray.tuning.spaces import Parameter, Space
from benchmd_ray.tuning.stages import Arm, FamilyWork, TrialContext
from benchmd_ray.tuning.study import Study

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

SPACE = Space("made", (Parameter("transfer.optimiser.lr", "log float", 1e-3, low=1e-5, high=0.1),))
FAMILY = Family("scratch", "linear", SPACE, (Settings(),))


@pytest.fixture
def searched(tmp_path, monkeypatch):
    """Searches with faults; what was lost, and whether `halt` ends it, may be given."""
    monkeypatch.setattr("benchmd_ray.tuning.search.AWAY_SECONDS", 0.1)
    cloudpickle.register_pickle_by_value(faulty)

    def run(faults, lost=None, halt=lambda study: False, name="search"):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        study = Study(folder / "study.log", [FAMILY], Method(sampler="random"))
        limits = Limits(
            study,
            Budget(trials=None, evaluations=10),
            Place(1.0, 0.0, 2),
            lambda: halt(study),
            Display(),
            lost=lambda number, reason: None if lost is None else lost.append((number, reason)),
        )
        arm = Arm("ecg", Settings())
        family = FamilyWork("scratch", faulty.Faulty(faults), (arm,), (1,))
        work = TrialContext({FAMILY.name: family}, folder)
        search(work, limits, lambda number: None, lambda evaluation: [tmp_path / f"{evaluation}"])
        return study, folder

    yield run
    cloudpickle.unregister_pickle_by_value(faulty)


def outcome(study):
    return [(t.number, t.state, dict(t.values), dict(t.evaluations)) for t in study.trials()]


def attempts(folder):
    """Steps from which the processes of each job began, in order."""
    begun = {}
    for line in (folder / "attempts").read_text().splitlines():
        name, step = line.split()
        begun.setdefault(name, []).append(int(step))
    return begun


def test_jobs_whose_processes_are_lost_resume_from_their_folders(searched):
    """A process that exits, one that raises, and one that is lost again and again."""
    faults = {
        "00001-000": (2, 1, "exit"),
        "00002-000": (3, 2, "raise"),
        "00003-000": (2, 9, "exit"),
    }
    lost = []
    study, folder = searched(faults, lost)
    begun = attempts(folder)
    assert begun["00001-000"] == [0, 1]
    assert begun["00002-000"] == [0, 2, 2]
    assert begun["00003-000"] == [0, 1, 1, 1]
    assert all(begun[name] == [0] for name in begun.keys() - faults.keys())
    failed = study.trials()[3]
    assert (failed.state, failed.reason) == ("failed", "its process was lost again and again")
    expected = [(1, "its process was lost"), *[(2, "OSError: [Errno 5] Input/output error")] * 2]
    assert sorted(lost) == expected + [(3, "its process was lost")] * 4
    clean, _ = searched({}, name="undisturbed")
    sound = [trial for trial in outcome(study) if trial[0] != 3]
    first = {number: scores[0] for number, _, _, scores in outcome(clean)}
    assert all(scores[0] == first[number] for number, _, _, scores in sound)
    models = sorted(path.name for path in (folder / "models").iterdir())
    granted = sorted(f"{n:05d}-{e:03d}" for n, done in study.granted.items() for e in done)
    assert models == [name for name in granted if name == "00000-000" or name[-3:] != "000"]
    assert not list((folder / "trials").iterdir())


@pytest.mark.nightly
def test_a_search_that_was_halted_resumes_and_finds_the_same(searched):
    whole, _ = searched({}, name="whole")
    for count in (1, 6):
        searched({}, halt=lambda study, n=count: sum(map(len, study.scores().values())) >= n)
    study, folder = searched({})
    assert outcome(study) == outcome(whole)
    assert all(steps[0] == 0 for steps in attempts(folder).values())


@pytest.mark.nightly
def test_what_fails_again_and_again_around_a_trial_ends_the_search_and_not_the_trial(searched):
    lost = []
    with pytest.raises(Transient, match=r"trial 1 could not run: OSError: \[Errno 5\]"):
        searched({"00001-000": (2, 9, "raise")}, lost)
    assert [number for number, _ in lost] == [1] * 4
    study, folder = searched({})
    assert study.trials()[1].state == "complete"
    assert attempts(folder)["00001-000"] == [0, 1, 1, 1, 1]
