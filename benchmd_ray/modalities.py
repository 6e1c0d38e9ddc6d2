"""Modalities: what a signal is, how it is cut into tokens, what is predicted.

The seven of BenchMD are constants (BenchMD v2, section 3 and appendix C; ``docs/differences.md``
names where this departs). Each dataset of MedMNIST is a modality of its own at each size, which
its card in ``data_catalog`` states (Yang et al., 2023, table 2).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from benchmd_ray.errors import BenchmdError, unknown_name
from benchmd_ray.files import resource_folder

Task = Literal["single-label", "multi-label"]
MedmnistTask = Literal["binary-class", "multi-class", "ordinal-regression", "multi-label"]

UNKNOWN = -1
"""Target value of a class that is not known; it is masked in losses and metrics."""
LUNG_WINDOW = (-1350.0, 150.0)
"""HU of CT that are seen as 0 and as 1: centre −600, width 1500 (decision D5)."""


@dataclass(frozen=True)
class Modality:
    """One modality: geometry and unit of its signal, and its task."""

    name: str
    axes: tuple[str, ...]
    """Names of the signal's axes; the first is the channel axis."""
    stored_shape: tuple[int, ...]
    """Shape of a signal in the catalog."""
    input_shape: tuple[int, ...]
    """Shape of a signal as the encoder sees it, channels first."""
    dtype: Literal["int16", "uint8"]
    """Type in the catalog: the narrowest that loses nothing."""
    unit: str
    """Physical unit of ``stored value × scale``."""
    patch: tuple[int, ...]
    """Extent of a patch along each axis but the channel's."""
    task: Task
    classes: tuple[str, ...]
    """Class (or label) names in the order of targets, scores and tables."""
    channels: tuple[str, ...] = ()
    """Names of the channels in their order, for signals over time."""
    rate: float | None = None
    """Sampling rate in Hz, for signals over time."""
    scored: str = "records"
    """What is scored, each as one: records, or the scans that windows were cut from."""
    batch_size: int = 64
    """Examples of a training step in the fixed protocol."""
    medmnist_task: MedmnistTask | None = None
    """The task in the words of MedMNIST, for its datasets; all but the last are single-label."""

    @property
    def tokens(self) -> int:
        """Number of patches the encoder sees, CLS not counted."""
        return math.prod(s // p for s, p in zip(self.input_shape[1:], self.patch, strict=True))

    @property
    def patch_size(self) -> int:
        """Number of values in a patch, all channels together."""
        return self.input_shape[0] * math.prod(self.patch)

    @property
    def dataset(self) -> str:
        """Name of the dataset of MedMNIST, which all sizes of its images share."""
        return self.name.partition("-")[0]

    @property
    def groups(self) -> tuple[str, ...]:
        """Its groups in search spaces, the widest first, and its own name.

        Datasets of MedMNIST are grouped by their dimensions, and by these with their size:
        ``medmnist-2d``, ``medmnist-2d-28``.
        """
        if not self.medmnist_task:
            return (self.name,)
        group = f"medmnist-{len(self.axes) - 1}d"
        return (group, f"{group}-{self.input_shape[-1]}", self.name)

    def with_patch(self, size: int) -> Modality:
        """This modality, cut into patches of another extent.

        Args:
            size: Extent in samples along time, or in pixels along y and x; the extent along z stays
                as it is. 0 takes the modality's own patches.

        Raises:
            BenchmdError: The extent does not divide the signal's.
        """
        if size == 0:
            return self
        kept = self.patch[:-2]  # z, where there is one
        along = self.input_shape[1 + len(kept) :]
        if size < 0 or any(extent % size for extent in along):
            unit = "samples" if self.axes[-1] == "time" else "pixels"
            raise BenchmdError(
                f"setting encoder.patch_size is {size}, which does not cut the {along[0]} {unit} "
                f"of {self.name} along {' and '.join(self.axes[1 + len(kept) :])} into whole "
                f"patches: expected a divisor, such as {_divisors_near(math.gcd(*along), size)}, "
                f"or 0 for the modality's own ({self.patch[-1]})."
            )
        return replace(self, patch=kept + (size,) * len(along))


def _divisors_near(extent: int, size: int) -> str:
    """Up to two divisors of an extent on either side of a size, for a message."""
    divisors = [d for d in range(1, extent + 1) if extent % d == 0]
    below = [d for d in divisors if d < size][-2:]
    return ", ".join(map(str, below + [d for d in divisors if d > size][:2]))


def _image(name: str, channels: int, task: Task, classes: tuple[str, ...]) -> Modality:
    shape = (channels, 224, 224)
    axes = ("channel", "y", "x")
    return Modality(name, axes, shape, shape, "uint8", "grey level", (16, 16), task, classes)


MODALITIES: dict[str, Modality] = {
    m.name: m
    for m in (
        Modality(
            name="ecg",
            axes=("lead", "time"),
            stored_shape=(12, 5000),
            input_shape=(12, 5000),
            dtype="int16",
            unit="mV",
            patch=(25,),
            task="single-label",
            classes=(
                "normal",
                "conduction disturbance",
                "myocardial infarction",
                "ischemic st-t changes",
                "other",
                "atrial fibrillation/flutter",
                "hypertrophy",
            ),
            channels=tuple("I II III aVR aVL aVF V1 V2 V3 V4 V5 V6".split()),
            rate=500.0,
        ),
        Modality(
            name="eeg",
            axes=("channel", "time"),
            stored_shape=(2, 3750),
            input_shape=(2, 3750),
            dtype="int16",
            unit="µV",
            patch=(30,),
            task="single-label",
            classes=("wake", "n1", "n2", "n3", "rem"),
            channels=("C3", "C4"),
            rate=125.0,
        ),
        _image(
            "cxr",
            1,
            "multi-label",
            ("atelectasis", "cardiomegaly", "consolidation", "edema", "pleural effusion"),
        ),
        _image("mammo", 1, "single-label", tuple(f"BI-RADS {i}" for i in range(1, 6))),
        _image("derm", 3, "single-label", ("mel", "nev", "bcc", "akiec", "other")),
        _image("fundus", 3, "single-label", tuple(f"ICDR {i}" for i in range(5))),
        Modality(
            name="ldct",
            axes=("channel", "z", "y", "x"),
            stored_shape=(1, 24, 256, 256),
            input_shape=(1, 24, 224, 224),
            dtype="int16",
            unit="HU",
            patch=(24, 16, 16),
            task="multi-label",
            classes=("small nodule", "large nodule"),
            scored="scans",
            batch_size=32,
        ),
    )
}


IMAGE_PATCHES = {2: {28: 4, 64: 8, 128: 16, 224: 16}, 3: {28: 7, 64: 8}}
"""Datasets of MedMNIST: number of the images' dimensions → their size → extent of a patch."""
GROUPS = (
    *MODALITIES,
    *(f"medmnist-{dimensions}d" for dimensions in IMAGE_PATCHES),
    *(f"medmnist-{d}d-{size}" for d, sizes in IMAGE_PATCHES.items() for size in sizes),
)
"""What `Modality.groups` may hold, beside the names of MedMNIST's datasets."""
IMAGE_BATCH = {2: 128, 3: 32}
"""Batch size of the baselines of MedMNIST v2, by the images' dimensions."""
PLAIN_SIZE = 28
"""Images of this size have no size in their modality's name."""


def sized_name(dataset: str, size: int) -> str:
    """Name of a dataset of MedMNIST, which is its modality's, at a size: ``breastmnist-64``."""
    return dataset if size == PLAIN_SIZE else f"{dataset}-{size}"


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
    return Modality(
        name=sized_name(dataset, size),
        axes=("channel", *("z", "y", "x")[3 - images.dimensions :]),
        stored_shape=shape,
        input_shape=shape,
        dtype="uint8",
        unit="grey level",
        patch=(sizes[size],) * images.dimensions,
        task="multi-label" if images.task == "multi-label" else "single-label",
        classes=images.classes,
        batch_size=IMAGE_BATCH[images.dimensions],
        medmnist_task=images.task,
    )


@functools.cache
def _of_card(name: str) -> Modality | None:
    """The modality of that name that a card of images states."""
    named = re.fullmatch(r"([a-z0-9]{1,64})(?:-([0-9]{1,4}))?", name)
    path = resource_folder("data_catalog") / f"{named[1] if named else ''}.yaml"
    if not named or not path.is_file():
        return None
    # the seven modalities need no YAML, nor do measurements of a device
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
    """The modality of that name, of the seven or of a dataset of MedMNIST; None without one.

    Raises:
        BenchmdError: Its card cannot be read.
    """
    return MODALITIES.get(name) or _of_card(name)


def modality(name: str) -> Modality:
    """The modality of that name, of the seven or of a dataset of MedMNIST.

    Raises:
        BenchmdError: There is none; the message lists the valid names.
    """
    found = find_modality(name)
    if found is None:
        raise BenchmdError(
            f"{unknown_name('modality', name, MODALITIES)} Or a dataset of MedMNIST, such as "
            "breastmnist or breastmnist-64 (`benchmd catalog list`)."
        )
    return found
