"""Modalities: the seven of the benchmark, and the datasets of MedMNIST at their sizes."""

from __future__ import annotations

import math

import pytest
from kinds import MODALITIES

from benchmd_ray.data.cards import cards, kind_of
from benchmd_ray.data.medmnist_cards import task_name
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.modalities import modality

IMAGES = [card for card in cards().values() if card.collection == "medmnist"]


@pytest.mark.parametrize("name", MODALITIES)
def test_a_name_is_that_of_a_modality_or_of_a_dataset_with_one(name):
    assert modality(name) is kind_of(name) is MODALITIES[name]


@pytest.mark.parametrize(
    ("name", "shape", "patch", "tokens", "batch", "task"),
    [
        ("breastmnist", (1, 28, 28), (4, 4), 49, 128, "binary-class"),
        ("pathmnist-64", (3, 64, 64), (8, 8), 64, 128, "multi-class"),
        ("chestmnist-128", (1, 128, 128), (16, 16), 64, 128, "multi-label"),
        ("retinamnist-224", (3, 224, 224), (16, 16), 196, 128, "ordinal-regression"),
        ("organmnist3d", (1, 28, 28, 28), (7, 7, 7), 64, 32, "multi-class"),
        ("nodulemnist3d-64", (1, 64, 64, 64), (8, 8, 8), 512, 32, "binary-class"),
    ],
)
def test_a_dataset_of_medmnist_has_a_signal_at_each_size(name, shape, patch, tokens, batch, task):
    kind, signal = kind_of(name), kind_of(name).signal
    assert (signal.stored_shape, signal.input_shape, signal.dtype) == (shape, shape, "uint8")
    assert (signal.patch, signal.tokens, kind.batch_size) == (patch, tokens, batch)
    assert (task_name(kind.task), signal.unit) == (task, "grey level")
    kinds = {"multi-label": "multi-label", "ordinal-regression": "ordinal"}
    assert kind.task.kind == kinds.get(task, "single-label")
    assert signal.axes == (("channel", "y", "x") if len(shape) == 3 else ("channel", "z", "y", "x"))


def test_patches_of_every_dataset_of_medmnist_cut_it_whole():
    for card in IMAGES:
        kind, signal = card.modality, card.modality.signal
        assert (kind.name, signal.name) == (signal.groups[1], card.name)
        assert signal.tokens * signal.patch_size == math.prod(signal.input_shape), card.name
        assert len(set(kind.task.classes)) == len(kind.task.classes) >= 2, card.name


@pytest.mark.parametrize(
    "name",
    [
        *("breastmnist", "georgia", "../setup", "x", ""),
        pytest.param(300 * "x", id="longer than a file's name"),
    ],
)
def test_other_names_are_no_modality(name):
    with pytest.raises(BenchmdError, match=r"unknown modality .*Valid: .*ecg"):
        modality(name)
