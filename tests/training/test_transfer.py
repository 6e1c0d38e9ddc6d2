import itertools
import json
import math
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from kinds import MODALITIES, SIGNALS

from benchmd_ray.data.batches import Batch, Worker, epoch_order
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.feed import resident_feed
from benchmd_ray.data.records import Record
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import sha256
from benchmd_ray.files.integrity import Damaged, read_hashed_json, write_hashed_json
from benchmd_ray.models.encoder import Encoder
from benchmd_ray.models.heads import Classifier, classification_loss
from benchmd_ray.runs.files import MODEL
from benchmd_ray.scores.metrics import auroc, probabilities
from benchmd_ray.settings.definition import LABEL_SETTINGS
from benchmd_ray.training import selection
from benchmd_ray.training.collect import collect, evaluation_batch
from benchmd_ray.training.jobs import RESULT, PretrainJob, TransferJob, transfer_result
from benchmd_ray.training.launch import launch
from benchmd_ray.training.pretrain import pretrain
from benchmd_ray.training.seeds import WEIGHTS, derived_seed
from benchmd_ray.training.selection import Best, TransferData, training_feed, transfer_data
from benchmd_ray.training.transfer import require_transferable, transfer
from benchmd_ray.training.weights import (
    DESCRIPTION,
    load_classifier,
    load_encoder,
    model_description,
)

LINEAR, FINETUNE = "transfer.mode=linear", "transfer.mode=finetune"


@pytest.fixture(scope="session")
def pretrained(source, make_settings, recorder, tmp_path_factory):
    """Folder of a pretraining run."""
    folder = tmp_path_factory.mktemp("pretrained")
    job = PretrainJob(make_settings("encoder.dropout=0.1", "seed=5"), "mae", source.path, folder)
    pretrain(job, Worker(), recorder())
    return folder


@pytest.fixture
def run(source, make_settings, recorder, tmp_path):
    """Transfers in this process."""
    numbers = itertools.count()

    def start(*assignments, folder=None, reporter=None, upstream=None, catalog=source):
        folder = folder or tmp_path / f"run{next(numbers)}"
        folder.mkdir(exist_ok=True)
        job = TransferJob(make_settings(*assignments), catalog.path, folder, upstream)
        reporter = reporter or recorder()
        transfer(job, Worker(), reporter)
        return SimpleNamespace(
            job=job,
            folder=folder,
            reporter=reporter,
            result=json.loads((folder / RESULT).read_text()),
            model=load_classifier(folder),
        )

    return start


def fresh_classifier(source, settings, upstream=None):
    """The classifier that a run begins with, in eval mode."""
    torch.manual_seed(derived_seed(WEIGHTS, settings.seed))
    encoder = Encoder(source.signal, settings.encoder)
    if upstream is not None:
        encoder = load_encoder(upstream)
    torch.manual_seed(derived_seed(WEIGHTS, settings.seed, 1))
    return Classifier(encoder, len(source.task.classes)).eval()


def all_of(source, split):
    batches = list(resident_feed(source, split, seed=0).ordered(64))
    return torch.cat([b.signals for b in batches]), torch.cat([b.targets for b in batches])


def slow_loop(source, model, parameters, settings, rows=None):
    """Plain training: losses and validation AUROC of each epoch.

    ``parameters`` may be groups with a ``factor`` of the learning rate.
    """
    signals, targets = all_of(source, "train")
    seen, known = all_of(source, "validation")
    rows = np.arange(len(signals)) if rows is None else rows
    size = min(settings.transfer.batch_size, len(rows))
    optimiser = torch.optim.AdamW(parameters, weight_decay=1e-4)
    losses, scores, step = [], [], 0
    total = settings.transfer.epochs * -(-len(rows) // size)
    for epoch in range(settings.transfer.epochs):
        order, each = rows[epoch_order(settings.seed, epoch, len(rows))], []
        for start in range(0, len(rows), size):
            index = order[start : start + size]
            loss = torch.nn.functional.cross_entropy(
                model(signals[index]),
                targets[index].argmax(dim=1),
                label_smoothing=settings.transfer.label_smoothing,
            )
            for group in optimiser.param_groups:
                rate = settings.transfer.optimiser.lr_at(step, total)
                group["lr"] = rate * group.get("factor", 1)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            each.append(loss.item() * len(index))
            step += 1
        losses.append(sum(each) / len(rows))
        with torch.no_grad():
            logits = model(seen).numpy()
        scores.append(auroc(known.numpy(), probabilities(logits, "single-label")).mean)
    return losses, scores


SCHEDULE = ("transfer.optimiser.schedule=cosine", "transfer.optimiser.warmup_steps=2")


@pytest.mark.parametrize("scratch", [True, False])
def test_linear_evaluation_is_training_through_the_frozen_encoder(
    run, source, make_settings, pretrained, scratch, monkeypatch
):
    # The last epoch is kept, so that its weights can be compared.
    monkeypatch.setattr(Best, "offer", keep_last)
    upstream = None if scratch else pretrained
    changes = (*SCHEDULE, "encoder.dropout=0.1", "seed=2")
    done = run(LINEAR, *changes, upstream=upstream)
    model = fresh_classifier(source, make_settings(*changes), upstream)
    settings = make_settings(LINEAR, *changes)
    losses, scores = slow_loop(source, model, model.head.parameters(), settings)
    assert done.reporter.column("loss") == pytest.approx(losses, abs=1e-5)
    assert done.reporter.column("validation_auroc") == pytest.approx(scores, abs=1e-6)
    torch.testing.assert_close(done.model.head.weight, model.head.weight, atol=1e-5, rtol=0)
    torch.testing.assert_close(done.model.head.bias, model.head.bias, atol=1e-5, rtol=0)


@pytest.mark.parametrize("engine", ["torch", "deepspeed"])
@pytest.mark.parametrize("batch", [16, 21])
def test_fine_tuning_is_a_plain_loop(run, source, make_settings, engine, batch):
    changes = (*SCHEDULE, f"transfer.batch_size={batch}", f"execution.engine={engine}")
    done = run(FINETUNE, *changes)
    settings = make_settings(FINETUNE, *changes)
    model = fresh_classifier(source, settings)
    losses, scores = slow_loop(source, model, model.parameters(), settings)
    assert done.reporter.column("loss") == pytest.approx(losses, abs=1e-5)
    assert done.reporter.column("validation_auroc") == pytest.approx(scores, abs=1e-6)


@pytest.mark.parametrize("engine", ["torch", "deepspeed"])
def test_fine_tuning_with_smooth_labels_and_slower_lower_layers_is_a_plain_loop(
    run, source, make_settings, engine
):
    changes = (*SCHEDULE, "transfer.label_smoothing=0.3", "transfer.layer_decay=0.4")
    done = run(FINETUNE, *changes, f"execution.engine={engine}")
    settings = make_settings(FINETUNE, *changes)
    model = fresh_classifier(source, settings)
    encoder = model.encoder
    below = [encoder.cls, encoder.positions, *encoder.patch_embedding.parameters()]
    groups = [
        {"params": below, "factor": 0.4**3},
        {"params": list(encoder.blocks[0].parameters()), "factor": 0.4**2},
        {"params": list(encoder.blocks[1].parameters()), "factor": 0.4},
        {"params": list(model.head.parameters())},
    ]
    losses, scores = slow_loop(source, model, groups, settings)
    assert done.reporter.column("loss") == pytest.approx(losses, abs=1e-5)
    assert done.reporter.column("validation_auroc") == pytest.approx(scores, abs=1e-6)
    model = fresh_classifier(source, settings)
    one_rate, _ = slow_loop(source, model, model.parameters(), settings)
    assert done.reporter.column("loss") != pytest.approx(one_rate, abs=1e-4)


def test_linear_evaluation_with_smooth_labels_is_a_plain_loop(run, source, make_settings):
    changes = (*SCHEDULE, "transfer.label_smoothing=0.3")
    done = run(LINEAR, *changes)
    settings = make_settings(LINEAR, *changes)
    model = fresh_classifier(source, settings)
    losses, _ = slow_loop(source, model, model.head.parameters(), settings)
    assert done.reporter.column("loss") == pytest.approx(losses, abs=1e-5)


def test_layer_decay_plays_no_part_in_linear_evaluation(run):
    one, other = run(LINEAR), run(LINEAR, "transfer.layer_decay=0.4")
    assert sha256(one.folder / MODEL) == sha256(other.folder / MODEL)


class Unlayered(Encoder):
    """A network of your own whose layers are not in ``blocks``."""

    def __init__(self, signal, size):
        super().__init__(signal, size)
        self.layers = self.blocks
        del self.blocks

    def encode(self, tokens):
        for layer in self.layers:
            tokens = layer(tokens)
        return tokens


def test_layer_decay_of_a_network_without_blocks_is_refused_before_training(run, monkeypatch):
    monkeypatch.setattr("benchmd_ray.models.encoder.plugin", lambda *_, **__: Unlayered)
    with pytest.raises(BenchmdError, match=r"layer_decay is 0\.5 and the encoder network mine:Net"):
        run(FINETUNE, "encoder.network=mine:Net", "transfer.layer_decay=0.5")


def test_patches_of_another_size_go_from_pretraining_to_transfer(
    run, source, make_settings, recorder, tmp_path
):
    upstream = tmp_path / "upstream"
    upstream.mkdir()
    patches = ("encoder.patch_size=100", "pretrain.steps=2")
    pretrain(
        PretrainJob(make_settings(*patches), "mae", source.path, upstream), Worker(), recorder()
    )
    assert load_encoder(upstream).positions.shape == (1, 51, 32)
    done = run(LINEAR, *patches, "transfer.epochs=1", upstream=upstream)
    assert done.model.encoder.signal.tokens == 50
    with pytest.raises(BenchmdError, match=r"differs: patch_size is 100 there and 25 here\. Use"):
        run(LINEAR, upstream=upstream)
    with pytest.raises(BenchmdError, match=r"encoder\.patch_size is 30, which does not divide"):
        run(LINEAR, "encoder.patch_size=30", upstream=upstream)


def test_the_modalitys_own_patches_may_be_named(run, pretrained):
    same = ("encoder.dropout=0.1", "transfer.epochs=1")
    one = run(LINEAR, *same, upstream=pretrained)
    other = run(LINEAR, *same, "encoder.patch_size=25", upstream=pretrained)
    assert sha256(one.folder / MODEL) == sha256(other.folder / MODEL)


def keep_last(best, auroc, epoch, weights):
    best.auroc, best.epoch, best.weights = auroc, epoch, weights()


def test_fine_tuning_starts_from_the_pretrained_encoder(run, pretrained):
    same = ("encoder.dropout=0.1", "transfer.epochs=1", "transfer.optimiser.lr=1e-12")
    expected = load_encoder(pretrained).state_dict()
    found = run(FINETUNE, *same, upstream=pretrained).model.encoder.state_dict()
    scratch = run(FINETUNE, *same).model.encoder.state_dict()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=1e-7, rtol=0)
    assert not torch.allclose(scratch["positions"], expected["positions"], atol=1e-3)


def test_frozen_encoder_is_in_eval_mode(run, pretrained, monkeypatch):
    modes, forward = [], Encoder.forward

    def watched(encoder, signals):
        modes.append((encoder.training, any(part.training for part in encoder.modules())))
        return forward(encoder, signals)

    monkeypatch.setattr(Encoder, "forward", watched)
    # With dropout the losses of two runs would differ, were it at work.
    one = run(LINEAR, "encoder.dropout=0.1", upstream=pretrained)
    again = run(LINEAR, "encoder.dropout=0.1", upstream=pretrained)
    assert modes
    assert set(modes) == {(False, False)}
    assert one.reporter.column("loss") == again.reporter.column("loss")


def test_linear_evaluation_leaves_the_encoder_as_it_was(run, pretrained):
    done = run(LINEAR, "encoder.dropout=0.1", upstream=pretrained)
    expected = load_encoder(pretrained).state_dict()
    found = done.model.encoder.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_linear_evaluation_encodes_each_record_once(run, monkeypatch):
    seen, forward = [], Encoder.forward

    def counted(encoder, signals):
        seen.append(len(signals))
        return forward(encoder, signals)

    monkeypatch.setattr(Encoder, "forward", counted)
    run(LINEAR, "transfer.epochs=5")
    assert sum(seen) == 42 + 21


def test_fine_tuning_trains_in_train_mode_and_scores_in_eval_mode(run, monkeypatch):
    modes, forward = [], Classifier.forward

    def watched(model, signals):
        modes.append((torch.is_grad_enabled(), model.training))
        return forward(model, signals)

    monkeypatch.setattr(Classifier, "forward", watched)
    run(FINETUNE)
    assert set(modes) == {(True, True), (False, False)}


@pytest.mark.parametrize(("mode", "epochs", "lr"), [(LINEAR, 60, 0.1), (FINETUNE, 12, 5e-3)])
def test_training_learns_what_can_be_learnt(run, mode, epochs, lr):
    done = run(mode, f"transfer.epochs={epochs}", f"transfer.optimiser.lr={lr}")
    losses = done.reporter.column("loss")
    assert losses[-1] < 0.8 * losses[0]
    assert done.result["validation_auroc"] > 0.65


def test_among_equal_epochs_the_first_is_best():
    best, asked = Best(), []
    for epoch, score in enumerate([0.5, 0.7, 0.7, 0.6, 0.7]):
        best.offer(score, epoch, lambda epoch=epoch: asked.append(epoch) or {"w": epoch})
    assert (best.epoch, best.score, best.weights) == (1, 0.7, {"w": 1})
    assert asked == [0, 1]  # weights are copied only where they are kept


@pytest.mark.parametrize("mode", [LINEAR, FINETUNE])
def test_the_best_epoch_is_exported_not_the_last(run, mode, monkeypatch):
    scores = [0.5, 0.9, 0.9, 0.7]
    given = iter([*scores, *scores[:2]])
    monkeypatch.setattr(TransferData, "scores", lambda *_: {"validation_auroc": next(given)})
    long = run(mode, "transfer.epochs=4")
    short = run(mode, "transfer.epochs=2")
    result = {"best_epoch": 1, "validation_auroc": 0.9, "training_records": 42}
    assert transfer_result(long.folder) == result
    assert long.reporter.column("validation_auroc") == scores
    assert sha256(long.folder / MODEL) == sha256(short.folder / MODEL)


def test_a_label_setting_trains_on_its_records_only(run, source, make_settings, monkeypatch):
    monkeypatch.setitem(LABEL_SETTINGS, "small", 2)
    changes = (FINETUNE, "transfer.labels=small", "transfer.batch_size=4")
    done = run(*changes)
    assert done.result["training_records"] == 14
    settings = make_settings(*changes)
    data = transfer_data(settings, source)
    counts = data.columns.targets[data.rows].sum(axis=0)
    assert counts.tolist() == [2] * 7
    losses, _ = slow_loop(
        source, model := fresh_classifier(source, settings), model.parameters(), settings, data.rows
    )
    assert done.reporter.column("loss") == pytest.approx(losses, abs=1e-5)


@pytest.mark.parametrize("mode", [LINEAR, FINETUNE])
def test_the_batch_shrinks_to_the_number_of_labels(run, mode):
    one = run(mode, "transfer.batch_size=42")
    other = run(mode, "transfer.batch_size=64")
    assert one.reporter.column("loss") == other.reporter.column("loss")


def test_shuffled_labels_are_a_permutation(make_catalog, splits, make_settings, monkeypatch):
    by_class = sorted(splits["train"], key=lambda record: record.target)
    catalog = make_catalog(splits | {"train": by_class})
    monkeypatch.setitem(LABEL_SETTINGS, "small", 4)
    kept = transfer_data(make_settings("transfer.labels=small"), catalog)
    shuffle = ("transfer.labels=small", "transfer.shuffle_labels=true")
    shuffled = transfer_data(make_settings(*shuffle), catalog)
    again = transfer_data(make_settings(*shuffle), catalog)
    other = transfer_data(make_settings(*shuffle, "seed=1"), catalog)
    assert shuffled.rows.tolist() == kept.rows.tolist()
    inside, before = shuffled.columns.targets[kept.rows], kept.columns.targets[kept.rows]
    assert inside.sum(axis=0).tolist() == before.sum(axis=0).tolist()
    assert (inside != before).any(axis=1).sum() > len(kept.rows) / 2
    outside = np.setdiff1d(np.arange(42), kept.rows)
    np.testing.assert_array_equal(shuffled.columns.targets[outside], kept.columns.targets[outside])
    np.testing.assert_array_equal(shuffled.columns.targets, again.columns.targets)
    assert (shuffled.columns.targets != other.columns.targets).any()
    np.testing.assert_array_equal(shuffled.validation_targets, kept.validation_targets)


@pytest.mark.parametrize("mode", [LINEAR, FINETUNE])
def test_shuffled_labels_reach_the_training(run, mode):
    kept = run(mode, "transfer.epochs=1").reporter.column("loss")
    assert run(mode, "transfer.epochs=1", "transfer.shuffle_labels=true").reporter.column(
        "loss"
    ) != pytest.approx(kept, abs=1e-6)


def test_shuffled_labels_stay_shuffled_in_a_streaming_run(source, make_settings):
    settings = make_settings(FINETUNE, "transfer.shuffle_labels=true", "execution.feed=streaming")
    data = transfer_data(settings, source)
    feed = training_feed(source, settings, Worker(), data)
    for batch in feed.epoch(16, 0):
        assert batch.targets.tolist() == data.columns.targets[batch.rows].tolist()


@pytest.mark.parametrize("mode", [LINEAR, FINETUNE])
def test_a_loss_that_is_no_number_stops_and_names_step_and_rate(run, mode, monkeypatch):
    calls = itertools.count(1)

    def wrong(*what, **task):
        return classification_loss(*what, **task) * (float("nan") if next(calls) == 5 else 1)

    for name in ("features", "selection"):
        monkeypatch.setattr(f"benchmd_ray.training.{name}.classification_loss", wrong)
    with pytest.raises(BenchmdError, match=r"NaN at step 5 with learning rate 0\.001"):
        run(mode)  # 3 steps an epoch: the second step of the second


def test_a_target_is_never_trained_on(make_catalog, splits, run):
    with pytest.raises(BenchmdError, match=r"target georgia: targets are never trained on"):
        run(catalog=make_catalog(splits, "georgia"))


def test_a_source_without_validation_records_is_refused(make_catalog, splits, run):
    with pytest.raises(BenchmdError, match=r"no record in split 'validation'"):
        run(catalog=make_catalog({"train": splits["train"]}))


def test_a_validation_split_that_cannot_be_scored_is_refused(make_catalog, splits, run):
    only = [record for record in splits["validation"] if record.target[2] == 1]
    catalog = make_catalog(splits | {"validation": only})
    with pytest.raises(BenchmdError, match=r"split validation: no class has both"):
        run(catalog=catalog)


def test_a_validation_split_that_cannot_be_scored_by_units_is_refused(make_catalog, splits, run):
    # Each scan has windows of all classes: positive ones and negative ones, but no negative scan.
    named = [
        replace(record, unit_id=f"scan {row // 7}")
        for row, record in enumerate(splits["validation"])
    ]
    catalog = make_catalog(splits | {"validation": named})
    with pytest.raises(BenchmdError, match=r"no class has both .*normal: 3 positive, 0 negative"):
        run(catalog=catalog)


@pytest.mark.parametrize("mode", [LINEAR, FINETUNE])
def test_no_model_is_exported_when_no_epoch_could_be_scored(
    source, make_settings, recorder, tmp_path, mode, monkeypatch
):
    monkeypatch.setattr(TransferData, "scores", lambda *_: {"validation_auroc": math.nan})
    job = TransferJob(make_settings(mode), source.path, tmp_path)
    with pytest.raises(BenchmdError, match=r"none of the 3 epochs has a validation AUROC"):
        transfer(job, Worker(), recorder())
    assert not (tmp_path / MODEL).exists()


@pytest.mark.parametrize("mode", [LINEAR, FINETUNE])
def test_labels_are_read_once_and_shards_hashed_by_who_starts_the_work(run, mode, monkeypatch):
    read, read_columns = [], selection.read_columns
    monkeypatch.setattr(
        selection, "read_columns", lambda *named: read.append(named[1]) or read_columns(*named)
    )
    hashed = []
    monkeypatch.setattr(Catalog, "require_unaltered", lambda *named: hashed.append(named[1]))
    done = run(mode, "transfer.epochs=1")
    assert read == ["train", "validation"]
    assert hashed == []
    launch(replace(done.job, folder=done.folder))
    assert hashed == ["train", "validation"]


@pytest.mark.parametrize("mode", [LINEAR, FINETUNE])
def test_an_epoch_is_scored_by_units_and_not_by_rows(make_catalog, splits, run, mode):
    # The two rows of a unit are of different classes and not next to each other.
    units = [f"scan {(5 * i) % 13}" for i in range(len(splits["validation"]))]
    named = [
        replace(record, unit_id=unit)
        for record, unit in zip(splits["validation"], units, strict=True)
    ]
    catalog = make_catalog(splits | {"validation": named})
    done = run(mode, "transfer.epochs=1", catalog=catalog)
    signals, targets = all_of(catalog, "validation")
    with torch.no_grad():
        scores = probabilities(done.model.eval()(signals).numpy(), "single-label")
    rows = [[i for i, own in enumerate(units) if own == unit] for unit in sorted(set(units))]
    expected = auroc(
        np.stack([targets.numpy()[own].max(axis=0) for own in rows]),
        np.stack([scores[own].max(axis=0) for own in rows]),
    )
    assert len(rows) == 13
    assert done.reporter.column("validation_auroc") == pytest.approx([expected.mean], abs=1e-6)
    assert expected.mean != pytest.approx(auroc(targets.numpy(), scores).mean, abs=1e-3)


@pytest.mark.parametrize("mode", [LINEAR, FINETUNE])
def test_a_model_holds_the_statistics_of_its_source(run, source, mode):
    assert source.statistics is not None
    done = run(mode, "transfer.epochs=1")
    assert model_description(done.folder)["statistics"] == source.statistics


@pytest.mark.parametrize("name", MODALITIES)
def test_a_step_without_gradients_holds_a_bounded_number_of_values(name):
    encoder = SimpleNamespace(signal=SIGNALS[name])
    size, values = evaluation_batch(encoder), math.prod(SIGNALS[name].input_shape)
    assert 1 <= size <= 256
    assert size * values <= 2**26
    assert size == 256 or (size + 1) * values > 2**26


def test_training_records_without_labels_are_excluded(make_catalog, splits, run):
    unknown = [
        Record(f"u{i}", "u", f"u{i}", r.signal, r.scale, r.valid_size, [-1] * 7)
        for i, r in enumerate(splits["train"][:3])
    ]
    done = run(FINETUNE, catalog=make_catalog(splits | {"train": unknown + splits["train"]}))
    assert done.result["training_records"] == 42


def test_linear_evaluation_on_several_workers_is_refused(source, make_settings, tmp_path):
    job = TransferJob(make_settings(LINEAR, "execution.workers=2"), source.path, tmp_path)
    with pytest.raises(BenchmdError, match=r"runs on one worker: use --set execution\.workers=1"):
        require_transferable(job, source)


def test_an_unfinished_upstream_is_refused(run, tmp_path):
    with pytest.raises(BenchmdError, match=r"holds no exported model .* has not finished"):
        run(upstream=tmp_path)


def copy_of(folder, new, **description):
    new.mkdir()
    (new / MODEL).write_bytes((folder / MODEL).read_bytes())
    content = read_hashed_json(folder / DESCRIPTION, "")
    write_hashed_json(new / DESCRIPTION, content | description)
    return new


def test_an_upstream_of_another_signal_is_refused(run, pretrained, tmp_path):
    foreign = copy_of(pretrained, tmp_path / "foreign", signal=asdict(SIGNALS["eeg"]))
    with pytest.raises(BenchmdError, match=r"pretrained on signals of eeg, .* has ecg: name a"):
        run("encoder.dropout=0.1", upstream=foreign)
    faster = asdict(replace(SIGNALS["ecg"], rate=250.0))
    other = copy_of(pretrained, tmp_path / "other", signal=faster)
    with pytest.raises(BenchmdError, match=r"signals of ecg, .* has ecg with another rate: name"):
        run("encoder.dropout=0.1", upstream=other)


def test_a_signal_that_cannot_be_is_damage(run, pretrained, tmp_path):
    impossible = {**asdict(SIGNALS["ecg"]), "input_shape": [12, 10**9]}
    damaged = copy_of(pretrained, tmp_path / "damaged", signal=impossible)
    with pytest.raises(Damaged, match="the central 1000000000 of 5000 stored values along time"):
        run("encoder.dropout=0.1", upstream=damaged)


@pytest.mark.parametrize("augmentation", [{"shap": True}, {"shape": "yes"}, {"flip": 2.0}])
def test_an_augmentation_that_cannot_be_is_damage(run, pretrained, tmp_path, augmentation):
    damaged = copy_of(pretrained, tmp_path / "damaged", augmentation=augmentation)
    with pytest.raises(Damaged, match=r"model\.json.*augmentation"):
        run("encoder.dropout=0.1", upstream=damaged)


def test_an_upstream_of_another_architecture_is_refused(run, pretrained):
    with pytest.raises(BenchmdError, match=r"differs: heads is 2 there and 1 here, head_dim"):
        run(
            "encoder.dropout=0.1",
            "encoder.heads=1",
            "encoder.head_dim=32",
            upstream=pretrained,
        )


def test_weights_that_do_not_fit_are_named(run, pretrained, tmp_path):
    size = json.loads((pretrained / DESCRIPTION).read_text())["encoder"] | {"mlp": 48}
    wrong = copy_of(pretrained, tmp_path / "wrong", encoder=size)
    with pytest.raises(BenchmdError, match=r"mlp\.0\.weight is \(64, 32\), expected \(48, 32\)"):
        run("encoder.dropout=0.1", "encoder.mlp=48", upstream=wrong)


@dataclass(frozen=True)
class Unordered:
    """A feed that gives its rows in some order, with padding."""

    order: tuple[int, ...]

    def ordered(self, batch_size):
        for rows in np.array_split(np.array(self.order), 3):
            signals = torch.from_numpy(np.where(rows < 0, 99, rows)).float()[:, None]
            yield Batch(rows, signals, torch.zeros(len(rows), 7, dtype=torch.int8))


@pytest.mark.parametrize("held", [1, 40, 10**6])  # bytes that wait on the device
def test_outputs_are_collected_in_row_order_without_padding(held, monkeypatch):
    monkeypatch.setattr("benchmd_ray.training.collect.HELD_BYTES", held)
    feed = Unordered((4, 0, 6, -1, 1, 5, -1, -1, 3, 2))
    found = collect(lambda x: torch.cat([x, x * 10], dim=1), feed, 20)
    assert found.tolist() == [[row, row * 10] for row in range(7)]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_outputs_are_collected_in_row_order(source, world, monkeypatch):
    signals, _ = all_of(source, "train")
    expected = signals.flatten(1)[:, :5].numpy()
    feeds = [
        resident_feed(source, "train", seed=0, worker=Worker(rank=rank, world=world))
        for rank in range(world)
    ]
    steps = [list(feed.ordered(20)) for feed in feeds]
    gathered = iter(
        part
        for batches in zip(*steps, strict=True)
        for part in (
            torch.cat([b.signals.flatten(1)[:, :5] for b in batches]),
            torch.cat([torch.from_numpy(b.rows) for b in batches]),
        )
    )
    monkeypatch.setattr("benchmd_ray.training.collect.alone", lambda: False)
    monkeypatch.setattr("benchmd_ray.training.collect.gather", lambda x: next(gathered))
    found = collect(lambda x: x.flatten(1)[:, :5], feeds[0], 20)
    np.testing.assert_array_equal(found, expected)
