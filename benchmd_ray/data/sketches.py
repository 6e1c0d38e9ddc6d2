"""Sketches of catalogs, by which common records are recognised whatever a dataset is called.

A sketch has the `SIZE` smallest hashes of the contents of records (`records.contents`): a bottom-k
sketch (Broder, On the resemblance and containment of documents, 1997). If a share of all records of
two catalogs is in both, the same share of `SIZE` hashes is expected to be: with 1 in 50, two
sketches have a common hash in 99 % of cases, with 1 in 500 in 40 %.

Missed is the same data with other stored values: another rate, size, crop, window, unit or order of
channels, compressed anew, or cut into other windows. Names and origins (`data.origins`) recognise
that only for datasets that they know.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated

from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.records import CONTENT, CONTENT_BYTES
from benchmd_ray.data.resident import split_table
from benchmd_ray.schema.typed import checked

SIZE = 256
_HASH = re.compile(f"[0-9a-f]{{{2 * CONTENT_BYTES}}}")
_SKETCH = re.compile(f"(?:{_HASH.pattern}){{0,{SIZE}}}")


def is_sketch(text: str) -> bool:
    """Whether it has at most `SIZE` hashes in hexadecimal, in ascending order."""
    return _SKETCH.fullmatch(text) is not None and _smallest(_hashes(text)) == text


Sketch = Annotated[
    str, checked(is_sketch, f"up to {SIZE} ascending hashes of {2 * CONTENT_BYTES} digits")
]
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
    """The sketch of a catalog's records of all splits."""
    tables = (
        split_table(catalog, split, [CONTENT])
        for split in catalog.manifest["splits"]
        if catalog.rows(split)
    )
    hashes = (content for table in tables for content in table[CONTENT].drop_null().to_pylist())
    return _smallest(content.hex() for content in hashes)
