"""Cards of MedMNIST: what all its datasets share, and one card for each size of the images.

Sources: Yang et al., MedMNIST v2 (2023), tables 2 to 4; the files of version 3 at
https://zenodo.org/records/10519652 and of version 2 at https://zenodo.org/records/6496656.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmd_ray.errors import BenchmdError
from benchmd_ray.modalities import PLAIN_SIZE, Images, images_modality
from benchmd_ray.typed import typed

COLLECTION = "medmnist"
CURRENT, EARLIER, UNOFFICIAL = "version-3", "version-2", "unofficial"
"""Layouts: which file a catalog was built from."""
RECORDS = {CURRENT: "10519652", EARLIER: "6496656"}
"""Numbers of the files' records at Zenodo."""
PAPER = (
    "Yang et al., MedMNIST v2: a large-scale lightweight benchmark for 2D and 3D biomedical image "
    "classification. Scientific Data 10, 41 (2023). doi:10.1038/s41597-022-01721-8."
)
ARRAYS = "the arrays train_images, train_labels, val_…, test_…, of type uint8"
NORMALISED = {
    2: "none is measured: grey levels 0 to 255 are mapped to [−1, 1]",
    3: "none is measured: grey levels 0 to 255 are mapped to [0, 1]",
}
"""By the images' dimensions."""
OPTIONS = {
    "md5": {
        "default": "require",
        "description": "What becomes of a file whose MD5 is not the official one: it is refused, "
        "or allowed and marked in all results.",
        "choices": ["require", "allow"],
    }
}
NOTES = (
    "The official splits train, validation and test are taken under both policies.",
    "Its files name no patients, so each image stands for one: where a patient has several images, "
    "intervals are a little too narrow. By the paper, splits that the sources did not have were "
    "drawn by patient.",
)


def contents_by_size(content: Mapping[str, Any], file: str) -> list[dict[str, Any]]:
    """What the cards of a dataset of MedMNIST say, one for each size of its images.

    Args:
        content: What the card's file says, with the facts under ``images``.
        file: Its name, for messages.

    Raises:
        BenchmdError: The facts are not complete, or there are others.
    """
    images: Images = typed(Images, content["images"], f"{file}: images")
    if PLAIN_SIZE not in images.md5:
        raise BenchmdError(f"{file}: images is incomplete: md5 of size {PLAIN_SIZE} is missing.")
    own = {key: value for key, value in content.items() if key != "images"}
    name, title, citation = (str(own.get(key, "")) for key in ("name", "title", "citation"))
    notes = typed(list[str], own.get("notes", []), f"{file}: notes")
    return [
        own
        | _of_size(name, images, size)
        | {
            "title": f"{title}, {images.imaging}",
            "citation": f"{PAPER} Images: {citation}",
            "notes": [*NOTES, *notes],
        }
        for size in images.md5
    ]


def _of_size(dataset: str, images: Images, size: int) -> dict[str, Any]:
    kind = images_modality(dataset, images, size)
    file = f"{dataset}.npz" if size == PLAIN_SIZE else f"{dataset}_{size}.npz"
    layouts = _layouts(images, size, file)
    return {
        "name": kind.name,
        "modality": kind.name,
        "role": "source",
        "collection": COLLECTION,
        "homepage": "https://medmnist.com",
        "access": "open",
        "download": [
            f"https://zenodo.org/records/{RECORDS[name]}/files/{file}"
            for name in layouts
            if name in RECORDS
        ],
        "layouts": layouts,
        "options": OPTIONS,
        "evaluation_splits": {"clean": ["test"], "released": ["test"]},
        "normalisation": NORMALISED[images.dimensions],
    }


def _layouts(images: Images, size: int, file: str) -> dict[str, dict[str, Any]]:
    """The files that a catalog can be built from."""
    found = {CURRENT: (images.records, images.md5[size])}
    if images.earlier and size == PLAIN_SIZE:
        found[EARLIER] = (images.earlier.records, images.earlier.md5)
    layouts: dict[str, dict[str, Any]] = {
        name: {
            "description": f"{file} of {name.replace('-', ' ')}: {ARRAYS}.",
            "records": sum(splits.values()),
            "pattern": file,
            "md5": md5,
            "splits": splits,
        }
        for name, (splits, md5) in found.items()
    }
    if EARLIER in layouts:
        layouts[EARLIER]["mark"] = "v2"
    current = layouts[CURRENT]
    other = f"Another {file} with the same arrays, by the option md5=allow."
    layouts[UNOFFICIAL] = current | {"description": other, "md5": "", "mark": UNOFFICIAL}
    return layouts
