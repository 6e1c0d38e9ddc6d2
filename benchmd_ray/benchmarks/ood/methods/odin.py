"""ODIN: −max p at a high temperature, after a small step that makes the network surer.

The step is in units of the record's standard deviation as the network sees it, so that it means
the same under any normalisation; the network computes it (`ood.network`).
"""

from __future__ import annotations

import numpy as np

from benchmd_ray.benchmarks.ood.methods.method import Floats, Head, Method, Seen, State, nothing


def score(_: State, seen: Seen, head: Head) -> Floats:
    """(records,)."""
    return np.asarray(seen.more["odin"], np.float64).reshape(len(seen))


METHOD = Method("odin", "ODIN", nothing, score, "Liang, Li and Srikant, ICLR 2018", needs=("odin",))
