"""Entries of a search space's file, validated against the settings that they vary."""

from __future__ import annotations

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
    NETWORK,
    OPTIONS,
    Kind,
    Parameter,
    applied,
    setting_types,
    value_of,
)

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

    @property
    def where(self) -> str:
        return f"{self.scope.where}, {self.name}"

    def error(self, what: str) -> BenchmdError:
        return BenchmdError(f"{self.where}: {what}")

    def parameter(
        self, entry: Any, earlier: Mapping[str, Parameter], names: Mapping[str, Any]
    ) -> Parameter:
        if not isinstance(entry, Mapping):
            raise self.error(
                f"got {shown(entry)}, expected such as "
                "{kind: float, low: 0, high: 0.5, default: 0.1}."
            )
        parameter = Parameter.read(self.name, entry, self.where)
        fitting = self._fitting_kinds()
        if parameter.kind not in fitting:
            raise self.error(
                f"the kind {parameter.kind} does not fit, expected {' or '.join(fitting)}."
            )
        if parameter.kind == "choice":
            parameter = replace(parameter, values=self._values(parameter.values))
        else:
            low, high = (self._value(getattr(parameter, key), key) for key in ("low", "high"))
            parameter = replace(parameter, low=low, high=high)
        self._require_conditions(parameter, earlier, names)
        return self._with_default(parameter)

    def _with_default(self, parameter: Parameter) -> Parameter:
        fixed = value_of(self.scope.fixed, self.name)  # None for an option
        stated = parameter.default is not None
        default = parameter.default if stated else fixed
        if default is None:
            raise self.error("an option needs a default.")
        default = self._value(default, "default")
        if not parameter.holds(default):
            if stated or self.scope.built_in:
                raise self.error(
                    f"the default {shown(default)} is outside, expected {parameter.range}."
                )
            # A search starts at its settings, see `spaces.starting_at`.
            default = parameter.values[0] if parameter.values else parameter.low
        if self.scope.built_in and fixed not in (None, default):
            raise self.error(
                f"the default {shown(default)} is not the fixed protocol's value for "
                f"{self.scope.technique} on {self.scope.modality.signal.name}, expected "
                f"{shown(fixed)}."
            )
        return replace(parameter, default=default)

    def _fitting_kinds(self) -> tuple[Kind, ...]:
        if self.type is Any:
            return KINDS
        if self.name == "encoder.patch_size":  # few values of a range divide a signal
            return ("choice",)
        if self.type in (float, float | None):
            return ("float", "log float", "choice")
        return ("int", "log int", "choice") if self.type is int else ("choice",)

    def _value(self, value: Any, key: str) -> Any:
        """A value in the setting's own type."""
        base = self.scope.fixed
        if self.name.startswith("encoder.options."):
            base = updated(base, {"encoder": {"network": "of:one's own"}})
        try:
            changed = applied(base, {self.name: value})
            if self.name.startswith(AUGMENTATION):
                records = self.scope.modality
                require_applicable(changed.transfer.augmentation, records.signal, records.task)
            return value_of(changed, self.name)
        except BenchmdError as error:
            raise self.error(f"{key}: {error}") from error

    def _values(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Values of a choice, all of which the modality's signals take."""
        choices = tuple(self._value(value, "values") for value in values)
        signal = self.scope.modality.signal
        try:
            for value in choices:
                if self.name == NETWORK:
                    network_source(EncoderSettings(network=value))  # refuses an unknown network
                    require_signals(signal, value)
                if self.name == "encoder.patch_size":
                    signal.with_patch(value)
        except BenchmdError as error:
            raise self.error(f"values: {error}") from error
        if self.name == "encoder.patch_size" and {0, signal.patch[-1]} <= {*choices}:
            raise self.error(
                f"{signal.patch[-1]} and 0 are the same for {signal.name}: remove one."
            )
        return choices

    def _require_conditions(
        self, parameter: Parameter, earlier: Mapping[str, Parameter], names: Mapping[str, Any]
    ) -> None:
        for other, allowed in parameter.when.items():
            if other not in earlier and other in names:
                raise self.error(f"when names {other}, expected a setting above it in the file.")
            if other not in earlier:
                raise unknown_name(f"setting in {self.where}, when:", other, earlier)
            if earlier[other].kind != "choice":
                raise self.error(
                    f"when names {other} of the kind {earlier[other].kind}, expected a choice."
                )
            values = earlier[other].values
            if not allowed or any(value not in values for value in allowed):
                raise self.error(
                    f"when has {other}: {shown([*allowed])}, expected a list of its values: "
                    f"{', '.join(map(str, values))}."
                )
