"""Predictions of raw files, against those that a run stored of the same records."""

from __future__ import annotations

import os

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from PIL import Image
from small_runs import SMALL

import benchmd_ray
import benchmd_ray.data.cards as cards_module
from benchmd_ray.benchmarks.ood import guard
from benchmd_ray.cli import main
from benchmd_ray.data.batches import Worker
from benchmd_ray.data.new_card import new_card
from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.evaluation import Asked
from benchmd_ray.modality.card_folders import CARDS
from benchmd_ray.runs.predictions import predictions_path, read_predictions
from benchmd_ray.settings.definition import Settings
from benchmd_ray.training.engine import choose_device

pytestmark = pytest.mark.slow
CLASSES = ("dark", "light")


@pytest.fixture
def made(tmp_path, monkeypatch, build_here):
    """A catalog of pictures in folders, and two runs that differ in their seed."""
    rng, raw = np.random.default_rng(0), tmp_path / "raw"
    for number in range(60):
        label = CLASSES[number % 2]
        pixels = rng.integers(0, 100, (20 + number % 3, 28, 3)) + 150 * (label == "light")
        (raw / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(raw / label / f"{number}.png")
    new_card("shades", raw, tmp_path / "cards")
    monkeypatch.setenv(CARDS, str(tmp_path / "cards"))
    catalog = build_here("shades", raw, tmp_path / "catalog", allow_missing=False)
    runs = [
        benchmd_ray.transfer(catalog.path, tmp_path / "runs", settings={**SMALL, "seed": seed})
        for seed in (0, 1)
    ]
    return raw, catalog, runs


def stored(run):
    path = predictions_path(run.folder, "shades", "classification")
    table = read_predictions(path).table.to_pandas()
    return dict(zip(table["record_id"], table["scores"], strict=True))


def test_files_are_predicted_as_records_of_the_catalog(made, tmp_path, monkeypatch):
    raw, catalog, runs = made
    expected = [stored(run) for run in runs]
    files = [raw / f"{name}.png" for name in expected[0]]
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    notes = []
    frame = benchmd_ray.classifier(runs[0]).predict_files([*files, broken], say=notes.append)
    assert not notes
    probabilities = [f"p: {name}" for name in CLASSES]
    np.testing.assert_allclose(
        frame[probabilities][:-1], np.stack(list(expected[0].values())), atol=1e-5
    )
    assert list(frame["file"]) == [*map(str, files), str(broken)]
    largest = frame[probabilities][:-1].to_numpy().argmax(axis=1)
    assert [CLASSES[place] for place in largest] == list(frame["class"][:-1])
    assert "image" in frame["reason"].iloc[-1]
    assert pd.isna(frame["class"].iloc[-1])
    assert "verdict" not in frame

    both = benchmd_ray.classifier([run.folder for run in runs]).predict_files(files)
    means = [(a + b) / 2 for a, b in zip(*(e.values() for e in expected), strict=True)]
    np.testing.assert_allclose(both[probabilities], np.stack(means), atol=1e-5)

    asked = Asked(runs[0].folder, catalog, Settings(), Worker(device=choose_device("cpu")))
    fitted = guard.fit(asked, "")
    arguments = ["predict", runs[0].folder, raw, broken, "--out", tmp_path / "out.csv"]
    done = CliRunner().invoke(main, list(map(str, arguments)))
    assert done.exit_code == 0, done.output
    assert "60 records: " in done.output
    assert "1 file not predicted" in done.output
    written = pd.read_csv(tmp_path / "out.csv")
    verdicts = {v.record: v for v in guard.of_files(fitted, raw)}
    for row in written[:-1].itertuples():
        verdict = verdicts[row.record]
        assert row.score == pytest.approx(verdict.score, rel=1e-4)
        assert row.threshold == pytest.approx(fitted.threshold)
        if abs(verdict.score - fitted.threshold) > 1e-4:  # one record may be the threshold
            assert row.verdict == verdict.word
    assert "reject" in set(written["verdict"])
    assert written["verdict"].iloc[-1] == "unreadable"

    monkeypatch.delenv(CARDS)
    frame = benchmd_ray.classifier(runs[0]).predict_files(files[0], say=notes.append)
    assert frame["class"].notna().all()
    assert "the card of shades is not here (--cards): files are read without its" in notes[0]


def test_files_and_cards_that_do_not_fit_are_refused(made, tmp_path):
    raw, _, (run, _) = made
    model = benchmd_ray.classifier(run)
    with pytest.raises(BenchmdError, match="does not exist: name"):
        model.predict_files(tmp_path / "absent")
    with pytest.raises(BenchmdError, match="ptb-xl has another signal than the model"):
        model.predict_files(raw, card="ptb-xl")
    with pytest.raises(BenchmdError, match=r"unknown dataset 'shade'. Did you mean 'shades'"):
        model.predict_files(raw, card="shade")


PLACES = {"first": 0, "last": -1}
SAMPLES = 50


def rows_text(samples, *, labels=None, place="last", ids=None, header=""):
    """A CSV of records in rows, with a column of labels and one of IDs where these are given."""
    lines = [header] if header else []
    for number, values in enumerate(samples):
        cells = [repr(float(value)) for value in values]
        if labels is not None:
            cells.insert(len(cells) if place == "last" else 0, labels[number])
        if ids is not None:
            cells.insert(0, ids[number])
        lines.append(",".join(cells))
    return "\n".join(lines) + "\n"


@pytest.fixture(params=["first", "last"])
def beats(request, tmp_path, monkeypatch, build_here):
    """A run on a file with a record in each row, whose signal is longer than these."""
    place, rng = request.param, np.random.default_rng(0)
    labels = [CLASSES[number % 2] for number in range(80)]
    samples = rng.normal(size=(80, SAMPLES)) + np.linspace(0, 3, SAMPLES)
    samples[1::2] *= -1
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "beats.csv").write_text(rows_text(samples, labels=labels, place=place))
    new_card("beats", raw, tmp_path / "cards")
    monkeypatch.setenv(CARDS, str(tmp_path / "cards"))
    catalog = build_here("beats", raw, tmp_path / "catalog", allow_missing=False)
    run = benchmd_ray.transfer(catalog.path, tmp_path / "runs", settings=SMALL)
    table = read_predictions(predictions_path(run.folder, "beats", "classification")).table
    frame = table.to_pandas()
    scores = dict(zip(frame["record_id"], frame["scores"], strict=True))
    rows = [int(name.rpartition("/")[2]) for name in scores]
    return run, place, samples[rows], [labels[row] for row in rows], np.stack([*scores.values()])


def test_rows_are_predicted_as_records_of_the_catalog(beats, tmp_path):
    run, place, samples, labels, expected = beats
    model, path = benchmd_ray.classifier(run), tmp_path / "new.csv"
    ids = [f"case-{number}" for number in range(len(samples))]
    numbers = [str(number) for number in range(7, 7 + len(samples))]
    names = [f"t{number}" for number in range(SAMPLES)]
    named = ",".join(["id", *names])
    for text, written in (
        (rows_text(samples, labels=labels, place=place), None),
        (rows_text(samples, labels=["?"] * len(labels), place=place), None),
        (rows_text(samples), None),
        (rows_text(samples, header=",".join(names)), None),
        (rows_text(samples, header=",".join(map(str, range(SAMPLES)))), None),
        (rows_text(samples, ids=ids), ids),
        (rows_text(samples, ids=numbers, header=named), numbers),
        (rows_text(samples, ids=ids, labels=labels, place=place), ids),
    ):
        path.write_text(text)
        frame = model.predict_files(path, card="beats")
        np.testing.assert_allclose(
            frame[[f"p: {name}" for name in CLASSES]], expected, atol=1e-5, err_msg=text[:80]
        )
        assert list(frame["row"]) == list(range(len(samples)))
        assert list(frame["record"]) == [f"new.csv/{row:06}" for row in range(len(samples))]
        assert (list(frame["id"]) if written else "id" not in frame) == (written or True)


def test_no_file_is_lost_by_the_predictions(beats, tmp_path):
    run, _, samples, *_ = beats
    path = tmp_path / "new" / "new.csv"
    path.parent.mkdir()
    path.write_text(rows_text(samples))
    os.mkfifo(tmp_path / "pipe")
    description = (run.folder / "run.json").read_text()
    for given, out in (
        (path, path),
        (path.parent, path),
        (path, run.folder / "run.json"),
        (path, tmp_path / "pipe"),
    ):
        asked = ["predict", str(run.folder), str(given), "--out", str(out)]
        done = CliRunner().invoke(main, asked)
        assert done.exit_code != 0
        assert "nothing was written. Choose another --out" in " ".join(done.output.split())
    assert path.read_text() == rows_text(samples)
    assert (run.folder / "run.json").read_text() == description


def test_rows_that_cannot_be_predicted(beats, tmp_path, build_here):
    run, place, samples, *_ = beats
    path, out = tmp_path / "new.csv", tmp_path / "out.csv"
    constant = samples.copy()
    constant[2] = 1
    path.write_text(rows_text(constant))
    arguments = list(map(str, ["predict", run.folder, path, "--out", out]))
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert f"{len(samples) - 1} records: " in done.output
    assert "1 row not predicted" in done.output
    written = pd.read_csv(out)
    assert written["reason"][2] == "every channel is constant; expected a signal"
    assert list(written["row"]) == list(range(len(samples)))

    model = benchmd_ray.classifier(run)
    short = f"its rows have 47 values, expected the {SAMPLES} samples"
    for text, message in (
        (rows_text(samples[:, :47]), short),
        (rows_text(np.c_[samples, samples[:, 0]]), f"the {place} column has values that are no"),
        (rows_text(samples) + "1,2,3\n", f"line {len(samples) + 1} has 3 values, the first 50"),
    ):
        path.write_text(text)
        (reason,) = model.predict_files(path)["reason"]
        assert message in reason
    empty = samples.copy()
    empty[1] = np.nan
    path.write_text(rows_text(empty))
    assert model.predict_files(path)["record"].isna().tolist() == [
        row == 1 for row in range(len(samples))
    ]
    card = tmp_path / "cards" / "beats.yaml"
    card.write_text(card.read_text().replace("samples: 50", "samples: 49"))
    cards_module._read_all.cache_clear()
    with pytest.raises(BenchmdError, match="its rows have 50 values and the label, expected 49"):
        build_here("beats", tmp_path / "raw", tmp_path / "other", allow_missing=False)
    card.write_text(card.read_text().replace("samples: 49", ""))
    cards_module._read_all.cache_clear()
    path.write_text(rows_text(samples[:, :47]))
    (reason,) = model.predict_files(path)["reason"]
    assert "If records of beats have N values, write `samples: N`" in reason
