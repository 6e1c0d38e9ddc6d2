"""What is searched on a file of MedMNIST, without training anything."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmd_ray.data.cards import cards
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modalities import modality
from benchmd_ray.service.choice import technique_settings
from benchmd_ray.service.medmnist import file_tuning
from benchmd_ray.tuning.spaces import space_for, starting_at

NAMES = sorted(name for name, card in cards().items() if card.collection == "medmnist")


def begun(name, **asked):
    """Where the search on a dataset starts, and its space from there."""
    asked = {"baseline": None, "small": False, "space": None, "held": ()} | asked
    catalog = SimpleNamespace(path=Path("catalog"), modality=modality(name))
    tuning = file_tuning(catalog, trials=1, seeds=(0,), **asked)
    (technique,), (setting,) = tuning.choice.techniques, tuning.searched
    settings, _ = technique_settings(tuning.choice, name, technique)
    space = space_for(technique, setting, name, tuning.space)
    return settings, starting_at(space, settings, tuning.held)


@pytest.mark.parametrize(
    ("name", "small"),
    [*((name, True) for name in NAMES), *((name, False) for name in NAMES if "adrenal" in name)],
)
def test_the_search_on_every_file_starts_within_its_space(name, small):
    settings, space = begun(name, small=small)
    volumes = len(modality(name).axes) == 4
    assert settings.encoder.network == ("resnet18-3d" if volumes else "resnet18")
    assert ("width" in settings.encoder.options) == (settings.transfer.epochs < 100) == small
    assert space.start["transfer.augmentation"] == settings.transfer.augmentation
    shapes = name.startswith(("adrenal", "vessel"))
    assert settings.transfer.augmentation == ("shape" if shapes else "none")


def test_a_baseline_outside_of_the_space_is_searched_with_its_network_held():
    with pytest.raises(BenchmdError, match=r"hold it with --fix encoder\.network"):
        begun("breastmnist", small=True, baseline="resnet50")
    settings, space = begun(
        "breastmnist", small=True, baseline="resnet50", held=("encoder.network",)
    )
    assert settings.encoder.network == "resnet50"
    assert "encoder.network" not in {parameter.name for parameter in space.parameters}
