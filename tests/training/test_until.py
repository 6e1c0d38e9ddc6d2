import pytest

from benchmd_ray.data.batches import Worker
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import sha256
from benchmd_ray.runs.files import MODEL
from benchmd_ray.training.checkpoints import latest_checkpoint
from benchmd_ray.training.jobs import PretrainJob
from benchmd_ray.training.pretrain import pretrain, require_pretrainable

SETTINGS = (
    "encoder.dropout=0.1",
    "encoder.embedding_dropout=0.1",
    "pretrain.steps=7",
    "pretrain.optimiser.schedule=cosine",
    "pretrain.optimiser.warmup_steps=3",
)


@pytest.fixture
def run(source, make_settings, recorder, tmp_path):
    """Pretrains in this process up to a step."""

    def start(name, until=None, *assignments):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        settings = make_settings(*SETTINGS, *assignments)
        reporter = recorder()
        job = PretrainJob(settings, "mae", source.path, folder, until)
        pretrain(job, Worker(), reporter)
        return folder, reporter

    return start


@pytest.mark.parametrize("engine", ["torch", "deepspeed"])
def test_a_run_in_pieces_is_the_run_in_one_piece(run, engine):
    chosen = f"execution.engine={engine}"
    whole, reported = run("whole", None, chosen)
    pieces, lines = [], []
    for first, until in ((0, 2), (2, 5), (5, None)):
        folder, reporter = run("pieces", until, chosen)
        pieces.append(sha256(folder / MODEL))
        lines += reporter.lines
        assert reporter.started == ("pretrain mae", until or 7, "steps", first)
        assert latest_checkpoint(folder).name == f"step_{until or 7:09d}"
    assert lines == reported.lines  # losses and rates: the schedule is the whole run's
    assert len(set(pieces)) == 3
    assert pieces[-1] == sha256(whole / MODEL)


def test_a_checkpoint_is_written_where_it_stops(run):
    seldom = ("execution.checkpoint_every=1000", "execution.log_every=1000")
    folder, reporter = run("a", 3, *seldom)
    assert latest_checkpoint(folder).name == "step_000000003"
    assert reporter.column("done") == [3]
    before = sha256(folder / MODEL)
    (folder / MODEL).unlink()
    folder, reporter = run("a", 3, *seldom)  # nothing is left to do but the export
    assert reporter.lines == []
    assert sha256(folder / MODEL) == before


def test_a_shorter_run_is_another_run(run):
    short, _ = run("short", None, "pretrain.steps=5")
    stopped, _ = run("stopped", 5)
    assert sha256(short / MODEL) != sha256(stopped / MODEL)  # its cosine falls faster


def test_weights_of_more_steps_are_never_taken_for_those_of_fewer(run):
    folder, _ = run("a", 4)
    before = sha256(folder / MODEL)
    with pytest.raises(BenchmdError, match=r"is of step 4, beyond step 2 at which to stop"):
        run("a", 2)
    assert sha256(folder / MODEL) == before


@pytest.mark.parametrize("until", [0, -1, 8])
def test_a_step_that_is_none_of_the_runs_is_refused(source, make_settings, tmp_path, until):
    job = PretrainJob(make_settings(*SETTINGS), "mae", source.path, tmp_path, until)
    with pytest.raises(BenchmdError, match=rf"after step {until}: .* from 1 to .* which is 7"):
        require_pretrainable(job, source)
