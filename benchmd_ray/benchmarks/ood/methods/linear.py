"""Linear detectors: the directions in which records of both kinds differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from benchmd_ray.benchmarks.ood.methods.method import Floats, State


def learned(model: Any, values: npt.ArrayLike, out: npt.NDArray[np.bool_]) -> State:
    """What a linear model of scikit-learn learns of standardised values (records, quantities).

    The direction (quantities,) and the offset are for the values as they are.
    """
    x = np.asarray(values, np.float64)
    mean, spread = x.mean(axis=0), x.std(axis=0)
    spread = np.where(spread == 0, 1, spread)
    model.fit((x - mean) / spread, out)
    direction = model.coef_[0] / spread
    return {"direction": direction, "offset": np.array(model.intercept_[0] - mean @ direction)}


def applied(state: State, values: npt.ArrayLike) -> Floats:
    """(records,): above 0 is more likely out."""
    return np.asarray(np.asarray(values, np.float64) @ state["direction"] + state["offset"])
