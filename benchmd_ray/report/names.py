"""Names of the rows of a report: what made the features, in words, and what tells rows apart.

``MAE``, ``ResNet-18, scratch``, ``MAE on PTB-XL``, ``MAE, tuned``, ``MAE (lr 0.003)``: unique among
the runs of a modality, source and policy, and the same for all transfer settings of one encoder.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmd_ray.data.cards import cards
from benchmd_ray.errors import BenchmdError, shown
from benchmd_ray.evaluation.registry import starts
from benchmd_ray.models.encoder_cards import encoder_cards
from benchmd_ray.models.networks import NETWORK, RANDOM_KERNELS, TITLES, TRANSFORMERS
from benchmd_ray.report.contamination import published_of
from benchmd_ray.report.frames import KERNELS, TECHNIQUES, by_name, name_rank, with_mode
from benchmd_ray.report.protocols import (
    START,
    TUNED,
    base_protocol,
    fold_of,
    pretraining_of,
    searches_behind,
)
from benchmd_ray.runs.pretraining_data import Published
from benchmd_ray.runs.store import Run
from benchmd_ray.ssl import BROUGHT, HUB, NAMED, OWN, SCRATCH
from benchmd_ray.ssl import TECHNIQUES as BUILT_IN

NO_SETTINGS = {"stage", "seed", "fold", "technique", "upstream", "upstream_parts"}
"""Determinants that are not settings."""
AXES = {"transfer.mode", "transfer.labels", "transfer.shuffle_labels"}
"""Settings that the key of a result names by itself."""
DROPS = {"encoder.dropout", "encoder.embedding_dropout"}
"""Settings of the network that each training chooses anew."""
MOST_SETTINGS, MOST_LETTERS = 2, 32
"""Of the settings in a name."""
MOST_TITLE = 24
"""Letters of a dataset's title in a name; a longer one gives way to the dataset's plain name."""
UNSET = "unset"
Flat = dict[str, str]
"""Settings in plain text by their dotted name: ``transfer.optimiser.lr``."""
Group = tuple[str, str, str]
"""modality, source, policy."""


class RowName(NamedTuple):
    """What tells a row from others of one transfer setting."""

    technique: str
    """Its name."""
    protocol: str
    """``fixed``, ``custom``, ``tuned``, … see `protocols`."""


@dataclass(frozen=True)
class Names:
    """The rows of runs."""

    of_runs: Mapping[Path, RowName]
    """By the run's folder, those of pretrainings too."""
    descriptions: Sequence[Mapping[str, str]]
    """Rows of the frame ``descriptions``."""


@dataclass(frozen=True)
class _Named:
    """A run, what its name begins with, and its settings."""

    run: Run
    upstream: Run | None
    protocol: str
    words: str
    encoder: Flat
    """Settings of the network and of its pretraining, alike in all transfer settings; empty where
    a search found those of each transfer setting."""
    rest: Flat

    @functools.cached_property
    def encoder_text(self) -> str:
        return _text(self.encoder)

    @functools.cached_property
    def rest_text(self) -> str:
        return _text(self.rest)


def names_of(runs: Sequence[Run]) -> Names:
    """Names of runs, and the descriptions of the rows that transfers are pooled to."""
    by_name = {run.folder.name: run for run in runs}
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault((*_group(run), str(run.description["kind"])), []).append(run)
    of_runs: dict[Path, RowName] = {}
    descriptions: list[Mapping[str, str]] = []
    for (*_, kind), members in sorted(groups.items()):
        techniques = technique_words(run.description["technique"] for run in members)
        networks = _words({run.settings.encoder.network for run in members}, TITLES)
        has_folds = any(map(fold_of, members))
        alike: dict[str, list[_Named]] = {}
        for run in members:
            upstream = pretraining_of(run, by_name)
            named = _named(run, upstream, techniques, networks, has_folds=has_folds)
            alike.setdefault(named.words, []).append(named)
        ends = {path: end for same in alike.values() for path, end in _told_apart(same).items()}
        every = [named for same in alike.values() for named in same]
        of_runs |= {
            named.run.folder: RowName(named.words + ends[named.run.folder], named.protocol)
            for named in every
        }
        if kind == "transfer":
            descriptions += _descriptions(every, of_runs, networks)
    return Names(of_runs, descriptions)


def technique_words(techniques: Iterable[str]) -> dict[str, str]:
    """Techniques in words: ``hf tiny-vit``; of an import path its end."""
    names = set(techniques)
    words = {name: f"hf {name.removeprefix(HUB)}" for name in names if name.startswith(HUB)}
    words |= {name: _title_of_card(name) for name in names if name.startswith(NAMED)}
    return words | _words(names - words.keys(), TECHNIQUES)


def _title_of_card(technique: str) -> str:
    """Title of a published encoder; its name where its card is not here."""
    name = technique.removeprefix(NAMED)
    cards = encoder_cards().sound
    return cards[name].title if name in cards else name


def require_baseline(name: str, names: Names, runs: Iterable[Run]) -> None:
    """Refuse a baseline that is neither a row of these runs nor their technique."""
    pairs = {(names.of_runs[run.folder].technique, run.description["setting"]) for run in runs}
    rows = by_name(row for row, _ in pairs)
    valid = [*rows, *(with_mode(*pair) for pair in pairs)]
    valid += [run.description["technique"] for run in runs]
    if name in valid:
        return
    lower = {text.lower(): text for text in reversed(valid)}
    near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.5)
    hint = f" Did you mean {lower[near[0]]!r}?" if near else ""
    raise BenchmdError(
        f"no row or technique is called {shown(name)}, which is to be the baseline.{hint} Rows: "
        f"{', '.join(map(repr, rows))}; add their mode where there are several, such as "
        f"{with_mode(*min(pairs))!r}."
    )


def _words(names: Collection[str], titles: Mapping[str, str]) -> dict[str, str]:
    """Titles of names; of import paths the shortest ending that no other has."""
    paths = {name: re.split(r"(?<=[.:])", name.removeprefix(OWN)) for name in names}
    words = {name: titles[name] for name in names if name in titles}
    taken = Counter(
        "".join(parts[-length:]) for parts in paths.values() for length in range(1, len(parts) + 1)
    ) + Counter(titles.values())
    for name, parts in paths.items():
        endings = ["".join(parts[-length:]) for length in range(1, len(parts) + 1)]
        words.setdefault(name, next((end for end in endings if taken[end] == 1), name))
    return words


def _group(run: Run) -> Group:
    modality, source, policy = (str(run.description[n]) for n in ("modality", "source", "policy"))
    return modality, source, policy


def _named(
    run: Run,
    upstream: Run | None,
    techniques: Mapping[str, str],
    networks: Mapping[str, str],
    *,
    has_folds: bool,
) -> _Named:
    """Name of a run; ``has_folds`` if fold models may have the name of one on all labels."""
    about = run.description
    protocol = base_protocol(run, upstream)
    words = techniques[about["technique"]]
    network, is_brought = run.settings.encoder.network, about["technique"].startswith(BROUGHT)
    if network not in (NETWORK, TRANSFORMERS, RANDOM_KERNELS) and not is_brought:
        words = f"{networks[network]}, {words}"
    source = _pretraining_source(run, upstream)
    if source != about["source"] and not is_brought:
        words += f" on {source_title(source)}"
    marks = {TUNED: ", tuned", START: ", start", "shuffled": ", shuffled labels"}
    words += marks.get(protocol, "")
    if protocol == TUNED and has_folds and not fold_of(run):
        words += ", whole split"
    flat = _flat(about["determinants"])
    if "held_out_fold" in about:  # the runs of all folds are one row
        flat |= _flat({"catalog": about["held_out_fold"]["catalog"]})
    encoder = {name: flat[name] for name in flat if _of_encoder(name)}
    rest = {name: flat[name] for name in flat.keys() - encoder.keys() - AXES}
    encoder |= _pretraining(run, protocol, upstream)
    if protocol == TUNED:
        encoder, rest = {}, encoder | rest
    return _Named(run, upstream, protocol, words, encoder, rest)


def _pretraining_source(run: Run, upstream: Run | None) -> str:
    """What an encoder was pretrained on; where that is lost what the run states, or its source."""
    if upstream is not None:
        return str(upstream.description["source"])
    stated = run.description.get("pretrained_on")
    members = stated if isinstance(stated, list) else []
    names = [
        str(seen["dataset"]) for seen in members if isinstance(seen, dict) and "dataset" in seen
    ]
    return "+".join(names) or str(run.description["source"])


def source_title(sources: str) -> str:
    """Short titles of the datasets of a source, several of which are joined by ``+``."""
    names = sources.split("+")
    titles = [cards()[name].title.partition(" (")[0] if name in cards() else "" for name in names]
    short = [
        title if 0 < len(title) <= MOST_TITLE else name
        for title, name in zip(titles, names, strict=True)
    ]
    return " and ".join(short)


def _of_encoder(setting: str) -> bool:
    return setting.startswith(("encoder.", "pretrain.", "network_source")) and setting not in DROPS


def _pretraining(run: Run, protocol: str, upstream: Run | None) -> Flat:
    """Settings of the pretraining; where it is lost, its versions and its folder's name."""
    name, determinants = run.description.get("upstream"), run.description["determinants"]
    if name is None:
        return {}
    if upstream is None:
        lost = _flat({"pretraining": {"parts": determinants.get("upstream_parts", {})}})
        return lost if protocol in starts() else {**lost, "pretraining": str(name)}
    above = upstream.description["determinants"]
    same = "catalog" if above["catalog"] == determinants["catalog"] else "encoder."
    return {
        key if key.startswith("pretrain.") else f"pretraining.{key}": value
        for key, value in _flat(above).items()
        if not key.startswith(("encoder.", same))
    }


def _flat(determinants: Mapping[str, Any]) -> Flat:
    """Settings of nested determinants as plain text; a hash by its first characters."""
    flat: Flat = {}
    for name, value in determinants.items():
        if name in NO_SETTINGS:
            continue
        if isinstance(value, str) and value.startswith("{"):  # a config of transformers
            with contextlib.suppress(ValueError, RecursionError):
                value = json.loads(value)
        if isinstance(value, Mapping):
            flat |= {f"{name}.{key}": text for key, text in _flat(value).items()}
        else:
            text = str(value) if type(value) in (str, int, float) else json.dumps(value)
            is_hash = len(text) == 64 and re.fullmatch("[0-9a-f]{64}", text)
            flat[name] = text[:12] if is_hash else text
    return flat


def _told_apart(alike: Sequence[_Named]) -> dict[Path, str]:
    """What follows the words of runs whose names begin alike: `` (lr 0.003)``, `` (2)``."""
    fixed = [named for named in alike if named.protocol in starts()]
    transfers: dict[tuple[str, str], list[_Named]] = {}
    for named in alike:
        transfers.setdefault((_setting(named), named.encoder_text), []).append(named)
    of_encoders = _encoders(alike)
    differing = _differing([*of_encoders.values()])
    for members in transfers.values():
        differing += _differing([*_rests(members).values()])
    encoders = _qualified(of_encoders, {*_encoders(fixed)}, differing, "")
    ends: dict[Path, str] = {}
    for (setting, encoder), members in transfers.items():
        usual = {named.rest_text for named in fixed if _setting(named) == setting}
        rests = _qualified(_rests(members), usual, differing, "settings ")
        protocols: dict[str, set[str]] = {}
        for named in members:
            protocols.setdefault(named.rest_text, set()).add(named.protocol)
        for named in members:
            is_marked = len(protocols[named.rest_text]) > 1 and named.protocol not in starts()
            mark = f"protocol {named.protocol}" if is_marked else ""
            text = ", ".join(filter(None, (encoders[encoder], rests[named.rest_text], mark)))
            ends[named.run.folder] = f" ({text})" if text else ""
    return ends


def _setting(named: _Named) -> str:
    return str(named.run.description["setting"])


def _encoders(names: Iterable[_Named]) -> dict[str, Flat]:
    """Distinct settings of encoders, by their text."""
    return {named.encoder_text: named.encoder for named in names}


def _rests(names: Iterable[_Named]) -> dict[str, Flat]:
    """Distinct other settings, by their text."""
    return {named.rest_text: named.rest for named in names}


def _qualified(
    variants: Mapping[str, Flat], fixed: Collection[str], differing: Sequence[str], number: str
) -> dict[str, str]:
    """Of each distinct set of settings its difference from the others, or its number.

    Where those of a fixed protocol (``fixed``) are one set, the others are compared with it.
    """
    order = sorted(variants, key=lambda text: (text not in fixed, text))
    reference = variants[order[0]] if len(fixed) == 1 and order[0] in fixed else None
    candidates, qualifiers = _differing([*variants.values()]), dict[str, str]()
    for place, text in enumerate(order):
        flat = variants[text]
        keys = [
            key
            for key in candidates
            if reference is None or flat.get(key, UNSET) != reference.get(key, UNSET)
        ]
        words = ", ".join(f"{_short(key, differing)} {flat.get(key, UNSET)}" for key in keys)
        if len(keys) > MOST_SETTINGS or len(words) > MOST_LETTERS:
            words = f"{number}{place + 1}" if place else ""
        qualifiers[text] = words
    return qualifiers


def _text(flat: Flat) -> str:
    return json.dumps(flat, sort_keys=True)


def _differing(flats: Sequence[Flat]) -> list[str]:
    keys = sorted({key for flat in flats for key in flat})
    return [key for key in keys if len({flat.get(key, UNSET) for flat in flats}) > 1]


def _short(key: str, keys: Sequence[str]) -> str:
    """The last part of a setting's name, with its group where another ends alike."""
    group, _, last = key.rpartition(".")
    if group.endswith("parts"):
        return f"version of {last}"
    ambiguous = sum(other.rpartition(".")[2] == last for other in set(keys)) > 1
    return f"{key.partition('.')[0]} {last}" if ambiguous else last


def _descriptions(
    every: Sequence[_Named], of_runs: Mapping[Path, RowName], networks: Mapping[str, str]
) -> list[Mapping[str, str]]:
    """What each row of a modality, source and policy is, in whole."""
    rows: dict[RowName, list[_Named]] = {}
    for named in every:
        rows.setdefault(of_runs[named.run.folder], []).append(named)
    usual = _usual(every)
    return [
        {
            **dict(zip(("modality", "source", "policy"), _group(members[0].run), strict=True)),
            "technique": row.technique,
            "technique_id": str(members[0].run.description["technique"]),
            "network": networks[members[0].run.settings.encoder.network],
            "pretrained_on": _pretrained_on(members[0]),
            "published": _published_title(members[0]),
            "contamination": "",  # of what is scored, see `contamination.with_contamination`
            "protocol": row.protocol,
            "settings": _said(members, usual),
        }
        for row, members in sorted(rows.items(), key=lambda item: name_rank(item[0].technique))
    ]


def _pretrained_on(named: _Named) -> str:
    technique = str(named.run.description["technique"])
    if published := _published(named):
        names = [source_title(name) for name in published["pretrained_on"]]
        return ", ".join(filter(None, [*names, *published["also"], published["unlisted"]]))
    if technique in (SCRATCH, KERNELS) or named.run.description.get("upstream") is None:
        return ""
    if technique.startswith(BROUGHT):
        return "elsewhere"
    built_in = BUILT_IN.get(technique)
    trained = built_in is None or built_in.method is not None
    parts = ["ImageNet"] if built_in is not None and built_in.imagenet else []
    source = source_title(_pretraining_source(named.run, named.upstream))
    return ", ".join([*parts, *([source] if trained else [])])


def _published(named: _Named) -> Published | None:
    """What the card of a published encoder states, from the transfer or its pretraining."""
    return published_of(named.run, named.upstream)


def _published_title(named: _Named) -> str:
    published = _published(named)
    return "" if published is None else f"{published['title']} ({published['licence']})"


def _usual(every: Sequence[_Named]) -> dict[tuple[str, str], list[str]]:
    """The most frequent values by transfer setting and name of what is set."""
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for named in every:
        setting = _setting(named)
        for key, value in (named.encoder | named.rest).items():
            counts[setting, key][value] += 1
    return {
        place: [value for value, n in counted.items() if n == max(counted.values())]
        for place, counted in counts.items()
    }


def _said(members: Sequence[_Named], usual: Mapping[tuple[str, str], Sequence[str]]) -> str:
    """Settings of a row that most others do not have, by transfer setting where they differ."""
    texts: dict[str, list[str]] = {}
    for setting, named in {_setting(named): named for named in members}.items():
        has_own = str(named.run.description["technique"]).startswith(NAMED)
        chosen = {} if has_own else named.encoder  # otherwise the card says it
        flat = sorted((chosen | named.rest).items())
        parts = [f"{key} {value}" for key, value in flat if usual[setting, key] != [value]]
        texts.setdefault(", ".join(parts), []).append(setting)
    lines = [
        f"{', '.join(settings)}: {text}" if len(texts) > 1 else text
        for text, settings in texts.items()
        if text
    ]
    searches = {name for named in members for name in searches_behind(named.run, named.upstream)}
    found = [f"found by {', '.join(sorted(searches))}"] if members[0].protocol == TUNED else []
    return "; ".join([*found, *lines])
