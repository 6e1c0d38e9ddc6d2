"""Which settings of its group a pretraining or a transfer reads, and which are without effect."""

from __future__ import annotations

from collections.abc import Mapping

METHOD_SETTINGS = {
    "pretrain.mixing_alpha": ("e-mix",),
    "pretrain.temperature": ("e-mix",),
    "pretrain.corruption_rate": ("shed",),
    "pretrain.mask_rate": ("mae", "imagenet+mae"),
}
"""Settings that only some of the built-in techniques read."""
BUILT_IN = ("scratch", "e-mix", "shed", "mae", "imagenet", "imagenet+mae")
FINE_TUNING = (
    "transfer.layer_decay",
    "transfer.dropout",
    "transfer.embedding_dropout",
    "transfer.averaging",
    "transfer.freeze",
    "transfer.stochastic_depth",
    "transfer.class_balance",
)
"""Settings that linear evaluation does not read."""
AUGMENTATION = "transfer.augmentation."
"""How the names of settings begin that it does not read either, and that not all signals have."""
NEIGHBOURS = "transfer.neighbours"
NORMALISATION = "transfer.normalisation"
STEPS = ("drops", "drop_factor")
"""Settings of an optimiser that only the schedule steps reads."""


def finetunes(name: str) -> bool:
    """Whether only fine-tuning reads a setting."""
    return name in FINE_TUNING or name.startswith(AUGMENTATION)


def in_use(values: Mapping[str, object], technique: str) -> dict[str, object]:
    """The settings among these that are read.

    Args:
        values: Of a pretraining or a transfer, by their full names.
        technique: Its technique; a user's own may read each setting of pretraining.
    """
    return {name: value for name, value in values.items() if _is_read(name, values, technique)}


def _is_read(name: str, values: Mapping[str, object], technique: str) -> bool:
    group, _, field = name.rpartition(".")
    mode = values.get("transfer.mode")
    if finetunes(name):
        return mode == "finetune"
    if name == NORMALISATION:  # the catalog's needs no mention
        return values[name] != "catalog"
    if name == NEIGHBOURS:
        return mode == "knn"
    if field in STEPS and group.endswith(".optimiser"):
        return values.get(f"{group}.schedule") == "steps"
    return technique not in BUILT_IN or technique in METHOD_SETTINGS.get(name, (technique,))
