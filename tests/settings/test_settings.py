import dataclasses
import math
from pathlib import Path

import pytest
import torch
import yaml
from kinds import MODALITIES

from benchmd_ray.benchmarks.medmnist.recipes import baseline_settings, medmnist_settings
from benchmd_ray.data.cards import kind_of
from benchmd_ray.errors import BenchmdError
from benchmd_ray.settings.definition import (
    ENCODERS,
    AugmentationSettings,
    EncoderSettings,
    ExecutionSettings,
    OptimiserSettings,
    Settings,
    TransferSettings,
    as_dict,
    default_settings,
    load_settings,
    updated,
)

PROJECT = Path(__file__).resolve().parents[2]
STRENGTHS = ("flip", "shift", "affine", "blur", "intensity", "noise", "masking", "lead_dropout")
STRENGTHS += ("wander", "mixup", "cutmix")
SEARCH_SPACES = sorted((PROJECT / "search_spaces").rglob("*.yaml"))


def test_defaults_are_the_fixed_protocol():
    settings = as_dict(Settings())
    optimiser = {
        "lr": 0.0001,
        "weight_decay": 0.0001,
        "schedule": "constant",
        "warmup_steps": 0,
        "drops": [0.5, 0.75],
        "drop_factor": 0.1,
    }
    encoder = {
        "width": 256,
        "depth": 12,
        "heads": 8,
        "head_dim": 64,
        "mlp": 512,
        "dropout": 0.1,
        "embedding_dropout": 0.1,
        "qkv_bias": False,
        "final_norm": False,
        "norm_eps": 1e-5,
        "pool": "mean",
    }
    pretrain = {
        "steps": 100_000,
        "batch_size": 64,
        "optimiser": optimiser,
        "mixing_alpha": 1.0,
        "temperature": 0.2,
        "corruption_rate": 0.85,
        "mask_rate": 0.75,
    }
    transfer = {
        "mode": "linear",
        "labels": "full",
        "epochs": 100,
        "batch_size": 64,
        "optimiser": optimiser,
        "augmentation": dict.fromkeys(STRENGTHS, 0.0) | {"shape": False},
        "shuffle_labels": False,
    }
    assert settings["encoder"] | encoder == settings["encoder"]
    assert settings["pretrain"] | pretrain == settings["pretrain"]
    assert settings["transfer"] | transfer == settings["transfer"]
    assert ENCODERS["paper"] == EncoderSettings()


@pytest.mark.parametrize("name", MODALITIES)
def test_the_protocol_of_a_modality_differs_in_its_batch_size_alone(name):
    found, expected = as_dict(default_settings(MODALITIES[name])), as_dict(Settings())
    for stage in ("pretrain", "transfer"):
        expected[stage]["batch_size"] = 32 if name == "ldct" else 64
    assert found == expected
    other = default_settings(MODALITIES[name], "vit-tiny")
    assert as_dict(other) == expected | {"encoder": as_dict(ENCODERS["vit-tiny"])}


def test_label_settings_are_8_64_256_and_all():
    found = {
        labels: TransferSettings(labels=labels).labels_per_class
        for labels in ("small", "medium", "large", "full")
    }
    assert found == {"small": 8, "medium": 64, "large": 256, "full": None}


@pytest.mark.parametrize(
    ("mode", "labels", "name"),
    [
        ("linear", "full", "linear"),
        ("linear", "small", "linear-small"),
        ("finetune", "small", "finetune-small"),
        ("finetune", "full", "finetune-full"),
    ],
)
def test_transfer_setting_is_named_as_in_tables(mode, labels, name):
    assert TransferSettings(mode=mode, labels=labels).setting == name


def test_assignments_win_over_the_file_and_the_file_over_the_defaults(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("pretrain:\n  steps: 50\n  optimiser:\n    lr: 1e-3\nseed: 3\n")
    settings = load_settings(file, ["pretrain.steps=7", "pretrain.optimiser.weight_decay=0"])
    assert settings.pretrain.steps == 7
    assert settings.pretrain.optimiser == OptimiserSettings(lr=1e-3, weight_decay=0.0)
    assert settings.seed == 3
    assert settings.pretrain.batch_size == 64
    assert settings.transfer == TransferSettings()


def test_the_last_assignment_wins():
    assert load_settings(assignments=["seed=1", "seed=2"]).seed == 2


def test_assignments_start_from_the_base():
    base = Settings(seed=9)
    assert load_settings(assignments=["pretrain.steps=5"], base=base).seed == 9


def test_an_empty_file_changes_nothing(tmp_path):
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert load_settings(tmp_path / "empty.yaml") == Settings()


def test_settings_survive_yaml():
    settings = load_settings(assignments=["encoder=tiny", "transfer.mode=finetune", "seed=4"])
    text = yaml.safe_dump(as_dict(settings))
    assert updated(Settings(), yaml.safe_load(text)) == settings


@pytest.mark.parametrize("text", ["1e-4", "1E-4", "0.0001", "1.0e-4"])
def test_numbers_without_a_point_are_numbers(text):
    settings = load_settings(assignments=[f"pretrain.optimiser.lr={text}"])
    assert settings.pretrain.optimiser.lr == 0.0001


@pytest.mark.parametrize("text", ["1e3", "1000"])
def test_a_float_takes_any_notation_of_a_whole_number(text):
    settings = load_settings(assignments=[f"execution.resident_gib={text}"])
    assert settings.execution.resident_gib == 1000.0
    assert isinstance(settings.execution.resident_gib, float)


def test_a_whole_float_is_an_int():
    for text in ("100.0", "1e2"):
        steps = load_settings(assignments=[f"pretrain.steps={text}"]).pretrain.steps
        assert (steps, type(steps)) == (100, int)


def test_an_encoder_name_stands_for_its_sizes_and_can_be_changed_after():
    settings = load_settings(assignments=["encoder=tiny", "encoder.dropout=0"])
    assert settings.encoder == EncoderSettings(
        width=32, depth=2, heads=2, head_dim=16, mlp=64, dropout=0.0, embedding_dropout=0.1
    )


def test_an_encoder_name_in_a_file(tmp_path):
    (tmp_path / "s.yaml").write_text("encoder: large\n")
    assert load_settings(tmp_path / "s.yaml").encoder.width == 1024


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        (
            "pretrain.stepz=3",
            r"unknown setting in 'pretrain' 'stepz'\. Did you mean 'steps'\? Valid: .*batch_size",
        ),
        ("pretrian.steps=3", r"unknown setting 'pretrian'\. Did you mean 'pretrain'\? Valid: enc"),
        (
            "pretrain.optimiser.learning=1",
            r"in 'pretrain\.optimiser' 'learning'.*Valid: drop.*lr, sch",
        ),
        ("encoder=tini", r"unknown encoder size 'tini'\. Did you mean 'tiny'\?.*base, large"),
        (
            "transfer.mode=finetun",
            r"transfer\.mode.*'finetun'.*'finetune'.*Valid: finetune, knn",
        ),
        ("execution.zero_stage=4", r"execution\.zero_stage is 4, expected 0 to 3"),
        ("execution.zero_stage=true", r"execution\.zero_stage is True, expected a whole number"),
        ("pretrain.steps=1.5", r"setting pretrain\.steps is 1\.5, expected a whole number"),
        ("pretrain.steps=many", r"setting pretrain\.steps is 'many', expected a whole number"),
        ("pretrain.steps=true", r"setting pretrain\.steps is True, expected a whole number"),
        ("pretrain.steps=", r"setting pretrain\.steps is None, expected a whole number"),
        ("pretrain.temperature=hot", r"pretrain\.temperature is 'hot', expected a number"),
        ("pretrain.temperature=true", r"pretrain\.temperature is True, expected a number"),
        ("transfer.shuffle_labels=1", r"shuffle_labels is 1, expected true or false"),
        ("pretrain=3", r"setting pretrain is 3, expected a group with the keys steps, batch_size"),
        ("encoder=3", r"setting encoder is 3, expected a group with the keys width"),
        ("pretrain.steps", r"--set 'pretrain\.steps' is not of the form a\.b=value"),
        ("=3", r"--set '=3' is not of the form a\.b=value"),
        (
            "pretrain={steps: 1, steps: 2}",
            r"value of --set .*the key 'steps' appears twice",
        ),
        ("encoder.pool=max", r"encoder\.pool.*'max'.*Valid: cls, mean"),
    ],
)
def test_a_wrong_assignment_says_what_is_valid(assignment, message):
    with pytest.raises(BenchmdError, match=message):
        load_settings(assignments=[assignment])


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("encoder.width=0", r"encoder\.width is 0, expected 1 to 65,536"),
        ("encoder.dropout=1", r"encoder\.dropout is 1\.0, expected a number in \[0, 1\)"),
        ("encoder.embedding_dropout=-0.1", r"embedding_dropout is -0\.1"),
        ("encoder.norm_eps=0", r"encoder\.norm_eps is 0\.0, expected a number in \(0, 1\)"),
        ("pretrain.steps=0", r"pretrain\.steps is 0, expected 1 or more"),
        ("pretrain.batch_size=1", r"pretrain\.batch_size is 1, expected 2 or more"),
        ("pretrain.mask_rate=0", r"pretrain\.mask_rate is 0\.0, expected a number in \(0, 1\)"),
        ("pretrain.corruption_rate=1", r"pretrain\.corruption_rate is 1\.0"),
        ("pretrain.temperature=0", r"pretrain\.temperature is 0\.0, expected a positive number"),
        ("pretrain.mixing_alpha=-1", r"pretrain\.mixing_alpha is -1\.0"),
        ("pretrain.optimiser.lr=0", r"optimiser\.lr is 0\.0, expected a positive number"),
        ("pretrain.optimiser.lr=.nan", r"optimiser\.lr is nan"),
        ("pretrain.optimiser.lr=.inf", r"optimiser\.lr is inf"),
        ("transfer.class_balance=2", r"class_balance is 2\.0, expected a number in \[0, 1\]"),
        ("transfer.stochastic_depth=1", r"stochastic_depth is 1\.0, expected a number in \[0, 1\)"),
        ("transfer.freeze=1", r"transfer\.freeze is 1\.0, expected a number in \[0, 1\)"),
        ("transfer.averaging=1", r"transfer\.averaging is 1\.0, expected a number in \[0, 1\)"),
        ("transfer.augmentation.flip=1.5", r"augmentation\.flip is 1\.5, expected a number in \[0"),
        ("transfer.augmentation.noise=-1", r"transfer\.augmentation\.noise is -1\.0"),
        ("transfer.augmentation.shape=0.5", r"augmentation\.shape is 0\.5, expected true or false"),
        ("transfer.augmentation=flip", r"is 'flip', expected a group with the keys flip, shift, "),
        ("transfer.optimiser.weight_decay=-1", r"weight_decay is -1\.0, expected 0 or more"),
        ("transfer.optimiser.warmup_steps=-1", r"warmup_steps is -1, expected 0 or more"),
        ("transfer.epochs=0", r"transfer\.epochs is 0, expected 1 or more"),
        ("transfer.batch_size=0", r"transfer\.batch_size is 0, expected 1 or more"),
        ("execution.workers=0", r"execution\.workers is 0, expected 1 or more"),
        ("execution.checkpoint_every=0", r"execution\.checkpoint_every is 0"),
    ],
)
def test_a_value_out_of_range_is_refused(assignment, message):
    with pytest.raises(BenchmdError, match=message):
        load_settings(assignments=[assignment])


def test_plain_torch_is_refused_where_it_cannot_serve():
    with pytest.raises(BenchmdError, match=r"execution\.engine .*workers is above 1"):
        ExecutionSettings(engine="torch", workers=2)
    with pytest.raises(BenchmdError, match=r"zero_stage .* 0 with the torch engine"):
        ExecutionSettings(engine="torch", zero_stage=1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- 1\n- 2\n", r"is a list, expected keys and values"),
        ("pretrain: [\n", r"cannot read the settings file"),
        (
            "seed: 1\npretrain:\n  steps: 1\n  batch_size: 8\n  steps: 2\n",
            r"cannot read the settings file .*wrong\.yaml: the key 'steps' appears twice(.|\n)*"
            r"line 5, column 3",
        ),
        ("seed: 1\n'seed': 1\n", r"the key 'seed' appears twice"),
        ("seed: !!python/object/apply:os.getpid []\n", r"cannot read the settings file"),
        ("pretrain:\n  stepz: 1\n", r"'stepz'\. Did you mean 'steps'"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, content, message):
    file = tmp_path / "wrong.yaml"
    file.write_text(content)
    with pytest.raises(BenchmdError, match=message):
        load_settings(file)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(BenchmdError, match=r"cannot read the settings file .*none\.yaml"):
        load_settings(tmp_path / "none.yaml")


@pytest.mark.parametrize("path", SEARCH_SPACES, ids=lambda path: path.stem)
def test_every_search_space_loads(path):
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    assert content


def test_a_constant_schedule_holds_the_rate():
    optimiser = OptimiserSettings(lr=0.3)
    assert {optimiser.lr_at(step, 50) for step in range(50)} == {0.3}


@pytest.mark.parametrize("schedule", ["constant", "cosine", "steps"])
def test_the_warm_up_is_linear_and_reaches_the_rate(schedule):
    optimiser = OptimiserSettings(lr=0.8, schedule=schedule, warmup_steps=4)
    found = [optimiser.lr_at(step, 100) for step in range(5)]
    assert found == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8])


def test_the_cosine_goes_from_the_rate_through_its_half_to_zero():
    optimiser = OptimiserSettings(lr=2.0, schedule="cosine", warmup_steps=10)
    total = 110
    assert optimiser.lr_at(10, total) == pytest.approx(2.0)
    assert optimiser.lr_at(60, total) == pytest.approx(1.0)
    assert optimiser.lr_at(35, total) == pytest.approx(1 + math.sqrt(0.5))
    assert optimiser.lr_at(total, total) == pytest.approx(0.0)
    rates = [optimiser.lr_at(step, total) for step in range(10, total)]
    assert rates == sorted(rates, reverse=True)
    assert 0 < rates[-1] < 0.001


def test_a_warm_up_longer_than_the_run_only_rises():
    optimiser = OptimiserSettings(lr=1.0, schedule="cosine", warmup_steps=100)
    assert optimiser.lr_at(9, 10) == pytest.approx(0.1)


@pytest.mark.parametrize("steps", [1, 5, 613])
@pytest.mark.parametrize(("epochs", "drops"), [(100, (50, 75)), (10, (3, 7)), (30, (10, 20))])
def test_a_rate_that_drops_in_steps_is_pytorchs_that_drops_after_epochs(steps, epochs, drops):
    parameter = torch.nn.Parameter(torch.zeros(()))
    optimiser = torch.optim.Adam([parameter], lr=0.001)
    expected = torch.optim.lr_scheduler.MultiStepLR(optimiser, drops, gamma=0.1)
    shares = [epoch / epochs for epoch in drops]
    settings = OptimiserSettings(lr=0.001, schedule="steps", drops=shares)
    for epoch in range(epochs):
        rates = [settings.lr_at(epoch * steps + n, epochs * steps) for n in range(steps)]
        assert rates == pytest.approx([optimiser.param_groups[0]["lr"]] * steps, rel=1e-12)
        optimiser.step()
        expected.step()


@pytest.mark.parametrize("text", ["[0.5, 0.75]", "[0.5]", "[]", "[1e-1, 0.9]"])
def test_drops_survive_assignment_and_yaml(text):
    settings = load_settings(assignments=[f"transfer.optimiser.drops={text}"])
    drops = settings.transfer.optimiser.drops
    assert all(isinstance(share, float) for share in drops)
    held = yaml.safe_load(yaml.safe_dump(as_dict(settings)))
    assert updated(Settings(), held) == settings


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("drops=0.5", r"drops is 0\.5, expected a list"),
        ("drops=[a]", "drops is 'a', expected a number"),
        ("drops=[0.5, 0.5]", "expected ascending numbers between 0 and 1"),
        ("drops=[0.5, 1.0]", "expected ascending numbers between 0 and 1"),
        ("drops=[0.0]", "expected ascending numbers between 0 and 1"),
        ("drop_factor=0", r"drop_factor is 0\.0, expected a number in \(0, 1\]"),
        ("schedule=step", "Did you mean 'steps'"),
    ],
)
def test_drops_that_make_no_sense_are_refused(assignment, message):
    with pytest.raises(BenchmdError, match=message):
        load_settings(assignments=[f"transfer.optimiser.{assignment}"])


IMAGES = dataclasses.replace(MODALITIES["fundus"], name="breastmnist")
VOLUMES = dataclasses.replace(MODALITIES["ldct"], name="organmnist3d")


@pytest.mark.parametrize(
    ("modality", "network", "batch", "shape"),
    [
        (IMAGES, "resnet50", 128, False),
        (VOLUMES, "resnet18-acs", 32, False),
        (kind_of("adrenalmnist3d"), "resnet18-3d", 32, True),
        (kind_of("vesselmnist3d-64"), "resnet18-2.5d", 32, True),
    ],
)
def test_the_recipe_of_medmnist(modality, network, batch, shape):
    settings = medmnist_settings(modality, network)
    assert settings.encoder == EncoderSettings(network=network)
    transfer, optimiser = settings.transfer, settings.transfer.optimiser
    assert (transfer.setting, transfer.epochs) == ("finetune-full", 100)
    assert transfer.batch_size == batch
    assert transfer.augmentation == AugmentationSettings(shape=shape)
    assert optimiser == OptimiserSettings(lr=1e-3, weight_decay=0.0, schedule="steps")
    rates = [optimiser.lr_at(epoch, 100) for epoch in (0, 49, 50, 74, 75, 99)]
    assert rates == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4, 1e-5, 1e-5])
    assert medmnist_settings(modality, network, 224).encoder.options == {"resize": 224}


@pytest.mark.parametrize(
    ("dataset", "name", "network", "options"),
    [
        ("breastmnist", "resnet18", "resnet18", {}),
        ("breastmnist", "resnet18-28", "resnet18", {}),  # as the published results are named
        ("breastmnist", "resnet18-224", "resnet18", {"resize": 224}),
        ("breastmnist-224", "resnet18-224", "resnet18", {}),
        ("organmnist3d-64", "resnet50-2.5d-64", "resnet50-2.5d", {}),
    ],
)
def test_a_baseline_resizes_no_images_that_have_its_extent(dataset, name, network, options):
    encoder = baseline_settings(kind_of(dataset), name).encoder
    assert (encoder.network, encoder.options) == (network, options)
