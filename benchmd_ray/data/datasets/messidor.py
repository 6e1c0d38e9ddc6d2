"""Messidor-2: fundus photographs in pairs of eyes, with adjudicated grades.

ADCIS hands out images and pairs, Kaggle the grades; they differ in how suffixes are written.
Sources: https://www.adcis.net/en/third-party/messidor2/,
https://www.kaggle.com/datasets/google-brain/messidor2-dr-grades.
"""

from __future__ import annotations

from pathlib import Path

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.datasets.photographs import Photograph, listing
from benchmd_ray.data.raw import Choices, Discovery, files
from benchmd_ray.data.tables import read_rows
from benchmd_ray.errors import BenchmdError

VERSION = 1
GRADES = "messidor_data.csv"
PAIRS = "messidor-2.csv"
FOLDER = "IMAGES"
UNPAIRED = "its pair of eyes is not known"
UNGRADABLE = "ungradable"
"""Condition of an image that is excluded unless it is held out."""
COLUMNS = ("image_id", "adjudicated_dr_grade", "adjudicated_gradable")


def discover(root: Path, card: DatasetCard, choices: Choices) -> Discovery:
    """List the images; both eyes of an examination are one patient."""
    pairs = _pairs(root, choices)
    photographs = []
    for row in read_rows(root / GRADES, COLUMNS, "the adjudicated grades of Messidor-2"):
        name = row["image_id"]
        pair = pairs.get(Path(name).stem.lower(), "")
        excluded = "" if pair or choices.policy == "released" else UNPAIRED
        condition = ""
        if row["adjudicated_gradable"] in ("0", "0.0"):
            condition = "" if excluded else UNGRADABLE  # of whom it is has to be known
            excluded = "it is not gradable"
        photographs.append(
            Photograph(
                path=f"{FOLDER}/{name}",
                label=row["adjudicated_dr_grade"].removesuffix(".0"),
                group=pair,
                excluded=excluded,
                condition=condition,
                metadata={"site": "Brest"} if name.upper().startswith("IM") else {},
            )
        )
    paths = files(root / FOLDER, "*.png", "*.jpg", "*.jpeg", "*.tif", "*.tiff")
    return listing(
        root,
        card,
        choices,
        "adcis",
        photographs,
        paths,
        rounding=int,
        grouped_by="patient" if pairs else "record",
    )


def _pairs(root: Path, choices: Choices) -> dict[str, str]:
    """The examination of each image, by its name without suffix in lower case."""
    path = root / PAIRS
    if not path.is_file():
        if choices.policy == "released":
            return {}
        raise BenchmdError(
            f"{path} is missing: policy 'clean' tells by it which two images are of one patient. "
            "Fetch the pairs of left and right eyes from where the images come from (ADCIS), or "
            "build with --policy released."
        )
    pairs: dict[str, str] = {}
    rows = read_rows(path, ("left", "right"), "the pairs of eyes of Messidor-2", delimiter=";")
    for row in rows:
        eyes = [Path(row[side]).stem.lower() for side in ("left", "right")]
        for eye in filter(None, eyes):
            pairs[eye] = eyes[0] or eyes[1]
    return pairs
