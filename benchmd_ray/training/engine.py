"""Engines turn a loss into a step: `TorchEngine` in one process, `DeepSpeedEngine` in many.

Both write the same checkpoint, which loads at any number of workers and ZeRO stage.
"""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn  # differentiable collectives
from torch import nn
from torch.func import functional_call

from benchmd_ray.data.batches import Worker
from benchmd_ray.errors import BenchmdError
from benchmd_ray.extensions.extras import importing, require
from benchmd_ray.extensions.private_parts import private_part
from benchmd_ray.models.encoder import Encoder
from benchmd_ray.settings.definition import ExecutionSettings, OptimiserSettings
from benchmd_ray.training.state import (
    MOMENTS,
    State,
    WholeState,
    ZeroState,
    load_state,
    save_state,
    snapshot,
    weights,
)

FACTOR = "lr_factor"
"""Key of a parameter group for the factor on its learning rate."""
BUCKET = 2**25
"""Most values that ZeRO exchanges, steps or gathers at a time: 128 MiB in float32. DeepSpeed's
defaults are above the size of our largest encoder, so nothing would be split.
"""
ENGINE_USE = "training by several workers or with ZeRO"

Captures = Literal["", "passes", "step"]
"""What a CUDA graph can capture: nothing; only forward and backward pass, as the update exchanges
gradients; or the whole step.
"""


class Engine(ABC):
    """Trains a module's parameters step by step."""

    module: nn.Module
    worker: Worker
    captures: Captures
    """The part of a step that a CUDA graph can capture."""
    _forward: nn.Module
    _optimiser: Any
    _state: State

    def __call__(self, *inputs: Any) -> Any:
        """Run the module in the precision of the settings."""
        return self._forward(*inputs)

    @abstractmethod
    def backward(self, loss: torch.Tensor, *, last: bool = True) -> None:
        """Accumulate this worker's gradients until `update`.

        ``last``: `update` follows, and no other backward pass.
        """

    @abstractmethod
    def update(self) -> None:
        """Step the optimiser with gradients averaged over workers, and reset them."""

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of every parameter group, times the group's factor if any."""
        for group in self._optimiser.param_groups:
            rate = lr * group.get(FACTOR, 1.0)
            if isinstance(group["lr"], torch.Tensor):  # on the device, so that a graph can read it
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def tensors(self) -> list[torch.Tensor]:
        """Tensors that a step changes: parameters, buffers and AdamW's moments; not with ZeRO."""
        states = self._optimiser.state.values()
        moments = [state[name] for state in states for name in MOMENTS]
        return [*self.module.parameters(), *self.module.buffers(), *moments]

    def save(self, folder: Path) -> None:
        """Write model and optimiser into a folder; every worker calls it."""
        save_state(self.module, self._state, folder if self.worker.rank == 0 else None)

    def load(self, folder: Path) -> None:
        """Read what `save` wrote."""
        load_state(self.module, self._state, folder)

    def weights(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers, copied to the CPU of the first worker; every worker calls it."""
        return weights(self.module, self._state, keep=self.worker.rank == 0)


def choose_device(choice: str, local_rank: int = 0) -> torch.device:
    """The device of a worker, by ``execution.device``; on a GPU it pins the attention."""
    if choice == "cuda" and not torch.cuda.is_available():
        raise BenchmdError(
            "execution.device is cuda and PyTorch sees no GPU. Use --set execution.device=cpu, or "
            "install the CUDA build of PyTorch."
        )
    if choice == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    # Which attention PyTorch prefers depends on GPU and version; without cuDNN's it is flash.
    torch.backends.cuda.enable_cudnn_sdp(False)
    return torch.device("cuda", local_rank % torch.cuda.device_count())


def uses_bf16(precision: str, device: torch.device) -> bool:
    """Whether forward passes run in bf16 mixed precision."""
    return precision == "bf16" or (precision == "auto" and device.type == "cuda")


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Mixed-precision context of a forward pass; weights and optimiser stay in float32."""
    enabled = uses_bf16(precision, device)
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled)


def alone() -> bool:
    """Whether there is no other worker."""
    return not dist.is_initialized() or dist.get_world_size() == 1


def gather(x: torch.Tensor) -> torch.Tensor:
    """Concatenate over workers along the first axis, in order of rank, differentiably."""
    if alone():
        return x
    if x.requires_grad:
        return torch.cat(dist_nn.all_gather(x.contiguous()))  # type: ignore[no-untyped-call]
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts)


def barrier() -> None:
    """Wait for all workers."""
    if not alone():
        dist.barrier()


def adamw(
    parameters: Iterable[Any], settings: OptimiserSettings, device: torch.device
) -> torch.optim.AdamW:
    """Fused AdamW over parameters or parameter groups; on a GPU a graph can capture its step."""
    on_gpu = device.type == "cuda"
    optimiser = torch.optim.AdamW(
        parameters,
        lr=settings.lr,
        weight_decay=settings.weight_decay,
        fused=True,
        capturable=on_gpu,
    )
    for group in optimiser.param_groups if on_gpu else ():
        group["lr"] = torch.tensor(settings.lr, device=device)
    return optimiser


class TorchEngine(Engine):
    """Plain PyTorch, one process."""

    captures: Captures = "step"

    def __init__(
        self,
        module: nn.Module,
        optimiser: OptimiserSettings,
        execution: ExecutionSettings,
        worker: Worker,
        factors: Mapping[str, float] | None = None,
    ) -> None:
        self.module = module.to(worker.device)
        self.worker = worker
        self._forward = _Autocast(self.module, worker.device, execution.precision)
        self._optimiser = adamw(parameter_groups(module, factors), optimiser, worker.device)
        self._state = WholeState(self._optimiser)

    def backward(self, loss: torch.Tensor, *, last: bool = True) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def update(self) -> None:
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)

    def snapshot(self) -> Callable[[Path], None]:
        """Copy the state, and return a function that writes it like `save`."""
        return snapshot(self.module, self._state)


class DeepSpeedEngine(Engine):
    """DeepSpeed, any number of workers, any ZeRO stage.

    Without ZeRO the module is called directly, and DeepSpeed takes over after the backward pass.
    """

    def __init__(
        self,
        module: nn.Module,
        optimiser: OptimiserSettings,
        execution: ExecutionSettings,
        worker: Worker,
        factors: Mapping[str, float] | None = None,
    ) -> None:
        deepspeed = import_deepspeed(worker.device)
        _join_process_group(worker)
        self.module = module.to(worker.device)
        self.worker = worker
        values = sum(parameter.numel() for parameter in trainable(module))
        about = (self.module, worker.device, execution.precision)
        self._engine, *_ = deepspeed.initialize(
            model=_Autocast(*about, together=False),
            model_parameters=parameter_groups(self.module, factors),
            config=deepspeed_config(optimiser, execution, values),
        )
        self._optimiser = self._engine.optimizer
        splits = execution.zero_stage > 0
        # DeepSpeed's hooks on its module wait for the device.
        self._forward = self._engine if splits else _Autocast(*about)
        self.captures = "" if splits else "passes"
        self._state = (
            ZeroState(self._engine, worker.rank) if splits else WholeState(self._optimiser)
        )

    def backward(self, loss: torch.Tensor, *, last: bool = True) -> None:
        if self.captures:
            loss.backward()  # type: ignore[no-untyped-call]
            return
        self._engine.set_gradient_accumulation_boundary(last)
        self._engine.backward(loss)

    def update(self) -> None:
        if self.captures:
            self._engine.allreduce_gradients()
        self._engine.step()


class _Autocast(nn.Module):
    """Runs a module in mixed precision, also within DeepSpeed's engine."""

    def __init__(
        self, module: nn.Module, device: torch.device, precision: str, *, together: bool = True
    ) -> None:
        """``together``: round the transformer's weights at once; not within DeepSpeed's engine.

        Autocast launches two kernels for each weight instead; the results are the same.
        """
        super().__init__()
        self.module = module
        self._device, self._precision = device, precision
        rounds = together and uses_bf16(precision, device)
        self._weights = _of_transformer(module) if rounds else {}

    def forward(self, *inputs: Any) -> Any:
        with autocast(self._device, self._precision):
            if not self._weights:
                return self.module(*inputs)
            copies = _Rounded.apply(*self._weights.values())  # type: ignore[no-untyped-call]
            rounded = dict(zip(self._weights, copies, strict=True))
            return functional_call(self.module, rounded, inputs)


def _of_transformer(module: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters of our transformer by name; none if custom code may change them or read them."""
    encoder = getattr(module, "encoder", None)
    if type(encoder) is not Encoder or not type(module).__module__.startswith("benchmd_ray."):
        return {}
    return {f"encoder.{name}": parameter for name, parameter in encoder.named_parameters()}


class _Rounded(torch.autograd.Function):
    """Weights to bfloat16, and their gradients back to float32."""

    @staticmethod
    def forward(ctx: Any, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        copies = _copied(weights, torch.bfloat16)
        needed = zip(copies, ctx.needs_input_grad, strict=True)
        ctx.mark_non_differentiable(*(copy for copy, is_needed in needed if not is_needed))
        return copies

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        copies = iter(_copied(tuple(x for x in gradients if x is not None), torch.float32))
        return tuple(None if x is None else next(copies) for x in gradients)


def _copied(tensors: tuple[torch.Tensor, ...], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    copies = [torch.empty_like(x, dtype=dtype) for x in tensors]
    torch._foreach_copy_(copies, tensors)
    return tuple(copies)


def make_engine(
    module: nn.Module,
    optimiser: OptimiserSettings,
    execution: ExecutionSettings,
    worker: Worker,
    factors: Mapping[str, float] | None = None,
) -> Engine:
    """The engine for the settings: DeepSpeed with several workers or ZeRO, otherwise PyTorch.

    ``factors`` multiply learning rates, by name of the parameter; None: the same rate for all.
    """
    kind = DeepSpeedEngine if _chosen(execution, worker.world) == "deepspeed" else TorchEngine
    return kind(module, optimiser, execution, worker, factors)


def _chosen(execution: ExecutionSettings, workers: int) -> str:
    if execution.engine != "auto":
        return execution.engine
    return "torch" if workers == 1 and execution.zero_stage == 0 else "deepspeed"


def require_engine(execution: ExecutionSettings) -> None:
    """Refuse an engine that is not installed (`MissingExtra`)."""
    if _chosen(execution, execution.workers) == "deepspeed":
        require(ENGINE_USE, "deepspeed")


def import_deepspeed(device: torch.device) -> Any:
    """DeepSpeed, without building its CPU communication extension, which needs a compiler."""
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    with importing("deepspeed", ENGINE_USE):
        import deepspeed
        from deepspeed.utils import logger

    if device.type == "cpu":
        private_part("deepspeed.ops", "__compatible_ops__")["deepspeed_shm_comm"] = False
    logger.setLevel("ERROR")
    return deepspeed


def deepspeed_config(
    optimiser: OptimiserSettings, execution: ExecutionSettings, parameters: int
) -> dict[str, Any]:
    """DeepSpeed's configuration, derived from the settings."""
    limits = (
        "reduce_bucket_size",
        "allgather_bucket_size",
        "sub_group_size",
        "stage3_max_live_parameters",
        "stage3_max_reuse_distance",
    )
    limit = min(BUCKET, parameters + parameters % 2)  # DeepSpeed needs an even number
    return {
        "train_micro_batch_size_per_gpu": 1,  # only reported; batches come from the feed
        "gradient_accumulation_steps": 1,  # `backward` marks the last pass
        "zero_optimization": {"stage": execution.zero_stage, **dict.fromkeys(limits, limit)},
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": optimiser.lr,
                "weight_decay": optimiser.weight_decay,
                "torch_adam": True,
                "fused": True,
            },
        },
        "gradient_clipping": 0.0,  # DeepSpeed clips at norm 1 unless set; the protocol never
        "steps_per_print": 10**9,
    }


def _join_process_group(worker: Worker) -> None:
    """Use the existing process group, or create one of this process only."""
    if dist.is_initialized():
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(
        RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    dist.init_process_group("nccl" if worker.device.type == "cuda" else "gloo")


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """Parameters that take gradients."""
    return [p for p in module.parameters() if p.requires_grad]


def parameter_groups(module: nn.Module, factors: Mapping[str, float] | None) -> list[Any]:
    """The trainable parameters, or one group per factor, see `make_engine`."""
    if factors is None:
        return trainable(module)
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            groups.setdefault(factors[name], []).append(parameter)
    return [{"params": groups[factor], FACTOR: factor} for factor in sorted(groups)]


def cpu_copy(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers, copied to the CPU."""
    return {
        name: value.detach().cpu().clone().contiguous()
        for name, value in module.state_dict().items()
    }
