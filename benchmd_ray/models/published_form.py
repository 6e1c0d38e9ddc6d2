"""What makes the features of a published encoder: its network and its input; needs no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from benchmd_ray.errors import FieldError, unknown_name
from benchmd_ray.modality.signals import AXES

MONAI_NAMES = (
    *(f"resnet{layers}" for layers in (10, 18, 34, 50, 101)),
    "segresnet-encoder",
    "swin-transformer",
)
"""Networks of MONAI that cards may name."""
MOST_VALUES = 2**28
"""Most values of an input, as of a stored signal."""
MOST_PIXELS, MOST_VOXELS = 4096, 512
"""Most along an axis of a network's input."""
MOST_HERTZ, MOST_TAPS = 100_000, 10_000


@dataclass(frozen=True)
class ImageInput:
    """Grey levels from 0 to 255, resized, cropped and standardised."""

    size: tuple[int, int]
    """Pixels along y and x of the network's input."""
    mean: tuple[float, ...]
    """Of each channel, 3 or 1, of values between 0 and 1."""
    std: tuple[float, ...]
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    shorter_side: int = 0
    """Pixels to which the shorter side is resized before the centre is cut out; 0 resizes both
    sides to ``size``."""
    rounded: bool = True
    """Whether resized pixels are whole grey levels, as Pillow's are; those of torchvision are not
    where it resizes numbers between 0 and 1."""

    def __post_init__(self) -> None:
        _require_extents("size", self.size)
        if max(self.size) > MOST_PIXELS:
            raise FieldError("size", f"size is {self.size}, expected at most {MOST_PIXELS} pixels.")
        if len(self.mean) not in (1, 3) or len(self.std) != len(self.mean) or min(self.std) <= 0:
            fault = "expected the mean and the standard deviation, above 0, of 1 or 3 channels."
            raise FieldError("std", f"mean is {self.mean} and std {self.std}, {fault}")
        largest = max(self.size)
        if self.shorter_side and not largest <= self.shorter_side <= MOST_PIXELS:
            raise FieldError(
                "shorter_side",
                f"shorter_side is {self.shorter_side}, expected {largest} to {MOST_PIXELS} pixels, "
                "of which size is cut out, or 0.",
            )


@dataclass(frozen=True)
class TimeInput:
    """Signals over time: resampled, filtered, scaled, cut and laid out, in this order."""

    channels: tuple[str, ...]
    """Names of the leads in the network's order."""
    rate: float
    """Hz, after resampling by a polyphase filter."""
    samples: int
    """At that rate, the first ones; shorter signals are padded with zeros at their end."""
    band: tuple[float, ...] = ()
    """Lowest and highest Hz of a causal FIR filter, a windowed sinc with ``taps`` coefficients;
    empty for none."""
    taps: int = 0
    scale: Literal["none", "lead-range", "record-deviation"] = "none"
    """``lead-range``: each lead mapped linearly onto −1 to 1; ``record-deviation``: mean 0 and
    standard deviation 1 over all leads."""
    layout: Literal["channels", "flat"] = "channels"
    """``channels``: (leads, samples); ``flat``: one lead after the other in one row."""
    decimate: int = 1
    """Every how many samples of what is laid out one is kept, after an order 8 Chebyshev filter in
    both directions."""

    def __post_init__(self) -> None:
        _require_extents("samples", (self.samples, len(self.channels)))
        if not 0 < self.rate <= MOST_HERTZ:
            raise FieldError("rate", f"rate is {self.rate:g}, expected 0 to {MOST_HERTZ:,} Hz.")
        for name in ("taps", "decimate"):
            value, least = getattr(self, name), int(name == "decimate")
            if not least <= value <= MOST_TAPS:
                raise FieldError(name, f"{name} is {value}, expected {least} to {MOST_TAPS:,}.")
        whole = self.samples * (len(self.channels) if self.layout == "flat" else 1)
        if whole % self.decimate:
            raise FieldError("decimate", f"decimate does not divide {whole} samples.")
        if self.band and not (
            len(self.band) == 2 and 0 < self.band[0] < self.band[1] < self.rate / 2 and self.taps
        ):
            raise FieldError("band", f"band is {self.band}, expected two Hz below rate / 2, taps.")


@dataclass(frozen=True)
class VolumeInput:
    """Volumes with one channel: intensities and extents."""

    size: tuple[int, ...] = ()
    """Voxels along z, y and x, by trilinear interpolation; empty keeps the volume's own."""
    window: tuple[float, ...] = ()
    """Lowest and highest intensity, which become 0 and 1; empty for ``scale`` alone."""
    scale: Literal["none", "deviation", "foreground-deviation"] = "none"
    """Mean 0 and standard deviation 1 of all voxels, or of those above 0; the others are 0."""
    unit: str = ""
    """Unit that the volumes must have, such as HU; empty for any."""
    least: int = 1
    """Fewest voxels along each axis, which smaller volumes are enlarged to."""

    def __post_init__(self) -> None:
        if self.size:
            _require_extents("size", self.size)
        if len(self.size) not in (0, 3):
            raise FieldError("size", f"size is {self.size}, expected voxels along z, y and x.")
        if not 1 <= self.least <= MOST_VOXELS:
            raise FieldError("least", f"least is {self.least}, expected 1 to {MOST_VOXELS} voxels.")
        if self.window and (len(self.window) != 2 or self.window[0] >= self.window[1]):
            raise FieldError("window", f"window is {self.window}, expected low and high.")


@dataclass(frozen=True)
class Input:
    """The input of a published encoder, of one of three kinds."""

    image: ImageInput | None = None
    time: TimeInput | None = None
    volume: VolumeInput | None = None

    def __post_init__(self) -> None:
        if sum(kind is not None for kind in (self.image, self.time, self.volume)) != 1:
            raise FieldError("image", "expected one of image, time and volume.")

    @property
    def axes(self) -> tuple[str, ...]:
        """Of the signals that it takes."""
        kinds = dict(zip(AXES, (self.time, self.image, self.volume), strict=True))
        return next(axes for axes, kind in kinds.items() if kind is not None)


def _require_extents(name: str, extents: tuple[int, ...]) -> None:
    values = 1
    for extent in extents:
        values *= extent
    if min(extents) < 1 or values > MOST_VALUES:
        raise FieldError(name, f"{name} is {extents}, expected 1 to {MOST_VALUES:,} values.")


@dataclass(frozen=True)
class Architecture:
    """A network and which of its outputs are the features."""

    library: Literal["transformers", "monai"]
    config: dict[str, Any]
    """For transformers the content of ``config.json``; for MONAI ``network``, a name in
    `MONAI_NAMES`, and its arguments."""
    feature: Literal["class-token", "mean", "class-token-and-mean", "pooled"]
    """``mean`` is over patch tokens, without class and register tokens, or over the places of the
    last map; ``pooled`` the output of the network's own pooling."""

    def __post_init__(self) -> None:
        key = "network" if self.library == "monai" else "model_type"
        name = self.config.get(key)
        if not isinstance(name, str):
            raise FieldError("config", f"config has no {key}: expected the name of a network.")
        if self.library == "monai" and name not in MONAI_NAMES:
            raise unknown_name("network of MONAI", name, MONAI_NAMES)
        if self.library == "monai" and self.feature != "mean":
            raise FieldError("feature", f"feature is {self.feature}, expected mean, as of MONAI.")

    @property
    def arguments(self) -> dict[str, Any]:
        return {name: value for name, value in self.config.items() if name != "network"}


@dataclass(frozen=True)
class Description:
    """What of a card makes features: network and input, stored with a run and its exports."""

    network: Architecture
    input: Input


@dataclass(frozen=True)
class PublishedOptions:
    """Options read from ``encoder.options``; the network uses no other encoder settings."""

    description: str = ""
    """`Description` as JSON."""


@dataclass(frozen=True)
class TensorNames:
    """How names of tensors in a file become those of the network."""

    within: str = ""
    """Key of the tensors in a PyTorch file, such as ``state_dict``; empty if it holds only them."""
    prefix: str = ""
    """Removed from names; tensors without it are of other parts and are not read."""
    ignored: tuple[str, ...] = ()
    """Beginnings of names, after ``prefix`` is removed, that are not read, such as a head's."""
    timm: bool = False
    """Whether they are timm's for a ViT, and the network is of transformers."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Beginnings of names and what replaces them."""
