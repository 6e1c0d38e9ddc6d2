"""The mark that the rows of a run have."""

from __future__ import annotations

import pytest
from stores import make_pretraining, make_transfer

from benchmd_ray.benchmarks.medmnist.recipes import medmnist_settings, reductions
from benchmd_ray.data.cards import kind_of
from benchmd_ray.evaluation.registry import benchmark, protocol_of, starts
from benchmd_ray.models.encoder_cards import encoder_cards
from benchmd_ray.report.protocols import base_protocol, pretraining_of
from benchmd_ray.service.choice import Choice, technique_settings, with_setting
from benchmd_ray.settings.definition import as_dict, updated
from benchmd_ray.ssl.brought import misfit

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


def described(start, technique, setting, *changes, kind=None, bench="benchmd"):
    """The protocol of a run with the settings of a start; what it states, and what is read back."""
    kind = kind or kind_of("ptb-xl")
    choice = Choice(bench=bench, start=start, assignments=changes)
    settings = as_dict(with_setting(technique_settings(choice, kind, technique)[0], setting))
    stated = {name: settings[name] for name in ("encoder", "transfer")}
    upstream = {"encoder": settings["encoder"]}
    reads = ("mode", "labels", "shuffle_labels", "solver")
    if technique == "random-kernels":
        stated_in_run = stated | {"transfer": {name: stated["transfer"][name] for name in reads}}
    else:
        stated_in_run = stated
    name = protocol_of(kind, technique, stated, upstream)
    return name, starts()[start or "fixed"].followed(kind, technique, stated_in_run)


@pytest.mark.parametrize("start", ["fixed", "small"])
@pytest.mark.parametrize("technique", ["random-kernels", "published"])
def test_techniques_with_an_encoder_of_their_own_follow_the_start(start, technique):
    technique = technique if technique == "random-kernels" else published()
    kind = kind_of("ptb-xl") if technique == "random-kernels" else kind_of("bcn20000")
    assert described(start, technique, "linear", kind=kind) == (start, True)
    changed = described(start, technique, "linear", "transfer.shuffle_labels=true", kind=kind)
    assert changed == ("", False)
    if technique == "random-kernels":
        solver = described(start, technique, "linear", "transfer.solver=adamw", kind=kind)
        assert solver == ("", False)


def published():
    """A published encoder of pictures."""
    cards = encoder_cards().sound
    fitting = (name for name in cards if not misfit(f"encoder:{name}", kind_of("bcn20000").signal))
    return f"encoder:{next(fitting)}"


def test_nearest_neighbours_of_a_small_start_are_read_back_as_small():
    kind = kind_of("ptb-xl")
    settings = technique_settings(Choice(start="small"), kind, "mae")[0]
    settings = as_dict(with_setting(settings, "knn"))
    read = ("mode", "labels", "neighbours", "shuffle_labels", "normalisation")
    run = {"encoder": settings["encoder"]}
    whole = run | {"transfer": settings["transfer"]}
    stated = run | {"transfer": {name: settings["transfer"][name] for name in read}}
    assert protocol_of(kind, "mae", whole) == "small"
    assert starts()["small"].followed(kind, "mae", stated)
    other = stated | {"transfer": stated["transfer"] | {"neighbours": 3}}
    assert not starts()["small"].followed(kind, "mae", other)


@pytest.mark.parametrize("dataset", ["breastmnist", "nodulemnist3d"])
def test_small_baselines_of_medmnist_have_a_name(dataset):
    kind = kind_of(dataset)
    begun = technique_settings(
        Choice(bench="medmnist", overrides=reductions(kind)), kind, "scratch"
    )[0]
    start, _ = benchmark("medmnist").start_named("baseline-small", kind)
    assert start.settings(kind, "scratch", "") == begun
    stated = {name: as_dict(begun)[name] for name in ("encoder", "transfer")}
    assert protocol_of(kind, "scratch", stated) == "baseline-small"
    longer = as_dict(updated(begun, {"transfer": {"epochs": 3}}))
    assert not protocol_of(kind, "scratch", {name: longer[name] for name in stated})
