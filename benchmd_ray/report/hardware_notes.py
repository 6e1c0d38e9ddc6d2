"""Hardware of runs: columns of the table of runs, and notes where compared results differ in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from benchmd_ray.cluster.hardware import Hardware, from_json
from benchmd_ray.report.pools import Pool
from benchmd_ray.report.protocols import pretraining_of
from benchmd_ray.report.scored import Scored
from benchmd_ray.runs.sessions import trained_by
from benchmd_ray.runs.store import Run

COLUMNS = {"hardware": "model", "instructions": "instructions", "threads": "threads"}
"""Columns of the table of runs, with the field of `Hardware` that each shows."""
MEETING = ("modality", "source", "dataset", "split", "policy", "setting")
"""What results share that are pooled over seeds or compared with each other."""


def hardware_columns(run: Run) -> dict[str, str | None]:
    """What trained a run, by `COLUMNS`; all of it where sessions or workers differ."""
    kinds = trained_by(run.folder)
    columns = {}
    for name, field in COLUMNS.items():
        distinct = dict.fromkeys(getattr(kind, field) for kind in kinds)
        columns[name] = "; ".join(filter(None, distinct)) or None
    return columns


def of_pools(pools: Sequence[Pool], runs: Sequence[Run]) -> list[str]:
    """The note on the results of one source, see `different_hardware`."""
    meeting: dict[tuple[str, ...], list[Scored]] = {}
    for pool in pools:
        meeting.setdefault(tuple(pool.key[name] for name in MEETING), []).extend(pool.members)
    return different_hardware(pools[0].key["source"], meeting.values(), runs) if pools else []


def different_hardware(
    name: str, meeting: Iterable[Sequence[Scored]], runs: Sequence[Run]
) -> list[str]:
    """A note where results of ``name`` that are pooled or compared come from different hardware.

    Args:
        name: What the results are of.
        meeting: Groups of results that are pooled or compared.
        runs: Runs, with the pretrainings of the others.
    """
    runs_by_name = {run.folder.name: run for run in runs}
    differing: dict[str, set[Hardware]] = {}
    for results in meeting:
        for stage, kinds in _stages(results, runs_by_name).items():
            if len(kinds) > 1:
                differing.setdefault(stage, set()).update(kinds)
    by_kinds: dict[str, list[str]] = {}
    for stage, kinds in differing.items():
        by_kinds.setdefault("; ".join(sorted(map(str, kinds))), []).append(stage)
    return [
        f"{name}: results that are pooled or compared were {' and '.join(stages)} on different "
        f"hardware, which rounds differently: {said}. This may explain part of their differences."
        for said, stages in by_kinds.items()
    ]


def _stages(results: Sequence[Scored], runs_by_name: Mapping[str, Run]) -> dict[str, set[Hardware]]:
    stages: dict[str, set[Hardware]] = {"pretrained": set(), "trained": set(), "scored": set()}
    for run in {one.run.folder: one.run for one in results}.values():
        stages["trained"].update(trained_by(run.folder))
        if pretraining := pretraining_of(run, runs_by_name):
            stages["pretrained"].update(trained_by(pretraining.folder))
    for one in results:
        stages["scored"].add(from_json(one.about["hardware"]))
    return stages
