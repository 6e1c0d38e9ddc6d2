"""Cards of published encoders as text."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from benchmd_ray.models.encoder_cards import EncoderCard
from benchmd_ray.models.fetched import weights_here
from benchmd_ray.models.published_form import ImageInput, Input, TimeInput, VolumeInput
from benchmd_ray.report.catalogs.describe_catalog import list_item, paragraph

FEATURES = {
    "class-token": "the class token",
    "mean": "the mean over patches, or over the places of the last map",
    "class-token-and-mean": "the class token, then the mean over patches",
    "pooled": "what the network pools itself",
}
COLUMNS = ("name", "licence", "MiB", "weights", "saw of the datasets here")
LONGEST, WIDTH = 20, 100
"""Characters of a licence, and of a line, in the list."""
SCALES = {
    "none": "",
    "lead-range": "each lead mapped onto −1 to 1",
    "record-deviation": "mean 0 and standard deviation 1 of each record",
    "deviation": "mean 0 and standard deviation 1 of each volume",
    "foreground-deviation": "mean 0 and standard deviation 1 of each volume's voxels above 0",
}


def listed(cards: Iterable[EncoderCard]) -> list[str]:
    """A table of encoders, under a line for what each takes."""
    groups: dict[str, list[tuple[str, ...]]] = {}
    for card in sorted(cards, key=lambda card: card.name):
        takes = ", ".join(card.modalities) or f"any {next(iter(_kinds(card.input)))}"
        groups.setdefault(takes, []).append(_row(card))
    every = [COLUMNS, *(row for rows in groups.values() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)][:-1]
    lines = _line(COLUMNS, widths)
    for takes, rows in sorted(groups.items()):
        lines += ["", f"{takes}:", *(line for row in rows for line in _line(row, widths))]
    return lines


def _row(card: EncoderCard) -> tuple[str, ...]:
    size = f"{card.weights.bytes / 2**20:,.0f}" if card.weights.bytes else "?"
    state = "here" if weights_here(card) else "terms" if card.terms else "-"
    licence = _cut(re.split("[;,]", card.licence)[0])
    datasets = [*card.pretrained_on, *(["others that are not listed"] if card.unlisted else [])]
    return card.name, licence, size, state, ", ".join(datasets) or "-"


def _line(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    """A row in lines of at most `WIDTH` characters, if its last column has room."""
    *cells, last = row
    start = "".join(f"{cell:{width}}  " for cell, width in zip(cells, widths, strict=True))
    first, *others = textwrap.wrap(last, max(WIDTH - len(start), LONGEST), break_on_hyphens=False)
    return [start + first, *(" " * len(start) + text for text in others)]


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1].rstrip() + "…"


def described(card: EncoderCard) -> list[str]:
    """A card in lines."""
    weights, here = card.weights, weights_here(card)
    pinned = f"revision {weights.revision}" if weights.revision else "its newest revision"
    size = f", {weights.bytes / 2**20:,.0f} MiB" if weights.bytes else ""
    hashed = f"SHA-256 {weights.sha256}" if weights.sha256 else "no SHA-256 in the card"
    place = f"{weights.address} ({pinned})" if weights.repository else weights.page
    name = card.network.config.get("model_type") or card.network.config["network"]
    lines = [
        *_titled(card.name, card.title),
        *paragraph(card.paper, label="paper"),
        *paragraph(", ".join(card.modalities) or "any", label="made for"),
        "",
        "Weights",
        *paragraph(card.licence, label="licence"),
        *paragraph(card.terms, label="terms"),
        *paragraph(f"{weights.file}{size}, from {place}; {hashed}", label="file"),
        *paragraph(str(here) if here else f"no: benchmd encoder fetch {card.name}", label="here"),
        "",
        "From a record to features",
        *paragraph(_input(card.input), label="input"),
        *paragraph(f"{name} of {card.network.library}", label="network"),
        *paragraph(FEATURES[card.network.feature], label="features"),
        "",
        "Pretrained on",
        *_items(card.pretrained_on | card.also),
        *paragraph(card.unlisted, label="not listed"),
        "",
        "Checked",
        *_items(card.checked),
    ]
    if card.notes:
        lines += ["", "Notes", *(line for note in card.notes for line in list_item(note))]
    return [*lines, "", f"Use: benchmd run --technique encoder:{card.name} --setting linear …"]


def _titled(name: str, title: str) -> list[str]:
    head = f"{name}: {title}"
    return [head, "=" * len(head)]


def _items(items: Mapping[str, str]) -> list[str]:
    return [line for name, text in items.items() for line in paragraph(text, label=name)]


def _kinds(taken: Input) -> Mapping[str, ImageInput | TimeInput | VolumeInput]:
    kinds = {"images": taken.image, "signals over time": taken.time, "volumes": taken.volume}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def _input(taken: Input) -> str:
    """What is done to a record, in words."""
    if (image := taken.image) is not None:
        size = " × ".join(map(str, image.size))
        side = image.shorter_side
        cut = f"shorter side to {side} pixels, the central {size}" if side else f"to {size} pixels"
        moments = f"mean {list(image.mean)} and standard deviation {list(image.std)}"
        return (
            f"images resized by {image.interpolation} interpolation, {cut}; standardised by "
            f"{moments} of values from 0 to 1"
        )
    if (time := taken.time) is not None:
        parts = [
            f"leads {', '.join(time.channels)} at {time.rate:g} Hz",
            f"band {time.band[0]:g} to {time.band[1]:g} Hz by {time.taps} taps"
            if time.band
            else "",
            SCALES[time.scale],
            f"the first {time.samples:,} samples",
            "one lead after the other in one row" if time.layout == "flat" else "",
            f"every {time.decimate}th sample after a filter" if time.decimate > 1 else "",
        ]
        return "; ".join(filter(None, parts))
    volume = taken.volume
    assert volume is not None
    parts = [
        f"volumes in {volume.unit}" if volume.unit else "volumes",
        f"resized to {' × '.join(map(str, volume.size))} voxels" if volume.size else "",
        f"enlarged to {volume.least} voxels along each axis" if volume.least > 1 else "",
        "{:g} to {:g} mapped onto 0 to 1".format(*volume.window) if volume.window else "",
        SCALES[volume.scale],
    ]
    return "; ".join(filter(None, parts))
