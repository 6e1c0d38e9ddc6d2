"""Pytest plug-in: tiers of tests, their distribution over processes, and limits on quick tests.

``make test`` runs the tests not marked ``slow``, ``make test-all`` those not marked ``nightly``,
``make test-nightly`` the nightly ones. The marks ``ray`` and ``nightly`` imply ``slow``.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import time
from collections.abc import Generator, Hashable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
from xdist.scheduler import LoadScopeScheduling

PROJECT = Path(__file__).resolve().parent.parent
LIGHT = Path(__file__).with_name("light")
"""Contains a ``sitecustomize`` that refuses to import PyTorch."""

LONGEST = 5.0
"""Seconds that a test not marked ``slow`` may take; more where several processes share a core."""

SHARES = ("sample", pytest.param("whole", marks=pytest.mark.nightly))
"""Parameters of a test that tries a sample of its inputs, and all of them in the nightly tier."""

T = TypeVar("T")


def by_tier(quick: Iterable[T], slow: Iterable[T], nightly: Iterable[T] = ()) -> list[Any]:
    """Parameters of a test, each in the first tier that names it."""
    marked: dict[T, Any] = {value: value for value in quick}
    for values, mark in ((slow, pytest.mark.slow), (nightly, pytest.mark.nightly)):
        for value in values:
            marked.setdefault(value, pytest.param(value, marks=mark))
    return list(marked.values())


# Tiers and distribution


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Add implied marks and groups; slow tests come first, so that none is left at the end."""
    for item in items:
        if item.get_closest_marker("ray") or item.get_closest_marker("nightly"):
            item.add_marker("slow")
        if item.get_closest_marker("ray"):  # before fixtures that start Ray
            item.fixturenames.insert(0, "ray_cluster")  # type: ignore[attr-defined]
    for group, members in _sharing(items).items():
        if any(item.get_closest_marker("slow") for item in members):
            for item in members:
                if not item.get_closest_marker("xdist_group"):
                    item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


def _sharing(items: Iterable[pytest.Item]) -> dict[str, list[pytest.Item]]:
    """Groups of tests of a file that share module fixtures, by name; other tests are alone.

    They are the connected components of the graph of tests and fixtures.
    """
    root: dict[Hashable, Hashable] = {}  # of each node of a union-find forest, its parent

    def top(key: Hashable) -> Hashable:
        while root.setdefault(key, key) != key:
            key = root[key]
        return key

    for item in items:
        for fixture in _of_module(item):
            root[top((item.path, fixture))] = top(item.nodeid)
    groups: dict[Hashable, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(top(item.nodeid), []).append(item)
    return {f"{g[0].path.stem}-{number}": g for number, g in enumerate(groups.values())}


def _of_module(item: pytest.Item) -> Iterator[str]:
    """Names of the module-scoped fixtures that a test uses."""
    for name, definitions in item._fixtureinfo.name2fixturedefs.items():  # type: ignore[attr-defined]
        if definitions[-1].scope == "module":
            yield name


class Scheduling(LoadScopeScheduling):
    """Distributes whole groups, and whole files of tests that have no group."""

    def _split_scope(self, nodeid: str) -> str:
        _, mark, group = nodeid.rpartition("@")
        if mark and "]" not in group:
            return group
        return nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """Use `Scheduling` with ``--dist loadgroup``."""
    return Scheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


# Time limit


def _crowd() -> float:
    """Processes that want a core, for each core; at least 1. A test's own ones wait likewise."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fail a test that takes too long and is not marked slow, unless the slow ones run, too."""
    begun = time.perf_counter()
    result = yield
    seconds = (time.perf_counter() - begun) / _crowd()
    with_slow = item.config.getoption("markexpr") == "not nightly"
    if seconds > LONGEST and not with_slow and not item.get_closest_marker("slow"):
        pytest.fail(
            f"took {seconds:.1f} s, less on a busy machine; a test not marked slow may take "
            f"{LONGEST:g} s: make it faster or mark it slow.",
            pytrace=False,
        )
    return result


# What a test may start


@pytest.fixture(autouse=True)
def starts_what_its_marks_say(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Refuse Ray in tests not marked ``ray``, and PyTorch in child processes of quick tests."""

    def refused(*_: object, **__: object) -> None:
        pytest.fail("it starts Ray: mark it ray.")

    if not request.node.get_closest_marker("ray"):
        monkeypatch.setattr("ray.init", refused)
        # This process may be connected since another test: that connection is not for this one.
        monkeypatch.setattr("ray.is_initialized", lambda: False)
        monkeypatch.setattr("ray.shutdown", lambda: None)
    if request.node.get_closest_marker("slow"):
        yield
        return
    imported = tmp_path.parent / f"{tmp_path.name}-imported-torch"
    path = [str(LIGHT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.setenv("BENCHMD_TEST_IMPORTED", str(imported))
    yield
    if imported.exists():
        pytest.fail("a process that it started imports PyTorch: mark it slow.")


# Samples


@cache
def seed() -> str:
    """Seed of the samples: ``BENCHMD_TEST_SEED``, else the commit."""
    if given := os.environ.get("BENCHMD_TEST_SEED"):
        return given
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=PROJECT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "no commit"  # an unpacked archive
    return done.stdout.strip()[:12]


def sample(share: str, inputs: Sequence[T], count: int, what: str) -> list[T]:
    """Draw some of the inputs of a test, in their order.

    Args:
        share: ``sample``, or ``whole`` for all inputs; see `SHARES`.
        inputs: All inputs.
        count: Size of the sample.
        what: Names the inputs; samples of different names are independent.
    """
    if share == "whole" or len(inputs) <= count:
        return list(inputs)
    digest = hashlib.sha256(f"{seed()} {what}".encode()).digest()
    drawn = random.Random(digest).sample(range(len(inputs)), count)
    return [inputs[place] for place in sorted(drawn)]


def pytest_report_header() -> str:
    """Show how to repeat the samples."""
    return f"samples: BENCHMD_TEST_SEED={seed()!r}"
