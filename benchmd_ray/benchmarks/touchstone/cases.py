"""Scores of cases: one row for each algorithm, case and class, as scoring writes them.

Per-case results of others are read into the same rows (`touchstone.imported`).
"""

from __future__ import annotations

from typing import Literal

import pyarrow as pa

Presence = Literal["both", "absent", "missed", "spurious"]
"""Where a class is: in reference and prediction; in neither; in the reference only; in the
prediction only."""
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
        pa.field("code", pa.string()),  # `Presence`; null where results of others do not say
        pa.field("seconds", pa.float64()),  # that predicting the case took; NaN where unknown
    ]
)
"""Of a table of scores."""
