import io
import math
import os
import signal
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from benchmd_ray.console import progress
from benchmd_ray.console.interrupts import SIGNALS, interruptible, stopping
from benchmd_ray.console.progress import duration
from benchmd_ray.errors import Stopped
from benchmd_ray.evaluation.evaluation import CLASSIFICATION
from benchmd_ray.files.integrity import line
from benchmd_ray.service.capacity import Capacity, Need, need_of
from benchmd_ray.service.execution import Execution
from benchmd_ray.service.live import (
    Progressing,
    label,
    longest_first,
    status_text,
    units_done,
)
from benchmd_ray.service.outcome import Failure, PlanOutcome
from benchmd_ray.service.plan import Choice, Item, make_plan
from benchmd_ray.service.steps import Evaluate, pretrain_step, transfer_step
from benchmd_ray.service.work import ItemReport
from benchmd_ray.settings.definition import Settings, updated


@pytest.fixture
def make_item():
    def make(name="a", kind="pretrain", after=None, seconds=1.0, technique="mae", **changes):
        settings = updated(Settings(), changes.pop("settings", {}))
        steps = {
            "pretrain": pretrain_step(technique),
            "transfer": transfer_step(settings),
            "evaluate": Evaluate(),
        }
        made = Item(
            name=name,
            step=steps[kind],
            modality="ecg",
            source="ptb-xl",
            dataset="ptb-xl",
            policy="clean",
            technique=technique,
            setting=kind if kind == "pretrain" else "linear",
            seed=0,
            catalog=None,
            settings=settings,
            after=after,
            cpus=1.0,
            gpus=0.0,
            seconds=seconds,
            disk_bytes=0,
        )
        return replace(made, **changes)

    return make


def test_the_longest_chain_comes_first(make_item):
    items = [
        make_item("short", seconds=1),
        make_item("alone", seconds=8),
        make_item("long", seconds=2),
        make_item("after-short", after="short", seconds=1),
        make_item("after-long", after="long", seconds=5),
        make_item("last", after="after-long", seconds=5),
        make_item("wide", settings={"execution": {"workers": 2}}),
    ]
    names = [item.name for item in longest_first(items)]
    assert names == ["wide", "long", "after-long", "alone", "last", "short", "after-short"]


def test_how_far_a_run_is_stands_in_its_last_whole_line_of_metrics(make_item, tmp_path):
    assert units_done(tmp_path) is None
    lines = "".join(line({"done": step, "loss": 1.5}) for step in range(1, 2001))
    (tmp_path / "metrics.jsonl").write_text(lines + '{"done": 2001, "lo')
    assert units_done(tmp_path) == 2000
    item = make_item(settings={"pretrain": {"steps": 4000}})
    now = time.monotonic()
    assert Progressing(item, tmp_path, now).fraction == 0.5
    assert Progressing(item, tmp_path, now).share == 0.5
    # A run that an earlier process brought to a quarter has done a third of what was left.
    assert Progressing(item, tmp_path, now, before=0.25).share == pytest.approx(1 / 3)
    assert Progressing(make_item(kind="evaluate"), tmp_path, now).fraction is None
    assert Progressing(item, None, now).share == 0


def test_the_status_says_what_runs_and_how_long_the_rest_takes(make_item, tmp_path):
    (tmp_path / "metrics.jsonl").write_text(line({"done": 45}))
    training = make_item(settings={"pretrain": {"steps": 100}})
    scoring = make_item(kind="evaluate", dataset="georgia", seed=2)
    now = time.monotonic()
    running = [Progressing(each, tmp_path, now) for each in (training, scoring)]
    assert status_text(running, 0, 1, 1.234, left=23 * 60) == (
        "2 running (ptb-xl mae pretrain 45%, ptb-xl mae linear seed 2 on georgia), "
        "1 elsewhere, 0 failed, 1.2 runs/min, 23 min left"
    )
    assert status_text(running * 2, 3, 0, 0, left=math.nan).endswith(
        "on georgia, ptb-xl mae pretrain 45%, …), 3 failed, unknown time left"
    )
    assert status_text([], 0, 0, 0, left=5) == "0 running, 0 failed, 5 s left"
    form = replace(CLASSIFICATION.form, evaluation="ood")
    asked = replace(CLASSIFICATION, form=form, scores=lambda predictions, resamples: None)
    late = Progressing(replace(scoring, step=Evaluate(asked)), tmp_path, now - 400)
    assert status_text([running[0], late], 0, 0, 0, left=3) == (
        "2 running (ptb-xl mae pretrain 45%, ptb-xl mae linear seed 2 ood on georgia, 7 min so "
        "far), 0 failed, more than 3 s left"
    )
    assert status_text([late], 0, 0, 0, left=math.nan).endswith("0 failed, unknown time left")
    assert label(training) == "ptb-xl mae pretrain"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (89, "89 s"), (95, "2 min"), (5000, "83 min"), (27_600, "7 h 40 min")],
)
def test_times_are_told_in_fitting_units(seconds, text):
    assert duration(seconds) == text
    assert duration(4 * 86_400) == "4.0 days"


MACHINE = Capacity(cpus=4, gpus=1, all_cpus=4, each=((4, 1),))


def need(cpus=1.0, gpus=0.0, workers=1, spare=False):
    return Need(cpus, gpus, workers, spare)


def test_items_start_side_by_side_while_they_fit():
    assert MACHINE.fits(need(3), [need(1)])
    assert not MACHINE.fits(need(3), [need(2)])
    assert MACHINE.fits(need(1, 0.25), [need(1, 0.25)] * 3)
    assert not MACHINE.fits(need(0, 0.25), [need(0, 0.25)] * 4)
    assert not MACHINE.fits(need(1, 1.0), [need(1, 0.25)])


def test_a_cpu_stays_free_beside_what_streams():
    streaming = need(1, spare=True)
    assert MACHINE.fits(need(2), [streaming])
    assert not MACHINE.fits(need(3), [streaming])
    assert not MACHINE.fits(streaming, [need(3)])
    assert MACHINE.fits(streaming, [streaming, need(1)])  # one is enough for all


def test_what_is_larger_than_the_cpus_kept_busy_runs_alone():
    kept_busy = replace(MACHINE, cpus=2, all_cpus=3)
    large = need(2, workers=2, spare=True)
    assert kept_busy.refusal(large) == ""
    assert kept_busy.fits(large, [])
    assert not kept_busy.fits(large, [need(1)])
    assert not kept_busy.fits(need(1), [large])


def test_what_the_cluster_can_never_hold_is_refused():
    assert MACHINE.refusal(need(3, 1.0, spare=True)) == ""
    assert "needs 5 CPUs at once and the cluster has 4" in MACHINE.refusal(need(4, spare=True))
    assert "needs 2 GPUs and the cluster has 1" in MACHINE.refusal(need(2, 2.0, 2))
    nodes = replace(MACHINE, all_cpus=16, cpus=16, each=((4, 1),) * 4)
    assert "4 on its largest node" in nodes.refusal(need(6))
    assert nodes.refusal(need(12, workers=4, spare=True)) == ""
    assert "and only 4 fit on the cluster's nodes" in nodes.refusal(need(15, workers=5))
    mixed = replace(MACHINE, all_cpus=36, cpus=36, each=((32, 0), (4, 1)))
    assert mixed.refusal(need(4, 1.0)) == mixed.refusal(need(32)) == ""
    assert "it needs room for 1 worker of 8 CPUs and 1 GPU each" in mixed.refusal(need(8, 1.0))


def test_what_may_go_on_with_fewer_workers_is_refused_by_those(make_item):
    elastic = Need(cpus=8, gpus=4, workers=4, spare=True, fewest=1)  # two CPUs and a GPU each
    assert MACHINE.refusal(elastic) == ""
    assert "needs 9 CPUs" in MACHINE.refusal(replace(elastic, fewest=0))
    assert "needs 5 CPUs" in MACHINE.refusal(replace(elastic, fewest=2))
    settings = {"execution": {"workers": 4, "least_workers": 2, "cpus_per_worker": 2}}
    assert need_of(make_item(settings=settings)).fewest == 2


@pytest.mark.parametrize("gpus", [0.0, 1.0])
def test_only_what_trains_on_several_workers_keeps_them(gpus):
    choice = Choice(
        modalities=("derm",),
        techniques=("mae", "imagenet"),
        settings=("linear", "finetune-full"),
        assignments=("execution.workers=2", "execution.cpus_per_worker=3"),
    )
    plan = make_plan(choice, device="cuda" if gpus else "cpu", tflops=1.0)
    several = need(6.0, 2 * gpus, workers=2, spare=True)
    for item in plan.items:
        trains = item.setting == "finetune-full" or item.kind == "pretrain"
        execution, needs = item.settings.execution, need_of(item)
        if (item.kind, item.technique) == ("pretrain", "imagenet"):
            assert needs == need(3.0)  # weights that are taken as they are need no GPU
        elif trains and item.kind != "evaluate":
            assert needs == several
        else:
            assert (execution.workers, needs.workers) == (1, 1)
            assert execution.precision == ("bf16" if gpus else "float32")
            assert 0 < needs.gpus <= 1 if gpus else needs.gpus == 0


def test_an_outcome_is_told_with_the_failures_last(make_item, tmp_path):
    item = make_item("x/pretrain")
    outcome = PlanOutcome(
        folders={},
        done=("a", "b"),
        before=("c",),
        elsewhere=("d",),
        failed=(Failure(item, "the loss became NaN", tmp_path),),
        not_run=(("x/linear", "x/pretrain"),),
        seconds=100,
    )
    assert not outcome.whole
    assert outcome.lines() == [
        "2 done in 2 min, 1 done before, 1 done by another process, 1 failed, "
        "1 not run, as they depend on a failed one",
        "failed: x/pretrain: the loss became NaN",
        f"    history and metrics: {tmp_path}",
        "not run: x/linear (after x/pretrain)",
    ]
    assert PlanOutcome({}).lines() == ["nothing to do"]


def test_a_signal_is_noted_a_second_one_interrupts_and_handlers_come_back():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with stopping() as stop:
        stop.check()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Stopped, match="15"):
            stop.check()
        with pytest.raises(Stopped):
            os.kill(os.getpid(), signal.SIGINT)
    assert {number: signal.getsignal(number) for number in before} == before


def test_sigterm_stops_at_once_what_is_interruptible():
    with pytest.raises(Stopped, match="15"), interruptible():
        os.kill(os.getpid(), signal.SIGTERM)


def test_an_interrupt_is_raised_even_where_it_was_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), interruptible():
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("gpus", "then", "alone"), [(0.25, 1.0, set()), (1.0, 1.0, {"a"})])
def test_what_found_no_memory_in_its_share_of_a_gpu_gets_a_whole_one(make_item, gpus, then, alone):
    settings = {"execution": {"device": "cuda"}}
    item = make_item("a", kind="transfer", gpus=gpus, settings=settings)
    state = object.__new__(Execution)
    state.needs, state.alone, state.reserved = {"a": need_of(item)}, set(), False
    state.tries, state.waiting, state.rank = {}, [], {"a": 0}
    state.observers = SimpleNamespace(again=lambda *_: None)
    state._say = print
    report = ItemReport(error="OutOfMemoryError: none left", again=True, memory=True)
    state._settle(SimpleNamespace(item=item, need=need_of(item)), report, "")
    assert [each.gpus for each in state.waiting] == [then]
    assert (state.needs["a"].gpus, state.alone) == (then, alone)
    assert state.tries == ({} if gpus < 1 else {"a": 1})  # a share that is too small is no try


@pytest.mark.parametrize(("handling", "numbers"), [(stopping, SIGNALS), (interruptible, SIGNALS)])
def test_a_handler_that_was_not_set_from_python_is_left_alone(monkeypatch, handling, numbers):
    """Python knows no object for such a handler: it says None, and cannot set it again."""
    set_here = []

    def install(number, handler):
        if not callable(handler):
            raise TypeError("signal handler must be signal.SIG_IGN, signal.SIG_DFL, or callable")
        set_here.append(number)

    monkeypatch.setattr(signal, "signal", install)
    with handling():
        assert tuple(set_here) == numbers
    assert tuple(set_here) == numbers


def test_without_a_terminal_the_status_comes_as_lines_now_and_then(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(progress.sys, "stderr", out)
    board = progress.board(12, "runs")
    board.show(1, "soon")
    assert out.getvalue() == ""
    board._bar.last_print_t -= 10.1
    board.show(2, "later")
    board.show(3, "last")
    board.close()
    board.close()
    assert out.getvalue().splitlines() == ["2/12 runs, later", "3/12 runs, last"]


def test_on_a_terminal_the_status_stands_beside_a_bar(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    out = Terminal()
    monkeypatch.setattr(progress.sys, "stderr", out)
    board = progress.board(12, "runs")
    board.show(5, "2 running, 23 min left")
    board.close()
    last = out.getvalue().split("\r")[-1]
    assert last.startswith("5/12 runs |")
    assert "2 running, 23 min left" in last
