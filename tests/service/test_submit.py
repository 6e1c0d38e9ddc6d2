"""Commands as jobs of a head that was started by hand, with a token and a dashboard."""

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import types
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import psutil
import pytest
from click.testing import CliRunner
from ports import free_ports
from safetensors.numpy import load_file
from waiting import until

from benchmd_ray.cli import main
from benchmd_ray.cli.jobs import CARRIED_BYTES, checked
from benchmd_ray.cluster import connection as cluster
from benchmd_ray.cluster.connection import ENVIRONMENT
from benchmd_ray.errors import BenchmdError
from benchmd_ray.service import submit as service
from benchmd_ray.service.job_variables import FILE

SECRET = "a-secret-that-nobody-may-see"
SETTINGS = """
encoder: {width: 16, depth: 1, heads: 1, head_dim: 16, mlp: 16}
pretrain: {steps: 300, batch_size: 8}
execution: {checkpoint_every: 10, log_every: 5}
"""


def test_submission_refuses_what_means_nothing_on_a_cluster():
    for arguments, reason in (
        (["demo"], "useful only on this machine"),
        (["submit", "run"], "useful only on this machine"),
        (["rnu"], "Did you mean 'run'"),
        (["catalog"], "name a command after"),
        (["run", "--catalog", "catalogs", "--store", "/runs"], "--catalog is the relative path"),
        (["run", "--catalog", "/catalogs"], "--store is the relative path 'runs'"),
        (
            ["run", "--store", "/runs", "--settings", "no.yaml"],
            "--settings: there is no local file",
        ),
        (["run", "--store", "/runs", "--address", "auto"], "omit --address"),
    ):
        with pytest.raises(BenchmdError, match=reason):
            checked(arguments)
    with pytest.raises(click.UsageError, match="No such option"):
        checked(["run", "--no-such-option"])
    with pytest.raises(click.UsageError, match="Missing parameter: technique"):
        checked(["pretrain", "--catalog", "/catalogs/ptb-xl"])


def test_files_of_this_machine_go_along(tmp_path, monkeypatch):
    settings, weights = tmp_path / "own.yaml", tmp_path / "vit.safetensors"
    settings.write_text("pretrain: {steps: 2}\n")
    weights.write_bytes(b"1")
    given = ["run", "--store", "/r", f"--settings={settings}", "--weights", str(weights)]
    arguments, files = checked(given)
    inside = ["files/settings_file-own.yaml", "files/weights-vit.safetensors"]
    assert arguments == ["run", "--store", "/r", f"--settings={inside[0]}", "--weights", inside[1]]
    assert files == {inside[0]: settings, inside[1]: weights}
    arguments, files = checked(["run", "--store", "/r", "--weights", "/nodes/have/it"])
    assert arguments[-1] == "/nodes/have/it"
    assert not files
    settings.write_text("pretrain: {stepz: 2}\n")
    with pytest.raises(BenchmdError, match="stepz"):
        checked(given)
    os.truncate(weights, CARRIED_BYTES + 1)
    assert checked(["run", "--store", "/r", "--weights", str(weights)])[1] == {}
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BenchmdError, match="more than the 67,108,864 that can be copied to a job"):
        checked(["run", "--store", "/r", "--weights", weights.name])


class Head:
    """A head as a user starts it, on ports of its own, and our commands against it."""

    def __init__(self, folder: Path) -> None:
        self.token = secrets.token_hex(32)
        self.folder = folder
        service._stage(folder / "installed", {}, {})  # as from a wheel, and the same for all jobs
        (folder / "installed" / FILE).unlink()
        ports = free_ports(6)
        self.address = f"http://127.0.0.1:{ports[0]}"
        self.gcs = f"127.0.0.1:{ports[1]}"
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("RAY_")},
            **ENVIRONMENT,
            "RAY_AUTH_MODE": "token",
            "RAY_memory_monitor_refresh_ms": "0",
            "RAY_AUTH_TOKEN": self.token,
            "RAY_API_SERVER_ADDRESS": self.address,
            "LAB_SECRET": SECRET,
        }
        names = ("dashboard-port", "port", "dashboard-agent-listen-port", "metrics-export-port")
        names += ("dashboard-agent-grpc-port", "ray-client-server-port")
        start = [f"--{name}={port}" for name, port in zip(names, ports, strict=True)]
        start += ["--head", "--block", "--node-ip-address=127.0.0.1", "--num-cpus=2"]
        start += ["--object-store-memory=100000000", f"--temp-dir={folder}"]
        with (folder / "head.log").open("wb") as log:
            self.process = subprocess.Popen(
                [Path(sys.executable).with_name("ray"), "start", *start],
                env=self.environment,
                stdout=log,
                stderr=log,
            )
        try:
            self._wait()
        except BaseException:
            self.end()
            raise

    def _wait(self) -> None:
        def alive() -> bool:
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                return '"ALIVE"' in self.get("/nodes?view=summary")
            return False

        until("the head", alive, 240, (self.folder / "head.log").read_text)

    def end(self) -> None:
        begun = psutil.Process(self.process.pid).children(recursive=True)
        for process in (self.process, *begun):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        psutil.wait_procs(begun, timeout=20)

    def get(self, path: str, token: str | None = None) -> str:
        request = urllib.request.Request(self.address + path)
        request.add_header("Authorization", f"Bearer {token or self.token}")
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.read().decode()

    def command(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run one of our commands and wait for its end."""
        return subprocess.run(
            [sys.executable, "-m", "benchmd_ray.cli", *arguments],
            cwd=self.folder / "installed",
            env=self.environment | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )


@pytest.fixture(scope="module")
def head(surroundings, tmp_path_factory):
    # Ray makes sockets below it, whose paths must be short.
    folder = Path("/tmp") / f"benchmd-{secrets.token_hex(4)}"
    folder.mkdir(mode=0o700)
    started = Head(folder)
    yield started
    started.end()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def submitted(head, ecg_catalogs, tmp_path_factory):
    """A pretraining that was submitted, stopped in the middle, submitted again and followed."""
    work = tmp_path_factory.mktemp("submitted")
    (work / "small.yaml").write_text(SETTINGS)
    catalog = ecg_catalogs["ptb-xl"].path
    command = ["pretrain", "--catalog", str(catalog), "--technique", "mae"]
    store = ["--store", str(work / "runs"), "--settings", str(work / "small.yaml")]
    variables = ["--env", "LAB_SECRET", "--env", "BENCHMD_CACHE"]
    first = head.command("submit", *variables, "--", *command, *store)
    assert first.returncode == 0, first.stderr
    job = first.stdout.strip()
    with held_after_a_checkpoint(head, job, work / "runs") as process:
        shown = everything(head, job)
        with ThreadPoolExecutor() as pool:
            stopping = pool.submit(head.command, "jobs", "stop", job)
            until("signal", lambda: is_told(process) or stopping.done())
            process.resume()
        stopped = stopping.result()
    again = head.command("submit", *variables, "--follow", "--", *command, *store)
    local = ["--store", str(work / "local"), *store[2:]]
    alone = head.command(*command, *local, RAY_AUTH_MODE="disabled")
    ids = [job, again.stdout.split()[0]]
    return {"job": job, "ids": ids, "work": work, "shown": shown} | {
        "stopped": stopped,
        "again": again,
        "alone": alone,
    }


@contextlib.contextmanager
def held_after_a_checkpoint(head, job, runs):
    """The process of a job, which does nothing more: it cannot end before it is stopped."""
    begun = until("process of the job", lambda: its_process(head), 240)
    until(
        "a checkpoint",
        lambda: list(runs.glob("pretrain-*/checkpoints/*")),
        240,
        lambda: head.command("jobs", "logs", job).stdout,
    )
    begun.suspend()
    try:
        yield begun
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            begun.resume()


def its_process(head):
    for each in psutil.Process(head.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if each.cmdline()[1:4] == ["-P", "-m", "benchmd_ray.cli"]:
                return each
    return None


def is_told(process):
    """Whether a held process was sent SIGTERM."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    waiting = int(re.search(r"^ShdPnd:\s*(\w+)", status, re.M)[1], 16)
    return bool(waiting >> (signal.SIGTERM - 1) & 1)


def everything(head, job):
    """All that the head's server tells of a job, its processes and its environment."""
    lists = ("actors", "tasks", "workers", "nodes", "placement_groups", "jobs", "runtime_envs")
    paths = [f"/api/v0/{name}?detail=true&limit=1000" for name in lists]
    paths += ["/api/jobs/", f"/api/jobs/{job}", f"/api/jobs/{job}/logs", "/nodes?view=summary"]
    paths += ["/logical/actors", "/api/cluster_status?format=1"]
    return {path: head.get(path) for path in paths}


@pytest.mark.slow
def test_a_stopped_job_goes_on_when_submitted_again(submitted):
    job, stopped, again = submitted["job"], submitted["stopped"], submitted["again"]
    assert re.fullmatch(r"benchmd-pretrain-\d{8}-\d{6}-[0-9a-f]{6}", job)
    assert stopped.returncode == 0
    assert stopped.stdout.startswith(f"{job}: stopped")
    assert again.returncode == 0, again.stdout + again.stderr
    (run,) = (submitted["work"] / "runs").glob("pretrain-*")
    history = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    starts = [event["from"] for event in history if event["event"] == "started"]
    assert len(starts) == 2
    assert starts[0] == 0 < starts[1] < 300
    assert history[-1]["event"] == "finished"
    assert str(run) in again.stdout


@pytest.mark.slow
def test_a_submitted_run_ends_with_the_weights_of_one_in_this_process(submitted):
    assert submitted["alone"].returncode == 0, submitted["alone"].stderr
    files = sorted(submitted["work"].glob("*/pretrain-*/model.safetensors"))
    assert [file.parts[-3] for file in files] == ["local", "runs"]
    local, cluster = (load_file(file) for file in files)
    assert local.keys() == cluster.keys()
    assert all((local[name] == cluster[name]).all() for name in local)


@pytest.mark.slow
def test_the_values_of_variables_are_nowhere_to_be_seen(head, submitted):
    job = submitted["job"]
    about = json.loads(submitted["shown"][f"/api/jobs/{job}"])
    assert about["metadata"]["variables"] == "LAB_SECRET,BENCHMD_CACHE"
    assert about["metadata"]["command"].startswith("benchmd pretrain --catalog /")
    for path, text in submitted["shown"].items():
        assert SECRET not in text, path
        assert head.token not in text, path
    assert job in submitted["shown"]["/api/jobs/"]
    assert "benchmd" in submitted["shown"]["/api/v0/runtime_envs?detail=true&limit=1000"]
    # Of all files of the cluster the job's own hold it, for their owner alone.
    found = {path for path in head.folder.rglob("*") if path.is_file() and holds(path, SECRET)}
    assert found
    for path in found:
        assert path.name == FILE
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    written = [path for path in submitted["work"].rglob("*") if path.is_file()]
    assert written
    assert not [path for path in written if holds(path, SECRET)]


def holds(path, text):
    try:
        return text.encode() in path.read_bytes()
    except FileNotFoundError:
        return False


WORKER = """
import hashlib, json, os, ray, sys
ray.init(address=sys.argv[1], runtime_env=json.loads(sys.argv[2]), log_to_driver=False)
@ray.remote
def seen():
    return hashlib.sha256(os.environ["LAB_SECRET"].encode()).hexdigest()
print(ray.get(seen.remote()))
"""


@pytest.mark.slow
def test_workers_of_a_job_have_its_variables(head, submitted):
    about = json.loads(submitted["shown"][f"/api/jobs/{submitted['job']}"])
    environment = {k: v for k, v in head.environment.items() if k != "LAB_SECRET"}
    out = subprocess.run(
        [sys.executable, "-c", WORKER, head.gcs, json.dumps(about["runtime_env"])],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert out.stdout.strip() == hashlib.sha256(SECRET.encode()).hexdigest()


@pytest.mark.slow
def test_the_same_package_is_sent_once(head, submitted):
    packages = set()
    for job in submitted["ids"]:
        about = json.loads(head.get(f"/api/jobs/{job}"))
        packages.add(about["runtime_env"]["working_dir"])
    assert len(packages) == 1
    assert packages.pop().startswith("gcs://")


@pytest.mark.slow
def test_jobs_are_listed_and_their_output_printed(head, submitted):
    job = submitted["job"]
    lines = head.command("jobs", "list").stdout.splitlines()
    listed = [line for line in lines if line.split()[0] in submitted["ids"]]
    assert [line.split()[1] for line in listed] == ["stopped", "succeeded"]
    assert listed[0].startswith(job)
    assert "benchmd pretrain --catalog" in listed[0]
    assert head.command("jobs", "status", job).stdout.startswith("stopped")
    followed = head.command("jobs", "logs", "--follow", job)
    assert followed.returncode == 143
    assert "interrupted: the same command resumes where it stopped" in followed.stdout


@pytest.mark.slow
def test_the_exit_code_of_following_is_the_jobs(head, tmp_path):
    failed = head.command("submit", "--follow", "--", "catalog", "verify", str(tmp_path / "none"))
    assert failed.returncode == 1
    assert "error:" in failed.stdout
    job = failed.stdout.split()[0]
    status = head.command("jobs", "status", job)
    assert status.returncode == 1
    assert status.stdout.startswith("failed")


@pytest.mark.slow
def test_a_head_with_a_token_wants_it(head, monkeypatch):
    with pytest.raises(urllib.error.HTTPError, match="403"):
        head.get("/api/jobs/", token="0" * 64)
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(head.address + "/api/jobs/", timeout=30)
    for mode in ("token", "disabled"):
        refused = head.command("jobs", "list", RAY_AUTH_MODE=mode, RAY_AUTH_TOKEN="0" * 64)
        assert refused.returncode == 1
        assert "needs a token and did not accept" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert head.token not in refused.stderr


@pytest.mark.slow
def test_an_unknown_job_is_told(head):
    for arguments in (("status",), ("logs", "--follow"), ("stop",)):
        refused = head.command("jobs", *arguments, "benchmd-no-such-job")
        assert refused.returncode == 1
        assert "knows no job 'benchmd-no-such-job'" in refused.stderr


def test_where_nothing_listens_it_says_what_to_do():
    (port,) = free_ports(1)
    with pytest.raises(
        BenchmdError, match=r"no job server of a cluster answers at .*open a tunnel to the head"
    ):
        service.jobs(f"http://127.0.0.1:{port}")
    with pytest.raises(BenchmdError, match="expected the URL of the cluster's dashboard"):
        service.jobs("auto")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["--set", "pretrain.stepz=3"], "unknown setting"),
        (["--technique", "maee"], "Did you mean 'mae'"),
    ],
)
def test_names_that_do_not_exist_are_refused_before_anything_is_sent(command, message):
    with pytest.raises(BenchmdError, match=message):
        checked(["run", "--catalog", "/catalogs", "--store", "/runs", *command])


def test_the_dashes_before_the_command_may_be_excluded():
    result = CliRunner().invoke(main, ["submit", "run", "--catalog", "catalogs"])
    assert "--catalog is the relative path 'catalogs'" in result.output


@pytest.mark.parametrize(
    ("name", "value"), [("AWS_PROFILE", "lab-data"), ("BENCHMD_CACHE", "/data/cache"), ("A", "1")]
)
def test_what_is_no_secret_may_be_part_of_a_path(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    command = ["run", "--catalog", "s3://lab-data/1", "--store", "/data/cache/runs"]
    assert service._values([name], command) == {name: value}


@pytest.mark.parametrize(
    "failure", [None, RuntimeError("closed unexpectedly with close code 1006")]
)
def test_a_connection_that_closes_while_following_is_told(monkeypatch, failure):
    import ray.job_submission

    class Client:
        def __init__(self, address):
            pass

        def get_job_info(self, job):
            return types.SimpleNamespace(status=ray.job_submission.JobStatus.RUNNING)

        async def tail_job_logs(self, job):
            yield "step 1"
            if failure:
                raise failure

    monkeypatch.setattr(ray.job_submission, "JobSubmissionClient", Client)
    monkeypatch.setattr(service, "CLOSING_SECONDS", 0)
    printed = []
    with pytest.raises(
        BenchmdError, match=r"closed before job j ended\. The job continues; .*logs --f"
    ):
        service.follow("j", printed.append)
    assert printed == ["step 1"]


def test_variables_are_named_and_their_values_stay_out_of_the_command(monkeypatch):
    monkeypatch.setenv("LAB_SECRET", SECRET)
    with pytest.raises(BenchmdError, match="--env LAB_SECRET_: this variable is not set"):
        service.submit(["run"], variables=["LAB_SECRET_"])
    with pytest.raises(BenchmdError, match="the value of LAB_SECRET is in the command"):
        service.submit(["run", "--set", f"a.b={SECRET}"], variables=["LAB_SECRET"])


def test_a_cluster_with_another_ray_is_refused():
    class Answer:
        def json(self):
            return {"ray_version": "1.2.3"}

    class Client:
        def _do_request(self, method, path):
            return Answer()

    with pytest.raises(BenchmdError, match=r"the cluster has Ray 1\.2\.3 and this environment"):
        service._require_same_ray(Client())


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("", []),
        ("CPU=4", [{"CPU": 4}]),
        ("2*CPU=16,GPU=1 CPU=0.5", [{"CPU": 16, "GPU": 1}] * 2 + [{"CPU": 0.5}]),
    ],
)
def test_nodes_are_asked_for_by_their_resources(text, nodes):
    assert cluster.asked_nodes(text) == nodes


@pytest.mark.parametrize(
    "text",
    ["8", "0*CPU=1", "8*GPU", "CPU=many", "8 * CPU=1", "-1*CPU=1", "CPU=16GPU=1", "CPU=1.2.3"],
)
def test_what_asks_for_no_nodes_is_refused_before_anything_is_sent(text):
    with pytest.raises(
        BenchmdError, match=r"does not describe nodes: expected NUMBER\*RESOURCE=AMOUNT"
    ):
        service.submit(["run"], nodes=text)


def test_a_command_waits_for_its_nodes_and_gives_them_back(monkeypatch):
    import ray
    import ray.autoscaler.sdk

    whole = {"CPU": 32.0, "GPU": 2.0}
    asked, there = [], iter([{"CPU": 2.0}, {"CPU": 32.0, "GPU": 1.0}, whole, whole])
    seen = []
    monkeypatch.setattr(
        ray.autoscaler.sdk, "request_resources", lambda bundles: asked.append(bundles)
    )
    monkeypatch.setattr(ray, "cluster_resources", lambda: seen.append(next(there)) or seen[-1])
    monkeypatch.setattr(cluster.time, "sleep", lambda seconds: None)
    nodes = [{"CPU": 16.0, "GPU": 1.0}] * 2
    monkeypatch.setenv("BENCHMD_NODES", "2*CPU=16,GPU=1")
    with cluster._asked_for(nodes):
        assert asked == [nodes]
        assert seen[-1] == whole
        cluster.ask([{"CPU": 1.0}] * 3)  # for which they have room
        more = [{"CPU": 4.0, "GPU": 1.0}] * 3
        wide = [{"CPU": 20.0}]  # for which no node has room, though all of them together have
        cluster.ask(more)
        cluster.ask(wide)
        cluster.ask([])  # a plan that has ended
    assert asked == [nodes, nodes, [*nodes, more[0]], [*nodes, *wide], nodes, []]


def test_a_command_does_not_begin_without_any_of_its_gpus(monkeypatch):
    import ray
    import ray.autoscaler.sdk

    asked = []
    monkeypatch.setattr(
        ray.autoscaler.sdk, "request_resources", lambda bundles: asked.append(bundles)
    )
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 16.0})
    monkeypatch.setattr(cluster, "NODES_SECONDS", 0.0)
    with pytest.raises(BenchmdError, match="no node with GPU was added within 0 s"):
        with cluster._asked_for([{"CPU": 16.0, "GPU": 1.0}]):
            pytest.fail("nothing may begin")
    assert asked[-1] == []
