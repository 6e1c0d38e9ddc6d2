"""The sentences of a report's first screen, against slow looks at the frames."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from analysis_frames import SOURCES, invented, without_intervals

from benchmd_ray.report.analysis import Analysis
from benchmd_ray.report.frames import UNKNOWN, frame
from benchmd_ray.report.page import page
from benchmd_ray.report.page_findings import evidence, shift, winners
from benchmd_ray.report.page_tuning import gained

SAW = "its pretraining saw this dataset's recordings"
COMPARED = ("scores", "gaps", "changes", "pairs", "ranking")


@pytest.fixture(scope="module")
def analysis():
    """One source, three targets, four techniques, one mode."""
    return invented(("ecg",), settings=("linear",))


def mean_auroc(analysis, dataset):
    scores = analysis.scores
    chosen = (scores["metric"] == "auroc") & (scores["class"] == "mean")
    return scores[chosen & (scores["dataset"] == dataset)].sort_values("value", ascending=False)


def on(analysis, dataset):
    """The sentence on the winner of a dataset."""
    (sentence,) = [one for one in winners(analysis) if f" on {dataset} " in one]
    return sentence


def numbers(value, low, high, sign=""):
    return f"{value:{sign}.3f} [{low:.3f}, {high:.3f}]".replace("-", "−")


def pair_of(analysis, dataset, *names):
    pairs = analysis.pairs[analysis.pairs["dataset"] == dataset]
    (row,) = [row for row in pairs.to_dict("records") if {row["a"], row["b"]} == {*names}]
    return row


def changed(analysis, name, where, **values):
    """An analysis with values changed in some rows of a frame."""
    rows = getattr(analysis, name).copy()
    for column, value in values.items():
        rows.loc[where(rows), column] = value
    return replace(analysis, **{name: rows})


def lead(analysis, dataset, **values):
    """The sentence on a dataset whose difference of MAE, its winner, over scratch has values."""
    pair = pair_of(analysis, dataset, "scratch", "MAE")
    assert (pair["a"], pair["b"]) == ("scratch", "MAE")

    def chosen(rows):
        return (rows["dataset"] == dataset) & (rows["a"] == "scratch") & (rows["b"] == "MAE")

    return on(changed(analysis, "pairs", chosen, **values), dataset)


def contaminated(analysis, dataset, *names):
    def chosen(rows):
        return (rows["dataset"] == dataset) & rows["technique"].isin(names)

    return changed(analysis, "scores", chosen, contamination=SAW)


def test_each_target_has_its_winner_with_intervals_records_and_patients(analysis):
    said = winners(analysis)
    assert len(said) == len(SOURCES["ecg"][1])
    for dataset in SOURCES["ecg"][1]:
        rows = mean_auroc(analysis, dataset)
        best, base = rows.iloc[0], rows[rows["technique"] == "scratch"].iloc[0]
        pair = pair_of(analysis, dataset, best["technique"], "scratch")
        sign = 1 if pair["b"] == best["technique"] else -1
        low, high = sorted((sign * pair["low"], sign * pair["high"]))
        assert best["value"] - base["value"] == pytest.approx(sign * pair["difference"])
        assert on(analysis, dataset).startswith(
            f"{best['technique']} is best on {dataset} (trained on ptb-xl): AUROC "
            f"{numbers(*best[['value', 'low', 'high']])}, "
            f"{numbers(best['value'] - base['value'], low, high, '+')} over scratch; "
            "2,400 records of 2,100 patients."
        )
        others = {*rows["technique"]} - {best["technique"]}
        p = [pair_of(analysis, dataset, best["technique"], name)["p_holm"] for name in others]
        alike = sum(value >= 0.05 for value in p)
        counted = re.findall(r"(\d) of the (\d) other rows", on(analysis, dataset))
        assert counted == ([(str(alike), "3")] if alike else [])


def test_the_source_counts_only_without_targets_and_is_said_to_have_chosen_epochs(analysis):
    assert "ptb-xl (validation)" not in str(winners(analysis))
    own = {
        name: getattr(analysis, name).query("dataset == 'ptb-xl'") for name in ("scores", "pairs")
    }
    alone = replace(analysis, gaps=analysis.gaps[:0], **own)
    (sentence,) = winners(alone)
    assert "(validation) (on which epochs were chosen, so AUROC is slightly too high)" in sentence
    assert shift(alone)[0].startswith("No target was scored: ")
    tested = {name: rows.replace({"split": {"validation": "test"}}) for name, rows in own.items()}
    both = {name: pd.concat([own[name], rows]) for name, rows in tested.items()}
    (sentence,) = winners(replace(alone, **both))
    assert "on ptb-xl (test): AUROC" in sentence


def test_the_most_labels_are_in_the_sentence():
    several = invented(("ecg",), settings=("finetune-small", "finetune-medium"))
    assert len(winners(several)) == 3
    assert all("64 labels per class" in sentence for sentence in winners(several))


def test_the_leader_is_compared_with_the_baselines_best_transfer():
    """Not with that of its own transfer, which may be much weaker."""
    several = invented(("ecg",), settings=("linear", "finetune-full"))
    for dataset in SOURCES["ecg"][1]:
        rows = mean_auroc(several, dataset)
        best, base = rows.iloc[0], rows[rows["technique"] == "scratch"].iloc[0]
        difference = f"{best['value'] - base['value']:+.3f}"
        assert f", {difference} [" in on(several, dataset)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"low": -0.01}, "over scratch, not distinguishable from it;"),
        (
            {"p_holm": 0.2},
            "over scratch, not distinguishable from it after Holm's correction for 6 comparisons;",
        ),
        ({"p_holm": np.nan, "caution": "no p: 15 patients"}, "scratch, not tested (no p: 15 pat"),
        ({"caution": "rough interval: few"}, ", rough] over scratch;"),
    ],
)
def test_a_lead_is_called_what_its_interval_and_holms_correction_allow(analysis, values, expected):
    said = lead(analysis, "cpsc", **values)
    assert expected in said
    assert ("has the highest AUROC on cpsc" in said) == (", not " in expected)
    assert ("is best on cpsc" in said) == (", not " not in expected)
    assert "over scratch;" in lead(analysis, "cpsc")


def test_few_patients_have_no_interval_and_no_verdict(analysis):
    few = replace(analysis, **{n: without_intervals(getattr(analysis, n)) for n in COMPARED})
    for sentence in winners(few):
        assert sentence.count("(no interval: 8 patients)") == 2
        assert "not tested" in sentence
        assert "No difference between rows was tested." in sentence
        assert not {"[", "distinguishable"} & {*sentence, *sentence.split()}
    assert "12 comparisons were not tested: too few patients" in shift(few)[0]
    assert "0 of 0 with an interval" in " ".join(evidence(few))


def test_equal_rows_share_the_lead(analysis):
    top = mean_auroc(analysis, "cpsc").iloc[0]

    def chosen(rows):
        return (rows["dataset"] == "cpsc") & (rows["technique"] == "ShED")

    tied = changed(analysis, "scores", chosen, value=top["value"] + 1e-5)
    assert on(tied, "cpsc").startswith("MAE and ShED share the highest AUROC on cpsc (")
    assert "over scratch (numbers of MAE);" in on(tied, "cpsc")


def test_one_row_is_compared_with_nothing():
    alone = invented(("ecg",), techniques=("MAE",), settings=("linear",))
    for sentence in winners(alone):
        assert "best" not in sentence
        assert sentence.endswith("Nothing was compared with it on the same records.")


def test_without_a_baseline_the_next_row_is_the_rival():
    rows = invented(("ecg",), techniques=("MAE", "ShED"), settings=("linear",))
    assert all("the next (no baseline)" in sentence for sentence in winners(rows))


def test_a_baseline_that_leads_says_so(analysis):
    def chosen(rows):
        return (rows["dataset"] == "cpsc") & (rows["technique"] == "scratch")

    said = on(changed(analysis, "scores", chosen, value=0.99), "cpsc")
    assert said.startswith("scratch is best on cpsc (")
    assert "over MAE, the next (it is the baseline itself)" in said


def test_contaminated_rows_do_not_win_silently(analysis):
    first, second = mean_auroc(analysis, "cpsc")["technique"].iloc[:2]
    value = mean_auroc(analysis, "cpsc")["value"].iloc[0]
    said = on(contaminated(analysis, "cpsc", first), "cpsc")
    assert said.startswith(f"{second} is best on cpsc (")
    assert said.endswith(f"{first}† has {value:.3f}, but {SAW}, so it does not count.")
    assert "over scratch†" in on(contaminated(analysis, "cpsc", "scratch"), "cpsc")
    everyone = contaminated(analysis, "cpsc", *analysis.scores["technique"].unique())
    assert on(everyone, "cpsc").startswith("No winner on cpsc (")
    assert f"{first}† has" not in on(contaminated(analysis, "georgia", first), "cpsc")


def test_of_a_winner_whose_pretraining_is_unknown_that_is_said(analysis):
    first = mean_auroc(analysis, "cpsc")["technique"].iloc[0]

    def chosen(rows):
        return (rows["dataset"] == "cpsc") & (rows["technique"] == first)

    said = on(changed(analysis, "scores", chosen, contamination=UNKNOWN), "cpsc")
    assert said.startswith(f"{first} is best")
    assert said.endswith("What its pretraining saw is not known.")


def test_many_targets_are_counted_in_one_sentence():
    many = invented(("ecg", "cxr", "derm"), settings=("linear",))
    (sentence,) = winners(many)
    targets = [name for kind in ("ecg", "cxr", "derm") for name in SOURCES[kind][1]]
    assert sentence.startswith(f"Highest AUROC on {len(targets)} datasets")
    first = [mean_auroc(many, name)["technique"].iloc[0] for name in targets]
    for name in set(first):
        assert f"{name}, linear {first.count(name)}" in sentence
    clear = 0
    for dataset, name in zip(targets, first, strict=True):
        pair = pair_of(many, dataset, name, "scratch")
        clear += pair["p_holm"] < 0.05 and not pair["low"] <= 0 <= pair["high"]
    assert f"better than its baseline on {clear} of {len(targets)}" in sentence
    alone = invented(("ecg", "cxr", "derm"), techniques=("MAE",), settings=("linear",))
    assert winners(alone)[0].startswith("Nothing was compared: ")


def test_the_shift_is_counted_from_the_gaps(analysis):
    (sentence,) = shift(analysis)
    gaps = analysis.gaps
    assert f"AUROC falls by a median of {gaps['gap'].median():.3f} (" in sentence
    clear = gaps[gaps["p_holm"] < 0.05]
    fell = (clear["gap"] > 0).sum()
    assert f"AUROC fell significantly in {fell} of {len(gaps)} comparisons" in sentence
    one = gaps.iloc[:1].assign(gap=0.05, low=-0.01, high=0.11)
    (sentence,) = shift(replace(analysis, gaps=one))
    assert "AUROC falls by 0.050 [−0.010, 0.110] (" in sentence
    assert sentence.endswith(", not distinguishable from no change.")


def tuned_rows(*differences, p=0.01, **changes):
    key = dict.fromkeys(("modality", "search", "start_name", "caution"), "")
    key |= {"source": "ptb-xl", "role": "target", "split": "test", "policy": "clean"}
    key |= {"setting": "linear", "technique": "MAE, tuned", "protocol": "tuned", "trials": 9}
    reals = ("value", "low", "high", "start", "start_low", "start_high", "paper", "p_delong")
    return [
        {**key, **dict.fromkeys(reals, 0.5), "dataset": f"target-{place}", "models": 1, "p": p,
         "difference": value, "difference_low": value - 0.01, "difference_high": value + 0.01,
         "device_hours": 1.0, **changes}
        for place, value in enumerate(differences)
    ]  # fmt: skip


def said_of(*rows, searches=None):
    frames = {"tuned": frame("tuned", rows)}
    return gained(Analysis(**frames, **({} if searches is None else {"searches": searches})))


def test_the_gain_of_tuning_is_that_of_results_on_targets():
    (sentence,) = said_of(*tuned_rows(0.02))
    assert sentence == (
        "Tuning gained +0.020 [0.010, 0.030] AUROC over the start of the search (MAE, tuned on "
        "target-0)."
    )
    own = tuned_rows(0.3, dataset="ptb-xl", role="source", split="validation")
    assert said_of(*tuned_rows(0.02), *own) == [sentence]
    ensemble = tuned_rows(0.04, technique="E", protocol="tuned ensemble")
    assert "+0.040" in said_of(*tuned_rows(0.02), *ensemble)[0]
    assert said_of(*tuned_rows(0.005))[0].endswith("not distinguishable from it.")
    assert said_of(*tuned_rows(0.02, p=math.nan))[0].endswith("not tested.")
    assert said_of(*tuned_rows(-0.02))[0].startswith("Tuning gained nothing: −0.020 [")


def test_gains_on_several_targets_are_corrected_for_their_number():
    rows = [*tuned_rows(0.02, 0.04, p=0.04), *tuned_rows(0.03, p=0.001, dataset="another")]
    (sentence,) = said_of(*rows)
    assert "a median of +0.030 AUROC (+0.020 to +0.040; 3 results on targets)" in sentence
    assert "significantly better in 1 of 3 comparisons" in sentence


def test_a_searchs_own_score_is_no_gain():
    assert said_of() == []
    names = {name: [""] for name in frame("searches", [])}
    searches = pd.DataFrame({**names, "chosen": pd.array([4], "Int64"), "chosen_value": [0.99]})
    (sentence,) = said_of(searches=searches)
    assert sentence.startswith("What tuning gained is unknown: ")
    assert "0.99" not in sentence
    (kept,) = said_of(searches=searches.assign(chosen=pd.array([0], "Int64")))
    assert kept.startswith("Tuning gained nothing: no trial beat the start")


def test_the_first_screen_has_sentences_then_matrix_then_caveats(analysis):
    text = page(analysis, [])
    places = [text.index(part) for part in ('id="main"', "is best on", "<table", 'id="notes"')]
    assert places == sorted(places)
    assert "Being the highest of several" in text[places[-1] :]


def test_what_supports_the_results_is_with_the_caveats(analysis):
    said = " ".join(evidence(analysis))
    papers = analysis.scores.dropna(subset="paper")
    inside = papers["paper"].between(papers["low"], papers["high"]).sum()
    assert f"Paper: {len(papers)} results are comparable with a published number" in said
    assert f"in our 95 % interval in {inside} of {len(papers)} with an interval" in said
    assert "of one seed" in " ".join(evidence(invented(("ecg",), settings=("linear",), seeds=1)))
    assert "Shuffled labels" not in said
    shuffled = analysis.scores.assign(protocol="shuffled", value=0.999, paper=math.nan)
    both = replace(analysis, scores=pd.concat([analysis.scores, shuffled]))
    assert "Shuffled labels: trained on them AUROC must be near 0.5; it is 0.999" in " ".join(
        evidence(both)
    )
    assert winners(both) == winners(analysis)
