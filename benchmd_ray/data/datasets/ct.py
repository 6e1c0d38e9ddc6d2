"""What the CT datasets share: a scan's way to records, one per window of slices (decision D5)."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.raw import RawItem, Reading
from benchmd_ray.data.readers.volume import Volume
from benchmd_ray.data.tables import age_string, sex
from benchmd_ray.data.transforms import padded_window, resized_slice, window_starts

VERSION = 1

Labels = npt.NDArray[np.bool_]
"""(slices, classes): which slices show what, classes in the card's order."""

AIR = -1024
"""HU of the slices that pad a short scan."""
LARGE = 3.0
"""Diameter in mm from which on a nodule is large."""
SMALL_NODULE, LARGE_NODULE = "small nodule", "large nodule"


def size_class(diameter: float) -> str:
    """Class of a nodule by its diameter in mm: below 3 mm small, 3 mm and above large."""
    return SMALL_NODULE if diameter < LARGE else LARGE_NODULE


def scan_windows(
    volume: Volume, positive: Labels, item: RawItem, card: DatasetCard, *, least: int
) -> Reading:
    """Records of a scan in HU, one per window of 24 slices; the scan is what is scored.

    A window with at least ``least`` positive slices is positive.
    """
    _, window, size, _ = card.signal.stored_shape
    slices = np.empty((volume.shape[0], size, size), np.int16)
    for number, values in enumerate(volume.slices()):
        slices[number] = resized_slice(values, size)
    targets = window_targets(positive, window, least)
    if item.metadata.get("held_out"):
        targets = [item.target(card)] * len(targets)
    records = [
        item.record(
            card,
            padded_window(slices, start, window, AIR)[None],
            (min(window, len(slices)), size, size),
            part=f"-{number:02d}",
            unit_id=item.record_id,
            target=target,
        )
        for number, (start, target) in enumerate(
            zip(window_starts(len(slices), window), targets, strict=True)
        )
    ]
    warnings = Counter(volume.warnings)
    if len(slices) < window:
        warnings[f"it has fewer than {window} slices and is padded with air"] += 1
    if volume.shape[1] != volume.shape[2]:
        warnings["its slices are not square and are stretched"] += 1
    return Reading(records, warnings=warnings)


def window_targets(positive: Labels, window: int, least: int) -> list[list[int]]:
    """Target of each window of a scan; see `scan_windows`."""
    return [
        (positive[start : start + window].sum(axis=0) >= least).astype(int).tolist()
        for start in window_starts(len(positive), window)
    ]


def scan_metadata(volume: Volume) -> dict[str, float | str | None]:
    """Age, sex and device of a scan by its header, those that it states."""
    header = volume.header
    maker, model = header.get("Manufacturer"), header.get("ManufacturerModelName")
    return {
        "age": age_string(header.get("PatientAge") or ""),
        "sex": sex(header.get("PatientSex") or ""),
        "device": " ".join(part for part in (maker, model) if part) or None,
    }
