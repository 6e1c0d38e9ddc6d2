"""Packing runs of stores into a bundle: predictions with keyed hashes, and what made them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmd_ray._version import __version__
from benchmd_ray.board.bundle import (
    ABOUT,
    CONDITION,
    DETECTOR,
    FOLDER,
    MOST_ABOUT,
    MOST_DETECTORS,
    MOST_LETTERS,
    SIGNATURE,
    Bundle,
    Description,
    EntryKey,
    PackedRun,
    Part,
    read_bundle,
    write_part,
)
from benchmd_ray.board.keys import PUBLIC, BoardKey, Signature, private_key, signed
from benchmd_ray.board.official import detected_hashes, scored_split
from benchmd_ray.board.packed_run import packed_run
from benchmd_ray.board.submitters import is_shown_as_written
from benchmd_ray.console.progress import progress
from benchmd_ray.data.cards import cards
from benchmd_ray.data.records import PERSON
from benchmd_ray.errors import BenchmdError, count_of, is_name, shown
from benchmd_ray.evaluation.evaluation import DETECTED
from benchmd_ray.evaluation.registry import evaluations
from benchmd_ray.files.atomic import TEMPORARY, json_bytes
from benchmd_ray.files.integrity import Damaged
from benchmd_ray.report.contamination import contamination
from benchmd_ray.report.names import names_of
from benchmd_ray.report.protocols import fold_of
from benchmd_ray.report.table import text_of
from benchmd_ray.runs.files import predictions_of
from benchmd_ray.runs.predictions import IDENTIFIERS, Predictions, read_predictions
from benchmd_ray.runs.store import Run, read_stores

SCORES = "scores"
_CLASSIFIED = {*IDENTIFIERS, SCORES, "target"}
"""Columns of a classification."""
LEAVES = (
    "leaves:",
    "  of each record its keyed hash and the scores of the model, or of detectors",
    "  of each run technique, settings, seed, versions, hardware (models of processors or GPUs), "
    "device hours, number of weights, contamination",
    "stays: labels, patients, ages, sexes, sites, names of files, signals, weights",
)


def pack_stores(
    stores: Sequence[Path],
    out: Path,
    key: BoardKey,
    *,
    key_file: Path | None,
    keep: bool,
    **choice: Any,
) -> list[str]:
    """Pack runs of stores into a bundle that does not exist; ``choice`` are arguments of `pack`.

    Signed with ``key_file`` if there is one; written only with ``keep``. Returns what leaves, line
    by line.
    """
    if out.exists():
        raise BenchmdError(f"{out} exists: nothing was written. Choose another --out.")
    signer = None if key_file is None else private_key(key_file)
    stored = read_stores(list(stores))
    out.parent.mkdir(parents=True, exist_ok=True)
    display = progress("pack", len(stored.found), "runs")
    with TemporaryDirectory(prefix=TEMPORARY, dir=out.parent) as temporary, closing(display):
        folder = Path(temporary) / "bundle"
        folder.mkdir()
        skipped = pack(stored.found, folder, key, done=display.update, **choice)
        if signer is not None:
            write_signature(folder, signed((folder / ABOUT).read_bytes(), signer))
        lines = [*leaving(read_bundle(folder), key)]  # as a board will read it
        if keep:
            folder.rename(out)
    return [*lines, *(f"not packed: {note}" for note in skipped), *stored.notes]


def pack(
    runs: Sequence[Run],
    folder: Path,
    key: BoardKey,
    *,
    submitter: str,
    title: str = "",
    licence: str = "",
    datasets: Sequence[str] = (),
    detection: bool = False,
    done: Callable[[int], None] = lambda count: None,
) -> list[str]:
    """Write a bundle, unsigned, into an empty folder; see `write_signature`.

    Args:
        runs: Of stores, pretrainings too.
        folder: The bundle.
        key: Of the board.
        submitter: Name that the board shows.
        title: What it is.
        licence: Terms of the predictions.
        datasets: Only these; empty for all.
        detection: Whether the scores of detectors are packed, too.
        done: Called with the number of runs read so far.

    Returns:
        Which runs and predictions are not packed, and why.

    Raises:
        BenchmdError: There is nothing to pack, or pages would not show the submitter.
    """
    for option, text, most in (
        ("submitter", submitter, MOST_LETTERS),
        ("title", title, MOST_ABOUT),
        ("licence", licence, MOST_ABOUT),
    ):
        if len(text) > most or not is_name(text):
            raise BenchmdError(
                f"--{option} {shown(text)}: expected at most {most} printable characters, and no $."
            )
    if not is_shown_as_written(submitter):
        raise BenchmdError(
            f"--submitter {shown(submitter)} is not a name as pages show it: expected one without "
            "folders, outer or doubled spaces, and with something visible."
        )
    names, by_name = names_of(runs).of_runs, {run.folder.name: run for run in runs}
    packed: list[PackedRun] = []
    skipped: dict[tuple[str, str], list[str]] = {}
    same: dict[tuple[str, ...], str] = {}
    number, scored = 0, set[str]()
    for count, run in enumerate(runs, start=1):
        done(count)
        if run.description["kind"] != "transfer":
            continue
        parts: list[Part] = []
        for path in () if (why := _unfit(run)) else predictions_of(run.folder):
            scored.add(path.stem)
            if datasets and path.stem not in datasets:
                continue
            try:
                parts += _parts(run, path, key, folder, number + len(parts), detection=detection)
            except BenchmdError as error:
                what = f"{path.parent.name} of {path.stem} of "
                why_not = error.why if isinstance(error, Damaged) else str(error)
                skipped.setdefault((what, why_not), []).append(run.folder.name)
        if parts and not why:
            described = packed_run(run, names[run.folder], by_name, parts)
            ranked = [(*described.entry, p.dataset, p.sha256) for p in parts if p.is_main]
            first = next((same[key] for key in ranked if key in same), "")
            if not first:
                packed.append(described)
                same |= dict.fromkeys(ranked, run.folder.name)
                number += len(parts)
            else:  # its files are written over, or removed below
                why = f"its predictions are those of {first}, which stands for both seeds"
        if why:
            skipped.setdefault(("", why), []).append(run.folder.name)
    notes = [f"{what}{_first(of)}: {why}" for (what, why), of in skipped.items()]
    if unknown := {*datasets} - scored:
        raise BenchmdError(
            f"no run has predictions of {shown(min(unknown))}. Theirs are of: "
            f"{', '.join(sorted(scored)) or 'nothing'}."
        )
    if not packed:
        raise BenchmdError(
            f"of {count_of(len(runs), 'run')} none can be packed: a board takes finished transfers "
            "with predictions. " + " ".join(f"{note.rstrip('.')}." for note in notes[:3])
        )
    for path in sorted((folder / FOLDER).iterdir())[number:]:
        path.unlink()
    about = Description(
        format=1,
        board=key.check,
        submitter=submitter,
        title=title,
        licence=licence,
        made=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        benchmd_ray=__version__,
        runs=packed,
    )
    (folder / ABOUT).write_bytes(json_bytes(asdict(about)))
    return notes


def _first(names: Sequence[str]) -> str:
    return names[0] + (f" and {count_of(len(names) - 1, 'other')}" if names[1:] else "")


def write_signature(folder: Path, signature: Signature) -> None:
    (folder / SIGNATURE).write_bytes(json_bytes(vars(signature)))


def _unfit(run: Run) -> str:
    """Why a transfer is not packed; empty if it is."""
    reasons = {
        "it is not finished": not run.finished,
        "its labels are shuffled": run.settings.transfer.shuffle_labels,
        "it is a model of a search's fold": bool(fold_of(run)),
        "it is a model of a fold of a cross-validation": "held_out_fold" in run.description,
    }
    return next((why for why, holds in reasons.items() if holds), "")


def _parts(
    run: Run, path: Path, key: BoardKey, folder: Path, number: int, *, detection: bool
) -> list[Part]:
    """Write predictions of the scored split: a file for each condition, from a number on."""
    name = path.parent.name
    evaluation = evaluations().get(name)
    if evaluation is None:
        raise BenchmdError("no benchmark here has this evaluation")
    if evaluation.detection and not detection:
        raise BenchmdError("name --detection for a board that scores it")
    predictions = read_predictions(path, evaluation.form)
    about, split, detectors = predictions.description, "", list[str]()
    if evaluation.detection:
        rows = evaluation.detection.scores(predictions)
        detectors = rows.column_names[len(DETECTED) :]
        if not 0 < len(detectors) <= MOST_DETECTORS:
            raise BenchmdError(
                f"{count_of(len(detectors), 'detector')} of it learn from no out-of-distribution "
                f"records, expected 1 to {MOST_DETECTORS}"
            )
        columns = np.stack([rows[detector].to_numpy() for detector in detectors], axis=1)
        seen, files = "", iter([("", detected_hashes(rows, about["dataset"], key), columns)])
    elif evaluation.also is None and _CLASSIFIED <= {*predictions.table.column_names}:
        split = scored_split(predictions.splits)
        seen = contamination(run, about, predictions.table["group_id"].to_pylist())
        files = _classified(predictions, split, key)
    else:
        raise BenchmdError("it has more than scores of records")
    parts: list[Part] = []
    for condition, hashes, scores in files:
        named = {condition: CONDITION} | dict.fromkeys(detectors, DETECTOR)
        for text in (text for text, form in named.items() if not re.fullmatch(form, text)):
            raise BenchmdError(
                f"{shown(text)} is not a name of lower-case letters, digits and hyphens"
            )
        parts.append(
            Part(
                evaluation=name,
                version=int(about["version"]),
                condition=condition,
                detectors=detectors,
                dataset=about["dataset"],
                split=split,
                catalog=about["catalog"],
                contamination=text_of(seen),
                sha256=write_part(folder, number + len(parts), hashes, scores),
            )
        )
    return parts


File = tuple[str, list[bytes], npt.NDArray[np.float64]]
"""Condition, hashes of the records, scores (records, classes or detectors)."""


def _classified(predictions: Predictions, split: str, key: BoardKey) -> Iterator[File]:
    for condition, rows in _conditions(predictions, split):
        dataset = predictions.description["dataset"]
        hashes = key.hashes("record", dataset, rows["record_id"].to_pylist())
        scores = rows[SCORES].combine_chunks()
        flat = scores.flatten().to_numpy().reshape(-1, scores.type.list_size)
        yield condition, hashes, flat


def _conditions(predictions: Predictions, split: str) -> Iterator[tuple[str, pa.Table]]:
    """Rows of a split by condition, each of the same records: ``noise 3``, empty without any."""
    table = predictions.table.filter(pc.equal(predictions.table["split"], split))
    left = {*_CLASSIFIED, *PERSON}
    stated = [n for n in table.column_names if n not in left and table[n].type != pa.bool_()]
    if not stated:
        yield "", table
        return
    texts = [pc.cast(table[name], pa.string()) for name in stated]
    named = pc.binary_join_element_wise(*texts, " ")
    first = None
    for condition in pc.unique(named):
        rows = table.filter(pc.equal(named, condition))
        first = first or rows["record_id"]
        if not rows["record_id"].equals(first):
            raise BenchmdError("its conditions are not of the same records")
        yield condition.as_py().removesuffix(" 0"), rows


def leaving(bundle: Bundle, key: BoardKey) -> Iterator[str]:
    """What leaves with a bundle, line by line, for whoever confirms it."""
    runs = bundle.about.runs
    yield f"{count_of(len(runs), 'run')} of {bundle.about.submitter}:"
    entries: dict[EntryKey, list[PackedRun]] = {}
    for run in runs:
        entries.setdefault(run.entry, []).append(run)
    for members in entries.values():
        run, of = members[0], (part for each in members for part in each.predictions)
        parts = sorted({f"{p.evaluation} of {p.dataset}{p.split and f' ({p.split})'}" for p in of})
        about = f"{run.row}, {run.setting}, trained on {run.source}"
        yield f"  {about}, {count_of(len(members), 'run')}: {', '.join(parts)}"
        if any(each.device_hours is None for each in members):
            yield "    without the settings and hours of its pretraining, which these stores lack;"
            yield "    boards rank it among custom settings"
    yield from LEAVES
    datasets = {part.dataset for _, part in bundle.about.parts}
    for dataset in sorted(datasets | {run.source for run in runs}):
        licence = cards()[dataset].licence if dataset in cards() else ""
        yield f"terms of {dataset}: {licence or 'not stated in its card'}"
    yield f"signed by {bundle.signer}" if bundle.signer else "not signed"
    if key.public:
        yield PUBLIC
    size = sum(path.stat().st_size for path in (bundle.folder / FOLDER).iterdir())
    about = f"descriptions {bundle.bytes - size:,}, together {bundle.bytes:,}"
    yield f"bytes: predictions {size:,}, {about}"
