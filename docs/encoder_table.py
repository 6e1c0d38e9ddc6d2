"""Write the table of docs/published_encoders.md from the cards: `python docs/encoder_table.py`."""

from __future__ import annotations

from pathlib import Path

from benchmd_ray.models.encoder_cards import EncoderCard, encoder_cards

PAGE = Path(__file__).with_name("published_encoders.md")
BEGIN, END = "<!-- table of encoders -->\n", "<!-- end of the table -->\n"
HEAD = ("name", "made for", "input", "licence", "needs", "pinned", "pretrained on")


def table() -> str:
    cards = encoder_cards().sound.values()
    rows = [HEAD, ("---",) * len(HEAD), *map(row, sorted(cards, key=lambda card: group(card)))]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def group(card: EncoderCard) -> tuple[bool, str, str]:
    """Encoders of any images first."""
    return (bool(card.modalities), ", ".join(card.modalities), card.name)


def row(card: EncoderCard) -> tuple[str, ...]:
    weights, library = card.weights, card.network.library
    pinned = [("revision", weights.revision), ("SHA-256", weights.sha256)]
    seen = [*(f"**{name}**" for name in card.pretrained_on), *card.also]
    return (
        f"`{card.name}`",
        ", ".join(card.modalities) or "any images",
        taken(card),
        card.licence.partition(";")[0],
        f"`{library}`, access" if card.terms else f"`{library}`",
        ", ".join(name for name, value in pinned if value) or "no",
        ", ".join(seen + ["others"] * bool(card.unlisted)),
    )


def taken(card: EncoderCard) -> str:
    image, time, volume = card.input.image, card.input.time, card.input.volume
    if image is not None:
        return f"{' × '.join(map(str, image.size))} pixels"
    if time is not None:
        return f"{len(time.channels)} leads, {time.samples / time.rate:g} s at {time.rate:g} Hz"
    assert volume is not None
    return f"volumes{f' in {volume.unit}' if volume.unit else ''}"


def page() -> str:
    """The page with its table as the cards are."""
    before, _, after = PAGE.read_text("utf-8").partition(BEGIN)
    return before + BEGIN + "\n" + table() + "\n" + END + after.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
