"""A report never lets synthetic data pass for patients."""

import time

import pandas as pd
import pytest
from click.testing import CliRunner
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.lines import Line2D
from stores import ECG_DATA, make_pretraining, make_transfer, predict_all

from benchmd_ray.cli import main
from benchmd_ray.files.integrity import Damaged
from benchmd_ray.report.analysis import analyse
from benchmd_ray.report.canvas import new_figure
from benchmd_ray.report.figures_panels import footer
from benchmd_ray.report.matrix import matrix_of
from benchmd_ray.report.page import page
from benchmd_ray.report.report_figures import draw
from benchmd_ray.report.write import write_tables
from benchmd_ray.runs.predictions import CLASSIFIED, predictions_path, read_predictions
from benchmd_ray.runs.store import read_run

SAID = "All results rest on synthetic data: such numbers say nothing about patients."


def stored(store, provenance="whole", drawn=(), techniques=("scratch", "mae")):
    """Transfers on records of one kind, some datasets of which are synthetic."""
    found = []
    for technique in techniques:
        upstream = None if technique == "scratch" else make_pretraining(store, technique)
        run = make_transfer(store, technique, upstream=upstream, provenance=provenance)
        predict_all(run, ECG_DATA, synthetic=drawn)
        found.append(run)
    return found


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory):
    store = tmp_path_factory.mktemp("synthetic")
    return analyse(stored(store, "synthetic", drawn=ECG_DATA), resamples=20)


@pytest.mark.slow
def test_page_figures_and_tables_say_it(synthetic, tmp_path):
    drawn, _ = draw(synthetic, which="main")
    assert f'<p class="banner" role="note">{SAID}</p>' in page(synthetic, drawn)
    assert drawn
    for one in drawn:
        assert SAID in [text.get_text() for text in one.figure.texts]
    long = f"Results on {', '.join(f'dataset-{n}' for n in range(30))} rest on synthetic data."
    figure = new_figure("title", 3.0)
    axes = figure.add_subplot()
    axes.set_xlabel("below the panel")
    legend = figure.legend(handles=[Line2D([], [], label="one")], loc="outside lower left")
    footer(figure, long)
    FigureCanvasAgg(figure).draw()
    (said,) = [text for text in figure.texts if "dataset-0" in text.get_text()]
    assert said.get_text().replace("\n", " ") == long
    assert said.get_window_extent().x1 < figure.bbox.width  # not cut off
    assert said.get_window_extent().y1 <= legend.get_window_extent().y0
    assert legend.get_window_extent().y1 <= axes.get_tightbbox().y0
    for path in write_tables(synthetic, tmp_path):
        if path.suffix != ".csv":
            assert SAID in path.read_text("utf-8"), path.name
    for name in ("main", "auroc", "scores"):
        assert set(pd.read_csv(tmp_path / f"{name}.csv")["provenance"]) == {"synthetic"}
    assert not any("the whole dataset has" in note for note in synthetic.notes)


@pytest.mark.slow
def test_measured_data_are_not_called_synthetic(tmp_path):
    analysis = analyse(stored(tmp_path / "runs"), resamples=20)
    drawn, _ = draw(analysis, which="main")
    write_tables(analysis, tmp_path)
    text = page(analysis, drawn) + (tmp_path / "main.md").read_text("utf-8")
    assert "synthetic" not in text
    texts = [text.get_text() for one in drawn for text in one.figure.texts]
    assert not any("synthetic" in text for text in texts)
    assert set(analysis.rows["provenance"]) == {"whole"}


def test_where_some_are_they_are_named(tmp_path):
    analysis = analyse(stored(tmp_path, drawn=("georgia",)), resamples=20)
    assert "Results on georgia rest on synthetic data" in page(analysis, [])
    of = analysis.rows.groupby("dataset")["provenance"].agg(set).to_dict()
    assert of == {name: {"synthetic" if name == "georgia" else "whole"} for name in ECG_DATA}


def test_what_a_run_was_trained_on_counts_for_all_its_scores(tmp_path):
    analysis = analyse(stored(tmp_path, "synthetic"), resamples=20)
    assert set(analysis.rows["provenance"]) == {"synthetic"}
    assert analysis.rows["paper"].isna().all()  # nothing is comparable with it
    assert "synthetic data" in set(analysis.rows["unlike"])
    matrix = matrix_of(analysis).frame
    assert set(matrix["provenance"]) == {"synthetic"}


def test_a_run_or_predictions_of_an_unknown_kind_are_refused(tmp_path):
    (run,) = stored(tmp_path, techniques=("scratch",))
    path = predictions_path(run.folder, "georgia")
    assert read_predictions(path, CLASSIFIED).description["provenance"] == "whole"
    with pytest.raises(Damaged, match="provenance is 'real', expected"):
        read_run(make_transfer(tmp_path, seed=1, provenance="real").folder)


def test_a_report_follows_what_comes_into_a_store(tmp_path, monkeypatch):
    store, page_of, looks = tmp_path / "runs", tmp_path / "report" / "report.html", []
    make_pretraining(store, "mae")
    events = iter((lambda: stored(store, techniques=("scratch",)), lambda: None, lambda: None))

    def sleep(_):
        looks.append(page_of.read_bytes() if page_of.is_file() else b"")
        if page_of.is_file():
            page_of.unlink()
        for event in events:
            event()
            return
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    command = ["report", str(store), "--out", str(tmp_path / "report"), "--follow"]
    done = CliRunner().invoke(main, [*command, "--figures", "none", "--resamples", "20"])
    assert done.exit_code == 130, done.output
    assert done.output.count("waiting: of 1 run none is finished and has predictions") == 1
    assert [bool(each) for each in looks] == [False, True, False, False]  # once for each change
    assert b'<meta http-equiv="refresh" content="15">' in looks[1]
    assert 'http-equiv="refresh"' not in page_of.read_text("utf-8")  # what stays in the end
    sent = CliRunner().invoke(main, [*command, "--wandb", "offline"])
    assert sent.exit_code == 2
    assert "omit --wandb" in sent.output
    tagged = CliRunner().invoke(main, [*command[:-1], "--wandb-tag", 65 * "x"])
    assert tagged.exit_code == 2
    assert "of 65 characters, expected 1 to 64" in " ".join(tagged.output.split())


def test_a_report_that_follows_an_empty_store_says_once_that_it_waits(tmp_path, monkeypatch):
    looks = iter(range(3))

    def sleep(_):
        if next(looks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    done = CliRunner().invoke(main, ["report", str(tmp_path), "--follow"])
    assert done.exit_code == 130, done.output
    assert done.output.count("waiting: ") == 1
