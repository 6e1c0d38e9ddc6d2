"""Which settings a pretraining or a transfer uses, and which have no effect."""

from __future__ import annotations

from collections.abc import Mapping

METHOD_SETTINGS = {
    "pretrain.mixing_alpha": ("e-mix",),
    "pretrain.temperature": ("e-mix",),
    "pretrain.corruption_rate": ("shed",),
    "pretrain.mask_rate": ("mae", "imagenet+mae"),
}
"""Settings that only some of the built-in techniques use."""
BUILT_IN = ("scratch", "e-mix", "shed", "mae", "imagenet", "imagenet+mae")
DROPOUT = "transfer.dropout"
FINE_TUNING = (
    "transfer.layer_decay",
    "transfer.embedding_dropout",
    "transfer.averaging",
    "transfer.freeze",
    "transfer.stochastic_depth",
    "transfer.class_balance",
)
"""Settings that linear evaluation does not use."""
AUGMENTATION = "transfer.augmentation."
"""Prefix of augmentation settings, which linear evaluation does not use and not all signals
have.
"""
NEIGHBOURS = "transfer.neighbours"
SOLVER, HIDDEN = "transfer.solver", "transfer.hidden"
UNTRAINED = ("transfer.mode", "transfer.labels", "transfer.shuffle_labels")
"""Settings that are read also by a transfer that trains nothing by steps."""
NORMALISATION = "transfer.normalisation"
STEPS = ("drops", "drop_factor")
"""Optimiser settings that only the schedule "steps" uses."""


def finetunes(name: str) -> bool:
    """Whether only fine-tuning uses a setting."""
    return name in FINE_TUNING or name.startswith(AUGMENTATION)


def reads(mode: object, name: str) -> bool:
    """Whether transfers of a mode (linear, finetune, knn) may read a setting of a transfer."""
    if finetunes(name):
        return mode == "finetune"
    if name in (SOLVER, HIDDEN):
        return mode == "linear"
    if mode == "knn":
        return name in (*UNTRAINED, NEIGHBOURS, NORMALISATION)
    return name != NEIGHBOURS


def in_use(values: Mapping[str, object], technique: str) -> dict[str, object]:
    """The settings among these that are used.

    Args:
        values: Settings of a pretraining or a transfer, by full name.
        technique: Its technique; a custom one may use any setting of pretraining.
    """
    return {name: value for name, value in values.items() if _is_read(name, values, technique)}


def _is_read(name: str, values: Mapping[str, object], technique: str) -> bool:
    group, _, field = name.rpartition(".")
    mode = values.get("transfer.mode")
    if name.startswith("transfer.") and not reads(mode, name):
        return False
    if name == NORMALISATION:  # the catalog's needs no mention
        return values[name] != "catalog"
    if name.startswith("transfer.") and mode == "linear":
        if values.get(SOLVER) == "logistic":
            return name in (*UNTRAINED, SOLVER)
        if name in (HIDDEN, DROPOUT):
            return bool(values.get(HIDDEN))
    if field in STEPS and group.endswith(".optimiser"):
        return values.get(f"{group}.schedule") == "steps"
    return technique not in BUILT_IN or technique in METHOD_SETTINGS.get(name, (technique,))
