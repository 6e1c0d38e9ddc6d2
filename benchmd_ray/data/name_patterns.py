"""Patients in names of files: the pattern of a card that finds them, and a guess of one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

LONGEST_PATTERN = 500
FEWEST_PATIENTS = 3
FEWEST_FILES = 1.5
"""Files per patient, on average, below which a pattern is no guess of patients."""
WORDS = "patient|pat|pt|subject|subj|sub|participant|person|volunteer"
FORMS = (
    rf"(?i:^|[/_. -])(?P<patient>(?i:{WORDS})[-_ ]?\d+)(?!\d)",
    r"(?:^|/)(?P<patient>[A-Za-z]{0,3}\d+)[-_ ][^/]+$",
    r"(?:^|/)(?P<patient>[A-Za-z]{1,3}\d+)[A-Za-z]+\d[^/]*$",
    r"(?:^|/)[A-Za-z]+[-_ ](?P<patient>[A-Za-z]{1,3}\d+)[-_ ][^/]+$",
)
"""Guesses, the surest first: ``x_patient-07``, ``p07_3.png`` or ``07-3.png``, ``S007R03.edf``,
``walk_S07_3.txt``.
"""


def pattern_of(patient: Any) -> str:
    """The pattern of a card's key ``patient``; empty where that names a column."""
    return patient["pattern"] if isinstance(patient, dict) else ""


def is_patient(value: Any) -> bool:
    """Whether a value is the name of a column, or a valid pattern of the names of files."""
    if isinstance(value, str):
        return True
    if not isinstance(value, dict) or set(value) != {"pattern"}:
        return False
    pattern = value["pattern"]
    if not isinstance(pattern, str) or len(pattern) > LONGEST_PATTERN:
        return False
    try:
        return "patient" in re.compile(pattern).groupindex
    except (re.error, OverflowError, RecursionError):
        return False


def patient_in(pattern: str, path: str) -> str:
    """The patient that a file's path names; empty where it does not match."""
    match = re.search(pattern, path)
    return (match["patient"] or "") if match else ""


def guessed_pattern(paths: Sequence[str], classes: int) -> tuple[str, list[str]] | None:
    """A pattern that finds a patient in each path, and the patients; None without a likely one."""
    for form in FORMS:
        patients = [patient_in(form, path) for path in paths]
        count = len({*patients})
        enough = count >= max(FEWEST_PATIENTS, classes + 1)
        if all(patients) and enough and len(paths) >= FEWEST_FILES * count:
            return form, sorted({*patients})
    return None


def named_in(patients: Sequence[str], paths: Sequence[str]) -> bool:
    """Whether most of the paths contain their patient as a part of a name."""
    return sum(patient in _parts(path) for patient, path in zip(patients, paths, strict=True)) > (
        len(paths) / 2
    )


def _parts(path: str) -> Iterator[str]:
    """Parts of a path that may be an ID: between separators, also several in a row."""
    for name in path.split("/"):
        cuts = [0, *(m.end() for m in re.finditer(r"[-_. ]", name))]
        ends = [m.start() for m in re.finditer(r"[-_. ]", name)] + [len(name)]
        for start in cuts:
            yield from (name[start:end] for end in ends if end > start)
