"""Parameters and moments that DeepSpeed's ZeRO splits over the workers.

Stages 1 and 2 split the optimiser's state, stage 3 the parameters too. Source: Rajbhandari et al.
(https://arxiv.org/abs/1910.02054).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from benchmd_ray.training.state import MOMENTS, PARAMETERS, Moments


class HeldByZero:
    """What a DeepSpeed engine of stage 1, 2 or 3 holds."""

    def __init__(self, engine: Any, rank: int) -> None:
        self._zero = engine.optimizer
        self._rank = rank
        self._stage: int = engine.zero_optimization_stage()

    def whole(self, tensor: torch.Tensor, part: str) -> torch.Tensor | None:
        """See `Held`; each worker gives its share of the tensor."""
        import deepspeed
        from deepspeed.utils import safe_get_full_optimizer_state

        if part == PARAMETERS:
            with deepspeed.zero.GatheredParameters([tensor]):
                # The parameters of stages 1 and 2 are parts of one tensor: files want them apart.
                return tensor.detach().clone()
        state = self._zero.optimizer.state
        if not state:
            return None
        if part == "step":  # of all parameters alike
            return next(iter(state.values()))["step"].clone()  # type: ignore[no-any-return]
        self._link()
        whole: torch.Tensor = safe_get_full_optimizer_state(tensor, part)
        return whole

    def take(
        self,
        values: Iterable[tuple[torch.Tensor, torch.Tensor]],
        moments: Iterable[tuple[nn.Parameter, Moments]],
    ) -> None:
        """See `Held`; each worker keeps its share of every tensor."""
        import deepspeed

        for tensor, value in values:
            with deepspeed.zero.GatheredParameters([tensor], modifier_rank=0):
                tensor.data.copy_(value)
        self._zero.refresh_fp32_params()
        state = self._zero.optimizer.state
        state.clear()
        for parameter, whole in moments:
            if not state:
                self._make_moments()
            for flat in state.values():
                flat["step"].copy_(torch.maximum(flat["step"], whole["step"]))
            for name in MOMENTS[1:]:
                self._set(parameter, name, whole[name])

    def _flat(self) -> list[torch.Tensor]:
        """What the optimiser steps: this worker's share of the parameters, joined."""
        if self._stage == 3:
            return list(self._zero.fp32_partitioned_groups_flat)
        return list(self._zero.single_partition_of_fp32_groups)

    def _make_moments(self) -> None:
        """Moments as before the first step; AdamW makes them in that step."""
        for flat in self._flat():
            self._zero.optimizer.state[flat] = {
                "step": torch.zeros((), dtype=torch.float32, device=flat.device),
                **{name: torch.zeros_like(flat.data) for name in MOMENTS[1:]},
            }
        self._link()

    def _link(self) -> None:
        """Tell the parameters where their moments are.

        DeepSpeed does that in the first step, when only the first group of parameters has any.
        """
        from deepspeed.utils import lazy_init_hp_params_optimizer_state as link

        if self._stage < 3:
            groups = zip(self._zero.bit16_groups, self._flat(), strict=True)
            for parameters, flat in groups:
                link(parameters, flat, self._zero.optimizer.state)

    def _set(self, parameter: nn.Parameter, name: str, value: torch.Tensor) -> None:
        """Keep this worker's share of a moment."""
        from deepspeed.utils import safe_set_full_optimizer_state, safe_set_local_optimizer_state

        if self._stage < 3:
            safe_set_full_optimizer_state(parameter, value, name)
            return
        # DeepSpeed's own way to split fails where the workers' shares are not all full.
        length = parameter.ds_tensor.numel()  # type: ignore[attr-defined]
        share = torch.zeros(length)
        rest = value.flatten()[self._rank * length : (self._rank + 1) * length]
        share[: len(rest)] = rest
        safe_set_local_optimizer_state(parameter, share, name)
