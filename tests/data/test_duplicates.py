"""Exact copies in a build: one patient, in one split."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest
from in_process import build_in_process
from kinds import MODALITIES

from benchmd_ray.data import build as building
from benchmd_ray.data import chunks
from benchmd_ray.data.build import build
from benchmd_ray.data.cards import Layout
from benchmd_ray.data.datasets import DATASETS
from benchmd_ray.data.duplicates import COPIES, LEAKED, changes, rows_of
from benchmd_ray.data.raw import Discovery, RawItem, RawReader, Reading
from benchmd_ray.data.records import CONTENT, HELD_OUT, Record, content_hashes, contents, to_table
from benchmd_ray.data.transforms import quantise
from benchmd_ray.data.verify import verify
from benchmd_ray.errors import BenchmdError

SIGNAL = MODALITIES["cxr"].signal
SPLITS = ("train", "train", "train", "validation", "test")


def packed_as(values: np.ndarray) -> str:
    return base64.b64encode(values.tobytes()).decode()


def image(content: int) -> np.ndarray:
    return np.random.default_rng(content).integers(1, 256, SIGNAL.stored_shape, np.uint8)


@pytest.fixture
def dataset(changed_card, monkeypatch, tmp_path):
    """Builds a dataset of (split, patient, content) and gives its rows and its catalog."""
    build_in_process(monkeypatch)
    monkeypatch.setattr(building, "CHUNK_BYTES", 3 * 224 * 224)  # three images
    (tmp_path / "raw").mkdir()

    def made(records, out="out", policy="clean", **about):
        layouts = {"films": Layout(description="Films.", records=len(records))}
        card = changed_card(
            "films",
            **{"modality": "cxr", "layouts": layouts, **about},
            evaluation_splits={"clean": ("test",), "released": ("test",)},
        )

        def discover(root, card, choices):
            return Discovery(
                "films",
                [
                    RawItem(f"r{n}.png", f"r{n}", patient, split, details={"content": content})
                    for n, (split, patient, content) in enumerate(records)
                ],
            )

        def read(root, item, card):
            target = [int(item.record_id == "r0")] * len(card.classes)
            signal, size = image(item.details["content"]), SIGNAL.stored_shape[1:]
            about = (item.record_id, item.group_id, item.record_id, signal, 1.0, size, target)
            return Reading([Record(*about)])

        monkeypatch.setitem(DATASETS, "films", RawReader(discover, read))
        assert card.name == "films"
        return build("films", tmp_path / "raw", tmp_path / out, policy=policy)

    return made


def rows(catalog) -> dict[str, tuple[str, str]]:
    return {
        row["record_id"]: (split, row["group_id"])
        for split in catalog.manifest["splits"]
        for table in catalog.tables(split, ["record_id", "group_id"])
        for row in table.to_pylist()
    }


def pairs() -> list[tuple[str, str, int]]:
    """12 pairs of equal pictures of different patients, 6 of them across splits, and 20 others."""
    records = [(SPLITS[n % 5], f"p{n:02}", n) for n in range(20)]
    for n in range(6):
        split = SPLITS[n % 5]
        records += [(split, f"q{n:02}", 100 + n), (split, f"s{n:02}", 100 + n)]
        other = ("validation", "test")[n % 2]
        records += [("train", f"t{n:02}", 200 + n), (other, f"u{n:02}", 200 + n)]
    return records


def test_equal_pictures_are_one_patient_in_the_split_that_is_scored(dataset):
    catalog = dataset(pairs())
    held = rows(catalog)
    assert len(held) == 44 - 6
    assert catalog.manifest["warnings"] == {COPIES: 6}
    assert catalog.manifest["excluded"] == {
        "exact copies show that its patient is in validation, too": 3,
        "exact copies show that its patient is in test, too": 3,
    }
    groups = [group for _, group in held.values()]
    assert {f"q{n:02}" for n in range(6)} <= set(groups)  # the smaller name of each pair
    assert {f"t{n:02}" for n in range(6)} <= set(groups)
    assert not any(group.startswith(("s", "u")) for group in groups)
    assert verify(catalog).faults == ()
    assert "6 records: it is an exact copy of another record" in verify(catalog).notes
    hashes = [
        content_hashes(table[CONTENT])
        for split in catalog.manifest["splits"]
        for table in [*catalog.tables(split, [CONTENT])]
    ]
    assert len(np.unique(np.concatenate(hashes))) == 32
    assert sum(s["patients"] for s in catalog.manifest["splits"].values()) == 32


def test_other_records_of_a_patient_go_with_the_copy_and_chains_are_one_patient(dataset):
    records = [
        *[("train", "a", 1), ("train", "a", 2), ("train", "b", 2), ("train", "b", 3)],
        *[("validation", "c", 3), ("validation", "c", 4), ("test", "d", 4), ("test", "e", 5)],
        ("train", "f", 6),
    ]
    assert rows(dataset(records)) == {
        "r6": ("test", "a"),
        "r7": ("test", "e"),
        "r8": ("train", "f"),
    }


@pytest.mark.parametrize("about", [{"duplicates": "keep"}, {"policy": "released"}])
def test_copies_that_are_kept_are_counted(dataset, about):
    catalog = dataset(pairs(), **about)
    assert len(rows(catalog)) == 44
    assert catalog.manifest["excluded"] == {}
    assert catalog.manifest["warnings"] == {COPIES: 12, LEAKED: 6}


def test_copies_are_refused_if_the_card_says_so(dataset):
    with pytest.raises(BenchmdError, match=r"12 records: it is an exact copy.*duplicates: refuse"):
        dataset(pairs(), duplicates="refuse")
    assert len(rows(dataset(pairs()[:20], duplicates="refuse"))) == 20


@pytest.mark.parametrize("written", range(4))
def test_a_build_that_was_killed_between_shards_ends_as_if_it_had_not(
    dataset, monkeypatch, tmp_path, written
):
    whole, names = dataset(pairs(), "whole"), iter(range(1000))

    def dies(part, change, card, out):
        if next(names) == written:
            raise KeyboardInterrupt
        return chunks.rewritten(part, change, card, out)

    with monkeypatch.context() as patch:
        patch.setattr(building, "rewritten", dies)
        with pytest.raises(KeyboardInterrupt):
            dataset(pairs(), "killed")
    again = dataset(pairs(), "killed")
    assert again.manifest["shards"] == whole.manifest["shards"]
    assert again.digest == whole.digest


def test_constant_signals_are_no_copies():
    blank = np.zeros((4, *SIGNAL.stored_shape), np.uint8)
    blank[1] = 7
    blank[2, 0, 62:162, 62:162] = 9  # constant but for its padding
    blank[3, 0, 0, 0] = 1
    sizes = [(224, 224), (224, 224), (100, 100), (224, 224)]
    assert contents(blank, SIGNAL, sizes).is_null().to_pylist() == [True, True, True, False]
    eeg = MODALITIES["eeg"].signal
    off = np.zeros((1, *eeg.stored_shape), np.int16)
    off[0, 1] = 5  # an electrode that is off at another level
    assert contents(off, eeg, [eeg.stored_shape[1:]]).null_count == 1


@pytest.mark.parametrize("factor", [1e-3, 0.4, 7.0])
def test_signals_that_differ_by_a_factor_are_copies_and_those_that_differ_otherwise_are_not(factor):
    ecg = MODALITIES["ecg"].signal
    signal = np.random.default_rng(0).normal(0, 500, ecg.stored_shape)
    other = signal.copy()
    other[3, 1000] += 1  # µV, of a range of some thousands
    quantised = [quantise(values) for values in (signal, signal * factor, other)]
    scales = [scale for _, scale in quantised]
    assert scales[1] == pytest.approx(factor * scales[0])
    stored = np.stack([steps for steps, _ in quantised])
    first, rescaled, changed = contents(stored, ecg, [ecg.stored_shape[1:]] * 3).to_pylist()
    assert first == rescaled != changed


@pytest.mark.slow
def test_a_million_records_are_merged_in_seconds_of_compact_memory():
    rng = np.random.default_rng(0)
    parts = []
    for number in range(50):
        names = [f"{number:04}{n:012}" for n in range(20_000)]
        hashes = rng.integers(1, 2**63, 20_000, np.uint64)
        hashes[:10] = np.arange(1, 11)  # ten patients of each part are those of all others
        places = np.arange(20_000, dtype="<i4")
        packed = {"contents": packed_as(hashes), "row_groups": packed_as(places)}
        split = ("train", "test")[number % 5 == 0]
        about = {"name": f"{split}-{number:05}", "split": split, "rows": 20_000, "groups": names}
        parts.append(about | packed)
    made = changes(parts, merge=True)
    assert len(made.of) == 50 - 1  # the first names them
    assert sum(sum(change.excluded.values()) for change in made.of.values()) == 400
    assert made.warnings == {COPIES: 90}


def test_held_out_records_stay_and_their_copies_go():
    parts, card = [], building.dataset_card("nih-cxr-ap")
    for split in (HELD_OUT, "train"):
        size, target = SIGNAL.stored_shape[1:], [0] * 5
        record = Record(f"{split}r", split, f"{split}r", image(1), 1.0, size, target)
        table = to_table([record], split, card)
        about = {"name": f"{split}-0", "split": split, "rows": 1, "groups": [split]}
        parts.append(about | rows_of(table))
    made = changes(parts, merge=True)
    assert made.of["train-0"].kept.tolist() == [False]
    assert made.of["train-0"].excluded == {
        "exact copies show that its patient is in heldout, too": 1
    }


def test_a_shard_that_loses_all_its_rows_is_removed(dataset):
    records = [("train", "a", 1), *(("train", f"b{n}", 10 + n) for n in range(3)), ("test", "z", 1)]
    catalog = dataset([*records[1:], records[0], records[4]][:5])
    assert rows(catalog).keys() == {"r0", "r1", "r2", "r3"}  # not r4, of training
    folder: Path = catalog.path / "shards"
    assert {path.name for path in folder.iterdir()} == {
        Path(shard["file"]).name for shard in catalog.manifest["shards"]
    }
