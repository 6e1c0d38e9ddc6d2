"""Definitions on the report's page: how its numbers are made, and what its words mean.

Those of the metrics are with the metrics, `benchmd_ray.evaluation.metrics.METRICS`.
"""

from __future__ import annotations

from benchmd_ray.results.report.paper import SOURCE

METHODS: tuple[tuple[str, str], ...] = (
    (
        "95 % interval",
        "From 2.5 % to 97.5 % of a bootstrap that draws patients with replacement, all records of "
        "a patient together, so that repeated records do not feign certainty. Of one seed it is "
        "for the trained model: how far another sample of patients would move its number.",
    ),
    (
        "Seeds",
        "Runs that differ by their seed alone are one row: value is their mean, sd the standard "
        "deviation between them (n − 1). The interval is then for patients and seeds together "
        "(Obuchowski and Rockette 1995, Hillis 2007), and wide for two or three seeds, which say "
        "little about how seeds vary.",
    ),
    (
        "In distribution, target, gap",
        "In distribution is the source's own validation split; a target is a dataset that was "
        "never trained on. The gap is in distribution minus target; its interval is from "
        "independent draws of both, as if no patient were in both (a note says where some are). "
        "The validation split also chose the best epoch, which makes its value, and so the gap, a "
        "little too large. Each value is the mean over the classes that its own dataset can "
        "score: where the notes name classes as not scored, part of the gap may be theirs.",
    ),
    (
        "Technique − scratch, b − a",
        "The difference of two techniques on the same rows, each draw of patients used for both, "
        "so that what both find hard cancels out; with the same seeds on both sides seed by seed, "
        "otherwise of the means, and then the interval says nothing about seeds. p is two-sided. "
        "▲ and ▼ mark intervals that leave out zero; they are not corrected for their number.",
    ),
    (
        "p (DeLong)",
        "A second test of the difference in AUROC, by the variance of DeLong et al. (1988), "
        "clustered by patient (Obuchowski 1997). It is of single classes: shown is the smallest p "
        "over the classes after Holm's correction. Only where both techniques have one seed.",
    ),
    (
        "p (Holm)",
        "p of the pairs of techniques within one dataset and setting, corrected by Holm's method: "
        "the chance of even one false difference among them stays below the level.",
    ),
    (
        "Rank and Kendall's τ",
        "In each draw of patients the techniques are ranked anew, ties averaged. The interval of a "
        "rank is over these draws; τ-b compares each draw's order with the order found.",
    ),
    (
        "Subgroups",
        "AUROC among the patients of one age band, sex, site, device or view, where the dataset "
        "has them. The tests do not compare these AUROCs but what the model gives to the truth: "
        "of each patient the mean probability of the true state of its labels, by Kruskal-Wallis "
        "over all groups and Mann-Whitney for two, times the number of pairs (Bonferroni); of "
        "several seeds the scores are averaged for the tests. "
        "Neither adjusts for what else differs between groups, such as how frequent a disease is.",
    ),
    (
        "Paper",
        f"{SOURCE}. Its number stands beside ours only for runs of the fixed protocol, its own "
        "sources and splits, default options of the builds, and datasets of which at least half "
        "the raw records are there.",
    ),
)
"""Terms and their definitions."""

WORDS: tuple[tuple[str, str], ...] = (
    ("modality", "Kind of medical data, such as ecg or cxr."),
    ("trained on", "The source: the dataset that a model was pretrained and transferred on."),
    ("dataset", "The dataset that is scored; of a source the split is named."),
    (
        "setting",
        "linear: a linear head on the frozen encoder, all labels. finetune-small, finetune-medium, "
        "finetune-large, finetune-full: all weights, with 8, 64, 256 labels per class, or all.",
    ),
    ("technique", "How the encoder was pretrained; scratch is not at all."),
    (
        "policy",
        "Rules for labels and splits: clean (no patient in two splits of a dataset) or released "
        "(as the paper's authors released them).",
    ),
    (
        "protocol",
        "fixed: the fixed protocol's settings. baseline: the recipe of MedMNIST's baselines. "
        "tuned: those that a search found. custom: others. shuffled: trained on shuffled labels, a "
        "check. A number or letter tells apart several settings; the notes name them.",
    ),
    ("records, patients, positives", "What was scored, of how many people, how many of the class."),
    ("seeds", "How many runs a row pools."),
    ("catalog", "SHA-256 of the catalog's content, its first characters."),
    ("–", "No number: not scored, or nothing to compare with."),
)
"""Words of the tables."""
