"""Detection as released, searched detectors and detectors from outside, on a small run."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import numpy as np
import pytest
import torch
from brief import few_faults, train_briefly
from sklearn.metrics import average_precision_score, roc_auc_score

from benchmd_ray.benchmarks.ood import (
    AS_RELEASED,
    DETECTION,
    TUNED,
    detect,
    methods,
    released,
    search,
)
from benchmd_ray.benchmarks.ood import sets as sets_module
from benchmd_ray.benchmarks.ood.methods.method import Bank, Calibration, Head, Seen
from benchmd_ray.benchmarks.ood.network import Network
from benchmd_ray.benchmarks.ood.observe import NetworkObserver
from benchmd_ray.benchmarks.ood.released import (
    LOGISTIC,
    MACHINE,
    RECONSTRUCTION,
    RELEASED,
    THRESHOLD,
    balanced,
)
from benchmd_ray.benchmarks.ood.scores import score_rows
from benchmd_ray.benchmarks.ood.search import DetectorTrial, best, by_detector, space
from benchmd_ray.benchmarks.ood.sets import inside
from benchmd_ray.benchmarks.ood.table import IN, about, thresholds
from benchmd_ray.data.batches import Worker
from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.evaluation import Asked
from benchmd_ray.evaluation.registry import asked_name, evaluations_asked
from benchmd_ray.extensions import plugins
from benchmd_ray.runs.predictions import read_predictions
from benchmd_ray.service.execute import evaluate_run, transfer_run
from benchmd_ray.service.scored import is_scored
from benchmd_ray.settings.definition import Settings, updated

SMALL = updated(
    Settings(),
    {
        "encoder": {
            **{"width": 16, "depth": 4, "heads": 2, "head_dim": 8, "mlp": 16},
            "patch_size": 250,
        },
        "transfer": {"mode": "finetune", "labels": "full", "epochs": 1, "batch_size": 16},
    },
)


def kinds(records, seed, gap=3.0):
    """Values of two quantities and kinds: out is larger in the first."""
    rng = np.random.default_rng(seed)
    out = np.repeat([False, True], records)
    values = rng.normal(size=(2 * records, 2)) + gap * out[:, None] * [1, 0]
    return values.astype(np.float32), out


@pytest.mark.parametrize(
    ("recipe", "gap"), [(THRESHOLD, 3.0), (MACHINE, 3.0), (LOGISTIC, 3.0), (RECONSTRUCTION, 3.0)]
)
def test_heads_learn_what_tells_both_kinds_apart(recipe, gap):
    values, out = kinds(150, 0, gap)
    first = values[:, :1] if recipe in (THRESHOLD, RECONSTRUCTION) else values
    head, accuracy = recipe.trained((first, out), (first, out))
    with torch.no_grad():
        rejected = (head.eval()(torch.from_numpy(first)) > 0).numpy()
    assert accuracy == pytest.approx((rejected == out).mean())
    assert accuracy > 0.85
    again, _ = recipe.trained((first, out), (first, out))
    for one, other in zip(head.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_threshold_starts_midway_and_the_quadratic_head_as_released():
    values, out = (torch.from_numpy(np.asarray(each, np.float32)) for each in kinds(50, 0))
    head = THRESHOLD.head(values[:, :1], out)
    middle = (values[out == 1, 0].mean() + values[out == 0, 0].mean()) / 2
    assert head(values[:1, :1]).item() == pytest.approx(float(values[0, 0] - middle), abs=1e-6)
    quadratic = RECONSTRUCTION.head(values, out)
    assert quadratic(torch.tensor([[2.0]])).item() == pytest.approx(2.0**2 - 0.5)


def test_as_many_records_of_either_kind_are_drawn_by_a_fixed_seed():
    one, other = np.arange(10.0), np.arange(4.0)
    first, second = balanced(one, other)
    assert len(first) == len(second) == 4
    assert len(set(first)) == 4
    np.testing.assert_array_equal(first, balanced(one, other)[0])
    np.testing.assert_array_equal(second, other)


def test_the_twenty_two_methods_of_the_paper_but_ali_are_there():
    assert len(RELEASED) == 22
    assert all(method.calibrate is not None for method in RELEASED.values())
    assert all(method.threshold == 0 for method in RELEASED.values())


def test_a_detector_takes_the_variant_with_the_highest_accuracy():
    """ODIN's grid: one place of it tells both kinds apart."""
    method = RELEASED["released-odin"]

    def made(seed):
        values, out = kinds(60, seed)
        grid = np.random.default_rng(seed).normal(size=(120, 2, 6)).astype(np.float32)
        grid[:, 1, 2] = values[:, 0] - 2
        nothing = np.zeros((120, 2), np.float32)
        seen = Seen(nothing, nothing, {"odin": grid})
        seen.more[method.name] = method.once({}, seen, None)
        return Calibration(seen, out)

    own, other = made(0), made(1)
    state = method.calibrate({}, own, other, None)
    assert int(state["variant"]) == 1 * 6 + 2
    scores = method.score(state, other.seen, None)
    assert ((scores > 0) == other.out).mean() > 0.85


def test_plans_ask_an_evaluation_that_is_not_planned_only_by_its_name():
    assert evaluations_asked("ood")[1:] == (DETECTION,)
    assert evaluations_asked("ood-released")[-1:] == (AS_RELEASED,)
    assert asked_name("ood-tuned") == "ood-tuned"
    with pytest.raises(BenchmdError, match="unknown benchmark or evaluation 'ood-release'"):
        asked_name("ood-release")


def test_the_space_of_detectors_has_the_papers_hyperparameters(classes_bank):
    """The first trial is the fixed protocol: values that the methods themselves start from."""
    bank, seen = classes_bank
    for name, parameters in space().items():
        method = methods.METHODS[name]
        defaults = by_detector({each.name: each.default for each in parameters})[name]
        usual, chosen = method.fit(bank), method.fit(bank, **defaults)
        np.testing.assert_array_equal(
            method.score(usual, seen, bank.head),
            method.score(chosen, seen, bank.head),
            err_msg=name,
        )
        assert all(each.holds(each.default) for each in parameters)


@pytest.fixture
def classes_bank():
    rng = np.random.default_rng(0)
    features = np.abs(rng.normal(size=(200, 8))).astype(np.float32)
    head = Head(rng.normal(size=(3, 8)), np.zeros(3), True)
    logits = (features @ head.weight.T).astype(np.float32)
    targets = np.eye(3, dtype=np.int8)[logits.argmax(axis=1)]
    more = {"odin": rng.random((200, 2, 6)).astype(np.float32), "pretrained": features}
    seen = Seen(features, logits, more)
    return Bank(seen, targets, head), seen.at(slice(0, 50))


def test_values_are_chosen_by_other_sets_only():
    def trial(value, **aurocs):
        return DetectorTrial({"knn": {"neighbours": value}}, {"knn": aurocs})

    trials = [trial(50, a=0.9, b=0.5, c=0.5), trial(3, a=0.1, b=0.6, c=0.6)]
    assert best(trials, "knn", ["b", "c"]) == {"neighbours": 3}
    assert best(trials, "knn", ["a", "b"]) == {"neighbours": 50}


@pytest.fixture(scope="module")
def place(synthetic_raw, synthetic_eeg, build_once, tmp_path_factory):
    out = tmp_path_factory.mktemp("released")
    return {
        "ptb-xl": build_once("ptb-xl", synthetic_raw["ptb-xl"], out / "ptb-xl"),
        "isruc": build_once("isruc", synthetic_eeg["isruc"], out / "isruc"),
    }


@pytest.fixture(scope="module")
def run(place, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCHMD_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(sets_module, "FEWEST", 4)  # so few records are there
        train_briefly(patch)
        few_faults(patch)
        store = tmp_path_factory.mktemp("store")
        yield transfer_run(place["ptb-xl"].path, store, SMALL, within=True)


def scored(run, place, evaluation):
    source, also = place["ptb-xl"].path, (place["isruc"].path,)
    path = evaluate_run(run, source, SMALL, evaluation=evaluation, also=also, within=True)
    return read_predictions(path, evaluation.form)


@pytest.mark.slow
def test_the_released_protocol_is_calibrated_and_scored_as_the_code_does(run, place, monkeypatch):
    for recipe in (one for one in vars(released).values() if isinstance(one, released.Recipe)):
        monkeypatch.setitem(vars(recipe), "epochs", 2)  # what they learn is tested above
    predictions = scored(run, place, AS_RELEASED)
    table = predictions.table.to_pandas()
    skipped = about(predictions)["skipped"]
    assert {name for name in skipped if "bce" not in name} == set()  # no image
    found = sorted(set(RELEASED) - set(skipped))
    assert set(found) <= set(table)
    rows = score_rows(predictions, 2)
    assert set(rows["regime"]) == {"other-sources", "same-source"}
    name, group = "released-mahalanobis-layers", "white-noise"
    assert set(thresholds(predictions, name).values()) == {0.0}
    own = rows[(rows["method"] == name) & (rows["group"] == group)]
    own = own[own["regime"] == "other-sources"].set_index("metric")["value"]
    aurocs, accuracies, precisions = [], [], []
    outside = table[(table["set"] == group) & (table["regime"] == "other-sources")]
    for on, out in outside.groupby("calibrated_on"):
        inside_ = table[(table["set"] == IN) & (table["calibrated_on"] == on)]
        kind = np.repeat([0, 1], [len(inside_), len(out)])
        aurocs.append(roc_auc_score(kind, np.concatenate([inside_[name], out[name]])))
        one, other = balanced(inside_[name].to_numpy(), out[name].to_numpy())
        accuracies.append(np.mean([*(one <= 0), *(other > 0)]))
        kind = np.repeat([0, 1], [len(one), len(other)])
        precisions.append(average_precision_score(kind, np.concatenate([one, other])))
    assert own["auroc"] == pytest.approx(np.mean(aurocs), abs=1e-12)
    assert own["accuracy, drawn"] == pytest.approx(np.mean(accuracies), abs=1e-12)
    assert own["aupr out, drawn"] == pytest.approx(np.mean(precisions), abs=1e-9)


@pytest.mark.slow
def test_the_step_of_mahalanobis_raises_the_nearest_class(run, place):
    """By hand, for one record, its last layer and a step."""
    from benchmd_ray.benchmarks.ood.methods.outputs import STEPS

    network = Network.of(run.folder, Worker(), "float32")
    method = RELEASED["released-mahalanobis"]
    rng = np.random.default_rng(0)
    state = {
        "features/means": rng.normal(size=(3, 16)).astype(np.float32),
        "features/roots": rng.normal(size=(3, 16, 16)).astype(np.float32) / 4,
    }
    signal = torch.randn(1, *network.signal.input_shape, generator=torch.manual_seed(0))
    found = method.asks(network, state, signal)
    assert found.shape == (1, len(STEPS), 1)

    def distances(given):
        gaps = network.model.encoder(given)[0] - torch.from_numpy(state["features/means"])
        return [(gap @ torch.from_numpy(root) @ torch.from_numpy(root).T @ gap)
                for gap, root in zip(gaps, state["features/roots"], strict=True)]  # fmt: skip

    given = signal.clone().requires_grad_()
    m = -torch.stack(distances(given))
    torch.nn.functional.cross_entropy(m[None], m.argmax()[None]).backward()
    moved = signal - STEPS[5] * signal.std() * given.grad.sign()
    with torch.no_grad():
        assert float(found[0, 0, 0]) == pytest.approx(float(min(distances(signal))), rel=1e-4)
        assert float(found[0, 5, 0]) == pytest.approx(float(min(distances(moved))), rel=1e-3)


@pytest.mark.slow
@pytest.mark.ray
def test_a_search_chooses_without_records_that_are_scored(run, place, ray_cluster, monkeypatch):
    from dataclasses import replace
    from functools import partial

    from benchmd_ray.benchmarks.ood import detectors

    asked_before, made_of = [], detectors.Detectors.seen
    closed = {name for part in inside(place["ptb-xl"]).scored for name in part.patients}
    trials = search.run_trials

    def seen(self, records, of=None):
        asked_before.append({name for part in records for name in part.patients})
        return made_of(self, records, of)

    def watched(*given):
        assert not any(closed & names for names in asked_before)
        return trials(*given)

    monkeypatch.setattr(detectors.Detectors, "seen", seen)
    monkeypatch.setattr(search, "run_trials", watched)
    small = replace(TUNED, compute=partial(search.searched, trials=3))
    predictions = scored(run, place, small)
    assert asked_before
    made = about(predictions)["trials"]
    assert len(made) == 3
    assert made[0]["values"]["knn"] == {"neighbours": 50}  # the papers' first
    rows = score_rows(predictions, 20)
    for regime in ("none", "other-sources"):
        own = rows[(rows["method"] == "nnguide") & (rows["regime"] == regime)]
        assert set(own["use_case"]) >= {"faulty"}
    faulty = sorted({name for trial in made for name in trial["aurocs"]["nnguide"]})
    others = [name for name in faulty if name not in ("inverted",) and name != "isruc"]
    unrelated = {"white-noise", "sine", "square", "brown-noise"}
    others = [name for name in others if name not in unrelated]
    means = [np.mean([t["aurocs"]["nnguide"][name] for name in others]) for t in made]
    chosen = made[int(np.argmax(means))]["values"]["nnguide"]
    network = Network.of(run.folder, Worker(), "float32")
    own = inside(place["ptb-xl"])
    found = detectors.prepared(
        NetworkObserver.of(network, SMALL), own, [], {"nnguide": methods.METHODS["nnguide"]}
    )
    state = methods.METHODS["nnguide"].fit(found.bank, **chosen)
    expected = found.scores("nnguide", state, made_of(found, own.scored), ["?"] * 99)
    table = predictions.table.to_pandas()
    rows = table[(table["set"] == IN) & (table["calibrated_on"] == "all but inverted")]
    np.testing.assert_allclose(rows["nnguide"], expected, rtol=1e-6)


@pytest.mark.slow
def test_an_installed_package_brings_a_detector(run, place, monkeypatch, tmp_path):
    """That of docs/ood_detectors.md."""
    text = (Path(__file__).parents[2] / "docs" / "ood_detectors.md").read_text("utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "first_feature.py").write_text(block)
    monkeypatch.syspath_prepend(str(tmp_path))
    entry = EntryPoint("first-feature", "first_feature:detector", plugins.GROUPS["detector"])

    def entries(group):
        return EntryPoints([entry] if group == plugins.GROUPS["detector"] else [])

    monkeypatch.setattr(plugins, "entry_points", entries)
    monkeypatch.setattr(methods, "entry_points", entries)
    assert "first-feature" in methods.detectors()
    monkeypatch.setattr(methods, "METHODS", {"energy": methods.METHODS["energy"]})
    found = detect.detected(
        Asked(run.folder, place["ptb-xl"], SMALL, Worker()),
        methods.detectors(),
        methods.detector_sources(),
    )
    network = Network.of(run.folder, Worker(), "float32")
    own = inside(place["ptb-xl"]).scored
    expected = NetworkObserver.of(network, SMALL).seen(own).features[:, 0]
    rows = found.to_pandas().query("set == 'in' and part == 'test'")
    np.testing.assert_allclose(rows["first-feature"], expected, rtol=1e-6)
    found = found.replace_schema_metadata({"dataset": "ptb-xl", "also": "{}"})
    assert DETECTION.current(found.schema)
    monkeypatch.setattr(plugins, "entry_points", lambda group: EntryPoints([]))
    monkeypatch.setattr(methods, "entry_points", lambda group: EntryPoints([]))
    assert not DETECTION.current(found.schema)  # scores of a detector that is gone are made anew
    assert not is_scored(run, place["ptb-xl"], DETECTION)


@pytest.mark.slow
def test_features_that_are_no_numbers_name_the_record(run, place, monkeypatch, tmp_path):
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path))
    network = Network.of(run.folder, Worker(), "float32")
    with torch.no_grad():
        next(network.model.encoder.parameters()).fill_(float("nan"))
    own = inside(place["ptb-xl"]).scored
    record = own[0].ids("record_id")[0]
    with pytest.raises(BenchmdError, match=f"NaN or infinite features for .*{record}"):
        NetworkObserver.of(network, SMALL).seen(own)
