"""Trials of a search without a study, in order."""

import pytest

from benchmd_ray.errors import BenchmdError
from benchmd_ray.tuning.independent import in_order


def made(bank, result="{}"):
    return {"config": {"bank": bank}, "result": result}


def test_the_trial_of_the_defaults_is_first_and_has_to_end():
    defaults = {"bank": 100}
    found = in_order([made(7, '{"a": 1}'), made(100, '{"a": 2}'), made(9, '{"a": 3}')], defaults)
    assert found == [{"a": 2}, {"a": 1}, {"a": 3}]
    failed = {"config": defaults}
    with pytest.raises(BenchmdError, match="the trial of the defaults failed"):
        in_order([made(7), failed], defaults)
    with pytest.raises(BenchmdError, match="no trial of the search ended"):
        in_order([failed], defaults)
