"""PAD-UFES-20: photographs of skin lesions by smartphone, with patients and lesions.

Names of files hold patient numbers, so a record is named by the hash of its file's name.
Source: https://doi.org/10.17632/zr7vgbcyr2.1.
"""

from __future__ import annotations

from pathlib import Path

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.datasets.photographs import Photograph, listing
from benchmd_ray.data.raw import Choices, Discovery, files
from benchmd_ray.data.tables import age, read_rows, sex

VERSION = 1
METADATA = "metadata.csv"
COLUMNS = ("patient_id", "img_id", "diagnostic", "age", "gender")


def discover(root: Path, card: DatasetCard, choices: Choices) -> Discovery:
    """List the images."""
    photographs = [
        Photograph(
            path=row["img_id"],
            label=row["diagnostic"],
            group=row["patient_id"],
            metadata={"age": age(row["age"]), "sex": sex(row["gender"])},
        )
        for row in read_rows(root / METADATA, COLUMNS, "PAD-UFES-20")
    ]
    paths = files(root, "*.png")
    return listing(
        root, card, choices, "mendeley", photographs, paths, rounding=round, grouped_by="patient"
    )
