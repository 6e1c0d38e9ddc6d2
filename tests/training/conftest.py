"""A small source whose classes can be told apart, built without Ray."""

from collections.abc import Iterator
from pathlib import Path

import made_catalogs
import numpy as np
import pytest
import torch
from kinds import SIGNALS

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.data.records import Record
from benchmd_ray.settings.definition import load_settings

ECG = SIGNALS["ecg"]
TRAIN, VALIDATION = 42, 21


def ecg_records(rows, split, seed):
    """Records of 7 classes in turn: each a sine of its own frequency and its own raised lead."""
    generator = np.random.default_rng([seed, rows])
    time = np.arange(5000) / 500
    records = []
    for row in range(rows):
        label = row % 7
        phase = generator.uniform(0, 2 * np.pi, (12, 1))
        wave = 400 * np.sin(2 * np.pi * (2 + 5 * label) * time + phase)
        wave[label] += 300
        signal = (wave + generator.normal(0, 150, (12, 5000))).astype(np.int16)
        target = np.eye(7, dtype=int)[label].tolist()
        name = f"{split}{row}"
        records.append(Record(name, name, name, signal, 0.001, (5000,), target))
    return records


def write_catalog(path, splits, dataset="ptb-xl", shards=2):
    """A catalog of these records, as `open_catalog` takes it."""
    cut = {}
    for split, records in splits.items():
        rows = np.array_split(np.arange(len(records)), shards)
        cut[split] = [[records[i] for i in part] for part in rows]
    card = dataset_card(dataset)
    channels = card.signal.stored_shape[0]
    statistics = {"mean": [0.25 * i for i in range(channels)], "std": [1.5] * channels}
    return open_catalog(made_catalogs.write_catalog(path, card, cut, statistics=statistics))


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Small tensors gain nothing from threads, which wait long where processors are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def splits() -> dict[str, list[Record]]:
    """Records of a source, not to be changed."""
    return {
        "train": ecg_records(TRAIN, "train", 0),
        "validation": ecg_records(VALIDATION, "validation", 1),
    }


@pytest.fixture(scope="session")
def source(splits, tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """Catalog of a source, not to be changed."""
    return write_catalog(tmp_path_factory.mktemp("source") / "ptb-xl", splits)


@pytest.fixture
def make_catalog(tmp_path: Path):
    """Writes further catalogs."""

    def write(splits, dataset="ptb-xl"):
        return write_catalog(tmp_path / f"catalog-{dataset}", splits, dataset)

    return write


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where decoded splits are kept; of the session's scope as the runs that use it are."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCHMD_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def make_settings():
    """Settings of a small quick run, with further assignments."""

    def make(*assignments):
        small = (
            "encoder=tiny",
            "encoder.dropout=0",
            "encoder.embedding_dropout=0",
            "execution.log_every=1",
            "execution.device=cpu",
            "pretrain.batch_size=8",
            "pretrain.steps=5",
            "pretrain.optimiser.lr=1e-3",
            "transfer.batch_size=16",
            "transfer.epochs=3",
            "transfer.optimiser.lr=1e-3",
        )
        return load_settings(assignments=[*small, *assignments])

    return make


class Recorder:
    """Keeps what is reported; stops the work with `Interrupted` at ``stop_at``."""

    def __init__(self, stop_at=None):
        self.lines, self.started, self.finished, self._stop_at = [], None, False, stop_at

    def start(self, what, total, unit, done):
        self.started = (what, total, unit, done)

    def report(self, done, values):
        if done == self._stop_at:
            raise Interrupted
        self.lines.append({"done": done, **values})

    def finish(self):
        self.finished = True

    def column(self, name):
        return [line[name] for line in self.lines]


class Interrupted(Exception):
    """Stands for whatever ends a process in the middle."""


@pytest.fixture(scope="session")
def recorder():
    """The class of reporters that keep what is reported."""
    return Recorder


@pytest.fixture(scope="session")
def interrupted():
    """The error that an interrupting `Recorder` raises."""
    return Interrupted
