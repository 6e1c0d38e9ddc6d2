"""What the EEG datasets share: derivations, sleep stages, and a night's way to records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.raw import RawItem, Reading
from benchmd_ray.data.readers.edf import Recording, TimedAnnotation, plain, read_edf, read_header
from benchmd_ray.data.records import HELD_OUT, SEPARATOR, RecordError, shown_names
from benchmd_ray.data.transforms import quantise, resample
from benchmd_ray.errors import shown
from benchmd_ray.modality.modalities import modality

VERSION = 1
EEG = modality("eeg").signal
EPOCH = 30
"""Seconds that a sleep stage is scored for."""
RATES = (50.0, 20_000.0)
"""Hz: the header of a file with another rate cannot be right."""
LONGEST = 7 * 24 * 3600
"""Seconds: a hypnogram that lasts longer cannot be right."""

Derivation = tuple[str, ...]
"""The channel that holds it, or an electrode and its reference, which are subtracted."""
Montage = Mapping[str, Sequence[Derivation]]
"""For C3 and C4, in this order, the derivations that will do, the best first."""

UNSTAGED = {"6": "an epoch of movement", "9": "an epoch that is not scored"}
"""Why an epoch with that code is excluded."""
FAULTS = {"6": "movement", "9": "unscored"}
"""Conditions of such epochs, which are excluded unless they are held out."""
CONSTANT, FLAT_STATE = "constant", "flat"
"""Key, in the place of a code, and condition of epochs whose channels are both constant."""
OF_STATE = "an epoch of a held-out state, of a patient in the training split"
UNKNOWN_STAGE = "an epoch with a stage that the card does not name"
NO_STAGE = "an epoch without a stage"
NO_SIGNAL = "a stage without signal"
FLAT = "an epoch whose channels are both constant"

STAGE_TEXTS = {
    "sleep stage w": "wake",
    "sleep stage 1": "n1",
    "sleep stage 2": "n2",
    "sleep stage 3": "n3",
    "sleep stage 4": "n3",
    "sleep stage n1": "n1",
    "sleep stage n2": "n2",
    "sleep stage n3": "n3",
    "sleep stage r": "rem",
    "sleep stage ?": "",
    "movement time": "",
}
"""Class of an EDF+ annotation in lower case, empty for an epoch that is excluded; the texts of
https://www.edfplus.info/specs/edftexts.html for both scoring manuals."""


def states(card: DatasetCard) -> dict[str, str]:
    """Conditions of epochs by code: stages, and why epochs are excluded that nobody holds out."""
    conditions = {code: name or FAULTS.get(code, "") for code, name in card.class_mapping.items()}
    return {code: name for code, name in conditions.items() if name} | {CONSTANT: FLAT_STATE}


def read_night(
    root: Path, item: RawItem, card: DatasetCard, *, montage: Montage, codes: Sequence[str]
) -> Reading:
    """Records of one night: an epoch of 30 s each, C3 above C4, at 125 Hz (decision D4).

    The whole night is resampled before it is cut. Excluded and counted are epochs without a class,
    constant in both channels, or beyond the end of the signal or of the stages ``codes``.

    Details of the item may name held-out states by code (see `data.holding_out`). Their epochs are
    given for an item of the split `HELD_OUT`, which gives no others unless the whole night is held
    out; in a night that trains they are excluded and counted.
    """
    signals, flat, warnings = _central(root / item.path, montage)
    length = EEG.stored_shape[1]
    epochs = min(signals.shape[1] // length, len(flat))
    excluded = Counter({NO_STAGE: epochs - len(codes), NO_SIGNAL: len(codes) - epochs})
    reading = Reading([], excluded=+excluded)  # the positive one of both
    chosen = item.details.get("states", {})
    held_out, whole = item.split == HELD_OUT, bool(item.metadata.get("held_out"))
    for epoch, code in enumerate(codes[:epochs]):
        constant = bool(flat[epoch])
        state, reason = _state(code, constant, chosen), _reason(code, constant, chosen, card)
        if state and not held_out:
            reading.excluded[reason or OF_STATE] += item.split == "train"
        elif state or not (reason or (held_out and not whole)):
            labelled = _held(item, state) if state else item
            labelled = replace(labelled, label=card.class_mapping.get(code))
            signal, scale = quantise(signals[:, epoch * length :][:, :length])
            record = labelled.record(card, signal, (length,), scale=scale, part=f"-{epoch:04d}")
            reading.records.append(record)
        elif reason:
            reading.excluded[reason] += 1
    if held_out and not whole:
        reading.excluded.clear()  # they are counted where the night is read for its own split
    reading.excluded = +reading.excluded
    if reading.records:
        reading.warnings.update(dict.fromkeys(warnings, len(reading.records)))
    return reading


def _state(code: str, constant: bool, states: Mapping[str, str]) -> str:
    """The state for which an epoch is held out, empty where none is; a flat one shows no stage."""
    stage = "" if constant and code not in UNSTAGED else states.get(code, "")
    return stage or (states.get(CONSTANT, "") if constant else "")


def _reason(code: str, constant: bool, states: Mapping[str, str], card: DatasetCard) -> str:
    if not card.class_mapping.get(code) and (code in UNSTAGED or code not in states):
        return UNSTAGED.get(code, UNKNOWN_STAGE)
    return FLAT if constant else ""


def _held(item: RawItem, state: str) -> RawItem:
    """A night as an epoch of a held-out state has it, in addition to what all of it has."""
    names = filter(None, [item.metadata.get("held_out"), state])
    metadata = {**item.metadata, "held_out": SEPARATOR.join(map(str, names))}
    return replace(item, metadata=metadata)


def checked_codes(codes: list[str]) -> list[str]:
    """The codes of a staging: a number for each epoch, or else it is refused."""
    wrong = [code for code in codes if not (code.isascii() and code.isdigit())]
    if wrong or not codes:
        what = f"the stage {shown(wrong[0])}" if wrong else "no stage"
        raise RecordError(f"its staging holds {what}; expected a number for each epoch")
    return codes


def stages(annotations: Sequence[TimedAnnotation]) -> list[str]:
    """Class of each epoch of 30 s of a hypnogram, as in Sleep-EDF; empty where none is scored."""
    classes: list[str] = []
    for onset, duration, text in sorted(annotations, key=lambda a: a.onset):
        if text.strip().lower() not in STAGE_TEXTS:
            raise RecordError(
                f"the annotation at {onset:g} s is not a sleep stage; expected one of "
                f"{', '.join(STAGE_TEXTS)}, in upper or lower case"
            )
        first, count = onset / EPOCH, (duration or 0) / EPOCH
        if not (first.is_integer() and count.is_integer() and first >= len(classes) and count > 0):
            raise RecordError(
                f"the stage at {onset:g} s lasts {duration} s; expected whole epochs of {EPOCH} s "
                "one after the other"
            )
        if onset + (duration or 0) > LONGEST:
            raise RecordError(f"the stage at {onset:g} s lasts {duration} s: more than a week")
        classes += [""] * (int(first) - len(classes))
        classes += [STAGE_TEXTS[text.strip().lower()]] * int(count)
    return classes


def _central(
    path: Path, montage: Montage
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_], list[str]]:
    """C3 and C4 in µV at 125 Hz, (2, time), the epochs where both are constant, and warnings."""
    names = {plain(channel.name) for channel in read_header(path).channels}
    chosen = {site: _chosen(site, names, options) for site, options in montage.items()}
    recording = read_edf(path, [name for channels in chosen.values() for name in channels])
    assert EEG.rate is not None
    resampled, constant = [], []
    for channels in chosen.values():
        signal, rate = _derived(recording, channels)
        constant.append(_constant(signal, rate))
        resampled.append(resample(signal, rate, EEG.rate))
    length = min(len(signal) for signal in resampled)
    epochs = min(len(flat) for flat in constant)
    both = np.logical_and(*(flat[:epochs] for flat in constant))
    warnings = []
    if any(len(channels) == 2 for channels in chosen.values()):
        warnings.append("C3 or C4 is the difference of an electrode and the opposite mastoid")
    return np.stack([signal[:length] for signal in resampled]), both, warnings


def _chosen(site: str, names: set[str], options: Sequence[Derivation]) -> Derivation:
    for option in options:
        if names.issuperset(plain(name) for name in option):
            return option
    wanted = " or ".join(" minus ".join(option) for option in options)
    channels = shown_names(sorted(names))
    raise RecordError(f"{site} is missing: expected {wanted}; the channels are {channels}")


def _derived(recording: Recording, channels: Derivation) -> tuple[npt.NDArray[np.float64], float]:
    """A derivation in µV, (time,), and its rate in Hz."""
    rates = {recording.rates[name] for name in channels}
    rate = min(rates)
    if len(rates) != 1 or not RATES[0] <= rate <= RATES[1]:
        raise RecordError(
            f"{' and '.join(channels)}: sampled at {' and '.join(f'{r:g}' for r in sorted(rates))} "
            f"Hz; expected one rate from {RATES[0]:g} to {RATES[1]:g} Hz"
        )
    signal, *reference = (recording.signals[name] for name in channels)
    return (signal - reference[0] if reference else signal), rate


def _constant(signal: npt.NDArray[np.float64], rate: float) -> npt.NDArray[np.bool_]:
    """For each whole epoch, whether the signal stays the same; before resampling blurs it."""
    bounds = np.rint(np.arange(int(len(signal) / rate / EPOCH) + 1) * EPOCH * rate).astype(int)
    return np.array([np.ptp(signal[start:end]) == 0 for start, end in pairwise(bounds)], bool)
