"""What the ECG datasets share: leads, labels, and a waveform's way to records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.raw import RawItem, Reading
from benchmd_ray.data.readers.wfdb import Waveform, read_wfdb
from benchmd_ray.data.records import (
    RecordError,
    RecordExcluded,
    require_once,
)
from benchmd_ray.data.tables import read_rows
from benchmd_ray.data.transforms import quantise, resample, segments
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.modalities import modality

VERSION = 2
ECG = modality("ecg")
SIGNAL = ECG.signal
LEADS = SIGNAL.channels
PRECEDENCE = (
    "atrial fibrillation/flutter",
    "myocardial infarction",
    "conduction disturbance",
    "ischemic st-t changes",
    "hypertrophy",
    "other",
    "normal",
)
"""Which class a record takes among equally likely ones (decision D8)."""
RATES = (50.0, 20_000.0)
"""Hz: the header of a file with another rate cannot be right."""

RELEASED_SPLITS = {"train": "train", "val": "validation"}


def dominant_class(likelihoods: Mapping[str, float], classes: Mapping[str, str]) -> str:
    """The class of a record by its codes' likelihoods, 0–100 (decision D8).

    The abnormal class with the highest likelihood, ties by `PRECEDENCE`; ``normal`` where nothing
    abnormal is coded. ``classes`` has the class of each code, empty for one without.
    """
    best: dict[str, float] = {}
    for code, likelihood in likelihoods.items():
        name = classes.get(code, "")
        if name:
            best[name] = max(best.get(name, 0.0), likelihood)
    if not best:
        raise RecordExcluded("its codes map to no class")
    abnormal = {name: value for name, value in best.items() if name != "normal"} or best
    return min(abnormal, key=lambda name: (-abnormal[name], PRECEDENCE.index(name)))


def released_labels(path: Path | None, card: DatasetCard) -> dict[str, tuple[str, str]]:
    """Split and class of each record in a table that BenchMD released."""
    if path is None:
        raise BenchmdError(
            f"policy 'released' needs the split table that BenchMD released for {card.name} "
            f"({card.split_table}); name it with --split-table FILE."
        )
    classes = {str(number): name for number, name in enumerate(ECG.task.classes)}
    rows = read_rows(path, ("patient", "split", "label"), "splits that BenchMD released")
    try:
        return {
            row["patient"]: (RELEASED_SPLITS[row["split"]], classes[row["label"]]) for row in rows
        }
    except KeyError as error:
        raise BenchmdError(
            f"{path} is not a split table of BenchMD: it has {error}; expected a CSV like "
            f"{card.split_table} with split (train or val) and label (0–{len(classes) - 1})."
        ) from error


def twelve_leads(names: Sequence[str]) -> list[int]:
    """Places of `LEADS`, in their order, among the names of a record's channels."""
    plain = [name.strip().lower() for name in names]
    for lead in LEADS:
        require_once("lead", lead, plain.count(lead.lower()), names)
    return [plain.index(lead.lower()) for lead in LEADS]


def stored_signal(waveform: Waveform) -> tuple[npt.NDArray[np.int16], float]:
    """All 12 leads at 500 Hz as int16 (lead, time) and the millivolts of a step.

    Samples stay as they are where one step size serves all leads and no resampling is needed.
    """
    if not RATES[0] <= waveform.rate <= RATES[1]:
        raise RecordError(
            f"sampled at {waveform.rate:g} Hz; expected {RATES[0]:g} to {RATES[1]:g} Hz"
        )
    rows = twelve_leads(waveform.names)
    samples, steps = waveform.samples[rows], waveform.steps_per_mv[rows]
    if (samples.max(axis=1) == samples.min(axis=1)).all():
        raise RecordError("every lead is constant; expected an ECG")
    assert SIGNAL.rate is not None
    fits = samples.dtype.kind == "i" and int(np.abs(samples).max()) <= 32767
    if waveform.rate == SIGNAL.rate and (steps == steps[0]).all() and fits:
        return samples.astype(np.int16), float(1 / steps[0])
    return quantise(resample(samples / steps[:, None], waveform.rate, SIGNAL.rate))


def read_records(root: Path, item: RawItem, card: DatasetCard) -> Reading:
    """10 s segments of a file, labelled as its item; the remainder is dropped (decision D2)."""
    signal, scale = stored_signal(read_wfdb(root / item.path, twelve_leads))
    length = SIGNAL.stored_shape[1]
    parts = segments(signal, length)
    if not parts:
        raise RecordExcluded("it is shorter than 10 s")
    for number, part in enumerate(parts):
        if (part.max(axis=1) == part.min(axis=1)).all():
            raise RecordError(f"segment {number} of {len(parts)} is constant; expected an ECG")
    return Reading(
        [
            item.record(
                card, part, (length,), scale=scale, part=f"-{number}" if len(parts) > 1 else ""
            )
            for number, part in enumerate(parts)
        ]
    )
