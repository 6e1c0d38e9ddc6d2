"""Writing a search's folder: its plan, trials, result and chosen settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmd_ray.data.inner import FOLDS
from benchmd_ray.files.atomic import replacing
from benchmd_ray.files.integrity import OF, name_of, replacing_hashed, write_hashed_json
from benchmd_ray.runs.files import BEST, RESULT, TRIALS
from benchmd_ray.schema.plain_yaml import yaml_text
from benchmd_ray.settings.arguments import flat
from benchmd_ray.settings.definition import Settings, as_dict
from benchmd_ray.tuning.families import FAMILY
from benchmd_ray.tuning.ladder import START
from benchmd_ray.tuning.parameters import applied, nested
from benchmd_ray.tuning.records import SCORE_OF, trials_schema
from benchmd_ray.tuning.stages import TrialContext
from benchmd_ray.tuning.study import Study
from benchmd_ray.tuning.trials import Trial

MOST_FOLDS = 10
"""Most fold models that are averaged; at least `FOLDS`."""
AXES = {"seed", "tuned", "transfer.mode", "transfer.labels"}
"""Settings that a plan varies itself, which files of settings therefore omit."""


def trial_row(trial: Trial, work: TrialContext) -> dict[str, Any]:
    family = work.families[trial.family]
    several = len(family.arms) > 1
    settings = applied(family.arms[0].settings, trial.values)
    final = len(family.arms) if several else family.stage.last_step(settings)
    curve = [*trial.curve]
    if 0 in trial.evaluations:
        curve.append((final, trial.evaluations[0]))
    reached = curve[-1] if curve else (None, None)
    return {
        "number": trial.number,
        FAMILY: trial.family,
        "state": trial.state,
        "reason": trial.reason or None,
        "value": None if math.isnan(trial.score) else trial.score,
        "error": None if math.isnan(trial.error) else trial.error,
        "evaluations": len(trial.evaluations),
        "last_value": reached[1],
        "step": reached[0],
        "steps": final,
        "seconds": trial.seconds,
        "device_hours": trial.device_hours,
        "started": trial.started,
        "finished": trial.finished or None,
        "scores": [{"evaluation": e, "value": value} for e, value in trial.evaluations.items()],
        "curve": [{"step": step, "value": value} for step, value in curve],
        **trial.values,
        **({f"{SCORE_OF}{name}": value for name, value in trial.scores.items()} if several else {}),
    }


def write_trials(folder: Path, study: Study, work: TrialContext) -> None:
    """Write ``trials.parquet`` atomically."""
    arms = next(iter(work.families.values())).arms
    modalities = [arm.modality for arm in arms] if len(arms) > 1 else []
    schema = trials_schema([f.space.as_dict() for f in study.families.values()], modalities)
    schema = schema.with_metadata({OF: name_of(folder)})
    rows = [trial_row(trial, work) for trial in study.trials()]
    with replacing_hashed(folder / TRIALS) as partial:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), partial)


def write_result(
    folder: Path,
    study: Study,
    work: TrialContext,
    bases: Mapping[str, Sequence[Settings]],
    spent: Mapping[str, float],
) -> Trial | None:
    """Write ``result.json`` and ``best.yaml`` once there is a choice; returns it.

    ``bases``: by family, the fixed protocol for each source.
    """
    best = study.best()
    if best is None:
        return None
    trials = study.trials()
    arms = work.families[best.family].arms
    content = {
        "best": best.number,
        "value": best.score,
        "first_value": trials[START].score,
        "optimism": study.optimism(),
        "folds": [*folds(best)],
        **spent,
        "settings": [as_dict(applied(arm.settings, best.values)) for arm in arms],
    }
    write_hashed_json(folder / RESULT, content, of=folder)
    changes = best_settings(folder, work, bases[best.family], best)
    with replacing(folder / BEST) as partial:
        partial.write_text(_yaml(folder.name, changes, work, best, trials[START]), "utf-8")
    return best


def best_settings(
    folder: Path, work: TrialContext, bases: Sequence[Settings], best: Trial
) -> dict[str, Any]:
    """Content of ``best.yaml``: by group, the differences of the choice from the fixed protocol.

    ``tuned`` names the search, unless the start is kept.
    """
    arms = work.families[best.family].arms
    tuned = folder.name if best.number else arms[0].settings.tuned
    changes: dict[str, Any] = {"tuned": tuned} if tuned else {}
    for base, arm in zip(bases, arms, strict=True):
        changes |= differing(base, applied(arm.settings, best.values))
    return nested(changes)


def folds(trial: Trial) -> range:
    """Evaluations whose models are averaged for a choice: those that it has, 5 to 10."""
    return range(min(MOST_FOLDS, max(FOLDS, len(trial.evaluations))))


def differing(base: Settings, settings: Settings) -> dict[str, Any]:
    """Settings by name that differ from the fixed protocol's and affect results, without `AXES`."""
    before, now = dict(flat(as_dict(base))), dict(flat(as_dict(settings)))
    return {
        name: value
        for name, value in now.items()
        if name not in AXES
        and not name.startswith("execution.")
        and (name not in before or before[name] != value)
    }


def _yaml(
    search: str, changes: Mapping[str, Any], work: TrialContext, best: Trial, first: Trial
) -> str:
    family = work.families[best.family]
    modalities = "".join(f" --modality {arm.modality}" for arm in family.arms)
    setting = family.arms[0].settings.transfer.setting
    which = f"trial {best.number}" if best.number else "its start, which it keeps"
    scores = f": {best.score:.4f}"
    if best.number:
        scores = f", too high for having been the highest{scores}; the start: {first.score:.4f}"
    return (
        f"# The settings that the search {search} chose: {which}.\n"
        f"# {work.metric.upper()} on the search's validation records{scores}.\n"
        f"# benchmd run --catalog CATALOGS{modalities} --technique {family.technique} "
        f"--setting {setting} --settings best.yaml\n" + yaml_text(dict(changes))
    )
