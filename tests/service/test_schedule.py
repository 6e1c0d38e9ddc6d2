import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
import shared_ray
import torch
from click.testing import CliRunner
from stored import runs
from waiting import until

from benchmd_ray.cli import main
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.errors import BenchmdError, Busy, NoRoom, Transient
from benchmd_ray.files.atomic import locked, sha256
from benchmd_ray.models.imagenet import StartWeights
from benchmd_ray.runs.history import read_history
from benchmd_ray.runs.predictions import predictions_path
from benchmd_ray.runs.store import read_run
from benchmd_ray.service import execution, nodes, work
from benchmd_ray.service.execute import (
    evaluate_run,
    pretrain_resolved,
    pretrain_run,
    transfer_run,
)
from benchmd_ray.service.live import units_done
from benchmd_ray.service.naming import pretraining
from benchmd_ray.service.plan import Choice, make_plan
from benchmd_ray.service.schedule import run_plan
from benchmd_ray.service.status import find_run
from benchmd_ray.storage.lease import LeaseLost

SMALL = """
encoder: tiny
pretrain: {steps: 6, batch_size: 8}
transfer: {epochs: 2, batch_size: 16}
execution: {device: cpu, log_every: 1, checkpoint_every: 2}
"""
DATASETS = ("ptb-xl", "georgia", "cpsc")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("settings") / "small.yaml"
    path.write_text(SMALL)
    return path


@pytest.fixture(scope="session")
def plan_of(ecg_catalogs, small):
    """Plans on the small catalogs, or on others in the place of some."""

    def make(*assignments, techniques=("scratch", "mae"), settings=("linear",), others=()):
        paths = {name: ecg_catalogs[name].path for name in DATASETS} | dict(others)
        choice = Choice(
            catalogs=tuple(paths.values()),
            techniques=techniques,
            settings=settings,
            file=small,
            assignments=assignments,
        )
        return make_plan(choice, tflops=1.0)

    return make


@pytest.fixture(scope="module")
def reference(ecg_catalogs, small, tmp_path_factory):
    """What single commands make of the same plan: SHA-256 of predictions by run and dataset."""
    from benchmd_ray.service.execute import base_settings
    from benchmd_ray.settings.definition import load_settings

    store = tmp_path_factory.mktemp("single")
    source = ecg_catalogs["ptb-xl"].path
    settings = load_settings(small, base=base_settings(source, "mae"))
    upstream = pretrain_run("mae", source, store, settings)
    for folder in (None, upstream.folder):
        run = transfer_run(source, store, settings, upstream=folder)
        for name in DATASETS[1:]:
            evaluate_run(run, ecg_catalogs[name].path, settings)
    return hashes(store)


def hashes(store):
    return {path.relative_to(store).as_posix(): sha256(path) for path in store.rglob("*.parquet")}


class Log:
    """An observer that writes down what it is told."""

    def __init__(self):
        self.events, self.retries, self.notes, self.closings = [], [], [], 0

    def started(self, item, folder):
        self.events.append(("started", item.name))

    def finished(self, item, folder, node):
        assert folder.is_dir()
        self.events.append(("finished", item.name))

    def failed(self, item, reason, node):
        self.events.append(("failed", item.name))

    def again(self, item, why, reason, node):
        self.retries.append((item.name, why))

    def noted(self, line):
        self.notes.append(line)

    def closed(self):
        self.closings += 1

    def count(self, event):
        return Counter(name for kind, name in self.events if kind == event)


class Broken:
    def __getattr__(self, name):
        raise RuntimeError("broken")


def execute(plan, store, *, said=None, **options):
    log, said = Log(), [] if said is None else said
    observers = (Broken(), log)
    outcome = run_plan(plan, store, say=said.append, observers=observers, quiet=True, **options)
    assert log.closings == 1
    return outcome, log, said


@pytest.mark.ray
@pytest.mark.slow
def test_a_plan_gives_what_single_commands_give_in_order_and_side_by_side(
    plan_of, reference, tmp_path
):
    plan = plan_of()
    outcome, log, said = execute(plan, tmp_path, cpus=3)
    assert outcome.whole
    assert set(outcome.done) == set(outcome.folders) == {item.name for item in plan.items}
    assert said == []
    assert hashes(tmp_path) == reference
    place = {event: number for number, event in enumerate(log.events)}
    together = most = 0
    for event, _ in log.events:
        together += 1 if event == "started" else -1
        most = max(most, together)
    for item in plan.items:
        if item.after:
            assert place["started", item.name] > place["finished", item.after]
    assert most == 3
    # The pretraining has the longest chain behind it.
    assert log.events[0] == ("started", "ptb-xl/clean/mae/seed-0/pretrain")
    for run in runs([tmp_path]):
        assert [line["event"] for line in read_history(run.folder)] == ["started", "finished"]


@pytest.mark.ray
def test_what_is_done_is_never_done_again(plan_of, tmp_path):
    execute(plan_of(techniques=("scratch",)), tmp_path)
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/**/*") if p.is_file()}
    outcome, log, _ = execute(plan_of(techniques=("scratch",)), tmp_path)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/**/*") if p.is_file()} == stamps
    assert (len(outcome.before), outcome.done, log.events) == (3, (), [])
    assert outcome.lines() == ["3 done before"]


def altered(catalog, split, folder):
    """A copy of a catalog of which one shard was changed."""
    copy = open_catalog(shutil.copytree(catalog.path, folder))
    shard = copy.shards(split)[0][0]
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(bytes(content))
    return copy.path


@pytest.mark.ray
def test_a_failure_costs_itself_and_is_not_tried_again_when_that_is_no_use(
    plan_of, ecg_catalogs, tmp_path
):
    damaged = altered(ecg_catalogs["georgia"], "test", tmp_path / "georgia")
    plan = plan_of(others={"georgia": damaged}, techniques=("scratch",))
    outcome, log, said = execute(plan, tmp_path / "runs")
    name = "ptb-xl/clean/scratch/seed-0/linear"
    assert set(outcome.done) == {name, f"{name}/cpsc"}
    (failure,) = outcome.failed
    assert failure.item.name == f"{name}/georgia"
    assert "is damaged: its SHA-256 is not the one" in failure.reason
    assert failure.folder == outcome.folders[name]
    assert log.count("started")[f"{name}/georgia"] == 1
    assert log.count("failed") == {f"{name}/georgia": 1}
    assert any(line.startswith(f"{name}/georgia failed: ") for line in said)
    assert not outcome.whole


@pytest.mark.ray
def test_what_comes_after_a_failure_is_reported_as_not_run(plan_of, ecg_catalogs, tmp_path):
    damaged = altered(ecg_catalogs["ptb-xl"], "train", tmp_path / "ptb-xl")
    outcome, log, _ = execute(plan_of(others={"ptb-xl": damaged}), tmp_path / "runs")
    pretrain = "ptb-xl/clean/mae/seed-0/pretrain"
    scratch = "ptb-xl/clean/scratch/seed-0/linear"
    assert {failure.item.name for failure in outcome.failed} == {pretrain, scratch}
    after = dict(outcome.not_run)
    assert after["ptb-xl/clean/mae/seed-0/linear"] == pretrain
    assert after["ptb-xl/clean/mae/seed-0/linear/cpsc"] == pretrain
    assert after[f"{scratch}/georgia"] == scratch
    assert len(after) == 5
    assert sum(log.count("started").values()) == 2
    lines = outcome.lines()
    assert lines[0] == "2 failed, 5 not run, as they depend on a failed one"
    assert f"not run: {scratch}/georgia (after {scratch})" in lines


def failing_at_first(folder, how, times=1):
    """Executes items, but the first tries of each transfer fail: sent to workers by value."""

    def work(item, store, upstream, name, weights):
        import os
        from pathlib import Path

        from benchmd_ray.service.work import execute_item

        if item.kind == "transfer":
            seen = Path(folder) / item.technique
            tried = len(seen.read_text()) if seen.exists() else 0
            seen.write_text("x" * (tried + 1))
            if tried < times:
                if how == "lost":
                    os._exit(1)
                raise ValueError("by accident\nand more")
        return execute_item(item, store, upstream, name, weights)

    return work


@pytest.mark.ray
@pytest.mark.slow
def test_a_lost_process_and_an_accident_are_tried_again(plan_of, reference, tmp_path, monkeypatch):
    monkeypatch.setattr(execution, "execute_item", failing_at_first(tmp_path, "lost"))
    outcome, log, said = execute(plan_of(), tmp_path / "runs")
    assert outcome.whole
    name = "ptb-xl/clean/scratch/seed-0/linear"
    assert log.count("started")[name] == 2
    assert any("its process was lost" in line and "(1 of 1)" in line for line in said)
    assert hashes(tmp_path / "runs") == reference


def away(times):
    """Executes items, but the storage is away at their first tries."""

    def work(item, store, upstream, name, weights):
        from pathlib import Path

        from benchmd_ray.service.work import ItemReport, execute_item

        tries = Path(store).parent / item.name.replace("/", "-")
        tried = len(tries.read_text()) if tries.exists() else 0
        tries.write_text("x" * (tried + 1))
        if tried < times:
            return ItemReport(error="cannot reach s3://lab", lost=True)
        return execute_item(item, store, upstream, name, weights)

    return work


@pytest.mark.ray
@pytest.mark.slow
def test_an_outage_is_no_try_of_a_run(plan_of, tmp_path, monkeypatch):
    monkeypatch.setattr(execution, "execute_item", away(2))
    monkeypatch.setattr(execution, "LOST_SECONDS", (0.1, 0.2))
    plan = plan_of("execution.retries=0", techniques=("scratch",))
    outcome, log, said = execute(plan, tmp_path / "runs")
    assert outcome.whole
    name = "ptb-xl/clean/scratch/seed-0/linear"
    assert [why for item, why in log.retries if item == name] == ["lost", "lost"]
    assert f"{name}: cannot reach s3://lab; resumes elsewhere or later (1 of 20)" in said


@pytest.mark.ray
def test_an_outage_without_end_is_a_failure(plan_of, tmp_path, monkeypatch):
    monkeypatch.setattr(execution, "execute_item", away(9))
    monkeypatch.setattr(execution, "LOST_SECONDS", (0.1, 0.2))
    monkeypatch.setattr(execution, "LOSSES", 3)
    plan = plan_of(techniques=("scratch",))
    outcome, log, _ = execute(plan, tmp_path / "runs")
    (failure,) = outcome.failed
    assert failure.reason == "cannot reach s3://lab"
    assert log.count("started") == {failure.item.name: 4}


@pytest.mark.ray
def test_after_the_last_try_an_accident_is_a_failure(plan_of, tmp_path, monkeypatch):
    monkeypatch.setattr(execution, "execute_item", failing_at_first(tmp_path, "lost", times=9))
    plan = plan_of("execution.retries=2", techniques=("scratch",))
    outcome, log, _ = execute(plan, tmp_path / "runs")
    name = "ptb-xl/clean/scratch/seed-0/linear"
    assert log.count("started") == {name: 3}
    assert "its process was lost" in outcome.failed[0].reason
    assert len(outcome.not_run) == 2


@pytest.mark.ray
def test_a_task_that_cannot_even_begin_says_why(plan_of, tmp_path, monkeypatch):
    def begin(*_):
        raise ModuleNotFoundError("No module named 'benchmd_ray'")

    monkeypatch.setattr(execution, "execute_item", begin)
    outcome, log, said = execute(plan_of(techniques=("scratch",)), tmp_path / "runs")
    (failure,) = outcome.failed
    assert failure.reason == (
        "its process could not work: ModuleNotFoundError: No module named 'benchmd_ray'"
    )
    assert log.count("started")[failure.item.name] == 2  # another node may have it
    assert said[0].endswith("; trying again (1 of 1)")


@pytest.mark.parametrize(("workers", "reserved"), [(1, False), (2, True)])
def test_what_a_node_without_memory_ended_is_tried_again_alone(monkeypatch, workers, reserved):
    def get(_):
        raise ray.exceptions.OutOfMemoryError("killed")

    monkeypatch.setattr(ray, "get", get)
    state = SimpleNamespace(alone=set(), reserved=False)
    task = SimpleNamespace(item=SimpleNamespace(name="a"), need=SimpleNamespace(workers=workers))
    report, node = execution.Execution._report(state, None, task)
    assert (report.again, report.run, state.alone, state.reserved) == (True, None, {"a"}, reserved)
    assert "ran out of memory" in report.error
    assert node == ""


def without_memory_at_first(folder):
    """Executes items, but the first try of georgia finds no memory, and cpsc takes its time."""

    def work(item, store, upstream, name, weights):
        import time
        from pathlib import Path

        from benchmd_ray.service.work import ItemReport, execute_item

        tried = Path(folder) / "tried"
        if item.dataset == "georgia" and not tried.exists():
            tried.touch()
            return ItemReport(error="OutOfMemoryError: none left", again=True, memory=True)
        time.sleep(item.dataset == "cpsc")
        return execute_item(item, store, upstream, name, weights)

    return work


@pytest.mark.ray
@pytest.mark.slow
def test_what_found_no_memory_runs_alone_the_next_time(plan_of, tmp_path, monkeypatch):
    monkeypatch.setattr(execution, "execute_item", without_memory_at_first(tmp_path))
    outcome, log, _ = execute(plan_of(techniques=("scratch",)), tmp_path / "runs")
    assert outcome.whole
    name = "ptb-xl/clean/scratch/seed-0/linear"
    georgia, cpsc = f"{name}/georgia", f"{name}/cpsc"
    assert set(log.events[2:4]) == {("started", georgia), ("started", cpsc)}
    assert log.events[4:] == [("finished", cpsc), ("started", georgia), ("finished", georgia)]


def on_a_gpu(folder):
    """Executes items as on a GPU, by captured steps that find no memory on a share of it."""

    def work(item, store, upstream, name, weights):
        from pathlib import Path
        from unittest.mock import patch

        import torch

        from benchmd_ray.service.work import execute_item
        from benchmd_ray.training import pretrain, steps

        class Graph:
            def capture(self, work):
                if item.gpus < 1:
                    raise torch.OutOfMemoryError("CUDA out of memory.")
                self.work, self.loss = work, torch.zeros(())
                return self.loss

            def replay(self):
                self.loss.copy_(self.work())

        with (Path(folder) / "gpus").open("a") as lines:
            lines.write(f"{item.kind} {item.gpus}\n")
        captured = steps.Chosen("captured", False, "test")
        with (
            patch.object(pretrain, "choose_step", lambda *_, **__: captured),
            patch.object(steps, "cuda_graphs", lambda: Graph),
            patch.object(steps, "has_share", lambda _: item.gpus < 1),
        ):
            return execute_item(item, store, upstream, name, weights)

    return work


@pytest.mark.ray
@pytest.mark.slow
def test_a_run_without_memory_on_a_share_of_a_gpu_gets_a_whole_one(
    plan_of, reference, tmp_path, monkeypatch
):
    capacity, task = nodes.cluster_capacity, work.task_of

    def with_gpu(*about):
        cpus_only = capacity(*about)
        return replace(cpus_only, gpus=1.0, each=tuple((cpus, 1.0) for cpus, _ in cpus_only.each))

    monkeypatch.setattr(nodes, "cluster_capacity", with_gpu)
    monkeypatch.setattr(execution, "task_of", lambda cpus, _, calls: task(cpus, 0.0, calls))
    monkeypatch.setattr(execution, "execute_item", on_a_gpu(tmp_path))
    plan = plan_of(techniques=("mae",))
    items = (replace(item, gpus=0.25) if item.kind == "pretrain" else item for item in plan.items)
    outcome, log, said = execute(replace(plan, items=tuple(items)), tmp_path / "runs")
    assert outcome.whole
    lines = (tmp_path / "gpus").read_text().splitlines()
    assert lines[:2] == ["pretrain 0.25", "pretrain 1.0"]
    name = "ptb-xl/clean/mae/seed-0/pretrain"
    assert log.retries == [(name, "retried")]
    assert said[0].startswith(f"{name}: OutOfMemoryError: CUDA out of memory.; ")
    assert said[0].endswith("trying again with a whole GPU")
    found = hashes(tmp_path / "runs")
    assert found == {path: reference[path] for path in found}


@pytest.mark.ray
def test_what_can_never_fit_fails_at_once_and_the_rest_goes_on(plan_of, tmp_path, monkeypatch):
    monkeypatch.setattr(nodes, "GROW_SECONDS", 0)  # this Ray will not grow
    wide = plan_of("execution.workers=64", "pretrain.batch_size=64")
    outcome, *_ = execute(wide, tmp_path)
    (failure,) = outcome.failed
    assert failure.item.name == "ptb-xl/clean/mae/seed-0/pretrain"
    assert failure.reason.startswith(
        f"it needs 65 CPUs at once and the cluster has {shared_ray.CPUS}"
    )
    # Linear evaluation has one worker, whatever the settings say of others.
    assert set(outcome.done) == {i.name for i in wide.items if i.technique == "scratch"}
    assert len(outcome.not_run) == 3


@pytest.mark.ray
def test_what_needs_more_than_may_be_kept_busy_runs_alone(plan_of, tmp_path):
    plan = plan_of(techniques=("scratch",))
    streaming = replace(plan, items=tuple(_streaming(item) for item in plan.items))
    outcome, log, _ = execute(streaming, tmp_path, cpus=1)
    assert outcome.whole
    kinds = [kind for kind, _ in log.events]
    assert kinds == ["started", "finished"] * 3


def _streaming(item):
    chosen = replace(item.settings.execution, feed="streaming")
    return replace(item, settings=replace(item.settings, execution=chosen))


def dying_in_training(folder):
    """Executes items, but the first process that waits for several workers dies meanwhile."""

    def work(item, store, upstream, name, weights):
        import os
        import threading
        import time
        from pathlib import Path

        from benchmd_ray.service.work import execute_item

        died, begun = Path(folder) / "died", Path(store) / str(name) / "metrics.jsonl"

        def die():
            while not begun.exists():
                time.sleep(0.05)
            died.touch()
            os._exit(1)

        if item.settings.execution.workers > 1 and not died.exists():
            threading.Thread(target=die, daemon=True).start()
        return execute_item(item, store, upstream, name, weights)

    return work


@pytest.mark.ray
@pytest.mark.slow
def test_two_workers_train_as_a_ray_train_job_that_survives_its_process(
    plan_of, tmp_path, monkeypatch
):
    monkeypatch.setattr(execution, "PATIENCE", 0)
    monkeypatch.setattr(execution, "execute_item", dying_in_training(tmp_path))
    settings = ("linear", "finetune-small")
    plan = plan_of("execution.workers=2", settings=settings, techniques=("scratch",))
    one = [item for item in plan.items if item.setting == "linear" or item.kind == "transfer"]
    plan = replace(plan, items=tuple(one))
    outcome, log, said = execute(plan, tmp_path / "runs", cpus=3)
    assert outcome.whole, said
    name = "ptb-xl/clean/scratch/seed-0/finetune-small"
    # The lost job's reservation was freed: else the second try would wait for ever.
    assert log.count("started")[name] == 2
    (run,) = (run for run in runs([tmp_path / "runs"]) if run.folder == outcome.folders[name])
    assert run.description["settings"]["execution"]["workers"] == 2
    assert predictions_path(run.folder, "ptb-xl").is_file()
    # Both and the CPU that must stay free are all that it may keep busy.
    place = log.events.index(("started", name))
    assert log.events[place + 1 : place + 3] == [("started", name), ("finished", name)]


@contextlib.contextmanager
def elsewhere(run, name, said, end):
    """Hold the run as another process would, until the plan has said that it waits for it."""
    began, told = threading.Event(), f"{name}: another process works on it"

    def work():
        with locked(run.folder / ".lock", "the run"):
            began.set()
            until("word that the plan waits", lambda: any(line.startswith(told) for line in said))
            end()

    with ThreadPoolExecutor() as pool:
        working = pool.submit(work)
        assert began.wait(60)
        yield
        working.result(60)


@pytest.mark.ray
@pytest.mark.slow
def test_what_another_process_works_on_is_waited_for(plan_of, tmp_path):
    plan = plan_of(techniques=("scratch",))
    execute(plan, tmp_path)
    (run,) = runs([tmp_path])
    done = (run.folder / "done.json").read_text()
    (run.folder / "done.json").unlink()  # begun elsewhere and not finished yet
    predictions_path(run.folder, "cpsc").unlink()

    name, said = "ptb-xl/clean/scratch/seed-0/linear", []
    with elsewhere(run, name, said, lambda: (run.folder / "done.json").write_text(done)):
        outcome, *_ = execute(plan, tmp_path, said=said)
    assert outcome.elsewhere == (name, f"{name}/georgia")
    assert set(outcome.done) == {f"{name}/cpsc"}
    assert outcome.whole
    assert [line["event"] for line in read_history(run.folder)] == ["started", "finished"]


@pytest.mark.ray
@pytest.mark.slow
def test_what_another_process_leaves_undone_is_taken_over(plan_of, reference, tmp_path):
    plan = plan_of(techniques=("scratch",))
    execute(plan, tmp_path)
    (run,) = runs([tmp_path])
    for name in ("done.json", "predictions/classification/ptb-xl.parquet"):
        (run.folder / name).unlink()

    name, said = "ptb-xl/clean/scratch/seed-0/linear", []
    with elsewhere(run, name, said, lambda: None):
        outcome, *_ = execute(plan, tmp_path, said=said)
    assert outcome.done == (name,)
    assert hashes(tmp_path).items() <= reference.items()


def test_a_plan_from_cards_is_not_executed(tmp_path):
    plan = make_plan(Choice(modalities=("ecg",), techniques=("scratch",)), tflops=1.0)
    with pytest.raises(BenchmdError, match=r"made from cards, without catalogs of .*ptb-xl"):
        run_plan(plan, tmp_path, say=print)


def test_a_plan_without_what_an_item_comes_after_is_refused(plan_of, tmp_path):
    plan = plan_of()
    cut = replace(plan, items=plan.items[1:])
    with pytest.raises(BenchmdError, match=r"comes after .*, which is not in the plan"):
        run_plan(cut, tmp_path, say=print)


def test_a_worker_does_not_resolve_again_what_the_driver_resolved(plan_of, tmp_path, monkeypatch):
    item = next(item for item in plan_of().items if item.kind == "pretrain")
    progress = find_run(item, tmp_path)

    def refuse(*arguments):
        raise AssertionError("resolved again")

    monkeypatch.setattr("benchmd_ray.service.steps.pretraining", refuse)
    resolved = replace(item, resolved=progress.resolved)
    report = work.execute_item(resolved, str(tmp_path), None, None, None)
    assert report == work.ItemReport(progress.run.folder.name)


def test_a_worker_refuses_weights_other_than_those_of_the_plan(plan_of, tmp_path, monkeypatch):
    item = next(item for item in plan_of().items if item.kind == "pretrain")
    start = StartWeights("vit", "a" * 64, {}, (), item.settings.encoder)
    catalog = open_catalog(item.catalog)
    resolved = pretraining("mae", catalog, item.settings, replace(start, sha256="b" * 64))
    monkeypatch.setattr("benchmd_ray.service.execute.start_weights", lambda *_: start)
    with pytest.raises(BenchmdError, match=r"vit has .* the run was planned with bbb"):
        pretrain_resolved(resolved, tmp_path, None, on_cluster=False)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Busy("held"), work.ItemReport(error="held", busy=True)),
        (BenchmdError("wrong"), work.ItemReport(error="wrong")),
        (NoRoom("full"), work.ItemReport(error="full", lost=True)),
        (Transient("lost"), work.ItemReport(error="lost", again=True)),
        (LeaseLost("taken over"), work.ItemReport(error="taken over", again=True)),
        (ValueError("odd\nmore"), work.ItemReport(error="ValueError: odd", again=True)),
        (
            torch.OutOfMemoryError("none left"),
            work.ItemReport(error="OutOfMemoryError: none left", again=True, memory=True),
        ),
    ],
)
def test_what_goes_wrong_is_reported_with_whether_another_try_may_help(
    plan_of, tmp_path, monkeypatch, error, expected
):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr("benchmd_ray.service.execute.pretrain_resolved", fail)
    (tmp_path / "run").mkdir()
    item = next(item for item in plan_of().items if item.kind == "pretrain")
    assert work.execute_item(item, str(tmp_path), None, "run", None) == expected
    unexpected = isinstance(error, ValueError | torch.OutOfMemoryError)
    assert (tmp_path / "run" / work.FAILURE).is_file() == unexpected
    if unexpected:
        assert "in fail" in (tmp_path / "run" / work.FAILURE).read_text()


@pytest.mark.ray
def test_the_command_says_what_was_done_and_fails_when_something_failed(
    ecg_catalogs, small, tmp_path
):
    damaged = altered(ecg_catalogs["cpsc"], "test", tmp_path / "cpsc")
    paths = (ecg_catalogs["ptb-xl"].path, ecg_catalogs["georgia"].path)
    store = tmp_path / "runs"
    common = [f"--catalog={path}" for path in paths]
    common += ["--technique=scratch", "--setting=linear", "--tflops=1", f"--settings={small}"]
    common.append(f"--store={store}")
    name = "ptb-xl/clean/scratch/seed-0/linear"
    result = CliRunner().invoke(main, ["run", *common, f"--catalog={damaged}"])
    assert result.exit_code == 1, result.output
    assert "2 done in " in result.output
    assert f"\nfailed: {name}/cpsc: " in result.output
    assert "run the same command again to retry the failed runs" in result.output
    result = CliRunner().invoke(main, ["run", *common])
    assert result.exit_code == 0, result.output
    assert f"2 done before\nnext: benchmd report {store}\n" in result.output
    hurt = altered(ecg_catalogs["ptb-xl"], "train", tmp_path / "ptb-xl")
    other = [f"--catalog={hurt}", *common[2:-1], f"--store={tmp_path / 'other'}"]
    result = CliRunner().invoke(main, ["run", *other])
    assert (result.exit_code, "next: benchmd report" in result.output) == (1, False), result.output
    result = CliRunner().invoke(main, ["run", *common, "--wandb=sometimes"])
    assert (result.exit_code, "unknown mode of W&B" in result.output) == (1, True)
    result = CliRunner().invoke(main, ["run"])
    assert (result.exit_code, "name catalogs with --catalog" in result.output) == (2, True)


COMMAND = (sys.executable, "-m", "benchmd_ray.cli", "run", "--tflops", "1")


@pytest.fixture
def command(ecg_catalogs, small, tmp_path):
    """Starts `benchmd run` as a process and a group of its own."""
    started = []

    def start(*more):
        catalogs = [f"--catalog={ecg_catalogs[name].path}" for name in DATASETS]
        arguments = [*COMMAND, *catalogs, "--technique=scratch", "--technique=mae"]
        arguments += ["--setting=linear", f"--settings={small}", f"--store={tmp_path / 'runs'}"]
        environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
        process = subprocess.Popen(
            [*arguments, *more],
            env=environment,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.ray
@pytest.mark.slow
def test_two_commands_on_one_store_do_nothing_twice(command, plan_of, reference, tmp_path):
    store = tmp_path / "runs"
    other = command()
    until("a run", lambda: list(store.glob("*/history.jsonl")) or other.poll() is not None)
    outcome, _, said = execute(plan_of(), store)  # what a command does, in this process
    output, _ = other.communicate(timeout=600)
    assert (other.returncode, outcome.whole) == (0, True), (output, said)
    assert hashes(store) == reference
    for run in runs([store]):
        assert [line["event"] for line in read_history(run.folder)] == ["started", "finished"]


def until_training(store, process, session):
    """Wait until a pretraining has taken some steps in its first, second, … session."""

    def trains():
        assert process.poll() is None, process.communicate()[0]
        for folder in store.glob("pretrain-*"):
            begun = [line for line in read_history(folder) if line["event"] == "started"]
            if len(begun) == session and (units_done(folder) or 0) > begun[-1]["from"] + 5:
                return True
        return False

    until("training", trains)


@pytest.mark.ray
@pytest.mark.slow
def test_a_killed_and_a_stopped_command_go_on_to_the_very_same_predictions(
    command, plan_of, tmp_path
):
    longer, store = "--set=pretrain.steps=300", tmp_path / "runs"
    killed = command(longer)
    until_training(store, killed, 1)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    stopped = command(longer)
    until_training(store, stopped, 2)
    asked = time.monotonic()
    stopped.send_signal(signal.SIGTERM)
    output, _ = stopped.communicate(timeout=300)
    assert stopped.returncode == 143, output
    assert time.monotonic() - asked < 30  # "within seconds", on a busy machine too
    assert "interrupted: the same command resumes where it stopped" in output
    (folder,) = store.glob("pretrain-*")
    assert not (folder / "done.json").exists()
    plan, uninterrupted = plan_of("pretrain.steps=300"), tmp_path / "uninterrupted"
    for last in (store, uninterrupted):
        assert run_plan(plan, last, say=print, quiet=True).whole
    assert hashes(store) == hashes(uninterrupted)
    events = [line["event"] for line in read_history(folder)]
    assert events == ["started", "killed", "started", "failed", "started", "finished"]
    begun = [line["from"] for line in read_history(folder) if line["event"] == "started"]
    assert 0 == begun[0] < begun[1] < begun[2] < 300
    assert json.loads((folder / "done.json").read_text())["model_sha256"]
    assert read_run(folder).finished
    assert Path(folder / "checkpoints").exists() is False
