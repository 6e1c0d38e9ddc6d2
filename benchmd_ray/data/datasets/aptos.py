"""APTOS 2019: fundus photographs of the blindness detection competition, graded 0–4.

The labelled training images are used; those of the competition's test have no public grades.
Source: https://www.kaggle.com/competitions/aptos2019-blindness-detection/data.
"""

from __future__ import annotations

from pathlib import Path

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.datasets.photographs import Photograph, listing
from benchmd_ray.data.raw import Choices, Discovery, files
from benchmd_ray.data.tables import read_rows

VERSION = 1
GRADES = "train.csv"
FOLDER = "train_images"


def discover(root: Path, card: DatasetCard, choices: Choices) -> Discovery:
    """List the labelled images. Each is a patient of its own: the competition names none."""
    photographs = [
        Photograph(path=f"{FOLDER}/{row['id_code']}.png", label=row["diagnosis"])
        for row in read_rows(root / GRADES, ("id_code", "diagnosis"), "APTOS 2019")
    ]
    paths = files(root / FOLDER, "*.png")
    return listing(
        root, card, choices, "kaggle", photographs, paths, rounding=int, grouped_by="record"
    )
