"""CBIS-DDSM, as TCIA hands it out: digitised films in DICOM; the official test sets (D19).

The tables of masses and of calcifications have a row per abnormality; a film with both is in both
sets, as two files. A record is an image, labelled with its highest BI-RADS assessment.
Source: https://www.cancerimagingarchive.net/collection/cbis-ddsm/.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.datasets.images import class_of
from benchmd_ray.data.raw import NO_ROW, Choices, Discovery, RawItem, files
from benchmd_ray.data.records import hashed_patient
from benchmd_ray.data.splits import TARGET_SPLIT
from benchmd_ray.data.tables import read_rows
from benchmd_ray.errors import BenchmdError

VERSION = 1
TABLES = ("mass_case_description_test_set.csv", "calc_case_description_test_set.csv")
COLUMNS = ("assessment", "image file path")
SERIES = re.compile(r"(?:Mass|Calc)-Test_(P_\d+)_(LEFT|RIGHT)_(CC|MLO)")
"""Name of the folder of a whole film; those of the abnormalities end in their number."""
TWICE = "the film is in the sets of masses and of calcifications; one file is kept"
SEVERAL = "several files lie in its folder, and none where the table says"


@dataclass
class _Film:
    patient: str
    view: str
    """Side and view, such as L-CC."""
    assessments: list[str] = field(default_factory=list)
    folders: dict[str, str] = field(default_factory=dict)
    """Where the table says that its files lie, by the name of their series."""

    def label(self, card: DatasetCard) -> tuple[str, str]:
        classes = [class_of(card, assessment) for assessment in self.assessments]
        names = [name for name, reason in classes if not reason]
        return (max(names, key=card.classes.index), "") if names else classes[0]


def discover(root: Path, card: DatasetCard, choices: Choices) -> Discovery:
    """List the films of both test sets."""
    series_paths: dict[str, list[Path]] = {}
    for path in files(root, "*.dcm"):
        for part in path.relative_to(root).parts[:-1]:
            if SERIES.fullmatch(part):
                series_paths.setdefault(part, []).append(path.relative_to(root))
    films = _films(root)
    named = {series for film in films for series in film.folders}
    items, missing = [], []
    excluded = Counter({NO_ROW: len(series_paths.keys() - named)})
    for film in films:
        patient = hashed_patient(card.namespace, film.patient)
        record_id = f"{patient}-{film.view}"
        label, reason = film.label(card)
        if reason:
            excluded[reason] += len(film.folders)
            continue
        there = [_one(series_paths.get(s, []), folder) for s, folder in film.folders.items()]
        missing += [f"a film of record {record_id}" for path in there if path == ""]
        excluded[SEVERAL] += there.count(None)
        paths = [path for path in there if path]
        if paths:
            excluded[TWICE] += len(paths) - 1
            items.append(
                RawItem(
                    path=paths[0],
                    record_id=record_id,
                    group_id=patient,
                    split=TARGET_SPLIT[choices.policy],
                    label=label,
                    metadata={"view": film.view},
                )
            )
    return Discovery("tcia", items, missing, dict(+excluded))


def _films(root: Path) -> list[_Film]:
    films: dict[tuple[str, str], _Film] = {}
    for table in TABLES:
        rows = read_rows(root / table, COLUMNS, "CBIS-DDSM")
        for number, row in enumerate(rows, 1):
            series, _, folder = row["image file path"].partition("/")
            name = SERIES.fullmatch(series)
            if name is None:
                raise BenchmdError(
                    f"{root / table}, record {number}: the image file path starts with no folder "
                    "of a whole film, such as Mass-Test_P_nnnnn_LEFT_CC. Fetch the file again."
                )
            patient, side, view = name.groups()
            film = films.setdefault(
                (patient, f"{side[0]}-{view}"), _Film(patient, f"{side[0]}-{view}")
            )
            film.assessments.append(row["assessment"])
            film.folders[series] = folder.rpartition("/")[0]
    return list(films.values())


def _one(paths: list[Path], folder: str) -> str | None:
    """The only file of a series, or that where the table says; empty without one, None if unclear.

    The table calls it 000000.dcm; it has been handed out as 1-1.dcm, and by readable folder names
    instead of UIDs.
    """
    named = [path for path in paths if path.parent.as_posix().endswith(f"/{folder}")]
    chosen = named if len(named) == 1 else paths
    if len(chosen) > 1:
        return None
    return chosen[0].as_posix() if chosen else ""
