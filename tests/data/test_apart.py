"""The process apart: what kills it costs one call, and a build one file; it ends with its owner."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
import shared_ray
from in_process import build_in_process

from benchmd_ray.data import apart, chunks, hdf5
from benchmd_ray.data import build as building
from benchmd_ray.data.apart import NOWHERE, Apart, Died
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.discovery import discovered
from benchmd_ray.data.hdf5 import export_hdf5, import_hdf5
from benchmd_ray.data.verify import verify
from benchmd_ray.errors import BenchmdError

ODD = """
import ctypes, os, resource, signal, sys, time
from benchmd_ray.data import apart
apart.CPU_SECONDS, apart.MEMORY = 1.0, 2**29

def answer(request):
    for place, what in enumerate(request["parts"]):
        apart.begin(place)
        print("noise on standard output")
        sys.stderr.write("noise on standard error")
        if what == "segfault":
            ctypes.string_at(0)
        elif what == "abort":
            os.abort()
        elif what == "exit":
            os._exit(3)
        elif what == "quiet exit":
            os._exit(0)
        elif what == "loop":
            while True:
                pass
        elif what == "memory":
            held = [bytes(2**20) for _ in range(2**13)]
        elif what == "sleep":
            time.sleep(600)
        elif what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "loop in C":
            sum(range(10**12))
    return {"pid": os.getpid(), "parts": len(request["parts"])}, bytes(request.get("bytes", 0))

if "--broken" in sys.argv:
    raise ImportError("no such library")
if __name__ == "__main__":
    apart.serve(answer)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module that a process apart finds, and returns its process."""
    monkeypatch.syspath_prepend(str(tmp_path))
    started = []

    def make(name: str, content: str) -> Apart:
        (tmp_path / f"{name}.py").write_text(content)
        started.append(Apart(name))
        return started[-1]

    yield make
    for each in started:
        each.close()


@pytest.fixture
def process(module) -> Apart:
    return module("odd_answers", ODD)


def test_calls_are_answered_one_after_the_other(process):
    first, data = process.call({"parts": ["", ""], "bytes": 2**22})
    assert (first["parts"], bytes(data)) == (2, bytes(2**22))
    second, _ = process.call({"parts": []})
    assert second == {"pid": first["pid"], "parts": 0}
    assert first["pid"] != os.getpid()


@pytest.mark.parametrize(
    ("what", "how", "outside"),
    [
        ("segfault", r"crashed the process that read it \(SIGSEGV\)", False),
        ("abort", r"crashed the process that read it \(SIGABRT\)", False),
        ("exit", r"ended the process that read it \(exit code 3\)", False),
        ("quiet exit", r"ended the process that read it \(exit code 0\)", False),
        ("loop", r"took more than .* s of processor time", False),
        ("loop in C", r"took more than .* s of processor time", False),
        ("memory", r"took more than the .* GiB of memory that a file may take", False),
        ("kill", r"was being read when the process was ended from outside \(SIGKILL\)", True),
    ],
)
def test_a_death_says_where_and_how_and_costs_one_call(process, what, how, outside):
    before, _ = process.call({"parts": [""]})
    with pytest.raises(Died, match=how) as died:
        process.call({"parts": ["", "", what, ""]})
    assert (died.value.place, died.value.outside) == (2, outside)
    after, _ = process.call({"parts": [""]})
    assert after["pid"] != before["pid"]


@pytest.mark.slow
def test_a_process_that_waits_for_ever_is_ended(process, monkeypatch):
    process.call({"parts": []})  # it has started, which takes longer on a busy machine
    with monkeypatch.context() as patch:
        patch.setattr(apart, "SILENT_SECONDS", 1.0)
        with pytest.raises(Died, match="was not read within 1 s") as died:
            process.call({"parts": ["", "sleep"]})
    assert (died.value.place, died.value.outside) == (1, True)
    assert process.call({"parts": [""]})[0]["parts"] == 1


def test_a_process_that_was_killed_while_idle_is_replaced(process):
    first, _ = process.call({"parts": []})
    os.kill(first["pid"], signal.SIGKILL)
    psutil.wait_procs([psutil.Process(first["pid"])], timeout=60)
    assert process.call({"parts": []})[0]["pid"] != first["pid"]


def test_a_process_that_cannot_start_says_why(module):
    broken = module("odd_answers", ODD.replace('if "--broken" in sys.argv:', "if True:"))
    with pytest.raises(Died, match=r"was not begun: .*ImportError: no such library") as died:
        broken.call({"parts": []})
    assert (died.value.place, died.value.outside) == (NOWHERE, True)


def test_less_memory_than_usual_is_not_the_fault_of_a_file(process):
    program = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (2**28, 2**28))\n"
        "from benchmd_ray.data.apart import Apart, Died\n"
        "try:\n"
        "    Apart('odd_answers').call({'parts': ['memory']})\n"
        "except Died as died:\n"
        "    print(died.outside, died)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True
    )
    assert told.stdout.startswith("True took more memory than this account may use (ulimit -d)")


def test_an_interrupt_leaves_no_half_answer_behind(process, monkeypatch):
    first, _ = process.call({"parts": []})
    with monkeypatch.context() as patch:
        patch.setattr(apart, "_receive", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            process.call({"parts": [], "bytes": 2**20})
    assert not psutil.pid_exists(first["pid"])
    assert process.call({"parts": ["", ""]})[0]["parts"] == 2


def test_a_forked_process_has_one_of_its_own(process):
    first, _ = process.call({"parts": []})
    child = os.fork()
    if not child:
        code = 1
        with contextlib.suppress(Exception):
            code = 2 if process.call({"parts": []})[0]["pid"] == first["pid"] else 0
            process.close()
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert process.call({"parts": []})[0]["pid"] == first["pid"]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["", "sleep", "loop"])
def test_it_ends_with_its_owner_however_that_ends(process, tmp_path, part):
    program = (
        "import sys, threading, time\n"
        "from benchmd_ray.data.apart import Apart\n"
        "process = Apart('odd_answers')\n"
        "print(process.call({'parts': []})[0]['pid'], flush=True)\n"
        f"process.call({{'parts': ['{part}']}})\n"
        "time.sleep(600)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    owner = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment
    )
    child = psutil.Process(int(owner.stdout.readline()))
    owner.kill()
    owner.communicate()
    assert psutil.wait_procs([child], timeout=60)[1] == []


def test_nothing_of_the_working_folder_is_imported(process, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "json.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert process.call({"parts": [""]})[0]["parts"] == 1


# --- builds ------------------------------------------------------------------------------------

DEADLY = """
import ctypes, dataclasses, os, signal
from pathlib import Path
from benchmd_ray.data import apart, reading
from benchmd_ray.data.datasets import DATASETS

apart.CPU_SECONDS, apart.MEMORY = 5.0, 2**31  # messages are the owner's, with its own bounds
NAMES, WAY, ONCE = os.environ["DEADLY"].split(":")

def once():
    if not Path(ONCE).exists():
        Path(ONCE).touch()
        os.abort()

WAYS = {
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "exit": lambda: os._exit(3),
    "loop": lambda: sum(range(10**12)),
    "memory": lambda: [bytes(2**20) for _ in range(2**13)],
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "once": once,
}

def deadly(read):
    def odd(root, item, card):
        found = read(root, item, card)
        if item.record_id in NAMES.split(","):
            WAYS[WAY]()
        return found
    return odd

for name, dataset in DATASETS.items():
    DATASETS[name] = dataclasses.replace(dataset, read=deadly(dataset.read))
if __name__ == "__main__":
    apart.serve(reading.answer)
"""


FIXTURES = {
    "georgia": "synthetic_raw",
    "shhs": "synthetic_eeg",
    "lidc-idri": "synthetic_ct",
}


@pytest.fixture
def raw_of(request, tmp_path):
    """The raw folder of a dataset."""

    def get(name: str) -> Path:
        if name in FIXTURES:
            return Path(request.getfixturevalue(FIXTURES[name])[name])
        generator = np.random.default_rng(1)
        arrays = {
            f"{split}_{kind}": generator.integers(0, 2, (30, *shape), np.uint8)
            for split in ("train", "val", "test")
            for kind, shape in (("images", (28, 28)), ("labels", (1,)))
        }
        (tmp_path / "medmnist").mkdir()
        np.savez(tmp_path / "medmnist" / f"{name}.npz", **arrays)
        return tmp_path / "medmnist"

    return get


@pytest.fixture
def deadly_build(module, raw_of, monkeypatch, tmp_path):
    """Builds a dataset in whose middle some raw files end the process that reads them."""
    build_in_process(monkeypatch)
    here = chunks.PROCESS

    def build(name: str, way: str, out: str = "out", files: int = 1, **changes) -> tuple:
        options = {"md5": "allow"} if name == "breastmnist" else {}
        choices = {"options": options, "allow_missing": True, "max_quarantined": 0.6} | changes
        monkeypatch.setattr(chunks, "PROCESS", here)
        raw = raw_of(name)
        whole = building.build(name, raw, tmp_path / "whole", **choices)
        card = dataset_card(name)
        _, found, _ = discovered(card, raw, "clean", None, options)
        broken = {entry["record"] for entry in whole.manifest["quarantined"]}
        sound = [item.record_id for item in found.items if item.record_id not in broken]
        victims = sound[len(sound) // 2 :][:files]
        monkeypatch.setenv("DEADLY", f"{','.join(victims)}:{way}:{tmp_path / 'once'}")
        monkeypatch.setattr(chunks, "PROCESS", module("deadly", DEADLY))
        return whole, victims, building.build(name, raw, tmp_path / out, **choices)

    return build


def records(catalog: Catalog) -> list[dict]:
    """All rows."""
    paths = [path for split in catalog.manifest["splits"] for path, *_ in catalog.shards(split)]
    return [row for path in paths for row in pq.read_table(path).to_pylist()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "way", "reason"),
    [
        ("georgia", "segfault", "crashed the process that read it (SIGSEGV)"),
        ("shhs", "exit", "ended the process that read it (exit code 3)"),
        ("lidc-idri", "memory", "took more than the 8 GiB of memory that a file may take"),
        ("breastmnist", "abort", "crashed the process that read it (SIGABRT)"),
    ],
)
def test_whatever_reader_dies_only_its_file_is_quarantined(deadly_build, name, way, reason):
    whole, (victim,), built = deadly_build(name, way)
    entries = {entry["record"]: entry["reason"] for entry in built.manifest["quarantined"]}
    others = {entry["record"]: entry["reason"] for entry in whole.manifest["quarantined"]}
    assert entries.pop(victim) == f"it {reason}, twice"
    assert entries == others
    expected = [row for row in records(whole) if not row["unit_id"].startswith(victim)]
    assert records(built) == expected
    assert 0 < len(expected) < len(records(whole))
    assert not verify(built).faults


@pytest.mark.slow
def test_several_files_of_a_chunk_that_end_the_process_are_all_found(deadly_build):
    whole, victims, built = deadly_build("georgia", "exit", files=3)
    entries = built.manifest["quarantined"]
    assert [entry["record"] for entry in entries] == victims
    assert records(built) == [row for row in records(whole) if row["record_id"] not in victims]


def test_a_file_at_which_the_process_dies_once_is_kept(deadly_build, tmp_path):
    whole, _, built = deadly_build("georgia", "once")
    assert (tmp_path / "once").exists()
    assert built.digest == whole.digest


@pytest.mark.slow
def test_a_process_ended_from_outside_quarantines_nothing(deadly_build, tmp_path):
    with pytest.raises(BenchmdError) as caught:
        deadly_build("georgia", "kill")
    message = str(caught.value)
    assert re.match(
        r"g1/E\d+\.hea was being read when .* \(SIGKILL\), the last of 3 times", message
    )
    assert "fewer --cpus" in message
    assert "Nothing was quarantined" in message
    assert not (tmp_path / "out" / "manifest.json").exists()
    _, _, built = deadly_build("georgia", "nothing", files=0)
    assert built.manifest["quarantined"] == []


@pytest.mark.slow
def test_where_names_name_patients_a_death_names_the_record(deadly_build):
    with pytest.raises(BenchmdError, match=r"^the record [0-9a-f]{16} was being read when"):
        deadly_build("shhs", "kill")


def test_a_file_that_ends_the_process_that_imports_it_is_named(
    ecg_catalogs, module, tmp_path, monkeypatch
):
    path = tmp_path / "c.h5"
    export_hdf5(ecg_catalogs["georgia"], path)
    for way, message in (
        ("ctypes.string_at(0)", r"c\.h5 cannot be imported: it crashed .*SIGSEGV.*export the"),
        ("os.kill(os.getpid(), 9)", r"c\.h5 was being read when .*SIGKILL.* same command again"),
    ):
        odd = "import ctypes, os\nfrom benchmd_ray.data import apart, hdf5\n"
        odd += f"hdf5._table = lambda *_: {way}\napart.serve(hdf5.answer)\n"
        monkeypatch.setattr(hdf5, "PROCESS", module("deadly_import", odd))
        with pytest.raises(BenchmdError, match=message):
            import_hdf5(path, tmp_path / "out")
        assert [entry.name for entry in (tmp_path / "out").iterdir()] == [".lock"]
    monkeypatch.setattr(hdf5, "PROCESS", Apart("benchmd_ray.data.hdf5"))
    assert import_hdf5(path, tmp_path / "out").digest == ecg_catalogs["georgia"].digest


@pytest.mark.ray
@pytest.mark.slow
def test_a_ray_worker_that_is_lost_again_and_again_ends_the_build(
    ray_cluster, synthetic_photos, tmp_path
):
    raw = Path(shutil.copytree(synthetic_photos["aptos-2019"], tmp_path / "raw"))
    (first, *_) = sorted((raw / "train_images").iterdir())
    first.unlink()
    os.mkfifo(first)  # whoever opens it waits
    killed, over = set(), threading.Event()

    def kill() -> None:
        while not over.wait(0.1):
            for one in shared_ray.processes():
                with contextlib.suppress(psutil.Error):
                    busy = "benchmd_ray.data.reading" in " ".join(one.cmdline())
                    if busy and one.ppid() not in killed:
                        killed.add(one.ppid())
                        psutil.Process(one.ppid()).kill()

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        with pytest.raises(BenchmdError, match=r"that built the records .* was lost 4 times"):
            building.build("aptos-2019", raw, tmp_path / "out", allow_missing=True)
    finally:
        over.set()
        thread.join()
    assert len(killed) >= 4
