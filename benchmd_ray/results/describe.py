"""Cards and catalogs as text."""

from __future__ import annotations

import textwrap

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.catalog import Catalog


def _wrapped(label: str, content: str) -> str:
    return textwrap.fill(f"{label:12} {content}", 96, subsequent_indent=" " * 13)


def describe_card(card: DatasetCard) -> str:
    """What a dataset is, where to get it, how its folder must look and what to expect."""
    kind = card.kind
    lines = [
        f"{card.name}: {card.title} ({card.modality}, {card.role}, card version {card.version})",
        _wrapped("get it from", f"{card.homepage} ({card.access})"),
        _wrapped("licence", card.licence),
        _wrapped("cite", card.citation),
        _wrapped("signal", f"{kind.axes} {kind.stored_shape} in {kind.unit}"),
    ]
    for name, layout in card.layouts.items():
        lines.append(
            _wrapped("layout", f"{name}: {layout.description} {layout.records:,} records.")
        )
    for policy, scored in card.evaluation_splits.items():
        lines.append(_wrapped("scored", f"policy {policy}: {', '.join(scored)}"))
    lines.append(_wrapped("split table", f"{card.split_table} (for the policy released)"))
    lines += [_wrapped("note", note.strip()) for note in card.notes]
    for policy, splits in card.expected.items():
        for split, counts in splits.items():
            lines.append(f"published counts, policy {policy}, split {split}:")
            lines += [f"  {counts.get(name, 0):8,} {name}" for name in kind.classes]
            lines.append(f"  {sum(counts.values()):8,} in all")
    return "\n".join(lines)


def describe_catalog(catalog: Catalog) -> str:
    """Counts per split and class of a catalog, and what was left out or quarantined."""
    manifest = catalog.manifest
    splits = manifest["splits"]
    lines = [
        f"{catalog.path}: {catalog.dataset}, policy {manifest['policy']}, layout "
        f"{manifest['layout']}, digest {catalog.digest[:16]}",
        f"{'':32}" + "".join(f"{split:>12}" for split in splits),
    ]
    rows = [(row, [s[row] for s in splits.values()]) for row in ("records", "patients")]
    rows += [
        (f"  {name}", [s["classes"][name] for s in splits.values()])
        for name in catalog.modality.classes
    ]
    lines += [f"{row:32}" + "".join(f"{n:12,}" for n in counts) for row, counts in rows]
    lines += [f"left out: {n:,}, {reason}" for reason, n in manifest["left_out"].items()]
    raw = manifest["raw"]
    lines.append(
        f"raw records: {raw['records']:,} of {raw['expected']:,}; files that tables name and that "
        f"are missing: {raw['missing']:,}"
    )
    lines.append(f"quarantined: {len(manifest['quarantined']):,}")
    lines += [f"  {entry['file']}: {entry['reason']}" for entry in manifest["quarantined"][:20]]
    return "\n".join(lines)
