"""Commands on stores and catalogs in folders load no module of S3: a fresh process shows it."""

import json
import subprocess
import sys

import pytest
from stores import described

MODULES = (
    "benchmd_ray.runs.mirror",
    "benchmd_ray.runs.publication",
    "benchmd_ray.runs.remote",
    "benchmd_ray.storage.bucket",
    "benchmd_ray.storage.lease",
    "obstore",
)
BEGIN = "import json, sys\nfrom pathlib import Path\n"
END = "\nprint(json.dumps([*sys.modules]))"
STORE = """
from benchmd_ray.runs.listing import listed
from benchmd_ray.runs.retention import prune
from benchmd_ray.runs.store import open_run, read_run, read_stores, require_weights
from benchmd_ray.runs.store import scoring, working
store, about = Path(sys.argv[1]), json.loads(sys.argv[2])
run = open_run(store, "r", about)
with working(run):
    (run.folder / "model.safetensors").write_bytes(b"weights")
with scoring(run, "georgia"):
    (run.folder / "predictions" / "classification").mkdir(parents=True)
    (run.folder / "predictions" / "classification" / "georgia.parquet").write_bytes(b"scores")
require_weights(read_run(run.folder))
(found,) = read_stores([store]).found
assert listed(found).state == "done"
assert prune(store, "predictions").bytes_of("weights") == 7
"""
COMMANDS = """
from benchmd_ray.cli import main
store, catalog = sys.argv[1:3]
where = ["--store", store, "--catalog", catalog, "--set", "execution.device=cpu"]
small = [*where, "--set", "encoder=tiny", "--set", "pretrain.steps=2"]
small += ["--set", "pretrain.batch_size=8", "--set", "transfer.epochs=2"]
main(["pretrain", "--technique", "mae", *small], standalone_mode=False)
(upstream,) = Path(store).glob("pretrain-*")
main(["transfer", "--from", str(upstream), *small], standalone_mode=False)
(run,) = Path(store).glob("transfer-*")
assert (run / "done.json").is_file() and list((run / "predictions").glob("*/*.parquet"))
main(["evaluate", str(run), "--catalog", catalog], standalone_mode=False)
main(["list", store], standalone_mode=False)
main(["prune", store, "--keep", "predictions"], standalone_mode=False)
assert not (run / "model.safetensors").exists()
"""


def met(code, *arguments):
    """Modules of S3 that a process has loaded in the end."""
    command = [sys.executable, "-c", BEGIN + code + END, *map(str, arguments)]
    out = subprocess.run(command, capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr
    loaded = json.loads(out.stdout.splitlines()[-1])
    return [name for name in MODULES if name in loaded]


def test_a_store_in_a_folder_meets_no_module_of_s3(tmp_path):
    assert met(STORE, tmp_path, json.dumps(described({"kind": "transfer"}))) == []


@pytest.mark.slow
def test_pretraining_and_transfer_in_a_folder_meet_no_module_of_s3(tmp_path, source):
    assert met(COMMANDS, tmp_path / "runs", source.path) == []


def test_a_store_on_s3_meets_them(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path))
    code = "from benchmd_ray.runs.places import backing_of, store_folder\n"
    code += "assert backing_of(store_folder('s3://benchmd-test/runs')).in_bucket\n"
    assert met(code) == [*MODULES]
