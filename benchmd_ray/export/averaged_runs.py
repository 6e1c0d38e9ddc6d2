"""Runs that are exported as one model, the average of their probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.registry import screen_of
from benchmd_ray.report.protocols import pretraining_of, searches_behind
from benchmd_ray.runs.files import SEARCH, SEARCHES
from benchmd_ray.runs.places import backing_of
from benchmd_ray.runs.store import Run, read_run, read_stores, require_weights, shown
from benchmd_ray.settings.definition import Settings, updated
from benchmd_ray.ssl.brought import technique_label
from benchmd_ray.training.applied import SignalClassifier
from benchmd_ray.training.weights import MOST_MEMBERS, is_exported, require_programs
from benchmd_ray.tuning.parameters import value_of
from benchmd_ray.tuning.records import SearchRecord, read_search
from benchmd_ray.tuning.trial import seed_of

TRAINED = (
    *("kind", "technique", "setting", "protocol", "seed", "fold", "modality", "source", "policy"),
    *("provenance", "raw", "options", "upstream", "pretrained_on", "published", "determinants"),
    "versions",
)
"""Fields of ``run.json`` that ``config.json`` includes, if present."""
ALIKE = ("technique", "setting", "source", "policy", "modality", "modality_card")
DETERMINANTS = ("precision", "network_source", "parts")
SETTINGS = ("encoder", "pretrain", "transfer")


def exported_runs(places: Sequence[Path | Run]) -> list[Run]:
    """Runs, those in folders, and for the folder of a search the fold runs that it delivers."""
    runs: list[Run] = []
    for place in places:
        if isinstance(place, Run):
            runs.append(place)
            continue
        if place.parent.name == SEARCHES:  # of a store that may be in a bucket
            backing_of(place.parent.parent).refresh_store()
        runs += fold_runs(place) if (place / SEARCH).is_file() else [read_run(place)]
    return runs


def classifier_of(
    places: Sequence[Path | Run], device: str | torch.device = "auto"
) -> SignalClassifier:
    """The classifier of a run, an export or a search, or of several runs that are averaged.

    It has the detector that was fitted to it.

    Raises:
        BenchmdError: A run is not finished or has no weights, or runs differ in their settings.
    """
    folder, *others = _member_folders(places)
    model = SignalClassifier(folder, device, others)
    model.screen = None if others else screen_of(folder)
    return model


def _member_folders(places: Sequence[Path | Run]) -> list[Path]:
    if len(places) == 1 and isinstance(places[0], Path) and is_exported(places[0]):
        require_programs(places[0])
        return [places[0]]
    runs = exported_runs(places)
    for run in runs:
        require_weights(run)
    require_averageable(runs)
    return [run.folder for run in runs]


def fold_runs(folder: Path) -> list[Run]:
    """Finished fold runs of the settings that a search chose, in the order of their evaluations."""
    record, store = read_search(folder), folder.resolve().parent.parent
    runs_by_name = {run.folder.name: run for run in read_stores([store]).found}
    runs = [run for run in runs_by_name.values() if _is_delivered(run, record, runs_by_name)]
    if not runs:
        raise BenchmdError(
            f"{shown(store)} has no finished fold run of {record.name}: run its `benchmd tune` "
            "again, which trains them, or name runs."
        )
    return sorted(runs, key=lambda run: int(run.description["fold"]["evaluation"]))


def _is_delivered(run: Run, record: SearchRecord, runs_by_name: Mapping[str, Run]) -> bool:
    """Whether a run is a fold run of a search's choice, which may be its start."""
    about = run.description
    if (
        not run.finished
        or about["kind"] != "transfer"
        or "fold" not in about
        or not record.is_finished
    ):
        return False
    pretraining = pretraining_of(run, runs_by_name)
    chosen = record.chosen
    if chosen is None or about["technique"] != technique_label(chosen.technique):
        return False
    if record.best != 0:
        is_of_search = record.name in searches_behind(run, pretraining)
        return is_of_search and _has_choice(run, pretraining, record)
    start = record.start(about["modality"], about["source"], about["policy"])
    if start is None:
        return False
    settings = run.settings
    setting = {name: getattr(settings.transfer, name) for name in ("mode", "labels")}
    return (
        about["determinants"]["catalog"] in [source["catalog"] for source in record.sources]
        and about["seed"] == seed_of(record.seed, about["fold"]["evaluation"])
        and (settings.encoder, settings.transfer)
        == (start.encoder, replace(start.transfer, **setting))
        and (pretraining is None or pretraining.settings.pretrain == start.pretrain)
        and not searches_behind(run, pretraining)
    )


def _has_choice(run: Run, pretraining: Run | None, record: SearchRecord) -> bool:
    """Whether a run has the settings that a search chose last, before it was extended or after."""
    assert record.chosen is not None
    choice = updated(Settings(), record.chosen_settings[0])
    for name in record.chosen.space:
        trained = pretraining if name.startswith("pretrain.") else run
        if trained is not None and value_of(trained.settings, name) != value_of(choice, name):
            return False
    return True


def require_averageable(runs: Sequence[Run]) -> None:
    """Refuse runs that differ in more than seed, fold and statistics; a single run is fine.

    Of a cross-validation there is to be one of each fold: only then scores are of the average.

    Raises:
        BenchmdError: There are too many, one is named twice, one is a pretraining, or they differ.
    """
    if len(runs) == 1:
        return
    if not 0 < len(runs) <= MOST_MEMBERS:
        raise BenchmdError(f"{len(runs)} runs are named, expected 1 to {MOST_MEMBERS}.")
    names = [shown(run.folder) for run in runs]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BenchmdError(f"{twice} is named twice: name each run once.")
    _require_all_folds(runs)
    stated = [_stated(run) for run in runs]
    for name, run, values in zip(names, runs, stated, strict=True):
        if run.description["kind"] != "transfer":
            raise BenchmdError(
                f"{name} is a pretraining: only classifiers are averaged. Name one pretraining, or "
                "transfers."
            )
        if differing := [what for what, value in values.items() if value != stated[0][what]]:
            raise BenchmdError(
                f"{name} and {names[0]} differ in {', '.join(differing)}: runs that are averaged "
                "differ in seed, fold and statistics only."
            )


def _require_all_folds(runs: Sequence[Run]) -> None:
    """Of models of a cross-validation, refuse all but those of one fold, or one of each fold."""
    every = [run.description for run in runs]
    stated = [about["held_out_fold"] for about in every if "held_out_fold" in about]
    numbers = sorted(fold["number"] for fold in stated)
    if len(set(numbers)) < 2:
        return
    folds = range(stated[0]["folds"])
    if numbers != list(folds):
        lacking = sorted(set(folds) - set(numbers))
        which = f"fold {lacking[0]} has none" if lacking else "a fold has several"
        raise BenchmdError(
            "models of a cross-validation are averaged if there is one of each fold, so that the "
            f"average is scored by the cross-validation: here, {which}. Name one run of each of "
            f"the {len(folds)} folds."
        )


def _stated(run: Run) -> dict[str, Any]:
    about = run.description
    of_whole = about.get("held_out_fold", about["determinants"])
    return {
        **{name: about[name] for name in ALIKE},
        **{f"settings ({name})": getattr(run.settings, name) for name in SETTINGS},
        **{name: about["determinants"].get(name) for name in DETERMINANTS},
        "catalog": of_whole.get("catalog"),
    }


def origins(runs: Sequence[Run]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What ``config.json`` states of the training: of all runs, and what differs in each."""
    stated = [
        {"run": run.folder.name, **{k: run.description[k] for k in TRAINED if k in run.description}}
        for run in runs
    ]
    determinants = [about.pop("determinants") for about in stated]
    common, shared = _common(stated), _common(determinants)
    return common | {"determinants": shared}, [
        _without(about, common) | {"determinants": _without(decisive, shared)}
        for about, decisive in zip(stated, determinants, strict=True)
    ]


def _common(objects: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = objects[0].items()
    return {name: value for name, value in first if all(o.get(name) == value for o in objects)}


def _without(values: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in common}


def is_cross_validated(runs: Sequence[Run]) -> bool:
    """Whether they are the models of all folds of a cross-validation."""
    folds = {run.description.get("held_out_fold", {}).get("number") for run in runs}
    return len(folds) > 1


def average_sentence(runs: Sequence[Run]) -> list[str]:
    """The sentence of the card that says what is averaged; none for one run."""
    if len(runs) == 1:
        return []
    folds = [run.description["fold"]["evaluation"] for run in runs if "fold" in run.description]
    without = "each trained without one fold of the training records"
    trained = f", {without} ({_listed('evaluation', folds)})" if len(folds) == len(runs) else ""
    if is_cross_validated(runs):
        trained = ", each trained without the patients of one fold of the dataset"
    seeds = _listed("seed", [run.description["seed"] for run in runs])
    models = f"It is the average of the probabilities of {len(runs)} models of the same settings"
    return [f"{models}{trained}, with the {seeds}."]


def _listed(what: str, numbers: Sequence[object]) -> str:
    values = list(dict.fromkeys(map(str, numbers)))
    return f"{what}{'s' * (len(values) > 1)} {', '.join(values)}"
