"""ISRUC-Sleep as its owner hands it out: recordings in three subgroups, staged by two experts.

Subgroups I and III have a recording per person (``subgroupI/1/1.rec``), subgroup II two
(``subgroupII/1/2/2.rec``). Next to ``1.rec``, an EDF file, are ``1_1.txt`` and ``1_2.txt`` with the
stages by either expert, a number for each epoch of 30 s.
Source: https://sleeptight.isr.uc.pt/.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.datasets.eeg import Montage, checked_codes, read_night, states
from benchmd_ray.data.raw import DUPLICATE, Choices, Discovery, RawItem, Reading, by_key, files
from benchmd_ray.data.readers.bounded import read_bounded
from benchmd_ray.data.records import hashed_patient
from benchmd_ray.data.splits import hashed_split
from benchmd_ray.data.tables import BOM

VERSION = 1
MONTAGE: Montage = {
    "C3": [("C3-A2",), ("C3-M2",), ("C3", "A2"), ("C3", "M2")],
    "C4": [("C4-A1",), ("C4-M1",), ("C4", "A1"), ("C4", "M1")],
}
"""Both against the opposite mastoid; one recording has electrodes and mastoids one by one."""
SUBGROUP = re.compile(r"subgroup[ _-]?(III|II|I|3|2|1)", re.IGNORECASE)
SUBGROUPS = {"I": 1, "II": 2, "III": 3, "1": 1, "2": 2, "3": 3}
STRAY = "its folders do not say whose recording it is"
MAX_TEXT_BYTES = 2**20
"""Larger stagings are refused; a night's has about 3 kB."""


@dataclass(frozen=True, order=True)
class _Night:
    subgroup: int
    person: int
    recording: int = 1


def discover(root: Path, card: DatasetCard, choices: Choices) -> Discovery:
    """List the recordings of the chosen subgroups; policy ``released`` splits by person."""
    expert, wanted = choices.options["expert"], choices.options["subgroup"]
    asked = set(SUBGROUPS.values()) if wanted == "all" else {SUBGROUPS[wanted]}
    paths = files(root, "*.rec") + files(root, "*.edf")  # the owner's ending first
    nights, doubled = by_key(paths, lambda path: _night(path.relative_to(root)))
    stray = len(paths) - len(nights) - doubled
    stagings, further = by_key(
        files(root, f"*_{expert}.txt"), lambda path: _night(path.relative_to(root))
    )
    excluded = +Counter({STRAY: stray, DUPLICATE: doubled + further})
    items = []
    for night, path in sorted(nights.items()):
        if night.subgroup not in asked:
            excluded["it is of a subgroup that was not asked for"] += 1
        elif night not in stagings:
            excluded[f"it has no staging by expert {expert}"] += 1
        else:
            name = _name(night)
            patient = hashed_patient(card.namespace, name)
            item = RawItem(
                path=path.relative_to(root).as_posix(),
                record_id=f"{patient}-{night.recording}",
                group_id=patient,
                split="test" if choices.policy == "clean" else hashed_split(card.name, name),
                details={"stages": stagings[night].relative_to(root).as_posix()},
            )
            items.append(item)
    missing = [
        f"recording {night.recording} of patient {hashed_patient(card.namespace, _name(night))}"
        for night in sorted(stagings.keys() - nights.keys())
        if night.subgroup in asked
    ]
    alone = {night.subgroup for night in nights} <= {1}
    layout = "subgroup-1" if alone else "subgroups"
    return Discovery(layout, items, missing, dict(excluded), states=states(card))


def read(root: Path, item: RawItem, card: DatasetCard) -> Reading:
    """Epochs of one recording."""
    codes = text_stages(root / str(item.details["stages"]))
    return read_night(root, item, card, montage=MONTAGE, codes=codes)


def text_stages(path: Path) -> list[str]:
    """Codes of the epochs in a text file with a number per line; blank lines do not count."""
    content = read_bounded(path, MAX_TEXT_BYTES, "its staging")
    codes = content.decode("latin-1").removeprefix(BOM).split()
    return checked_codes(codes)


def _name(night: _Night) -> str:
    """A person's name: numbers start anew in each subgroup."""
    return f"{night.subgroup}/{night.person}"


def _night(path: Path) -> _Night | None:
    """Which recording a file belongs to, such as ``subgroupII/1/2/2_1.txt``; None where none."""
    subgroup, folders = 1, list(path.parts[:-1])
    for depth, folder in enumerate(folders):
        if match := SUBGROUP.fullmatch(folder):
            subgroup, folders = SUBGROUPS[match[1].upper()], folders[depth + 1 :]
            break
    depth = 2 if subgroup == 2 else 1
    numbers = [text for text in folders if text.isascii() and text.isdigit()]
    if len(folders) != depth or numbers != folders or path.stem.split("_")[0] != numbers[-1]:
        return None
    return _Night(subgroup, *map(int, numbers))
