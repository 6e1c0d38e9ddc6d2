"""Class scores of a finished classification under each simulated fault, severity by severity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from benchmd_ray.benchmarks.ood.conform import recorded
from benchmd_ray.benchmarks.ood.faults import Fault, faults_of, made
from benchmd_ray.benchmarks.ood.observe import SEED
from benchmd_ray.benchmarks.ood.robustness import CLEAN, COLUMNS
from benchmd_ray.console.progress import progress
from benchmd_ray.data.batches import Batch
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.feed import read_columns, whole_split_feed
from benchmd_ray.data.normalise import normaliser
from benchmd_ray.data.records import PERSON
from benchmd_ray.data.resident import split_table
from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.evaluation import Asked
from benchmd_ray.modality.signals import Signal
from benchmd_ray.runs.predictions import IDENTIFIERS
from benchmd_ray.scores.metrics import probabilities
from benchmd_ray.training.collect import evaluated, evaluating, evaluation_batch, gathered
from benchmd_ray.training.predict import description_for, merging
from benchmd_ray.training.weights import described, load_classifier

Condition = tuple[Fault | None, int]
"""A fault and its severity; no fault and 0 for the records as they are."""


def conditions_of(signal: Signal, taken: Signal) -> tuple[Condition, ...]:
    """The clean records, then each fault of correct records with each of its severities.

    Faults that replace a record by something of another domain are not among them: it has no class.
    Controls are what the signal's normalisation removes: none where a model takes it otherwise.
    """
    faults = [
        fault
        for fault in faults_of(signal).values()
        if fault.use_case == "faulty" and (taken == signal or not fault.control)
    ]
    return ((None, 0), *((fault, level) for fault in faults for level in fault.severities))


def corrupted(asked: Asked) -> pa.Table:
    """Table of `robustness.fault` for the evaluation splits of a catalog by a run's model.

    Raises:
        BenchmdError: The model is of another signal or task, or its outputs are NaN or infinite.
    """
    catalog = asked.catalog
    about = description_for(asked.run, catalog)
    return pa.concat_tables([_of_split(asked, about, split) for split in catalog.evaluation_splits])


def _of_split(asked: Asked, about: dict[str, Any], split: str) -> pa.Table:
    """Rows of a split, condition by condition; each record is read once for all of them."""
    catalog, worker = asked.catalog, asked.worker
    model = load_classifier(asked.run)
    # Without CUDA graphs, whose outputs may differ from the first batch's in the last digit.
    direct = evaluating(model, worker, asked.settings.execution.precision)
    forward = evaluated(direct, about["augmentation"]["shape"])
    taken, _ = described(about, asked.run)
    conditions = conditions_of(catalog.signal, taken)
    normalise = normaliser(taken, about["statistics"], worker.device)
    feed = whole_split_feed(catalog, split, asked.settings, worker, about["statistics"])
    feed.normalise = lambda stored, _, __: stored
    table = split_table(catalog, split, [*IDENTIFIERS, "target", *PERSON])
    names = table["record_id"].to_pylist()
    versions = _Versions(catalog, split, names, normalise, conditions)

    display, done = progress(f"faults of {catalog.dataset}, {split}", len(table), "records"), 0

    def scored(batch: Batch) -> torch.Tensor:
        """(batch, conditions, classes + 1): logits, and whether the record was altered."""
        nonlocal done
        outputs = [
            torch.cat((forward(signals).float(), altered[:, None]), dim=1)
            for signals, altered in versions.of(batch)
        ]
        done = min(done + len(batch.rows), len(table))
        display.update(done)
        return torch.stack(outputs, dim=1)

    outputs = gathered(scored, feed, evaluation_batch(model.encoder))
    display.close()
    blocks = [
        _block(table, condition, outputs[:, place, :-1], outputs[:, place, -1] > 0, catalog)
        for place, condition in enumerate(conditions)
    ]
    return pa.concat_tables(blocks)


class _Versions:
    """The versions of stored records that a model sees: clean, and with each fault."""

    def __init__(
        self,
        catalog: Catalog,
        split: str,
        names: list[str],
        normalise: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
        conditions: tuple[Condition, ...],
    ) -> None:
        self._signal, self._names, self._normalise = catalog.signal, names, normalise
        self._columns = read_columns(catalog, split)
        self._conditions = conditions

    def of(self, batch: Batch) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Each condition's normalised signals (batch, *input_shape), and which records it alters.

        The batch holds signals as they are stored, (batch, *stored_shape).
        """
        rows, device = np.maximum(batch.rows, 0), batch.signals.device
        stored = batch.signals.cpu().numpy()
        columns = self._columns.at(rows)
        scales, sizes = (
            torch.from_numpy(values).to(device) for values in (columns.scales, columns.sizes)
        )
        for fault, severity in self._conditions:
            signals, altered = batch.signals, torch.zeros(len(rows), device=device)
            if fault is not None:
                changed = [
                    made(recorded(values, scale, size, self._signal), fault, severity, name, SEED)
                    for values, scale, size, name in zip(
                        stored,
                        columns.scales,
                        columns.sizes,
                        [self._names[row] for row in rows],
                        strict=True,
                    )
                ]
                differs = [not np.array_equal(*pair) for pair in zip(changed, stored, strict=True)]
                signals = torch.from_numpy(np.stack(changed)).to(device)
                altered = torch.tensor(differs, dtype=torch.float32, device=device)
            yield self._normalise(signals, scales, sizes), altered


def _block(
    table: pa.Table,
    condition: Condition,
    logits: npt.NDArray[np.float32],
    altered: npt.NDArray[np.bool_],
    catalog: Catalog,
) -> pa.Table:
    fault, severity = condition
    name = CLEAN if fault is None else fault.name
    if not np.isfinite(logits).all():
        wrong = int(np.flatnonzero(~np.isfinite(logits).all(axis=1))[0])
        raise BenchmdError(
            f"the model's outputs of record {table['record_id'][wrong].as_py()} with the fault "
            f"{name}, severity {severity}, are NaN or infinite: train with another precision "
            "or a lower learning rate."
        )
    scores = probabilities(logits, catalog.task.kind) @ merging(catalog.card)
    values = {
        "fault": pa.array([name] * len(table)).dictionary_encode().cast(COLUMNS["fault"]),
        "severity": pa.array([severity] * len(table), COLUMNS["severity"]),
        "control": pa.array([fault is not None and fault.control] * len(table)),
        "altered": pa.array(altered),
        "scores": pa.FixedSizeListArray.from_arrays(
            pa.array(scores.ravel(), pa.float64()), scores.shape[1]
        ),
    }
    for column, array in values.items():
        table = table.append_column(column, array)
    return table
