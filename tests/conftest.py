"""Fixtures that several test files share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat

from benchmd_ray.cluster import connected
from benchmd_ray.data import catalog
from benchmd_ray.data.synthetic import write_ecg

PROJECT = Path(__file__).resolve().parent.parent
LEADS = ("I", "II", "III", "aVR", "aVL", "aVF", "V1", "V2", "V3", "V4", "V5", "V6")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder of small real datasets."""
    folder = Path(os.environ.get("BENCHMD_REAL_DATA", PROJECT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; set BENCHMD_REAL_DATA to its folder")
    return folder


@pytest.fixture(scope="session", autouse=True)
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Decoded splits go to a folder of this session; small models run fastest on one thread."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCHMD_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="session")
def ray_cluster(surroundings: None) -> Iterator[None]:
    """One local Ray for all tests; what connects later uses it."""
    with connected(cpus=3):
        yield


@pytest.fixture(scope="session")
def synthetic_raw(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Raw folders of small synthetic ECG datasets, not to be changed."""
    return write_ecg(tmp_path_factory.mktemp("raw"), source_records=140, target_records=35)


@pytest.fixture(scope="session")
def ecg_catalogs(
    ray_cluster: None, synthetic_raw: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, catalog.Catalog]:
    """Catalogs of the synthetic ECG datasets, not to be changed."""
    out = tmp_path_factory.mktemp("catalogs")
    return {
        name: catalog.build(name, raw, out / name, allow_missing=True)
        for name, raw in synthetic_raw.items()
    }


@pytest.fixture
def ecg_signal() -> np.ndarray:
    """Digital samples of 12 leads that all differ, (12, 5000) int16."""
    noise = np.random.default_rng(7).normal(0, 300, (12, 5000))
    return np.cumsum(noise, axis=1).clip(-20_000, 20_000).astype(np.int16)


@pytest.fixture
def write_cinc() -> Callable[..., Path]:
    """Writes one record in the CinC layout and returns its header."""

    def write(
        folder: Path,
        name: str,
        signal: np.ndarray,
        *,
        rate: float = 500,
        leads: Sequence[str] = LEADS,
        gain: Sequence[str] | str = "1000/mV",
        first: str | None = None,
        comments: Sequence[str] = ("# Age: 61", "# Sex: Female", "# Dx: 426783006"),
        add_to_checksum: int = 0,
    ) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        gains = [gain] * len(signal) if isinstance(gain, str) else gain
        lines = [f"{first or name} {len(signal)} {rate:g} {signal.shape[1]}"]
        for lead, row, unit in zip(leads, signal, gains, strict=True):
            checksum = np.int64(row.sum(dtype=np.int64) + add_to_checksum).astype(np.int16)
            lines.append(f"{name}.mat 16+24 {unit} 16 0 {row[0]} {checksum} 0 {lead}")
        savemat(folder / f"{name}.mat", {"val": signal}, format="4")
        header = folder / f"{name}.hea"
        header.write_text("\n".join([*lines, *comments]) + "\n", encoding="utf-8")
        return header

    return write
