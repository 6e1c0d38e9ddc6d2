"""Definitions on the report's page: how its numbers are made, and what its words mean.

Those of the metrics are with the metrics, `benchmd_ray.scores.metrics.METRICS`.
"""

from __future__ import annotations

from benchmd_ray.evaluation.registry import benchmarks, starts
from benchmd_ray.scores.metrics import METRICS
from benchmd_ray.scores.support import INTERVAL_PATIENTS, ROUGH_IN_CLASS, TEST_PATIENTS

METHODS: tuple[tuple[str, str], ...] = (
    (
        "95 % interval",
        "The standard error is that of a bootstrap that draws patients with replacement, all "
        "records of a patient together, so that repeated records do not feign certainty. The "
        "width is Student's t, with degrees of freedom by the patients of the rarest classes, for "
        "a value on the logit scale; a value of exactly 1 or 0 has the interval of Clopper and "
        "Pearson for these patients. Of one seed it is for the trained model: how far another "
        "sample of patients would move its number.",
    ),
    (
        "Few patients, caution",
        "A class has as many patients as its rarer side: those with a positive record or those "
        "with a negative one. Where some have many more records than others, all count as fewer "
        f"(Kish's effective number). With fewer than {INTERVAL_PATIENTS} patients, or a class with "
        f"fewer than {METRICS['auroc'].least}, there is no interval, as simulations show that none "
        "of those tried holds the truth as often as it says; the value stands by itself. With a "
        f"class of {METRICS['auroc'].least} to {ROUGH_IN_CLASS - 1} the interval is rough. With "
        f"fewer than {TEST_PATIENTS} patients nothing is tested and nothing is said to differ. "
        f"AUPRC, which few positives raise, takes {METRICS['auprc'].least} in each class; the "
        "calibration error, which few records always raise, has no interval. docs/statistics.md "
        "of the project has the simulations.",
    ),
    (
        "Seeds",
        "Runs that differ only by their seed are one row: value is their mean, sd the standard "
        "deviation between them (n − 1). The interval is then for patients and seeds together "
        "(Obuchowski and Rockette 1995, with the quantile of Cochran and Cox 1957), and wide for "
        "two or three seeds, which say little about how seeds vary.",
    ),
    (
        "Tuned ensemble, start ensemble",
        "One model made of several seeds: its probability of a record is the mean of theirs. Of "
        "tuned settings and of those that the search started from, over the seeds that both have; "
        "the difference of the two is what tuning adds to an average, and that to single runs is "
        "mostly what averaging adds. Interval and p are those of one model, for these seeds.",
    ),
    (
        "In distribution, target, gap",
        "In distribution is the source's own validation split; a target is a dataset that was "
        "never trained on. The gap is in distribution minus target; its interval is made of "
        "both values' own intervals (Zou and Donner 2008) and p is the level at which it reaches "
        "0, as if no patient were in both (a note says where some are); several seeds count by how "
        "the gap varies between them. "
        "The validation split also chose the best epoch, which makes its value, and so the gap, a "
        "little too large. Where the two can score different classes, all three are over the "
        "classes that both can score, and the row says how many.",
    ),
    (
        "Technique − scratch, b − a",
        "The difference of two techniques on the same rows, each draw of patients used for both, "
        "so that what both find hard cancels out; with the same seeds on both sides seed by seed, "
        "otherwise of the means, and then the interval says nothing about seeds. ▲ and ▼ mark p "
        "below 0.05, of pairs after Holm's correction; elsewhere they are not corrected for their "
        "number.",
    ),
    (
        "p",
        "Two-sided, of no difference. For AUROC with one seed on both sides: the share of ways to "
        "let the two techniques trade places in some patients that give a difference as large "
        "(a permutation test of ranks, Bandos et al. 2005), which holds its level with rare "
        "classes too, so that there can be a p where there is no interval. Otherwise, but for "
        "gaps and subgroups, by Student's t from the interval's standard error.",
    ),
    (
        "p (DeLong)",
        "A second test of the difference in AUROC, mean over classes, by the covariance of DeLong "
        "et al. (1988) of all classes, clustered by patient (Obuchowski 1997), with Student's t. "
        "Only where both techniques have one seed and the difference has an interval.",
    ),
    (
        "p (Holm)",
        "p of the pairs of techniques within one dataset and setting, or of the gaps of one "
        "technique and setting to all targets, corrected by Holm's method: "
        "the chance of even one false difference among them stays below the level.",
    ),
    (
        "Rank and Kendall's τ",
        "1 is the highest AUROC, ties averaged. The interval of a rank holds the ranks that no "
        "test of a pair, after Holm's correction, rules out (Mogstad et al. 2024). In each draw of "
        "patients the techniques are ranked anew; τ is the mean of τ-b, which compares a draw's "
        "order with the order found. It describes, and has no interval.",
    ),
    (
        "Subgroups",
        "AUROC among the patients of one age band, sex, site, device or view, where the dataset "
        "has them. Whether they are equal in all groups is tested by Welch's test of their logits; "
        "each pair of groups over the classes that both can score, by an interval of the "
        "difference that is made of both groups' own intervals (Zou and Donner 2008), with Holm's "
        "correction over the pairs of a variable. "
        "A disease that is more frequent in one group does not move AUROC; nothing else "
        "that differs between groups is adjusted for.",
    ),
)
"""Terms and their definitions."""


def published_words() -> tuple[tuple[str, str], ...]:
    """What readers must know of published results, by benchmark."""
    made = benchmarks().values()
    said = [f"{p.source}. {p.words}" for each in made if (p := each.published) is not None]
    return (("Paper", " ".join(said)),) if said else ()


def words() -> tuple[tuple[str, str], ...]:
    """Words of the tables."""
    starts_said = " ".join(f"{one.name}: {one.meaning}." for one in starts().values())
    return tuple((term, text.format(starts=starts_said)) for term, text in WORDS)


WORDS: tuple[tuple[str, str], ...] = (
    ("modality", "Kind of medical data, such as ecg or cxr."),
    ("trained on", "The source: the dataset that a model was pretrained and transferred on."),
    ("dataset", "The dataset that is scored; of a source the split is named."),
    (
        "setting",
        "linear: a linear head on the frozen encoder, all labels. finetune-small, finetune-medium, "
        "finetune-large, finetune-full: all weights, with 8, 64, 256 labels per class, or all. "
        "knn: nothing is trained, the nearest training records by the encoder's features vote.",
    ),
    ("technique", "How the encoder was pretrained; scratch is not at all."),
    (
        "policy",
        "Rules for labels and splits: clean (no patient in two splits of a dataset) or released "
        "(as the paper's authors released them).",
    ),
    (
        "protocol",
        "{starts} "
        "tuned: those that a search found. tuned ensemble, start ensemble: averages of seeds. "
        "custom: others. shuffled: trained on shuffled labels, a check. A number or letter tells "
        "apart several settings; the notes name them.",
    ),
    ("records, patients, positives", "What was scored, of how many people, how many of the class."),
    ("seeds", "How many runs a row pools, or an ensemble averages."),
    ("catalog", "SHA-256 of the catalog's content, its first characters."),
    ("–", "No number: not scored, or nothing to compare with."),
)
"""Words of the tables."""
