"""Deployment files: what they say exists, as Ray and our own commands understand it."""

import configparser
import functools
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from test_documented_commands import parsed, words_of

from benchmd_ray.cli import main
from benchmd_ray.cluster.connection import ENVIRONMENT
from benchmd_ray.extensions.extras import EXTRAS

ROOT = Path(__file__).resolve().parents[2]
CLOUDS = ("cluster.yaml", "deploy/gcp.yaml", "deploy/azure.yaml")
LAUNCHER = (*CLOUDS, "deploy/on-premise.yaml")
KUBERAY = "deploy/kuberay.yaml"
LOCK = ROOT / "requirements.lock"
ADDED = {
    "RAY_AUTH_MODE": "token",
    "RAY_JOB_STOP_WAIT_TIME_S": "60",
    "RAY_memory_monitor_refresh_ms": "0",
}
"""Variables of a cluster next to those of an embedded Ray."""


def read(name):
    return yaml.safe_load((ROOT / name).read_text("utf-8"))


def items():
    return {item["kind"]: item for item in read(KUBERAY)["items"]}


def pods():
    """Each pod template of the manifest, with the parameters of its `ray start`."""
    spec = items()["RayCluster"]["spec"]
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    return [(group["template"]["spec"], group["rayStartParams"]) for group in groups]


@functools.cache
def options_of_start():
    from ray.scripts.scripts import start

    return {option for param in start.params for option in param.opts}


def started(command):
    """Variables and arguments of a shell command that runs `ray start`."""
    words = shlex.split(command)
    where = next(number for number, word in enumerate(words) if word.endswith("/ray"))
    assert words[where + 1] == "start"
    return dict(word.split("=", 1) for word in words[:where]), words[where + 2 :]


@pytest.mark.parametrize("name", LAUNCHER)
def test_ray_accepts_a_launcher_file(name):
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(read(name)))
    with pytest.raises(Exception, match=r"Additional properties|unexpected"):
        validate_config(prepare_config(read(name) | {"no_such_key": 1}))


@pytest.mark.parametrize("name", LAUNCHER)
@pytest.mark.parametrize("commands", ["head_start_ray_commands", "worker_start_ray_commands"])
def test_nodes_start_ray_with_its_options_and_our_environment(name, commands):
    environment, arguments = started(read(name)[commands][-1])
    assert environment == ENVIRONMENT | ADDED
    assert {argument.split("=")[0] for argument in arguments} <= options_of_start()
    if commands.startswith("head"):
        assert "--dashboard-host=127.0.0.1" in arguments


@pytest.mark.parametrize("name", LAUNCHER)
def test_nodes_get_the_wheel_the_lock_and_the_token(name):
    content = read(name)
    assert content["file_mounts"] == {
        "~/benchmd/dist": "dist",
        "~/benchmd/requirements.lock": "requirements.lock",
        "~/.ray/auth_token": "~/.ray/auth_token",
    }
    lock, wheel = content["setup_commands"][-2:]
    assert "--require-hashes -r ~/benchmd/requirements.lock" in lock
    assert "--no-deps" in wheel
    assert "~/benchmd/dist/*.whl" in wheel


@pytest.mark.parametrize("name", CLOUDS)
def test_a_cloud_has_a_small_head_and_workers_that_come_and_go(name):
    content = read(name)
    types = content["available_node_types"]
    assert types[content["head_node_type"]]["resources"] == {"CPU": 0}
    for worker in ("cpu", "gpu"):
        assert types[worker]["min_workers"] == 0 < types[worker]["max_workers"]
    assert sum(types[worker]["max_workers"] for worker in ("cpu", "gpu")) <= content["max_workers"]
    assert types["gpu"]["resources"]["GPU"] == 1
    assert content["provider"]["cache_stopped_nodes"] is False  # a stopped disk costs money, too


def test_gpus_are_taken_at_the_price_of_what_may_be_taken_back_and_heads_are_not():
    head, gpu = (
        {name: read(name)["available_node_types"][of]["node_config"] for name in CLOUDS}
        for of in ("head", "gpu")
    )
    assert gpu["cluster.yaml"]["InstanceMarketOptions"]["MarketType"] == "spot"
    assert gpu["deploy/gcp.yaml"]["scheduling"]["preemptible"] is True
    assert gpu["deploy/azure.yaml"]["azure_arm_parameters"]["priority"] == "Spot"
    assert not re.search("(?i)spot|preemptible", str(head))


def test_rights_come_with_the_machine():
    aws, gcp = (read(name)["available_node_types"] for name in CLOUDS[:2])
    for each in aws.values():
        assert each["node_config"]["IamInstanceProfile"]
        assert each["node_config"]["SecurityGroupIds"]
    assert (
        "security_group" not in read("cluster.yaml")["provider"]
    )  # Ray's lets SSH in from anywhere
    for name in ("cpu", "gpu"):  # the head's account is Ray's
        assert gcp[name]["node_config"]["serviceAccounts"][0]["email"].startswith("benchmd-worker@")
    for each in gcp.values():  # Ray's own network lets SSH in from everywhere
        assert each["node_config"]["networkInterfaces"][0]["subnetwork"].endswith("/benchmd")
    for name in CLOUDS:
        assert not re.search("(?i)secret|access.?key|password", str(read(name)))


def test_azure_is_given_parameters_of_rays_own_template():
    from ray.autoscaler._private import _azure

    template = json.loads(Path(_azure.__path__[0], "azure-vm-template.json").read_text("utf-8"))[
        "parameters"
    ]
    for each in read("deploy/azure.yaml")["available_node_types"].values():
        parameters = each["node_config"]["azure_arm_parameters"]
        assert parameters.keys() <= template.keys()
        types = {"string": str, "int": int, "object": dict}
        for key, value in parameters.items():
            assert isinstance(value, types[template[key]["type"]]), key


def test_rays_autoscaler_on_kubernetes_reads_the_manifest():
    """What Ray makes of the cluster's groups is itself a valid configuration."""
    from ray.autoscaler._private.kuberay import autoscaling_config as kuberay
    from ray.autoscaler._private.util import validate_config

    cluster = items()["RayCluster"]
    job = {"metadata": {"name": "job", "namespace": "lab"}, "spec": items()["RayJob"]["spec"]}
    job["spec"] = job["spec"]["rayClusterSpec"]
    cluster["metadata"]["namespace"] = "lab"
    for each in (cluster, job):
        config = kuberay._derive_autoscaling_config_from_ray_cr(each)
        validate_config(config)
        types = config["available_node_types"]
        assert types.pop(config["head_node_type"])["resources"]["CPU"] == 0
        of_types = {
            name: (kind["min_workers"], kind["max_workers"], kind["resources"].get("GPU", 0))
            for name, kind in types.items()
        }
        assert of_types == {"cpu": (0, 8, 0), "gpu": (0, 8, 1)}
        assert config["max_workers"] == 16
        assert config["idle_timeout_minutes"] == 10


FIELDS = {
    "RayCluster": {
        *("rayVersion", "authOptions", "enableInTreeAutoscaling", "autoscalerOptions"),
        *("headGroupSpec", "workerGroupSpecs"),
    },
    "RayJob": {
        *("runtimeEnvYAML", "entrypoint", "submissionMode", "shutdownAfterJobFinishes"),
        *("ttlSecondsAfterFinished", "rayClusterSpec"),
    },
    "head": {"serviceType", "rayStartParams", "template"},
    "worker": {
        *("groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"),
    },
}
"""Fields of KubeRay 1.5 that the manifest uses: its schema is in no package that tests can have."""


def test_the_manifest_has_no_field_that_kuberay_would_drop():
    cluster = items()["RayCluster"]["spec"]
    assert cluster.keys() <= FIELDS["RayCluster"]
    assert items()["RayJob"]["spec"].keys() <= FIELDS["RayJob"]
    assert cluster["headGroupSpec"].keys() <= FIELDS["head"]
    for group in cluster["workerGroupSpecs"]:
        assert group.keys() <= FIELDS["worker"]


def test_the_manifest_starts_ray_with_its_options_and_our_environment():
    for pod, params in pods():
        assert {f"--{name}" for name in params} <= options_of_start()
        assert all(isinstance(value, str) for value in params.values())
        (container,) = pod["containers"]
        environment = {one["name"]: one.get("value") for one in container["env"]}
        # The operator itself sets RAY_AUTH_MODE and the token, by `authOptions`.
        expected = ENVIRONMENT | {k: v for k, v in ADDED.items() if k != "RAY_AUTH_MODE"}
        assert expected.items() <= environment.items()
        assert {mount["name"] for mount in container["volumeMounts"]} <= {
            volume["name"] for volume in pod["volumes"]
        }
    spec = items()["RayCluster"]["spec"]
    assert spec["authOptions"] == {"mode": "token"}
    assert spec["rayVersion"] == pins(LOCK.read_text("utf-8"))["ray"]
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert items()["RayJob"]["spec"]["rayClusterSpec"] == spec


def test_the_manifest_opens_nothing_and_holds_no_secret():
    assert items().keys() == {"RayCluster", "RayJob"}
    assert items()["RayCluster"]["spec"]["headGroupSpec"]["serviceType"] == "ClusterIP"
    for pod, _ in pods():
        assert "hostNetwork" not in pod
        assert pod["securityContext"]["runAsNonRoot"]
        for one in pod["containers"][0]["env"]:
            if re.search("KEY|TOKEN|SECRET|PASSWORD", one["name"]):
                assert one["valueFrom"].keys() == {"secretKeyRef"}


def test_the_manifest_has_cpu_and_gpu_workers_that_come_and_go():
    spec = items()["RayCluster"]["spec"]
    assert spec["enableInTreeAutoscaling"]
    groups = {group["groupName"]: group for group in spec["workerGroupSpecs"]}
    for name, gpus in (("cpu", None), ("gpu", "1")):
        assert groups[name]["minReplicas"] == 0 < groups[name]["maxReplicas"]
        resources = groups[name]["template"]["spec"]["containers"][0]["resources"]
        assert resources["limits"] == resources["requests"]
        assert resources["limits"].get("nvidia.com/gpu") == gpus


@pytest.mark.slow
def test_workers_are_told_before_their_pod_ends_and_awaited(tmp_path):
    (pod,) = [pod for pod, _ in pods() if "lifecycle" in pod["containers"][0]]
    assert pod["terminationGracePeriodSeconds"] > int(ADDED["RAY_JOB_STOP_WAIT_TIME_S"])
    shell, flag, script = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    # As in /proc: processes of ours; those that are told remove their folder, as they end.
    waits = 'trap "rm -r $0; exit 3" TERM; echo ready; while :; do sleep 0.1; done'
    shown = tmp_path / "shown"
    shown.mkdir()
    begun = []
    told = ("ray::ptb-xl/clean/mae/seed-0/pretrain", "ray::RayTrainWorker.execute")
    left = ("ray::IDLE", "ray::TrainController.run", "ray::DashboardAgent", "ray::RuntimeEnvAgent")
    for number, title in enumerate((*told, *left)):
        folder = tmp_path / f"process{number}"
        folder.mkdir()
        (folder / "cmdline").write_bytes(f"{title}\0".encode())
        process = subprocess.Popen(["sh", "-c", waits, folder], stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"ready\n"
        (shown / str(process.pid)).symlink_to(folder)
        begun.append(process)
    try:
        script = script.replace("/proc/", f"{shown}/")
        subprocess.run([shell, flag, script], check=True, timeout=20, stderr=subprocess.DEVNULL)
        assert [process.wait(10) for process in begun[: len(told)]] == [3] * len(told)
        assert all(process.poll() is None for process in begun[len(told) :])
    finally:
        for process in begun:
            process.send_signal(signal.SIGKILL)
            process.communicate()


def our_commands():
    """Commands of ours in the deployment files, one a line: file and arguments."""
    for name in (*LAUNCHER, KUBERAY):
        text = re.sub(r" \\\n#? *", " ", (ROOT / name).read_text("utf-8"))
        for line in re.findall(r"(?:\bbenchmd (?=\w+ )|benchmd_ray\.cli )(.*)", text):
            if line.split()[0] in main.commands:
                yield name, line


def test_our_commands_in_the_files_parse(monkeypatch, tmp_path):
    from benchmd_ray.cli.jobs import checked

    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path))
    found = [(name, shlex.split(line)) for name, line in our_commands()]
    assert {name for name, _ in found} == {*LAUNCHER, KUBERAY}
    for _, arguments in found:
        if arguments[0] == "submit":
            with main.commands["submit"].make_context("submit", arguments[1:]) as context:
                arguments = context.params["command"]
        arguments, files = checked(arguments)
        assert not files


def test_the_image_installs_the_lock_and_the_wheel():
    text = (ROOT / "deploy/Dockerfile").read_text("utf-8")
    assert "--require-hashes -r /tmp/requirements.lock" in text
    assert "--no-deps /tmp/*.whl" in text
    assert re.findall("^(?:ARG|FROM) .*", text, re.M) == ["ARG PYTHON", "FROM ${PYTHON}"]


def test_images_are_named_by_a_digest_that_has_to_be_filled_in():
    (image,) = {pod["containers"][0]["image"] for pod, _ in pods()}
    name, _, digest = image.partition("@")
    assert digest == "sha256:DIGEST"
    assert f"docker push {name}:" in (ROOT / "deploy/Dockerfile").read_text("utf-8")
    assert "REQUIRED" in (ROOT / KUBERAY).read_text("utf-8")
    for path in (ROOT / "deploy").iterdir():
        for line in path.read_text("utf-8").splitlines():
            if re.match(r"\s*(- )?(image:|FROM )", line):
                assert "@sha256:" in line or line == "FROM ${PYTHON}", line


def test_python_looks_for_no_module_in_the_folder_it_is_started_in():
    """``-m`` searches the working folder first, which may hold what others wrote."""
    for path in (ROOT / "cluster.yaml", *(ROOT / "deploy").iterdir()):
        started = re.findall(r"\bpython[\d.]* -.*", path.read_text("utf-8"))
        assert [line for line in started if not re.match(r"python[\d.]* -P ", line)] == [], path


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text):
    found = re.findall(r"^([\w.-]+)==([^\s;\\]+)", text, re.M)
    return {normal(name): version for name, version in found}


def test_the_lock_pins_what_the_package_needs_with_hashes():
    lock = LOCK.read_text("utf-8")
    locked, tested = pins(lock), pins((ROOT / "constraints.txt").read_text("utf-8"))
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    wanted = [config["options"]["install_requires"]]
    wanted += [config["options.extras_require"][extra] for extra in EXTRAS]
    for line in "\n".join(wanted).split():
        assert normal(re.split(r"[\[<>=]", line)[0]) in locked, line
    assert {name: tested[name] for name in locked if name in tested} == {
        name: version for name, version in locked.items() if name in tested
    }
    entries = re.split(r"\n(?=[\w.-]+==)", re.sub(r"^#.*\n", "", lock, flags=re.M).strip())
    assert len(entries) == len(locked)
    for entry in entries:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry[:60]


def test_the_lock_holds_no_address_and_no_test_tool():
    lock = LOCK.read_text("utf-8")
    assert not re.search(r"https?://|file:|--index|--find-links|\+cpu", lock)
    assert not pins(lock).keys() & {"pytest", "moto", "mypy", "ruff", "hypothesis", "playwright"}


@pytest.mark.slow
def test_a_job_carries_what_the_wheel_holds(tmp_path):
    from benchmd_ray.service.submit import _stage

    clean = tmp_path / "clean"  # what an older build left in the checkout would be packed, too
    for name in ("benchmd_ray", "data_catalog", "search_spaces"):
        shutil.copytree(ROOT / name, clean / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clean)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(tmp_path)]
    subprocess.run([*command, str(clean)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    unneeded = re.compile(r".*\.dist-info/(licenses/.*|WHEEL|RECORD|top_level\.txt)")
    held = {n for n in zipfile.ZipFile(wheel).namelist() if not unneeded.fullmatch(n)}
    staged = tmp_path / "staged"
    _stage(staged, {}, {})
    files = {p.relative_to(staged).as_posix() for p in staged.rglob("*") if p.is_file()}
    assert files - held == {"job-variables.json"}
    assert held <= files


def test_the_workflow_of_a_board_calls_commands_that_exist():
    workflow = read("deploy/board.yml")
    assert workflow["permissions"] == {"contents": "read"}
    assert set(workflow[True]) == {"pull_request", "push"}  # YAML 1.1 reads `on` as true
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert all(("run" in step) != ("uses" in step) for step in steps)
    commands = [words for step in steps if (words := words_of(step.get("run", "")))]
    assert [words[:2] for words in commands] == [["board", "build"], ["board", "verify"]]
    for words in commands:
        parsed(words, whole=True)
