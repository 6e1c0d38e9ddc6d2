"""The suite's own rules: marks, time limit, groups, samples, cached folders, the shared Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import made_once as module
import psutil
import pytest
import tiers
from made_once import INDEX, MadeOnce
from waiting import until

pytest_plugins = ("pytester",)

TESTS = Path(__file__).parent
MARKS = "slow nightly ray"


@pytest.fixture
def run(pytester, monkeypatch):
    """Runs tests under the rules in this process; returns the outcomes."""
    pytester.makeini("[pytest]\nmarkers =\n" + "".join(f"    {m}\n" for m in MARKS.split()))
    pytester.makeconftest(
        """
        import pytest
        @pytest.fixture(scope="session")
        def ray_cluster(request):
            request.config.has_ray = True
        """
    )

    def start(code, *arguments, load=0.0):
        pytester.makepyfile(code)
        with monkeypatch.context() as patch:
            patch.setattr(tiers, "LONGEST", 0.1)
            patch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
            return pytester.runpytest_inprocess("-p", "tiers", *arguments)

    return start


def test_a_long_test_fails_unless_it_is_marked_slow(run):
    result = run(
        """
        import pytest, time
        def test_long():
            time.sleep(0.2)
        def test_short():
            pass
        @pytest.mark.slow
        def test_marked():
            time.sleep(0.2)
        """
    )
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.re_match_lines([r".*took 0\.\d s, .*; a test not marked slow may take 0\.1 s"])


def test_a_busy_machine_gives_a_test_more_time(run):
    code = "import time\ndef test_it():\n    time.sleep(0.2)\n"
    run(code, load=4.0 * os.cpu_count()).assert_outcomes(passed=1)
    run(code, load=1.0 * os.cpu_count()).assert_outcomes(failed=1)


def test_the_limit_is_none_of_a_run_that_has_the_slow_tests(run):
    """There a machine that is busy for a moment would end a run of an hour."""
    code = "import time\ndef test_it():\n    time.sleep(0.2)\n"
    run(code, "-m", "not nightly").assert_outcomes(passed=1)
    run(code, "-m", "not slow").assert_outcomes(failed=1)


def test_a_failure_of_a_long_test_is_reported_as_such(run):
    result = run(
        "import time\ndef test_it():\n    time.sleep(0.2)\n    assert 0, 'its own reason'\n"
    )
    result.stdout.fnmatch_lines(["*its own reason*"])
    result.stdout.no_fnmatch_line("*may take*")


def test_only_tests_marked_ray_start_it(run):
    result = run(
        """
        import pytest, ray
        def test_unmarked():
            ray.init()
        @pytest.mark.ray
        def test_marked(request):
            assert request.config.has_ray
        """
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*it starts Ray: mark it ray*"])


@pytest.mark.slow
def test_only_slow_tests_start_processes_that_import_pytorch(run):
    result = run(
        """
        import pytest, subprocess, sys
        def start(code):
            subprocess.run([sys.executable, "-c", code], check=True)
        def test_unmarked():
            start("import torch")
        def test_other():
            start("import json")
        @pytest.mark.slow
        def test_marked():
            start("import torch")
        """
    )
    result.assert_outcomes(passed=2, failed=1, errors=1)


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("not slow", ["plain"]),
        ("not nightly", ["ray", "slow", "plain"]),
        ("nightly", ["nightly"]),
    ],
)
def test_marks_select_the_tiers(run, expression, names):
    result = run(
        """
        import pytest
        def test_plain(): pass
        @pytest.mark.ray
        def test_ray(): pass
        @pytest.mark.nightly
        def test_nightly(): pass
        @pytest.mark.slow
        def test_slow(): pass
        """,
        "--collect-only",
        "-q",
        "-m",
        expression,
    )
    selected = [line.split("::test_")[1] for line in result.outlines if "::" in line]
    assert selected == sorted(names, key=["ray", "nightly", "slow", "plain"].index)


def test_parameters_are_of_the_first_tier_that_names_them():
    found = tiers.by_tier("a", "ab", "abc")
    assert found[0] == "a"
    assert [(p.values, [m.name for m in p.marks]) for p in found[1:]] == [
        (("b",), ["slow"]),
        (("c",), ["nightly"]),
    ]


def test_slow_tests_that_share_a_module_fixture_share_a_group(pytester, run):
    run(
        """
        import pytest
        @pytest.fixture(scope="module")
        def one(): pass
        @pytest.fixture(scope="module")
        def other(one): pass
        @pytest.fixture(scope="module")
        def third(): pass
        @pytest.mark.slow
        def test_a(one): pass
        def test_b(other): pass
        @pytest.mark.slow
        def test_c(third): pass
        @pytest.mark.slow
        def test_d(): pass
        def test_e(): pass
        """,
        "--collect-only",
    )
    items = pytester.getitems((pytester.path / f"{pytester._name}.py").read_text())
    tiers.pytest_collection_modifyitems(items)
    groups = {}
    for item in items:
        mark = item.get_closest_marker("xdist_group")
        groups[item.name] = mark.args[0] if mark else None
    assert groups["test_a"] == groups["test_b"]
    assert groups["test_e"] is None
    assert len({groups[f"test_{n}"] for n in "acd"}) == 3
    assert [item.name for item in items][-1] == "test_e"


def test_a_group_and_a_file_are_units_of_work():
    scheduling = tiers.Scheduling.__new__(tiers.Scheduling)
    split = scheduling._split_scope
    assert split("tests/test_a.py::test_it[x]@test_a-3") == "test_a-3"
    assert split("tests/test_a.py::test_it[a@b]") == "tests/test_a.py"
    assert split("tests/test_a.py::test_other") == "tests/test_a.py"


def test_a_sample_is_that_of_its_seed(monkeypatch):
    def drawn(seed, what="it"):
        monkeypatch.setattr(tiers, "seed", lambda: seed)
        return tiers.sample("sample", range(1000), 20, what)

    assert drawn("a") == drawn("a") == sorted(set(drawn("a")))
    assert len(drawn("a")) == 20
    assert len({tuple(drawn("a")), tuple(drawn("b")), tuple(drawn("a", "other"))}) == 3
    assert tiers.sample("whole", range(1000), 20, "it") == list(range(1000))
    assert tiers.sample("sample", "abc", 3, "it") == ["a", "b", "c"]


def test_the_seed_of_samples_is_the_commit_or_what_is_asked_for(monkeypatch):
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=TESTS, capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip("not a checkout of git")
    monkeypatch.delenv("BENCHMD_TEST_SEED", raising=False)
    assert done.stdout.startswith(tiers.seed.__wrapped__())
    monkeypatch.setenv("BENCHMD_TEST_SEED", "mine")
    assert tiers.seed.__wrapped__() == "mine"


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Asks for a folder, and how often it was made."""
    state = {"code": "a" * 64, "times": 0}
    monkeypatch.setattr(module, "state_of_the_code", lambda place: state["code"])

    def make(folder):
        state["times"] += 1
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_text("content")

    return (lambda: MadeOnce(tmp_path).folder("it", make)), state


def test_a_folder_is_made_once_for_a_state_of_the_code(made, tmp_path):
    ask, state = made
    assert ask() == ask()
    assert (ask() / "sub" / "file").read_text() == "content"
    assert state["times"] == 1
    (old,) = tmp_path.glob("it-*")
    state["code"] = "b" * 64
    assert ask().parent != old
    assert state["times"] == 2
    assert old.exists()  # another run may use it
    os.utime(old, (0, 0))
    odd = tmp_path / f"it-{'d' * 12}-0"  # a file where a folder should be
    odd.touch()
    os.utime(odd, (0, 0))
    state["code"] = "c" * 64
    ask()
    assert not old.exists()
    assert not odd.exists()


@pytest.mark.parametrize("damage", ["changed", "lost", "more", "unfinished", "index"])
def test_a_damaged_folder_is_made_anew(made, damage):
    ask, state = made
    file = ask() / "sub" / "file"
    index = file.parents[2] / INDEX
    if damage == "changed":
        file.write_text("other")
    elif damage == "lost":
        file.unlink()
    elif damage == "more":
        file.with_name("more").touch()
    elif damage == "unfinished":
        index.unlink()
    else:
        index.write_text("{")
    assert (ask() / "sub" / "file").read_text() == "content"
    assert state["times"] == 2


def test_wording_changes_no_state_of_the_code_and_numbers_do(tmp_path, monkeypatch):
    package = tmp_path / "package"
    package.mkdir()
    for name in ("data_catalog", "search_spaces"):
        (tmp_path / name).mkdir()
    (tmp_path / "constraints.txt").touch()
    monkeypatch.setattr(module, "PACKAGE", package)
    states = []
    for text in ("x = 1  # why\n", "x = 1  # because\n", "x = 2\n"):
        (package / "m.py").write_text(text)
        module.state_of_the_code.cache_clear()
        states.append(module.state_of_the_code(tmp_path))
    assert states[0] == states[1] != states[2]
    (kept,) = tmp_path.glob("code-*")
    for content in (b"", b"\xff", b'{"source": "of another"}'):  # damaged, and then found anew
        kept.write_bytes(content)
        module.state_of_the_code.cache_clear()
        assert module.state_of_the_code(tmp_path) == states[2]
    kept.unlink()
    kept.mkdir()
    module.state_of_the_code.cache_clear()
    assert module.state_of_the_code(tmp_path) == states[2]
    module.state_of_the_code.cache_clear()


@pytest.mark.slow
def test_the_ray_of_a_run_ends_with_it_however_that_ends(tmp_path):
    code = (
        "import shared_ray, sys\n"
        "shared_ray.pytest_configure()\n"
        "print(shared_ray.address(), flush=True)\n"
        "sys.stdin.read()\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("BENCHMD_TEST_R")}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=TESTS,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    port = process.stdout.readline().rpartition(":")[2].strip()

    def heads():
        commands = psutil.process_iter(["cmdline"])
        return [p for p in commands if f"--port={port}" in (p.info["cmdline"] or ())]

    assert int(port)
    assert heads()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    until("end of Ray", lambda: not heads())
