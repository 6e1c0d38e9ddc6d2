"""ViT-Tiny/16 with ImageNet-21k weights, as an `Encoder` with the settings ``vit-tiny``.

Sources: BenchMD v2, sections 4.2 and appendix B; the network of Dosovitskiy et al.
(https://arxiv.org/abs/2010.11929) with the weights of Steiner et al.
(https://arxiv.org/abs/2106.10270), as safetensors (`REPOSITORY`). As in BenchMD's released code,
the features are CLS after the final norm. The weights were trained on colours scaled to [−1, 1]; as
in the paper, images are instead normalised by the source's training split, which gives a similar
range.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from benchmd_ray.errors import BenchmdError
from benchmd_ray.extensions.extras import importing
from benchmd_ray.files.atomic import sha256
from benchmd_ray.modality.modalities import modalities
from benchmd_ray.modality.signals import Signal
from benchmd_ray.settings.definition import ENCODERS, EncoderSettings

if TYPE_CHECKING:
    import torch

REPOSITORY = "timm/vit_tiny_patch16_224.augreg_in21k"
FILE = "model.safetensors"
GET = (
    f"Download {FILE} from https://huggingface.co/{REPOSITORY} and name it with --weights, or omit "
    "--weights to download it automatically."
)

COLOURS = 3
"""Input channels of the weights: red, green, blue."""
PATCH = 16
"""Pixels of a patch of the weights along y and x."""
SIDE = 224
"""Pixels of the weights' images along y and x."""
PROJECTION = "patch_embed.proj.weight"
CLASSIFIER = "head."
NAMES = {
    "cls": "cls_token",
    "positions": "pos_embed",
    "patch_embedding": "patch_embed.proj",
    "attention_norm": "norm1",
    "qkv": "attn.qkv",
    "project": "attn.proj",
    "mlp_norm": "norm2",
    "mlp.0": "mlp.fc1",
    "mlp.3": "mlp.fc2",
}
"""Parts of `Encoder` with other names in the file."""
PARAMETER = re.compile(r"(blocks\.\d+\.)?(.+?)(\.weight|\.bias)?")
"""Pattern of a parameter's name: block, part and kind."""
VARIANTS = {
    "fc_norm.": "is of a variant that pools before its norm",
    "pre_logits.": "is of a variant with a representation layer",
    "dist_token": "is of a distilled variant",
}
"""Prefixes of tensor names of other variants, with an explanation."""


@dataclass(frozen=True)
class StartWeights:
    """External weights in the form of an encoder's state."""

    file: str
    """Name of the file without its folder, or label of the technique (`ssl.brought`)."""
    sha256: str
    tensors: dict[str, torch.Tensor]
    """The encoder's whole state, float32."""
    skipped: tuple[str, ...]
    """Names of the tensors of the ImageNet classifier, which is not used."""
    encoder: EncoderSettings


def require_images(signal: Signal) -> None:
    """Refuse signals that are not 2-D images of the weights' size."""
    if not signal.is_image:
        fitting = ", ".join(name for name, kind in modalities().items() if kind.signal.is_image)
        raise BenchmdError(
            f"ImageNet weights are for 2-D images ({fitting}), and {signal.name} has the axes "
            f"{', '.join(signal.axes)}: choose another technique."
        )
    extent = signal.input_shape[1:]
    if extent != (SIDE, SIDE):
        raise BenchmdError(
            f"ImageNet weights are for images of {SIDE} × {SIDE} pixels, and those of "
            f"{signal.name} have {' × '.join(map(str, extent))}: choose another technique, or the "
            f"dataset at {SIDE} pixels if there is one."
        )


def require_imagenet_patches(signal: Signal, encoder: EncoderSettings) -> None:
    """Refuse a patch size other than that of the weights."""
    if encoder.patch_size not in (0, PATCH):
        raise BenchmdError(
            f"ImageNet weights embed patches of {PATCH} × {PATCH} pixels, and encoder.patch_size "
            f"is {encoder.patch_size} for {signal.name}: omit it (0), or choose another technique."
        )


def imagenet_weights(path: Path | None, signal: Signal) -> StartWeights:
    """ImageNet weights for the images of a signal; without a path they are downloaded once."""
    require_images(signal)
    return read_imagenet(path or _downloaded(), signal)


def _downloaded() -> Path:
    instead = f"Or download {FILE} from https://huggingface.co/{REPOSITORY}, for --weights."
    with importing("huggingface_hub", "downloading the ImageNet weights", instead):
        from huggingface_hub import hf_hub_download
    try:
        return Path(hf_hub_download(REPOSITORY, FILE))
    except OSError as error:  # errors of the hub, the connection or a full disk
        raise BenchmdError(
            f"cannot download {FILE} of {REPOSITORY} ({error}). Download it by hand from "
            f"https://huggingface.co/{REPOSITORY} and name it with --weights."
        ) from error


def read_imagenet(path: Path, signal: Signal) -> StartWeights:
    """Read a weights file with timm's names, strictly, for the images of a signal.

    For grey images the filters of the patch embedding are summed over the three colours, which is
    equivalent to a grey value in all three channels.
    """
    import torch
    from safetensors.torch import load_file

    from benchmd_ray.models.encoder import Encoder

    if not path.is_file():
        raise BenchmdError(f"there is no weights file {path}. {GET}")
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise BenchmdError(
            f"{path} is not a whole safetensors file ({error}); others, such as PyTorch's "
            f"pickled .bin and .pth, are not read. {GET}"
        ) from error
    with torch.device("meta"):
        empty = Encoder(signal, ENCODERS["vit-tiny"]).state_dict()
    wanted = {_name_in_file(name): tuple(value.shape) for name, value in empty.items()}
    wanted[PROJECTION] = (len(empty["cls"][0, 0]), COLOURS, *signal.patch)
    skipped = tuple(sorted(name for name in weights if name.startswith(CLASSIFIER)))
    _require_exactly(path, {k: v for k, v in weights.items() if k not in skipped}, wanted)
    tensors = {name: weights[_name_in_file(name)].float() for name in empty}
    tensors["patch_embedding.weight"] = patch_filters(weights[PROJECTION], signal.input_shape[0])
    return StartWeights(path.name, sha256(path), tensors, skipped, ENCODERS["vit-tiny"])


def patch_filters(filters: torch.Tensor, channels: int) -> torch.Tensor:
    """Convert filters over colour patches (width, 3, y, x) to a linear patch embedding.

    Returns:
        float32 (width, channels × y × x), the channel slowest, as in `patchify`.
    """
    filters = filters.float()
    return (filters.sum(dim=1) if channels == 1 else filters).flatten(1)


def _name_in_file(name: str) -> str:
    match = PARAMETER.fullmatch(name)
    assert match is not None  # every name has this form
    block, part, kind = match.groups("")
    return f"{block}{NAMES.get(part, part)}{kind}"


def _require_exactly(
    path: Path, tensors: dict[str, torch.Tensor], wanted: dict[str, tuple[int, ...]]
) -> None:
    missing = [f"{name} is missing" for name in wanted if name not in tensors]
    foreign = [f"{name} {_foreign(name)}" for name in tensors if name not in wanted]
    wrong = [
        f"{name} is {value.dtype} {tuple(value.shape)}, expected floating-point numbers {shape}"
        for name, shape in wanted.items()
        if (value := tensors.get(name)) is not None
        and (tuple(value.shape) != shape or not value.is_floating_point())
    ]
    if missing or foreign or wrong:
        faults = [fault for kind in (missing, foreign, wrong) for fault in kind[:3]]
        more = len(missing) + len(foreign) + len(wrong) - len(faults)
        raise BenchmdError(
            f"{path} does not hold ViT-Tiny/16 for 224 × 224 with timm's names: "
            f"{'; '.join(faults)}{f' and {more} more' if more else ''}. {GET}"
        )


def _foreign(name: str) -> str:
    return next(
        (reason for start, reason in VARIANTS.items() if name.startswith(start)),
        "is not of this network",
    )
