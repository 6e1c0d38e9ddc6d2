"""What commands tell of themselves, of settings and of the machine, for people and programs."""

import json
import math
import re
from pathlib import Path

import click
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from stores import make_transfer, predict_all

from benchmd_ray.cli import main
from benchmd_ray.cli.group import OPTION_SECTIONS, RARE, SECTIONS
from benchmd_ray.cli.options import complete_setting, complete_technique, complete_transfer
from benchmd_ray.cli.report import print_report
from benchmd_ray.console import progress
from benchmd_ray.console.terminal import OutputClosed
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.records import Record
from benchmd_ray.errors import BenchmdError
from benchmd_ray.schema.ranges import Within
from benchmd_ray.service import doctor
from benchmd_ray.settings.definition import load_settings, setting_names
from benchmd_ray.settings.explain import expected, meaning, range_of, source


def run(*arguments, code=0):
    result = CliRunner().invoke(main, [*map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def test_help_lists_every_command_once_with_a_whole_sentence():
    text = run("--help").output
    rows = text[text.index("Start here:") :]
    named = re.findall(r"^  (\w+)  +\S", rows, re.MULTILINE)
    assert sorted(named) == sorted(main.list_commands(click.Context(main)))
    assert {name for names in SECTIONS.values() for name in names} <= set(named)
    sentences = re.split(r"^  \w+  +|^[A-Z][\w ]+:$", rows, flags=re.MULTILINE)
    assert all(each.strip().endswith((".", "?")) for each in sentences if each.strip())


@pytest.mark.parametrize("command", ["run", "tune"])
def test_help_of_many_options_lists_each_once_by_what_it_is_for(command):
    ctx = click.Context(main.get_command(click.Context(main), command), info_name=command)
    text, usual = run(command, "--help-all").output, run(command, "--help").output
    for option in ctx.command.get_params(ctx):
        row = re.compile(rf"^  (-\w, )?{option.opts[-1]}(?![-\w])", re.MULTILINE)
        assert len(row.findall(text)) == 1
        assert len(row.findall(usual)) == (option.name not in RARE)
    assert "--help-all" in usual
    assert len(re.findall(r"^  -", usual, re.MULTILINE)) <= 25
    titles = re.findall(r"^([A-Z][\w& ]+):$", text, re.MULTILINE)
    assert titles[0] == "What"
    assert set(titles[1:]) <= set(OPTION_SECTIONS)
    assert "Weights & Biases" in titles


def test_the_shell_completes_settings_values_and_techniques():
    assert complete_setting(None, None, "transfer.opt")[0] == "transfer.optimiser.lr="
    assert complete_setting(None, None, "transfer.mode=f") == ["transfer.mode=finetune"]
    assert complete_setting(None, None, "encoder=ti") == ["encoder=tiny"]
    assert complete_setting(None, None, "pretrain.steps=") == []
    named = click.Context(main.commands["pretrain"], info_name="pretrain")
    assert "scratch" in complete_technique(click.Context(main, info_name="run"), None, "")
    assert "scratch" not in complete_technique(named, None, "")
    assert complete_transfer(click.Context(main, info_name="tune"), None, "p") == ["pretrain"]


def test_every_setting_is_explained():
    text = run("settings", "--explain").output
    for name in setting_names():
        assert f"\n{name} = " in f"\n{text}"
        assert len(meaning(name)) > 10
        assert expected(name)
        assert source(name)
    assert "[constant | cosine | steps;" in text
    assert "BenchMD v2" in source("pretrain.optimiser.lr")
    assert "of this project" in source("transfer.augmentation.flip")
    with pytest.raises(BenchmdError, match=r"unknown setting 'encoder\.nothing'"):
        meaning("encoder.nothing")


RANGES = {name: within for name in setting_names() if (within := range_of(name))}


@pytest.mark.parametrize("name", RANGES)
def test_what_is_said_to_be_expected_is_what_is_taken(name):
    within = RANGES[name]
    assert expected(name) == str(within)
    for end, is_excluded in ((within.low, within.above), (within.high, within.below)):
        if math.isinf(end):
            continue
        outside = end - 1 if end == within.low else end + 1
        for value in (outside, end) if is_excluded else (outside,):
            with pytest.raises(
                BenchmdError, match=rf"expected ({re.escape(str(within))}|.*64 bits)"
            ):
                load_settings(assignments=[f"{name}={value}"])
        if not is_excluded:
            load_settings(assignments=[f"{name}={end}"])


@pytest.mark.parametrize("name", setting_names())
def test_each_number_states_its_range(name):
    assert expected(name) not in ("a number", "a whole number")


@pytest.mark.parametrize(
    ("within", "text"),
    [
        (Within(1), "1 or more"),
        (Within(0, above=True), "a positive number"),
        (Within(1, 65536), "1 to 65,536"),
        (Within(0, 1, below=True), "a number in [0, 1)"),
        (Within(0, 1, above=True), "a number in (0, 1]"),
        (Within(0, 1, optional=True), "a number in [0, 1] or null"),
    ],
)
def test_ranges_are_said_in_words(within, text):
    assert str(within) == text
    assert within.holds(None) == within.optional
    assert not within.holds(math.nan)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("transfer.lr", "transfer.optimiser.lr"),
        ("pretrain.weight_decay", "pretrain.optimiser.weight_decay"),
        ("workers", "execution.workers"),
        ("transfer.flip", "transfer.augmentation.flip"),
    ],
)
def test_a_setting_without_its_group_is_recognised(name, meant):
    with pytest.raises(BenchmdError, match=f"Did you mean '{meant}'"):
        load_settings(assignments=[f"{name}=1"])


def test_a_list_has_the_score_that_chose_the_epoch(tmp_path):
    made = make_transfer(tmp_path / "runs")
    (row,) = json.loads(run("list", tmp_path / "runs", "--json").output)["runs"]
    lines = [json.loads(line) for line in (made.folder / "metrics.jsonl").read_text().splitlines()]
    best = max(line["validation_auroc"] for line in lines)
    assert row["validation_score"] == pytest.approx(best)
    assert row["metric"] == "auroc"
    assert f"AUROC {best:.3f}" in run("list", tmp_path / "runs").output


def test_programs_get_json():
    names = [each["name"] for each in json.loads(run("bench", "list", "--json").stdout)]
    assert "benchmd" in names
    cards = json.loads(run("catalog", "list", "--json").stdout)
    assert "ptb-xl" in [card["name"] for card in cards]
    card = json.loads(run("catalog", "show", "ptb-xl", "--json").stdout)
    assert card in cards
    plan = json.loads(run("run", "--dry-run", "--json", "--gpus", "8", "--tflops", "60").stdout)
    assert plan["gpus"] == 8
    assert len({item["name"] for item in plan["items"]}) == len(plan["items"]) > 100
    busy = sum(item["seconds"] * item["gpus"] for item in plan["items"]) / 8
    assert plan["seconds"] >= 0.99 * busy
    assert "go with --dry-run" in run("run", "--json", code=2).output


def test_a_report_and_a_catalog_are_told_to_programs(tmp_path, write_catalog):
    made = make_transfer(tmp_path / "runs")
    predict_all(made, {"ptb-xl": {"validation": 80}})
    asked = ("report", tmp_path / "runs", "--out", tmp_path / "out", "--figures", "none")
    found = json.loads(run(*asked, "--json").stdout)
    (row,) = [each for each in found["main"] if each["protocol"] != "paper"]
    scores = pd.read_csv(tmp_path / "out" / "auroc.csv")
    assert row["value"] == pytest.approx(scores["value"].item())
    assert Path(found["page"]).is_file()
    assert found["notes"]
    assert "never ends" in run(*asked, "--json", "--follow", code=2).output
    card = dataset_card("georgia")
    target = [1, *[0] * (len(card.classes) - 1)]
    record = Record("r", "p", "r", np.zeros((12, 5000), np.int16), 0.005, (5000,), target)
    opened = write_catalog(card, {"test": [[record]]})
    assert json.loads(run("catalog", "show", opened.path, "--json").stdout) == opened.manifest


@pytest.mark.parametrize("lines", [0, 4, 1000])
def test_a_report_is_written_whole_when_its_reader_ends(tmp_path, monkeypatch, lines):
    made = make_transfer(tmp_path / "runs")
    predict_all(made, {"ptb-xl": {"validation": 80}})
    printed = []

    def ending(line="", *, err=False):
        if len(printed) >= lines or (lines == 1000 and str(line).startswith("written: ")):
            raise OutputClosed
        printed.append(line)

    monkeypatch.setattr("benchmd_ray.cli.report.echo", ending)
    with pytest.raises(OutputClosed):
        print_report([tmp_path / "runs"], tmp_path / "out", figures="none")
    assert (tmp_path / "out" / "report.html").is_file()


def test_quiet_commands_show_no_progress(monkeypatch):
    found = []
    monkeypatch.setattr(
        "benchmd_ray.settings.explain.explained",
        lambda _: found.extend((progress.progress("a", 3, "b"), progress.board(3, "b"))) or [],
    )
    for quiet in ((), ("--quiet",), ()):
        run("settings", "--explain", *quiet)
    silent = [display._bar is None for display in found]
    assert silent == [False, False, True, True, False, False]


def test_verbose_errors_say_where_in_the_code():
    absent = ("catalog", "verify", "absent")
    assert "Traceback" not in run(*absent, code=1).output
    result = run(*absent, "--verbose", code=1)
    assert "Traceback" in result.output
    assert "error: " in result.output


def test_the_doctor_says_what_is_missing_and_how_to_get_it(monkeypatch):
    found = {each["what"]: each for each in json.loads(run("doctor", "--json").stdout)}
    assert found["torch"]["state"] == "ok"
    torch = __import__("torch").__version__.partition("+")[0]  # then the build, as cu130
    assert found["torch"]["found"].partition("+")[0] == torch
    assert "GiB free" in found["memory"]["found"]

    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda n: None if n in ("ray", "wandb") else real(n))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    result = run("doctor", code=1)
    assert re.search(r"missing  ray +not installed\n +pip install ray", result.output)
    absent = r"note     extra wandb +not installed: wandb\n .*--wandb.*'benchmd-ray\[wandb\]'"
    assert re.search(absent, result.output)
    assert re.search(r"ok       extra eeg +mne \d\S+, edfio \d", result.output)
    assert "nothing answers at RAY_ADDRESS=127.0.0.1:1" in result.output
    assert "missing: ray, Ray cluster" in result.output
    (least, most) = (".".join(map(str, each)) for each in doctor.PYTHONS)
    setup = (Path(__file__).parents[2] / "setup.cfg").read_text("utf-8")
    assert f"python_requires = >={least},<{most}" in setup


def test_the_demo_ends_with_what_to_do_next(tmp_path, monkeypatch):
    store = tmp_path / "demo" / "runs"
    run = make_transfer(store)
    predict_all(run, {"ptb-xl": {"validation": 80}})
    monkeypatch.setattr("benchmd_ray.service.demo.demo", lambda *_, on_ray: not on_ray)
    result = CliRunner().invoke(main, ["demo", "--out", str(tmp_path / "demo"), "-q"])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    place = lines.index(f"open: {tmp_path / 'demo'}/report/report.html")
    assert len(lines) - place <= 9
    assert (tmp_path / "demo" / "report" / "report.html").is_file()
    named = [re.match(r"(?:next:)? +benchmd (\w+)", line) for line in lines[place + 1 :]]
    commands = main.list_commands(click.Context(main))
    assert all(each is not None and each[1] in commands for each in named)


def test_json_has_no_numbers_that_are_none(capsys):
    from benchmd_ray.cli.options import print_json

    print_json({"a": [math.nan, 1.5], "b": (math.inf,), "c": np.float64(2)})
    assert json.loads(capsys.readouterr().out) == {"a": [None, 1.5], "b": [None], "c": 2.0}
