"""Entries of a search space's file, validated against the settings that they vary."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmd_ray.errors import BenchmdError, shown, unknown_name
from benchmd_ray.modality.modalities import Modality
from benchmd_ray.models.encoder import require_signals
from benchmd_ray.models.networks import network_source
from benchmd_ray.settings.definition import EncoderSettings, Settings, default_settings, updated
from benchmd_ray.settings.in_use import (
    AUGMENTATION,
    BUILT_IN,
    METHOD_SETTINGS,
    finetunes,
    reads,
)
from benchmd_ray.ssl import BASELINES, protocol_encoder, with_solver
from benchmd_ray.ssl.brought import own_encoder
from benchmd_ray.training.augmentation import require_applicable
from benchmd_ray.tuning.parameters import (
    KINDS,
    LARGEST,
    MOST_STEPS,
    MOST_VALUES,
    NETWORK,
    OPTIONS,
    Kind,
    Parameter,
    applied,
    fitting_step,
    setting_types,
    value_of,
)

CHOICE = ("kind", "values", "default", "when")
RANGE = ("kind", "low", "high", "step", "default", "when")
DROPOUT = ("encoder.dropout", "encoder.embedding_dropout")
"""Encoder settings that do not affect the shapes of its weights."""
MODES = {
    "linear": "linear evaluation",
    "knn": "classification by nearest neighbours",
    "finetune": "fine-tuning",
}
NEVER = {
    "seed": "seeds show how much a result varies, so they must not be chosen by results",
    "tuned": "it names the search that found the settings",
    "transfer.mode": "--setting names what is searched",
    "transfer.labels": "--setting names what is searched",
    "transfer.shuffle_labels": "it is a sanity check",
}
"""Settings that no search varies, with the reason."""


@dataclass(frozen=True)
class Scope:
    """The search that a file is read for."""

    file: Path
    technique: str
    setting: str
    modality: Modality
    built_in: bool
    """Whether the file is the benchmark's: its defaults are then the fixed protocol."""

    @property
    def where(self) -> str:
        """The file, for messages."""
        return f"the search space {self.file}"

    @cached_property
    def fixed(self) -> Settings:
        """The fixed protocol of the technique and modality."""
        settings = default_settings(self.modality, protocol_encoder(self.technique))
        encoder = own_encoder(self.technique) or settings.encoder
        return with_solver(replace(settings, encoder=encoder), self.technique)


def read_entries(entries: Mapping[str, Any], scope: Scope) -> tuple[Parameter, ...]:
    """Parameters of a file's entries."""
    parameters: dict[str, Parameter] = {}
    for name, entry in entries.items():
        kind = _setting_type(name, scope)
        reader = _Reader(name, kind, scope)
        parameters[name] = reader.parameter(entry, parameters, entries)
    return tuple(parameters.values())


def _setting_type(name: str, scope: Scope) -> Any:
    """Type of a setting that the search may vary; Any for an option of a custom method."""
    types = setting_types()
    option = any(name.startswith(f"{group}.") for group in OPTIONS)
    if option or name in types:
        barred = _barred(name, scope)
        if barred:
            raise BenchmdError(
                f"{scope.where}: this search cannot vary {name}: {barred}. Remove it."
            )
        return Any if option else types[name]
    if any(other.startswith(f"{name}.") for other in types):
        raise BenchmdError(
            f"{scope.where}: {name} is a group of settings, expected the name of one of them."
        )
    valid = [*(n for n in types if not _barred(n, scope)), "signals", "settings", "techniques"]
    raise unknown_name(f"setting in {scope.where}:", name, valid)


def _barred(name: str, scope: Scope) -> str | None:
    if name in NEVER:
        return NEVER[name]
    if name in OPTIONS:
        return f"name one of them, such as {name}.noise"
    group = name.split(".")[0]
    if group == "execution":
        return "it says how and where a run is executed, not what is computed"
    if scope.setting == "pretrain":
        return _barred_in_pretraining(name, group, scope.technique)
    return _barred_in_transfer(name, group, scope)


def _barred_in_pretraining(name: str, group: str, technique: str) -> str | None:
    readers = METHOD_SETTINGS.get(name, (technique,))
    if group == "transfer":
        return "a search of pretraining is scored by linear evaluation with its default settings"
    if technique in BUILT_IN and technique not in readers:
        return f"{technique} does not read it, only {' and '.join(readers)}"
    if technique in BUILT_IN and name.startswith("pretrain.options."):
        return f"{technique} reads no options, only a custom method does"
    if name == NETWORK:
        return "pretraining is searched for one network, which --set or --settings choose"
    if technique == "imagenet+mae" and group == "encoder" and name not in DROPOUT:
        return "the ImageNet weights fit only one encoder"
    return None


def _barred_in_transfer(name: str, group: str, scope: Scope) -> str | None:
    mode = scope.setting.split("-")[0]
    if group == "pretrain":
        return "the trials of a search of transfer share one pretraining"
    if group == "encoder" and scope.technique in BASELINES:  # each trial fits its own
        is_option = name.startswith("encoder.options.")
        return None if is_option else f"{scope.technique} reads only encoder.options"
    if mode != "finetune" and (group == "encoder" or finetunes(name)):
        return f"{MODES[mode]} leaves the encoder as it is"
    if group == "encoder" and scope.technique != "scratch":
        return "the encoder is that of the pretraining; its dropout here is transfer.dropout"
    if group == "transfer" and not reads(mode, name):
        return f"{MODES[mode]} does not read it"
    if name == "transfer.freeze" and scope.technique == "scratch":
        return "there is no pretrained encoder that could stay frozen"
    return None


@dataclass(frozen=True)
class _Reader:
    name: str
    type: Any
    scope: Scope

    def error(self, what: str) -> BenchmdError:
        return BenchmdError(f"{self.scope.where}, {self.name}: {what}")

    def parameter(
        self, entry: Any, earlier: Mapping[str, Parameter], names: Mapping[str, Any]
    ) -> Parameter:
        kind = self._kind(entry)
        default = entry.get("default", value_of(self.scope.fixed, self.name))
        if default is None and "default" not in entry:
            raise self.error("an option needs a default.")
        default = self._value(default, kind, "default")
        if kind == "choice":
            parameter = Parameter(self.name, kind, default, values=self._values(entry["values"]))
        else:
            parameter = self._range(entry, kind, default)
        if not parameter.holds(default):
            if "default" in entry or self.scope.built_in:
                raise self.error(
                    f"the default {shown(default)} is outside, expected {parameter.range}."
                )
            # A search starts at its settings, see `spaces.starting_at`.
            default = parameter.values[0] if parameter.values else parameter.low
            parameter = replace(parameter, default=default)
        fixed = value_of(
            self.scope.fixed, self.name, default
        )  # options are not part of the fixed protocol
        if self.scope.built_in and default != fixed:
            raise self.error(
                f"the default {shown(default)} is not the fixed protocol's value for "
                f"{self.scope.technique} on {self.scope.modality.signal.name}, expected "
                f"{shown(fixed)}."
            )
        when = self._conditions(entry["when"], earlier, names) if "when" in entry else {}
        return replace(parameter, when=when)

    def _kind(self, entry: Any) -> Kind:
        if not isinstance(entry, Mapping):
            raise self.error(
                f"got {shown(entry)}, expected such as "
                "{kind: float, low: 0, high: 0.5, default: 0.1}."
            )
        for key in entry:
            if key not in (*CHOICE, *RANGE):
                label = f"key in {self.scope.where}, {self.name}:"
                raise unknown_name(label, str(key), {*CHOICE, *RANGE})
        kind = entry.get("kind")
        if kind not in KINDS:
            label = f"kind in {self.scope.where}, {self.name}:"
            raise unknown_name(label, str(kind or ""), KINDS)
        allowed, needed = (CHOICE, ("values",)) if kind == "choice" else (RANGE, ("low", "high"))
        for key in entry:
            if key not in allowed:
                raise self.error(
                    f"{key} is not a key of the kind {kind}: expected {_list(allowed)}."
                )
        for key in needed:
            if key not in entry:
                raise self.error(f"{key} is missing: the kind {kind} needs {_list(needed)}.")
        fitting = self._fitting_kinds()
        if kind not in fitting:
            raise self.error(f"the kind {kind} does not fit, expected {' or '.join(fitting)}.")
        return typing.cast(Kind, kind)

    def _fitting_kinds(self) -> tuple[Kind, ...]:
        if self.type is Any:
            return KINDS
        if self.name == "encoder.patch_size":  # few values of a range divide a signal
            return ("choice",)
        if self.type in (float, float | None):
            return ("float", "log float", "choice")
        return ("int", "log int", "choice") if self.type is int else ("choice",)

    def _value(self, value: Any, kind: Kind, key: str) -> Any:
        if kind != "choice":
            value = self._number(value, kind, key)
        base = self.scope.fixed
        if self.name.startswith("encoder.options."):
            base = updated(base, {"encoder": {"network": "of:one's own"}})
        try:
            changed = applied(base, {self.name: value})
            if self.name.startswith(AUGMENTATION):
                records = self.scope.modality
                require_applicable(changed.transfer.augmentation, records.signal, records.task)
            taken = value_of(changed, self.name)
        except BenchmdError as error:
            raise self.error(f"{key}: {error}") from error
        if isinstance(taken, float) and not math.isfinite(taken):
            raise self.error(f"{key} is {shown(taken)}, expected a finite number.")
        return taken

    def _number(self, value: Any, kind: Kind, key: str) -> float:
        whole = kind.endswith("int")
        try:  # YAML 1.1 reads 1e-4 as a string
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not abs(number) < LARGEST or (whole and not number.is_integer()):
            raise self.error(
                f"{key} is {shown(value)}, expected {'a whole number' if whole else 'a number'} of "
                f"less than {LARGEST:,}."
            )
        return int(number) if whole else number

    def _values(self, values: Any) -> tuple[Any, ...]:
        if not isinstance(values, list) or len(values) < 2:
            raise self.error(f"values is {shown(values)}, expected a list of two or more.")
        if len(values) > MOST_VALUES:
            raise self.error(f"values are {len(values):,}, expected {MOST_VALUES:,} at most.")
        choices = tuple(self._value(value, "choice", "values") for value in values)
        kinds = {float if type(value) is int else type(value) for value in choices}
        if len(kinds) > 1 or kinds == {type(None)}:
            raise self.error(
                f"values is {shown(values)}, expected only texts, only numbers, or true and false, "
                "since the table of trials has one column for them."
            )
        if self.name == "encoder.patch_size":
            self._require_patches(choices)
        if self.name == NETWORK:
            self._require_networks(choices)
        for i, value in enumerate(choices):
            if value in choices[:i]:
                raise self.error(f"values has {shown(value)} twice, expected each once.")
        return choices

    def _require_patches(self, sizes: tuple[int, ...]) -> None:
        signal = self.scope.modality.signal
        for size in sizes:
            try:
                signal.with_patch(size)
            except BenchmdError as error:
                raise self.error(f"values: {error}") from error
            if size == signal.patch[-1] and 0 in sizes:
                raise self.error(f"{size} and 0 are the same for {signal.name}: remove one.")

    def _require_networks(self, names: tuple[str, ...]) -> None:
        for name in names:
            try:
                network_source(EncoderSettings(network=name))  # refuses an unknown network
                require_signals(self.scope.modality.signal, name)
            except BenchmdError as error:
                raise self.error(f"values: {error}") from error

    def _range(self, entry: Mapping[str, Any], kind: Kind, default: Any) -> Parameter:
        low, high = (self._value(entry[key], kind, key) for key in ("low", "high"))
        step = self._number(entry["step"], kind, "step") if "step" in entry else None
        if not low < high:
            raise self.error(f"low is {low:g} and high {high:g}, expected low below high.")
        if kind.startswith("log"):
            if low <= 0:
                raise self.error(f"low is {low:g}, but a logarithmic scale starts above 0.")
            if step is not None:
                raise self.error("step is not a key of a logarithmic scale: remove it.")
        parameter = Parameter(self.name, kind, default, low, high, step)
        if step is not None and not (fitting_step(low, high, step) and parameter.holds(high)):
            raise self.error(
                f"step is {step:g}, expected a number above 0 that divides the range {low:g} to "
                f"{high:g} into at most {MOST_STEPS:,} steps."
            )
        return parameter

    def _conditions(
        self, when: Any, earlier: Mapping[str, Parameter], names: Mapping[str, Any]
    ) -> dict[str, tuple[Any, ...]]:
        if not isinstance(when, Mapping) or not when:
            raise self.error(f"when is {shown(when)}, expected a setting and a list of its values.")
        conditions = {}
        for other, allowed in ((str(o), a) for o, a in when.items()):
            if other not in earlier and other in names:
                raise self.error(f"when names {other}, expected a setting above it in the file.")
            if other not in earlier:
                label = f"setting in {self.scope.where}, {self.name}, when:"
                raise unknown_name(label, other, earlier)
            if earlier[other].kind != "choice":
                raise self.error(
                    f"when names {other} of the kind {earlier[other].kind}, expected a choice."
                )
            values = allowed if isinstance(allowed, list) else []
            if not values or any(value not in earlier[other].values for value in values):
                raise self.error(
                    f"when has {other}: {shown(allowed)}, expected a list of its values: "
                    f"{_list(earlier[other].values)}."
                )
            conditions[other] = tuple(values)
        return conditions


def _list(values: typing.Iterable[object]) -> str:
    return ", ".join(map(str, values))
