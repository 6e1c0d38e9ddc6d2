"""The protocol of each run, so that different settings are never pooled unnoticed.

Benchmarks name their protocols (``fixed`` is BenchMD's). ``shuffled`` trains on shuffled labels;
``tuned`` uses settings that a search found for the transfer or its pretraining; all others are
``custom``. If runs of one modality, source, policy, transfer setting and protocol differ by more
than seeds, a number distinguishes the transfers and a letter the pretrainings: ``custom 1a``. Runs
from scratch have no letter. Ensembles (`tuning_frames.ensembles`) have the number and letter of
their tuned runs: ``tuned ensemble 1a``, ``start ensemble 1a``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.benchmark import Start
from benchmd_ray.evaluation.registry import settings_among, starts, usual_start
from benchmd_ray.runs.store import Run, read_run

NO_SETTINGS = {"stage", "seed", "technique", "upstream", "upstream_parts"}
"""Determinants of a run that are not settings."""
AXES = {"transfer.mode", "transfer.labels", "transfer.shuffle_labels"}
"""Settings that are part of a result's key."""
ENSEMBLES = ("tuned ensemble", "start ensemble")
"""Protocols of ensembles over seeds: with tuned settings, and with those of a search's start."""
Flat = Mapping[str, str]


@dataclass(frozen=True)
class Protocols:
    names: Mapping[Path, str]
    """Protocol by the run's folder."""
    notes: tuple[str, ...]
    """What the numbers and letters stand for."""


@dataclass(frozen=True)
class _Variant:
    run: Run
    transfer: str
    """JSON of the settings of the transfer."""
    pretraining: str
    """JSON of the settings of the pretraining, empty from scratch."""
    searches: tuple[str, ...]
    """Names of the searches that found settings of the transfer and of its pretraining."""


def base_protocol(run: Run, pretraining: Run | None = None) -> str:
    """Protocol of a run: a start's name, ``custom``, ``tuned`` or ``shuffled``."""
    if run.settings.transfer.shuffle_labels:
        return "shuffled"
    stated = str(run.description["protocol"])
    runs = [run] if pretraining is None else [run, pretraining]
    if stated in starts() and all(_follows(trained, starts()[stated]) for trained in runs):
        return stated
    return "tuned" if searches_behind(run, pretraining) else "custom"


def _follows(run: Run, start: Start) -> bool:
    """Whether a run's settings equal those of a start today, whatever start its file names."""
    settings = settings_among(run.description["determinants"])
    try:
        return start.followed(run.modality, run.description["technique"], settings)
    except BenchmdError:  # invalid settings, or a start that does not apply
        return False


def is_tuned(protocol: str) -> bool:
    """Whether a protocol is one of tuned settings."""
    return base_of(protocol) in ("tuned", ENSEMBLES[0])


def is_ensemble(protocol: str) -> bool:
    """Whether a protocol is one of ensembles."""
    return base_of(protocol) in ENSEMBLES


def base_of(protocol: str) -> str:
    """A protocol without number and letter: ``tuned ensemble 1a`` → ``tuned ensemble``."""
    return _split(protocol)[0]


def ensembles_of(tuned: str) -> tuple[str, str]:
    """Protocols of the ensembles for a protocol of tuned runs, with its number and letter."""
    _, number, letter = _split(tuned)
    ours, start = (_marked(base, number, letter) for base in ENSEMBLES)
    return ours, start


def searches_behind(run: Run, pretraining: Run | None) -> tuple[str, ...]:
    """Names of the searches that found settings of a run and of its pretraining."""
    runs = [run] if pretraining is None else [run, pretraining]
    return tuple(
        dict.fromkeys(trained.settings.tuned for trained in runs if trained.settings.tuned)
    )


def pretraining_of(run: Run, runs_by_name: Mapping[str, Run]) -> Run | None:
    """The pretraining of a transfer, by name or from its store; None if missing or from scratch."""
    name = run.description.get("upstream")
    if name is None or name in runs_by_name:
        return None if name is None else runs_by_name[name]
    try:
        return read_run(run.folder.parent / name)
    except BenchmdError:  # not in this store
        return None


def comparable_with(protocol: str, other: str) -> bool:
    """Whether results of two protocols may be compared; one may lack the letter (scratch)."""
    stem, letter = _parts(protocol)
    other_stem, other_letter = _parts(other)
    return stem == other_stem and (letter == other_letter or "" in (letter, other_letter))


def same_transfer(run: Run, other: Run) -> bool:
    """Whether two transfers have the same settings except seed and pretraining."""
    return _flat(run.description["determinants"]) == _flat(other.description["determinants"])


def letters_of(names: Sequence[str]) -> list[str]:
    """Protocols to compare: the one without a letter is dropped if others have letters."""
    stems = {_parts(name)[0] for name in names if _parts(name)[1]}
    return [name for name in names if name not in stems]


def _parts(protocol: str) -> tuple[str, str]:
    """Split off a protocol's letter: ``custom 1a`` → ``custom 1``, ``a``."""
    base, number, letter = _split(protocol)
    return _marked(base, number), letter


def _split(protocol: str) -> tuple[str, str, str]:
    """Split a protocol into base, number and letter."""
    match = re.fullmatch(r"(.+?)(?: (\d*)(z*[a-z]?))?", protocol)
    base, number, letter = match.groups("") if match else (protocol, "", "")
    return base, number, letter


def protocols(all_runs: Sequence[Run]) -> Protocols:
    """The protocol of each run, with number and letter only for transfers."""
    runs_by_name = {run.folder.name: run for run in all_runs}
    upstreams = {run.folder: pretraining_of(run, runs_by_name) for run in all_runs}
    names = {run.folder: base_protocol(run, upstreams[run.folder]) for run in all_runs}
    together: dict[tuple[str, ...], list[Run]] = {}
    for run in all_runs:
        if run.description.get("kind") == "transfer":
            about = run.description
            key = (*(about[k] for k in ("modality", "source", "policy", "setting")),)
            together.setdefault((*key, names[run.folder]), []).append(run)
    notes: list[str] = []
    for (modality, source, policy, setting, base), runs in sorted(together.items()):
        variants = _variants(runs, base, upstreams)
        chosen, lines = _numbered(variants, base)
        names |= chosen
        notes += [f"{modality}, {source} ({policy}), {setting}: {line}" for line in lines]
    return Protocols(names, tuple(notes))


def _variants(
    runs: Sequence[Run], base: str, upstreams: Mapping[Path, Run | None]
) -> list[_Variant]:
    """Settings of runs, without those of ImageNet's own network, which do not distinguish runs."""
    flats: list[tuple[Run, dict[str, str], bool]] = []
    for run in runs:
        flat = _flat(run.description["determinants"])
        is_usual = base == usual_start() or run.description["technique"].startswith("imagenet")
        flats.append((run, {k: v for k, v in flat.items() if k not in AXES}, is_usual))
    whole = [_without_encoder(flat) for _, flat, _ in flats]
    encoders: dict[str, Flat] = {}
    for (_, flat, is_usual), rest in sorted(
        zip(flats, whole, strict=True), key=lambda pair: json.dumps(pair[0][1], sort_keys=True)
    ):
        if not is_usual:
            encoders.setdefault(json.dumps(rest, sort_keys=True), flat)
    variants = []
    for (run, flat, is_usual), rest in zip(flats, whole, strict=True):
        text = json.dumps(rest, sort_keys=True)
        settled = encoders.get(text, rest) if is_usual else flat
        upstream = upstreams[run.folder]
        variants.append(
            _Variant(
                run,
                json.dumps(settled, sort_keys=True),
                json.dumps(_pretraining(run, base, upstream), sort_keys=True),
                searches_behind(run, upstream),
            )
        )
    return variants


def _without_encoder(flat: Flat) -> dict[str, str]:
    return {name: value for name, value in flat.items() if not name.startswith("encoder.")}


def _pretraining(run: Run, base: str, upstream: Run | None) -> Flat:
    """Settings of the pretraining; if it is missing, its versions and the name of its folder."""
    name = run.description.get("upstream")
    if name is None:
        return {}
    if upstream is None:
        versions = _flat({"parts": run.description["determinants"].get("upstream_parts", {})})
        return versions if base == usual_start() else {**versions, "pretraining": name}
    flat = _flat(upstream.description["determinants"])
    return {k: v for k, v in flat.items() if k != "catalog" and not k.startswith("encoder.")}


def _flat(determinants: Mapping[str, Any]) -> dict[str, str]:
    """Settings of nested determinants as JSON by dotted name: ``transfer.optimiser.lr``."""
    flat: dict[str, str] = {}
    for name, value in determinants.items():
        if name in NO_SETTINGS:
            continue
        if isinstance(value, Mapping):
            flat |= {f"{name}.{key}": text for key, text in _flat(value).items()}
        else:
            flat[name] = json.dumps(value)
    return flat


def _numbered(variants: Sequence[_Variant], base: str) -> tuple[dict[Path, str], list[str]]:
    """Numbered protocols of runs with the same rest of the key, and what the marks mean."""
    names: dict[Path, str] = {}
    transfers = sorted({variant.transfer for variant in variants})
    numbers = list(map(str, range(1, len(transfers) + 1))) if len(transfers) > 1 else [""]
    notes = _said([_marked(base, number) for number in numbers], transfers, "")
    for number, transfer in zip(numbers, transfers, strict=True):
        inside = [variant for variant in variants if variant.transfer == transfer]
        several = _several(inside)
        marks = {text: _marked(base, number, _letter(i)) for i, text in enumerate(several)}
        plain = _marked(base, number)
        names |= {one.run.folder: marks.get(one.pretraining, plain) for one in inside}
        notes += _said(list(marks.values()), several, "pretrained ")
    return names, [*notes, *_found_by(variants, names)]


def _found_by(variants: Sequence[_Variant], names: Mapping[Path, str]) -> list[str]:
    """A line for each protocol of tuned settings with the searches that found them."""
    searches_of: dict[str, dict[str, None]] = {}
    for variant in variants:
        name = names[variant.run.folder]
        if is_tuned(name):
            searches_of.setdefault(name, {}).update(dict.fromkeys(variant.searches))
    return [
        f"{name}: settings found by {', '.join(sorted(searches))}."
        for name, searches in sorted(searches_of.items())
    ]


def _marked(base: str, number: str, letter: str = "") -> str:
    return f"{base} {number}{letter}".strip()


def _several(variants: Sequence[_Variant]) -> list[str]:
    """Pretraining settings of the techniques that have several."""
    by_technique: dict[str, set[str]] = {}
    for variant in variants:
        technique = variant.run.description["technique"]
        by_technique.setdefault(technique, set()).add(variant.pretraining)
    return sorted(
        set().union(*(settings for settings in by_technique.values() if len(settings) > 1))
    )


def _letter(place: int) -> str:
    """a, b, …, z, za, zb, …."""
    return "z" * (place // 26) + "abcdefghijklmnopqrstuvwxyz"[place % 26]


def _said(names: Sequence[str], settings: Sequence[str], how: str) -> list[str]:
    """A line for each name, with the settings in which it differs from the others."""
    flat = [json.loads(text) for text in settings]
    keys = sorted({key for values in flat for key in values})
    differing = [key for key in keys if len({values.get(key) for values in flat}) > 1]
    if not differing:
        return []
    return [
        f"{name}: {how}with "
        + ", ".join(f"{key}={_short(values.get(key, 'unset'))}" for key in differing)
        + "."
        for name, values in zip(names, flat, strict=True)
    ]


def _short(value: str) -> str:
    """A value as text; a hash by its first characters."""
    text = value.strip('"')
    return text[:12] if len(text) == 64 else text
