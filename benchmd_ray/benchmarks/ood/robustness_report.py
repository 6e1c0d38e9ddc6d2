"""Robustness in reports: a row for each technique and dataset, each fault, and a figure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from benchmd_ray.benchmarks.ood import ROBUSTNESS
from benchmd_ray.benchmarks.ood.robustness import (
    CLEAN,
    Condition,
    Key,
    SplitRobustness,
    calibration,
    change,
    measured,
    pooled_auroc,
)
from benchmd_ray.errors import BenchmdError, count_of
from benchmd_ray.report.analysis import Analysis
from benchmd_ray.report.canvas import TechniqueLook
from benchmd_ray.report.columns import column_of, columns_of, interval_of, keyed_table, part, sizes
from benchmd_ray.report.contamination import together
from benchmd_ray.report.figures_panels import (
    COLUMNS,
    LABEL_WORDS,
    SMALL,
    auroc_limits,
    chance_line,
    chance_mark,
    dodge,
    dodged,
    grid,
    technique_legend,
)
from benchmd_ray.report.figures_parts import (
    Drawn,
    FigureContext,
    Titled,
    settings_of,
    techniques_of,
)
from benchmd_ray.report.frames import KEY, dataset_text, mode_and_labels, with_mode
from benchmd_ray.report.table import Table
from benchmd_ray.report.tables import Declared, aggregates
from benchmd_ray.runs.predictions import predictions_path, read_predictions
from benchmd_ray.scores.comparison import holm

HEADING = "Robustness to faults"
CHANCE = 0.5
PLACES = (CLEAN, "1", "2", "3", "ungraded")
"""Of the figure's x axis: the records as they are, severities, and faults that are there or not."""
LEVELS = 3
MARKS = ("o", "s", "^", "D", "v", "P")
"""Of the settings of a figure, in the order of tables."""


@dataclass(frozen=True, eq=False)
class Robustness:
    """All seeds of a technique on one split."""

    key: dict[str, str]
    seeds: dict[int, SplitRobustness] = field(default_factory=dict)
    seen: dict[int, str] = field(default_factory=dict)
    """What of the scored records the pretraining of each seed saw; see `report.contamination`."""

    @property
    def columns(self) -> dict[str, str]:
        """Its key and contamination."""
        return {**self.key, "contamination": together(self.seen.values())}

    @property
    def first(self) -> SplitRobustness:
        return next(iter(self.seeds.values()))

    def of_seeds(self, choose: Callable[[SplitRobustness], Condition]) -> list[Condition]:
        """A condition of each seed."""
        return [choose(split) for split in self.seeds.values()]

    def of_fault(self, name: str) -> list[Condition]:
        """The mean over the severities of a fault, of each seed."""
        return self.of_seeds(lambda split: split.of_fault(name))

    def mean(self, keys: Sequence[Key]) -> list[Condition]:
        """The mean of conditions, of each seed."""
        return self.of_seeds(lambda split: split.mean(keys))

    def cells(self, name: str, conditions: Sequence[Condition]) -> dict[str, Any]:
        """AUROC under a condition with its interval, as columns that begin with a name."""
        pooled = pooled_auroc(conditions, self.first.basis)
        return {
            name: pooled.mean,
            f"{name}_low": pooled.low,
            f"{name}_high": pooled.high,
            "caution": pooled.caution,
        }

    def calibration(self, name: str, conditions: Sequence[Condition]) -> dict[str, float]:
        """Calibration error without bias, with its interval, and the usual one."""
        value, low, high = calibration(conditions, self.first.of_error)
        usual = float(np.mean([condition.error for condition in conditions]))
        return {name: value, f"{name}_low": low, f"{name}_high": high, f"{name}_ece": usual}

    def drop(self, conditions: Sequence[Condition]) -> dict[str, Any]:
        """Change from the clean records with its interval."""
        clean = self.of_seeds(lambda split: split.clean)
        difference = change(conditions, clean, self.first.basis)
        return {
            "change": difference.value,
            "change_low": difference.low,
            "change_high": difference.high,
            "p": difference.p,
        }


@lru_cache(maxsize=1)  # tables and the figure ask for the same
def results(analysis: Analysis) -> list[Robustness]:
    """What was scored of an analysis's runs under faults, seeds together."""
    rows = analysis.rows[analysis.rows["evaluation"] == ROBUSTNESS.name]
    folders = {run.folder.name: run.folder for run in analysis.runs}
    seen = rows.groupby(["run", "dataset", "split"])["contamination"].agg(together)
    names = [name for name in KEY if name != "split"]
    results: dict[tuple[str, ...], Robustness] = {}
    for values in rows[[*names, "seed", "run"]].drop_duplicates().itertuples(index=False):
        *key, seed, run = values
        columns = dict(zip(names, map(str, key), strict=True))
        path = predictions_path(folders[str(run)], columns["dataset"], ROBUSTNESS.name)
        try:
            predictions = read_predictions(path, ROBUSTNESS.form)
        except BenchmdError:  # the rows' notes name it
            continue
        catalog = predictions.description["catalog"]
        for split in measured(predictions, analysis.resamples):
            place = (*map(str, key), catalog, split.split)
            new = Robustness({name: {**columns, "split": split.split}[name] for name in KEY})
            result = results.setdefault(place, new)
            result.seeds[int(seed)] = split
            result.seen[int(seed)] = seen.get((run, columns["dataset"], split.split), "")
    return list(results.values())


def summary(analysis: Analysis) -> pd.DataFrame:
    """A row for each technique and split: means over faults next to the clean records."""
    rows = [_summary(result) for result in results(analysis) if result.first.faults]
    frame = pd.DataFrame(rows)
    return frame.assign(p_holm=holm(frame["p"])) if rows else frame


def _summary(result: Robustness) -> dict[str, Any]:
    clean, faulty = result.of_seeds(lambda s: s.clean), result.of_seeds(lambda s: s.faulty)
    values = {
        name: float(np.mean([c.auroc for c in result.of_fault(name)]))
        for name in result.first.faults
    }
    worst = min(values, key=lambda name: values[name])
    cells = {**result.cells("clean", clean), **result.cells("faulty", faulty)}
    # Near chance the quotient of two small numbers says nothing.
    above = cells["clean_low"] > CHANCE
    relative = (cells["faulty"] - CHANCE) / (cells["clean"] - CHANCE) if above else np.nan
    return {
        **result.columns,
        **cells,
        **result.drop(faulty),
        "relative": relative,
        "worst_fault": worst,
        "worst": values[worst],
        **result.calibration("error_clean", clean),
        **result.calibration("error_faulty", faulty),
        "control": _control(result),
        "faults": len(values),
        "seeds": len(result.seeds),
        "records": result.first.records,
        "patients": result.first.patients,
    }


def _control(result: Robustness) -> str:
    controls = [condition for split in result.seeds.values() for condition in split.controls]
    if not controls:
        return "none"
    if not all(control.unchanged for control in controls):
        return "DIFFERS"
    return "exact" if any(control.altered for control in controls) else "alters no record"


def by_fault(analysis: Analysis) -> pd.DataFrame:
    """A row for each technique, split, fault and severity; 0 is the clean records."""
    rows = []
    for result in results(analysis):
        for key, condition in result.first.conditions.items():
            conditions = result.mean([key])
            rows.append(
                {
                    **result.columns,
                    "fault": key[0],
                    "severity": key[1],
                    "control": condition.control,
                    **result.cells("auroc", conditions),
                    **result.drop(conditions),
                    **result.calibration("error", conditions),
                    "altered": condition.altered,
                    "unchanged": all(c.unchanged for c in conditions),
                    "seeds": len(conditions),
                }
            )
    return pd.DataFrame(rows)


def table(analysis: Analysis) -> Table | None:
    rows = summary(analysis)
    if rows.empty:
        return None
    changes = part(rows, "change").assign(p_holm=rows["p_holm"])
    return keyed_table(
        "Robustness: AUROC of the clean records and with simulated faults, mean over faults, of "
        "each its severities averaged, in the manner of ImageNet-C and MedMNIST-C. Change: under "
        "faults minus clean, each resample of patients used for both. Relative: AUROC under "
        "faults above 0.5, as a share of the clean one above 0.5, where the clean interval is "
        "above 0.5. Worst: the fault with the lowest AUROC. ECE: expected calibration error, mean "
        "over classes, without an interval, as few records raise it. RMS error: root of the mean "
        "squared calibration error without that bias. Control: whether a fault that the "
        "normalisation removes gives exactly the clean scores, alters no stored signal here, or "
        "does not exist (none). Differences between rows are not tested here.",
        rows,
        interval_of("AUROC, clean [95 %]", part(rows, "clean"), "clean"),
        interval_of("AUROC, faults [95 %]", part(rows, "faulty"), "faulty"),
        interval_of("change [95 %]", changes, "change", "change", p="p_holm"),
        column_of("p (Holm)", rows["p_holm"], "p", about="After Holm's correction over all rows"),
        column_of("relative", rows["relative"], "number"),
        column_of("worst fault", rows["worst_fault"], "text"),
        column_of("AUROC, worst", rows["worst"], "number"),
        column_of("ECE, clean", rows["error_clean_ece"], "number"),
        column_of("ECE, faults", rows["error_faulty_ece"], "number"),
        interval_of("RMS error, clean [95 %]", part(rows, "error_clean"), "error_clean"),
        interval_of("RMS error, faults [95 %]", part(rows, "error_faulty"), "error_faulty"),
        column_of("control", rows["control"], "text"),
        *columns_of(rows, "integer", "faults", "seeds"),
        *sizes(rows),
    )


TABLES = aggregates(
    Declared.both("robustness", HEADING, summary, table, first=True),
    Declared("robustness_faults", HEADING, by_fault),
)


def _by_severity(result: Robustness) -> Iterator[dict[str, Any]]:
    """AUROC of the clean records, by severity of the graded faults, and of the others."""
    faults, conditions = set(result.first.faults), result.first.conditions
    graded = {name for name in faults if (name, LEVELS) in conditions}
    groups = {CLEAN: [(CLEAN, 0)]}
    for level in range(1, LEVELS + 1):
        groups[str(level)] = [(name, level) for name in sorted(graded)]
    groups[PLACES[-1]] = [(name, 1) for name in sorted(faults - graded)]
    for place, keys in groups.items():
        if keys:
            means = result.mean(keys)
            cells = result.cells("value", means)
            yield {
                **result.key,
                "place": place,
                "value": cells["value"],
                "low": cells["value_low"],
                "high": cells["value_high"],
                "caution": cells["caution"],
            }


def draw(report: FigureContext) -> Iterator[Drawn]:
    """AUROC by severity: a panel for each dataset, split and number of labels."""
    scored = [result for result in results(report.analysis) if result.first.faults]
    changes = summary(report.analysis)["change"].dropna() if scored else pd.Series(dtype=float)
    if changes.empty:  # no class can be scored
        return
    rows = pd.DataFrame([row for result in scored for row in _by_severity(result)])
    rows, looks = _series(rows, report.looks)
    panels = [*rows.groupby(["source", "dataset", "role", "split", "labels"], sort=False)]
    title = f"Simulated faults change AUROC by {changes.min():+.3f} to {changes.max():+.3f}"
    figure, axes = grid(title.replace("-", "\u2212"), len(panels), row=2.6, extra=0.8)
    limits = auroc_limits(rows)
    for number, (place, (key, group)) in enumerate(zip(axes, panels, strict=True)):
        *dataset, labels = map(str, key)
        _panel(place, group, looks)
        place.set_ylim(*limits)
        place.set_title(f"{dataset_text(*dataset)}, {LABEL_WORDS[labels]}", fontsize=9)
        if number % COLUMNS == 0:
            place.set_ylabel("AUROC")
    technique_legend(figure, list(looks), looks, lines=True, extra=[chance_mark()])
    seeds = count_of(max(len(result.seeds) for result in scored), "seed")
    caption = (
        "Points are means over faults: at 1 to 3 over those with three severities, at ungraded "
        "over those that are there or not. Bars are 95 % intervals over patients and, of several, "
        f"seeds (at most {seeds}), dotted where rough, missing where patients are too few. The "
        "points of a line are of the same records, so that their differences are surer than their "
        "intervals: see the changes in the table, and each fault in robustness_faults.csv."
    )
    yield Titled("robustness", HEADING, title, caption, figure, aggregate=True)


def _series(
    rows: pd.DataFrame, looks: Mapping[str, TechniqueLook]
) -> tuple[pd.DataFrame, dict[str, TechniqueLook]]:
    """Rows whose technique names its setting, too, with the looks of these names.

    The colour is the technique's; the mark is the setting's.
    """
    settings = settings_of(rows)
    modes = {setting: mode_and_labels(setting) for setting in settings}
    marks = {mode: MARKS[n] for n, mode in enumerate(dict.fromkeys(m for m, _ in modes.values()))}
    names: dict[str, TechniqueLook] = {}
    for technique in techniques_of(rows):
        for setting in settings:
            if ((rows["technique"] == technique) & (rows["setting"] == setting)).any():
                mode = modes[setting][0]
                look = replace(looks[technique], marker=marks[mode])
                names[with_mode(technique, setting)] = look
    series = [*map(with_mode, rows["technique"], rows["setting"])]
    labels = [modes[setting][1] for setting in rows["setting"]]
    return rows.assign(technique=series, labels=labels), names


def _panel(axes: Axes, rows: pd.DataFrame, looks: Mapping[str, TechniqueLook]) -> None:
    places = [place for place in PLACES if place in set(rows["place"])]
    chance_line(axes)
    present = [name for name in looks if name in set(rows["technique"])]
    for number, name in enumerate(present):
        line = rows[(rows["technique"] == name) & (rows["place"] != PLACES[-1])]
        x = [places.index(place) + dodge(number, len(present)) for place in line["place"]]
        axes.plot(x, line["value"], linewidth=0.9, alpha=0.6, zorder=1.5, **looks[name].stroke)
    dodged(axes, rows, at=places, column="place", techniques=present, looks=looks)
    axes.set_xticks(range(len(places)), places, fontsize=SMALL)
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("severity of the faults", fontsize=SMALL)


TOPICS = (draw,)
