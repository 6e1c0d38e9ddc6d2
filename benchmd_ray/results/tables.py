"""The results table: technique × setting × dataset, ours with its interval, the paper's beside."""

from __future__ import annotations

import csv
import functools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import pandas as pd

from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.intervals import auroc_interval
from benchmd_ray.evaluation.metrics import auroc
from benchmd_ray.evaluation.predict import read_predictions
from benchmd_ray.files import replacing
from benchmd_ray.modalities import MODALITIES
from benchmd_ray.results.store import Run

TECHNIQUES = ("scratch", "e-mix", "shed", "mae", "imagenet", "imagenet+mae")
SETTINGS = ("linear", "finetune-small", "finetune-medium", "finetune-large", "finetune-full")
SPLITS = ("validation", "test")

FEW = 10
"""A class with fewer positive records is named below the table: its AUROC says little."""


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
    """``fixed`` for the fixed protocol's settings, ``shuffled`` for shuffled training labels, else
    ``custom``."""
    seed: int
    records: int
    """What is scored: scans for CT, elsewhere records."""
    patients: int
    auroc: float
    """Unweighted mean over the classes that could be scored."""
    low: float
    """Lower end of the 95 % interval, bootstrap over patients."""
    high: float
    """Upper end."""
    paper: float | None
    """The paper's AUROC of this cell, where the two may stand beside each other."""
    unscored: tuple[str, ...]
    """Classes without a positive or without a negative record."""
    classes: tuple[tuple[str, float, float, float], ...]
    """Per class: name, AUROC, low, high."""
    positives: tuple[int, ...]
    """Positive records of each class."""
    raw: tuple[int, int]
    """Raw records that the catalog was built from, and those of the whole dataset."""
    options: tuple[str, ...]
    """Options of the builds of source and dataset that are not the cards' defaults."""
    run: str
    """Name of the run's folder."""


@functools.cache
def paper_auroc() -> dict[tuple[str, str, str], float]:
    """The paper's tables 1 and 2: (dataset, setting, technique) → AUROC."""
    rows = _reference()
    return {(r["dataset"], r["setting"], r["technique"]): float(r["auroc"]) for r in rows}


@functools.cache
def paper_sources() -> frozenset[str]:
    """Datasets that the paper trains on, one of each modality."""
    return frozenset(row["dataset"] for row in _reference() if row["role"] == "source")


@functools.cache
def _reference() -> list[dict[str, str]]:
    path = resources.files("benchmd_ray.results") / "reference" / "benchmd_auroc.csv"
    return list(csv.DictReader(path.read_text("utf-8").splitlines()))


def cells(run: Run, resamples: int = 1000) -> list[Cell]:
    """Results of a run, computed from its predictions."""
    paths = sorted((run.folder / "predictions").glob("*.parquet"))
    return [cell for path in paths for cell in _cells_of(run, path, resamples)]


def _cells_of(run: Run, path: Path, resamples: int) -> Iterable[Cell]:
    predictions, about = read_predictions(path), run.description
    dataset, classes = predictions.description["dataset"], predictions.classes
    for split in predictions.splits:
        targets, scores, groups = predictions.of_split(split)
        result = auroc(targets, scores)
        spread = auroc_interval(targets, scores, groups, resamples=resamples)
        cell = Cell(
            modality=predictions.description["modality"],
            source=about["source"],
            dataset=dataset,
            role=predictions.description["role"],
            split=split,
            policy=predictions.description["policy"],
            technique=about["technique"],
            setting=about["setting"],
            protocol=_protocol(run),
            seed=about["seed"],
            records=len(targets),
            patients=len(set(groups.tolist())),
            auroc=result.mean,
            low=spread.low,
            high=spread.high,
            paper=None,
            unscored=tuple(classes[i] for i in result.unscored),
            classes=tuple(
                (name, value, *ends)
                for name, value, ends in zip(
                    classes, result.per_class, spread.per_class, strict=True
                )
            ),
            positives=tuple((targets == 1).sum(axis=0).tolist()),
            raw=(
                int(predictions.description["raw_records"]),
                int(predictions.description["raw_expected"]),
            ),
            options=_options(run, predictions.description),
            run=run.folder.name,
        )
        comparable = _comparable(cell) and not _incomplete(*about["raw"])
        yield replace(cell, paper=paper_auroc().get(_key(cell)) if comparable else None)


def _key(cell: Cell) -> tuple[str, str, str]:
    return cell.dataset, cell.setting, cell.technique


def _options(run: Run, scored: Mapping[str, str]) -> tuple[str, ...]:
    """Chosen options of the builds of the source and of the dataset that is scored."""
    chosen = {
        run.description["source"]: run.description["options"],
        scored["dataset"]: json.loads(scored["options"]),
    }
    return tuple(
        f"{dataset}: {name}={value}"
        for dataset, options in chosen.items()
        for name, value in options.items()
    )


def _comparable(cell: Cell) -> bool:
    """Whether the paper's number may stand beside a cell, as far as the cell itself tells.

    The paper trains on one source of each modality and scores its validation split and the
    targets. The default options are nearest to what it did.
    """
    return (
        cell.protocol != "shuffled"
        and cell.source in paper_sources()
        and (cell.role == "target" or cell.split == "validation")
        and not cell.options
        and not _incomplete(*cell.raw)
    )


def _incomplete(held: int, whole: int) -> bool:
    """Whether less than half of a dataset's raw records were there."""
    return held < whole / 2


def _protocol(run: Run) -> str:
    if run.settings.transfer.shuffle_labels:
        return "shuffled"
    return "fixed" if run.description["fixed"] else "custom"


def all_cells(found: Sequence[Run], resamples: int = 1000) -> list[Cell]:
    """Results of all runs with predictions, in the table's order.

    Raises:
        BenchmdError: There are none.
    """
    result = [cell for run in found if run.finished for cell in cells(run, resamples)]
    if not result:
        raise BenchmdError(
            f"none of the {len(found)} runs is finished and has predictions. Run "
            "`benchmd transfer` first: it evaluates the source and the targets that it is given."
        )
    return sorted(result, key=_order)


def _order(cell: Cell) -> tuple[object, ...]:
    def place(names: tuple[str, ...], name: str) -> tuple[int, str]:
        return (names.index(name) if name in names else len(names), name)

    return (
        cell.modality,
        cell.source,
        cell.dataset != cell.source,
        cell.dataset,
        place(SPLITS, cell.split),
        place(SETTINGS, cell.setting),
        place(TECHNIQUES, cell.technique),
        cell.seed,
        cell.run,
    )


def unfinished(found: Sequence[Run]) -> list[str]:
    """Names the runs that a table leaves out because they are not finished."""
    names = [run.folder.name for run in found if not run.finished]
    return [f"Not finished, left out: {', '.join(names)}."] if names else []


def number(value: float | None) -> str:
    """Three decimals; a dash where there is no number."""
    return "–" if value is None or math.isnan(value) else f"{value:.3f}"


def display_frame(found: Sequence[Cell]) -> pd.DataFrame:
    """The table as people read it."""
    return pd.DataFrame(
        {
            "modality": c.modality,
            "trained on": c.source,
            "dataset": _scored(c),
            "setting": c.setting,
            "technique": c.technique,
            "AUROC [95 % interval]": f"{number(c.auroc)} [{number(c.low)}, {number(c.high)}]",
            "paper": number(c.paper),
            "classes": f"{len(c.classes) - len(c.unscored)}/{len(c.classes)}",
            "records": c.records,
            "patients": c.patients,
            "policy": c.policy,
            "protocol": c.protocol,
            "seed": c.seed,
            "run": c.run.rpartition("-")[2],
        }
        for c in found
    )


def _scored(cell: Cell) -> str:
    """Dataset, and split where it is a source's; another than the run's own is named as such."""
    if cell.role == "target":
        return cell.dataset
    other = "" if cell.dataset == cell.source else ", another source"
    return f"{cell.dataset} ({cell.split}{other})"


def notes(found: Sequence[Cell]) -> list[str]:
    """What a reader of the table must know."""
    lines = [
        "AUROC: one-vs-rest, unweighted mean over the classes that could be scored; 95 % interval "
        "by bootstrap over patients.",
        *_notes_on_paper(found),
    ]
    if any(c.role == "source" and c.split == "validation" for c in found):
        lines.append(
            "validation: the split that also chose the best epoch, so that its AUROC is a little "
            "too high."
        )
    if any(c.setting == "linear" for c in found):
        lines.append("linear: a linear head on the frozen encoder, all labels.")
    if any(c.role == "source" and c.dataset != c.source for c in found):
        lines.append(
            "another source: scored zero-shot as the targets are, by a run that was trained on the "
            "source named at the left."
        )
    lines += [
        f"{name}: the records of the table are {MODALITIES[name].scored}."
        for name in sorted({c.modality for c in found})
        if MODALITIES[name].scored != "records"
    ]
    if any(c.protocol == "custom" for c in found):
        lines.append("custom: settings other than the fixed protocol's; not comparable to paper.")
    if any(c.protocol == "shuffled" for c in found):
        lines.append("shuffled: trained on labels shuffled among the records, a sanity check.")
    partial = {(c.dataset, *c.raw) for c in found if c.raw[0] != c.raw[1]}
    lines += [
        f"{dataset}: built from {held:,} raw records, the whole dataset has {whole:,}."
        for dataset, held, whole in sorted(partial)
    ]
    options = sorted({option for c in found for option in c.options})
    lines += [f"{option}, an option of the build; the default is another." for option in options]
    return [*lines, *_notes_on_classes(found)]


def _notes_on_paper(found: Sequence[Cell]) -> list[str]:
    lines = []
    if any(c.paper is not None for c in found):
        lines.append(
            "paper: BenchMD v2, tables 1 and 2, full datasets with the released labels and splits."
        )
    if any(c.paper is None and _key(c) in paper_auroc() for c in found):
        lines.append(
            "paper: – where its number and this run's cannot be compared: another source, a split "
            "that the paper does not score, shuffled labels, other options of a build, or less "
            "than half of the raw records of a dataset."
        )
    return lines


def _notes_on_classes(found: Sequence[Cell]) -> list[str]:
    """Classes of which there are few positives, or none or nothing else."""
    few = {
        (c.dataset, c.split, MODALITIES[c.modality].scored, f"{name} ({count})")
        for c in found
        for (name, *_), count in zip(c.classes, c.positives, strict=True)
        if 0 < count < FEW
    }
    lines = []
    for where in sorted({entry[:3] for entry in few}):
        dataset, split, scored = where
        names = ", ".join(entry[3] for entry in sorted(few) if entry[:3] == where)
        lines.append(f"Fewer than {FEW} positive {scored} in {dataset} ({split}): {names}.")
    missing = {
        (c.dataset, c.split, MODALITIES[c.modality].scored, c.unscored) for c in found if c.unscored
    }
    return lines + [
        f"Not scored in {dataset} ({split}), no positive or no negative {scored}: "
        f"{', '.join(names)}."
        for dataset, split, scored, names in sorted(missing)
    ]


def text(frame: pd.DataFrame) -> str:
    """A frame as aligned text, columns of numbers to the right."""
    rows = [list(map(str, frame.columns)), *([str(v) for v in row] for row in frame.to_numpy())]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    right = [pd.api.types.is_numeric_dtype(kind) for kind in frame.dtypes]
    lines = [
        "  ".join(
            v.rjust(w) if r else v.ljust(w) for v, w, r in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def markdown(frame: pd.DataFrame) -> str:
    """A frame as a Markdown table."""
    rows = [list(map(str, frame.columns)), ["---"] * len(frame.columns)]
    rows += [[str(value) for value in row] for row in frame.to_numpy()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def write_tables(found: Sequence[Cell], folder: Path) -> list[Path]:
    """Write ``auroc.csv``, ``auroc_per_class.csv`` and ``auroc.md``."""
    whole = pd.DataFrame(
        [
            {
                **{
                    k: v
                    for k, v in vars(c).items()
                    if k not in ("classes", "unscored", "raw", "positives", "options")
                },
                "options": "; ".join(c.options),
                "unscored": "; ".join(c.unscored),
            }
            for c in found
        ]
    )
    key = ["modality", "source", "dataset", "split", "policy", "technique", "setting"]
    key += ["seed", "run"]
    per_class = pd.DataFrame(
        [
            {
                **{k: getattr(c, k) for k in key},
                "class": name,
                "positives": positives,
                "auroc": value,
                "low": low,
                "high": high,
            }
            for c in found
            for (name, value, low, high), positives in zip(c.classes, c.positives, strict=True)
        ]
    )
    lines = [markdown(display_frame(found)), "", *(f"- {note}" for note in notes(found))]
    contents = {
        "auroc.csv": whole.to_csv(index=False),
        "auroc_per_class.csv": per_class.to_csv(index=False),
        "auroc.md": "\n".join(lines) + "\n",
    }
    for name, content in contents.items():
        with replacing(folder / name) as partial:
            partial.write_text(content, "utf-8")
    return [folder / name for name in contents]
