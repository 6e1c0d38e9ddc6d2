import csv
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kinds import MODALITIES
from sklearn.metrics import roc_auc_score
from stores import described, make_transfer, people, write_predictions

from benchmd_ray.benchmarks.benchmd.published import auroc as paper_auroc
from benchmd_ray.benchmarks.benchmd.published import sources as paper_sources
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files import digest
from benchmd_ray.integrity import write_hash
from benchmd_ray.results.report import tables
from benchmd_ray.results.report.analysis import Analysis, analyse, blocks
from benchmd_ray.results.report.cells import unfinished
from benchmd_ray.results.report.notes import notes
from benchmd_ray.results.report.protocols import protocols
from benchmd_ray.results.store import open_run
from benchmd_ray.results.written import text
from benchmd_ray.training.predictions import predictions_path

ECG = MODALITIES["ecg"].task


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
    fixed=True,
):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 6, 300)  # the last class, hypertrophy, never occurs
    targets = np.eye(7, dtype=np.int8)[labels]
    scores = rng.dirichlet(np.ones(7), 300) + 0.3 * targets
    scores /= scores.sum(axis=1, keepdims=True)
    told = [dataset, role, split, trained, trained_options, raw, options]
    run = make_transfer(
        store / digest(told)[:12],
        technique,
        modality=modality,
        source=source,
        seed=seed,
        changes={"transfer": {"shuffle_labels": shuffled}},
        fixed=fixed,
        raw=list(trained),
        options=trained_options or {},
    )
    write_predictions(
        run,
        dataset,
        {split: (people(300), targets, scores)},
        classes=ECG.classes,
        role=role,
        raw=raw,
        options=options,
    )
    return run, targets, scores


def cells(*made):
    named = protocols(made)
    return [cell for block in blocks(made, named, ("auroc",), 100) for cell in block.cells]


def test_every_number_is_computed_from_the_predictions(tmp_path):
    run, targets, scores = make_run(tmp_path)
    (cell,) = cells(run)
    expected = [roc_auc_score(targets[:, c], scores[:, c]) for c in range(6)]
    assert cell.auroc == pytest.approx(np.mean(expected))
    assert [value for _, value, _, _ in cell.classes[:6]] == pytest.approx(expected)
    assert cell.low < cell.auroc < cell.high
    assert (cell.records, cell.patients) == (300, 150)


def test_windows_of_one_scan_count_as_one_record(tmp_path):
    run, targets, scores = make_run(tmp_path)
    path = predictions_path(run.folder, "georgia")
    table = pq.read_table(path)
    units = pa.array([f"scan {i // 2}" for i in range(300)])
    named = table.set_column(table.schema.get_field_index("unit_id"), "unit_id", units)
    pq.write_table(named, path)
    write_hash(path)
    (cell,) = cells(run)
    pairs = targets.reshape(150, 2, 7).max(axis=1), scores.reshape(150, 2, 7).max(axis=1)
    expected = [roc_auc_score(pairs[0][:, c], pairs[1][:, c]) for c in range(6)]
    assert [value for _, value, _, _ in cell.classes[:6]] == pytest.approx(expected)
    assert (cell.records, cell.patients) == (150, 150)
    counts = pairs[0].sum(axis=0)  # each scan is a patient's only one
    assert cell.support.rarer == pytest.approx(np.minimum(counts, 150 - counts))


def test_a_class_that_cannot_be_scored_is_named(tmp_path):
    run, *_ = make_run(tmp_path)
    (cell,) = cells(run)
    assert cell.unscored == ("hypertrophy",)
    assert any("Not scored in georgia (test)" in note for note in notes([cell]))
    analysis = analyse([run], resamples=20)
    assert tables.display_frame(analysis)["classes"][0] == "6/7"
    (unscored,) = np.flatnonzero(analysis.scores["class"] == "hypertrophy")[:1]
    assert analysis.scores["metric"][unscored] == "auroc"
    assert np.isnan(analysis.scores["value"][unscored])


def test_shuffled_labels_are_named_and_never_stand_beside_the_paper(tmp_path):
    run, *_ = make_run(tmp_path, shuffled=True)
    (cell,) = cells(run)
    assert (cell.protocol, cell.paper) == ("shuffled", None)


def test_custom_settings_never_stand_beside_the_paper_and_the_note_says_so(tmp_path):
    fixed, *_ = make_run(tmp_path / "fixed")
    assert cells(fixed)[0].paper is not None
    run, *_ = make_run(tmp_path / "custom", fixed=False)
    (cell,) = cells(run)
    assert (cell.protocol, cell.paper) == ("custom", None)
    assert "settings other than the fixed protocol's" in cell.unlike
    analysis = analyse([run], resamples=20)
    assert tables.display_frame(analysis)["paper"].tolist() == ["–"]
    (note,) = [note for note in analysis.notes if note.startswith("paper: ")]
    assert "settings other than the fixed protocol's" in note


def test_a_table_says_when_a_dataset_is_not_whole(tmp_path):
    run, *_ = make_run(tmp_path)
    expected = "georgia: built from 9,000 raw records, the whole dataset has 10,344."
    assert expected in notes(cells(run))


def test_the_papers_number_stands_beside_its_own_cell_only(tmp_path):
    target, *_ = make_run(tmp_path)
    held_out, *_ = make_run(tmp_path, dataset="ptb-xl", role="source", split="test")
    source, *_ = make_run(tmp_path, dataset="ptb-xl", role="source", split="validation")
    assert cells(target)[0].paper == paper_auroc()["georgia", "linear", "shed"]
    assert cells(source)[0].paper == 0.737
    assert cells(held_out)[0].paper is None


def test_the_paper_trains_on_one_source_of_each_modality():
    assert paper_sources() == {
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
    (cell,) = cells(make_run(tmp_path, **(HAM | changes))[0])
    paper = paper_auroc()["ham10000", "linear", "shed"]
    assert cell.paper == (paper if shown else None)
    said = [note for note in notes([cell]) if "cannot be compared" in note]
    assert bool(said) != shown


def test_a_table_names_the_source_that_each_run_was_trained_on(tmp_path):
    isic = {"modality": "derm", "role": "source", "split": "validation", "source": "isic-2017"}
    analysis = analyse(
        [
            make_run(tmp_path, **(isic | {"dataset": "bcn20000"}))[0],
            make_run(tmp_path, **(isic | {"dataset": "isic-2017"}))[0],
            make_run(tmp_path, **(isic | {"dataset": "bcn20000", "source": "bcn20000"}))[0],
        ],
        resamples=20,
    )
    found, frame = analysis.cells, tables.display_frame(analysis)
    assert list(zip(frame["trained on"], frame["dataset"], strict=True)) == [
        ("bcn20000", "bcn20000 (validation)"),
        ("isic-2017", "isic-2017 (validation)"),
        ("isic-2017", "bcn20000 (validation, another source)"),
    ]
    assert [cell.paper is None for cell in found] == [False, True, True]
    assert any(note.startswith("another source: ") for note in notes(found))
    assert not any(note.startswith("another source: ") for note in notes(found[:2]))
    tables.write_tables(analysis, tmp_path / "out")
    for name, rows in (("auroc", 1), ("auroc_per_class", 7), ("auroc_per_run", 1)):
        with (tmp_path / "out" / f"{name}.csv").open() as file:
            sources = [row["source"] for row in csv.DictReader(file)]
        assert sources == ["bcn20000"] * rows + ["isic-2017"] * 2 * rows


def test_options_of_the_builds_are_named(tmp_path):
    chosen = {"trained_options": {"images": "all"}, "options": {"uncertain": "negative"}}
    run, *_ = make_run(tmp_path, **chosen)
    (cell,) = cells(run)
    assert cell.options == ("ptb-xl: images=all", "georgia: uncertain=negative")
    text = "\n".join(notes([cell]))
    assert "ptb-xl: images=all, an option of the build" in text
    assert "georgia: uncertain=negative, an option of the build" in text
    tables.write_tables(analyse([run], resamples=20), tmp_path / "out")
    for name in ("auroc.csv", "auroc_per_run.csv"):
        with (tmp_path / "out" / name).open() as file:
            row = next(csv.DictReader(file))
        assert row["options"] == "ptb-xl: images=all; georgia: uncertain=negative"


def test_what_is_scored_of_ct_is_called_a_scan(tmp_path):
    (cell,) = cells(make_run(tmp_path, dataset="lndb", modality="ldct")[0])
    few = replace(cell, support=replace(cell.support, rarer=(20, 20, 3, 20, 20, 20, 0)))
    expected = [
        "ldct: the records of the table are scans.",
        "Not scored in lndb (test), no positive or no negative scans: hypertrophy.",
    ]
    assert [note for note in notes([few]) if "scan" in note] == expected


def test_tables_are_written_as_csv_markdown_and_latex(tmp_path):
    run, *_ = make_run(tmp_path / "runs")
    other, *_ = make_run(tmp_path / "runs", technique="scratch", seed=1)
    analysis = analyse([run, other], resamples=20)
    assert [cell.technique for cell in analysis.cells] == ["scratch", "shed"]
    paths = tables.write_tables(analysis, tmp_path / "out")
    assert paths[0] == tmp_path / "out" / "auroc.csv"
    assert {path.name for path in paths} == {path.name for path in (tmp_path / "out").iterdir()}
    for name in ("auroc.csv", "auroc_per_run.csv"):
        rows = pd.read_csv(tmp_path / "out" / name)
        values = rows["value" if name == "auroc.csv" else "auroc"]
        assert values.tolist() == pytest.approx([cell.auroc for cell in analysis.cells])
        assert rows["low"].tolist() == pytest.approx([cell.low for cell in analysis.cells])
    assert len(pd.read_csv(tmp_path / "out" / "auroc_per_class.csv")) == 14
    lines = (tmp_path / "out" / "auroc.md").read_text("utf-8")
    assert lines.count("\n| ecg | ptb-xl | georgia |") == 2
    assert all(f"\n- {note}\n" in lines for note in analysis.notes)
    printed = (tmp_path / "out" / "auroc.tex").read_text("utf-8")
    assert printed.count("\ngeorgia & ") == 2
    assert "In all rows: modality ecg; trained on ptb-xl; setting linear;" in printed
    for table in tables.TABLES:
        if len(table.shown(analysis)):
            for kind in ("csv", "md", "tex"):
                assert tmp_path / "out" / f"{table.name}.{kind}" in paths


def test_tables_hold_what_the_frames_hold(report_analysis, tmp_path):
    tables.write_tables(report_analysis, tmp_path)
    for name in ("gaps", "changes", "pairs", "ranking", "subgroups"):
        frame = getattr(report_analysis, name)
        written = pd.read_csv(tmp_path / f"{name}.csv").fillna({"caution": ""})
        pd.testing.assert_frame_equal(written, frame, check_dtype=False)
    shown = tables.pairs_shown(report_analysis)
    frame = report_analysis.pairs
    assert len(shown) == len(frame)
    for column, row in enumerate(frame.itertuples()):
        expected = f"{row.difference:+.3f}"
        if not np.isnan(row.low):
            expected += f" [{row.low:+.3f}, {row.high:+.3f}]"
        assert shown["b minus a [95 % interval]"][column] == expected
    wide = tables.metrics_shown(report_analysis)
    scores = report_analysis.scores
    mean = scores[scores["class"] == "mean"]
    for metric, title in (("auprc", "AUPRC"), ("brier", "Brier score")):
        values = mean.loc[mean["metric"] == metric, "value"]
        assert [text.split()[0] for text in wide[title]] == [f"{v:.3f}" for v in values]


def test_lists_without_a_display_are_written_as_data(report_analysis, tmp_path):
    written = {path.name for path in tables.write_tables(report_analysis, tmp_path)}
    assert written <= tables.file_names()
    assert len(pd.read_csv(tmp_path / "runs.csv")) == len(report_analysis.ran)
    left_out = pd.read_csv(tmp_path / "subgroups_left_out.csv")
    assert left_out["patients"].tolist() == report_analysis.left_out["patients"].tolist()


def test_a_difference_that_rounds_to_zero_has_no_minus():
    assert [tables.signed(v) for v in (-0.0004, 0.0, 0.0004, -0.0006)] == [
        *["+0.000"] * 3,
        "-0.001",
    ]


def test_seeds_are_one_row_with_their_mean_and_spread(report_analysis):
    shown = tables.display_frame(report_analysis)
    cells = report_analysis.cells
    row = shown[
        (shown["dataset"] == "georgia")
        & (shown["technique"] == "shed")
        & (shown["setting"] == "linear")
    ].squeeze()
    values = [
        c.auroc
        for c in cells
        if (c.dataset, c.technique, c.setting) == ("georgia", "shed", "linear")
    ]
    assert (row["seeds"], len(values)) == (2, 2)
    assert row["sd"] == f"{np.std(values, ddof=1):.3f}"
    assert row["AUROC [95 % interval]"].startswith(f"{np.mean(values):.3f} [")
    assert shown.loc[shown["technique"] == "e-mix", "sd"].unique().tolist() == ["–"]
    assert any(note.startswith("seeds: runs that differ") for note in report_analysis.notes)


def test_an_analysis_without_results_gives_no_tables_but_their_columns(tmp_path):
    nothing = Analysis()
    for table in tables.TABLES:
        assert len(table.shown(nothing)) == 0
        assert len(table.shown(nothing).columns) > 5
    assert tables.write_tables(nothing, tmp_path) == []


def test_classes_that_rest_on_few_patients_are_named(tmp_path):
    run, *_ = make_run(tmp_path)
    (cell,) = cells(run)
    assert not any("Fewer than" in note for note in notes([cell]))
    few = replace(cell, support=replace(cell.support, rarer=(1, 20, 4.5, 5, 9.25, 10, 0)))
    found = [note for note in notes([few]) if "Fewer than" in note]
    names = [name for name, *_ in cell.classes]
    assert found == [
        "Fewer than 5 patients on the rarer side (positive or negative) in georgia (test), so no "
        f"interval of the class or of a mean over classes: {names[0]} (1), {names[2]} "
        "(effectively 4.5).",
        "Fewer than 10 patients on the rarer side (positive or negative) in georgia (test), so the "
        f"interval is rough: {names[3]} (5), {names[4]} (effectively 9.25).",
    ]


@pytest.mark.parametrize(
    ("patients", "note"),
    [
        (9, "9 patients; fewer than 10 have no interval, and nothing about them is tested."),
        (10, "10 patients; with fewer than 20 nothing is tested."),
        (19.9, "19 effective patients; with fewer than 20 nothing is tested."),
        (20, ""),
    ],
)
def test_splits_of_few_patients_are_named(tmp_path, patients, note):
    (cell,) = cells(make_run(tmp_path)[0])
    few = replace(cell, support=replace(cell.support, effective=patients))
    found = [one for one in notes([few]) if one.startswith("georgia (test): ")]
    assert found == ([f"georgia (test): {note}"] if note else [])


def test_unfinished_runs_are_left_out_and_named(tmp_path):
    run, *_ = make_run(tmp_path)
    begun, *_ = make_run(tmp_path, seed=5)
    (begun.folder / "done.json").unlink()
    assert [cell.run for cell in cells(run, begun)] == [run.folder.name]
    assert unfinished([run, begun]) == [f"Not finished, left out: {begun.folder.name}."]


def test_text_columns_line_up(tmp_path):
    run, *_ = make_run(tmp_path)
    lines = text(tables.display_frame(analyse([run], resamples=20))).splitlines()
    start = lines[0].index("technique")
    assert lines[2][start:].startswith("shed")


def test_runs_without_predictions_are_refused(tmp_path):
    run = open_run(tmp_path, "r", described())
    with pytest.raises(BenchmdError, match="none of the 1 runs is finished and has predictions"):
        analyse([run])


def test_names_that_are_formulas_are_inert_in_every_csv(tmp_path):
    formula = '=HYPERLINK("http://x.example","more")'
    run = make_transfer(tmp_path / "runs", options={"split": "@SUM(1)"})
    base = make_transfer(tmp_path / "runs", "mae", options={"split": "@SUM(1)"})
    rng = np.random.default_rng(0)
    targets = np.eye(2, dtype=np.int8)[rng.integers(0, 2, 200)]
    held = people(200) | {"site": ["+1"] * 100 + ["-1+1"] * 60 + ["\t=1"] * 40}
    for each in (run, base):
        scores = rng.dirichlet(np.ones(2), 200)
        write_predictions(
            each,
            "=1+1",
            {"test": (held, targets, scores)},
            classes=(formula, "normal"),
            options={"=2": "5"},
        )
    analysis = analyse([run, base], resamples=20)
    paths = [p for p in tables.write_tables(analysis, tmp_path / "out") if p.suffix == ".csv"]
    cells = set()
    for path in paths:
        with path.open(newline="", encoding="utf-8") as file:
            cells |= {cell for row in csv.reader(file) for cell in row}
    assert {f"'{formula}", "'+1", "'-1+1", "'=1+1"} <= cells
    assert any("@SUM(1)" in cell for cell in cells)
    numbers = {cell for cell in cells if re.fullmatch(r"-[\d.]+(e-\d+)?", cell)}
    assert numbers
    assert not [cell for cell in cells - numbers if cell.startswith(("=", "+", "-", "@", "\t"))]
