"""What the records of a dataset are: measured on patients, all of them or some, or synthetic."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from benchmd_ray.files.atomic import replacing

Provenance = Literal["whole", "sample", "unofficial", "synthetic"]
"""whole: all raw records of the dataset; sample: fewer; unofficial: files of a mirror or of
a third party; synthetic: drawn by a program, as `mark_synthetic` says."""
PROVENANCES: tuple[Provenance, ...] = get_args(Provenance)
SYNTHETIC = "SYNTHETIC.txt"
"""File that marks a raw folder."""


def mark_synthetic(raw: Path) -> None:
    """Mark a raw folder's records as measured on nobody, for reports."""
    with replacing(raw / SYNTHETIC) as partial:
        partial.write_text("These records were drawn by a program, and measured on nobody.\n")


def provenance_of(raw: Path, records: int, expected: int, *, mark: str, part: bool) -> Provenance:
    """Provenance of a raw folder with `records` of the layout's `expected` ones.

    `mark` is the layout's, empty for the official one; `part`: the layout is only a part.
    """
    if (raw / SYNTHETIC).is_file():
        return "synthetic"
    if mark:
        return "unofficial"
    return "sample" if part or records < expected else "whole"


def together(*provenances: str) -> str:
    """Provenance of a result on several datasets: the weakest that is known, or none."""
    order = ("", *PROVENANCES)
    return max(provenances, key=order.index)
