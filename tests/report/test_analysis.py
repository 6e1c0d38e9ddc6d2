"""Frames of an analysis, against scikit-learn, pandas and slow formulas."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from kinds import CLASSES, MODALITIES
from scipy.stats import t
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    f1_score,
    roc_auc_score,
    roc_curve,
)
from stored import runs
from stores import (
    CXR_DATA,
    ECG_DATA,
    make_transfer,
    people,
    predict_all,
    scores_of,
    targets_of,
    write_predictions,
)

from benchmd_ray.files.integrity import line
from benchmd_ray.report.analysis import POINTS, Analysis, analyse
from benchmd_ray.report.frames import FRAMES, KEY, PLACE, TUNING, mode_and_labels
from benchmd_ray.runs.predictions import read_predictions
from benchmd_ray.scores.comparison import LEAST_EXCHANGE_P, delong, exchange_p, holm
from benchmd_ray.scores.metrics import METRICS

ECG = MODALITIES["ecg"].task
RESAMPLES = 100


@pytest.fixture(scope="module")
def predicted(report_store):
    """Every prediction of the store as one table, read without the code under test."""
    parts = []
    for run in runs([report_store]):
        about = run.description
        for path in sorted((run.folder / "predictions").glob("*/*.parquet")):
            held = read_predictions(path)
            frame = held.table.to_pandas()
            names = ("technique", "setting", "seed", "source")
            frame = frame.assign(**{name: about[name] for name in names})
            frame["kind"] = about["protocol"] or "custom"
            if about["settings"]["transfer"]["shuffle_labels"]:
                frame["kind"] = "shuffled"
            parts.append(frame.assign(scored=held.description["dataset"], run=run.folder.name))
    return pd.concat(parts, ignore_index=True)


def rows_of(predicted, **chosen):
    """Targets, scores and rows of what is chosen."""
    rows = predicted
    for name, value in chosen.items():
        rows = rows[rows[name] == value]
    rows = rows.sort_values("unit_id")
    return np.stack(rows["target"]), np.stack(rows["scores"]), rows


def one(frame, **chosen):
    """The single row of a frame with these values."""
    for name, value in chosen.items():
        frame = frame[frame[name] == value]
    assert len(frame) == 1
    return frame.iloc[0]


ECG_KEY = {"dataset": "georgia", "setting": "linear", "protocol": "fixed"}
GEORGIA = {"scored": "georgia", "setting": "linear", "kind": "fixed"}
CXR_KEY = {"dataset": "chexpert", "setting": "linear", "protocol": "fixed"}
CHEXPERT = {"scored": "chexpert", "setting": "linear", "kind": "fixed"}


def test_every_frame_has_its_columns_and_types(report_analysis):
    for analysis in (report_analysis, Analysis()):
        for name, columns in FRAMES.items():
            frame = getattr(analysis, name)
            assert list(frame.columns) == list(columns)
            assert {k: str(v) for k, v in frame.dtypes.items()} == columns, name
    assert [n for n in FRAMES if not len(getattr(report_analysis, n))] == list(TUNING)
    assert not any(len(getattr(Analysis(), name)) for name in FRAMES)


def test_keys_are_unique(report_analysis):
    more = {
        "scores": ["metric", "class"],
        "changes": ["metric"],
        "subgroups": ["variable", "group"],
        "subgroup_pairs": ["variable", "a", "b"],
        "excluded": ["variable", "group"],
    }
    for name, columns in more.items():
        assert not getattr(report_analysis, name).duplicated([*KEY, *columns]).any(), name
    assert not report_analysis.pairs.duplicated([*PLACE, "a", "b"]).any()
    assert not report_analysis.ranking.duplicated([*PLACE, "setting", "technique"]).any()


def test_values_of_each_seed_are_scikit_learns(report_analysis, predicted):
    """Single-label: decisions by the highest score, classwise metrics averaged."""
    expected: dict[str, list[float]] = {}
    for seed in (0, 1):
        target, score, _ = rows_of(predicted, **GEORGIA, technique="shed", seed=seed)
        true, decided = target.argmax(axis=1), score.argmax(axis=1)
        found = {
            "auroc": np.mean([roc_auc_score(t, s) for t, s in zip(target.T, score.T, strict=True)]),
            "auprc": np.mean(
                [average_precision_score(t, s) for t, s in zip(target.T, score.T, strict=True)]
            ),
            "accuracy": accuracy_score(true, decided),
            "balanced_accuracy": balanced_accuracy_score(true, decided),
            "f1": f1_score(true, decided, average="macro"),
            "brier": np.mean((score - target) ** 2),
        }
        for name, value in found.items():
            expected.setdefault(name, []).append(float(value))
    for name, values in expected.items():
        row = one(
            report_analysis.scores, **ECG_KEY, technique="ShED", metric=name, **{"class": "mean"}
        )
        assert row["seed_values"] == pytest.approx(values), name
        assert row["value"] == pytest.approx(np.mean(values))
        assert row["sd"] == pytest.approx(np.std(values, ddof=1))
        assert row["seeds"] == 2
        assert (row["low"] < row["value"] < row["high"]) == (name != "auprc")
        few = "no interval: 7 of 7 classes have fewer than 100 patients on the rarer side"
        assert row["caution"] == (few if name == "auprc" else "")


def test_values_of_multi_label_classes_leave_out_unknown_targets(report_analysis, predicted):
    target, score, _ = rows_of(predicted, **CHEXPERT, technique="imagenet")
    assert (target == -1).any()
    for index, name in enumerate(CLASSES["cxr"]):
        known = target[:, index] >= 0
        t, s = target[known, index], score[known, index]
        chosen = CXR_KEY | {"technique": "ImageNet", "class": name}
        row = one(report_analysis.scores, metric="auroc", **chosen)
        assert row["value"] == pytest.approx(roc_auc_score(t, s))
        assert (row["positives"], row["records"], row["patients"]) == (t.sum(), 160, 80)
        row = one(report_analysis.scores, metric="accuracy", **chosen)
        assert row["value"] == pytest.approx(accuracy_score(t, s >= 0.5))


def test_every_metric_is_there_for_every_result(report_analysis):
    counts = report_analysis.scores.groupby(list(KEY))["metric"].value_counts().unstack()
    assert set(counts.columns) == set(METRICS)
    classes = counts.index.get_level_values("modality").map(lambda m: len(CLASSES[m]))
    assert (counts.to_numpy() == 1 + classes.to_numpy()[:, None]).all()


def slow_draws(groups, resamples):
    """Rows of each resample of the patients, by their names in sorted order."""
    names = np.unique(groups)
    places = {name: np.flatnonzero(groups == name) for name in names}
    for draw in range(resamples):
        drawn = np.random.default_rng((0, draw)).integers(0, len(names), len(names))
        yield np.concatenate([places[names[i]] for i in drawn])


def slow_auroc(target, score):
    """Mean over the classes that have both."""
    values = []
    for truth, s in zip(target.T, score.T, strict=True):
        known = truth >= 0
        if 0 < (truth[known] == 1).sum() < known.sum():
            values.append(roc_auc_score(truth[known], s[known]))
    return np.mean(values)


def test_a_change_is_drawn_on_the_same_resamples_of_the_patients(report_analysis, predicted):
    target, base, rows = rows_of(predicted, **CHEXPERT, technique="scratch")
    _, better, _ = rows_of(predicted, **CHEXPERT, technique="imagenet")
    drawn = [
        slow_auroc(target[rows_], better[rows_]) - slow_auroc(target[rows_], base[rows_])
        for rows_ in slow_draws(rows["group_id"].to_numpy(), RESAMPLES)
    ]
    row = one(report_analysis.changes, **CXR_KEY, technique="ImageNet", metric="auroc")
    assert row["value"] == pytest.approx(slow_auroc(target, better) - slow_auroc(target, base))
    names = rows["group_id"].to_numpy()
    counts = np.array([
        min(len(set(names[own == side])) for side in (0, 1)) for own in target.T
    ])  # fmt: skip
    assert counts.min() >= 10
    half = np.std(drawn, ddof=1) * t.ppf(0.975, 79)  # 80 patients, and more degrees of classes
    assert (row["low"], row["high"]) == pytest.approx(
        (row["value"] - half, row["value"] + half), rel=0.01
    )
    assert row["p"] == exchange_p(target, base, better, names)
    assert row["p"] < 0.01
    assert row["p_delong"] == pytest.approx(delong(target, base, better, names).p)
    contest = report_analysis.pairs.query("dataset == 'chexpert' and labels == 'full'")
    pair = one(contest, a="scratch, linear", b="ImageNet, linear")
    assert tuple(pair[["difference", "low", "high", "p"]]) == pytest.approx(
        tuple(row[["value", "low", "high", "p"]])
    )
    assert len(contest) == 15  # three techniques in two modes
    corrected = holm(contest["p"], [LEAST_EXCHANGE_P] * 15)
    assert contest["p_holm"].tolist() == pytest.approx(corrected)
    other = one(contest, a="scratch, linear", b="ImageNet, fine-tuning")
    assert other["difference"] > pair["difference"]


def test_a_change_over_seeds_is_the_difference_of_their_means(report_analysis):
    scores, changes = report_analysis.scores, report_analysis.changes
    mean = scores[scores["class"] == "mean"].set_index([*KEY, "metric"])["value"]
    assert set(changes["technique"]) == {"e-Mix", "ShED", "MAE", "ImageNet", "ImageNet, then MAE"}
    for row in changes.itertuples(index=False):
        key = (*(getattr(row, name) for name in KEY), row.metric)
        base = list(key)
        base[KEY.index("technique")] = "scratch"
        assert row.value == pytest.approx(mean[key] - mean[tuple(base)])
        if row.metric != "auroc" or row.technique in ("ShED", "MAE"):  # two seeds
            assert np.isnan(row.p_delong)
        if row.metric in ("auprc", "calibration_error"):
            assert np.isnan([row.low, row.high, row.p]).all()
            assert row.caution.startswith("no interval, no p: ")
        else:
            assert row.low < row.value < row.high
            assert 0 < row.p <= 1
            assert (row.p < 0.05) == (not row.low <= 0 <= row.high) or row.metric == "auroc"
    assert set(changes["protocol"]) == {"fixed"}  # custom and shuffled have scratch alone


def test_seeds_that_differ_between_techniques_are_named(report_analysis):
    full, small = [note for note in report_analysis.notes if "different seeds" in note]
    assert full.startswith("ptb-xl, labels full: ")
    assert "(scratch (lr 0.001) and e-Mix: 0; the others: 0, 1)" in full
    assert small.startswith("ptb-xl, labels small: ")
    assert "(e-Mix: 0; the others: 0, 1)" in small


def test_gaps_are_the_sources_validation_minus_the_target(report_analysis):
    scores, gaps = report_analysis.scores, report_analysis.gaps
    mean = scores[scores["class"] == "mean"]
    assert len(gaps) == len(mean[mean["role"] == "target"])
    for row in gaps[gaps["technique"].isin(["ShED", "ImageNet"])].itertuples(index=False):
        same = {
            name: getattr(row, name)
            for name in ("source", "setting", "technique", "protocol", "metric")
        }
        own = one(mean, dataset=row.source, split="validation", **same)
        other = one(mean, dataset=row.dataset, **same)
        assert (row.in_distribution, row.target) == pytest.approx((own["value"], other["value"]))
        assert row.gap == pytest.approx(own["value"] - other["value"])
        down = math.hypot(own["value"] - own["low"], other["high"] - other["value"])
        up = math.hypot(own["high"] - own["value"], other["value"] - other["low"])
        expected = (row.gap - down, row.gap + up)
        if own["seeds"] == 1:  # of several seeds, what moves both sides cancels out
            assert (row.low, row.high) == pytest.approx(expected, nan_ok=True)
        given = row.metric not in ("auprc", "calibration_error")
        assert (row.low < row.gap < row.high) == given
        assert (row.caution == "") == given
        assert not given or (row.p < 0.05) == (not row.low <= 0 <= row.high)
        together = gaps[(gaps[list(same)] == pd.Series(same)).all(axis=1)]
        below = np.sort(together["p"])[np.sort(together["p"]) <= row.p]
        steps = [p * (len(together) - n) for n, p in enumerate(below)]
        assert not given or row.p_holm == pytest.approx(min(1, max(steps)))


def test_ranks_follow_the_values(report_analysis):
    """Of all rows with as many labels, whatever the mode and protocol, but shuffled labels."""
    scores, ranking = report_analysis.scores, report_analysis.ranking
    auroc = scores[(scores["metric"] == "auroc") & (scores["class"] == "mean")]
    auroc = auroc[auroc["protocol"] != "shuffled"]
    auroc = auroc.assign(labels=[mode_and_labels(setting)[1] for setting in auroc["setting"]])
    row = ["setting", "technique"]
    for key, ranked in ranking.groupby(list(PLACE)):
        own = auroc[(auroc[list(PLACE)] == list(key)).all(axis=1)].set_index(row)["value"]
        expected = own.rank(ascending=False)
        assert ranked.set_index(row)["rank"].to_dict() == expected.to_dict()
        assert (ranked["low"] <= ranked["rank"]).all()
        assert (ranked["rank"] <= ranked["high"]).all()
        assert ranked["tau"].between(-1, 1).all()
    assert "scratch (lr 0.001)" in set(ranking["technique"])
    assert not ranking["technique"].str.contains("shuffled").any()


def test_subgroups_are_scored_by_themselves(report_analysis, predicted):
    target, score, rows = rows_of(predicted, **CHEXPERT, technique="imagenet")
    chosen = CXR_KEY | {"technique": "ImageNet"}
    for name in ("female", "male"):
        inside = (rows["sex"] == name).to_numpy()
        row = one(report_analysis.subgroups, **chosen, variable="sex", group=name)
        assert row["value"] == pytest.approx(slow_auroc(target[inside], score[inside]))
        patients = rows.loc[inside, "group_id"].nunique()
        assert (row["records"], row["patients"]) == (inside.sum(), patients)
    pair = one(report_analysis.subgroup_pairs, **chosen, variable="sex")
    assert (pair["a"], pair["b"]) == ("female", "male")
    values = report_analysis.subgroups.query("variable == 'sex'")
    female, male = (one(values, **chosen, group=name)["value"] for name in ("female", "male"))
    assert pair["difference"] == pytest.approx(female - male)  # both can score all classes
    assert pair["p_holm"] == pair["p"]  # the only pair
    assert row["p"] == pytest.approx(pair["p"], rel=0.5)  # by another test of the same
    assert (pair["p"] < 0.05) == (not pair["low"] <= 0 <= pair["high"])
    assert set(report_analysis.subgroups["variable"]) <= {"age", "sex", "site"}  # what is stated
    shown = report_analysis.subgroups["patients"].min()
    assert shown >= 20
    assert report_analysis.excluded.query("group != 'unknown'")["patients"].max() < 20
    assert "unknown" in set(report_analysis.excluded.query("variable == 'age'")["group"])
    ages = report_analysis.excluded.query("variable == 'age'")["group"]
    assert ages.str.fullmatch(r"\d0–\d9|90\+|unknown").all()


def test_subgroups_over_seeds_are_the_mean_over_seeds(report_analysis, predicted):
    values = []
    for seed in (0, 1):
        target, score, rows = rows_of(predicted, **GEORGIA, technique="shed", seed=seed)
        inside = (rows["sex"] == "male").to_numpy()
        values.append(slow_auroc(target[inside], score[inside]))
    row = one(report_analysis.subgroups, **ECG_KEY, technique="ShED", variable="sex", group="male")
    assert row["value"] == pytest.approx(np.mean(values))
    assert row["low"] < row["value"] < row["high"]


def test_roc_curves_hold_their_area(report_analysis, predicted):
    curves = report_analysis.roc
    assert curves.groupby([*KEY, "class", "seed"]).size().max() <= POINTS
    target, score, _ = rows_of(predicted, **GEORGIA, technique="mae", seed=1)
    for index, name in enumerate(ECG.classes):
        chosen = (curves["technique"] == "MAE") & (curves["seed"] == 1) & (curves["class"] == name)
        for column, value in ECG_KEY.items():
            chosen &= curves[column] == value
        fpr, tpr, _ = roc_curve(target[:, index], score[:, index])
        np.testing.assert_allclose(curves.loc[chosen, "fpr"], fpr)
        np.testing.assert_allclose(curves.loc[chosen, "tpr"], tpr)


def test_long_roc_curves_are_thinned_along_the_curve(tmp_path):
    rows = 12_000
    targets = targets_of(ECG.classes, rows, "single-label")
    scores = scores_of(targets, "single-label", 1.0, [1])
    run = make_transfer(tmp_path)
    write_predictions(run, "georgia", {"test": (people(rows), targets, scores)})
    curves = analyse([run], resamples=2).roc
    for index, name in enumerate(ECG.classes):
        curve = curves[curves["class"] == name]
        assert 150 < len(curve) <= POINTS
        ends = curve[["fpr", "tpr"]].to_numpy()[[0, -1]]
        assert ends.tolist() == [[0, 0], [1, 1]]
        area = np.trapezoid(curve["tpr"], curve["fpr"])
        expected = roc_auc_score(targets[:, index], scores[:, index])
        assert area == pytest.approx(expected, abs=2e-3)


def test_calibration_bins_hold_all_rows_and_the_calibration_error(report_analysis):
    bins, scores = report_analysis.calibration, report_analysis.scores
    same = {**CXR_KEY, "technique": "ImageNet", "class": "edema"}
    held = bins
    for name, value in same.items():
        held = held[held[name] == value]
    gap = (held["count"] * (held["observed"] - held["predicted"]).abs()).sum()
    row = one(scores, metric="calibration_error", **same)
    assert gap / held["count"].sum() == pytest.approx(row["value"])
    assert held["observed"].between(0, 1).all()
    assert held["predicted"].is_monotonic_increasing


def test_training_is_read_from_the_metrics(report_analysis):
    training = report_analysis.training
    assert set(training["name"]) == {"loss", "validation_auroc", "lr"}
    pretrained = training[training["kind"] == "pretrain"]
    assert set(pretrained["unit"]) == {"steps"}
    assert set(training.loc[training["kind"] == "transfer", "unit"]) == {"epochs"}
    run = pretrained[(pretrained["technique"] == "ShED") & (pretrained["seed"] == 1)]
    loss = run[run["name"] == "loss"]
    assert loss["done"].tolist() == list(range(20, 401, 20))
    assert loss["value"].tolist() == pytest.approx([2 / (1 + d) for d in range(20, 401, 20)])


def test_long_training_is_thinned_and_keeps_its_last_line(tmp_path):
    run = make_transfer(tmp_path)
    predict_all(run, {"ptb-xl": {"validation": 60}})
    lines = "".join(line({"done": i, "loss": i / 10}) for i in range(1, 1304))
    (run.folder / "metrics.jsonl").write_text(lines + '{"done": 1304, "lo')
    training = analyse([run], resamples=2).training
    assert training["done"].tolist() == list(range(1, 1304, 3))
    assert training["done"].iloc[-1] == 1303


def test_runs_are_listed_with_where_they_ran(report_analysis, report_store):
    ran, found = report_analysis.ran, runs([report_store])
    assert ran["run"].tolist() == [run.folder.name for run in found]
    assert ran["finished"].tolist() == [run.finished for run in found]
    assert (~ran["finished"]).sum() == 1
    assert set(ran["protocol"]) == {"fixed", "custom", "shuffled"}
    assert set(ran["device"]) == {"cpu"}
    assert set(ran["torch"]) == {"1.0"}
    pretrained = ran[ran["kind"] == "pretrain"]
    assert pretrained["seconds"].tolist() == pytest.approx([40.0] * len(pretrained))


def test_data_of_the_store_is_as_the_tests_expect(report_analysis):
    held = report_analysis.rows[["dataset", "split", "records"]]
    rows = set(held.itertuples(index=False, name=None))
    expected = {
        (dataset, split, count)
        for datasets in (ECG_DATA, CXR_DATA)
        for dataset, splits in datasets.items()
        for split, count in splits.items()
    }
    assert rows == expected
