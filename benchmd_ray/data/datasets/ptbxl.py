"""PTB-XL, as PhysioNet hands it out (1.0.3) and as the CinC challenges do (HR records).

In both, ``ptbxl_database.csv`` gives patients, folds, codes with likelihoods, age, sex and device.
Record ``HRnnnnn`` of the challenges is ``ecg_id`` nnnnn.
Source: https://physionet.org/content/ptb-xl/1.0.3/.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmd_ray.data.cards import DatasetCard, code_classes, code_kinds
from benchmd_ray.data.datasets import cinc
from benchmd_ray.data.datasets.ecg import dominant_class, read_records, released_labels
from benchmd_ray.data.raw import (
    DUPLICATE,
    NO_ROW,
    Choices,
    Discovery,
    RawItem,
    Reading,
    by_key,
    files,
    inside,
)
from benchmd_ray.data.records import OLDEST_AGE, RecordError, RecordExcluded, hashed_patient
from benchmd_ray.data.tables import age, read_rows
from benchmd_ray.errors import BenchmdError, shown

VERSION = 2
DATABASE = "ptbxl_database.csv"
COLUMNS = (
    "ecg_id", "patient_id", "age", "sex", "site", "device", "scp_codes", "strat_fold",
    "filename_hr",
)  # fmt: skip
NOTED = (
    "baseline_drift", "static_noise", "burst_noise", "electrodes_problems", "pacemaker",
)  # fmt: skip
"""Columns that name leads, or say more, where something was noted."""
SEXES = {"0": "male", "1": "female"}
OVER_89 = ("300", "300.0")
"""What PTB-XL writes for every age above 89."""
CODE = re.compile(r"\s*(['\"])([\w ()/.+-]{1,40})\1\s*:\s*(\d{1,3}(?:\.\d{1,9})?)\s*", re.ASCII)
"""One of the ``scp_codes``, with its likelihood: ``'NORM': 100.0``."""


FOLDS = {**{str(fold): "train" for fold in range(1, 9)}, "9": "validation", "10": "test"}
"""Split of each official fold (decision D7)."""
NORMAL, NORMAL_FROM = "NORM", 80.0
"""The diagnosis of a normal ECG, and the likelihood from which forms do not contradict it."""
RHYTHM_LIKELIHOOD = 100.0
"""What a rhythm counts with that is stated without a likelihood."""


def discover(root: Path, card: DatasetCard, choices: Choices) -> Discovery:
    """List the records of either layout."""
    rows = _database(root / DATABASE)
    by_table = choices.policy == "released"
    if rows is None and by_table:
        return cinc.discover(root, card, choices)
    if rows is None:
        raise BenchmdError(
            f"{root} has no {DATABASE}: policy 'clean' takes patients, folds and codes from it. "
            "Put the file of PTB-XL 1.0.3 (PhysioNet) there, or build with --policy released."
        )
    layout = "physionet" if (root / "records500").is_dir() else "cinc"
    paths = files(root, card.layouts["cinc"].pattern if layout == "cinc" else "*.hea")
    by_place = {path.relative_to(root).as_posix().lower(): path for path in paths}
    challenge_files, duplicates = by_key(paths if layout == "cinc" else [], lambda path: path.stem)
    released = released_labels(choices.split_table, card) if by_table else {}
    items, missing, excluded = [], [], +Counter({DUPLICATE: duplicates})
    for row in rows:
        name = record_name(row)
        place = inside(f"{row['filename_hr']}.hea", root / DATABASE)
        path = by_place.get(place.lower(), root / place)
        if layout == "cinc":
            path = challenge_files.pop(name, root / f"{name}.hea")
        if not path.is_file():
            missing.append(path.relative_to(root).as_posix())
            continue
        try:
            split, label = _released(released, name) if by_table else _clean(row, card)
        except RecordExcluded as reason:
            excluded[str(reason)] += 1
            continue
        items.append(_item(row, path.relative_to(root).as_posix(), split, label, card))
    # The challenges also hold the 38 records that PTB-XL 1.0.3 removed: no patient is known.
    items += [
        RawItem(where.relative_to(root).as_posix(), name, patient, *released[name])
        for name, where in challenge_files.items()
        if name in released
        for patient in [hashed_patient(card.name, name)]
    ]
    excluded[NO_ROW] += len(challenge_files.keys() - released)
    return Discovery(layout, items, missing, dict(+excluded))


def record_name(row: dict[str, str]) -> str:
    """The challenges' name of a record, in both layouts' catalogs."""
    return f"HR{int(float(row['ecg_id'])):05d}"


def _item(row: dict[str, str], path: str, split: str, label: str, card: DatasetCard) -> RawItem:
    return RawItem(
        path=path,
        record_id=record_name(row),
        group_id=hashed_patient("ptb-xl", str(int(float(row["patient_id"])))),
        split=split,
        label=label,
        metadata={
            "age": OLDEST_AGE if row["age"] in OVER_89 else age(row["age"]),
            "sex": SEXES.get(row["sex"]),
            "site": row["site"].removesuffix(".0") or None,
            "device": " ".join(row["device"].split()) or None,
        },
        conditions=_conditions(row, card),
    )


def _conditions(row: dict[str, str], card: DatasetCard) -> tuple[str, ...]:
    """Codes of any likelihood with their classes, and what is noted of noise and pacemakers."""
    codes, classes = _likelihoods(row["scp_codes"]) or {}, code_classes(card.code_table)
    noted = [name for name in NOTED if row.get(name, "").strip()]
    named = {classes.get(code, "") for code in codes} - {""}
    return tuple(sorted({*codes, *named, *noted}))


def _clean(row: dict[str, str], card: DatasetCard) -> tuple[str, str]:
    stated = _likelihoods(row["scp_codes"]) or {}
    likelihoods = counted_likelihoods(stated, code_kinds(card.code_table))
    return FOLDS[row["strat_fold"]], dominant_class(likelihoods, code_classes(card.code_table))


def counted_likelihoods(
    stated: Mapping[str, float], kinds: Mapping[str, frozenset[str]]
) -> dict[str, float]:
    """Likelihoods, 0–100, that the codes of a record count with (decision D8).

    PTB-XL writes 0 where none is stated, as for nearly all rhythms and forms. A rhythm without one
    counts as certain. A form without one (also one that is a diagnosis, too) does not count where
    the diagnosis is a normal ECG; elsewhere it ranks below every code with a likelihood, as a
    diagnosis without one does.
    """
    normal = stated.get(NORMAL, 0.0) >= NORMAL_FROM
    counted: dict[str, float] = {}
    for code, likelihood in stated.items():
        kind = kinds.get(code, frozenset())
        if likelihood != 0:
            counted[code] = likelihood
        elif "rhythm" in kind:
            counted[code] = RHYTHM_LIKELIHOOD
        elif not (normal and "form" in kind):
            counted[code] = likelihood
    return counted


def _released(released: dict[str, tuple[str, str]], name: str) -> tuple[str, str]:
    if name not in released:
        raise RecordExcluded("it is not in the released split table")
    return released[name]


def read(root: Path, item: RawItem, card: DatasetCard) -> Reading:
    """Records of one file."""
    if item.label is None:
        raise RecordError("it has no label")
    return read_records(root, item, card)


def _database(path: Path) -> list[dict[str, str]] | None:
    """Rows of ``ptbxl_database.csv``, checked; None where it is missing."""
    if not path.is_file():
        return None
    rows = read_rows(path, COLUMNS, "PTB-XL 1.0.3")
    seen: set[str] = set()
    for number, row in enumerate(rows, 1):
        for column, (usable, expected) in CHECKS.items():
            if not usable(row[column]):
                value = "not as it must be" if column == "patient_id" else shown(row[column])
                raise BenchmdError(
                    f"{path}, record {number}: {column} is {value}, expected {expected}. "
                    "Fetch the file again."
                )
        if record_name(row) in seen:
            raise BenchmdError(f"{path}, record {number}: ecg_id {row['ecg_id']} appears twice.")
        seen.add(record_name(row))
    return rows


def _whole_number(text: str) -> bool:
    return re.fullmatch(r"\d{1,15}(\.0)?", text, re.ASCII) is not None


def _likelihoods(text: str) -> dict[str, float] | None:
    """Likelihood of each code, such as of ``{'NORM': 100.0, 'SR': 0.0}``; None of another text."""
    if not (text.startswith("{") and text.endswith("}")):
        return None
    parts = text[1:-1].split(",") if text[1:-1].strip() else []
    matches = [CODE.fullmatch(part) for part in parts]
    if None in matches:
        return None
    return {match[2]: float(match[3]) for match in matches if match}


CHECKS: dict[str, tuple[Callable[[str], bool], str]] = {
    "ecg_id": (_whole_number, "a whole number"),
    "patient_id": (_whole_number, "a whole number"),
    "strat_fold": (FOLDS.__contains__, "a fold from 1 to 10"),
    "scp_codes": (
        lambda text: _likelihoods(text) is not None,
        "a dictionary of codes and their likelihoods",
    ),
}
