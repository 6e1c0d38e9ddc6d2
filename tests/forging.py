"""What somebody who can write a store could put there: other values, with the right hashes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmd_ray.data.catalog import MANIFEST
from benchmd_ray.files.atomic import digest, json_bytes
from benchmd_ray.files.integrity import HASH, OF, checked, name_of, read_line, write_hash

Key = str | int


def json_leaves(value: Any, path: tuple[Key, ...] = ()) -> Iterator[tuple[tuple[Key, ...], Any]]:
    """Every value in nested JSON that holds no other, with the way to it."""
    if isinstance(value, dict):
        for key, held in value.items():
            yield from json_leaves(held, (*path, key))
    elif isinstance(value, list):
        for number, held in enumerate(value):
            yield from json_leaves(held, (*path, number))
    else:
        yield path, value


def with_value(value: Any, path: tuple[Key, ...], new: Any) -> Any:
    """Nested JSON with another value at a place."""
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = with_value(value[path[0]], path[1:], new)
    return copy


def forge_json(path: Path, content: dict[str, Any]) -> Path:
    """Write a JSON file of a store or a catalog with the right hash.

    Returns:
        Its folder, which is renamed where the content names it.
    """
    plain = {key: held for key, held in content.items() if key not in (HASH, "digest")}
    if path.name == MANIFEST:
        sealed = {**plain, "digest": digest(plain)}
    else:
        sealed = {**plain, HASH: digest(plain)}
    path.write_bytes(json_bytes(sealed))
    if path.name in ("run.json", "search.json") and "determinants" in plain:
        stem = path.parent.name.rpartition("-")[0]
        name = f"{stem}-{digest(plain['determinants'])[:12]}"
        return _take_over(path.parent.rename(path.parent.with_name(name)))
    return path.parent


def _take_over(folder: Path) -> Path:
    """Let the files of a folder that was renamed say that they are of it."""
    for path in (*folder.glob("*.json"), *folder.glob("checkpoints/*/checkpoint.json")):
        content = json.loads(path.read_text("utf-8"))
        if OF in content:
            forge_json(path, {**content, OF: name_of(folder)})
    for path in (*folder.glob("*.parquet"), *folder.glob("predictions/*/*.parquet")):
        forge_metadata(path, OF, name_of(folder))
    for path in folder.glob("study.log"):
        forge_line(path, 0, {**log_lines(path)[0], OF: name_of(folder)})
    return folder


def forge_line(path: Path, number: int, content: Any) -> None:
    """Write another line of a log with the right checksum."""
    lines = path.read_text("utf-8").splitlines()
    sealed = checked(content) if isinstance(content, dict) else content
    lines[number] = json.dumps(sealed)
    path.write_text("\n".join(lines) + "\n", "utf-8")


def forge_metadata(path: Path, name: str, value: str) -> None:
    """Write another value into the metadata of a Parquet file, with the right hash."""
    table = pq.read_table(path)
    metadata = {**(table.schema.metadata or {}), name.encode(): value.encode()}
    pq.write_table(table.replace_schema_metadata(metadata), path)
    write_hash(path)


def log_lines(path: Path) -> list[dict[str, Any]]:
    """Lines of a log, without their checksums."""
    lines = [read_line(text) for text in path.read_text("utf-8").splitlines()]
    return [line for line in lines if line is not None]
