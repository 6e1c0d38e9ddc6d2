"""Private parts of Ray and DeepSpeed: there in the versions that the package asks for."""

from __future__ import annotations

import ast
import configparser
from importlib.metadata import version
from pathlib import Path

import pytest

import benchmd_ray
from benchmd_ray.errors import BenchmdError
from benchmd_ray.private_parts import private_part

PACKAGE = Path(benchmd_ray.__file__).parent


def test_a_part_that_is_gone_is_said_with_the_versions_that_have_it():
    with pytest.raises(BenchmdError, match=rf"ray {version('ray')} has no ray\._private\.gone\.x"):
        private_part("ray._private.gone", "x")
    with pytest.raises(BenchmdError, match=r"ray\._private\.utils\.gone, .* install ray\["):
        private_part("ray._private.utils", "gone")


def test_every_private_part_is_asked_for_by_name_and_is_there():
    asked = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                place = f"{path.name}, line {node.lineno}"
                assert not node.module.startswith(("ray._", "deepspeed._")), place
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "private_part":
                asked.add(tuple(each.value for each in node.args))
    assert len(asked) >= 6
    for module, name in asked:
        assert private_part(module, name) is not None


@pytest.mark.parametrize("package", ["ray", "deepspeed"])
def test_packages_with_private_parts_are_bounded_from_above(package):
    setup = configparser.ConfigParser()
    setup.read(PACKAGE.parent / "setup.cfg")
    (stated,) = [
        line for line in setup["options"]["install_requires"].split() if line.startswith(package)
    ]
    assert ",<" in stated
