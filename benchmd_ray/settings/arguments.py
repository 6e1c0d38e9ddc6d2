"""Settings as arguments of Python functions: mappings by group, also with NumPy numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from benchmd_ray.errors import BenchmdError, sort_of


def plain(settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """Settings with plain numbers instead of NumPy's.

    Raises:
        BenchmdError: They are not a mapping.
    """
    if not isinstance(settings or {}, Mapping):
        raise BenchmdError(
            f"the settings are {sort_of(settings)}, expected a mapping by group, such as "
            '{"transfer": {"epochs": 5}}.'
        )
    converted: dict[str, Any] = _without_numpy(settings or {})
    return converted


def assignments(settings: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Settings as assignments of commands: ``transfer.epochs=5``.

    Raises:
        BenchmdError: They are not a mapping.
    """
    return tuple(f"{name}={json.dumps(value)}" for name, value in flat(plain(settings)))


def _without_numpy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _without_numpy(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_numpy(item) for item in value]
    return value.item() if hasattr(value, "dtype") and hasattr(value, "item") else value


def flat(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Values of nested groups by full name, such as ``pretrain.optimiser.lr``."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
