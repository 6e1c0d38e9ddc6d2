"""A core installation does its work, and what it lacks is named before the work begins."""

import configparser
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from in_process import build_in_process

from benchmd_ray.cli import main
from benchmd_ray.data import build as building
from benchmd_ray.data.build import build
from benchmd_ray.data.card_files import Files
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.datasets import require_readers
from benchmd_ray.data.datasets.decathlon import LAYOUT
from benchmd_ray.data.raw import Discovery, RawItem
from benchmd_ray.demo import write_ecg, write_eeg
from benchmd_ray.demo.segmentation import write_segmentation
from benchmd_ray.extensions.extras import EXTRAS, MissingExtra, importing, is_installed, require
from benchmd_ray.service.demo import ON_RAY, demo_plan
from benchmd_ray.settings.definition import Settings, updated
from benchmd_ray.tracking.dashboard import Dashboard
from benchmd_ray.training.engine import import_deepspeed, require_engine
from benchmd_ray.training.jobs import PretrainJob
from benchmd_ray.training.launch import launch

ROOT = Path(__file__).resolve().parents[2]
OPTIONAL = tuple(package for extra in EXTRAS.values() for package in extra.packages)
CORE = f"import sys\nsys.modules |= dict.fromkeys({OPTIONAL!r})\n"
"""Makes a process one of a core installation."""


@pytest.fixture
def without(monkeypatch):
    """Makes this process one without some packages."""

    def block(*packages):
        for name in list(sys.modules):
            if name.split(".")[0] in packages:
                monkeypatch.setitem(sys.modules, name, None)
        for name in packages:
            monkeypatch.setitem(sys.modules, name, None)

    return block


@pytest.fixture
def no_ray(monkeypatch):
    """Fails what starts Ray."""
    monkeypatch.setattr(building, "connected", lambda *_, **__: pytest.fail("a build started"))


def test_the_extras_are_those_of_the_installation():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", "utf-8")
    stated = {
        name: [re.split("[<>=]", line)[0] for line in lines.split()]
        for name, lines in config["options.extras_require"].items()
    }
    assert {name: sorted(extra.packages) for name, extra in EXTRAS.items()} == {
        name: sorted(packages)
        for name, packages in stated.items()
        if name not in ("all", "docs", "test")
    }
    assert stated["all"] == [f"benchmd-ray[{','.join(sorted(EXTRAS))}]"]
    assert "benchmd-ray[all,docs]" in stated["test"]
    core = {re.split(r"[\[<>=]", line)[0] for line in config["options"]["install_requires"].split()}
    assert not core & {*OPTIONAL}


def test_a_missing_package_and_a_damaged_one_are_told_apart(without):
    without("mne")
    with (
        pytest.raises(
            MissingExtra,
            match=r"^reading EDF files needs the package mne, which is not installed: "
            r"pip install 'benchmd-ray\[eeg\]'\. Or leave it\.$",
        ),
        importing("mne", "reading EDF files", "Or leave it."),
    ):
        import mne  # noqa: F401
    with (
        pytest.raises(
            MissingExtra,
            match=r"^S3 needs the package obstore, which cannot be imported \(no such lib\)\. "
            r"Install it again: pip install 'benchmd-ray\[cloud\]'\.$",
        ),
        importing("obstore", "S3"),
    ):
        raise ImportError("no such lib")


def test_a_folder_is_not_taken_for_a_package(monkeypatch, tmp_path):
    for name in ("empty_folder", "real_package"):
        (tmp_path / name).mkdir()
    (tmp_path / "real_package/__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert not is_installed("empty_folder")
    assert not is_installed("nothing_of_the_kind")
    assert is_installed("real_package")


def test_several_missing_packages_take_one_command(without):
    require("this", *OPTIONAL)
    without("edfio", "mne", "SimpleITK")
    wanted = r"^this needs the packages mne, edfio and SimpleITK, which are .*\[ct,eeg\]'\.$"
    with pytest.raises(MissingExtra, match=wanted):
        require("this", "mne", "edfio", "obstore", "SimpleITK")


def test_eeg_is_refused_before_a_build_starts(without, no_ray, tmp_path):
    raw = write_eeg(tmp_path, source_records=1, target_records=1, epochs=4)
    without("mne", "edfio")
    for name, folder in raw.items():
        with pytest.raises(
            MissingExtra, match=rf"files of {name} needs .* mne.*benchmd-ray\[eeg\]"
        ):
            build(name, folder, tmp_path / "out" / name, allow_missing=True)
        assert not list((tmp_path / "out" / name).glob("*/*"))


def test_volumes_are_refused_before_a_build_starts(without, no_ray, tmp_path):
    (raw,) = write_segmentation(tmp_path, source_records=3).values()
    without("SimpleITK")
    with pytest.raises(MissingExtra, match=r"files of hippocampus needs .*benchmd-ray\[ct\]"):
        build("hippocampus", raw, tmp_path / "out", allow_missing=True)
    with pytest.raises(MissingExtra, match=r"files of lndb needs the package SimpleITK"):
        require_readers(dataset_card("lndb"), Discovery(LAYOUT, []))
    require_readers(dataset_card("lidc-idri"), Discovery(LAYOUT, []))  # DICOM


@pytest.mark.parametrize(
    ("file", "extra"),
    [("a/b.EDF", "eeg"), ("b.nii.gz", "ct"), ("B.NII", "ct"), ("c.mhd", "ct")],
)
def test_your_own_files_are_refused_by_their_endings(without, file, extra):
    card = replace(dataset_card("georgia"), name="mine", files=Files())
    found = [RawItem(name, name, name, "train") for name in ("x.npy", file)]
    require_readers(card, Discovery("", found))
    without(*OPTIONAL)
    with pytest.raises(MissingExtra, match=rf"files of mine needs .*benchmd-ray\[{extra}\]"):
        require_readers(card, Discovery("", found))
    require_readers(card, Discovery("", found[:1]))


def test_a_node_without_a_reader_ends_a_build_instead_of_a_quarantine(
    without, monkeypatch, tmp_path
):
    raw = write_eeg(tmp_path, source_records=2, target_records=1, epochs=4)["shhs"]
    build_in_process(monkeypatch)
    monkeypatch.setattr(building, "require_readers", lambda *_: None)  # as where it is started
    without("mne")
    with pytest.raises(Exception, match=r"^reading EDF files needs .*benchmd-ray\[eeg\]'\.$"):
        build("shhs", raw, tmp_path / "out", allow_missing=True, max_quarantined=1.0)


def test_several_workers_are_refused_before_they_start(without, ecg_catalogs, tmp_path):
    one = Settings()
    several, split = (
        updated(one, {"execution": change}) for change in ({"workers": 2}, {"zero_stage": 2})
    )
    require_engine(several.execution)
    without("deepspeed")
    require_engine(one.execution)
    require_engine(updated(several, {"execution": {"engine": "auto", "workers": 1}}).execution)
    job = PretrainJob(several, "mae", ecg_catalogs["ptb-xl"].path, tmp_path)
    wanted = r"^training by several workers or with ZeRO needs .*benchmd-ray\[deepspeed\]'\.$"
    with pytest.raises(MissingExtra, match=wanted):
        launch(job)
    with pytest.raises(MissingExtra, match=wanted):
        launch(replace(job, settings=split))
    with pytest.raises(MissingExtra, match=wanted):
        import_deepspeed(__import__("torch").device("cpu"))


def test_the_demo_takes_one_worker_where_several_cannot_be(without, ecg_catalogs):
    def workers():
        return {
            (item.modality, item.technique): item.settings.execution.workers
            for item in demo_plan(list(ecg_catalogs.values()), on_ray=True).items
            if item.setting == "pretrain"
        }

    assert workers()[ON_RAY] == 2
    without("deepspeed")
    assert {*workers().values()} == {1}


def test_commands_name_the_extra(without, tmp_path):
    def said(*arguments):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 1, result.output
        return result.output

    without("wandb", "mne", "SimpleITK")
    assert Dashboard("off").settled().mode == "off"
    refused = said("run", "--catalog", str(tmp_path), "--wandb", "offline")
    assert "pip install 'benchmd-ray[wandb]'" in refused
    refused = said("demo", "--all", "--out", str(tmp_path / "demo"))
    assert "the demo of eeg and ldct needs" in refused
    assert "pip install 'benchmd-ray[ct,eeg]'. Or name others with --modality: ecg," in refused
    assert not (tmp_path / "demo").exists()
    folder = str(tmp_path)
    refused = said("segment", "score", folder, folder, "--task", "spleen", "--out", folder + "/out")
    assert "scoring masks needs the package SimpleITK" in refused


@pytest.mark.slow
def test_no_module_imports_a_package_of_an_extra():
    code = (
        "import benchmd_ray, importlib, pkgutil, sys\n"
        "modules = pkgutil.walk_packages(benchmd_ray.__path__, 'benchmd_ray.')\n"
        "names = [m.name for m in modules if not m.name.endswith('__main__')]\n"
        "[importlib.import_module(name) for name in names]\n"
        f"print(len(names), [name for name in {OPTIONAL!r} if name in sys.modules])\n"
    )
    command = [sys.executable, "-c", code]
    out = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    count, _, imported = out.strip().partition(" ")
    assert int(count) > 400
    assert imported == "[]"


@pytest.mark.slow
def test_a_core_installation_leads_from_ecgs_to_a_report(tmp_path):
    (tmp_path / "core").mkdir()
    (tmp_path / "core/sitecustomize.py").write_text(CORE)  # of all processes, also Ray's
    raw = write_ecg(tmp_path / "raw", source_records=120, target_records=40)
    path = os.pathsep.join([str(tmp_path / "core"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "BENCHMD_CACHE": str(tmp_path / "cache")}

    def benchmd(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "benchmd_ray.cli", *map(str, arguments)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    assert "benchmd catalog build" in benchmd("--help")
    for name in ("ptb-xl", "georgia"):
        benchmd("catalog", "build", name, "--raw", raw[name], "--out", name, "--allow-missing")
    small = ("encoder=tiny", "transfer.epochs=1", "transfer.mode=finetune", "transfer.labels=full")
    sets = [word for one in (*small, "execution.device=cpu") for word in ("--set", one)]
    benchmd("transfer", "--catalog", "ptb-xl", "--target", "georgia", "--store", "runs", *sets)
    benchmd("report", "runs", "--figures", "none", "--resamples", "20")
    (run,) = (tmp_path / "runs").glob("*/run.json")
    versions = json.loads(run.read_text())["versions"]
    assert "torch" in versions
    assert not {*OPTIONAL} & versions.keys()
    assert (tmp_path / "report/report.html").is_file()
