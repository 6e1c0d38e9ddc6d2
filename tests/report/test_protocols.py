"""The mark that the rows of a run have."""

from __future__ import annotations

import pytest
from stores import make_pretraining, make_transfer

from benchmd_ray.benchmarks.medmnist.recipes import medmnist_settings
from benchmd_ray.data.cards import kind_of
from benchmd_ray.report.protocols import base_protocol, pretraining_of
from benchmd_ray.settings.definition import as_dict, updated

FASTER = {"transfer": {"optimiser": {"lr": 1e-3}}}
LONGER = {"pretrain": {"steps": 200_000}}
BREAST = kind_of("breastmnist")


@pytest.fixture
def store(tmp_path):
    return tmp_path / "runs"


def protocol(run):
    return base_protocol(run, pretraining_of(run, {}))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "fixed"),
        (FASTER, "custom"),
        ({"tuned": "tune-ecg", **FASTER}, "tuned"),
        ({"transfer": {"shuffle_labels": True}}, "shuffled"),
    ],
)
def test_the_fixed_protocol_is_custom_and_tuned_settings_and_shuffled_labels_are_told_apart(
    store, changes, expected
):
    assert protocol(make_transfer(store, changes=changes, fixed=not changes)) == expected


def test_a_fold_run_is_the_start_or_tuned_whatever_protocol_it_states(store):
    assert protocol(make_transfer(store, fold=1)) == "start"
    assert protocol(make_transfer(store, fold=2, protocol="fixed")) == "start"
    assert (
        protocol(make_transfer(store, fold=1, changes={"tuned": "tune-ecg", **FASTER})) == "tuned"
    )
    upstream = make_pretraining(store, "mae", fold=1, changes={"tuned": "tune-ecg", **LONGER})
    assert protocol(make_transfer(store, "mae", upstream=upstream, fold=1)) == "tuned"


def test_a_transfer_of_a_tuned_pretraining_is_tuned(store):
    tuned = {"tuned": "tune-ecg", **LONGER}
    upstream = make_pretraining(store, "mae", changes=tuned, fixed=False)
    assert protocol(make_transfer(store, "mae", upstream=upstream, fixed=False)) == "tuned"


def test_the_recipe_of_a_baseline_is_one_on_medmnist_and_from_scratch_alone(store):
    def run(modality, technique="scratch", upstream=None, **changes):
        settings = as_dict(updated(medmnist_settings(BREAST, "resnet18", 224), changes))
        about = {"modality": modality, "source": modality, "setting": "finetune-full"}
        chosen = {name: settings[name] for name in ("encoder", "transfer")}
        about |= {"changes": chosen, "upstream": upstream}
        return protocol(make_transfer(store, technique, fixed=False, **about))

    assert run("breastmnist") == "baseline"
    assert run("breastmnist", transfer={"epochs": 99}) == run("cxr") == "custom"
    upstream = make_pretraining(store, "mae", modality="breastmnist", source="breastmnist")
    assert run("breastmnist", "mae", upstream) == "custom"


def test_a_protocol_that_a_run_states_and_its_settings_deny_is_not_believed(store):
    upstream = make_pretraining(store, "mae", changes=LONGER, fixed=True)
    assert protocol(make_transfer(store, changes=FASTER, fixed=True)) == "custom"
    assert protocol(make_transfer(store, "mae", upstream=upstream, fixed=True)) == "custom"
