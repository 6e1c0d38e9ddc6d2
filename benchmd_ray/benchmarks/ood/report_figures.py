"""Figures of detectors: AUROC by use-case, by set and by pretraining, false alarms, pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from benchmd_ray.benchmarks.ood import DETECTION
from benchmd_ray.benchmarks.ood.methods import USUAL
from benchmd_ray.benchmarks.ood.report import HEADING, title_of
from benchmd_ray.benchmarks.ood.report_rows import CASES, STUDY, StudiedNetwork, frame, networks
from benchmd_ray.benchmarks.ood.robustness_report import draw as draw_robustness
from benchmd_ray.benchmarks.ood.table import ALL, IN, about
from benchmd_ray.errors import count_of
from benchmd_ray.files.atomic import slug as slug_of
from benchmd_ray.report.canvas import TechniqueLook
from benchmd_ray.report.figures_panels import FAINT, SMALL, grid, technique_legend
from benchmd_ray.report.figures_parts import Drawn, FigureContext, Titled, techniques_of

REGIMES = {
    "none": ("not calibrated", TechniqueLook("#0072B2", "o", "-"), 0.0),
    "other-sources": ("calibrated on other-sources", TechniqueLook("#D55E00", "s", "-"), 0.15),
    "same-source": ("calibrated on same-source", TechniqueLook("#999999", "^", "-"), -0.15),
}
"""Title and look of each, and its offset from a detector's line, so that none hides another."""


def draw(report: FigureContext) -> Iterator[Drawn]:
    rows = frame(report.analysis)
    if rows.empty:
        return
    for key, group in rows.groupby(list(STUDY), sort=False):
        names = dict(zip(STUDY, map(str, key), strict=True))
        label = f"{names['source']}, {names['technique']}, {names['setting']}"
        label += "" if names["evaluation"] == DETECTION.name else f", {names['evaluation']}"
        slug = _slug(names)
        yield from _dots(group, label, slug)
        yield from _heat(group, label, slug)
        yield from _alarms(group, label, slug)
    for network in networks(report.analysis):
        yield from _gallery(network)
    yield from _pretrainings(rows, report)


def _slug(names: Mapping[str, str]) -> str:
    parts = ("source", "policy", "technique", "setting", "protocol", "evaluation")
    return slug_of(*(names[name] for name in parts))


def _dots(rows: pd.DataFrame, label: str, slug: str) -> Iterator[Drawn]:
    means = rows[(rows["group"] == ALL) & (rows["use_case"] != "shifted")]
    cases = [case for case in CASES if case in set(means["use_case"])]
    if not cases:
        return
    uncalibrated = means[means["regime"] == "none"]
    order = uncalibrated.groupby("method")["auroc"].mean().sort_values().index.tolist()
    order += sorted(set(means["method"]) - set(order))
    title = f"{label}: {_best(uncalibrated, cases)}"
    figure, panels = grid(title, len(cases), columns=3, row=0.17 * len(order) + 0.9)
    for axes, case in zip(panels, cases, strict=True):
        cells = means[means["use_case"] == case]
        for regime, (calibration, look, apart) in REGIMES.items():
            some = cells[cells["regime"] == regime]
            places = [order.index(name) + apart for name in some["method"]]
            distances = [some["auroc"] - some["low"], some["high"] - some["auroc"]]
            ends = np.nan_to_num(np.stack(distances))
            marks: dict[str, Any] = {"fmt": look.marker, "color": look.colour, "label": calibration}
            marks |= {"markersize": 4, "linewidth": 1, "xerr": ends.clip(min=0)}
            axes.errorbar(some["auroc"], places, **marks)
        axes.set_ylim(-1, len(order))
        sets = count_of(int(cells["sets"].max()), "set")
        _auroc_axes(axes, list(map(title_of, order)), f"{case} ({sets})")
    drawn = set(means["regime"])
    looks = {text: look for name, (text, look, _) in REGIMES.items() if name in drawn}
    technique_legend(figure, list(looks), looks)
    caption = (
        "Mean over the sets of each use-case, with 95 % intervals over patients and seeds where "
        "there are enough patients; the line is chance. Points left of it are detectors that "
        "score out-of-distribution records lower than in-distribution ones."
    )
    yield Titled(f"detectors-{slug}", HEADING, title, caption, figure, aggregate=True)


def _auroc_axes(axes: Axes, names: Sequence[str], title: str) -> None:
    """A named line each, and a line at chance."""
    axes.axvline(0.5, color=FAINT, linewidth=1, zorder=0)
    axes.set_yticks(range(len(names)), names, fontsize=SMALL)
    axes.set_xlim(0, 1.02)
    axes.set_xlabel("AUROC")
    axes.set_title(title, fontsize=9)


def _best(rows: pd.DataFrame, cases: list[str]) -> str:
    highest = []
    for case in cases:
        cells = rows[rows["use_case"] == case]
        if len(cells):
            best = cells.sort_values("auroc").iloc[-1]
            highest.append(f"{case} {title_of(str(best['method']))} {float(best['auroc']):.3f}")
    return "highest AUROC without calibration: " + ", ".join(highest)


def _heat(rows: pd.DataFrame, label: str, slug: str) -> Iterator[Drawn]:
    cells = rows[(rows["group"] != ALL) & (rows["regime"] == "none")]
    if cells.empty:
        return
    severity = " " + cells["severity"].astype(str)
    names = cells["group"] + severity.where(cells["severity"] > 0, "")
    cells = cells.assign(place=cells["use_case"].map(CASES.index), set=names)
    table = cells.pivot_table(index=["place", "use_case", "set"], columns="method", values="auroc")
    table = table.reindex(columns=table.mean().sort_values(ascending=False).index)
    title = f"{label}: AUROC of each detector on each set"
    figure, (axes,) = grid(title, 1, columns=1, row=0.16 * len(table) + 1.4)
    picture = axes.imshow(table.to_numpy(), vmin=0, vmax=1, cmap="RdBu", aspect="auto")
    detectors = [title_of(str(name)) for name in table]
    sets = [f"{case}: {name}" for _, case, name in table.index]
    axes.set_xticks(range(len(detectors)), detectors, rotation=90, fontsize=6)
    axes.set_yticks(range(len(sets)), sets, fontsize=6)
    axes.grid(visible=False)
    figure.colorbar(picture, ax=axes, label="AUROC", fraction=0.02)
    caption = (
        "Blue is detected, white chance, red scored lower than in-distribution records; seeds "
        "pooled."
    )
    yield Titled(f"detectors-sets-{slug}", HEADING, title, caption, figure, aggregate=True)


def _alarms(rows: pd.DataFrame, label: str, slug: str) -> Iterator[Drawn]:
    alarms = rows[(rows["use_case"] == "shifted") & (rows["group"] != ALL)]
    alarms = alarms[alarms["regime"] == "none"]
    if alarms.empty:
        return
    order = alarms.groupby("method")["rejected"].mean().sort_values().index.tolist()
    sets = list(dict.fromkeys(alarms["group"]))
    title = f"{label}: correct records of other hospitals that detectors reject"
    figure, panels = grid(title, len(sets), columns=3, row=0.17 * len(order) + 0.9)
    for axes, name in zip(panels, sets, strict=True):
        some = alarms[alarms["group"] == name]
        places = [order.index(method) for method in some["method"]]
        axes.barh(places, some["rejected"], color=REGIMES["none"][1].colour, height=0.7)
        axes.axvline(0.05, color="black", linewidth=0.8, linestyle="--")
        axes.set_yticks(range(len(order)), list(map(title_of, order)), fontsize=SMALL)
        axes.set_xlim(0, 1)
        axes.set_xlabel("share rejected")
        axes.set_title(f"{name} ({int(some['out'].iloc[0]):,} records)", fontsize=9)
    caption = (
        "At the threshold that accepts 95 % of in-distribution records; the dashed line is the 5 % "
        "that are rejected there."
    )
    yield Titled(f"detectors-alarms-{slug}", HEADING, title, caption, figure, aggregate=True)


def _gallery(network: StudiedNetwork) -> Iterator[Drawn]:
    """Records that the usual detector suspects most and least, of the first seed."""
    predictions = network.predictions[min(network.predictions)]
    shape = about(predictions)["shape"]
    columns = predictions.table.column_names
    detector = next((name for name in USUAL if name in columns), None)
    if detector is None:
        return
    names = ["set", "use_case", "control", "part", "alike", detector, "picture"]
    table = predictions.table.filter(predictions.table["regime"].to_pandas().eq("none").to_numpy())
    rows: pd.DataFrame = table.select(names).to_pandas()
    cells = rows[(rows["set"] == IN) & (rows["part"] == "test") & rows["alike"].isna()]
    levels = np.sort(cells[detector].to_numpy())
    rows.loc[rows["control"].fillna(False).astype(bool), "use_case"] = "control"
    pictures = rows[rows["picture"].notna()].sort_values(detector)
    count = 2 if len(shape) == 2 else 3
    groups = [("in distribution", pictures[pictures["set"] == IN])]
    groups += [(case, pictures[pictures["use_case"] == case]) for case in CASES]
    groups = [(name, group) for name, group in groups if len(group) >= 2 * count]
    if not groups:
        return
    label = f"{network.names['source']}, {network.names['technique']}, {network.names['setting']}"
    title = f"{label}: what {title_of(detector)} finds least and most suspicious"
    figure, panels = grid(title, 2 * count * len(groups), columns=2 * count, row=1.5)
    for place, (name, group) in enumerate(groups):
        some = pd.concat([group.head(count), group.tail(count)])
        for number, (_, row) in enumerate(some.iterrows()):
            axes = panels[place * 2 * count + number]
            _picture(axes, row["picture"], shape)
            above = np.searchsorted(levels, row[detector]) / len(levels)
            what = name if row["set"] == IN else row["set"]
            axes.set_title(f"{what}\nabove {above:.0%} of in", fontsize=6)
    caption = (
        f"In each row the {count} least and the {count} most suspicious records of a use-case, "
        "first of the in-distribution ones, as the network sees them, each from its darkest to its "
        "brightest value; and how many in-distribution records score less."
    )
    slug = _slug(network.names)
    yield Titled(f"detectors-gallery-{slug}", HEADING, title, caption, figure)


def _picture(axes: Axes, picture: bytes, shape: Sequence[int]) -> None:
    values = np.frombuffer(picture, np.uint8).reshape(shape)
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.set_yticks([])
    if len(shape) == 2:
        traces = values / 255 - np.arange(len(values))[:, None] * 0.5
        axes.plot(traces.T, color="black", linewidth=0.3, rasterized=True)  # else megabytes
    elif shape[0] == 3:
        axes.imshow(np.moveaxis(values, 0, -1))
    else:
        axes.imshow(values[0], cmap="gray", vmin=0, vmax=255)


def _pretrainings(rows: pd.DataFrame, report: FigureContext) -> Iterator[Drawn]:
    """Techniques next to each other, by one detector that was not chosen by its results."""
    means = rows[(rows["group"] == ALL) & (rows["regime"] == "none")]
    places = ["modality", "source", "policy", "setting", "evaluation"]
    for key, group in means.groupby(places, sort=False):
        cases = [case for case in CASES if case in set(group["use_case"]) - {"shifted", "control"}]
        detector = next((name for name in USUAL if name in set(group["method"])), None)
        names = techniques_of(group)
        if detector is None or len(names) < 2 or not cases:
            continue
        some = group[group["method"] == detector]
        title = f"{key[1]}, {key[3]}: AUROC of {title_of(detector)} by pretraining"
        figure, panels = grid(title, len(cases), columns=3, row=0.25 * len(names) + 1)
        for axes, case in zip(panels, cases, strict=True):
            for number, name in enumerate(names):
                here = some[(some["use_case"] == case) & (some["technique"] == name)]
                for _, row in here.iterrows():
                    axes.plot(row["auroc"], number, "o", color=report.looks[name].colour)
                    axes.hlines(number, row["low"], row["high"], color=report.looks[name].colour)
            _auroc_axes(axes, names, case)
        caption = (
            "Mean over the sets of each use-case, with 95 % intervals over patients and seeds "
            "where there are enough patients; one detector, which was not chosen by its results. "
            "Differences are tested in the table of pretrainings."
        )
        slug = slug_of(*key[1:])
        yield Titled(
            f"detectors-pretraining-{slug}", HEADING, title, caption, figure, aggregate=True
        )


TOPICS = (draw, draw_robustness)
