"""Score runs on disk: scores by algorithm, case and class, and the manifest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmd_ray.benchmarks.touchstone.tasks import SegmentationTask
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import replacing, sha256, write_json
from benchmd_ray.files.integrity import (
    Damaged,
    parsed_json,
    require_sha256,
    without_hash,
    write_hashed_json,
)
from benchmd_ray.files.parquet import read_table
from benchmd_ray.schema.typed import typed

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 3
SCORES, MANIFEST, QUARANTINE = "scores.parquet", "manifest.json", "quarantine.json"
"""Files of a score run; the manifest is written last."""
SCORE_ANEW = "Score anew into another folder."
MAX_MANIFEST_BYTES = 2**26
SCHEMA = pa.schema(
    [
        pa.field("algorithm", pa.string()),
        pa.field("case", pa.string()),
        pa.field("class", pa.string()),
        pa.field("dsc", pa.float64()),  # 0 to 1; NaN where the reference is empty
        pa.field("nsd", pa.float64()),  # 0 to 1 at `tolerance`; NaN likewise
        pa.field("tolerance", pa.float64()),  # mm; NaN where it is not stated
        pa.field("hd95", pa.float64()),  # mm; inf where missed, NaN where the reference is empty
        pa.field("volume_ref_ml", pa.float64()),
        pa.field("volume_pred_ml", pa.float64()),
        pa.field("code", pa.string()),  # `scores.dice.Presence`; null where unknown
        pa.field("seconds", pa.float64()),  # that predicting the case took; NaN where unknown
    ]
)


@dataclass(frozen=True)
class Manifest:
    """What was scored and how; written last."""

    task: SegmentationTask
    algorithm: str
    tolerance: dict[str, float]
    """mm, of each class's surface Dice."""
    scorer: str
    """Digest of the versions of what scores: scores of two are not compared."""
    predictions: str
    """Folder of the predictions, or one file."""
    labels: str
    """Folder of the references, or one file."""
    layouts: tuple[str, str]
    """Of references and predictions."""
    resample: bool
    scores: str = ""
    """SHA-256 of `SCORES`."""
    quarantine: str = ""
    """SHA-256 of `QUARANTINE`."""
    cases: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What is noted of each case that was scored: `fingerprint` of its files, `overlapping` voxels,
    `ignored` labels, whether it was `resampled`, `warnings` of its files; of a command, `peak_mib`
    and `without_network`."""
    quarantined: int = 0
    unpredicted: tuple[str, ...] = ()
    """Cases with a reference and no prediction: they have no rows."""
    unreferenced: tuple[str, ...] = ()
    with_network: tuple[str, ...] = ()
    """Cases on which a command had network, as the node does not let users block it."""


def write_scored(
    folder: Path,
    rows: Iterable[Mapping[str, Any]],
    manifest: Manifest,
    quarantined: Mapping[str, str] | None = None,
) -> None:
    """Write scores and what was quarantined, and then the manifest with the hashes of both."""
    table = pa.Table.from_pylist(list(rows), schema=SCHEMA)
    with replacing(folder / SCORES) as partial:
        pq.write_table(table, partial)
    write_json(
        folder / QUARANTINE,
        [{"case": name, "reason": reason} for name, reason in sorted((quarantined or {}).items())],
    )
    hashes = {"scores": sha256(folder / SCORES), "quarantine": sha256(folder / QUARANTINE)}
    write_hashed_json(folder / MANIFEST, {"format": FORMAT, **asdict(manifest), **hashes})


def read_scored(folder: Path) -> pd.DataFrame:
    """Scores of a finished run, with the columns of `SCHEMA`; hashes are checked."""
    manifest, path = read_manifest(folder), folder / SCORES
    remedy = f"score anew into another folder, or remove {folder / MANIFEST} and do so again"
    table = read_table(path, path, remedy, columns=SCHEMA.names)
    if table.schema.types != SCHEMA.types:
        raise Damaged(path, "it is not what was written", remedy)
    require_sha256(path, manifest.scores, remedy)
    require_sha256(folder / QUARANTINE, manifest.quarantine, remedy)
    frame: pd.DataFrame = table.to_pandas()
    return frame


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a finished run, whose hash is checked."""
    path = folder / MANIFEST
    if not path.is_file():
        raise BenchmdError(
            f"{folder} is not a finished score run, as it has no {MANIFEST}: run `benchmd segment "
            "score` with this --out again, which resumes."
        )
    if path.stat().st_size > MAX_MANIFEST_BYTES:
        raise BenchmdError(f"{path} is larger than any such file: score anew.")
    content = parsed_json(path.read_bytes(), path, SCORE_ANEW)
    if content.get("format") != FORMAT:
        raise BenchmdError(f"{path} is of another version: score anew.")
    content = without_hash(content, path, SCORE_ANEW)
    del content["format"]
    manifest: Manifest = typed(Manifest, content | {"cases": {}}, str(path))
    cases = content.get("cases")
    if not isinstance(cases, dict) or not all(isinstance(case, dict) for case in cases.values()):
        raise BenchmdError(f"{path}: cases are expected by name. Score anew.")
    manifest.cases.update(cases)
    return manifest
