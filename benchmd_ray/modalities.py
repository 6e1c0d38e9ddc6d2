"""Modalities: a signal, its usual task, and what the fixed protocol trains it with.

Each is a card of ``data_catalog/modalities``, the seven of BenchMD among them (BenchMD v2, section
3 and appendix C; ``docs/differences.md`` names where this departs). Each dataset of MedMNIST is a
modality of its own at each size, which its card in ``data_catalog`` states (Yang et al., 2023,
table 2).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmd_ray.errors import BenchmdError, shown, unknown_name
from benchmd_ray.files import resource_folder
from benchmd_ray.signals import Signal
from benchmd_ray.tasks import Task, TaskKind

MedmnistTask = Literal["binary-class", "multi-class", "ordinal-regression", "multi-label"]


@dataclass(frozen=True)
class Modality:
    """A signal with its usual task."""

    name: str
    signal: Signal
    task: Task
    batch_size: int
    """Examples of a training step in the fixed protocol."""
    place: int | None = None
    """Place among the others in tables; those without one come last, by name."""
    medmnist_task: MedmnistTask | None = None
    """The task in the words of MedMNIST, for its datasets."""

    @property
    def dataset(self) -> str:
        """Name of the dataset of MedMNIST, which all sizes of its images share."""
        return self.name.partition("-")[0]


@functools.cache
def modalities() -> dict[str, Modality]:
    """Those that have a card of their own, by name, in the order of tables.

    Raises:
        BenchmdError: A card cannot be read.
    """
    paths = sorted((resource_folder("data_catalog") / "modalities").glob("*.yaml"))
    held = sorted(map(_read, paths), key=lambda each: (each.place is None, each.place))
    return {each.name: each for each in held}


def _read(path: Path) -> Modality:
    # what names no modality needs no YAML
    from benchmd_ray.plain_yaml import read_yaml_file
    from benchmd_ray.typed import typed

    content = read_yaml_file(path, f"the card {path.name}")
    if not isinstance(content, Mapping) or content.get("name") != path.stem:
        raise BenchmdError(
            f"the card {path.name} holds {shown(content)}, expected its keys, with the file's own "
            "name."
        )
    named = dict(content)
    if isinstance(named.get("signal"), Mapping):
        named["signal"] = {"name": path.stem, **named["signal"]}
    held: Modality = typed(Modality, named, f"the card {path.name}")
    return held


IMAGE_PATCHES = {2: {28: 4, 64: 8, 128: 16, 224: 16}, 3: {28: 7, 64: 8}}
"""Datasets of MedMNIST: number of the images' dimensions → their size → extent of a patch."""
IMAGE_GROUPS = (
    *(f"medmnist-{dimensions}d" for dimensions in IMAGE_PATCHES),
    *(f"medmnist-{d}d-{size}" for d, sizes in IMAGE_PATCHES.items() for size in sizes),
)
"""Groups of their signals in search spaces: by dimensions, and by these with their size."""
IMAGE_RANGES: dict[int, dict[str, Any]] = {2: {"onto_low": -1, "onto_high": 1}, 3: {}}
"""What the baselines of MedMNIST v2 map grey levels to, by the images' dimensions."""
IMAGE_BATCH = {2: 128, 3: 32}
"""Batch size of the baselines of MedMNIST v2, by the images' dimensions."""
PLAIN_SIZE = 28
"""Images of this size have no size in their modality's name."""


def sized_name(dataset: str, size: int) -> str:
    """Name of a dataset of MedMNIST, which is its modality's, at a size: ``breastmnist-64``."""
    return dataset if size == PLAIN_SIZE else f"{dataset}-{size}"


TASKS: dict[MedmnistTask, TaskKind] = {
    "binary-class": "single-label",
    "multi-class": "single-label",
    "ordinal-regression": "ordinal",
    "multi-label": "multi-label",
}
"""Tasks of MedMNIST in our words."""


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


def images_modality(dataset: str, images: Images, size: int) -> Modality:
    """The modality of a dataset of MedMNIST at a size.

    Args:
        dataset: Name of its card's file.
        images: What the card says of them.
        size: Pixels along each axis.

    Raises:
        BenchmdError: There are no images of that size.
    """
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
    return Modality(name, signal, task, batch, medmnist_task=images.task)


@functools.cache
def _of_card(name: str) -> Modality | None:
    """The modality of that name that a card of images states."""
    named = re.fullmatch(r"([a-z0-9]{1,64})(?:-([0-9]{1,4}))?", name)
    path = resource_folder("data_catalog") / f"{named[1] if named else ''}.yaml"
    if not named or not path.is_file():
        return None
    from benchmd_ray.plain_yaml import read_yaml_file
    from benchmd_ray.typed import typed

    content = read_yaml_file(path, f"the card {path.name}")
    if not isinstance(content, Mapping) or "images" not in content:
        return None
    images: Images = typed(Images, content["images"], f"{path.name}: images")
    size = int(named[2] or PLAIN_SIZE)
    if size not in images.md5 or sized_name(named[1], size) != name:
        return None
    return images_modality(named[1], images, size)


def find_modality(name: str) -> Modality | None:
    """The modality of that name, of a card or of a dataset of MedMNIST; None without one.

    Raises:
        BenchmdError: Its card cannot be read.
    """
    return modalities().get(name) or _of_card(name)


def modality(name: str) -> Modality:
    """The modality of that name, of a card or of a dataset of MedMNIST.

    Raises:
        BenchmdError: There is none; the message lists the valid names.
    """
    found = find_modality(name)
    if found is None:
        raise BenchmdError(
            f"{unknown_name('modality', name, modalities())} Or a dataset of MedMNIST, such as "
            "breastmnist or breastmnist-64 (`benchmd catalog list`)."
        )
    return found
