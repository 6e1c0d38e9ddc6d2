"""Configs of networks of the transformers library, restricted to numbers and short words.

A config's ``model_type`` names its class; only fields of that class are read, so that nothing else
in it can name code, files or addresses. Numbers are bounded before they are used.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from benchmd_ray.errors import BenchmdError, first_line, shown
from benchmd_ray.extensions.extras import importing

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

LARGEST_CONFIG = 2**20
"""Most bytes of a config.json."""
DEEPEST = 1024
"""Most layers of a network, as for ours, and most numbers in a list."""
MOST_VALUES = 2**26
"""Most values of a network's input image, over all channels."""
BARRED = re.compile("attn_implementation|backbone|kernel_config|quantization|auto_map|name_or_path")
"""Fields that name other code, files or addresses."""
LAYERS = re.compile("depth|layers$|blocks$|num_stages")
"""Fields with numbers of layers, per stage or in total."""
SAME_AS = {"vit_mae": "vit"}
"""Types whose encoder is that of another type, which does not mask."""


@contextlib.contextmanager
def quiet() -> Iterator[Any]:
    """The transformers library, silent and offline."""
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


def config_of(text: str, where: str = "encoder.options.config") -> PreTrainedConfig:
    """Parse a config, with only the fields defined by its class in transformers."""
    try:
        if len(text) > LARGEST_CONFIG:
            raise ValueError("it is too long")
        content = json.loads(text)
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
    except (ValueError, RecursionError) as error:
        raise BenchmdError(
            f"{where} is {shown(text)}, expected the content of a config.json: {first_line(error)}."
        ) from error
    kind = SAME_AS.get(str(content.get("model_type")), content.get("model_type"))
    if kind is None:
        raise BenchmdError(f"{where} has no model_type: expected that of a network, such as 'vit'.")
    with quiet() as transformers:
        if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
            raise BenchmdError(
                f"{where} has the model_type {shown(kind)}, which transformers "
                f"{transformers.__version__} does not know: expected that of a config.json, such "
                "as 'vit'. Code in a folder is not run."
            )
        try:
            config_class = transformers.CONFIG_MAPPING[kind]
            fields = (
                config_class().to_dict().keys() - transformers.PreTrainedConfig().to_dict().keys()
            )
            stated = {key: value for key, value in content.items() if key in fields}
            _require_bounded(stated, where)
            plain = {key: value for key, value in stated.items() if _is_plain(value)}
            allowed = {key: value for key, value in plain.items() if not BARRED.search(key)}
            config: PreTrainedConfig = config_class(**allowed)
        except BenchmdError:
            raise
        except Exception as error:  # a class of transformers may raise anything
            raise BenchmdError(
                f"{where} is not valid for transformers' {kind}: {first_line(error)}."
            ) from error
    return config


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return all(_is_plain(each) for each in value)
    return (
        value is None
        or isinstance(value, int | float)
        or (isinstance(value, str) and re.fullmatch(r"\w{1,40}", value) is not None)
    )


def require_plain(fields: Mapping[str, Any], where: str) -> None:
    """Refuse arguments of a network other than bounded numbers, short words and lists of them."""
    for key, value in fields.items():
        if not _is_plain(value):
            raise BenchmdError(
                f"{where} has {key} {shown(value)}, expected numbers, short words or lists of them."
            )
    _require_bounded(fields, where)


def _require_bounded(fields: Mapping[str, Any], where: str) -> None:
    """Refuse numbers beyond those of any published network, before one is made."""
    for key, value in fields.items():
        entries = list(_entries(value))
        if len(entries) > DEEPEST:
            raise BenchmdError(
                f"{where} has {key} with {len(entries):,} entries, expected at most {DEEPEST:,}."
            )
        numbers = [n for n in entries if isinstance(n, int | float)]
        if not all(abs(number) <= 2**20 for number in numbers):  # also refuses NaN
            raise BenchmdError(f"{where} has {key} {shown(value)}, expected at most {2**20:,}.")
        if not LAYERS.search(key):
            continue
        if any(isinstance(entry, dict) for entry in entries) or min(numbers, default=0) < 0:
            raise BenchmdError(
                f"{where} has {key} {shown(value)}, expected a number of layers, or a list of them."
            )
        if sum(numbers) > DEEPEST:
            raise BenchmdError(
                f"{where} has {key} {shown(value)}, expected at most {DEEPEST:,} layers."
            )


def _entries(value: object) -> Iterator[object]:
    """Flatten nested lists; any other value is its only entry."""
    if isinstance(value, list):
        for each in value:
            yield from _entries(each)
    else:
        yield value


def text_of(config: PreTrainedConfig) -> str:
    """A config as JSON, with only the fields defined by its class."""
    with quiet() as transformers:
        common = transformers.PreTrainedConfig().to_dict().keys()
    fields = {
        key: value
        for key, value in config.to_dict().items()
        if key not in common and not BARRED.search(key) and _is_plain(value)
    }
    return json.dumps(fields | {"model_type": config.model_type}, sort_keys=True)


def extent_of(config: PreTrainedConfig, channels: int) -> tuple[int, int] | None:
    """Pixels along y and x that the network takes; None if it takes any."""
    size = getattr(config, "image_size", None)
    if size is None:
        return None
    sides = list(size) if isinstance(size, list | tuple) else [size, size]
    if len(sides) != 2 or not all(isinstance(n, int) and n > 0 for n in sides):
        raise BenchmdError(
            f"the config has image_size {shown(size)}, expected one or two whole numbers of pixels."
        )
    if channels * sides[0] * sides[1] > MOST_VALUES:
        raise BenchmdError(
            f"the config has images of {channels} channels and {sides[0]} x {sides[1]} pixels, "
            f"expected at most {MOST_VALUES:,} values."
        )
    return sides[0], sides[1]
