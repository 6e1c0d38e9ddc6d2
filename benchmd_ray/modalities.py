"""The seven modalities of BenchMD: what a signal is, how it is cut into tokens, what is predicted.

Source: BenchMD v2, section 3 and appendix C; ``docs/differences.md`` names where this departs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from benchmd_ray.errors import BenchmdError, unknown_name

Task = Literal["single-label", "multi-label"]

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

    @property
    def tokens(self) -> int:
        """Number of patches the encoder sees, CLS not counted."""
        return math.prod(s // p for s, p in zip(self.input_shape[1:], self.patch, strict=True))

    @property
    def patch_size(self) -> int:
        """Number of values in a patch, all channels together."""
        return self.input_shape[0] * math.prod(self.patch)

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


def modality(name: str) -> Modality:
    """The modality of that name.

    Raises:
        BenchmdError: There is none; the message lists the valid names.
    """
    if name not in MODALITIES:
        raise unknown_name("modality", name, MODALITIES)
    return MODALITIES[name]
