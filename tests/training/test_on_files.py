"""Predictions of raw files, against those that a run stored of the same records."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from PIL import Image
from small_runs import SMALL

import benchmd_ray
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
