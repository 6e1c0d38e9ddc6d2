r"""``python -m speed.encoder_step --size paper --batch 64`` from the project's root.

Forward and backward pass of the encoder with a linear head and cross-entropy, in samples a
second: the package's `Encoder` (fused attention) against the same weights with attention written
out as two einsums in the same precision: on a GPU bf16 autocast, which is what the package runs
there. There also both in float32, as the reference was released, and ours with ``torch.compile``.

Needs PyTorch, NumPy and PyYAML, nothing else of the package's dependencies. FLOPs are those of
the matrix products of one forward and backward pass with nothing computed twice, counted by
PyTorch; ``--peak-tflops`` (dense bf16) adds the achieved share. ``hours_per_100000_steps`` times
an AdamW step as well. DeepSpeed, data and Ray are left out: this is the model's own speed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from benchmd_ray.modality.modalities import Modality, modalities
from benchmd_ray.models.encoder import Block, Encoder
from benchmd_ray.settings.definition import ENCODERS, EncoderSettings
from speed import measure

PROTOCOL_STEPS = 100_000
TOLERANCE = 1e-4
"""Largest difference between the features of both encoders, in float32."""

Model = Callable[[torch.Tensor], torch.Tensor]


class EinsumBlock(Block):
    """The encoder's block with its attention written out."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, width) to the same."""
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        mixed = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(dim=-1), v)
        x = x + self.dropout(self.project(mixed.flatten(2)))
        added: torch.Tensor = x + self.mlp(self.mlp_norm(x))
        return added


def plain_encoder(modality: Modality, size: EncoderSettings) -> Encoder:
    """Ours."""
    return Encoder(modality.signal, size)


def einsum_encoder(modality: Modality, size: EncoderSettings) -> Encoder:
    """An encoder of the same parameters with einsum attention."""
    encoder = Encoder(modality.signal, size)
    encoder.blocks = nn.ModuleList(EinsumBlock(size) for _ in range(size.depth))
    return encoder


def same_encoders(
    modality: Modality, size: EncoderSettings, signals: torch.Tensor
) -> tuple[Encoder, Encoder]:
    """Ours and the peer with the same weights, compared on ``signals``.

    Raises:
        AssertionError: Their features differ.
    """
    ours, peer = (
        make(modality, size).to(signals.device) for make in (plain_encoder, einsum_encoder)
    )
    peer.load_state_dict(ours.state_dict())
    with torch.inference_mode():
        expected, got = (encoder.eval()(signals[:4]) for encoder in (ours, peer))
    torch.testing.assert_close(got, expected, rtol=0, atol=TOLERANCE)
    return ours.train(), peer.train()


def flops_per_step(modality: Modality, size: EncoderSettings, batch: int) -> int:
    """FLOPs of the matrix products of one forward and backward pass; nothing is computed."""
    with torch.device("meta"):
        model = with_head(einsum_encoder(modality, size), modality)
        signals = torch.empty(batch, *modality.signal.input_shape)
    counter = FlopCounterMode(display=False)
    with counter:
        model(signals).sum().backward()
    return int(counter.get_total_flops())


def with_head(encoder: Encoder, modality: Modality) -> nn.Sequential:
    """Encoder and linear head."""
    head = nn.Linear(encoder.width, len(modality.task.classes), device=encoder.cls.device)
    return nn.Sequential(encoder, head)


def step(
    model: nn.Module,
    signals: torch.Tensor,
    classes: torch.Tensor,
    *,
    bf16: bool = False,
    optimiser: torch.optim.Optimizer | None = None,
    steps: int = 1,
) -> Callable[[], None]:
    """A task: steps of forward and backward pass, and of the optimiser where one is given."""

    def run() -> None:
        for _ in range(steps):
            model.zero_grad(set_to_none=True)
            with torch.autocast(signals.device.type, torch.bfloat16) if bf16 else nullcontext():
                logits = model(signals)
            functional.cross_entropy(logits.float(), classes).backward()  # type: ignore[no-untyped-call]
            if optimiser:
                optimiser.step()

    return run


def tasks(
    arguments: argparse.Namespace, modality: Modality, signals: torch.Tensor
) -> tuple[dict[str, Callable[[], None]], dict[str, str]]:
    """What to measure, by name, and why something is left out."""
    classes = torch.randint(len(modality.task.classes), (len(signals),), device=signals.device)
    encoders = same_encoders(modality, ENCODERS[arguments.size], signals)
    ours, peer = (with_head(encoder, modality).to(signals.device) for encoder in encoders)

    def task(model: nn.Module, bf16: bool = False, adamw: bool = False) -> Callable[[], None]:
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5) if adamw else None
        return step(model, signals, classes, bf16=bf16, optimiser=optimiser, steps=arguments.steps)

    found = {"einsum_float32": task(peer), "ours_float32": task(ours)}
    if signals.device.type == "cpu":
        return found | {"ours_float32+adamw": task(ours, adamw=True)}, {}
    found |= {
        "einsum_bf16": task(peer, bf16=True),
        "ours_bf16": task(ours, bf16=True),
        "ours_bf16+adamw": task(ours, bf16=True, adamw=True),
    }
    if not arguments.compile:
        return found, {"ours_bf16_compiled": "--no-compile"}
    compiled = cast(nn.Module, torch.compile(ours))  # it says that it gives a function
    more = {
        "ours_bf16_compiled": task(compiled, bf16=True),
        "ours_bf16_compiled+adamw": task(compiled, bf16=True, adamw=True),
    }
    try:
        more["ours_bf16_compiled"]()
    except Exception as error:  # needs a C compiler and Triton; the rest is worth having
        return found, {"ours_bf16_compiled": f"{type(error).__name__}: {error}"[:300]}
    return found | more, {}


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    options = measure.parser(__doc__)
    measure.add_device(options)
    options.add_argument("--size", choices=sorted(ENCODERS), default="paper", help="(paper)")
    options.add_argument("--modality", choices=sorted(modalities()), default="ecg", help="(ecg)")
    options.add_argument("--batch", type=int, help="samples of a step (64; 4 on a CPU)")
    options.add_argument("--steps", type=int, help="steps of a repetition (20; 1 on a CPU)")
    options.add_argument("--peak-tflops", type=float, help="peak of the device, dense bf16")
    options.add_argument("--no-compile", dest="compile", action="store_false")
    chosen = measure.parsed(options, arguments)
    on_gpu = chosen.device == "cuda"
    chosen.batch = chosen.batch or (64 if on_gpu else 4)
    chosen.steps = chosen.steps or (20 if on_gpu else 1)
    modality, size = modalities()[chosen.modality], ENCODERS[chosen.size]
    signals = torch.randn(chosen.batch, *modality.signal.input_shape, device=chosen.device)
    to_measure, skipped = tasks(chosen, modality, signals)
    seconds = measure.alternating(
        to_measure,
        repetitions=chosen.repetitions,
        warm_up=chosen.warm_up,
        device=chosen.device,
    )
    flops = flops_per_step(modality, size, chosen.batch)
    peer = "einsum_bf16" if on_gpu else "einsum_float32"  # like with like
    measure.report(
        "encoder_step",
        chosen,
        seconds,
        units=chosen.batch * chosen.steps,
        unit="samples/s",
        ours="ours_bf16" if on_gpu else "ours_float32",
        peer=peer,
        ratios={
            name: measure.ratio(seconds, name, peer)
            for name in seconds
            if "+" not in name and name != peer
        },
        parameters=sum(p.numel() for p in Encoder(modality.signal, size).parameters()),
        tokens=modality.signal.tokens + 1,
        **figures(seconds, flops, chosen),
        skipped=skipped,
    )


def figures(seconds: measure.Seconds, flops: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """What follows from the times: FLOP/s, share of the peak, hours of the protocol."""
    medians = {
        name: measure.spread(values)["median"] / arguments.steps for name, values in seconds.items()
    }
    achieved = {name: flops / s / 1e12 for name, s in medians.items() if "+" not in name}
    found: dict[str, Any] = {
        "flops_per_step": flops,
        "tflops_per_second": {name: measure.rounded(value) for name, value in achieved.items()},
        "hours_per_100000_steps": {
            name.removesuffix("+adamw"): measure.rounded(s * PROTOCOL_STEPS / 3600)
            for name, s in medians.items()
            if name.endswith("+adamw")
        },
    }
    if arguments.peak_tflops:
        found["share_of_peak"] = {
            name: measure.rounded(value / arguments.peak_tflops) for name, value in achieved.items()
        }
    return found


if __name__ == "__main__":
    main()
