"""External encoders as techniques: published ones, a folder of transformers, or a custom module.

``encoder:NAME`` is a published encoder with a card (`models.encoder_cards`); ``hf:FOLDER`` a folder
that transformers' ``save_pretrained`` wrote (`models.hub_networks`);
``model:package.module:function`` a function that makes a torch module with its weights, see
`models.encoder.make_encoder`. Their weights become a run without training, from which transfers
start.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from benchmd_ray.errors import BenchmdError
from benchmd_ray.extensions.plugins import GROUPS, IMPORT_PATH
from benchmd_ray.modality.signals import Signal
from benchmd_ray.models.imagenet import StartWeights, imagenet_weights
from benchmd_ray.models.networks import KIND, PART_OF, RANDOM_KERNELS
from benchmd_ray.settings.definition import EncoderSettings
from benchmd_ray.ssl import BASELINES, HUB, NAMED, OWN, technique_named

if TYPE_CHECKING:
    from torch import nn

    from benchmd_ray.models.encoder_cards import EncoderCard


def brought_name(text: str) -> str | None:
    """The technique that a user names: by its name, or for a function by its import path."""
    installed = text.removeprefix(OWN) in entry_points(group=GROUPS[KIND]).names
    is_prefixed = text.startswith((HUB, NAMED)) or (text.startswith(OWN) and installed)
    if text == RANDOM_KERNELS or is_prefixed:
        return text
    if IMPORT_PATH.fullmatch(text):  # also if a module is called model
        return OWN + text
    return text if text.startswith(OWN) else None


def technique_label(technique: str) -> str:
    """Name of a technique in runs and tables; for a folder only the folder's name."""
    if not technique.startswith(HUB):
        return technique
    return HUB + _folder(technique).name


def own_encoder(technique: str) -> EncoderSettings | None:
    """The encoder of a technique that has its own, such as one trained elsewhere; else None."""
    if technique in BASELINES and (network := BASELINES[technique].network) is not None:
        return EncoderSettings(network=network)
    if technique.startswith(HUB):
        from benchmd_ray.models.hub_networks import hub_settings

        return hub_settings(_folder(technique))
    if technique.startswith(NAMED):
        return published_card(technique).settings
    if technique.startswith(OWN):
        name = technique.removeprefix(OWN)
        if name in PART_OF:
            raise BenchmdError(
                f"{name} is a network of the package with random weights: expected one that was "
                f"trained elsewhere. Use --technique scratch and --set encoder.network={name}."
            )
        return EncoderSettings(network=name)
    return None


def start_weights(
    technique: str, path: Path | None, signal: Signal, encoder: EncoderSettings
) -> StartWeights | None:
    """The initial or final weights of a technique; None for random ones.

    Without a path, ImageNet weights are downloaded.
    """
    chosen = technique_named(technique)
    if chosen.imagenet:
        return imagenet_weights(path, signal)
    if not chosen.brought:
        return None
    if technique.startswith(NAMED) and (reason := misfit(technique, signal)):
        raise BenchmdError(f"{technique} does not fit: {reason}.")
    import torch

    from benchmd_ray.models.digest import weights_digest
    from benchmd_ray.models.encoder import make_encoder

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # and leaves the random state of GPUs unchanged
        network: nn.Module = make_encoder(signal, encoder)
    if technique.startswith(HUB):
        from benchmd_ray.models.hub_networks import HubNetwork, load_hub_weights

        assert isinstance(network, HubNetwork)  # what `own_encoder` names
        load_hub_weights(network, _folder(technique))
    if technique.startswith(NAMED):
        _load_published(network, published_card(technique))
    digest = weights_digest(network)
    tensors = {name: value.detach() for name, value in network.state_dict().items()}
    return StartWeights(technique_label(technique), digest, tensors, (), encoder)


def published_card(technique: str) -> EncoderCard:
    """The card of a published encoder's technique."""
    from benchmd_ray.models.encoder_cards import encoder_cards

    return encoder_cards()[technique.removeprefix(NAMED)]


def has_card(name: str) -> bool:
    """Whether it is the name of a published encoder, without the prefix of its technique."""
    from benchmd_ray.models.encoder_cards import encoder_cards

    return name in encoder_cards().sound


def misfit(technique: str, signal: Signal) -> str:
    """Why signals do not fit what a technique's encoder takes; empty if they fit."""
    if technique.startswith(HUB) and not signal.is_image:
        return "networks of transformers are for images"
    if technique.startswith(NAMED):
        from benchmd_ray.models.published_adapters import adapter

        try:
            adapter(published_card(technique).input, signal)
        except BenchmdError as error:
            return str(error).removesuffix(".")
    return ""


def ensure_brought(technique: str) -> None:
    """Fetch the weights of a published encoder unless they are here; see `fetched.ensure_weights`.

    Raises:
        BenchmdError: They have terms, cannot be fetched, or are other ones.
    """
    if technique.startswith(NAMED):
        from benchmd_ray.models.fetched import ensure_weights

        ensure_weights(published_card(technique))


def at_hand(signal: Signal, weights: Path | None) -> tuple[str, ...]:
    """Techniques with pretrained weights on this machine that fit a signal; nothing is fetched.

    ``weights``: the user's file of ImageNet weights.
    """
    from benchmd_ray.models.encoder_cards import encoder_cards
    from benchmd_ray.models.fetched import weights_here

    names = [NAMED + name for name, card in encoder_cards().sound.items() if weights_here(card)]
    fitting = [name for name in names if not misfit(name, signal)]
    return (*(["imagenet"] if weights is not None else []), *fitting)


def absence(technique: str) -> str:
    """What a plan notes on weights that are not here; empty if they are, or need no fetching."""
    if not technique.startswith(NAMED):
        return ""
    from benchmd_ray.models.fetched import absent, is_free, weights_here

    card = published_card(technique)
    if weights_here(card) is not None:
        return ""
    if not is_free(card):
        return absent(card)
    size = f"{card.weights.bytes / 2**20:,.0f} MiB, " if card.weights.bytes else ""
    return (
        f"the weights of {card.title} ({size}{card.licence.partition(';')[0]}) are fetched from "
        f"{card.weights.address} before anything is run."
    )


def _load_published(network: nn.Module, card: EncoderCard) -> None:
    from benchmd_ray.models.fetched import read_tensors, require_weights
    from benchmd_ray.models.published import PublishedEncoder, load_published

    assert isinstance(network, PublishedEncoder)  # what `own_encoder` names
    path = require_weights(card)
    load_published(network, read_tensors(path, card), card.weights.names, path)


def _folder(technique: str) -> Path:
    return Path(technique.removeprefix(HUB)).resolve()
