"""The dataset that docs/add_a_dataset.md adds, built from the page itself."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from benchmd_ray.data import cards
from benchmd_ray.data.datasets import DATASETS, cxr
from benchmd_ray.data.raw import Choices, Dataset
from benchmd_ray.data.records import decode_targets
from benchmd_ray.data.verify import verify
from benchmd_ray.errors import BenchmdError

PAGE = (Path(__file__).parents[2] / "docs" / "add_a_dataset.md").read_text("utf-8")
NAME = "st-elsewhere"
HEADER = "image,patient,age,sex,view,atelectasis,cardiomegaly,consolidation,edema,effusion"


def block(language: str) -> str:
    """The first block of code in a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[0]


@pytest.fixture
def added(monkeypatch, tmp_path) -> cards.DatasetCard:
    """The page's dataset, registered."""
    path = tmp_path / f"{NAME}.yaml"
    path.write_text(block("yaml"))
    (card,) = cards._cards_of(path).values()
    known = cards.cards() | {NAME: card}
    monkeypatch.setattr(cards, "cards", lambda: known)
    module: dict = {}
    exec(compile(block("python"), "st_elsewhere.py", "exec"), module)
    assert '"st-elsewhere": Dataset(st_elsewhere.discover, cxr.read),' in PAGE
    monkeypatch.setitem(DATASETS, NAME, Dataset(module["discover"], cxr.read))
    return card


@pytest.fixture
def raw(tmp_path) -> Path:
    """Twelve films: the last without a label, each patient but one with two."""
    root, rng = tmp_path / NAME, np.random.default_rng(0)
    (root / "films").mkdir(parents=True)
    rows = [HEADER]
    for number in range(1, 13):
        pixels = rng.integers(0, 256, (30, 26), np.uint8)
        Image.fromarray(pixels).save(root / f"films/{number:04}.png")
        findings = ",,,," if number == 12 else f"{number % 2},0,1,,{int(number < 4)}"
        rows.append(f"{number:04}.png,p{number // 2},{40 + number},F,,{findings}")
    (root / "findings.csv").write_text("\n".join(rows) + "\n")
    return root


def test_the_pages_dataset_is_built_as_written(added, raw, build_here, tmp_path):
    built = build_here(NAME, raw, tmp_path / "out", allow_missing=False)
    assert not verify(built).faults
    assert built.manifest["left_out"] == {"none of its labels is known": 1}
    table = pq.read_table([path for path, *_ in built.shards("test")])
    targets = decode_targets(table["target"])
    assert targets.tolist() == [[n % 2, 0, 1, -1, int(n < 4)] for n in range(1, 12)]
    assert len(set(table["group_id"].to_pylist())) == 6
    assert set(table["view"].to_pylist()) == {None}


def test_the_pages_dataset_counts_what_has_no_partner(added, raw):
    (raw / "films/0002.png").unlink()
    (raw / "films/more").mkdir()
    for name in ("0003.png", "0099.png"):
        (raw / "films/more" / name).touch()
    found = DATASETS[NAME].discover(raw, added, Choices())
    assert found.missing == ["films/0002.png"]
    assert found.left_out == {
        "none of its labels is known": 1,
        "no table names it": 1,
        "its id is there twice; the first is kept": 1,
    }
    assert [item.path for item in found.items[:2]] == ["films/0001.png", "films/0003.png"]


def test_the_pages_dataset_names_the_row_of_a_strange_value(added, raw):
    text = (raw / "findings.csv").read_text()
    (raw / "findings.csv").write_text(text.replace(",1,0,1,,", ",1.0,0,1,,", 1))
    with pytest.raises(BenchmdError, match=r"record 1: atelectasis is '1\.0', expected 1, 0 or"):
        DATASETS[NAME].discover(raw, added, Choices())
