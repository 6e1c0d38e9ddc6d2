"""What must never happen: foreign data executed, keys or patients written down, open ports."""

import ast
import json
import os
import pickle
import re
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pydicom
import pytest

from benchmd_ray.data.build import build
from benchmd_ray.demo import write_mammo
from benchmd_ray.demo.eeg import write_eeg
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.integrity import Damaged
from benchmd_ray.schema.plain_yaml import read_yaml
from benchmd_ray.tuning.journal import Journal

PACKAGE = Path(__file__).resolve().parent.parent / "benchmd_ray"
MODULES = sorted(PACKAGE.rglob("*.py"))

UNPICKLING = {"pickle", "_pickle", "cloudpickle", "dill", "shelve", "marshal", "joblib"}
FORBIDDEN = {
    "eval": "runs text",
    "exec": "runs text",
    "os.system": "runs a shell",
    "os.popen": "runs a shell",
    "yaml.unsafe_load": "makes any object",
    "yaml.full_load": "makes any object",
    "pandas.read_pickle": "unpickles",
    "pd.read_pickle": "unpickles",
    "torch.jit.load": "runs foreign code",
    "torch.hub.load": "runs foreign code",
    "shutil.unpack_archive": "writes where an archive says",
    "tempfile.mktemp": "names a file that another may make",
    "__import__": "hides what is imported",
}
TAKING_OVER = (".extract", ".extractall", ".load_checkpoint", "Tuner.restore", ".can_restore")
NEVER = {"shell": True, "verify": False, "allow_pickle": True, "trust_remote_code": True}


def faults(source):
    """What a source does that it must not."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{name}" for name in names]
            found = {part for name in names for part in name.split(".")} & UNPICKLING
            found |= {*names} & {*FORBIDDEN, "torch.load", "yaml.load"}
            yield from (f"{node.lineno}: imports {name}" for name in found)
        if isinstance(node, ast.Call):
            yield from (f"{node.lineno}: {fault}" for fault in _call(node))


def _call(node):
    name = ast.unparse(node.func)
    given = {
        word.arg: word.value.value for word in node.keywords if isinstance(word.value, ast.Constant)
    }
    if name in FORBIDDEN:
        yield f"{name} {FORBIDDEN[name]}"
    if name == "torch.load" and given.get("weights_only") is not True:
        yield "torch.load without weights_only=True"
    if name == "yaml.load" and "_PlainValues" not in ast.unparse(node):
        yield "yaml.load but by the loader of plain values"
    if name.endswith(TAKING_OVER):
        yield f"{name} takes over what others wrote"
    if name.endswith("import_module") and node.args and isinstance(node.args[0], ast.Constant):
        if {*node.args[0].value.split(".")} & UNPICKLING:
            yield f"imports {node.args[0].value}"
    for option, value in NEVER.items():
        if option in given and given[option] is value:
            yield f"{name} with {option}={value}"


def test_the_package_runs_and_unpickles_nothing_foreign():
    found = {path.relative_to(PACKAGE): list(faults(path.read_text("utf-8"))) for path in MODULES}
    assert {path: there for path, there in found.items() if there} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from joblib import load",
        "from ray import cloudpickle",
        "from ray.cloudpickle import loads",
        "eval(text)",
        "subprocess.run(text, shell=True)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text, yaml.Loader)",
        "archive.extractall(folder)",
        "archive.extract(member)",
        "engine.load_checkpoint(folder)",
        '__import__("json")',
        "from torch import load",
        "from os import system",
        'importlib.import_module("ray.cloudpickle.pickle")',
        "tune.Tuner.restore(path, trial)",
        "requests.get(url, verify=False)",
    ],
)
def test_that_search_finds(source):
    assert len(list(faults(source))) == 1


PRINTING = re.compile(
    r"print|pprint|click\.(echo|secho|style|prompt|confirm|progressbar|echo_via_pager|pause)"
    r"|(sys\.)?(stdout|stderr)(\.buffer)?\.write(lines)?|.*\.print_(exc|exception|stack)"
    r"|tqdm\.write|os\.write"
)
"""Calls that reach a terminal without `terminal.echo`."""
MAY_PRINT = {"console/terminal.py"}


def prints(source):
    """Lines of a source that print, or hand on a function that does."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            for part in (node.func, *node.args, *(word.value for word in node.keywords)):
                if PRINTING.fullmatch(ast.unparse(part)):
                    yield node.lineno, ast.unparse(part)
        if isinstance(node, ast.FunctionDef):
            defaults = (*node.args.defaults, *filter(None, node.args.kw_defaults))
            yield from ((node.lineno, "print") for each in defaults if ast.unparse(each) == "print")


def test_everything_is_printed_by_one_function():
    found = {
        path.relative_to(PACKAGE).as_posix(): list(prints(path.read_text("utf-8")))
        for path in MODULES
        if path.relative_to(PACKAGE).as_posix() not in MAY_PRINT
    }
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "source",
    [
        "print(1)",
        "click.echo(text)",
        "f(say=click.echo)",
        "run(out, click.echo)",
        "def f(say=print): pass",
        "def f(*, say=print): pass",
        "sys.stderr.write(text)",
        "sys.stdout.buffer.write(text)",
        "traceback.print_exc()",
        "map(print, lines)",
    ],
)
def test_that_search_for_printing_finds(source):
    assert len(list(prints(source))) == 1


def test_yaml_holds_plain_values_only():
    assert read_yaml("a: [1, two]", "it") == {"a": [1, "two"]}
    for text in ("!!python/object/apply:os.system [true]", "!!python/name:os.system"):
        with pytest.raises(BenchmdError, match=r"the tag .* is not supported"):
            read_yaml(text, "it")


class Bomb:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_a_journal_of_trials_is_never_unpickled(tmp_path):
    fuse, path = tmp_path / "exploded", tmp_path / "journal.log"
    path.write_bytes(pickle.dumps(Bomb(fuse), protocol=0) + b"\n")
    with pytest.raises(Damaged, match="line 1 is not what was written"):
        Journal(path).read()
    assert not fuse.exists()


KEYS = {
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "AWS_ACCESS_KEY_ID": "AKIAEXAMPLEEXAMPLE42",
    "AWS_SECRET_ACCESS_KEY": "secretsecretsecretsecretsecretsecret4242",
    "AWS_SESSION_TOKEN": "session-token-of-somebody",
    "HF_TOKEN": "hf_someones_token_for_the_model_hub",
}
SESSION = """
import json, sys
import psutil
from benchmd_ray.cli import main
from benchmd_ray.cluster.connection import connected

catalog, store, report = sys.argv[1:]
small = "encoder={width: 16, depth: 1, heads: 1, head_dim: 16, mlp: 16}"
steps = ["--set", small, "--set", "pretrain.steps=4", "--set", "pretrain.batch_size=8"]
with connected(cpus=2):
    run = ["run", "--catalog", catalog, "--store", store, "--technique", "mae", "--setting"]
    run += ["linear", "--wandb", "offline", *steps, "--set", "transfer.epochs=1"]
    main(run, standalone_mode=False)
    process = psutil.Process()
    found = [
        [each.name(), connection.laddr.ip]
        for each in (process, *process.children(recursive=True))
        for connection in each.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
main(["report", store, "--out", report, "--figures", "none"], standalone_mode=False)
print("LISTENING " + json.dumps(found))
"""


@pytest.fixture(scope="module")
def session(ecg_catalogs, tmp_path_factory):
    """A run and its report in a process that has keys in its environment."""
    folder = tmp_path_factory.mktemp("keys")
    # Ray makes sockets below its folder, whose paths must be short.
    logs = Path("/tmp") / f"benchmd-{secrets.token_hex(4)}"
    paths = [ecg_catalogs["ptb-xl"].path, folder / "runs", folder / "report"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    out = subprocess.run(
        [sys.executable, "-c", SESSION, *map(str, paths)],
        env=environment | KEYS | {"RAY_TMPDIR": str(logs), "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert out.returncode == 0, out.stderr
    yield {"folders": [folder, logs], "printed": [out.stdout, out.stderr]}
    shutil.rmtree(logs)


@pytest.mark.slow
def test_keys_are_written_nowhere(session):
    files = [path for folder in session["folders"] for path in folder.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {"metrics.jsonl", "report.html", "history.jsonl", "raylet.out"} <= names
    assert [path for path in files if path.suffix == ".wandb"]
    for name, value in KEYS.items():
        assert not [path for path in files if value.encode() in path.read_bytes()], name
        assert not any(value in text for text in session["printed"]), name


@pytest.mark.slow
def test_an_embedded_ray_listens_on_this_machine_alone(session):
    listening = json.loads(re.search("LISTENING (.*)", session["printed"][0])[1])
    names = {name for name, _ in listening}
    assert {"gcs_server", "raylet"} <= names
    assert {ip.removeprefix("::ffff:") for _, ip in listening} <= {"127.0.0.1", "::1"}


PATIENT = ("DOE", "JANE", "HOSP-7788", "19510203", "SMITHSON")


@pytest.fixture(scope="module")
def named_patients(tmp_path_factory):
    """Raw folders whose files name a patient and a doctor; one file of each cannot be read."""
    root = tmp_path_factory.mktemp("patients")
    folders = write_mammo(root, source_records=40, target_records=4)
    folders |= write_eeg(root, source_records=2, target_records=3, epochs=8)
    images = sorted(folders["vindr-mammo"].rglob("*.dicom"))
    for path in images:
        image = pydicom.dcmread(path)
        image.PatientName, image.PatientID = "DOE^JANE", "HOSP-7788"
        image.PatientBirthDate, image.ReferringPhysicianName = "19510203", "SMITHSON"
        image.save_as(path)
    os.truncate(images[3], 900)  # after the tags
    nights = sorted(folders["isruc"].rglob("*.rec"))
    for path in nights:  # EDF: the patient and the recording, 80 characters each
        content = bytearray(path.read_bytes())
        content[8:168] = b"HOSP-7788 F 03-FEB-1951 DOE JANE".ljust(80) + b"SMITHSON".ljust(80)
        path.write_bytes(content)
    os.truncate(nights[0], 400)
    return folders


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("name", ["vindr-mammo", "isruc"])
def test_what_files_tell_of_patients_stays_in_them(
    name, named_patients, ray_cluster, tmp_path, capfd
):
    options = {"allow_missing": True, "max_quarantined": 0.9}
    catalog = build(name, named_patients[name], tmp_path / name, **options)
    assert catalog.manifest["quarantined"]
    texts = list(capfd.readouterr())
    for path in (tmp_path / name).rglob("*"):
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            kept = table.drop_columns(["signal"]).to_pylist()
            texts += [str(kept), str(table.schema.metadata)]
        elif path.is_file():
            texts.append(path.read_text("utf-8"))
    assert len(texts) > 3
    for word in PATIENT:
        assert not [text for text in texts if re.search(rf"\b{word}\b", text, re.I)], word
