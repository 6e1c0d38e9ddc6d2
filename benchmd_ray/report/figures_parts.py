"""Types of the report's figures, its studies, and the rows of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from benchmd_ray.data.splits import TARGET_SPLIT
from benchmd_ray.report.canvas import TechniqueLook
from benchmd_ray.report.frames import LABELS, SETTINGS, by_name, mode_and_labels, rank_of
from benchmd_ray.report.protocols import APART

if TYPE_CHECKING:
    from benchmd_ray.report.analysis import Analysis

TOGETHER = 8
"""Studies in one figure, at most."""
STUDY = ("modality", "source", "policy")
MOST_TRAINED = ("finetune", "linear", "knn")
"""Modes of transfer, the most first."""
OVER_TARGETS = tuple("setting technique value low high paper tested differs caution".split())
"""Columns of `over_targets`."""


@dataclass(frozen=True)
class Titled:
    """A figure of the report."""

    name: str
    """Stem of its files."""
    section: str
    title: str
    """What it shows, with numbers; also drawn at the top."""
    caption: str
    """What the marks and intervals are, and how many patients, resamples and seeds."""
    figure: Figure
    folded: bool = False
    """Whether the page shows only its title until it is opened."""
    aggregate: bool = False
    """Whether it shows only aggregates, nothing of a single record; only such figures are sent to
    W&B.
    """


@dataclass(frozen=True)
class Skipped:
    """A figure that could not be drawn."""

    name: str
    reason: str


Drawn = Titled | Skipped


@dataclass(frozen=True)
class SourceStudy:
    """What a figure shows at most: the runs of one source and policy."""

    modality: str
    source: str
    policy: str
    label: str
    """Short: names the policy where the report holds several."""

    @property
    def slug(self) -> str:
        return self.label.replace(", ", "-").replace(" ", "-")

    def of(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Rows of this study, without shuffled labels and averages over runs."""
        here = np.ones(len(frame), bool)
        for column in STUDY:
            if column in frame:
                here &= (frame[column] == getattr(self, column)).to_numpy(bool)
        if "protocol" in frame:
            here &= ~frame["protocol"].isin(APART).to_numpy(bool)
        return frame[here]


@dataclass(frozen=True)
class FigureContext:
    """The analysis and the settings that all figures share."""

    analysis: Analysis
    looks: Mapping[str, TechniqueLook]
    studies: tuple[SourceStudy, ...]
    resamples: int | None = None
    """Resamples of the patients, if known."""

    @property
    def together(self) -> list[tuple[SourceStudy, ...]]:
        starts = range(0, max(1, len(self.studies)), TOGETHER)
        return [self.studies[start : start + TOGETHER] for start in starts]

    def name(self, topic: str, studies: tuple[SourceStudy, ...]) -> str:
        """File stem of a figure of these studies."""
        groups = self.together
        return topic if len(groups) == 1 else f"{topic}-{groups.index(studies) + 1}"

    def detail(self, study: SourceStudy) -> str:
        """The setting with the most labels, for figures that show only one."""
        return min(settings_of(study.of(self.analysis.scores)), key=_by_labels)

    def not_drawn(self, studies: Sequence[SourceStudy]) -> str:
        """A sentence with the settings other than `detail`; empty if there are none."""
        others: dict[tuple[str, ...], list[str]] = {}
        for study in studies:
            settings, drawn = settings_of(study.of(self.analysis.scores)), self.detail(study)
            others.setdefault(tuple(s for s in settings if s != drawn), []).append(study.label)
        if len(others) == 1:
            names = ", ".join(next(iter(others)))
            return f"Not drawn, but in the tables: {names}." * bool(names)
        parts = [f"of {'; '.join(of)} {', '.join(names)}" for names, of in others.items() if names]
        return f"Not drawn, but in the tables: {'; '.join(parts)}."


def studies(scores: pd.DataFrame, modalities: Sequence[str]) -> tuple[SourceStudy, ...]:
    """The studies of a report, in the order of the modalities and then by name."""
    if scores.empty:
        return ()
    keys = sorted({(str(m), str(s), str(p)) for m, s, p in scores[list(STUDY)].to_numpy()})
    keys.sort(key=lambda key: modalities.index(key[0]))
    several = len({policy for _, _, policy in keys}) > 1
    return tuple(SourceStudy(*key, ", ".join(key if several else key[:2])) for key in keys)


def ordered(names: Iterable[str], order: Sequence[str]) -> list[str]:
    """Distinct names, with those of ``order`` first."""
    present = set(names)
    return [name for name in order if name in present] + sorted(present - set(order))


def techniques_of(frame: pd.DataFrame) -> list[str]:
    """Names of rows in the benchmark's order."""
    return by_name(frame["technique"])


def settings_of(frame: pd.DataFrame) -> list[str]:
    """Transfer settings in the benchmark's order."""
    return ordered(frame["setting"], SETTINGS)


def _by_labels(setting: str) -> tuple[int, int]:
    """Sort key of settings: most labels first, then most that is trained."""
    mode, labels = mode_and_labels(setting)
    return rank_of(LABELS, labels)[0], rank_of(MOST_TRAINED, mode)[0]


def mean_auroc(scores: pd.DataFrame) -> pd.DataFrame:
    """Rows of the AUROC averaged over classes."""
    if scores.empty:
        return scores
    return scores[(scores["metric"] == "auroc") & (scores["class"] == "mean")]


def of_metric(frame: pd.DataFrame, metric: str = "auroc") -> pd.DataFrame:
    return frame if frame.empty else frame[frame["metric"] == metric]


def in_distribution(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of the source's validation split, as in the paper; without one, of its test split."""
    rows = frame[frame["dataset"] == frame["source"]]
    if rows.empty:
        return rows
    splits = rows.groupby(["source", "policy"])["split"].transform(_of_source)
    chosen = rows["split"].to_numpy(str) == splits.to_numpy(str)
    return rows[np.asarray(chosen, bool)]


def _of_source(splits: pd.Series) -> str:
    names = {str(split) for split in splits}
    return next((name for name in ("validation", "test") if name in names), min(names))


def on_targets(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of the targets, each on the split that its policy scores."""
    frame = frame[(frame["role"] == "target") & (frame["dataset"] != frame["source"])]
    if frame.empty:
        return frame
    splits: dict[tuple[str, str], set[str]] = {}
    names = list(zip(frame["policy"], frame["dataset"], frame["split"], strict=True))
    for policy, dataset, split in names:
        splits.setdefault((policy, dataset), set()).add(split)
    scored = {
        key: TARGET_SPLIT[key[0]] if TARGET_SPLIT.get(key[0]) in names else min(names)
        for key, names in splits.items()
    }
    return frame[np.array([split == scored[policy, name] for policy, name, split in names])]


def over_targets(frame: pd.DataFrame, *, one_seed: bool) -> pd.DataFrame:
    """Mean over a study's targets for each setting and technique, with the columns `OVER_TARGETS`.

    Targets are assumed to share no patients: with one seed, the distances from the mean to the
    interval ends are added in quadrature (Zou and Donner 2008, doi:10.1002/sim.3095). With several
    seeds the intervals include the spread over seeds, which the targets share; then the interval
    ends are averaged, which is right for estimates that vary together and too wide for others. A
    technique that lacks a target of another technique in the same setting is excluded. A mean is
    tested if all its targets are, and differs from zero if its interval excludes zero.
    """
    rows = []
    frame = on_targets(frame)
    power = 2 if one_seed else 1
    for setting, cells in frame.groupby("setting", sort=False):
        count = cells["dataset"].nunique()
        for technique, part in cells.groupby("technique", sort=False):
            if part["dataset"].nunique() != count or len(part) != count:
                continue
            value = float(part["value"].mean())
            below, above = (
                float((np.maximum(distance.to_numpy(float), 0) ** power).sum() ** (1 / power))
                for distance in (part["value"] - part["low"], part["high"] - part["value"])
            )
            low, high = value - below / count, value + above / count
            tested = "tested" in part and bool(part["tested"].all()) and low <= high
            paper = part["paper"].mean(skipna=False) if "paper" in part else np.nan
            differs = tested and not low <= 0 <= high
            caution = next(filter(None, part["caution"]), "")
            row = (setting, technique, value, low, high, float(paper), tested, differs, caution)
            rows.append(row)
    return pd.DataFrame(rows, columns=list(OVER_TARGETS))


def places_of(study: SourceStudy, frame: pd.DataFrame) -> list[tuple[str, str]]:
    """(dataset, split) of a study: its source first, then targets by name."""
    places = {(str(d), str(s)) for d, s in zip(frame["dataset"], frame["split"], strict=True)}
    return sorted(places, key=lambda at: (at[0] != study.source, at[0], at[1] != "validation", at))


def of_place(frame: pd.DataFrame, place: tuple[str, str]) -> pd.DataFrame:
    """Rows of one split of one dataset."""
    return frame[(frame["dataset"] == place[0]) & (frame["split"] == place[1])]


def of_setting(
    study: SourceStudy, frame: pd.DataFrame, place: tuple[str, str], setting: str
) -> pd.DataFrame:
    """Rows of one study, dataset, split and setting."""
    rows = of_place(study.of(frame), place)
    return rows[rows["setting"] == setting]


def place_label(study: SourceStudy, place: tuple[str, str]) -> str:
    """Name of a dataset and split, and its role in the study."""
    dataset, split = place
    if dataset == study.source:
        return f"{dataset} ({split}, {'in distribution' if split == 'validation' else 'source'})"
    return f"{dataset} ({split}, target)"


def heading(study: SourceStudy, place: tuple[str, str]) -> str:
    """Title of a study and one of its datasets and splits."""
    dataset, split = place
    if dataset == study.source:
        return f"{study.label} ({split}{', in distribution' * (split == 'validation')})"
    return f"{study.label} → {dataset} ({split})"
