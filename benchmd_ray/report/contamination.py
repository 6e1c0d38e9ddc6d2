"""Rows whose encoder was pretrained on what they are scored on.

Of a pretraining made here, the patients that it saw are compared with those that are scored. A
published encoder is judged by the datasets that its card names and by their origins.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from benchmd_ray.data.origins import are_comparable, family, is_named, of_one_origin
from benchmd_ray.errors import count_of
from benchmd_ray.report.frames import KERNELS, MARK, SCRATCH, UNKNOWN
from benchmd_ray.report.protocols import pretraining_of
from benchmd_ray.runs.pretraining_data import SEEN, Published, read_seen
from benchmd_ray.runs.store import Run
from benchmd_ray.ssl import HUB, OWN
from benchmd_ray.ssl import TECHNIQUES as BUILT_IN

SAW = "its pretraining saw"
NONE = f"{SAW} none of the patients scored"
SIDES = (
    ("technique", "contamination", "dataset"),
    ("technique", "contamination_source", "source"),
    ("baseline", "contamination_baseline", "dataset"),
    ("a", "contamination_a", "dataset"),
    ("b", "contamination_b", "dataset"),
)
"""Columns with the name of a row, with its contamination, and with the dataset that is meant."""


def contamination(run: Run, scored: Mapping[str, str], patients: Iterable[str]) -> str:
    """What of a scored dataset the pretraining of a run saw, in words; empty if nothing.

    Args:
        run: A transfer.
        scored: ``dataset`` and ``catalog`` (digest) that are scored.
        patients: Hashed patients that are scored.
    """
    about, upstream = run.description, pretraining_of(run, {})
    technique, things = str(about["technique"]), _things(run)
    if published := published_of(run, upstream):
        text = _of_names(published["pretrained_on"], scored["dataset"], things)
        return text or (UNKNOWN if published["unlisted"] else "")
    if technique in (SCRATCH, KERNELS) or about.get("upstream") is None:
        return ""
    if technique.startswith((HUB, OWN)):
        return UNKNOWN
    seen = dict(_seen(run.folder)) or (dict(_seen(upstream.folder)) if upstream else {})
    return _of_records(_entries(run, upstream), seen, scored, {*patients}, things)


def published_of(run: Run, upstream: Run | None = None) -> Published | None:
    """What the card of a run's encoder states; None for one that has no card."""
    runs = [run, *filter(None, [upstream or pretraining_of(run, {})])]
    return next((r.description["published"] for r in runs if "published" in r.description), None)


def _of_names(names: Iterable[str], dataset: str, things: str) -> str:
    """By names of datasets; one that no card names cannot be judged and is marked too."""
    parts = []
    for name in names:
        if family(name) == family(dataset):
            return f"{SAW} this dataset's {things}"
        if of_one_origin(name, dataset):
            parts.append(f"{SAW} {name}, whose {things} have this dataset's origin")
        elif not is_named(name):
            parts.append(f"{SAW} {name}, which no card names: its {things} may be these")
    return "; ".join(parts)


def _of_records(
    entries: Iterable[Mapping[str, Any]],
    seen: Mapping[str, frozenset[str]],
    scored: Mapping[str, str],
    patients: set[str],
    things: str,
) -> str:
    """By the patients that a pretraining saw; where it recorded none, by dataset."""
    shared, names = set[str](), []
    for entry in entries:
        name, catalog = str(entry["dataset"]), str(entry["catalog"])
        if catalog in seen:
            shared |= patients & seen[catalog]
            if not are_comparable(name, scored["dataset"]):  # other keys of the hashes
                names.append(name)
        elif catalog != scored["catalog"] or entry.get("policy") != "clean":
            names.append(name)  # of this catalog's training split no patient is scored if clean
    if shared:
        return f"{SAW} {len(shared):,} of the {count_of(len(patients), 'patient')} scored"
    return _of_names([name for name in names if is_named(name)], scored["dataset"], things)


def _entries(run: Run, upstream: Run | None) -> list[Mapping[str, Any]]:
    """Datasets of a pretraining made here; those of runs that do not state them are its source."""
    about = run.description
    stated = about.get("pretrained_on")
    if isinstance(stated, list):
        return [entry for entry in stated if {"dataset", "catalog"} <= set(entry)]
    built_in = BUILT_IN.get(str(about["technique"]))
    if built_in is not None and built_in.method is None:  # ImageNet's weights as they are
        return []
    above = about if upstream is None else upstream.description
    catalog = above["determinants"]["catalog"]
    names = str(above["source"]).split("+")
    return [{"dataset": name, "catalog": catalog, "policy": above["policy"]} for name in names]


def _seen(folder: Path) -> Mapping[str, frozenset[str]]:
    path = folder / SEEN
    return _patients(folder, path.stat().st_mtime_ns) if path.is_file() else {}


@functools.lru_cache(maxsize=8)
def _patients(folder: Path, _changed: int) -> Mapping[str, frozenset[str]]:
    return {catalog: frozenset(seen.patients) for catalog, seen in read_seen(folder).items()}


def _things(run: Run) -> str:
    signal = run.modality.signal
    if signal.axes[-1] == "time":
        return "recordings"
    return "images" if signal.is_image else "volumes"


def is_marked(text: str) -> bool:
    """Whether a contamination is known; rows of which nothing is known have no mark."""
    return bool(text) and text != UNKNOWN


def marked(names: Iterable[str], contaminations: Iterable[str]) -> list[str]:
    """Names of rows with the mark of those that are contaminated: ``RAD-DINO†``."""
    pairs = zip(names, contaminations, strict=True)
    return [
        f"{name}{MARK}" if is_marked(text) and not name.endswith(MARK) else name
        for name, text in pairs
    ]


def together(texts: Iterable[str]) -> str:
    """What several runs of a row have, each text once."""
    return "; ".join(dict.fromkeys(filter(None, texts)))


def contaminated(rows: pd.DataFrame) -> dict[str, dict[str, list[str]]]:
    """The datasets by text and name of the row, of the contaminated rows of a frame."""
    groups: dict[str, dict[str, list[str]]] = {}
    for name, column, of in SIDES:
        if not {name, column, of} <= set(rows):
            continue
        chosen = rows[[name, of, column]].drop_duplicates()
        for row, dataset, text in chosen.itertuples(index=False, name=None):
            if is_marked(text):
                datasets = groups.setdefault(text, {}).setdefault(row, [])
                datasets += [dataset] if dataset not in datasets else []
    return groups


def sentences(rows: pd.DataFrame) -> list[str]:
    """What the marks of a frame's rows mean: ``Its pretraining saw …: MAE on nih-cxr-ap.``."""
    return [
        f"{text[0].upper()}{text[1:]}: "
        + "; ".join(f"{name} on {', '.join(datasets)}" for name, datasets in names.items())
        + "."
        for text, names in contaminated(rows).items()
    ]


def legend(rows: pd.DataFrame) -> str:
    """The sentence of the mark below tables and figures; empty without contaminated rows."""
    return " ".join(f"{MARK} {sentence}" for sentence in sentences(rows))


def in_comparisons(rows: pd.DataFrame) -> str:
    """How many comparisons have a contaminated side; empty for none."""
    columns = [name for name in rows if str(name).startswith("contamination")]
    count = int(rows[columns].map(is_marked).any(axis=1).sum()) if columns else 0
    if not count:
        return ""
    whose = "a row whose pretraining saw the dataset's records or patients"
    return f"{count_of(count, 'comparison')} of these {'has' if count == 1 else 'have'} {whose}."


def with_contamination(descriptions: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Descriptions of rows with what their pretrainings saw of all datasets scored.

    ``rows`` are score rows; see `frames.FRAMES`.
    """
    key = ["modality", "source", "policy", "technique"]
    texts: dict[tuple[str, ...], list[str]] = {}
    columns = rows.loc[rows["run"] != "", [*key, "dataset", "contamination"]].drop_duplicates()
    for *place, dataset, text in columns.itertuples(index=False, name=None):
        text = f"{dataset}: {text}" if is_marked(text) else text
        texts.setdefault((*map(str, place),), []).append(text)
    whole = [
        together(texts.get(row[:4], ()))
        or (("" if row[5] else NONE) if row[:4] in texts and row[4] else "")
        for row in descriptions[[*key, "pretrained_on", "published"]].itertuples(
            index=False, name=None
        )
    ]
    return descriptions.assign(contamination=pd.Series(whole, descriptions.index, dtype="str"))
