"""Options and figures that all measurements share."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from speed import measure

DECLARED = {
    "rows": (20, "rows"),
    "workers": (2, "workers"),
    "shape": ((3, 4), "z, y"),
    "sizes": ([1, 2], "sizes"),
    "raw": (Path, "a folder"),
    "fast": (False, "faster"),
    "metric": ("auroc", "a metric", ("auroc", "auprc")),
}


def test_options_have_the_types_of_their_defaults() -> None:
    given = ["--rows", "5", "--workers", "0", "--shape", "1", "2", "--sizes", "7", "--raw", "/a/b"]
    options = measure.options(None, [*given, "--fast"], DECLARED, warm_up=3)
    assert (options.rows, options.workers, options.shape, options.sizes) == (5, 0, [1, 2], [7])
    assert (options.raw, options.fast, options.metric) == (Path("/a/b"), True, "auroc")
    assert (options.repetitions, options.warm_up, options.seed) == (5, 3, 0)
    absent = measure.options(None, [], DECLARED, repeats=False)
    assert (absent.raw, absent.fast, absent.shape) == (None, False, (3, 4))
    assert not hasattr(absent, "repetitions")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "0"], "--rows is 0, expected more than 0"),
        (["--sizes", "3", "-1"], "--sizes is -1, expected more than 0"),
        (["--workers", "-1"], "--workers is -1, expected 0 or more"),
        (["--metric", "f1"], "invalid choice: 'f1'"),
    ],
)
def test_options_out_of_range_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        measure.options(None, arguments, DECLARED)
    assert message in capsys.readouterr().err


def test_rounds_alternate_and_ratios_are_paired(capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[str] = []
    options = argparse.Namespace(repetitions=2, warm_up=1, raw=Path("/secret/folder"))
    tasks = {"ours": lambda: calls.append("ours"), "peer": lambda: calls.append("peer")}
    seconds = measure.alternating(options, tasks)
    assert calls == ["ours", "peer", "ours", "peer", "peer", "ours"]
    assert seconds.keys() == {"ours", "peer"}
    seconds = {"ours": [1.0, 2.0], "peer": [4.0, 4.0]}
    measure.report("x", options, seconds, unit="rows/s", units=8, note="n")
    result = json.loads(capsys.readouterr().out)
    assert (result["ratio"], result["ratio_range"], result["ratio_of_fastest"]) == (3, [2, 4], 4)
    assert result["rates"]["ours"] == {"median": 6, "least": 4, "most": 8}
    assert (result["ours"], result["peer"], result["note"]) == ("ours", "peer", "n")
    assert result["settings"]["raw"] == "folder"


def test_a_peer_that_is_timed_for_a_share_is_multiplied_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = {"ours": [1.0], "peer": [0.5]}
    monkeypatch.setattr(measure, "alternating", lambda options, tasks: dict(timed))
    options = argparse.Namespace(repetitions=1, warm_up=0)
    tasks = dict.fromkeys(("ours", "peer"), lambda: None)
    measure.compare("x", options, tasks, unit="epochs/s", units=10, share_of_peer=0.1)
    result = json.loads(capsys.readouterr().out)
    assert (result["ratio"], result["peer_is_extrapolated"]) == (5, True)
