"""Runs with different settings are told apart, and only those."""

from __future__ import annotations

import shutil

import pytest
from stores import make_pretraining, make_transfer

from benchmd_ray.benchmarks.medmnist.recipes import medmnist_settings
from benchmd_ray.data.cards import kind_of
from benchmd_ray.report.protocols import comparable_with, letters_of, protocols
from benchmd_ray.settings.definition import as_dict, updated

FASTER = {"transfer": {"optimiser": {"lr": 1e-3}}}
SLOWER = {"transfer": {"optimiser": {"lr": 1e-5}}}
LONGER = {"pretrain": {"steps": 200_000}}
SHORTER = {"pretrain": {"steps": 1_000}}
TINY = {"encoder": "tiny"}
BREAST = kind_of("breastmnist")


@pytest.fixture
def store(tmp_path):
    return tmp_path / "runs"


def custom(store, technique="scratch", changes=None, pretraining=None, seed=0, upstream_seed=None):
    """A transfer run of other settings than the protocol's; its pretraining too."""
    made = []
    if pretraining is not None:
        seed_there = seed if upstream_seed is None else upstream_seed
        made = [
            make_pretraining(store, technique, changes=pretraining, seed=seed_there, fixed=False)
        ]
    upstream = made[0] if made else None
    run = make_transfer(
        store, technique, upstream=upstream, changes=changes, seed=seed, fixed=False
    )
    return [*made, run]


def named(*made):
    """Protocol of each transfer run and the notes."""
    found = [run for runs in made for run in runs]
    unique = list({run.folder: run for run in found}.values())
    result = protocols(unique)
    transfers = [run for run in found if run.description["kind"] == "transfer"]
    return [result.names[run.folder] for run in transfers], list(result.notes)


def test_the_fixed_protocol_is_custom_settings_and_shuffled_labels_are_told_apart(store):
    shuffled = {"transfer": {"shuffle_labels": True}}
    runs = [
        [make_transfer(store)],
        custom(store, changes=FASTER),
        custom(store, changes=shuffled),
    ]
    assert named(*runs) == (["fixed", "custom", "shuffled"], [])


def test_the_recipe_of_a_baseline_is_one_on_medmnist_and_from_scratch_alone(store):
    def run(modality, technique="scratch", upstream=None, **changes):
        settings = as_dict(updated(medmnist_settings(BREAST, "resnet18", 224), changes))
        about = {"modality": modality, "source": modality, "setting": "finetune-full"}
        chosen = {name: settings[name] for name in ("encoder", "transfer")}
        about |= {"changes": chosen, "upstream": upstream}
        return [make_transfer(store, technique, fixed=False, **about)]

    shorter = {"transfer": {"epochs": 99}}
    runs = [run("breastmnist"), run("breastmnist", **shorter), run("cxr")]
    assert named(*runs)[0] == ["baseline", "custom", "custom"]
    upstream = make_pretraining(store, "mae", modality="breastmnist", source="breastmnist")
    assert named(run("breastmnist", "mae", upstream))[0] == ["custom"]


def test_a_protocol_that_a_run_states_and_its_settings_deny_is_not_believed(store):
    upstream = make_pretraining(store, "mae", changes=LONGER, fixed=True)
    runs = [
        [make_transfer(store, changes=FASTER, fixed=True)],
        [make_transfer(store, "mae", upstream=upstream, fixed=True)],
        [make_transfer(store, fixed=True)],
    ]
    assert named(*runs)[0] == ["custom 2", "custom 1", "fixed"]


def test_seeds_make_no_difference(store):
    runs = [custom(store, "mae", FASTER, LONGER, seed=seed) for seed in (0, 1, 2)]
    runs.append(custom(store, "mae", FASTER, LONGER, seed=0, upstream_seed=7))
    assert named(*runs) == (["custom"] * 4, [])


def test_transfer_settings_are_numbered_alike_for_all_techniques(store):
    runs = [
        custom(store, technique, changes, {} if technique == "mae" else None)
        for technique in ("scratch", "mae")
        for changes in (FASTER, SLOWER)
    ]
    names, notes = named(*runs)
    assert names == ["custom 1", "custom 2"] * 2
    assert notes == [
        "ecg, ptb-xl (clean), linear: custom 1: with transfer.optimiser.lr=0.001.",
        "ecg, ptb-xl (clean), linear: custom 2: with transfer.optimiser.lr=1e-05.",
    ]


def test_settings_of_the_pretraining_have_letters_and_scratch_has_none(store):
    runs = [
        custom(store, changes=FASTER),
        custom(store, "mae", FASTER, LONGER),
        custom(store, "mae", FASTER, SHORTER),
        custom(store, "shed", FASTER, SHORTER),
        custom(store, "e-mix", FASTER, {"pretrain": {"steps": 3}}),
    ]
    names, notes = named(*runs)
    assert names == ["custom", "custom b", "custom a", "custom a", "custom"]
    assert notes == [
        "ecg, ptb-xl (clean), linear: custom a: pretrained with pretrain.steps=1000.",
        "ecg, ptb-xl (clean), linear: custom b: pretrained with pretrain.steps=200000.",
    ]


def test_numbers_and_letters_come_together(store):
    runs = [
        custom(store, changes=FASTER),
        custom(store, "mae", FASTER, LONGER),
        custom(store, "mae", SLOWER, LONGER),
        custom(store, "mae", SLOWER, SHORTER),
    ]
    assert named(*runs)[0] == ["custom 1", "custom 1", "custom 2b", "custom 2a"]


def test_another_catalog_or_precision_of_the_fixed_protocol_is_told_apart(store):
    one, other = make_transfer(store), make_transfer(store, seed=1)
    other.description["determinants"]["precision"] = "bf16"
    names, notes = named([one, other])
    assert sorted(names) == ["fixed 1", "fixed 2"]
    assert any("precision=bf16" in note for note in notes)
    other.description["determinants"]["precision"] = "float32"
    assert named([one, other]) == (["fixed", "fixed"], [])
    other.description["determinants"]["catalog"] = "0" * 64
    assert named([one, other])[1][0].endswith("with catalog=000000000000.")


def test_settings_of_different_transfers_do_not_number_each_other(store):
    linear = make_transfer(store, changes=FASTER, fixed=False)
    tuned = make_transfer(store, setting="finetune-small", changes=SLOWER, fixed=False)
    assert named([linear, tuned]) == (["custom", "custom"], [])


def test_the_network_of_imagenet_weights_is_no_other_setting(store):
    runs = [
        custom(store, changes=TINY),
        custom(store, "imagenet", {"encoder": "vit-tiny"}, {"encoder": "vit-tiny"}),
    ]
    assert named(*runs) == (["custom", "custom"], [])
    assert named(*runs, custom(store, changes={"encoder": "base"}))[0] == [
        "custom 2",
        "custom 1",
        "custom 1",
    ]


def test_a_pretraining_that_is_gone_is_not_taken_for_another(store):
    first, second = (custom(store, "mae", FASTER, steps) for steps in (LONGER, SHORTER))
    for upstream, _ in (first, second):
        shutil.rmtree(upstream.folder)
    names, notes = named(first[1:], second[1:])
    assert sorted(names) == ["custom a", "custom b"]
    assert all("pretraining=pretrain-ecg-mae-" in note for note in notes)


def test_versions_of_pretrainings_are_told_apart_where_they_are_gone(store):
    made = [make_pretraining(store, "mae", parts={"mae": version}) for version in (1, 2)]
    runs = [make_transfer(store, "mae", upstream=upstream) for upstream in made]
    names, _ = named(*([pair] for pair in runs))
    assert names == ["fixed a", "fixed b"]
    for upstream in made:
        shutil.rmtree(upstream.folder)
    names, notes = named(*([pair] for pair in runs))
    assert sorted(names) == ["fixed a", "fixed b"]
    assert any("parts.mae=1" in note for note in notes)


def test_a_pretraining_is_found_in_the_store_when_it_is_not_among_the_runs(store):
    first, second = (custom(store, "mae", FASTER, LONGER, seed=seed) for seed in (0, 1))
    assert named(first[1:], second[1:]) == (["custom", "custom"], [])


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("fixed", "fixed", True),
        ("fixed", "custom", False),
        ("custom 1", "custom 1", True),
        ("custom 1", "custom 2", False),
        ("custom 1", "custom 1a", True),
        ("custom 1b", "custom 1a", False),
        ("custom", "custom a", True),
        ("custom a", "custom 1a", False),
        ("shuffled", "custom", False),
    ],
)
def test_what_may_be_compared(a, b, expected):
    assert comparable_with(a, b) is comparable_with(b, a) is expected


def test_comparisons_are_made_for_each_letter():
    assert letters_of(["custom", "custom a", "custom b"]) == ["custom a", "custom b"]
    assert letters_of(["custom 1", "custom 1a", "custom 2", "fixed"]) == [
        "custom 1a",
        "custom 2",
        "fixed",
    ]
