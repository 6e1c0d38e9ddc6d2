"""Which room may import which: read from the imports themselves."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "benchmd_ray"
FOUNDATION = {
    "arrays",
    "benchmd_ray",
    "card_folders",
    "errors",
    "files",
    "hardware",
    "integrity",
    "interrupts",
}
FOUNDATION |= {"modalities", "parquet", "plain_yaml", "plugins", "progress", "repeating"}
FOUNDATION |= {"sessions", "settings", "signals", "storage", "tasks", "telemetry"}
FOUNDATION |= {"training_log", "typed"}
SCORES = {"evaluation.metrics"}
ROOMS = {
    "storage": {"errors", "files", "repeating", "storage"},
    "data": FOUNDATION | {"cluster", "data"},
    "models": FOUNDATION | {"models"},
    "ssl": FOUNDATION | {"models", "ssl"},
    "training": FOUNDATION | SCORES | {"cluster", "data", "models", "ssl", "training"},
    "evaluation": FOUNDATION | {"data", "models", "training", "evaluation"},
    "tuning": FOUNDATION | SCORES | {"cluster", "data", "models", "ssl", "training", "tuning"},
    "results": FOUNDATION | {"data", "evaluation", "results", "tuning.records"},
    "service": FOUNDATION
    | {"cluster", "data", "models", "ssl", "training", "evaluation", "results", "service"}
    | {"head", "tuning"},
}
RAY = {"cluster.py", "telemetry.py", "training/launch.py"}
MODULES = sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def own(path: Path) -> set[str]:
    return {
        name.removeprefix("benchmd_ray.") for name in imports(path) if name.startswith("benchmd_")
    }


def external(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def test_the_modules_are_found():
    assert {"cli/group.py", "data/feed.py", "training/engine.py"} <= {relative(p) for p in MODULES}


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_a_room_imports_only_the_rooms_above_it(path):
    room = relative(path).split("/")[0]
    for name in own(path) if room in ROOMS else ():
        allowed = ROOMS[room]
        assert name.split(".")[0] in allowed or name in allowed, f"{relative(path)} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_ray_is_imported_where_the_design_says(path):
    if "ray" in external(path):
        assert relative(path) in RAY or relative(path).split("/")[0] in ("tuning", "service")


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_torch_stays_out_of_the_data_room_but_for_batches(path):
    if relative(path).startswith("data/") and "torch" in external(path):
        assert relative(path) in ("data/batches.py", "data/feed.py", "data/normalise.py")


@pytest.mark.parametrize("name", ["metrics", "ranking", "resampling", "sums"])
def test_scores_need_numpy_and_scikit_learn_alone(name):
    used = external(PACKAGE / "evaluation" / f"{name}.py")
    standard = {"__future__", "collections", "concurrent", "dataclasses", "functools", "itertools"}
    assert used <= standard | {"math", "os", "typing", "numpy", "sklearn", "benchmd_ray"}


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_modules_stay_readable_in_length(path):
    assert len(path.read_text("utf-8").splitlines()) <= 600


def test_importing_the_command_line_starts_nothing_heavy():
    import subprocess
    import sys

    code = "import sys, benchmd_ray.cli; print([m for m in ('ray', 'torch') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
