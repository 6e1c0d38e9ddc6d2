"""Facts of a run for its model card: origin of the weights, training and scores."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from benchmd_ray.errors import BenchmdError
from benchmd_ray.export.averaged_runs import is_cross_validated
from benchmd_ray.report.columns import cautions, column_of, interval_of, metric_title, sizes
from benchmd_ray.report.contamination import contamination, is_marked, marked, published_of
from benchmd_ray.report.ensembles import averaged
from benchmd_ray.report.formats import markdown
from benchmd_ray.report.frames import dataset_text, frame_of_parts, place
from benchmd_ray.report.names import names_of
from benchmd_ray.report.notes import notes, synthetic
from benchmd_ray.report.over_folds import joined
from benchmd_ray.report.protocols import (
    START,
    TUNED,
    base_protocol,
    pretraining_of,
    searches_behind,
)
from benchmd_ray.report.rows import key_of, score_rows
from benchmd_ray.report.scored import Scored, measured, read_scored
from benchmd_ray.report.table import Column, Table, plain, text_of
from benchmd_ray.runs.store import Run
from benchmd_ray.scores.metrics import METRICS
from benchmd_ray.settings.in_use import in_use

BROUGHT = ("hf:", "model:")
"""Prefixes of techniques whose encoder was trained elsewhere (`ssl.brought`)."""
IMAGENET = ("imagenet", "imagenet+mae")
TRAINED_FURTHER = "imagenet+mae"
"""The only technique with external weights whose pretraining trains further."""
TRAINING, NORMALISATION, SHAPE = "training", "normalisation", "shape of the signals"
USES = {
    TRAINING: "It was trained on {data}.",
    NORMALISATION: "Nothing was trained here: signals are normalised by the mean and standard "
    "deviation of {data}.",
    SHAPE: "Nothing was trained here: only the shape of the signals is that of {data}.",
    "head": "Only a head was trained here, on {data}.",
    "fine-tuning": "Encoder and head were fine-tuned here, on {data}.",
    "pretraining": "The encoder was pretrained further here, on {data}.",
    "pretraining, head": "The encoder was pretrained further here and a head trained, both "
    "on {data}.",
    "pretraining, fine-tuning": "The encoder was pretrained further here, then encoder and head "
    "fine-tuned, both on {data}.",
}
"""Use of the source, and its sentence for the card."""


@dataclass(frozen=True)
class Origin:
    """Origin of a model's weights."""

    use: str
    """Use of the source, one of `USES`."""
    name: str = ""
    """Name of the external encoder weights; empty if all weights were trained here."""
    sha256: str = ""
    """SHA-256 of these weights, or of their file in the pretraining; empty if unknown."""
    published: str = ""
    """Title and licence of a published encoder; empty for others."""

    @property
    def elsewhere(self) -> bool:
        """Whether the encoder's weights were trained elsewhere."""
        return bool(self.name)

    @property
    def trains(self) -> bool:
        """Whether anything was trained on the source."""
        return self.use not in (NORMALISATION, SHAPE)

    def sentences(self, data: str) -> str:
        """First sentences of the card; ``data`` describes the source."""
        here = USES[self.use].format(data=data)
        if not self.elsewhere:
            return here
        stated = f" ({self.sha256})" if self.sha256 else ""
        if self.published:
            return (
                f"The weights of its encoder were trained elsewhere: {self.published}{stated}. "
                f"They have their own terms.\n{here}"
            )
        return (
            f"The weights of its encoder were trained elsewhere: {self.name}{stated}. They have "
            "their own terms, and their training data are unknown to this card; they may include "
            f"patients of the datasets below.\n{here}"
        )


def origin_of(run: Run) -> Origin:
    """Origin of a run's weights.

    The hash of external weights is the one stated by the pretraining; if a transfer's pretraining
    is missing, it is that of the file that the transfer read.
    """
    about = run.description
    technique = str(about["technique"])
    if published := published_of(run):
        title = f"{published['title']} (licence: {published['licence']})"
        return Origin(_use(run, technique), technique, _hash(run, technique), title)
    if not technique.startswith(BROUGHT) and technique not in IMAGENET:
        return Origin(TRAINING)
    name = "ImageNet weights for timm's ViT-Tiny" if technique in IMAGENET else technique
    return Origin(_use(run, technique), name, _hash(run, technique))


def pretrained_sentence(runs: Sequence[Run], source: str) -> str:
    """What the encoder was pretrained on besides its source, and what of it is scored below."""
    run = runs[0]
    if published := published_of(run):
        names = [*published["pretrained_on"], *published["also"]]
    else:
        entries = run.description.get("pretrained_on", ())
        names = [str(e["dataset"]) for e in entries if e["dataset"] not in source.split("+")]
    texts = {
        scored.dataset: text
        for scored, *_ in scored_by_all(runs)
        if (text := contamination(run, scored.about, scored.people()))
    }
    seen = [f"{name} ({text})" for name, text in texts.items() if is_marked(text)]
    sentence = f"Its encoder was pretrained on {', '.join(names)}" if names else ""
    if not seen:
        return sentence and f"{sentence}."
    scored_below = f"scored below: {'; '.join(seen)}."
    return (
        f"{sentence}; of these, or of their origin, are {scored_below}"
        if names
        else (f"Of what its pretraining saw are {scored_below}")
    )


def _use(run: Run, technique: str) -> str:
    pretrained = ["pretraining"] if technique == TRAINED_FURTHER else []
    if run.description["kind"] == "transfer":
        tuned = run.settings.transfer.mode == "finetune"
        return ", ".join([*pretrained, "fine-tuning" if tuned else "head"])
    if pretrained:
        return "pretraining"
    by_statistics = run.modality.signal.normaliser in ("source-statistics", "source-mean")
    return NORMALISATION if by_statistics else SHAPE


def _hash(run: Run, technique: str) -> str:
    pretraining = pretraining_of(run, {}) if run.description["kind"] == "transfer" else run
    stated = pretraining and pretraining.description["determinants"].get("weights")
    if stated:
        return f"SHA-256 {stated}"
    file = run.description["determinants"].get("upstream")
    return f"stored with the SHA-256 {file}" if file and technique != TRAINED_FURTHER else ""


def training_rows(runs: Sequence[Run], origin: Origin) -> dict[str, object]:
    """Names and values of the protocol, as in reports, and of the settings that were used."""
    run, about = runs[0], runs[0].description
    determinants = about["determinants"]
    upstream = [str(each.description["upstream"]) for each in runs if about.get("upstream")]
    rows: dict[str, object] = {
        "run": _distinct(run.folder.name for run in runs),
        "technique": about["technique"],
        **({"weights trained elsewhere": origin.sha256} if origin.sha256 else {}),
    }
    network = {"network": about["settings"]["encoder"]["network"]}
    if not origin.trains:
        return rows | network | {"training": "none"}
    stage = "transfer" if about["kind"] == "transfer" else "pretrain"
    flat = dict(_flat(determinants.get(stage, {}), f"{stage}."))
    return {
        **rows,
        "setting": about["setting"],
        "protocol": _protocol(run),
        **({"pretraining": _distinct(upstream)} if upstream else {}),
        **network,
        "seed": _distinct(run.description["seed"] for run in runs),
        "precision": determinants.get("precision"),
        **in_use(flat, str(about["technique"])),
    }


def _distinct(values: Iterable[object]) -> str:
    return ", ".join(dict.fromkeys(map(str, values)))


def _protocol(run: Run) -> str:
    """The protocol, with the searches that found tuned settings."""
    pretraining = pretraining_of(run, {}) if run.description["kind"] == "transfer" else None
    protocol = base_protocol(run, pretraining)
    if protocol == START:
        return "start: settings that a search started from"
    if protocol != TUNED:
        return protocol
    return f"tuned: settings found by {', '.join(searches_behind(run, pretraining))}"


def _flat(settings: Mapping[str, Any], above: str) -> Iterable[tuple[str, object]]:
    """Settings by full name, without disabled augmentation."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        elif value is not None and (value or not above.endswith(".augmentation.")):
            yield f"{above}{name}", value


HUB_NAMES = {"auroc": "roc_auc", "brier": "brier_score"}
"""The hub's names of metrics, where they are not ours."""
HUB_TASK = "other"
"""The hub has no task of signals; it has those of natural images and text."""
AVERAGED = "These are the scores of the average, not the mean of its models' scores. "
RESAMPLES = 1000
"""Bootstrap resamples of patients, as in reports."""


def provenances(runs: Sequence[Run]) -> dict[str, str]:
    """Provenance of the records that runs were scored on, by dataset."""
    return {first.dataset: first.about["provenance"] for first, *_ in scored_by_all(runs)}


def scored_by_all(runs: Sequence[Run]) -> list[list[Scored]]:
    """Results of all runs without metrics, for each split that all of them have scored."""
    parts = []
    for run in runs:
        read = read_scored(run)
        if read.skipped:
            raise BenchmdError(read.skipped[0].removeprefix("Skipped: "))
        parts.append({(item.dataset, item.split): item for item in read.scored})
    return [[part[key] for part in parts] for key in parts[0] if all(key in p for p in parts)]


def scores_of(runs: Sequence[Run]) -> pd.DataFrame:
    """Score rows (`frames.FRAMES`) over all classes for a run, or for the average of several."""
    row = names_of(runs[:1]).of_runs[runs[0].folder]
    join = joined if is_cross_validated(runs) else averaged
    results = [items[0] if len(items) == 1 else join(items) for items in scored_by_all(runs)]
    ordered = sorted(results, key=lambda item: place(key_of(item, row)))
    scored = measured(ordered, tuple(METRICS), RESAMPLES)
    return frame_of_parts("rows", [score_rows(item, row) for item in scored])


def evaluation_results(title: str, rows: pd.DataFrame | None) -> dict[str, Any]:
    """The hub's ``model-index``: scores over all classes, an entry for each split; empty without.

    ``rows`` are those of `scores_of`.
    """
    if rows is None or rows.empty:
        return {}
    results = []
    for (dataset, split), part in rows[rows["class"] == "mean"].groupby(
        ["dataset", "split"], sort=False
    ):
        metrics = [
            {"type": HUB_NAMES.get(metric, metric), "value": round(value, 6)}
            for metric, value in zip(part["metric"].tolist(), part["value"].tolist(), strict=True)
            if math.isfinite(value)
        ]
        about = {"type": str(dataset), "name": str(dataset), "split": str(split)}
        if metrics:
            results.append({"task": {"type": HUB_TASK}, "dataset": about, "metrics": metrics})
    return {"model-index": [{"name": title, "results": results}]} if results else {}


def score_sections(runs: Sequence[Run], rows: pd.DataFrame | None = None) -> str:
    """Score tables and limitations as Markdown; ``rows`` are those of `scores_of`, if computed."""
    if runs[0].description["kind"] != "transfer":
        return "Features have no scores; transfers from this model have."
    rows = scores_of(runs) if rows is None else rows
    if rows.empty:
        return "The run has not been scored on any dataset, so its quality is unknown."
    whole = rows[rows["class"] == "mean"].reset_index(drop=True)
    by_class = rows[(rows["class"] != "mean") & (rows["metric"] == "auroc")].reset_index(drop=True)
    metrics = column_of("metric", map(metric_title, whole["metric"]), "text")
    positives = column_of("positives", by_class["positives"], "integer")
    classes = column_of("class", by_class["class"], "text")
    overall = (_dataset(whole), metrics, interval_of("value [95 %]", whole, "value"))
    single = (
        _dataset(by_class),
        classes,
        positives,
        interval_of("AUROC [95 %]", by_class, "value"),
    )
    absent = ["paper:"]  # none is shown here
    if all("fold" in run.description for run in runs):
        absent.append("validation:")  # another split chose their epochs
    limits = [note for note in notes(rows) if not note.startswith((*absent,))]
    return "\n\n".join(
        [
            synthetic(rows),
            f"{AVERAGED * (len(runs) > 1 and not is_cross_validated(runs))}Over all classes:",
            _markdown((*overall, *sizes(whole), *cautions(whole))),
            "Each class against the rest:",
            _markdown((*single, *cautions(by_class))),
            "Limitations of these numbers:",
            "\n".join(f"- {text_of(limit).replace('<', '&lt;')}" for limit in limits),
        ]
    )


def _dataset(rows: pd.DataFrame) -> Column:
    keys = zip(*(rows[name] for name in ("source", "dataset", "role", "split")), strict=True)
    names = marked([dataset_text(*key) for key in keys], rows["contamination"])
    return column_of("dataset", names, "text")


def _markdown(columns: tuple[Column, ...]) -> str:
    return markdown(plain(Table("", columns))[0])
