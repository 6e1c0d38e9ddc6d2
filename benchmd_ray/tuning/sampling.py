"""Variance between two trials that is due to the sample of patients.

Fresh evaluations include each patient once per cut. So the variance of their mean difference has a
part due to the patients, which no number of cuts reduces, and a part due to seeds and cuts, which
falls with the number of evaluations. The first part follows from each patient's contribution
(DeLong), the second from the remaining spread of the evaluations.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.feed import read_units
from benchmd_ray.data.resident import split_table
from benchmd_ray.files.arrays import mapped
from benchmd_ray.files.integrity import Damaged, require_hash
from benchmd_ray.scores.comparison import delong_shares
from benchmd_ray.scores.units import Units
from benchmd_ray.settings.definition import Settings
from benchmd_ray.training.selection import transfer_data
from benchmd_ray.tuning.confirm import SamplingVariance
from benchmd_ray.tuning.stages import TrialContext
from benchmd_ray.tuning.trial_files import get_scores

Floats = npt.NDArray[np.float64]
REMEDY = (
    "Two processes may have written them. The choice is valid without them, but has less power."
)
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ValidationRecords:
    units: npt.NDArray[np.str_]
    """Scored unit of each row."""
    patients: npt.NDArray[np.str_]
    targets: npt.NDArray[np.int8]
    """(rows, classes)."""
    second_half: npt.NDArray[np.bool_]
    """Rows scored at the epoch that was chosen on the others."""

    @classmethod
    def of(cls, catalog: Catalog, settings: Settings) -> ValidationRecords | None:
        """Validation records of an inner catalog; None if they have no halves."""
        if catalog.task.segments:
            return None
        data = transfer_data(settings, catalog, halved=True)
        if data.second_half is None:
            return None
        table = split_table(catalog, "validation", ["group_id"])
        patients = np.array(table["group_id"].to_pylist(), np.str_)
        units = np.array(read_units(catalog, "validation"), np.str_)
        return cls(units, patients, data.validation_targets, data.second_half)

    def shares(self, start: Floats, trial: Floats) -> dict[str, float]:
        """Contribution of each patient to the difference in one evaluation, see `delong_shares`."""
        shares: dict[str, float] = {}
        for half in (~self.second_half, self.second_half):
            units = Units(self.units[half])
            targets, patients = units.targets(self.targets[half]), self.patients[half][units.first]
            begun, trial_scores = (units.scores(scores[half]) for scores in (start, trial))
            moved = delong_shares(targets, begun, trial_scores, patients) / 2
            if len(moved):  # empty if no class can be scored in the half
                shares |= dict(zip(np.unique(patients).tolist(), moved.tolist(), strict=True))
        return shares


def sampling_of(shares: Sequence[Mapping[str, float]]) -> SamplingVariance:
    """Variance of differences due to the patients, from their contributions by evaluation."""
    together: dict[str, float] = {}
    for by_patient in shares:
        for patient, share in by_patient.items():
            together[patient] = together.get(patient, 0.0) + share / len(shares)
    of_each = [
        sum(share**2 for share in evaluation_shares2.values()) for evaluation_shares2 in shares
    ]
    return SamplingVariance(sum(share**2 for share in together.values()), float(np.mean(of_each)))


def sampled(
    work: TrialContext, inner: Mapping[int, Catalog], number: int, evaluations: Sequence[int]
) -> SamplingVariance | None:
    """Variance due to the patients in the fresh evaluations of a trial and of the start.

    None if scores per record were not stored (several modalities or workers, masks, few patients)
    or are damaged, which is logged.
    """
    try:
        shares = []
        for evaluation in evaluations:
            paths = [work.scores_file(trial, evaluation) for trial in (0, number)]
            for path in paths:
                get_scores(work.folder, path)
            records = ValidationRecords.of(inner[evaluation], work.arms[0].settings)
            if records is None or not all(path.is_file() for path in paths):
                return None
            scores = []
            for path in paths:
                require_hash(path, REMEDY)
                array = mapped(path, "r", REMEDY)
                fits = array.dtype.kind == "f" and array.shape == records.targets.shape
                if not fits or not np.isfinite(array).all():
                    raise Damaged(path, "it is not of the evaluation's records", REMEDY)
                scores.append(np.asarray(array, np.float64))
            shares.append(records.shares(*scores))
        return sampling_of(shares)
    except Damaged as error:
        logger.warning("the choice is made without scores per record: %s", error)
        return None
