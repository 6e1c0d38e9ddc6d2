"""A split as a map-style dataset of PyTorch, for training loops of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from benchmd_ray.data.batches import Columns
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.feed import read_columns
from benchmd_ray.data.normalise import Normalise, Statistics, as_stored, normaliser
from benchmd_ray.data.resident import resident_signals
from benchmd_ray.signals import Plain

Sample = tuple[torch.Tensor, torch.Tensor]


class SplitDataset(Dataset[Sample]):
    """Signals and targets of a split, in row order; a `DataLoader` takes it with any workers.

    A sample's signal is float32 (*input_shape), normalised. Its target is an int64 number of a
    class where a record is of exactly one; int8 (classes,) of 1, 0 or -1 for unknown where it may
    be of several; or a mask, uint8 (*extents). The split is decoded once for each machine
    and mapped into memory.
    """

    def __init__(
        self,
        catalog: Catalog,
        split: str,
        statistics: Statistics | None = None,
        *,
        physical: bool = False,
    ) -> None:
        """Look at the split; its signals are read when the first is asked for.

        Args:
            catalog: The catalog.
            split: The split.
            statistics: Of the training split by which signals are normalised; some need none.
            physical: Leave signals in their unit, float32 (*stored_shape).

        Raises:
            BenchmdError: The split has no record, or signals are normalised by statistics and
                there are none.
        """
        catalog.require_split(split)
        self.catalog, self.split, self.physical = catalog, split, physical
        self._statistics = statistics
        self.transform: Normalise = _in_unit if physical else normaliser(catalog.signal, statistics)
        """(stored signals (batch, *stored_shape), scales (batch,), valid sizes (batch, axes but
        the channel's)) to what samples hold of them."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Who is sent it opens the split again, instead of being sent the signals."""
        return _made, (self.catalog, self.split, self._statistics, self.physical)

    def __len__(self) -> int:
        """Records of the split."""
        return self.catalog.rows(self.split)

    @cached_property
    def _signals(self) -> Any:
        return resident_signals(self.catalog, self.split)

    @cached_property
    def _columns(self) -> Columns:
        return read_columns(self.catalog, self.split)

    def __getitem__(self, row: int) -> Sample:
        """The sample of a row.

        Raises:
            IndexError: There is no such row.
        """
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[Sample]:
        """Samples of several rows, gathered and normalised together."""
        index = np.asarray(rows, np.int64)
        columns = self._columns.at(index)
        stored = (self._signals[index], columns.scales, columns.sizes)
        signals = self.transform(*map(torch.from_numpy, stored))
        targets = torch.from_numpy(np.asarray(columns.targets))
        if self.catalog.card.target.exclusive:
            targets = targets.argmax(dim=1)
        return list(zip(signals, targets, strict=True))


def _in_unit(signals: torch.Tensor, scales: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return as_stored(signals, scales, {}, Plain())


def _made(
    catalog: Catalog, split: str, statistics: Statistics | None, physical: bool
) -> SplitDataset:
    return SplitDataset(catalog, split, statistics, physical=physical)
