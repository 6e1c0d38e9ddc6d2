"""Captured steps on a stub of the CUDA runtime: launches, nodes, waits, memory and fallbacks.

``BENCHMD_GPU_STUB`` is a command that runs Python with PyTorch's CUDA build over the stub, such as
``bash run.sh VENV`` with ``SRC`` and ``STUB_OUT`` set.
"""

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from speed.gpu import MOVED

FLOWS = ["streaming", "linear", "nearest neighbours", "random kernels", "ResNet", "segmentation"]
COMMAND = os.environ.get("BENCHMD_GPU_STUB", "")
pytestmark = [
    pytest.mark.gpu_stub,
    pytest.mark.nightly,
    pytest.mark.skipif(not COMMAND, reason="BENCHMD_GPU_STUB names no stub"),
]


def on_stub(*what):
    script = Path(__file__).with_name("on_stub.py")
    done = subprocess.run(
        [*shlex.split(COMMAND), str(script), *what], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("technique", ["mae", "shed", "e-mix"])
@pytest.mark.parametrize("kind", ["ecg", "ldct"])
def test_a_usual_step_is_one_graph_without_waits(kind, technique):
    found = on_stub("usual_step", kind, technique)
    assert found["launches"] <= 18
    assert found["waits"] == 0
    assert 100 < found["nodes"] <= 640


@pytest.mark.parametrize("name", MOVED)
def test_bytes_of_the_limit_are_those_of_a_step(name):
    _, kind, technique, way = name.split()
    counted = on_stub("moved_compiled" if way == "compiled" else "moved", kind, technique)
    assert counted["gb"] == pytest.approx(MOVED[name], rel=0.01)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("ecg", "shift intensity noise masking lead_dropout wander mixup"),
        ("cxr", "flip shift affine blur intensity noise masking mixup cutmix"),
        ("ldct", "flip affine noise cutmix"),
    ],
)
def test_augmentation_is_part_of_the_graph(kind, names):
    plain, found = on_stub("augmented_step", kind), on_stub("augmented_step", kind, *names.split())
    assert found["waits"] == 0
    assert found["launches"] <= plain["launches"] + 6  # its draws are copied


def test_training_goes_on_while_a_checkpoint_is_copied():
    assert on_stub("checkpoint")["waits"] <= 3


def test_memory_is_given_back():
    taken = on_stub("memory")["taken"]
    assert max(taken[2:]) <= taken[1]


def test_a_method_that_cannot_be_captured_spoils_no_other_training():
    found = on_stub("fallback")
    assert any("steps cannot be captured" in line for line in found["first"])
    assert found["next"] == []
    assert found["launches"] <= 18


@pytest.mark.parametrize("name", FLOWS)
def test_training_scoring_and_detection_run_without_a_warning_on_the_stub(name):
    """The stub's Python also needs pandas, scikit-learn, scipy, Ray, MONAI and SimpleITK."""
    assert on_stub("flow", name)["warnings"] == []
