"""Builds without Ray and without a process apart, for tests that look at other things."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from benchmd_ray.data import apart, chunks, reading
from benchmd_ray.data import build as building


class Here:
    """Answers calls in this process, as `apart.Apart` lets another one do."""

    def __init__(self, answer: apart.Answer) -> None:
        self._answer = answer

    def call(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytearray]:
        head, data = self._answer(json.loads(json.dumps(request)))
        return json.loads(json.dumps(head)), bytearray(data)

    def close(self) -> None:
        """There is nothing to end."""


def build_in_process(patch: pytest.MonkeyPatch) -> None:
    """Let builds work in this process, chunk after chunk."""

    def build_all(waiting: Sequence[chunks.Chunk]) -> Iterator[dict[str, Any]]:
        for chunk in waiting:
            yield json.loads(building.build_row(building.as_row(chunk), chunk.card)["part"])

    patch.setattr(chunks, "PROCESS", Here(reading.answer))
    patch.setattr(building, "_map", build_all)
    patch.setattr(building, "connected", lambda *_, **__: contextlib.nullcontext())
