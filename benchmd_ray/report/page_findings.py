"""What a report answers first, in sentences: who won where, and the shift to targets.

What tuning gained is in `page_tuning`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from benchmd_ray.errors import count_of
from benchmd_ray.report.contamination import in_comparisons, is_marked, marked
from benchmd_ray.report.figures_panels import LABEL_WORDS
from benchmd_ray.report.figures_parts import mean_auroc, of_metric
from benchmd_ray.report.figures_wording import listed
from benchmd_ray.report.frames import (
    KEY,
    LABELS,
    MARK,
    UNKNOWN,
    dataset_text,
    mode_and_labels,
    rank_of,
    with_mode,
)
from benchmd_ray.report.matrix import Contest, contests
from benchmd_ray.report.protocols import APART
from benchmd_ray.report.table import Kind, shown, text_of
from benchmd_ray.scores.comparison import EXCHANGES, LEVEL
from benchmd_ray.scores.support import ALIKE

if TYPE_CHECKING:
    from benchmd_ray.report.analysis import Analysis

MOST_PLACES = 6
"""Datasets whose winner has a sentence of its own, at most."""
BETTER = ("significantly better", "significantly worse")
Row = Mapping[Any, Any]


def winners(analysis: Analysis) -> list[str]:
    """Who has the highest AUROC where, by how much, and whether that can be told from the baseline.

    A source counts by its targets; without any by its test split, else its validation split. Of
    several numbers of labels only the most are in a sentence.
    """
    scores = deciding(_trained(mean_auroc(analysis.scores)).dropna(subset="value"))
    chosen = _most_labels(contests(analysis.pairs, scores))
    if len(chosen) <= MOST_PLACES:
        return [_winner(contest, analysis.changes) for contest in chosen]
    return [_counted(chosen, analysis.changes)]


def deciding(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each source the rows on targets; without any those of its test split, else the others."""
    rank = np.select([rows["dataset"] != rows["source"], rows["split"] == "test"], [0, 1], 2)
    ranked = rows.assign(rank=rank)
    first = ranked.groupby(["modality", "source", "policy"])["rank"].transform("min")
    return rows[ranked["rank"] == first]


def _most_labels(all_contests: Iterable[Contest]) -> list[Contest]:
    by_place: dict[object, list[Contest]] = {}
    for contest in all_contests:
        by_place.setdefault(contest.where, []).append(contest)
    chosen = []
    for members in by_place.values():
        most = min((contest.labels for contest in members), key=lambda name: rank_of(LABELS, name))
        chosen += [contest for contest in members if contest.labels == most]
    return chosen


def _winner(contest: Contest, changes: pd.DataFrame) -> str:
    """Sentences on the winner of a contest.

    ``MAE is best on cpsc …: AUROC 0.719 [0.698, 0.740], +0.118 [0.097, 0.139] over scratch, …``
    """
    best = contest.best
    if not best:
        return (
            f"No winner on {_where(contest)}: the pretraining of every row saw this data ({MARK})."
        )
    row = contest.rows[best[0]]
    score = interval_text(row, "value")
    if len(contest.rows) == 1:
        what = f"{_name(best[0], row)} on {_where(contest)}: AUROC {score}; {_sizes(row)}."
        return f"{what} Nothing was compared with it on the same records.{_unknown(row)}"
    names = listed([_name(name, contest.rows[name]) for name in best])
    lead, is_shown = _lead(contest, best[0], changes)
    leads, whose = "is best" if is_shown else "has the highest AUROC", ""
    if len(best) > 1:
        leads, whose = "share the highest AUROC", f" (numbers of {_name(best[0], row)})"
    return (
        f"{names} {leads} on {_where(contest)}: AUROC {score}{lead}{whose}; {_sizes(row)}."
        f"{_others(contest)}{_excluded(contest)}{_unknown(row)}"
    )


def _where(contest: Contest) -> str:
    _, source, policy, dataset, role, split = contest.where
    about = []
    if dataset != source:
        about = [f"trained on {source}"]
    elif split == "validation" and any(
        not row["setting"].startswith("knn") for row in contest.rows.values()
    ):
        about = ["on which epochs were chosen, so AUROC is slightly too high"]
    if contest.labels != "full":
        about.append(LABEL_WORDS.get(contest.labels, contest.labels))
    if policy != "clean":
        about.append(f"policy {policy}")
    name = dataset_text(source, dataset, role, split)
    return text_of(f"{name} ({', '.join(about)})" if about else name)


def _name(name: str, row: Row) -> str:
    return text_of(marked([name], [row["contamination"]])[0])


def _sizes(row: Row) -> str:
    scored = count_of(int(row["records"]), text_of(row["scored"]).removesuffix("s"))
    return f"{scored} of {count_of(int(row['patients']), 'patient')}"


def _unknown(row: Row) -> str:
    return f" {UNKNOWN[0].upper()}{UNKNOWN[1:]}." if row["contamination"] == UNKNOWN else ""


def _lead(contest: Contest, best: str, changes: pd.DataFrame) -> tuple[str, bool]:
    """The winner's difference over its baseline, or over the next row if it has none.

    Also whether the difference is significant.
    """
    base, winner = _baseline(contest, best, changes), contest.rows[best]
    others = [name for name in contest.clean if name not in contest.best] or contest.best[1:]
    rival = base or max(others, key=lambda name: contest.rows[name]["value"], default="")
    if not rival:
        return ", above no row that is free of contamination", False
    other = contest.rows[rival]
    is_alike = mode_and_labels(other["setting"]) == mode_and_labels(winner["setting"])
    over = _name(other["technique"] if is_alike else rival, other)
    if not base:
        is_baseline = _is_baseline(winner, changes)
        over += f", the next ({'it is the baseline itself' if is_baseline else 'no baseline'})"
    row = contest.difference(best, rival)
    interval = interval_text(row, "difference", sign=True)
    verdict = verdict_on(row, len(contest.pairs))
    return f", {interval} over {over}{verdict}", not verdict


def verdict_on(row: Row, tests: int = 1) -> str:
    """What is added to a difference that is not significant after Holm's correction."""
    if np.isnan(row["p_holm"]):
        has_reason = bool(row["caution"]) and not np.isnan(row["low"])  # otherwise it is said
        return f", not tested ({text_of(row['caution'])})" if has_reason else ", not tested"
    if row["low"] <= 0 <= row["high"]:
        return ", not distinguishable from it"
    if row["p_holm"] < LEVEL:
        return ""
    after = f" after Holm's correction for {tests} comparisons" if tests > 1 else ""
    return f", not distinguishable from it{after}"


def _baseline(contest: Contest, best: str, changes: pd.DataFrame) -> str:
    """Name of the winner's baseline in a contest, by its best transfer; empty if it has none."""
    rows = _of_result(of_metric(changes), contest.rows[best])
    names = {_with_mode(row): name for name, row in contest.rows.items()}
    base = next((names[base] for base in rows["baseline"] if base in names), "")
    alike = [
        name
        for name in contest.clean
        if base and contest.rows[name]["technique"] == contest.rows[base]["technique"]
    ]
    return max(alike, key=lambda name: contest.rows[name]["value"], default=base)


def _is_baseline(row: Row, changes: pd.DataFrame) -> bool:
    place = [key for key in KEY if key not in ("technique", "setting", "protocol")]
    return bool((_of_result(changes, row, place)["baseline"] == _with_mode(row)).any())


def _with_mode(row: Row) -> str:
    return with_mode(row["technique"], row["setting"])


def _of_result(frame: pd.DataFrame, row: Row, names: Iterable[str] = KEY) -> pd.DataFrame:
    matches = [frame[name] == row[name] for name in names]
    return frame[np.logical_and.reduce(matches)]


def _others(contest: Contest) -> str:
    """How many of the other rows are not distinguishable from the winner."""
    first, *ties = contest.best
    others = [name for name in contest.clean if name not in (first, *ties)]
    if len(others) < 2:
        return ""
    p = [contest.difference(first, name)["p_holm"] for name in others]
    if np.isnan(p).all():
        return " No difference between rows was tested."
    if not (alike := sum(not value < LEVEL for value in p)):
        return ""
    are = "is" if alike == 1 else "are"
    return f" {alike} of the {len(others)} other rows {are} not distinguishable from it."


def _excluded(contest: Contest) -> str:
    """Contaminated rows that are above the winner."""
    top = contest.rows[contest.best[0]]["value"]
    return "".join(
        f" {_name(name, row)} has {shown(row['value'], 'number')}, but {row['contamination']}, so "
        "it does not count."
        for name, row in contest.rows.items()
        if is_marked(row["contamination"]) and row["value"] >= top
    )


def _counted(all_contests: list[Contest], changes: pd.DataFrame) -> str:
    """One sentence on the winners of many contests."""
    met = [contest for contest in all_contests if len(contest.rows) > 1]
    if not met:
        return "Nothing was compared: no two rows were scored on the same records."
    first = [(contest, contest.best[0]) for contest in met if contest.best]
    counts = ", ".join(
        f"{text_of(name)} {count}"
        for name, count in Counter(_with_mode(c.rows[name]) for c, name in first).most_common()
    )
    bases = [(c, n, base) for c, n in first if (base := _baseline(c, n, changes))]
    verdicts = [verdict_on(c.difference(name, base)) for c, name, base in bases]
    return (
        f"Highest AUROC on {count_of(len(met), 'dataset')}, contaminated rows excluded: "
        f"{counts}. The best row is significantly better than its baseline on {verdicts.count('')} "
        f"of {len(bases)}, otherwise not distinguishable from it or not tested."
    )


def shift(analysis: Analysis) -> list[str]:
    """A sentence on how AUROC changes from a source's validation split to targets."""
    scores = _trained(mean_auroc(analysis.scores)).dropna(subset="value")
    gaps = _trained(of_metric(analysis.gaps)).dropna(subset="gap")
    if scores.empty or (gaps.empty and (scores["dataset"] != scores["source"]).any()):
        return []
    if gaps.empty:
        return [
            "No target was scored: what a shift to other hospitals or devices costs is unknown."
        ]
    median = gaps["gap"].median()
    falls = (
        f"From the source's validation split to {{}}, AUROC {'falls' if median > 0 else 'rises'} by"
    )
    if len(gaps) == 1:
        row = gaps.iloc[0].to_dict()
        (name,) = marked([row["technique"]], [row["contamination"]])
        place = falls.format(text_of(row["dataset"]))
        verdict = verdict_on(row).replace("from it", "from no change")
        return [f"{place} {interval_text(row, 'gap')} ({text_of(name)}){verdict}."]
    low, high = (shown(gaps["gap"].agg(end), "number") for end in ("min", "max"))
    words = ("fell significantly", "rose significantly")
    corrected = " after Holm's correction over the targets of each technique and setting"
    verdict = judged(gaps, "gap", *words, subject="AUROC", p="p_holm", corrected=corrected)
    return [
        f"{falls.format('a target')} a median of {shown(abs(median), 'number')} "
        f"({low} to {high}, {count_of(len(gaps), 'result')}): {verdict}"
    ]


def evidence(analysis: Analysis) -> list[str]:
    """What supports or limits all results: seeds, the paper, subgroups, shuffled labels."""
    scores = mean_auroc(analysis.scores)
    trained = _trained(scores)
    if trained.empty:
        return _shuffled(scores)
    return [
        "Best: the highest AUROC measured on the same records with as many labels. Being the "
        "highest of several, it is probably a little too high. A difference is significant (p < "
        f"{LEVEL}, after Holm's correction over all pairs) unless the sentence says otherwise.",
        *_seeds(trained),
        *_paper(trained),
        *_subgroups(_trained(analysis.subgroups)),
        *_shuffled(scores),
    ]


def interval_text(row: Row, value: str, *, sign: bool = False) -> str:
    """A value with its interval, such as ``0.873 [0.851, 0.894]``, or why it has none."""
    kind: Kind = "change" if sign else "interval"
    numbers = [shown(row[value], kind), *(shown(row[end], "number") for end in ("low", "high"))]
    if pd.isna(row["low"]):
        return f"{numbers[0]} ({text_of(row['caution'] or 'no interval')})"
    rough = ", rough" if "rough" in row["caution"] else ""
    return f"{numbers[0]} [{numbers[1]}, {numbers[2]}{rough}]"


def judged(
    rows: pd.DataFrame,
    value: str,
    above: str,
    below: str,
    *,
    subject: str = "",
    p: str = "p",
    corrected: str = "",
) -> str:
    """`_judged`, and how many of the comparisons have a contaminated side."""
    verdict = _judged(rows, value, above, below, subject=subject, p=p, corrected=corrected)
    return f"{verdict} {in_comparisons(rows)}".rstrip()


def _judged(
    rows: pd.DataFrame,
    value: str,
    above: str,
    below: str,
    *,
    subject: str,
    p: str,
    corrected: str,
) -> str:
    """Sentence on how many comparisons were significant, not significant, and not tested.

    ``mae was significantly better in 1 of 2 comparisons; the other showed no difference.``

    Args:
        rows: Differences with their p.
        value: Column of the differences.
        above: What a positive difference means: ``significantly better``.
        below: What a negative one means.
        subject: Start of the sentence: ``mae was``.
        p: Column of p.
        corrected: How p is corrected for the number of tests.
    """
    tested, untested = rows.dropna(subset=p), _untested(rows[rows[p].isna()])
    if tested.empty:
        return untested
    differs = tested[tested[p] < LEVEL]
    up, down = (int((sign * differs[value] > 0).sum()) for sign in (1, -1))
    total, rest = count_of(len(tested), "comparison"), len(tested) - up - down
    level = f"(p < {LEVEL}{corrected})"
    if not up and not down:
        verdict = f"{total} showed no difference {level}."
    else:
        first, number = (above, up) if up else (below, down)
        verdict = f"{subject} {first} in {number} of {total}".lstrip()
        verdict += f" and {below} in {down}" if up and down else ""
        others = "the other" if rest == 1 else f"the other {rest}"
        verdict += f"; {others} showed no difference {level}." if rest else f" {level}."
    if not corrected:
        expected = shown(LEVEL * len(tested), "number", 1)
        verdict += f" About {expected} would be significant by chance alone."
    return f"{verdict} {untested}".rstrip()


def _untested(rows: pd.DataFrame) -> str:
    """Why comparisons have no p."""
    settled = int(rows["p"].notna().sum())  # by `holm`, before p is computed
    alike = int(rows["caution"].str.contains(ALIKE, regex=False).sum()) if "caution" in rows else 0
    reasons = {
        "both have the same score in every resample of the patients": alike,
        "too few patients, in all or in a class": len(rows) - settled - alike,
        f"no {EXCHANGES:,} exchanges can be significant among so many tests": settled,
    }
    return " ".join(
        f"{count_of(number, 'comparison')} {'was' if number == 1 else 'were'} not tested: {reason}."
        for reason, number in reasons.items()
        if number
    )


def _trained(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows that are compared: without shuffled labels and ensembles."""
    return frame[~frame["protocol"].isin(APART)]


def _paper(scores: pd.DataFrame) -> list[str]:
    if scores.empty:
        return []
    scores = scores.dropna(subset=["paper", "value"])
    if scores.empty:
        return ["Paper: no result is comparable with a published number; see below."]
    intervals = scores.dropna(subset="low")
    inside = intervals["paper"].between(intervals["low"], intervals["high"]).sum()
    differences = scores["value"] - scores["paper"]
    mean, low, high = (
        shown(v, "signed") for v in (differences.mean(), differences.min(), differences.max())
    )
    spread = "" if len(scores) == 1 else f" on average ({low} to {high})"
    are = "is" if len(scores) == 1 else "are"
    return [
        f"Paper: {count_of(len(scores), 'result')} {are} comparable with a published number, which "
        f"is in our 95 % interval in {inside} of {len(intervals)} with an interval; ours minus the "
        f"paper's is {mean}{spread}."
    ]


def _seeds(scores: pd.DataFrame) -> list[str]:
    scores = scores[scores["seeds"] > 1].dropna(subset="sd")
    if scores.empty:
        return [
            "Seeds: every result is of one seed, a single training. Another training would differ, "
            "by how much was not measured."
        ]
    median, most = shown(scores["sd"].median(), "number"), shown(scores["sd"].max(), "number")
    return [
        f"Seeds: AUROC varies between trainings that differ only by seed, standard deviation "
        f"{median} in the median, at most {most} ({count_of(len(scores), 'result')})."
    ]


def _subgroups(subgroups: pd.DataFrame) -> list[str]:
    tests = subgroups.dropna(subset="p").drop_duplicates([*KEY, "variable"])
    if tests.empty:
        return []
    counts = ", ".join(
        f"{text_of(variable)} {int((rows['p'] < LEVEL).sum())} of {len(rows)}"
        for variable, rows in tests.groupby("variable", sort=True)
    )
    return [
        f"Subgroups: AUROC differs between groups of patients at p < {LEVEL} (Welch's test, not "
        f"corrected for the number of tests) in these numbers of results: {counts}."
    ]


def _shuffled(scores: pd.DataFrame) -> list[str]:
    values = scores.loc[scores["protocol"] == "shuffled", "value"].dropna()
    if values.empty:
        return []
    low, high = shown(values.min(), "number"), shown(values.max(), "number")
    return [
        f"Shuffled labels: trained on them AUROC must be near 0.5; it is {low} to {high} in "
        f"{count_of(len(values), 'result')}, which nothing else on this page includes."
    ]
