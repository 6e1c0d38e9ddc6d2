"""Planning searches: their families, where each starts, what it varies and what it may see."""

from dataclasses import replace
from pathlib import Path

import pytest
from kinds import MODALITIES

from benchmd_ray.data.cards import cards
from benchmd_ray.data.inner import Labelled
from benchmd_ray.errors import BenchmdError, BucketError
from benchmd_ray.service import families, tune
from benchmd_ray.service.choice import Choice
from benchmd_ray.service.families import Tuning
from benchmd_ray.service.searches import planned_searches
from benchmd_ray.settings.definition import LABEL_SETTINGS, Settings
from benchmd_ray.tuning.limits import Budget
from benchmd_ray.tuning.method import Method

LR = "transfer.optimiser.lr"
SPACE = "transfer.optimiser.lr: {kind: log float, low: 1.0e-5, high: 1.0e-1, default: 1.0e-4}\n"


@pytest.fixture
def planned(write_manifest):
    """The only search on a dataset, and on its targets."""

    def plan(dataset="ptb-xl", *others, policy="clean", choice=None, **request):
        catalogs = tuple(write_manifest(name, policy) for name in (dataset, *others))
        (search,) = planned_searches(
            Tuning(Choice(catalogs, **(choice or {})), **request), gpu=False
        )
        return search

    return plan


def names(search):
    return [family.name for family in search.families]


def test_all_families_without_weights_are_searched_from_scratch_first(planned):
    for dataset in ("ptb-xl", "mimic-cxr"):
        search = planned(dataset)
        assert names(search)[0] == "scratch finetune"
        assert {*names(search)} == {
            "scratch finetune",
            "random-kernels linear",
            "random-kernels knn",
        }
        assert search.name.startswith(f"tune-{search.sources[0].modality}-3-families-full-")
        assert search.labelled is None
        assert search.notes == ()


def test_published_encoders_are_searched_where_their_weights_are_here(planned, monkeypatch):
    here = {"dinov2-small"}
    monkeypatch.setattr(
        "benchmd_ray.models.fetched.weights_here",
        lambda card: Path("weights") if card.name in here else None,
    )
    search = planned("mimic-cxr")
    assert {name for name in names(search) if name.startswith("encoder:")} == {
        f"encoder:dinov2-small {mode}" for mode in ("linear", "knn", "finetune")
    }
    assert names(search)[0] == "scratch finetune"
    assert names(search)[-1] == "encoder:dinov2-small finetune"  # by far the most expensive
    assert not [name for name in names(planned("ptb-xl")) if name.startswith("encoder:")]


def test_imagenet_is_searched_on_images_with_its_weights(planned):
    weights = {"weights": Path("imagenet.safetensors")}
    imagenet = {f"imagenet {mode}" for mode in ("linear", "knn", "finetune")}
    assert imagenet <= {*names(planned("mimic-cxr", choice=weights))}
    search = planned("ptb-xl", choice=weights)
    assert not imagenet & {*names(search)}
    (note,) = search.notes
    assert note.startswith("imagenet cannot be searched on ptb-xl: ImageNet weights are for 2-D")


def test_a_family_whose_encoder_the_settings_change_is_noted_unless_it_is_named(planned):
    choice = {"weights": Path("imagenet.safetensors"), "assignments": ("encoder=tiny",)}
    search = planned("mimic-cxr", choice=choice)
    assert not any("imagenet" in name for name in names(search))
    (note,) = search.notes
    assert "the settings choose another encoder than that of its weights" in note
    with pytest.raises(BenchmdError, match="the settings choose another encoder"):
        planned("mimic-cxr", choice=choice, techniques=("imagenet",))


def test_networks_of_masks_are_searched_from_scratch_only(planned):
    dataset = next(n for n, c in cards().items() if c.modality.task.segments and c.role == "source")
    search = planned(dataset, choice={"bench": "touchstone"})
    assert (names(search), search.notes) == (["scratch finetune"], ())
    assert search.metric == "dsc"
    with pytest.raises(BenchmdError, match="networks of masks are trained from random weights"):
        planned(dataset, techniques=("random-kernels",))


def test_named_techniques_and_settings_are_searched_from_the_first_one(planned):
    search = planned(techniques=("mae", "random-kernels"), searched=("linear",))
    assert names(search) == ["mae linear", "random-kernels linear"]
    assert search.name.startswith("tune-ecg-2-families-full-")
    search = planned(techniques=("mae",))
    assert {*names(search)} == {"mae linear", "mae knn", "mae finetune"}
    assert names(search)[-1] == "mae finetune"
    alone = planned(techniques=("mae",), searched=("linear",))
    assert alone.name.startswith("tune-ecg-mae-linear-")


@pytest.mark.parametrize("cheapest", ["linear", "knn"])
def test_families_follow_the_start_by_their_cost(planned, monkeypatch, cheapest):
    def cost(technique, setting, settings, source):
        assert (settings.transfer.setting, source.name) == (setting, "ptb-xl")
        return 9.0 if technique == "scratch" else float(setting != cheapest)

    monkeypatch.setattr(families, "_cost", cost)
    other = {"linear": "knn", "knn": "linear"}[cheapest]
    assert names(planned()) == [
        "scratch finetune",
        f"random-kernels {cheapest}",
        f"random-kernels {other}",
    ]
    assert names(planned(techniques=("random-kernels",)))[0] == f"random-kernels {cheapest}"


def test_a_benchmark_s_start_is_that_of_a_search_over_all_families(planned):
    search = planned("breastmnist", choice={"bench": "medmnist"})
    start, *others = search.families
    assert start.name == "scratch finetune"
    assert start.settings[0].encoder.network == "resnet18"  # the recipe's
    assert {family.technique for family in others} == {"random-kernels"}
    for family in others:
        assert family.settings[0].encoder.network == "random-kernels"
    kernels = planned("breastmnist", choice={"bench": "medmnist"}, techniques=("random-kernels",))
    assert {family.technique for family in kernels.families} == {"random-kernels"}


def test_a_start_of_a_family_that_is_not_searched_is_refused(planned):
    choice = {"bench": "medmnist", "start": "resnet18"}
    with pytest.raises(BenchmdError, match=r"resnet18 .* technique scratch, and only mae would"):
        planned("breastmnist", choice=choice, techniques=("mae",))
    with pytest.raises(BenchmdError, match=r"add --setting finetune-full, or omit --start"):
        planned("breastmnist", choice=choice, searched=("linear", "knn"))
    both = planned("breastmnist", choice=choice, techniques=("scratch", "random-kernels"))
    assert names(both)[0] == "scratch finetune"


@pytest.mark.parametrize("labels", [name for name, count in LABEL_SETTINGS.items() if count])
def test_a_search_of_few_labels_sees_only_these(planned, labels):
    searched = tuple(f"{mode}-{labels}" for mode in ("linear", "knn", "finetune"))
    search = planned(searched=searched, choice={"seeds": (7,)})
    assert {*names(search)} == {"scratch finetune", "random-kernels linear", "random-kernels knn"}
    assert {family.setting.partition("-")[2] for family in search.families} == {labels}
    assert search.labelled == Labelled(LABEL_SETTINGS[labels], 7)
    assert f"-3-families-{labels}-" in search.name


def test_settings_of_other_labels_are_not_compared(planned):
    for searched in (
        ("linear", "knn-small"),
        ("pretrain", "linear"),
        ("pretrain", "finetune-full"),
    ):
        with pytest.raises(BenchmdError, match=r"cannot compare .*Search them one by one"):
            planned(techniques=("mae",), searched=searched)


def test_a_setting_that_no_technique_has_is_refused(planned):
    with pytest.raises(BenchmdError, match=r"no family .* with pretrain: name techniques"):
        planned(searched=("pretrain",))
    with pytest.raises(BenchmdError, match="scratch trains nothing in pretraining"):
        planned(techniques=("scratch",), searched=("pretrain",))
    with pytest.raises(BenchmdError, match="random-kernels is not trained"):
        planned(techniques=("random-kernels",), searched=("finetune-full",))


def test_the_user_s_space_is_that_of_the_start_s_family(planned, tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text(SPACE)
    start, *others = planned(space=path).families
    assert [p.name for p in start.space.parameters] == [LR]
    assert others
    for family in others:
        assert not family.space.name.startswith(str(path))
        assert LR not in family.space.start
    start, *others = planned(space=path, techniques=("mae",)).families
    assert [p.name for p in start.space.parameters] == [LR]
    assert all(
        len(family.space.parameters) != 1 or LR not in family.space.start for family in others
    )


def test_a_setting_is_fixed_in_each_family_that_varies_it(planned):
    kernels = "encoder.options.kernels"
    search = planned(held=(kernels, LR))
    fixed = {family.name: family.held for family in search.families}
    assert fixed == {
        "scratch finetune": {LR},
        "random-kernels linear": {kernels},
        "random-kernels knn": {kernels},
    }
    for family in search.families:
        assert not family.held & {parameter.name for parameter in family.space.parameters}
    with pytest.raises(BenchmdError, match=r"unknown setting to hold with --fix: 'transfer.lr'"):
        planned(held=("transfer.lr",))


def test_a_family_of_which_everything_is_fixed_is_noted(planned):
    everything = ("encoder.options.kernels", "encoder.options.biases")
    search = planned(held=everything)
    assert {*names(search)} == {"scratch finetune", "random-kernels knn"}
    (note,) = search.notes
    assert note.startswith("nothing is left to search in the search space random-kernels (ecg)")


def test_a_start_outside_the_space_is_fixed_unless_its_technique_is_named(planned):
    choice = {"assignments": ("transfer.epochs=3",)}
    start = planned(choice=choice).families[0]
    assert "transfer.epochs" not in {parameter.name for parameter in start.space.parameters}
    assert start.settings[0].transfer.epochs == 3
    with pytest.raises(BenchmdError, match=r"starts at transfer\.epochs = 3, which is not"):
        planned(choice=choice, techniques=("scratch",))


def test_what_determines_a_search_names_it(write_manifest, tmp_path):
    base = Tuning(Choice((write_manifest("ptb-xl"),)), ("mae",), ("linear",))
    changed = Choice(base.choice.catalogs, assignments=("transfer.epochs=40",))
    others = [
        replace(base, budget=Budget(trials=7)),
        replace(base, single=True),
        replace(base, method=Method(seed=1)),
        replace(base, method=Method(cautious=True)),
        replace(base, held=(LR,)),
        replace(base, choice=replace(base.choice, seeds=(1,))),
        replace(base, choice=changed),
        replace(base, searched=("linear", "knn")),
        replace(base, techniques=("mae", "random-kernels")),
        replace(base, techniques=("random-kernels", "mae")),
    ]
    names = [planned_searches(tuning, gpu=False)[0].name for tuning in (base, *others)]
    assert names[0] == names[1] == names[2]  # a budget may be extended
    assert len({*names}) == len(others) - 1


def test_settings_of_a_plan_are_resolved_for_each_family(planned):
    for family in planned(choice={"seeds": (5,)}).families:
        (settings,) = family.settings
        assert isinstance(settings, Settings)
        assert (settings.seed, settings.execution.device) == (5, "cpu")
        assert settings.transfer.setting == family.setting


def universal(write_manifest, *datasets):
    catalogs = tuple(write_manifest(name) for name in datasets)
    choice = Choice(catalogs, assignments=("encoder=tiny",))
    tuning = Tuning(choice, ("mae",), ("linear",), method=Method(universal=True))
    return planned_searches(tuning, gpu=False)


def test_a_universal_search_has_what_all_modalities_share(write_manifest):
    (plan,) = universal(write_manifest, "ptb-xl", "mimic-cxr", "georgia")
    assert plan.name.startswith("tune-universal-mae-linear-")
    assert [source.name for source in plan.sources] == ["mimic-cxr", "ptb-xl"]
    (family,) = plan.families
    assert len(family.settings) == 2
    assert LR in family.space.start
    assert "encoder.patch_size" not in family.space.start


@pytest.mark.parametrize("datasets", [("ptb-xl",), ("mimic-cxr", "nih-cxr-ap", "ptb-xl")])
def test_a_universal_search_takes_one_source_of_each_modality(write_manifest, datasets):
    with pytest.raises(BenchmdError, match="one source from each of two or more modalities"):
        universal(write_manifest, *datasets)


def test_a_universal_search_needs_catalogs_and_one_technique(write_manifest):
    method = Method(universal=True)
    with pytest.raises(BenchmdError, match="needs catalogs of several modalities"):
        planned_searches(Tuning(Choice(), ("mae",), method=method), gpu=False)
    catalogs = tuple(write_manifest(name) for name in ("ptb-xl", "mimic-cxr"))
    with pytest.raises(BenchmdError, match="is of one technique"):
        planned_searches(Tuning(Choice(catalogs), method=method), gpu=False)


def test_what_does_not_exist_is_refused(planned):
    with pytest.raises(BenchmdError, match=r"unknown setting to search 'liner'.*'linear'"):
        planned(searched=("liner",))
    with pytest.raises(BenchmdError, match=r"unknown .*technique 'mea'.*'mae'"):
        planned(techniques=("mea",))


def test_networks_of_the_user_that_are_searched_determine_a_search(
    write_manifest, tmp_path, monkeypatch
):
    """Trials of another version of their source cannot be compared."""
    path = tmp_path / "space.yaml"
    path.write_text(
        "encoder.network: {kind: choice, values: [transformer, mine]}\n"
        "transfer.epochs: {kind: int, low: 1, high: 100}\n"
    )
    tuning = Tuning(
        Choice((write_manifest("ptb-xl"),)), ("scratch",), ("finetune-full",), space=path
    )
    names = []
    for version in "ab":
        for module in ("tuning.entries", "service.searches"):
            monkeypatch.setattr(
                f"benchmd_ray.{module}.network_source",
                lambda size: version if size.network == "mine" else None,  # noqa: B023
            )
        (plan,) = planned_searches(tuning, gpu=False)
        (family,) = plan.determinants["families"]
        assert family["network_source"] == [None, version]
        names.append(plan.name)
    assert names[0] != names[1]


# What a search may see.


@pytest.fixture
def inner(planned, monkeypatch, tmp_path):
    """What is asked for of the inner catalogs of a search."""

    def asked(*datasets, **request):
        search, calls = planned(*datasets, **request), []
        monkeypatch.setattr(
            tune, "barred_patients", lambda source, targets: [target.dataset for target in targets]
        )

        def inner_catalog(source, folder, evaluation, check, **limits):
            calls.append((source.dataset, evaluation, limits))
            return source

        monkeypatch.setattr(tune, "inner_catalog", inner_catalog)
        catalogs = tune.inner_catalogs(search, tmp_path / "runs", lambda: None)
        for evaluation in (0, 6, 0):
            catalogs(evaluation)
        return search, calls

    return asked


def test_a_search_of_few_labels_passes_them_on(inner):
    _, calls = inner("ptb-xl", searched=("finetune-small",), choice={"seeds": (2,)})
    labelled = Labelled(LABEL_SETTINGS["small"], 2)
    assert calls == [("ptb-xl", e, {"barred": [], "labelled": labelled}) for e in (0, 6)]
    _, calls = inner("ptb-xl")
    assert calls[0] == ("ptb-xl", 0, {"barred": [], "labelled": None})


@pytest.mark.parametrize("policy", ["released", "clean"])
def test_patients_who_are_scored_later_are_barred(inner, policy):
    search, calls = inner("nih-cxr-ap", "nih-cxr-pa", "chexpert", policy=policy)
    assert [target.name for target in search.related] == ["nih-cxr-pa"]
    assert calls[0] == ("nih-cxr-ap", 0, {"barred": ["nih-cxr-pa"], "labelled": None})
    without, _ = inner("nih-cxr-ap", policy=policy)
    assert without.name != search.name


def test_inner_catalogs_wait_for_a_store_that_is_away(planned, monkeypatch, tmp_path):
    away, calls = BucketError("s3://lab cannot be reached"), []
    away.away = True

    def inner_catalog(source, *_, **__):
        calls.append(source)
        if len(calls) == 1:
            raise away
        return source

    monkeypatch.setattr(tune, "inner_catalog", inner_catalog)
    monkeypatch.setattr(tune, "barred_patients", lambda *_: frozenset())
    catalogs = tune.inner_catalogs(planned(), tmp_path, lambda: None)
    (catalog,) = catalogs(3)
    assert (catalog.dataset, len(calls)) == ("ptb-xl", 2)


def test_every_modality_has_families(write_manifest):
    """Whatever its signal, there are kernels and networks for it."""
    for card in cards().values():
        if card.role != "source" or card.modality.name not in MODALITIES:
            continue
        (search,) = planned_searches(Tuning(Choice(datasets=(card.name,))), gpu=False)
        assert names(search)[0] == "scratch finetune"
        assert card.modality.task.segments or len(names(search)) >= 3
