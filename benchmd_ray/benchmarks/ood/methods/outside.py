"""Detectors from outside the package: arrays are read-only, and results are checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmd_ray.benchmarks.ood.methods.method import Bank, Calibration, Detector, Head, Seen
from benchmd_ray.benchmarks.ood.table import KEYS
from benchmd_ray.errors import BenchmdError, first_line

TAKEN = {*KEYS, "features", "logits", "pixels", "deep-ensemble"}
"""Names that are other columns' or other quantities'."""


def guarded(method: Detector) -> Detector:
    """A detector whose functions get read-only arrays and whose results are checked.

    Raises:
        BenchmdError: Its name is taken, or its needs or its grid cannot be used.
    """
    if method.name in TAKEN:
        raise BenchmdError(f"a detector cannot be named {method.name}: choose another name.")
    if isinstance(method.needs, str) or not all(isinstance(need, str) for need in method.needs):
        raise BenchmdError(
            f"the detector {method.name} needs {method.needs!r}: expected a tuple of names."
        )
    if empty := [name for name, values in method.grid.items() if not len(values)]:
        raise BenchmdError(
            f"the detector {method.name} has no value of {empty[0]} in its grid: name some."
        )
    checks = {"fit": _state, "score": _score, "calibrate": _state, "asks": None, "once": _rows}
    changed: dict[str, Any] = {
        name: partial(_called, method.name, name, getattr(method, name), check)
        for name, check in checks.items()
        if getattr(method, name) is not None
    }
    return replace(method, **changed)


def _called(
    detector: str,
    what: str,
    work: Callable[..., Any],
    check: Callable[[Any, int], str] | None,
    *arguments: Any,
    **named: Any,
) -> Any:
    """What a function of a detector gives; its failures name the detector."""
    try:
        result = work(*map(_read_only, arguments), **named)
    except BenchmdError:
        raise
    except Exception as error:  # whatever code from outside does
        raise BenchmdError(
            f"{what} of the detector {detector} fails with {type(error).__name__}: "
            f"{first_line(error)}. Correct it, or uninstall it."
        ) from error
    records = next((len(argument) for argument in arguments if isinstance(argument, Seen)), 0)
    if check is not None and (fault := check(result, records)):
        raise BenchmdError(f"{what} of the detector {detector} gives {fault}.")
    return result


def _read_only(value: Any) -> Any:
    """The same, with views of its arrays that cannot be written to."""
    if isinstance(value, np.ndarray):
        view = value.view()
        view.flags.writeable = False
        return view
    if isinstance(value, dict):
        return {name: _read_only(item) for name, item in value.items()}
    if isinstance(value, Seen | Bank | Calibration | Head):
        values = {item.name: getattr(value, item.name) for item in fields(value)}
        return replace(value, **{name: _read_only(item) for name, item in values.items()})
    return value


def _state(state: Any, _: int) -> str:
    if isinstance(state, dict) and all(
        isinstance(name, str) and isinstance(array, np.ndarray) and array.dtype.kind in "biuf"
        for name, array in state.items()
    ):
        return ""
    return f"{_described(state)}, expected a dict of arrays of numbers by name"


def _score(scores: Any, records: int) -> str:
    array = scores if isinstance(scores, np.ndarray) else np.empty(())
    if array.shape == (records,) and array.dtype.kind == "f":
        return ""
    return (
        f"{_described(scores)}, expected an array of floating-point numbers of shape ({records},)"
    )


def _rows(rows: Any, records: int) -> str:
    array: npt.NDArray[Any] = rows if isinstance(rows, np.ndarray) else np.empty(())
    if array.ndim and len(array) == records and array.dtype.kind in "biuf":
        return ""
    return f"{_described(rows)}, expected an array of numbers of shape ({records}, …)"


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {value.shape}"
    return f"a value of the type {type(value).__name__}"
