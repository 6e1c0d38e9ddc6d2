"""Sketches of catalogs, by which common records are recognised whatever a dataset is called.

A sketch has the `SIZE` smallest hashes of the signals as they are stored (a bottom-k sketch;
Broder, On the resemblance and containment of documents, 1997). If a share of all records of two
catalogs is in both, the same share of `SIZE` hashes is expected to be: with 1 in 50, two sketches
have a common hash in 99 % of cases, with 1 in 500 in 40 %. Constant signals, such as blank images,
are ignored.

Missed is the same data with other stored values: another rate, size, crop, window, unit or order of
channels, compressed anew, or cut into other windows. Names and origins (`data.origins`) recognise
that only for datasets that they know.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated

from benchmd_ray.console.progress import progress
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.records import decode_signals
from benchmd_ray.files.atomic import cache_folder
from benchmd_ray.files.cache import used
from benchmd_ray.files.integrity import Damaged, read_hashed_json, write_hashed_json
from benchmd_ray.schema.typed import checked

VERSION = 1
SIZE, BYTES = 256, 8
_HASH = re.compile(f"[0-9a-f]{{{2 * BYTES}}}")
_SKETCH = re.compile(f"(?:{_HASH.pattern}){{0,{SIZE}}}")


def is_sketch(text: str) -> bool:
    """Whether it has at most `SIZE` hashes in hexadecimal, in ascending order."""
    return _SKETCH.fullmatch(text) is not None and _smallest(_hashes(text)) == text


Sketch = Annotated[str, checked(is_sketch, f"up to {SIZE} ascending hashes of {2 * BYTES} digits")]
"""Type of a sketch in forms."""


def have_common(first: str, second: str) -> bool:
    """Whether two sketches have a hash in common."""
    return not {*_hashes(first)}.isdisjoint(_hashes(second))


def merged(sketches: Iterable[str]) -> str:
    """The sketch of all records of several catalogs."""
    return _smallest(value for sketch in sketches for value in _hashes(sketch))


def _hashes(sketch: str) -> list[str]:
    return _HASH.findall(sketch)


def _smallest(hashes: Iterable[str]) -> str:
    return "".join(sorted({*hashes})[:SIZE])


def sketch_of(catalog: Catalog) -> str:
    """The sketch of a catalog's records of all splits.

    The first use on a machine reads the whole catalog; later ones read its cache.
    """
    path = sketch_path(catalog.digest)
    with suppress(Damaged):  # or missing: it is computed again
        sketch: str = read_hashed_json(path, "", {"sketch": Sketch})["sketch"]
        used(path)
        return sketch
    sketch = _computed(catalog)
    write_hashed_json(path, {"sketch": sketch})
    return sketch


def sketch_path(digest: str) -> Path:
    """File of the machine's cache with the sketch of the catalog with this digest."""
    return cache_folder() / "sketches" / f"{digest[:32]}-{VERSION}.json"


def _computed(catalog: Catalog) -> str:
    splits = [*catalog.manifest["splits"]]
    total, done, sketch = sum(map(catalog.rows, splits)), 0, ""
    with closing(
        progress(f"hashing the signals of {catalog.dataset}", total, "records")
    ) as display:
        for split in splits:
            for table in catalog.tables(split, ["signal"]):
                signals = decode_signals(table["signal"], catalog.signal).reshape(len(table), -1)
                varying = signals[(signals != signals[:, :1]).any(axis=1)]
                hashes = (hashlib.blake2b(row, digest_size=BYTES).hexdigest() for row in varying)
                sketch = _smallest([*_hashes(sketch), *hashes])
                done += len(table)
                display.update(done)
    return sketch
