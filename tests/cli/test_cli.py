import json
import re
from dataclasses import replace

import pytest
import yaml
from click.testing import CliRunner
from kinds import MODALITIES

from benchmd_ray.cli import main
from benchmd_ray.errors import BenchmdError
from benchmd_ray.settings.definition import Settings, as_dict, default_settings


def run(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


def commands(group=main, path=()):
    for name, command in group.commands.items():
        yield (*path, name)
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_every_command_explains_itself(path):
    result = run(*path, "--help")
    assert result.exit_code == 0
    assert len(result.output.splitlines()) >= 5


def test_datasets_are_listed_and_shown():
    assert "ptb-xl" in run("catalog", "list").output
    shown = run("catalog", "show", "georgia").output
    for part in ("https://physionet.org", "CC BY 4.0", "Ga_splits.csv"):
        assert part in shown
    assert re.search(r"in all +2,067\n", shown)


def test_figures_of_a_dataset_are_refused(tmp_path):
    result = run("catalog", "show", "georgia", "--figures", tmp_path / "out")
    assert result.exit_code == 1
    assert "figures are drawn of a catalog" in result.output
    assert "benchmd catalog show ./georgia --figures FOLDER" in result.output
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_no_catalog_is_told_from_an_unknown_name(tmp_path):
    assert "holds no catalog" in run("catalog", "show", tmp_path).output
    assert "unknown dataset" in run("catalog", "show", tmp_path / "absent").output


@pytest.mark.parametrize("value", ["images", "=3", ""])
def test_an_option_without_a_value_is_refused(tmp_path, value):
    result = run(
        "catalog", "build", "georgia", "--raw", tmp_path, "--out", tmp_path / "out",
        "--option", value,
    )  # fmt: skip
    assert result.exit_code == 2
    assert "is not of the form NAME=VALUE" in result.output


def test_options_reach_the_build(tmp_path, monkeypatch):
    given = []

    def build(*arguments, **options):
        given.append((arguments, options))
        raise BenchmdError("enough")

    monkeypatch.setattr("benchmd_ray.data.build.build", build)
    result = run(
        "catalog", "build", "georgia", "--raw", tmp_path, "--out", tmp_path / "out",
        "--option", "a=1", "--option", "b=x=y", "--option", "c=",
    )  # fmt: skip
    assert "enough" in result.output
    assert given[0][0] == ("georgia", tmp_path, tmp_path / "out")
    assert given[0][1]["options"] == {"a": "1", "b": "x=y", "c": ""}
    assert given[0][1]["policy"] == "clean"
    assert given[0][1]["retry_quarantined"] is False
    run("catalog", "build", "georgia", "--raw", tmp_path, "--out", "x", "--retry-quarantined")
    assert given[1][1]["retry_quarantined"] is True


def test_an_option_that_the_dataset_does_not_have_is_refused(tmp_path):
    result = run("catalog", "locate", "georgia", "E00001", "--raw", tmp_path, "--option", "size=2")
    assert result.exit_code == 1
    assert "unknown option of georgia 'size'" in result.output


def test_records_are_located(synthetic_raw):
    raw = synthetic_raw["georgia"]
    result = run("catalog", "locate", "georgia", "--raw", raw, "E00002", "E00001")
    assert result.exit_code == 0, result.output
    lines = [line.split("  ") for line in result.output.splitlines()]
    assert [(record, path.endswith(f"{record}.hea")) for record, path in lines] == [
        ("E00002", True),
        ("E00001", True),
    ]
    unknown = run("catalog", "locate", "georgia", "--raw", raw, "E00001", "Q1")
    assert unknown.exit_code == 1
    assert "holds no record 'Q1' of georgia" in unknown.output


def test_an_unknown_dataset_names_the_nearest_and_fails():
    result = run("catalog", "show", "ptbxl")
    assert result.exit_code == 1
    assert "unknown dataset 'ptbxl'. Did you mean 'ptb-xl'?" in result.output


def test_an_unknown_setting_names_the_nearest_and_fails(tmp_path):
    result = run("settings", "--set", "pretrain.step=3")
    assert result.exit_code == 1
    assert "Did you mean 'steps'?" in result.output
    assert "batch_size" in result.output


def test_settings_without_options_are_the_fixed_protocol():
    assert yaml.safe_load(run("settings").output) == as_dict(Settings())


def test_settings_of_a_modality_are_its_fixed_protocol():
    found = yaml.safe_load(run("settings", "--modality", "ldct", "--set", "seed=3").output)
    assert found == as_dict(replace(default_settings(MODALITIES["ldct"]), seed=3))
    assert "Did you mean 'ldct'?" in run("settings", "--modality", "ldtc").output


def test_printed_settings_can_be_read_back(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text(run("settings", "--set", "encoder=tiny", "--set", "seed=7").output)
    again = yaml.safe_load(run("settings", "--settings", path).output)
    assert (again["encoder"]["depth"], again["seed"]) == (2, 7)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(shell):
    assert "_BENCHMD_COMPLETE" in run("completion", shell).output


def test_shell_completion_offers_datasets():
    from benchmd_ray.cli.options import complete_dataset, complete_technique

    assert complete_dataset(None, None, "ge") == ["georgia"]
    assert {"e-mix", "shed", "mae"} <= set(complete_technique(None, None, ""))
    assert complete_technique(None, None, "e-") == ["e-mix"]
    assert "encoder:rad-dino" in complete_technique(None, None, "enc")
    assert complete_technique(None, None, "i") == ["imagenet", "imagenet+mae"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["catalog", "build", "ptb-xl", "--raw", "absent", "--out", "out"], "does not exist"),
        (["catalog", "verify", "absent"], "holds no catalog"),
        (["pretrain", "--catalog", "absent", "--technique", "mea"], "Did you mean 'mae'?"),
        (["pretrain", "--catalog", "absent", "--technique", "mae"], "holds no catalog"),
        (["transfer", "--catalog", "absent"], "holds no catalog"),
        (["evaluate", "absent", "--catalog", "absent"], "is not a run"),
        (["report", "absent"], "has no run"),
    ],
)
def test_a_command_that_cannot_work_says_why_and_exits_with_1(tmp_path, arguments, message):
    with CliRunner().isolated_filesystem(tmp_path):
        result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert "error: " in result.output
    assert message in result.output
    assert "Traceback" not in result.output


def test_catalogs_just_below_a_folder_are_named(tmp_path):
    for name in "edcba":
        (tmp_path / "catalogs" / name).mkdir(parents=True)
        (tmp_path / "catalogs" / name / "manifest.json").write_text("{}")
    (tmp_path / "catalogs" / "aa").mkdir()
    for command in (["catalog", "show"], ["transfer", "--catalog"]):
        said = run(*command, tmp_path / "catalogs").output
        named = re.findall(rf"{tmp_path}/catalogs/(\w+)", " ".join(said.split()))
        assert named == ["a", "b", "c"]


def test_a_folder_of_transformers_is_no_run_and_its_technique_is_named(tmp_path):
    (tmp_path / "vit").mkdir()
    (tmp_path / "vit" / "config.json").write_text('{"model_type": "vit"}')
    said = run("transfer", "--catalog", "absent", "--from", tmp_path / "vit").output
    assert f"did you mean hf:{tmp_path / 'vit'}?" in " ".join(said.split())


@pytest.mark.parametrize("command", ["list", "report", "compare"])
def test_commands_that_read_runs_look_into_the_usual_store(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    assert "runs has no run" in run(command).output


@pytest.mark.slow
@pytest.mark.ray
def test_the_commands_lead_from_raw_files_to_a_table(tmp_path, synthetic_raw, ray_cluster):
    small = ["--set", "encoder=tiny", "--set", "execution.log_every=1"]
    for name in ("ptb-xl", "georgia"):
        built = run(
            "catalog", "build", name, "--raw", synthetic_raw[name], "--out", tmp_path / name,
            "--allow-missing",
        )  # fmt: skip
        assert built.exit_code == 0, built.output
        assert "quarantined: 0" in built.output
        assert run("catalog", "verify", tmp_path / name).exit_code == 0
    source, target, store = tmp_path / "ptb-xl", tmp_path / "georgia", tmp_path / "runs"
    pretrained = run(
        "pretrain", "--catalog", source, "--technique", "shed", "--store", store, *small,
        "--set", "pretrain.steps=2", "--set", "pretrain.batch_size=8",
    )  # fmt: skip
    assert pretrained.exit_code == 0, pretrained.output
    upstream = pretrained.output.splitlines()[-1]
    transferred = run(
        "transfer", "--catalog", source, "--from", upstream, "--store", store, *small,
        "--set", "transfer.epochs=2",
    )  # fmt: skip
    assert transferred.exit_code == 0, transferred.output
    folder = transferred.output.splitlines()[-1]
    evaluated = run("evaluate", folder, "--catalog", target)
    assert evaluated.exit_code == 0, evaluated.output
    quick = ("--figures", "none", "--resamples", 20)
    report = run("report", store, "--out", tmp_path / "report", *quick)
    assert report.exit_code == 0, report.output
    assert {"ptb-xl", "georgia"} <= set(report.output.split()), report.output
    assert "setting linear, technique ShED" in (tmp_path / "report" / "auroc.md").read_text("utf-8")
    assert json.loads((store / upstream.split("/")[-1] / "run.json").read_text())["protocol"] == ""


def test_an_address_with_one_slash_is_no_folder():
    refused = CliRunner().invoke(main, ["list", "s3:/lab/study"])
    assert refused.exit_code == 2
    assert (
        "s3:/lab/study is not an address in an object store: expected s3://BUCKET/PREFIX"
        in refused.output
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("catalog", "biuld"), "No such command 'biuld'. Did you mean 'build'?"),
        (("Reprot",), "No such command 'Reprot'. Did you mean 'report'?"),
        (("run", "--catalog", "x", "--technique", "MAE", "--dry-run"), "Did you mean 'mae'?"),
        (("run", "--catalog", "x", "--technique", "E-Mix", "--dry-run"), "Did you mean 'e-mix'?"),
    ],
)
def test_a_mistyped_name_is_answered_with_the_nearest(arguments, message):
    result = run(*arguments)
    assert result.exit_code != 0
    assert message in result.output
    assert result.output.count("Did you mean") == 1
