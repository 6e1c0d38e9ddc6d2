"""What `studies.tuning` searches, and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from benchmd_ray.tuning.method import Method

LAPTOP = (
    *("encoder.width=64", "encoder.depth=4", "encoder.heads=4", "encoder.head_dim=16"),
    *("encoder.mlp=128", "pretrain.steps=400", "pretrain.batch_size=32"),
    *("pretrain.optimiser.lr=1e-3", "transfer.batch_size=16", "transfer.optimiser.lr=1e-3"),
    "execution.device=cpu",
)
"""Settings of the README's examples."""


@dataclass(frozen=True)
class Task:
    """What is searched."""

    source: str
    raw: str
    """Folder of the source's files in the data."""
    technique: str
    setting: str
    settings: tuple[str, ...]
    """Of the start."""
    targets: tuple[tuple[str, str], ...] = ()
    """Name and folder of each."""
    bench: str = "benchmd"
    start: str = ""
    options: dict[str, str] = field(default_factory=dict)
    """Of the source's catalog."""
    space: str | None = None
    """File of the space, else the usual one."""
    held: tuple[str, ...] = ("transfer.epochs",)
    share: float = 1.0
    """Of the study's minutes: evaluations take longer in some tasks than in others."""


SMALL = "benchmd_ray/benchmarks/medmnist/small.yaml"
NARROW = ("encoder.width=64", "encoder.depth=4", "encoder.heads=4", "encoder.mlp=128")
MEDMNIST: dict[str, Any] = {
    **{"technique": "scratch", "setting": "finetune-full", "bench": "medmnist"},
    **{"space": SMALL, "held": ()},
}
ECG = (("georgia", "cinc2021"), ("chapman-shaoxing", "cinc2021"))
TASKS = {
    "BreastMNIST": Task(
        "breastmnist",
        "medmnist",
        settings=("encoder.options.width=8", "transfer.epochs=20", *NARROW),
        start="resnet18",
        share=2.0,
        **MEDMNIST,
    ),
    "PneumoniaMNIST (unofficial), 256 labels a class": Task(
        *("pneumoniamnist", "medmnist-unofficial", "scratch", "finetune-large"),
        settings=(
            *("encoder.network=resnet18", "encoder.options.width=8", "transfer.epochs=5"),
            *("transfer.optimiser.lr=1e-3", "transfer.batch_size=32", *NARROW),
        ),
        options={"md5": "allow"},
        space=SMALL,
        held=(),
        share=0.8,
    ),
    "AdrenalMNIST3D": Task(
        "adrenalmnist3d",
        "medmnist",
        settings=(
            *("encoder.options.width=8", "encoder.options.resize=14", "transfer.epochs=4"),
            *NARROW,
        ),
        start="resnet18-2.5d",
        share=2.5,
        **MEDMNIST,
    ),
    "PTB-XL-500, linear": Task(
        *("ptb-xl", "ptb-xl-500", "mae", "linear", (*LAPTOP, "transfer.epochs=15"), ECG),
        share=0.2,
    ),
    "PTB-XL-500, fine-tuning": Task(
        *("ptb-xl", "ptb-xl-500", "mae", "finetune-full", (*LAPTOP, "transfer.epochs=5"), ECG),
        share=1.4,
    ),
    "NIH AP, fine-tuning": Task(
        *("nih-cxr-ap", "nih-cxr-1000", "mae", "finetune-full"),
        (*LAPTOP, "transfer.epochs=4", "encoder.patch_size=32"),
        (("nih-cxr-pa", "nih-cxr-1000"),),
    ),
}


@dataclass(frozen=True)
class Strategy:
    """How a task is searched."""

    method: Method
    evaluations: int | None
    portfolio: bool = False


STRATEGIES = {
    "random": Strategy(Method(sampler="random", stopping="none", choosing="highest"), 1),
    "before": Strategy(Method(sampler="tpe", stopping="asha", choosing="highest"), 1),
    "new": Strategy(Method(), None),
    "new + portfolio": Strategy(Method(), None, portfolio=True),
}
"""random and before: one inner split and one seed, and the highest score. before is the method that
the new one took the place of, in the spaces that both search."""
