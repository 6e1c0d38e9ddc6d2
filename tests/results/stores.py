"""Hand-made runs with predictions, for the tests of results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmd_ray.files import write_json
from benchmd_ray.modalities import MODALITIES
from benchmd_ray.results.store import Run, open_run
from benchmd_ray.settings import Settings, as_dict, updated

VERSIONS = dict.fromkeys(("benchmd_ray", "torch", "deepspeed", "ray", "numpy", "pyarrow"), "1.0")
TRANSFER = {
    "linear": {"mode": "linear", "labels": "full"},
    "finetune-small": {"mode": "finetune", "labels": "small"},
    "finetune-full": {"mode": "finetune", "labels": "full"},
}


def _settings(seed: int, changes: Mapping[str, Any], setting: str = "linear") -> Settings:
    settings = updated(Settings(), {"seed": seed, "transfer": TRANSFER[setting]})
    return updated(settings, changes)


def _description(
    settings: Settings, stage: str, about: Mapping[str, Any], decisive: Mapping[str, Any]
) -> dict[str, Any]:
    everything = as_dict(settings)
    return {
        "device": "cpu",
        "raw": [100, 100],
        "options": {},
        "policy": "clean",
        "seed": settings.seed,
        "fixed": True,
        "settings": everything,
        "versions": VERSIONS,
        **about,
        "determinants": {
            "stage": stage,
            "encoder": everything["encoder"],
            stage: everything[stage],
            "precision": "float32",
            "order": [],
            "seed": settings.seed,
            "catalog": f"digest of {about['source']}",
            **decisive,
        },
    }


def _finished(run: Run, lines: Sequence[Mapping[str, float]], finished: bool) -> Run:
    text = "".join(json.dumps({"per_second": 10.0, **line}) + "\n" for line in lines)
    (run.folder / "metrics.jsonl").write_text(text)
    if finished:
        write_json(run.folder / "done.json", {"finished": "2025-01-01T00:00:00+00:00"})
    return run


def make_pretraining(
    store: Path,
    technique: str,
    *,
    modality: str = "ecg",
    source: str = "ptb-xl",
    seed: int = 0,
    changes: Mapping[str, Any] | None = None,
    fixed: bool = True,
    finished: bool = True,
) -> Run:
    """A pretraining run with its metrics, without weights."""
    about = {
        "kind": "pretrain",
        "technique": technique,
        "setting": "pretrain",
        "modality": modality,
        "source": source,
        "fixed": fixed,
    }
    settings = _settings(seed, changes or {})
    description = _description(settings, "pretrain", about, {"technique": technique})
    run = open_run(store, f"pretrain-{modality}-{technique.replace('+', '-')}", description)
    lines = [{"done": d, "loss": 2 / (1 + d), "lr": 1e-4} for d in range(20, 401, 20)]
    return _finished(run, lines, finished)


def make_transfer(
    store: Path,
    technique: str = "scratch",
    *,
    upstream: Run | None = None,
    modality: str = "ecg",
    source: str = "ptb-xl",
    setting: str = "linear",
    seed: int = 0,
    changes: Mapping[str, Any] | None = None,
    finished: bool = True,
    **about: Any,
) -> Run:
    """A transfer run with its metrics, without predictions; `about` goes into ``run.json``."""
    settings = _settings(seed, changes or {}, setting)
    stated = {
        "kind": "transfer",
        "technique": technique,
        "setting": setting,
        "modality": modality,
        "source": source,
        "upstream": None if upstream is None else upstream.folder.name,
        **about,
    }
    weights = None if upstream is None else f"weights of {upstream.folder.name}"
    description = _description(settings, "transfer", stated, {"upstream": weights})
    name = f"transfer-{modality}-{technique.replace('+', '-')}-{setting}"
    lines = [
        {"done": e, "loss": 1 / e, "validation_auroc": 0.6 + 0.1 * (1 - 1 / e)}
        for e in range(1, 11)
    ]
    return _finished(open_run(store, name, description), lines, finished)


def people(rows: int, seed: int = 0, each: int = 2) -> dict[str, list[Any]]:
    """Units, patients and metadata of records; every patient has some records."""
    rng = np.random.default_rng([seed, 7])
    patient = np.arange(rows) // each
    patients = int(patient.max()) + 1
    age = rng.integers(20, 89, patients).astype(np.float32)
    sex = rng.choice(["female", "male"], patients)
    site = rng.choice(["north", "south", "coast"], patients, p=[0.6, 0.37, 0.03])
    return {
        "record_id": [f"r{i:04d}" for i in range(rows)],
        "unit_id": [f"r{i:04d}" for i in range(rows)],
        "group_id": [f"p{p:04d}" for p in patient],
        "age": [None if p % 17 == 0 else float(age[p]) for p in patient],
        "sex": [str(sex[p]) for p in patient],
        "site": [str(site[p]) for p in patient],
        "device": [None] * rows,
        "view": [None] * rows,
    }


def targets_of(classes: Sequence[str], rows: int, task: str, seed: int = 0) -> np.ndarray:
    """Targets of some records: one class each, or several labels of which some are unknown."""
    rng = np.random.default_rng([seed, 11])
    if task == "single-label":
        return np.eye(len(classes), dtype=np.int8)[rng.integers(0, len(classes), rows)]
    labels = (rng.random((rows, len(classes))) < 0.3).astype(np.int8)
    labels[rng.random(labels.shape) < 0.05] = -1
    return labels


def scores_of(targets: np.ndarray, task: str, skill: float, seed: Sequence[int]) -> np.ndarray:
    """Probabilities that are right the more often the higher the skill is."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=targets.shape) + skill * (targets == 1)
    if task == "single-label":
        odds = np.exp(logits)
        return odds / odds.sum(axis=1, keepdims=True)
    return 1 / (1 + np.exp(-(logits - 0.5)))


def write_predictions(
    run: Run,
    dataset: str,
    splits: Mapping[str, tuple[Mapping[str, Sequence[Any]], np.ndarray, np.ndarray]],
    *,
    classes: Sequence[str] | None = None,
    role: str = "target",
    modality: str | None = None,
    catalog: str | None = None,
    raw: tuple[int, int] = (100, 100),
    options: Mapping[str, str] | None = None,
    remarks: Mapping[str, int] | None = None,
) -> Path:
    """Write predictions as `evaluation.predict.predict` does: by split people, targets, scores."""
    parts = []
    for split, (held, targets, scores) in splits.items():
        count = targets.shape[1]
        columns = {
            **{name: held[name] for name in ("record_id", "unit_id", "group_id")},
            "split": [split] * len(targets),
            "scores": pa.FixedSizeListArray.from_arrays(pa.array(scores.ravel()), count),
            "target": pa.FixedSizeListArray.from_arrays(pa.array(targets.ravel()), count),
            "age": pa.array(held["age"], pa.float32()),
            **{k: pa.array(held[k], pa.string()) for k in ("sex", "site", "device", "view")},
        }
        parts.append(pa.table(columns))
    modality = modality or run.description["modality"]
    metadata = {
        "dataset": dataset,
        "modality": modality,
        "role": role,
        "policy": run.description["policy"],
        "catalog": catalog or f"digest of {dataset}",
        "raw_records": str(raw[0]),
        "raw_expected": str(raw[1]),
        "options": json.dumps(options or {}),
        "remarks": json.dumps(remarks or {}),
        "classes": json.dumps(list(classes or MODALITIES[modality].classes)),
    }
    path = run.folder / "predictions" / f"{dataset}.parquet"
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.concat_tables(parts).replace_schema_metadata(metadata), path)
    return path


SKILL = {"scratch": 0.3, "e-mix": 0.6, "shed": 1.1, "mae": 0.7, "imagenet": 1.0, "imagenet+mae": 1}


def predict_all(
    run: Run, datasets: Mapping[str, Mapping[str, int]], *, skill: float | None = None
) -> None:
    """Write made-up predictions of a run for datasets: their splits and the records of each.

    All runs have the same records and targets of a dataset; the first dataset is the source.
    """
    about, modality = run.description, MODALITIES[run.description["modality"]]
    own = SKILL[about["technique"]] if skill is None else skill
    own *= {"linear": 1.0, "finetune-small": 0.8, "finetune-full": 1.3}[about["setting"]]
    for number, (dataset, splits) in enumerate(datasets.items()):
        made = {}
        for place, (split, rows) in enumerate(splits.items()):
            seed = 10 * number + place
            targets = targets_of(modality.classes, rows, modality.task, seed)
            drawn = [seed, about["seed"], sum(run.folder.name.encode())]
            easier = own * (1.0 - 0.2 * number)
            made[split] = (
                people(rows, seed),
                targets,
                scores_of(targets, modality.task, easier, drawn),
            )
        write_predictions(run, dataset, made, role="target" if number else "source")


ECG_DATA = {"ptb-xl": {"validation": 200, "test": 160}, "georgia": {"test": 240}}
CXR_DATA = {"mimic-cxr": {"validation": 160}, "chexpert": {"test": 160}}


def make_report_store(store: Path) -> Path:
    """A store like that of a small benchmark: two modalities, techniques, settings, seeds."""
    for seed in (0, 1):
        for technique in ("scratch", "e-mix", "shed", "mae"):
            if (technique, seed) == ("e-mix", 1):
                continue  # one technique with fewer seeds
            upstream = None
            if technique != "scratch":
                upstream = make_pretraining(store, technique, seed=seed)
            for setting in ("linear", "finetune-small"):
                run = make_transfer(store, technique, upstream=upstream, setting=setting, seed=seed)
                predict_all(run, ECG_DATA)
    cxr = {"modality": "cxr", "source": "mimic-cxr"}
    for technique in ("scratch", "imagenet", "imagenet+mae"):
        upstream = None if technique == "scratch" else make_pretraining(store, technique, **cxr)
        for setting in ("linear", "finetune-full"):
            run = make_transfer(store, technique, upstream=upstream, setting=setting, **cxr)
            predict_all(run, CXR_DATA)
    faster = {"transfer": {"optimiser": {"lr": 1e-3}}}
    predict_all(make_transfer(store, changes=faster, fixed=False), ECG_DATA)
    shuffled = {"transfer": {"shuffle_labels": True}}
    predict_all(make_transfer(store, changes=shuffled, fixed=False), ECG_DATA, skill=0.0)
    make_pretraining(store, "shed", seed=3, finished=False)
    return store


def without(run: Run, *names: str) -> Run:
    """The run as if its description did not say some things."""
    return replace(run, description={k: v for k, v in run.description.items() if k not in names})
