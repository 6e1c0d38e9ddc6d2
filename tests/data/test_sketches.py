"""Records that two catalogs have in common are recognised by their signals, whatever the names."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from made_catalogs import write_catalog

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.data.records import Record
from benchmd_ray.data.sketches import SIZE, have_common, is_sketch, merged, sketch_of

CARD = dataset_card("breastmnist")
SHAPE, RECORDS = CARD.signal.stored_shape, 400

Make = Callable[..., Catalog]


def images(count: int, seed: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, *SHAPE), np.uint8)


@pytest.fixture
def make(tmp_path, monkeypatch) -> Make:
    """Makes a catalog of images, in train and in validation, in shards of up to 150."""
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path / "cache"))

    def made(name, signals, validation=()):
        splits = {}
        for split, of in (("train", signals), ("validation", validation)):
            records = [
                Record(
                    f"{split}-{n}", f"p{n}", f"{split}-{n}", s, 1.0, SHAPE[1:], [n % 2, 1 - n % 2]
                )
                for n, s in enumerate(of)
            ]
            splits[split] = [records[n : n + 150] for n in range(0, len(records), 150)]
        return open_catalog(write_catalog(tmp_path / name, replace(CARD, name=name), splits))

    return made


def hashes(signals: npt.NDArray[np.uint8]) -> list[str]:
    return sorted(hashlib.blake2b(s.tobytes(), digest_size=8).hexdigest() for s in signals)


def test_a_sketch_has_the_smallest_hashes_of_all_splits(make):
    signals = images(RECORDS, 1)
    catalog = make("own-name", signals[:350], signals[350:])
    assert sketch_of(catalog) == "".join(hashes(signals)[:256])
    few = make("few", signals[:3])
    assert sketch_of(few) == "".join(hashes(signals[:3]))


def test_common_records_are_recognised_in_another_order_and_among_others(make):
    signals, others = images(RECORDS, 1), images(RECORDS, 2)
    sketch = sketch_of(make("first", signals))
    subset = [*others[:190], *signals[::-40]]  # 10 of the 590 records of both
    assert have_common(sketch, sketch_of(make("again", signals[::-1])))
    assert have_common(sketch, sketch_of(make("some", subset)))
    assert not have_common(sketch, sketch_of(make("other", others)))
    assert not have_common(sketch, "")


def test_constant_signals_are_no_common_records(make):
    blank = np.repeat(np.arange(3, dtype=np.uint8), np.prod(SHAPE)).reshape(3, *SHAPE)
    first, second = images(2, 1), images(2, 2)
    sketches = [sketch_of(make(f"d{n}", [*blank, *s])) for n, s in enumerate((first, second))]
    assert sketches == ["".join(hashes(first)), "".join(hashes(second))]
    assert sketch_of(make("blank", blank)) == ""


def test_the_sketch_of_several_catalogs_is_that_of_all_their_records(make):
    signals = images(RECORDS, 3)
    parts = [sketch_of(make(f"d{n}", signals[n::3])) for n in range(3)]
    assert merged([*parts, parts[0]]) == sketch_of(make("all", signals))


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("", True),
        ("0" * 16, True),
        ("0" * 16 + "0" * 15 + "1", True),
        ("".join(f"{n:016x}" for n in range(SIZE)), True),
        ("".join(f"{n:016x}" for n in range(SIZE + 1)), False),
        ("0" * 15, False),
        ("0" * 15 + "g", False),
        ("0" * 15 + "A", False),
        ("0" * 15 + "\n", False),
        ("0" * 16 + "\n", False),
        ("0" * 32, False),
        ("0" * 15 + "1" + "0" * 16, False),
    ],
)
def test_a_sketch_has_ascending_hashes_of_sixteen_digits(text, fits):
    assert is_sketch(text) is fits
