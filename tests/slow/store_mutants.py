"""Mutants of the files of a store and of a catalog, all with the right hashes and checksums.

They are what a faulty writer, another version or a forger could leave: damage that a hash finds is
tried elsewhere. Each mutator changes one file in place.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from forging import Key, forge_json, json_leaves, with_value

from benchmd_ray.data.catalog import MANIFEST
from benchmd_ray.files.atomic import digest, json_bytes, sha256
from benchmd_ray.files.integrity import CHECK, HASH, checked, write_hash

Mutator = Callable[[Path, np.random.Generator], None]
NESTED = "@nested@"
"""Becomes nesting, which Python's own JSON writer could not write."""
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63), 10**400, 0.5, -0.0),
    *(1e308, 5e-324, float("nan"), float("inf"), float("-inf")),
    *("", " ", "0", "-1", "nan", "x" * 100_000, "\0", "\ud800", "../../x", "/", "%s%n", "{0}"),
    *("<script>", "=1+1", "evil:make", "\n", "é́", "step_-1", "2020-13-45", "1e999", NESTED),
    *([], [[]], [None], [0] * 1000, {}, {"": ""}, {"x": {}}, {"mean": [float("nan")]}),
)
"""Values that stand where others are expected."""


def mutate_json(path: Path, rng: np.random.Generator) -> None:
    """One to three changes in a JSON object, which then has the right hash and folder."""
    content = json.loads(path.read_text("utf-8"))
    content = {key: value for key, value in content.items() if key not in (HASH, "digest")}
    for _ in range(int(rng.integers(1, 4))):
        content = changed(content, rng)
    try:
        forge_json(path, content)
    except UnicodeEncodeError:  # half a surrogate pair, of which there is no hash
        path.write_text(json.dumps({**content, HASH: "0" * 64}), "utf-8")
    _nest(_moved(path), rng)


def mutate_lines(path: Path, rng: np.random.Generator) -> None:
    """One to three changes in a log, whose lines then have the right checksums."""
    lines = [json.loads(text) for text in path.read_text("utf-8").splitlines()]
    lines = [{k: v for k, v in held.items() if k != CHECK} for held in lines]
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(lines))) if lines else 0
        match int(rng.integers(5)):
            case 0:
                lines = lines[:at] + lines[at + 1 :]
            case 1:
                lines = [*lines[: at + 1], *lines[at:]]
            case 2:
                lines = [lines[i] for i in rng.permutation(len(lines))]
            case _ if lines:
                lines[at] = changed(lines[at], rng)
    texts = [json.dumps(_checked(held)) for held in lines]
    path.write_text("\n".join(texts) + "\n", "utf-8")
    _nest(path, rng)


def _checked(held: Any) -> Any:
    try:
        return checked(held) if isinstance(held, dict) else held
    except UnicodeEncodeError:  # half a surrogate pair, of which there is no checksum
        return {**held, CHECK: "0" * 8}


def changed(content: Any, rng: np.random.Generator) -> Any:
    """Nested JSON with one change."""
    leaves = list(json_leaves(content))
    if not leaves:
        return content
    way, value = leaves[int(rng.integers(len(leaves)))]
    way = way[: int(rng.integers(1, len(way) + 1))] if rng.random() < 0.3 else way
    match int(rng.integers(6)):
        case 0:
            return without(content, way)
        case 1:  # what another place holds
            return with_value(content, way, leaves[int(rng.integers(len(leaves)))][1])
        case 2 if isinstance(value, str) and value:
            at = int(rng.integers(len(value)))
            return with_value(
                content, way, value[:at] + chr(int(rng.integers(1, 300))) + value[at:]
            )
        case 3 if isinstance(value, int | float) and abs(value) < 2**63:
            factor = (-1, 0, 1e9, 1e-9)[int(rng.integers(4))]
            return with_value(content, way, type(value)(value * factor))
        case _:
            return with_value(content, way, ODD[int(rng.integers(len(ODD)))])


def without(content: Any, way: tuple[Key, ...]) -> Any:
    """Nested JSON that lacks a value."""
    if len(way) > 1:
        return with_value(content, way[:1], without(content[way[0]], way[1:]))
    if isinstance(content, dict):
        return {key: held for key, held in content.items() if key != way[0]}
    return [held for number, held in enumerate(content) if number != way[0]]


def _moved(path: Path) -> Path:
    """Where a file is now that its folder was named for what it says."""
    if path.exists():
        return path
    (found,) = path.parent.parent.glob(f"{path.parent.name.rpartition('-')[0]}-*/{path.name}")
    return found


def _nest(path: Path, rng: np.random.Generator) -> None:
    """Write nesting where it is wanted, near and far beyond what Python follows."""
    text = path.read_text("utf-8", "surrogatepass")
    if NESTED in text:
        depth = int(rng.choice([5, 300, 900, 950, 980, 1000, 5000, 100_000]))
        path.write_text(text.replace(f'"{NESTED}"', "[" * depth + "]" * depth), "utf-8")


def mutate_parquet(path: Path, rng: np.random.Generator) -> None:
    """One to three changes of a table's columns, values or metadata, or of the file's bytes."""
    table = pq.read_table(path)
    for _ in range(int(rng.integers(1, 4))):
        table = changed_table(table, rng)
    pq.write_table(table, path)
    if rng.random() < 0.2:
        flip(path, rng)
    write_hash(path)


def changed_table(table: pa.Table, rng: np.random.Generator) -> pa.Table:
    """A table with one change."""
    at = int(rng.integers(max(1, table.num_columns)))
    kind = int(rng.integers(9))
    if not table.num_columns or (kind == 0 and table.schema.metadata):
        return _other_metadata(table, rng)
    name, column = table.column_names[at], table.column(at)
    match kind:
        case 1:
            return table.remove_column(at)
        case 2:
            other = table.column(int(rng.integers(table.num_columns)))
            return table.set_column(at, name, other)
        case 3:
            return table.slice(0, int(rng.integers(3)))
        case 4:
            return table.take(rng.integers(len(table), size=len(table))) if len(table) else table
        case 5:
            return table.set_column(at, name, pa.nulls(len(table), column.type))
        case 6:
            return table.append_column(name, column)
        case 7:
            to = (pa.string(), pa.float32(), pa.int64(), pa.binary(), pa.bool_())
            try:
                return table.set_column(at, name, column.cast(to[int(rng.integers(len(to)))]))
            except pa.ArrowException:
                return table.set_column(at, name, pa.array([b""] * len(table)))
        case _:
            return table.set_column(at, name, _other_values(column, rng))


def _other_values(column: pa.ChunkedArray, rng: np.random.Generator) -> pa.Array:
    """Values of the same type, some of them odd."""
    values = column.to_pylist()
    if not values:
        return column.combine_chunks()
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(values)))
        held = values[at]
        if isinstance(held, list) and held:
            held[int(rng.integers(len(held)))] = _odd_like(held[0], rng)
        else:
            values[at] = _odd_like(held, rng)
    try:
        return pa.array(values, column.type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return column.combine_chunks()


def _odd_like(value: Any, rng: np.random.Generator) -> Any:
    if isinstance(value, dict):
        return {key: _odd_like(held, rng) for key, held in value.items()}
    if isinstance(value, bytes):
        return rng.bytes(len(value))
    alike = [odd for odd in ODD if type(odd) is type(value)] or list(ODD[:4])
    if isinstance(value, int):
        alike += [-128, 127, 2]
    return alike[int(rng.integers(len(alike)))]


def _other_metadata(table: pa.Table, rng: np.random.Generator) -> pa.Table:
    held = dict(table.schema.metadata or {b"x": b"1"})
    key = list(held)[int(rng.integers(len(held)))]
    try:
        values = json.loads(held[key])
    except ValueError:
        values = held[key].decode()
    match int(rng.integers(3)):
        case 0:
            del held[key]
        case 1:
            held[key] = json.dumps(changed({"x": values}, rng).get("x")).encode()
        case _:
            held[key] = str(ODD[int(rng.integers(len(ODD)))]).encode("utf-8", "surrogatepass")
    return table.replace_schema_metadata(held)


def flip(path: Path, rng: np.random.Generator) -> None:
    """Change some bytes of a file, more of them at its end, or cut it off."""
    data = bytearray(path.read_bytes())
    for _ in range(int(rng.integers(1, 4))):
        if not data:
            return
        end = len(data) if rng.random() < 0.5 else min(len(data), 2048)
        at = len(data) - 1 - int(rng.integers(end))
        match int(rng.integers(4)):
            case 0:
                data[at] ^= 1 << int(rng.integers(8))
            case 1:
                data[at] = int(rng.choice([0, 255, 127, 128]))
            case 2:
                data[at : at + 8] = struct.pack("<q", int(rng.choice([-1, 0, 2**31, 2**62])))
            case _ if len(data) > 16:
                del data[at:]
    path.write_bytes(data)


def mutate_weights(path: Path, rng: np.random.Generator) -> None:
    """Changes in the header or the numbers of weights; ``done`` and ``model`` have their hash."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + length]), bytearray(data[8 + length :])
    match int(rng.integers(4)):
        case 0:  # odd numbers
            for value in (np.nan, np.inf, 1e38):
                at = int(rng.integers(len(body) // 4)) * 4
                body[at : at + 4] = struct.pack("<f", value)
        case 1:
            del body[int(rng.integers(len(body))) :]
        case _:
            for _ in range(int(rng.integers(1, 3))):
                header = changed(header, rng)
    text = json.dumps(header).encode()
    stated = int(rng.choice([0, 1, 2**40, 2**63])) if rng.random() < 0.05 else len(text)
    path.write_bytes(struct.pack("<Q", stated) + text + bytes(body))
    if rng.random() < 0.1:
        flip(path, rng)
    _state_weights(path)


def _state_weights(path: Path) -> None:
    held = sha256(path)
    for name, key in (("done.json", "model_sha256"), ("model.json", "weights")):
        file = path.with_name(name)
        content = json.loads(file.read_text("utf-8"))
        forge_json(file, {**content, key: held})


def mutate_shard(path: Path, rng: np.random.Generator) -> None:
    """Changes in a shard; its catalog's manifest has its rows, size and hash."""
    mutate_parquet(path, rng)
    path.with_name(f"{path.name}.sha256").unlink()
    catalog = path.parent.parent
    content = json.loads((catalog / MANIFEST).read_text("utf-8"))
    for shard in content["shards"]:
        if shard["file"].endswith(path.name):
            shard |= {"bytes": path.stat().st_size, "sha256": sha256(path)}
    plain = {key: held for key, held in content.items() if key != "digest"}
    (catalog / MANIFEST).write_bytes(json_bytes({**plain, "digest": digest(plain)}))


def mutate_array(path: Path, rng: np.random.Generator) -> None:
    """Changes in the header or the bytes of an array of numpy, with the right hash."""
    data = path.read_bytes()
    odd = (
        b"(-1,)",
        b"(99999999999,)",
        b"(2, 2)",
        b"()",
        b"'|O'",
        b"'<f8'",
        b"True",
        b"((",
        b"1" * 99,
    )
    at = data.find(b"shape" if rng.random() < 0.5 else b"descr")
    if at > 0 and rng.random() < 0.5:
        value = odd[int(rng.integers(len(odd)))]
        start = at + 8
        data = data[:start] + value + data[start + len(value) :]
    path.write_bytes(data)
    if rng.random() < 0.5:
        flip(path, rng)
    write_hash(path)
