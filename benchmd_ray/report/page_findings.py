"""What an analysis says, as sentences: every number in them is computed from its frames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from benchmd_ray.errors import count_of
from benchmd_ray.evaluation.registry import usual_start
from benchmd_ray.report.figures_parts import ordered
from benchmd_ray.report.frames import KEY, PLACE, VERSIONS
from benchmd_ray.report.names import SETTINGS, TECHNIQUES, dataset_text
from benchmd_ray.report.protocols import is_ensemble
from benchmd_ray.report.table import Kind, shown, text_of
from benchmd_ray.scores.comparison import EXCHANGES, LEVEL
from benchmd_ray.settings.definition import EncoderSettings

if TYPE_CHECKING:
    from benchmd_ray.report.analysis import Analysis


def facts(analysis: Analysis) -> list[tuple[str, str, str]]:
    """How much a report holds: label, number, and the names that were counted."""
    ran, scores = analysis.ran, analysis.rows[analysis.rows["run"] != ""]
    rows = [("finished runs", f"{ran['finished'].sum():,}", _kinds(ran[ran["finished"]]))]
    targets = scores[scores["role"] == "target"]
    counted = {
        "modalities": scores["modality"],
        "sources": scores["source"],
        "targets": targets["dataset"],
        "techniques": scores["technique"],
        "settings": scores["setting"],
        "seeds": ran.loc[ran["kind"] == "transfer", "seed"],
    }
    orders: dict[str, Sequence[str]] = {
        "modalities": analysis.modalities,
        "techniques": TECHNIQUES,
        "settings": SETTINGS,
    }
    for label, column in counted.items():
        names = ordered(column.unique(), orders.get(label, ()))
        rows.append((label, f"{len(names):,}", _listed(names)))
    versions = [f"{name} {_listed(ran[name].unique())}" for name in VERSIONS[:2] if len(ran)]
    return [*rows, ("versions", str(_version_sets(ran)), "; ".join(versions))]


def compared(analysis: Analysis) -> str:
    """What was compared on which data, in one line; empty where nothing is classified."""
    scores = _single(_trained(_mean_auroc(analysis.scores)))
    if scores.empty:
        return ""
    techniques = ordered(scores["technique"].unique(), TECHNIQUES)
    settings = ordered(scores["setting"].unique(), SETTINGS)
    places = []
    for (modality, source), rows in scores.groupby(["modality", "source"], sort=False):
        targets = sorted(rows.loc[rows["role"] == "target", "dataset"].unique())
        to = f" → {_listed(targets)}" if targets else ""
        places.append(f"{text_of(source)}{to} ({text_of(modality)})")
    seeds = int(scores["seeds"].max())
    many = "1 seed" if seeds == 1 else f"up to {seeds} seeds"
    networks = sorted({*analysis.ran.loc[analysis.ran["kind"] == "transfer", "network"]})
    made = (
        f" with {' or '.join(networks)}"
        if networks not in ([], [EncoderSettings().network])
        else ""
    )
    return (
        f"{_listed(techniques)}{made}, by {_listed(settings)}, {many}, trained and scored on "
        f"{'; '.join(places)}."
    )


def headlines(analysis: Analysis) -> list[tuple[str, str]]:
    """What the statistics carry, at most three sentences, and the table that each rests on."""
    targets = analysis.changes[analysis.changes["role"] == "target"]
    changes = _trained(_auroc(targets if len(targets) else analysis.changes))
    tested = changes.dropna(subset="value")
    where = "on targets" if len(targets) else "on the same rows"
    found = []
    if len(tested):
        names = ("above zero", "below zero")
        said = judged(tested, "value", names)
        found.append((f"AUROC of a technique minus scratch {where}: {said}", "changes"))
    tuned = analysis.tuned.dropna(subset="difference")
    tuned = tuned[~tuned["protocol"].map(is_ensemble).astype(bool)]
    if (tuned["role"] == "target").any():
        tuned = tuned[tuned["role"] == "target"]
    if len(tuned):
        at = "on targets" if (tuned["role"] == "target").all() else "on the source's own splits"
        said = judged(tuned, "difference", ("above zero", "below zero"))
        found.append(
            (f"AUROC of tuned settings minus the start of their search {at}: {said}", "tuned")
        )
    found += [(sentence, "ranking") for sentence in _ranking(_trained(analysis.ranking))[:1]]
    found += [(sentence, "gaps") for sentence in _gaps(_trained(_auroc(analysis.gaps)))[:1]]
    return found[:3]


def findings(analysis: Analysis) -> list[tuple[str, list[str]]]:
    """The most important findings by topic, with their intervals; shuffled labels apart."""
    scores = _single(_mean_auroc(analysis.scores))
    trained = _trained(scores)
    topics = [
        ("Best results", _best(trained)),
        ("On targets", _leaders(_trained(analysis.ranking))),
        ("Against scratch", _changes(_trained(_auroc(analysis.changes)))),
        ("Pairs of techniques", _pairs(_trained(analysis.pairs))),
        ("Order of techniques", _ranking(_trained(analysis.ranking))),
        ("Shift to targets", _gaps(_trained(_auroc(analysis.gaps)))),
        ("The paper", _paper(scores)),
        ("Seeds", _seeds(trained)),
        ("Subgroups", _subgroups(_trained(analysis.subgroups))),
        ("Check", _shuffled(scores)),
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
    rows: pd.DataFrame, value: str, names: tuple[str, str], *, p: str = "p", corrected: str = ""
) -> str:
    """How many differences a test calls different from zero, and how many were not tested.

    Args:
        rows: A difference each, with its p.
        value: Column of the differences.
        names: What those above and below zero are called: ``above zero``.
        p: Column of p.
        corrected: Says by what p is corrected for the number of tests; empty if it is not.
    """
    tested = rows.dropna(subset=p)
    missing = rows[rows[p].isna()]
    settled = int(missing["p"].notna().sum())  # by `holm`, before they are seen
    reasons = {
        "too few patients, in all or in a class": len(missing) - settled,
        f"no {EXCHANGES:,} exchanges can be significant among so many tests": settled,
    }
    untested = " ".join(
        f"{count_of(number, 'difference')} {_is(number)} not tested: {reason}."
        for reason, number in reasons.items()
        if number
    )
    if tested.empty:
        return untested
    differs = tested[tested[p] < LEVEL]
    up, down = (int((sign * differs[value] > 0).sum()) for sign in (1, -1))
    said = (
        f"of {count_of(len(tested), 'difference')} tested, {up} {_is(up)} {names[0]} and {down} "
        f"{names[1]} at p < {LEVEL}{corrected}"
    )
    rest = len(tested) - up - down
    said += f"; {rest} cannot be distinguished from zero." if rest else "."
    if not corrected:
        said += (
            f" By chance alone about {shown(LEVEL * len(tested), 'number', 1)} would reach that."
        )
    return f"{said} {untested}".rstrip()


def _is(number: int) -> str:
    return "is" if number == 1 else "are"


def _kinds(ran: pd.DataFrame) -> str:
    counts = ran["kind"].value_counts()
    return ", ".join(f"{counts[kind]} {kind}" for kind in sorted(counts.index))


def _listed(names: Iterable[object]) -> str:
    return ", ".join(text_of(name) for name in names)


def _version_sets(ran: pd.DataFrame) -> int:
    """How many combinations of versions ran."""
    return len(ran[list(VERSIONS)].drop_duplicates())


def _auroc(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["metric"] == "auroc"]


def _mean_auroc(scores: pd.DataFrame) -> pd.DataFrame:
    return scores[(scores["metric"] == "auroc") & (scores["class"] == "mean")]


def _single(scores: pd.DataFrame) -> pd.DataFrame:
    """Results of single runs: averages over runs have sentences of their own."""
    return scores[~scores["protocol"].map(is_ensemble).astype(bool)]


def _trained(frame: pd.DataFrame) -> pd.DataFrame:
    """Results of models trained on true labels."""
    return frame[~frame["protocol"].astype(str).str.startswith("shuffled")]


def _best(scores: pd.DataFrame) -> list[str]:
    """The best result on each source's own validation split."""
    own = scores[(scores["dataset"] == scores["source"]) & (scores["split"] == "validation")]
    lines = []
    for (modality, source), rows in own.dropna(subset="value").groupby(
        ["modality", "source"], sort=False
    ):
        best = largest(rows, "value")
        lines.append(
            f"{text_of(source)} ({text_of(modality)}, own validation split): AUROC "
            f"{interval_text(best, 'value')} by {text_of(best['technique'])}, "
            f"{text_of(best['setting'])}{_other(best['protocol'])}, {_seeds_text(best['seeds'])}."
        )
    return lines


def _other(protocol: object) -> str:
    """Names a protocol other than the fixed one."""
    return "" if protocol == usual_start() else f" ({text_of(protocol)})"


def largest(rows: pd.DataFrame, column: str, sign: int = 1) -> pd.Series:
    """The first row with the largest value, or the smallest with the sign −1."""
    return rows.iloc[int(np.argmax(sign * rows[column].to_numpy(float)))]


def _seeds_text(number: int) -> str:
    return "one seed" if number == 1 else f"mean of {number} seeds"


def _leaders(ranking: pd.DataFrame) -> list[str]:
    """How often each technique has the highest AUROC of those on the same rows of a target."""
    targets = ranking[ranking["role"] == "target"].dropna(subset="rank")
    contests = [rows for _, rows in targets.groupby(list(PLACE))]
    if not contests:
        return []
    leads = pd.Series([largest(rows, "rank", -1)["technique"] for rows in contests])
    counts = ", ".join(f"{text_of(name)} {n}" for name, n in leads.value_counts().items())
    return [
        f"Techniques with the highest AUROC in {count_of(len(contests), 'comparison')} (target × "
        f"setting): {counts}. These are point estimates; their intervals may overlap."
    ]


def _changes(changes: pd.DataFrame) -> list[str]:
    """How often pretraining helps."""
    held = changes.dropna(subset="value")
    if held.empty:
        return ["Nothing was compared with training from scratch on the same rows."]
    lines = [
        "AUROC of a technique minus scratch on the same rows: "
        f"{judged(held, 'value', ('above zero', 'below zero'))}"
    ]
    for name, row in (
        ("largest gain", largest(held, "value")),
        ("largest loss", largest(held, "value", -1)),
    ):
        if (row["value"] > 0) == (name == "largest gain"):
            lines.append(
                f"The {name}: {interval_text(row, 'value', sign=True)}, of "
                f"{text_of(row['technique'])} on "
                f"{dataset_text(*row[['source', 'dataset', 'role', 'split']])} with "
                f"{text_of(row['setting'])}."
            )
    return lines


def _pairs(pairs: pd.DataFrame) -> list[str]:
    held = pairs.dropna(subset="difference")
    if held.empty:
        return []
    corrected = " after Holm's correction within each dataset and setting"
    names = ("in favour of the later technique (b)", "of the earlier one (a)")
    said = judged(held, "difference", names, p="p_holm", corrected=corrected)
    return [said[0].upper() + said[1:]]


def _ranking(ranking: pd.DataFrame) -> list[str]:
    """How firm the order of techniques is."""
    taus = ranking.dropna(subset="tau").drop_duplicates(list(PLACE))
    if taus.empty:
        return []
    firm = ranking[(ranking["high"] == 1)]
    return [
        f"In resamples of patients the order agrees with the order found by a "
        f"Kendall's τ of {shown(taus['tau'].median(), 'number', 2)} in the median of {len(taus)} "
        f"comparisons (from {shown(taus['tau'].min(), 'number', 2)} to "
        f"{shown(taus['tau'].max(), 'number', 2)}; 1 is always the same order). In "
        f"{len(firm)} of them the tests of pairs put one technique ahead of all others."
    ]


def _gaps(gaps: pd.DataFrame) -> list[str]:
    held = gaps.dropna(subset="gap")
    if held.empty:
        return []
    worst = largest(held, "gap")
    corrected = " after Holm's correction over the targets of each technique and setting"
    said = judged(held, "gap", ("falls", "gains"), p="p_holm", corrected=corrected)
    return [
        f"From the source's validation split to a target, AUROC falls by "
        f"{shown(held['gap'].median(), 'number')} in the median of {len(held)} results: "
        f"{said} The largest: "
        f"{interval_text(worst, 'gap', sign=True)}, {text_of(worst['technique'])} on "
        f"{text_of(worst['dataset'])} with {text_of(worst['setting'])}."
    ]


def _paper(scores: pd.DataFrame) -> list[str]:
    held = scores.dropna(subset=["paper", "value"])
    if scores.empty:
        return []
    if held.empty:
        return ["No result may be compared with a number of the paper; the notes say why."]
    spans = held.dropna(subset="low")
    within = int(((spans["low"] <= spans["paper"]) & (spans["paper"] <= spans["high"])).sum())
    differences = held["value"] - held["paper"]
    return [
        f"{count_of(len(held), 'result')} can be compared with a number of the paper; the 95 % "
        f"interval of {within} of the {len(spans)} that have one holds it; ours minus the paper's "
        f"is {shown(differences.mean(), 'signed')} on average, from "
        f"{shown(differences.min(), 'signed')} to {shown(differences.max(), 'signed')}."
    ]


def _seeds(scores: pd.DataFrame) -> list[str]:
    held = scores[scores["seeds"] > 1].dropna(subset="sd")
    if held.empty:
        return ["Every result is of one seed: how much another seed would change is not known."]
    return [
        f"AUROC has a standard deviation between seeds of {shown(held['sd'].median(), 'number')} "
        f"in the median of {len(held)} results with more than one seed, "
        f"{shown(held['sd'].max(), 'number')} at most."
    ]


def _subgroups(subgroups: pd.DataFrame) -> list[str]:
    tests = subgroups.dropna(subset="p").drop_duplicates([*KEY, "variable"])
    if tests.empty:
        return []
    lines = []
    for variable, rows in tests.groupby("variable", sort=True):
        differ = int((rows["p"] < LEVEL).sum())
        lines.append(f"{text_of(variable)} {differ} of {len(rows)}")
    return [
        f"Results whose groups differ at {LEVEL * 100:.0f} % (Welch's test, not corrected for the "
        f"number of tests): {', '.join(lines)}."
    ]


def _shuffled(scores: pd.DataFrame) -> list[str]:
    held = scores[scores["protocol"].astype(str).str.startswith("shuffled")]
    held = held.dropna(subset="value")
    if held.empty:
        return []
    return [
        f"Trained on shuffled labels, a check that must end near 0.5: AUROC from "
        f"{shown(held['value'].min(), 'number')} to {shown(held['value'].max(), 'number')} in "
        f"{len(held)} results. No other sentence here counts these."
    ]
