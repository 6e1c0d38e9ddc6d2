"""Plain values as declared types: what is taken, and what is refused with its name."""

import math
from dataclasses import dataclass, field
from typing import Literal

import pytest

from benchmd_ray.errors import BenchmdError, shown
from benchmd_ray.schema.typed import PlainValue, typed


@dataclass(frozen=True)
class Inner:
    low: float
    high: float = 1.0


@dataclass(frozen=True)
class Outer:
    name: str
    kind: Literal["a", "b", 3]
    inner: Inner | None = None
    counts: dict[str, int] = field(default_factory=dict)
    more: dict[str, Inner] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def nested(levels):
    value = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (int, 3, 3),
        (float, 3, 3.0),
        (bool, False, False),
        (int | None, None, None),
        (list[float], [1, 2.5], [1.0, 2.5]),
        (tuple[int, ...], [1, 2], (1, 2)),
        (dict[str, PlainValue], {"a": None}, {"a": None}),
        (dict[int, str], {"28": "x"}, {28: "x"}),
        (Literal[0, 1], 1, 1),
    ],
)
def test_values_of_a_type_are_taken(kind, value, expected):
    found = typed(kind, value, "it")
    assert found == expected
    assert type(found) is type(expected)


def test_mappings_become_dataclasses():
    content = {"name": "x", "kind": 3, "inner": {"low": 0}, "more": {"y": {"low": 1, "high": 2}}}
    expected = Outer("x", 3, Inner(0.0), more={"y": Inner(1.0, 2.0)}, notes=("n",))
    assert typed(Outer, content | {"notes": ["n"]}, "it") == expected


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (int, True, "it is True, expected a whole number"),
        (bool, 1, "it is 1, expected true or false"),
        (str, 1, r"it is 1, expected text: write it in quotes\."),
        (str, True, r"it is True, .* in quotes \(unquoted, yes, no, on and off are truth values"),
        (int, 2**63, "it is 9223372036854775808, expected a number of 64 bits"),
        (list[int], [3.0], r"it is 3\.0, expected a whole number"),
        (int, math.inf, "it is inf, expected a finite number"),
        (float, math.nan, "it is nan, expected a finite number"),
        (float, "1", "it is '1', expected a number"),
        (float, 16**300, "it is .*, expected a number of 64 bits"),
        (float, [], r"it is \[\], expected a number"),
        (list[float], "0.5", r"it is '0\.5', expected a list"),
        (dict[str, PlainValue], {"a": {}}, r"it\.a is \{\}, expected a plain value"),
        (dict[str, int], {"a": "b"}, r"it\.a is 'b', expected a whole number"),
        (dict[str, int], {1: 2}, "it has the name 1, expected text: write it in quotes"),
        (Literal["left", "right"], "lift", "value of it: 'lift'. Did you mean 'left'"),
        (Outer, {"name": "x"}, "it is incomplete: kind is missing"),
        (Outer, {"name": "x", "kind": "a", "inner": {}}, "it: inner is incomplete: low is missing"),
        (Outer, {"nam": "x"}, "unknown key in it: 'nam'. Did you mean 'name'"),
        (Outer, [], r"it is \[\], expected the keys name, kind"),
        (Outer, {"name": "\ud800", "kind": "a"}, r"it: name is '\\ud800', expected Unicode text"),
        (Outer, {"name": {"\ud800": 1}}, r"it: name has the name '\\ud800', expected Unicode"),
        (Outer, {"name": "x", "kind": nested(300)}, "it: kind is nested in more than 100 levels"),
        (dict[str, PlainValue], {"a": nested(940)}, "it.a is nested in more than 100 levels"),
    ],
)
def test_others_are_refused_with_their_place(kind, value, message):
    with pytest.raises(BenchmdError, match=message):
        typed(kind, value, "it")


def test_long_values_are_shown_in_short():
    assert shown("short") == "'short'"
    for value in ("x" * 10**6, [[1] * 10**4] * 10**4, {n: n for n in range(10**4)}):
        assert len(shown(value)) < 200
