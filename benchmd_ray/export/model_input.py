"""What an exported model takes, and how a file becomes it."""

from __future__ import annotations

import pandas as pd

from benchmd_ray.data.readers.image import FORMATS, MAX_PIXELS
from benchmd_ray.modality.signals import GROUPS, Signal
from benchmd_ray.report.formats import markdown
from benchmd_ray.report.table import text_of

NORMALISATIONS = {
    "record-range": "each record is divided by its own maximum minus minimum",
    "fixed-range": "a fixed range is mapped onto another, values outside are clipped",
    "window": "a window is mapped to [0, 1], values outside are clipped",
    "source-statistics": "mean and standard deviation of the training split, per channel",
    "source-mean": "mean of the training split is removed, then divided by a fixed extent",
    "none": "none",
}
GREY_LEVELS = (
    "Files are read as the catalog's reader does: upright by their EXIF orientation, transparency "
    "over black, {colours}. DICOM images (after the modality LUT) and grey levels of more than 8 "
    "bits are scaled to 0–255 over the image's own range, MONOCHROME1 inverted. "
)
FITTED = (
    "An image is resized with antialiasing to the largest that fits {extent} pixels, its aspect "
    "ratio kept, centred and padded with {fill}."
)
HOUNSFIELD = "Slices are ordered from the feet to the head, in HU by slope and intercept. "
WINDOWS = (
    "Each slice is resized to {extent} pixels with antialiasing, whatever its aspect ratio. Longer "
    "volumes are cut into windows of {depth} slices, the last one shifted back; shorter ones are "
    "padded behind their last slice with the smallest value ({fill})."
)
RESAMPLED = (
    "Signals of another rate are resampled by a polyphase filter "
    '(`scipy.signal.resample_poly(…, padtype="line")`), longer ones cut into segments of '
    "{length} samples."
)
EXAMPLE = """\
import numpy as np
from PIL import Image, ImageOps

Image.MAX_IMAGE_PIXELS = {half_of_most}  # Pillow refuses more than twice as many
image = Image.open("image.png", formats={formats})
image = ImageOps.exif_transpose(image).convert("{mode}")
width, height = (max(1, round(side * {side} / max(image.size))) for side in image.size)
pixels = np.array(image.resize((width, height), Image.Resampling.BILINEAR), np.float32)
top, left = ({side} - height) // 2, ({side} - width) // 2
signals = np.zeros((1, {channels}, {side}, {side}), np.float32)
signals[0, :, top : top + height, left : left + width] = {planes}
sizes = np.array([[height, width]])
"""
WHOLE = """\
import numpy as np

sizes = np.tile({extents}, (len(signals), 1))  # nothing is padded
"""


def input_section(signal: Signal, *, takes_sizes: bool, segments: bool) -> str:
    """Shape, unit and values of what a model takes, and how a file becomes it, as Markdown.

    Args:
        signal: What it takes.
        takes_sizes: Whether programs take valid sizes, too.
        segments: Whether the task is one of masks, whose volumes are prepared by their dataset.
    """
    rows = {
        "signals": f"float32 (records, {', '.join(map(str, signal.stored_shape))})",
        "axes": f"record, {', '.join(signal.axes)}",
        "unit": signal.unit,
        **({"values": "0 to 255, not 0 to 1"} if signal.dtype == "uint8" else {}),
        **({"rate": f"{signal.rate:g} Hz"} if signal.rate else {}),
        **({"channels": ", ".join(signal.channels)} if signal.channels else {}),
        "normalisation": f"done by the model ({signal.normaliser}): "
        f"{NORMALISATIONS[signal.normaliser]}",
    }
    if takes_sizes:
        axes = ", ".join(signal.axes[1:])
        rows["sizes"] = (
            f"int64 (records, {len(signal.axes) - 1}): extents along {axes} within which a signal "
            "is more than padding, which is on both sides; the whole shape where nothing is padded"
        )
    table = markdown(pd.DataFrame({"input": [*rows], "value": [*map(text_of, rows.values())]}))
    parts = [table, *([] if segments else [_prepared(signal)])]
    return "\n\n".join([*parts, *([_example(signal)] if takes_sizes else [])])


def _prepared(signal: Signal) -> str:
    """How a raw file becomes a signal."""
    group, grey = GROUPS[signal.axes], signal.dtype == "uint8"
    if group == "over-time":
        return RESAMPLED.format(length=signal.stored_shape[-1])
    extent = " × ".join(map(str, signal.stored_shape[-2:]))
    if group == "volumes":
        hounsfield = signal.unit == "HU"
        fill = "air, −1024 HU" if hounsfield else "of the volume"
        windows = WINDOWS.format(extent=extent, depth=signal.stored_shape[1], fill=fill)
        return (HOUNSFIELD if hounsfield else "") + windows
    colours = "red, green, blue" if signal.stored_shape[0] == 3 else "colours as grey levels"
    fill = "0" if grey else "the smallest value of each channel"
    read = GREY_LEVELS.format(colours=colours) if grey else ""
    return read + FITTED.format(extent=extent, fill=fill)


def _example(signal: Signal) -> str:
    """Code that makes ``signals`` and ``sizes`` of a file, or ``sizes`` only."""
    channels, *extents = signal.stored_shape
    modes = {1: ("L", "pixels"), 3: ("RGB", "pixels.transpose(2, 0, 1)")}
    drawn = len(extents) == 2 and len(set(extents)) == 1 and channels in modes
    if not (drawn and signal.dtype == "uint8"):
        return f"```python\n{WHOLE.format(extents=extents)}```"
    mode, planes = modes[channels]
    code = EXAMPLE.format(
        half_of_most=MAX_PIXELS // 2,
        formats=FORMATS,
        mode=mode,
        side=extents[0],
        channels=channels,
        planes=planes,
    )
    return f"An image of 8 bits becomes such arrays by\n\n```python\n{code}```"
