"""Fixtures that several test files share."""

from __future__ import annotations

import dataclasses
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import boto3
import edfio
import made_catalogs
import numpy as np
import pydicom
import pytest
import SimpleITK
import torch
from in_process import build_in_process
from made_once import MadeOnce
from ports import free_ports
from safetensors.torch import save_file
from scipy.io import savemat
from services import Service, started
from small_runs import SMALL
from stored import runs
from stores import make_report_store
from untrusted import make_store

import benchmd_ray
from benchmd_ray.cluster import connection as cluster
from benchmd_ray.cluster.connection import connected
from benchmd_ray.data import build as building
from benchmd_ray.data import cards
from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.data.records import Record
from benchmd_ray.demo import write_ecg
from benchmd_ray.demo.ct import write_ct
from benchmd_ray.demo.cxr import write_cxr
from benchmd_ray.demo.derm import write_derm
from benchmd_ray.demo.eeg import write_eeg
from benchmd_ray.demo.fundus import write_fundus
from benchmd_ray.demo.mammo import write_mammo
from benchmd_ray.modality.card_folders import card_folders
from benchmd_ray.modality.modalities import modality
from benchmd_ray.report.analysis import Analysis, analyse
from benchmd_ray.runs.store import Run, read_run

pytest_plugins = ("tiers", "shared_ray")

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
    """What every process of the tests finds in its environment.

    Decoded splits go to a folder of this session; small models run fastest on one thread; object
    stores are ports of this machine, where nothing listens but within `s3` and `service`; no Ray
    and no proxy is configured.
    """
    torch.set_num_threads(1)
    s3, google, azure = (f"http://127.0.0.1:{port}" for port in free_ports(3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCHMD_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("AWS_ENDPOINT_URL", s3)
        patch.setenv("AWS_ACCESS_KEY_ID", "somebody")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "do-not-write-me-down")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("GOOGLE_BASE_URL", google)
        patch.setenv("GOOGLE_BEARER_TOKEN", "token")
        patch.setenv("AZURITE_BLOB_STORAGE_URL", azure)
        patch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
        patch.delenv("RAY_ADDRESS", raising=False)
        for name in ("no_proxy", "NO_PROXY"):
            patch.setenv(name, "127.0.0.1,localhost")
        yield


class S3Server:
    """A server of S3 in this process, where the environment says that one is."""

    def start(self) -> None:
        """Listen; what was stored before is there again."""
        from moto.server import ThreadedMotoServer

        port = int(os.environ["AWS_ENDPOINT_URL"].rpartition(":")[2])
        socket.create_server(("127.0.0.1", port)).close()  # else moto waits for ever for itself
        self._server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
        self._server.start()

    def stop(self) -> None:
        """Listen no more."""
        self._server.stop()


@pytest.fixture(scope="session")
def s3_server(surroundings: None) -> Iterator[S3Server]:
    """The server; a test that stops it starts it again."""
    server = S3Server()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def s3(s3_server: S3Server) -> Iterator[str]:
    """Address of a bucket, empty at first."""
    client = boto3.client("s3")
    client.create_bucket(Bucket="benchmd-test")
    yield "s3://benchmd-test"
    for item in client.list_objects_v2(Bucket="benchmd-test").get("Contents", ()):
        client.delete_object(Bucket="benchmd-test", Key=item["Key"])
    client.delete_bucket(Bucket="benchmd-test")


@pytest.fixture
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    """The server and the address of an empty bucket of one of `SERVICES`."""
    if request.param == "s3":
        server = request.getfixturevalue("s3_server")
        yield Service(request.getfixturevalue("s3"), server)
        return
    with started(request.param, tmp_path / "azurite") as service:
        yield service


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """How many threads compute changes rounding: what a test or fixture chose ends with it."""
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def ray_cluster(surroundings: None) -> Iterator[None]:
    """Connects to the Ray cluster of this test run; later connections of this process reuse it.

    Workers get the variables of this process that tests set.
    """
    import shared_ray  # here: pytest registers it once this module is imported

    names = ("BENCHMD_", "AWS_", "GOOGLE_", "AZUR", "OMP_", "RAY_gcs", "RAY_metrics")

    def inherited() -> dict[str, str]:
        variables = {k: v for k, v in os.environ.items() if k.startswith(names)}
        return variables | {shared_ray.JOB: str(os.getpid())}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "_inherited", inherited)
        with connected(shared_ray.address(), cpus=3):
            yield


@pytest.fixture(scope="session")
def made_once(request: pytest.FixtureRequest) -> MadeOnce:
    """Expensive folders, made once for each state of the code and shared by all processes."""
    return MadeOnce(Path(request.config.cache.mkdir("made")))


def folders(parent: Path) -> dict[str, Path]:
    """Folders of datasets by name, those of sources first."""

    def is_target(path: Path) -> bool:
        return cards.dataset_card(path.name).role == "target"

    return {path.name: path for path in sorted(sorted(parent.iterdir()), key=is_target)}


@pytest.fixture(scope="session")
def synthetic_raw(made_once: MadeOnce) -> dict[str, Path]:
    """Raw folders of small synthetic ECG datasets, not to be changed."""

    def make(folder: Path) -> None:
        write_ecg(folder, source_records=140, target_records=35)

    return folders(made_once.folder("ecg", make))


@pytest.fixture(scope="session")
def ecg_catalogs(
    made_once: MadeOnce, synthetic_raw: dict[str, Path], build_once: Callable[..., Catalog]
) -> dict[str, Catalog]:
    """Catalogs of the synthetic ECG datasets, not to be changed.

    Built without Ray Data, whose processes start slowly; tests of builds compare with these.
    """

    def make(folder: Path) -> None:
        for name, raw in synthetic_raw.items():
            build_once(name, raw, folder / name)

    made = folders(made_once.folder("ecg-catalogs", make))
    return {name: open_catalog(made[name]) for name in synthetic_raw}


@pytest.fixture(scope="session")
def trained(ecg_catalogs: dict[str, Catalog], made_once: MadeOnce) -> tuple[Path, Run, Run]:
    """A store with a pretraining and a transfer from it, scored on Georgia, not to be changed."""
    path = ecg_catalogs["ptb-xl"].path

    def make(store: Path) -> None:
        upstream = benchmd_ray.pretrain(path, "mae", store, settings=SMALL)
        benchmd_ray.transfer(
            str(path),
            str(store),
            upstream=upstream,
            targets=[ecg_catalogs["georgia"].path],
            settings=SMALL,
        )

    store = made_once.folder("trained", make)
    (upstream,), (run,) = store.glob("pretrain-*"), store.glob("transfer-*")
    return store, read_run(upstream), read_run(run)


@pytest.fixture(scope="session")
def untrusted(
    request: pytest.FixtureRequest, ecg_catalogs: dict[str, Catalog], made_once: MadeOnce
) -> Path:
    """Folder of `untrusted.make_store`, not to be changed."""

    def make(folder: Path) -> None:
        request.getfixturevalue("ray_cluster")  # only where it is made
        make_store(folder, [ecg_catalogs[name].path for name in ("ptb-xl", "georgia")])

    return made_once.folder("untrusted", make)


@pytest.fixture
def changed_card(monkeypatch: pytest.MonkeyPatch) -> Callable[..., DatasetCard]:
    """Makes a card from Georgia's, of any modality, that takes its place in this process."""
    real = cards.cards()

    def change(name: str = "georgia", **changes: object) -> DatasetCard:
        unlike_ecg: dict[str, object] = {"code_table": "", "expected": {}}
        if isinstance(kind := changes.get("modality"), str):
            changes["modality"] = modality(kind)
        card = dataclasses.replace(real["georgia"], name=name, **(unlike_ecg | changes))
        read = cards._read_all(card_folders())
        changed = dataclasses.replace(read, sound=read.sound | {name: card})
        monkeypatch.setattr(cards, "_read_all", lambda folders: changed)
        return card

    return change


@pytest.fixture
def write_catalog(tmp_path: Path) -> Callable[..., Catalog]:
    """Writes a catalog by hand and opens it."""

    def write(
        card: DatasetCard,
        splits: dict[str, list[list[Record]]],
        statistics: dict[str, list[float]] | None = None,
    ) -> Catalog:
        path = tmp_path / f"catalog-{card.name}"
        changes = {} if statistics is None else {"statistics": statistics}
        return open_catalog(made_catalogs.write_catalog(path, card, splits, **changes))

    return write


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


HOLD = """
import pathlib, sys
from benchmd_ray.runs.store import read_run, scoring, working
run = read_run(pathlib.Path(sys.argv[1]))
with scoring(run, "cpsc") if sys.argv[2] == "scoring" else working(run):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def held_elsewhere() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a process that works on a run, or scores cpsc with it, until it is killed."""
    started = []

    def hold(folder: Path, doing: str = "working") -> subprocess.Popen[str]:
        other = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(folder), doing],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(other)
        assert other.stdout.readline() == "held\n"
        return other

    yield hold
    for other in started:
        other.kill()
        other.communicate()


@pytest.fixture(scope="session")
def vit_tiny_tensors() -> dict[str, torch.Tensor]:
    """Random tensors with the names and shapes of timm's ViT-Tiny/16, not to be changed."""
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, 192),
        "pos_embed": (1, 197, 192),
        "patch_embed.proj.weight": (192, 3, 16, 16),
        "patch_embed.proj.bias": (192,),
        "norm.weight": (192,),
        "norm.bias": (192,),
        "head.weight": (11, 192),
        "head.bias": (11,),
    }
    parts = {
        "norm1.weight": (192,),
        "norm1.bias": (192,),
        "attn.qkv.weight": (576, 192),
        "attn.qkv.bias": (576,),
        "attn.proj.weight": (192, 192),
        "attn.proj.bias": (192,),
        "norm2.weight": (192,),
        "norm2.bias": (192,),
        "mlp.fc1.weight": (768, 192),
        "mlp.fc1.bias": (768,),
        "mlp.fc2.weight": (192, 768),
        "mlp.fc2.bias": (192,),
    }
    shapes |= {f"blocks.{n}.{part}": shape for n in range(12) for part, shape in parts.items()}
    generator = torch.Generator().manual_seed(21)
    return {
        name: torch.randn(shape, generator=generator) * 0.06 + ("norm" in name)
        for name, shape in shapes.items()
    }


@pytest.fixture
def vit_tiny_file(vit_tiny_tensors: dict[str, torch.Tensor], tmp_path: Path) -> Path:
    """File of those tensors."""
    path = tmp_path / "downloaded" / "model.safetensors"
    path.parent.mkdir()
    save_file(vit_tiny_tensors, path)
    return path


@pytest.fixture
def build_here(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Catalog]:
    """Builds a catalog in this process, chunk after chunk, as Ray tasks would."""

    build_in_process(monkeypatch)

    def make(name: str, raw: Path, out: Path, **changes: Any) -> Catalog:
        return building.build(name, raw, out, **({"allow_missing": True} | changes))

    return make


@pytest.fixture(scope="session")
def synthetic_cxr(made_once: MadeOnce) -> dict[str, Path]:
    """Raw folders of small synthetic chest X-ray datasets, not to be changed."""

    def make(folder: Path) -> None:
        write_cxr(folder, source_records=80, target_records=32)

    return folders(made_once.folder("cxr", make))


@pytest.fixture(scope="session")
def synthetic_eeg(made_once: MadeOnce) -> dict[str, Path]:
    """Raw folders of small synthetic sleep datasets, not to be changed."""

    def make(folder: Path) -> None:
        write_eeg(folder, source_records=4, target_records=4, epochs=30)

    return folders(made_once.folder("eeg", make))


@pytest.fixture(scope="session")
def synthetic_mammo(made_once: MadeOnce) -> dict[str, Path]:
    """Raw folders of small synthetic mammography datasets, not to be changed."""

    def make(folder: Path) -> None:
        write_mammo(folder, source_records=46, target_records=40)

    return folders(made_once.folder("mammo", make))


@pytest.fixture(scope="session")
def synthetic_photos(made_once: MadeOnce) -> dict[str, Path]:
    """Raw folders of small synthetic datasets of colour photographs, not to be changed."""

    def make(folder: Path) -> None:
        write_derm(folder, source_records=120, target_records=36)
        write_fundus(folder, source_records=120, target_records=36)

    return folders(made_once.folder("photographs", make))


@pytest.fixture
def copied_photos(synthetic_photos: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """Copies the raw folder of a dataset of colour photographs, to be changed."""
    return lambda name: Path(shutil.copytree(synthetic_photos[name], tmp_path / name))


@pytest.fixture(scope="session")
def synthetic_ct(made_once: MadeOnce) -> dict[str, Path]:
    """Raw folders of small synthetic CT datasets, not to be changed."""

    def make(folder: Path) -> None:
        write_ct(folder, source_records=20, target_records=8)

    return folders(made_once.folder("ct", make))


@pytest.fixture(scope="session")
def build_once() -> Callable[..., Catalog]:
    """Builds a catalog in this process, for fixtures that several tests share."""

    def make(name: str, raw: Path, out: Path, **options: Any) -> Catalog:
        with pytest.MonkeyPatch.context() as patch:
            build_in_process(patch)
            return building.build(name, raw, out, allow_missing=True, **options)

    return make


@pytest.fixture(scope="session")
def ct_catalogs(
    made_once: MadeOnce, synthetic_ct: dict[str, Path], build_once: Callable[..., Catalog]
) -> dict[str, Catalog]:
    """Catalogs of the synthetic CT datasets, not to be changed."""

    def make(folder: Path) -> None:
        for name, raw in synthetic_ct.items():
            build_once(name, raw, folder / name)

    made = folders(made_once.folder("ct-catalogs", make))
    return {name: open_catalog(made[name]) for name in synthetic_ct}


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


@pytest.fixture(scope="session")
def report_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of hand-made runs of two modalities with predictions, not to be changed."""
    return make_report_store(tmp_path_factory.mktemp("report") / "runs")


@pytest.fixture(scope="session")
def report_analysis(report_store: Path) -> Analysis:
    """The analysis of `report_store`."""
    return analyse(runs([report_store]), resamples=100)
