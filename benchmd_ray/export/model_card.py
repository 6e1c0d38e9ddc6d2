"""The card of an exported model, for the Hugging Face hub: its use, data, scores and limits.

Texts of runs, predictions and datasets stay text: nothing of them becomes HTML or a table cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import yaml

from benchmd_ray.data.cards import DatasetCard, cards
from benchmd_ray.data.readers.image import FORMATS, MAX_PIXELS
from benchmd_ray.export.model_facts import (
    Origin,
    origin_of,
    provenances,
    score_sections,
    training_rows,
)
from benchmd_ray.extensions.parts import package_versions
from benchmd_ray.modality.signals import GROUPS, Signal
from benchmd_ray.report.formats import markdown
from benchmd_ray.report.table import text_of
from benchmd_ray.runs.files import predictions_of
from benchmd_ray.runs.store import Run

HUB_METRICS = ["roc_auc", "accuracy", "f1", "brier_score"]
"""Metrics of the scores, as the hub names them."""
TASKS = {
    "single-label": "exactly one of these classes; probabilities add up to 1",
    "multi-label": "any of these labels, each with a probability of its own",
    "ordinal": "exactly one of these classes, in this order; probabilities add up to 1",
}
PROVENANCES = {
    "whole": "all records of {title}",
    "sample": "a sample of {title}, {records} raw records",
    "unofficial": "unofficial files of {title}, those of a mirror or of a third party",
    "synthetic": "synthetic records in the layout of {title}, drawn by a program and measured on "
    "nobody, so that its outputs say nothing about patients",
}
"""What a model was trained on, by `data.provenance`."""
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
    """Largest difference from the model's outputs, as a share of the largest where that is above
    1."""
    records: str
    """On what, in words."""

    @property
    def checked(self) -> str:
        return (
            f"differs from the model by at most {self.difference:.1g} on {self.records} (relative "
            "to the largest output where that is above 1)"
        )


def model_card(
    run: Run, output: str, width: int, *, takes_sizes: bool, programs: Sequence[Program]
) -> str:
    """The card of a finished run's model, Markdown.

    ``output`` is ``probabilities`` or ``features``, ``width`` of them for a record.
    """
    scores = score_sections(run)
    about = run.description
    origin = origin_of(run)
    source = {about["source"]: str(about["provenance"])} if "+" not in about["source"] else {}
    source |= {name: of for name, of in _pretrained_on(run).items() if name not in source}
    datasets = source | {k: v for k, v in provenances(run).items() if k not in source}
    signal, segments = run.modality.signal, run.modality.task.segments
    sections = {
        "Input": input_section(signal, takes_sizes=takes_sizes, segments=segments),
        "Output": _output(run, output, width),
        "How to use it": _use(run, output, takes_sizes=takes_sizes, programs=programs),
        "Data": _data(run, datasets, origin),
        "Training": _table("setting", training_rows(run, origin)),
        "Scores": scores or "Features have no scores of their own: transfers from it have.",
        "Limits and intended use": LIMITS,
        "Versions": _versions(about.get("versions", {})),
    }
    head = yaml.safe_dump(_head(run, datasets, origin), sort_keys=False, allow_unicode=True)
    parts = [f"---\n{head}---\n", f"# {_plain(_title(run, output))}\n", _lead(run, output, origin)]
    parts += [f"## {title}\n\n{text.strip()}\n" for title, text in sections.items()]
    return "\n".join(parts)


def _head(run: Run, datasets: Mapping[str, str], origin: Origin) -> dict[str, Any]:
    """Fields that the hub reads; they claim nothing about weights that were trained elsewhere."""
    about = run.description
    weakest = str(about["provenance"])
    tags = ["medical", "benchmd", about["modality"], about["technique"]]
    tags += ["pretrained-elsewhere"] if origin.elsewhere else []
    terms = {"license_name": "terms-of-the-datasets", "license_link": "README.md"}
    return {
        **({"license": "unknown"} if origin.elsewhere else {"license": "other", **terms}),
        "tags": [*tags, *([] if weakest == "whole" else [f"{weakest}-data"])],
        **({"datasets": list(datasets)} if origin.trains else {}),
        **({"metrics": HUB_METRICS} if predictions_of(run.folder) else {}),
    }


def _title(run: Run, output: str) -> str:
    about = run.description
    what = "classifier" if output == "probabilities" else "encoder"
    return (
        f"{about['modality']} {what}: {about['technique']}, {about['setting']}, {about['source']}"
    )


def _lead(run: Run, output: str, origin: Origin) -> str:
    """First sentences: what the model was trained on, or that it was trained elsewhere."""
    about = run.description
    source, card = about["source"], _card_of(about["source"])
    name = f"{card.title} ({source})" if card is not None and card.title else source
    data = PROVENANCES[about["provenance"]].format(
        title=_plain(name), records=_records(source, *about["raw"])
    )
    others = [name for name in _pretrained_on(run) if name not in source.split("+")]
    named = replace(origin, name=_plain(origin.name), sha256=_plain(origin.sha256))
    lines = [
        f"This model turns {_plain(about['modality'])} signals into {output}.",
        named.sentences(data),
        *([f"Its encoder was pretrained on {_plain(', '.join(others))}."] if others else []),
        "It is for research and **not for diagnosis**.\n",
    ]
    return "\n".join(lines)


def _output(run: Run, output: str, width: int) -> str:
    if output == "features":
        return f"float32 (records, {width}): features of each record."
    task = run.modality.task
    frame = pd.DataFrame({"column": range(width), "class": [*map(text_of, task.classes)]})
    return f"float32 (records, {width}): {TASKS[task.kind]}.\n\n{markdown(frame)}"


def _use(run: Run, output: str, *, takes_sizes: bool, programs: Sequence[Program]) -> str:
    inputs = "signals, sizes" if takes_sizes else "signals"
    named = ", ".join(f'"{name}": {name}' for name in inputs.split(", "))
    tensors = "torch.as_tensor(signals), torch.as_tensor(sizes)" if takes_sizes else inputs
    code = {
        "model.pt2": (
            "With PyTorch and nothing else:",
            "import torch\n"
            'model = torch.export.load("model.pt2").module()\n'
            f"{output} = model({tensors})",
        ),
        "model.onnx": (
            "With ONNX Runtime, on NumPy arrays:",
            "import onnxruntime\n"
            'model = onnxruntime.InferenceSession("model.onnx")\n'
            f"({output},) = model.run(None, {{{named}}})",
        ),
    }
    make, call = ("classifier", "predict") if output == "probabilities" else ("encoder", "features")
    parts = [_code(*code[program.file]) for program in programs]
    if programs:
        kinds = {"model.pt2": "a float32 tensor", "model.onnx": "a float32 array"}
        taken = " and ".join(f"{kinds[each.file]} for `{each.file}`" for each in programs)
        parts.append(f"Signals are {taken}, of the shape above; `.eval()` is not needed.")
    parts.append(
        _code(
            "With benchmd_ray, which compares every file with its hash, and signals with what the "
            "model takes:",
            f'import benchmd_ray\nmodel = benchmd_ray.{make}("FOLDER")\n'
            f"{output} = model.{call}({inputs.replace('sizes', 'sizes=sizes')})",
        )
    )
    if any(each.file == "model.pt2" for each in programs):
        parts.append(
            f"`model.pt2` was written by PyTorch {package_versions()['torch']}: read it with this "
            "version or a newer one. It holds no pickle; `torch.export.load` would execute one in "
            "a file that was forged, so load such files from people you trust only. Its SHA-256 is "
            "in `config.json`."
        )
    parts += [f"`{each.file}` {each.checked}." for each in programs]
    parts.append(
        "`model.safetensors` has the weights, and `config.json` the architecture, the input, the "
        "normaliser with its statistics, the classes and all that determined the training."
    )
    return "\n\n".join(parts)


def _data(run: Run, datasets: Mapping[str, str], origin: Origin) -> str:
    """Datasets with their terms; the terms of the model are left to whoever shares it."""
    rows, citations = [], []
    for name, provenance in datasets.items():
        card = _card_of(name)
        rows.append(
            {
                "dataset": text_of(name),
                "used for": _used_for(run, name, origin),
                "records": provenance,
                "licence": _stated(card, "licence"),
                "access": _stated(card, "access"),
                "page": _stated(card, "homepage"),
            }
        )
        if card is not None and card.citation:
            citations.append(f"- {_plain(card.citation)}")
    policy = run.description["policy"]
    weights = "of the encoder's weights and " if origin.elsewhere else ""
    terms = (
        f"Splits and labels follow the policy {policy}. Whoever shares this model answers for the "
        f"terms {weights}of the training data, which bind what is made of them."
    )
    return "\n\n".join([markdown(pd.DataFrame(rows)), terms, "\n".join(dict.fromkeys(citations))])


def _pretrained_on(run: Run) -> dict[str, str]:
    """Provenance of the datasets that a pretraining saw, by name."""
    entries = run.description.get("pretrained_on", ())
    return {str(e["dataset"]): str(e.get("provenance", "not stated")) for e in entries}


def _used_for(run: Run, dataset: str, origin: Origin) -> str:
    if dataset == run.description["source"]:
        return origin.use
    return "pretraining" if dataset in _pretrained_on(run) else "scores"


def _card_of(dataset: str) -> DatasetCard | None:
    """The card of a dataset as results name it, which may end in its layout's mark."""
    for card in cards().values():
        marks = [layout.mark for layout in card.layouts.values() if layout.mark]
        if dataset in (card.name, *(f"{card.name}-{mark}" for mark in marks)):
            return card
    return None


def _records(dataset: str, count: int, expected: int) -> str:
    """Number of raw records, and how many the whole dataset has if only a part was used."""
    card = _card_of(dataset)
    layouts = [] if card is None else [*card.layouts.values()]
    wholes = [layout.records for layout in layouts if not (layout.part or layout.mark)]
    is_part = any(layout.part and layout.records == expected for layout in layouts)
    whole = max(wholes, default=expected) if is_part else expected
    return f"{count:,} of its {whole:,}" if count < whole else f"{count:,}"


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


def _code(text: str, lines: str) -> str:
    return f"{text}\n\n```python\n{lines}\n```"


def _plain(text: object) -> str:
    return " ".join(text_of(text).split()).replace("<", "&lt;")


NORMALISATIONS = {
    "record-range": "each record is divided by its own maximum minus minimum",
    "fixed-range": "a fixed range is mapped onto another, values outside are clipped",
    "window": "a window is mapped to [0, 1], values outside are clipped",
    "source-statistics": "mean and standard deviation of the training split, per channel",
    "source-mean": "mean of the training split is removed, then divided by a fixed extent",
    "none": "none",
}
GREY_LEVELS = (
    "Files are read as the catalog's reader does: upright by their EXIF orientation, transparency "
    "over black, {colours}. DICOM images (after the modality LUT) and grey levels of more than 8 "
    "bits are scaled to 0–255 over the image's own range, MONOCHROME1 inverted. "
)
FITTED = (
    "An image is resized with antialiasing to the largest that fits {extent} pixels, its aspect "
    "ratio kept, centred and padded with {fill}."
)
HOUNSFIELD = "Slices are ordered from the feet to the head, in HU by slope and intercept. "
WINDOWS = (
    "Each slice is resized to {extent} pixels with antialiasing, whatever its aspect ratio. Longer "
    "volumes are cut into windows of {depth} slices, the last one shifted back; shorter ones are "
    "padded behind their last slice with the smallest value ({fill})."
)
RESAMPLED = (
    "Signals of another rate are resampled by a polyphase filter "
    '(`scipy.signal.resample_poly(…, padtype="line")`), longer ones cut into segments of '
    "{length} samples."
)
EXAMPLE = """\
import numpy as np
from PIL import Image, ImageOps

Image.MAX_IMAGE_PIXELS = {half_of_most}  # Pillow refuses more than twice as many
image = Image.open("image.png", formats={formats})
image = ImageOps.exif_transpose(image).convert("{mode}")
width, height = (max(1, round(side * {side} / max(image.size))) for side in image.size)
pixels = np.array(image.resize((width, height), Image.Resampling.BILINEAR), np.float32)
top, left = ({side} - height) // 2, ({side} - width) // 2
signals = np.zeros((1, {channels}, {side}, {side}), np.float32)
signals[0, :, top : top + height, left : left + width] = {planes}
sizes = np.array([[height, width]])
"""
WHOLE = """\
import numpy as np

sizes = np.tile({extents}, (len(signals), 1))  # nothing is padded
"""


def input_section(signal: Signal, *, takes_sizes: bool, segments: bool) -> str:
    """Shape, unit and values of what a model takes, and how a file becomes it, as Markdown.

    ``segments``: the task is of masks, whose volumes are prepared by their dataset.
    """
    rows = {
        "signals": f"float32 (records, {', '.join(map(str, signal.stored_shape))})",
        "axes": f"record, {', '.join(signal.axes)}",
        "unit": signal.unit,
        **({"values": "0 to 255, not 0 to 1"} if signal.dtype == "uint8" else {}),
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
    table = markdown(pd.DataFrame({"input": [*rows], "value": [*map(text_of, rows.values())]}))
    parts = [table, *([] if segments else [_prepared(signal)])]
    return "\n\n".join([*parts, *([_example(signal)] if takes_sizes else [])])


def _prepared(signal: Signal) -> str:
    group, grey = GROUPS[signal.axes], signal.dtype == "uint8"
    if group == "over-time":
        return RESAMPLED.format(length=signal.stored_shape[-1])
    extent = " × ".join(map(str, signal.stored_shape[-2:]))
    if group == "volumes":
        hounsfield = signal.unit == "HU"
        fill = "air, −1024 HU" if hounsfield else "of the volume"
        windows = WINDOWS.format(extent=extent, depth=signal.stored_shape[1], fill=fill)
        return (HOUNSFIELD if hounsfield else "") + windows
    colours = "red, green, blue" if signal.stored_shape[0] == 3 else "colours as grey levels"
    fill = "0" if grey else "the smallest value of each channel"
    read = GREY_LEVELS.format(colours=colours) if grey else ""
    return read + FITTED.format(extent=extent, fill=fill)


def _example(signal: Signal) -> str:
    """Code that makes ``signals`` and ``sizes`` of a file, or ``sizes`` only."""
    channels, *extents = signal.stored_shape
    modes = {1: ("L", "pixels"), 3: ("RGB", "pixels.transpose(2, 0, 1)")}
    drawn = len(extents) == 2 and len(set(extents)) == 1 and channels in modes
    if not (drawn and signal.dtype == "uint8"):
        return f"```python\n{WHOLE.format(extents=extents)}```"
    mode, planes = modes[channels]
    code = EXAMPLE.format(
        half_of_most=MAX_PIXELS // 2,
        formats=FORMATS,
        mode=mode,
        side=extents[0],
        channels=channels,
        planes=planes,
    )
    return f"An image of 8 bits becomes such arrays by\n\n```python\n{code}```"
