"""Fixtures of the dataset tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import edfio
import numpy as np
import pydicom
import pytest
import SimpleITK
from in_process import build_in_process

from benchmd_ray.data import build as building
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.synthetic.ct import write_ct
from benchmd_ray.data.synthetic.cxr import write_cxr
from benchmd_ray.data.synthetic.derm import write_derm
from benchmd_ray.data.synthetic.eeg import write_eeg
from benchmd_ray.data.synthetic.fundus import write_fundus
from benchmd_ray.data.synthetic.mammo import write_mammo


@pytest.fixture
def build_here(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Catalog]:
    """Builds a catalog in this process, chunk after chunk, as Ray tasks would."""

    build_in_process(monkeypatch)

    def make(name: str, raw: Path, out: Path, **changes: Any) -> Catalog:
        return building.build(name, raw, out, **({"allow_missing": True} | changes))

    return make


@pytest.fixture(scope="session")
def synthetic_cxr(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Raw folders of small synthetic chest X-ray datasets, not to be changed."""
    return write_cxr(tmp_path_factory.mktemp("cxr"), source_records=80, target_records=32)


@pytest.fixture(scope="session")
def synthetic_eeg(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Raw folders of small synthetic sleep datasets, not to be changed."""
    return write_eeg(tmp_path_factory.mktemp("eeg"), source_records=4, target_records=4, epochs=30)


@pytest.fixture(scope="session")
def synthetic_mammo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Raw folders of small synthetic mammography datasets, not to be changed."""
    return write_mammo(tmp_path_factory.mktemp("mammo"), source_records=46, target_records=40)


@pytest.fixture(scope="session")
def synthetic_photos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Raw folders of small synthetic datasets of colour photographs, not to be changed."""
    sizes = {"source_records": 120, "target_records": 36}
    derm = write_derm(tmp_path_factory.mktemp("derm"), **sizes)
    return derm | write_fundus(tmp_path_factory.mktemp("fundus"), **sizes)


@pytest.fixture
def copied_photos(synthetic_photos: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """Copies the raw folder of a dataset of colour photographs, to be changed."""
    return lambda name: Path(shutil.copytree(synthetic_photos[name], tmp_path / name))


@pytest.fixture(scope="session")
def synthetic_ct(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Raw folders of small synthetic CT datasets, not to be changed."""
    return write_ct(tmp_path_factory.mktemp("ct"), source_records=20, target_records=8)


@pytest.fixture(scope="session")
def build_once() -> Callable[[str, Path, Path], Catalog]:
    """Builds a catalog in this process, for fixtures that several tests share."""

    def make(name: str, raw: Path, out: Path) -> Catalog:
        with pytest.MonkeyPatch.context() as patch:
            build_in_process(patch)
            return building.build(name, raw, out, allow_missing=True)

    return make


@pytest.fixture(scope="session")
def ct_catalogs(
    synthetic_ct: dict[str, Path],
    build_once: Callable[[str, Path, Path], Catalog],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Catalog]:
    """Catalogs of the synthetic CT datasets, not to be changed."""
    out = tmp_path_factory.mktemp("ct-catalogs")
    return {name: build_once(name, raw, out / name) for name, raw in synthetic_ct.items()}


@pytest.fixture
def write_slice() -> Callable[..., Path]:
    """Writes one CT slice as a DICOM file and returns its path; None removes an element."""

    def write(path: Path, values: np.ndarray, z: float, **changes: Any) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        dataset = pydicom.Dataset()
        dataset.file_meta = pydicom.dataset.FileMetaDataset()
        dataset.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
        elements = {
            "SOPClassUID": pydicom.uid.CTImageStorage,
            "SOPInstanceUID": f"2.25.7.{1 + int(10 * abs(z))}.{int(z < 0)}",
            "SeriesInstanceUID": "2.25.1",
            "PatientID": "LIDC-IDRI-0042",
            "Modality": "CT",
            "ImagePositionPatient": [-10.0, -20.0, z],
            "ImageOrientationPatient": [1, 0, 0, 0, 1, 0],
            "PixelSpacing": [0.75, 0.5],
            "SliceThickness": 2.5,
            "Rows": values.shape[0],
            "Columns": values.shape[1],
            "SamplesPerPixel": 1,
            "PhotometricInterpretation": "MONOCHROME2",
            "BitsAllocated": 16,
            "BitsStored": 16,
            "HighBit": 15,
            "PixelRepresentation": 1,
            "RescaleSlope": 1,
            "RescaleIntercept": -1024,
            "PixelData": values.astype("<i2").tobytes(),
        }
        for name, value in (elements | changes).items():
            if value is not None:
                setattr(dataset, name, value)
        dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID
        dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
        dataset.save_as(path, enforce_file_format=True)
        return path

    return write


@pytest.fixture
def write_mhd() -> Callable[..., Path]:
    """Writes an array (z, y, x) as a MetaImage file and returns its header's path."""

    def write(
        path: Path,
        values: np.ndarray,
        *,
        origin: Sequence[float] = (0.0, 0.0, 0.0),
        spacing: Sequence[float] = (0.5, 0.75, 1.0),
        direction: Sequence[float] = (1, 0, 0, 0, 1, 0, 0, 0, 1),
    ) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        image = SimpleITK.GetImageFromArray(values)
        image.SetSpacing(spacing)
        image.SetOrigin(origin)
        image.SetDirection(direction)
        SimpleITK.WriteImage(image, str(path))
        return path

    return write


@pytest.fixture
def write_edf() -> Callable[..., Path]:
    """Writes an EDF file from {channel: (values, Hz)} and returns its path."""

    def write(
        path: Path,
        channels: dict[str, tuple[np.ndarray, float]],
        *,
        unit: str = "uV",
        limit: float = 400,
        **header: Any,
    ) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        signals = [
            edfio.EdfSignal(
                np.asarray(values, float),
                rate,
                label=name,
                physical_dimension=unit,
                physical_range=(-limit, limit),
            )
            for name, (values, rate) in channels.items()
        ]
        edfio.Edf(signals, **({"data_record_duration": 1} | header)).write(path)
        return path

    return write
