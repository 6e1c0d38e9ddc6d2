"""What is recorded of the hardware that computes, and what never is."""

from __future__ import annotations

import getpass
import json
import os
import platform
import re
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmd_ray.cluster import hardware as module
from benchmd_ray.cluster.hardware import Hardware, from_json, hardware
from benchmd_ray.runs.history import SESSIONS, record_session, trained_by

CPU = torch.device("cpu")
A = Hardware("Intel(R) Xeon(R) (family 6, model 85)", "PyTorch AVX512, NumPy X86_V4", "2")
B = Hardware("AMD EPYC (family 25, model 17)", "PyTorch AVX2, NumPy X86_V3", "4")
CPU_INFO = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 106
model name\t: Intel(R)  Xeon(R) Processor @ 2.90GHz
Serial\t\t: 00000000deadbeef
physical id\t: 0

processor\t: 1
cpu family\t: 7
model name\t: another one
"""


@pytest.fixture
def cpu_info(tmp_path, monkeypatch):
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(module, "CPU_INFO", path)
    return path


def described(code="pass", **environment):
    """The description that a fresh process gives."""
    code = f"import torch; {code}; from benchmd_ray.cluster.hardware import hardware; "
    code += "print(hardware(torch.device('cpu')).to_json())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return from_json(done.stdout)


def test_the_processor_is_that_of_the_system():
    fields = dict(
        re.split(r"\s*:\s*", line, maxsplit=1)
        for line in subprocess.check_output(["lscpu"], text=True, env={"LC_ALL": "C"}).splitlines()
        if ":" in line
    )
    expected = f"{fields['Model name']} (family {fields['CPU family']}, model {fields['Model']})"
    assert hardware(CPU).model == " ".join(expected.split())


def test_a_general_name_of_a_processor_comes_with_its_numbers(cpu_info):
    cpu_info.write_text(CPU_INFO)
    expected = "Intel(R) Xeon(R) Processor @ 2.90GHz (family 6, model 106)"
    assert hardware(CPU).model == expected


@pytest.mark.parametrize("text", [None, "processor : 0\nCPU part : 0xd0c\nSerial : 1000deadbeef\n"])
def test_a_processor_without_a_name_is_named_by_its_architecture(cpu_info, text):
    if text is not None:
        cpu_info.write_text(text)
    assert hardware(CPU).model == (platform.processor() or platform.machine())


@pytest.mark.slow
def test_instructions_are_those_that_the_libraries_chose():
    found = np.show_config(mode="dicts")["SIMD Extensions"]
    found = found.get("found", found["baseline"])
    torch_says = re.search(r"CPU capability usage: (\w+)", torch.__config__.show())[1]
    assert hardware(CPU).instructions == f"PyTorch {torch_says}, NumPy {found[-1]}"
    fewer = described(
        ATEN_CPU_CAPABILITY="default",
        NPY_DISABLE_CPU_FEATURES=found[-1],
        ONEDNN_MAX_CPU_ISA="AVX2",
        MKL_CBWR="my host.example.org",
    )
    best = found[-2] if len(found) > 1 else "X86_V2"
    assert fewer.instructions == f"PyTorch DEFAULT, NumPy {best}, ONEDNN_MAX_CPU_ISA=AVX2"


@pytest.mark.parametrize(
    ("extensions", "last"),
    [
        ({"SIMD Extensions": {"baseline": ["X86_V2"]}}, "X86_V2"),
        ({"SIMD Extensions": {"found": ["ASIMDDP"]}}, "ASIMDDP"),
        ({}, "no extensions"),
    ],
)
def test_numpy_says_nothing_of_extensions_that_it_lacks(monkeypatch, extensions, last):
    monkeypatch.setattr(np, "show_config", lambda mode: extensions)
    assert hardware(CPU).instructions.partition(", ")[2] == f"NumPy {last}"


@pytest.mark.slow
def test_threads_are_those_of_pytorch_and_of_openmp_where_they_differ():
    assert described("torch.set_num_threads(3)").threads == "3"
    assert described(OMP_NUM_THREADS="1").threads == "1"


def test_a_gpu_is_named_by_model_capability_and_libraries(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, device.index))
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    found = hardware(torch.device("cuda", 1))
    assert found == Hardware("GPU 1", "compute capability 9.1, CUDA 12.8, cuDNN 91002", "")
    assert str(found) == "GPU 1, compute capability 9.1, CUDA 12.8, cuDNN 91002"


def test_nothing_identifying_is_described(cpu_info):
    cpu_info.write_text(CPU_INFO)
    text = hardware(CPU).to_json()
    assert "deadbeef" not in text
    for private in (socket.gethostname(), str(Path.home()), getpass.getuser(), os.getcwd()):
        assert not re.search(rf"(?<!\w){re.escape(private)}(?!\w)", text)


def test_a_description_is_read_back():
    assert from_json(A.to_json()) == A
    assert str(A) == f"{A.model}, {A.instructions}, 2 threads"
    for text in (
        "{",
        "[]",
        "null",
        '{"model": "x"}',
        '{"model": 1, "instructions": "", "threads": ""}',
    ):
        with pytest.raises(ValueError):  # noqa: PT011 - JSON's own or ours
            from_json(text)


def test_the_sessions_of_a_run_are_those_whose_work_went_into_it(tmp_path):
    assert trained_by(tmp_path) == ()
    record_session(tmp_path, [A, A], 0)
    assert trained_by(tmp_path) == (A,)
    record_session(tmp_path, [B], 0)  # the first one left no checkpoint
    assert trained_by(tmp_path) == (B,)
    record_session(tmp_path, [A, B], 100)
    assert trained_by(tmp_path) == (B, A)
    record_session(tmp_path, [B], 50)  # the checkpoint of step 100 was lost, and all after 50
    assert trained_by(tmp_path) == (B,)
    lines = [json.loads(line) for line in (tmp_path / SESSIONS).read_text().splitlines()]
    assert [line["from"] for line in lines] == [0, 50]


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "7",
        '{"from": 0}',
        '{"from": "x", "workers": []}',
        '{"from": 0, "workers": [3]}',
        '{"fr',
    ],
)
def test_a_damaged_line_is_passed_over(tmp_path, line):
    record_session(tmp_path, [A], 0)
    with (tmp_path / SESSIONS).open("a") as file:
        file.write(line + "\n")
    assert trained_by(tmp_path) == (A,)
    record_session(tmp_path, [B], 10)
    assert trained_by(tmp_path) == (A, B)


def test_importing_it_loads_no_library():
    code = "import sys, benchmd_ray.cluster.hardware; "
    code += "print([m for m in ('torch', 'numpy', 'ray') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
