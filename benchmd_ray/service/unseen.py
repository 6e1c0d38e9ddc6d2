"""What a pretraining on other catalogs saw is not scored by what starts from it.

`runs.pretraining_data` says what is stored of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.origins import of_one_origin
from benchmd_ray.data.pooled import members_of, splits_of
from benchmd_ray.data.resident import contents_of, patients_of
from benchmd_ray.errors import BenchmdError, count_of
from benchmd_ray.runs.pretraining_data import NOTHING, Records, read_seen, write_seen

REMEDY = (
    "Leave that dataset out of the pretraining or of what is scored, or build the catalog of the "
    "pretraining without them."
)


def seen_of(source: Catalog, inner: Catalog | None = None) -> dict[str, Records]:
    """What a pretraining sees, by the digest of each catalog.

    With ``inner`` it is on that inner catalog of the source.
    """
    return {
        m.digest: Records(patients_of(inner or m, splits), contents_of(inner or m, splits))
        for m in members_of(source)
        for splits in [splits_of(m)]
    }


def keep_seen(pretraining: Path, transfer: Path) -> None:
    """Store what a pretraining saw with a transfer from it, too."""
    if seen := read_seen(pretraining):
        write_seen(transfer, seen)


def seen_elsewhere(about: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What the pretraining of a transfer saw of other catalogs than its source's.

    ``about`` is the transfer's ``run.json``.
    """
    own = about["determinants"]["catalog"]
    return [entry for entry in about.get("pretrained_on", ()) if entry["catalog"] != own]


def require_unseen(about: Mapping[str, Any], folder: Path, catalog: Catalog) -> None:
    """Refuse to score with a transfer what its pretraining saw; see `require_disjoint`.

    The folder is the pretraining's, or that of a transfer from it.
    """
    if entries := seen_elsewhere(about):
        require_disjoint(entries, read_seen(folder), catalog)


def require_disjoint(
    pretrained_on: Iterable[Mapping[str, Any]], seen: Mapping[str, Records], catalog: Catalog
) -> None:
    """Refuse to score a catalog of which a pretraining saw patients or records, or may have.

    ``pretrained_on`` is what it saw of each other catalog than the source's, as ``run.json`` has
    it; ``seen`` are their records.
    """
    scored, contents = set[str](), NOTHING
    for entry in pretrained_on:
        name = str(entry["dataset"])
        patients, of_records = seen.get(str(entry["catalog"]), Records(()))
        if not scored:
            scored = patients_of(catalog, catalog.evaluation_splits)
            contents = contents_of(catalog, catalog.evaluation_splits)
        where = f"{catalog.path} ({catalog.dataset}, {', '.join(catalog.evaluation_splits)})"
        if shared := len(scored.intersection(patients)):
            raise BenchmdError(
                f"the pretraining on {name} saw {shared:,} of the {len(scored):,} patients that "
                f"are scored of {where}. {REMEDY}"
            )
        if copies := len(np.intersect1d(contents, of_records)):
            raise BenchmdError(
                f"the pretraining on {name} saw exact copies of {count_of(copies, 'record')} that "
                f"{'is' if copies == 1 else 'are'} scored of {where}. {REMEDY}"
            )
        if of_one_origin(name, catalog.dataset) and not _comparable(patients, catalog):
            raise BenchmdError(
                f"{name} and {catalog.dataset} are of one origin, and the patients of the "
                f"pretraining cannot be compared with those of {where}: it may have seen its "
                f"validation or test patients. {REMEDY} Or pretrain on this catalog."
            )


def _comparable(patients: Iterable[str], catalog: Catalog) -> bool:
    """Whether hashes are of one key: then a patient of the pretraining is in some split."""
    splits = [split for split in catalog.manifest["splits"] if catalog.rows(split)]
    return bool(patients_of(catalog, splits).intersection(patients))
