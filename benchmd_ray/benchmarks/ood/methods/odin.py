"""ODIN: −max p at a high temperature, after a small step that makes the network surer.

The network computes it for a grid (`ood.network`), of which a calibration chooses.
"""

from __future__ import annotations

import numpy as np

from benchmd_ray.benchmarks.ood.methods.method import Bank, Detector, Floats, Head, Seen, State

TEMPERATURES = (1.0, 1000.0)
"""Ends of the paper's range: above 100 scores keep their order."""
STEPS = (0.0, 0.0005, 0.001, 0.0014, 0.002, 0.005)


def _fit(_: Bank, *, temperature: float = 1000.0, step: float = 0.0014) -> State:
    return {"place": np.array([TEMPERATURES.index(temperature), STEPS.index(step)])}


def _score(state: State, seen: Seen, head: Head) -> Floats:
    row, column = map(int, state["place"])
    return np.asarray(seen.more["odin"][:, row, column], np.float64)


METHOD = Detector(
    "odin",
    "ODIN",
    _fit,
    _score,
    "Liang, Li and Srikant, ICLR 2018",
    grid={"temperature": TEMPERATURES, "step": STEPS},
    needs=("odin",),
)
