"""The method and the network that docs/own_method.md and docs/own_encoder.md add, as written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
import torch
from kinds import SIGNALS

from benchmd_ray.errors import BenchmdError
from benchmd_ray.extensions import plugins
from benchmd_ray.files.atomic import sha256
from benchmd_ray.models.encoder import make_encoder
from benchmd_ray.runs.predictions import predictions_path
from benchmd_ray.service.execute import pretrain_run, transfer_run
from benchmd_ray.settings.definition import ENCODERS, EncoderSettings, Settings, updated
from benchmd_ray.ssl import method_named, technique_named

DOCS = Path(__file__).parents[2] / "docs"
PAGE = "".join((DOCS / name).read_text("utf-8") for name in ("own_method.md", "own_encoder.md"))
SMALL = updated(
    Settings(encoder=ENCODERS["tiny"]),
    {"pretrain": {"steps": 3, "batch_size": 8}, "transfer": {"epochs": 2, "batch_size": 16}},
)
TINY = ["--set", "encoder=tiny", "--set", "pretrain.steps=2", "--set", "transfer.epochs=1"]
TINY += ["--set", "execution.device=cpu"]


def block(language: str, number: int = 0) -> str:
    """A block of code in a language: of the method 0, of the network alone 1."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[number]


def allowed(monkeypatch, *names):
    """Allow plug-ins until the end of the test."""
    monkeypatch.setenv(plugins.ALLOWED, ",".join([*plugins.allowed(), *names]))


@pytest.fixture
def module(tmp_path, monkeypatch) -> Path:
    """The page's module in a folder where it is found."""
    path = tmp_path / "my_methods.py"
    path.write_text(block("python"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_methods", raising=False)
    allowed(monkeypatch, *(f"my_methods:{name}" for name in ("Denoise", "Mixer", "Absent", "Bare")))
    yield path
    sys.modules.pop("my_methods", None)


@pytest.mark.nightly
def test_the_commands_of_the_page_work_as_written(ecg_catalogs, tmp_path):
    (tmp_path / "my_methods.py").write_text(block("python"))
    (tmp_path / "my_networks.py").write_text(block("python", 1))
    (tmp_path / "catalogs").mkdir()
    for name in ("ptb-xl", "georgia"):
        (tmp_path / "catalogs" / name).symlink_to(ecg_catalogs[name].path)
    script, tiny = block("bash", 1) + block("bash"), " ".join(TINY)
    quick = {
        "pretrain": f"{tiny} --set execution.workers=2",
        "transfer": tiny,
        "run": f"{tiny} --tflops 1",
        "report": "--figures none --resamples 20",
    }
    for command, options in quick.items():
        assert f"benchmd {command} " in script
        script = script.replace(f"benchmd {command} ", f"benchmd {command} {options} ")
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "WANDB_MODE": "disabled",
    }
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=tmp_path,
        env={k: v for k, v in environment.items() if k != "RAY_ADDRESS"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (own,) = (tmp_path / "own").glob("transfer-*")
    assert predictions_path(own, "ptb-xl").is_file()
    techniques, workers = set(), Counter()
    for path in (tmp_path / "runs").glob("*/run.json"):
        held = json.loads(path.read_text())
        workers[held["settings"]["execution"]["workers"]] += held["kind"] == "pretrain"
        assert (path.parent / "model.safetensors").is_file()
        techniques.add((held["kind"], held["technique"], held["settings"]["encoder"]["network"]))
    assert techniques == {
        ("pretrain", "my_methods:Denoise", "transformer"),
        ("transfer", "my_methods:Denoise", "transformer"),
        ("transfer", "scratch", "my_methods:Mixer"),
        ("transfer", "scratch", "transformer"),
    }
    assert workers == {1: 1, 2: 1}  # with noise of 0.3, and by the plan without
    assert "my_methods:Denoise" in done.stdout


def test_source_and_options_name_the_run(ecg_catalogs, module, tmp_path):
    source, store = ecg_catalogs["ptb-xl"].path, tmp_path / "runs"
    first = pretrain_run("my_methods:Denoise", source, store, SMALL)
    assert first.folder.name.startswith("pretrain-ecg-my-methods-Denoise-")
    louder = updated(SMALL, {"pretrain": {"options": {"noise": 2.0}}})
    assert pretrain_run("my_methods:Denoise", source, store, louder).folder != first.folder
    assert pretrain_run("my_methods:Denoise", source, store, SMALL).folder == first.folder
    module.write_text(block("python") + "\n# edited\n")
    assert pretrain_run("my_methods:Denoise", source, store, SMALL).folder != first.folder
    run = transfer_run(source, store, SMALL, upstream=first.folder)
    assert run.description["technique"] == "my_methods:Denoise"


def test_a_network_of_ones_own_is_loaded_again_for_its_predictions(ecg_catalogs, module, tmp_path):
    mixing = updated(SMALL, {"encoder": {"network": "my_methods:Mixer"}})
    source, target = (ecg_catalogs[name].path for name in ("ptb-xl", "georgia"))
    upstream = pretrain_run("mae", source, tmp_path / "runs", mixing)
    run = transfer_run(
        source, tmp_path / "runs", mixing, upstream=upstream.folder, targets=(target,)
    )
    assert predictions_path(run.folder, "georgia").is_file()
    assert not run.description["protocol"]
    weights = torch.nn.Module.state_dict(
        make_encoder(SIGNALS["ecg"], updated(EncoderSettings(), vars(mixing.encoder)))
    )
    assert any(name.startswith("blocks.0.across") for name in weights)


def test_an_entry_point_gives_a_name(module, monkeypatch):
    entry = EntryPoint("denoise", "my_methods:Denoise", "benchmd_ray.methods")
    monkeypatch.setattr(plugins, "entry_points", lambda group: EntryPoints([entry]))
    technique = technique_named("denoise")
    assert technique.plugged_in
    assert method_named("denoise").__name__ == "Denoise"
    with pytest.raises(BenchmdError, match="denoise"):
        technique_named("denois")


def test_an_unknown_technique_lists_what_is_valid_where_it_is_asked_for():
    with pytest.raises(BenchmdError) as alone:
        technique_named("scrach")
    assert "'scratch'" not in str(alone.value)
    with pytest.raises(BenchmdError, match="Did you mean 'scratch'") as beside:
        technique_named("scrach", also=("scratch",))
    for name in ("e-mix", "mae", "imagenet+mae", "scratch"):
        assert name in str(beside.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:Thing", "No module named 'no_such_module'.*PYTHONPATH"),
        ("my_methods:Absent", "cannot import the pretraining technique my_methods:Absent"),
        ("my_methods:__doc__", "expected a class or a function"),
        ("maee", "mae"),
    ],
)
def test_what_cannot_be_plugged_in_is_named(module, monkeypatch, name, message):
    allowed(monkeypatch, name)
    with pytest.raises(BenchmdError, match=message):
        technique_named(name)


def test_a_network_that_lacks_something_is_refused(module):
    module.write_text(
        "from torch import nn\nclass Bare(nn.Module):\n    def __init__(self, signal, size):\n"
        "        super().__init__()\n        self.width = size.width\n"
    )
    sys.modules.pop("my_methods", None)
    size = updated(EncoderSettings(), {"network": "my_methods:Bare"})
    with pytest.raises(BenchmdError, match=r"cannot take signals of shape \(batch, 12, 5000\)"):
        make_encoder(SIGNALS["ecg"], size)


def test_options_that_nobody_reads_are_refused(ecg_catalogs, tmp_path):
    options = {"pretrain": {"options": {"noise": 0.1}}}
    with pytest.raises(BenchmdError, match=r"pretrain\.options .* which mae does not read"):
        pretrain_run("mae", ecg_catalogs["ptb-xl"].path, tmp_path, updated(SMALL, options))
    with pytest.raises(BenchmdError, match=r"encoder\.options"):
        updated(Settings(), {"encoder": {"options": {"kernel": 3}}})
    with pytest.raises(BenchmdError, match=r"options\.noise is \[1, 2\], expected a plain value"):
        updated(Settings(), {"pretrain": {"options": {"noise": [1, 2]}}})


def test_code_that_the_user_did_not_name_is_not_imported(module, monkeypatch):
    monkeypatch.setenv(plugins.ALLOWED, "my_methods:Mixer")
    message = r"code that you did not name yourself.*--allow-plugin my_methods:Denoise"
    with pytest.raises(BenchmdError, match=message):
        technique_named("my_methods:Denoise")
    assert "my_methods" not in sys.modules
    plugins.allow("my_methods:Denoise", "no import path")
    assert os.environ[plugins.ALLOWED] == "my_methods:Mixer,my_methods:Denoise"
    assert technique_named("my_methods:Denoise").plugged_in


def test_a_plug_in_of_another_source_is_not_imported(module):
    recorded = plugins.plugin_source("encoder network", "my_methods:Mixer")
    assert recorded == sha256(module)
    sys.modules.pop("my_methods")
    module.write_text(block("python") + "\n# edited\n")
    with pytest.raises(BenchmdError, match="is not the one that the run was made with"):
        plugins.plugin("encoder network", "my_methods:Mixer", recorded=recorded)
    assert "my_methods" not in sys.modules
    assert plugins.plugin("encoder network", "my_methods:Mixer", recorded=sha256(module))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("class Mixer(:\n", r"my_methods\.py fails with SyntaxError: .* Correct it and run again"),
        ("1 / 0\n", r"my_methods\.py fails with ZeroDivisionError: division by zero"),
        ("import nothing_such\n", "No module named 'nothing_such'"),
    ],
)
def test_a_plug_in_that_fails_is_named_with_its_error(module, source, message):
    module.write_text(source)
    with pytest.raises(BenchmdError, match=message):
        plugins.plugin("encoder network", "my_methods:Mixer")


def test_no_package_around_a_plug_in_is_imported_before_its_source_is_compared(
    tmp_path, monkeypatch
):
    package = tmp_path / "around"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import pathlib\npathlib.Path(__file__).with_name('ran').touch()"
    )
    (package / "net.py").write_text("class Net: pass")
    monkeypatch.syspath_prepend(tmp_path)
    allowed(monkeypatch, "around.net:Net")
    with pytest.raises(BenchmdError, match="is not the one that the run was made with"):
        plugins.plugin("encoder network", "around.net:Net", recorded="0" * 64)
    assert not (package / "ran").exists()
    assert plugins.plugin("encoder network", "around.net:Net").__name__ == "Net"
    assert (package / "ran").exists()


def test_a_plug_in_is_named_by_the_module_that_defines_it(module, monkeypatch):
    (module.parent / "around.py").write_text("from my_methods import Mixer\n")
    monkeypatch.delitem(sys.modules, "around", raising=False)
    allowed(monkeypatch, "around:Mixer")
    with pytest.raises(BenchmdError, match=r"is defined in .*my_methods\.py.*name the module that"):
        plugins.plugin("encoder network", "around:Mixer")
