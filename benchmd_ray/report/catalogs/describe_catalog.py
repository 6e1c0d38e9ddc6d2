"""A catalog as text."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.folds import sentence
from benchmd_ray.data.quarantine import summarised
from benchmd_ray.data.records import HELD_OUT
from benchmd_ray.data.verify import cautions
from benchmd_ray.errors import count_of

WIDTH = 100


def paragraph(content: str, indent: int = 2, label: str = "") -> list[str]:
    """Wrap a paragraph with a label at its left; words (links) are not split."""
    start = " " * indent + (f"{label:<13}" if label else "")
    if len(label) > 12:
        start = " " * indent + label + " "
    return textwrap.wrap(
        " ".join(content.split()),
        WIDTH,
        initial_indent=start,
        subsequent_indent=" " * (indent + (13 if label else 0)),
        break_long_words=False,
        break_on_hyphens=False,
    )


def list_item(content: str, indent: int = 2) -> list[str]:
    """Wrap an entry of a list."""
    first, *more = paragraph(content, indent + 2) or [""]
    return [" " * indent + "- " + first.lstrip(), *more]


def count_table(title: str, columns: list[str], rows: Mapping[str, list[int]]) -> list[str]:
    width = max(len(name) for name in (title, *rows)) + 2
    lines = [f"  {title:{width}}" + "".join(f"{column:>12}" for column in columns)]
    lines += [f"  {name:{width}}" + "".join(f"{n:12,}" for n in rows[name]) for name in rows]
    return [line.rstrip() for line in lines]


QUARANTINE_SHOWN = 20
"""Most quarantined records that are listed by name."""


def describe_catalog(catalog: Catalog) -> list[str]:
    """Describe a catalog in lines: counts per split and class, excluded and quarantined records."""
    manifest = catalog.manifest
    order = sorted(set(manifest["splits"]) - {HELD_OUT}, key=lambda name: (name == "test", name))
    splits = {split: manifest["splits"][split] for split in order}
    built = f"policy {manifest['policy']}, layout {manifest['layout']}"
    for name, value in manifest.get("options", {}).items():
        built += f", {name}={value}"
    lines = [
        f"{catalog.path}: {catalog.dataset}, {built}, digest {catalog.digest[:16]}",
        *([sentence(catalog)] if "folds" in manifest else []),
        *count_table("", list(splits), _rows(catalog, splits)),
        *_statistics(catalog),
    ]
    if held_out := manifest["splits"].get(HELD_OUT):
        counts = ", ".join(f"{name} {count:,}" for name, count in held_out["conditions"].items())
        records, patients = (
            count_of(held_out[name], name[:-1]) for name in ("records", "patients")
        )
        whole = f"{records} of {patients}"
        lines += paragraph(f"held out of all training: {whole} ({counts})", 0)
    for key, title in (("warnings", "noted"), ("excluded", "excluded")):
        for reason, count in manifest.get(key, {}).items():
            lines += paragraph(f"{title}: {count:,}, {reason}", 0)
    raw = manifest["raw"]
    lines.append(
        f"raw records: {raw['records']:,} of {raw['expected']:,}; files listed in tables but "
        f"missing: {raw['missing']:,}"
    )
    if raw["provenance"] != "whole":
        lines.append(f"provenance: {raw['provenance']}")
    if raw["grouped_by"] != "patient":
        lines.append(f"no patient IDs: every {raw['grouped_by']} is treated as a separate patient")
    for text in cautions(catalog):
        lines += paragraph(f"caution: {text}", 0)
    return [*lines, *_quarantine(manifest["quarantined"])]


def _rows(catalog: Catalog, splits: Mapping[str, Any]) -> dict[str, list[int]]:
    """Rows of the table of counts; scored units only if they differ from records."""
    rows = {row: [split[row] for split in splits.values()] for row in ("records", "patients")}
    units = [counts.get("units", counts["records"]) for counts in splits.values()]
    if units != rows["records"]:
        scored = catalog.task.scored
        rows = {"records": rows["records"], scored: units, "patients": rows["patients"]}
    classes = {
        f"  {name}": [held["classes"][name] for held in splits.values()]
        for name in catalog.card.classes
    }
    return rows | classes


def _statistics(catalog: Catalog) -> list[str]:
    """Mean and standard deviation of the training split, if they are used for normalisation."""
    statistics, signal = catalog.statistics, catalog.signal
    if statistics is None or not (
        signal.dtype == "uint8" or signal.normaliser.startswith("source-")
    ):
        return []
    mean, std = (" ".join(f"{value:.2f}" for value in statistics[name]) for name in ("mean", "std"))
    unit = "of 255" if signal.dtype == "uint8" else signal.unit
    return [f"training split, per channel: mean {mean}, standard deviation {std} {unit}"]


def _quarantine(entries: list[dict[str, str | None]]) -> list[str]:
    lines = [f"quarantined: {len(entries):,}"]
    files = summarised(entries)
    for line in files[:QUARANTINE_SHOWN]:
        lines += list_item(line)
    if len(files) > QUARANTINE_SHOWN:
        lines.append(f"  and {len(files) - QUARANTINE_SHOWN:,} more, in manifest.json")
    return lines
