"""docs/benchmarks.md, followed in a folder outside of the project: a card and a module."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from PIL import Image

CARD = """\
name: edges
modality: derm
task: {classes: [rough, smooth]}
files:
  levels: [split, class]
"""
PAGE = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text("utf-8")
DECLARED = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
SPACE = "transfer.optimiser.lr: {kind: log float, low: 1.0e-4, high: 1.0e-2}\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the package, its card and pictures; a catalog of them."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "cards").mkdir()
    (folder / "cards" / "edges.yaml").write_text(CARD)
    (folder / "surfaces.py").write_text(DECLARED.replace('"epochs": 30', '"epochs": 3'))
    rng = np.random.default_rng(0)
    for split, count in (("train", 12), ("validation", 24), ("test", 24)):
        for label in ("rough", "smooth"):
            (folder / "raw" / split / label).mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 256 if label == "rough" else 90, (24, 24, 3), np.uint8)
                Image.fromarray(pixels).save(folder / "raw" / split / label / f"{number}.png")
    benchmd(folder, "catalog build edges --raw raw --out catalogs/edges")
    return folder


def benchmd(folder: Path, command: str, *, code: int = 0) -> str:
    """What a command prints in a folder outside of the project."""
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    environment |= {
        "PYTHONPATH": str(folder),
        "BENCHMD_CARDS": str(folder / "cards"),
        "WANDB_MODE": "disabled",
        "COLUMNS": "200",
    }
    done = subprocess.run(
        [str(Path(sys.executable).parent / "benchmd"), *command.split()],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


BENCH = "--bench surfaces:SURFACES"


@pytest.mark.slow
def test_it_is_run_tuned_and_reported_without_a_change_of_the_package(place, monkeypatch):
    small = "--set execution.device=cpu --tflops 1 --technique scratch"
    benchmd(place, f"run {BENCH} --catalog catalogs --store runs {small}")
    (path,) = place.glob("runs/transfer-*/run.json")
    about = json.loads(path.read_text())
    assert (about["protocol"], about["setting"]) == ("short", "linear")
    assert about["settings"]["transfer"]["epochs"] == 3
    predicted = path.parent / "predictions"
    scored = pq.read_table(predicted / "classification" / "edges.parquet").to_pandas()
    held = pq.read_table(predicted / "confidence" / "edges.parquet")
    assert held["record_id"].to_pylist() == scored["record_id"].tolist()
    assert (held.schema.metadata[b"evaluation"], held.schema.metadata[b"version"]) == (
        b"confidence",
        b"1",
    )
    (place / "space.yaml").write_text(SPACE)
    benchmd(
        place,
        f"tune {BENCH} --catalog catalogs --store runs --trials 2 --space space.yaml {small}",
    )
    protocols = {
        json.loads(path.read_text())["protocol"] for path in place.glob("runs/transfer-*/run.json")
    }
    assert "short" in protocols
    monkeypatch.setenv("BENCHMD_BENCHMARKS", "surfaces:SURFACES")
    said = benchmd(place, "report runs --out report --figures none --resamples 20")
    assert "paper: A study of edges, table 1" in said
    assert "0.94" in (place / "report" / "auroc.csv").read_text()
    shown = (place / "report" / "report.html").read_text()
    assert "30 epochs of a linear head" in shown
    assert '<section id="confidence"' in shown
    rows = pd.read_csv(place / "report" / "confidence.csv")
    rows = rows[rows["run"] == path.parent.name].set_index("split")
    means = scored["scores"].map(max).groupby(scored["split"]).mean()
    assert rows["value"].to_dict() == pytest.approx(means.to_dict())
    assert set(rows["protocol"]) == {"short"}


@pytest.mark.slow
def test_it_is_listed_and_shown(place):
    assert "surfaces" not in benchmd(place, "bench list")
    said = benchmd(place, "bench show surfaces:SURFACES")
    for text in ("Surfaces: rough or smooth", "datasets (1):", "short: 30 epochs", "table 1"):
        assert text in said


@pytest.mark.slow
def test_it_is_planned_from_its_catalog_and_its_start_is_kept_apart(place):
    dry = f"run {BENCH} --catalog catalogs --dry-run --tflops 1"
    for name in ("", "/edges/confidence"):
        assert f"edges/clean/scratch/seed-0/linear{name}" in benchmd(place, f"{dry} --items")
    assert "finetune" not in benchmd(place, f"{dry} --items")
    said = benchmd(place, f"{dry} --setting finetune-small", code=1)
    assert "short of surfaces is for the setting linear, and finetune-small was chosen" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("surfaces:NOTHING", "cannot be imported (AttributeError"),
        ("nowhere:SURFACES", "cannot be imported (ModuleNotFoundError"),
        (
            "surfaces:settings",
            "is of the type function, expected a benchmd_ray.evaluation.benchmark.Benchmark",
        ),
        ("surfacs", "unknown benchmark 'surfacs'"),
    ],
)
def test_an_import_path_that_names_no_benchmark_is_refused(place, path, message):
    said = benchmd(place, f"bench show {path}", code=1)
    assert message in said
    assert "Traceback" not in said
