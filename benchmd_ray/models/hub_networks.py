"""Networks of the library transformers for images, with random weights or those of a folder.

A folder is what ``save_pretrained`` writes: ``config.json`` and weights as safetensors. Which class
of transformers makes the network is said by the config's ``model_type``; code that a folder brings
along is never run, and nothing is downloaded.

Images are resized to the config's ``image_size`` by area-preserving linear interpolation where they
have another, a grey one is repeated for each colour, and a colour one averaged for a grey network.
They are normalised as all others are, by the source's training split, instead of by the mean and sd
that the network was trained with. Features are CLS where the network has one; else the mean over
all tokens or places. A layer that pools further is not used, as its weights are often missing.

transformers is an extra of the package (``benchmd-ray[transformers]``).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from benchmd_ray.errors import BenchmdError, first_line, shown
from benchmd_ray.extras import importing
from benchmd_ray.models.networks import TRANSFORMERS
from benchmd_ray.settings import EncoderSettings, updated
from benchmd_ray.signals import Signal

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

UNREAD = ("_name_or_path", "architectures", "auto_map", "dtype", "torch_dtype")
"""Keys of a config that say where a network is from, or how its weights were stored."""
ALSO_UNREAD = ("id2label", "label2id", "problem_type", "transformers_version")
"""Keys of a config that are of its classifier, or of who wrote it."""
CLS = ("cls_token", "class_embedding", "class_token")
"""How a network's token for the whole image is named."""


@dataclass(frozen=True)
class HubOptions:
    """What this network reads of ``encoder.options``; of the other settings it reads none."""

    config: str = ""
    """The content of ``config.json``, but for what is of a classifier or says where it is from."""


class HubNetwork(nn.Module):
    """Images to the features of a network of transformers."""

    def __init__(self, signal: Signal, size: EncoderSettings) -> None:
        """Make it with random weights.

        Raises:
            BenchmdError: The signal is no image, transformers is not installed or has no such
                network, or the network takes no images.
        """
        super().__init__()
        _require_images(signal)
        self.signal = signal
        config = _config(updated(HubOptions(), size.options).config)
        network = _network(config)
        self.network = _without_pooling(network)
        self.channels = int(getattr(config, "num_channels", 3))
        self.extent = _extent(config)
        self.has_cls = any(name.rpartition(".")[2] in CLS for name in network.state_dict())
        self.width = self._width(config)

    def _width(self, config: PreTrainedConfig) -> int:
        """Features of an image: of one without values, so that nothing is computed."""
        with torch.device("meta"):
            probe = _without_pooling(_network(config))
            extent = self.extent or self.signal.input_shape[1:]
            return int(self._features(probe, torch.zeros(1, self.channels, *extent)).shape[1])

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        """Features (batch, width).

        Args:
            signals: (batch, *signal.input_shape), normalised.
        """
        return self._features(self.network, self._adapted(signals))

    def _adapted(self, signals: torch.Tensor) -> torch.Tensor:
        """Images as the network takes them: (batch, its channels, *its extent)."""
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
    """The encoder of a folder of transformers'; its weights are not read.

    Raises:
        BenchmdError: There is no such folder, transformers is not installed, or it cannot read the
            config.
    """
    if not (folder / "config.json").is_file():
        raise BenchmdError(
            f"{folder} holds no config.json: name a folder that save_pretrained of transformers "
            "wrote, such as a downloaded repository of the Hugging Face hub."
        )
    with _quiet() as transformers:
        try:
            config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            raise _unreadable(folder, error) from error
    held = {k: v for k, v in config.to_diff_dict().items() if k not in (*UNREAD, *ALSO_UNREAD)}
    held["model_type"] = config.model_type
    return EncoderSettings(
        network=TRANSFORMERS, options={"config": json.dumps(held, sort_keys=True)}
    )


def load_hub_weights(network: HubNetwork, folder: Path) -> None:
    """Take the weights of a folder, all of them.

    Args:
        network: Made by the settings of `hub_settings`.
        folder: Holds ``model.safetensors``, or its parts and their index.

    Raises:
        BenchmdError: There are none, they are of another network, or some are missing.
    """
    with _quiet() as transformers:
        try:
            held, info = transformers.AutoModel.from_pretrained(
                folder,
                config=network.network.config,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
                dtype=torch.float32,
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise _unreadable(folder, error) from error
    wanted = network.network.state_dict()
    if missing := sorted(set(info["missing_keys"]) & set(wanted)):
        raise BenchmdError(
            f"{folder} lacks {len(missing)} of {len(wanted)} weights of the network that its "
            f"config.json describes, such as {missing[0]}: expected all of them in "
            "model.safetensors."
        )
    network.network.load_state_dict(_without_pooling(held).state_dict())


def _require_images(signal: Signal) -> None:
    if signal.axes != ("channel", "y", "x"):
        raise BenchmdError(
            f"networks of transformers are for images here, and {signal.name} has the axes "
            f"{', '.join(signal.axes)}: bring a torch module of your own (docs/own_method.md)."
        )


@contextlib.contextmanager
def _quiet() -> Iterator[Any]:
    """The library, which says nothing within.

    Raises:
        BenchmdError: It is not installed.
    """
    with importing("transformers", "an encoder of transformers"):
        import transformers
    said: Any = transformers.utils.logging
    before, bar = said.get_verbosity(), said.is_progress_bar_enabled()
    said.set_verbosity_error()
    said.disable_progress_bar()
    try:
        yield transformers
    finally:
        said.set_verbosity(before)
        if bar:
            said.enable_progress_bar()


def _config(text: str) -> PreTrainedConfig:
    """The config of settings.

    Raises:
        BenchmdError: It is no JSON object, transformers has none of that type, or refuses its
            values.
    """
    try:
        given = dict(json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise BenchmdError(
            f"encoder.options.config is {shown(text)}, expected the content of a config.json."
        ) from error
    kind = given.pop("model_type", None)
    with _quiet() as transformers:
        if kind not in transformers.CONFIG_MAPPING:
            raise BenchmdError(
                f"encoder.options.config has the model_type {kind!r}, which transformers "
                f"{transformers.__version__} does not know: expected that of a config.json, such "
                "as 'vit'."
            )
        try:
            config: PreTrainedConfig = transformers.AutoConfig.for_model(kind, **given)
        except Exception as error:  # whatever a class of transformers does with values
            raise BenchmdError(
                f"encoder.options.config is none that transformers' {kind} takes: "
                f"{first_line(error)}."
            ) from error
    return config


def _network(config: PreTrainedConfig) -> nn.Module:
    """The network of a config, with random weights.

    Raises:
        BenchmdError: It is none of images alone.
    """
    with _quiet() as transformers:
        try:
            network: nn.Module = transformers.AutoModel.from_config(config)
        except Exception as error:  # likewise
            raise BenchmdError(
                f"transformers cannot make a network of the model_type {config.model_type}: "
                f"{first_line(error)}."
            ) from error
    if network.main_input_name != "pixel_values":
        raise BenchmdError(
            f"the model_type {config.model_type} takes {network.main_input_name}, expected images "
            "(pixel_values): save the part for images alone, such as "
            "model.vision_model.save_pretrained(…)."
        )
    return network.float()


def _without_pooling(network: nn.Module) -> nn.Module:
    """The network without a layer that pools by weights of its own."""
    for name in ("pooler", "head"):
        layer = getattr(network, name, None)
        if isinstance(layer, nn.Module) and any(True for _ in layer.parameters()):
            setattr(network, name, None)
            if hasattr(network, "use_head"):
                network.use_head = False  # type: ignore[assignment]
    return network


def _extent(config: PreTrainedConfig) -> tuple[int, int] | None:
    """Pixels along y and x that the network takes; None where it takes any."""
    size = getattr(config, "image_size", None)
    if size is None:
        return None
    y, x = (size, size) if isinstance(size, int) else size
    return int(y), int(x)


def _unreadable(folder: Path, error: Exception) -> BenchmdError:
    return BenchmdError(
        f"transformers cannot read {folder} ({first_line(error)}): expected config.json and "
        "model.safetensors, as save_pretrained writes them. Pickled weights (.bin) are not read, "
        "and code in the folder is not run."
    )
