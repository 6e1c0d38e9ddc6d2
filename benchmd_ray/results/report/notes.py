"""What a reader of results must know: how they were made, and what they do not say."""

from __future__ import annotations

from collections.abc import Sequence

from benchmd_ray.benchmarks.registry import starts
from benchmd_ray.results.report.cells import Cell
from benchmd_ray.results.report.frames import BOOTSTRAP
from benchmd_ray.results.report.protocols import is_tuned
from benchmd_ray.scores.metrics import METRICS
from benchmd_ray.scores.support import (
    INTERVAL_PATIENTS,
    ROUGH_IN_CLASS,
    TEST_PATIENTS,
)


def notes(found: Sequence[Cell]) -> list[str]:
    """Notes on results of runs."""
    lines = [
        "AUROC: one-vs-rest, unweighted mean over the classes that could be scored; 95 % interval "
        f"by Student's t from a {BOOTSTRAP}, with several seeds over patients and seeds.",
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
        f"{name}: the records of the table are {scored}."
        for name, scored in sorted({(c.modality, c.scored) for c in found})
        if scored != "records"
    ]
    names = {c.protocol.partition(" ")[0] for c in found}
    lines += [f"{s.name}: {s.note}" for s in starts().values() if s.note and s.name in names]
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
    return [*lines, *_notes_on_patients(found), *_notes_on_classes(found)]


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
    sources = {c.published_in for c in found if c.paper is not None}
    lines += [
        f"paper: {s}, full datasets with the released labels and splits." for s in sorted(sources)
    ]
    if any(c.paper is None and c.published is not None for c in found):
        lines.append(
            "paper: – where its number and this run's cannot be compared: settings other than the "
            "fixed protocol's, shuffled labels, another source, a split that the paper does not "
            "score, other options of a build, or less than half of the raw records of a dataset."
        )
    return lines


def _notes_on_patients(found: Sequence[Cell]) -> list[str]:
    """Splits of too few patients."""
    bases = {(c.dataset, c.split): c.support.basis("accuracy") for c in found}
    return [
        f"{dataset} ({split}): {basis.no_test}; "
        + (
            f"fewer than {INTERVAL_PATIENTS} have no interval, and nothing about them is tested."
            if basis.no_interval
            else f"with fewer than {TEST_PATIENTS} nothing is tested."
        )
        for (dataset, split), basis in sorted(bases.items(), key=lambda item: item[0])
        if basis.no_test
    ]


def _notes_on_classes(found: Sequence[Cell]) -> list[str]:
    """Classes that rest on few patients, and those of no positives or of nothing else."""
    lines, enough = [], METRICS["auroc"].least
    for least, most, so in (
        (1, enough, "so no interval of the class or of a mean over classes"),
        (enough, ROUGH_IN_CLASS, "so the interval is rough"),
    ):
        few: dict[tuple[str, str], dict[str, None]] = {}
        for c in found:
            for (name, *_), count in zip(c.classes, c.support.rarer, strict=True):
                if least <= count < most:
                    patients = (
                        f"{count:.3g}" if count == round(count) else f"effectively {count:.3g}"
                    )
                    few.setdefault((c.dataset, c.split), {})[f"{name} ({patients})"] = None
        lines += [
            f"Fewer than {most:g} patients on the rarer side (positive or negative) in {dataset} "
            f"({split}), {so}: {', '.join(names)}."
            for (dataset, split), names in sorted(few.items())
        ]
    missing = {(c.dataset, c.split, c.scored, c.unscored) for c in found if c.unscored}
    return lines + [
        f"Not scored in {dataset} ({split}), no positive or no negative {scored}: "
        f"{', '.join(names)}."
        for dataset, split, scored, names in sorted(missing)
    ]
