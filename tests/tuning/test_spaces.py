import dataclasses
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import MODALITIES, SIGNALS

from benchmd_ray.data.cards import kind_of
from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.registry import built_in_space
from benchmd_ray.files.atomic import resource_folder
from benchmd_ray.models.encoder import require_fitting
from benchmd_ray.models.networks import RANDOM_KERNELS
from benchmd_ray.models.random_kernels import RandomKernelsOptions
from benchmd_ray.service.choice import Choice, technique_settings
from benchmd_ray.settings.definition import (
    Settings,
    as_dict,
    default_settings,
    load_settings,
    updated,
)
from benchmd_ray.ssl import BASELINES, NAMED, SCRATCH, TECHNIQUES, protocol_encoder
from benchmd_ray.tuning import entries
from benchmd_ray.tuning.parameters import INHERITED, setting_types, value_of
from benchmd_ray.tuning.spaces import (
    SETTINGS,
    SPACES,
    UNTRAINED,
    Parameter,
    Space,
    applied,
    shared,
    space_for,
    starting_at,
)

LR, STEPS = "pretrain.optimiser.lr", "pretrain.steps"
SCHEDULE, WARM_UP = "pretrain.optimiser.schedule", "pretrain.optimiser.warmup_steps"
PATCH, BATCH = "encoder.patch_size", "pretrain.batch_size"

BUILT_IN = [
    *((technique, "pretrain") for technique in SPACES),
    ("mae", "linear"),
    ("imagenet", "linear-small"),
    ("encoder:dinov2-small", "knn"),
    ("random-kernels", "linear"),
    ("random-kernels", "knn-small"),
    ("mae", "finetune-full"),
    ("scratch", "finetune-small"),
    ("imagenet", "finetune-full"),
]
MEDMNIST = ("breastmnist", "organmnist3d")
ON_IMAGES = ("imagenet", "encoder:")
IMAGES = [name for name, signal in SIGNALS.items() if signal.axes == ("channel", "y", "x")]
SEARCHES = [
    (*search, modality)
    for search in BUILT_IN
    for modality in (IMAGES if search[0].startswith(ON_IMAGES) else (*MODALITIES, *MEDMNIST))
]
BY_NAME = pytest.mark.parametrize(("technique", "setting", "modality"), SEARCHES)


def study(seed=0):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))


def look_up(plain, name):
    for part in name.split("."):
        plain = plain[part]
    return plain


def nested(name, value):
    for part in reversed(name.split(".")):
        value = {part: value}
    return value


def protocol(technique, modality):
    """The fixed protocol's settings, as runs of a technique have them."""
    if technique == RANDOM_KERNELS or technique.startswith(NAMED):
        return technique_settings(Choice(), kind_of(modality), technique)[0]
    return default_settings(kind_of(modality), protocol_encoder(technique))


@BY_NAME
def test_a_built_in_space_starts_at_the_fixed_protocol(technique, setting, modality):
    space = space_of(technique, setting, modality)
    fixed = protocol(technique, modality)
    for parameter in space.parameters:
        name = parameter.name
        if name in INHERITED:  # the transfer's own is null, so that of the encoder holds
            name = INHERITED[name]
        if not name.startswith("encoder.options."):  # of another network
            assert parameter.default == look_up(as_dict(fixed), name)
    began = applied(fixed, space.start)
    if technique == RANDOM_KERNELS:
        assert updated(RandomKernelsOptions(), began.encoder.options) == RandomKernelsOptions()
        began = dataclasses.replace(began, encoder=fixed.encoder)
    assert began.transfer_encoder == fixed.transfer_encoder
    unsaid = dataclasses.replace(began.transfer, dropout=None, embedding_dropout=None)
    assert dataclasses.replace(began, transfer=unsaid) == fixed
    assert starting_at(space, fixed) == space


@pytest.mark.slow
@BY_NAME
def test_settings_take_all_that_a_built_in_space_can_propose(technique, setting, modality):
    space, proposals = space_of(technique, setting, modality), study()
    fixed = protocol(technique, modality)
    seen = set()
    for _ in range(30):
        values = space.suggest(proposals.ask())
        changed = applied(fixed, values)
        for name, value in values.items():
            assert look_up(as_dict(changed), name) == value
        kind_of(modality).signal.with_patch(changed.encoder.patch_size)
        seen |= set(values)
        for parameter in space.parameters:
            met = all(look_up(as_dict(changed), o) in some for o, some in parameter.when.items())
            assert (parameter.name in values) == met
    assert seen == {parameter.name for parameter in space.parameters}


@BY_NAME
def test_settings_take_the_ends_of_every_range(technique, setting, modality):
    fixed = protocol(technique, modality)
    for parameter in space_of(technique, setting, modality).parameters:
        met = applied(fixed, {other: some[0] for other, some in parameter.when.items()})
        for value in parameter.values or (parameter.low, parameter.high):
            assert parameter.holds(value)
            changed = updated(met, nested(parameter.name, value))
            assert look_up(as_dict(changed), parameter.name) == value


def test_every_file_is_the_space_of_some_search():
    files = {path.stem for path in resource_folder("search_spaces").glob("*.yaml")}
    fine_tuning = {"finetune", "finetune-1d"}
    assert files == {*SPACES.values(), *BASELINES, "linear", "knn", *fine_tuning}
    for path in resource_folder("search_spaces").glob("*.yaml"):
        text = path.read_text("utf-8")
        assert text.startswith("# ")
        assert re.search(r"benchmd (medmnist )?tune ", text.split("\n\n")[0])


@pytest.mark.parametrize(
    ("technique", "setting", "stem"),
    [
        (SCRATCH, "finetune-small", "finetune"),
        (SCRATCH, "linear", "linear"),
        (SCRATCH, "knn", "knn"),
        (RANDOM_KERNELS, "linear", "random-kernels"),
        (RANDOM_KERNELS, "knn", "random-kernels"),
    ],
)
def test_medmnist_brings_its_own_space_only_of_fine_tuning_from_scratch(technique, setting, stem):
    for name in MEDMNIST:
        brought = built_in_space(technique, setting, kind_of(name))
        assert (brought is not None) == setting.startswith("finetune")
        space = space_for(technique, setting, kind_of(name), built_in=brought)
        assert space.name == f"{stem} ({kind_of(name).signal.name})"


def test_techniques_are_those_of_pretraining():
    trained = {*UNTRAINED, *SPACES} - {*BASELINES}
    assert {SCRATCH, *TECHNIQUES} == trained == set(entries.BUILT_IN)
    assert SPACES == {name: t.method for name, t in TECHNIQUES.items() if t.method}
    for name, technique in TECHNIQUES.items():
        scope = entries.Scope(
            resource_folder("search_spaces"), name, "linear", MODALITIES["derm"], True
        )
        assert scope.fixed == default_settings(MODALITIES["derm"], technique.encoder)


def test_the_protocols_settings_are_searched():
    names = {parameter.name for parameter in space_of("e-mix", "pretrain", "ecg").parameters}
    assert names >= {LR, SCHEDULE, WARM_UP, STEPS, BATCH, PATCH, "pretrain.optimiser.weight_decay"}
    assert names >= {"pretrain.mixing_alpha", "pretrain.temperature", "encoder.dropout"}
    tuned = {p.name.removeprefix("transfer.") for p in space_of("mae", "linear", "ecg").parameters}
    assert tuned == {"solver", "hidden", "dropout", "batch_size", "epochs", "label_smoothing"} | {
        f"optimiser.{name}" for name in ("lr", "weight_decay", "schedule", "warmup_steps")
    }
    fine = {parameter.name for parameter in space_of("mae", "finetune-full", "ecg").parameters}
    assert fine - {f"transfer.{name}" for name in tuned - {"dropout"}} == {
        "transfer.layer_decay",
        "transfer.dropout",
        "transfer.embedding_dropout",
        "transfer.averaging",
        "transfer.freeze",
        "transfer.stochastic_depth",
        "transfer.class_balance",
        *(f"transfer.augmentation.{n}" for n in ("noise", "masking", "lead_dropout", "wander")),
    }
    prefix = "transfer.augmentation."

    def changes(technique, name):
        space = space_of(technique, "finetune-full", name)
        named = (parameter.name for parameter in space.parameters)
        return {name.removeprefix(prefix) for name in named if name.startswith(prefix)}

    of = {name: changes("mae", name) for name in ("eeg", "cxr", "mammo", "derm", "fundus", "ldct")}
    assert of["eeg"] == {"noise", "masking"}
    whole = {"flip", "affine", "intensity", "blur", "masking", "mixup", "cutmix"}
    assert of["derm"] == whole  # skin has no direction
    assert all(of[name] == whole - {"flip"} for name in ("cxr", "mammo", "fundus", "ldct"))
    over_time = {"shift", "intensity", "noise", "masking", "mixup", "cutmix"}
    assert changes("scratch", "eeg") == over_time
    assert changes("scratch", "ecg") == over_time | {"lead_dropout", "wander"}


def test_changes_apply_to_their_searches_alone():
    def names(*search):
        return {parameter.name for parameter in space_of(*search).parameters}

    assert names("mae", "pretrain", "cxr") - names("imagenet+mae", "pretrain", "cxr") == {PATCH}
    start = space_of("imagenet", "finetune-full", "cxr").start
    other = space_of("mae", "finetune-full", "cxr").start
    assert (start["transfer.dropout"], other["transfer.dropout"]) == (0.0, 0.1)
    by = {m: space_of("mae", "pretrain", m).as_dict() for m in ("cxr", "ecg", "ldct")}
    assert [by[m][BATCH]["default"] for m in by] == [64, 64, 32]
    assert len({tuple(by[m][PATCH]["values"]) for m in by}) == 3
    warm_up = "transfer.optimiser.warmup_steps"
    few, many = (space_of("mae", f"linear{x}", "ecg").as_dict() for x in ("-small", ""))
    assert few[warm_up]["high"] < many[warm_up]["high"]


def test_a_space_is_plain_for_json():
    plain = space_of("mae", "pretrain", "ecg").as_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert plain[LR] == {"kind": "log float", "low": 1e-5, "high": 1e-2, "default": 1e-4}
    assert plain[STEPS] == {
        "kind": "int", "low": 25000, "high": 200000, "step": 25000, "default": 100000,
    }  # fmt: skip
    assert isinstance(plain[STEPS]["step"], int)
    assert plain[WARM_UP]["when"] == {SCHEDULE: ["cosine"]}
    assert plain["encoder.dropout"]["kind"] == "float"


def test_setting_types_are_those_of_all_settings():
    def leaves(plain, prefix=""):
        for name, value in plain.items():
            inner = isinstance(value, dict) and value
            yield from leaves(value, f"{prefix}{name}.") if inner else [prefix + name]

    assert set(setting_types()) == set(leaves(as_dict(Settings())))
    with pytest.raises(BenchmdError, match=r"no setting encoder\.nothing"):
        value_of(Settings(), "encoder.nothing")


# A user's own file ------------------------------------------------------------------------------


def space_of(technique, setting, name, path=None):
    return space_for(technique, setting, kind_of(name), path)


@pytest.fixture
def own(tmp_path):
    def read(content, technique="mae", setting="pretrain", modality="ecg"):
        path = tmp_path / "own.yaml"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), "utf-8")
        return space_of(technique, setting, modality, path)

    return read


def test_a_file_of_ones_own_has_its_own_ranges_and_defaults(own):
    space = own(
        f"{LR}: {{kind: log float, low: 1e-3, high: 1e-1, default: 1e-2}}\n"
        "encoder.depth: {kind: int, low: 2, high: 12, step: 2}\n"
        "encoder.qkv_bias: {kind: choice, values: [true, false]}\n"
        "signals: {eeg: {encoder.depth: {high: 24}}}\n"
    )
    assert space.start == {LR: 0.01, "encoder.depth": 12, "encoder.qkv_bias": False}
    assert space.parameters[0] == Parameter(LR, "log float", 0.01, low=0.001, high=0.1)
    assert "own.yaml (ecg)" in space.name


@pytest.mark.parametrize("network", ["monai-densenet121", "monai-seresnet50"])
def test_skipped_blocks_are_searched_only_of_networks_that_have_some(network):
    fixed = default_settings(kind_of("cxr"), protocol_encoder(SCRATCH))
    settings = updated(fixed, {"encoder": {"network": network}})
    depth, rate = "transfer.stochastic_depth", "transfer.optimiser.lr"
    own = (
        Parameter(depth, "choice", 0.0, values=(0.0, 0.1)),
        Parameter(rate, "log float", 1e-4, low=1e-5, high=1e-2),
    )
    with pytest.raises(BenchmdError, match=r"no blocks .*--fix transfer\.stochastic_depth"):
        starting_at(Space("own", own), settings)
    held = starting_at(Space("own", own), settings, [depth])
    assert [parameter.name for parameter in held.parameters] == [rate]
    assert len(starting_at(Space("own", own), fixed).parameters) == 2


def test_options_of_a_method_and_a_network_of_ones_own_are_searched(own):
    space = own(
        "pretrain.options.noise: {kind: float, low: 0, high: 1, default: 0.5}\n"
        "encoder.options.blend: {kind: choice, values: [a, b], default: a}\n"
        "pretrain.mask_rate: {kind: float, low: 0.5, high: 0.9}\n",
        technique="my_methods:Denoise",
    )
    network = {"network": "my_methods:Mixer", "options": {"blend": "b"}}
    base = updated(Settings(), {"encoder": network})
    space = starting_at(space, base)
    assert space.start == {
        "pretrain.options.noise": 0.5, "encoder.options.blend": "b", "pretrain.mask_rate": 0.75
    }  # fmt: skip
    changed = applied(base, {**space.start, "encoder.options.blend": "a"})
    assert changed.encoder.options == {"blend": "a"}
    assert changed.pretrain.options == {"noise": 0.5}
    with pytest.raises(BenchmdError, match=r"setting encoder\.options"):
        starting_at(space, Settings())


@pytest.mark.parametrize("values", ["[auto, 0.5]", "[null, 1]", "[true, 2]", "[null, a]"])
def test_values_of_several_kinds_have_no_column_of_a_table(own, values):
    line = f"encoder.options.blend: {{kind: choice, values: {values}}}\n"
    with pytest.raises(BenchmdError, match="expected only texts, only numbers, or true and"):
        own(line.replace("}", f", default: {values[1:-1].split(', ')[0]}}}"))


def test_a_change_with_a_kind_replaces_the_whole_line(own):
    content = (
        f"{BATCH}: {{kind: choice, values: [32, 64], default: 32}}\n{LR}: {{kind: float, "
        f"low: 1e-5, high: 1}}\n"
        f"signals: {{ecg: {{{BATCH}: {{kind: log int, low: 16, high: 64}}}}}}\n"
        f"techniques: {{'my_methods:Denoise': {{{LR}: null}}}}\n"
    )
    assert own(content).parameters[0] == Parameter(BATCH, "log int", 64, low=16, high=64)
    assert own(content, modality="eeg").parameters[0].values == (32, 64)
    assert len(own(content).parameters) == 2
    assert len(own(content, technique="my_methods:Denoise").parameters) == 1


def test_the_example_of_the_readme_is_valid(own):
    readme = (Path(__file__).parents[2] / "search_spaces/README.md").read_text("utf-8")
    example = readme.split("## Example")[1].split("\n## ")[0].split("noise`:\n\n")[1]
    text = "\n".join(line.removeprefix("    ") for line in example.splitlines())
    for modality, high in (("ecg", 2.0), ("ldct", 1.0)):
        space = own(text, technique="my_methods:Denoise", modality=modality)
        assert len(space.parameters) == 4
        assert space.parameters[-1].high == high


def test_scratch_fine_tunes_an_encoder_of_any_shape(own):
    content = {PATCH: {"kind": "choice", "values": [0, 50]}}
    assert own(content, "scratch", "finetune-full").start == {PATCH: 0}
    with pytest.raises(BenchmdError, match="that of the pretraining"):
        own(content, "mae", "finetune-full")


RATE = {"kind": "log float", "low": 1e-5, "high": 1e-2}
DROPOUT = {"kind": "float", "low": 0, "high": 0.5}
CHOICE = {"kind": "choice", "values": ["constant", "cosine"]}
STEPS_OF = {"kind": "int", "low": 0, "high": 10}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "own.yaml varies nothing"),
        ("a: [", r"cannot read the search space .*own\.yaml"),
        (f"{LR}: !!python/name:os.system", "cannot read the search space"),
        (f"{LR}: 1\n{LR}: 2", "appears twice"),
        ("- 1", r"holds \[1\], expected settings"),
        ({"pretrain.optimiser.lrr": RATE}, r"unknown setting .*'pretrain\.optimiser\.lrr'\. "
            r"Did you mean 'pretrain\.optimiser\.lr'\?"),
        ({"signal": {}}, "Did you mean 'signals'"),
        ({"pretrain": RATE}, "pretrain is a group of settings"),
        ({"seed": STEPS_OF}, "cannot vary seed: seeds show"),
        ({"tuned": CHOICE}, "cannot vary tuned"),
        ({"transfer.mode": CHOICE}, "cannot vary transfer.mode: --setting"),
        ({"transfer.labels": CHOICE}, "cannot vary transfer.labels"),
        ({"transfer.shuffle_labels": CHOICE}, "cannot vary transfer.shuffle_labels: .*sanity"),
        ({"execution.workers": STEPS_OF}, "cannot vary execution.workers: .*how and where"),
        ({"encoder.network": CHOICE}, "cannot vary encoder.network: .*which --set or --settings"),
        ({"pretrain.options": CHOICE}, "name one of them, such as pretrain.options.noise"),
        ({"pretrain.options.noise": DROPOUT}, "mae reads no options"),
        ({"pretrain.temperature": DROPOUT}, "mae does not read it, only e-mix"),
        ({"transfer.epochs": STEPS_OF}, "scored by linear evaluation with its default"),
        ({LR: 3}, "got 3, expected such as {kind: float"),
        ({LR: None}, "got None"),
        ({LR: RATE | {"hihg": 3}}, "unknown key in .*'hihg'. Did you mean 'high'"),
        ({LR: RATE | {"kind": "logfloat"}},
            r"unknown value of .*own\.yaml, .*kind: 'logfloat'\. Did you mean 'log float'"),
        ({LR: {"low": 1, "high": 2}}, "is incomplete: kind is missing"),
        ({LR: RATE | {"values": [1]}}, "values is not a key of the kind log float"),
        ({LR: {"kind": "choice", "low": 1}},
            "low, high and step are not keys of the kind choice: give values"),
        ({LR: {"kind": "log float", "low": 1}}, "the kind log float needs low and high"),
        ({SCHEDULE: {"kind": "choice"}}, "values has 0, expected 2 to 1,000"),
        ({LR: STEPS_OF}, "int does not fit, expected float or log float or choice"),
        ({BATCH: RATE}, "log float does not fit, expected int or log int or choice"),
        ({SCHEDULE: RATE}, "log float does not fit, expected choice"),
        ({PATCH: STEPS_OF}, "int does not fit, expected choice"),
        ({LR: RATE | {"low": 0.1}}, "low is 0.1 and high 0.01, expected low below high"),
        ({LR: RATE | {"low": 0.01}}, "expected low below high"),
        ({"encoder.dropout": DROPOUT | {"kind": "log float"}}, "logarithmic scale starts above 0"),
        ({LR: RATE | {"step": 1e-5}}, "step is not a key of a logarithmic scale"),
        ({"encoder.dropout": DROPOUT | {"step": 0.2}}, "is 0.2, expected a number .* 0 to 0.5"),
        ({"encoder.dropout": DROPOUT | {"step": -0.1}}, "step is -0.1, expected a number above 0"),
        ({"encoder.dropout": DROPOUT | {"step": 1e300}}, r"step is 1e\+300, expected"),
        ({"encoder.dropout": DROPOUT | {"step": 5e-300}}, "into at most 1,000,000 steps"),
        ({STEPS: STEPS_OF | {"low": 1, "high": 2**60}},
            "high is 1152921504606846976, expected a number of less than 9,007,"),
        (
            {"encoder.depth": {"kind": "choice", "values": [*range(1001)]}},
            "values has 1,001, expected 2 to 1,000",
        ),
        ({LR: RATE | {"low": "few"}}, "low is 'few', expected a number"),
        ({LR: RATE | {"high": math.inf}}, "high is inf, expected a finite number"),
        ({"pretrain.temperature": CHOICE}, "mae does not read it"),
        ({BATCH: STEPS_OF | {"low": 2.5}}, "low is 2.5, expected a whole number"),
        ({BATCH: STEPS_OF | {"low": 2, "high": True}}, "high is True, expected a number"),
        ({LR: RATE | {"default": 0.1}}, "the default 0.1 is outside, expected 1e-05 to 0.01"),
        ({BATCH: {"kind": "choice", "values": [8, 16], "default": 64}}, "expected one of 8, 16"),
        ({"pretrain.mask_rate": DROPOUT | {"low": 0.5, "high": 1}},
            "high: setting pretrain.mask_rate is 1.0"),
        ({BATCH: STEPS_OF | {"default": 2}}, "low: setting pretrain.batch_size is 0"),
        ({SCHEDULE: {"kind": "choice", "values": ["constant", "cosin"]}},
            "values: unknown value .*Did you mean 'cosine'"),
        ({BATCH: {"kind": "choice", "values": [64, 32, 64]}}, "values has 64 twice"),
        ({SCHEDULE: {"kind": "choice", "values": ["constant"]}},
            "values has 1, expected 2 to 1,000"),
        ({SCHEDULE: {"kind": "choice", "values": "constant"}},
            "values is 'constant', expected a list"),
        ({PATCH: {"kind": "choice", "values": [0, 24]}}, "does not divide the 5000 samples of ecg"),
        ({PATCH: {"kind": "choice", "values": [0, 25]}}, "25 and 0 are the same for ecg"),
        ({LR: RATE, "signals": 3}, "signals holds 3"),
        ({LR: RATE, "signals": {"ecgg": {}}}, "unknown name in .*Did you mean 'ecg'"),
        ({LR: RATE, "techniques": {"maee": {}}}, "unknown name in .*Did you mean 'mae'"),
        ({LR: RATE, "settings": {"lineal": {}}}, "unknown name in .*Did you mean 'linear'"),
        ({LR: RATE, "signals": {"eeg": {"lr": None}}}, "unknown entry to change in .*eeg: 'lr'"),
        ({LR: RATE, "signals": {"ecg": {LR: 3}}}, "signals, ecg, .*holds 3"),
        ({LR: RATE, "signals": {"ecg": {LR: None}}}, "varies nothing"),
        ({LR: RATE, "settings": {"pretrain": {LR: {"low": 1}}}}, "low is 1 and high 0.01"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_valid_is_refused(own, content, message):
    with pytest.raises(BenchmdError, match=message):
        own(content)


@pytest.mark.parametrize(
    ("when", "message"),
    [
        (3, "when is 3, expected names with values"),
        ({"pretrain.optimiser.shedule": ["cosine"]}, "Did you mean 'pretrain.optimiser.schedule'"),
        ({"pretrain.steps": [1]}, "pretrain.steps, expected a setting above it in the file"),
        ({WARM_UP: [1]}, "expected a setting above it in the file"),
        ({LR: [1]}, "of the kind log float, expected a choice"),
        ({SCHEDULE: ["step"]}, "expected a list of its values: constant, cosine"),
        ({SCHEDULE: "cosine"}, "schedule.* is 'cosine', expected a list"),
        ({SCHEDULE: []}, "expected a list of its values"),
    ],
)
def test_a_condition_that_is_not_valid_is_refused(own, when, message):
    entry = {"kind": "int", "low": 0, "high": 10, "when": when}
    text = {LR: RATE, SCHEDULE: CHOICE, WARM_UP: entry}
    with pytest.raises(BenchmdError, match=message):
        own(yaml.safe_dump(text, sort_keys=False) + f"{STEPS}: {{kind: int, low: 1, high: 100000}}")


@pytest.mark.parametrize("name", ["encoder.dropout", "transfer.layer_decay", LR])
def test_linear_evaluation_varies_no_encoder(own, name):
    message = "share one pretraining" if name == LR else "leaves the encoder as it is"
    with pytest.raises(BenchmdError, match=message):
        own({name: DROPOUT | {"low": 0.1}}, setting="linear")


def test_imagenet_weights_fit_one_encoder(own):
    with pytest.raises(BenchmdError, match="fit only one encoder"):
        own({PATCH: {"kind": "choice", "values": [0, 32]}}, "imagenet+mae", modality="cxr")


def test_a_built_in_default_is_the_fixed_protocols(tmp_path, monkeypatch):
    (tmp_path / "mae.yaml").write_text(f"{LR}: {{kind: float, low: 0.1, high: 1, default: 0.5}}")
    monkeypatch.setattr("benchmd_ray.tuning.spaces.resource_folder", lambda name: tmp_path)
    with pytest.raises(BenchmdError, match=r"0\.5 is not the fixed .* for mae on ecg"):
        space_of("mae", "pretrain", "ecg")


@pytest.mark.parametrize(
    ("search", "message"),
    [
        (("mae", "lineal", "ecg"), "unknown setting of a search 'lineal'. Did you mean 'linear'"),
        (("scratch", "pretrain", "ecg"), "scratch trains nothing in pretraining"),
        (("imagenet", "pretrain", "cxr"), "imagenet trains nothing in pretraining"),
        (("random-kernels", "pretrain", "ecg"), "random-kernels trains nothing in pretraining"),
        (("hf:folder", "pretrain", "cxr"), "hf:folder trains nothing in pretraining"),
        (("random-kernels", "finetune-small", "ecg"), "cannot be fine-tuned: search .*or knn"),
        (("my_methods:Denoise", "pretrain", "ecg"), "no built-in search space .*--space FILE"),
    ],
)
def test_a_search_without_a_space_is_refused(search, message):
    with pytest.raises(BenchmdError, match=message):
        space_of(*search)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(BenchmdError, match=r"cannot read the search space .*none\.yaml"):
        space_of("mae", "linear", "ecg", tmp_path / "none.yaml")


def test_transfer_settings_are_named_as_in_tables():
    from benchmd_ray.service.choice import TRANSFERS

    assert set(SETTINGS) == {"pretrain", *TRANSFERS}


# What a search starts from ----------------------------------------------------------------------


def test_the_first_trial_takes_the_settings_it_is_given():
    space = space_of("mae", "pretrain", "ecg")
    base = load_settings(None, [f"{LR}=0.001", f"{SCHEDULE}=cosine", f"{WARM_UP}=500"])
    started = starting_at(space, base)
    assert started.start[LR] == 0.001
    assert started.start[WARM_UP] == 500
    assert applied(base, started.start) == base
    assert WARM_UP not in starting_at(space, Settings()).start
    queue = study()
    queue.enqueue_trial(started.start)
    assert started.suggest(queue.ask()) == started.start


def test_what_is_held_settles_the_conditions_on_it():
    space = space_of("mae", "pretrain", "ecg")
    held = starting_at(space, Settings(), [SCHEDULE])
    assert {p.name for p in space.parameters} - {p.name for p in held.parameters} == {
        SCHEDULE,
        WARM_UP,
    }
    cosine = starting_at(space, load_settings(None, [f"{SCHEDULE}=cosine"]), {SCHEDULE})
    assert cosine.as_dict()[WARM_UP].get("when") is None
    assert WARM_UP in cosine.start


def test_a_start_outside_of_the_space_is_refused():
    space = space_of("mae", "pretrain", "ecg")
    small = load_settings(None, [f"{STEPS}=400"])
    message = rf"starts at {STEPS} = 400, .*25000 to 200000 in steps of 25000: .*--fix {STEPS}"
    with pytest.raises(BenchmdError, match=message):
        starting_at(space, small)
    with pytest.raises(BenchmdError, match=r"batch_size = 48, .*expected one of 32, 64.*--space"):
        starting_at(space, load_settings(None, [f"{BATCH}=48"]))
    off = load_settings(None, [f"{STEPS}=30000"])
    with pytest.raises(BenchmdError, match="30000"):
        starting_at(space, off)


def test_a_warm_up_longer_than_pretraining_is_refused():
    space = space_of("mae", "pretrain", "ecg")
    small = load_settings(None, [f"{STEPS}=400"])
    with pytest.raises(BenchmdError, match=rf"up to 10,000, .* as few as 400 .*--fix {WARM_UP}"):
        starting_at(space, small, [STEPS])
    assert WARM_UP not in starting_at(space, small, [STEPS, WARM_UP]).start
    assert starting_at(space, small, [STEPS, SCHEDULE]).start  # a constant rate has no warm-up


def test_only_what_is_in_the_space_can_be_held(own):
    space = own({LR: RATE, BATCH: {"kind": "choice", "values": [32, 64]}})
    with pytest.raises(BenchmdError, match=f"unknown setting to hold .*Did you mean '{LR}'"):
        starting_at(space, Settings(), ["pretrain.optimizer.lr"])
    with pytest.raises(BenchmdError, match="nothing is left to search"):
        starting_at(space, Settings(), [LR, BATCH])


def test_a_condition_is_on_the_value_that_the_other_has():
    first = Parameter("encoder.pool", "choice", "mean", values=("mean", "cls"))
    second = Parameter(SCHEDULE, "choice", "cosine", values=("constant", "cosine"),
                       when={"encoder.pool": ("cls",)})  # fmt: skip
    third = Parameter(WARM_UP, "int", 0, low=0, high=9, when={SCHEDULE: ("cosine",)})
    space = Space("s", (first, second, third))
    assert space.start == {"encoder.pool": "mean", WARM_UP: 0}  # the schedule keeps its cosine
    held = starting_at(space, load_settings(None, [f"{SCHEDULE}=cosine"]), ["encoder.pool"])
    assert held.start == {WARM_UP: 0}
    with pytest.raises(BenchmdError, match="searched only with another value"):
        starting_at(space, Settings(), ["encoder.pool"])


# One setting for several modalities -------------------------------------------------------------


def test_modalities_share_what_all_of_them_vary_alike():
    spaces = [
        starting_at(space_of("mae", "pretrain", m), default_settings(MODALITIES[m]))
        for m in ("ecg", "ldct", "cxr")
    ]
    names = [parameter.name for parameter in shared(spaces).parameters]
    # Patches have other sizes, and the protocol's batch of volumes is smaller.
    assert names == [p.name for p in spaces[0].parameters if p.name not in (PATCH, BATCH)]
    assert shared(spaces[:1]) == spaces[0]


def test_modalities_do_not_share_a_setting_with_another_start_range_or_condition():
    rate = Parameter(LR, "log float", 1e-4, low=1e-5, high=1e-3)
    dropout = Parameter("encoder.dropout", "float", 0.1, low=0.0, high=0.5)
    pool = Parameter("encoder.pool", "choice", "mean", values=("mean", "cls"))
    inner = Parameter(WARM_UP, "int", 0, low=0, high=9, when={"encoder.pool": ("cls",)})
    space = Space("a", (rate, dropout, pool, inner))
    for other, expected in (
        (replace(dropout, default=0.2), [LR, "encoder.pool", WARM_UP]),
        (replace(dropout, high=0.4), [LR, "encoder.pool", WARM_UP]),
        (replace(dropout, kind="choice", low=None, high=None, values=(0.1, 0.2)),
         [LR, "encoder.pool", WARM_UP]),
        (replace(pool, values=("mean", "max")), [LR, "encoder.dropout"]),  # and what depends on it
        (replace(inner, when={"encoder.pool": ("mean",)}), [LR, "encoder.dropout", "encoder.pool"]),
    ):  # fmt: skip
        changed = (other if p.name == other.name else p for p in space.parameters)
        together = shared([space, Space("b", tuple(changed))])
        assert [parameter.name for parameter in together.parameters] == expected
    with pytest.raises(BenchmdError, match="the search spaces a, c share no setting"):
        shared([space, Space("c", (replace(rate, high=1e-2),))])


# What a parameter is ----------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    low=st.integers(1, 50), steps=st.integers(1, 20), step=st.integers(1, 5), seed=st.integers(0, 9)
)
@pytest.mark.parametrize("kind", ["float", "log float", "int", "log int"])
def test_what_is_proposed_is_held(kind, low, steps, step, seed):
    wide = None if kind.startswith("log") else step
    parameter = Parameter(BATCH, kind, low, low=low, high=low + steps * step, step=wide)
    proposals = study(seed)
    for _ in range(3):
        value = parameter.suggest(proposals.ask())
        assert parameter.holds(value)
        assert isinstance(value, int) == kind.endswith("int")


def test_a_range_holds_its_ends_and_its_steps_alone():
    grid = Parameter("encoder.dropout", "float", 0.1, low=0.1, high=0.7, step=0.2)
    assert [grid.holds(v) for v in (0.1, 0.3, 0.5, 0.7, 0.4, 0.9, -0.1)] == [True] * 4 + [False] * 3
    assert not grid.holds(True)
    assert not grid.holds("0.3")
    whole = Parameter(BATCH, "int", 4, low=2, high=8)
    assert whole.holds(3)
    assert not whole.holds(2.5)


def test_values_are_applied_by_name():
    changed = applied(Settings(), {LR: 0.5, WARM_UP: 3, "transfer.epochs": 7})
    assert (changed.pretrain.optimiser.lr, changed.pretrain.optimiser.warmup_steps) == (0.5, 3)
    assert changed.transfer.epochs == 7
    assert changed.transfer.optimiser == Settings().transfer.optimiser
    with pytest.raises(BenchmdError, match="unknown setting"):
        applied(Settings(), {"pretrain.lr": 1.0})


def test_a_file_of_ones_own_needs_no_default_of_the_protocol(own):
    space = own({LR: RATE | {"low": 1e-3}, BATCH: {"kind": "choice", "values": [8, 16]}})
    assert space.start == {LR: 1e-3, BATCH: 8}
    chosen = load_settings(assignments=["pretrain.optimiser.lr=4e-3", "pretrain.batch_size=16"])
    assert starting_at(space, chosen).start == {LR: 4e-3, BATCH: 16}
    with pytest.raises(BenchmdError, match="the search starts at"):
        starting_at(space, Settings())


# Signals over time ------------------------------------------------------------------------------

NETWORKS_1D = ("transformer", "resnet18-1d", "xresnet1d101")


@pytest.mark.parametrize("labels", ["small", "medium", "large", "full"])
@pytest.mark.parametrize("modality", MODALITIES)
def test_only_scratch_on_signals_over_time_searches_the_network(modality, labels):
    over_time = SIGNALS[modality].axes == ("channel", "time")
    assert over_time == (modality in ("ecg", "eeg"))
    for technique in ("scratch", "mae", "my_methods:Denoise"):
        space = space_of(technique, f"finetune-{labels}", modality).as_dict()
        fitting = over_time and technique == "scratch"
        assert ("encoder.network" in space) == fitting
        assert ("transfer.layer_decay" in space) == (technique != "scratch")
        if fitting:
            assert space["encoder.network"]["values"] == list(NETWORKS_1D)
    assert "encoder.network" not in space_of("scratch", "linear", modality).as_dict()


def test_few_labels_have_the_same_warm_up_whatever_is_searched():
    warm_up = "transfer.optimiser.warmup_steps"
    for setting in SETTINGS[SETTINGS.index("finetune-small") :]:
        spaces = (space_of(technique, setting, "ecg").as_dict() for technique in ("scratch", "mae"))
        assert len({space[warm_up]["high"] for space in spaces}) == 1


@pytest.mark.parametrize("start", NETWORKS_1D)
def test_each_trial_has_a_network_that_takes_the_signals_and_its_options(start):
    base = default_settings(kind_of("ecg"))
    base = updated(base, {"encoder": {"network": start}})
    if start == "xresnet1d101":
        base = updated(base, {"encoder": {"options": {"growth": 2}}})
    space, proposals, seen = space_of("scratch", "finetune-full", "ecg"), study(), set()
    space = starting_at(space, base)
    assert applied(base, space.start).encoder.network == start
    for _ in range(20):
        values = space.suggest(proposals.ask())
        trial = applied(base, values).encoder
        seen.add(trial.network)
        require_fitting(SIGNALS["ecg"], trial)
        searched = {"width", "dropout"} if trial.network != "transformer" else set()
        kept = {"growth"} if start == trial.network == "xresnet1d101" else set()
        assert trial.options.keys() == searched | kept
    assert seen == set(NETWORKS_1D)


def test_both_signals_over_time_can_be_searched_as_one():
    spaces = [
        starting_at(space_of("scratch", "finetune-full", name), default_settings(MODALITIES[name]))
        for name in ("ecg", "eeg")
    ]
    both = {p.name for p in spaces[0].parameters} & {p.name for p in spaces[1].parameters}
    assert {p.name for p in shared(spaces).parameters} == both
    assert "encoder.network" in both


@pytest.mark.parametrize(
    ("networks", "options", "message"),
    [
        (["transformer", "resnet18"], {}, r"ecg has channel, time: choose resnet18-1d"),
        (["xresnet1d101", "resnet18-3d"], {}, r"ecg has channel, time: choose resnet18-1d"),
        (["xresnet1d101", "resnet18-1d"], {"stem": ["small", "auto"]}, r"'stem'.*growth, width"),
        (["xresnet1d101", "resnet18-1d"], {"width": [16, 33]}, "width is 33, expected an even"),
        (["resnet50-1d", "resnet18-1d"], {"resize": [0, 500]}, "does not resize signals over time"),
    ],
)
def test_networks_and_options_that_do_not_fit_are_refused(own, networks, options, message):
    content = {"encoder.network": {"kind": "choice", "values": networks}} | {
        f"encoder.options.{name}": {"kind": "choice", "values": values, "default": values[0]}
        for name, values in options.items()
    }
    base = updated(default_settings(MODALITIES["ecg"]), {"encoder": {"network": networks[0]}})
    with pytest.raises(BenchmdError, match=message):
        starting_at(own(content, "scratch", "finetune-full"), base)


def test_a_network_over_time_is_not_searched_on_images(own):
    content = {"encoder.network": {"kind": "choice", "values": ["transformer", "xresnet1d101"]}}
    with pytest.raises(BenchmdError, match=r"cxr has channel, y, x: choose resnet18 or resnet50"):
        own(content, "scratch", "finetune-full", "cxr")


STRENGTH = {"kind": "choice", "values": [0.0, 0.2]}


@pytest.mark.parametrize(
    ("name", "technique", "signal", "message"),
    [
        ("augmentation.wander", "mae", "derm", r"values: .*wander is 0\.2, and derm has the axes"),
        ("augmentation.flip", "mae", "ecg", r"values: .*flip is 0\.2, and ecg has the axes"),
        (
            "augmentation.mixup",
            "scratch",
            "hippocampus",
            r"mixup is 0\.2, and the task on .* a segm",
        ),
        ("freeze", "scratch", "ecg", "cannot vary transfer.freeze: there is no pretrained encoder"),
    ],
)
def test_what_is_not_for_such_records_is_not_searched(own, name, technique, signal, message):
    with pytest.raises(BenchmdError, match=message):
        own({f"transfer.{name}": STRENGTH}, technique, "finetune-full", signal)


@pytest.mark.parametrize("name", ["augmentation.noise", "averaging", "freeze", "class_balance"])
def test_frozen_encoders_search_nothing_of_fine_tuning(own, name):
    for setting, title in (("linear", "linear evaluation"), ("knn", "nearest neighbours")):
        with pytest.raises(BenchmdError, match=f"{title} leaves the encoder as it is"):
            own({f"transfer.{name}": STRENGTH}, "mae", setting, "ecg")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("hidden", {"linear"}),
        ("solver", {"linear"}),
        ("dropout", {"linear", "finetune-full"}),
        ("epochs", {"linear", "finetune-full"}),
        ("neighbours", {"knn"}),
    ],
)
def test_a_mode_searches_only_what_it_reads(own, name, settings):
    values = {"solver": ["adamw", "logistic"], "dropout": [0.1, 0.2]}.get(name, [1, 2])
    content = {f"transfer.{name}": {"kind": "choice", "values": values}}
    for setting in ("linear", "knn", "finetune-full"):
        if setting in settings:
            assert own(content, "mae", setting).parameters[0].values == tuple(values)
            continue
        with pytest.raises(BenchmdError, match=r"does not read it|leaves the encoder as it is"):
            own(content, "mae", setting)


def test_random_kernels_vary_only_their_options(own):
    kernels = "encoder.options.kernels"
    counts = {"kind": "choice", "values": [10, 20], "default": 10}
    for setting in ("linear", "knn-small"):
        assert own({kernels: counts}, RANDOM_KERNELS, setting).start == {kernels: 10}
        with pytest.raises(BenchmdError, match=r"random-kernels reads only encoder\.options"):
            own({"encoder.width": counts}, RANDOM_KERNELS, setting)
    with pytest.raises(BenchmdError, match="leaves the encoder as it is"):
        own({kernels: counts}, "mae", "linear")
    other = {"encoder.options.depth": counts}
    with pytest.raises(BenchmdError, match=r"unknown setting .*'depth'.*biases, kernels"):
        starting_at(own(other, RANDOM_KERNELS, "linear"), protocol(RANDOM_KERNELS, "ecg"))


def test_groups_of_signals_by_axes_and_by_the_beginning_of_a_name(own):
    content = {
        "transfer.epochs": {"kind": "int", "low": 1, "high": 200},
        "signals": {
            "organmnist3d-64": {"transfer.epochs": {"high": 104}},
            "organ*": {"transfer.epochs": {"high": 103}},
            "medmnist-3d": {"transfer.epochs": {"high": 102}},
            "volumes": {"transfer.epochs": {"high": 101}},
        },
    }
    found = {
        name: own(content, "mae", "linear", name).as_dict()["transfer.epochs"]["high"]
        for name in (
            "ecg",
            "ldct",
            "nodulemnist3d",
            "organmnist3d",
            "organmnist3d-64",
            "organamnist",
        )
    }
    assert list(found.values()) == [200, 101, 102, 103, 104, 103]
    for unknown in ("organd*", "volume"):
        with pytest.raises(BenchmdError, match=r"unknown name in .*signals"):
            own(content | {"signals": {unknown: {}}}, "mae", "linear", "ecg")
    with pytest.raises(BenchmdError, match=r"unknown name in .*techniques"):
        own({**content, "techniques": {"ma*": {}}}, "mae", "linear", "ecg")


@pytest.mark.parametrize(
    ("side", "patch", "sizes"),
    [(224, 16, (0, 8, 14, 28, 32)), (64, 8, (0, 32)), (64, 16, (0, 8, 32)), (28, 4, (0, 14, 28))],
)
def test_built_in_spaces_have_the_patches_that_fit_pictures_of_any_size(side, patch, sizes):
    derm = kind_of("ham10000")
    shape = (3, side, side)
    signal = dataclasses.replace(
        derm.signal, name="own", stored_shape=shape, input_shape=shape, patch=(patch, patch)
    )
    space = space_for("mae", "pretrain", dataclasses.replace(derm, name="own", signal=signal))
    (entry,) = (p for p in space.parameters if p.name == PATCH)
    assert entry.values == sizes


def test_a_built_in_space_of_pictures_with_one_patch_size_does_not_vary_it():
    derm = kind_of("ham10000")
    signal = dataclasses.replace(
        derm.signal, name="own", stored_shape=(3, 36, 36), input_shape=(3, 36, 36), patch=(4, 4)
    )
    space = space_for("mae", "pretrain", dataclasses.replace(derm, name="own", signal=signal))
    assert PATCH not in [p.name for p in space.parameters]
