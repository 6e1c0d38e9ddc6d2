"""Private parts of Ray and DeepSpeed: there in the versions that the package asks for."""

from __future__ import annotations

import ast
import configparser
from importlib.metadata import version
from pathlib import Path

import pytest
from ray._private import utils

import benchmd_ray
from benchmd_ray.errors import BenchmdError
from benchmd_ray.extensions import private_parts
from benchmd_ray.extensions.private_parts import private_part, replaced

PACKAGE = Path(benchmd_ray.__file__).parent


def test_a_part_that_is_gone_is_said_with_the_versions_that_have_it():
    with pytest.raises(BenchmdError, match=rf"ray {version('ray')} has no ray\._private\.gone\.x"):
        private_part("ray._private.gone", "x")
    with pytest.raises(BenchmdError, match=r"ray\._private\.utils\.gone, .* install ray\["):
        private_part("ray._private.utils", "gone")


def test_every_private_part_is_asked_for_by_name_and_is_there():
    asking, asked = ("private_part", "replaced"), set()
    for path in set(PACKAGE.rglob("*.py")) - {PACKAGE / "extensions/private_parts.py"}:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                place = f"{path.name}, line {node.lineno}"
                assert not node.module.startswith(("ray._", "deepspeed._")), place
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in asking:
                place, name = node.args[:2]
                asked.add((place.value, name.value))
    assert len(asked) >= 6
    for module, name in asked:
        assert private_part(module, name) is not None


def test_a_part_is_replaced_for_the_time_being_and_never_made():
    with replaced("benchmd_ray.extensions.private_parts", "version", "instead"):
        assert private_parts.version == "instead"
    with (
        pytest.raises(ZeroDivisionError),
        replaced("benchmd_ray.extensions.private_parts", "version", lambda _: 1 / 0),
    ):
        private_parts.version("ray")
    assert private_parts.version is version
    with (
        pytest.raises(BenchmdError, match=r"has no ray\._private\.utils\.gone"),
        replaced("ray._private.utils", "gone", None),
    ):
        pytest.fail("a part that is not there was replaced")
    assert not hasattr(utils, "gone")


@pytest.mark.parametrize("package", ["ray", "deepspeed"])
def test_packages_with_private_parts_are_bounded_from_above(package):
    setup = configparser.ConfigParser()
    setup.read(PACKAGE.parent / "setup.cfg")
    lines = [setup["options"]["install_requires"], *setup["options.extras_require"].values()]
    (stated,) = [line for line in "\n".join(lines).split() if line.startswith(package)]
    assert ",<" in stated
