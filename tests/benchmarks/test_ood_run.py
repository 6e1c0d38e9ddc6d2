"""Out-of-distribution detection from raw files to score rows, on one processor."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute
import pytest
from brief import few_faults, train_briefly
from click.testing import CliRunner
from made_catalogs import write_catalog
from sklearn.metrics import average_precision_score, roc_auc_score

from benchmd_ray.benchmarks.ood import DETECTION, board, sets
from benchmd_ray.benchmarks.ood import guard as guards
from benchmd_ray.benchmarks.ood import scores as scores_module
from benchmd_ray.benchmarks.ood.detect import scored_table
from benchmd_ray.benchmarks.ood.detectors import Draw, calibration_draws, prepared
from benchmd_ray.benchmarks.ood.methods import METHODS
from benchmd_ray.benchmarks.ood.methods.outputs import STEPS, TEMPERATURES
from benchmd_ray.benchmarks.ood.network import Network
from benchmd_ray.benchmarks.ood.observe import NetworkObserver
from benchmd_ray.benchmarks.ood.scores import score_rows
from benchmd_ray.benchmarks.ood.sets import inside, out_sets
from benchmd_ray.benchmarks.ood.table import IN
from benchmd_ray.cli import main
from benchmd_ray.data.batches import Worker
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.records import Record, decode_signals
from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.evaluation import DETECTED, Asked
from benchmd_ray.runs.predictions import Predictions, read_predictions
from benchmd_ray.service.execute import evaluate_run, pretrain_run, transfer_run
from benchmd_ray.service.scored import is_scored
from benchmd_ray.settings.definition import Settings, updated

pytestmark = pytest.mark.slow

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
HELD = ("atrial fibrillation/flutter", "hypertrophy", "static_noise")


@pytest.fixture(scope="module")
def raw(synthetic_raw, tmp_path_factory):
    root = tmp_path_factory.mktemp("noisy") / "ptb-xl"
    shutil.copytree(synthetic_raw["ptb-xl"], root)
    table = pd.read_csv(root / "ptbxl_database.csv")
    table["static_noise"] = ["I-V1" if row % 17 == 3 else np.nan for row in range(len(table))]
    table.to_csv(root / "ptbxl_database.csv", index=False)
    return root


@pytest.fixture(scope="module")
def place(raw, synthetic_raw, synthetic_eeg, build_once, tmp_path_factory):
    """Catalogs of ECG with conditions held out, of another hospital, and of EEG."""
    out = tmp_path_factory.mktemp("ood")
    return {
        "ptb-xl": build_once("ptb-xl", raw, out / "ptb-xl", hold_out=HELD),
        "georgia": build_once("georgia", synthetic_raw["georgia"], out / "georgia"),
        "isruc": build_once("isruc", synthetic_eeg["isruc"], out / "isruc"),
    }


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCHMD_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(sets, "FEWEST", 4)  # so few records are there
        train_briefly(patch)
        few_faults(patch)
        yield


@pytest.fixture(scope="module")
def runs(place, cache, tmp_path_factory):
    store = tmp_path_factory.mktemp("store")
    source = place["ptb-xl"].path
    return [transfer_run(source, store, replace(SMALL, seed=seed), within=True) for seed in (0, 1)]


def detected(run, place, also=("georgia", "isruc")):
    others = tuple(place[name].path for name in also)
    path = evaluate_run(
        run, place["ptb-xl"].path, SMALL, evaluation=DETECTION, also=others, within=True
    )
    return read_predictions(path, DETECTION.form)


@pytest.fixture(scope="module")
def predictions(runs, place):
    return detected(runs[0], place)


@pytest.fixture(scope="module")
def table(predictions):
    return predictions.table.to_pandas()


@pytest.fixture(scope="module")
def rows(predictions):
    return score_rows(predictions, 50)


def test_in_and_out_share_no_record_and_no_patient(table, place):
    """Fault F1: but for copies with a fault, which are of the scored records themselves."""
    own = table[table["set"] == IN]
    stored = table[(table["set"] != IN) & (table["severity"] == 0)]
    assert set(stored["set"]) == {*HELD, "georgia", "isruc"}
    for column in ("record_id", "group_id"):
        assert not set(own[column]) & set(stored[column])
    held = stored[stored["set"].isin(HELD) & (stored["regime"] == "none")]
    stated = {
        f"ptb-xl/{name}": set(conditions.split("; "))
        for t in place["ptb-xl"].tables("heldout", ["record_id", "held_out"])
        for name, conditions in zip(*(t[c].to_pylist() for c in t.column_names), strict=True)
    }
    scored = {name for name in held["record_id"] if name in stated}
    for name, rows in held.groupby("set"):
        of_condition = {r for r, conditions in stated.items() if name in conditions}
        assert set(rows["record_id"]) == of_condition & scored
        assert 0.2 < len(rows) / len(of_condition) < 0.8  # the others calibrate


def test_no_patient_trains_calibrates_and_is_scored(table, place):
    """Faults F3 and F12: of in and out together, in every regime."""
    train = {
        f"ptb-xl/{name}"
        for t in place["ptb-xl"].tables("train", ["group_id"])
        for name in t["group_id"].to_pylist()
    }
    assert not train & set(table["group_id"])
    parts = table.groupby("part")["group_id"].agg(set)
    assert not parts["calibration"] & parts["test"]
    learned = table[table["regime"] != "none"]
    assert set(learned["part"]) == {"test"}
    assert set(learned["regime"]) == {"calibrated", "other-sources", "same-source"}
    assert set(learned.loc[learned["regime"] == "calibrated", "set"]) == {IN}
    outside = learned[learned["set"] != IN]
    for regime, name, on in outside[["regime", "set", "calibrated_on"]].drop_duplicates().values:
        kinds = {re.sub(r" \d$", "", each) for each in on.split(" + ")}
        assert (re.sub(r" \d$", "", name) in kinds) == (regime == "same-source"), (name, on)


def test_all_detectors_and_seeds_see_the_same_records(runs, place, table):
    """Fault F11: paired tests are valid."""
    other = detected(runs[1], place).table.to_pandas()
    keys = ["record_id", "part", "set", "severity", "regime", "calibrated_on", "alike"]
    pd.testing.assert_frame_equal(other[keys], table[keys])
    alone = table[table["regime"] == "none"]
    assert alone[["energy", "mahalanobis", "knn", "pixel-knn-1"]].notna().all(axis=None)
    assert (other["mahalanobis"] != table["mahalanobis"]).any()


def test_a_board_scores_the_records_of_the_catalogs_as_a_report_does(
    runs, place, predictions, tmp_path, monkeypatch
):
    monkeypatch.setattr(board, "FEWEST", 4)
    monkeypatch.setattr(scores_module, "FEWEST", 4)
    keys = [(name, "ascending") for name in ("use_case", "set", "record_id")]
    official = board.records(place["ptb-xl"], [place["georgia"], place["isruc"]]).sort_by(keys)
    asked, other = board.scores(predictions), detected(runs[1], place)
    assert asked.select([*DETECTED]).sort_by(keys).equals(official)
    assert len(asked.column_names) > len(DETECTED) + 10
    also = [part for name in ("georgia", "isruc") for part in ("--also", place[name].path)]
    key, bundle, digests = ("--board", "a-board"), tmp_path / "bundle", tmp_path / "digests"
    submitted = ("--submitter", "A lab", "--detection", "--yes")
    own = (place["ptb-xl"].path, *key, "--out", digests, "--detection", *also)
    for arguments in (
        ("board", "digest", *own),
        ("pack", runs[0].folder.parent, "--out", bundle, *key, *submitted),
        ("board", "build", bundle, "--catalog-digests", digests, "--out", tmp_path / "site"),
        ("board", "verify", tmp_path / "site", "--catalog-digests", digests),
    ):
        result = CliRunner().invoke(main, [*map(str, arguments)])
        assert result.exit_code == 0, result.output
    (entry,) = json.loads((tmp_path / "site" / "board.json").read_text("utf-8"))["entries"]
    found = {
        (r["detector_name"], r["use_case"]): r["auroc"] for r in entry["scores"][0]["detectors"]
    }
    seeds = [score_rows(replace(p, description={"of": "again"}), 20) for p in (predictions, other)]
    means = pd.concat(seeds).query("group == 'all' and metric == 'auroc' and regime == 'none'")
    means = means[means["use_case"] != "shifted"]
    expected = means.groupby(["method", "use_case"])["value"].mean().to_dict()
    assert found == pytest.approx(expected)
    for name in ("georgia", "isruc"):
        assert f"--also catalogs/{name} " in entry["command"]
    twice = {
        name: replace(DETECTION, form=replace(DETECTION.form, evaluation=name)) for name in "ab"
    }
    monkeypatch.setattr("benchmd_ray.service.scored.evaluations", lambda: twice)
    digests.unlink()
    result = CliRunner().invoke(main, ["board", "digest", *map(str, own)])
    assert "the evaluations a and b both have detectors of ptb-xl" in result.output


def test_a_set_whose_patients_all_calibrate_is_not_scored(runs, place, cache):
    network = Network.of(runs[0].folder, Worker(), "float32")
    own = inside(place["ptb-xl"])
    one = next(each for each in out_sets(place["ptb-xl"], own, ()) if each.name == "static_noise")
    nobody = tuple(records.at(np.zeros(len(records), bool)) for records in one.scored)
    sets = [one, replace(one, name="burst_noise", scored=nobody)]
    methods = {name: METHODS[name] for name in ("pixel-knn-1", "mahalanobis-layers")}
    found = prepared(NetworkObserver.of(network, SMALL), own, sets, methods)
    asked = Asked(runs[0].folder, place["ptb-xl"], SMALL, Worker())
    table = scored_table(found, own, sets, asked)
    assert set(table["set"].to_pylist()) == {IN, "static_noise"}


def test_without_records_to_calibrate_with_the_other_detectors_are_asked(
    runs, place, cache, monkeypatch
):
    monkeypatch.setattr(sets, "FEWEST", 1000)
    network = Network.of(runs[0].folder, Worker(), "float32")
    own = inside(place["ptb-xl"])
    some = [each for each in out_sets(place["ptb-xl"], own, ()) if each.name == "static_noise"]
    methods = {name: METHODS[name] for name in ("binary-classifier", "pixel-knn-1")}
    found = prepared(NetworkObserver.of(network, SMALL), own, some, methods)
    assert found.learned == {}
    assert "score" not in found.costs["binary-classifier"]
    asked = Asked(runs[0].folder, place["ptb-xl"], SMALL, Worker())
    table = scored_table(found, own, some, asked)
    assert table["binary-classifier"].null_count == len(table)
    assert table["pixel-knn-1"].null_count == 0


def test_other_sets_are_other_predictions(runs, place, predictions):
    """Fault F2: nothing that was calibrated on one choice of sets stands for another."""
    catalogs = {name: place[name] for name in ("georgia", "isruc")}
    both = tuple(catalogs.values())
    assert is_scored(runs[0], place["ptb-xl"], DETECTION, both)
    assert not is_scored(runs[0], place["ptb-xl"], DETECTION, both[:1])
    assert json.loads(predictions.description["also"]) == {
        name: catalog.digest for name, catalog in catalogs.items()
    }


def test_a_network_of_another_catalog_of_the_dataset_is_refused(runs, raw, build_once, tmp_path):
    """Fault F6: it may have learned what is held out."""
    whole = build_once("ptb-xl", raw, tmp_path / "whole", hold_out=HELD[:2])
    with pytest.raises(BenchmdError, match="it may have been trained on what it must detect"):
        evaluate_run(runs[0], whole.path, SMALL, evaluation=DETECTION, within=True)


def test_controls_are_as_they_must_be(rows):
    """Decision O18: exactly half where nothing can be seen, within chance for half of in."""
    auroc = rows[(rows["metric"] == "auroc") & (rows["regime"] == "none")]
    gain = auroc[auroc["group"] == "gain-10"]
    assert len(gain) > 10
    assert (gain["use_case"] == "control").all()
    assert (gain["value"] == 0.5).all()
    half = auroc[auroc["group"] == "random half"]
    assert len(half) == len(gain)
    noise = auroc[auroc["group"] == "white-noise"].set_index("method")["value"]
    assert noise["mahalanobis-layers"] > 0.95


def test_use_cases_and_severities(rows):
    groups = rows[rows["regime"] == "none"].groupby("use_case")["group"].agg(set)
    assert groups["unseen"] >= {"atrial fibrillation/flutter", "hypertrophy"}
    assert groups["faulty"] >= {"arm-reversal", "static_noise", "mains-50"}
    assert groups["shifted"] == {"georgia", "all"}
    assert groups["unrelated"] >= {"isruc", "white-noise"}
    wander = rows[rows["group"] == "baseline-wander"]
    assert set(wander["class"]) == {"severity 1", "severity 2", "severity 3"}


def test_values_are_those_of_scikit_learn(rows, table):
    own = table[(table["regime"] == "none") & (table["part"] == "test") & table["alike"].isna()]
    inside = own.loc[own["set"] == IN, "knn"]
    for group in ("georgia", "arm-reversal", "isruc"):
        outside = own.loc[own["set"] == group, "knn"]
        kind = np.repeat([0, 1], [len(inside), len(outside)])
        both = np.concatenate([inside, outside])
        weight = np.where(kind == 1, 0.5 / len(outside), 0.5 / len(inside))
        found = rows[(rows["method"] == "knn") & (rows["group"] == group)]
        value = found.set_index("metric")["value"]
        assert value["auroc"] == pytest.approx(roc_auc_score(kind, both), abs=1e-12)
        expected = average_precision_score(kind, both, sample_weight=weight)
        assert value["aupr out"] == pytest.approx(expected, abs=1e-12)
        expected = average_precision_score(1 - kind, -both, sample_weight=weight)
        assert value["aupr in"] == pytest.approx(expected, abs=1e-12)


def test_means_are_over_sets_that_are_large_enough(predictions, monkeypatch):
    monkeypatch.setattr(scores_module, "FEWEST", 8)
    rows = score_rows(predictions, 51)  # other resamples than those that are known
    own = rows[(rows["method"] == "energy") & (rows["regime"] == "none")]
    own = own[own["metric"] == "auroc"]
    sets = own[(own["use_case"] == "faulty") & (own["group"] != "all")]
    mean = own[(own["use_case"] == "faulty") & (own["group"] == "all")]["value"].item()
    assert mean == pytest.approx(sets.loc[sets["positives"] >= 8, "value"].mean())


def test_few_patients_have_no_interval(rows):
    """Rule S2 of the statistics: below ten patients the value stands alone."""
    auroc = rows[rows["metric"] == "auroc"]
    few = auroc[auroc["effective"] < 5]
    assert len(few)
    assert few["low"].isna().all()
    assert few["caution"].str.contains("no interval").all()


def test_detectors_that_learn_never_calibrate_on_what_they_are_scored_on(place, cache):
    every = list(out_sets(place["ptb-xl"], inside(place["ptb-xl"]), [place["isruc"]]))
    draws = calibration_draws(every)
    assert len({draw.name for draw in draws}) == len(draws) > 10
    for case in ("faulty", "unseen"):
        shared = [draw for draw in draws if draw.shared and draw.sets[0].use_case == case]
        assert 0 < len(shared) <= 11
    for one in every:
        for draw in draws:
            regime, same = draw.regime(one), one.kind in {each.kind for each in draw.sets}
            assert regime in ("", "same-source" if same else "other-sources")
            assert not regime or {each.use_case for each in draw.sets} == {one.use_case}
            assert not (regime and (one.control or one.use_case == "shifted"))


def test_patients_in_distribution_are_excluded_from_other_sets(place, monkeypatch):
    """Fault F3: those that two datasets share, such as films of two views."""
    catalog, other = place["ptb-xl"], place["georgia"]
    own = inside(catalog)
    (before,) = (one for one in out_sets(catalog, own, [other]) if one.name == "georgia")
    taken = [name.partition("/")[2] for name in before.scored[0].patients[:3]]
    part = own.scored[0]
    names = [*taken, *part.table["group_id"].to_pylist()[3:]]
    column = part.table.column_names.index("group_id")
    shared = replace(part, table=part.table.set_column(column, "group_id", pa.array(names)))
    own = replace(own, scored=(shared,))
    (after,) = (one for one in out_sets(catalog, own, [other]) if one.name == "georgia")
    left = {name.partition("/")[2] for part in after.scored for name in part.patients}
    assert left == {n.partition("/")[2] for n in before.scored[0].patients} - set(taken)
    assert after.excluded == len([n for n in before.scored[0].patients if n.split("/")[1] in taken])


def copies_of(catalog, out, duplicates="merge"):
    """A catalog of Georgia's card: copies of a training and a scored record, and other signals."""
    card = replace(dataset_card("georgia"), duplicates=duplicates)
    signals = [
        decode_signals(next(catalog.tables(split))["signal"], catalog.signal)[0]
        for split in ("train", catalog.evaluation_splits[-1])
    ]
    noise = np.random.default_rng(0).integers(-99, 99, (6, *signals[0].shape), np.int16)
    patients = ["of-train", "of-test", "of-train", *(f"new{n}" for n in range(5))]
    target = [1] + [0] * (len(card.classes) - 1)
    records = [
        Record(f"r{n}", patient, f"r{n}", signal, 1.0, (signal.shape[1],), target)
        for n, (patient, signal) in enumerate(zip(patients, [*signals, *noise], strict=True))
    ]
    return open_catalog(write_catalog(out, card, {"test": [records]}))


def test_copies_of_records_in_distribution_are_excluded_with_their_patients(place, tmp_path):
    catalog = place["ptb-xl"]
    own = inside(catalog)
    other = copies_of(catalog, tmp_path / "copies")
    (made,) = (one for one in out_sets(catalog, own, [other]) if one.name == "georgia")
    parts = (*made.calibrating, *made.scored)
    names = {name for part in parts for name in part.table["record_id"].to_pylist()}
    assert (names, made.excluded) == ({f"r{n}" for n in range(3, 8)}, 3)
    refusing = copies_of(catalog, tmp_path / "refusing", "refuse")
    with pytest.raises(
        BenchmdError, match=r"3 records of .*refusing are in distribution in ptb-xl"
    ):
        out_sets(catalog, own, [refusing])


@pytest.mark.parametrize("name", ["in", "all", "random half", "white-noise", "hypertrophy"])
def test_a_dataset_named_like_something_else_is_refused(place, name):
    other = replace(place["georgia"], card=replace(place["georgia"].card, name=name))
    with pytest.raises(BenchmdError, match=f"two sets .* would be named {name}: exclude"):
        out_sets(place["ptb-xl"], inside(place["ptb-xl"]), [other])


def test_datasets_of_one_origin_do_not_calibrate_for_each_other(place, cache, monkeypatch):
    own = inside(place["ptb-xl"])
    monkeypatch.setattr(sets, "use_case_of", lambda *_: "unrelated")
    monkeypatch.setattr(sets, "of_one_origin", lambda *pair: {*pair} == {"georgia", "isruc"})
    made = out_sets(place["ptb-xl"], own, [place["georgia"], place["isruc"]])
    first, second = (next(each for each in made if each.name == n) for n in ("georgia", "isruc"))
    draws = calibration_draws(made)
    assert any(first in draw.sets and draw.shared for draw in draws)
    for draw in draws:
        for one, other in ((first, second), (second, first)):
            if other in draw.sets:
                assert draw.regime(one) == ""
    assert Draw((first,), False).regime(first) == "same-source"


def test_of_many_windows_whole_scans_are_chosen(place, monkeypatch):
    records = sets.records_of(place["isruc"], "test")
    units = np.array(records.table["group_id"].to_pylist())
    whole = records.table.set_column(
        records.table.column_names.index("unit_id"), "unit_id", records.table["group_id"]
    )
    monkeypatch.setattr(sets, "MOST", len(records) // 2)
    kept = sets._few(replace(records, table=whole))
    assert 0 < len(kept) < len(records)
    chosen = {*kept.table["group_id"].to_pylist()}
    assert len(kept) == np.isin(units, sorted(chosen)).sum()


def test_small_conditions_are_scored_whole_and_together(place, monkeypatch):
    catalog = place["ptb-xl"]
    monkeypatch.setattr(sets, "FEWEST", 1000)
    few = {one.name: one for one in out_sets(catalog, inside(catalog), [])}
    monkeypatch.setattr(sets, "FEWEST", 1)
    many = {one.name: one for one in out_sets(catalog, inside(catalog), [])}
    stated = [
        set(conditions.split("; "))
        for t in catalog.tables("heldout", ["held_out"])
        for conditions in t["held_out"].to_pylist()
    ]
    whole = {name: sum(name in own for own in stated) for name in HELD}
    assert {name: sum(map(len, few[name].scored)) for name in HELD} == whole
    both = sets.records_of(catalog, "heldout")
    pairs = zip(both.ids("record_id"), stated, strict=True)
    twice = {name for name, own in pairs if len(own & {*HELD[:2]}) > 1}
    for name in HELD[:2]:  # what has two conditions calibrates for neither
        calibrating = {
            record for part in many[name].calibrating for record in part.ids("record_id")
        }
        assert not twice & calibrating
    assert not any(few[name].calibrating for name in HELD)
    together = {
        record for name in HELD[:2] for part in few[name].scored for record in part.ids("record_id")
    }
    (part,) = few["all together"].scored
    assert set(part.ids("record_id")) == together
    assert few["all together"].use_case == "unseen"
    assert "all together" not in many
    assert not any(draw.sets[0].use_case == "unseen" for draw in calibration_draws([*few.values()]))


def test_nothing_that_is_scored_is_read_before_detectors_have_learned(runs, place, monkeypatch):
    """As searches cannot open targets: rows that are scored are unreadable until then."""
    from benchmd_ray.benchmarks.ood import detectors, observe
    from benchmd_ray.benchmarks.ood.methods import METHODS

    catalog = place["ptb-xl"]
    own = inside(catalog)
    every = list(out_sets(catalog, own, [place["isruc"]]))
    closed = {name for one in every for records in one.scored for name in records.patients}
    closed |= {name for records in own.scored for name in records.patients}
    read, batches = set(), observe._batches

    def spied(records, *how):
        assert not closed & set(records.patients)
        read.update(records.patients)
        return batches(records, *how)

    monkeypatch.setattr(observe, "_batches", spied)
    monkeypatch.setenv("BENCHMD_CACHE", str(runs[0].folder.parent / "cold"))
    network = Network.of(runs[0].folder, Worker(), "float32")
    observer = NetworkObserver.of(network, SMALL)
    made = detectors.prepared(observer, own, every, METHODS)
    assert {name for records in own.calibrating for name in records.patients} < read
    assert made.learned
    with pytest.raises(AssertionError):
        made.seen(own.scored)


def test_each_extent_that_is_coarser_is_compared_alike_too(table, rows, place):
    """Fault F5: EEG of 3,750 samples, enlarged to 5,000."""
    alike = table[table["alike"].notna()]
    assert set(alike["alike"]) == {"3750"}
    own = table[(table["set"] == IN) & (table["part"] == "test") & (table["regime"] == "none")]
    assert set(alike["record_id"]) == set(own.loc[own["alike"].isna(), "record_id"])
    outside = table.loc[(table["set"] == "isruc") & (table["regime"] == "none"), "energy"]
    found = rows[(rows["method"] == "energy") & (rows["group"] == "isruc")]
    value = found.set_index("metric")["value"]
    kind = np.repeat([0, 1], [len(alike), len(outside)])
    expected = roc_auc_score(kind, np.concatenate([alike["energy"], outside]))
    assert value["auroc, alike"] == pytest.approx(expected, abs=1e-12)
    georgia = rows[(rows["method"] == "energy") & (rows["group"] == "georgia")]
    assert "auroc, alike" not in set(georgia["metric"])


def test_a_deep_ensemble_is_the_entropy_of_the_mean(runs, place, predictions):
    from scipy.stats import entropy

    from benchmd_ray.benchmarks.ood.scores import ENSEMBLE, ensemble

    other = detected(runs[1], place)
    made = ensemble([predictions, other]).table
    kept = predictions.table.filter(predictions.table["logits"].is_valid())
    both = [
        np.array(each.table.filter(each.table["logits"].is_valid())["logits"].to_pylist())
        for each in (predictions, other)
    ]
    assert made["record_id"].equals(kept["record_id"])
    for row in (0, 7, len(kept) - 1):
        p = [np.exp(z[row]) / np.exp(z[row]).sum() for z in both]
        assert made[ENSEMBLE][row].as_py() == pytest.approx(entropy((p[0] + p[1]) / 2), abs=1e-6)
    short = Predictions(other.table.slice(1), other.description)
    with pytest.raises(BenchmdError, match="scored on other records"):
        ensemble([predictions, short])


def test_pictures_of_the_most_and_least_suspicious_are_kept(table, predictions):
    from benchmd_ray.benchmarks.ood.table import about

    assert about(predictions)["shape"] == [12, 1250]
    shown = table[table["picture"].notna()]
    for name, rows in shown.groupby("set"):
        own = table[(table["set"] == name) & (table["part"] == "test")]
        own = own[(own["regime"] == "none") & own["alike"].isna()]
        last = own[own["severity"].fillna(0) == own["severity"].fillna(0).max()]
        suspicion = last["mahalanobis-layers"].sort_values(kind="stable")
        assert set(rows.index) == {*suspicion.index[:3], *suspicion.index[-3:]}
    assert {IN, "isruc", "arm-reversal"} <= set(shown["set"])


def test_what_detectors_cost_is_measured(predictions):
    from benchmd_ray.benchmarks.ood.table import about

    costs = about(predictions)["costs"]
    assert costs["odin"]["network"] > costs["energy"]["network"] > 0
    assert costs["vae"]["setup"] > costs["energy"]["setup"]
    assert all(spent["score"] > 0 for name, spent in costs.items())


def test_the_step_of_odin_is_in_standard_deviations(runs):
    """Fault F19: by hand, for one record and all of the grid."""
    import torch

    network = Network.of(runs[0].folder, Worker(), "float32")
    torch.manual_seed(0)
    signal = torch.randn(1, *network.signal.input_shape) * 3
    found = network._odin(signal)
    assert found.shape == (1, len(TEMPERATURES), len(STEPS))
    for row, temperature in enumerate(TEMPERATURES):
        given = signal.clone().requires_grad_()
        logits = network.model(given) / temperature
        torch.nn.functional.cross_entropy(logits, logits.argmax(dim=1)).backward()
        for column, step in enumerate(STEPS):
            moved = signal - step * signal.std() * given.grad.sign()
            with torch.no_grad():
                expected = -(network.model(moved) / temperature).double().softmax(dim=1).max()
            assert float(found[0, row, column]) == pytest.approx(float(expected), abs=2e-7)


def test_signals_over_time_are_no_images(runs, place, build_once, synthetic_cxr, tmp_path):
    films = build_once("chexpert", synthetic_cxr["chexpert"], tmp_path / "chexpert")
    with pytest.raises(BenchmdError, match="cannot be shown to a network of ecg"):
        evaluate_run(
            runs[0],
            place["ptb-xl"].path,
            SMALL,
            evaluation=DETECTION,
            also=(films.path,),
            within=True,
        )


def with_values(table, name, where, chosen, value):
    """The table with another value in a column, where another one has the chosen value."""
    place = table.column_names.index(name)
    field = table.schema.field(name)
    chosen = pa.compute.fill_null(pa.compute.equal(where, chosen), False)
    changed = pa.compute.if_else(chosen, pa.scalar(value, field.type), table[name])
    return table.set_column(place, field, changed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop_columns(["part"]), "it lacks the column part"),
        (
            lambda t: t.set_column(
                t.column_names.index("energy"), "energy", pa.array([float("nan")] * len(t))
            ),
            "its column energy has NaN or infinite scores",
        ),
        (
            lambda t: t.set_column(
                t.column_names.index("set"), "set", pa.nulls(len(t), pa.string())
            ),
            "its column set has missing values",
        ),
        (lambda t: pa.concat_tables([t, t.slice(0, 1)]), "a record appears twice"),
        (
            lambda t: with_values(t, "use_case", t["set"], "in", "unseen"),
            "an in-distribution record has a use-case",
        ),
        (
            lambda t: with_values(t, "use_case", t["use_case"], "unseen", "rare"),
            "it has the use-case 'rare'",
        ),
        (
            lambda t: with_values(t, "control", t["set"], "white-noise", None),
            "its column control has missing values of sets that are scored",
        ),
        (
            lambda t: with_values(t, "energy", t["set"], "white-noise", None),
            "its column energy lacks scores of some records",
        ),
    ],
)
def test_tables_that_cannot_be_scores_are_refused(predictions, change, message):
    from benchmd_ray.benchmarks.ood.table import fault

    assert fault(Predictions(change(predictions.table), predictions.description)) == message


@pytest.fixture(scope="module")
def guard(runs, place, cache):
    """The usual detector, fitted and read back."""
    asked = Asked(runs[0].folder, place["ptb-xl"], SMALL, Worker())
    made = guards.fit(asked, "")
    read = guards.read_guard(runs[0].folder, made.network, "")
    assert read.threshold == made.threshold
    assert read.detector == "mahalanobis-layers"
    return read


def test_a_guard_says_of_files_what_it_says_of_their_records(guard, place, tmp_path):
    catalog = place["georgia"]
    verdicts = {one.record: one for one in guards.of_catalog(guard, catalog)}
    assert len(verdicts) == catalog.rows("test")
    (table,) = catalog.tables("test")
    for row in range(4):
        values = np.frombuffer(table["signal"][row].as_py(), np.int16).reshape(12, -1)
        name, scale = table["record_id"][row].as_py(), table["scale"][row].as_py()
        np.save(tmp_path / f"{name}.npy", values * float(scale))
    (tmp_path / "broken.npy").write_bytes(b"no array")
    np.save(tmp_path / "noise.npy", np.random.default_rng(0).normal(size=(12, 5000)))
    found = {one.record: one for one in guards.of_files(guard, tmp_path)}
    assert len(found) == 6
    assert found["broken.npy"].reason
    assert not found["broken.npy"].accepted
    assert not found["noise.npy"].accepted
    for row in range(4):
        name = table["record_id"][row].as_py()
        one, other = found[f"{name}.npy"], verdicts[name]
        assert one.score == pytest.approx(other.score, rel=1e-3)  # stored steps round anew
    counts = guards.summary([*found.values()])
    assert counts["unreadable"] == 1
    assert sum(counts.values()) == 6


def test_a_guard_accepts_what_its_benchmark_accepts(guard, table):
    own = table[(table["set"] == IN) & (table["part"] == "calibration")]
    scores = own["mahalanobis-layers"].to_numpy()
    assert 0.95 <= (scores <= guard.threshold).mean() <= 0.95 + 1 / len(scores)


def test_a_guard_of_something_else_is_refused(guard, runs, place, tmp_path):
    network = guard.network
    with pytest.raises(BenchmdError, match="has no fitted detector knn: name the catalog"):
        guards.read_guard(runs[0].folder, network, "knn")
    with pytest.raises(BenchmdError, match="unknown detector of a guard 'score-svm'"):
        guards.read_guard(runs[0].folder, network, "score-svm")
    with pytest.raises(BenchmdError, match="does not fit this network: the network has no mae"):
        guards.read_guard(runs[0].folder, network, "mae-loss")
    other = Asked(runs[0].folder, place["georgia"], SMALL, Worker())
    with pytest.raises(BenchmdError, match="was trained on another catalog than"):
        guards.require_trained_on(other)
    copied = tmp_path / "run"
    shutil.copytree(runs[0].folder, copied)
    state = copied / "guard" / "mahalanobis-layers.safetensors"
    state.write_bytes(state.read_bytes()[:-1] + b"x")
    with pytest.raises(BenchmdError, match="SHA-256"):
        guards.read_guard(copied, network, "")
    shutil.copytree(runs[1].folder, tmp_path / "second")
    shutil.copytree(runs[0].folder / "guard", tmp_path / "second" / "guard")
    second = Network.of(tmp_path / "second", Worker(), "float32")
    with pytest.raises(BenchmdError, match="of another network"):
        guards.read_guard(tmp_path / "second", second, "")


def test_new_data_that_is_not_there_is_refused(guard, tmp_path):
    with pytest.raises(BenchmdError, match="does not exist"):
        list(guards.of_files(guard, tmp_path / "nothing"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(BenchmdError, match="holds no file of ecg"):
        list(guards.of_files(guard, tmp_path / "empty"))


def test_the_report_shows_detectors_controls_and_alarms(
    runs, place, predictions, tmp_path, monkeypatch
):
    monkeypatch.setattr(scores_module, "FEWEST", 8)  # so that there are means to compare
    monkeypatch.setattr(scores_module, "_KNOWN", {})
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from benchmd_ray.benchmarks.ood import report_rows
    from benchmd_ray.benchmarks.ood.report import TABLES
    from benchmd_ray.benchmarks.ood.report_figures import draw
    from benchmd_ray.benchmarks.ood.report_rows import compared
    from benchmd_ray.report.analysis import analyse
    from benchmd_ray.report.canvas import styled
    from benchmd_ray.report.figures_panels import footer
    from benchmd_ray.report.figures_parts import FigureContext
    from benchmd_ray.report.page import page
    from benchmd_ray.report.write import write_report
    from benchmd_ray.scores.comparison import holm

    detected(runs[1], place)
    analysis = analyse(runs, resamples=50)
    pages = {table.name: table.page for table in TABLES}
    for table, word in (
        ("detectors", "Mahalanobis"),
        ("detectors_controls", "random half"),
        ("detectors_shifted", "georgia"),
    ):
        found = pages[table](analysis)
        assert found is not None
        assert word in found.caption + str([column.values for column in found.columns])
    differences = compared(analysis)
    own = differences[(differences["method"] == "energy") & (differences["use_case"] == "faulty")]
    with styled():
        figures = list(draw(FigureContext(analysis, {}, (), 50)))
    assert [one.name.split("-")[1] for one in figures] == ["ptb", "sets", "alarms", "gallery"]
    (legend,) = figures[0].figure.legends
    regimes = set(report_rows.frame(analysis).query("group == 'all'")["regime"])
    expected = {f"calibrated on {each}" for each in regimes - {"none"}} | {"not calibrated"}
    assert {text.get_text() for text in legend.get_texts()} == expected
    footer(figures[0].figure, "below the panels")
    FigureCanvasAgg(figures[0].figure).draw()
    top = max(axes.get_tightbbox().y1 for axes in figures[0].figure.axes)
    assert legend.get_window_extent().y0 >= top - 2  # it hides neither panels nor footer
    assert len(own) == 1
    for _, family in differences.groupby("use_case"):
        tested = family.dropna(subset="p")
        assert tested["p_holm"].tolist() == pytest.approx(holm(tested["p"]).tolist())
    first = pages["detectors_means"](analysis)
    assert first is not None
    frame = report_rows.frame(analysis)
    (faulty,) = (column for column in first.columns if column.title == "faulty [95 %]")
    whole = frame.query("group == 'all' and regime == 'none' and use_case == 'faulty'")
    assert sorted(faulty.values) == pytest.approx(sorted(whole["auroc"]))
    content = page(analysis, [])
    glance = content[content.index('id="main"') : content.index('id="notes"')]
    assert "Detectors by use-case" in glance
    written, sent = tmp_path / "report", tmp_path / "sent"
    write_report(analysis, written, "all", lambda line: None, sent=sent)
    pictures = {path.name for path in (written / "figures").glob("detectors-gallery-*")}
    assert pictures
    files = {p.relative_to(written).as_posix() for p in written.rglob("*") if p.is_file()}
    kept = {p.relative_to(sent).as_posix() for p in sent.rglob("*") if p.is_file()}
    assert files - kept == {f"figures/{name}" for name in pictures}
    assert kept <= files
    assert "least and most suspicious" in (written / "report.html").read_text()
    assert "least and most suspicious" not in (sent / "report.html").read_text()


def test_the_objective_of_the_pretraining_is_a_detector(place, cache, tmp_path):
    """Of networks that start from masked autoencoding, where its weights are there."""
    settings = updated(SMALL, {"pretrain": {"steps": 2, "batch_size": 8}})
    source = place["ptb-xl"].path
    before = pretrain_run("mae", source, tmp_path, settings, within=True)
    run = transfer_run(source, tmp_path, settings, upstream=before.folder, within=True)
    network = Network.of(run.folder, Worker(), "float32")
    assert network.shapes["mae loss"] == (1,)
    observer = NetworkObserver.of(network, settings)
    scored = inside(place["ptb-xl"]).scored
    losses = observer.seen(scored).more["mae loss"]
    assert (losses > 0).all()
    np.testing.assert_array_equal(losses, observer.seen(scored).more["mae loss"])  # those kept
    (before.folder / "model.safetensors").unlink()
    assert "mae loss" not in Network.of(run.folder, Worker(), "float32").shapes


def test_the_guards_command_writes_verdicts_that_no_spreadsheet_executes(
    runs, place, cache, tmp_path
):
    data = tmp_path / "new"
    data.mkdir()
    np.save(data / "=1+1.npy", np.random.default_rng(0).normal(size=(12, 5000)))
    out = tmp_path / "verdicts.csv"
    arguments = ["guard", str(runs[0].folder), "--data", str(data), "--out", str(out)]
    more = ["--catalog", str(place["ptb-xl"].path), "--detector", "mahalanobis"]
    said = CliRunner().invoke(main, [*arguments, *more])
    assert said.exit_code == 0, said.output
    assert "1 record: 1 rejected" in said.output
    (row,) = pd.read_csv(out).to_dict("records")
    assert row["record"] == "'=1+1.npy"
    assert row["verdict"] == "reject"
    assert row["score"] > row["threshold"]
