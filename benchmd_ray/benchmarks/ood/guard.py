"""A detector in front of a model: fitted once, stored with it, applied to new data.

A fitted detector is ``guard/<detector>.safetensors`` in the folder of the run or exported model,
with its threshold and what it was fitted on in ``guard/<detector>.json``; both are compared with
their hashes.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from typing_extensions import TypedDict

from benchmd_ray.benchmarks.ood.conform import Batch, conformed_batch, require_conformable
from benchmd_ray.benchmarks.ood.detectors import bank_of, pictured, unfit
from benchmd_ray.benchmarks.ood.measures import threshold_of
from benchmd_ray.benchmarks.ood.methods import USUAL, detector_sources, detectors
from benchmd_ray.benchmarks.ood.methods.method import Detector, Floats, Seen, State, finite
from benchmd_ray.benchmarks.ood.methods.pretrained import NAME as PRETRAINED
from benchmd_ray.benchmarks.ood.network import Network
from benchmd_ray.benchmarks.ood.observe import NetworkObserver, pictures
from benchmd_ray.benchmarks.ood.sets import inside
from benchmd_ray.data.batches import Worker
from benchmd_ray.data.catalog import MANIFEST, Catalog, open_catalog
from benchmd_ray.data.loose import ignored_files, loose_files, read_loose
from benchmd_ray.data.records import decode_signals
from benchmd_ray.errors import BenchmdError, unknown_name
from benchmd_ray.evaluation.evaluation import Asked
from benchmd_ray.files.atomic import replacing, sha256
from benchmd_ray.files.integrity import Damaged, read_hashed_json, require_sha256, write_hashed_json
from benchmd_ray.modality.signals import Signal
from benchmd_ray.runs.files import RUN
from benchmd_ray.schema.typed import Count, Finite
from benchmd_ray.settings.definition import Settings
from benchmd_ray.storage.location import Location, entries
from benchmd_ray.training.collect import evaluation_batch
from benchmd_ray.training.engine import choose_device
from benchmd_ray.training.weights import CONFIG, is_exported

FOLDER = "guard"
REMEDY = "Remove it and fit the detector again with --catalog."
OF_OTHER_ARRAYS = (
    *(ArithmeticError, AssertionError, AttributeError, BenchmdError, LookupError, MemoryError),
    *(RuntimeError, TypeError, ValueError),
)
"""What comes of arrays that a detector did not learn."""


class Stated(TypedDict):
    """What a guard's file says."""

    detector: str
    threshold: Finite
    accepts: Finite
    records: Count
    catalog: str
    network: str
    source: str
    state: str


@dataclass(frozen=True)
class Guard:
    """A fitted detector and its threshold."""

    detector: str
    state: State
    threshold: float
    network: Network


@dataclass(frozen=True)
class Verdict:
    """Verdict of a guard on a record."""

    record: str
    score: float
    """NaN where the record cannot be read."""
    accepted: bool
    reason: str = ""
    """Why it could not be read."""

    @property
    def word(self) -> str:
        """``accept``, ``reject`` or ``unreadable``."""
        if self.reason:
            return "unreadable"
        return "accept" if self.accepted else "reject"


def _paths(run: Path, detector: str) -> tuple[Path, Path]:
    folder = run / FOLDER
    return folder / f"{detector}.safetensors", folder / f"{detector}.json"


def require_trained_on(asked: Asked) -> None:
    """Refuse another catalog than that which the run was trained on."""
    if is_exported(asked.run):
        about = read_hashed_json(asked.run / CONFIG, "", {"trained": dict})["trained"]
    else:
        about = read_hashed_json(asked.run / RUN, "")
    determinants = about.get("determinants")
    trained_on = determinants.get("catalog") if isinstance(determinants, dict) else None
    if trained_on != asked.catalog.digest:
        raise BenchmdError(
            f"{asked.run} was trained on another catalog than {asked.catalog.path}: name that one, "
            "for what is in distribution is what the model learned from."
        )


def chosen_detector(network: Network, named: str) -> str:
    """The detector of that name, or the usual one that fits the network.

    Raises:
        BenchmdError: There is none of that name, it learns from records of both kinds, or it does
            not fit the network.
    """
    fitting = {name: method for name, method in detectors().items() if _is_simple(method)}
    if named and named not in fitting:
        raise unknown_name("detector of a guard", named, fitting)
    available = {*network.shapes, "pixels"}
    for name in (named,) if named else USUAL:
        why = unfit(fitting[name], network, available)
        if not why:
            return name
    raise BenchmdError(f"the detector {named} does not fit this network: {why}.")


def _asking(network: Network, method: Detector) -> Network:
    return replace(
        network,
        needs=method.needs,
        pretrained=network.pretrained if PRETRAINED in method.needs else None,
        mae=network.mae if "mae loss" in method.needs else None,
    )


def _is_simple(method: Detector) -> bool:
    """Whether a detector needs no records of the other kind, and scores each by itself."""
    apart = "dropout logits" not in method.needs  # masks of dropout are those of a place in a batch
    return method.calibrate is None and method.asks is None and method.once is None and apart


def fit(asked: Asked, detector: str) -> Guard:
    """Fit a detector on a source's training records, and keep it with the run.

    Its threshold accepts 95 % of in-distribution records that the network did not learn from.
    """
    network = Network.of(asked.run, asked.worker, asked.settings.execution.precision)
    name, inside_records = chosen_detector(network, detector), inside(asked.catalog)
    method = detectors()[name]
    network = _asking(network, method)
    observer = NetworkObserver.of(network, asked.settings)
    bank = bank_of(observer, inside_records, pixels="pixels" in method.needs)
    if why := unfit(method, network, bank.seen.more, bool((bank.seen.features < 0).any())):
        raise BenchmdError(f"the detector {name} does not fit this network: {why}.")
    state = method.fit(bank)
    if not _is_finite(state):
        raise BenchmdError(
            f"the detector {name} learned values that are NaN or infinite, so it cannot be kept: "
            "choose another --detector."
        )
    records = (
        inside_records.calibrating
    )  # as in the benchmark, whose false alarms are then the guard's
    seen = pictured(observer, records) if "pixels" in method.needs else observer.seen(records)
    units = [name for part in records for name in part.table["unit_id"].to_pylist()]
    whole = pd.Series(finite(method.scores(state, seen, network.head), name)).groupby(units).max()
    scores = np.asarray(whole, np.float64)
    guard = Guard(name, state, threshold_of(scores), network)
    _write(asked.run, guard, asked.catalog, len(scores))
    return guard


def _write(run: Path, guard: Guard, catalog: Catalog, records: int) -> None:
    weights, about = _paths(run, guard.detector)
    weights.parent.mkdir(exist_ok=True)
    with replacing(weights) as partial:
        save_file({name: np.array(array) for name, array in guard.state.items()}, partial)
    write_hashed_json(
        about,
        {
            "detector": guard.detector,
            "threshold": guard.threshold,
            "accepts": 0.95,
            "records": records,
            "catalog": catalog.digest,
            "network": guard.network.digest,
            "source": detector_sources().get(guard.detector, ""),
            "state": sha256(weights),
        },
    )


def read_guard(asked_run: Path, network: Network, detector: str) -> Guard:
    """A fitted detector of a run.

    Raises:
        BenchmdError: It was not fitted yet, or is damaged or of another network.
    """
    name = chosen_detector(network, detector)
    weights, path = _paths(asked_run, name)
    if not path.is_file():
        raise BenchmdError(
            f"{asked_run} has no fitted detector {name}: name the catalog that it was trained on "
            "with --catalog, once."
        )
    about = read_hashed_json(path, REMEDY, Stated)
    network = _asking(network, detectors()[name])
    if about["network"] != network.digest or about["detector"] != name:
        raise Damaged(path, "it is of another network or detector", REMEDY)
    if about["source"] != detector_sources().get(name, ""):
        raise Damaged(path, "the source of the detector has changed", REMEDY)
    if not math.isfinite(about["threshold"]):
        raise Damaged(path, "its threshold is NaN or infinite", REMEDY)
    require_sha256(weights, about["state"], REMEDY)
    guard = Guard(name, _read_state(weights), about["threshold"], network)
    _try(guard, weights)
    return guard


def screen_of(folder: Path) -> Callable[[pa.Table], tuple[Floats, float]] | None:
    """The detector that was fitted to a model, for records with the columns of a catalog.

    None if there is none; of several, the usual one that fits the model. It is read when first
    asked.
    """
    fitted = sorted(path.stem for path in (folder / FOLDER).glob("*.json"))
    if not fitted:
        return None

    @functools.cache
    def guard() -> Guard:
        worker, settings = Worker(device=choose_device("auto")), Settings()
        network = Network.of(folder, worker, settings.execution.precision)
        usual = [name for name in USUAL if name in fitted]
        return read_guard(folder, network, (usual or fitted)[0])

    def screen(table: pa.Table) -> tuple[Floats, float]:
        return _scores(guard(), _batch(table, guard().network.signal)), guard().threshold

    return screen


def _is_finite(state: State) -> bool:
    return all(array.dtype.kind not in "fc" or np.isfinite(array).all() for array in state.values())


def _read_state(weights: Path) -> State:
    try:
        state = dict(load_file(weights))
    except (OSError, SafetensorError, *OF_OTHER_ARRAYS) as error:  # such as a type NumPy lacks
        raise Damaged(weights, f"it is not a safetensors file ({error})", REMEDY) from error
    if not _is_finite(state):
        raise Damaged(weights, "its arrays hold values that are NaN or infinite", REMEDY)
    return state


def _try(guard: Guard, weights: Path) -> None:
    """Refuse a detector that gives no score of a record of zeros."""
    network, method = guard.network, detectors()[guard.detector]
    shape = network.signal.stored_shape
    sizes = np.array([shape[1:]], np.int32)
    zeros = np.zeros((1, *shape), network.signal.dtype)
    seen = _seen(guard, (zeros, np.ones(1, np.float32), sizes))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as of means of nothing
            scores = np.asarray(method.scores(guard.state, seen, network.head), np.float64)
    except OF_OTHER_ARRAYS as error:
        raise Damaged(weights, f"its arrays are of another detector ({error})", REMEDY) from error
    if scores.shape != (1,) or not np.isfinite(scores).all():
        raise Damaged(weights, "its arrays give no score that is finite", REMEDY)


def of_data(guard: Guard, paths: Sequence[Location]) -> Iterator[tuple[Location, Verdict]]:
    """Verdicts on catalogs, files and folders, each with its path and read once."""
    read: set[Location] = set()
    for path in paths:
        is_file = isinstance(path, Path) and path.is_file()
        if not is_file and MANIFEST in entries(path)[0]:
            if path.resolve() not in read:
                yield from ((path, verdict) for verdict in of_catalog(guard, open_catalog(path)))
            read.add(path.resolve())
            continue
        if not isinstance(path, Path):
            raise BenchmdError(f"{path} is no catalog: files are read from local folders only.")
        root = path.parent if path.is_file() else path
        names = loose_files(path, guard.network.signal)
        places = [(root / name).resolve() for name in names]
        new = [name for name, place in zip(names, places, strict=True) if place not in read]
        read.update(places)
        yield from ((path, verdict) for verdict in of_files(guard, path, new))


def ignored(guard: Guard, paths: Sequence[Location]) -> Counter[str]:
    """Files below folders that are not of the model's formats: their number by ending."""
    folders = [path for path in paths if isinstance(path, Path) and path.is_dir()]
    suffixes = {
        file.resolve(): file.suffix.lower() or "without ending"
        for folder in folders
        if not (folder / MANIFEST).is_file()
        for file in ignored_files(folder, guard.network.signal)
    }
    return Counter(suffixes.values())


def of_files(guard: Guard, path: Path, names: Sequence[str] | None = None) -> Iterator[Verdict]:
    """Verdicts on files: the file itself, or all below a folder or those named.

    A file with several records, such as windows of a scan, has the highest of their scores.
    """
    network = guard.network
    names = loose_files(path, network.signal) if names is None else names
    for file in read_loose(path, names, network.signal, network.task):
        if file.table is None or not len(file.table):
            yield Verdict(file.name, float("nan"), False, file.reason or "it holds no record")
            continue
        scores = _scores(guard, _batch(file.table, network.signal))
        score = float(scores.max())
        yield Verdict(file.name, score, score <= guard.threshold)


def of_catalog(guard: Guard, catalog: Catalog) -> Iterator[Verdict]:
    """Verdicts on all units of a catalog: records, or scans by their windows' highest.

    Records of another signal are shown to the model as the benchmark shows an unrelated dataset.
    """
    signal, to = catalog.signal, guard.network.signal
    require_conformable(signal, to)
    size = evaluation_batch(guard.network.model.encoder)
    highest: dict[str, float] = {}
    for split in catalog.manifest["splits"]:
        for table in catalog.tables(split):
            for start in range(0, len(table), size):
                part = table.slice(start, size).combine_chunks()
                scores = _scores(guard, conformed_batch(_batch(part, signal), signal, to))
                for name, score in zip(part["unit_id"].to_pylist(), scores, strict=True):
                    highest[name] = max(float(score), highest.get(name, -math.inf))
    for name, score in highest.items():
        yield Verdict(name, score, score <= guard.threshold)


def _batch(table: pa.Table, signal: Signal) -> Batch:
    scales = table["scale"].to_numpy().astype(np.float32)
    sizes = np.array(table["valid_size"].to_pylist(), np.int32)
    return np.asarray(decode_signals(table["signal"], signal)), scales, sizes


def _seen(guard: Guard, batch: Batch) -> Seen:
    network = guard.network
    seen = network.seen(network.quantities(*batch))
    if "pixels" not in detectors()[guard.detector].needs:
        return seen
    return replace(seen, more={**seen.more, "pixels": pictures(network, *batch)})


def _scores(guard: Guard, batch: Batch) -> Floats:
    network, method = guard.network, detectors()[guard.detector]
    seen = _seen(guard, batch)
    return finite(method.scores(guard.state, seen, network.head), guard.detector)


def summary(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """How many were accepted, rejected and unreadable."""
    counts = Counter(verdict.word for verdict in verdicts)
    words = {"accept": "accepted", "reject": "rejected", "unreadable": "unreadable"}
    return {words[word]: counts[word] for word in words}
