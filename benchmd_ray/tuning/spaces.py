"""Search spaces by technique, setting and modality.

Built-in spaces are the YAML files of ``search_spaces``; its README describes the format, also for
users' files. Files are validated completely when they are read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmd_ray.data.cards import cards
from benchmd_ray.errors import BenchmdError, shown, unknown_name
from benchmd_ray.files.atomic import resource_folder
from benchmd_ray.modality.modalities import Modality, modalities
from benchmd_ray.modality.signals import Signal
from benchmd_ray.models.encoder import require_option
from benchmd_ray.models.networks import NETWORK as TRANSFORMER
from benchmd_ray.schema.plain_yaml import read_yaml_file
from benchmd_ray.settings.definition import LABEL_SETTINGS, Settings
from benchmd_ray.ssl import BASELINES, BROUGHT, SCRATCH
from benchmd_ray.tuning.entries import Scope, read_entries
from benchmd_ray.tuning.parameters import NETWORK, Parameter, Space, applied, value_of, without

__all__ = ["Parameter", "Space", "applied", "shared", "space_for", "starting_at"]

PRETRAIN = "pretrain"
"""Setting name of a search of pretraining; the others are transfer settings as in tables."""
_FEW = tuple(labels for labels, count in LABEL_SETTINGS.items() if count is not None)
SETTINGS = (
    PRETRAIN,
    *("linear", *(f"linear-{labels}" for labels in _FEW)),
    *("knn", *(f"knn-{labels}" for labels in _FEW)),
    *(f"finetune-{labels}" for labels in LABEL_SETTINGS),
)
SPACES = {"e-mix": "e-mix", "shed": "shed", "mae": "mae", "imagenet+mae": "mae"}
"""File of the built-in space of each technique's pretraining."""
UNTRAINED = (SCRATCH, "imagenet", *BASELINES)
FROM_SCRATCH_OVER_TIME = "finetune-1d"
"""File of the built-in space of fine-tuning from random weights on signals over time.

It varies the network, which is not possible after pretraining; networks for images differ."""
OVERRIDES = ("signals", "settings", "techniques")
"""Keys with changes for some searches only, in the order of their application."""
PATCH_SIZE = "encoder.patch_size"
WARM_UP = "pretrain.optimiser.warmup_steps"
STOCHASTIC_DEPTH = "transfer.stochastic_depth"
MONAI = "monai-"
"""Prefix of networks without ordered blocks."""


def space_for(
    technique: str,
    setting: str,
    modality: Modality,
    path: Path | None = None,
    *,
    built_in: Path | None = None,
) -> Space:
    """The space of a search: a user's file, a benchmark's, or the technique's built-in one.

    Raises:
        BenchmdError: There is no such space or modality, or the file is not valid.
    """
    if setting not in SETTINGS:
        raise unknown_name("setting of a search", setting, SETTINGS)
    if setting == PRETRAIN and (technique in UNTRAINED or technique.startswith(BROUGHT)):
        raise BenchmdError(
            f"{technique} trains nothing in pretraining, so there is nothing to search: search a "
            "transfer setting, such as --setting linear."
        )
    if setting.startswith("finetune") and technique in BASELINES:
        raise BenchmdError(
            f"{technique} is not trained, so that it cannot be fine-tuned: search --setting linear "
            "or knn, or for few labels linear-small."
        )
    file = path or built_in or _built_in(technique, setting, modality)
    scope = Scope(file if path else Path(file.name), technique, setting, modality, path is None)
    name = f"{path or file.stem} ({modality.signal.name})"
    return Space(name, read_entries(_chosen_entries(scope, file), scope))


def _built_in(technique: str, setting: str, modality: Modality) -> Path:
    stem = SPACES.get(technique) if setting == PRETRAIN else setting.split("-")[0]
    if technique in BASELINES:
        stem = technique
    over_time = modality.signal.axes[-1] == "time"
    if (technique, stem) == (SCRATCH, "finetune") and over_time:
        stem = FROM_SCRATCH_OVER_TIME
    if stem is None:
        raise BenchmdError(
            f"there is no built-in search space for pretraining by {technique!r} (there are those "
            f"of {', '.join(SPACES)}): give your own with --space FILE; its format is in "
            "search_spaces/README.md."
        )
    return resource_folder("search_spaces") / f"{stem}.yaml"


def _mapping(content: Any, where: str) -> Mapping[Any, Any]:
    if not isinstance(content, Mapping):
        raise BenchmdError(f"{where} holds {shown(content)}, expected settings with their ranges.")
    return content


def _chosen_entries(scope: Scope, file: Path) -> dict[str, Any]:
    """Entries of a file with the changes for the scope's modality, setting and technique."""
    where = f"the search space {file}"
    content = read_yaml_file(file, where)
    content = _mapping({} if content is None else content, where)
    written = {str(name): entry for name, entry in content.items() if name not in OVERRIDES}
    entries = dict(written)
    selected = (scope.modality.signal.groups, (scope.setting,), (scope.technique,))
    for key, chosen in zip(OVERRIDES, selected, strict=True):
        groups = _mapping(content.get(key) or {}, f"{scope.where}, {key}")
        for group, changes in groups.items():
            _require_group(key, str(group), scope)
            where = f"{scope.where}, {key}, {group}"
            for name in _mapping(changes, where):
                if name not in written:
                    raise unknown_name(f"entry to change in {where}:", str(name), written)
        for group in _applying(groups, chosen):
            where = f"{scope.where}, {key}, {group}"
            for name, change in groups.get(group, {}).items():
                if name in entries:
                    _change(entries, str(name), change, where)
    if scope.built_in:
        _leave_fitting_patches(entries, scope.modality.signal)
    if not entries:
        raise BenchmdError(f"{scope.where} varies nothing: name one setting or more.")
    return entries


def _leave_fitting_patches(entries: dict[str, Any], signal: Signal) -> None:
    """Drop patch sizes of a built-in space that do not divide a signal, or are its own."""
    entry = entries.get(PATCH_SIZE)
    if not (isinstance(entry, Mapping) and isinstance(entry.get("values"), list)):
        return  # there is none, or a benchmark's own, which is checked later
    along = signal.input_shape[1 + len(signal.patch[:-2]) :]
    others = [
        size
        for size in entry["values"]
        if isinstance(size, int) and size > 0 and size != signal.patch[-1]
        if not any(extent % size for extent in along)
    ]
    if others:
        entries[PATCH_SIZE] = {**entry, "values": [0, *others]}
    else:
        del entries[PATCH_SIZE]


def _applying(groups: Mapping[Any, Any], chosen: Sequence[str]) -> list[str]:
    """The groups that a search belongs to, widest first; narrower ones override them.

    A pattern such as ``organ*`` is narrower than a group and wider than a name.
    """
    *within, name = chosen
    patterns = (str(group) for group in groups if str(group).endswith("*"))
    return [*within, *(pattern for pattern in patterns if name.startswith(pattern[:-1])), name]


def _require_group(key: str, group: str, scope: Scope) -> None:
    kinds = *modalities().values(), scope.modality, *(card.modality for card in cards().values())
    valid: Collection[str] = {
        "signals": {group for kind in kinds for group in kind.signal.groups},
        "settings": SETTINGS,
        "techniques": {*UNTRAINED, *SPACES, scope.technique},
    }[key]
    is_custom = key == "techniques" and ":" in group
    matches = group.endswith("*") and any(name.startswith(group[:-1]) for name in valid)
    if group not in valid and not is_custom and not (key == "signals" and matches):
        raise unknown_name(f"name in {scope.where}, {key}:", group, valid)


def _change(entries: dict[str, Any], name: str, change: Any, where: str) -> None:
    if change is None:
        del entries[name]
        return
    change = _mapping(change, f"{where}, {name}")
    # A change with a kind is a whole entry, as keys of another kind must not remain.
    entries[name] = change if "kind" in change else {**_mapping(entries[name], where), **change}


def starting_at(
    space: Space, settings: Settings, held: Collection[str] = (), *, narrow: bool = False
) -> Space:
    """The space with a search's settings as its start, those in ``held`` fixed.

    With ``narrow``, settings whose start is outside the space are fixed, too, instead of refused.

    Raises:
        BenchmdError: A held name is not in the space, nothing is left to search, or the search
            cannot start there.
    """
    names = [parameter.name for parameter in space.parameters]
    for name in held:
        if name not in names:
            raise unknown_name(f"setting to hold in the search space {space.name}:", name, names)
    started = tuple(
        replace(parameter, default=value_of(settings, parameter.name, parameter.default))
        for parameter in space.parameters
    )
    outside = {p.name for p in started if narrow and not p.holds(p.default)}
    left = without(started, {p.name: p.default for p in started if p.name in {*held} | outside})
    if not left:
        raise BenchmdError(
            f"nothing is left to search in the search space {space.name}: every setting is fixed, "
            "or searched only with another value of a fixed one. Leave at least one setting to "
            "search."
        )
    for parameter in left:
        if not parameter.holds(parameter.default):
            raise BenchmdError(
                f"the search starts at {parameter.name} = {shown(parameter.default)}, which is not "
                f"in the search space {space.name}, expected {parameter.range}: "
                f"{_HOLD.format(parameter.name)}"
            )
    remaining = Space(space.name, left)
    _require_networks(remaining, settings)
    applied(settings, remaining.start)  # refuses options that are missing in the settings
    _require_warmed_up(remaining, settings)
    return remaining


_HOLD = "fix it with --fix {}, or give your own space with --space FILE."


def _require_networks(space: Space, settings: Settings) -> None:
    """Refuse options that a network does not read, and stochastic depth without blocks to skip."""
    searched = {p.name: p.values for p in space.parameters}
    networks = searched.get(NETWORK, (settings.encoder.network,))
    for parameter in space.parameters:
        group, _, option = parameter.name.rpartition(".")
        for network in parameter.when.get(NETWORK, networks):
            if parameter.name == STOCHASTIC_DEPTH and str(network).startswith(MONAI):
                raise BenchmdError(
                    f"the search space {space.name} has {STOCHASTIC_DEPTH} with {NETWORK} "
                    f"{network}, which has no blocks to skip: "
                    f"{_HOLD.format(STOCHASTIC_DEPTH)}"
                )
            if group != "encoder.options":
                continue
            if network == TRANSFORMER:
                raise BenchmdError(
                    f"setting {parameter.name} is searched in the search space {space.name} with "
                    f"{NETWORK} {network}, which reads no options: search it only "
                    f"`when` {NETWORK} is another network."
                )
            for value in parameter.values or (parameter.low, parameter.high):
                require_option(network, option, value)


def _require_warmed_up(space: Space, settings: Settings) -> None:
    """Refuse a warm-up that may outlast pretraining."""
    parameters = {parameter.name: parameter for parameter in space.parameters}
    if WARM_UP not in parameters:
        return
    longest = parameters[WARM_UP].high or max(parameters[WARM_UP].values, default=0)
    steps = parameters.get("pretrain.steps")
    least = min(steps.values or (steps.low,)) if steps else settings.pretrain.steps
    if longest >= least:
        raise BenchmdError(
            f"the search space {space.name} has {WARM_UP} of up to {longest:,}, and pretraining "
            f"may take as few as {least:,} steps, expected a shorter warm-up: "
            f"{_HOLD.format(WARM_UP)}"
        )


def shared(spaces: Sequence[Space]) -> Space:
    """The common space of several modalities: what all of their spaces vary alike.

    A setting with another range, start or condition in one of them, such as the batch size of
    volumes, keeps the start of each modality, and so does one that depends on it.
    """
    names = ", ".join(space.name for space in spaces)
    left: dict[str, Parameter] = {}
    for parameter in spaces[0].parameters:
        is_alike = all(parameter in space.parameters for space in spaces)
        if is_alike and parameter.when.keys() <= left.keys():
            left[parameter.name] = parameter
    if not left:
        raise BenchmdError(
            f"the search spaces {names} share no setting that is varied alike in all of them: "
            "search the modalities one by one, or give your own space with --space FILE."
        )
    return Space(names, tuple(left.values()))
