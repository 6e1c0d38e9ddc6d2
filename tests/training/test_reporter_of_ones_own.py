import pytest

from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import TEMPORARY, sha256
from benchmd_ray.runs.files import MODEL
from benchmd_ray.training.checkpoints import latest_checkpoint
from benchmd_ray.training.jobs import PretrainJob, TransferJob
from benchmd_ray.training.launch import launch
from benchmd_ray.training.reporter import METRICS

DROPPING = ("encoder.dropout=0.1", "encoder.embedding_dropout=0.1")
KINDS = {
    "pretrain": ("pretrain.steps=6", "execution.checkpoint_every=2"),
    "finetune": ("transfer.mode=finetune", "transfer.epochs=5", "execution.checkpoint_seconds=0"),
    "linear": ("transfer.mode=linear", "transfer.epochs=5"),
}


@pytest.fixture
def make_job(source, make_settings, tmp_path):
    """A job in a folder of its own."""

    def make(name, kind, *further):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        settings = make_settings(*DROPPING, *KINDS[kind], *further)
        if kind == "pretrain":
            return PretrainJob(settings, "mae", source.path, folder)
        return TransferJob(settings, source.path, folder)

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_a_reporter_is_told_of_all_and_may_stop_the_run(make_job, recorder, interrupted, kind):
    whole, told = make_job("whole", kind), recorder()
    launch(whole, reporter=told)
    total = 6 if kind == "pretrain" else 5
    assert told.column("done") == list(range(1, total + 1))
    assert told.finished
    assert not (whole.folder / METRICS).exists()  # told instead of the folder

    broken, stopping = make_job("broken", kind), recorder(stop_at=4)
    with pytest.raises(interrupted):
        launch(broken, reporter=stopping)
    assert stopping.lines == told.lines[:3]
    assert not stopping.finished
    assert not list(broken.folder.rglob(f"{TEMPORARY}*"))
    assert not (broken.folder / MODEL).exists()
    if kind != "linear":
        assert int(latest_checkpoint(broken.folder).name[5:]) in (2, 3)
    launch(broken, reporter=(rest := recorder()))
    done = rest.started[3]
    assert rest.lines == told.lines[done:]
    assert sha256(broken.folder / MODEL) == sha256(whole.folder / MODEL)


@pytest.mark.parametrize(
    ("further", "on_ray"), [(("execution.workers=2",), False), ((), True)], ids=["workers", "ray"]
)
def test_a_reporter_for_other_processes_is_refused(make_job, recorder, further, on_ray):
    job = make_job("run", "finetune", *further)
    with pytest.raises(
        BenchmdError, match=r"only called for work in this process.* execution\.workers=1"
    ):
        launch(job, on_ray=on_ray, reporter=recorder())
    assert not list(job.folder.iterdir())
