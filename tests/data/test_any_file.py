"""Files of any format as signals of a catalog."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from kinds import SIGNALS

from benchmd_ray.data.cards import Files
from benchmd_ray.data.datasets.any_file import read_file
from benchmd_ray.data.records import RecordError

WRIST = dataclasses.replace(
    SIGNALS["ecg"],
    name="wrist",
    stored_shape=(2, 100),
    input_shape=(2, 100),
    channels=("x", "y"),
    unit="g",
    rate=50.0,
)


@pytest.mark.parametrize("samples", [1, 40, 41, 99])
def test_short_signals_lie_in_the_middle_where_normalisers_look_for_them(tmp_path, samples):
    values = np.random.default_rng(samples).normal(size=(2, samples))
    np.save(tmp_path / "x.npy", values)
    if samples == 1:
        with pytest.raises(RecordError, match="every channel is constant"):
            read_file(tmp_path / "x.npy", WRIST, Files(rate=50.0))
        return
    (part,) = read_file(tmp_path / "x.npy", WRIST, Files(rate=50.0))
    start = (100 - samples) // 2
    inside = part.signal[:, start : start + samples] * part.scale
    assert np.abs(inside - values).max() < 1e-3
    assert (part.valid_size, part.signal.shape) == ((samples,), (2, 100))
    assert not part.signal[:, :start].any()
    assert not part.signal[:, start + samples :].any()
