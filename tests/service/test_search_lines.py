"""What a user reads of a search that keeps its start."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmd_ray.service.search_session import Searched
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.written import SearchOutcome


@pytest.mark.parametrize(
    ("others", "undecided", "why"),
    [
        ([], False, "there is no other trial"),
        ([("stopped", 0)], False, "no trial is above it"),
        ([("failed", 1), ("stopped", 0)], False, "the trials compared with it failed"),
        ([("stopped", 0)], True, "the rest of the budget is too small to compare"),
    ],
)
def test_why_a_search_keeps_its_start(others, undecided, why):
    trials = [
        SimpleNamespace(number=number, state=state, tested=tested, reason="its score is NaN")
        for number, (state, tested) in enumerate([("complete", 0), *others])
    ]
    plan = SimpleNamespace(name="tune-ecg", metric="auroc", method=Method())
    start = SimpleNamespace(number=0, score=0.8, values={})
    found = Searched(
        plan, Path("runs"), tuple(trials), SearchOutcome(start, None), {}, 1.0, "CPU", undecided
    )
    assert f"    it keeps the start: {why}" in "\n".join(found.lines)
