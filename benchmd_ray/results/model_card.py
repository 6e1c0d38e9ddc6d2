"""The card of an exported model: what it is and rests on, how good it is, what it is not for.

It begins with the fields that the Hugging Face hub reads. What runs, predictions and cards of
datasets say is written as text: nothing of it becomes HTML or another table cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import yaml

from benchmd_ray.data.cards import DatasetCard, cards
from benchmd_ray.parts import package_versions
from benchmd_ray.results.model_scores import provenances, score_sections
from benchmd_ray.results.report.table import text_of
from benchmd_ray.results.store import Run
from benchmd_ray.results.written import markdown
from benchmd_ray.run_files import predictions_of
from benchmd_ray.signals import Signal

HUB_METRICS = ["roc_auc", "accuracy", "f1", "brier_score"]
"""Metrics of the scores, as the hub names them."""
TASKS = {
    "single-label": "exactly one of these classes; probabilities add up to 1",
    "multi-label": "any of these labels, each with a probability of its own",
    "ordinal": "exactly one of these classes, in this order; probabilities add up to 1",
}
PROVENANCES = {
    "whole": "all records of {title}",
    "sample": "a sample of {title}, {records:,} of its {whole:,} raw records",
    "unofficial": "unofficial files of {title}, those of a mirror or of a third party",
    "synthetic": "synthetic records in the layout of {title}, drawn by a program and measured on "
    "nobody, so that its outputs say nothing about patients",
}
"""What a model was trained on, by `data.provenance`."""
NORMALISATIONS = {
    "record-range": "each record is divided by its own maximum minus minimum",
    "fixed-range": "a fixed range is mapped onto another, what lies beyond is clipped",
    "window": "a window is mapped to [0, 1], what lies beyond is clipped",
    "source-statistics": "mean and standard deviation of the training split, per channel",
    "source-mean": "mean of the training split is removed, then divided by a fixed extent",
    "none": "none",
}
LIMITS = """\
It is for research: on how models move from one hospital to others, as a start for training, as a
baseline. It is not a medical device and **not for diagnosis**, triage or any other decision about a
patient. Nothing is known of it on other populations, devices and protocols of acquisition than
those of the datasets above; a score there is a mean, and says nothing about a single patient.
Signals of another unit, rate, order of channels or shape give numbers without meaning.
"""


@dataclass(frozen=True)
class Program:
    """A file that runs the model without this package, and how it was checked."""

    file: str
    difference: float
    """Largest difference from the model's outputs."""
    records: str
    """On what, in words."""


def model_card(
    run: Run, output: str, width: int, *, takes_sizes: bool, programs: Sequence[Program]
) -> str:
    """The card of a run's model, Markdown.

    Args:
        run: A finished run.
        output: ``probabilities`` or ``features``.
        width: How many, of a record.
        takes_sizes: Whether programs take valid sizes, too.
        programs: Files next to the card.

    Raises:
        BenchmdError: Predictions of the run cannot be read.
    """
    scores = score_sections(run)
    about = run.description
    source = {about["source"]: str(about["provenance"])}
    datasets = source | {k: v for k, v in provenances(run).items() if k not in source}
    sections = {
        "Input": _input(run.modality.signal, takes_sizes=takes_sizes),
        "Output": _output(run, output, width),
        "How to use it": _use(run, output, takes_sizes=takes_sizes, programs=programs),
        "Data": _data(run, datasets),
        "Training": _table("setting", _training(run)),
        "Scores": scores or "Features have no scores of their own: transfers from it have.",
        "Limits and intended use": LIMITS,
        "Versions": _versions(about.get("versions", {})),
    }
    head = yaml.safe_dump(_head(run, datasets), sort_keys=False, allow_unicode=True)
    parts = [f"---\n{head}---\n", f"# {_plain(_title(run, output))}\n", _lead(run, output)]
    parts += [f"## {title}\n\n{text.strip()}\n" for title, text in sections.items()]
    return "\n".join(parts)


def _head(run: Run, datasets: Mapping[str, str]) -> dict[str, Any]:
    """Fields that the hub reads."""
    about = run.description
    weakest = str(about["provenance"])
    tags = ["medical", "benchmd", about["modality"], about["technique"]]
    return {
        "license": "other",
        "license_name": "terms-of-the-datasets",
        "license_link": "README.md",
        "tags": [*tags, *([] if weakest == "whole" else [f"{weakest}-data"])],
        "datasets": list(datasets),
        **({"metrics": HUB_METRICS} if predictions_of(run.folder) else {}),
    }


def _title(run: Run, output: str) -> str:
    about = run.description
    what = "classifier" if output == "probabilities" else "encoder"
    return (
        f"{about['modality']} {what}: {about['technique']}, {about['setting']}, {about['source']}"
    )


def _lead(run: Run, output: str) -> str:
    """The first sentence says what the model was trained on."""
    about = run.description
    records, whole = about["raw"]
    said = PROVENANCES[about["provenance"]].format(
        title=_plain(_name_of(about["source"])), records=records, whole=whole
    )
    what = f"This model turns {_plain(about['modality'])} signals into {output}"
    lines = [f"{what}; it was trained on {said}."]
    if str(about["technique"]).startswith("imagenet"):
        lines.append("It began with ImageNet weights of timm's ViT-Tiny, on terms of their own.")
    lines.append("It is for research and **not for diagnosis**.\n")
    return "\n".join(lines)


def _input(signal: Signal, *, takes_sizes: bool) -> str:
    shape = ", ".join(map(str, signal.stored_shape))
    rows = {
        "signals": f"float32 (records, {shape})",
        "axes": f"record, {', '.join(signal.axes)}",
        "unit": signal.unit,
        **({"rate": f"{signal.rate:g} Hz"} if signal.rate else {}),
        **({"channels": ", ".join(signal.channels)} if signal.channels else {}),
        "normalisation": f"done by the model ({signal.normaliser}): "
        f"{NORMALISATIONS[signal.normaliser]}",
    }
    if takes_sizes:
        axes = ", ".join(signal.axes[1:])
        rows["sizes"] = (
            f"int64 (records, {len(signal.axes) - 1}): extents along {axes} within which a signal "
            "is more than padding, which is on both sides; the whole shape where nothing is padded"
        )
    return _table("input", rows)


def _output(run: Run, output: str, width: int) -> str:
    if output == "features":
        return f"float32 (records, {width}): features of each record."
    task = run.modality.task
    frame = pd.DataFrame({"column": range(width), "class": [*map(text_of, task.classes)]})
    return f"float32 (records, {width}): {TASKS[task.kind]}.\n\n{markdown(frame)}"


def _use(run: Run, output: str, *, takes_sizes: bool, programs: Sequence[Program]) -> str:
    given = "signals, sizes" if takes_sizes else "signals"
    named = ", ".join(f'"{name}": {name}' for name in given.split(", "))
    code = {
        "model.pt2": (
            "With PyTorch and nothing else:",
            "import torch\n"
            'model = torch.export.load("model.pt2").module()\n'
            f"{output} = model({given})",
        ),
        "model.onnx": (
            "With ONNX Runtime, on NumPy arrays:",
            "import onnxruntime\n"
            'model = onnxruntime.InferenceSession("model.onnx")\n'
            f"({output},) = model.run(None, {{{named}}})",
        ),
    }
    make, call = ("classifier", "predict") if output == "probabilities" else ("encoder", "features")
    parts = [_code(*code[each.file]) for each in programs]
    parts.append(
        _code(
            "With benchmd_ray, which compares every file with its hash, and signals with what the "
            "model takes:",
            f'import benchmd_ray\nmodel = benchmd_ray.{make}("FOLDER")\n'
            f"{output} = model.{call}({given.replace('sizes', 'sizes=sizes')})",
        )
    )
    if any(each.file == "model.pt2" for each in programs):
        parts.append(
            f"`model.pt2` was written by PyTorch {package_versions()['torch']}: read it with this "
            "version or a newer one. It holds no pickle; `torch.export.load` would execute one in "
            "a file that was forged, so load such files from people you trust only. Its SHA-256 is "
            "in `config.json`."
        )
    parts += [
        f"`{each.file}` differs from the model by at most {each.difference:.1g} on {each.records}."
        for each in programs
    ]
    parts.append(
        "`model.safetensors` has the weights, and `config.json` the architecture, the input, the "
        "normaliser with its statistics, the classes and all that determined the training."
    )
    return "\n\n".join(parts)


def _data(run: Run, datasets: Mapping[str, str]) -> str:
    """Datasets with their terms; the model's own terms are for who shares it to state."""
    rows, citations = [], []
    for name, provenance in datasets.items():
        card = _card_of(name)
        rows.append(
            {
                "dataset": text_of(name),
                "used for": "training" if name == run.description["source"] else "scores",
                "records": provenance,
                "licence": _stated(card, "licence"),
                "access": _stated(card, "access"),
                "page": _stated(card, "homepage"),
            }
        )
        if card is not None and card.citation:
            citations.append(f"- {_plain(card.citation)}")
    policy = run.description["policy"]
    said = (
        f"Splits and labels follow the policy {policy}. Whoever shares this model answers for the "
        "terms of the training data, which bind what is made of them."
    )
    return "\n\n".join([markdown(pd.DataFrame(rows)), said, "\n".join(dict.fromkeys(citations))])


def _training(run: Run) -> dict[str, object]:
    """What determined the weights, in a few rows; all of it is in ``config.json``."""
    about = run.description
    stage = "transfer" if about["kind"] == "transfer" else "pretrain"
    flat = dict(_flat(about["determinants"].get(stage, {})))
    return {
        "run": run.folder.name,
        "technique": about["technique"],
        "setting": about["setting"],
        "protocol": about["protocol"] or "custom",
        **({"pretraining": about["upstream"]} if about.get("upstream") else {}),
        "network": about["settings"]["encoder"]["network"],
        "seed": about["seed"],
        "precision": about["determinants"].get("precision"),
        **{f"{stage}.{name}": value for name, value in flat.items() if value is not None},
    }


def _flat(settings: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, object]]:
    """Settings by their whole names, without strengths of augmentation that are off."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        elif not (above.startswith("augmentation.") and not value):
            yield f"{above}{name}", value


def _card_of(dataset: str) -> DatasetCard | None:
    """The card of a dataset as results name it, which may end in its layout's mark."""
    for card in cards().values():
        marks = [layout.mark for layout in card.layouts.values() if layout.mark]
        if dataset in (card.name, *(f"{card.name}-{mark}" for mark in marks)):
            return card
    return None


def _name_of(dataset: str) -> str:
    card = _card_of(dataset)
    return f"{card.title} ({dataset})" if card is not None and card.title else dataset


def _stated(card: DatasetCard | None, name: str) -> str:
    return text_of((card and getattr(card, name)) or "not stated")


def _table(what: str, rows: Mapping[str, object]) -> str:
    return markdown(pd.DataFrame({what: [*rows], "value": [*map(text_of, rows.values())]}))


def _versions(trained: Mapping[str, str]) -> str:
    now = package_versions()
    rows = [
        {"package": name, "trained with": trained.get(name, "–"), "exported with": now.get(name)}
        for name in dict.fromkeys([*trained, *now])
    ]
    return markdown(pd.DataFrame(rows).map(text_of))


def _code(said: str, lines: str) -> str:
    return f"{said}\n\n```python\n{lines}\n```"


def _plain(text: object) -> str:
    """Text of which Markdown makes no HTML."""
    return " ".join(text_of(text).split()).replace("<", "&lt;")
