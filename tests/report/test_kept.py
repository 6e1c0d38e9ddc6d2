"""What a report keeps for the next one gives the same results, and never stale ones."""

import math
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import feather
from stores import ECG_DATA, make_transfer, predict_all

from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.integrity import write_hash
from benchmd_ray.report import scored
from benchmd_ray.report import scored as module
from benchmd_ray.report.scored import kept, measured, read_scored
from benchmd_ray.runs import index as indexes
from benchmd_ray.runs.index import indexed
from benchmd_ray.scores.support import support


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "report"


class Counted:
    """Counts how often it computes."""

    def __init__(self):
        self.times = 0

    def __call__(self):
        self.times += 1
        return pa.table({"a": [1.5, math.nan], "b c": [[0.0, 1.0], []]})


def fits(held):
    return len(held) == 2 and held.column_names == ["a", "b c"]


def test_what_was_computed_before_is_not_computed_again():
    compute = Counted()
    first = kept({"n": 1}, compute, fits)
    second = kept({"n": 1}, compute, fits)
    assert compute.times == 1
    assert first.column_names == second.column_names == ["a", "b c"]
    assert str(second.to_pydict()) == str(first.to_pydict())  # of which one number is NaN


def test_anything_that_differs_is_computed():
    compute = Counted()
    kept({"n": 1}, compute, fits)
    kept({"n": 2}, compute, fits)
    assert compute.times == 2


def test_arrays_that_differ_have_different_hashes():
    x, y = np.arange(6).reshape(2, 3), np.array([0.5])
    assert module._hash(x, y) == module._hash(x.copy(), y.copy())
    others = [(x, y / 2), (x.reshape(3, 2), y), (x.astype(np.int8), y), (y, x), (x,)]
    assert len({module._hash(x, y), *(module._hash(*other) for other in others)}) == 6


@pytest.mark.parametrize(("name", "other"), [("__version__", "another"), ("_code", lambda: "x")])
def test_another_version_or_other_code_computes_anew(monkeypatch, name, other):
    compute = Counted()
    kept({}, compute, fits)
    monkeypatch.setattr(module, name, other)
    kept({}, compute, fits)
    assert compute.times == 2


def test_an_edit_to_what_defines_metrics_or_resamples_is_other_code(monkeypatch, tmp_path):
    package = Path(module.__file__).parents[1]
    for name in module.CODE:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((package / name).read_bytes())
    usual = module._code()
    monkeypatch.setattr(module.resources, "files", lambda name: tmp_path)
    found = [module._code.__wrapped__()]
    assert found == [usual]
    for name in module.CODE:
        with (tmp_path / name).open("a") as file:
            file.write("# edited\n")
        found.append(module._code.__wrapped__())
    assert len(set(found)) == 1 + len(module.CODE)


def test_a_cache_that_cannot_be_written_costs_no_report(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path / "file"))
    compute = Counted()
    for times in (1, 2):
        assert kept({}, compute, fits)["a"][0].as_py() == 1.5
        assert compute.times == times


def test_a_full_disk_costs_no_report(monkeypatch):
    def full(path, result):
        raise BenchmdError("no space left")

    monkeypatch.setattr(module, "_keep", full)
    assert kept({}, Counted(), fits)["a"][0].as_py() == 1.5


@pytest.mark.parametrize(("cpus", "threads"), [(1, 1), (2, 1), (8, 4), (64, 4)])
def test_the_threads_are_shared_by_the_predictions_at_hand(tmp_path, monkeypatch, cpus, threads):
    monkeypatch.setattr(scored, "usual_threads", lambda: cpus)
    usual, seen = scored.resampled, []

    def noting(*arguments, **options):
        seen.append(options["threads"])
        return usual(*arguments, **options)

    monkeypatch.setattr(scored, "resampled", noting)
    run = make_transfer(tmp_path / "runs")
    predict_all(run, {"ptb-xl": ECG_DATA["ptb-xl"]})
    measured(read_scored(run).scored, ("auroc",), 5)
    assert seen == [threads, threads]


@pytest.mark.parametrize("damage", [b"", b"ARROW1 cut off", b"\x93NUMPY"])
def test_a_damaged_file_is_computed_again(cache, damage):
    compute = Counted()
    kept({}, compute, fits)
    (path,) = cache.glob("*.arrow")
    path.write_bytes(damage)
    assert kept({}, compute, fits)["a"][0].as_py() == 1.5
    assert compute.times == 2
    kept({}, compute, fits)
    assert compute.times == 2
    path.write_bytes(damage)
    write_hash(path)
    kept({}, compute, fits)
    assert compute.times == 3


def test_measured_from_the_cache_equals_measured_anew(tmp_path, cache):
    run = make_transfer(tmp_path / "runs")
    predict_all(run, {"ptb-xl": ECG_DATA["ptb-xl"]})
    names = ("auroc", "auprc", "calibration_error")
    fresh = measured(read_scored(run).scored, names, 50)
    assert len(list(cache.glob("*.arrow"))) == len(fresh) == 2
    again = measured(read_scored(run).scored, names, 50)
    for one, other in zip(fresh, again, strict=True):
        for name in names:
            np.testing.assert_array_equal(one.resampled[name], other.resampled[name])
            np.testing.assert_array_equal(one.whole[name], other.whole[name])
            assert str(one.intervals[name]) == str(other.intervals[name])  # some are NaN


@pytest.fixture
def indexing(monkeypatch):
    """Files are indexed at once, no patients are known; gives the paths of predictions read."""
    scored._people.cache_clear()
    monkeypatch.setattr(indexes, "LEAST", 1)
    monkeypatch.setattr(indexes, "SETTLED_NS", 0)
    paths = []
    for name in ("read_predictions", "parsed_predictions"):
        usual = getattr(scored, name)
        noting = partial(lambda usual, path: paths.append(path) or usual(path), usual)
        monkeypatch.setattr(scored, name, noting)
    return paths


def results(run):
    with indexed() as index:
        read = read_scored(run, index)
        return measured(read.scored, ("auroc", "f1"), 50), read.skipped


def test_unchanged_predictions_are_read_only_for_their_units(tmp_path, indexing):
    run = make_transfer(tmp_path / "runs")
    predict_all(run, {"ptb-xl": ECG_DATA["ptb-xl"]})
    fresh, _ = results(run)
    assert len(indexing) == 1
    again, _ = results(run)
    assert len(indexing) == 1
    for one, other in zip(fresh, again, strict=True):
        assert (one.about, one.split, one.classes) == (other.about, other.split, other.classes)
        assert other.facts == one.facts
        assert one.facts.support == support(one.targets, one.units["group_id"])
        for name in ("auroc", "f1"):
            np.testing.assert_array_equal(one.resampled[name], other.resampled[name])
            np.testing.assert_array_equal(one.whole[name], other.whole[name])
    assert len(indexing) == 1
    for one, other in zip(fresh, again, strict=True):
        np.testing.assert_array_equal(one.scores, other.scores)
        np.testing.assert_array_equal(one.targets, other.targets)
        pd.testing.assert_frame_equal(one.units, other.units)
    assert len(indexing) == 1 + len(again)  # each split once


def test_another_version_of_numpy_computes_again_from_what_the_index_has(
    tmp_path, indexing, cache, monkeypatch
):
    run = make_transfer(tmp_path / "runs")
    predict_all(run, {"ptb-xl": {"validation": 80}})
    (fresh,), _ = results(run)
    monkeypatch.setattr(np, "__version__", "0.0")
    (again,), skipped = results(run)
    assert not skipped
    assert len([*cache.glob("*.arrow")]) == 2
    np.testing.assert_array_equal(again.whole["auroc"], fresh.whole["auroc"])


def test_patients_of_the_same_records_are_read_once(tmp_path, indexing):
    runs = [make_transfer(tmp_path / "runs", seed=seed) for seed in range(3)]
    for run in runs:
        predict_all(run, {"ptb-xl": {"validation": 80 + 8 * (run is runs[2])}})
        results(run)
    indexing.clear()
    people = [[*result.people()] for run in runs for result in results(run)[0]]
    assert people[0] == people[1] != people[2]
    assert len(indexing) == 2
    assert people[2] == results(runs[2])[0][0].units["group_id"].tolist()


def test_predictions_that_were_written_in_place_are_read_again(tmp_path, indexing):
    run = make_transfer(tmp_path / "runs")
    predict_all(run, {"ptb-xl": {"validation": 80}})
    results(run)
    (path,) = indexing
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    found, skipped = results(run)
    assert not found
    assert "SHA-256 is not the one" in skipped[0]


def test_predictions_that_change_during_a_report_are_refused(tmp_path, indexing):
    run = make_transfer(tmp_path / "runs")
    predict_all(run, {"ptb-xl": {"validation": 80}})
    results(run)
    (again,), _ = results(run)
    predict_all(run, {"ptb-xl": {"validation": 90}})
    with pytest.raises(
        BenchmdError, match=r"was changed during the report\. Make the report again"
    ):
        _ = again.units


def test_a_result_of_another_form_is_computed_again(cache):
    compute = Counted()
    kept({}, compute, fits)
    (path,) = cache.glob("*.arrow")
    for other in ({"other": [0.0, 0.0]}, {"a": [0.0] * 3, "b c": [[]] * 3}):
        feather.write_feather(pa.table(other), str(path))
        write_hash(path)
        assert kept({}, compute, fits)["a"][0].as_py() == 1.5
    assert compute.times == 3


@pytest.mark.parametrize("change", ["value", "draws", "rows", "order", "null"])
def test_scores_of_another_shape_are_computed_again(tmp_path, cache, change):
    run = make_transfer(tmp_path / "runs")
    predict_all(run, {"ptb-xl": {"validation": 80}})
    (fresh,) = measured(read_scored(run).scored, ("auroc", "f1"), 20)
    (path,) = cache.glob("*.arrow")
    rows = feather.read_table(path).to_pylist()
    if change == "rows":
        rows.pop()
    elif change == "order":
        rows[0], rows[1] = rows[1], rows[0]
    else:
        shorter = {"value": None, "draws": rows[3]["draws"][:-1], "null": [None] * 20}[change]
        rows[3]["value" if change == "value" else "draws"] = shorter
    feather.write_feather(pa.Table.from_pylist(rows, scored.KEPT), str(path))
    write_hash(path)
    (again,) = measured(read_scored(run).scored, ("auroc", "f1"), 20)
    for name in ("auroc", "f1"):
        np.testing.assert_array_equal(again.resampled[name], fresh.resampled[name])
        np.testing.assert_array_equal(again.whole[name], fresh.whole[name])


def test_a_result_that_was_exchanged_with_another_is_computed_again(cache):
    kept({"n": 1}, Counted(), fits)
    (first,) = cache.glob("*.arrow")
    kept({"n": 2}, lambda: pa.table({"a": [0.0] * 2, "b c": [[]] * 2}), fits)
    (second,) = set(cache.glob("*.arrow")) - {first}
    for suffix in ("", ".sha256"):
        first.with_name(f"{second.name}{suffix}").replace(first.with_name(f"{first.name}{suffix}"))
    assert kept({"n": 1}, Counted(), fits)["a"][0].as_py() == 1.5
