"""Rows of detectors for reports, of stored scores: seeds pooled, and paired differences."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pandas as pd

from benchmd_ray.benchmarks.ood import EVALUATIONS, TUNED
from benchmd_ray.benchmarks.ood.scores import RESAMPLES, ScoredSet, Where, ensemble, mean_of, scored
from benchmd_ray.benchmarks.ood.sets import FEWEST
from benchmd_ray.benchmarks.ood.table import ALL, about
from benchmd_ray.errors import BenchmdError
from benchmd_ray.report.analysis import Analysis
from benchmd_ray.report.frames import SCRATCH, name_rank, technique_in
from benchmd_ray.report.protocols import APART
from benchmd_ray.runs.files import predictions_of
from benchmd_ray.runs.predictions import Predictions, read_predictions
from benchmd_ray.scores.comparison import holm
from benchmd_ray.scores.seeds import difference_over_seeds, pooled_seeds

STUDY = ("modality", "source", "policy", "setting", "technique", "protocol", "evaluation")
"""What names a network and how it was asked; runs that share it differ by their seeds."""
WHERE = ("method", "regime", "use_case", "group", "severity")
TUNED_COLUMNS = ("fixed", "tuned")
"""AUROC with the papers' hyperparameters, and with those of a search."""
COSTS = ("setup", "network", "score")
"""Seconds: once, and for each record of the network and of the detector."""
REFERENCE = "msp"
"""Detector that others are compared with: the paper's simplest."""
CASES = ("unrelated", "faulty", "unseen", "shifted", "control")


@dataclass(frozen=True)
class StudiedNetwork:
    """All seeds of a network, and what was scored of each."""

    names: dict[str, str]
    seeds: dict[int, dict[tuple[Any, ...], ScoredSet]]
    """Of each seed, by `WHERE`."""
    predictions: dict[int, Predictions]
    resamples: int
    also: str = ""
    """The other catalogs that were read: networks with others are not compared."""

    @cached_property
    def together(self) -> dict[tuple[Any, ...], ScoredSet]:
        """Of the deep ensemble of all seeds, by `WHERE`; empty of one seed."""
        if len(self.predictions) < 2:
            return {}
        seeds = [predictions for _, predictions in sorted(self.predictions.items())]
        try:
            joint = ensemble(seeds)
        except BenchmdError:  # such as seeds of catalogs that were built again in between
            return {}
        return _by_key(joint, self.resamples)

    def of(self, key: tuple[Any, ...]) -> dict[int, ScoredSet]:
        """Of each seed that has it; the ensemble counts for each of its seeds."""
        if key in self.together:
            return dict.fromkeys(self.seeds, self.together[key])
        return {seed: scores[key] for seed, scores in self.seeds.items() if key in scores}

    @property
    def keys(self) -> list[tuple[Any, ...]]:
        """All that was scored, by `WHERE`."""
        every = (*self.seeds.values(), self.together)
        return list(dict.fromkeys(key for scores in every for key in scores))

    def pooled(self) -> Iterator[dict[str, Any]]:
        """A row for each detector and set, seeds pooled."""
        for key in self.keys:
            results = [self.together[key]] if key in self.together else [*self.of(key).values()]
            drawn = all(len(result.draws) for result in results)
            first = results[0]
            pooled = pooled_seeds(
                [result.values["auroc"] for result in results],
                [result.draws if drawn else np.empty(0) for result in results],
                first.basis,
            )
            others = {
                name: float(np.mean([result.values[name] for result in results]))
                for name in first.values
                if name != "auroc"
            }
            yield {
                **self.names,
                **dict(zip(WHERE, key, strict=True)),
                "auroc": pooled.mean,
                "low": pooled.low,
                "high": pooled.high,
                "sd": pooled.sd,
                **others,
                "sets": first.sets,
                "out": first.positives,
                "records": first.records,
                "patients": first.patients,
                "seeds": len(self.of(key)),
                "caution": pooled.caution,
            }


@lru_cache(maxsize=1)  # tables and figures ask for the same
def networks(analysis: Analysis) -> list[StudiedNetwork]:
    """The networks of an analysis whose predictions were scored for detection."""
    rows = analysis.rows[analysis.rows["evaluation"].isin(list(EVALUATIONS))]
    by_key: dict[tuple[str, ...], StudiedNetwork] = {}
    folders = {run.folder.name: run.folder for run in analysis.runs}
    for values in rows[[*STUDY, "seed", "run"]].drop_duplicates().itertuples(index=False):
        *key, seed, run = values
        form = EVALUATIONS[str(key[-1])].form
        names = dict(zip(STUDY, key, strict=True))
        for path in predictions_of(folders[run]):
            if path.parent.name != form.evaluation:
                continue
            try:
                predictions = read_predictions(path, form)
            except BenchmdError:  # the rows' notes name it
                continue
            also = predictions.description["also"]
            new = StudiedNetwork(names, {}, {}, analysis.resamples, also)
            network = by_key.setdefault((*key, also), new)
            network.predictions[int(seed)] = predictions
            network.seeds[int(seed)] = _by_key(predictions, analysis.resamples)
    return [network for network in by_key.values() if network.seeds]


def _key(result: ScoredSet) -> tuple[Any, ...]:
    return tuple(getattr(result.where, name) for name in WHERE)


def _by_key(predictions: Predictions, resamples: int) -> dict[tuple[Any, ...], ScoredSet]:
    return {_key(result): result for result in scored(predictions, resamples)}


def frame(analysis: Analysis) -> pd.DataFrame:
    """All detectors on all sets, seeds pooled; ``group`` is ``all`` for means over sets."""
    rows = [row for network in networks(analysis) for row in network.pooled()]
    table = pd.DataFrame(rows, columns=None if rows else [*STUDY, *WHERE, "auroc", "low", "high"])
    return _sorted(table)


def _sorted(rows: pd.DataFrame) -> pd.DataFrame:
    order = {name: place for place, name in enumerate(CASES)}
    if rows.empty:
        return rows
    keys = rows.assign(
        place=rows["use_case"].map(order), group_place=(rows["group"] != ALL).astype(int)
    )
    by = [*STUDY, "place", "group_place", "group", "severity", "regime", "auroc"]
    down = [name != "auroc" for name in by]
    kept = keys.sort_values(by, ascending=down, kind="stable")
    return kept.drop(columns=["place", "group_place"]).reset_index(drop=True)


def costs(analysis: Analysis) -> pd.DataFrame:
    """Seconds that each detector took, means over seeds."""
    rows = []
    for network in networks(analysis):
        stated = [about(predictions)["costs"] for predictions in network.predictions.values()]
        where = json.loads(next(iter(network.predictions.values())).description["hardware"])
        for name in stated[0]:
            seconds = [by_detector[name] for by_detector in stated if name in by_detector]
            spent = {
                part: float(np.mean([by_part.get(part, np.nan) for by_part in seconds]))
                for part in COSTS
            }
            device = str(where.get("model", ""))
            rows.append({**network.names, "method": name, **spent, "device": device})
    return pd.DataFrame(rows, columns=[*STUDY, "method", *COSTS, "device"])


def _difference(
    ours: Mapping[int, ScoredSet], theirs: Mapping[int, ScoredSet]
) -> dict[str, Any] | None:
    """AUROC of one minus that of the other, over the seeds that both have."""
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None
    pairs = [(ours[seed], theirs[seed]) for seed in seeds]
    drawn = all(len(a.draws) and len(b.draws) for a, b in pairs)
    difference = difference_over_seeds(
        [a.values["auroc"] - b.values["auroc"] for a, b in pairs],
        [a.draws - b.draws if drawn else np.empty(0) for a, b in pairs],
        pairs[0][0].basis,
    )
    return {
        "difference": difference.value,
        "low": difference.low,
        "high": difference.high,
        "p": difference.p,
        "seeds": len(seeds),
        "caution": difference.caution,
    }


def _by_seed(network: StudiedNetwork) -> dict[tuple[Any, ...], dict[int, ScoredSet]]:
    place, case = WHERE.index("group"), WHERE.index("use_case")
    keys = [key for key in network.keys if key[place] == ALL and key[case] != "shifted"]
    return {key: network.of(key) for key in keys}


def _with_holm(rows: list[dict[str, Any]], more: Sequence[str] = ()) -> pd.DataFrame:
    changes = ("difference", "low", "high", "p", "p_holm", "seeds", "caution")
    table = pd.DataFrame(rows, columns=[*STUDY, *WHERE, *more, *changes])
    families = table.groupby([*STUDY, "use_case", "regime"], sort=False)
    return table.assign(p_holm=families["p"].transform(holm))


def compared(analysis: Analysis) -> pd.DataFrame:
    """Each detector minus the probability threshold, on the same records."""
    rows = []
    for network in networks(analysis):
        by_key = _by_seed(network)
        for key, results in by_key.items():
            where = dict(zip(WHERE, key, strict=True))
            base = by_key.get((REFERENCE, "none", where["use_case"], ALL, 0))
            if where["method"] == REFERENCE or where["regime"] != "none" or base is None:
                continue
            if (difference := _difference(results, base)) is not None:
                rows.append({**network.names, **where, **difference})
    return _with_holm(rows)


def _alike(network: StudiedNetwork, other: StudiedNetwork) -> bool:
    """Whether two networks differ by what made them only."""
    names = [name for name in STUDY if name not in ("technique", "protocol")]
    same = all(network.names[name] == other.names[name] for name in names)
    return same and network.also == other.also


def _from_scratch(network: StudiedNetwork) -> bool:
    return technique_in(network.names["technique"]) == SCRATCH


def techniques(analysis: Analysis) -> pd.DataFrame:
    """Each pretraining minus scratch, of the same detector on the same records."""
    rows = []
    every = [one for one in networks(analysis) if one.names["protocol"] not in APART]
    every.sort(key=lambda network: name_rank(network.names["technique"]))
    for network in every:
        scratch = (other for other in every if _from_scratch(other) and _alike(other, network))
        base = next(scratch, None)
        if base is None or _from_scratch(network):
            continue
        ours, theirs = _by_seed(network), _by_seed(base)
        for key, results in ours.items():
            if key not in theirs:
                continue
            pair = results, theirs[key]
            if key in network.together:  # one result of all seeds
                pair = tuple({0: next(iter(seeds.values()))} for seeds in pair)  # type: ignore[assignment]
            if (difference := _difference(*pair)) is not None:
                where = dict(zip(WHERE, key, strict=True))
                rows.append({**network.names, **where, **difference})
    return _with_holm(rows)


def _means_of_both(
    results: Mapping[tuple[Any, ...], ScoredSet],
) -> Iterator[tuple[Where, ScoredSet, ScoredSet]]:
    pairs: dict[tuple[str, str], list[tuple[ScoredSet, ScoredSet]]] = {}
    for result in results.values():
        where = result.where
        fixed = results.get(_key(replace(result, where=replace(where, regime="none"))))
        counted = where.group != ALL and result.positives >= FEWEST
        if where.regime == "other-sources" and counted and fixed is not None:
            pairs.setdefault((where.method, where.use_case), []).append((fixed, result))
    for (method, case), group in pairs.items():
        where = Where(method, "other-sources", case, ALL)
        fixed, result = (mean_of([pair[place] for pair in group], where) for place in (0, 1))
        yield where, fixed, result


def _of_tuned(network: StudiedNetwork) -> Iterator[dict[str, Any]]:
    both: dict[Where, tuple[dict[int, ScoredSet], dict[int, ScoredSet]]] = {}
    for seed, results in network.seeds.items():
        for where, fixed, searched in _means_of_both(results):
            seeds = both.setdefault(where, ({}, {}))
            seeds[0][seed], seeds[1][seed] = fixed, searched
    for where, (before, after) in both.items():
        if (difference := _difference(after, before)) is not None:
            values = {
                name: float(np.mean([result.values["auroc"] for result in seeds.values()]))
                for name, seeds in zip(TUNED_COLUMNS, (before, after), strict=True)
            }
            names = {name: getattr(where, name) for name in WHERE}
            yield {**network.names, **names, **values, **difference}


def tuned_frame(predictions: Predictions) -> pd.DataFrame:
    """What a search of detectors gained, by use-case, of one run."""
    results = _by_key(predictions, RESAMPLES)
    network = StudiedNetwork(dict.fromkeys(STUDY, ""), {0: results}, {0: predictions}, RESAMPLES)
    columns = ["use_case", "method", *TUNED_COLUMNS, "difference", "low", "high", "p_holm"]
    return _with_holm([*_of_tuned(network)], TUNED_COLUMNS)[columns]


def tuned(analysis: Analysis) -> pd.DataFrame:
    """Each tuned detector minus itself with the papers' hyperparameters, on the same records."""
    every = [n for n in networks(analysis) if n.names["evaluation"] == TUNED.name]
    return _with_holm([row for network in every for row in _of_tuned(network)], TUNED_COLUMNS)
