"""What a user reads of a search that ended."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmd_ray.service.search_session import Searched
from benchmd_ray.tuning.families import Family
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.spaces import Space

START, KERNELS = "scratch finetune", "random-kernels linear"


def trial(number, score=0.5, *, family=START, state="complete", evaluations=3, **about):
    scores = dict.fromkeys(range(evaluations if state == "complete" else 0), score)
    return SimpleNamespace(
        number=number,
        family=family,
        state=state,
        score=score,
        evaluations=scores,
        is_sound=bool(scores),
        values={"transfer.epochs": 30},
        **{"reason": "", **about},
    )


def lines(*trials, chosen=None, families=(START,), optimism=None, **method):
    of_families = tuple(Family(*name.split(), Space("made", ()), ()) for name in families)
    method = Method(**method)
    plan = SimpleNamespace(name="tune-ecg", metric="auroc", method=method, families=of_families)
    best = None if chosen is None else trials[chosen]
    about = (best, {}, optimism, 1.5, "CPU", {}, Path("runs"))
    return Searched(plan, Path("runs"), trials, *about).lines


def test_the_choice_is_named_with_its_values_and_its_optimism():
    trials = (
        trial(0, 0.71),
        trial(1, 0.73, family=KERNELS, evaluations=10),
        trial(2, 0.4, state="stopped"),
        trial(3, 0.4, state="failed", reason="its score is NaN"),
    )
    text = lines(*trials, chosen=1, families=(START, KERNELS), optimism=0.0123)
    assert text == [
        "tune-ecg: 2 complete, 1 stopped early, 1 failed; 1.5 CPU hours",
        "    trial 3 failed: its score is NaN",
        f"    best of {KERNELS}: trial 1, AUROC 0.7300 over 10 evaluations",
        f"    best of {START}: trial 0, AUROC 0.7100 over 3 evaluations",
        f"    chosen: trial 1 ({KERNELS}), AUROC 0.7300 over 10 evaluations; the start ({START}) "
        "has 0.7100",
        "    0.7300 is too high for having been the highest, by about 0.012; the report has scores "
        "on records that no search saw",
        "        transfer.epochs: 30",
        "    written: runs",
    ]


@pytest.mark.parametrize(
    ("cautious", "why"),
    [(False, "above it"), (True, "above it by more than one standard error")],
)
def test_a_start_that_is_kept_is_said_with_the_reason(cautious, why):
    text = lines(trial(0, 0.8), trial(1, 0.7), chosen=0, cautious=cautious)
    assert text[1:] == [
        f"    it keeps the start ({START}), AUROC 0.8000 over 3 evaluations: no trial with as many "
        f"is {why}",
        "    written: runs",
    ]


def test_a_start_that_failed_ends_a_search_with_what_to_do():
    text = lines(trial(0, state="failed", reason="out of memory"), trial(1, 0.7))
    assert text[1] == "    trial 0 failed: out of memory"
    assert "fix the cause, and remove runs to start over" in text[-1]


def test_without_a_score_there_is_nothing_to_choose():
    assert lines() == [
        "tune-ecg: no trial; 1.5 CPU hours",
        "    no trial has a score yet, so there is nothing to choose",
    ]
