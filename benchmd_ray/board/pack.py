"""Packing runs of stores into a bundle: predictions with keyed hashes, and what made them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmd_ray._version import __version__
from benchmd_ray.board.bundle import (
    ABOUT,
    FOLDER,
    FORMAT,
    MORE,
    RECORD,
    SCORES,
    SIGNATURE,
    Description,
    PackedRun,
    Part,
    read_bundle,
    write_about,
    write_part,
)
from benchmd_ray.board.keys import HASHES, BoardKey, Signature, signed
from benchmd_ray.board.official import scored_split
from benchmd_ray.board.packed_run import packed_run
from benchmd_ray.data.cards import cards
from benchmd_ray.data.records import PERSON
from benchmd_ray.errors import BenchmdError, count_of
from benchmd_ray.evaluation.registry import evaluations
from benchmd_ray.files.atomic import TEMPORARY
from benchmd_ray.report.contamination import contamination
from benchmd_ray.report.names import names_of
from benchmd_ray.report.protocols import fold_of
from benchmd_ray.report.table import text_of
from benchmd_ray.runs.files import predictions_of
from benchmd_ray.runs.predictions import IDENTIFIERS, Predictions, read_predictions
from benchmd_ray.runs.store import Run, read_stores

LEAVES = (
    "of each record its keyed hash and the model's scores",
    "of each run technique, settings, seed, versions, hardware (models of processors or GPUs), "
    "device hours, number of weights, contamination",
)
STAYS = "labels, patients, ages, sexes, sites, names of files, signals, weights"


@dataclass(frozen=True)
class Packing:
    """What is packed, and why other runs and predictions are not."""

    about: Description
    skipped: Sequence[str]


def pack_stores(
    stores: Sequence[Path],
    out: Path,
    key: BoardKey,
    *,
    key_file: Path | None,
    keep: bool,
    **choice: Any,
) -> tuple[list[str], bool]:
    """Pack runs of stores; see `pack`.

    Args:
        stores: Stores and runs.
        out: The bundle, which must not exist.
        key: Of the board.
        key_file: Private key to sign with.
        keep: Whether the bundle is written to ``out``; else only what it would hold is listed.
        choice: Arguments of `pack`.

    Returns:
        What leaves, line by line, and whether it was written.
    """
    if out.exists():
        raise BenchmdError(f"{out} exists: nothing was written. Choose another --out.")
    stored = read_stores(list(stores))
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=TEMPORARY, dir=out.parent) as temporary:
        folder = Path(temporary) / "bundle"
        folder.mkdir()
        packing = pack(stored.found, folder, key, **choice)
        signer = ""
        if key_file is not None:
            signature = signed((folder / ABOUT).read_bytes(), key_file)
            write_signature(folder, signature)
            signer = signature.public_key
        read_bundle(folder)  # as a board will
        lines = [*leaving(packing, _sizes(folder), signer, key), *stored.notes]
        if keep:
            folder.rename(out)
    return lines, keep


def _sizes(folder: Path) -> dict[str, int]:
    """Bytes by kind of file."""
    parts = sum(path.stat().st_size for path in (folder / FOLDER).iterdir())
    about = sum(path.stat().st_size for path in folder.glob("*.json"))
    return {"predictions": parts, "descriptions": about, "together": parts + about}


class _Left(BenchmdError):
    """Predictions that are not packed."""


def pack(
    runs: Sequence[Run],
    folder: Path,
    key: BoardKey,
    *,
    submitter: str,
    title: str = "",
    licence: str = "",
    datasets: Sequence[str] = (),
) -> Packing:
    """Write a bundle, unsigned, into an empty folder; see `sign`.

    Args:
        runs: Of stores, pretrainings too.
        folder: The bundle.
        key: Of the board.
        submitter: Name that the board shows.
        title: What it is.
        licence: Terms of the predictions.
        datasets: Only these; empty for all.

    Raises:
        BenchmdError: There is nothing to pack.
    """
    names, by_name = names_of(runs).of_runs, {run.folder.name: run for run in runs}
    packed: list[PackedRun] = []
    skipped: list[str] = []
    number = 0
    for run in runs:
        if run.description["kind"] != "transfer":
            continue
        if why := _unfit(run):
            skipped.append(f"{run.folder.name}: {why}")
            continue
        parts = []
        for path in predictions_of(run.folder):
            if datasets and path.stem not in datasets:
                continue
            try:
                table, part = _part(run, path, key)
            except BenchmdError as error:
                skipped.append(f"{run.folder.name}: {error}")
                continue
            parts.append(Part(**part, sha256=write_part(folder, number, table)))
            number += 1
        if parts:
            packed.append(packed_run(run, names[run.folder], by_name, parts))
    if not packed:
        raise BenchmdError(
            f"of {count_of(len(runs), 'run')} none can be packed: a board takes finished transfers "
            f"with predictions{' of these datasets' if datasets else ''}. " + " ".join(skipped[:3])
        )
    about = Description(
        format=FORMAT,
        board=key.check,
        submitter=submitter,
        title=title,
        licence=licence,
        made=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        benchmd_ray=__version__,
        licences=_licences(packed),
        runs=packed,
    )
    write_about(folder, about)
    return Packing(about, skipped)


def write_signature(folder: Path, signature: Signature) -> None:
    (folder / SIGNATURE).write_text(json.dumps(vars(signature), indent=1) + "\n", "utf-8")


def _unfit(run: Run) -> str:
    """Why a transfer is not packed; empty if it is."""
    reasons = {
        "it is not finished": not run.finished,
        "its labels are shuffled": run.settings.transfer.shuffle_labels,
        "it is a model of a search's fold": bool(fold_of(run)),
        "it is a model of a fold of a cross-validation": "held_out_fold" in run.description,
    }
    return next((why for why, holds in reasons.items() if holds), "")


def _part(run: Run, path: Path, key: BoardKey) -> tuple[pa.Table, dict[str, Any]]:
    """Predictions of the scored split with hashes, and what a bundle says of them."""
    name = path.parent.name
    evaluation = evaluations().get(name)
    if evaluation is None:
        raise _Left(f"no benchmark here has the evaluation {name}, so it is not packed")
    predictions = read_predictions(path, evaluation.form)
    if not {*IDENTIFIERS, SCORES, "target"} <= set(predictions.table.column_names):
        raise _Left(f"{name} of {path.stem} is not packed: it has more than scores of records")
    split = scored_split(predictions.splits)
    about = predictions.description
    seen = contamination(run, about, predictions.table["group_id"].to_pylist())
    return hashed(predictions, split, key), {
        "evaluation": name,
        "version": int(about["version"]),
        "dataset": about["dataset"],
        "split": split,
        "catalog": about["catalog"],
        "contamination": text_of(seen),
    }


def hashed(predictions: Predictions, split: str, key: BoardKey) -> pa.Table:
    """The rows of a split with hashed records, sorted within each condition, and no labels.

    Raises:
        BenchmdError: A column is of a type that is not packed.
    """
    table = predictions.table.filter(pc.equal(predictions.table["split"], split))
    names = table["record_id"].to_pylist()
    distinct = len(set(names))
    hashes = pa.array(key.hashes(RECORD, predictions.description["dataset"], names), HASHES)
    if names != names[:distinct] * (len(names) // distinct):
        raise _Left("its conditions are not of the same records, so it is not packed")
    order = pc.sort_indices(hashes[:distinct]).to_numpy().astype(np.intp)
    places = (np.arange(0, len(names), distinct)[:, None] + order).ravel()
    left = {*IDENTIFIERS, *PERSON, SCORES, "target"}
    columns = {RECORD: hashes, SCORES: table[SCORES]}
    columns |= {n: table[n] for n in table.column_names if n not in left}
    result = pa.table(columns).take(places)
    if odd := [
        f.name for f in result.schema if f.name not in left and f.type not in (*MORE, HASHES)
    ]:
        raise _Left(f"its column {odd[0]} is of a type that is not packed")
    return result


def _licences(runs: Sequence[PackedRun]) -> dict[str, str]:
    datasets = {part.dataset for run in runs for part in run.predictions}
    datasets |= {run.source for run in runs}
    known = cards()
    return {name: known[name].licence for name in sorted(datasets) if name in known}


def leaving(
    packing: Packing, sizes: Mapping[str, int], signer: str, key: BoardKey
) -> Iterator[str]:
    """What leaves with a bundle, line by line, for whoever confirms it."""
    about = packing.about
    yield f"{count_of(len(about.runs), 'run')} of {about.submitter}:"
    rows: dict[tuple[str, str, str], list[PackedRun]] = {}
    for run in about.runs:
        rows.setdefault((run.row, run.setting, run.source), []).append(run)
    for (row, setting, source), members in rows.items():
        of = {f"{p.evaluation} of {p.dataset} ({p.split})" for r in members for p in r.predictions}
        seeds = count_of(len(members), "run")
        yield f"  {row}, {setting}, trained on {source}, {seeds}: {', '.join(sorted(of))}"
    yield "leaves:"
    for line in LEAVES:
        yield f"  {line}"
    yield f"stays: {STAYS}"
    for dataset, licence in about.licences.items():
        yield f"terms of {dataset}: {licence or 'not stated in its card'}"
    yield f"signed by {signer[:16]}…" if signer else "not signed"
    if key.public:
        yield (
            "the board's key is its name: whoever has the datasets can tell whose scores a row has "
            "(a key file for --board prevents that)"
        )
    yield "bytes: " + ", ".join(f"{name} {size:,}" for name, size in sizes.items())
    for note in packing.skipped:
        yield f"not packed: {note}"
