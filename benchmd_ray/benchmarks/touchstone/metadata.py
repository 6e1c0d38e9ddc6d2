"""Metadata of cases from a table: patient, age, sex, scanner, institute, diagnosis.

Columns are found by their whole names. Cases without a value are in the group ``unknown``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmd_ray.benchmarks.touchstone.imported import read_rows, require_cells
from benchmd_ray.data.plain_numbers import number_of
from benchmd_ray.data.tables import sex as known_sex
from benchmd_ray.errors import BenchmdError, shown, unknown_name
from benchmd_ray.scores.subgroups import age_band

CASE = ("case", "image_id", "name", "id", "bdmap id")
"""Columns that may name the case, the first that is there."""
PATIENT = ("patient", "patient_id", "subject", "subject_id")
VARIABLES: Mapping[str, tuple[str, ...]] = {
    "age": ("age", "patient_age"),
    "sex": ("sex", "gender"),
    "scanner": ("scanner", "manufacturer"),
    "institute": ("institute", "site", "hospital"),
    "diagnosis": ("diagnosis", "pathology"),
}
"""What groups are made by, and the columns that may say it."""
SPLIT = "split"
MISSING = ("", "nan", "na", "n/a", "unknown")


@dataclass(frozen=True)
class Metadata:
    source: str = ""
    labels: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    """By variable and case: the group, None where it is not known."""
    patients: Mapping[str, str] = field(default_factory=dict)
    """By case; empty where the table does not name patients."""
    splits: Mapping[str, str] = field(default_factory=dict)
    """By case, where the table says to which part of its own dataset a case belongs."""
    cases: frozenset[str] = frozenset()

    @property
    def contradicted(self) -> list[str]:
        """Patients whose scans state different sexes."""
        stated: dict[str, set[str]] = {}
        for case, sex in self.labels.get("sex", {}).items():
            if sex is not None:
                stated.setdefault(self.patient(case), set()).add(sex)
        return sorted(patient for patient, sexes in stated.items() if len(sexes) > 1)

    def patient(self, case: str) -> str:
        """The patient of a case, else the case itself."""
        return self.patients.get(case, case)

    def groups(self, variable: str, cases: Sequence[str]) -> list[str | None]:
        return [self.labels[variable].get(case) for case in cases]


def read_metadata(path: Path, also: Sequence[str] = ()) -> Metadata:
    """Read a table of cases, separated by commas, semicolons or tabs."""
    head, rows = read_rows(path, ",;\t", CASE)
    head = [name.lower() for name in head]
    key = next((name for name in CASE if name in head), "")
    if not key:
        raise BenchmdError(
            f"{path}: its columns are {', '.join(head) or 'none'}; expected one that names the "
            f"case ({', '.join(CASE)})."
        )
    if twice := sorted({name for name in head if head.count(name) > 1}):
        raise BenchmdError(f"{path}: the column {shown(twice[0])} appears twice: keep one.")
    require_cells(path, head, rows)
    columns = {name: [line[place] for line in rows.values()] for place, name in enumerate(head)}
    cases = columns[key]
    if len(set(cases)) < len(cases):
        both = next(case for case in cases if cases.count(case) > 1)
        raise BenchmdError(f"{path}: the case {shown(both)} appears twice: keep one row of each.")
    return Metadata(
        str(path),
        _labels(path, columns, cases, also),
        _known(columns, PATIENT, cases),
        _known(columns, (SPLIT,), cases),
        frozenset(cases),
    )


def _known(
    columns: Mapping[str, list[str]], names: Sequence[str], cases: Sequence[str]
) -> dict[str, str]:
    """Values by case, from the first of these columns that exists."""
    chosen = next((columns[name] for name in names if name in columns), [""] * len(cases))
    pairs = zip(cases, chosen, strict=True)
    return {case: text for case, text in pairs if text.lower() not in MISSING}


def _labels(
    path: Path, columns: Mapping[str, list[str]], cases: Sequence[str], also: Sequence[str]
) -> dict[str, dict[str, str | None]]:
    labels: dict[str, dict[str, str | None]] = {}
    for variable, names in VARIABLES.items():
        if any(name in columns for name in names):
            texts = _known(columns, names, cases)
            labels[variable] = {case: _group(variable, text, path) for case, text in texts.items()}
    for name in also:
        if name.lower() not in columns:
            raise unknown_name(f"column of {path}", name, columns)
        labels[name] = {**_known(columns, (name.lower(),), cases)}
    return labels


def _group(variable: str, text: str, path: Path) -> str | None:
    if variable == "sex":
        return known_sex(text) or text
    if variable != "age":
        return text
    years = number_of(text)
    if years is None:
        raise BenchmdError(
            f"{path}: the age {shown(text)} is not a number of years; leave it empty where it is "
            "not known."
        )
    if not 0 <= years < 150:
        raise BenchmdError(f"{path}: the age {shown(text)} is not within 0 to 150 years.")
    return age_band(years)
