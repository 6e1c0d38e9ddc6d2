"""What is searched on a file of MedMNIST, without training anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmd_ray.benchmarks.medmnist.files import cards_of, file_tuning, file_tunings, usual_cards
from benchmd_ray.cli import main
from benchmd_ray.data.cards import cards, kind_of
from benchmd_ray.errors import BenchmdError
from benchmd_ray.service.choice import technique_settings
from benchmd_ray.service.families import family_choice, space_of
from benchmd_ray.service.searches import planned_searches
from benchmd_ray.settings.definition import AugmentationSettings
from benchmd_ray.tuning.spaces import starting_at

NAMES = sorted(name for name, card in cards().items() if card.collection == "medmnist")


def begun(name, **asked):
    """Where the search on a dataset starts, and its space from there."""
    asked = {"start": "", "small": False, "space": None, "held": ()} | asked
    tuning = file_tuning(cards()[name], Path("catalogs"), trials=1, seeds=(0,), **asked)
    assert (tuning.techniques, tuning.searched) == ((), ())  # all families
    choice = family_choice(tuning, "scratch")
    settings, _ = technique_settings(choice, kind_of(name), "scratch")
    space = space_of("scratch", "finetune-full", kind_of(name), tuning.space)
    return settings, starting_at(space, settings, tuning.held)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "small"),
    [*((name, True) for name in NAMES), *((name, False) for name in NAMES if "adrenal" in name)],
)
def test_the_search_on_every_file_starts_within_its_space(name, small):
    settings, space = begun(name, small=small)
    volumes = len(kind_of(name).signal.axes) == 4
    assert settings.encoder.network == ("resnet18-3d" if volumes else "resnet18")
    assert ("width" in settings.encoder.options) == (settings.transfer.epochs < 100) == small
    shapes = name.startswith(("adrenal", "vessel"))
    assert space.start.get("transfer.augmentation.shape") == (True if shapes else None)
    assert settings.transfer.augmentation == AugmentationSettings(shape=shapes)


def test_a_baseline_outside_of_the_space_is_searched_with_its_network_held():
    with pytest.raises(BenchmdError, match=r"fix it with --fix encoder\.network"):
        begun("breastmnist", small=True, start="resnet50")
    settings, space = begun("breastmnist", small=True, start="resnet50", held=("encoder.network",))
    assert settings.encoder.network == "resnet50"
    assert "encoder.network" not in {parameter.name for parameter in space.parameters}


def test_a_setting_of_another_family_may_be_fixed():
    kernels = "encoder.options.kernels"
    asked = {"start": "", "small": True, "space": None, "held": (kernels,), "trials": 1}
    tuning = file_tuning(cards()["breastmnist"], None, seeds=(0,), **asked)
    (plan,) = planned_searches(tuning, gpu=False)
    fixed = {family.name: family.held for family in plan.families}
    assert fixed["scratch finetune"] == frozenset()
    assert fixed["random-kernels linear"] == {kernels}


def test_a_small_search_of_random_kernels_alone_starts_with_their_settings():
    """Narrow networks are of the families that train one."""
    asked = {"start": "", "small": True, "space": None, "held": (), "trials": 1}
    named = {"techniques": ("random-kernels",), "assignments": ("encoder.options.kernels=500",)}
    tuning = file_tuning(cards()["breastmnist"], None, seeds=(0,), **asked, **named)
    (plan,) = planned_searches(tuning, gpu=False)
    assert {family.technique for family in plan.families} == {"random-kernels"}
    for family in plan.families:
        assert family.settings[0].encoder.options["kernels"] == 500
        assert "width" not in family.settings[0].encoder.options


@pytest.mark.parametrize("baseline", ["resnet34", "resnet18-100"])
def test_no_baseline_of_medmnist_is_refused_with_those_there_are(baseline):
    with pytest.raises(BenchmdError, match=r"unknown start of medmnist .*resnet50"):
        begun("breastmnist", start=baseline)


def test_a_baseline_for_other_signals_is_refused_before_anything_is_built():
    with pytest.raises(BenchmdError, match="unknown start of medmnist 'resnet18-3d'"):
        begun("breastmnist", start="resnet18-3d")
    with pytest.raises(BenchmdError, match=r"choose resnet18 or resnet50 with -2\.5d"):
        begun("adrenalmnist3d", start="resnet50")
    with pytest.raises(BenchmdError, match="unknown start of medmnist 'resnet18-3d-224'"):
        begun("adrenalmnist3d", start="resnet18-3d-224")


def test_a_file_of_another_name_is_refused_with_what_is_expected(tmp_path):
    found = cards_of([Path("raw/breastmnist_64.npz")])
    assert list(found) == ["breastmnist-64"]
    with pytest.raises(BenchmdError, match=r"my_breast\.npz is named as no file of MedMNIST"):
        cards_of([Path("raw/my_breast.npz")])
    with pytest.raises(BenchmdError, match="and holds none"):
        cards_of([tmp_path])
    for name in ("breastmnist.npz", "adrenalmnist3d.npz", "notes.txt"):
        (tmp_path / name).touch()
    assert sorted(cards_of([tmp_path])) == ["adrenalmnist3d", "breastmnist"]


ASKED = {"small": False, "space": None, "held": (), "trials": 5, "seeds": (0, 1, 2)}


@pytest.mark.slow
def test_a_baseline_is_searched_on_the_datasets_that_it_fits():
    assert len(usual_cards()) == 18
    starts = ("resnet18", "resnet50", "resnet18-acs")
    found = file_tunings(usual_cards(), None, starts=starts, **ASKED)
    named = [(card.name, tuning.choice.start) for card, tuning in found]
    assert len(named) == len(set(named)) == 12 * 2 + 6
    assert all((start == "resnet18-acs") == name.endswith("3d") for name, start in named)
    usual = file_tunings(usual_cards(), None, starts=(), **ASKED)
    assert [card.name for card, _ in usual] == sorted(card.name for card in usual_cards())
    with pytest.raises(BenchmdError, match="unknown start of medmnist 'resnet18-3d'"):
        file_tunings([cards()["breastmnist"]], None, starts=("resnet18-3d",), **ASKED)


def test_files_of_a_folder_that_are_named_as_none_of_medmnists_are_said(tmp_path):
    for name in ("breastmnist", "pneumoniamnist_content_complete"):
        (tmp_path / f"{name}.npz").touch()
    said = []
    assert set(cards_of([tmp_path], said.append)) == {"breastmnist"}
    assert said == [
        "skipped, as MedMNIST has no file of that name: pneumoniamnist_content_complete.npz"
    ]


def test_a_file_that_is_refused_is_so_before_anything_is_searched(tmp_path, monkeypatch):
    done = []

    def built(card, *_, **__):
        done.append(card.name)
        if card.name == "vesselmnist3d":
            raise BenchmdError("vesselmnist3d.npz is not the official file")

    monkeypatch.setattr("benchmd_ray.benchmarks.medmnist.files.built", built)
    monkeypatch.setattr(
        "benchmd_ray.service.tune_and_train.search_and_train", lambda *_, **__: done.append("")
    )
    for name in ("breastmnist", "vesselmnist3d"):
        (tmp_path / f"{name}.npz").touch()
    asked = ["medmnist", "tune", str(tmp_path), "--small", "--out", str(tmp_path / "out")]
    refused = CliRunner().invoke(main, [*asked, "--start", "resnet18-3d", "--start", "resnet18"])
    assert "not the official file" in refused.output
    assert done == ["breastmnist", "vesselmnist3d"]


@pytest.mark.slow  # 18 datasets
def test_a_dry_run_of_all_datasets_needs_no_file():
    asked = ["medmnist", "tune", "--dry-run", "--gpus", "8", "--cpus", "64", "--tflops", "60"]
    done = CliRunner().invoke(main, [*asked, "--start", "resnet18", "--start", "resnet18-3d"])
    assert done.exit_code == 0, done.output
    assert "In total: 18 searches one after the other, about " in done.output
    families = "Starts at scratch finetune; also random-kernels linear, random-kernels knn."
    assert done.output.count(families) == 18
    refused = CliRunner().invoke(main, ["medmnist", "tune"])
    assert refused.exit_code == 2
    assert "name a FILE, or add --dry-run" in refused.output
