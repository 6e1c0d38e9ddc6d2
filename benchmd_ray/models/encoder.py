"""The benchmark's transformer encoder (pre-norm, CLS, learned positions), and other encoders.

Source: BenchMD v2, section 4.1 and appendix B. The ImageNet-pretrained ViT
(`benchmd_ray.models.imagenet`) differs by settings for biases, final norm and pooling.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from benchmd_ray.errors import BenchmdError, first_line
from benchmd_ray.extensions.plugins import plugin
from benchmd_ray.modality.signals import Signal
from benchmd_ray.models.drop_path import DropPath
from benchmd_ray.models.evaluating import evaluating
from benchmd_ray.models.hub_networks import HubNetwork
from benchmd_ray.models.monai_networks import MONAI_NETWORKS, MonaiNetwork
from benchmd_ray.models.networks import KIND, NETWORK, PUBLISHED, RANDOM_KERNELS, TRANSFORMERS
from benchmd_ray.models.published import PublishedEncoder
from benchmd_ray.models.random_kernels import RandomKernels, RandomKernelsOptions
from benchmd_ray.models.resnet import (
    RESNETS,
    ResNet,
    require_axes,
    require_resnet_signals,
    resnet_options,
)
from benchmd_ray.models.segmentation_networks import (
    SEGMENTATION_NETWORKS,
    SegmentationNetwork,
    require_segmentation_option,
)
from benchmd_ray.models.xresnet import AXES as XRESNET_AXES
from benchmd_ray.models.xresnet import XRESNETS, XResNet, XResNetOptions
from benchmd_ray.settings.definition import EncoderSettings, updated


def patchify(signals: torch.Tensor, patch: tuple[int, ...]) -> torch.Tensor:
    """Cut signals (batch, channel, *space) into non-overlapping patches.

    Returns:
        (batch, tokens, channel × prod(patch)): patches in C order of their position; within a
        patch the channel varies slowest.
    """
    batch, channels, *space = signals.shape
    if len(space) != len(patch) or any(s % p for s, p in zip(space, patch, strict=True)):
        raise ValueError(
            f"space {tuple(space)} cannot be cut into patches of {patch}: expected as many axes "
            "and multiples of the patch's extents"
        )
    split: list[int] = [n for s, p in zip(space, patch, strict=True) for n in (s // p, p)]
    x = signals.reshape(batch, channels, *split)
    dims = range(len(space))
    # (batch, channel, n1, p1, n2, p2, …) → (batch, n1, n2, …, channel, p1, p2, …)
    x = x.permute(0, *(2 + 2 * d for d in dims), 1, *(3 + 2 * d for d in dims))
    tokens = math.prod([s // p for s, p in zip(space, patch, strict=True)])
    return x.reshape(batch, tokens, channels * math.prod(patch))


class LayerNorm(nn.LayerNorm):
    """LayerNorm whose output has the precision of its input, with statistics in float32.

    Under autocast PyTorch's would turn bfloat16 into float32, twice the bytes of every token.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(…, width) to the same."""
        if x.dtype != torch.bfloat16:
            return super().forward(x)
        # On a CPU the kernel for bfloat16 adds up the gradients of weight and bias in bfloat16.
        kind = torch.float32 if x.device.type == "cpu" else x.dtype
        weight, bias = self.weight.to(kind), self.bias.to(kind)
        with torch.autocast(x.device.type, enabled=False):
            y = functional.layer_norm(x.to(kind), self.normalized_shape, weight, bias, self.eps)
        return y.to(x.dtype)


class Block(nn.Module):
    """Pre-norm transformer block: attention, then MLP, each added to its input."""

    def __init__(self, size: EncoderSettings) -> None:
        super().__init__()
        self.heads = size.heads
        inner = size.heads * size.head_dim
        self.attention_norm = LayerNorm(size.width, size.norm_eps)
        self.qkv = nn.Linear(size.width, 3 * inner, bias=size.qkv_bias)
        self.project = nn.Linear(inner, size.width)
        self.mlp_norm = LayerNorm(size.width, size.norm_eps)
        self.mlp = nn.Sequential(
            nn.Linear(size.width, size.mlp),
            nn.GELU(),
            nn.Dropout(size.dropout),
            nn.Linear(size.mlp, size.width),
            nn.Dropout(size.dropout),
        )
        self.dropout = nn.Dropout(size.dropout)
        self.drop_path = DropPath()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, width) to the same."""
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        mixed = functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        )
        x = x + self.drop_path(self.dropout(self.project(mixed.transpose(1, 2).flatten(2))))
        added: torch.Tensor = x + self.drop_path(self.mlp(self.mlp_norm(x)))
        return added


class Encoder(nn.Module):
    """Encoder of signals to one feature vector each."""

    def __init__(self, signal: Signal, size: EncoderSettings) -> None:
        super().__init__()
        self.signal = signal = signal.with_patch(size.patch_size)
        self.width, self.pooled = size.width, size.pool
        self.patch_embedding = nn.Linear(signal.patch_size, size.width)
        self.cls = nn.Parameter(torch.randn(1, 1, size.width))
        self.positions = nn.Parameter(torch.randn(1, signal.tokens + 1, size.width))
        self.dropout = nn.Dropout(size.embedding_dropout)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.depth))
        self.norm = LayerNorm(size.width, size.norm_eps) if size.final_norm else nn.Identity()

    def patches(self, signals: torch.Tensor) -> torch.Tensor:
        """Raw patches: (batch, tokens, values of a patch)."""
        return patchify(signals, self.signal.patch)

    def embed(self, signals: torch.Tensor) -> torch.Tensor:
        """Token embeddings without positions: (batch, tokens, width)."""
        tokens: torch.Tensor = self.patch_embedding(self.patches(signals))
        return tokens

    def encode(self, tokens: torch.Tensor) -> torch.Tensor:
        """Embedded tokens to hidden states: (batch, 1 + tokens, width), CLS first.

        In mixed precision tokens and hidden states are bfloat16, between the blocks as well.
        """
        x = torch.cat([self.cls.to(tokens.dtype).expand(len(tokens), -1, -1), tokens], dim=1)
        x = self.dropout(x + self.positions.to(x.dtype))
        for block in self.blocks:
            x = block(x)
        hidden: torch.Tensor = self.norm(x)
        return hidden

    def pool(self, hidden: torch.Tensor) -> torch.Tensor:
        """Mean over all tokens, CLS included, or CLS only: (batch, width).

        Of tokens in bfloat16 they are in float32.
        """
        wide = torch.promote_types(hidden.dtype, torch.float32)
        if self.pooled == "mean":
            return hidden.mean(dim=1, dtype=wide)
        return hidden[:, 0].to(wide)

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        """Features: (batch, width)."""
        return self.pool(self.encode(self.embed(signals)))


OTHERS: dict[str, Callable[[Signal, EncoderSettings], nn.Module]] = {
    **RESNETS,
    **XRESNETS,
    **MONAI_NETWORKS,
    **SEGMENTATION_NETWORKS,
    TRANSFORMERS: HubNetwork,
    PUBLISHED: PublishedEncoder,
    RANDOM_KERNELS: RandomKernels,
}
"""Networks without our tokens; segmentation networks return maps instead of features."""
NETWORKS: dict[str, Callable[[Signal, EncoderSettings], nn.Module]] = {NETWORK: Encoder, **OTHERS}
"""Built-in networks by their name in ``encoder.network``."""


TOKENS = ("patches", "patch_embedding", "embed", "encode", "pool")
"""Attributes of an encoder that built-in pretraining techniques use."""


def make_encoder(signal: Signal, size: EncoderSettings, *, recorded: str | None = None) -> Encoder:
    """An encoder with random weights: one of `NETWORKS`, or a custom one.

    A custom encoder is a torch module from signals (batch, *input_shape) to features (batch,
    width); built-in pretraining needs `TOKENS` too. ``recorded`` is the `network_source` of the
    weights to load; None for new ones.
    """
    signal = signal.with_patch(size.patch_size)
    if size.network in NETWORKS:
        return NETWORKS[size.network](signal, size)  # type: ignore[return-value]
    make = plugin(KIND, size.network, NETWORKS, recorded=recorded)
    try:
        network = make(signal, size)
    except BenchmdError:
        raise
    except Exception as error:  # a custom module may raise anything
        raise BenchmdError(
            f"the encoder network {size.network} cannot be made: it is called with a signal and "
            f"the encoder's settings, and fails with {type(error).__name__}: {first_line(error)}."
        ) from error
    if not isinstance(network, nn.Module):
        raise BenchmdError(
            f"the encoder network {size.network} made a {type(network).__name__}: expected a torch "
            "module."
        )
    network.signal = signal  # type: ignore[assignment]
    network.width = _width(network, signal, size.network)  # type: ignore[assignment]
    return network  # type: ignore[return-value]


def _width(network: nn.Module, signal: Signal, name: str) -> int:
    """Number of a network's features, found by a forward pass of zeros that leaves no trace."""
    place = next((p.device for p in network.parameters()), torch.device("cpu"))
    try:
        with evaluating(network):
            features = network(torch.zeros(2, *signal.input_shape, device=place))
    except Exception as error:  # a custom module may raise anything
        raise BenchmdError(
            f"the encoder network {name} cannot take signals of shape "
            f"(batch, {', '.join(map(str, signal.input_shape))}): {type(error).__name__}: "
            f"{first_line(error)}."
        ) from error
    shape = tuple(features.shape) if isinstance(features, torch.Tensor) else type(features).__name__
    if not isinstance(features, torch.Tensor) or features.ndim != 2 or len(features) != 2:
        raise BenchmdError(
            f"the encoder network {name} returns {shape} for two signals, expected features of "
            "shape (2, width)."
        )
    return features.shape[1]


def require_fitting(signal: Signal, size: EncoderSettings) -> None:
    """Refuse settings of an encoder that do not fit the signals; custom networks are not made."""
    signal.with_patch(size.patch_size)
    if size.network in OTHERS:
        with torch.device("meta"):
            make_encoder(signal, size)


def require_signals(signal: Signal, network: str) -> None:
    """Refuse signals that do not fit a ResNet or xresnet, without making it."""
    if network in RESNETS:
        require_resnet_signals(signal, network, network.partition("-")[2])
    elif network in XRESNETS:
        require_axes(signal, network, XRESNET_AXES)


def require_option(network: str, name: str, value: object) -> None:
    """Refuse an ``encoder.options`` entry that a network of the package does not have."""
    if network in RESNETS:
        resnet_options(network, {name: value})
    elif network in XRESNETS:
        updated(XResNetOptions(), {name: value}, "encoder.options.")
    elif network == RANDOM_KERNELS:
        updated(RandomKernelsOptions(), {name: value}, "encoder.options.")
    elif network in SEGMENTATION_NETWORKS:
        require_segmentation_option(network, name, value)


def require_tokens(signal: Signal, size: EncoderSettings, technique: str) -> None:
    """Refuse a network without `TOKENS` for a technique that needs them."""
    if size.network == NETWORK:
        return
    with torch.device("meta"):
        network = make_encoder(signal, size)
    if any(not hasattr(network, name) for name in TOKENS):
        raise BenchmdError(
            f"{technique} works on the tokens of an encoder, and encoder.network is "
            f"{size.network}, which has none: fine-tune it from random weights (scratch), or use "
            f"encoder.network={NETWORK}."
        )


def compares_examples(encoder: nn.Module) -> bool:
    """Whether features of an example depend on the rest of its batch (batch normalisation)."""
    return any(isinstance(module, _BatchNorm) for module in encoder.modules())


def input_extents(encoder: nn.Module, signal: Signal) -> tuple[int, ...]:
    """Extents along all axes but the channel of an encoder's input window."""
    return encoder.window if isinstance(encoder, SegmentationNetwork) else signal.input_shape[1:]


def values_held(encoder: nn.Module) -> int:
    """Number of values of the largest tensor in the encoding of one example, if known.

    This is the largest map of a convolutional network, otherwise the input.
    """
    if isinstance(encoder, ResNet | XResNet | MonaiNetwork | SegmentationNetwork | RandomKernels):
        return encoder.largest_map
    return math.prod(encoder.signal.input_shape)  # type: ignore[union-attr, arg-type]
