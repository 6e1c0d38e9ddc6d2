"""Records of a catalog that is scored which its source's training or validation has, too.

Compared are contents, and patients whose hashes are of one namespace. Who shares a record is one
patient, so that all records of a patient are shared. What is found depends on source and catalog
only: all runs of a source are scored on the same records.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.records import CONTENT, ID_KEY, content_hashes
from benchmd_ray.data.resident import contents_of, patients_of, split_table
from benchmd_ray.errors import BenchmdError, count_of
from benchmd_ray.evaluation.evaluation import Shared
from benchmd_ray.runs.pretraining_data import Learned, Records, read_learned
from benchmd_ray.runs.store import Run

TRAINED = ("train", "validation")
"""Splits of a source that train a model or choose its epoch."""
SHARED_PATIENTS = "shared_patients"
"""Option of cards that, with the value ``keep``, has shared patients scored."""


def learned_of(source: Catalog) -> Learned:
    """What a transfer to a source learns from."""
    return Learned(source.card.namespace, source.id_key_digest, _records(source, TRAINED))


def shared_records(run: Run, catalog: Catalog) -> Shared:
    """What a transfer's source shares with the evaluation splits of a catalog.

    Raises:
        BenchmdError: It shares some and the card refuses this, or all, or the run did not store
            what it learned from.
    """
    name = str(run.description["source"])
    if catalog.digest == run.description["determinants"]["catalog"]:
        learned = {split: _others(catalog, split) for split in catalog.evaluation_splits}
    else:
        stored = read_learned(run.folder)
        if stored is None:
            raise BenchmdError(
                f"{run.folder} did not store which records it was trained on, so that those of "
                f"{catalog.path} cannot be compared with them: remove it and train it again."
            )
        learned = dict.fromkeys(catalog.evaluation_splits, stored)
    records = [name for split, of in learned.items() for name in _shared(catalog, split, of)]
    total = sum(map(catalog.rows, catalog.evaluation_splits))
    if not records:
        return Shared(name, frozenset(), total)
    shared = Shared(name, frozenset(records), total, excluded=not keeps(catalog))
    what = (
        f"{len(records):,} of the {count_of(total, 'record')} to score of {catalog.path} are, or "
        f"their patients are, in the training or validation of {name}"
    )
    if catalog.card.duplicates == "refuse" and shared.excluded:
        raise BenchmdError(
            f"{what}, and the card of {catalog.dataset} has duplicates: refuse. Name another "
            "catalog, or build it with another card."
        )
    if shared.excluded and len(records) == total:
        raise BenchmdError(f"{what}: nothing is left to score. Name another catalog.")
    return shared


def keeps(catalog: Catalog) -> bool:
    """Whether records that the source's training has are scored, with a note."""
    return (
        catalog.manifest["policy"] != "clean"
        or catalog.card.duplicates == "keep"
        or catalog.options.get(SHARED_PATIENTS) == "keep"
    )


def _others(source: Catalog, split: str) -> Learned:
    """What is learned from in the other splits of a source than one that is scored."""
    others = [name for name in TRAINED if name != split]
    return Learned(source.card.namespace, source.id_key_digest, _records(source, others))


def _records(source: Catalog, splits: tuple[str, ...] | list[str]) -> Records:
    filled = [split for split in splits if source.rows(split)]
    return Records(patients_of(source, filled), contents_of(source, filled))


def _shared(catalog: Catalog, split: str, learned: Learned) -> list[str]:
    table = split_table(catalog, split, ["record_id", "group_id", CONTENT])
    patients, contents = learned.records
    is_same = learned.namespace == catalog.card.namespace
    if is_same and learned.id_key != catalog.id_key_digest and not keeps(catalog):
        raise BenchmdError(
            f"the patients of {catalog.path} and of the source are of one namespace, "
            f"{learned.namespace}, but hashed by different secrets, so that shared ones cannot be "
            f"found. Build both catalogs with the same {ID_KEY}, or both without."
        )
    is_shared = np.isin(content_hashes(table[CONTENT]), contents)
    if is_same:
        is_shared |= pc.is_in(table["group_id"], pa.array(list(patients), pa.string())).to_numpy()
    groups = table["group_id"].filter(pa.array(is_shared)).unique()
    chosen: list[str] = table["record_id"].filter(pc.is_in(table["group_id"], groups)).to_pylist()
    return chosen
