"""The Sleep Heart Health Study's first visit (SHHS-1) in the folders of the NSRR.

An EDF file per person with the electroencephalogram, staged in a Profusion XML file.
Source: https://sleepdata.org/datasets/shhs.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.datasets.eeg import EPOCH, Montage, checked_codes, read_night, states
from benchmd_ray.data.raw import DUPLICATE, Choices, Discovery, RawItem, Reading, by_key, files
from benchmd_ray.data.readers.xml import children, read_xml
from benchmd_ray.data.records import RecordError, hashed_patient
from benchmd_ray.data.splits import hashed_split
from benchmd_ray.data.tables import age, read_rows

VERSION = 1
MONTAGE: Montage = {
    "C3": [(name,) for name in ("EEG(sec)", "EEG sec", "EEG_sec", "EEG2", "EEG 2", "EEG_2")],
    "C4": [("EEG",)],
}
"""C3-A2 is the second electroencephalogram, under several names; C4-A1 is the first."""
RECORDING = re.compile(r"shhs1-(\d+)\.edf", re.IGNORECASE)
STAGING = re.compile(r"shhs1-(\d+)-profusion\.xml", re.IGNORECASE)
TABLE = "shhs1-dataset-*.csv"
COLUMNS = ("nsrrid", "age_s1", "gender")
SEXES = {"1": "male", "2": "female"}
APNOEAS = "ahi_a0h3"
"""Column of apnoeas, and hypopnoeas with a desaturation of 3 %, an hour; it may be missing."""
SEVERE = 30.0
"""Of these, from which sleep apnoea is severe."""
SEVERE_APNOEA = "severe apnoea"


Person = tuple[dict[str, float | str | None], tuple[str, ...]]
"""Metadata and conditions."""


def discover(root: Path, card: DatasetCard, choices: Choices) -> Discovery:
    """List the nights, one of each person. Both policies split by person, as the paper does."""
    nights, doubled = _by_person(root, "shhs1-*.edf", RECORDING)
    stagings, further = _by_person(root, "shhs1-*-profusion.xml", STAGING)
    people = _people(root)
    items, excluded = [], +Counter({DUPLICATE: doubled + further})
    for person, path in nights.items():
        if person not in stagings:
            excluded["it has no Profusion staging"] += 1
            continue
        patient, about = hashed_patient(card.namespace, person), people.get(person)
        metadata, conditions = about or ({}, ())
        items.append(
            RawItem(
                path=path.relative_to(root).as_posix(),
                record_id=patient,
                group_id=patient,
                split=hashed_split(card.name, person),
                metadata=metadata,
                conditions=choices.conditions(conditions),
                details={"stages": stagings[person].relative_to(root).as_posix()},
            )
        )
    missing = [
        f"the EDF file of patient {hashed_patient(card.namespace, person)}"
        for person in sorted(stagings.keys() - nights.keys())
    ]
    return Discovery("nsrr", items, missing, dict(excluded), states=states(card))


def read(root: Path, item: RawItem, card: DatasetCard) -> Reading:
    """Epochs of one night."""
    codes = profusion_stages(root / str(item.details["stages"]))
    return read_night(root, item, card, montage=MONTAGE, codes=codes)


def profusion_stages(path: Path) -> list[str]:
    """Codes of the epochs of 30 s in a Profusion XML file, in order."""
    root = read_xml(path, "its staging")
    lengths = [(element.text or "").strip() for element in children(root, "EpochLength")]
    codes = [
        (element.text or "").strip()
        for stages in children(root, "SleepStages")
        for element in children(stages, "SleepStage")
    ]
    if any(length != str(EPOCH) for length in lengths):
        raise RecordError(f"its epochs last {', '.join(lengths)[:40]} s; expected {EPOCH} s")
    return checked_codes(codes)


def _by_person(root: Path, glob: str, pattern: re.Pattern[str]) -> tuple[dict[str, Path], int]:
    """Files by the person's number, in order of the number, and how many are duplicates."""

    def person(path: Path) -> str | None:
        match = pattern.fullmatch(path.name)
        return match[1] if match else None

    paths, duplicates = by_key(files(root, glob), person)
    return dict(sorted(paths.items(), key=lambda pair: int(pair[0]))), duplicates


def _people(root: Path) -> dict[str, Person]:
    """Age, sex and conditions by the person's number, from the newest table; empty without one."""
    tables = sorted(files(root, TABLE), key=lambda p: [int(n) for n in re.findall(r"\d+", p.name)])
    if not tables:
        return {}
    rows = read_rows(tables[-1], COLUMNS, "SHHS-1", encoding="latin-1")  # what is used is ASCII
    return {
        row["nsrrid"]: (
            {"age": age(row["age_s1"]), "sex": SEXES.get(row["gender"])},
            (SEVERE_APNOEA,) if _severe(row.get(APNOEAS, "")) else (),
        )
        for row in rows
        if row["nsrrid"]
    }


def _severe(index: str) -> bool:
    return re.fullmatch(r"\d+(\.\d+)?", index, re.ASCII) is not None and float(index) >= SEVERE
