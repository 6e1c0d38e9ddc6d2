import json

import pytest
import yaml
from click.testing import CliRunner

from benchmd_ray.cli import main
from benchmd_ray.settings import Settings, as_dict


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
    for part in ("https://physionet.org", "CC BY 4.0", "2,067 in all", "Ga_splits.csv"):
        assert part in shown


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


def test_printed_settings_can_be_read_back(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text(run("settings", "--set", "encoder=tiny", "--set", "seed=7").output)
    again = yaml.safe_load(run("settings", "--settings", path).output)
    assert (again["encoder"]["depth"], again["seed"]) == (2, 7)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(shell):
    assert "_BENCHMD_COMPLETE" in run("completion", shell).output


def test_shell_completion_offers_datasets():
    from benchmd_ray.cli import complete_dataset, complete_technique

    assert complete_dataset(None, None, "ge") == ["georgia"]
    assert complete_technique(None, None, "") == ["e-mix", "shed", "mae"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["catalog", "build", "ptb-xl", "--raw", "absent", "--out", "out"], "does not exist"),
        (["catalog", "verify", "absent"], "holds no catalog"),
        (["pretrain", "--catalog", "absent", "--technique", "mea"], "Did you mean 'mae'?"),
        (["pretrain", "--catalog", "absent", "--technique", "mae"], "holds no catalog"),
        (["transfer", "--catalog", "absent"], "holds no catalog"),
        (["evaluate", "absent", "--catalog", "absent"], "is no run"),
        (["report", "absent"], "holds no run"),
    ],
)
def test_a_command_that_cannot_work_says_why_and_exits_with_1(tmp_path, arguments, message):
    with CliRunner().isolated_filesystem(tmp_path):
        result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert "error: " in result.output
    assert message in result.output
    assert "Traceback" not in result.output


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
    report = run("report", store, "--out", tmp_path / "report")
    assert report.exit_code == 0, report.output
    assert {line.split()[0] for line in report.output.splitlines() if "shed" in line} == {
        "ptb-xl",
        "georgia",
    }
    assert "| shed |" in (tmp_path / "report" / "auroc.md").read_text("utf-8")
    assert json.loads((store / upstream.split("/")[-1] / "run.json").read_text())["fixed"] is False
