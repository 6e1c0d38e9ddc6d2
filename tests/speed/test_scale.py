"""Growth of each part, measured at small sizes; what can be said without a clock is asserted."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from printed import run

from benchmd_ray.cli import main
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.streaming import Shards, row_groups
from benchmd_ray.runs.files import predictions_of
from benchmd_ray.runs.store import read_run, read_stores, working
from benchmd_ray.service.plan import make_plan
from speed import scale, stores

SMALL = ("--records", "20", "--resamples", "3")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of the test's own."""
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path / "cache"))


@pytest.mark.slow
def test_each_part_is_measured_at_each_size() -> None:
    result = run("speed.scale", "--sizes", "6", "3", *SMALL)
    parts = {
        "store": {"list_first", "list", "watch", "report", "report_again"},
        "catalog": {"open", "read"},
        "workers": {"work"},
        "plan": {"make"},
    }
    for part, names in parts.items():
        sizes = result[part]["sizes"]
        assert [size["units"] for size in sizes] == [3, 6]
        assert result[part]["growth"].keys() == names
        for name in names:
            first, last = (size[name] for size in sizes)
            assert last["seconds"] > 0 < last["peak_mib"]
            ratio = last["cpu_ms_per_unit"] / first["cpu_ms_per_unit"]
            assert result[part]["growth"][name] == pytest.approx(ratio, rel=0.01)
    assert "/" not in json.dumps(result["settings"])


@pytest.mark.slow
def test_made_up_runs_are_reported_and_none_is_skipped(tmp_path: Path) -> None:
    stores.fill(tmp_path / "runs", 0, 4, 20)
    arguments = ["report", str(tmp_path / "runs"), "--out", str(tmp_path / "report")]
    result = CliRunner().invoke(main, [*arguments, "--figures", "none", "--resamples", "3"])
    assert result.exit_code == 0
    assert "Skipped" not in result.output
    scores = pd.read_csv(tmp_path / "report" / "scores.csv")
    assert scores["run"].nunique() == 4
    runs = read_stores([tmp_path / "runs"]).found
    assert [len(predictions_of(run.folder)) for run in runs] == [1] * 4


def test_a_catalog_of_links_opens_and_holds_each_shard(tmp_path: Path) -> None:
    stores.shards(tmp_path / "catalog", 7, records=3)
    catalog = open_catalog(tmp_path / "catalog")
    assert len(catalog.shards("train")) == 7
    assert [len(table) for table in catalog.tables("train")] == [3] * 7
    assert catalog.altered_shards() == []


def test_what_a_streaming_task_unpickles_does_not_grow_with_the_shards(tmp_path: Path) -> None:
    sizes = []
    for count in (3, 300):
        stores.shards(tmp_path / str(count), count)
        whole = open_catalog(tmp_path / str(count)).shards("train")
        shards = Shards.of(whole)
        assert [shards.at(number) for number in range(count)] == whole
        (last,) = row_groups(shards, {"id": np.array([count - 1])}, ["record_id"])
        assert last == whole[-1].table(["record_id"])
        buffers: list[pickle.PickleBuffer] = []  # which Ray shares instead of copying
        sizes.append(len(pickle.dumps(shards, protocol=5, buffer_callback=buffers.append)))
        assert buffers
    assert sizes[1] < 1.1 * sizes[0]


def test_workers_that_meet_on_one_store_finish_each_run_once(tmp_path: Path) -> None:
    store = tmp_path / "runs"
    stores.fill(store, 0, 12, finished=False)
    scale.in_own_process(lambda: scale._worked(store, 4, 12), 12)
    scale.require_whole(store, 12)
    (store / read_stores([store]).found[0].folder.name / "done.json").unlink()
    with pytest.raises(AssertionError, match="was worked on by"):
        scale.require_whole(store, 12)


def test_a_run_that_was_lost_is_noticed(tmp_path: Path) -> None:
    stores.fill(tmp_path, 0, 2, finished=False)
    for folder in (path.parent for path in tmp_path.glob("*/run.json")):
        with working(read_run(folder)):
            (folder / "worked").write_text("0")
    scale.require_whole(tmp_path, 2)
    with pytest.raises(AssertionError, match="2 of 3 runs"):
        scale.require_whole(tmp_path, 3)


def test_work_that_fails_in_its_process_is_an_error() -> None:
    with pytest.raises(AssertionError, match="the work failed"):
        scale.in_own_process(lambda: 1 / 0, 1)


def test_a_plan_opens_its_catalog_as_often_for_many_runs_as_for_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores.shards(tmp_path / "catalog", 1)
    opened: list[Path] = []
    from benchmd_ray.data import catalog as catalogs

    whole = catalogs.described
    monkeypatch.setattr(
        catalogs, "described", lambda content: [opened.append(tmp_path), whole(content)][1]
    )
    counts = []
    for seeds in (1, 50):
        opened.clear()
        catalogs._parsed.cache_clear()
        choice = scale.chosen(tmp_path / "catalog", seeds)
        assert len(make_plan(choice, tflops=1.0).items) == seeds
        counts.append(len(opened))
    assert counts[0] == counts[1] > 0
