"""Image networks of the transformers library, with random weights or those of a folder.

A folder is the output of ``save_pretrained``: ``config.json`` and weights as safetensors. Nothing
is downloaded. The library is in the extra ``benchmd-ray[transformers]``.

Images are resized to the config's ``image_size`` by area-preserving linear interpolation; grey
images are repeated for each colour, and colour images averaged for a grey network. They are
normalised like all others by the source's training split, not by the mean and standard deviation of
the network's own training. Features are CLS if the network has one, otherwise the mean over all
tokens or positions. A further pooling layer is not used, as its weights are often missing. A ViT
trained as a masked autoencoder sees the whole image.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules import module as registration

from benchmd_ray.errors import BenchmdError, first_line, shown
from benchmd_ray.modality.signals import Signal
from benchmd_ray.models.evaluating import evaluating
from benchmd_ray.models.hub_configs import LARGEST_CONFIG, config_of, extent_of, quiet, text_of
from benchmd_ray.models.networks import TRANSFORMERS
from benchmd_ray.models.resnet import replace_norms
from benchmd_ray.settings.definition import EncoderSettings, updated

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

MOST_WEIGHTS = 2**33
"""Most weights of a network: 32 GiB. The largest DINOv3 has 7e9."""
MOST_PARTS = 2**17
"""Most modules of a network; a ViT of 24 layers has about 400."""
PART = re.compile(r"[\w.-]+\.safetensors")
CONFIG, WEIGHTS = "config.json", "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
PIXELS = "pixel_values"
CLS = ("cls_token", "class_embedding", "class_token")
"""Attribute names of a network's CLS token."""


@dataclass(frozen=True)
class HubOptions:
    """Options read from ``encoder.options``; the network uses no other encoder settings."""

    config: str = ""
    """The content of ``config.json``, without fields on a classifier or the origin."""


class HubNetwork(nn.Module):
    """A network of the transformers library as an encoder of images."""

    def __init__(self, signal: Signal, size: EncoderSettings) -> None:
        super().__init__()
        if not signal.is_image:
            raise BenchmdError(
                f"networks of transformers are supported only for images, and {signal.name} has "
                "the axes "
                f"{', '.join(signal.axes)}: use a custom torch module (docs/own_encoder.md)."
            )
        self.signal = signal
        config = config_of(updated(HubOptions(), size.options).config)
        self.channels = int(getattr(config, "num_channels", 3))
        self.extent = extent_of(config, self.channels)
        probe = _without_values(config)
        self.has_cls = any(name.rpartition(".")[2] in CLS for name in probe.state_dict())
        self.width = self._width(probe, config)
        self.network = without_pooling(network_of(config))
        replace_norms(self.network)

    def _width(self, probe: nn.Module, config: PreTrainedConfig) -> int:
        """Number of features of an image, found on the meta device without computing."""
        extent = self.extent or self.signal.input_shape[1:]
        try:
            with evaluating(probe), torch.device("meta"):
                return int(self._features(probe, torch.zeros(1, self.channels, *extent)).shape[1])
        except BenchmdError:
            raise
        except Exception as error:  # a class of transformers may raise anything
            raise BenchmdError(
                f"the network of the model_type {config.model_type} cannot encode images of "
                f"{self.signal.name}: {first_line(error)}."
            ) from error

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        """Features (batch, width) of normalised signals (batch, *input_shape)."""
        return self._features(self.network, self._adapted(signals))

    def _adapted(self, signals: torch.Tensor) -> torch.Tensor:
        """Images adapted to the network's input: (batch, channels, *extent)."""
        if signals.shape[1] != self.channels:
            grey = signals.mean(dim=1, keepdim=True)
            signals = grey.expand(-1, self.channels, -1, -1)
        if self.extent and tuple(signals.shape[2:]) != self.extent:
            signals = functional.interpolate(
                signals, self.extent, mode="bilinear", antialias=True, align_corners=False
            )
        return signals

    def _features(self, network: nn.Module, images: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = network(pixel_values=images).last_hidden_state
        if hidden.ndim == 4:  # maps: (batch, width, y, x)
            return hidden.mean(dim=(2, 3))
        return hidden[:, 0] if self.has_cls else hidden.mean(dim=1)


def hub_settings(folder: Path) -> EncoderSettings:
    """Encoder settings for a folder of transformers; its weights are not read."""
    path = folder / CONFIG
    if not path.is_file():
        raise BenchmdError(
            f"{folder} has no {CONFIG}: name a folder that save_pretrained of transformers "
            "wrote, or a repository of the Hugging Face hub that you downloaded: names on the hub "
            "are not fetched."
        )
    if path.stat().st_size > LARGEST_CONFIG:
        raise BenchmdError(f"{path} has more than {LARGEST_CONFIG:,} bytes: expected a config.")
    config = config_of(path.read_text("utf-8-sig", errors="replace"), str(path))
    text = text_of(config)
    size = sum((folder / name).stat().st_size for name in _files_of(folder))
    try:
        count = _weights_of(text)
    except BenchmdError as error:
        raise BenchmdError(f"{path}: {error}") from error
    if size and count > size:
        raise BenchmdError(
            f"{path} describes a network of {count:,} weights, and the folder's safetensors have "
            f"{size:,} bytes, too few for them: expected the {CONFIG} that belongs to the weights. "
            "Save both by save_pretrained, or download both again."
        )
    return EncoderSettings(network=TRANSFORMERS, options={"config": text})


def load_hub_weights(network: HubNetwork, folder: Path) -> None:
    """Load all weights of a folder, which must fit, be finite and give repeatable features."""
    module = network.network
    with _staged(folder, module.config) as staged, quiet() as transformers:  # type: ignore[arg-type]
        try:
            loaded, info = transformers.AutoModel.from_pretrained(
                staged,
                config=module.config,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are refused below
                dtype=torch.float32,
            )
        except Exception as error:  # a class of transformers may raise anything
            raise _unreadable(folder, error) from error
    require_all(module, info, folder)
    module.load_state_dict(without_pooling(loaded).state_dict())
    require_repeatable(network, network.signal, folder)


def require_all(network: nn.Module, info: Mapping[str, Any], folder: Path) -> None:
    wanted = network.state_dict()
    remedy = (
        f"expected the {CONFIG} that belongs to the weights. Save both by save_pretrained, or "
        "download both again."
    )
    if other := sorted(key for key in info["mismatched_keys"] if key[0] in wanted):
        name, stored, described = other[0]
        raise BenchmdError(
            f"{folder} holds {len(other)} of {len(wanted)} weights with other sizes than its "
            f"{CONFIG} describes, such as {name}: {tuple(stored)} in {WEIGHTS}, {tuple(described)} "
            f"by {CONFIG}; {remedy}"
        )
    if missing := sorted(set(info["missing_keys"]) & set(wanted)):
        raise BenchmdError(
            f"{folder} lacks {len(missing)} of {len(wanted)} weights of the network that its "
            f"{CONFIG} describes, such as {missing[0]}: expected all of them in {WEIGHTS}, or "
            f"{remedy.removeprefix('expected ')}"
        )
    parts = {name for name, _ in network.named_children()}
    prefix = f"{network.base_model_prefix}."
    more = [name.removeprefix(prefix) for name in info["unexpected_keys"]]
    if foreign := sorted(name for name in more if name.split(".")[0] in parts):
        raise BenchmdError(
            f"{folder} holds {len(foreign)} weights that the network of its {CONFIG} does not "
            f"have, such as {shown(foreign[0])}: {remedy}"
        )


def require_repeatable(network: nn.Module, signal: Signal, folder: Path) -> None:
    """Refuse weights that are not finite, and an encoder of a signal with random outputs."""
    if unfit := [n for n, x in network.state_dict().items() if not torch.isfinite(x).all()]:
        raise BenchmdError(
            f"{folder} has NaN or infinite values in {unfit[0]}: expected finite weights."
        )
    noise = torch.randn(1, *signal.input_shape, generator=torch.Generator().manual_seed(0))
    with evaluating(network):
        first, second = network(noise), network(noise)
    if not torch.equal(first, second):
        raise BenchmdError(
            f"the network of {folder} returns different features for the same record each time, as "
            "with random masking: expected an encoder of whole images."
        )


@contextlib.contextmanager
def _staged(folder: Path, config: PreTrainedConfig) -> Iterator[Path]:
    """A temporary folder with only the safetensors of a folder and its validated config."""
    names = _files_of(folder)
    if not names:
        raise _unreadable(folder, FileNotFoundError(f"no {WEIGHTS}"))
    if names != [WEIGHTS]:
        names = [INDEX, *names]
    with tempfile.TemporaryDirectory() as staging:
        for name in names:
            (Path(staging) / name).symlink_to((folder / name).resolve())
        (Path(staging) / CONFIG).write_text(text_of(config), "utf-8")
        yield Path(staging)


def _files_of(folder: Path) -> list[str]:
    """Names of a folder's safetensors: a single file, or those in its index; otherwise none."""
    if (folder / WEIGHTS).is_file():
        return [WEIGHTS]
    return _parts_of(folder / INDEX) if (folder / INDEX).is_file() else []


def _parts_of(index: Path) -> list[str]:
    try:
        if index.stat().st_size > 64 * LARGEST_CONFIG:
            raise ValueError("it is too large")
        names = {str(name) for name in json.loads(index.read_text("utf-8"))["weight_map"].values()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _unreadable(index.parent, error) from error
    other = [n for n in names if not PART.fullmatch(n) or not (index.parent / n).is_file()]
    if other:
        why = f"{INDEX} names {shown(other[0])}, which is not a file of it"
        raise _unreadable(index.parent, ValueError(why))
    return sorted(names)


def network_of(config: PreTrainedConfig, takes: Sequence[str] = (PIXELS,)) -> nn.Module:
    """A network with random weights, whose main input is one of ``takes``."""
    with quiet() as transformers:
        try:
            network: nn.Module = transformers.AutoModel.from_config(config, trust_remote_code=False)
        except BenchmdError:
            raise
        except Exception as error:  # likewise
            raise BenchmdError(
                f"transformers cannot make a network of the model_type {config.model_type}: "
                f"{first_line(error)}."
            ) from error
    if network.main_input_name not in takes:
        raise BenchmdError(
            f"the model_type {config.model_type} takes {network.main_input_name}, expected images "
            "(pixel_values): save the part for images, such as "
            "model.vision_model.save_pretrained(…)."
        )
    return network.float()


def _without_values(config: PreTrainedConfig) -> nn.Module:
    """The network of a config on the meta device; its size is bounded."""
    with counting(), torch.device("meta"):
        return without_pooling(network_of(config))


@functools.lru_cache(maxsize=16)
def _weights_of(text: str) -> int:
    return sum(value.numel() for value in _without_values(config_of(text)).state_dict().values())


@contextlib.contextmanager
def counting() -> Iterator[None]:
    """Limit the weights and modules of a network made in this context."""
    counts, most = {"weights": 0, "parts": 0}, {"weights": MOST_WEIGHTS, "parts": MOST_PARTS}

    def add(what: str, number: int) -> None:
        counts[what] += number
        if counts[what] > most[what]:
            raise BenchmdError(
                f"the network that the config describes has more than the allowed {most[what]:,} "
                f"{what}: correct its numbers of layers and widths."
            )

    def tensor(_: nn.Module, __: str, value: torch.Tensor | None) -> None:
        add("weights", 0 if value is None else value.numel())

    hooks = [
        registration.register_module_parameter_registration_hook(tensor),
        registration.register_module_buffer_registration_hook(tensor),
        registration.register_module_module_registration_hook(lambda *_: add("parts", 1)),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def without_pooling(network: nn.Module) -> nn.Module:
    """The network without a pooling layer that has weights."""
    for name in ("pooler", "head"):
        layer = getattr(network, name, None)
        if isinstance(layer, nn.Module) and any(True for _ in layer.parameters()):
            setattr(network, name, None)
            if hasattr(network, "use_head"):
                network.use_head = False  # type: ignore[assignment]
    return network


def _unreadable(folder: Path, error: Exception) -> BenchmdError:
    return BenchmdError(
        f"transformers cannot read {folder} ({first_line(error)}): expected config.json and "
        "model.safetensors, as save_pretrained writes them. Pickled weights (.bin) are not read, "
        "and code in the folder is not run."
    )
