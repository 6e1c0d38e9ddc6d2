"""Small raw mammography datasets in the layouts of VinDr-Mammo and CBIS-DDSM.

A breast is half an ellipse at the edge of the image, with a texture of gland inside and a bright
marker next to it. The higher the BI-RADS assessment, the brighter the breast, and the larger and
brighter a mass in it. The target looks like digitised film: grainy, dark, with a bright frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydicom import uid

from benchmd_ray.demo.draw import (
    drawn_labels,
    generator,
    hex_name,
    save_dicom,
    texture,
    uid_of,
    write_csv,
)
from benchmd_ray.modality.modalities import modality

Floats = npt.NDArray[np.floating]

CLASSES = modality("mammo").task.classes
HEIGHT, WIDTH = 160, 128
TISSUE = (0.2, 0.25, 0.3, 0.35, 0.4)
"""Brightness of the breast, by class; the range of grey levels is 1."""
BRIGHTNESS = (0.0, 0.15, 0.3, 0.42, 0.55)
"""A mass is brighter by that much, by class."""
RADIUS = (0.0, 6.0, 8.0, 10.0, 12.0)
"""Of a mass in pixels, by class."""
DEVICES = (("SIEMENS", "Mammomat Inspiration"), ("IMS s.r.l.", "Giotto Image 3DL"))
FIRST_PATIENT = 90_001
"""CBIS-DDSM: number of the first synthetic patient, beyond those of the real ones."""
SECOND_BREAST, BOTH_KINDS, INCONCLUSIVE = 3, 9, 11
"""CBIS-DDSM: every how many patients have films of both breasts, films with masses and with
calcifications, assessments of 0."""


@dataclass(frozen=True)
class _BreastDomain:
    dataset: str
    prevalence: tuple[float, ...]
    gamma: float
    """Exponent of the grey levels: how dark they are rendered."""
    noise: float
    """Grain, as a share of the range of grey levels."""
    frame: int


SOURCE = _BreastDomain("vindr-mammo", (0.36, 0.24, 0.16, 0.14, 0.1), 1.0, 0.015, 0)
TARGET = _BreastDomain("cbis-ddsm", (0.1, 0.15, 0.25, 0.3, 0.2), 1.25, 0.05, 3)


@dataclass(frozen=True)
class _Encoding:
    bits: int
    inverted: bool = False
    syntax: str = uid.ExplicitVRLittleEndian


ENCODINGS = (
    _Encoding(12),
    _Encoding(14, inverted=True),
    _Encoding(12, syntax=uid.JPEG2000Lossless),
    _Encoding(16, inverted=True, syntax=uid.JPEG2000Lossless),
)


@dataclass(frozen=True)
class _BreastFilm:
    number: int
    patient: int
    side: str
    view: str
    label: str

    @property
    def level(self) -> int:
        return CLASSES.index(self.label)


def write_mammo(
    root: Path, *, source_records: int = 480, target_records: int = 120, seed: int = 0
) -> dict[str, Path]:
    """Write VinDr-Mammo and CBIS-DDSM, in images; the defaults take 20 MB."""
    folders = {domain.dataset: root / domain.dataset for domain in (SOURCE, TARGET)}
    _write_vindr(folders["vindr-mammo"], source_records, seed)
    _write_cbis(folders["cbis-ddsm"], target_records, seed)
    return folders


def _films(
    domain: _BreastDomain, sides: Sequence[str], records: int, seed: int
) -> Iterator[_BreastFilm]:
    """Two views of each breast; the breasts are dealt to the patients in turn."""
    labels = drawn_labels(
        CLASSES, domain.prevalence, len(sides), generator(seed, domain.dataset, "labels")
    )
    patient, number = 0, 0
    for side, label in zip(sides, labels, strict=True):
        patient += side == "L"
        for view in ("CC", "MLO"):
            number += 1
            if number <= records:
                yield _BreastFilm(number, patient, side, view, label)


def _write_vindr(root: Path, records: int, seed: int) -> None:
    """One folder per exam; tables of breasts and of headers; a file that no table names."""
    breasts, headers = [], []
    for film in _films(SOURCE, ["L", "R"] * (records // 4 + 1), records, seed):
        study, image = (
            hex_name(seed, f"study {film.patient}"),
            hex_name(seed, f"image {film.number}"),
        )
        encoding = ENCODINGS[film.number % len(ENCODINGS)]
        _save(_drawn(SOURCE, film, seed), encoding, root / f"images/{study}/{image}.dicom")
        breasts.append(
            {"study_id": study, "series_id": hex_name(seed, f"series {film.patient}")}
            | {"image_id": image, "laterality": film.side, "view_position": film.view}
            | {"height": str(HEIGHT), "width": str(WIDTH), "breast_birads": film.label}
            | {"breast_density": f"DENSITY {'ABCD'[film.patient % 4]}"}
            | {"split": "test" if film.patient % 5 == 0 else "training"}
        )
        maker, model = DEVICES[film.patient % len(DEVICES)]
        age = f"{35 + film.patient * 7 % 45:03}Y" if film.patient % 6 else ""
        headers.append(
            {"SOP Instance UID": image, "Patient's Age": age}
            | {"Manufacturer": maker, "Manufacturer's Model Name": model}
        )
    write_csv(root / "breast-level_annotations.csv", breasts, lineterminator="\r\n")
    write_csv(root / "metadata.csv", headers, lineterminator="\r\n")
    stray = _drawn(SOURCE, _BreastFilm(0, 0, "L", "CC", CLASSES[0]), seed)
    study, image = hex_name(seed, "study 0"), hex_name(seed, "image 0")
    _save(stray, ENCODINGS[0], root / f"images/{study}/{image}.dicom")


def _write_cbis(root: Path, records: int, seed: int) -> None:
    """One folder per series, films and cut-outs apart; tables of masses and calcifications."""
    top = root / "CBIS-DDSM"
    tables: dict[str, list[dict[str, str]]] = {"Mass": [], "Calc": []}
    sides = [
        side
        for patient in range(1, records // 2 + 2)
        for side in ("LR" if patient % SECOND_BREAST == 0 else "L")
    ]
    for film in _films(TARGET, sides, records, seed):
        pixels = _drawn(TARGET, film, seed)
        kinds = ["Mass", "Calc"]
        if film.patient % BOTH_KINDS != 1:
            kinds = [kinds[film.patient % 2]]
        for kind in kinds:
            rows = _abnormalities(film, kind, len(kinds), seed)
            tables[kind] += rows
            _save(pixels, _Encoding(16), top / _there(rows[0]["image file path"]))
            if film.number <= len(sides) // 8:  # a few cut-outs, which must not be taken
                cut = pixels[40:80, 40:80]
                _save(cut, _Encoding(16), top / _there(rows[0]["cropped image file path"]))
    for kind, rows in tables.items():
        write_csv(
            root / f"{kind.lower()}_case_description_test_set.csv", rows, lineterminator="\r\n"
        )


def _abnormalities(film: _BreastFilm, kind: str, kinds: int, seed: int) -> list[dict[str, str]]:
    """Rows of a film: the first is assessed as its class says, a second one lower."""
    patient, side = f"P_{FIRST_PATIENT + film.patient}", {"L": "LEFT", "R": "RIGHT"}[film.side]
    series = f"{kind}-Test_{patient}_{side}_{film.view}"
    levels = [film.level + 1, max(1, film.level)][: 1 + film.number % 2]
    if kinds == 2 and kind == "Calc":
        levels = [max(1, film.level)]
    if film.patient % INCONCLUSIVE == 0:
        levels = [0]
    names = {
        "Mass": ("breast_density", "mass shape", "mass margins", "mass"),
        "Calc": ("breast density", "calc type", "calc distribution", "calcification"),
    }[kind]
    rows = []
    for number, level in enumerate(levels, 1):
        paths = {
            f"{what} file path": f"{series}{suffix}/{uid_of(seed, series, suffix, 'study')}/"
            f"{uid_of(seed, series, suffix, 'series')}/{file}"
            for what, suffix, file in (
                ("image", "", "000000.dcm"),
                ("cropped image", f"_{number}", "000000.dcm"),
                ("ROI mask", f"_{number}", "000001.dcm\n"),
            )
        }
        rows.append(
            {"patient_id": patient, names[0]: str(1 + film.patient % 4)}
            | {"left or right breast": side, "image view": film.view}
            | {
                "abnormality id": str(number),
                "abnormality type": names[3],
                names[1]: "",
                names[2]: "",
            }
            | {"assessment": str(level), "pathology": "MALIGNANT" if level > 3 else "BENIGN"}
            | {"subtlety": "3"}
            | paths
        )
    return rows


def _there(path: str) -> str:
    return path.replace("000000.dcm", "1-1.dcm")


def _drawn(domain: _BreastDomain, film: _BreastFilm, seed: int) -> Floats:
    """Grey levels from 0 to 1, (y, x); the mass lies at one place of the breast in both views."""
    breast = generator(seed, domain.dataset, f"breast {film.patient} {film.side}")
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.float32)
    height, depth = breast.uniform(58, 72), breast.uniform(70, 95)
    tissue, gland = TISSUE[film.level] + breast.uniform(-0.04, 0.04), breast.uniform(0.04, 0.08)
    angle, reach = breast.uniform(-0.7, 0.7), breast.uniform(0.3, 0.6)
    tilt = 10.0 if film.view == "MLO" else 0.0

    rng = generator(seed, domain.dataset, f"film {film.number}")
    middle = HEIGHT / 2 + tilt + rng.uniform(-4, 4)
    inside = ((y - middle) / height) ** 2 + (x / depth) ** 2
    grey = np.where(inside < 1, tissue + gland * texture((HEIGHT, WIDTH), 5, rng), 0.0)
    centre = middle + reach * height * np.sin(angle), reach * depth * np.cos(angle)
    radius = RADIUS[film.level] * rng.uniform(0.85, 1.15)
    if radius:
        distance = np.hypot(y - centre[0], x - centre[1])
        grey = grey + BRIGHTNESS[film.level] / (1 + np.exp((distance - radius) / 1.2))
    grey[8:18, WIDTH - 26 : WIDTH - 14] = 1.0  # the marker of side and view
    if film.side == "R":
        grey = grey[:, ::-1]
    grey = np.clip(grey, 0, 1) ** domain.gamma
    if domain.frame:
        grey[: domain.frame] = grey[:, -domain.frame :] = 0.95
    return np.asarray(np.clip(grey + domain.noise * texture(grey.shape, 0.6, rng), 0, 1))


def _save(grey: Floats, encoding: _Encoding, path: Path) -> None:
    """Write a DICOM file; its patient is nobody."""
    top = 2**encoding.bits - 1
    values = np.rint(grey * top).astype(np.uint16)
    save_dicom(
        path,
        top - values if encoding.inverted else values,
        (uid.DigitalMammographyXRayImageStorageForPresentation, uid_of(0, *path.parts[-4:])),
        syntax=encoding.syntax,
        Modality="MG",
        PatientID="",
        PatientName="",
        RescaleSlope="1",
        RescaleIntercept="0",
        BitsStored=encoding.bits,
        PhotometricInterpretation=f"MONOCHROME{1 if encoding.inverted else 2}",
    )
