"""What the synthetic datasets share: generators, labels, textures, tables."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter


def generator(seed: int, dataset: str, what: str) -> np.random.Generator:
    """A separate generator for each thing that is drawn, so that sizes do not matter."""
    return np.random.default_rng([seed, *f"{dataset}/{what}".encode()])


def drawn_labels(
    classes: Sequence[str], prevalence: Sequence[float], records: int, rng: np.random.Generator
) -> list[str]:
    """A class for each record: the shares to the record, in random order."""
    bounds = np.rint(np.cumsum(prevalence) * records).astype(int)
    drawn = np.searchsorted(bounds, np.arange(records), side="right")
    return [classes[column] for column in rng.permutation(drawn)]


def texture(
    shape: Sequence[int], grain: float, rng: np.random.Generator
) -> npt.NDArray[np.float32]:
    """Smooth noise of mean 0 and standard deviation 1; ``grain`` is the smoothing's in samples."""
    noise = gaussian_filter(rng.standard_normal(tuple(shape), np.float32), grain, mode="wrap")
    return np.asarray((noise - noise.mean()) / noise.std(), np.float32)


def write_csv(
    path: Path,
    rows: Sequence[Mapping[str, object]],
    columns: Sequence[str] = (),
    *,
    delimiter: str = ",",
    lineterminator: str = "\n",
) -> None:
    """Write a table, by gzip where its name ends with ``.gz``; what a row lacks stays empty."""
    text = io.StringIO()
    names = columns or list(rows[0])
    writer = csv.DictWriter(
        text, names, restval="", delimiter=delimiter, lineterminator=lineterminator
    )
    writer.writeheader()
    writer.writerows(rows)
    content = text.getvalue().encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
