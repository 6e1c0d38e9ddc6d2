"""``benchmd encoder``: published encoders by name, and their weights."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmd_ray.cli.group import main
from benchmd_ray.cli.options import FILE, JSON, complete_encoder, print_json
from benchmd_ray.console.terminal import echo

if TYPE_CHECKING:
    from benchmd_ray.models.encoder_cards import EncoderCard


@main.group()
def encoder() -> None:
    """List the published encoders that have a card, show a card, fetch weights.

    An encoder is used by its name: `benchmd run --technique encoder:NAME`.
    """


@encoder.command("list")
@JSON
def encoder_list(*, as_json: bool) -> None:
    """List the published encoders: what they take, their licence, what they were pretrained on."""
    from benchmd_ray.models.encoder_cards import encoder_cards
    from benchmd_ray.report.encoders import listed

    cards = encoder_cards()
    if as_json:
        print_json([asdict(card) for card in cards.sound.values()])
    else:
        for line in listed(cards.sound.values()):
            echo(line)
    for why in cards.broken.values():
        echo(f"broken: {why}", err=True)


@encoder.command("show")
@click.argument("name", shell_complete=complete_encoder)
@JSON
def encoder_show(name: str, *, as_json: bool) -> None:
    """Show the card of the encoder NAME, and where its facts were checked."""
    from benchmd_ray.report.encoders import described

    card = _card(name)
    if as_json:
        print_json(asdict(card))
        return
    for line in described(card):
        echo(line)


@encoder.command("fetch")
@click.argument("name", shell_complete=complete_encoder)
@click.option("--from", "file", type=FILE, help="A file of the weights that you downloaded.")
@click.option(
    "--accept-terms", is_flag=True, help="You have read and accepted the terms of the weights."
)
def encoder_fetch(name: str, file: Path | None, *, accept_terms: bool) -> None:
    """Fetch the weights of the encoder NAME into this machine's folder of encoders.

    They come from the Hugging Face hub, or with --from from a file that you downloaded. The folder
    is BENCHMD_ENCODERS, by default `encoders` in the cache.
    """
    from benchmd_ray.errors import BenchmdError
    from benchmd_ray.models.fetched import fetch, take, weights_here

    card = _card(name)
    echo(f"licence of the weights of {card.title}: {card.licence}")
    if (path := weights_here(card)) is not None and file is None:
        echo(f"already here: {path}")
        return
    if card.terms and not accept_terms:
        raise BenchmdError(
            f"the weights of {card.title} have terms: {card.terms}. Nothing was fetched. Once you "
            "have accepted them, add --accept-terms."
        )
    if file is not None:
        path = take(card, file)
    elif card.weights.repository:
        path = fetch(card)
    else:
        raise BenchmdError(
            f"the weights of {card.title} are not on the hub: download {card.weights.file} from "
            f"{card.weights.page}, then `benchmd encoder fetch {name} --from FILE`."
        )
    echo(f"fetched: {path}")


def _card(name: str) -> EncoderCard:
    from benchmd_ray.models.encoder_cards import encoder_cards

    return encoder_cards()[name.removeprefix("encoder:")]
