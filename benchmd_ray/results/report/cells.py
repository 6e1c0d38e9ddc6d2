"""The results of single runs, and the order and names by which results are shown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmd_ray.benchmarks.benchmark import Benchmark
from benchmd_ray.benchmarks.registry import published_for, starts
from benchmd_ray.errors import BenchmdError
from benchmd_ray.results.report.scored import Scored
from benchmd_ray.results.store import Run
from benchmd_ray.run_files import PREDICTIONS
from benchmd_ray.scores.seeds import pooled_seeds
from benchmd_ray.scores.support import Support

TECHNIQUES = ("scratch", "e-mix", "shed", "mae", "imagenet", "imagenet+mae")
SETTINGS = ("linear", "finetune-small", "finetune-medium", "finetune-large", "finetune-full")
SPLITS = ("validation", "test")


@dataclass(frozen=True)
class Cell:
    """Result of one run on one split of one dataset."""

    modality: str
    source: str
    """Dataset that the run was trained on."""
    dataset: str
    """Dataset that is scored."""
    role: str
    split: str
    policy: str
    technique: str
    setting: str
    protocol: str
    """As `protocols` names it: a start, ``tuned``, ``custom`` or ``shuffled``; with a number or
    letter where several settings share the rest of the key."""
    seed: int
    records: int
    """How many of what is scored."""
    scored: str
    """What that is: scans for CT, elsewhere records."""
    patients: int
    auroc: float
    """Unweighted mean over the classes that could be scored."""
    low: float
    """Lower end of the 95 % interval over patients; NaN where there is none."""
    high: float
    """Upper end."""
    caution: str
    """Why there is no interval, or why it is rough."""
    paper: float | None
    """The paper's AUROC of this cell, where the two may stand beside each other."""
    unlike: str | None
    """Why they may not."""
    unscored: tuple[str, ...]
    """Classes without a positive or without a negative record."""
    classes: tuple[tuple[str, float, float, float], ...]
    """Per class: name, AUROC, low, high."""
    support: Support
    """Patients that the values rest on."""
    raw: tuple[int, int]
    """Raw records that the catalog was built from, and those of the whole dataset."""
    options: tuple[str, ...]
    """Options of the builds of source and dataset that are not the cards' defaults."""
    remarks: tuple[str, ...]
    """What the build of the dataset's catalog remarked, with the number of records."""
    run: str
    """Name of the run's folder."""

    @property
    def published_in(self) -> str:
        """Where that is from; empty where there is none."""
        published = published_for(self.dataset, self.setting, self.technique)
        return published[0].published.source if published and published[0].published else ""

    @property
    def published(self) -> float | None:
        """The paper's AUROC of this cell, whether or not it is comparable."""
        published = published_for(self.dataset, self.setting, self.technique)
        return None if published is None else published[1]


def cell(scored: Scored, protocol: str) -> Cell:
    """Result of a run on a split, from its measured predictions.

    Args:
        scored: The predictions with the metric ``auroc``.
        protocol: The run's protocol, as `protocols` names it.
    """
    value, held = scored.values["auroc"], scored.support
    mean, *per_class = (
        pooled_seeds([each], [draws], held.basis("auroc", column))
        for column, (each, draws) in enumerate(
            zip((value.mean, *value.per_class), scored.resampled["auroc"].T, strict=True)
        )
    )
    about, run = scored.about, scored.run.description
    published = published_for(scored.dataset, run["setting"], run["technique"])
    unlike = None if published is None else _unlike(published[0], scored, protocol)
    return Cell(
        modality=about["modality"],
        source=run["source"],
        dataset=scored.dataset,
        role=about["role"],
        split=scored.split,
        policy=about["policy"],
        technique=run["technique"],
        setting=run["setting"],
        protocol=protocol,
        seed=run["seed"],
        records=len(scored.targets),
        scored=scored.predicted.scored,
        patients=scored.patients,
        auroc=mean.mean,
        low=mean.low,
        high=mean.high,
        caution=mean.caution,
        paper=published[1] if published is not None and unlike is None else None,
        unlike=unlike,
        unscored=tuple(scored.classes[i] for i in value.unscored),
        classes=tuple(
            (name, one.mean, one.low, one.high)
            for name, one in zip(scored.classes, per_class, strict=True)
        ),
        support=held,
        raw=_raw(scored),
        options=_options(scored),
        remarks=tuple(
            f"{count:,} records: {remark}"
            for remark, count in json.loads(scored.about["remarks"]).items()
        ),
        run=scored.run.folder.name,
    )


def _unlike(benchmark: Benchmark, scored: Scored, protocol: str) -> str | None:
    run = scored.run.description
    assert benchmark.published is not None
    return benchmark.published.unlike(
        protocol,
        run["source"],
        scored.about["role"],
        split=scored.split,
        options=_options(scored),
        raw=(_raw(scored), tuple(run["raw"])),
    )


def _raw(scored: Scored) -> tuple[int, int]:
    return int(scored.about["raw_records"]), int(scored.about["raw_expected"])


def _options(scored: Scored) -> tuple[str, ...]:
    """Chosen options of the builds of the source and of the dataset that is scored."""
    run = scored.run.description
    chosen: dict[str, Mapping[str, str]] = {
        run["source"]: run["options"],
        scored.dataset: json.loads(scored.about["options"]),
    }
    return tuple(
        f"{dataset}: {name}={value}"
        for dataset, options in chosen.items()
        for name, value in options.items()
    )


def with_predictions(found: Sequence[Run]) -> list[Run]:
    """Finished runs with predictions.

    Raises:
        BenchmdError: There are none.
    """
    chosen = [run for run in found if run.finished and _has_predictions(run)]
    if not chosen:
        raise BenchmdError(
            f"none of the {len(found)} runs is finished and has predictions. Run "
            "`benchmd transfer` first: it evaluates the source and the targets that it is given."
        )
    return chosen


def _has_predictions(run: Run) -> bool:
    return any((run.folder / PREDICTIONS).glob("*.parquet"))


def cell_order(cell: Cell) -> tuple[object, ...]:
    """Sorts results of runs in the order in which they are shown."""
    return (*place(vars(cell)), cell.seed, cell.run)


def place(key: Mapping[str, str]) -> tuple[object, ...]:
    """Sorts results by their key (`frames.KEY`) in the order in which they are shown."""

    def known(names: tuple[str, ...], name: str) -> tuple[int, str]:
        return (names.index(name) if name in names else len(names), name)

    return (
        key["modality"],
        key["source"],
        key["dataset"] != key["source"],
        key["dataset"],
        key["policy"],
        known(SPLITS, key["split"]),
        known(SETTINGS, key["setting"]),
        known(TECHNIQUES, key["technique"]),
        known(tuple(starts()), key["protocol"]),
    )


def dataset_text(source: str, dataset: str, role: str, split: str) -> str:
    """A dataset, and its split where it is a source; another than the run's own is named so."""
    if role == "target":
        return dataset
    return f"{dataset} ({split}{'' if dataset == source else ', another source'})"


def unfinished(found: Sequence[Run]) -> list[str]:
    """Names the runs that are left out because they are not finished."""
    names = [run.folder.name for run in found if not run.finished]
    return [f"Not finished, left out: {', '.join(names)}."] if names else []
