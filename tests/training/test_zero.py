"""Several workers, ZeRO stages and gradient accumulation compute what one process does.

Run as a script, this file is the workers of `phases`, which are forked one phase after the other.
"""

import importlib
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from graphs import Again, Refused
from safetensors.torch import load_file

from benchmd_ray.data.batches import Worker
from benchmd_ray.files.atomic import sha256
from benchmd_ray.runs.files import MODEL
from benchmd_ray.settings.definition import load_settings
from benchmd_ray.training import engine, steps
from benchmd_ray.training import pretrain as pretraining
from benchmd_ray.training import transfer as transferring
from benchmd_ray.training.checkpoints import latest_checkpoint
from benchmd_ray.training.jobs import PretrainJob, TransferJob
from benchmd_ray.training.pretrain import pretrain
from benchmd_ray.training.reporter import RunReporter, SilentReporter, read_metrics
from benchmd_ray.training.transfer import transfer

pytestmark = pytest.mark.slow

SMALL = (
    "encoder=tiny",
    "encoder.dropout=0",
    "encoder.embedding_dropout=0",
    "execution.log_every=1",
    "execution.device=cpu",
    "pretrain.batch_size=8",
    "pretrain.steps=5",
    "pretrain.optimiser.lr=1e-3",
    "transfer.mode=finetune",
    "transfer.batch_size=15",
    "transfer.epochs=2",
    "transfer.layer_decay=0.7",
    "transfer.optimiser.lr=1e-3",
    "execution.checkpoint_seconds=0",
)
BEGUN = "begun"
"""A job that 2 workers of stage 3 leave after 3 steps, for others to resume with."""
CAPTURED, REFUSED = "captured", "refused"
"""Ends of the names of jobs whose passes are captured, or would be if the second worker could."""


def at(workers, stage, parts=1):
    engine = "torch" if (workers, stage) == (1, 0) else "deepspeed"
    return [
        f"execution.workers={workers}",
        f"execution.zero_stage={stage}",
        f"execution.accumulation={parts}",
        f"execution.engine={engine}",
    ]


def phases():
    """Who runs what."""
    half = ["until=3"]
    two = [(f"mae-2-0-{k}", at(2, 0, k), "mae") for k in (1, 2)]
    two += [("finetune-2-0-1", at(2, 0), None)]
    two += [(f"{name}-{CAPTURED}", *rest) for name, *rest in two]
    two += [(f"mae-2-0-1-{REFUSED}", at(2, 0), "mae")]  # ZeRO changes how its process rounds
    two += [(f"mae-2-{s}-{k}", at(2, s, k), "mae") for s in range(1, 4) for k in (1, 2)]
    two += [("e-mix-2-3", at(2, 3), "e-mix"), ("finetune-2-2-3", at(2, 2, 3), None)]
    two += [(BEGUN, at(2, 3) + half, "mae"), ("goes-on-2-3", at(2, 3), "mae")]
    four = [(f"mae-4-{s}-{k}", at(4, s, k), "mae") for s, k in ((0, 1), (1, 2), (2, 1), (3, 2))]
    four += [("shed-4-1-2", at(4, 1, 2), "shed"), ("finetune-4-3-1", at(4, 3), None)]
    four += [("goes-on-4-1", at(4, 1), "mae")]
    one = [(technique, at(1, 0), technique) for technique in ("mae", "shed", "e-mix")]
    one += [("finetune", at(1, 0), None), ("goes-on-1-0", at(1, 0), "mae")]
    one += [("mae-1-0-4", at(1, 0, 4), "mae"), ("finetune-1-0-4", at(1, 0, 4), None)]
    one += [("mae-1-3-1", at(1, 3), "mae")]
    return [(2, two), (4, four), (1, one)]


def work(rank, world, port, jobs, catalog, root):
    """One worker."""
    if world > 1 or any("deepspeed" in line for _, lines, _ in jobs for line in lines):
        torch.distributed.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world
        )
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    configured = engine.deepspeed_config

    def splitting(*settings):
        config = configured(*settings)  # else these small parameters stay whole and together
        small = {"stage3_param_persistence_threshold": 0, "sub_group_size": 5000}
        config["zero_optimization"] |= small
        return config

    engine.deepspeed_config = splitting
    for name, lines, technique in jobs:
        folder = root / name
        if rank == 0:
            if name.startswith("goes-on"):
                shutil.copytree(root / BEGUN, folder)
            folder.mkdir(exist_ok=True)
        execute_as_named(name, rank)
        engine.barrier()
        until = 3 if "until=3" in lines else None
        settings = load_settings(assignments=[*SMALL, *(x for x in lines if "until" not in x)])
        reporter = RunReporter(folder, silent=True) if rank == 0 else SilentReporter()
        if technique:
            job = PretrainJob(settings, technique, catalog, folder, until)
            pretrain(job, Worker(rank, world), reporter)
        else:
            transfer(TransferJob(settings, catalog, folder), Worker(rank, world), reporter)
        assert bool(Again.captures) == name.endswith(CAPTURED) or REFUSED in name


def execute_as_named(name, rank):
    """Choose how the steps of a job are executed by the end of its name."""
    Again.captures, choose = 0, steps.choose_step
    if name.endswith((CAPTURED, REFUSED)):
        graph = Refused if name.endswith(REFUSED) and rank else Again
        steps.cuda_graphs = lambda: graph

        def choose(*_, **__):
            return steps.Chosen("captured", False, "test")

    pretraining.choose_step = transferring.choose_step = choose


def main(catalog, root):
    """Fork the workers of each phase, so that what they import is imported once."""
    torch.set_num_threads(1)
    engine.import_deepspeed(torch.device("cpu"))
    for late in ("torch._dynamo", "deepspeed.runtime.zero.muon.muon_optimizer"):
        importlib.import_module(late)  # else every worker does in its first step
    for world, jobs in phases():
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        about = (world, port, jobs, Path(catalog), Path(root))
        torch.multiprocessing.start_processes(work, about, nprocs=world, start_method="fork")


@pytest.fixture(scope="module")
def done(source, tmp_path_factory):
    """Folder with the runs of all phases."""
    root = tmp_path_factory.mktemp("zero")
    command = [sys.executable, __file__, str(source.path), str(root)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return root


def losses(folder, name="loss"):
    return [line[name] for line in read_metrics(folder)]


def names(prefix):
    return [n for _, jobs in phases() for n, _, _ in jobs if n.startswith(f"{prefix}-")]


@pytest.mark.parametrize("kind", ["mae", "shed", "e-mix", "finetune"])
def test_workers_stages_and_parts_compute_what_one_process_does(kind, done):
    expected, weights = losses(done / kind), load_file(done / kind / MODEL)
    assert len(expected) == (2 if kind == "finetune" else 5)
    for name in names(kind):
        assert losses(done / name) == pytest.approx(expected, abs=2e-5), name
        found = load_file(done / name / MODEL)
        assert found.keys() == weights.keys()
        for tensor, value in weights.items():
            # Adam moves a weight by its rate however small its gradient: single ones differ more.
            assert (found[tensor] - value).abs().mean() < 2e-5, (name, tensor)
        if kind == "finetune":
            score = "validation_auroc"
            assert losses(done / name, score) == pytest.approx(losses(done / kind, score), abs=1e-3)


@pytest.mark.parametrize(
    "ended", [n for _, jobs in phases() for n, _, _ in jobs if n.endswith((CAPTURED, REFUSED))]
)
def test_captured_passes_of_several_workers_are_the_eager_ones(ended, done):
    eager = ended.rpartition("-")[0]
    assert losses(done / ended) == losses(done / eager)
    assert sha256(done / ended / MODEL) == sha256(done / eager / MODEL)


def test_a_split_checkpoint_goes_on_with_other_workers_stages_and_engines(done):
    assert latest_checkpoint(done / BEGUN).name == "step_000000003"
    for name in ("goes-on-1-0", "goes-on-4-1"):
        assert [line["done"] for line in read_metrics(done / name)] == [1, 2, 3, 4, 5]
        assert losses(done / name) == pytest.approx(losses(done / "mae"), abs=2e-5)


def test_a_split_checkpoint_goes_on_with_the_same_workers_bit_for_bit(done):
    assert losses(done / "goes-on-2-3") == losses(done / "mae-2-3-1")
    assert sha256(done / "goes-on-2-3" / MODEL) == sha256(done / "mae-2-3-1" / MODEL)


def test_no_part_of_a_checkpoint_is_pickled(done):
    found = {path.suffix for path in done.rglob("checkpoints/**/*") if path.is_file()}
    assert found == {".json", ".safetensors"}


if __name__ == "__main__":
    main(*sys.argv[1:])
