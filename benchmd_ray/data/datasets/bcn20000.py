"""BCN20000 as BenchMD uses it: the training data of the ISIC 2019 challenge.

They hold the images of BCN20000, MSK and HAM10000. Policy ``clean`` leaves out those of HAM10000,
a target (decision D10), and splits by lesion: the challenge names no patients.
Source: https://challenge.isic-archive.com/landing/2019/.
"""

from __future__ import annotations

import re
from pathlib import Path

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.datasets.photographs import Photograph, listing, one_hot_label
from benchmd_ray.data.raw import Choices, Discovery, files
from benchmd_ray.data.tables import age, read_rows, sex
from benchmd_ray.errors import BenchmdError

VERSION = 1
FOLDER = "ISIC_2019_Training_Input"
LABELS = "ISIC_2019_Training_GroundTruth.csv"
METADATA = "ISIC_2019_Training_Metadata.csv"
HAM10000 = range(24306, 34321)
"""Numbers of the 10,015 images of HAM10000 in the ISIC archive: it holds them without a gap."""


def discover(root: Path, card: DatasetCard, choices: Choices) -> Discovery:
    """List the images."""
    diagnoses = list(card.class_mapping)
    metadata_by_image = _metadata(root, choices)
    photographs = []
    for row in read_rows(root / LABELS, ("image", *diagnoses), "the ISIC 2019 challenge"):
        name = row["image"]
        about = metadata_by_image.get(name, {})
        lesion = about.get("lesion_id", "")
        of_target = choices.policy == "clean" and of_ham10000(name, lesion)
        photographs.append(
            Photograph(
                path=f"{FOLDER}/{name}.jpg",
                label=one_hot_label(row, diagnoses),
                group=lesion,
                excluded="it belongs to HAM10000, a target" if of_target else "",
                metadata={
                    "age": age(about.get("age_approx", "")),
                    "sex": sex(about.get("sex", "")),
                    "site": lesion.partition("_")[0] or None,
                },
            )
        )
    paths = files(root / FOLDER, "*.jpg")
    return listing(
        root, card, choices, "isic-2019", photographs, paths, rounding=round, grouped_by="lesion"
    )


def of_ham10000(name: str, lesion: str) -> bool:
    """Whether an image of ISIC 2019 is one of HAM10000: by its lesion or by its own number."""
    number = re.fullmatch(r"ISIC_(\d{7})", name)
    return lesion.startswith("HAM_") or (number is not None and int(number[1]) in HAM10000)


def _metadata(root: Path, choices: Choices) -> dict[str, dict[str, str]]:
    """Rows of the metadata by image; none where policy ``released`` can do without them."""
    path = root / METADATA
    if not path.is_file():
        if choices.policy == "released":
            return {}
        raise BenchmdError(
            f"{path} is missing: policy 'clean' tells by it which images belong to one lesion and "
            "which to HAM10000. Fetch it from the ISIC 2019 challenge, or build with --policy "
            "released."
        )
    columns = ("image", "age_approx", "lesion_id", "sex")
    return {r["image"]: r for r in read_rows(path, columns, "the ISIC 2019 metadata")}
