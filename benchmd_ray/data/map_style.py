"""A split as a map-style dataset of PyTorch, for your own training loop."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.feed import read_columns
from benchmd_ray.data.normalise import Statistics, as_stored, normaliser
from benchmd_ray.data.resident import resident_signals
from benchmd_ray.modality.signals import Plain

Sample = tuple[torch.Tensor, ...]


class SplitDataset(Dataset[Sample]):
    """Signals and targets of a split, in row order.

    A sample is (signal, target), or (signal, valid size, target) of a dataset in units. The signal
    is float32, normalised of shape ``(*input_shape)``, in its unit of shape ``(*stored_shape)``;
    the valid size, int64 (axes but the channel's,), says within which extents it is more than
    padding. The target is an int64 number of a class where a record is of exactly one; int8
    (classes,) of 1, 0 or -1 for unknown where it may be of several; or a mask, uint8
    ``(*extents)``. Classes are those of the catalog's card.

    The split is decoded once for each machine and mapped into memory. Each process that opens it
    compares it with its hash: workers of a `DataLoader` that are not forked should be
    ``persistent_workers``.
    """

    def __init__(
        self,
        catalog: Catalog,
        split: str,
        statistics: Statistics | None = None,
        *,
        physical: bool = False,
    ) -> None:
        """Open the split; ``physical`` leaves signals in their unit.

        Raises:
            BenchmdError: The split has no record, a shard is missing or altered, or the
                normalisation needs statistics and there are none.
        """
        catalog.require_split(split)
        self.catalog, self.split, self.physical = catalog, split, physical
        self._statistics = statistics
        self._open()

    def _open(self) -> None:
        if not self.physical:
            self._normalise = normaliser(self.catalog.signal, self._statistics)
        self._signals = resident_signals(self.catalog, self.split)
        self._columns = read_columns(self.catalog, self.split)

    def __getstate__(self) -> dict[str, Any]:
        """Exclude the open arrays: the receiver opens the split itself."""
        opened = ("_normalise", "_signals", "_columns")
        return {name: value for name, value in vars(self).items() if name not in opened}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()

    def __len__(self) -> int:
        return len(self._columns)

    def __getitem__(self, row: int) -> Sample:
        """The sample of a row; `torch.utils.data.Subset` or a loader takes several at once."""
        place = operator.index(row)
        if not -len(self) <= place < len(self):
            raise IndexError(f"row {place} of {len(self)}")
        return self.__getitems__([place])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[Sample]:
        """Samples of several rows, gathered and normalised together."""
        index = np.asarray(rows, np.int64)
        columns = self._columns.at(index)
        signals = torch.from_numpy(self._signals[index])
        scales, sizes = torch.from_numpy(columns.scales), torch.from_numpy(columns.sizes)
        targets = torch.from_numpy(np.asarray(columns.targets))
        if self.catalog.card.target.exclusive:
            targets = targets.argmax(dim=1)
        if self.physical:
            parts = (as_stored(signals, scales, {}, Plain()), sizes.long(), targets)
            return list(zip(*parts, strict=True))
        return list(zip(self._normalise(signals, scales, sizes), targets, strict=True))
