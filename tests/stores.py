"""Hand-made runs with predictions, for the tests of results."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmd_ray.cluster.hardware import Hardware
from benchmd_ray.data.cards import kind_of
from benchmd_ray.evaluation.registry import protocol_of
from benchmd_ray.files.atomic import digest
from benchmd_ray.files.integrity import line, name_of, write_hash, write_hashed_json
from benchmd_ray.modality.modalities import Modality
from benchmd_ray.runs.history import record_session
from benchmd_ray.runs.predictions import CLASSIFIED, predictions_path
from benchmd_ray.runs.store import Run, open_run
from benchmd_ray.settings.definition import Settings, as_dict, default_settings, updated
from benchmd_ray.ssl import protocol_encoder
from benchmd_ray.tuning.families import name_of_family
from benchmd_ray.tuning.ladder import (
    chosen,
    paired_differences,
    paired_mean,
    ranked,
    standard_error,
)
from benchmd_ray.tuning.records import FORMAT, trials_schema
from benchmd_ray.tuning.trial import seed_of

HARDWARE = Hardware("A processor (family 6, model 85)", "PyTorch AVX512, NumPy X86_V4", "2")
"""Of all runs, unless a test says otherwise."""
VERSIONS = dict.fromkeys(("benchmd_ray", "torch", "deepspeed", "ray", "numpy", "pyarrow"), "1.0")
TRANSFER = {
    "linear": {"mode": "linear", "labels": "full"},
    "finetune-small": {"mode": "finetune", "labels": "small"},
    "finetune-full": {"mode": "finetune", "labels": "full"},
}


def described(about: Mapping[str, Any] | None = None, **determinants: Any) -> dict[str, Any]:
    """As little as a description can say; `about` continues top."""
    return {
        **{"kind": "pretrain", "technique": "mae", "setting": "pretrain", **of_modality("ecg")},
        **{"source": "ptb-xl", "policy": "clean", "seed": 0, "protocol": "fixed", "raw": [1, 1]},
        **{"provenance": "whole"},
        **{"options": {}, "settings": {}, "determinants": {"catalog": "c", **determinants}},
        **(about or {}),
    }


def of_modality(named: str | Modality) -> dict[str, Any]:
    """What ``run.json`` says of a modality, or of that of a dataset."""
    kind = kind_of(named) if isinstance(named, str) else named
    return {"modality": kind.name, "modality_card": asdict(kind)}


def _settings(
    named: str | Modality,
    technique: str,
    seed: int,
    changes: Mapping[str, Any],
    setting: str = "linear",
) -> Settings:
    """The fixed protocol's with these changes."""
    kind = kind_of(named) if isinstance(named, str) else named
    settings = default_settings(kind, protocol_encoder(technique))
    settings = updated(settings, {"seed": seed, "transfer": TRANSFER[setting]})
    return updated(settings, changes)


def _description(
    settings: Settings, stage: str, about: Mapping[str, Any], decisive: Mapping[str, Any]
) -> dict[str, Any]:
    everything = as_dict(settings)
    return {
        "device": "cpu",
        "raw": [100, 100],
        "provenance": "whole",
        "options": {},
        "policy": "clean",
        "seed": settings.seed,
        "protocol": "fixed",
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
    text = "".join(line({"per_second": 10.0, **values}) for values in lines)
    (run.folder / "metrics.jsonl").write_text(text)
    record_session(run.folder, [HARDWARE], 0)
    if finished:
        write_done(run)
    return run


def write_done(run: Run, **said: Any) -> Path:
    """Mark a run as finished."""
    done = {"finished": "2025-01-01T00:00:00+00:00", "seconds": 0.0, "model_sha256": None, **said}
    write_hashed_json(run.folder / "done.json", done, of=run.folder)
    return run.folder / "done.json"


def _of_fold(fold: int | None, seed: int) -> tuple[dict[str, Any], dict[str, Any], int]:
    """What run.json and its determinants state of a fold run of a search, and its seed."""
    if fold is None:
        return {}, {}, seed
    inner = f"digest of inner catalog {fold}"
    about = {"fold": {"evaluation": fold, "inner": inner}}
    return about, {"fold": inner}, seed_of(seed, fold)


def make_pretraining(
    store: Path,
    technique: str,
    *,
    modality: str | Modality = "ecg",
    source: str = "ptb-xl",
    seed: int = 0,
    changes: Mapping[str, Any] | None = None,
    fixed: bool = True,
    finished: bool = True,
    parts: Mapping[str, int] | None = None,
    fold: int | None = None,
    **decisive: Any,
) -> Run:
    """A pretraining run with its metrics, without weights; `decisive` goes into determinants."""
    stated, inner, seed = _of_fold(fold, seed)
    about = {
        **stated,
        "kind": "pretrain",
        "technique": technique,
        "setting": "pretrain",
        **of_modality(modality),
        "source": source,
        "protocol": "fixed" if fixed else "",
    }
    settings = _settings(modality, technique, seed, changes or {})
    description = _description(
        settings,
        "pretrain",
        about,
        {"technique": technique, "parts": dict(parts or {}), **inner, **decisive},
    )
    run = open_run(
        store, f"pretrain-{about['modality']}-{technique.replace('+', '-')}", description
    )
    lines = [{"done": d, "loss": 2 / (1 + d), "lr": 1e-4} for d in range(20, 401, 20)]
    return _finished(run, lines, finished)


def _followed(
    named: str | Modality, technique: str, upstream: Run | None, settings: Settings
) -> str:
    """The start of another benchmark than BenchMD that a run follows."""
    kind, everything = kind_of(named) if isinstance(named, str) else named, as_dict(settings)
    parts = {part: everything[part] for part in ("encoder", "transfer")}
    name = protocol_of(kind, technique, parts)
    return "" if name == "fixed" or upstream is not None else name


def make_transfer(
    store: Path,
    technique: str = "scratch",
    *,
    upstream: Run | None = None,
    modality: str | Modality = "ecg",
    source: str = "ptb-xl",
    setting: str = "linear",
    seed: int = 0,
    changes: Mapping[str, Any] | None = None,
    fixed: bool = True,
    finished: bool = True,
    parts: Mapping[str, int] | None = None,
    fold: int | None = None,
    held_out: Mapping[str, Any] | None = None,
    **about: Any,
) -> Run:
    """A transfer run with its metrics, without predictions; `about` goes into ``run.json``.

    `held_out` is which fold of a cross-validation its catalog holds out.
    """
    of_fold, inner, seed = _of_fold(fold, seed)
    fixed = fixed and fold is None
    settings = _settings(modality, technique, seed, changes or {}, setting)
    stated = {
        "kind": "transfer",
        "technique": technique,
        "setting": setting,
        **of_modality(modality),
        "source": source,
        "upstream": None if upstream is None else upstream.folder.name,
        "protocol": "fixed" if fixed else _followed(modality, technique, upstream, settings),
        **of_fold,
        **about,
    }
    weights = None if upstream is None else f"weights of {upstream.folder.name}"
    decisive = {"upstream": weights, "parts": dict(parts or {}), **inner}
    if held_out is not None:
        stated["held_out_fold"] = held_out
        decisive["catalog"] = f"digest of fold {held_out['number']}"
    if upstream is not None:
        decisive["upstream_parts"] = upstream.description["determinants"]["parts"]
    description = _description(settings, "transfer", stated, decisive)
    name = f"transfer-{stated['modality']}-{technique.replace('+', '-')}-{setting}"
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
    provenance: str = "whole",
    modality: str | None = None,
    catalog: str | None = None,
    raw: tuple[int, int] = (100, 100),
    options: Mapping[str, str] | None = None,
    warnings: Mapping[str, int] | None = None,
    hardware: Hardware = HARDWARE,
) -> Path:
    """Write predictions as `training.predict.predict` does: by split people, targets, scores."""
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
    kind = kind_of(modality) if modality else run.modality
    metadata = {
        "evaluation": CLASSIFIED.evaluation,
        "version": str(CLASSIFIED.version),
        "dataset": dataset,
        "modality": kind.name,
        "role": role,
        "policy": run.description["policy"],
        "catalog": catalog or f"digest of {dataset}",
        "also": "{}",
        "raw_records": str(raw[0]),
        "raw_expected": str(raw[1]),
        "provenance": provenance,
        "options": json.dumps(options or {}),
        "warnings": json.dumps(warnings or {}),
        "task": json.dumps(asdict(replace(kind.task, classes=tuple(classes or kind.task.classes)))),
        "hardware": hardware.to_json(),
        "of": name_of(run.folder),
    }
    path = predictions_path(run.folder, dataset)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.concat_tables(parts).replace_schema_metadata(metadata), path)
    write_hash(path)
    return path


SKILL = {"scratch": 0.3, "e-mix": 0.6, "shed": 1.1, "mae": 0.7, "imagenet": 1.0, "imagenet+mae": 1}


def predict_all(
    run: Run,
    datasets: Mapping[str, Mapping[str, int]],
    *,
    skill: float | None = None,
    synthetic: Collection[str] = (),
) -> None:
    """Write made-up predictions of a run for datasets: their splits and the records of each.

    All runs have the same records and targets of a dataset; the first dataset is the source. Those
    in `synthetic` are said to be so.
    """
    about, task = run.description, run.modality.task
    own = SKILL[about["technique"]] if skill is None else skill
    own *= {"linear": 1.0, "finetune-small": 0.8, "finetune-full": 1.3}[about["setting"]]
    for number, (dataset, splits) in enumerate(datasets.items()):
        made = {}
        for place, (split, rows) in enumerate(splits.items()):
            seed = 10 * number + place
            targets = targets_of(task.classes, rows, task.kind, seed)
            drawn = [seed, about["seed"], sum(run.folder.name.encode())]
            easier = own * (1.0 - 0.2 * number)
            made[split] = (
                people(rows, seed),
                targets,
                scores_of(targets, task.kind, easier, drawn),
            )
        provenance = "synthetic" if dataset in synthetic else "whole"
        role = "target" if number else "source"
        write_predictions(run, dataset, made, role=role, provenance=provenance)


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


SPACE = {
    "transfer.optimiser.lr": {"kind": "log float", "low": 1e-5, "high": 0.1, "default": 1e-4},
    "transfer.optimiser.weight_decay": {
        "kind": "log float",
        "low": 1e-6,
        "high": 0.1,
        "default": 1e-2,
    },
    "transfer.optimiser.schedule": {
        "kind": "choice",
        "values": ["constant", "cosine"],
        "default": "constant",
    },
    "transfer.epochs": {"kind": "int", "low": 10, "high": 300, "default": 100},
    "transfer.batch_size": {"kind": "choice", "values": [16, 32, 64, 128, 256], "default": 64},
    "transfer.optimiser.warmup_steps": {"kind": "int", "low": 0, "high": 1000, "default": 0},
    "encoder.dropout": {"kind": "float", "low": 0.0, "high": 0.5, "default": 0.0},
    "encoder.embedding_dropout": {"kind": "float", "low": 0.0, "high": 0.5, "default": 0.0},
    "encoder.qkv_bias": {"kind": "choice", "values": [False, True], "default": True},
}


def drawn_settings(space: Mapping[str, Mapping[str, Any]], rng: np.random.Generator) -> dict:
    """One value of each setting of a space."""
    made: dict[str, Any] = {}
    for name, about in space.items():
        if about["kind"] == "choice":
            made[name] = about["values"][int(rng.integers(len(about["values"])))]
        elif about["kind"] == "int":
            made[name] = int(rng.integers(about["low"], about["high"] + 1))
        elif about["kind"] == "float":
            made[name] = float(rng.uniform(about["low"], about["high"]))
        else:
            ends = np.log([about["low"], about["high"]])
            made[name] = float(np.exp(rng.uniform(*ends)))
    return made


def make_trials(
    trials: int,
    space: Mapping[str, Mapping[str, Any]] = SPACE,
    family: str = "mae linear",
) -> list[dict]:
    """Trials of a made-up search; the first is complete, of others some are not."""
    rng, rows = np.random.default_rng(trials), []
    for number in range(trials):
        state = "complete"
        if number and number % 4 == 1:
            state = "stopped"
        elif number and number % 11 == 8:
            state = "failed"
        chosen = drawn_settings(space, rng)
        top = 0.6 + 0.02 * np.log10(chosen.get("transfer.optimiser.lr", 1e-3) / 1e-5)
        top += 0.02 * rng.normal()
        ends = {"complete": 10, "stopped": 3, "failed": 1}[state]
        curve = [(e, float(top - 0.1 / e + 0.004 * rng.normal())) for e in range(1, ends + 1)]
        reached = max(value for _, value in curve)
        rows.append(
            {
                "number": number,
                "family": family,
                "state": state,
                "reason": "out of memory" if state == "failed" else None,
                **evaluated([reached] if state == "complete" else []),
                "last_value": curve[-1][1],
                "step": ends,
                "steps": 10,
                "seconds": 9.0 * ends,
                "device_hours": ends * float(rng.uniform(0.002, 0.01)),
                "started": "2025-01-01T00:00:00+00:00",
                "finished": "2025-01-01T00:01:00+00:00",
                "curve": [{"step": step, "value": value} for step, value in curve],
                **chosen,
            }
        )
    return rows


def evaluated(scores: Sequence[float], start: Sequence[float] = ()) -> dict[str, Any]:
    """What a row of a trial says of its evaluations; ``start`` are the scores of trial 0."""
    own, first = dict(enumerate(scores)), dict(enumerate(start or scores))
    differences = paired_differences(own, first) if start else list(scores)
    error = standard_error(differences)
    return {
        "value": paired_mean(own, first) if scores else None,
        "error": None if math.isnan(error) else error,
        "evaluations": len(scores),
        "scores": [{"evaluation": e, "value": value} for e, value in own.items()],
    }


KERNELS = {"encoder.options.kernels": {"kind": "log int", "low": 10, "high": 9999, "default": 500}}
EPOCHS = {"transfer.epochs": {"kind": "int", "low": 10, "high": 300, "default": 100}}
FAMILIES = {
    "scratch finetune": {"technique": "scratch", "setting": "finetune-full", "space": EPOCHS},
    "random-kernels linear": {"technique": "random-kernels", "setting": "linear", "space": KERNELS},
    "mae linear": {"technique": "mae", "setting": "linear", "space": SPACE},
}
"""Families of a made-up search over several; the first one has its start."""
SKILLS = dict(zip(FAMILIES, (0.0, 0.05, 0.02), strict=True))


def make_ladder(trials: int = 12, *, better: bool = True) -> dict[str, Any]:
    """What `make_search` takes of a search over `FAMILIES` that climbed its ladder.

    The start and the best three have 6 evaluations, the best six 3, others 1; every seventh was
    stopped and every eleventh failed. Random kernels are chosen, unless no trial is ``better``.
    """
    rng, names = np.random.default_rng([trials, 1]), [*FAMILIES]
    cuts, rows, scores = 0.02 * rng.normal(size=6), [], {}
    states = ["failed" if n % 11 == 10 else "stopped" if n % 7 == 6 else "" for n in range(trials)]
    for number in (n for n in range(trials) if not states[n]):
        effect = (SKILLS[names[number % 3]] if better else -0.2) + 0.01 * rng.normal()
        level = 0.6 + cuts + 0.004 * rng.normal(size=6)
        scores[number] = [float(value) for value in level + (effect if number else 0.0)]
    climbers = [number for number in scores if number]
    rungs = dict.fromkeys(climbers, 1) | {0: 6}
    for place, rung in ((6, 3), (3, 6)):
        climbers = ranked(climbers, scores, 1 if rung == 3 else 3)[:place]
        rungs |= dict.fromkeys(climbers, rung)
    for number, state in enumerate(states):
        family = names[number % 3]
        points = [] if state == "failed" else [{"step": 1, "value": 0.5}]
        rows.append(
            {
                **make_trials(1, FAMILIES[family]["space"], family)[0],
                **{"number": number, "state": state or "complete", "curve": points},
                **evaluated(scores.get(number, [])[: rungs.get(number)], scores[0] * bool(number)),
                "reason": "out of memory" if state == "failed" else None,
                "device_hours": 0.01 * (1 + number % 3) * rungs.get(number, 1),
                **drawn_settings(FAMILIES[family]["space"], rng),
            }
        )
    families = [{**family, "settings": [{}]} for family in FAMILIES.values()]
    return {"rows": rows, "families": families}


SOUGHT = {"made": "up", "portfolio": []}
"""What decides all made-up searches."""


def search_name(stem: str) -> str:
    """Name of the folder of a made-up search."""
    return f"{stem}-{digest(SOUGHT)[:12]}"


SEARCH = search_name("tune-ecg-mae-linear")


def make_search(
    store: Path,
    name: str = SEARCH,
    *,
    start: Settings | None = None,
    rows: Sequence[Mapping[str, Any]] | None = None,
    technique: str = "mae",
    setting: str = "linear",
    space: Mapping[str, Mapping[str, Any]] = SPACE,
    families: Sequence[Mapping[str, Any]] = (),
    finished: bool = True,
    result: Mapping[str, Any] | None = None,
    **about: Any,
) -> Path:
    """Folder of a search as a search writes it; `about` goes into ``search.json``.

    It has one family, of these settings, unless ``families`` are given.
    """
    folder = store / "searches" / name
    folder.mkdir(parents=True)
    source = {
        **{"modality": "ecg", "source": "ptb-xl", "policy": "clean", "catalog": "a", "inner": "b"},
        "records": {"train": 300, "validation": 100},
        "patients": {"train": 150, "validation": 50},
    }
    settings = [as_dict(start or Settings())]
    only = {"technique": technique, "setting": setting, "space": space, "settings": settings}
    plan = {
        **{"format": FORMAT, "families": list(families) or [only], "sources": [source]},
        **{"metric": "auroc", "sampler": "tpe", "cautious": False, "seed": 0, "device": "cpu"},
        "determinants": SOUGHT,
        **about,
    }
    names = [name for tried in plan["determinants"]["portfolio"] for name in tried["datasets"]]
    plan = {"lenders": {name: "" for name in names if isinstance(name, str)}, **plan}
    plan["sources"] = [{"sketch": "", **source} for source in plan["sources"]]
    write_hashed_json(folder / "search.json", plan)
    first = name_of_family(plan["families"][0]["technique"], plan["families"][0]["setting"])
    trials = make_trials(12, space, first) if rows is None else list(rows)
    if not families:
        trials = [{**row, "family": first} for row in trials]
    across = [place["modality"] for place in plan["sources"]] if len(plan["sources"]) > 1 else []
    schema = trials_schema([family["space"] for family in plan["families"]], across)
    table = pa.Table.from_pylist(trials, schema.with_metadata({"of": name_of(folder)}))
    pq.write_table(table, folder / "trials.parquet")
    write_hash(folder / "trials.parquet")
    if finished:
        outcome = {**_outcome(trials, plan["families"]), **(result or {})}
        write_hashed_json(folder / "result.json", outcome, of=folder)
    return folder


def _outcome(
    rows: Sequence[Mapping[str, Any]], families: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    scores = {
        row["number"]: {point["evaluation"]: point["value"] for point in row["scores"]}
        for row in rows
        if row["state"] == "complete"
    }
    best = rows[chosen(scores)]
    return {
        **{"best": best["number"], "value": best["value"], "first_value": rows[0]["value"]},
        "optimism": 0.01,
        "folds": list(range(max(5, best["evaluations"]))),
        "seconds": 600.0,
        "shared_seconds": 0.0,
        "settings": list(families[0]["settings"]),
    }
