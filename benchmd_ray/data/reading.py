"""Raw files read into records; run as a module, it is the separate process that `apart` starts.

Only it imports the readers, whose libraries take a second to import.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmd_ray.data.apart import begin, serve
from benchmd_ray.data.cards import DatasetCard, card_of
from benchmd_ray.data.datasets import dataset_of
from benchmd_ray.data.quarantine import quarantined
from benchmd_ray.data.raw import RawItem
from benchmd_ray.data.records import Record, RecordExcluded, checked, to_table
from benchmd_ray.errors import BenchmdError
from benchmd_ray.extensions.extras import MissingExtra


def answer(request: dict[str, Any]) -> tuple[dict[str, Any], bytes | memoryview]:
    """The records of the raw files of a request, as `chunks.as_request` makes it.

    Gives ``excluded``, ``warnings``, ``quarantined`` (places with entries), and the records as an
    Arrow stream; or ``error`` where a file cannot be read for now, ``fault`` where the records
    cannot be stored.
    """
    card = _card(request["card"])
    try:
        head, records = _read([RawItem(**fields) for fields in request["items"]], request, card)
        return head, _stream(to_table(records, request["split"], card))
    except MemoryError:
        raise
    except BenchmdError as error:
        return {"error": str(error)}, b""
    except Exception as error:
        return {"fault": f"{type(error).__name__}: {error}"}, b""


@functools.lru_cache(maxsize=1)
def _card(content: str) -> DatasetCard:
    """The card of the requests: decoded once, as all chunks of a build have the same."""
    return card_of(json.loads(content), "the card of a build")


def _read(
    items: list[RawItem], request: dict[str, Any], card: DatasetCard
) -> tuple[dict[str, Any], list[Record]]:
    """Read the files one after the other.

    Raises:
        BenchmdError: One cannot be read for now, or its reader is not installed on this node.
    """
    records: list[Record] = []
    excluded: Counter[str] = Counter()
    warnings: Counter[str] = Counter()
    entries: list[tuple[int, dict[str, str | None]]] = []
    read = dataset_of(card).read
    for place, item in enumerate(items):
        begin(place)
        try:
            reading = read(Path(request["root"]), item, card)
            whole = [checked(record, card) for record in reading.records]
        except RecordExcluded as why:
            excluded[str(why)] += 1
        except (MemoryError, MissingExtra):
            raise
        except Exception as error:  # a file may be broken in ways that no reader foresees
            entries.append((place, quarantined(error, item, request["root"], card)))
        else:
            records.extend(whole)
            excluded.update(reading.excluded)
            warnings.update(reading.warnings)
    return {"excluded": excluded, "warnings": warnings, "quarantined": entries}, records


def _stream(table: pa.Table) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return memoryview(sink.getvalue())


if __name__ == "__main__":
    serve(answer)
