import csv
import math
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
from benchmd_ray.files.atomic import digest
from benchmd_ray.files.integrity import write_hash
from benchmd_ray.report import tables
from benchmd_ray.report.analysis import Analysis, analyse, blocks
from benchmd_ray.report.formats import aligned
from benchmd_ray.report.frames import FRAMES, frame_of_parts
from benchmd_ray.report.names import names_of
from benchmd_ray.report.notes import notes
from benchmd_ray.report.rows import unfinished
from benchmd_ray.report.table import Column, Table, plain, shown
from benchmd_ray.report.tables import declared
from benchmd_ray.report.write import write_report, write_tables
from benchmd_ray.runs.predictions import predictions_path
from benchmd_ray.runs.store import open_run
from benchmd_ray.scores.metrics import METRICS

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


def rows_of(*made):
    """Score rows of AUROC."""
    named = names_of(made)
    found = blocks(made, named, ("auroc",), 100)
    return frame_of_parts("rows", [part for block in found for part in block.rows])


def cells(*made):
    """Score rows of AUROC over all classes."""
    rows = rows_of(*made)
    return list(rows[rows["class"] == "mean"].itertuples())


def shown_rows(analysis):
    """The main table as people read it."""
    return plain(tables.results(analysis))[0]


def test_every_number_is_computed_from_the_predictions(tmp_path):
    run, targets, scores = make_run(tmp_path)
    (cell,) = cells(run)
    expected = [roc_auc_score(targets[:, c], scores[:, c]) for c in range(6)]
    assert cell.value == pytest.approx(np.mean(expected))
    assert rows_of(run)["value"].tolist()[1:7] == pytest.approx(expected)
    assert cell.low < cell.value < cell.high
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
    rows = rows_of(run)
    assert rows["value"].tolist()[1:7] == pytest.approx(expected)
    assert (cell.records, cell.patients) == (150, 150)
    counts = pairs[0].sum(axis=0)  # each scan is a patient's only one
    assert rows["effective"].tolist()[1:] == pytest.approx(np.minimum(counts, 150 - counts))


def test_a_class_that_cannot_be_scored_is_named(tmp_path):
    run, *_ = make_run(tmp_path)
    rows = rows_of(run)
    assert rows.loc[rows["value"].isna(), "class"].tolist() == ["hypertrophy"]
    assert any("Not scored in georgia (test)" in note for note in notes(rows))
    analysis = analyse([run], resamples=20)
    assert shown_rows(analysis)["classes"][0] == "6/7"
    (unscored,) = np.flatnonzero(analysis.scores["class"] == "hypertrophy")[:1]
    assert analysis.scores["metric"][unscored] == "auroc"
    assert np.isnan(analysis.scores["value"][unscored])


def test_shuffled_labels_are_named_and_never_stand_beside_the_paper(tmp_path):
    run, *_ = make_run(tmp_path, shuffled=True)
    (cell,) = cells(run)
    assert cell.protocol == "shuffled"
    assert np.isnan(cell.paper)


def test_custom_settings_never_stand_beside_the_paper_and_the_note_says_so(tmp_path):
    fixed, *_ = make_run(tmp_path / "fixed")
    assert cells(fixed)[0].paper > 0
    run, *_ = make_run(tmp_path / "custom", fixed=False)
    (cell,) = cells(run)
    assert cell.protocol == "custom"
    assert np.isnan(cell.paper)
    assert "settings other than the fixed protocol's" in cell.unlike
    analysis = analyse([run], resamples=20)
    assert "paper" not in shown_rows(analysis)
    source, note = [note for note in analysis.notes if note.startswith("paper: ")]
    assert source.startswith("paper: BenchMD v2, tables 1 and 2. Its numbers are of the full")
    why = "settings other than the fixed protocol's"
    assert note == f"paper: – where a result is not comparable: {why}."


def test_a_table_says_when_a_dataset_is_not_whole(tmp_path):
    run, *_ = make_run(tmp_path)
    expected = "georgia: built from 9,000 of 10,344 raw records."
    assert expected in notes(rows_of(run))


def test_the_papers_number_stands_beside_its_own_cell_only(tmp_path):
    target, *_ = make_run(tmp_path)
    held_out, *_ = make_run(tmp_path, dataset="ptb-xl", role="source", split="test")
    source, *_ = make_run(tmp_path, dataset="ptb-xl", role="source", split="validation")
    assert cells(target)[0].paper == paper_auroc()["georgia", "linear", "shed"]
    assert cells(source)[0].paper == 0.737
    assert np.isnan(cells(held_out)[0].paper)


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
    rows = rows_of(make_run(tmp_path, **(HAM | changes))[0])
    paper = paper_auroc()["ham10000", "linear", "shed"]
    assert rows["paper"].dropna().tolist() == ([paper] if shown else [])
    said = [note for note in notes(rows) if "is not comparable" in note]
    assert bool(said) != shown


def test_only_what_chooses_an_epoch_warns_of_the_split_that_chose_it(tmp_path):
    run, *_ = make_run(tmp_path, dataset="ptb-xl", role="source", split="validation")
    found = rows_of(run)
    assert any(note.startswith("validation: where a model") for note in notes(found))
    for neighbours in ("knn", "knn-small"):
        said = notes(found.assign(setting=neighbours))
        assert not any(note.startswith("validation: where a model") for note in said)


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
    frame = shown_rows(analysis)
    assert list(zip(frame["trained on"], frame["dataset"], strict=True)) == [
        ("bcn20000", "bcn20000 (validation)"),
        ("isic-2017", "isic-2017 (validation)"),
        ("isic-2017", "bcn20000 (validation, another source)"),
    ]
    assert [text == "–" for text in frame["paper"]] == [False, True, True]
    found = analysis.rows
    assert any(note.startswith("another source: ") for note in notes(found))
    own = found[~((found["source"] == "isic-2017") & (found["dataset"] == "bcn20000"))]
    assert not any(note.startswith("another source: ") for note in notes(own))
    write_tables(analysis, tmp_path / "out")
    for name, rows in (("auroc", 1), ("auroc_per_class", 7), ("scores", 8 * len(METRICS))):
        with (tmp_path / "out" / f"{name}.csv").open() as file:
            sources = [row["source"] for row in csv.DictReader(file)]
        assert sources == ["bcn20000"] * rows + ["isic-2017"] * 2 * rows


def test_options_of_the_builds_are_named(tmp_path):
    chosen = {"trained_options": {"images": "all"}, "options": {"uncertain": "negative"}}
    run, *_ = make_run(tmp_path, **chosen)
    text = "\n".join(notes(rows_of(run)))
    assert "ptb-xl: images=all: a build option" in text
    assert "georgia: uncertain=negative: a build option" in text
    write_tables(analyse([run], resamples=20), tmp_path / "out")
    for name in ("auroc.csv", "scores.csv"):
        with (tmp_path / "out" / name).open() as file:
            row = next(csv.DictReader(file))
        assert row["options"] == "ptb-xl: images=all; georgia: uncertain=negative"


def test_what_is_scored_of_ct_is_called_a_scan(tmp_path):
    rows = rows_of(make_run(tmp_path, dataset="lndb", modality="ldct")[0])
    few = rows.assign(effective=[150, 20, 20, 3, 20, 20, 20, 0])
    expected = [
        "ldct: the records of the table are scans.",
        "Not scored in lndb (test), as all or no scans are positive: hypertrophy.",
    ]
    assert [note for note in notes(few) if "scan" in note] == expected


def test_tables_are_written_as_csv_markdown_and_latex(tmp_path):
    run, *_ = make_run(tmp_path / "runs")
    other, *_ = make_run(tmp_path / "runs", technique="scratch", seed=1)
    analysis = analyse([run, other], resamples=20)
    whole = analysis.rows[(analysis.rows["metric"] == "auroc") & (analysis.rows["class"] == "mean")]
    assert whole["technique"].tolist() == ["scratch", "ShED"]
    paths = write_tables(analysis, tmp_path / "out")
    assert [path.name for path in paths[:4]] == ["main.csv", "main.md", "main.tex", "auroc.csv"]
    assert {path.name for path in paths} == {path.name for path in (tmp_path / "out").iterdir()}
    for name in ("auroc.csv", "scores.csv"):
        rows = pd.read_csv(tmp_path / "out" / name)
        if name == "scores.csv":
            assert len(rows) == len(analysis.rows) == 2 * 8 * len(METRICS)
            rows = rows[(rows["metric"] == "auroc") & (rows["class"] == "mean")]
        for column in ("value", "low"):
            assert rows[column].tolist() == pytest.approx(whole[column].tolist())
    assert len(pd.read_csv(tmp_path / "out" / "auroc_per_class.csv")) == 14
    lines = (tmp_path / "out" / "auroc.md").read_text("utf-8")
    assert "In all rows: modality ecg, dataset georgia, setting linear, policy clean" in lines
    assert "Trained on ptb-xl (ecg)." in lines
    assert [lines.count(f"\n| {name} |") for name in ("scratch", "ShED")] == [1, 1]
    assert all(f"\n- {note}\n" in lines for note in analysis.notes)
    printed = (tmp_path / "out" / "auroc.tex").read_text("utf-8")
    assert "In all rows: modality ecg, dataset georgia, setting linear, policy clean" in printed
    for table in tables.TABLES:
        if len(table.data(analysis)):
            for kind in ("csv", "md", "tex") if table.printed else ("csv",):
                assert tmp_path / "out" / f"{table.name}.{kind}" in paths


def test_tables_hold_what_the_frames_hold(report_analysis, tmp_path):
    write_tables(report_analysis, tmp_path)
    for name in ("gaps", "changes", "pairs", "ranking", "subgroups"):
        frame = getattr(report_analysis, name)
        texts = [column for column, kind in FRAMES[name].items() if kind == "str"]
        written = pd.read_csv(tmp_path / f"{name}.csv").fillna(dict.fromkeys(texts, ""))
        pd.testing.assert_frame_equal(written, frame, check_dtype=False)
    shown, _ = plain(tables.pairs(report_analysis))
    frame = report_analysis.pairs
    assert len(shown) == len(frame)
    for column, row in enumerate(frame.itertuples()):
        expected = f"{row.difference:+.3f}"
        if not np.isnan(row.low):
            expected += f" [{row.low:+.3f}, {row.high:+.3f}]".replace("[-0.000", "[0.000")
        assert shown["b − a [95 %]"][column].replace("−", "-") == expected
    wide, _ = plain(tables.all_metrics(report_analysis))
    scores = report_analysis.scores
    mean = scores[scores["class"] == "mean"]
    for metric, title in (("auprc", "AUPRC"), ("brier", "Brier score")):
        values = mean.loc[mean["metric"] == metric, "value"]
        assert [text.split()[0] for text in wide[title]] == [f"{v:.3f}" for v in values]


def test_lists_without_a_display_are_written_as_data(report_analysis, tmp_path):
    written = {path.name for path in write_tables(report_analysis, tmp_path)}
    names = {one.name for one in declared()} | {"main"}
    assert {path.partition(".")[0] for path in written} <= names
    assert len(pd.read_csv(tmp_path / "runs.csv")) == len(report_analysis.ran)
    excluded = pd.read_csv(tmp_path / "subgroups_excluded.csv")
    assert excluded["patients"].tolist() == report_analysis.excluded["patients"].tolist()


AGGREGATE = {
    *("auroc", "metrics", "auroc_per_class", "gaps", "changes", "pairs", "ranking", "subgroups"),
    *("subgroup_pairs", "subgroups_excluded", "tuned", "searches", "families", "runs", "scores"),
    *("descriptions", "segmentation", "segmentation-networks", "segmentation-networks-means"),
    *("segmentation-networks-pairs", "medmnist", "medmnist_averages"),
    *("detectors", "detectors_means", "detectors_sets", "detectors_compared"),
    *("detectors_pretraining", "detectors_shifted", "detectors_controls", "detectors_tuned"),
    *("detectors_costs", "robustness", "robustness_faults"),
}
"""What of the tables may be sent to W&B: none has anything of a single record."""


def test_the_tables_that_may_be_sent_are_these_and_none_unless_it_says_so():
    assert {table.name for table in declared() if table.aggregate} == AGGREGATE
    assert not tables.Declared("of a plug-in", "Records", lambda a: a.rows).aggregate


def test_a_report_that_is_sent_names_no_file_that_could_not_be_read(report_analysis, tmp_path):
    private = "Skipped: /home/somebody/runs/p10000032 is damaged: it is missing."
    analysis = replace(report_analysis, notes=["One seed.", private])
    write_report(analysis, tmp_path / "own", "none", lambda line: None, sent=tmp_path / "sent")
    for name in ("report.html", "auroc.md"):
        assert "p10000032" in (tmp_path / "own" / name).read_text()
        text = (tmp_path / "sent" / name).read_text()
        assert "somebody" not in text
        assert "One seed." in text
        assert "on unreadable files." in text


def test_a_difference_that_rounds_to_zero_has_no_sign():
    values = (-0.0004, 0.0, 0.0004, -0.0006)
    assert [shown(v, "signed") for v in values] == [*["0.000"] * 3, "−0.001"]


def test_a_column_of_which_one_is_chosen_always_keeps_the_rows_of_the_first_choice():
    metric = Column("metric", ["b", "a", "b"], order=("b", "a"), required=True)
    table = Table("What it is.", (metric, Column("value", [1.0, 2.0, math.nan], "number")))
    texts, caption = plain(table)
    assert texts.to_dict("list") == {"value": ["1.000", "–"]}
    assert caption == "What it is. Metric: b."
    assert aligned(texts) == ["value", "-----", "1.000", "    –"]


def test_seeds_are_one_row_with_their_mean_and_spread(report_analysis):
    shown, rows = shown_rows(report_analysis), report_analysis.rows
    row = shown[
        (shown["dataset"] == "georgia")
        & (shown["technique"] == "ShED")
        & (shown["setting"] == "linear")
    ].squeeze()
    values = rows.query(
        "dataset == 'georgia' and technique == 'ShED' and setting == 'linear' "
        "and metric == 'auroc' and `class` == 'mean'"
    )["value"]
    assert (row["seeds"], len(values)) == ("2", 2)
    assert row["sd"] == f"{np.std(values, ddof=1):.3f}"
    assert row["AUROC [95 %]"].startswith(f"{np.mean(values):.3f} [")
    assert shown.loc[shown["technique"] == "e-Mix", "sd"].unique().tolist() == ["–"]
    assert any(note.startswith("seeds: runs that differ") for note in report_analysis.notes)


def test_an_analysis_without_results_gives_no_tables_but_their_columns(tmp_path):
    nothing = Analysis()
    for table in tables.TABLES:
        assert len(table.data(nothing)) == 0
        assert len(table.data(nothing).columns) > 5
        assert all(make(nothing) is None for make in (table.page, table.printed) if make)
    assert write_tables(nothing, tmp_path) == []


def test_classes_that_rest_on_few_patients_are_named(tmp_path):
    run, *_ = make_run(tmp_path)
    rows = rows_of(run)
    assert not any("Fewer than" in note for note in notes(rows))
    few = rows.assign(effective=[150, 1, 20, 4.5, 5, 9.25, 10, 0])
    found = [note for note in notes(few) if "Fewer than" in note]
    names = rows["class"].tolist()[1:]
    assert found == [
        "Fewer than 5 patients on the rarer side (positive or negative) in georgia (test), so "
        f"neither the class nor a mean over classes has an interval: {names[0]} (1), {names[2]} "
        "(effectively 4.5).",
        "Fewer than 10 patients on the rarer side (positive or negative) in georgia (test), so the "
        f"interval is rough: {names[3]} (5), {names[4]} (effectively 9.25).",
    ]


@pytest.mark.parametrize(
    ("patients", "note"),
    [
        (9, "9 patients; with fewer than 10 there is no interval and no test."),
        (10, "10 patients; with fewer than 20 nothing is tested."),
        (19.9, "19 effective patients; with fewer than 20 nothing is tested."),
        (20, ""),
    ],
)
def test_splits_of_few_patients_are_named(tmp_path, patients, note):
    few = rows_of(make_run(tmp_path)[0]).assign(effective=patients)
    found = [one for one in notes(few) if one.startswith("georgia (test): ")]
    assert found == ([f"georgia (test): {note}"] if note else [])


def test_unfinished_runs_are_excluded_and_named(tmp_path):
    run, *_ = make_run(tmp_path)
    begun, *_ = make_run(tmp_path, seed=5)
    (begun.folder / "done.json").unlink()
    assert [cell.run for cell in cells(run, begun)] == [run.folder.name]
    assert unfinished([run, begun]) == [f"Not finished, skipped: {begun.folder.name}."]


def test_text_columns_line_up(tmp_path):
    run, *_ = make_run(tmp_path)
    lines = aligned(shown_rows(analyse([run], resamples=20)))
    start = lines[0].index("technique")
    assert lines[2][start:].startswith("ShED")


def test_runs_without_predictions_are_refused(tmp_path):
    run = open_run(tmp_path, "r", described())
    with pytest.raises(BenchmdError, match="of 1 run none is finished and has predictions"):
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
    paths = [p for p in write_tables(analysis, tmp_path / "out") if p.suffix == ".csv"]
    cells = set()
    for path in paths:
        with path.open(newline="", encoding="utf-8") as file:
            cells |= {cell for row in csv.reader(file) for cell in row}
    assert {f"'{formula}", "'+1", "'-1+1", "'=1+1"} <= cells
    assert any("@SUM(1)" in cell for cell in cells)
    numbers = {cell for cell in cells if re.fullmatch(r"-[\d.]+(e-\d+)?", cell)}
    assert numbers
    assert not [cell for cell in cells - numbers if cell.startswith(("=", "+", "-", "@", "\t"))]
