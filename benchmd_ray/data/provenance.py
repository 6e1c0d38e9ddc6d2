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
    """Say of a raw folder that its records were measured on nobody: reports say so, too."""
    with replacing(raw / SYNTHETIC) as partial:
        partial.write_text("These records were drawn by a program, and measured on nobody.\n")


def provenance_of(raw: Path, records: int, expected: int, *, mark: str, part: bool) -> Provenance:
    """What the records of a raw folder are.

    Args:
        raw: The folder.
        records: That it holds.
        expected: That the layout has.
        mark: Of the layout, empty for the official one.
        part: Whether the layout holds a part of the dataset.
    """
    if (raw / SYNTHETIC).is_file():
        return "synthetic"
    if mark:
        return "unofficial"
    return "sample" if part or records < expected else "whole"


def together(*provenances: str) -> str:
    """That of a result on several datasets: the weakest of those that are known, or none."""
    order = ("", *PROVENANCES)
    return max(provenances, key=order.index)
