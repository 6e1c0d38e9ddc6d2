"""Small files: read whole, but not however large they are."""

from __future__ import annotations

from pathlib import Path

from benchmd_ray.data.records import RecordError


def read_bounded(path: Path, limit: int, what: str, *, first_bytes: int | None = None) -> bytes:
    """The bytes of a file.

    Args:
        path: The file.
        limit: Bytes that it may have.
        what: What it is, for messages, such as ``the annotation``.
        first_bytes: Read the beginning alone; None reads all.

    Raises:
        RecordError: It cannot be opened or is larger.
    """
    try:
        size = path.stat().st_size
        if size > limit:
            raise RecordError(f"{what} has {size:,} bytes, expected at most {limit:,}")
        with path.open("rb") as file:
            return file.read(first_bytes)
    except OSError as error:
        raise RecordError(f"{what} cannot be opened: {error.strerror or error}") from None
