"""The search space of MedMNIST: networks with options of their own, the baselines' recipe."""

from __future__ import annotations

import itertools

import optuna
import pytest
import yaml

from benchmd_ray.benchmarks.medmnist.recipes import medmnist_settings
from benchmd_ray.data.cards import cards, kind_of
from benchmd_ray.errors import BenchmdError
from benchmd_ray.models.networks import NETWORK
from benchmd_ray.models.resnet import RESNETS, ResNetOptions
from benchmd_ray.runs.files import BEST
from benchmd_ray.service.families import space_of
from benchmd_ray.settings.definition import (
    Settings,
    as_dict,
    default_settings,
    load_settings,
    updated,
)
from benchmd_ray.tuning.families import Family
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.spaces import applied, starting_at
from benchmd_ray.tuning.stages import Arm, FamilyWork, Transfer, TrialContext
from benchmd_ray.tuning.study import Study
from benchmd_ray.tuning.written import write_result

SEARCH = ("scratch", "finetune-full")
NAMES = sorted(name for name, card in cards().items() if card.collection == "medmnist")
SOME = ("breastmnist", "chestmnist-224", "adrenalmnist3d", "organmnist3d-64")
TWO = ("resnet18", "resnet50")
THREE = tuple(name for name in RESNETS if name not in TWO and not name.endswith("-1d"))
ALL = "encoder.network"


def networks_of(name: str) -> tuple[str, ...]:
    """ResNets that take its signals."""
    return TWO if "3d" not in name else THREE


def proposals(space, count, seed=0):
    """Values that a search may try."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    return [space.suggest(study.ask()) for _ in range(count)]


@pytest.mark.parametrize("name", NAMES)
def test_every_dataset_and_size_has_its_networks_patches_and_resolutions(name):
    kind, space = kind_of(name).signal, space_of(*SEARCH, kind_of(name))
    by = {parameter.name: parameter for parameter in space.parameters}
    assert set(by[ALL].values) == {NETWORK, *networks_of(name)}
    patches = {kind.with_patch(size).patch for size in by["encoder.patch_size"].values}
    assert len(patches) == len(by["encoder.patch_size"].values) == 3
    if len(kind.axes) == 3:
        extents = [size or kind.input_shape[-1] for size in by["encoder.options.resize"].values]
        assert len(set(extents)) == len(extents) >= 3
        assert {64, 128, 224} <= set(extents)
    else:
        assert "encoder.options.resize" not in by
    shapes = name.startswith(("adrenal", "vessel"))
    assert ("transfer.augmentation.shape" in by) == shapes
    upright = ("organ", "chest", "pneumonia", "oct", "breast")
    assert ("transfer.augmentation.flip" in by) == (not name.startswith(upright))
    of_all = ("shift", "affine", "blur", "masking", "mixup", "cutmix")
    assert {f"transfer.augmentation.{change}" for change in of_all} <= by.keys()
    own = {p for p in by if p.startswith("encoder.options.")}
    for option in own:
        assert by[option].default == getattr(ResNetOptions(), option.rpartition(".")[2])
        assert by[option].when == {ALL: networks_of(name)}


@pytest.mark.parametrize("name", SOME)
def test_a_search_starts_at_the_protocol_and_at_every_recipe(name):
    kind, space = kind_of(name), space_of(*SEARCH, kind_of(name))
    fixed = default_settings(kind)
    assert applied(fixed, starting_at(space, fixed).start).encoder == fixed.encoder
    for network, resize in itertools.product(networks_of(name), (0, 224)):
        if resize and (len(kind.signal.axes) == 4 or kind.signal.input_shape[-1] == resize):
            continue
        recipe = medmnist_settings(kind, network, resize)
        began = applied(recipe, starting_at(space, recipe).start)
        assert began.transfer == recipe.transfer
        read = [updated(ResNetOptions(), each.encoder.options) for each in (began, recipe)]
        assert read[0] == read[1]
        assert began.encoder.network == network


@pytest.mark.parametrize("start", [NETWORK, "resnet50"])
def test_a_trial_has_the_options_of_its_own_network_alone(start):
    kind = kind_of("breastmnist")
    settings = default_settings(kind)
    if start != NETWORK:
        settings = medmnist_settings(kind, start, 224)
        settings = updated(settings, {"encoder": {"options": {"width": 4, "stem": "imagenet"}}})
    space, seen = starting_at(space_of(*SEARCH, kind_of("breastmnist")), settings), set()
    for values in proposals(space, 24):
        trial = applied(settings, values)
        seen.add(trial.encoder.network)
        if trial.encoder.network == NETWORK:
            assert trial.encoder.options == {}
        else:  # what all ResNets read is kept, and what is searched is as the trial says
            kept = {} if start == NETWORK else {"width": 4, "stem": "imagenet"}
            searched = {o: values[f"encoder.options.{o}"] for o in ("resize", "dropout")}
            assert trial.encoder.options == kept | searched
            updated(ResNetOptions(), trial.encoder.options)  # takes them all
    assert seen == {NETWORK, *TWO}


def test_options_of_a_network_of_ones_own_are_left_with_it():
    own = updated(Settings(), {"encoder": {"network": "mine:Mixer", "options": {"width": 9}}})
    assert applied(own, {ALL: "resnet18"}).encoder.options == {}
    assert applied(own, {ALL: "mine:Mixer"}).encoder == own.encoder
    assert applied(own, {"encoder.options.blend": 2}).encoder.options == {"width": 9, "blend": 2}


def test_an_option_that_is_held_holds_for_all_resnets():
    kind = kind_of("breastmnist")
    recipe = medmnist_settings(kind, "resnet18", 64)
    space = starting_at(
        space_of(*SEARCH, kind_of("breastmnist")), recipe, ["encoder.options.resize"]
    )
    trials = [applied(recipe, values) for values in proposals(space, 12)]
    sizes = {(t.encoder.network, t.encoder.options.get("resize")) for t in trials}
    assert sizes == {(NETWORK, None), ("resnet18", 64), ("resnet50", 64)}
    held = starting_at(space_of(*SEARCH, kind_of("breastmnist")), recipe, [ALL])
    names = {parameter.name for parameter in held.parameters}
    assert "encoder.options.dropout" in names
    assert not {"encoder.depth", "transfer.dropout"} & names


@pytest.mark.parametrize("start", [NETWORK, "resnet18"])
@pytest.mark.parametrize("winner", [NETWORK, "resnet50"])
def test_the_best_settings_load_as_they_were_whatever_the_network(start, winner, tmp_path):
    kind = kind_of("breastmnist")
    base = default_settings(kind)
    settings = base
    if start != NETWORK:
        settings = updated(
            medmnist_settings(kind, start, 224), {"encoder": {"options": {"width": 4}}}
        )
    settings = updated(settings, {"transfer": {"mode": "finetune"}})
    space = starting_at(space_of(*SEARCH, kind_of("breastmnist")), settings)
    family = Family(*SEARCH, space, (settings,))
    study = Study(tmp_path / "study.log", [family], Method(sampler="random"))
    best = None
    while best is None:
        proposal = study.propose()
        won = proposal.number > 0 and proposal.values[ALL] == winner
        study.evaluated(proposal.number, 0, {kind.name: 0.75 if won else 0.5}, 1.0)
        best = proposal.values if won else None
    trained = FamilyWork("scratch", Transfer(), (Arm(kind.name, settings),), ())
    work = TrialContext({family.name: trained}, tmp_path)
    spent = {"seconds": 1.0, "shared_seconds": 0.0}
    write_result(tmp_path, study, work, {family.name: [base]}, spent)
    expected = applied(settings, best)
    found = load_settings(tmp_path / BEST, base=base)
    assert found.encoder == expected.encoder
    assert found.encoder.network == winner
    assert updated(found, {"transfer": {"mode": "finetune"}}).transfer == expected.transfer
    assert set(as_dict(found.encoder)["options"]) <= {"width", "resize", "dropout"}


# A user's own file ------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path):
    def read(content, technique="scratch", setting="finetune-full", modality="breastmnist"):
        path = tmp_path / "own.yaml"
        path.write_text(yaml.safe_dump(content, sort_keys=False), "utf-8")
        return space_of(technique, setting, kind_of(modality), path)

    return read


def choice(*values):
    return {"kind": "choice", "values": list(values)}


@pytest.mark.parametrize(
    ("search", "values", "message"),
    [
        ({}, (NETWORK, "resnet81"), "unknown encoder network .*Did you mean 'resnet18'"),
        ({}, (NETWORK, "resnet18-3d"), r"encoder\.network: values: .*choose resnet18 or resnet50"),
        (
            {"modality": "organmnist3d"},
            ("resnet18", "resnet18-3d"),
            "choose resnet18 or resnet50 w",
        ),
        ({"technique": "mae"}, (NETWORK, "resnet18"), "the encoder is that of the pretraining"),
        ({"setting": "linear"}, (NETWORK, "resnet18"), "leaves the encoder as it is"),
        (
            {"technique": "mae", "setting": "pretrain"},
            (NETWORK, "resnet18"),
            "pretraining is searched for one network, which --set",
        ),
    ],
)
def test_networks_that_cannot_be_searched_are_refused(own, search, values, message):
    with pytest.raises(BenchmdError, match=message):
        own({ALL: choice(*values)}, **search)


def test_options_that_a_searched_network_does_not_read_are_refused(own):
    networks, dropout = choice(NETWORK, "resnet18"), choice(0.0, 0.5) | {"default": 0.0}
    always = own({ALL: networks, "encoder.options.dropout": dropout})
    recipe = medmnist_settings(kind_of("breastmnist"), "resnet18")
    for start in (Settings(), recipe):
        with pytest.raises(BenchmdError, match=r"with encoder\.network transformer, .*only `when`"):
            starting_at(always, start)
    when = {"when": {ALL: ["resnet18"]}}
    wrong = own({ALL: networks, "encoder.options.drop": dropout | when})
    with pytest.raises(BenchmdError, match=r"'drop'.*Did you mean 'dropout'"):
        starting_at(wrong, recipe)
    large = choice(0.0, 1.5) | {"default": 0.0} | when
    with pytest.raises(BenchmdError, match=r"dropout is 1\.5, expected a number in \[0, 1\)"):
        starting_at(own({ALL: networks, "encoder.options.dropout": large}), recipe)


def test_a_narrower_group_has_the_last_word(own):
    content = {
        "transfer.epochs": {"kind": "int", "low": 1, "high": 200},
        "signals": {
            "breastmnist": {"transfer.epochs": {"high": 103}},
            "medmnist-2d-28": {"transfer.epochs": {"high": 102, "low": 2}},
            "medmnist-2d": {"transfer.epochs": {"high": 101, "low": 4, "default": 100}},
        },
    }
    ends = {
        name: own(content, modality=name).as_dict()["transfer.epochs"]
        for name in ("breastmnist", "retinamnist", "breastmnist-64", "organmnist3d")
    }
    assert {name: (end["low"], end["high"]) for name, end in ends.items()} == {
        "breastmnist": (2, 103),
        "retinamnist": (2, 102),
        "breastmnist-64": (4, 101),
        "organmnist3d": (1, 200),
    }
    with pytest.raises(BenchmdError, match="Did you mean 'medmnist-2d-28'"):
        own(content | {"signals": {"medmnist-2d-29": {}}})
