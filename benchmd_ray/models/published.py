"""Networks of published encoders, described by their cards (`models.encoder_cards`).

A network is one of transformers or of MONAI, made from numbers and short words: neither a card nor
a file of weights can name code.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmd_ray.errors import BenchmdError, first_line, shown
from benchmd_ray.modality.signals import Signal
from benchmd_ray.models.evaluating import evaluating
from benchmd_ray.models.hub_configs import LARGEST_CONFIG, config_of, quiet, require_plain
from benchmd_ray.models.hub_networks import (
    CLS,
    PIXELS,
    counting,
    network_of,
    require_all,
    require_repeatable,
    without_pooling,
)
from benchmd_ray.models.monai_networks import monai_nets
from benchmd_ray.models.networks import PUBLISHED
from benchmd_ray.models.published_adapters import Adapter, adapter
from benchmd_ray.models.published_form import (
    Architecture,
    Description,
    PublishedOptions,
    TensorNames,
)
from benchmd_ray.models.resnet import replace_norms
from benchmd_ray.models.timm_names import from_timm
from benchmd_ray.schema.typed import typed
from benchmd_ray.settings.definition import EncoderSettings, updated

INPUTS = (PIXELS, "input_values")
"""Main inputs of networks of transformers: images, and signals over time in one row."""


class PublishedEncoder(nn.Module):
    """A published encoder: signals (batch, *input_shape) in their unit to features."""

    def __init__(self, signal: Signal, size: EncoderSettings) -> None:
        super().__init__()
        text = updated(PublishedOptions(), size.options, "encoder.options.").description
        try:
            if len(text) > LARGEST_CONFIG:
                raise ValueError("it is too long")
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BenchmdError(
                "encoder.options.description is not JSON: published encoders are named by "
                "--technique encoder:NAME."
            ) from error
        description = typed(Description, content, "encoder.options.description")
        self.signal, self.description = signal, description
        self.adapter = _adapter(description, signal)
        with counting(), torch.device("meta"):
            probe = _network(description.network)
        self.width = self._width(probe)
        self.network = _network(description.network)
        replace_norms(self.network)

    def _width(self, probe: nn.Module) -> int:
        """Number of features, found on the meta device without computing."""
        architecture = self.description.network
        try:
            with evaluating(probe), torch.device("meta"):
                inputs = torch.zeros(1, *self.adapter.shape)
                return int(features(probe, inputs, architecture).shape[1])
        except BenchmdError:
            raise
        except Exception as error:  # a class of a library may raise anything
            shape = ", ".join(map(str, self.adapter.shape))
            raise BenchmdError(
                f"the network of {architecture.library} cannot take inputs of ({shape}): "
                f"{first_line(error)}. Correct network or input in the encoder's card."
            ) from error

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        """Features (batch, width) of signals (batch, *input_shape) in their unit."""
        return features(self.network, self.adapter(signals), self.description.network)


def _adapter(description: Description, signal: Signal) -> Adapter:
    try:
        return adapter(description.input, signal)
    except BenchmdError as error:
        config = description.network.config
        name = config.get("model_type") or config["network"]
        raise BenchmdError(
            f"the published encoder with the network {name} does not fit {signal.name}: {error} "
            "Choose another: benchmd encoder list."
        ) from error


def features(network: nn.Module, inputs: torch.Tensor, chosen: Architecture) -> torch.Tensor:
    """Features (batch, width) that an architecture names, of inputs as the network takes them."""
    if chosen.library == "monai":
        output = network(inputs)
        maps: torch.Tensor = output[-1] if isinstance(output, list | tuple) else output
        return maps.flatten(2).mean(dim=2) if maps.ndim > 2 else maps
    output = network(**{str(network.main_input_name): inputs})
    if chosen.feature == "pooled":
        pooled: torch.Tensor = output.pooler_output
        return pooled.flatten(1)
    hidden: torch.Tensor = output.last_hidden_state
    if hidden.ndim == 4:  # (batch, width, y, x)
        return hidden.mean(dim=(2, 3))
    prefix = prefix_tokens(network)
    if chosen.feature == "mean":
        return hidden[:, prefix:].mean(dim=1)
    if not prefix:
        raise BenchmdError("the network has no class token: expected feature mean or pooled.")
    if chosen.feature == "class-token":
        return hidden[:, 0]
    return torch.cat((hidden[:, 0], hidden[:, prefix:].mean(dim=1)), dim=1)


def prefix_tokens(network: nn.Module) -> int:
    """Number of class and register tokens, which precede the patches."""
    names = (name.rpartition(".")[2] for name, _ in network.named_parameters())
    registers = int(getattr(network.config, "num_register_tokens", 0) or 0)
    return registers + 1 if any(name in CLS for name in names) else 0


def _network(chosen: Architecture) -> nn.Module:
    if chosen.library == "transformers":
        network = network_of(_config(chosen), INPUTS)
        return network if chosen.feature == "pooled" else without_pooling(network)
    require_plain(chosen.arguments, "network.config of the encoder's card")
    try:
        return _monai_network(str(chosen.config["network"]), chosen.arguments)
    except BenchmdError:
        raise
    except Exception as error:  # a class of MONAI may raise anything
        raise BenchmdError(
            f"MONAI cannot make {chosen.config['network']}: {first_line(error)}. "
            "Correct network.config in the encoder's card."
        ) from error


def _monai_network(name: str, arguments: dict[str, Any]) -> nn.Module:
    nets, network = monai_nets(PUBLISHED), None
    if name == "segresnet-encoder":
        network = nets.segresnet_ds.SegResEncoder(**arguments)
    elif name == "swin-transformer":
        network = nets.swin_unetr.SwinTransformer(spatial_dims=3, **arguments)
    else:
        usual = {"spatial_dims": 3, "n_input_channels": 1, "feed_forward": False}
        network = getattr(nets, name)(pretrained=False, **usual, **arguments)
    assert isinstance(network, nn.Module)
    return network


def _config(chosen: Architecture) -> Any:
    return config_of(json.dumps(chosen.config), "network.config of the encoder's card")


def load_published(
    encoder: PublishedEncoder, tensors: dict[str, torch.Tensor], names: TensorNames, path: Path
) -> None:
    """Load all weights, which must fit, be finite and give repeatable features."""
    tensors = _named(tensors, names, path)
    if names.timm:
        tensors = from_timm(tensors)
    if encoder.description.network.library == "transformers":
        _load_transformers(encoder.network, tensors, encoder.description.network, path)
    else:
        _load_strictly(encoder.network, tensors, path)
    require_repeatable(encoder, encoder.signal, path)


def _named(
    tensors: dict[str, torch.Tensor], names: TensorNames, path: Path
) -> dict[str, torch.Tensor]:
    result = {}
    for name, value in tensors.items():
        if not name.startswith(names.prefix):
            continue
        short = name.removeprefix(names.prefix)
        if short.startswith(names.ignored):
            continue
        for old, new in names.renamed.items():
            if short.startswith(old):
                short = new + short.removeprefix(old)
                break
        if short in result:
            raise BenchmdError(
                f"two tensors of {path} become {shown(short)} by weights.names of the encoder's "
                "card: expected one of each. Correct prefix and renamed there."
            )
        result[short] = value
    return result


def _load_transformers(
    network: nn.Module, tensors: dict[str, torch.Tensor], chosen: Architecture, path: Path
) -> None:
    with quiet():
        try:
            loaded, info = type(network).from_pretrained(  # type: ignore[attr-defined]
                None,
                config=_config(chosen),
                state_dict=tensors,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are refused below
                dtype=torch.float32,
            )
        except Exception as error:  # a class of transformers may raise anything
            raise BenchmdError(
                f"transformers cannot take the weights of {path}: {first_line(error)}."
            ) from error
    if chosen.feature != "pooled":
        loaded = without_pooling(loaded)
    require_all(network, info, path)
    network.load_state_dict(loaded.state_dict())


def _load_strictly(network: nn.Module, tensors: dict[str, torch.Tensor], path: Path) -> None:
    wanted = network.state_dict()
    counters = {name for name in wanted if name.endswith("num_batches_tracked")}
    missing = sorted(wanted.keys() - tensors.keys() - counters)
    foreign = sorted(tensors.keys() - wanted.keys())
    other = [n for n in wanted if n in tensors and tensors[n].shape != wanted[n].shape]
    _require_none(path, missing, "lacks")
    _require_none(path, foreign, "has more:")
    _require_none(path, other, "has other sizes of")
    network.load_state_dict({n: tensors.get(n, wanted[n]) for n in wanted})


def _require_none(path: Path, names: Sequence[str], what: str) -> None:
    if names:
        raise BenchmdError(
            f"{path} {what} {len(names)} weights of the network that its card describes, such as "
            f"{shown(names[0])}: expected the weights that the card names."
        )
