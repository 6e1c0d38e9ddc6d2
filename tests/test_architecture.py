"""Which room may import which, read from the imports themselves."""

import ast
import importlib
import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "benchmd_ray"
FLOORS = (
    "errors",
    "_version",
    "schema",
    "files",
    "console",
    "extensions",
    "cluster",
    "modality",
    "settings",
    "storage",
    "scores",
    "data",
    "demo",
    "models",
    "ssl",
    "runs",
    "training",
    "tuning",
    "evaluation",
    "report",
    "board",
    "export",
    "tracking",
    "service",
    "cli",
    "benchmarks",
    "api",
)
"""Rooms and modules at the top of the package, from the lowest floor: imports go down only."""
RANK = {room: number for number, room in enumerate(FLOORS)}
RAY = {"cluster/connection.py", "cluster/telemetry.py", "training/launch.py"}
RAY |= {"training/ray_train.py"}
MODULES = sorted(PACKAGE.rglob("*.py"))


@cache
def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for name in (f"{node.module}.{alias.name}" for alias in node.names):
                found.add(name if is_module(name) else node.module)
    return found


def is_module(name: str) -> bool:
    """Whether it is one of the package's."""
    path = PACKAGE.parent / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or path.is_dir()


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


def room_of(name: str) -> str:
    """Of a module's dotted name, or of its path in the package."""
    return re.split(r"[./]", name)[0]


def dotted(path: Path) -> str:
    return relative(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def test_the_top_of_the_package_has_rooms_and_four_modules():
    modules = {p.stem for p in PACKAGE.glob("*.py")}
    assert modules == {"__init__", "_version", "api", "errors"}
    rooms = {p.name for p in PACKAGE.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    assert rooms | modules - {"__init__"} == set(FLOORS)


def test_no_import_runs_upward():
    for path in MODULES:
        here = room_of(dotted(path))
        for name in own(path) if here in RANK else ():
            place = f"{relative(path)} imports {name}"
            assert room_of(name) == "benchmd_ray" or RANK[room_of(name)] <= RANK[here], place


def test_no_imports_go_in_a_circle():
    below = {dotted(path): own(path) for path in MODULES}
    waiting = {name: {n for n in names if n in below} - {name} for name, names in below.items()}
    while free := [name for name, names in waiting.items() if not names]:
        for name in free:
            del waiting[name]
        waiting = {name: names.difference(free) for name, names in waiting.items()}
    assert waiting == {}


def test_scores_know_nothing_of_what_they_score():
    for path in MODULES:
        if room_of(relative(path)) == "scores":
            assert {room_of(name) for name in own(path)} <= {"errors", "modality", "scores"}


def test_no_benchmark_knows_another():
    for path in (PACKAGE / "benchmarks").rglob("*/*.py"):
        named = {name.split(".")[1] for name in own(path) if name.startswith("benchmarks.")}
        assert named <= {path.relative_to(PACKAGE / "benchmarks").parts[0]}


def test_ray_is_imported_where_the_design_says():
    users = {relative(path) for path in MODULES if "ray" in external(path)}
    assert {path for path in users if path.split("/")[0] not in ("tuning", "service")} == RAY


def test_only_where_an_address_is_opened_are_the_modules_of_s3_imported():
    stores = {f"runs.{name}" for name in ("mirror", "publication", "remote")}
    s3 = stores | {"storage.bucket", "storage.lease", "storage.segments"}
    of_s3 = {f"{name.replace('.', '/')}.py" for name in s3}
    assert of_s3 <= {relative(path) for path in MODULES}
    users = {relative(path): own(path) & s3 for path in MODULES if relative(path) not in of_s3}
    opening = {
        "runs/places.py": {"runs.remote"},
        "storage/location.py": {"storage.bucket", "storage.lease", "storage.segments"},
    }
    assert {path: used for path, used in users.items() if used} == opening
    for path in opening:  # and not before there is an address
        body = ast.parse((PACKAGE / path).read_text("utf-8")).body
        at_once = {node.module for node in body if isinstance(node, ast.ImportFrom)}
        assert not at_once & {f"benchmd_ray.{name}" for name in s3}


def test_torch_stays_out_of_the_data_room_but_for_batches():
    users = {relative(path) for path in MODULES if "torch" in external(path)}
    batches = {f"data/{name}.py" for name in ("batches", "map_style", "normalise", "streaming")}
    assert {path for path in users if path.startswith("data/")} == batches


@pytest.mark.parametrize("name", ["metrics", "ranking", "resampling", "sums"])
def test_scores_need_numpy_and_scikit_learn_alone(name):
    used = external(PACKAGE / "scores" / f"{name}.py")
    standard = {"__future__", "collections", "concurrent", "dataclasses", "functools", "itertools"}
    assert used <= standard | {"math", "os", "typing", "numpy", "sklearn", "benchmd_ray"}


def test_modules_stay_readable_in_length():
    lengths = {relative(path): len(path.read_text("utf-8").splitlines()) for path in MODULES}
    assert {path: length for path, length in lengths.items() if length > 600} == {}


@pytest.mark.parametrize(
    "arguments",
    [[], ["list", "."], ["run", "--dry-run", "--gpus", "8", "--tflops", "60"]],
    ids=["nothing", "list", "dry run"],
)
def test_lists_and_dry_runs_need_nothing_heavy(arguments, tmp_path):
    import subprocess
    import sys

    code = (
        "import sys; from benchmd_ray.cli import main; "
        "main(sys.argv[1:], standalone_mode=False) if sys.argv[1:] else None; "
        "print([m for m in ('ray', 'torch') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code, *arguments]
    out = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert out.stdout.strip().splitlines()[-1] == "[]"


def test_items_are_asked_for_their_step_instead_of_being_told_apart_by_name():
    compared = re.compile(r"\b(item|i|draft|plan|work)\.(kind|stage) (==|!=|in|not in)\b")
    paths = [
        p
        for room in ("service", "runs", "report", "tuning")
        for p in (PACKAGE / room).rglob("*.py")
    ]
    assert [relative(p) for p in paths if compared.search(p.read_text("utf-8"))] == []


def said(path: Path) -> set[str]:
    """Names and strings of a module, without its docstrings and comments."""
    found = set(imports(path))
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        for text in (getattr(node, name, None) for name in ("id", "attr", "name", "arg")):
            found |= {text} if isinstance(text, str) else set()
        inside = [] if isinstance(node, ast.Expr) else list(ast.iter_child_nodes(node))
        found |= {n.value for n in inside if isinstance(n, ast.Constant) and type(n.value) is str}
    return found


def test_no_module_outside_its_folder_names_a_benchmark():
    named = re.compile(r"benchmarks\.\w|medmnist", re.IGNORECASE)
    data = ("data/", "benchmarks/")  # its datasets are datasets like any other
    paths = [p for p in MODULES if not relative(p).startswith(data)]
    found = {relative(p): [s for s in said(p) if named.search(s)] for p in paths}
    assert {path: names for path, names in found.items() if names} == {}


def test_what_the_measurements_of_speed_import_is_there():
    rooms = ("speed", "studies")
    for path in sorted(p for room in rooms for p in (PACKAGE.parent / room).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("benchmd_ray"):
                module = importlib.import_module(node.module)
                for name in (each.name for each in node.names):
                    own = hasattr(module, name)
                    own = own or importlib.util.find_spec(f"{node.module}.{name}") is not None
                    assert own, f"{path.name} imports {name} of {node.module}"
