"""Cards of published encoders as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from benchmd_ray.models.encoder_cards import EncoderCard
from benchmd_ray.models.fetched import weights_here
from benchmd_ray.models.published_form import ImageInput, Input, TimeInput, VolumeInput
from benchmd_ray.report.catalogs.describe_catalog import paragraph

FEATURES = {
    "class-token": "the class token",
    "mean": "the mean over patches, or over the places of the last map",
    "class-token-and-mean": "the class token, then the mean over patches",
    "pooled": "what the network pools itself",
}
SCALES = {
    "none": "",
    "lead-range": "each lead mapped onto −1 to 1",
    "record-deviation": "mean 0 and standard deviation 1 of each record",
    "deviation": "mean 0 and standard deviation 1 of each volume",
    "foreground-deviation": "mean 0 and standard deviation 1 of each volume's voxels above 0",
}


def listed(cards: Iterable[EncoderCard]) -> list[str]:
    """A line for each encoder under a line for what it takes."""
    groups: dict[str, list[EncoderCard]] = {}
    for card in cards:
        kind = next(iter(_kinds(card.input)))
        groups.setdefault(", ".join(card.modalities) or f"any {kind}", []).append(card)
    lines = []
    for group, members in sorted(groups.items()):
        lines.append(f"{group}:")
        width = max(len(card.name) for card in members)
        for card in members:
            is_here = "here" if weights_here(card) else "to accept first" if card.terms else ""
            seen = ", ".join([*card.pretrained_on, *card.also]) or card.unlisted
            parts = [card.title, card.licence.partition(";")[0], f"saw {seen}", is_here]
            lines.append(f"  {card.name:{width}}  {'; '.join(filter(None, parts))}")
    return lines


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
        lines += ["", "Notes", *(line for note in card.notes for line in paragraph(f"- {note}"))]
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
            f"grey levels resized by {image.interpolation} interpolation, {cut}; standardised by "
            f"{moments} of values from 0 to 1"
        )
    if (time := taken.time) is not None:
        parts = [
            f"leads {', '.join(time.channels)} at {time.rate:g} Hz",
            f"band {time.band[0]:g} to {time.band[1]:g} Hz" if time.band else "",
            SCALES[time.scale],
            f"the first {time.samples:,} samples",
            "one lead after the other in one row" if time.layout == "flat" else "",
            f"every {time.decimate}th sample after a filter" if time.decimate > 1 else "",
        ]
        return "; ".join(filter(None, parts))
    volume = taken.volume
    assert volume is not None
    low_high = f"{volume.window[0]:g} to {volume.window[1]:g} mapped onto 0 to 1"
    parts = [
        f"volumes in {volume.unit}" if volume.unit else "volumes",
        f"resized to {' × '.join(map(str, volume.size))} voxels" if volume.size else "",
        f"enlarged to {volume.least} voxels along each axis" if volume.least > 1 else "",
        low_high if volume.window else "",
        SCALES[volume.scale],
    ]
    return "; ".join(filter(None, parts))
