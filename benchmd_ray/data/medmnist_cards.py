"""Cards of MedMNIST: what all its datasets share, and one card for each size of the images.

Sources: Yang et al., MedMNIST v2 (2023), tables 2 to 4; the files of version 3 at
https://zenodo.org/records/10519652 and of version 2 at https://zenodo.org/records/6496656.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.modalities import Modality
from benchmd_ray.modality.signals import Signal
from benchmd_ray.modality.tasks import Task, TaskKind
from benchmd_ray.schema.typed import typed

MedmnistTask = Literal["binary-class", "multi-class", "ordinal-regression", "multi-label"]
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

IMAGE_PATCHES = {2: {28: 4, 64: 8, 128: 16, 224: 16}, 3: {28: 7, 64: 8}}
"""Datasets of MedMNIST: number of the images' dimensions → their size → extent of a patch."""
IMAGE_GROUPS = (
    *(f"medmnist-{dimensions}d" for dimensions in IMAGE_PATCHES),
    *(f"medmnist-{d}d-{size}" for d, sizes in IMAGE_PATCHES.items() for size in sizes),
)
"""Groups of their signals in search spaces: by dimensions, which is the modality, and by size."""
IMAGE_RANGES: dict[int, dict[str, Any]] = {2: {"onto_low": -1, "onto_high": 1}, 3: {}}
"""What the baselines of MedMNIST v2 map grey levels to, by the images' dimensions."""
IMAGE_BATCH = {2: 128, 3: 32}
"""Batch size of the baselines of MedMNIST v2, by the images' dimensions."""
PLAIN_SIZE = 28
"""Images of this size have no size in their dataset's name."""


def sized_name(dataset: str, size: int) -> str:
    """Name of a dataset of MedMNIST at a size: ``breastmnist-64``."""
    return dataset if size == PLAIN_SIZE else f"{dataset}-{size}"


TASKS: dict[MedmnistTask, TaskKind] = {
    "binary-class": "single-label",
    "multi-class": "single-label",
    "ordinal-regression": "ordinal",
    "multi-label": "multi-label",
}
"""Tasks of MedMNIST in our words."""


def task_name(task: Task) -> MedmnistTask:
    """A task in the words of MedMNIST."""
    if task.kind == "single-label" and len(task.classes) > 2:
        return "multi-class"
    return next(name for name, kind in TASKS.items() if kind == task.kind)


@dataclass(frozen=True)
class Images:
    """What a card of MedMNIST says of its images, of all sizes."""

    imaging: str
    dimensions: Literal[2, 3]
    channels: Literal[1, 3]
    task: MedmnistTask
    classes: tuple[str, ...]
    records: dict[str, int]
    """Of each split."""
    md5: dict[int, str]
    """MD5 of the file of each size."""
    earlier: EarlierImages | None = None
    """Of the file of version 2, where it is another."""


@dataclass(frozen=True)
class EarlierImages:
    """What differs in the file of version 2."""

    records: dict[str, int]
    md5: str


def contents_by_size(content: Mapping[str, Any], file: str) -> list[dict[str, Any]]:
    """Contents of the cards of a dataset of MedMNIST, one for each size of its images.

    The facts are under ``images`` in the card's file, `file` its name for messages.

    Raises:
        BenchmdError: The facts are not complete, or there are others.
    """
    images: Images = typed(Images, content["images"], f"{file}: images")
    if PLAIN_SIZE not in images.md5:
        raise BenchmdError(f"{file}: images is incomplete: md5 of size {PLAIN_SIZE} is missing.")
    card = {key: value for key, value in content.items() if key != "images"}
    name, title, citation = (str(card.get(key, "")) for key in ("name", "title", "citation"))
    notes = typed(list[str], card.get("notes", []), f"{file}: notes")
    return [
        card
        | _of_size(name, images, size)
        | {
            "title": f"{title}, {images.imaging}",
            "citation": f"{PAPER} Images: {citation}",
            "notes": [*NOTES, *notes],
        }
        for size in images.md5
    ]


def _of_size(dataset: str, images: Images, size: int) -> dict[str, Any]:
    kind = _modality(dataset, images, size)
    file = f"{dataset}.npz" if size == PLAIN_SIZE else f"{dataset}_{size}.npz"
    layouts = _layouts(images, size, file)
    return {
        "name": kind.signal.name,
        "modality": asdict(kind),
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
    files = {CURRENT: (images.records, images.md5[size])}
    if images.earlier and size == PLAIN_SIZE:
        files[EARLIER] = (images.earlier.records, images.earlier.md5)
    layouts: dict[str, dict[str, Any]] = {
        name: {
            "description": f"{file} of {name.replace('-', ' ')}: {ARRAYS}.",
            "records": sum(splits.values()),
            "pattern": file,
            "md5": md5,
            "splits": splits,
        }
        for name, (splits, md5) in files.items()
    }
    if EARLIER in layouts:
        layouts[EARLIER]["mark"] = "v2"
    current = layouts[CURRENT]
    other = f"Another {file} with the same arrays, by the option md5=allow."
    layouts[UNOFFICIAL] = current | {"description": other, "md5": "", "mark": UNOFFICIAL}
    return layouts


def _modality(dataset: str, images: Images, size: int) -> Modality:
    """The modality of a dataset's images of `size` pixels along each axis."""
    sizes = IMAGE_PATCHES[images.dimensions]
    if size not in sizes:
        raise BenchmdError(
            f"the card {dataset}.yaml names images of size {size}, expected one of "
            f"{', '.join(map(str, sizes))}."
        )
    shape = (images.channels, *(size,) * images.dimensions)
    name, group = sized_name(dataset, size), f"medmnist-{images.dimensions}d"
    signal = Signal(
        name=name,
        axes=("channel", *("z", "y", "x")[3 - images.dimensions :]),
        stored_shape=shape,
        input_shape=shape,
        dtype="uint8",
        unit="grey level",
        patch=(sizes[size],) * images.dimensions,
        normaliser="fixed-range",
        parameters={"low": 0, "high": 255, **IMAGE_RANGES[images.dimensions]},
        within=(group, f"{group}-{size}"),
    )
    task = Task(TASKS[images.task], images.classes)
    batch = IMAGE_BATCH[images.dimensions]
    return Modality(group, signal, task, batch)
