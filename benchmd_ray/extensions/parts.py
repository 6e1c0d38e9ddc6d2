"""Versions of the code parts that compute results; they are part of a run's name.

Raise a part's version whenever its results change: runs of two versions are different runs, which
are never pooled, and neither resumes or replaces the other. ``python tests/parts.py`` compares the
sources with the recorded ones, and accepts a change that alters no result. Data readers and dataset
modules have their own ``VERSION``, which is part of a catalog's identity; the version of an
evaluation is in its predictions (`runs.predictions.Form`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version

from benchmd_ray._version import __version__
from benchmd_ray.extensions.extras import is_installed


@dataclass(frozen=True)
class Part:
    """Name, version and source files of code that computes results together."""

    version: int
    files: tuple[str, ...]


PARTS: Mapping[str, Part] = {
    "transformer": Part(2, ("models/drop_path.py", "models/encoder.py")),
    "resnet": Part(1, ("models/drop_path.py", "models/resnet.py")),
    "xresnet": Part(1, ("models/drop_path.py", "models/resnet.py", "models/xresnet.py")),
    "monai": Part(1, ("models/monai_networks.py",)),
    "transformers": Part(
        1, ("models/evaluating.py", "models/hub_configs.py", "models/hub_networks.py")
    ),
    "published": Part(
        1,
        (
            "models/evaluating.py",
            "models/filters.py",
            "models/hub_configs.py",
            "models/hub_networks.py",
            "models/pillow_resize.py",
            "models/published.py",
            "models/published_adapters.py",
            "models/published_form.py",
            "models/timm_names.py",
        ),
    ),
    "imagenet": Part(1, ("models/imagenet.py",)),
    "random kernels": Part(1, ("models/random_kernels.py", "training/fitting.py")),
    "heads": Part(1, ("models/heads.py",)),
    "nearest neighbours": Part(1, ("models/neighbours.py",)),
    "segmentation": Part(
        1,
        (
            "models/segmentation_networks.py",
            "models/segmenter.py",
            "training/segmentation.py",
            "scores/dice.py",
        ),
    ),
    "e-mix": Part(2, ("ssl/__init__.py", "ssl/emix.py", "ssl/method.py")),
    "shed": Part(1, ("ssl/shed.py", "ssl/method.py")),
    "mae": Part(1, ("ssl/mae.py", "ssl/method.py")),
    "normalisation": Part(1, ("data/normalise.py",)),
    "feed": Part(
        2,
        (
            "data/batches.py",
            "data/feed.py",
            "data/records.py",
            "data/resident.py",
            "data/sizes.py",
            "data/streaming.py",
        ),
    ),
    "pool": Part(1, ("data/pooled.py",)),
    "optimisation": Part(
        2,
        (
            "training/engine.py",
            "training/finetuning.py",
            "training/forward.py",
            "training/seeds.py",
            "training/state.py",
            "training/steps.py",
        ),
    ),
    "pretraining": Part(1, ("training/pretrain.py",)),
    "transfer": Part(
        2,
        (
            "training/transfer.py",
            "training/selection.py",
            "training/collect.py",
            "training/forward.py",
            "scores/metrics.py",
            "scores/ranking.py",
            "scores/units.py",
        ),
    ),
    "linear evaluation": Part(3, ("training/features.py",)),
    "logistic regression": Part(1, ("training/logistic.py",)),
    "augmentation": Part(
        1,
        (
            "training/augmentation/__init__.py",
            "training/augmentation/changes.py",
            "training/augmentation/mixing.py",
        ),
    ),
    "inner splits": Part(3, ("data/inner.py", "data/splits.py")),
    "search": Part(
        9,
        (
            "tuning/families.py",
            "tuning/ladder.py",
            "tuning/limits.py",
            "tuning/method.py",
            "tuning/study.py",
            "tuning/stages.py",
            "tuning/trial.py",
            "tuning/trial_log.py",
            "tuning/trials.py",
        ),
    ),
    "segmentation scores": Part(
        3,
        (
            "benchmarks/touchstone/case.py",
            "benchmarks/touchstone/dicom_masks.py",
            "benchmarks/touchstone/layouts.py",
            "benchmarks/touchstone/masks.py",
            "benchmarks/touchstone/tasks.py",
            "scores/dice.py",
            "scores/segmentation.py",
            "scores/surfaces.py",
        ),
    ),
}

EVERY = ("normalisation", "feed", "optimisation")


def versions_of(names: Iterable[str]) -> dict[str, int]:
    """Versions of the named parts; a plug-in has the hash of its source instead."""
    return {name: PARTS[name].version for name in sorted({*names} & PARTS.keys())}


def older(stated: Mapping[str, object]) -> list[str]:
    """Text for each part whose version is not the current one: ``mae 1, now 2``."""
    now = {name: part.version for name, part in PARTS.items()}
    changed = [name for name in sorted(stated) if stated[name] != now.get(name)]
    return [f"{name} {stated[name]}, now {now.get(name, 'gone')}" for name in changed]


@cache
def package_versions() -> Mapping[str, str]:
    """Versions of the packages that compute results, cached, as a look-up takes milliseconds."""
    packages = ("torch", "deepspeed", "ray", "numpy", "pyarrow", "monai", "transformers")
    versions = {name: version(name) for name in packages if is_installed(name)}
    return {"benchmd_ray": __version__, **versions}
