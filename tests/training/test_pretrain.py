import itertools
import json
from types import SimpleNamespace

import pytest
import torch
from kinds import SIGNALS

from benchmd_ray.data.batches import Worker
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.feed import resident_feed
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import sha256
from benchmd_ray.models.encoder import Encoder
from benchmd_ray.runs.files import MODEL
from benchmd_ray.ssl import METHODS, method_named
from benchmd_ray.ssl.mae import MAE
from benchmd_ray.training.checkpoints import CHECKPOINT, latest_checkpoint
from benchmd_ray.training.jobs import PretrainJob
from benchmd_ray.training.pretrain import pretrain, require_pretrainable
from benchmd_ray.training.reporter import RunReporter, read_metrics, require_finite
from benchmd_ray.training.seeds import DRAWS, WEIGHTS, derived_seed, generator, seed_step
from benchmd_ray.training.weights import DESCRIPTION, load_encoder


@pytest.fixture
def run(source, make_settings, recorder, tmp_path):
    """Pretrains in this process."""
    numbers = itertools.count()

    def start(technique, *assignments, folder=None, reporter=None):
        folder = folder or tmp_path / f"run{next(numbers)}"
        folder.mkdir(exist_ok=True)
        job = PretrainJob(make_settings(*assignments), technique, source.path, folder)
        reporter = reporter or recorder()
        pretrain(job, Worker(), reporter)
        return SimpleNamespace(job=job, folder=folder, reporter=reporter)

    return start


@pytest.mark.parametrize("technique", METHODS)
def test_pretraining_lowers_the_loss(run, technique):
    losses = run(technique, "pretrain.steps=32", "pretrain.optimiser.lr=5e-3").reporter.column(
        "loss"
    )
    assert len(losses) == 32
    assert sum(losses[-8:]) / 8 < 0.85 * sum(losses[:2]) / 2


@pytest.mark.parametrize("technique", METHODS)
def test_losses_are_those_of_a_plain_loop(run, source, technique):
    done = run(
        technique,
        "pretrain.steps=6",
        "seed=3",
        "pretrain.optimiser.warmup_steps=2",
        "pretrain.optimiser.schedule=cosine",
        "pretrain.optimiser.weight_decay=0.1",
    )
    settings = done.job.settings
    torch.manual_seed(derived_seed(WEIGHTS, 3))
    method = method_named(technique)(Encoder(source.signal, settings.encoder), settings.pretrain)
    optimiser = torch.optim.AdamW(method.parameters(), weight_decay=0.1)
    rates = [settings.pretrain.optimiser.lr_at(step, 6) for step in range(6)]
    losses = []
    feed = resident_feed(source, "train", seed=3)
    for step, stored in enumerate(itertools.islice(feed.endless(8), 6)):
        signals = feed.normalise(stored.signals, stored.scales, stored.sizes)
        loss = method(signals, method.draw(8, generator(DRAWS, 3, step)))
        optimiser.param_groups[0]["lr"] = rates[step]
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert done.reporter.column("loss") == pytest.approx(losses, abs=1e-6)
    assert done.reporter.column("lr") == pytest.approx(rates)
    exported = load_encoder(done.folder).state_dict()
    for name, value in method.encoder.state_dict().items():
        torch.testing.assert_close(exported[name], value, atol=1e-6, rtol=0)


@pytest.mark.parametrize("technique", METHODS)
def test_both_engines_give_the_same_losses(run, technique):
    one = run(technique, "execution.engine=torch").reporter.column("loss")
    other = run(technique, "execution.engine=deepspeed").reporter.column("loss")
    assert len(one) == 5
    assert other == pytest.approx(one, abs=1e-6)


@pytest.mark.parametrize("engine", ["torch", "deepspeed"])
def test_bf16_pretraining_stays_close_to_float32(run, engine):
    exact = run("mae", f"execution.engine={engine}").reporter.column("loss")
    mixed = run("mae", f"execution.engine={engine}", "execution.precision=bf16").reporter
    assert mixed.column("loss") == pytest.approx(exact, rel=0.01)
    assert mixed.column("loss") != exact


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(run):
    dropping = ("encoder.dropout=0.1", "encoder.embedding_dropout=0.1")
    one, again = run("mae", *dropping), run("mae", *dropping)
    other = run("mae", *dropping, "seed=1")
    assert sha256(one.folder / MODEL) == sha256(again.folder / MODEL)
    assert one.reporter.column("loss") == again.reporter.column("loss")
    assert sha256(one.folder / MODEL) != sha256(other.folder / MODEL)


def test_dropout_differs_between_seeds_steps_and_workers_and_comes_again():
    def drawn(*parts):
        seed_step(*parts)
        return tuple(torch.rand(4).tolist())

    places = list(itertools.product(range(3), repeat=3))
    assert len({drawn(*place) for place in places}) == len(places)
    assert drawn(1, 2, 0) == drawn(1, 2, 0)


def test_dropout_is_at_work_in_training(run):
    plain, dropping = run("mae"), run("mae", "encoder.dropout=0.1")
    assert plain.reporter.column("loss")[0] != dropping.reporter.column("loss")[0]


def test_lines_are_means_over_the_steps_since_the_last(run):
    every = run("mae", "pretrain.steps=6").reporter.column("loss")
    some = run(
        "mae", "pretrain.steps=6", "execution.log_every=4", "execution.checkpoint_every=3"
    ).reporter
    assert some.column("done") == [3, 4, 6]
    expected = [sum(every[:3]) / 3, every[3], sum(every[4:]) / 2]
    assert some.column("loss") == pytest.approx(expected, rel=1e-5)


def test_what_a_run_leaves(run):
    done = run("shed", "execution.checkpoint_every=2", reporter=None)
    assert done.reporter.started == ("pretrain shed", 5, "steps", 0)
    assert done.reporter.finished
    names = {path.name for path in (done.folder / "checkpoints").iterdir()}
    assert names == {"step_000000004", "step_000000005"}  # the last two
    description = json.loads((latest_checkpoint(done.folder) / CHECKPOINT).read_text())
    assert (description["step"], description["workers"]) == (5, 1)
    assert "torch" in description["versions"]
    architecture = json.loads((done.folder / DESCRIPTION).read_text())
    assert (architecture["signal"]["name"], architecture["encoder"]["width"]) == ("ecg", 32)
    assert architecture["statistics"] == {"mean": [0.25 * i for i in range(12)], "std": [1.5] * 12}


def test_metrics_go_into_the_run_folder(run, tmp_path):
    folder = tmp_path / "here"
    folder.mkdir()
    run("mae", folder=folder, reporter=RunReporter(folder, silent=True))
    lines = read_metrics(folder)
    assert [line["done"] for line in lines] == [1, 2, 3, 4, 5]
    assert all(line["loss"] > 0 and line["per_second"] > 0 for line in lines)


def test_a_loss_that_is_no_number_stops_and_names_step_and_rate(run, monkeypatch, tmp_path):
    class Wrong(MAE):
        calls = 0

        def forward(self, *inputs):
            self.calls += 1
            return super().forward(*inputs) * (float("nan") if self.calls == 3 else 1.0)

    monkeypatch.setattr("benchmd_ray.ssl.mae.MAE", Wrong)
    folder = tmp_path / "run"
    with pytest.raises(BenchmdError, match=r"NaN at step 3 with learning rate 0\.001\. Lower"):
        run("mae", "execution.log_every=2", "execution.checkpoint_every=4", folder=folder)
    assert latest_checkpoint(folder) is None  # what is spoilt is not kept
    assert not (folder / MODEL).exists()


def test_a_rate_that_is_far_too_high_is_named(run):
    with pytest.raises(BenchmdError, match=r"the loss became .* learning rate 1e\+30"):
        run("mae", "pretrain.optimiser.lr=1e30", "pretrain.steps=20")


@pytest.mark.parametrize(("value", "name"), [(float("nan"), "NaN"), (float("inf"), "infinite")])
def test_the_first_wrong_step_is_named(value, name):
    losses = torch.tensor([1.0, 2.0, value, 3.0, value])
    with pytest.raises(BenchmdError, match=rf"became {name} at step 12 with learning rate 5\.5"):
        require_finite(losses, 10, lambda step: step / 2)
    require_finite(losses[:2], 10, lambda step: step / 2)


@pytest.mark.parametrize(
    ("batch", "workers", "instead"), [(7, 2, "6"), (8, 3, "6"), (2, 3, "3"), (63, 8, "56")]
)
def test_a_batch_that_the_workers_cannot_share_is_refused(
    source, make_settings, tmp_path, batch, workers, instead
):
    settings = make_settings(f"pretrain.batch_size={batch}", f"execution.workers={workers}")
    job = PretrainJob(settings, "mae", source.path, tmp_path)
    message = rf"batch_size is {batch} and execution\.workers {workers}: .* such as {instead}\."
    with pytest.raises(BenchmdError, match=message):
        require_pretrainable(job, source)


def test_a_batch_that_cannot_be_cut_into_parts_is_refused(source, make_settings, tmp_path):
    def require(technique, batch, workers, parts):
        settings = make_settings(
            f"pretrain.batch_size={batch}",
            f"execution.workers={workers}",
            f"execution.accumulation={parts}",
        )
        require_pretrainable(PretrainJob(settings, technique, source.path, tmp_path), source)

    for technique in ("mae", "shed"):
        require(technique, 12, 2, 3)
        message = r"batch_size is 8 and .*workers 2 times .*accumulation 3: .* such as 6\."
        with pytest.raises(BenchmdError, match=message):
            require(technique, 8, 2, 3)
    require("e-mix", 12, 2, 1)
    with pytest.raises(BenchmdError, match=r"accumulation is 2, and e-mix may compare .* other"):
        require("e-mix", 8, 2, 2)


def test_patches_that_do_not_fit_are_refused_beforehand(source, make_settings, tmp_path):
    job = PretrainJob(make_settings("encoder.patch_size=33"), "mae", source.path, tmp_path)
    with pytest.raises(BenchmdError, match=r"encoder\.patch_size is 33, .* such as 20, 25, 40, 50"):
        require_pretrainable(job, source)


@pytest.mark.parametrize("technique", ["imagenet", "imagenet+mae"])
def test_imagenet_weights_with_other_patches_are_refused_before_anything_starts(
    make_settings, tmp_path, technique
):
    catalog = SimpleNamespace(
        card=dataset_card("isic-2017"), require_split=lambda _: None, signal=SIGNALS["derm"]
    )
    for size in (0, 16):
        job = PretrainJob(
            make_settings(f"encoder.patch_size={size}"), technique, tmp_path, tmp_path
        )
        require_pretrainable(job, catalog)
    job = PretrainJob(make_settings("encoder.patch_size=32"), technique, tmp_path, tmp_path)
    with pytest.raises(BenchmdError, match=r"of 16 × 16 pixels, and encoder\.patch_size is 32"):
        require_pretrainable(job, catalog)


def test_an_unknown_technique_is_refused(run):
    with pytest.raises(BenchmdError, match=r"technique 'emix'\. Did you mean 'e-mix'\? Valid: e-m"):
        run("emix")


def test_a_source_without_training_records_is_refused(
    make_catalog, splits, make_settings, tmp_path, recorder
):
    source = make_catalog({"validation": splits["validation"]})
    job = PretrainJob(make_settings(), "mae", source.path, tmp_path)
    with pytest.raises(BenchmdError, match=r"no record in split 'train'; it holds validation"):
        pretrain(job, Worker(), recorder())


def test_a_checkpoint_of_another_architecture_is_refused(run):
    done = run("mae", "pretrain.steps=2")
    with pytest.raises(BenchmdError, match=r"checkpoint .*step_000000002 .* another architecture"):
        run("mae", "encoder.mlp=48", folder=done.folder)
    with pytest.raises(BenchmdError, match=r"checkpoint .*step_000000002 .* another architecture"):
        run("shed", folder=done.folder)
