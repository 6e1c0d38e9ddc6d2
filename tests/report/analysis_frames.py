"""Frames of an analysis as runs would give them, from invented AUROCs: for tests of figures."""

from __future__ import annotations

from dataclasses import fields
from itertools import combinations

import numpy as np
import pandas as pd
from kinds import CLASSES

from benchmd_ray.report.analysis import Analysis
from benchmd_ray.report.compared import row_names
from benchmd_ray.report.frames import (
    FRAMES,
    KEY,
    PLACE,
    VERSIONS,
    frame,
    mode_and_labels,
    with_mode,
)

SETTINGS = ("linear", "finetune-small", "finetune-medium", "finetune-large", "finetune-full")
SOURCES = {
    "ecg": ("ptb-xl", ("chapman-shaoxing", "cpsc", "georgia")),
    "eeg": ("shhs", ("isruc",)),
    "cxr": ("mimic-cxr", ("chexpert", "vindr-cxr")),
    "mammo": ("vindr-mammo", ("cbis-ddsm",)),
    "derm": ("bcn20000", ("ham10000", "pad-ufes-20")),
    "fundus": ("messidor-2", ("aptos-2019", "jinchi")),
    "ldct": ("lidc-idri", ("lndb",)),
}
SIGNALS = ("scratch", "e-Mix", "ShED", "MAE")
IMAGES = (*SIGNALS, "ImageNet", "ImageNet, then MAE")
VARIABLES = {
    "age": tuple(f"{n}–{n + 9}" for n in range(10, 90, 10)),
    "sex": ("female", "male"),
    "device": ("CS-12", "CS100 3", "ECG 5000 long name"),
}


def techniques_of(kind):
    return SIGNALS if kind in ("ecg", "eeg", "ldct") else IMAGES


class Invented:
    """Collects rows of all frames for one choice of modalities, techniques, settings, seeds."""

    def __init__(self, *, kinds, techniques=None, settings=SETTINGS, seeds=2, effect=0.04, draw=0):
        self.rng = np.random.default_rng(draw)
        self.kinds, self.techniques, self.settings = kinds, techniques, settings
        self.seeds, self.effect = seeds, effect
        self.rows = {name: [] for name in FRAMES}
        for kind in kinds:
            self.study(kind)

    def study(self, kind):
        self.met = {}
        source, targets = SOURCES[kind]
        names = self.techniques or techniques_of(kind)
        for setting in self.settings:
            ours = {}
            for dataset in (source, *targets):
                target = dataset != source
                place = {
                    "modality": kind,
                    "source": source,
                    "dataset": dataset,
                    "role": "target" if target else "source",
                    "split": "test" if target else "validation",
                    "policy": "clean",
                    "setting": setting,
                    "protocol": "fixed",
                }
                values = self.place(place, names)
                if target:
                    self.gaps(place, ours, values)
                else:
                    ours = values
            for technique in names:
                self.training(kind, source, technique, setting)
        for place, met in self.met.items():
            self.comparisons(dict(zip(PLACE, place, strict=True)), met)

    def place(self, place, names):
        width = self.rng.uniform(0.01, 0.04)
        base = 0.6 + 0.05 * self.settings.index(place["setting"]) + self.rng.normal(0, 0.03)
        base -= 0.06 * (place["role"] == "target")
        values = {
            name: float(np.clip(base + self.effect * i + self.rng.normal(0, 0.02), 0.3, 0.99))
            for i, name in enumerate(names)
        }
        for name, value in values.items():
            key = {**place, "technique": name}
            self.scores(key, value, width)
            self.groups(key, value, width)
            self.curves(key, value)
            if name != "scratch" and "scratch" in values:
                change = value - values["scratch"]
                self.add(
                    "changes", key, metric="auroc", value=change, p=0.01, p_delong=0.02,
                    baseline=with_mode("scratch", key["setting"]),
                    low=change - width, high=change + width, caution="",
                )  # fmt: skip
        labels = {
            n: mode_and_labels(place["setting"])[1] if n == "labels" else place[n] for n in PLACE
        }
        met = self.met.setdefault(tuple(labels.values()), {})
        met |= {(name, place["setting"]): (value, width) for name, value in values.items()}
        return values

    def scores(self, key, value, width):
        classes = CLASSES[key["modality"]]
        paper = value + self.rng.normal(0, 0.03) if key["technique"] != "e-Mix" else np.nan
        shared = {"seeds": self.seeds, "seed_values": (value,) * self.seeds, "sd": 0.01}
        shared |= {"records": 2400, "patients": 2100, "positives": 300, "runs": "one"}
        shared["scored"] = "scans" if key["modality"] == "ldct" else "records"
        for name, metric, at in (
            ("mean", "auroc", value),
            ("mean", "calibration_error", 0.2 - 0.15 * value),
            *((name, "auroc", min(0.99, value + self.rng.normal(0, 0.05))) for name in classes),
        ):
            self.add(
                "scores", key, **shared, metric=metric, value=at, low=at - width, high=at + width,
                paper=paper if (name, metric) == ("mean", "auroc") else np.nan, caution="",
                **{"class": name},
            )  # fmt: skip

    def groups(self, key, value, width):
        for variable, groups in VARIABLES.items():
            p = float(self.rng.choice([0.0004, 0.03, 0.4]))
            for number, group in enumerate(groups):
                at = value - 0.02 * number * (p < 0.05)
                self.add(
                    "subgroups", key, variable=variable, group=group, records=300, patients=250,
                    value=at, low=at - 2 * width, high=at + 2 * width, p=p, caution="",
                )  # fmt: skip
            if p < 0.05:
                for a, b in combinations(groups, 2):
                    far = groups.index(b) - groups.index(a) > 1 or len(groups) == 2
                    self.add(
                        "subgroup_pairs", key, variable=variable, a=a, b=b, difference=0.02,
                        low=0.01, high=0.03, p=0.004 if far else 0.3,
                        p_holm=0.01 if far else 0.6, caution="",
                    )  # fmt: skip
        self.add("excluded", key, variable="device", group="AT-6 C", patients=7)

    def curves(self, key, value):
        fpr = np.linspace(0, 1, 60)
        for name in CLASSES[key["modality"]]:
            for seed in range(self.seeds):
                power = (1 - value) / value * self.rng.uniform(0.8, 1.2)
                for x in fpr:
                    self.add("roc", key, seed=seed, fpr=x, tpr=x**power, **{"class": name})
                for x in np.arange(0.05, 1, 0.1):
                    self.add(
                        "calibration", key, seed=seed, predicted=x, count=int(2000 * (1 - x) ** 3),
                        observed=float(np.clip(x**1.3 + self.rng.normal(0, 0.03), 0, 1)),
                        **{"class": name},
                    )  # fmt: skip

    def comparisons(self, place, met):
        values = dict(zip(row_names([*met]), met.values(), strict=True))
        order = sorted(met, key=lambda row: -met[row][0])
        for (a, (first, width)), (b, (second, _)) in combinations(values.items(), 2):
            gap = second - first
            p = float(np.exp(-((gap / width) ** 2) * 2))
            self.rows["pairs"].append(
                {**place, "a": a, "b": b, "difference": gap, "low": gap - width,
                 "high": gap + width, "p": p, "p_holm": min(1.0, 3 * p), "caution": ""}
            )  # fmt: skip
        for name, setting in met:
            rank = order.index((name, setting)) + 1
            self.add(
                "ranking", {**place, "technique": name, "setting": setting}, rank=rank,
                low=max(1, rank - 1), high=min(len(values), rank + 1), tau=0.7, caution="",
            )  # fmt: skip

    def gaps(self, place, ours, values):
        kept = ("modality", "source", "dataset", "policy", "setting", "protocol")
        for name, value in values.items():
            gap = ours[name] - value
            self.rows["gaps"].append(
                {**{k: place[k] for k in kept}, "technique": name, "metric": "auroc",
                 "in_distribution": ours[name], "target": value, "gap": gap,
                 "low": gap - 0.04, "high": gap + 0.04,
                 "p": 0.01 if abs(gap) > 0.04 else 0.4,
                 "p_holm": 0.02 if abs(gap) > 0.04 else 0.4, "caution": ""}
            )  # fmt: skip

    def training(self, kind, source, technique, setting):
        shared = {"modality": kind, "source": source, "technique": technique}
        for seed in range(self.seeds):
            if technique not in ("scratch", "ImageNet") and setting == self.settings[0]:
                run = f"p-{kind}-{technique}-{seed}"
                self.ran(run, "pretrain", shared, "", seed)
                for done in range(1000, 100_001, 1000):
                    value = 1 + 2 * np.exp(-done / 2e4) + self.rng.normal(0, 0.03)
                    self.rows["training"].append(
                        {**shared, "run": run, "kind": "pretrain",
                         "setting": "", "seed": seed, "done": done, "unit": "steps",
                         "name": "loss", "value": value}
                    )  # fmt: skip
            run = f"t-{kind}-{technique}-{setting}-{seed}"
            self.ran(run, "transfer", shared, setting, seed)
            for done in range(1, 41):
                for name, value in (
                    ("loss", 0.3 + np.exp(-done / 9) + self.rng.normal(0, 0.01)),
                    ("validation_auroc", 0.8 - 0.3 * np.exp(-done / 9) + self.rng.normal(0, 0.01)),
                ):
                    self.rows["training"].append(
                        {**shared, "run": run, "kind": "transfer",
                         "setting": setting, "seed": seed, "done": done, "unit": "epochs",
                         "name": name, "value": value}
                    )  # fmt: skip

    def ran(self, run, kind, shared, setting, seed):
        named = ("device", "hardware", "instructions", "threads", "catalog", "parts", "network")
        empty = dict.fromkeys((*VERSIONS, *named), "x")
        self.rows["ran"].append(
            {**shared, **empty, "run": run, "kind": kind, "policy": "clean", "protocol": "fixed",
             "setting": setting, "seed": seed, "finished": True, "seconds": 60.0, "workers": 1}
        )  # fmt: skip

    def add(self, name, key, **values):
        self.rows[name].append({**key, **values})

    def analysis(self, **changed):
        return made(**{name: frame(name, rows) for name, rows in self.rows.items()} | changed)


def made(**frames):
    """An analysis of these frames; the others are empty."""
    whole = {name: frame(name, ()) for name in FRAMES} | frames
    others = {f.name: [] for f in fields(Analysis) if f.name not in whole}
    others["modalities"] = tuple(CLASSES)
    return Analysis(**others, **whole)


def invented(kinds=("ecg",), **choice):
    return Invented(kinds=kinds, **choice).analysis()


def without_intervals(table: pd.DataFrame) -> pd.DataFrame:
    """As of too few patients."""
    p = {name: np.nan for name in table if name in ("p", "p_delong", "p_holm")}
    return table.assign(low=np.nan, high=np.nan, caution="no interval: 8 patients", **p)


__all__ = ["KEY", "PLACE", "SOURCES", "Invented", "invented", "made", "without_intervals"]
