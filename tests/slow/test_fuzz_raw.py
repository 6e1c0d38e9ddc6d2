"""Damaged raw files of every format: they are read or refused, soon and in little memory.

``BENCHMD_FUZZ_INPUTS`` sets how many inputs each reader gets (15).
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import wfdb
import yaml
from in_process import build_in_process
from PIL import Image

from benchmd_ray.data.build import build
from benchmd_ray.data.hdf5 import export_hdf5
from benchmd_ray.demo import WRITERS
from benchmd_ray.files.atomic import resource_folder
from benchmd_ray.settings.definition import Settings, as_dict

INPUTS = int(os.environ.get("BENCHMD_FUZZ_INPUTS", "15"))
MEGABYTES = 4096
"""Address space of the process that reads: libraries and threads alone take about half."""

SLOWEST = 15.0
"""Seconds of processor time that a single input may take."""

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def process() -> Iterator[subprocess.Popen[str]]:
    """Reads mutated files, job after job."""
    command = [sys.executable, str(Path(__file__).with_name("fuzz_raw.py")), str(MEGABYTES)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as started:
        yield started
        started.kill()


@pytest.fixture
def fuzzed(
    process: subprocess.Popen[str], record_property: Callable[[str, object], None]
) -> Callable[..., None]:
    """Reads mutations of some files, or groups of sibling files, by one reader."""
    return partial(_fuzzed, process, record_property)


def _fuzzed(
    process: subprocess.Popen[str],
    record_property: Callable[[str, object], None],
    reader: str,
    groups: Sequence[Path | Sequence[Path]],
    inputs: int = INPUTS,
) -> None:
    assert groups
    named = [[str(p) for p in ([g] if isinstance(g, Path) else g)] for g in groups]
    start = time.perf_counter()
    print(json.dumps([reader, zlib.crc32(reader.encode()), inputs, named]), file=process.stdin)
    process.stdin.flush()
    result: dict[str, Any] = json.loads(process.stdout.readline())
    result["seconds"] = round(time.perf_counter() - start)
    record_property(reader, result)
    assert "ended" not in result, f"the process ended with {result['ended']}"
    assert result["faults"] == []
    outcomes = result["outcomes"]
    assert sum(outcomes.values()) == inputs
    assert outcomes.keys() <= {"read", "refused", "ended its process"}
    assert outcomes["refused"] > inputs / 20, "the mutations hit nothing"
    assert result["slowest"] < SLOWEST


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
    files = sorted((real_data / "dicom-odd").glob("*.dcm"))
    fuzzed(reader, [path for path in files if path.stat().st_size < 250_000])


@pytest.mark.data
def test_edf(real_data, raw, fuzzed):
    real = sorted(p for p in (real_data / "edf-odd").iterdir() if p.suffix.lower() == ".edf")
    fuzzed("edf", [*real, *sorted(raw["shhs"].rglob("*.edf"))[:1]])


@pytest.mark.data
def test_edf_annotations(real_data, fuzzed):
    fuzzed("annotations", sorted((real_data / "sleep-edf-hypnograms").glob("*.edf")))


@pytest.mark.data
@pytest.mark.parametrize("ending", ["png", "jpg", "tif", "bmp"])
def test_images(real_data, tmp_path, fuzzed, ending):
    deep = np.random.default_rng(0).integers(0, 4096, (60, 50), np.uint16)
    grey = Image.fromarray((deep // 16).astype(np.uint8))
    Image.fromarray(deep).save(tmp_path / "deep.png")
    grey.convert("P").save(tmp_path / "palette.png", transparency=3)
    Image.fromarray(deep).save(tmp_path / "deep.tif", compression="tiff_lzw")
    grey.convert("RGB").save(tmp_path / "plain.tif")
    grey.convert("RGB").save(tmp_path / "colour.bmp")
    grey.save(tmp_path / "grey.bmp")
    real = {
        "png": (real_data / "nih-cxr-1000" / "images_224", 250),
        "jpg": (real_data / "isic2017" / "images_256", 20),
    }
    folder, step = real.get(ending, (tmp_path, 1))
    files = sorted(folder.rglob(f"*.{ending}"))[::step]
    fuzzed("image", [*files, *(sorted(tmp_path.glob("*.png")) if ending == "png" else ())])


def _packed(folder: Path) -> Iterator[list[Path]]:
    """Records in formats whose samples share bytes, or are compressed, and one of both."""
    for form in ("212", "310", "311", "8", "24"):
        text = "\n".join([f"r{form} 2 250 60", *[f"r{form}.dat {form} 200/mV 12 1024"] * 2])
        (folder / f"r{form}.hea").write_text(text)
        (folder / f"r{form}.dat").write_bytes(np.random.default_rng(0).bytes(400))
        yield [folder / f"r{form}.hea", folder / f"r{form}.dat"]
    samples = np.random.default_rng(0).integers(-500, 500, (600, 2))
    wfdb.wrsamp(
        "r516", 250, ["mV"] * 2, ["II", "V"], d_signal=samples, fmt=["516"] * 2,
        adc_gain=[200.0] * 2, baseline=[0] * 2, write_dir=str(folder),
    )  # fmt: skip
    yield [folder / "r516.hea", folder / "r516.dat"]
    (folder / "both.hea").write_text("both/3 2 250 180\nr212 60\nr311 60\nr212 60\n")
    yield [folder / "both.hea", *folder.glob("r212.*"), *folder.glob("r311.*")]


@pytest.mark.data
def test_wfdb(real_data, tmp_path, fuzzed):
    headers = [
        *sorted((real_data / "ptb-xl-500" / "records500").rglob("*_hr.hea"))[:3],
        *sorted((real_data / "cinc2021" / "sample-data").rglob("*.hea"))[::10],
    ]
    groups = []
    for header in headers:
        siblings = [header.with_suffix(end) for end in (".dat", ".mat")]
        groups.append([header, *(path for path in siblings if path.is_file())])
    groups += [*_packed(tmp_path)]
    fuzzed("wfdb", groups)


@pytest.mark.data
def test_lidc_xml(real_data, fuzzed):
    fuzzed("lidc-xml", sorted((real_data / "lidc").glob("*.xml")))


@pytest.mark.data
@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
def test_tables(real_data, tmp_path, fuzzed, ending):
    table = tmp_path / f"labels.{ending}"
    content = (real_data / "nih-cxr-1000" / "labels.csv").read_bytes()
    table.write_bytes(gzip.compress(content) if ending == "csv.gz" else content)
    fuzzed("table", [table])


@pytest.mark.data
def test_the_table_of_ptb_xl(real_data, tmp_path, fuzzed):
    """Its codes are dictionaries, its ids and ages numbers."""
    table = tmp_path / "ptbxl_database.csv"
    lines = (real_data / "ptb-xl-500" / table.name).read_bytes().splitlines(keepends=True)
    table.write_bytes(b"".join(lines[:30]))
    fuzzed("ptb-xl", [table])


@pytest.mark.parametrize("reader", ["card", "modality", "space", "settings", "set"])
def test_yaml(tmp_path, fuzzed, reader):
    settings = as_dict(Settings())
    lines = [f"pretrain.{key}={value}" for key, value in settings["pretrain"].items()]
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(settings), "utf-8")
    (tmp_path / "set.yaml").write_text("\n".join(lines), "utf-8")
    files = {
        "card": resource_folder("data_catalog") / "georgia.yaml",
        "modality": resource_folder("data_catalog") / "modalities" / "ecg.yaml",
        "space": resource_folder("search_spaces") / "mae.yaml",
    }
    fuzzed(reader, [files.get(reader, tmp_path / f"{reader}.yaml")])


def test_stagings_in_xml(raw, fuzzed):
    fuzzed("profusion", sorted(raw["shhs"].rglob("*-profusion.xml")))


def test_stagings_in_text(raw, fuzzed):
    fuzzed("stages", sorted(raw["isruc"].rglob("*_1.txt")))


def test_series(raw, fuzzed):
    series = max(
        (p.parent for p in raw["lidc-idri"].rglob("*.dcm")), key=lambda f: len([*f.iterdir()])
    )
    fuzzed("series", [sorted(series.glob("*.dcm"))])


def test_meta_images(raw, fuzzed):
    volumes = sorted(raw["lndb"].rglob("LNDb-*.mhd"))[:3]
    fuzzed("mhd", [[path, path.with_suffix(".raw")] for path in volumes])


def test_nights(raw, fuzzed):
    stagings = {path.name: path for path in raw["shhs"].rglob("*-profusion.xml")}
    nights = [(p, f"{p.stem}-profusion.xml") for p in sorted(raw["shhs"].rglob("*.edf"))]
    fuzzed("shhs", [[path, stagings[name]] for path, name in nights if name in stagings])


def test_nights_in_the_manner_of_isruc(raw, fuzzed):
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


def test_scans_with_masks(raw, fuzzed):
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


@pytest.mark.parametrize("kind", ["time", "image", "volume"])
@pytest.mark.parametrize("end", [".npy", ".npz", ".h5"])
def test_arrays_of_ones_own(tmp_path, fuzzed, kind, end):
    shape = {"time": (2, 300), "image": (40, 50), "volume": (9, 20, 20)}[kind]
    values = np.random.default_rng(5).normal(size=shape).astype(np.float32)
    path = tmp_path / f"{kind}-x{end}"
    if end == ".h5":
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=values, chunks=True, compression="gzip")
    else:
        (np.save if end == ".npy" else np.savez_compressed)(path, values)
    fuzzed("own", [path])


@pytest.mark.data
@pytest.mark.parametrize("end", [".nii", ".nii.gz"])
def test_nifti(real_data, tmp_path, fuzzed, end):
    source = real_data / "segmentation" / "hippocampus" / "images" / "hippocampus_190.nii.gz"
    content = gzip.decompress(source.read_bytes())
    path = tmp_path / f"volume-x{end}"
    path.write_bytes(content if end == ".nii" else gzip.compress(content))
    fuzzed("own", [path])


def test_tables_of_samples(tmp_path, fuzzed):
    values = np.random.default_rng(6).normal(size=(300, 2))
    np.savetxt(tmp_path / "time-x.csv", values, delimiter=",", header="a,b", comments="")
    fuzzed("own", [tmp_path / "time-x.csv"])


@pytest.mark.parametrize("end", [".csv", ".tsv", ".parquet"])
def test_tables_of_ones_own(tmp_path, fuzzed, end):
    names = [f"{n}.pgm" for n in range(10)]
    rows = {"path": names, "label": [f"ICDR {n % 5}" for n in range(10)]}
    rows |= {"patient": [f"p{n}" for n in range(10)], "age": [str(20 + n) for n in range(10)]}
    path = tmp_path / f"table{end}"
    if end == ".parquet":
        pq.write_table(pa.table(rows), path)
    else:
        mark = "," if end == ".csv" else "\t"
        lines = [mark.join(rows), *map(mark.join, zip(*rows.values(), strict=True))]
        path.write_text("\n".join(lines))
    for name, held in (("train", names[:5]), ("test", names[5:])):
        (tmp_path / f"{name}.txt").write_text("\n".join(held))
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    beside = [tmp_path / name for name in ("train.txt", "test.txt", *names)]
    fuzzed("own-rows", [[path, *beside]])


def test_hdf5(monkeypatch, raw, tmp_path, fuzzed):
    build_in_process(monkeypatch)
    catalog = build("cbis-ddsm", raw["cbis-ddsm"], tmp_path / "catalog", allow_missing=True)
    export_hdf5(catalog, tmp_path / "catalog.h5")
    fuzzed("hdf5", [tmp_path / "catalog.h5"])
