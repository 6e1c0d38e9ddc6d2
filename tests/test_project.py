"""The project's own files: the wheel, the cluster file, the reference numbers."""

import configparser
import csv
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pandas as pd
import pytest
import yaml

import benchmd_ray
from benchmd_ray.extensions.extras import EXTRAS

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """The sdist, and the wheel that is built of it."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "-o", str(out)]
    subprocess.run([*command, str(ROOT)], check=True, capture_output=True)
    return {"sdist": next(out.glob("*.tar.gz")), "wheel": next(out.glob("*.whl"))}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sdist", "wheel"])
def test_what_is_built_is_installed_and_works_outside_the_checkout(distributions, kind, tmp_path):
    place = tmp_path / "venv"
    venv.create(place)
    (site,) = place.glob("lib/python*/site-packages")
    (site / "tested.pth").write_text(sysconfig.get_path("purelib"))  # what the package needs
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment["PIP_CONFIG_FILE"] = os.devnull

    def run(*command):
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    python = place / "bin/python"
    alone = ("--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed")
    run(python, "-m", "pip", "install", *alone, distributions[kind])
    code = (
        "import benchmd_ray, yaml\n"
        "from benchmd_ray.data.cards import cards, code_classes\n"
        "from benchmd_ray.files.atomic import resource_folder\n"
        "from benchmd_ray.benchmarks.benchmd.published import auroc as paper_auroc\n"
        "print(benchmd_ray.__file__)\n"
        "print(len(cards()), len(code_classes('ptbxl_scp.csv')), len(paper_auroc()))\n"
        "print(sorted(p.stem for p in resource_folder('search_spaces').glob('*.yaml')))\n"
    )
    out = run(python, "-P", "-c", code).splitlines()
    assert out[0].startswith(str(site))
    files = [yaml.safe_load(p.read_text("utf-8")) for p in (ROOT / "data_catalog").glob("*.yaml")]
    cards = sum(len(file["images"]["md5"]) if "images" in file else 1 for file in files)
    codes = len((ROOT / "data_catalog/tables/ptbxl_scp.csv").read_text("utf-8").splitlines()) - 1
    assert out[1] == f"{cards} {codes} 460"
    spaces = ["e-mix", "finetune", "finetune-1d", "knn", "linear", "mae", "random-kernels", "shed"]
    assert out[2] == str(spaces)
    command = place / "bin/benchmd"
    assert "benchmd catalog build" in run(command, "--help")
    assert run(command, "--version").strip().endswith(benchmd_ray.__version__)


@pytest.mark.slow
def test_the_wheel_states_the_extras_and_needs_none_of_them(distributions):
    with zipfile.ZipFile(distributions["wheel"]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        stated = Parser().parsestr(wheel.read(name).decode())
    assert {*stated.get_all("Provides-Extra")} == {*EXTRAS, "all", "docs", "test"}
    optional = {package.lower() for extra in EXTRAS.values() for package in extra.packages}
    for needed in stated.get_all("Requires-Dist"):
        name = re.split(r"[\[<>=; ]", needed.lower())[0]
        assert (name in optional) <= ("extra ==" in needed), needed


LESS = (
    ("steps: 400", "steps: 2"),
    ("epochs: 15", "epochs: 1"),
    # Figures take long, and MedMNIST's command draws all of its report's.
    ("benchmd report", "benchmd report --figures none --resamples 20"),
)
BRIEF = (("--small", "--small --set transfer.epochs=1 --set pretrain.steps=2"), LESS[-1])
"""As little training for the commands with ``--small``."""


def run_docs(section, real_data, tmp_path, less=LESS):
    """Run the commands of a section of the documentation as written, with less to do."""
    mark = f"<!-- commands: {section} -->"
    pages = (path.read_text("utf-8") for path in (ROOT / "docs").glob("*.md"))
    (page,) = (page for page in pages if mark in page)
    text = re.split(r"^## ", page.split(mark)[1], flags=re.M)[0]
    script = "\n".join(re.findall(r"^```\n(.*?)^```", text, re.M | re.S))
    for written, short in less:
        assert written in script
        script = script.replace(written, short)
    assert "DATA=../shared/data" in script or "DATA" not in script
    script = script.replace("DATA=../shared/data", f"DATA={real_data}")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout


@pytest.mark.nightly
@pytest.mark.data
def test_the_documented_commands_on_real_ecgs_run_as_written(real_data, tmp_path):
    run_docs("real-ecg", real_data, tmp_path, BRIEF)
    table = (tmp_path / "ecg/report/auroc.md").read_text("utf-8")
    assert table.count("| MAE |") == table.count("| scratch |") == 3
    assert "protocol shuffled" in (tmp_path / "ecg/report-shuffled/auroc.md").read_text("utf-8")

    run_docs(
        "real-tuning", real_data, tmp_path, (("--evaluations 40", "--evaluations 3"), LESS[-1])
    )
    (trials,) = (tmp_path / "ecg/runs/searches").glob("tune-*/trials.parquet")
    assert len(pd.read_parquet(trials)) == 3
    assert len(pd.read_csv(tmp_path / "ecg/report/searches.csv")) == 1


@pytest.mark.nightly
@pytest.mark.data
def test_the_documented_commands_on_real_chest_x_rays_run_as_written(real_data, tmp_path):
    run_docs("real-cxr", real_data, tmp_path, BRIEF)
    table = (tmp_path / "cxr/report/auroc.md").read_text("utf-8")
    assert table.count("| random kernels |") == table.count("| scratch |") == 2
    assert len(list((tmp_path / "cxr/figures").glob("*.png"))) >= 3


@pytest.mark.nightly
@pytest.mark.data
@pytest.mark.parametrize(
    ("section", "less", "made"),
    [
        ("own-pictures", LESS[-1:], "films-report/report.html"),
        ("own-signal", LESS[-1:], "hearts-report/report.html"),
        ("small-medmnist", LESS[-1:], "breast/report/report.html"),
        ("small-ood", BRIEF, "ood-report/robustness.csv"),
        ("real-masks", (), "comparison/comparison.html"),
    ],
)
def test_the_other_commands_of_the_gallery_run_as_written(section, less, made, real_data, tmp_path):
    run_docs(section, real_data, tmp_path, less)
    assert (tmp_path / made).is_file()


@pytest.mark.nightly
@pytest.mark.data
def test_the_documented_comparison_of_encoders_runs_as_written(real_data, tmp_path):
    run_docs("encoders", real_data, tmp_path, (*LESS, ("--seed 0 --seed 1", "--seed 0")))
    changes = pd.read_csv(tmp_path / "report/changes.csv")
    assert set(changes["baseline"].str.partition(",")[0]) == {"random kernels"}
    assert {"MAE", "scratch"} <= set(changes["technique"])


@pytest.mark.nightly
@pytest.mark.data
def test_the_documented_card_of_an_encoder_of_ones_own_runs_as_written(real_data, tmp_path):
    run_docs("published-encoder", real_data, tmp_path, ())
    rows = pd.read_csv(tmp_path / "report/auroc.csv")
    assert len(rows["technique"].unique()) == 2


@pytest.mark.nightly
@pytest.mark.data
def test_the_documented_command_on_medmnist_leads_from_a_file_to_a_tuned_model(real_data, tmp_path):
    less = (("--small", "--small --set transfer.epochs=1 --trials 2 --seed 0"),)
    out = run_docs("real-medmnist", real_data, tmp_path, less)
    table = pd.read_csv(tmp_path / "breast/scores/medmnist.csv")
    paper = table[(table["protocol"] == "published") & (table["method"] == "resnet18-28")]
    assert paper[["auc", "acc"]].to_numpy().tolist() == [[0.901, 0.863]]  # table 3
    own = pd.read_csv(tmp_path / "breast/scores/runs.csv")
    assert set(own["dataset"]) == {"breastmnist"}
    (trials,) = (tmp_path / "breast/runs/searches").glob("tune-*/trials.parquet")
    searched = pd.read_parquet(trials)
    assert len(searched) == 2
    # Its test split was read after the search.
    assert own["trained"].min() > searched["finished"].max()
    assert f"test split of breastmnist was read by {len(own)} run" in out
    assert (tmp_path / "breast/report/report.html").is_file()


def test_links_of_the_documentation_lead_somewhere():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("s*/README.md")]
    assert len(pages) > 20
    for page in pages:
        text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S)
        for target in re.findall(r"\]\(([^)#\s]+)", text):
            if not target.startswith(("http://", "https://")):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_constraints_pin_every_dependency():
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text("utf-8"), re.M)
    names = {name.lower().replace("_", "-") for name in pinned}
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", "utf-8")
    wanted = [config["options"]["install_requires"], *config["options.extras_require"].values()]
    for line in "\n".join(wanted).split():
        name = re.split(r"[\[>=]", line)[0].lower().replace("_", "-")
        assert name in names | {"benchmd-ray"}, line


def test_the_papers_table_holds_the_published_cells():
    from benchmd_ray.benchmarks.benchmd.published import auroc as paper_auroc

    path = ROOT / "benchmd_ray/benchmarks/benchmd/published.csv"
    rows = list(csv.DictReader(path.read_text("utf-8").splitlines()))
    assert len(rows) == len(paper_auroc()) == 460
    assert paper_auroc()["ptb-xl", "linear", "shed"] == 0.737


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no checkout of git")
def test_the_project_speaks_of_no_machine():
    files = subprocess.run(
        ["git", "ls-files", "*.py", "*.md", "*.ipynb", "*.y*ml", "*.cfg", "*.toml", "Makefile"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "README.md" in files
    for name in files:
        content = (ROOT / name).read_text("utf-8")
        for folder in (ROOT, ROOT.parent / "shared", Path.home()):
            assert f"{folder}/" not in content, name
