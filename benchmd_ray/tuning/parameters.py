"""Parameters of a search space: kind, range and default of a setting."""

from __future__ import annotations

import functools
import math
import typing
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from benchmd_ray.errors import BenchmdError, shown, unknown_name
from benchmd_ray.models.networks import network_part
from benchmd_ray.schema.typed import PlainValue, checked, typed
from benchmd_ray.settings.definition import Settings, updated

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

Kind = Literal["float", "log float", "int", "log int", "choice"]
KINDS: tuple[Kind, ...] = typing.get_args(Kind)
"""Numbers or whole numbers on a linear or logarithmic scale, or a choice."""

OPTIONS = ("pretrain.options", "encoder.options")
"""Settings with the options of a custom method or encoder network."""
NETWORK = "encoder.network"
INHERITED = {
    "transfer.dropout": "encoder.dropout",
    "transfer.embedding_dropout": "encoder.embedding_dropout",
}
"""Settings that take the value of another while they are null."""
LARGEST = 2**53
"""Bound of numbers in a space: all smaller whole numbers are exact as floats."""
MOST_VALUES, MOST_STEPS, MOST_TRIALS = 1000, 1_000_000, 100_000
"""Limits of a choice, a range and a search."""


Number = Annotated[
    Any,
    checked(
        lambda value: (
            value is None
            or (isinstance(value, int | float) and type(value) is not bool and abs(value) < LARGEST)
        ),
        f"a number of less than {LARGEST:,}",
    ),
]
"""A number that is exact in arrays."""
Value = Annotated[
    PlainValue,
    checked(
        lambda value: not isinstance(value, int | float) or abs(value) < LARGEST,
        f"a number of less than {LARGEST:,}, or another plain value",
    ),
]


@dataclass(frozen=True)
class Parameter:
    """A setting that a search varies; its fields but the name are the keys of files."""

    name: str
    kind: Kind
    default: Value = None
    """Value at the start, and while the parameter is inactive."""
    low: Number = None
    high: Number = None
    """Ends of a range, both included."""
    step: Number = None
    """Spacing of the values of a range from ``low``; None: any value, or any whole number."""
    values: tuple[Value, ...] = ()
    when: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    """The parameter is active only while each of these other settings has one of the listed
    values.
    """

    @classmethod
    def read(cls, name: str, entry: Mapping[Any, Any], where: str) -> Parameter:
        """A parameter from a file; its default may be missing or outside.

        Raises:
            BenchmdError: A key or its value, the range or the choice is not valid.
        """
        for key in entry:
            if key not in KEYS:
                raise unknown_name(f"key in {where}:", str(key), KEYS)
        parameter: Parameter = typed(cls, {"name": name, **entry}, where)
        choice = parameter.kind == "choice"
        if fault := parameter._fault_of_choice() if choice else parameter._fault_of_range():
            raise BenchmdError(f"{where}: {fault}")
        if parameter.holds(parameter.default):
            parameter = replace(parameter, default=parameter.taken(parameter.default))
        numbers = {key: getattr(parameter, key) for key in ("low", "high", "step")}
        return replace(
            parameter,
            **{
                key: parameter.taken(number)
                for key, number in numbers.items()
                if number is not None
            },
        )

    def _fault_of_choice(self) -> str:
        values = self.values
        if {self.low, self.high, self.step} != {None}:
            return "low, high and step are not keys of the kind choice: give values."
        if not 2 <= len(values) <= MOST_VALUES:
            return f"values has {len(values):,}, expected 2 to {MOST_VALUES:,}."
        kinds = {float if type(value) is int else type(value) for value in values}
        if len(kinds) > 1 or kinds == {type(None)}:
            return (
                f"values is {shown([*values])}, expected only texts, only numbers, or true and "
                "false, since the table of trials has one column for them."
            )
        value, count = Counter(values).most_common(1)[0]
        return f"values has {shown(value)} twice, expected each once." if count > 1 else ""

    def _fault_of_range(self) -> str:
        low, high, step = self.low, self.high, self.step
        if self.values:
            return f"values is not a key of the kind {self.kind}: give low and high."
        if low is None or high is None:
            return f"the kind {self.kind} needs low and high."
        for key, value in (("low", low), ("high", high), ("step", step)):
            if self.kind.endswith("int") and value is not None and value != round(value):
                return f"{key} is {shown(value)}, expected a whole number."
        if not low < high:
            return f"low is {low:g} and high {high:g}, expected low below high."
        if self.kind.startswith("log") and low <= 0:
            return f"low is {low:g}, but a logarithmic scale starts above 0."
        if self.kind.startswith("log") and step is not None:
            return "step is not a key of a logarithmic scale: remove it."
        if step is not None and not (
            step > 0 and 1 - 1e-8 <= (high - low) / step <= MOST_STEPS and self.holds(high)
        ):
            return (
                f"step is {step:g}, expected a number above 0 that divides the range {low:g} to "
                f"{high:g} into at most {MOST_STEPS:,} steps."
            )
        return ""

    @property
    def range(self) -> str:
        if self.kind == "choice":
            return f"one of {', '.join(map(str, self.values))}"
        steps = "" if self.step is None else f" in steps of {self.step:g}"
        return f"{self.low:g} to {self.high:g}{steps}"

    def holds(self, value: object) -> bool:
        """Whether a search can choose this value."""
        if self.kind == "choice":
            return value in self.values
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        if self.low is None or self.high is None or not self.low <= value <= self.high:
            return False
        step = self.step or (1 if self.kind.endswith("int") else None)
        steps = 0.0 if step is None else (value - self.low) / step
        return math.isfinite(steps) and abs(steps - round(steps)) < 1e-8

    def taken(self, value: Any) -> Any:
        """A valid value in the parameter's own type."""
        if self.kind == "choice":
            return self.values[self.values.index(value)]
        return round(value) if self.kind.endswith("int") else float(value)

    def active(self, values: Mapping[str, Any]) -> bool:
        """Whether it is searched given the values of the other parameters."""
        return all(values[other] in allowed for other, allowed in self.when.items())

    def suggest(self, trial: BaseTrial) -> Any:
        """A value proposed by the trial's sampler."""
        if self.kind == "choice":
            return trial.suggest_categorical(self.name, self.values)
        log = self.kind.startswith("log")
        if self.kind.endswith("int"):
            low, high, step = int(self.low), int(self.high), int(self.step or 1)
            return trial.suggest_int(self.name, low, high, step=step, log=log)
        return trial.suggest_float(self.name, self.low, self.high, step=self.step, log=log)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        plain: dict[str, Any] = {"kind": self.kind}
        if self.kind == "choice":
            plain["values"] = list(self.values)
        else:
            plain |= {"low": self.low, "high": self.high}
        if self.step is not None:
            plain["step"] = self.step
        plain["default"] = self.default
        if self.when:
            plain["when"] = {other: list(allowed) for other, allowed in self.when.items()}
        return plain


KEYS = tuple(part.name for part in fields(Parameter) if part.name != "name")
"""Keys of an entry in a file."""


@dataclass(frozen=True)
class Space:
    name: str
    parameters: tuple[Parameter, ...]
    """Parameters in order: each follows those that it depends on."""

    @property
    def start(self) -> dict[str, Any]:
        """Values of the first trial by name, active parameters only."""
        return self._chosen(lambda parameter: parameter.default)

    def filled(self, preferred: Mapping[str, Any]) -> dict[str, Any]:
        """The given values that are valid in the space, and the start's values for the rest."""

        def choose(parameter: Parameter) -> Any:
            value = preferred.get(parameter.name)
            fits = value is not None and parameter.holds(value)
            return parameter.taken(value) if fits else parameter.default

        return self._chosen(choose)

    def suggest(self, trial: BaseTrial) -> dict[str, Any]:
        """Values proposed by the trial's sampler, by name, for active parameters only."""
        return self._chosen(lambda parameter: parameter.suggest(trial))

    def _chosen(self, choose: Callable[[Parameter], Any]) -> dict[str, Any]:
        values = {parameter.name: parameter.default for parameter in self.parameters}
        chosen = {}
        for parameter in self.parameters:
            if parameter.active(values):
                chosen[parameter.name] = values[parameter.name] = choose(parameter)
        return chosen

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Plain values by name, for JSON."""
        return {parameter.name: parameter.as_dict() for parameter in self.parameters}


def applied(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """``settings`` with other values.

    A new encoder network starts without the options of the old one, unless both are ResNets.
    """
    before, network = settings.encoder.network, values.get(NETWORK)
    if network not in (None, before) and {*map(network_part, (network, before))} != {"resnet"}:
        encoder = replace(settings.encoder, network=network, options={})
        settings = replace(settings, encoder=encoder)
    return updated(settings, nested(values))


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Full names as nested groups: ``{"a.b": 1}`` → ``{"a": {"b": 1}}``."""
    groups: dict[str, Any] = {}
    for name, value in values.items():
        *path, last = name.split(".", 2)
        inner = groups
        for group in path:
            inner = inner.setdefault(group, {})
        inner[last] = value
    return groups


def value_of(settings: Settings, name: str, default: Any = None) -> Any:
    """Value of a setting; ``default`` for an option that is not set."""
    value: Any = settings
    for part in name.split(".", 2):
        if isinstance(value, Mapping):
            return value.get(part, default)
        if not hasattr(value, part):
            raise BenchmdError(f"there is no setting {name}: see `benchmd settings`.")
        value = getattr(value, part)
    return value_of(settings, INHERITED[name]) if value is None and name in INHERITED else value


@functools.cache
def setting_types(group: type = Settings, prefix: str = "") -> Mapping[str, Any]:
    """Types of all settings by name; `OPTIONS` are dictionaries."""
    types: dict[str, Any] = {}
    for name, kind in typing.get_type_hints(group).items():
        if is_dataclass(kind):
            types |= setting_types(typing.cast(type, kind), f"{prefix}{name}.")
        else:
            types[prefix + name] = kind
    return types


def without(parameters: tuple[Parameter, ...], fixed: Mapping[str, Any]) -> tuple[Parameter, ...]:
    """The parameters that are not fixed, with conditions on fixed ones resolved."""
    settled = dict(fixed)
    left: list[Parameter] = []
    for p in parameters:
        if p.name in settled:
            continue
        open_ = {other: allowed for other, allowed in p.when.items() if other not in settled}
        closed = any(settled[other] not in p.when[other] for other in p.when if other in settled)
        if closed or not all(open_.values()):
            settled[p.name] = p.default  # never active: it keeps its value
        else:
            left.append(replace(p, when=open_))
    return tuple(left)
