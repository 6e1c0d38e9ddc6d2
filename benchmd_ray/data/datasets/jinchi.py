"""Jinchi: fundus photographs of Jichi Medical University on the modified Davis scale.

Files are named by patient, number and eye (``12_3_L.jpg``), so a record is named by the hash of
its file's name. The four grades merge those of the modality (decision D12).
Source: Takahashi et al. 2017, https://doi.org/10.6084/m9.figshare.4879853.
"""

from __future__ import annotations

from pathlib import Path

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.datasets.photographs import Photograph, listing
from benchmd_ray.data.raw import Choices, Discovery, files
from benchmd_ray.data.tables import read_rows

VERSION = 1
GRADES = "list.csv"
GRADE = "Davis_grading_of_one_figure"
"""The grade by the image itself; another column gives it by four fields together."""
EYES = {"L": "left", "R": "right"}


def discover(root: Path, card: DatasetCard, choices: Choices) -> Discovery:
    """List the images."""
    photographs = []
    for row in read_rows(root / GRADES, ("Image", GRADE), "the Jinchi dataset"):
        name = row["Image"]
        parts = Path(name).stem.split("_")
        photographs.append(
            Photograph(
                path=name,
                label=row[GRADE].lower(),
                group=parts[0],
                metadata={"view": EYES.get(parts[-1].upper())},
            )
        )
    paths = files(root, "*.jpg", "*.jpeg")
    return listing(
        root, card, choices, "figshare", photographs, paths, rounding=int, grouped_by="patient"
    )
