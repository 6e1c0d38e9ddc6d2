"""Networks of the library transformers for images, with random weights or those of a folder.

A folder is what ``save_pretrained`` writes: ``config.json`` and weights as safetensors. Which class
of transformers makes the network is said by the config's ``model_type``; of the config only that
class's own fields are read, so that nothing else in it can name code, files or places. Nothing is
downloaded.

Images are resized to the config's ``image_size`` by area-preserving linear interpolation where they
have another, a grey one is repeated for each colour, and a colour one averaged for a grey network.
They are normalised as all others are, by the source's training split, instead of by the mean and sd
that the network was trained with. Features are CLS where the network has one; else the mean over
all tokens or places. A layer that pools further is not used, as its weights are often missing. A
ViT that was trained as a masked autoencoder sees the whole image.

transformers is an extra of the package (``benchmd-ray[transformers]``).
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
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

LARGEST_CONFIG = 2**20
"""Bytes of a config.json, at most."""
DEEPEST = 1024
"""Layers of a network, at most, as of ours."""
BARRED = re.compile("attn_implementation|backbone|kernel_config|quantization|auto_map|name_or_path")
"""Fields that name other code, files or places."""
SAME_AS = {"vit_mae": "vit"}
"""Types whose encoder is that of another, which masks nothing."""
PART = re.compile(r"[\w.-]+\.safetensors")
"""Name of a file of weights, without a folder."""
CONFIG, WEIGHTS = "config.json", "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
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
            BenchmdError: The signal is not an image, transformers is not installed or has no such
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
        try:
            with torch.device("meta"):
                probe = _without_pooling(_network(config))
                extent = self.extent or self.signal.input_shape[1:]
                return int(self._features(probe, torch.zeros(1, self.channels, *extent)).shape[1])
        except BenchmdError:
            raise
        except Exception as error:  # whatever a class of transformers does with images
            raise BenchmdError(
                f"the network of the model_type {config.model_type} makes no features of images "
                f"of {self.signal.name}: {first_line(error)}."
            ) from error

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
    """The encoder of a folder of transformers; its weights are not read.

    Raises:
        BenchmdError: There is no such folder, transformers is not installed, or the config is none
            that it takes.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise BenchmdError(
            f"{folder} holds no {CONFIG}: name a folder that save_pretrained of transformers "
            "wrote, or a repository of the Hugging Face hub that you downloaded: names on the hub "
            "are not fetched."
        )
    if path.stat().st_size > LARGEST_CONFIG:
        raise BenchmdError(f"{path} has more than {LARGEST_CONFIG:,} bytes: expected a config.")
    config = _config(path.read_text("utf-8", errors="replace"), str(path))
    return EncoderSettings(network=TRANSFORMERS, options={"config": _text_of(config)})


def load_hub_weights(network: HubNetwork, folder: Path) -> None:
    """Take the weights of a folder, all of them.

    Args:
        network: Made by the settings of `hub_settings`.
        folder: Holds `WEIGHTS`, or their parts and `INDEX`.

    Raises:
        BenchmdError: There are none, they are of another network, some are missing, NaN or
            infinite, or the network gives other features of the same image each time.
    """
    own = network.network
    with _staged(folder, own.config) as staged, _quiet() as transformers:  # type: ignore[arg-type]
        try:
            loaded, info = transformers.AutoModel.from_pretrained(
                staged,
                config=own.config,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
                dtype=torch.float32,
            )
        except Exception as error:  # whatever a class of transformers does with weights
            raise _unreadable(folder, error) from error
    wanted = own.state_dict()
    if missing := sorted(set(info["missing_keys"]) & set(wanted)):
        raise BenchmdError(
            f"{folder} lacks {len(missing)} of {len(wanted)} weights of the network that its "
            f"{CONFIG} describes, such as {missing[0]}: expected all of them in {WEIGHTS}."
        )
    parts = {name for name, _ in own.named_children()}
    prefix = f"{own.base_model_prefix}."
    more = [name.removeprefix(prefix) for name in info["unexpected_keys"]]
    if foreign := sorted(name for name in more if name.split(".")[0] in parts):
        raise BenchmdError(
            f"{folder} holds {len(foreign)} weights that the network of its {CONFIG} does not "
            f"have, such as {foreign[0]}: expected the config that belongs to them."
        )
    own.load_state_dict(_without_pooling(loaded).state_dict())
    _require_repeatable(network, folder)


def _require_repeatable(network: HubNetwork, folder: Path) -> None:
    """Refuse weights that are not finite, and a network that draws something each time."""
    if unfit := [n for n, x in network.state_dict().items() if not torch.isfinite(x).all()]:
        raise BenchmdError(
            f"{folder} has NaN or infinite values in {unfit[0]}: expected finite weights."
        )
    noise = torch.randn(1, *network.signal.input_shape, generator=torch.Generator().manual_seed(0))
    training = network.training
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        first, second = network.eval()(noise), network(noise)
    network.train(training)
    if not torch.equal(first, second):
        raise BenchmdError(
            f"the network of {folder} gives other features of the same image each time, as those "
            "that mask at random do: expected an encoder of whole images."
        )


@contextlib.contextmanager
def _staged(folder: Path, config: PreTrainedConfig) -> Iterator[Path]:
    """A folder with nothing but the safetensors of another and a config that was looked at.

    Raises:
        BenchmdError: There are no such weights.
    """
    names = [WEIGHTS]
    if not (folder / WEIGHTS).is_file():
        names = [INDEX, *_parts_of(folder / INDEX)]
    with tempfile.TemporaryDirectory() as made:
        for name in names:
            (Path(made) / name).symlink_to((folder / name).resolve())
        (Path(made) / CONFIG).write_text(_text_of(config), "utf-8")
        yield Path(made)


def _parts_of(index: Path) -> list[str]:
    """Names of the files that an index names."""
    try:
        if index.stat().st_size > 64 * LARGEST_CONFIG:
            raise ValueError("it is too large")
        names = {str(name) for name in json.loads(index.read_text("utf-8"))["weight_map"].values()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _unreadable(index.parent, error) from error
    other = [n for n in names if not PART.fullmatch(n) or not (index.parent / n).is_file()]
    if other:
        raise _unreadable(index.parent, ValueError(f"{INDEX} names {other[0]!r}, no file of it"))
    return sorted(names)


def _require_images(signal: Signal) -> None:
    if not signal.is_image:
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
    messages: Any = transformers.utils.logging
    constants: Any = import_module("huggingface_hub.constants")
    before, bar = messages.get_verbosity(), messages.is_progress_bar_enabled()
    offline, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    messages.set_verbosity_error()
    messages.disable_progress_bar()
    try:
        yield transformers
    finally:
        constants.HF_HUB_OFFLINE = offline
        messages.set_verbosity(before)
        if bar:
            messages.enable_progress_bar()


def _config(text: str, where: str = "encoder.options.config") -> PreTrainedConfig:
    """The config of a text, with nothing but what its class of transformers has of its own.

    Raises:
        BenchmdError: It is not a JSON object, transformers has none of that type, or refuses its
            values.
    """
    try:
        given = dict(json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise BenchmdError(
            f"{where} is {shown(text)}, expected the content of a config.json."
        ) from error
    kind = SAME_AS.get(str(given.get("model_type")), given.get("model_type"))
    with _quiet() as transformers:
        if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
            raise BenchmdError(
                f"{where} has the model_type {kind!r}, which transformers "
                f"{transformers.__version__} does not know: expected that of a config.json, such "
                "as 'vit'. Code in a folder is not run."
            )
        try:
            made = transformers.CONFIG_MAPPING[kind]
            own = made().to_dict().keys() - transformers.PreTrainedConfig().to_dict().keys()
            plain = {key: value for key, value in given.items() if key in own and _is_plain(value)}
            _require_bounded(plain, where)
            allowed = {key: value for key, value in plain.items() if not BARRED.search(key)}
            config: PreTrainedConfig = made(**allowed)
        except BenchmdError:
            raise
        except Exception as error:  # whatever a class of transformers does with values
            raise BenchmdError(
                f"{where} is none that transformers' {kind} takes: {first_line(error)}."
            ) from error
    return config


def _is_plain(value: object) -> bool:
    """Whether a value is a number, a short text, or a list of such."""
    if isinstance(value, list):
        return len(value) <= DEEPEST and all(_is_plain(each) for each in value)
    return (
        value is None
        or isinstance(value, int | float)
        or (isinstance(value, str) and re.fullmatch(r"\w{1,40}", value) is not None)
    )


def _require_bounded(fields: Mapping[str, Any], where: str) -> None:
    """Refuse networks that are deeper than any published one, before one is made."""
    for key, value in fields.items():
        numbers = value if isinstance(value, list) else [value]
        most = DEEPEST if re.search("layer|depth|stage", key) else 2**20
        if any(isinstance(n, int | float) and abs(n) > most for n in numbers):
            raise BenchmdError(f"{where} has {key} {shown(value)}, expected at most {most:,}.")


def _text_of(config: PreTrainedConfig) -> str:
    """A config as JSON: what its class has of its own."""
    with _quiet() as transformers:
        common = transformers.PreTrainedConfig().to_dict().keys()
    fields = {
        key: value
        for key, value in config.to_dict().items()
        if key not in common and not BARRED.search(key) and _is_plain(value)
    }
    return json.dumps(fields | {"model_type": config.model_type}, sort_keys=True)


def _network(config: PreTrainedConfig) -> nn.Module:
    """The network of a config, with random weights.

    Raises:
        BenchmdError: It takes more than images.
    """
    with _quiet() as transformers:
        try:
            network: nn.Module = transformers.AutoModel.from_config(config, trust_remote_code=False)
        except Exception as error:  # likewise
            raise BenchmdError(
                f"transformers cannot make a network of the model_type {config.model_type}: "
                f"{first_line(error)}."
            ) from error
    if network.main_input_name != "pixel_values":
        raise BenchmdError(
            f"the model_type {config.model_type} takes {network.main_input_name}, expected images "
            "(pixel_values): save the part for images, such as "
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
