"""ISIC 2017, task 3: dermoscopic images labelled melanoma, seborrheic keratosis or nevus.

The challenge's parts are the splits; images of the training or validation part alone are divided
80/20 by a hash. Source: https://challenge.isic-archive.com/landing/2017/.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.datasets.photographs import Photograph, listing, one_hot_label
from benchmd_ray.data.raw import Choices, Discovery, files
from benchmd_ray.data.tables import age, read_rows, sex
from benchmd_ray.errors import BenchmdError

VERSION = 1
PARTS = {
    "training": ("isic-2017_training_part3_groundtruth.csv",),
    "validation": ("isic-2017_validation_part3_groundtruth.csv", "example_ground_truth.csv"),
    "test": ("isic-2017_test_v2_part3_groundtruth.csv",),
}
"""Names of each part's table, in lower case."""
SPLITS = {"training": "train", "validation": "validation", "test": "test"}
DIAGNOSES = ("melanoma", "seborrheic_keratosis")
NEITHER = "nevus"
"""What an image is that is neither: a benign nevus."""


def discover(root: Path, card: DatasetCard, choices: Choices) -> Discovery:
    """List the images of all parts."""
    tables = {path.name.lower(): path for path in reversed(files(root, "*.csv"))}
    parts = {
        part: read_rows(tables[name], ("image_id", *DIAGNOSES), f"the ISIC 2017 {part} part")
        for part, names in PARTS.items()
        for name in [next((name for name in names if name in tables), "")]
        if name
    }
    if not parts:
        raise BenchmdError(
            f"{root} has no ISIC-2017_…_Part3_GroundTruth.csv: expected the labels of ISIC 2017, "
            "task 3, next to its images."
        )
    # Of several sizes of an image, the largest file comes first.
    paths = sorted(files(root, "ISIC_*.jpg"), key=lambda path: -path.stat().st_size)
    image_names = {path.stem.lower() for path in paths}
    has_images = {
        part: any(row["image_id"].lower() in image_names for row in rows)
        for part, rows in parts.items()
    }
    official = has_images.get("training", False) and has_images.get("validation", False)
    alone = [part for part, there in has_images.items() if there]
    layout = alone[0] if len(alone) == 1 and alone != ["test"] else "official"
    people = _people(tables)
    photographs = [
        _photograph(row, part, SPLITS[part] if official or part == "test" else "", people)
        for part, rows in parts.items()
        for row in rows
    ]
    return listing(
        root, card, choices, layout, photographs, paths, rounding=round, grouped_by="record"
    )


def _photograph(
    row: Mapping[str, str], part: str, split: str, people: Mapping[str, Mapping[str, str]]
) -> Photograph:
    name = row["image_id"]
    person = people.get(name, {})
    folder = f"ISIC-2017_{part.capitalize()}{'_v2' * (part == 'test')}_Data"
    return Photograph(
        path=f"{folder}/{name}.jpg",
        label=one_hot_label(row, DIAGNOSES) or NEITHER,
        split=split,
        metadata={
            "age": age(person.get("age_approximate", "")),
            "sex": sex(person.get("sex", "")),
        },
    )


def _people(tables: Mapping[str, Path]) -> dict[str, dict[str, str]]:
    columns = ("image_id", "age_approximate", "sex")
    return {
        row["image_id"]: row
        for name, path in tables.items()
        if name.startswith("isic-2017_") and name.endswith("_metadata.csv")
        for row in read_rows(path, columns, "the ISIC 2017 metadata")
    }
