"""The first table of a report: AUROC of each row on each dataset, and the best ones.

Of the rows on the same records with as many labels the highest is the best; those that no test
after Holm's correction (`frames` ``pairs``) tells from it are alike.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from markupsafe import Markup

from benchmd_ray.data.provenance import together
from benchmd_ray.errors import count_of
from benchmd_ray.report.contamination import is_marked, legend
from benchmd_ray.report.document import render
from benchmd_ray.report.figures_parts import mean_auroc
from benchmd_ray.report.formats import aligned, csv_text, latex_text, markdown
from benchmd_ray.report.frames import (
    LABELS,
    MARK,
    PLACE,
    SETTINGS,
    dataset_text,
    mode_and_labels,
    name_rank,
    rank_of,
    with_mark,
    with_mode,
)
from benchmd_ray.report.notes import synthetic
from benchmd_ray.report.protocols import APART
from benchmd_ray.report.table import DASH, Kind, shown
from benchmd_ray.scores.comparison import LEVEL

if TYPE_CHECKING:
    from benchmd_ray.report.analysis import Analysis

NAME = "main"
"""Stem of its files."""
PAPER = "paper"
"""Protocol of published numbers."""
ALIKE = "≈"
Mark = Literal["", "best", "alike"]
Where = tuple[str, str, str, str, str, str]
"""modality, source, policy, dataset, role, split."""
What = tuple[str, str, str]
"""setting, protocol, technique."""
Group = tuple[str, str, str]
"""modality, source, policy: columns that belong together."""
WHERE = ("modality", "source", "policy", "dataset", "role", "split")
METHOD = ("setting", "protocol", "technique")


@dataclass(frozen=True)
class Cell:
    """A row on a dataset."""

    value: float
    low: float
    high: float
    seeds: int
    mark: Mark = ""
    contamination: str = ""
    """What of the dataset the row's pretraining saw."""


@dataclass(frozen=True)
class Matrix:
    """Cells by method and dataset, with each method's mean gap and rank."""

    cells: Mapping[tuple[What, Where], Cell]
    gaps: Mapping[tuple[What, Group], float]
    """In distribution minus target, mean over the targets."""
    ranks: Mapping[tuple[What, Group], float]
    """Mean rank over the targets, or without targets over all datasets; 1 is the best."""
    provenance: Mapping[Where, str]
    """Provenance of a column's training and scored data, see `data.provenance`."""
    warning: str = ""
    """Warning shown prominently."""
    contamination: str = ""
    """What the mark of contaminated cells means."""

    @cached_property
    def groups(self) -> dict[Group, list[Where]]:
        """The columns of each source, targets first."""
        groups: dict[Group, list[Where]] = {}
        for where in dict.fromkeys(where for _, where in self.cells):
            groups.setdefault(where[:3], []).append(where)
        return {
            group: sorted(places, key=lambda where: where[4] != "target")
            for group, places in groups.items()
        }

    @cached_property
    def methods(self) -> list[What]:
        """The rows: setting by setting, most labels first, published numbers below ours."""

        def order(what: What) -> tuple[object, ...]:
            setting, protocol, technique = what
            labels = rank_of(LABELS, mode_and_labels(setting)[1])
            return labels, rank_of(SETTINGS, setting), name_rank(technique), protocol == PAPER

        return sorted(dict.fromkeys(what for what, _ in self.cells), key=order)

    @property
    def frame(self) -> pd.DataFrame:
        """A row for each cell, with all digits."""
        rows = [
            {
                **dict(zip(METHOD, what, strict=True)),
                **dict(zip(WHERE, where, strict=True)),
                **vars(self.cells[what, where]),
                "provenance": "" if what[1] == PAPER else self.provenance.get(where, ""),
                "gap": self.gaps.get((what, group), np.nan),
                "mean_rank": self.ranks.get((what, group), np.nan),
            }
            for what in self.methods
            for group, places in self.groups.items()
            for where in places
            if (what, where) in self.cells
        ]
        return pd.DataFrame(rows)


def matrix_of(analysis: Analysis) -> Matrix | None:
    """The matrix of an analysis; None without a classification."""
    scores = mean_auroc(analysis.scores)
    scores = scores[~scores["protocol"].isin(APART)].dropna(subset="value")
    if scores.empty:
        return None
    marks, cells = _marks(analysis.pairs, scores), {}
    for row in scores.to_dict("records"):
        what, where = _what(row), _where(row)
        values = (row["value"], row["low"], row["high"], int(row["seeds"]))
        cells[what, where] = Cell(*values, marks.get((what, where), ""), row["contamination"])
        if np.isfinite(row["paper"]):
            published = (what[0], PAPER, what[2])
            cells[published, where] = Cell(row["paper"], np.nan, np.nan, 0)
    rows = analysis.rows[[*WHERE, "provenance"]]
    rows = rows[analysis.rows["run"] != ""].drop_duplicates()
    stated: dict[Where, str] = {}
    for row in rows.to_dict("records"):
        where = _where(row)
        stated[where] = together(row["provenance"], stated.get(where, row["provenance"]))
    gaps, ranks = dict(_gaps(analysis)), dict(_ranks(analysis, cells))
    return Matrix(cells, gaps, ranks, stated, synthetic(analysis.rows), legend(scores))


def _what(row: Mapping[Any, Any]) -> What:
    setting, protocol, technique = (str(row[name]) for name in METHOD)
    return setting, protocol, technique


def _where(row: Mapping[Any, Any]) -> Where:
    modality, source, policy, dataset, role, split = (str(row[name]) for name in WHERE)
    return modality, source, policy, dataset, role, split


def _marks(pairs: pd.DataFrame, scores: pd.DataFrame) -> dict[tuple[What, Where], Mark]:
    """The best row of each contest, and those that are not significantly worse."""
    marks: dict[tuple[What, Where], Mark] = {}
    for contest in contests(pairs, scores):
        if len(contest.rows) == 1:
            continue
        top = contest.highest(contest.rows)
        for name, row in contest.rows.items():
            differs = name not in top and contest.difference(top[0], name)["p_holm"] < LEVEL
            mark: Mark = "best" if name in top else "" if differs else "alike"
            marks[_what(row), contest.where] = mark
    return marks


@dataclass(frozen=True)
class Contest:
    """Rows on the same records with as many labels."""

    where: Where
    labels: str
    rows: Mapping[str, Mapping[Any, Any]]
    """Rows of the scores by their name in the contest."""
    pairs: Mapping[frozenset[str], Mapping[Any, Any]]
    """Rows of `frames` ``pairs`` by their two names; empty for a row that met no other."""

    @cached_property
    def clean(self) -> list[str]:
        """Names of the rows that are not contaminated."""
        return [name for name, row in self.rows.items() if not is_marked(row["contamination"])]

    @cached_property
    def best(self) -> list[str]:
        """Names of the rows with the highest AUROC of those that are not contaminated."""
        return self.highest(self.clean)

    def highest(self, names: Iterable[str]) -> list[str]:
        """The names with the highest AUROC as it is shown; several for a tie."""
        values = {name: shown(self.rows[name]["value"], "number") for name in names}
        top = max(values.values(), default="")
        return sorted(name for name, value in values.items() if value == top)

    def difference(self, a: str, b: str) -> dict[Any, Any]:
        """Row of the pair with the difference of a over b and its interval."""
        pair = {**self.pairs[frozenset((a, b))]}
        if pair["a"] == a:
            ends = {"low": -pair["high"], "high": -pair["low"]}
            pair |= {"a": b, "b": a, "difference": -pair["difference"], **ends}
        return pair


def contests(pairs: pd.DataFrame, scores: pd.DataFrame) -> Iterator[Contest]:
    """The contests of the rows of AUROC, in their order; a row that met no other is one alone."""
    places: dict[tuple[Where, str], list[dict[Any, Any]]] = {}
    for row in scores.to_dict("records"):
        key = _where(row), mode_and_labels(row["setting"])[1]
        places.setdefault(key, []).append(row)
    met: dict[tuple[Where, str], dict[frozenset[str], Mapping[Any, Any]]] = {}
    for row in pairs.to_dict("records"):
        key = _where(row), str(row["labels"])
        met.setdefault(key, {})[frozenset((row["a"], row["b"]))] = row
    for (where, labels), members in places.items():
        together = met.get((where, labels), {})
        names = {name for pair in together for name in pair}
        named = {
            name: row
            for row in members
            for name in (row["technique"], with_mode(row["technique"], row["setting"]))
            if name in names
        }
        for group in dict.fromkeys(
            frozenset(other for other in named if _met(other, name, together)) for name in named
        ):
            rows = {name: row for name, row in named.items() if name in group}
            yield Contest(where, labels, rows, {p: r for p, r in together.items() if p <= group})
        if not together:
            for row in members:
                yield Contest(where, labels, {str(row["technique"]): row}, {})


def _met(name: str, other: str, pairs: Collection[frozenset[str]]) -> bool:
    """Whether two rows are the same or were compared, which those on other records are not."""
    return name == other or frozenset((name, other)) in pairs


def _gaps(analysis: Analysis) -> Iterator[tuple[tuple[What, Group], float]]:
    """Mean gap of the methods that have a gap for each of their targets."""
    gaps = analysis.gaps[analysis.gaps["metric"] == "auroc"]
    for key, rows in gaps.groupby([*METHOD, *WHERE[:3]], sort=False):
        values = rows["gap"].to_numpy(float)
        if np.isfinite(values).all():
            yield _split(key), float(values.mean())


def _ranks(
    analysis: Analysis, cells: Mapping[tuple[What, Where], Cell]
) -> Iterator[tuple[tuple[What, Group], float]]:
    """Mean rank of rows that take part in all contests of a source with as many labels."""
    names = [*WHERE[:3], "labels"]
    methods = {(what[0], what[2], where[:3]): what for what, where in cells if what[1] != PAPER}
    for _, rows in analysis.ranking.groupby(names, sort=False):
        targets = rows[rows["role"] == "target"]
        ranked = targets if len(targets) else rows
        contests = len(ranked[list(PLACE)].drop_duplicates())
        for key, ranks in ranked.groupby(["setting", "technique", *WHERE[:3]], sort=False):
            setting, technique, *others = map(str, key)
            group = others[0], others[1], others[2]
            if len(ranks) == contests and (setting, technique, group) in methods:
                yield (methods[setting, technique, group], group), float(ranks["rank"].mean())


def _split(key: Any) -> tuple[What, Group]:
    setting, protocol, technique, modality, source, policy = map(str, key)
    return (setting, protocol, technique), (modality, source, policy)


# --- as text -----------------------------------------------------------------------


@dataclass(frozen=True)
class CellText:
    text: str
    mark: Mark = ""
    cell: Cell | None = None
    """The cell; None for a summary or an empty cell."""


@dataclass(frozen=True)
class Written:
    """Headers and cells of a matrix as texts."""

    heads: list[str]
    groups: list[tuple[str, int]]
    """Modalities with their number of columns."""
    rows: list[tuple[What, list[CellText]]]
    sums: list[str]
    """Names of the summary columns."""
    warning: str
    contamination: str = ""


def written(matrix: Matrix) -> Written:
    """A matrix as texts."""
    sums: list[tuple[str, Mapping[tuple[What, Group], float], Kind, int]] = [
        ("gap", matrix.gaps, "signed", 3),
        ("rank", matrix.ranks, "number", 1),
    ]
    several = len({group[:2] for group in matrix.groups}) < len(matrix.groups)
    heads, groups, used = list[str](), list[tuple[str, int]](), set[str]()
    rows: dict[What, list[CellText]] = {what: [] for what in matrix.methods}
    for group, places in matrix.groups.items():
        before = len(heads)
        for where in places:
            heads.append(dataset_text(where[1], where[3], where[4], where[5]))
            for what, cells in rows.items():
                cell = matrix.cells.get((what, where))
                value = DASH if cell is None else shown(cell.value, "number")
                value += MARK if cell is not None and is_marked(cell.contamination) else ""
                cells.append(CellText(value, "" if cell is None else cell.mark, cell))
        for name, values, kind, digits in sums:
            if any(of == group for _, of in values):
                used.add(name)
                heads.append(name)
                for what, cells in rows.items():
                    cells.append(CellText(shown(values.get((what, group)), kind, digits)))
        title = f"{group[0]}, {group[2]}" if several else group[0]
        groups.append((title, len(heads) - before))
    used_sums = [name for name, *_ in sums if name in used]
    return Written(
        heads, groups, list(rows.items()), used_sums, matrix.warning, matrix.contamination
    )


def method_text(what: What) -> str:
    """``MAE (custom)``: a protocol is named unless it is the usual one."""
    return with_mark(what[2], what[1])


CAPTION = "AUROC, mean over classes, seeds pooled."
MARKED = (
    "Bold: highest of all rows on the same records with as many labels, whatever the transfer; "
    f"{ALIKE}: not significantly different from it (p ≥ {LEVEL} after Holm's correction, or too "
    "few patients for a test)."
)
SUMMED = {
    "gap": "Gap: in distribution minus target over the classes that both can score, mean over the "
    "targets.",
    "rank": "Rank: among the rows with as many labels, mean over the targets, or over all datasets "
    "without one; 1 is the best.",
}


def caption_of(text: Written) -> str:
    """Caption on the cells and the summary columns."""
    marked = any(cell.mark for _, cells in text.rows for cell in cells)
    sums = [SUMMED[name] for name in text.sums]
    sentences = [CAPTION, MARKED if marked else "", *sums, text.contamination, text.warning]
    return " ".join(filter(None, sentences))


def matrix_markdown(matrix: Matrix) -> str:
    """The matrix as a Markdown table with its caption."""
    text = written(matrix)
    forms: dict[Mark, str] = {"": "{}", "best": "**{}**", "alike": "{} " + ALIKE}
    rows = [
        [what[0], method_text(what), *(forms[cell.mark].format(cell.text) for cell in cells)]
        for what, cells in text.rows
    ]
    heads = ["setting", "technique", *text.heads]
    return f"{caption_of(text)}\n\n{markdown(pd.DataFrame(rows, columns=pd.Index(heads)))}\n"


def matrix_lines(matrix: Matrix) -> list[str]:
    """The lines of the matrix for a terminal: a table for each source, and the caption."""
    text, parts, first = written(matrix), list[str](), 0
    for title, count in text.groups:
        chosen, before = slice(first, first + count), ""
        lines = []
        for what, cells in text.rows:
            texts = [
                cell.text + {"best": "*", "alike": ALIKE, "": " "}[cell.mark] for cell in cells
            ]
            if any(each.cell is not None for each in cells[chosen]):
                setting = "" if what[0] == before else what[0]
                lines.append([setting, method_text(what), *texts[chosen]])
                before = what[0]
        heads = ["setting", "technique", *(f"{head} " for head in text.heads[chosen])]
        table = pd.DataFrame(lines, columns=pd.Index(heads))
        parts += [title, *aligned(table), ""]
        first += count
    caption = caption_of(text).replace("Bold:", "*:")
    return [*parts, caption]


def matrix_latex(matrix: Matrix) -> str:
    """The matrix as a LaTeX table of one page; it needs booktabs and graphicx."""
    text = written(matrix)
    forms: dict[Mark, str] = {"": "{}", "best": r"\textbf{{{}}}", "alike": r"{}$^{{\approx}}$"}
    wide = 1 + len(text.heads)
    groups = [rf"\multicolumn{{{n}}}{{c}}{{{latex_text(name)}}}" for name, n in text.groups]
    ends = np.cumsum([1, *(count for _, count in text.groups)])
    rules = [rf"\cmidrule(lr){{{first + 1}-{last}}}" for first, last in pairwise(ends)]
    lines = [
        "% needs \\usepackage{booktabs,graphicx}",
        r"\begin{table}",
        rf"\caption{{{latex_text(caption_of(text))}}}\label{{tab:{NAME}}}",
        r"\resizebox{\textwidth}{!}{%",
        rf"\begin{{tabular}}{{l{'r' * len(text.heads)}}}",
        r"\toprule",
        " & ".join(["", *groups]) + r" \\",
        "".join(rules),
        " & ".join(map(latex_text, ("technique", *text.heads))) + r" \\",
    ]
    before = ""
    for what, cells in text.rows:
        if what[0] != before:
            before = what[0]
            head = rf"\multicolumn{{{wide}}}{{l}}{{\emph{{{latex_text(before)}}}}} \\"
            lines += [r"\midrule", head]
        values = [forms[cell.mark].format(latex_text(cell.text)) for cell in cells]
        lines.append(" & ".join([latex_text(method_text(what)), *values]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def matrix_html(matrix: Matrix) -> Markup:
    """The matrix for the page; a cell's tooltip has interval and seeds, print the interval."""
    text = written(matrix)
    settings: dict[str, list[tuple[str, bool, list[tuple[CellText, str, str]]]]] = {}
    for what, cells in text.rows:
        texts = [(cell, _about(cell), _interval(cell)) for cell in cells]
        row = (method_text(what), what[1] == PAPER, texts)
        settings.setdefault(what[0], []).append(row)
    return render(
        "matrix.html",
        caption=caption_of(text),
        groups=text.groups,
        heads=text.heads,
        settings=list(settings.items()),
        csv=csv_text(matrix.frame),
    )


def _interval(shown_cell: CellText) -> str:
    cell = shown_cell.cell
    if cell is None or np.isnan(cell.low):
        return ""
    return f"[{shown(cell.low, 'number')}, {shown(cell.high, 'number')}]"


def _about(shown_cell: CellText) -> str:
    """Tooltip with interval and seeds of a cell; empty for published numbers."""
    cell = shown_cell.cell
    if cell is None or not cell.seeds:
        return ""
    low, high = shown(cell.low, "number"), shown(cell.high, "number")
    interval = "no interval" if DASH in (low, high) else f"95 % interval {low} to {high}"
    seen = f", {cell.contamination}" if is_marked(cell.contamination) else ""
    return f"{interval}, {count_of(cell.seeds, 'seed')}{seen}"
