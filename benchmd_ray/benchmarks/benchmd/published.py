"""The paper's numbers, and which of our results they can be compared with."""

from __future__ import annotations

import csv
import functools
from importlib import resources

SOURCE = "BenchMD v2, tables 1 and 2"
WORDS = (
    "Its numbers are of the full datasets with the released labels and splits. They are next to "
    "ours only for runs of the fixed protocol on its own sources and splits, with unshuffled "
    "labels, default options of the builds, and at least half of the raw records of a dataset."
)


@functools.cache
def auroc() -> dict[tuple[str, str, str], float]:
    """The paper's tables 1 and 2: (dataset, setting, technique) → AUROC."""
    rows = _reference()
    return {(r["dataset"], r["setting"], r["technique"]): float(r["auroc"]) for r in rows}


@functools.cache
def sources() -> frozenset[str]:
    """Datasets that the paper trains on, one of each modality."""
    return frozenset(row["dataset"] for row in _reference() if row["role"] == "source")


@functools.cache
def _reference() -> list[dict[str, str]]:
    path = resources.files("benchmd_ray.benchmarks.benchmd") / "published.csv"
    return list(csv.DictReader(path.read_text("utf-8").splitlines()))


def unlike(
    protocol: str,
    source: str,
    role: str,
    *,
    split: str,
    options: tuple[str, ...],
    raw: tuple[tuple[int, int], ...],
) -> str | None:
    """Why the paper's number cannot be compared with a result; None where it can.

    The paper trains on one source of each modality and scores its validation split and the
    targets. ``options`` are those of builds that are not the cards' defaults; ``raw`` are raw
    records of source and scored dataset: how many were there, and how many there are.
    """
    base = protocol.partition(" ")[0]
    if base == "shuffled":
        return "trained on shuffled labels"
    if base != "fixed":
        return "settings other than the fixed protocol's"
    if source not in sources():
        return "another source than the paper's"
    if role != "target" and split != "validation":
        return f"the paper does not score the split {split}"
    if options:
        return f"other options of a build: {'; '.join(options)}"
    if any(present < whole / 2 for present, whole in raw):
        return "less than half of the raw records of a dataset"
    return None
