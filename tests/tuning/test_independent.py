"""Trials of a search without a study."""

import pytest

from benchmd_ray.errors import BenchmdError
from benchmd_ray.tuning.independent import drawn, tried
from benchmd_ray.tuning.parameters import Parameter

PARAMETERS = (
    Parameter("knn.bank", "int", 100, low=1, high=1000),
    Parameter("knn.share", "float", 0.5, low=0.0, high=1.0),
)


def test_the_defaults_come_first_and_then_values_at_random():
    first, *others = drawn(PARAMETERS, 20)
    assert first == {"knn.bank": 100, "knn.share": 0.5}
    assert len({values["knn.bank"] for values in others}) > 15
    assert all(1 <= v["knn.bank"] <= 1000 and 0 <= v["knn.share"] <= 1 for v in others)
    assert drawn(PARAMETERS, 20) == [first, *others]


@pytest.mark.ray
def test_trials_that_fail_are_missing_but_that_of_the_defaults_has_to_end(ray_cluster):
    def total(values, data):  # by value: the worker has not this module
        if values["knn.bank"] == data["fails"]:
            raise ValueError("a bank of no records")
        return {"sum": values["knn.bank"] + data["added"]}

    banks = [values["knn.bank"] for values in drawn(PARAMETERS, 5)]
    results = tried(total, {"added": 1, "fails": banks[2]}, PARAMETERS, 5)
    assert results == [{"sum": bank + 1} for bank in banks if bank != banks[2]]
    with pytest.raises(BenchmdError, match="the trial of the defaults failed: a bank of no rec"):
        tried(total, {"added": 1, "fails": 100}, PARAMETERS, 2)
