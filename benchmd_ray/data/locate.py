"""From records back to raw files, for catalogs that do not hold file names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.discovery import discovered
from benchmd_ray.errors import BenchmdError


def locate(
    name: str,
    raw: Path,
    record_ids: Sequence[str],
    *,
    policy: str = "clean",
    split_table: Path | None = None,
    options: Mapping[str, str] | None = None,
    hold_out: Sequence[str] = (),
) -> dict[str, Path]:
    """The raw file, or folder of files, of each record, by listing the raw folder again.

    A record of a part of a file (a segment, an epoch, a window) has the file's id with a suffix.
    All other arguments must be those of the build.

    Raises:
        BenchmdError: The raw folder is missing or of another layout, or holds no such record.
    """
    card = dataset_card(name)
    _, found, _ = discovered(card, raw, policy, split_table, options or {}, hold_out)
    paths = {item.record_id: raw / item.path for item in found.items}
    located = {}
    for record_id in record_ids:
        # a part of a file has the file's id with a suffix: the longest beginning is the file's
        ends = [len(record_id), *(m.start() for m in re.finditer(r"[^A-Za-z0-9]", record_id))]
        beginnings = (record_id[:end] for end in sorted(ends, reverse=True))
        whole = next((name for name in beginnings if name in paths), None)
        if whole is None:
            raise BenchmdError(
                f"{raw} holds no record {record_id!r} of {name} under the policy {policy}; its "
                f"records are named like {min(paths, default='nothing')!r}. Give the policy, split "
                "table and options that the catalog was built with, and the same BENCHMD_ID_KEY."
            )
        located[record_id] = paths[whole]
    return located
