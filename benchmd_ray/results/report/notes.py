"""What a reader of results must know: how they were made, and what they do not say."""

from __future__ import annotations

from collections.abc import Sequence

from benchmd_ray.modalities import modality
from benchmd_ray.results.report.cells import Cell
from benchmd_ray.results.report.frames import BOOTSTRAP
from benchmd_ray.results.report.paper import SOURCE
from benchmd_ray.results.report.protocols import is_tuned

FEW = 10
"""A class with fewer positive records is named: its AUROC says little."""


def notes(found: Sequence[Cell]) -> list[str]:
    """Notes on results of runs."""
    lines = [
        "AUROC: one-vs-rest, unweighted mean over the classes that could be scored; 95 % interval "
        f"by {BOOTSTRAP}, with several seeds over patients and seeds.",
        *_notes_on_seeds(found),
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
        f"{name}: the records of the table are {modality(name).scored}."
        for name in sorted({c.modality for c in found})
        if modality(name).scored != "records"
    ]
    if any(c.protocol.startswith("baseline") for c in found):
        lines.append(
            "baseline: the recipe of MedMNIST's baselines; `benchmd medmnist report` compares."
        )
    if any(c.protocol.startswith("custom") for c in found):
        lines.append("custom: settings other than the fixed protocol's; not comparable to paper.")
    if any(is_tuned(c.protocol) for c in found):
        lines.append("tuned: settings that a search found; not comparable to paper.")
    if any(c.protocol.startswith("shuffled") for c in found):
        lines.append("shuffled: trained on labels shuffled among the records, a sanity check.")
    partial = {(c.dataset, *c.raw) for c in found if c.raw[0] != c.raw[1]}
    lines += [
        f"{dataset}: built from {held:,} raw records, the whole dataset has {whole:,}."
        for dataset, held, whole in sorted(partial)
    ]
    options = sorted({option for c in found for option in c.options})
    lines += [f"{option}, an option of the build; the default is another." for option in options]
    remarks = sorted({(c.dataset, remark) for c in found for remark in c.remarks})
    lines += [f"{dataset}: {remark}." for dataset, remark in remarks]
    return [*lines, *_notes_on_classes(found)]


def _notes_on_seeds(found: Sequence[Cell]) -> list[str]:
    if len({c.seed for c in found}) < 2:
        return []
    return [
        "seeds: runs that differ by their seed alone are one row with their mean and the standard "
        "deviation between them (sd); the interval is then for patients and seeds together. Two "
        "seeds hardly tell how seeds vary, so that it can be very wide: take three or more. Of one "
        "seed it says nothing about another."
    ]


def _notes_on_paper(found: Sequence[Cell]) -> list[str]:
    lines = []
    if any(c.paper is not None for c in found):
        lines.append(f"paper: {SOURCE}, full datasets with the released labels and splits.")
    if any(c.paper is None and c.published is not None for c in found):
        lines.append(
            "paper: – where its number and this run's cannot be compared: settings other than the "
            "fixed protocol's, shuffled labels, another source, a split that the paper does not "
            "score, other options of a build, or less than half of the raw records of a dataset."
        )
    return lines


def _notes_on_classes(found: Sequence[Cell]) -> list[str]:
    """Classes of which there are few positives, or none or nothing else."""
    few = {
        (c.dataset, c.split, modality(c.modality).scored, f"{name} ({count})")
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
        (c.dataset, c.split, modality(c.modality).scored, c.unscored) for c in found if c.unscored
    }
    return lines + [
        f"Not scored in {dataset} ({split}), no positive or no negative {scored}: "
        f"{', '.join(names)}."
        for dataset, split, scored, names in sorted(missing)
    ]
