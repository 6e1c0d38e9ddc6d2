"""docs/cards.md and docs/formats.md, followed in a folder outside the project."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import wfdb
from PIL import Image

from benchmd_ray.data.cards import cards
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.records import decode_signals, decode_targets
from benchmd_ray.data.verify import verify

DOCS = Path(__file__).parents[2] / "docs"
PAGE = "\n".join((DOCS / name).read_text("utf-8") for name in ("cards.md", "formats.md"))
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
SMALL = "--set encoder=tiny --set transfer.epochs=1 --set execution.device=cpu --tflops 1"


def follow(section: str, folder: Path, **changes: str) -> str:
    """Write a section's files and run its commands; what they print."""
    text = SECTIONS[section]
    written, end = [], 0
    for found in re.finditer(r"```(yaml|python)\n(.*?)```", text, re.DOTALL):
        names = re.findall(r"`([\w/.-]+\.(?:yaml|py))`", text[end : found.start()])
        written.append((names[-1], found[2]))
        end = found.end()
    assert written
    for name, content in written:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    script = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)[0]
    script += "".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL))
    for before, after in changes.items():
        assert f"benchmd {before} " in script
        script = script.replace(f"benchmd {before} ", f"benchmd {before} {after} ")
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "WANDB_MODE": "disabled",
    }
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=folder,
        env={k: v for k, v in environment.items() if k not in ("RAY_ADDRESS", "PYTHONPATH")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def picture(path: Path, rng: np.random.Generator) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = rng.integers(0, 256, (20, 16, 3), np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def rows_of(catalog) -> dict[str, dict]:
    """Rows by record id, with signals, targets and splits."""
    found = {}
    for split in catalog.manifest["splits"]:
        for shard in catalog.shards(split):
            table = pq.read_table(shard.path)
            signals = decode_signals(table["signal"], catalog.signal)
            targets = decode_targets(table["target"])
            columns = table.drop(["signal", "target"]).to_pylist()
            for row, signal, target in zip(columns, signals, targets, strict=True):
                found[row["record_id"]] = row | {"signal": signal, "target": target.tolist()}
    return found


@pytest.mark.slow
def test_classes_on_pictures_go_from_a_table_to_a_report(tmp_path):
    rng, raw = np.random.default_rng(0), tmp_path / "raw" / "skin"
    lines, truth = ["image,lesion,patient,age"], {}
    for number in range(40):
        picture(raw / "images" / f"{number:04}.png", rng)
        truth[f"images/{number:04}"] = "melanoma" if number % 4 < 2 else "naevus"
        lines.append(f"{number:04},{truth[f'images/{number:04}']},p{number // 2},{20 + number}")
    (raw / "labels.csv").write_text("\n".join(lines) + "\n")
    follow(
        "Your classes on pictures",
        tmp_path,
        run=SMALL,
        report="--figures none --resamples 20",
    )
    catalog = open_catalog(tmp_path / "catalogs" / "skin")
    assert not verify(catalog).faults
    found = rows_of(catalog)
    assert {name: row["target"] for name, row in found.items()} == {
        name: [int(label == "melanoma"), int(label == "naevus")] for name, label in truth.items()
    }
    assert {name: row["age"] for name, row in found.items()} == {
        f"images/{n:04}": 20 + n for n in range(40)
    }
    of_patient = {}
    for name, row in found.items():
        of_patient.setdefault(int(name[-4:]) // 2, set()).add((row["group_id"], row["split"]))
    assert all(len(held) == 1 for held in of_patient.values())
    counts = {split: held["classes"] for split, held in catalog.manifest["splits"].items()}
    assert counts["train"] == {"melanoma": 14, "naevus": 14}
    assert all(min(held.values()) >= 2 for held in counts.values())
    assert (tmp_path / "report-skin" / "auroc.csv").is_file()
    assert list((tmp_path / "figures" / "skin").glob("examples*.png"))
    # the catalog needs no card
    assert "skin" not in cards()
    assert catalog.task.classes == ("melanoma", "naevus")


@pytest.mark.slow
def test_folders_named_by_split_and_class(tmp_path):
    rng, raw = np.random.default_rng(1), tmp_path / "raw" / "cells"
    for split, count in (("train", 5), ("val", 2), ("test", 3)):
        for kind in ("round", "square"):
            for number in range(count):
                picture(raw / split / kind / f"{number}.png", rng)
    picture(raw / "train" / "odd" / "1.png", rng)
    picture(raw / "train" / "1.png", rng)
    (raw / "train" / "notes.txt").write_text("none")
    follow("Pictures in folders named by class", tmp_path)
    catalog = open_catalog(tmp_path / "catalogs" / "cells")
    assert {s: h["classes"] for s, h in catalog.manifest["splits"].items()} == {
        "train": {"round": 5, "square": 5},
        "validation": {"round": 2, "square": 2},
        "test": {"round": 3, "square": 3},
    }
    assert catalog.manifest["excluded"] == {
        "it is in fewer than 2 folders": 1,
        "its label is not one of the classes that the card names": 1,
    }


@pytest.mark.slow
def test_empty_splits_and_classes_are_said_at_the_build(tmp_path):
    rng, raw = np.random.default_rng(5), tmp_path / "raw" / "cells"
    for split, kinds in (("train", ("round", "square")), ("test", ("round",))):
        for kind in kinds:
            picture(raw / split / kind / "1.png", rng)
    said = " ".join(follow("Pictures in folders named by class", tmp_path).split())
    assert "caution: no record is in validation, without which cells cannot be trained on" in said
    assert "caution: no record of square is in test, so its AUROC there is not known" in said
    assert "no record of round" not in said


@pytest.mark.slow
def test_signals_of_another_kind(tmp_path):
    raw = tmp_path / "raw" / "steps"
    raw.mkdir(parents=True)
    lines, seconds, rng = ["file\tactivity\tperson"], 21, np.random.default_rng(1)
    for number in range(8):
        time = np.arange(50 * seconds) / 50
        waves = np.sin(2 * np.pi * np.outer([1, 2, 3], time)) * (1 + number)
        waves += rng.normal(0, 1e-3, waves.shape)  # otherwise all seconds are alike, and copies
        table = np.column_stack([time, waves[2], waves[0], waves[1]])  # in another order
        head = "t;az;ax;ay"
        np.savetxt(raw / f"{number}.csv", table, "%.6f", ";", header=head, comments="")
        lines.append(f"{number}.csv\t{'rest' if number % 2 else 'walking'}\tperson {number}")
    (raw / "sessions.tsv").write_text("\n".join(lines) + "\n")
    follow("Your signals", tmp_path)
    catalog = open_catalog(tmp_path / "catalogs" / "steps")
    found = rows_of(catalog)
    assert sorted(found) == [f"{n}-{part:04}" for n in range(8) for part in range(2)]
    inside = slice(32, 288)  # away from the ends, where resampling knows less
    for name, row in found.items():
        number, part = int(name[0]), int(name[-1])
        time = np.arange(320)[inside] / 32 + 10 * part
        expected = np.sin(2 * np.pi * np.outer([1, 2, 3], time)) * (1 + number)
        held = row["signal"][:, inside] * row["scale"]
        assert np.abs(held - expected).max() < 0.02 * (1 + number)
        assert row["target"] == [number % 2, 1 - number % 2]
    assert list((tmp_path / "figures" / "steps").glob("examples*.png"))


@pytest.mark.slow
def test_labels_of_ones_own_on_known_recordings(tmp_path):
    rng, raw = np.random.default_rng(3), tmp_path / "raw"
    leads = "I II III AVR AVL AVF V1 V2 V3 V4 V5 V6".split()
    lines, signals = ["filename_hr,infarct,patient_id"], {}
    for number in range(6):
        name = f"records500/{number:05}_hr"
        (raw / "ptb-xl" / "records500").mkdir(parents=True, exist_ok=True)
        signals[name] = np.cumsum(rng.normal(size=(5000, 12)), axis=0).round(3) / 50
        wfdb.wrsamp(
            f"{number:05}_hr", 500, ["mV"] * 12, leads, p_signal=signals[name],
            fmt=["16"] * 12, adc_gain=[1000.0] * 12, baseline=[0] * 12,
            write_dir=str(raw / "ptb-xl" / "records500"),
        )  # fmt: skip
        lines.append(f"{name},{'infarct' if number % 2 else 'none'},{number}")
    (raw / "my-labels.csv").write_text("\n".join(lines) + "\n")
    follow("Your labels for a known dataset", tmp_path)
    catalog = open_catalog(tmp_path / "catalogs" / "infarct")
    found = rows_of(catalog)
    assert (catalog.modality, catalog.task.classes) == ("ecg", ("infarct", "none"))
    for name, signal in signals.items():
        row = found[f"ptb-xl/{name}"]
        assert np.abs(row["signal"] * row["scale"] - signal.T).max() < 2e-3
        assert row["target"] == [int(name[-4]) % 2, 1 - int(name[-4]) % 2]


@pytest.mark.slow
def test_a_dataset_in_code_and_its_source_name_the_catalog(tmp_path):
    rng, raw = np.random.default_rng(4), tmp_path / "raw" / "edges"
    for number in range(12):
        picture(raw / f"p{number // 2}_{number}_{'rough' if number % 3 else 'smooth'}.png", rng)
    follow("A dataset in code", tmp_path)
    catalog = open_catalog(tmp_path / "catalogs" / "edges")
    assert sum(catalog.rows(split) for split in catalog.manifest["splits"]) == 12
    module = tmp_path / "edges.py"
    text = SECTIONS["A dataset in code"]
    SECTIONS["changed"] = text.replace("label=label,", 'label="rough",')
    with pytest.raises(AssertionError, match="built from other raw files, policy, options or vers"):
        follow("changed", tmp_path)
    assert 'label="rough"' in module.read_text()
