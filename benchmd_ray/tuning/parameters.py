"""What a search varies: settings, each with a kind, a range and the value that it starts at."""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from benchmd_ray.errors import BenchmdError
from benchmd_ray.models.networks import network_part
from benchmd_ray.settings.definition import Settings, updated

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

Kind = Literal["float", "log float", "int", "log int", "choice"]
KINDS: tuple[Kind, ...] = typing.get_args(Kind)
"""A number on a linear or a logarithmic scale, a whole number likewise, or one of some values."""

OPTIONS = ("pretrain.options", "encoder.options")
"""Settings that hold what a user's own method or encoder network reads, by name."""
NETWORK = "encoder.network"
"""Setting that names the encoder network."""
INHERITED = {
    "transfer.dropout": "encoder.dropout",
    "transfer.embedding_dropout": "encoder.embedding_dropout",
}
"""Settings that take the value of another while they are null."""
LARGEST = 2**53
"""Numbers of a space are smaller: floats hold all whole ones below."""
MOST_VALUES, MOST_STEPS, MOST_TRIALS = 1000, 1_000_000, 100_000
"""Values of a choice, steps of a range, and trials of a search, at most."""


@dataclass(frozen=True)
class Parameter:
    """One setting that a search varies."""

    name: str
    """Name of the setting, such as ``transfer.optimiser.lr``."""
    kind: Kind
    default: Any
    """The value that the search starts at; it keeps it where the parameter is not active."""
    low: float | None = None
    high: float | None = None
    """Ends of a range, both included."""
    step: float | None = None
    """Distance of the values of a range, counted from ``low``; None: any value, or any integer."""
    values: tuple[Any, ...] = ()
    """Values of a choice."""
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Searched only while each of these other settings has one of its values."""

    @property
    def range(self) -> str:
        """Its range in words, for messages."""
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
        """A value that it holds, of its own type: one of the choice, else a float or an integer."""
        if self.kind == "choice":
            return self.values[self.values.index(value)]
        return round(value) if self.kind.endswith("int") else float(value)

    def active(self, values: Mapping[str, Any]) -> bool:
        """Whether it is searched while the other parameters have these values."""
        return all(values[other] in allowed for other, allowed in self.when.items())

    def suggest(self, trial: BaseTrial) -> Any:
        """A value that the trial's sampler proposes."""
        if self.kind == "choice":
            return trial.suggest_categorical(self.name, self.values)
        assert self.low is not None  # a range has both ends, which mypy cannot know
        assert self.high is not None
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


@dataclass(frozen=True)
class Space:
    """What a search varies."""

    name: str
    """Name in messages: of its file and of the modality."""
    parameters: tuple[Parameter, ...]
    """In order: a parameter comes after those that it depends on."""

    @property
    def start(self) -> dict[str, Any]:
        """What the first trial takes, by name; parameters that are not active are excluded."""
        return self._chosen(lambda parameter: parameter.default)

    def filled(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Values that are given where the space holds them, else those of the start."""

        def choose(parameter: Parameter) -> Any:
            value = given.get(parameter.name)
            fits = value is not None and parameter.holds(value)
            return parameter.taken(value) if fits else parameter.default

        return self._chosen(choose)

    def suggest(self, trial: BaseTrial) -> dict[str, Any]:
        """What the trial's sampler proposes, by name; parameters not active are excluded."""
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

    Options of an encoder network belong to it: another network begins without them, unless both
    are ResNets, whose options are the same.

    Raises:
        BenchmdError: A setting does not exist or refuses its value.
    """
    return updated(_with_network(settings, values.get(NETWORK)), nested(values))


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by the full names of settings, by group: ``{"a.b": 1}`` as ``{"a": {"b": 1}}``."""
    groups: dict[str, Any] = {}
    for name, value in values.items():
        *path, last = name.split(".", 2)
        inner = groups
        for group in path:
            inner = inner.setdefault(group, {})
        inner[last] = value
    return groups


def _with_network(settings: Settings, network: str | None) -> Settings:
    """``settings`` with a network, and of their options those that it reads."""
    before = settings.encoder.network
    if network in (None, before) or {*map(network_part, (network, before))} == {"resnet"}:
        return settings
    return replace(settings, encoder=replace(settings.encoder, network=network, options={}))


def value_of(settings: Settings, name: str, default: Any = None) -> Any:
    """Value of a setting; ``default`` for an option that is not set.

    Raises:
        BenchmdError: There is no such setting.
    """
    value: Any = settings
    for part in name.split(".", 2):
        if isinstance(value, Mapping):
            return value.get(part, default)
        if not hasattr(value, part):
            raise BenchmdError(f"there is no setting {name}: see `benchmd settings`.")
        value = getattr(value, part)
    return value_of(settings, INHERITED[name]) if value is None and name in INHERITED else value


def fitting_step(low: float, high: float, step: float) -> bool:
    """Whether a range has one to `MOST_STEPS` steps."""
    return step > 0 and 1 - 1e-8 <= (high - low) / step <= MOST_STEPS


@functools.cache
def setting_types(group: type = Settings, prefix: str = "") -> Mapping[str, Any]:
    """Types of all settings by name; `OPTIONS` are among them as dictionaries."""
    types: dict[str, Any] = {}
    for name, kind in typing.get_type_hints(group).items():
        if is_dataclass(kind):
            types |= setting_types(typing.cast(type, kind), f"{prefix}{name}.")
        else:
            types[prefix + name] = kind
    return types


def without(parameters: tuple[Parameter, ...], fixed: Mapping[str, Any]) -> tuple[Parameter, ...]:
    """Parameters but those that keep one value, with the conditions on these settled."""
    settled = dict(fixed)
    left: list[Parameter] = []
    for p in parameters:
        if p.name in settled:
            continue
        open_ = {other: allowed for other, allowed in p.when.items() if other not in settled}
        closed = any(settled[other] not in p.when[other] for other in p.when if other in settled)
        if closed or not all(open_.values()):
            settled[p.name] = p.default  # never searched: it keeps its value
        else:
            left.append(replace(p, when=open_))
    return tuple(left)
