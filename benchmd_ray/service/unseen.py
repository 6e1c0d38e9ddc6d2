"""Patients that a pretraining on other catalogs saw are not scored by what starts from it.

`runs.pretraining_data` says what is stored of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.origins import of_one_origin
from benchmd_ray.data.pooled import members_of, splits_of
from benchmd_ray.data.resident import patients_of
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.integrity import write_hashed_json
from benchmd_ray.runs.pretraining_data import SEEN, Seen, read_seen

REMEDY = (
    "Leave that dataset out of the pretraining or of what is scored, or build the catalog of the "
    "pretraining without these patients."
)


def seen_of(source: Catalog, inner: Catalog | None = None) -> dict[str, list[str]]:
    """Hashed patients that a pretraining sees, by the digest of each catalog.

    With ``inner`` it is on that inner catalog of the source.
    """
    return {m.digest: sorted(patients_of(inner or m, splits_of(m))) for m in members_of(source)}


def write_seen(folder: Path, source: Catalog, inner: Catalog | None) -> None:
    write_hashed_json(folder / SEEN, {"patients": seen_of(source, inner)}, of=folder)


def keep_seen(pretraining: Path, transfer: Path) -> None:
    """Store what a pretraining saw with a transfer from it, too."""
    if patients := read_seen(pretraining):
        write_hashed_json(transfer / SEEN, {"patients": patients}, of=transfer)


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
    pretrained_on: Iterable[Mapping[str, Any]], seen: Seen, catalog: Catalog
) -> None:
    """Refuse to score a catalog of whose patients a pretraining saw some, or may have.

    ``pretrained_on`` is what it saw of each other catalog than the source's, as ``run.json`` has
    it; ``seen`` are its patients.
    """
    scored: set[str] = set()
    for entry in pretrained_on:
        name, patients = str(entry["dataset"]), seen.get(str(entry["catalog"]))
        scored = scored or patients_of(catalog, catalog.evaluation_splits)
        where = f"{catalog.path} ({catalog.dataset}, {', '.join(catalog.evaluation_splits)})"
        if shared := len(scored.intersection(patients or ())):
            raise BenchmdError(
                f"the pretraining on {name} saw {shared:,} of the {len(scored):,} patients that "
                f"are scored of {where}. {REMEDY}"
            )
        if of_one_origin(name, catalog.dataset) and not _comparable(patients, catalog):
            raise BenchmdError(
                f"{name} and {catalog.dataset} are of one origin, and the patients of the "
                f"pretraining cannot be compared with those of {where}: it may have seen its "
                f"validation or test patients. {REMEDY} Or pretrain on this catalog."
            )


def _comparable(patients: Iterable[str] | None, catalog: Catalog) -> bool:
    """Whether hashes are of one key: then a patient of the pretraining is in some split."""
    splits = [split for split in catalog.manifest["splits"] if catalog.rows(split)]
    return bool(patients_of(catalog, splits).intersection(patients or ()))
