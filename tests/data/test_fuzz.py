"""Damaged files of every format: only the package's own errors come out, soon and in little memory.

``BENCHMD_FUZZ_INPUTS`` sets how many inputs each reader gets (100).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmd_ray.data.hdf5 import export_hdf5
from benchmd_ray.data.synthetic import WRITERS

INPUTS = int(os.environ.get("BENCHMD_FUZZ_INPUTS", "100"))
MEGABYTES = 4096
"""Address space of the process that reads: libraries and threads alone take about half."""

SLOWEST = 15.0
"""Seconds that a single input may take."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def process() -> Iterator[subprocess.Popen[str]]:
    """Reads mutated files, job after job."""
    command = [sys.executable, str(Path(__file__).with_name("fuzz.py")), str(MEGABYTES)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as started:
        yield started
        started.kill()


@pytest.fixture
def fuzzed(process: subprocess.Popen[str]) -> Callable[..., dict[str, Any]]:
    """Outcomes of a reader on mutations of some files, or groups of sibling files."""
    return partial(_fuzzed, process)


def _fuzzed(
    process: subprocess.Popen[str],
    reader: str,
    groups: Sequence[Path | Sequence[Path]],
    inputs: int = INPUTS,
) -> dict[str, Any]:
    assert groups
    named = [[str(p) for p in ([g] if isinstance(g, Path) else g)] for g in groups]
    print(json.dumps([reader, zlib.crc32(reader.encode()), inputs, named]), file=process.stdin)
    process.stdin.flush()
    result: dict[str, Any] = json.loads(process.stdout.readline())
    assert "ended" not in result, f"the process ended with {result['ended']}"
    assert result["faults"] == []
    outcomes = result["outcomes"]
    assert sum(outcomes.values()) == inputs
    assert set(outcomes) <= {"decoded", "RecordError", "RecordLeftOut", "BenchmdError"}
    refused = sum(count for outcome, count in outcomes.items() if outcome != "decoded")
    assert refused > inputs / 20, "the mutations hit nothing"
    assert result["slowest"] < SLOWEST
    return result


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Synthetic raw folders of the formats that need them."""
    root = tmp_path_factory.mktemp("fuzz")
    folders: dict[str, Path] = {}
    for modality in ("ecg", "eeg", "mammo", "ldct"):
        folders |= WRITERS[modality](root, source_records=3, target_records=2)
    return folders


@pytest.mark.data
@pytest.mark.parametrize("reader", ["dicom", "dicom-values"])
def test_dicom(real_data, reader, fuzzed):
    fuzzed(reader, sorted((real_data / "dicom-odd").glob("*.dcm")))


@pytest.mark.data
def test_edf(real_data, raw, fuzzed):
    real = sorted(p for p in (real_data / "edf-odd").iterdir() if p.suffix.lower() == ".edf")
    fuzzed("edf", [*real, *sorted(raw["shhs"].rglob("*.edf"))[:1]])


@pytest.mark.data
def test_edf_annotations(real_data, fuzzed):
    fuzzed("annotations", sorted((real_data / "sleep-edf-hypnograms").glob("*.edf")))


@pytest.mark.data
def test_images(real_data, tmp_path, fuzzed):
    png = sorted((real_data / "nih-cxr-1000").rglob("*.png"))[::50]
    jpeg = sorted((real_data / "isic2017" / "images_256").glob("*.jpg"))[::10]
    deep = np.random.default_rng(0).integers(0, 4096, (60, 50), np.uint16)
    made = [tmp_path / name for name in ("deep.png", "deep.tif", "palette.png")]
    Image.fromarray(deep).save(made[0])
    Image.fromarray(deep).save(made[1], compression="tiff_lzw")
    Image.fromarray((deep // 16).astype(np.uint8)).convert("P").save(made[2], transparency=3)
    fuzzed("image", [*png, *jpeg, *made])


@pytest.mark.data
def test_wfdb(real_data, fuzzed):
    headers = [
        *sorted((real_data / "ptb-xl-500" / "records500").rglob("*_hr.hea"))[:3],
        *sorted((real_data / "cinc2021" / "sample-data").rglob("*.hea"))[::10],
    ]
    groups = []
    for header in headers:
        siblings = [header.with_suffix(end) for end in (".dat", ".mat")]
        groups.append([header, *(path for path in siblings if path.is_file())])
    fuzzed("wfdb", groups)


@pytest.mark.data
def test_lidc_xml(real_data, fuzzed):
    fuzzed("lidc-xml", sorted((real_data / "lidc").glob("*.xml")))


@pytest.mark.data
def test_tables(real_data, fuzzed):
    fuzzed("table", [real_data / "nih-cxr-1000" / "labels.csv"])


def test_stagings(raw, fuzzed):
    fuzzed("profusion", sorted(raw["shhs"].rglob("*-profusion.xml")))
    fuzzed("stages", sorted(raw["isruc"].rglob("*_1.txt")))


def test_volumes(raw, fuzzed):
    series = max(
        (p.parent for p in raw["lidc-idri"].rglob("*.dcm")), key=lambda f: len([*f.iterdir()])
    )
    fuzzed("series", [sorted(series.glob("*.dcm"))])
    volumes = sorted(raw["lndb"].rglob("LNDb-*.mhd"))[:3]
    fuzzed("mhd", [[path, path.with_suffix(".raw")] for path in volumes])


def test_nights(raw, fuzzed):
    stagings = {path.name: path for path in raw["shhs"].rglob("*-profusion.xml")}
    nights = [(p, f"{p.stem}-profusion.xml") for p in sorted(raw["shhs"].rglob("*.edf"))]
    fuzzed("shhs", [[path, stagings[name]] for path, name in nights if name in stagings])
    nights = sorted(raw["isruc"].rglob("*.rec"))
    fuzzed("isruc", [[path, path.with_name(f"{path.stem}_1.txt")] for path in nights])


def test_recordings(raw, fuzzed):
    headers = sorted(raw["georgia"].rglob("*.hea"))
    fuzzed("georgia", [[path, path.with_suffix(".mat")] for path in headers])


def test_scans(raw, fuzzed):
    annotations = sorted(raw["lidc-idri"].rglob("*.xml"))
    beside = [path for path in annotations if any(path.parent.glob("*.dcm"))]
    scans = [[path, *sorted(path.parent.glob("*.dcm"))] for path in beside]
    fuzzed("lidc-idri", scans, inputs=max(30, INPUTS // 5))  # each takes half a second
    groups = []
    for mask in sorted(raw["lndb"].rglob("LNDb-*_rad1.mhd")):
        volume = next(raw["lndb"].rglob(f"{mask.stem.removesuffix('_rad1')}.mhd"))
        groups.append([p for path in (volume, mask) for p in (path, path.with_suffix(".raw"))])
    fuzzed("lndb", groups)


def test_arrays_of_medmnist(tmp_path, fuzzed):
    rng, made = np.random.default_rng(4), {}
    for prefix in ("train", "val", "test"):
        made[f"{prefix}_images"] = rng.integers(0, 256, (3, 28, 28), np.uint8)
        made[f"{prefix}_labels"] = rng.integers(0, 2, (3, 1), np.uint8)
    files = [tmp_path / folder / "breastmnist.npz" for folder in ("packed", "plain")]
    for file, write in zip(files, (np.savez_compressed, np.savez), strict=True):
        file.parent.mkdir()
        write(file, **made)
    fuzzed("medmnist", files)


def test_hdf5(build_here, raw, tmp_path, fuzzed):
    catalog = build_here("cbis-ddsm", raw["cbis-ddsm"], tmp_path / "catalog")
    export_hdf5(catalog, tmp_path / "catalog.h5")
    fuzzed("hdf5", [tmp_path / "catalog.h5"])
