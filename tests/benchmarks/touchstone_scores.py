"""Simulated scores of algorithms, as rows of `touchstone.cases.SCHEMA`."""

import csv
import math

import numpy as np
import pandas as pd

from benchmd_ray.benchmarks.touchstone.cases import SCHEMA
from benchmd_ray.benchmarks.touchstone.joining import AlgorithmScores, joined

CLASSES = ("spleen", "liver", "aorta")


def algorithm(name, dsc, *, cases=None, classes=CLASSES, **columns):
    """Scores (cases, classes) of an algorithm; NaN where the reference has none."""
    dsc = np.asarray(dsc, float)
    cases = cases or [f"s{i:04}" for i in range(len(dsc))]
    rows = pd.DataFrame(
        {
            "algorithm": name,
            "case": np.repeat(cases, len(classes)),
            "class": list(classes) * len(cases),
            "dsc": dsc.ravel(),
        }
    )
    empty = {n: math.nan for n in SCHEMA.names if n not in rows}
    rows = rows.assign(**{**empty, "code": None, **columns})[SCHEMA.names]
    return AlgorithmScores(name, f"run-{name}", "abdomen", tuple(classes), rows)


def simulated(seed=0, *, cases=60, shifts=(0.0, 0.02, 0.05), absent=0.3, classes=CLASSES):
    """Scores of algorithms of which each is worse than the one before, some organs absent."""
    rng = np.random.default_rng(seed)
    there = rng.random((cases, len(classes))) > absent
    hard = rng.beta(2, 8, (cases, len(classes)))
    each = []
    for place, shift in enumerate(shifts):
        dsc = np.clip(1 - hard - shift + rng.normal(0, 0.03, hard.shape), 0, 1)
        each.append(algorithm(f"net-{place}", np.where(there, dsc, np.nan), classes=classes))
    return joined(each)


def write_csv(folder, dsc, *, cases=None, classes=CLASSES, metric="dsc"):
    """A folder of an algorithm, as Touchstone releases it."""
    folder.mkdir(parents=True, exist_ok=True)
    cases = cases or [f"s{i:04}" for i in range(len(dsc))]
    with (folder / f"{metric}.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["name", *classes])
        for name, row in zip(cases, dsc, strict=True):
            writer.writerow([name, *("" if np.isnan(v) else v for v in row)])
    return folder
