"""What a reader of searches is told of their limits."""

import pytest

from benchmd_ray.tuning.records import ALL_LABELS, OVERLAP, limits_of


@pytest.mark.parametrize(
    ("policies", "settings", "said"),
    [
        (["clean"], ["linear", "finetune-full", "pretrain"], []),
        (["clean", "released"], ["linear"], [OVERLAP]),
        (["clean, released"], ["linear"], [OVERLAP]),
        (["clean"], ["linear", "finetune-small"], [ALL_LABELS]),
        (["released"], ["linear-medium"], [OVERLAP, ALL_LABELS]),
    ],
)
def test_limits_are_told_where_they_apply(policies, settings, said):
    assert limits_of(policies, settings) == said
