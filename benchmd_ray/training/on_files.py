"""A classifier on raw files, which are read as a build of its source reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from benchmd_ray.console.progress import progress
from benchmd_ray.data.cards import DatasetCard, cards, dataset_card
from benchmd_ray.data.loose import Loose, loose_files, read_loose
from benchmd_ray.data.loose_rows import read_loose_rows
from benchmd_ray.data.records import decode_signals
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.integrity import read_hashed_json
from benchmd_ray.modality.signals import Signal
from benchmd_ray.modality.tasks import Task
from benchmd_ray.runs.files import RUN
from benchmd_ray.scores.units import Units
from benchmd_ray.training.weights import CONFIG, is_exported

Screen = Callable[[pa.Table], tuple[npt.NDArray[np.float64], float]]
"""A detector: records, with the columns of a catalog, to their scores and the threshold."""
PROBABILITY = "p: "
"""What the names of the columns of probabilities begin with; the class follows."""
PRESENT = 0.5
"""Probability from which a class of a multi-label task is named."""


class Predicting(Protocol):
    """What is needed of a `training.applied.SignalClassifier`."""

    signal: Signal
    task: Task
    classes: tuple[str, ...]
    batch: int

    def predict(
        self,
        signals: npt.NDArray[np.float32],
        *,
        sizes: npt.NDArray[np.int64],
        card: DatasetCard | None,
        checked: bool,
    ) -> Any:
        """Probabilities of records."""


def reading_of(
    folder: Path, model: Predicting, card: str, say: Callable[[str], None]
) -> DatasetCard | None:
    """The card that says how files are read, by default the source's; None: as is usual.

    Raises:
        BenchmdError: The card that was named is unknown, or of another signal.
    """
    name = card or _source(folder)
    found = dataset_card(card) if card else cards().get(name)
    if found is None:
        say(
            f"the card of {name} is not here (--cards): files are read without its rate, channels, "
            "key, rows and cut"
        )
        return None
    if found.signal != model.signal:
        if card:
            raise BenchmdError(f"{card} has another signal than the model of {folder}.")
        say(f"the card of {name} has another signal than the model: its files are not looked at")
        return None
    if found.files is None:
        say(
            f"builds read {name} by code of its own; here the general readers read files of that "
            "format. Compare some predictions with those of the run"
        )
    return found


def _source(folder: Path) -> str:
    if is_exported(folder):
        about = read_hashed_json(folder / CONFIG, "", {"trained": dict})["trained"]
    else:
        about = read_hashed_json(folder / RUN, "")
    return str(about.get("source", "its source"))


def predicted_files(
    model: Predicting,
    paths: Sequence[Path],
    reading: DatasetCard | None,
    *,
    card: DatasetCard | None,
    screen: Screen | None,
) -> pd.DataFrame:
    """A row for each unit of each file; see `SignalClassifier.predict_files`."""
    classes = card.classes if card is not None else model.classes
    rows: list[dict[str, Any]] = []
    waiting: list[tuple[str, Loose]] = []
    for named in _read(model, paths, reading):
        waiting.append(named)
        if sum(len(part.table or ()) for _, part in waiting) >= model.batch:
            rows += _of_batch(model, waiting, card, screen)
            waiting = []
    rows += _of_batch(model, waiting, card, screen)
    placed = [name for name in ("row", "id") if any(name in row for row in rows)]
    columns = ["file", *placed, "record", "class", *(f"{PROBABILITY}{name}" for name in classes)]
    columns += ["verdict", "score", "threshold"] if screen is not None else []
    return pd.DataFrame(rows, columns=[*columns, "reason"])


def _read(
    model: Predicting, paths: Sequence[Path], reading: DatasetCard | None
) -> Iterator[tuple[str, Loose]]:
    files = None if reading is None else reading.files
    endings = () if files is None else files.suffixes
    names = [(path, name) for path in paths for name in loose_files(path, model.signal, endings)]
    with closing(progress("predicting", len(names), "files")) as display:
        for done, (path, name) in enumerate(names, 1):
            shown_name = str(path if path.is_file() else path / name)
            if reading is not None and files is not None and files.rows:
                parts = read_loose_rows(path, name, model.signal, model.task, reading)
            else:
                parts = read_loose(path, [name], model.signal, model.task, files)
            for part in parts:
                yield shown_name, part
            display.update(done)


def _of_batch(
    model: Predicting,
    batch: Sequence[tuple[str, Loose]],
    card: DatasetCard | None,
    screen: Screen | None,
) -> list[dict[str, Any]]:
    tables = [part.table for _, part in batch if part.table is not None and len(part.table)]
    whole = pa.concat_tables(tables).combine_chunks() if tables else None
    probabilities = _probabilities(model, whole, card) if whole is not None else np.empty((0, 0))
    screened, threshold = screen(whole) if whole is not None and screen else (None, np.nan)
    rows: list[dict[str, Any]] = []
    start = 0
    for name, part in batch:
        origin: dict[str, Any] = {"file": name}
        origin |= {} if part.row is None else {"row": part.row}
        origin |= {"id": part.row_id} if part.row_id else {}
        if part.table is None or not len(part.table):
            reason = part.reason or "it holds no record"
            unread = {"verdict": "unreadable"} if screen is not None else {}
            rows.append(origin | {"reason": reason} | unread)
            continue
        unit_names = part.table["unit_id"].to_pylist()
        units, place = Units(unit_names), slice(start, start := start + len(part.table))
        scores = units.scores(probabilities[place])
        verdicts: list[dict[str, Any]] = [{} for _ in scores]
        if screened is not None:
            highest = units.scores(screened[place, None])[:, 0]
            verdicts = [
                {"verdict": "accept" if score <= threshold else "reject", "score": float(score)}
                | {"threshold": threshold}
                for score in highest
            ]
        for first, values, verdict in zip(units.first, scores, verdicts, strict=True):
            row = origin | {"record": unit_names[first], "reason": ""}
            rows.append(row | _named(values, model, card) | verdict)
    return rows


def _named(
    values: npt.NDArray[np.float64], model: Predicting, card: DatasetCard | None
) -> dict[str, Any]:
    classes = card.classes if card is not None else model.classes
    chosen = [classes[int(values.argmax())]]
    if not model.task.exclusive:
        chosen = [name for name, p in zip(classes, values, strict=True) if p >= PRESENT]
    by_class = zip(classes, map(float, values), strict=True)
    return {"class": "; ".join(chosen)} | {f"{PROBABILITY}{name}": p for name, p in by_class}


def _probabilities(
    model: Predicting, table: pa.Table, card: DatasetCard | None
) -> npt.NDArray[np.float64]:
    scales = table["scale"].to_numpy().astype(np.float32)
    stored = np.asarray(decode_signals(table["signal"], model.signal))
    signals = stored * scales.reshape(-1, *[1] * (stored.ndim - 1))
    sizes = np.array(table["valid_size"].to_pylist(), np.int64)
    return np.asarray(model.predict(signals, sizes=sizes, card=card, checked=True), np.float64)
