"""The report as one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from benchmd_ray.evaluation.registry import benchmarks, starts
from benchmd_ray.files.atomic import replacing, slug
from benchmd_ray.report.document import (
    Section,
    document,
    figure_parts,
    html,
    listed_notes,
    none,
    prose,
    render,
    terms,
)
from benchmd_ray.report.matrix import matrix_html, matrix_of
from benchmd_ray.report.notes import synthetic
from benchmd_ray.report.page_findings import evidence, shift, winners
from benchmd_ray.report.page_tuning import gained, tuning_sentences
from benchmd_ray.report.table import text_of
from benchmd_ray.report.tables import DESCRIPTIONS, Declared, declared
from benchmd_ray.scores.metrics import METRICS
from benchmd_ray.scores.support import INTERVAL_PATIENTS, ROUGH_IN_CLASS, TEST_PATIENTS

if TYPE_CHECKING:
    from benchmd_ray.report.analysis import Analysis
    from benchmd_ray.report.figures_parts import Skipped, Titled

NAME = "report.html"
ABOUT = (
    "How well encoders pretrained by modality-agnostic techniques recognise findings in medical "
    "data, on the dataset they were trained on and on unseen target datasets (BenchMD). Every "
    "number is computed from stored predictions, with a 95 % interval where there are enough "
    "patients."
)
TUNING, RUNS = "Tuning", "Runs"
"""Headings of sections with sentences, and near the end."""
FIRST_FIGURE = "Results"
"""Section whose first figure is on the first screen."""
OPEN = 2
"""Sections that are not folded: the first screen and the caveats."""


def write_page(
    analysis: Analysis,
    figures: Sequence[Titled],
    folder: Path,
    *,
    title: str = "BenchMD report",
    skipped: Sequence[Skipped] = (),
    refresh: int = 0,
    tables: Sequence[Declared] | None = None,
) -> Path:
    """Write ``report.html`` atomically; the same analysis gives the same bytes.

    Args:
        analysis: Analysis of the runs.
        figures: Figures of this analysis, shown by section in this order.
        folder: Where the page is written.
        title: Heading.
        skipped: Figures that were not drawn, and why.
        refresh: Seconds after which a browser reloads it; 0: never.
        tables: Tables to show, of those in `declared`; None for all.
    """
    path = folder / NAME
    with replacing(path) as partial:
        partial.write_text(
            page(analysis, figures, title=title, skipped=skipped, refresh=refresh, tables=tables),
            "utf-8",
        )
    return path


def page(
    analysis: Analysis,
    figures: Sequence[Titled],
    *,
    title: str = "BenchMD report",
    skipped: Sequence[Skipped] = (),
    refresh: int = 0,
    tables: Sequence[Declared] | None = None,
) -> str:
    """The HTML of a report, see `write_page`."""
    parts = _parts(analysis, figures, skipped, declared() if tables is None else tables)
    warning = synthetic(analysis.rows)
    footer = _footer(figures)
    return document(title, "", parts, footer, warning=warning, refresh=refresh, unfolded=OPEN)


def _footer(figures: Sequence[Titled]) -> str:
    files = ", figures in figures/ (SVG, PNG; each caption ends with the file's name)"
    return (
        "Written by benchmd report. Tables with all digits are next to this page (CSV; most as "
        f"Markdown and LaTeX too){files if figures else ''}."
    )


def _parts(
    analysis: Analysis,
    figures: Sequence[Titled],
    skipped: Sequence[Skipped],
    chosen: Sequence[Declared],
) -> list[Section]:
    first = [one for one in figures if one.section == FIRST_FIGURE and not one.folded][:1]
    drawn = figure_parts([*first, *(one for one in figures if one not in first)], apart=len(first))
    glance = _glance(analysis, chosen, drawn.pop("", Markup()))
    tables, absent = _table_parts(analysis, drawn, chosen)
    late = [tables.pop(head) for head in (TUNING, RUNS, DESCRIPTIONS) if head in tables]
    reasons = sorted({text_of(figure.reason) for figure in skipped})
    methods = [
        *((metric.title, metric.definition) for metric in METRICS.values()),
        *METHODS,
        *published_words(),
    ]
    return [
        ("main", "Results at a glance", glance or none("Nothing was scored.")),
        ("notes", "Caveats", listed_notes([*evidence(analysis), *analysis.notes], "None.")),
        *(
            (f"figures-{place}", f"Figures: {section}", images)
            for place, (section, images) in enumerate(drawn.items(), start=1)
        ),
        *tables.values(),
        *late,
        (
            "methods",
            "Methods and definitions",
            Markup("<p>{}</p>").format(prose(ABOUT))
            + terms(methods)
            + Markup("<h3>Terms in the tables</h3>\n")
            + terms(words())
            + listed_notes(absent, heading="Empty tables")
            + listed_notes(reasons, heading="Figures not drawn"),
        ),
    ]


def _table_parts(
    analysis: Analysis, drawn: dict[str, Markup], chosen: Sequence[Declared]
) -> tuple[dict[str, Section], list[str]]:
    """The section of each heading's tables (tuning with its figures), and notes on empty tables."""
    headings: dict[str, list[Declared]] = {}
    for declared_table in chosen:
        if declared_table.page is not None and not declared_table.first:
            headings.setdefault(declared_table.heading, []).append(declared_table)
    sections, absent = dict[str, Section](), list[str]()
    classified = (
        len(analysis.scores) or analysis.rows.empty
    )  # otherwise other evaluations have results
    for heading, declarations in headings.items():
        content = _tables_html(analysis, declarations)
        if not content:
            if (nothing := declarations[0].nothing) and classified:
                absent.append(f"{heading}: {nothing}")
            continue
        if heading == TUNING:
            content = listed_notes(tuning_sentences(analysis)) + content
            content += drawn.pop(TUNING, Markup())
        sections[heading] = (slug(heading), heading, content)
    return sections, absent


def _tables_html(analysis: Analysis, declarations: Sequence[Declared]) -> Markup:
    tables = [
        (table.name, table.page(analysis)) for table in declarations if table.page is not None
    ]
    return Markup().join(html(name, table) for name, table in tables if table is not None)


def _glance(analysis: Analysis, chosen: Sequence[Declared], figure: Markup) -> Markup:
    """The first screen: sentences, the matrix, benchmarks' first tables, one figure."""
    matrix = matrix_of(analysis)
    tables = _tables_html(analysis, [table for table in chosen if table.first])
    if matrix is None:
        return tables + figure
    answers = [
        *((sentence, "pairs", len(analysis.pairs)) for sentence in winners(analysis)),
        *((sentence, "tuned", len(analysis.tuned)) for sentence in gained(analysis)),
        *((sentence, "gaps", len(analysis.gaps)) for sentence in shift(analysis)),
    ]
    return render("glance.html", answers=answers, matrix=matrix_html(matrix)) + tables + figure


METHODS: tuple[tuple[str, str], ...] = (
    (
        "95 % interval",
        "The standard error is from a bootstrap that resamples patients, all records of a patient "
        "together, so repeated records do not make results look more certain. The width follows "
        "from Student's t on the logit scale, with degrees of freedom from the patients of the "
        "rarest classes; a value of exactly 1 or 0 has the Clopper-Pearson interval. With one seed "
        "the interval covers only other samples of patients for this trained model.",
    ),
    (
        "Few patients, caution",
        "The patients of a class are those on its rarer side, with a positive or with a negative "
        "record. Where some patients have many more records than others, Kish's effective number "
        f"is used. With fewer than {INTERVAL_PATIENTS} patients, or a class with "
        f"fewer than {METRICS['auroc'].least}, there is no interval, as no method kept its "
        "coverage in simulations. With a "
        f"class of {METRICS['auroc'].least} to {ROUGH_IN_CLASS - 1} the interval is rough. With "
        f"fewer than {TEST_PATIENTS} patients nothing is tested. "
        f"AUPRC, which is biased upward by few positives, needs {METRICS['auprc'].least} in each "
        f"class; the calibration error, which is always biased upward by few records, has no "
        f"interval. docs/statistics.md "
        "of the project has the simulations.",
    ),
    (
        "Seeds",
        "Runs that differ only by seed are one row: value is their mean, sd their standard "
        "deviation (n − 1). The interval then covers patients and seeds (Obuchowski and Rockette "
        "1995, with the quantile of Cochran and Cox 1957); with two or three seeds it is wide.",
    ),
    (
        "Tuned ensemble, start ensemble",
        "One model that averages the probabilities of fold models: of a search's choice, and of "
        "its start, over the folds that both have. Their difference is the gain from the search; "
        "the difference from single models is mostly the gain from averaging. Interval and p are "
        "for this one model.",
    ),
    (
        "In distribution, target, gap",
        "In distribution is the source's own validation split; a "
        "target is a dataset that the transfer was not trained on. "
        "The gap is in distribution minus target; "
        "its interval combines both intervals (Zou and Donner 2008) and p is the level at which it "
        "reaches 0, assuming that no patient is in both (a note names exceptions); with several "
        "seeds it also covers the variation of the gap between seeds. The validation split also "
        "chose the best epoch, so its value, and the gap, are slightly too large. If different "
        "classes can be scored on the two, all three numbers are over the common classes, and the "
        "row says how many.",
    ),
    (
        "Contamination",
        "† marks a row whose encoder was pretrained on what it is scored on: such a score is not "
        "zero-shot and may be too high, and so may its differences from other rows, which are "
        "tested all the same. Of a pretraining made here, its patients are compared with those "
        "scored; a published encoder is judged by the datasets that its card names and by others "
        "of their origin; of any other encoder nothing is known.",
    ),
    (
        "Row − baseline, b − a",
        "The difference between two rows on the same records with as many labels, whatever made "
        "their features. The baseline of a row, unless one is named, is training from scratch with "
        "the same mode, network and settings of the transfer, else another training from scratch, "
        "else random kernels. "
        "Each resample of patients is used for both; with the same seeds on both sides seed by "
        "seed, otherwise between the means, and then the interval does not cover seeds. ▲ and ▼ "
        "mark p below 0.05; for pairs after Holm's correction, elsewhere not corrected for the "
        "number of tests.",
    ),
    (
        "p",
        "Two-sided, for no difference. For AUROC with one seed on both sides: a permutation "
        "test that exchanges the two rows within patients (Bandos et al. 2005). It keeps "
        "its level with rare classes, so there can be a p without an interval. Otherwise, except "
        "for gaps and subgroups, Student's t from the interval's standard error.",
    ),
    (
        "p (DeLong)",
        "A second test of the difference in AUROC, mean over classes, by the covariance of DeLong "
        "et al. (1988) of all classes, clustered by patient (Obuchowski 1997), with Student's t. "
        "Only where both rows have one seed and the difference has an interval.",
    ),
    (
        "p (Holm)",
        "p of the pairs of rows on one dataset with as many labels, or of the gaps of one "
        "technique and setting to all targets, corrected by Holm's method: "
        "the chance of any false difference among them stays below the level.",
    ),
    (
        "Rank and Kendall's τ",
        "1 is the highest AUROC, ties averaged. The interval of a rank has "
        "the ranks that no test of a pair, after Holm's correction, rules out (Mogstad et al. "
        "2024). In each resample of patients the rows are ranked again; τ is the mean τ-b "
        "between that ranking and the ranking of all patients. It is descriptive and has no "
        "interval.",
    ),
    (
        "Subgroups",
        "AUROC among the patients of one age band, sex, site, device or view, where the dataset "
        "has them. Whether they are equal in all groups is tested by Welch's test of their logits; "
        "each pair of groups, over the classes that can be scored in both, by an interval of the "
        "difference from both groups' intervals (Zou and Donner 2008), with Holm's correction over "
        "the pairs of a variable. Prevalence does not affect AUROC; other differences between "
        "groups are not adjusted for.",
    ),
)
"""Terms and their definitions."""


def published_words() -> tuple[tuple[str, str], ...]:
    """Source of published results, by benchmark."""
    known_benchmarks = benchmarks().values()
    sentences = [
        f"{p.source}. {p.words}"
        for benchmark in known_benchmarks
        if (p := benchmark.published) is not None
    ]
    return (("Paper", " ".join(sentences)),) if sentences else ()


def words() -> tuple[tuple[str, str], ...]:
    """Terms in the tables, including the starts of benchmarks."""
    starts_said = " ".join(f"{start.name}: {start.meaning}." for start in starts().values())
    return tuple((term, text.format(starts=starts_said)) for term, text in WORDS)


WORDS: tuple[tuple[str, str], ...] = (
    ("modality", "Kind of medical data, such as ecg or cxr."),
    ("trained on", "The source: the dataset that a model was pretrained and transferred on."),
    ("dataset", "The dataset that is scored; for a source, with its split."),
    (
        "setting",
        "linear: a head on the frozen encoder, all labels. finetune-small, finetune-medium, "
        "finetune-large, finetune-full: all weights, with 8, 64, 256 labels per class, or all. "
        "knn: no training; the nearest training records by the encoder's features vote.",
    ),
    ("labels", "How many were trained on: full (all), or large, medium, small, per class."),
    (
        "technique",
        "The name of a row: how the encoder was pretrained (scratch: no pretraining), on which "
        "data where it is other than the source, its network where it is not the transformer, and "
        "the settings that tell it from rows of that name. The table of what the rows are has "
        "the rest.",
    ),
    (
        "policy",
        "Rules for labels and splits: clean (no patient in two splits of a dataset) or released "
        "(as the paper's authors released them).",
    ),
    (
        "protocol",
        "{starts} "
        "tuned: those that a search found. start: fold models of what it started from. tuned "
        "ensemble, start ensemble: averages of fold models. custom: with changed settings. "
        "shuffled: trained on shuffled labels, a sanity check.",
    ),
    (
        "records, patients, positives",
        "Number of units scored, of their patients, and of those with the class.",
    ),
    ("seeds", "How many runs a row pools, or an ensemble averages."),
    ("†", "The row's pretraining saw records of this dataset, or of its origin: contamination."),
    ("catalog", "SHA-256 of the catalog's content, its first characters."),
    ("–", "Missing: not scored, or nothing to compare with."),
)
"""Words of the tables."""
