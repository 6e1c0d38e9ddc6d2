"""The order and the names by which results are shown."""

from __future__ import annotations

from collections.abc import Mapping

from benchmd_ray.evaluation.registry import starts

TECHNIQUES = ("scratch", "e-mix", "shed", "mae", "imagenet", "imagenet+mae")
SETTINGS = ("knn", "linear", "finetune-small", "finetune-medium", "finetune-large", "finetune-full")
SPLITS = ("validation", "test")


def place(key: Mapping[str, str]) -> tuple[object, ...]:
    """Sorts results by their key (`frames.KEY`) in the order in which they are shown."""

    def known(names: tuple[str, ...], name: str) -> tuple[int, str]:
        return (names.index(name) if name in names else len(names), name)

    return (
        key["modality"],
        key["source"],
        key["dataset"] != key["source"],
        key["dataset"],
        key["policy"],
        known(SPLITS, key["split"]),
        known(SETTINGS, key["setting"]),
        known(TECHNIQUES, key["technique"]),
        known(tuple(starts()), key["protocol"]),
    )


def dataset_text(source: str, dataset: str, role: str, split: str) -> str:
    """A dataset; of a source with its split, and whether it is another than the run's own."""
    if role == "target":
        return dataset
    return f"{dataset} ({split}{'' if dataset == source else ', another source'})"
