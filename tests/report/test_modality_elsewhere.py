"""Results of a modality that has no card on this machine: its runs say all that there is to say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from click.testing import CliRunner
from stored import runs
from stores import make_pretraining, make_transfer, predict_all

from benchmd_ray.cli import main
from benchmd_ray.data.cards import cards, dataset_card
from benchmd_ray.modality.modalities import Modality, modalities
from benchmd_ray.modality.signals import Signal
from benchmd_ray.modality.tasks import Task
from benchmd_ray.report.analysis import analyse
from benchmd_ray.report.catalogs.describe import list_cards
from benchmd_ray.report.report_figures import draw
from benchmd_ray.report.tables import metrics

SIGNAL = Signal(
    name="wrist",
    axes=("channel", "time"),
    stored_shape=(3, 320),
    input_shape=(3, 320),
    dtype="int16",
    unit="g",
    patch=(16,),
    normaliser="record-range",
    rate=32.0,
)
CLASSES = ("walking", "resting", "cycling")
"""Not in alphabetical order."""
WRIST = Modality("wrist", SIGNAL, Task("single-label", CLASSES, "sessions"), 64)
FIRST = replace(WRIST, name="voice", place=0)
"""Its card puts it before all others."""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Runs of three modalities, two of which have no card here."""
    folder = tmp_path_factory.mktemp("elsewhere") / "runs"
    of_wrist = {"modality": WRIST, "source": "steps"}
    make_pretraining(folder, "mae", **of_wrist)
    for technique in ("scratch", "mae"):
        run = make_transfer(folder, technique, **of_wrist)
        predict_all(run, {"steps": {"validation": 160}, "paces": {"test": 160}})
    predict_all(make_transfer(folder), {"ptb-xl": {"validation": 160}})
    run = make_transfer(folder, modality=FIRST, source="vowels")
    predict_all(run, {"vowels": {"validation": 160}})
    return folder


@pytest.fixture(scope="module")
def analysis(store):
    assert not {"wrist", "voice"} & modalities().keys()
    return analyse(runs([store]), resamples=50)


@pytest.fixture(scope="module")
def figures(analysis):
    return {figure.name: figure for figure in draw(analysis, resamples=50)[0]}


def test_modalities_come_in_the_order_of_the_cards_that_the_runs_hold(analysis, figures):
    assert analysis.modalities == ("voice", "ecg", "wrist")
    found = [name for name in figures if name.startswith("roc-") and "validation" in name]
    assert found == [
        "roc-voice-vowels-vowels-validation",
        "roc-ecg-ptb-xl-ptb-xl-validation",
        "roc-wrist-steps-steps-validation",
    ]


def test_figures_count_what_the_task_scores(figures):
    of_wrist = [
        f for name, f in figures.items() if "wrist-steps" in name and "patients" in f.caption
    ]
    assert len(of_wrist) >= 4
    counted = [figure.caption for figure in of_wrist if "160" in figure.caption]
    assert counted
    assert all("160 sessions of 80 patients" in caption for caption in counted)
    reliability = figures["reliability-wrist-steps-steps-validation"].caption
    assert "sessions per bin" in reliability
    assert "records" not in reliability


def test_classes_keep_the_order_of_the_task(analysis, figures):
    drawn = figures["roc-wrist-steps-paces-test"].figure.axes
    assert tuple(axes.get_title(loc="left").partition(" ")[0] for axes in drawn) == CLASSES
    (classes,) = (c for c in metrics(analysis).columns if c.title == "class")
    places = [classes.order.index(name) for name in ("mean", *CLASSES)]
    assert places == sorted(places)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["list", "report", "compare"])
def test_commands_need_no_card(store, tmp_path, command):
    out = ["--out", str(tmp_path / "out")] if command == "report" else []
    done = CliRunner().invoke(main, [command, str(store), *out])
    assert done.exit_code == 0, done.output
    if command == "list":
        assert "transfer-wrist-mae-linear" in done.output
    if command == "report":
        page = (tmp_path / "out" / "report.html").read_text("utf-8")
        assert "wrist:</b> the records of the table are sessions" in page


def test_a_dataset_with_a_modality_of_its_own_is_listed():
    own = replace(dataset_card("georgia"), name="steps", modality=WRIST)
    first = replace(dataset_card("georgia"), name="vowels", modality=FIRST)
    names = [line.split()[0] for line in list_cards([*cards().values(), own, first])]
    assert names[1] == "vowels"
    assert names.index("lidc-idri") < names.index("steps") < names.index("breastmnist")
