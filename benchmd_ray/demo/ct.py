"""Small raw CT datasets in the layouts of LIDC-IDRI and LNDb.

A scan is a phantom of a few centimetres: two dark lungs in a bright body, with vessels, and
nodules as bright balls (large) or dots on several slices (small), which radiologists mark with some
disagreement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree.ElementTree import Element, ElementTree, SubElement, indent

import numpy as np
import numpy.typing as npt
from pydicom.uid import CTImageStorage
from scipy.ndimage import gaussian_filter

from benchmd_ray.data.itk import simple_itk
from benchmd_ray.demo.draw import generator, save_dicom, texture, uid_of, write_csv

SIZE = 64
SPACING = 0.7
"""mm between pixels."""
STEP = 2.5
"""mm between slices."""
MASK_COLUMNS = ("LNDbID", "RadID", "FindingID", "x", "y", "z", "Nodule", "Volume", "Text")
MERGED_COLUMNS = (
    "LNDbID", "RadID", "RadFindingID", "FindingID", "x", "y", "z", "AgrLevel", "Nodule", "Volume",
    "Text",
)  # fmt: skip


@dataclass(frozen=True)
class _Scanner:
    dataset: str
    device: tuple[str, str]
    blur: float
    """Width of the reconstruction's kernel, pixels."""
    noise: float
    """HU."""
    lung: float
    """HU of lungs."""
    small: float
    large: float


SOURCE = _Scanner("lidc-idri", ("SYNTHETIC", "Phantom A"), 0.5, 25, -850, 0.5, 0.5)
TARGET = _Scanner("lndb", ("SYNTHETIC", "Phantom B"), 0.8, 45, -820, 0.4, 0.65)


@dataclass
class _Nodule:
    x: int
    y: int
    slices: list[int]
    radius: float
    """Pixels; 0 for a small nodule, which is a dot on one slice."""
    seen_by: list[int] = field(default_factory=list)

    def outline(self, z: int) -> npt.NDArray[np.bool_]:
        """(y, x): its pixels on a slice."""
        off = (z - float(np.mean(self.slices))) / len(self.slices) * 1.8
        across = math.sqrt(max(0.0, 1 - off**2))
        rows, columns = np.mgrid[:SIZE, :SIZE]
        distance = np.hypot(rows - self.y, columns - self.x)
        return np.asarray(distance <= max(1.0, self.radius * across))


def write_ct(
    root: Path, *, source_records: int = 52, target_records: int = 18, seed: int = 0
) -> dict[str, Path]:
    """Write LIDC-IDRI and LNDb, in scans; the defaults take some seconds and 30 MB."""
    folders = {domain.dataset: root / domain.dataset for domain in (SOURCE, TARGET)}
    _write_lidc(folders[SOURCE.dataset], source_records, seed)
    _write_lndb(folders[TARGET.dataset], target_records, seed)
    return folders


def _scan(
    domain: _Scanner, number: int, seed: int
) -> tuple[npt.NDArray[np.int16], list[_Nodule], np.random.Generator]:
    """A scan in HU, (z, y, x), its nodules, and the generator for what is drawn further."""
    rng = generator(seed, domain.dataset, f"scan {number}")
    depth = 18 if number == 4 else int(rng.integers(40, 49)) if number % 2 else 24
    rows, columns = np.mgrid[:SIZE, :SIZE]
    body = np.hypot((rows - 32) / 27, (columns - 32) / 30) < 1
    width = rng.uniform(10, 12)
    lungs = np.zeros((SIZE, SIZE), bool)
    for centre in (19, 45):
        lungs |= np.hypot((rows - 32) / 19, (columns - centre) / width) < 1
    volume = np.where(body, 40.0, -1000.0) + np.zeros((depth, 1, 1))
    volume[:, lungs] = domain.lung + rng.normal(0, 8)
    vessels = texture((depth, SIZE, SIZE), 1.5, rng) > 2.8
    volume[vessels & lungs] = -350
    nodules = _nodules(domain, depth, number, rng)
    for nodule in nodules:
        for z in nodule.slices:
            volume[z][nodule.outline(z)] = 150 if nodule.radius else 900
    volume = gaussian_filter(volume, (0, domain.blur, domain.blur))
    volume += domain.noise * rng.standard_normal(volume.shape, np.float32)
    return np.rint(volume).clip(-1024, 3071).astype(np.int16), nodules, rng


def _nodules(domain: _Scanner, depth: int, number: int, rng: np.random.Generator) -> list[_Nodule]:
    nodules: list[_Nodule] = []
    turn = (number * 0.618034) % 1, (number * 0.754878) % 1
    start = int(rng.integers(2)) * (depth - 24) if depth > 24 else 0  # mostly in one window
    end = min(depth, start + 24)
    if turn[0] < domain.large:
        first = int(rng.integers(start, end - 12))
        place = _place(rng, 5)
        nodules.append(_Nodule(*place, list(range(first, first + 12)), rng.uniform(5.5, 7.0)))
    if turn[1] < domain.small:
        for z in range(start + 1, end - 1):
            nodules += [_Nodule(*_place(rng, 1), [z], 0.0) for _ in range(6)]
    for nodule in nodules:
        nodule.seen_by = [reader for reader in range(4) if rng.random() < 0.97]
    if number % 6 == 5:  # a large nodule that only two radiologists see
        nodules.append(_Nodule(*_place(rng, 2), [depth - 3, depth - 2], 2.5, [0, 2]))
    return nodules


def _place(rng: np.random.Generator, margin: float) -> tuple[int, int]:
    angle, distance = rng.uniform(0, 2 * math.pi), math.sqrt(rng.uniform()) * (9 - margin)
    centre = 19 if rng.random() < 0.5 else 45
    return round(centre + distance * math.cos(angle)), round(32 + distance * math.sin(angle) * 1.6)


def _write_lidc(root: Path, scans: int, seed: int) -> None:
    """DICOM series with an annotation file each, in the series' folder or next to the images."""
    for number in range(scans):
        patient = f"LIDC-IDRI-{number + 1 - (number % 9 == 8):04d}"  # some have two scans
        study, series = (uid_of(seed, "study", number), uid_of(seed, "series", number))
        folder = root / "LIDC-IDRI" / patient / study / series
        volume, nodules, rng = _scan(SOURCE, number, seed)
        uids = [uid_of(seed, "slice", number, z) for z in range(len(volume))]
        lost = {len(volume) // 2} if number == 7 else set()  # a slice that got lost
        _write_series(folder, volume, (patient, study, series), uids, lost, backwards=number % 2)
        message = _message(nodules, uids, study, series, rng)
        where = root / "LIDC-XML-only" / "tcia-lidc-xml" / "157" if number % 3 == 2 else folder
        if number != 6:  # one scan has no annotation
            _write_xml(where / f"{158 + number:03d}.xml", message)
    patient, study, series = "LIDC-IDRI-0001", uid_of(seed, "x-ray"), uid_of(seed, "x-ray series")
    folder = root / "LIDC-IDRI" / patient / study / series
    picture, image = np.full((1, SIZE, SIZE), 500, np.int16), uid_of(seed, "x-ray image")
    _write_series(folder, picture, (patient, study, series), [image], set(), modality="DX")
    message = Element("IdriReadMessage", xmlns="http://www.nih.gov/idri")
    _with_texts(message, "ResponseHeader", CXRSeriesInstanceUid=series)
    _write_xml(folder / "068.xml", message)


def _write_series(
    folder: Path,
    volume: npt.NDArray[np.int16],
    names: tuple[str, str, str],
    uids: Sequence[str],
    lost: set[int],
    *,
    backwards: int = 0,
    modality: str = "CT",
) -> None:
    """A series; scanners number slices from the head, and name files in either order."""
    patient, study, series = names
    maker, model = SOURCE.device
    for z, hounsfield in enumerate(volume):
        if z in lost:
            continue
        save_dicom(
            folder / f"{z + 1 if backwards else len(volume) - z:06d}.dcm",
            (hounsfield + 1024).astype("<i2"),
            (CTImageStorage, uids[z]),
            Modality=modality,
            PatientID=patient,
            StudyInstanceUID=study,
            SeriesInstanceUID=series,
            PatientName="",
            PatientAge=f"{40 + len(volume) % 40:03d}Y",
            Manufacturer=maker,
            ManufacturerModelName=model,
            PixelSpacing=[SPACING, SPACING],
            SliceThickness=STEP,
            ImageOrientationPatient=[1, 0, 0, 0, 1, 0],
            ImagePositionPatient=[-SIZE * SPACING / 2, -SIZE * SPACING / 2, _height(z)],
            InstanceNumber=len(volume) - z,
            RescaleIntercept=-1024,
        )


def _height(z: int) -> float:
    return -200 + STEP * z


def _message(
    nodules: list[_Nodule],
    uids: Sequence[str],
    study: str,
    series: str,
    rng: np.random.Generator,
) -> Element:
    message = Element("LidcReadMessage", xmlns="http://www.nih.gov", uid=f"{series}.0")
    _with_texts(message, "ResponseHeader", SeriesInstanceUid=series, StudyInstanceUID=study)
    for reader in range(4):
        session = _with_texts(
            message, "readingSession", annotationVersion="3.12", servicingRadiologistID="anon"
        )
        for number, nodule in enumerate(nodules):
            if reader in nodule.seen_by:
                _read_nodule(session, nodule, number, uids, int(rng.integers(-1, 2)))
        lesion = _with_texts(session, "nonNodule", nonNoduleID=f"non {reader}", **_slice(3, uids))
        _with_texts(lesion, "locus", xCoord="30", yCoord="30")
    return message


def _read_nodule(
    session: Element, nodule: _Nodule, number: int, uids: Sequence[str], shift: int
) -> None:
    marked = _with_texts(session, "unblindedReadNodule", noduleID=f"Nodule {number:03d}")
    if nodule.radius:
        _with_texts(marked, "characteristics", subtlety="4")
    for z in nodule.slices:
        roi = _with_texts(marked, "roi", **_slice(z, uids), inclusion="TRUE")
        for angle in np.linspace(0, 2 * math.pi, 24) if nodule.radius else [0.0]:
            across = (nodule.radius + 1) if nodule.radius else 0.0
            column = round(nodule.x + across * math.cos(angle))
            row = round(nodule.y + across * math.sin(angle)) + (shift if nodule.radius else 0)
            _with_texts(roi, "edgeMap", xCoord=str(column), yCoord=str(row))


def _slice(z: int, uids: Sequence[str]) -> dict[str, str]:
    return {"imageZposition": f"{_height(z):.6f} ", "imageSOP_UID": uids[z]}


def _with_texts(parent: Element, name: str, **texts: str) -> Element:
    """A new child of an element, with children that hold a text each."""
    element = SubElement(parent, name)
    for child, text in texts.items():
        SubElement(element, child).text = text
    return element


def _write_xml(path: Path, message: Element) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    indent(message)
    ElementTree(message).write(path, encoding="UTF-8", xml_declaration=True)


def _write_lndb(root: Path, scans: int, seed: int) -> None:
    """MetaImage scans and masks, and the tables; the last scan is of the unpublished test set."""
    listed: list[dict[str, object]] = []
    merged: list[dict[str, object]] = []
    marked: list[dict[str, object]] = []
    for number in range(1, scans + 1):
        volume, nodules, rng = _scan(TARGET, number, seed)
        if number % 5 == 0:  # some scans are not squares
            volume = np.concatenate([volume, volume[:, :, -8:]], axis=2)
        origin = (-20.5 - number, -20.25, -300.5 + rng.integers(20))
        name = f"LNDb-{number:04d}"
        _write_mhd(root / f"data{number % 6}" / f"{name}.mhd", volume, origin)
        if number == scans:
            continue
        readers = 1 + number % 3
        listed.append({"LNDbID": number, "RadN": readers})
        findings = [_finding(nodule, origin) for nodule in nodules]
        findings.append({"x": origin[0] + 20, "y": -2.0, "z": origin[2], "Nodule": 0} | _NONE)
        for reader in range(1, readers + 1):
            labels = np.zeros(volume.shape, np.uint8)
            for finding, nodule in enumerate(nodules, 1):
                for z in nodule.slices if nodule.radius else ():
                    labels[z, :, :SIZE][nodule.outline(z)] = finding
            _write_mhd(root / "masks" / f"{name}_rad{reader}.mhd", labels, origin)
            marked += [
                {"LNDbID": number, "RadID": reader, "FindingID": finding} | row
                for finding, row in enumerate(findings, 1)
            ]
        for finding, row in enumerate(findings, 1):
            who = {
                "LNDbID": number,
                "RadID": ",".join(str(reader) for reader in range(1, readers + 1)),
                "RadFindingID": ",".join([str(finding)] * readers),
                "FindingID": finding,
                "AgrLevel": readers * int(row["Nodule"] == 1),
            }
            merged.append(who | row)
    tables = root / "trainset_csv"
    write_csv(tables / "trainCTs.csv", listed, ("LNDbID", "RadN"))
    write_csv(tables / "trainNodules.csv", marked, MASK_COLUMNS)
    write_csv(tables / "trainNodules_gt.csv", merged, MERGED_COLUMNS)


_NONE: dict[str, object] = {"Volume": 14.13716694, "Text": 0}
"""What the tables state for findings that are not outlined."""


def _finding(nodule: _Nodule, origin: Sequence[float]) -> dict[str, object]:
    place = (nodule.x * SPACING, nodule.y * SPACING, float(np.mean(nodule.slices)) * STEP)
    row: dict[str, object] = {
        axis: round(float(start) + offset, 4)
        for axis, start, offset in zip("xyz", origin, place, strict=True)
    }
    row |= {"Nodule": 1} | _NONE | {"Text": 5}
    if nodule.radius:
        row["Volume"] = round(4 / 3 * math.pi * (nodule.radius * SPACING) ** 3, 6)
    return row


def _write_mhd(path: Path, values: npt.NDArray[np.generic], origin: Sequence[float]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    itk = simple_itk()
    image = itk.GetImageFromArray(values)
    image.SetSpacing((SPACING, SPACING, STEP))
    image.SetOrigin([float(value) for value in origin])
    itk.WriteImage(image, str(path), useCompression=False)
