"""Sections of reports of runs: algorithms by their score rows, and trained networks.

Of networks seeds are pooled, next to the mean mask.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from benchmd_ray.benchmarks.touchstone.report_parts import (
    ORANGE,
    forest,
    in_percent,
    rank_column,
    table_with,
)
from benchmd_ray.benchmarks.touchstone.scored import COMMON, EVALUATION, LEVEL, OWN, RANK
from benchmd_ray.evaluation.evaluation import SEGMENTATION
from benchmd_ray.evaluation.segmentation import MEAN, ClassDice, Where, measured, row_of
from benchmd_ray.files.atomic import slug
from benchmd_ray.report.analysis import Analysis
from benchmd_ray.report.columns import column_of, columns_of, interval_of, keyed_table, part
from benchmd_ray.report.figures_panels import grid
from benchmd_ray.report.figures_parts import Drawn, FigureContext, Titled
from benchmd_ray.report.frames import KEY, with_mark
from benchmd_ray.report.table import Column, Table
from benchmd_ray.report.tables import Declared, aggregates
from benchmd_ray.runs.predictions import predictions_path, read_predictions
from benchmd_ray.scores.comparison import holm
from benchmd_ray.scores.seeds import difference_over_seeds
from benchmd_ray.training.segmented import BASELINE

ALGORITHMS = "Segmentation"
ALGORITHM_KEY = ["dataset", "regime", "technique", "class"]
HEADING, STEM = "Networks that segment", "segmentation-networks"
DIFFERENCE = ("difference", "difference_low", "difference_high", "p")
COLUMNS = (
    *(*KEY, "network", "class", "value", "low", "high", "baseline", *DIFFERENCE),
    *("records", "patients", "positives", "seeds", "caution", "runs"),
)
PLACE = tuple(name for name in KEY if name not in ("technique", "protocol"))
"""Where networks meet on the same cases."""


def algorithms_frame(analysis: Analysis) -> pd.DataFrame:
    """A row for each test set, metric, algorithm and class."""
    rows = analysis.rows[analysis.rows["evaluation"] == EVALUATION]
    measured = rows[~rows["metric"].isin([RANK, LEVEL])]
    common = measured[measured["protocol"] == COMMON].set_index(ALGORITHM_KEY)
    own_cases = measured[measured["protocol"] == OWN].set_index(ALGORITHM_KEY)
    ranks = rows[rows["metric"] == RANK].set_index(ALGORITHM_KEY)
    level = rows[rows["metric"] == LEVEL].set_index(ALGORITHM_KEY)
    return pd.DataFrame(
        {
            **common[["value", "low", "high", "records", "patients"]],
            "rank": ranks["value"],
            "rank_low": ranks["low"],
            "rank_high": ranks["high"],
            "level": level["value"],
            "own": own_cases["value"],
            "own_records": own_cases["records"],
        },
        index=common.index,
    ).reset_index()


def algorithms(analysis: Analysis) -> Table | None:
    rows = algorithms_frame(analysis)
    keys = ALGORITHM_KEY[:3]
    level = rows[rows["class"] != MEAN].groupby(keys)["level"].sum().rename("best")
    rows = rows[rows["class"] == MEAN].join(level, on=keys)
    rows = rows.sort_values(["dataset", "regime", "rank"], kind="stable")
    rows = in_percent(rows, "value", "low", "high", "own")
    return table_with(
        "Algorithms by the mean of their class means, in percent, on the cases that all have, with "
        "intervals over cases; ranks over resamples. Level with best: classes in which an "
        "algorithm has the highest mean or is not significantly below it. Own average: on its own "
        "cases, as published. `benchmd segment compare` shows tests, groups and worst cases.",
        rows,
        column_of("dataset", rows["dataset"], "text"),
        Column("metric", list(rows["regime"]), filtered=True),
        column_of("algorithm", rows["technique"], "text"),
        interval_of("average [95 %]", rows, "value", digits=2),
        rank_column(rows),
        column_of("level with best", rows["best"], "integer"),
        column_of("cases", rows["records"], "integer"),
        column_of("own average", rows["own"], "number", digits=1),
        column_of("own cases", rows["own_records"], "integer"),
    )


def draw_algorithms(report: FigureContext) -> Iterator[Drawn]:
    """Averages with intervals, a figure for each test set and metric."""
    rows = algorithms_frame(report.analysis)
    means = rows[rows["class"] == MEAN]
    for (dataset, metric), group in means.groupby(["dataset", "regime"], sort=False):
        group = group.sort_values("rank", kind="stable")
        title = f"{dataset}: highest average {metric} {group['technique'].iloc[0]}"
        figure, (axes,) = grid(title, 1, columns=1, row=0.21 * len(group) + 0.5, extra=0.5)
        forest(axes, in_percent(group, "value", "low", "high"), group["technique"])
        axes.set_xlabel(f"average {metric} (%)")
        caption = "Mean of the class means on common cases, with 95 % intervals over cases."
        name = slug("segmentation", dataset, metric)
        yield Titled(name, ALGORITHMS, title, caption, figure, aggregate=True)


@dataclass(frozen=True, eq=False)
class Trained:
    """A network on one split of a dataset: its runs, which differ by their seeds."""

    key: dict[str, str]
    """By the names of `frames.KEY`."""
    network: str
    catalog: str
    """Digest of what was scored."""
    runs: dict[int, str] = field(default_factory=dict)
    """Names, by seed."""
    scores: dict[int, dict[Where, ClassDice]] = field(default_factory=dict)

    @property
    def classes(self) -> list[str]:
        places = next(iter(self.scores.values()))
        return [name for *at, name in places if at == [self.key["split"], ""]]

    def of(self, name: str, method: str = "") -> dict[int, ClassDice]:
        """A class of each seed; empty where there is no baseline."""
        where = (self.key["split"], method, name)
        return {seed: scores[where] for seed, scores in self.scores.items() if where in scores}


@functools.lru_cache(maxsize=1)  # tables and figure ask for the same
def trained(analysis: Analysis) -> list[Trained]:
    rows = analysis.rows[analysis.rows["evaluation"] == SEGMENTATION.name]
    rows = rows[rows["run"] != ""].sort_values("seed", kind="stable")
    runs = {run.folder.name: run for run in analysis.runs}
    read = functools.cache(lambda path: read_predictions(path, SEGMENTATION.form))
    networks: dict[tuple[str, ...], Trained] = {}
    for *key, seed, name in rows[[*KEY, "seed", "run"]].drop_duplicates().itertuples(index=False):
        names, run = dict(zip(KEY, map(str, key), strict=True)), runs[str(name)]
        predictions = read(predictions_path(run.folder, names["dataset"], SEGMENTATION.name))
        new = Trained(names, run.settings.encoder.network, predictions.description["catalog"])
        network = networks.setdefault((*names.values(), new.catalog), new)
        network.runs[int(seed)] = run.folder.name
        network.scores[int(seed)] = measured(predictions, analysis.resamples)
    return list(networks.values())


def networks_frame(analysis: Analysis) -> pd.DataFrame:
    """DSC of each network and class, pooled over seeds, and its difference to the mean mask.

    ``p`` is two-sided, of no difference on the same cases; ``positives`` are the cases whose
    reference has the class.
    """
    rows = []
    for network in trained(analysis):
        for name in network.classes:
            ours, base = network.of(name), network.of(name, BASELINE)
            row: dict[str, object] = {**network.key, "network": network.network, "class": name}
            row |= row_of([*ours.values()])
            row |= {"seeds": len(network.runs), "runs": "; ".join(network.runs.values())}
            if base:  # none of a target, which nothing was trained on
                row |= {"baseline": next(iter(base.values())).value, **_difference(ours, base)}
            rows.append(row)
    return pd.DataFrame(rows, columns=COLUMNS)


def _difference(ours: Mapping[int, ClassDice], others: Mapping[int, ClassDice]) -> dict[str, float]:
    """Paired difference on the seeds of both."""
    seeds = sorted(ours.keys() & others.keys())
    difference = difference_over_seeds(
        [ours[seed].value - others[seed].value for seed in seeds],
        [ours[seed].draws - others[seed].draws for seed in seeds],
        ours[seeds[0]].basis,
    )
    values = (difference.value, difference.low, difference.high, difference.p)
    return dict(zip(DIFFERENCE, values, strict=True))


def pairs_frame(analysis: Analysis) -> pd.DataFrame:
    """Differences in mean DSC of networks on the same cases; ``p_holm`` is by dataset and split."""
    rows: list[dict[str, Any]] = []
    for a, b in itertools.combinations(trained(analysis), 2):
        place = {name: a.key[name] for name in PLACE}
        alike = a.catalog == b.catalog and all(b.key[name] == place[name] for name in PLACE)
        if not alike or not a.runs.keys() & b.runs.keys():
            continue
        difference = _difference(b.of(MEAN), a.of(MEAN))
        rows.append({**place, "catalog": a.catalog, "a": _title(a), "b": _title(b), **difference})
    table = pd.DataFrame(rows, columns=[*PLACE, "catalog", "a", "b", *DIFFERENCE])
    families = table.groupby([*PLACE, "catalog"])
    return table.assign(p_holm=families["p"].transform(holm))


def _title(network: Trained) -> str:
    return with_mark(network.key["technique"], network.key["protocol"])


def _means(analysis: Analysis) -> pd.DataFrame:
    rows = networks_frame(analysis)
    return rows[rows["class"] == MEAN].reset_index(drop=True)


def _networks(rows: pd.DataFrame) -> Table | None:
    """DSC of networks, next to the mean mask's."""
    difference = part(rows, "difference").assign(p=rows["p"])
    return keyed_table(
        "DSC of each class over the cases whose reference has it, and the mean of the classes, "
        "with 95 % intervals over patients and, of several, seeds. Mean mask: of each voxel the "
        "class that most training masks have there. `benchmd segment score` adds distances of "
        "surfaces from the masks' files.",
        rows,
        column_of("network", rows["network"], "text", filtered=True),
        column_of("class", rows["class"], "text", filtered=True),
        interval_of("DSC [95 %]", rows, "value"),
        Column("mean mask", list(rows["baseline"]), "number"),
        interval_of("network − mean mask [95 %]", difference, "difference", "change", p="p"),
        Column("cases with it", list(rows["positives"]), "integer"),
        *columns_of(rows, "integer", "patients", "seeds"),
    )


def pairs(analysis: Analysis) -> Table | None:
    """Networks against each other."""
    rows = pairs_frame(analysis)
    difference = part(rows, "difference").assign(p=rows["p_holm"])
    return keyed_table(
        "Difference in mean DSC of two networks on the same cases.",
        rows,
        *(column_of(name, rows[name], "text", filtered=True, order=()) for name in ("a", "b")),
        interval_of("b − a [95 %]", difference, "difference", "change", p="p"),
        column_of("p", rows["p"], "p"),
        column_of("p (Holm)", rows["p_holm"], "p"),
    )


def draw_networks(report: FigureContext) -> Iterator[Drawn]:
    """Networks against the mean mask, a figure for each dataset and split."""
    rows = networks_frame(report.analysis)
    for (dataset, split), group in rows.groupby(["dataset", "split"], sort=False):
        names = list(dict.fromkeys(group["class"]))
        best = group[group["class"] == MEAN].sort_values("value", ascending=False).iloc[0]
        title = f"{dataset}: mean DSC {best['value']:.3f} by {best['network']}"
        if not np.isnan(best["baseline"]):
            title += f", {best['baseline']:.3f} by the mean mask"
        mean = group[group["class"] == MEAN]
        labels = [*map(with_mark, mean["technique"], mean["protocol"])]
        figure, panels = grid(title, len(names), columns=3, row=0.24 * len(labels) + 0.7)
        for axes, name in zip(panels, names, strict=True):
            cells = group[group["class"] == name]
            forest(axes, cells, labels)
            places = np.arange(len(cells))
            axes.scatter(cells["baseline"], places, color=ORANGE, s=40, marker="|", zorder=2)
            axes.set_xlabel(f"DSC, {name}")
        caption = "With 95 % intervals over patients and seeds; orange bars: the mean mask."
        yield Titled(slug(STEM, dataset, split), HEADING, title, caption, figure, aggregate=True)


TABLES = aggregates(
    Declared.both(f"{STEM}-means", HEADING, _means, lambda a: _networks(_means(a)), first=True),
    Declared.both(STEM, HEADING, networks_frame, lambda a: _networks(networks_frame(a))),
    Declared.both(f"{STEM}-pairs", HEADING, pairs_frame, pairs),
    Declared.both("segmentation", ALGORITHMS, algorithms_frame, algorithms),
)
TOPICS = (draw_networks, draw_algorithms)
