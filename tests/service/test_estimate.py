"""Estimates: operations, parameters and bytes counted, times from measured runs."""

import itertools
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from kinds import MODALITIES, SIGNALS
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmd_ray.benchmarks.medmnist.recipes import medmnist_settings
from benchmd_ray.data.cards import POLICIES, cards, dataset_card, kind_of
from benchmd_ray.data.records import Record
from benchmd_ray.files.atomic import digest
from benchmd_ray.files.integrity import line, write_hashed_json
from benchmd_ray.models.encoder import Encoder, make_encoder
from benchmd_ray.models.heads import Classifier, classification_head
from benchmd_ray.runs.store import read_run
from benchmd_ray.service import cost
from benchmd_ray.service import spot as machine
from benchmd_ray.service.cost import Inputs, labelled_rows
from benchmd_ray.service.datasets import PlannedDataset, card_rows
from benchmd_ray.service.estimate import (
    ASSUMED_TFLOPS,
    HEAD_STEP_SECONDS,
    Estimator,
    Measured,
    Spot,
    measured_runs,
    median_start,
    nearest,
    units_per_second,
)
from benchmd_ray.service.execute import pretrain_run, transfer_run
from benchmd_ray.service.plan import Choice, make_plan
from benchmd_ray.service.spot import measure_here
from benchmd_ray.service.steps import Evaluate, Export, Finetune, Linear, Pretrain
from benchmd_ray.settings.definition import (
    ENCODERS,
    EncoderSettings,
    PretrainSettings,
    Settings,
    TransferSettings,
    as_dict,
    load_settings,
    updated,
)
from benchmd_ray.ssl import METHODS, method_named

TINY = Settings(encoder=ENCODERS["tiny"])
ECG = kind_of("ecg")
PTB = PlannedDataset(
    "ptb-xl", ECG, "source", "clean", {"train": 100, "validation": 30}, ("validation",)
)


def work_of(step, technique, settings, source, target=None):
    return step.work(Inputs(technique, settings, source, target))


def disk_of(step, technique, settings, source):
    return step.disk(Inputs(technique, settings, source))


def counted(work):
    """Operations as PyTorch counts them, attention as plain matrix products."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


@pytest.mark.parametrize("size", ["tiny", "vit-tiny"])
@pytest.mark.parametrize("name", MODALITIES)
def test_operations_of_the_encoder_are_those_that_pytorch_counts(name, size):
    modality, encoder = SIGNALS[name], ENCODERS[size]
    with torch.device("meta"):
        model, signals = Encoder(modality, encoder), torch.empty(3, *modality.input_shape)
        forward = counted(lambda: model(signals))
        training = counted(lambda: model(signals).sum().backward())
    assert 3 * cost.forward_flops(modality, encoder) == forward
    assert 3 * cost.training_flops(modality, encoder) == training


@pytest.mark.parametrize("technique", METHODS)
@pytest.mark.parametrize("name", ["ecg", "derm"])
def test_operations_of_pretraining_are_those_that_pytorch_counts(name, technique):
    modality, encoder = SIGNALS[name], ENCODERS["tiny"]
    method = method_named(technique)(Encoder(modality, encoder), PretrainSettings())
    draws = method.draw(3, torch.Generator().manual_seed(0))
    signals = torch.randn(3, *modality.input_shape)
    real = counted(lambda: method(signals, draws).backward())
    assert 3 * cost.pretrain_flops(modality, encoder, technique, 3) == real


@pytest.mark.parametrize("size", ENCODERS)
@pytest.mark.parametrize("name", ["eeg", "fundus", "ldct"])
def test_parameters_are_those_of_the_modules(name, size):
    modality, encoder = SIGNALS[name], ENCODERS[size]
    with torch.device("meta"):
        held = Encoder(modality, encoder)
        modules = {m: method_named(m)(held, PretrainSettings()) for m in METHODS}
        modules[3] = Classifier(held, 3)
    own = cost.encoder_parameters(modality, encoder)
    assert own == sum(p.numel() for p in held.parameters())
    for kind, module in modules.items():
        head = cost.head_parameters(modality, encoder, kind)
        assert own + head == sum(p.numel() for p in module.parameters())


PATCHES = [("ecg", 100), ("derm", 56), ("ldct", 32)]


@pytest.mark.parametrize(("name", "patch"), PATCHES)
def test_operations_and_parameters_follow_the_size_of_the_patches(name, patch):
    modality, encoder = SIGNALS[name], replace(ENCODERS["tiny"], patch_size=patch)
    with torch.device("meta"):
        model, signals = Encoder(modality, encoder), torch.empty(3, *modality.input_shape)
        assert 3 * cost.training_flops(modality, encoder) == counted(
            lambda: model(signals).sum().backward()
        )
        modules = {m: method_named(m)(model, PretrainSettings()) for m in METHODS}
    own = cost.encoder_parameters(modality, encoder)
    assert own == sum(p.numel() for p in model.parameters())
    assert own != cost.encoder_parameters(modality, ENCODERS["tiny"])
    for kind, module in modules.items():
        head = cost.head_parameters(modality, encoder, kind)
        assert own + head == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("technique", METHODS)
def test_operations_of_pretraining_follow_the_size_of_the_patches(technique):
    modality, encoder = SIGNALS["ecg"], replace(ENCODERS["tiny"], patch_size=100)
    method = method_named(technique)(Encoder(modality, encoder), PretrainSettings())
    draws = method.draw(3, torch.Generator().manual_seed(0))
    real = counted(lambda: method(torch.randn(3, 12, 5000), draws).backward())
    assert 3 * cost.pretrain_flops(modality, encoder, technique, 3) == real


class Lonely(torch.nn.Module):
    """An encoder of your own: one matrix product."""

    def __init__(self, modality, settings):
        super().__init__()
        self.width = settings.width
        self.needs_values = settings.options["of"]
        self.linear = torch.nn.Linear(modality.input_shape[-1], settings.width, bias=False)

    def forward(self, signals):
        if self.needs_values:
            assert signals.max().item() == 0
        return self.linear(signals).mean(dim=1)


@pytest.mark.parametrize("values", [False, True])
def test_a_network_of_ones_own_is_counted_by_running_it(monkeypatch, values):
    monkeypatch.setattr("benchmd_ray.models.encoder.make_encoder", Lonely)
    own = EncoderSettings(width=8, network="mine:Lonely", options={"of": values})
    modality = SIGNALS["eeg"]
    assert cost.forward_flops(modality, own) == 2 * 2 * 3750 * 8
    assert cost.training_flops(modality, own) == 3 * 2 * 2 * 3750 * 8
    assert cost.encoder_parameters(modality, own) == 3750 * 8


@pytest.mark.parametrize(
    ("name", "network", "options"),
    [
        ("breastmnist", "resnet18", {}),
        ("breastmnist", "resnet50", {"resize": 64, "width": 8}),
        ("organmnist3d", "resnet18-acs", {"width": 8}),
        ("organmnist3d", "resnet18-2.5d", {"width": 8}),
        ("organmnist3d", "resnet50-3d", {"width": 8}),
    ],
)
def test_a_resnet_has_the_parameters_operations_and_bytes_of_its_module(name, network, options):
    modality, signal = kind_of(name), kind_of(name).signal
    classes = len(modality.task.classes)
    settings = updated(medmnist_settings(modality, network), {"encoder": {"options": options}})
    encoder, features = settings.encoder, (512 if "18" in network else 2048)
    features = features * options.get("width", 64) // 64
    with torch.device("meta"):
        model = Classifier(make_encoder(signal, encoder), classes).eval()
        signals = torch.empty(2, *signal.input_shape)
        forward = counted(lambda: model.encoder(signals))
    assert 2 * cost.forward_flops(signal, encoder) == forward
    held = sum(p.numel() for p in model.parameters())
    head = cost.head_parameters(signal, encoder, classes)
    assert head == (features + 1) * classes
    assert cost.encoder_parameters(signal, encoder) + head == held
    source = PlannedDataset(
        name, modality, "source", "clean", {"train": 40, "validation": 8, "test": 9}, ("test",)
    )
    work = work_of(Finetune(), "scratch", settings, source)
    # An epoch trains on 40 (three passes each) and encodes 8; 9 are scored at the end.
    assert (work.unit_flops, work.once_flops) == ((3 * 40 + 8) * forward / 2, 9 * forward / 2)
    assert work.units == 100
    assert disk_of(Finetune(), "scratch", settings, source).kept >= 4 * held
    assert disk_of(Finetune(), "scratch", settings, source).working == 3 * 4 * 4 * held


def test_sizes_of_resnets_are_the_published_ones():
    """Those of torchvision's documentation, but for its classifier of 1,000 classes."""
    modality = kind_of("breastmnist-224")
    signal = modality.signal
    for network, features, parameters, giga in (
        ("resnet18", 512, 11_689_512, 1.81),
        ("resnet50", 2048, 25_557_032, 4.09),
    ):
        encoder = medmnist_settings(modality, network).encoder
        assert cost.encoder_parameters(signal, encoder) == parameters - 1000 * (features + 1)
        assert cost.forward_flops(signal, encoder) / 2e9 == pytest.approx(giga, rel=0.01)


def test_labels_of_a_setting_are_limited_by_each_class():
    source = replace(PTB, positives=(50, 3, 10, 0, 20, 9, 8))
    rows = {
        labels: labelled_rows(TransferSettings("finetune", labels), source)
        for labels in ("small", "medium", "full")
    }
    assert rows == {"small": 8 + 3 + 8 + 0 + 8 + 8 + 8, "medium": 100, "full": 100}


def test_an_epoch_of_finetuning_trains_on_the_labels_and_encodes_the_validation_split():
    settings = updated(TINY, {"transfer": {"mode": "finetune", "epochs": 7}})
    work = work_of(Finetune(), "mae", settings, PTB)
    one, three = (
        f(SIGNALS["ecg"], TINY.encoder) for f in (cost.forward_flops, cost.training_flops)
    )
    assert (work.units, work.batch) == (7, 64)
    assert work.unit_flops == 100 * three + 30 * one
    assert work.once_flops == 30 * one  # its own source is scored


def test_linear_evaluation_encodes_once_and_then_steps_its_head():
    work = work_of(Linear(), "mae", TINY, PTB)
    assert work.unit_flops == 0
    assert work.unit_head_steps == 2
    assert work.once_flops == (100 + 30) * cost.forward_flops(SIGNALS["ecg"], TINY.encoder)


def test_a_hidden_layer_costs_what_pytorch_counts():
    settings = updated(TINY, {"transfer": {"hidden": 8}})
    work, linear = work_of(Linear(), "mae", settings, PTB), work_of(Linear(), "mae", TINY, PTB)
    classes = len(ECG.task.classes)
    head = classification_head(TINY.encoder.width, classes, 8)
    features = torch.zeros(100, TINY.encoder.width)
    assert work.unit_flops == counted(lambda: head(features).sum().backward())
    assert work.small
    assert not work.alike(linear)
    weights = sum(value.numel() for value in head.parameters())
    assert weights == cost.head_parameters(SIGNALS["ecg"], TINY.encoder, classes, 8)
    more = 4 * (weights - cost.head_parameters(SIGNALS["ecg"], TINY.encoder, classes))
    disks = [disk_of(Linear(), "mae", chosen, PTB).kept for chosen in (settings, TINY)]
    assert disks[0] - disks[1] == more
    finished = Measured("a", "cpu", work, 2.0, 30.0)
    estimator = Estimator("cpu", (finished,), tflops=None)
    assert estimator.empty  # it says nothing of training an encoder
    assert median_start([finished]) == 0.0
    once = work.once_flops / (ASSUMED_TFLOPS["cpu"] * 1e12)
    assert estimator.seconds(work) == pytest.approx(work.units / 2 + once)
    steps = linear.units * linear.unit_head_steps * HEAD_STEP_SECONDS
    assert estimator.seconds(linear) == pytest.approx(steps + once)


def test_scoring_a_target_encodes_its_scored_splits():
    target = PlannedDataset(
        "georgia", ECG, "target", "clean", {"test": 40, "train": 999}, ("test",)
    )
    work = work_of(Evaluate(), "mae", TINY, PTB, target)
    assert (work.units, work.once_flops) == (
        0,
        40 * cost.forward_flops(SIGNALS["ecg"], TINY.encoder),
    )


# Records of datasets


@pytest.mark.parametrize("policy", POLICIES)
def test_every_card_says_how_many_records_a_plan_counts_on(policy):
    for card in cards().values():
        rows = card_rows(card, policy)
        assert set(card.evaluation_splits[policy]) <= rows.keys()
        assert ("train" in rows) == (card.role == "source")
        assert all(count > 0 for count in rows.values())


@pytest.mark.parametrize(
    ("name", "policy", "rows"),
    [  # tables 7, 8, 10 and 12 of the paper; the sizes of the official splits
        ("ptb-xl", "released", {"train": 17_476, "validation": 4_361}),
        ("shhs", "released", {"train": 4_071_139, "validation": 1_015_327}),
        ("vindr-mammo", "clean", {"train": 16_000, "validation": 4_000}),
        ("aptos-2019", "clean", {"test": 3_662}),
        ("mimic-cxr", "clean", {"train": 8_000, "validation": 1_000, "test": 1_000}),
        ("chexpert", "clean", {"test": 902}),
        ("pathmnist-64", "clean", {"train": 89_996, "validation": 10_004, "test": 7_180}),
        ("lndb", "clean", {"test": 236 * 14}),
    ],
)
def test_records_from_cards(name, policy, rows):
    assert card_rows(dataset_card(name), policy) == rows


# Speeds


def run_folder(store, name, *, kind="pretrain", technique="mae", device="cpu", rate=4.0, **more):
    """A run as pretraining or transfer leaves it, with the speed that it reports."""
    settings = more.get("settings", TINY)
    determinants = {"catalog": more.get("catalog", "abc"), "name": name}
    folder = store / f"{name}-{digest(determinants)[:12]}"
    folder.mkdir(parents=True)
    about = {
        "kind": kind,
        "technique": technique,
        "setting": "pretrain" if kind == "pretrain" else settings.transfer.setting,
        "device": device,
        "modality": more.get("modality", "ecg"),
        "modality_card": asdict(kind_of(more.get("modality", "ecg"))),
        "source": more.get("source", "ptb-xl"),
        "policy": "clean",
        **{"seed": 0, "protocol": "", "raw": [1, 1], "options": {}, "provenance": "whole"},
        "settings": as_dict(settings),
        "determinants": determinants,
    }
    write_hashed_json(folder / "run.json", about)
    lines = [{"done": 20 * (n + 1), "per_second": rate / (10 if n == 0 else 1)} for n in range(4)]
    text = "".join(map(line, lines))
    (folder / "metrics.jsonl").write_text(text, "utf-8")
    if "seconds" in more:
        done = {"finished": "now", "seconds": more["seconds"], "model_sha256": None}
        write_hashed_json(folder / "done.json", done, of=folder)
    return folder


@pytest.mark.parametrize(
    ("lines", "rate"),
    [
        ([], None),
        ([(20, 2.0)], 2.0),
        ([(20, 0.1), (40, 4.0)], 4.0),  # the first line compiles
        ([(20, 9.0), (40, 2.0), (60, 4.0)], 40 / (10 + 5)),
        ([(20, 9.0), (40, 1.0), (100, 4.0)], 80 / (20 + 15)),  # lines of unlike length
        ([(20, 9.0), (40, 0.0), (60, 5.0)], 5.0),  # too quick to measure
    ],
)
def test_the_speed_of_a_run_is_its_units_over_their_time(lines, rate):
    held = [{"done": done, "per_second": speed} for done, speed in lines]
    assert units_per_second(held) == (None if rate is None else pytest.approx(rate))


def test_a_run_like_a_measured_one_takes_its_speed(tmp_path):
    settings = updated(TINY, {"pretrain": {"steps": 80}})
    run_folder(tmp_path, "pretrain-ecg-mae-1", rate=4.0, settings=settings, seconds=23.0)
    found = measured_runs(tmp_path)
    assert [m.units_per_second for m in found] == [4.0]
    longer = updated(TINY, {"pretrain": {"steps": 800}})
    estimator = Estimator("cpu", tuple(found))
    work = work_of(Pretrain(), "mae", longer, PTB)
    assert estimator.seconds(work) == pytest.approx(800 / 4.0 + (23.0 - 80 / 4.0))
    assert "measured speed of runs like them" in estimator.basis()


def test_other_runs_are_scaled_by_their_operations(tmp_path):
    run_folder(tmp_path, "pretrain-ecg-mae-1", rate=4.0)
    estimator = Estimator("cpu", tuple(measured_runs(tmp_path)))
    ecg = SIGNALS["ecg"]
    flops = {m: cost.pretrain_flops(ecg, TINY.encoder, m, 64) for m in METHODS}
    paper = Settings()
    flops["larger"] = cost.pretrain_flops(ecg, paper.encoder, "mae", 64)
    steps = TINY.pretrain.steps
    for name, technique, settings in (
        ("e-mix", "e-mix", TINY),
        ("shed", "shed", TINY),
        ("larger", "mae", paper),
    ):
        expected = steps / 4.0 * flops[name] / flops["mae"]
        assert estimator.seconds(work_of(Pretrain(), technique, settings, PTB)) == pytest.approx(
            expected
        )
    assert "scaled by floating-point operations from 1 measured run on cpu" in estimator.basis()


def test_half_a_device_takes_twice_as_long_for_what_it_computes():
    estimator = Estimator("cuda", tflops=1.0)
    work = work_of(Pretrain(), "mae", TINY, PTB)
    assert estimator.seconds(work, 0.5) == pytest.approx(2 * estimator.seconds(work))


def test_a_stated_speed_replaces_what_was_measured(tmp_path):
    run_folder(tmp_path, "pretrain-ecg-mae-1", rate=4.0)
    estimator = Estimator("cpu", tuple(measured_runs(tmp_path)), tflops=2.0)
    work = work_of(Pretrain(), "mae", TINY, PTB)
    per_step = 64 * cost.pretrain_flops(SIGNALS["ecg"], TINY.encoder, "mae", 64)
    assert estimator.seconds(work) == pytest.approx(100_000 * per_step / 2e12)
    assert estimator.basis() == "2 TFLOP/s sustained by each device, as stated."


def test_runs_on_another_kind_of_device_count_for_nothing(tmp_path):
    run_folder(tmp_path, "pretrain-ecg-mae-1", device="cpu")
    estimator = Estimator("cuda", tuple(measured_runs(tmp_path)))
    assert estimator.empty
    assert estimator.seconds(work_of(Pretrain(), "mae", TINY, PTB)) > 0
    assert "this is only an assumption, since no run on cuda is measured" in estimator.basis()


def test_several_workers_share_the_work():
    alone = work_of(Pretrain(), "mae", TINY, PTB)
    four = work_of(Pretrain(), "mae", updated(TINY, {"execution": {"workers": 4}}), PTB)
    estimator = Estimator("cpu", spot=Spot("cpu", 1e9, 3e9))
    assert estimator.seconds(alone) == pytest.approx(4 * estimator.seconds(four))


def test_forward_passes_take_the_speed_of_forward_passes_where_it_is_measured():
    estimator = Estimator("cpu", spot=Spot("cpu", 1e9, 3e9))
    work = work_of(Evaluate(), "mae", TINY, PTB)
    assert estimator.seconds(work) == pytest.approx(work.once_flops / 3e9)
    assert "a few seconds of training on this machine" in estimator.basis()


def test_the_nearest_runs_share_the_encoder_before_the_modality():
    def run(name, **changes):
        work = replace(work_of(Pretrain(), "mae", TINY, PTB), **changes)
        return Measured(name, "cpu", work, 1.0)

    asked = work_of(Pretrain(), "mae", TINY, PTB)
    found = [
        run("other encoder", encoder=ENCODERS["paper"]),
        run("other modality", modality="derm"),
        run("other modality, finetune", modality="derm", step="finetune"),
    ]
    assert [m.run for m in nearest(found, asked)] == ["other modality"]
    assert [m.run for m in nearest(found[:1], asked)] == ["other encoder"]
    assert nearest([], asked) == []


def test_a_head_that_was_measured_takes_its_time(tmp_path):
    settings = updated(TINY, {"transfer": {"epochs": 80}})
    known = [replace(PTB, digest="abc")]
    run_folder(tmp_path, "transfer-ecg-mae-linear-1", kind="transfer", settings=settings)
    assert measured_runs(tmp_path) == []  # nobody says how many records it had
    found = measured_runs(tmp_path, known)
    estimator = Estimator("cpu", tuple(found), tflops=None)
    larger = replace(PTB, rows={"train": 1000, "validation": 30})
    per_step = 1 / (4.0 * 2)  # 4 epochs a second, of two steps each
    work = replace(work_of(Linear(), "mae", settings, larger), once_flops=0.0)
    assert estimator.seconds(work) == pytest.approx(80 * 16 * per_step)
    assert "linear head" not in estimator.basis()


def test_the_assumed_time_of_a_heads_steps_is_said():
    estimator = Estimator("cuda", tflops=1.0)
    linear = replace(work_of(Linear(), "mae", TINY, PTB), once_flops=0.0)
    assert estimator.seconds(linear) == pytest.approx(linear.units * 2 * 1e-3)
    estimator.seconds(work_of(Finetune(), "mae", TINY, PTB))
    assert estimator.basis() == (
        "1 TFLOP/s sustained by each device, as stated. 1 entry: 1 ms for a step of a linear head; "
        "this is only an assumption, since none on cuda is measured."
    )


def test_a_damaged_run_is_no_measurement(tmp_path):
    run_folder(tmp_path, "pretrain-ecg-mae-1")
    odd = run_folder(tmp_path, "pretrain-ecg-mae-2")
    write_hashed_json(odd / "run.json", {"kind": "pretrain"})
    (measured,) = measured_runs(tmp_path)
    assert measured.run.startswith("pretrain-ecg-mae-1-")
    assert measured_runs(tmp_path / "none") == []


@pytest.mark.parametrize("source", ["x" * 300, "../../elsewhere", "no\0name"])
def test_the_name_of_a_source_is_no_path(tmp_path, source):
    (run_folder(tmp_path, "pretrain-ecg-mae-1", source=source) / "predictions").mkdir()
    (tmp_path / "elsewhere.parquet").write_text("not to be read")
    assert len(measured_runs(tmp_path)) == 1


@pytest.mark.slow
def test_a_measurement_here_is_the_speed_of_training_steps(monkeypatch):
    ticks, threads = itertools.count(step=0.25), []

    def clock():
        threads.append(torch.get_num_threads())
        return next(ticks)

    monkeypatch.setattr(machine.time, "perf_counter", clock)
    assignments = ["encoder=tiny", "pretrain.batch_size=4", "execution.cpus_per_worker=2"]
    settings, modality = load_settings(assignments=assignments), SIGNALS["eeg"]
    before = torch.get_num_threads()
    spot = measure_here(
        kind_of("eeg"), settings, "cpu", seconds=2.0
    )  # four steps of each kind, by the clock
    assert spot.training == 4 * cost.training_flops(modality, settings.encoder) / 0.25
    assert spot.forward == 4 * cost.forward_flops(modality, settings.encoder) / 0.25
    assert (len(threads), set(threads)) == (2 * 2 * 4, {2})
    assert torch.get_num_threads() == before
    assert measure_here(kind_of("eeg"), replace(settings, seed=7), "cpu", seconds=2.0) is spot
    assert len(threads) == 2 * 2 * 4  # another seed is no other network
    large = load_settings(assignments=["pretrain.batch_size=64"])
    spot = measure_here(ECG, large, "cpu", seconds=0.0)  # a few examples of a step are enough
    assert 0 < spot.training * 0.25 <= machine.FLOPS["cpu"]


# Real runs


def ecg_records(count, split):
    draw = np.random.default_rng(count)
    for row in range(count):
        signal = draw.normal(0, 200, (12, 5000)).astype(np.int16)
        target = np.eye(7, dtype=int)[row % 7].tolist()
        name = f"{split}{row}"
        yield Record(name, name, name, signal, 0.001, (5000,), target)


@pytest.fixture
def catalog(write_catalog):
    """A small source on disk."""
    card = dataset_card("ptb-xl")
    splits = {s: [list(ecg_records(n, s))] for s, n in (("train", 21), ("validation", 14))}
    return write_catalog(card, splits).path


def test_estimates_of_real_runs_are_what_these_took(catalog, tmp_path):
    store = tmp_path / "runs"
    assignments = (
        "encoder=tiny",
        "execution.device=cpu",
        "execution.log_every=2",
        "pretrain.steps=6",
        "pretrain.batch_size=4",
        "transfer.epochs=3",
    )
    choice = Choice(
        catalogs=(catalog,),
        techniques=("mae", "shed"),
        settings=("finetune-small",),
        assignments=assignments,
    )
    first = make_plan(choice, store, measure=False)
    assert "only an assumption" in first.basis
    settings = {item.name: item.settings for item in first.items}
    name = "ptb-xl/clean/mae/seed-0"
    pretrained = pretrain_run("mae", catalog, store, settings[f"{name}/pretrain"])
    tuned = transfer_run(
        catalog, store, settings[f"{name}/finetune-small"], upstream=pretrained.folder
    )
    plan = make_plan(choice, store)
    items = {item.name.removeprefix("ptb-xl/clean/"): item for item in plan.items}
    took = {run.folder: read_run(run.folder).done["seconds"] for run in (pretrained, tuned)}
    mae, small = items["mae/seed-0/pretrain"], items["mae/seed-0/finetune-small"]
    # The first steps, whose speed is not counted, may have been the faster ones.
    assert mae.seconds == pytest.approx(took[pretrained.folder], rel=0.1)
    scoring = small.seconds - took[tuned.folder]  # of its own source, which no run reports
    assert 0 < scoring < took[tuned.folder]
    assert "measured speed of runs like them" in plan.basis
    # What lies on the disk is what was foreseen, but for a few small files.
    for item, run in ((mae, pretrained), (small, tuned)):
        real = sum(path.stat().st_size for path in run.folder.rglob("*") if path.is_file())
        weights = (run.folder / "model.safetensors").stat().st_size
        assert weights < item.disk_bytes
        assert abs(item.disk_bytes - real) < 30_000


def test_a_plan_that_nothing_is_known_for_measures_this_machine(catalog, tmp_path, monkeypatch):
    asked = []

    def spot(modality, settings, device):
        asked.append((modality, settings.encoder, device))
        return Spot(device, 1e9, 1e9)

    monkeypatch.setattr("benchmd_ray.service.spot.measure_here", spot)
    monkeypatch.setattr("benchmd_ray.service.plan._own_device", lambda: "cpu")
    choice = Choice(catalogs=(catalog,), assignments=("encoder=tiny",))
    plan = make_plan(choice, tmp_path / "runs")
    assert asked == [(ECG, ENCODERS["tiny"], "cpu")]
    assert "this machine" in plan.basis
    make_plan(choice, tmp_path / "runs", tflops=1.0)
    make_plan(choice, tmp_path / "runs", device="cuda")  # this machine has none
    make_plan(choice, tmp_path / "runs", measure=False)
    assert len(asked) == 1


def test_disk_counts_three_checkpoints_of_weights_and_both_moments():
    for step, copies in ((Pretrain(), 3), (Finetune(), 4), (Linear(), 0), (Export(), 0)):
        disk = disk_of(step, "mae", TINY, PTB)
        weights = cost.encoder_parameters(SIGNALS["ecg"], TINY.encoder)
        head = "mae" if not step.scores else 7
        weights += cost.head_parameters(SIGNALS["ecg"], TINY.encoder, head)
        assert disk.working == 3 * copies * weights * 4
        assert disk.kept > weights * 4


@pytest.mark.parametrize("step", [Pretrain(), Finetune()])
def test_disk_follows_what_is_kept(step):
    def of(keep):
        return disk_of(step, "mae", updated(TINY, {"execution": {"keep": keep}}), PTB)

    models, everything, little = map(of, ("models", "checkpoints", "predictions"))
    assert everything.kept + everything.working == models.kept + models.working
    assert everything.kept - models.kept == models.working // 3 * 2
    assert little.kept + little.working == models.kept + models.working
    assert little.kept < 100_000 + 110 * TINY.pretrain.steps // 20


def test_a_run_measured_on_a_share_of_a_gpu_is_as_fast_there_and_faster_on_a_whole_one():
    work = replace(work_of(Pretrain(), "mae", TINY, PTB), units=100)
    measured = (Measured("a", "cuda", work, 2.0, 0.0, share=0.25),)
    for about in (work, replace(work, batch=work.batch + 1)):  # measured, and scaled from it
        estimator = Estimator("cuda", measured)
        assert estimator.seconds(about, 0.25) == pytest.approx(50)
        assert estimator.seconds(about) == pytest.approx(12.5)
