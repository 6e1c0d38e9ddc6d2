"""Synthetic raw data in the owners' layouts, drawn from a seed, without medical meaning.

Files, folders and columns are the owners'. The same arguments give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmd_ray.demo.ct import write_ct
from benchmd_ray.demo.cxr import write_cxr
from benchmd_ray.demo.derm import write_derm
from benchmd_ray.demo.ecg import write_ecg
from benchmd_ray.demo.eeg import write_eeg
from benchmd_ray.demo.fundus import write_fundus
from benchmd_ray.demo.mammo import write_mammo

WRITERS: dict[str, Callable[..., dict[str, Path]]] = {
    "ecg": write_ecg,
    "eeg": write_eeg,
    "cxr": write_cxr,
    "mammo": write_mammo,
    "derm": write_derm,
    "fundus": write_fundus,
    "ldct": write_ct,
}
"""By modality: (root, *, source_records, target_records, seed) writes a raw folder for each dataset
below ``root``, the source first, and returns the folders by the dataset's name. The same arguments
give the same bytes."""

PACKAGES = {"eeg": ("mne", "edfio"), "ldct": ("SimpleITK",)}
"""Of `extras.EXTRAS`: what writing and reading the data of a modality needs."""
