"""What boards compare of detection: which records are scored, and detectors without calibration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from benchmd_ray.benchmarks.ood.sets import FEWEST, SplitRecords, inside, out_sets
from benchmd_ray.benchmarks.ood.table import IN, KEYS
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.evaluation.evaluation import DETECTED
from benchmd_ray.runs.predictions import Predictions


def records(catalog: Catalog, also: Sequence[Catalog]) -> pa.Table:
    """`evaluation.Detection.records` of a catalog and the others that detection reads."""
    inside_records = inside(catalog)
    parts = [*_rows(inside_records.scored, IN, "")]
    for out_set in out_sets(catalog, inside_records, also):
        if not out_set.control:
            parts += _rows(out_set.scored, out_set.name, out_set.use_case)
    return _counted(pa.concat_tables(parts))


def _rows(parts: Sequence[SplitRecords], name: str, case: str) -> Iterator[pa.Table]:
    for part in parts:
        ids = {column: pa.array(part.ids(column), pa.string()) for column in DETECTED[:3]}
        same = {"set": pa.repeat(name, len(part)), "use_case": pa.repeat(case, len(part))}
        yield pa.table(ids | same)


def scores(predictions: Predictions) -> pa.Table:
    """`evaluation.Detection.scores`: of detectors that learn from no set out of distribution."""
    alone = (pc.field("part") == "test") & (pc.field("regime") == "none")
    is_control = pc.coalesce(pc.field("control"), pc.scalar(False))
    table = predictions.table.filter(alone & pc.field("alike").is_null() & ~is_control)
    column, cases = table.column_names.index("use_case"), pc.fill_null(table["use_case"], "")
    table = table.set_column(column, "use_case", cases)
    detectors = [n for n in table.column_names if n not in KEYS and not table[n].null_count]
    return _counted(table.select([*DETECTED, *detectors]))


def _counted(table: pa.Table) -> pa.Table:
    """Rows but those of sets that no mean counts: the shifted ones, and those with few units."""
    rows = table.select(["set", "use_case", "unit_id"]).to_pandas()
    units = rows.groupby(["set", "use_case"])["unit_id"].transform("nunique")
    shifted, is_in = (rows["use_case"] == case for case in ("shifted", ""))
    return table.filter(pa.array(is_in | (~shifted & (units >= FEWEST))))
