"""Real runs, local and on S3, whose weights are removed once nothing needs them."""

import re
import shutil
from types import SimpleNamespace

import pytest
from stored import runs

from benchmd_ray.console.interrupts import Stopping
from benchmd_ray.console.progress import Display
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import sha256
from benchmd_ray.runs.places import store_folder
from benchmd_ray.runs.predictions import predictions_path
from benchmd_ray.runs.retention import prune
from benchmd_ray.runs.store import read_run
from benchmd_ray.service import execution, keeping
from benchmd_ray.service.dry_run import estimate_plan, status
from benchmd_ray.service.execute import evaluate_run, pretrain_run, transfer_run
from benchmd_ray.service.execution import Execution
from benchmd_ray.service.keeping import pruned_and_needed, release_unneeded
from benchmd_ray.service.outcome import Observers
from benchmd_ray.service.plan import Choice, make_plan
from benchmd_ray.service.schedule import run_plan
from benchmd_ray.service.simulate import Resources
from benchmd_ray.service.status import find_runs
from benchmd_ray.service.steps import Request
from benchmd_ray.settings.definition import ENCODERS, Settings, updated

SMALL = updated(
    Settings(encoder=ENCODERS["tiny"]),
    {
        "pretrain": {"steps": 3, "batch_size": 8},
        "transfer": {"epochs": 3, "batch_size": 16},
        "execution": {"keep": "predictions"},
    },
)
FINETUNE = updated(SMALL, {"transfer": {"mode": "finetune", "labels": "small"}})
ADDRESS = "s3://benchmd-test/runs"


@pytest.fixture
def machine(s3, tmp_path, monkeypatch):
    """The mirror that a machine has of a store on S3."""

    def on(name):
        monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path / name))
        return store_folder(ADDRESS)

    return on


def model(run):
    return run.folder / "model.safetensors"


def test_a_pruned_pretraining_is_done_for_what_is_done(ecg_catalogs, tmp_path):
    source, target = ecg_catalogs["ptb-xl"].path, ecg_catalogs["georgia"].path
    upstream = pretrain_run("mae", source, tmp_path, SMALL)
    run = transfer_run(source, tmp_path, SMALL, upstream=upstream.folder, targets=(target,))
    prune(tmp_path, "predictions")
    assert not model(upstream).exists()
    assert not model(run).exists()
    assert pretrain_run("mae", source, tmp_path, SMALL).finished
    again = transfer_run(source, tmp_path, SMALL, upstream=upstream.folder, targets=(target,))
    assert again.folder == run.folder
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(BenchmdError, match=f"{upstream.folder.name}: its weights were pruned"):
        transfer_run(source, tmp_path, FINETUNE, upstream=upstream.folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    with pytest.raises(BenchmdError, match=f"{run.folder.name}: its weights were pruned"):
        evaluate_run(run, ecg_catalogs["cpsc"].path, SMALL)


def test_two_machines_share_what_is_done_on_s3(ecg_catalogs, machine):
    source, target = ecg_catalogs["ptb-xl"].path, ecg_catalogs["georgia"].path
    upstream = pretrain_run("mae", source, machine("a"), SMALL)
    store = machine("b")
    there = read_run(store / upstream.folder.name)
    assert not model(there).exists()
    run = transfer_run(source, store, SMALL, upstream=there.folder)
    assert model(there).read_bytes() == model(upstream).read_bytes()  # pulled, as it was needed
    on_a = read_run(machine("a") / run.folder.name)
    path = evaluate_run(on_a, target, SMALL)
    assert model(on_a).read_bytes() == model(run).read_bytes()
    found = {each.folder.name: each for each in runs([machine("b")])}
    scored = predictions_path(found[run.folder.name].folder, "georgia")
    assert scored.read_bytes() == path.read_bytes()
    stamp = scored.stat().st_mtime_ns
    again = transfer_run(source, store, SMALL, upstream=there.folder, targets=(target,))
    assert again.folder == run.folder
    assert scored.stat().st_mtime_ns == stamp


def test_a_plan_frees_weights_as_soon_as_nothing_needs_them(ecg_catalogs, tmp_path):
    paths = tuple(ecg_catalogs[name].path for name in ("ptb-xl", "georgia"))
    choice = Choice(
        catalogs=paths,
        techniques=("mae",),
        settings=("linear",),
        seeds=(0,),
        assignments=("encoder=tiny", "pretrain.steps=3", "execution.keep=predictions"),
    )
    pretraining, transfer, evaluation = make_plan(choice, tmp_path, tflops=1.0).items
    source, target = paths
    first = pretrain_run("mae", source, tmp_path, SMALL)
    folders = {pretraining.name: first.folder}
    items = {item.name: item for item in (pretraining, transfer, evaluation)}
    assert release_unneeded(pretraining, items, folders) == 0
    second = transfer_run(source, tmp_path, SMALL, upstream=first.folder)
    folders[transfer.name] = second.folder
    assert release_unneeded(transfer, items, folders) > 0
    assert not model(first).exists()
    assert model(second).exists()
    evaluate_run(second, target, SMALL)
    folders[evaluation.name] = second.folder
    assert release_unneeded(evaluation, items, folders) > 0
    assert not model(second).exists()


def test_a_pretraining_that_seeds_share_stays_until_all_are_done(tmp_path, monkeypatch):
    released = []
    monkeypatch.setattr(keeping, "read_run", lambda folder: folder.name)
    monkeypatch.setattr(keeping, "release", lambda run, keep: released.append((run, keep)) or 1)
    choice = Choice(
        modalities=("derm",),
        techniques=("imagenet",),
        settings=("linear",),
        seeds=(0, 1),
        assignments=("execution.keep=predictions",),
    )
    items = make_plan(choice, None, tflops=1.0).items
    (shared,) = (item for item in items if item.kind == "pretrain")
    folders = {shared.name: tmp_path / "shared"}
    for seed in (0, 1):
        for item in (i for i in items if i is not shared and i.seed == seed):
            folders[item.name] = tmp_path / f"transfer-{seed}"
            release_unneeded(item, {item.name: item for item in items}, folders)
        assert (("shared", "predictions") in released) == (seed == 1)
    assert {name for name, _ in released} == {"shared", "transfer-0", "transfer-1"}


def planned(catalogs, store, *assignments, settings=("linear",)):
    choice = Choice(
        catalogs=catalogs,
        techniques=("mae",),
        settings=settings,
        seeds=(0,),
        assignments=("encoder=tiny", "pretrain.steps=3", "transfer.epochs=2", *assignments),
    )
    return make_plan(choice, store, tflops=1.0)


def done_here(plan, store):
    """Do a plan's items one after the other, without Ray."""
    for item in plan.items:
        before = find_runs(plan.items, store)
        upstream = before[item.after].run if item.after else None
        item.step.run(Request(item.technique, item.catalog, store, item.settings, upstream))


def test_a_plan_names_the_pruned_weights_that_it_needs_before_it_starts(
    ecg_catalogs, tmp_path, monkeypatch
):
    one, two, three = (ecg_catalogs[name].path for name in ("ptb-xl", "georgia", "cpsc"))

    def lacking(plan):
        said = pruned_and_needed(plan.items, find_runs(plan.items, tmp_path), tmp_path)
        assert (f"It would not start: {said}" in "\n".join(dry(plan))) == bool(said)
        return said

    def dry(plan):
        return estimate_plan(plan, Resources(1, 0), status(plan, tmp_path)).lines()

    first, more = planned((one, two), tmp_path), planned((one, two, three), tmp_path)
    assert not lacking(first)
    done_here(first, tmp_path)
    (pretraining,) = tmp_path.glob("pretrain-*")
    (transfer,) = tmp_path.glob("transfer-*")
    assert not lacking(more)
    prune(tmp_path, "predictions")
    assert not lacking(first)  # all of it is done
    said = lacking(more)  # of another target
    assert f"{transfer} (needed by ptb-xl/clean/mae/seed-0/linear/cpsc)" in said
    assert f"{pretraining} (needed by ptb-xl/clean/mae/seed-0/linear)" in said
    other = lacking(planned((one, two), tmp_path, settings=("linear", "knn")))
    assert f"{pretraining} (needed by ptb-xl/clean/mae/seed-0/knn)" in other
    assert transfer.name not in other
    cluster = SimpleNamespace(capacity=SimpleNamespace(gpus=0), close=lambda: None)
    monkeypatch.setattr(execution, "Nodes", lambda *_, **__: cluster)
    with pytest.raises(BenchmdError, match="nothing was started: weights that the rest"):
        Execution(
            more,
            tmp_path,
            weights=None,
            cpus=1,
            say=print,
            observers=Observers([]),
            shown=Display(),
        ).run(Stopping())


def test_what_is_said_of_pruned_weights_helps(ecg_catalogs, tmp_path):
    paths = tuple(ecg_catalogs[name].path for name in ("ptb-xl", "georgia", "cpsc"))
    done_here(planned(paths[:2], tmp_path), tmp_path)
    scores = {p.relative_to(tmp_path): sha256(p) for p in tmp_path.rglob("*.parquet")}
    prune(tmp_path, "predictions")
    more = planned(paths, tmp_path)
    said = pruned_and_needed(more.items, find_runs(more.items, tmp_path), tmp_path)
    for folder in re.findall(r"(\S+) \(needed by", said):
        shutil.rmtree(folder)
    done_here(more, tmp_path)
    again = {p.relative_to(tmp_path): sha256(p) for p in tmp_path.rglob("*.parquet")}
    assert len(again) == len(scores) + 1
    assert again.items() >= scores.items()  # the same runs, once, with the same predictions


@pytest.mark.ray
@pytest.mark.slow
def test_weights_of_what_was_done_before_a_plan_are_freed_too(ecg_catalogs, tmp_path):
    paths = tuple(ecg_catalogs[name].path for name in ("ptb-xl", "georgia", "cpsc"))
    small = ("encoder=tiny", "pretrain.steps=3", "transfer.epochs=2")

    def do(*assignments, catalogs):
        choice = Choice(
            catalogs=catalogs,
            techniques=("scratch",),
            settings=("linear",),
            seeds=(0,),
            assignments=(*small, *assignments),
        )
        plan = make_plan(choice, tmp_path, tflops=1.0)
        return run_plan(plan, tmp_path, say=print, quiet=True)

    assert do(catalogs=paths[:2]).whole
    (held,) = tmp_path.glob("*/model.safetensors")
    assert do(catalogs=paths).whole  # another target: the weights are needed
    assert held.exists()
    outcome = do("execution.keep=predictions", catalogs=paths)
    assert len(outcome.before) == 3
    assert not held.exists()
