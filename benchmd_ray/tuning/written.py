"""Writing a search's folder: its plan, trials, result and chosen settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmd_ray.files.atomic import replacing
from benchmd_ray.files.integrity import OF, name_of, replacing_hashed, write_hashed_json
from benchmd_ray.runs.files import BEST, RESULT, TRIALS
from benchmd_ray.schema.plain_yaml import yaml_text
from benchmd_ray.settings.definition import Settings, as_dict
from benchmd_ray.tuning.confirm import Decision
from benchmd_ray.tuning.known import Trial
from benchmd_ray.tuning.limits import Limits
from benchmd_ray.tuning.parameters import applied, nested
from benchmd_ray.tuning.records import SCORE_OF, STATES, trials_schema
from benchmd_ray.tuning.stages import TrialContext
from benchmd_ray.tuning.study import Study

AXES = {"seed", "tuned", "transfer.mode", "transfer.labels"}
"""Settings that a plan varies itself, which files of settings therefore omit."""


def trial_row(trial: Trial, work: TrialContext, chosen: Decision | None = None) -> dict[str, Any]:
    several = len(work.arms) > 1
    settings = applied(work.arms[0].settings, trial.values)
    final = len(work.arms) if several else work.stage.last_step(settings)
    first = dict(trial.evaluations).get(0)
    curve = [*trial.curve, *([] if first is None else [(final, first)])]
    reached = curve[-1] if curve else (None, None)
    finalists = () if chosen is None else chosen.finalists
    finalist = next((other for other in finalists if other.number == trial.number), None)
    fresh = [score for _, score in trial.fresh]
    return {
        "number": trial.number,
        "state": trial.state,
        "reason": trial.reason or None,
        "value": None if math.isnan(trial.score) else trial.score,
        "error": None if math.isnan(trial.error) else trial.error,
        "evaluations": len(trial.evaluations),
        "fresh_value": math.fsum(fresh) / len(fresh) if fresh else None,
        "fresh_evaluations": len(fresh),
        "difference": None if finalist is None else finalist.difference,
        "difference_low": None if finalist is None else finalist.low,
        "last_value": reached[1],
        "step": reached[0],
        "steps": final,
        "seconds": trial.seconds,
        "device_hours": trial.device_hours,
        "started": trial.started,
        "finished": trial.finished or None,
        "curve": [{"step": step, "value": value} for step, value in curve],
        **trial.values,
        **({f"{SCORE_OF}{name}": value for name, value in trial.scores.items()} if several else {}),
    }


def write_trials(folder: Path, study: Study, work: TrialContext, chosen: Decision | None) -> None:
    """Write ``trials.parquet`` atomically."""
    modalities = [arm.modality for arm in work.arms] if len(work.arms) > 1 else []
    schema = trials_schema(study.space.as_dict(), modalities)
    schema = schema.with_metadata({OF: name_of(folder)})
    rows = [trial_row(trial, work, chosen) for trial in study.trials()]
    with replacing_hashed(folder / TRIALS) as partial:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), partial)


@dataclass(frozen=True)
class SearchOutcome:
    trial: Trial
    """The start if no other trial replaced it."""
    decision: Decision | None


def outcome(study: Study, decision: Decision | None) -> SearchOutcome | None:
    """The choice so far; None while there is none."""
    if study.method.choosing == "highest":
        best = study.best()
        return None if best is None else SearchOutcome(best, None)
    if study.hopeless:
        return None
    trials = study.trials()
    if decision is not None:
        return SearchOutcome(trials[decision.number], decision)
    return SearchOutcome(trials[0], None) if trials and trials[0].evaluations else None


def write_result(
    folder: Path,
    limits: Limits,
    work: TrialContext,
    bases: Sequence[Settings],
    spent: Mapping[str, float],
    decision: Decision | None = None,
) -> SearchOutcome | None:
    """Write ``result.json`` and ``best.yaml`` once there is a choice."""
    study = limits.study
    chosen = outcome(study, decision)
    if chosen is None:
        return None
    trials, best = study.trials(), chosen.trial
    shares, reason = study.importance()
    chosen_settings = [applied(arm.settings, best.values) for arm in work.arms]
    content = {
        "best": best.number,
        "value": best.score,
        "first_value": None if math.isnan(trials[0].score) else trials[0].score,
        "decision": None if chosen.decision is None else asdict(chosen.decision),
        "counts": {state: sum(t.state == state for t in trials) for state in STATES},
        **spent,
        "device_hours": limits.device_hours,
        "importance": shares,
        "importance_reason": reason,
        "front": front(trials),
        "settings": [as_dict(settings) for settings in chosen_settings],
    }
    write_hashed_json(folder / RESULT, content, of=folder)
    changes = best_settings(folder, work, bases, best)
    with replacing(folder / BEST) as partial:
        partial.write_text(_yaml(folder.name, changes, work, chosen, trials[0]), "utf-8")
    return chosen


def best_settings(
    folder: Path, work: TrialContext, bases: Sequence[Settings], best: Trial
) -> dict[str, Any]:
    """Content of ``best.yaml``: by group, the differences from the fixed protocol.

    ``tuned`` names the search, unless the start is kept.
    """
    tuned = folder.name if best.number else work.arms[0].settings.tuned
    changes: dict[str, Any] = {"tuned": tuned} if tuned else {}
    for base, arm in zip(bases, work.arms, strict=True):
        changes |= differing(base, applied(arm.settings, best.values))
    return nested(changes)


def front(trials: Sequence[Trial]) -> list[int]:
    """Numbers of the complete trials that no other beats in both score and cost, by cost."""
    chosen: list[Trial] = []
    complete = [trial for trial in trials if trial.state == "complete"]
    for trial in sorted(complete, key=lambda t: (t.cost, -t.score, t.number)):
        if not chosen or trial.score > chosen[-1].score:
            chosen.append(trial)
    return [trial.number for trial in chosen]


def differing(base: Settings, settings: Settings) -> dict[str, Any]:
    """Settings by name that differ from the fixed protocol's and affect results, without `AXES`."""
    before, now = _flat(as_dict(base)), _flat(as_dict(settings))
    return {
        name: value
        for name, value in now.items()
        if name not in AXES
        and not name.startswith("execution.")
        and (name not in before or before[name] != value)
    }


def _flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _yaml(
    search: str, changes: Mapping[str, Any], work: TrialContext, chosen: SearchOutcome, first: Trial
) -> str:
    modalities = "".join(f" --modality {arm.modality}" for arm in work.arms)
    setting = work.arms[0].settings.transfer.setting
    metric, best, decision = work.metric.upper(), chosen.trial, chosen.decision
    if decision is not None:
        summary = (
            f"# {metric} over fresh evaluations: {decision.expected:.4f} expected, the start "
            f"{decision.start:.4f}.\n"
        )
    else:
        start = "" if math.isnan(first.score) else f"; the start: {first.score:.4f}"
        summary = f"# {metric} on the search's validation records {best.score:.4f}{start}.\n"
    which = f"trial {best.number}" if best.number else "its start, which it keeps"
    return (
        f"# The settings that the search {search} chose: {which}.\n{summary}"
        f"# benchmd run --catalog CATALOGS{modalities} --technique {work.technique} "
        f"--setting {setting} --settings best.yaml\n" + yaml_text(dict(changes))
    )
