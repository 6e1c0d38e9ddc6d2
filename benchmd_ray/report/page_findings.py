"""Findings of an analysis as sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from benchmd_ray.errors import count_of
from benchmd_ray.report.contamination import in_comparisons, marked
from benchmd_ray.report.contamination import sentences as seen_by
from benchmd_ray.report.figures_parts import mean_auroc, of_metric, ordered
from benchmd_ray.report.figures_wording import baseline_text, listed
from benchmd_ray.report.frames import (
    KEY,
    PLACE,
    SCRATCH,
    SETTINGS,
    VERSIONS,
    by_name,
    dataset_text,
    with_mark,
    with_mode,
)
from benchmd_ray.report.protocols import APART, ENSEMBLES, TUNED
from benchmd_ray.report.table import Kind, shown, text_of
from benchmd_ray.scores.comparison import EXCHANGES, LEVEL
from benchmd_ray.scores.support import ALIKE

if TYPE_CHECKING:
    from benchmd_ray.report.analysis import Analysis

MOST_NAMED = 6
"""Rows that the first line names, at most."""
BETTER = ("significantly better", "significantly worse")
SETTING_WORDS = {
    "knn": "nearest neighbours",
    "linear": "linear probe",
    "finetune-full": "full fine-tuning",
    "finetune-small": "fine-tuning with 8 labels per class",
    "finetune-medium": "fine-tuning with 64 labels per class",
    "finetune-large": "fine-tuning with 256 labels per class",
}


def facts(analysis: Analysis) -> list[tuple[str, str, str]]:
    """Counts of a report's contents: label, number, names."""
    ran, scores = analysis.ran, analysis.rows[analysis.rows["run"] != ""]
    rows = [("finished runs", f"{ran['finished'].sum():,}", _kinds(ran[ran["finished"]]))]
    targets = scores[scores["role"] == "target"]
    counted = {
        "modalities": scores["modality"],
        "sources": scores["source"],
        "targets": targets["dataset"],
        "rows": scores["technique"],
        "settings": scores["setting"],
        "seeds": ran.loc[ran["kind"] == "transfer", "seed"],
    }
    orders: dict[str, Sequence[str]] = {
        "modalities": analysis.modalities,
        "rows": by_name(scores["technique"].unique()),
        "settings": SETTINGS,
    }
    for label, column in counted.items():
        names = ordered(column.unique(), orders.get(label, ()))
        rows.append((label, f"{len(names):,}", _listed(names, "; " if label == "rows" else ", ")))
    versions = [f"{name} {_listed(ran[name].unique())}" for name in VERSIONS[:2] if len(ran)]
    return [
        *rows,
        ("versions", str(len(ran[list(VERSIONS)].drop_duplicates())), "; ".join(versions)),
    ]


def compared(analysis: Analysis) -> str:
    """One line on what was compared on which data; empty without a classification.

    ``ShED; MAE vs scratch on ptb-xl → chapman-shaoxing (ecg): linear probe, 2 seeds.``
    """
    scores = _trained(mean_auroc(analysis.scores))
    if scores.empty:
        return ""
    techniques = by_name(scores["technique"].unique())
    modes, baselines = scores["setting"].unique(), {*analysis.changes["baseline"]}
    bases = [n for n in techniques if baselines & {n, *(with_mode(n, mode) for mode in modes)}]
    base = bases[0] if len(bases) == 1 else SCRATCH
    others = [name for name in techniques if name != base]
    versus = f" vs {text_of(base)}" if others and len(others) < len(techniques) else ""
    settings = [SETTING_WORDS.get(s, s) for s in ordered(scores["setting"].unique(), SETTINGS)]
    places = []
    for (modality, source), rows in scores.groupby(["modality", "source"], sort=False):
        targets = sorted(rows.loc[rows["role"] == "target", "dataset"].unique())
        to = f" → {_listed(targets)}" if targets else ""
        places.append(f"{text_of(source)}{to} ({text_of(modality)})")
    seeds = int(scores["seeds"].max())
    many = "1 seed" if seeds == 1 else f"up to {seeds} seeds"
    named = others or techniques
    subject = _listed(named, "; ") if len(named) <= MOST_NAMED else f"{len(named)} rows"
    return f"{subject}{versus} on {'; '.join(places)}: {listed(settings)}, {many}."


def headlines(analysis: Analysis) -> list[tuple[str, str]]:
    """Contaminated rows, and at most three sentences backed by tests, each with its table."""
    targets = analysis.changes[analysis.changes["role"] == "target"]
    changes = of_metric(targets if len(targets) else analysis.changes).dropna(subset="value")
    where = " on targets" if len(targets) else ""
    lines = []
    if len(changes):
        lines.append((_against_baseline(changes, where), "changes"))
    tuned = analysis.tuned.dropna(subset="difference")
    averages = tuned["protocol"] == ENSEMBLES[TUNED]
    tuned = tuned[averages] if averages.any() else tuned
    if (tuned["role"] == "target").any():
        tuned = tuned[tuned["role"] == "target"]
    if len(tuned):
        where = "targets" if (tuned["role"] == "target").all() else "the source's own splits"
        subject = "the tuned ensemble was" if averages.any() else "tuned settings were"
        verdict = judged(tuned, "difference", *BETTER, subject=subject)
        lines.append((f"AUROC against the start of the search on {where}: {verdict}", "tuned"))
    lines += [(sentence, "ranking") for sentence in _ranking(analysis.ranking)[:1]]
    lines += [(sentence, "gaps") for sentence in _gaps(_trained(of_metric(analysis.gaps)))[:1]]
    seen = [
        (sentence, "descriptions") for sentence in seen_by(_trained(mean_auroc(analysis.scores)))
    ]
    return [*seen, *lines[:3]]


def findings(analysis: Analysis) -> list[tuple[str, list[str]]]:
    """Findings by topic; results of shuffled labels only in the last."""
    scores = mean_auroc(analysis.scores)
    trained = _trained(scores)
    topics = [
        ("Contamination", seen_by(trained)),
        ("Best results", _best(trained)),
        ("On targets", _leaders(analysis.ranking)),
        ("Against the baseline", _changes(of_metric(analysis.changes))),
        ("Pairs", _pairs(analysis.pairs)),
        ("Ranking", _ranking(analysis.ranking)),
        ("Shift to targets", _gaps(_trained(of_metric(analysis.gaps)))),
        ("The paper", _paper(trained)),
        ("Seeds", _seeds(trained)),
        ("Subgroups", _subgroups(_trained(analysis.subgroups))),
        ("Sanity check", _shuffled(scores)),
    ]
    return [(topic, sentences) for topic, sentences in topics if sentences]


def interval_text(row: pd.Series, value: str, *, sign: bool = False) -> str:
    """A value with its interval, such as ``0.873 [0.851, 0.894]``."""
    kind: Kind = "change" if sign else "interval"
    numbers = [shown(row[name], kind) for name in (value, "low", "high")]
    if pd.isna(row["low"]):
        return f"{numbers[0]} (no interval)"
    return f"{numbers[0]} [{numbers[1]}, {numbers[2]}]"


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


def _kinds(ran: pd.DataFrame) -> str:
    counts = ran["kind"].value_counts()
    return ", ".join(f"{counts[kind]} {kind}" for kind in sorted(counts.index))


def _listed(names: Iterable[object], between: str = ", ") -> str:
    return between.join(text_of(name) for name in names)


def _trained(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows that are compared: without shuffled labels and ensembles."""
    return frame[~frame["protocol"].isin(APART)]


def _best(scores: pd.DataFrame) -> list[str]:
    """Sentences on the best result on each source's validation split."""
    validation = scores[(scores["dataset"] == scores["source"]) & (scores["split"] == "validation")]
    lines = []
    for (modality, source), rows in validation.dropna(subset="value").groupby(
        ["modality", "source"], sort=False
    ):
        best = largest(rows, "value")
        seeds = best["seeds"]
        lines.append(
            f"{text_of(source)} ({text_of(modality)}, validation split): AUROC "
            f"{interval_text(best, 'value')} by "
            f"{text_of(_with_marks(best))}, "
            f"{text_of(best['setting'])}, "
            f"{'1 seed' if seeds == 1 else f'mean of {seeds} seeds'}."
        )
    return lines


def _with_marks(row: pd.Series) -> str:
    """A row's name with its protocol, and the mark of contamination."""
    return marked([with_mark(row["technique"], row["protocol"])], [row["contamination"]])[0]


def largest(rows: pd.DataFrame, column: str, sign: int = 1) -> pd.Series:
    """The first row with the largest value, or with sign −1 the smallest."""
    return rows.iloc[int(np.argmax(sign * rows[column].to_numpy(float)))]


def _leaders(ranking: pd.DataFrame) -> list[str]:
    """How often each row has the highest AUROC on a target."""
    targets = ranking[ranking["role"] == "target"].dropna(subset="rank")
    contests = [rows for _, rows in targets.groupby(list(PLACE))]
    if not contests:
        return []
    first = [largest(rows, "rank", -1) for rows in contests]
    leads = pd.Series(
        marked(
            [with_mode(row["technique"], row["setting"]) for row in first],
            [row["contamination"] for row in first],
        )
    )
    counts = ", ".join(f"{text_of(name)} {n}" for name, n in leads.value_counts().items())
    return [
        f"Highest AUROC in {count_of(len(contests), 'comparison')} (target × labels): {counts}. "
        "These are point estimates; their intervals may overlap."
    ]


def _changes(changes: pd.DataFrame) -> list[str]:
    changes = changes.dropna(subset="value")
    if changes.empty:
        return ["Nothing was compared with a baseline on the same records."]
    lines = [_against_baseline(changes)]
    for name, sign in (("gain", 1), ("loss", -1)):
        row = largest(changes, "value", sign)
        if sign * row["value"] > 0:
            lines.append(f"Largest {name}: {difference_text(row, row, 'value')}.")
    return lines


def _against_baseline(changes: pd.DataFrame, where: str = "") -> str:
    names = changes["technique"].unique()
    base = text_of(baseline_text(changes))
    subject = f"{text_of(names[0])} was" if len(names) == 1 else "the others were"
    return f"AUROC against {base}{where}: {judged(changes, 'value', *BETTER, subject=subject)}"


def difference_text(row: pd.Series, interval: pd.Series, value: str) -> str:
    """Text of a difference with its interval, technique, dataset and setting."""
    return (
        f"{interval_text(interval, value, sign=True)}, {text_of(row['technique'])} on "
        f"{dataset_text(*row[['source', 'dataset', 'role', 'split']])}, {text_of(row['setting'])}"
    )


def _pairs(pairs: pd.DataFrame) -> list[str]:
    pairs = pairs.dropna(subset="difference")
    if pairs.empty:
        return []
    corrected = " after Holm's correction over those of a dataset with as many labels"
    better = ("b was significantly better than a", "a better than b")
    return [f"Pairs a, b: {judged(pairs, 'difference', *better, p='p_holm', corrected=corrected)}"]


def _ranking(ranking: pd.DataFrame) -> list[str]:
    taus = ranking.dropna(subset="tau").drop_duplicates(list(PLACE))["tau"]
    if taus.empty:
        return []
    median, low, high = (shown(v, "number", 2) for v in (taus.median(), taus.min(), taus.max()))
    spread = "" if len(taus) == 1 else f" ({low} to {high} in {len(taus)} comparisons)"
    line = (
        f"Ranking stability under the patient bootstrap: median Kendall's τ {median}{spread}; 1 is "
        "always the same order."
    )
    if tested := len(ranking.dropna(subset="high").drop_duplicates(list(PLACE))):
        line += (
            " One row was significantly ahead of all others in "
            f"{(ranking['high'] == 1).sum()} of {count_of(tested, 'comparison')}."
        )
    return [line]


def _gaps(gaps: pd.DataFrame) -> list[str]:
    gaps = gaps.dropna(subset="gap")
    if gaps.empty:
        return []
    worst = largest(gaps, "gap")
    corrected = " after Holm's correction over the targets of each technique and setting"
    verdict = judged(
        gaps,
        "gap",
        "fell significantly",
        "rose significantly",
        subject="AUROC",
        p="p_holm",
        corrected=corrected,
    )
    return [
        "From the source's validation split to a target, AUROC falls by a median of "
        f"{shown(gaps['gap'].median(), 'number')} ({count_of(len(gaps), 'result')}): {verdict} "
        f"Largest fall: {interval_text(worst, 'gap')}, {text_of(worst['technique'])} on "
        f"{text_of(worst['dataset'])}, {text_of(worst['setting'])}."
    ]


def _paper(scores: pd.DataFrame) -> list[str]:
    if scores.empty:
        return []
    scores = scores.dropna(subset=["paper", "value"])
    if scores.empty:
        return ["No result is comparable with a published number; the notes say why."]
    intervals = scores.dropna(subset="low")
    inside = intervals["paper"].between(intervals["low"], intervals["high"]).sum()
    differences = scores["value"] - scores["paper"]
    mean, low, high = (
        shown(v, "signed") for v in (differences.mean(), differences.min(), differences.max())
    )
    spread = "" if len(scores) == 1 else f" on average ({low} to {high})"
    are = "is" if len(scores) == 1 else "are"
    return [
        f"{count_of(len(scores), 'result')} {are} comparable with the paper: its number is in our "
        f"95 % interval in {inside} of {len(intervals)} with an interval; ours minus the paper's "
        f"is {mean}{spread}."
    ]


def _seeds(scores: pd.DataFrame) -> list[str]:
    scores = scores[scores["seeds"] > 1].dropna(subset="sd")
    if scores.empty:
        return ["Every result is of one seed; variation between seeds was not measured."]
    median, most = shown(scores["sd"].median(), "number"), shown(scores["sd"].max(), "number")
    return [
        f"Standard deviation of AUROC between seeds: median {median}, at most {most} "
        f"({count_of(len(scores), 'result')} with several seeds)."
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
        f"Results whose groups differ at p < {LEVEL} (Welch's test, not corrected for "
        f"the number of tests): {counts}."
    ]


def _shuffled(scores: pd.DataFrame) -> list[str]:
    values = scores.loc[scores["protocol"] == "shuffled", "value"].dropna()
    if values.empty:
        return []
    low, high = shown(values.min(), "number"), shown(values.max(), "number")
    return [
        f"With shuffled training labels AUROC must be near 0.5: {low} to {high} in "
        f"{count_of(len(values), 'result')}. No other finding includes these."
    ]
