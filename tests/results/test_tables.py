import csv
import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

from benchmd_ray.errors import BenchmdError
from benchmd_ray.modalities import MODALITIES
from benchmd_ray.results import tables
from benchmd_ray.results.store import open_run

ECG = MODALITIES["ecg"]


def make_run(
    store,
    dataset="georgia",
    role="target",
    technique="shed",
    split="test",
    seed=0,
    shuffled=False,
    modality="ecg",
    source="ptb-xl",
    trained=(15_000, 21_799),
    trained_options=None,
    raw=(9_000, 10_344),
    options=None,
):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 6, 300)  # the last class, hypertrophy, never occurs
    targets = np.eye(7, dtype=np.int8)[labels]
    scores = rng.dirichlet(np.ones(7), 300) + 0.3 * targets
    about = {
        "technique": technique,
        "setting": "linear",
        "fixed": False,
        "seed": 0,
        "settings": {"transfer": {"shuffle_labels": shuffled}},
        "source": source,
        "raw": list(trained),
        "options": trained_options or {},
        "determinants": [
            dataset,
            technique,
            split,
            seed,
            shuffled,
            source,
            trained,
            trained_options,
            raw,
            options,
        ],
    }
    run = open_run(store, f"transfer-ecg-{technique}", about)
    table = pa.table(
        {
            "split": [split] * 300,
            "unit_id": [f"r{i}" for i in range(300)],
            "group_id": [f"p{i // 2}" for i in range(300)],
            "scores": pa.FixedSizeListArray.from_arrays(pa.array(scores.ravel()), 7),
            "target": pa.FixedSizeListArray.from_arrays(pa.array(targets.ravel()), 7),
        }
    ).replace_schema_metadata(
        {
            "dataset": dataset,
            "modality": modality,
            "policy": "clean",
            "catalog": "d",
            "role": role,
            "raw_records": str(raw[0]),
            "raw_expected": str(raw[1]),
            "options": json.dumps(options or {}),
            "classes": json.dumps(ECG.classes),
        }
    )
    (run.folder / "predictions").mkdir(exist_ok=True)
    (run.folder / "done.json").write_text("{}")
    pq.write_table(table, run.folder / "predictions" / f"{dataset}.parquet")
    return run, targets, scores


def test_every_number_is_computed_from_the_predictions(tmp_path):
    run, targets, scores = make_run(tmp_path)
    (cell,) = tables.cells(run)
    expected = [roc_auc_score(targets[:, c], scores[:, c]) for c in range(6)]
    assert cell.auroc == pytest.approx(np.mean(expected))
    assert [value for _, value, _, _ in cell.classes[:6]] == pytest.approx(expected)
    assert cell.low < cell.auroc < cell.high
    assert (cell.records, cell.patients) == (300, 150)


def test_windows_of_one_scan_count_as_one_record(tmp_path):
    run, targets, scores = make_run(tmp_path)
    path = run.folder / "predictions" / "georgia.parquet"
    table = pq.read_table(path)
    units = pa.array([f"scan {i // 2}" for i in range(300)])
    named = table.set_column(table.schema.get_field_index("unit_id"), "unit_id", units)
    pq.write_table(named, path)
    (cell,) = tables.cells(run)
    pairs = targets.reshape(150, 2, 7).max(axis=1), scores.reshape(150, 2, 7).max(axis=1)
    expected = [roc_auc_score(pairs[0][:, c], pairs[1][:, c]) for c in range(6)]
    assert [value for _, value, _, _ in cell.classes[:6]] == pytest.approx(expected)
    assert (cell.records, cell.patients) == (150, 150)
    assert cell.positives == tuple(pairs[0].sum(axis=0))


def test_a_class_that_cannot_be_scored_is_named(tmp_path):
    run, *_ = make_run(tmp_path)
    (cell,) = tables.cells(run)
    assert cell.unscored == ("hypertrophy",)
    assert any("Not scored in georgia (test)" in note for note in tables.notes([cell]))
    assert tables.display_frame([cell])["classes"][0] == "6/7"


def test_shuffled_labels_are_named_and_never_stand_beside_the_paper(tmp_path):
    run, *_ = make_run(tmp_path, shuffled=True)
    (cell,) = tables.cells(run)
    assert (cell.protocol, cell.paper) == ("shuffled", None)


def test_a_table_says_when_a_dataset_is_not_whole(tmp_path):
    run, *_ = make_run(tmp_path)
    expected = "georgia: built from 9,000 raw records, the whole dataset has 10,344."
    assert expected in tables.notes(tables.cells(run))


def test_the_papers_number_stands_beside_its_own_cell_only(tmp_path):
    target, *_ = make_run(tmp_path)
    held_out, *_ = make_run(tmp_path, dataset="ptb-xl", role="source", split="test")
    source, *_ = make_run(tmp_path, dataset="ptb-xl", role="source", split="validation")
    assert tables.cells(target)[0].paper == tables.paper_auroc()["georgia", "linear", "shed"]
    assert tables.cells(source)[0].paper == 0.737
    assert tables.cells(held_out)[0].paper is None


def test_the_paper_trains_on_one_source_of_each_modality():
    assert tables.paper_sources() == {
        "ptb-xl", "shhs", "mimic-cxr", "vindr-mammo", "bcn20000", "messidor-2", "lidc-idri"
    }  # fmt: skip


HAM = {"dataset": "ham10000", "modality": "derm", "raw": (10_015, 10_015), "trained": (7, 7)}


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"source": "bcn20000"}, True),
        ({"source": "isic-2017"}, False),
        ({"source": "bcn20000", "raw": (5_008, 10_015)}, True),
        ({"source": "bcn20000", "raw": (5_007, 10_015)}, False),
        ({"source": "bcn20000", "trained": (3, 7)}, False),
        ({"source": "bcn20000", "options": {"a": "1"}}, False),
        ({"source": "bcn20000", "trained_options": {"a": "1"}}, False),
    ],
)
def test_the_papers_number_stands_beside_what_is_like_it(tmp_path, changes, shown):
    (cell,) = tables.cells(make_run(tmp_path, **(HAM | changes))[0])
    paper = tables.paper_auroc()["ham10000", "linear", "shed"]
    assert cell.paper == (paper if shown else None)
    said = [note for note in tables.notes([cell]) if "cannot be compared" in note]
    assert bool(said) != shown


def test_a_table_names_the_source_that_each_run_was_trained_on(tmp_path):
    isic = {"modality": "derm", "role": "source", "split": "validation", "source": "isic-2017"}
    found = tables.all_cells(
        [
            make_run(tmp_path, **(isic | {"dataset": "bcn20000"}))[0],
            make_run(tmp_path, **(isic | {"dataset": "isic-2017"}))[0],
            make_run(tmp_path, **(isic | {"dataset": "bcn20000", "source": "bcn20000"}))[0],
        ]
    )
    frame = tables.display_frame(found)
    assert list(zip(frame["trained on"], frame["dataset"], strict=True)) == [
        ("bcn20000", "bcn20000 (validation)"),
        ("isic-2017", "isic-2017 (validation)"),
        ("isic-2017", "bcn20000 (validation, another source)"),
    ]
    assert [cell.paper is None for cell in found] == [False, True, True]
    assert any(note.startswith("another source: ") for note in tables.notes(found))
    assert not any(note.startswith("another source: ") for note in tables.notes(found[:2]))
    paths = tables.write_tables(found, tmp_path / "out")
    for path, rows in ((paths[0], 1), (paths[1], 7)):
        sources = [row["source"] for row in csv.DictReader(path.open())]
        assert sources == ["bcn20000"] * rows + ["isic-2017"] * 2 * rows


def test_options_of_the_builds_are_named(tmp_path):
    chosen = {"trained_options": {"images": "all"}, "options": {"uncertain": "negative"}}
    run, *_ = make_run(tmp_path, **chosen)
    (cell,) = tables.cells(run)
    assert cell.options == ("ptb-xl: images=all", "georgia: uncertain=negative")
    text = "\n".join(tables.notes([cell]))
    assert "ptb-xl: images=all, an option of the build" in text
    assert "georgia: uncertain=negative, an option of the build" in text
    row = next(csv.DictReader(tables.write_tables([cell], tmp_path / "out")[0].open()))
    assert row["options"] == "ptb-xl: images=all; georgia: uncertain=negative"


def test_what_is_scored_of_ct_is_called_a_scan(tmp_path):
    (cell,) = tables.cells(make_run(tmp_path, dataset="lndb", modality="ldct")[0])
    few = replace(cell, positives=(20, 20, 3, 20, 20, 20, 0))
    expected = [
        "ldct: the records of the table are scans.",
        "Fewer than 10 positive scans in lndb (test): myocardial infarction (3).",
        "Not scored in lndb (test), no positive or no negative scans: hypertrophy.",
    ]
    assert [note for note in tables.notes([few]) if "scan" in note] == expected


def test_tables_are_written_as_csv_and_markdown(tmp_path):
    run, *_ = make_run(tmp_path / "runs")
    other, *_ = make_run(tmp_path / "runs", technique="scratch", seed=1)
    found = tables.all_cells([run, other])
    assert [cell.technique for cell in found] == ["scratch", "shed"]
    paths = tables.write_tables(found, tmp_path / "out")
    rows = list(csv.DictReader(paths[0].open()))
    assert float(rows[1]["auroc"]) == pytest.approx(found[1].auroc)
    assert len(list(csv.DictReader(paths[1].open()))) == 14
    assert paths[2].read_text("utf-8").count("\n| ecg | ptb-xl | georgia |") == 2


def test_classes_with_few_positives_are_named(tmp_path):
    run, targets, _ = make_run(tmp_path)
    (cell,) = tables.cells(run)
    assert cell.positives == tuple(targets.sum(axis=0))
    assert not any("Fewer than" in note for note in tables.notes([cell]))
    few = replace(cell, positives=(1, 20, 3, 20, 20, 20, 0))
    expected = (
        "Fewer than 10 positive records in georgia (test): myocardial infarction (3), normal (1)."
    )
    assert expected in tables.notes([few])


def test_unfinished_runs_are_left_out_and_named(tmp_path):
    run, *_ = make_run(tmp_path)
    begun, *_ = make_run(tmp_path, seed=5)
    (begun.folder / "done.json").unlink()
    assert [cell.run for cell in tables.all_cells([run, begun])] == [run.folder.name]
    assert tables.unfinished([run, begun]) == [f"Not finished, left out: {begun.folder.name}."]


def test_text_columns_line_up(tmp_path):
    run, *_ = make_run(tmp_path)
    lines = tables.text(tables.display_frame(tables.cells(run))).splitlines()
    start = lines[0].index("technique")
    assert lines[2][start:].startswith("shed")


def test_runs_without_predictions_are_refused(tmp_path):
    run = open_run(tmp_path, "r", {"determinants": {}})
    with pytest.raises(BenchmdError, match="none of the 1 runs is finished and has predictions"):
        tables.all_cells([run])
