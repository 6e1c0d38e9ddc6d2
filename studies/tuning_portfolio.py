"""A portfolio from the searches of `studies.tuning`, as `benchmd tune --learn` makes it of others.

The frozen networks of the study count as pretrained encoders. Its starts are trained longer than
those of the fixed protocol, so settings that beat them are good for more than length.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmd_ray.data.origins import of_one_origin
from benchmd_ray.tuning.families import FAMILY, Family
from benchmd_ray.tuning.gains import learned
from benchmd_ray.tuning.portfolio import (
    Portfolio,
    SearchKind,
    chosen_settings,
    read_portfolio,
)
from benchmd_ray.tuning.records import FamilyRecord, SearchRecord
from studies.tuning_heads import families_of

AXES = {"NIH AP": 2, "NIH PA": 2, "ISIC 2017": 2, "CT": 2, "BreastMNIST": 2, "PneumoniaMNIST": 2}
AXES |= {"AdrenalMNIST3D": 3, "Hippocampus": 3}
"""Axes of a source's signals; 1 of the others."""
NAMES = {
    "BreastMNIST": "breastmnist",
    "PneumoniaMNIST": "pneumoniamnist",
    "AdrenalMNIST3D": "adrenalmnist3d",
    "NIH AP": "nih-cxr-ap",
    "NIH PA": "nih-cxr-pa",
    "ISIC 2017": "isic-2017",
    "Hippocampus": "hippocampus",
    "PTB-XL": "ptb-xl",
    "CinC 2021": "cinc2021",
    "CT": "totalsegmentator-ct",
    "EEG": "eeg-electrodes",
    "Sleep-EDF": "sleep-edf",
}
"""The dataset of each source, as a portfolio names it."""


def kind_of(source: str, family: Family) -> SearchKind:
    encoder = "random-kernels" if family.technique == "kernels" else "pretrained"
    return SearchKind(AXES.get(source, 1), encoder, family.setting, "auroc")


def lent_to(
    portfolio: Path, source: str, families: Sequence[Family]
) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Settings of a portfolio for a search on a source, by family; none without the file."""
    if not portfolio.is_file():
        return ()
    kinds = {family.name: kind_of(source, family) for family in families}
    chosen = chosen_settings(
        read_portfolio(portfolio),
        kinds,
        families,
        lambda dataset: not of_one_origin(dataset, NAMES[source]),
    )
    return tuple((settings.family, settings.values) for settings in chosen)


def portfolio_of(
    entries: Collection[Mapping[str, Any]], sketches: Mapping[str, str] | None = None
) -> Portfolio:
    """The portfolio of the searches in ``trials.json``.

    Args:
        entries: Content of that file.
        sketches: Of the datasets' catalogs, by dataset, where there are any.
    """
    records: list[SearchRecord] = []
    kinds: dict[tuple[str, str], SearchKind] = {}
    for number, entry in enumerate(entries):
        source = entry["source"]
        families = families_of(AXES.get(source, 1))
        sketch = (sketches or {}).get(NAMES[source], "")
        record = _record(f"search-{number}", NAMES[source], entry["tried"], families, sketch)
        records.append(record)
        kinds |= {(record.name, f.name): kind_of(source, f) for f in families}
    return learned(records, kinds)


def _record(
    name: str,
    dataset: str,
    tried: Collection[Mapping[str, Any]],
    families: Collection[Family],
    sketch: str,
) -> SearchRecord:
    settings = [parameter.name for f in families for parameter in f.space.parameters]
    rows = [
        {
            **dict.fromkeys(settings),
            **trial["values"],
            **{key: trial[key] for key in ("number", "value", "evaluations")},
            FAMILY: trial["family"],
            "state": "complete",
        }
        for trial in tried
    ]
    return SearchRecord(
        folder=Path(name),
        families=tuple(
            FamilyRecord(f.technique, f.setting, f.space.as_dict(), ({},)) for f in families
        ),
        sources=({"source": dataset, "sketch": sketch},),
        metric="auroc",
        sampler="tpe",
        cautious=False,
        seed=0,
        device="cpu",
        borrowed=0,
        lenders={},
        trials=pd.DataFrame(rows),
    )
