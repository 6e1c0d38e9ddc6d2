"""What evaluations score, and whether a run has their predictions; needs no PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.evaluation import CLASSIFICATION, DetectedRecords, Evaluation
from benchmd_ray.evaluation.registry import evaluations
from benchmd_ray.files.integrity import Damaged, hash_path, is_whole
from benchmd_ray.runs.predictions import Outdated, also_of, predictions_path, read_description
from benchmd_ray.runs.store import Run
from benchmd_ray.service.datasets import from_catalogs, read_also, require_one_each
from benchmd_ray.storage.location import Location


def open_also(paths: Iterable[Location]) -> tuple[Catalog, ...]:
    """Open the further catalogs of an evaluation, one per dataset, in order of name."""
    opened = [open_catalog(path.resolve()) for path in paths]
    require_one_each((catalog.dataset, catalog.path) for catalog in opened)
    return tuple(sorted(opened, key=lambda catalog: catalog.dataset))


def detected_records(
    catalogs: Sequence[Location], also: Sequence[Location]
) -> dict[str, DetectedRecords]:
    """Records of the evaluation by detectors that boards compare, by source.

    ``also`` are further catalogs that it reads, as in a plan.

    Raises:
        BenchmdError: Several evaluations have detectors of one source.
    """
    found: dict[str, DetectedRecords] = {}
    datasets, others = from_catalogs(catalogs).datasets, from_catalogs(also).datasets
    for evaluation in evaluations().values():
        for source in datasets:
            fits = source.role in evaluation.roles and source.kind.task.kind in evaluation.tasks
            if evaluation.detection is None or source.catalog is None or not fits:
                continue
            same = (dataset for dataset in datasets if dataset.policy == source.policy)
            read = read_also(evaluation, source, (*same, *others))
            opened = open_also(dataset.catalog for dataset in read if dataset.catalog is not None)
            records = evaluation.detection.records(open_catalog(source.catalog), opened)
            if source.name in found:
                raise BenchmdError(
                    f"the evaluations {found[source.name].evaluation} and {evaluation.name} both "
                    f"have detectors of {source.name}: uninstall the package of one of them."
                )
            names = tuple(catalog.dataset for catalog in opened)
            found[source.name] = DetectedRecords(evaluation.name, names, records)
    return found


def is_scored(
    run: Run,
    catalog: Catalog,
    evaluation: Evaluation = CLASSIFICATION,
    also: tuple[Catalog, ...] = (),
    *,
    whole: bool = False,
) -> bool:
    """Whether a run has predictions for this very catalog by the current version of an evaluation.

    `also` are the other catalogs that it reads. `whole` verifies the file's hash too.
    """
    path = predictions_path(run.folder, catalog.dataset, evaluation.name)
    if not path.is_file() or not hash_path(path).is_file():
        return False
    try:
        about, columns = read_description(path, evaluation.form)
        same = (about["catalog"], about["also"]) == (catalog.digest, also_of(also))
        same &= evaluation.current is None or evaluation.current(columns)
    except (Damaged, Outdated, KeyError, ValueError):
        return False
    return same and (not whole or is_whole(path))
