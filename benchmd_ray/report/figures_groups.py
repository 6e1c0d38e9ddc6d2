"""Figures of section "Subgroups": AUROC by age, sex, site, device and view."""

from __future__ import annotations

import string
import textwrap
from collections.abc import Iterator, Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmd_ray.report.canvas import new_figure
from benchmd_ray.report.figures_panels import (
    auroc_limits,
    chance_line,
    chance_mark,
    dodge,
    dodged,
    technique_legend,
    title_height,
)
from benchmd_ray.report.figures_parts import (
    Drawn,
    FigureContext,
    Skipped,
    SourceStudy,
    Titled,
    heading,
    mean_auroc,
    of_place,
    of_setting,
    ordered,
    places_of,
    techniques_of,
)
from benchmd_ray.report.figures_wording import caveat, how_drawn, joined, listed, sizes
from benchmd_ray.scores.comparison import LEVEL

SECTION = "Subgroups"
VARIABLES = ("age", "sex", "site", "device", "view")
UNITS = {"age": "age (years)"}
LARGEST = 12
"""Most groups of a variable that are drawn; the tables have all."""
TESTS = (
    "p: of the hypothesis that AUROC is equal in all groups (Welch's test). Letters, where it is "
    "below 0.05: groups of one technique that share no letter differ (after Holm's correction over "
    "the pairs). The tests are not adjusted for the number of techniques and variables, nor for "
    "what else differs between groups."
)
WIDE = 5
"""Groups above which a variable takes a whole row."""


def draw_differing_subgroups(report: FigureContext) -> Iterator[Drawn]:
    """Draw places where groups differ after correction: a panel for each variable."""
    yield from _draw_subgroups(report, differing=True)


def draw_other_subgroups(report: FigureContext) -> Iterator[Drawn]:
    """Draw the places without such a difference."""
    yield from _draw_subgroups(report, differing=False)


def _draw_subgroups(report: FigureContext, *, differing: bool) -> Iterator[Drawn]:
    for study in report.studies:
        setting = report.detail(study)
        groups = study.of(report.analysis.subgroups).dropna(subset=["value"])
        groups = groups[groups["setting"] == setting]
        if groups.empty and not differing:
            reason = f"no group by age, sex, site, device or view has enough patients ({setting})"
            yield Skipped(f"subgroups-{study.slug}", reason)
        for place in places_of(study, groups):
            if _differ(of_place(groups, place)) is differing:
                yield draw_groups(report, study, place, setting)


def _differ(groups: pd.DataFrame) -> bool:
    """Whether any p is below the level after Bonferroni's correction."""
    tests = groups.drop_duplicates(["variable", "technique"])["p"].dropna()
    return bool(len(tests)) and float(tests.min()) * len(tests) < LEVEL


def draw_groups(
    report: FigureContext, study: SourceStudy, place: tuple[str, str], setting: str
) -> Drawn:
    """AUROC of each group with its interval; groups that share no letter differ."""
    analysis = report.analysis
    groups, pairs, excluded = (
        of_setting(study, frame, place, setting)
        for frame in (analysis.subgroups, analysis.subgroup_pairs, analysis.excluded)
    )
    groups = groups.dropna(subset=["value"])
    variables = [v for v in ordered(groups["variable"], VARIABLES) if _several(groups, v)]
    name = f"subgroups-{study.slug}-{place[0]}-{place[1]}"
    if not variables:
        return Skipped(name, "no variable has two groups with enough patients")
    parts = {v: _largest(groups[groups["variable"] == v]) for v in variables}
    finding = _finding(groups, variables)
    title = f"{heading(study, place)}, {setting}: {finding}"
    techniques = techniques_of(groups)
    figure, panels = _panels(title, parts)
    bottom, top = auroc_limits(groups)
    tallest = 0
    for axes, (variable, rows) in zip(panels, parts.items(), strict=True):
        at = list(dict.fromkeys(rows["group"]))
        dodged(axes, rows, at=at, column="group", techniques=techniques, looks=report.looks)
        tests = pairs[pairs["variable"] == variable]
        tallest = max(tallest, _letter(axes, rows, tests, at, techniques))
        _name_groups(axes, rows, at)
        axes.set_title(_tests_line(variable, rows, techniques, wide=len(at) > WIDE), fontsize=8)
        axes.set_ylabel("AUROC")
        chance_line(axes)
    for axes in panels:
        axes.set_ylim(bottom, top + 0.07 * tallest * (top - bottom))
        axes.set_yticks([tick for tick in axes.get_yticks() if bottom <= tick <= 1.0])
    technique_legend(figure, techniques, report.looks, extra=[chance_mark()])
    caption = joined(
        f"Mean AUROC over the classes that can be scored in the group, {how_drawn(report)}; n: "
        "patients.",
        caveat(groups),
        TESTS,
        _excluded(excluded),
        _not_drawn(groups, parts),
        report.not_drawn([study]),
        sizes(of_setting(study, mean_auroc(report.analysis.scores), place, setting)),
    )
    return Titled(name, SECTION, title, caption, figure, aggregate=True)


def letters(groups: Sequence[str], differ: set[frozenset[str]]) -> dict[str, str]:
    """Compact letter display: two groups share a letter if and only if they do not differ.

    Insert and absorb, Piepho 2004 (doi:10.1198/1061860043515).
    """
    sets = [frozenset(groups)]
    for pair in sorted(differ, key=lambda p: sorted(groups.index(g) for g in p)):
        split = [members - {one} for members in sets if pair <= members for one in pair]
        sets = [members for members in sets if not pair <= members] + split
        sets = [members for members in set(sets) if not any(members < other for other in sets)]
    sets.sort(key=lambda members: sorted(groups.index(group) for group in members))
    names = [*string.ascii_lowercase, *string.ascii_uppercase]
    return {
        group: "".join(names[i % len(names)] for i, members in enumerate(sets) if group in members)
        for group in groups
    }


def _several(groups: pd.DataFrame, variable: str) -> bool:
    return bool(groups[groups["variable"] == variable]["group"].nunique() > 1)


def _largest(rows: pd.DataFrame) -> pd.DataFrame:
    patients = rows.groupby("group", sort=False)["patients"].max()
    kept = patients.sort_values(ascending=False, kind="stable").index[:LARGEST]
    return rows[rows["group"].isin(kept)]


def _panels(title: str, parts: Mapping[str, pd.DataFrame]) -> tuple[Figure, list[Axes]]:
    """A panel for each variable, half the width where it has few groups."""
    places: list[tuple[int, slice]] = []
    row, column = 0, 0
    for rows in parts.values():
        wide = rows["group"].nunique() > WIDE
        if column and wide:
            row, column = row + 1, 0
        places.append((row, slice(0, 2) if wide else slice(column, column + 1)))
        row, column = (row, 1) if not wide and not column else (row + 1, 0)
    rows_used = places[-1][0] + 1
    if all(part["group"].nunique() <= WIDE for part in parts.values()) and len(parts) == 1:
        places = [(0, slice(0, 2))]
    figure = new_figure(title, rows_used * 2.6 + 0.7 + title_height(title))
    grid = figure.add_gridspec(rows_used, 2)
    return figure, [figure.add_subplot(grid[place]) for place in places]


def _letter(
    axes: Axes,
    rows: pd.DataFrame,
    tests: pd.DataFrame,
    at: Sequence[str],
    techniques: Sequence[str],
) -> int:
    """Write the letters above the points, and return the largest number of letters of a group."""
    tallest = 0
    for technique in techniques:
        row_of_group = rows[rows["technique"] == technique].set_index("group")
        if row_of_group.empty or not row_of_group["p"].iloc[0] < LEVEL:
            continue
        significant = tests[(tests["technique"] == technique) & (tests["p_holm"] < LEVEL)]
        pairs = {frozenset(pair) for pair in zip(significant["a"], significant["b"], strict=True)}
        named = [group for group in at if group in row_of_group.index]
        pairs = {pair for pair in pairs if pair <= set(named)}
        if not pairs:
            continue
        for group, text in letters(named, pairs).items():
            tallest = max(tallest, len(text))
            row = row_of_group.loc[group]
            top: float = row["value"] if pd.isna(row["high"]) else row["high"]
            axes.annotate(
                "\n".join(text),
                (
                    at.index(group) + dodge(techniques.index(technique), len(techniques)),
                    top,
                ),
                (0, 3),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=7.0,
                linespacing=0.95,
            )
    return tallest


def _name_groups(axes: Axes, rows: pd.DataFrame, at: Sequence[str]) -> None:
    patients = rows.groupby("group")["patients"].max()
    letters_wide = 10 if len(at) > 8 else 13 if len(at) > 3 else 20
    labels = [f"{textwrap.fill(name, letters_wide)}\nn {patients[name]:,}" for name in at]
    axes.set_xticks(range(len(at)), labels, fontsize=7.0)
    axes.tick_params(axis="x", length=0)


def _tests_line(variable: str, rows: pd.DataFrame, techniques: Sequence[str], *, wide: bool) -> str:
    p_values = rows.drop_duplicates("technique").set_index("technique")["p"]
    parts = [
        f"{name}\u00a0{_short(p_values[name])}" for name in techniques if name in p_values.index
    ]
    line = f"{UNITS.get(variable, variable)}; p: {', '.join(parts)}"
    return textwrap.fill(line, 140 if wide else 68, break_on_hyphens=False)


def _short(p: float) -> str:
    if pd.isna(p):
        return "–"
    return "<\u00a00.001" if p < 0.001 else f"{p:.2g}"


def _finding(groups: pd.DataFrame, variables: Sequence[str]) -> str:
    """The variables whose groups differ, and for how many techniques."""
    tests = groups.drop_duplicates(["variable", "technique"])
    parts: list[str] = []
    none: list[str] = []
    untested: list[str] = []
    for variable in variables:
        tested = tests[tests["variable"] == variable].dropna(subset="p")
        if tested.empty:
            untested.append(variable)
            continue
        below = int((tested["p"] < LEVEL).sum())
        if below:
            many = "" if parts else " techniques"
            parts.append(f"{variable} ({below} of {len(tested)}{many})")
        else:
            none.append(variable)
    rest = f"; too few patients for a test by {listed(untested)}" if untested else ""
    if not parts and not none:
        return f"too few patients for a test of groups by {listed(untested)}"
    if not parts:
        return f"no difference between groups is shown by {listed(none)}{rest}"
    others = f"; none shown by {listed(none)}" if none else ""
    return f"groups differ by {listed(parts)}, p\u00a0<\u00a00.05 unadjusted{others}{rest}"


def _excluded(excluded: pd.DataFrame) -> str:
    groups = excluded.drop_duplicates(["variable", "group"])
    if groups.empty:
        return ""
    parts = [
        f"{row['variable']} {row['group']} ({row['patients']:,})" for _, row in groups.iterrows()
    ]
    return f"Excluded, too few patients or missing: {', '.join(parts)}."


def _not_drawn(groups: pd.DataFrame, parts: Mapping[str, pd.DataFrame]) -> str:
    more = [
        f"{groups[groups['variable'] == v]['group'].nunique() - rows['group'].nunique()} of {v}"
        for v, rows in parts.items()
        if groups[groups["variable"] == v]["group"].nunique() > LARGEST
    ]
    return f"Smaller groups are only in the tables: {', '.join(more)}." if more else ""
