"""A user's choice from the benchmark: datasets, techniques, label settings, seeds, settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from benchmd_ray.data.cards import POLICIES, cards, known_modalities
from benchmd_ray.errors import BenchmdError, shown, unknown_name
from benchmd_ray.evaluation.benchmark import Start
from benchmd_ray.evaluation.registry import USUAL, benchmark
from benchmd_ray.modality.modalities import Modality
from benchmd_ray.modality.tasks import Task
from benchmd_ray.models.imagenet import require_images
from benchmd_ray.models.networks import require_task
from benchmd_ray.service.datasets import Found, PlannedDataset, from_cards, from_catalogs
from benchmd_ray.settings.definition import (
    ENCODERS,
    EncoderSettings,
    Settings,
    TransferSettings,
    read_changes,
    updated,
)
from benchmd_ray.ssl import (
    BASELINES,
    HUB,
    KIND,
    NAMED,
    SCRATCH,
    TECHNIQUES,
    protocol_encoder,
    technique_named,
    with_solver,
)
from benchmd_ray.ssl.brought import (
    has_card,
    misfit,
    own_encoder,
    published_card,
    technique_label,
)
from benchmd_ray.storage.location import Location

Mode = Literal["linear", "finetune", "knn"]
MODES, LABELS = (get_args(get_type_hints(TransferSettings)[name]) for name in ("mode", "labels"))
TRANSFERS: dict[str, dict[str, Any]] = {
    TransferSettings(mode=mode, labels=labels).setting: {"mode": mode, "labels": labels}
    for mode in MODES
    for labels in LABELS
}
"""Transfer settings by their name in tables."""
PROTOCOL = ("linear", *(name for name in TRANSFERS if name.startswith("finetune")))
"""Transfer settings of the fixed protocol."""
MASKS = ("finetune-full",)
"""Transfer settings for masks: neither few labels nor a frozen encoder apply to them."""
ALL_TECHNIQUES = (SCRATCH, *TECHNIQUES)
"""Built-in techniques, in the tables' order."""


@dataclass(frozen=True)
class Choice:
    """A user's choice from the benchmark; an empty tuple means everything available."""

    catalogs: tuple[Location, ...] = ()
    """Catalogs, and folders that contain catalogs; if empty, the plan is made from the cards."""
    datasets: tuple[str, ...] = ()
    """Datasets whose cards are used if there are no catalogs."""
    also: tuple[Location, ...] = ()
    """Catalogs only for evaluations, such as out-of-distribution ones, never for training.
    Evaluations that read further catalogs also read those of ``catalogs``.
    """
    pretrain_on: tuple[Location, ...] = ()
    """Catalogs that are pretrained on, together as one, instead of each source's own."""
    modalities: tuple[str, ...] = ()
    techniques: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    """Transfer settings as tables name them: ``linear``, ``finetune-small``, …"""
    seeds: tuple[int, ...] = (0,)
    policies: tuple[str, ...] = ()
    file: InitVar[Path | None] = None
    """YAML file of settings for all runs, which override the fixed protocol; read once, into
    ``overrides``.
    """
    assignments: InitVar[tuple[str, ...]] = ()
    """``a.b=value`` settings, which override the file; parsed once, into ``overrides``."""
    overrides: tuple[Mapping[str, Any], ...] = ()
    """Changes of settings by group, later ones overriding earlier ones: those of ``file`` and
    ``assignments``, if given.
    """
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings by group that a search found; they override the fixed protocol, and ``overrides``
    override them.
    """
    weights: Path | None = None
    bench: str = USUAL
    """Name of the benchmark whose datasets and starts are used."""
    start: str = ""
    """The start that the settings modify: one of the benchmark's, or a variant; empty for the
    default one.
    """
    evaluated: str = ""
    """Name of a benchmark whose evaluations are run, or of a single evaluation; empty for those of
    ``bench``.
    """

    def __post_init__(self, file: Path | None, assignments: tuple[str, ...]) -> None:
        if file is not None or assignments:
            object.__setattr__(self, "overrides", read_changes(file, assignments))
        chosen = self.chosen_start
        for option, name, only in (
            ("technique", "techniques", chosen.technique),
            ("setting", "settings", chosen.setting),
        ):
            if only is None:
                continue
            if others := sorted(set(getattr(self, name)) - {only}):
                raise BenchmdError(
                    f"{self.start or chosen.name} of {self.bench} is for the {option} {only}, and "
                    f"{', '.join(others)} was chosen: omit --{option}, or choose another --start."
                )
            object.__setattr__(self, name, (only,))

    def values_of(self, name: str) -> list[Any]:
        """The values that the user gave to a setting such as ``execution.device``, in order."""
        *groups, last = name.split(".")
        values = []
        for changes in self.overrides:
            group: Any = changes
            for key in groups:
                group = group.get(key) if isinstance(group, Mapping) else None
            if isinstance(group, Mapping) and last in group:
                values.append(group[last])
        return values

    @property
    def chosen_start(self) -> Start:
        """The chosen start, also for one of its variants."""
        chosen = benchmark(self.bench)
        for start in chosen.starts:
            kinds = (card.modality for card in cards().values())
            if self.start == start.name or any(self.start in start.variants(k) for k in kinds):
                return start
        return chosen.starts[0]


def require_known(choice: Choice) -> None:
    """Refuse unknown names, seeds below 0, and settings that the plan itself varies."""
    # Modalities of catalogs are stated in their own cards, which may not be installed.
    kinds = choice.modalities if choice.catalogs else known_modalities()
    for kind, names, valid in (
        ("transfer setting", choice.settings, TRANSFERS),
        ("policy", choice.policies, POLICIES),
        ("modality", choice.modalities, kinds),
    ):
        for name in names:
            if name not in valid:
                raise unknown_name(kind, name, valid)
    for name in choice.techniques:
        _require_technique(name)
    labels = [technique_label(name) for name in dict.fromkeys(choice.techniques)]
    if both := sorted({label for label in labels if labels.count(label) > 1}):
        raise BenchmdError(
            f"two folders of encoders are called {both[0]}, which tables could not distinguish: "
            "rename one of them."
        )
    for seed in choice.seeds:
        if seed < 0:
            raise BenchmdError(f"seed {seed} is below 0: name seeds from 0 on.")
    if not choice.seeds:
        raise BenchmdError("no seed is chosen: name one, such as 0.")
    _require_free(choice)


def _require_technique(name: str) -> None:
    if name.startswith(NAMED):
        published_card(name)
    elif name != SCRATCH:
        try:
            technique_named(name, also=(SCRATCH,))
        except BenchmdError:
            if has_card(name):
                valid = (*ALL_TECHNIQUES, *BASELINES)
                raise unknown_name(KIND, name, valid, meant=NAMED + name) from None
            raise


def chosen_datasets(choice: Choice) -> Found:
    """Trainable sources of the chosen modalities, each with the datasets that it is scored on."""
    if choice.catalogs:
        available = from_catalogs(choice.catalogs)
    else:
        names = choice.datasets or benchmark(choice.bench).datasets()
        available = from_cards(names, tuple(dict.fromkeys(choice.policies)) or ("clean",))
    policies = choice.policies or POLICIES
    chosen = [
        d
        for d in available.datasets
        if (not choice.modalities or d.modality in choice.modalities) and d.policy in policies
    ]
    sources = [d for d in chosen if d.role == "source"]
    covered = {d.modality for d in sources}
    missing = [name for name in choice.modalities if name not in covered]
    if missing or not sources:
        raise _no_source(missing, available.datasets)
    alone = [
        d for d in chosen if not any(d.policy == s.policy and d.kind.fits(s.kind) for s in sources)
    ]
    notes = [
        f"{d.name} ({d.modality}, policy {d.policy}): skipped, no catalog of a source of its "
        "signal, classes and policy."
        for d in alone
    ]
    also = from_catalogs(choice.also) if choice.also else Found(())
    if folded := sorted({d.name for d in also.datasets if d.fold is not None}):
        raise BenchmdError(
            f"--also names {', '.join(folded)}, whose catalog is cut into folds: expected catalogs "
            "with fixed splits, or of targets."
        )
    kept = tuple(d for d in chosen if d not in alone)
    others = tuple(d for d in also.datasets if d not in kept)  # otherwise it would be read twice
    return Found(kept, (*available.notes, *notes, *also.notes), others)


def _no_source(missing: Sequence[str], datasets: Iterable[PlannedDataset]) -> BenchmdError:
    names = ", ".join(f"{d.name} ({d.modality} {d.role}, policy {d.policy})" for d in datasets)
    of = f" of {', '.join(missing)}" if missing else ""
    return BenchmdError(
        f"there is no catalog of a source{of} to train on among {names or 'none'}. Build one with "
        "`benchmd catalog build`, or choose other modalities or policies."
    )


def technique_settings(choice: Choice, kind: Modality, name: str) -> tuple[Settings, str | None]:
    """Settings of a technique's runs without seed and label setting; or why it does not apply."""
    start, variant = benchmark(choice.bench).start_named(choice.start, kind)
    base = start.settings(kind, name, variant)
    if reason := misfit(name, kind.signal):
        return base, reason
    base = with_solver(replace(base, encoder=own_encoder(name) or base.encoder), name)
    settings = reduce(updated, (choice.changes, *choice.overrides), base)
    is_other = settings.encoder.network != base.encoder.network
    if name.startswith(NAMED) or (is_other and (name in BASELINES or name.startswith(HUB))):
        settings = replace(settings, encoder=base.encoder)  # a size or network of the others
    if kind.task.segments and name != SCRATCH:
        return settings, "networks of masks are trained from random weights"
    try:
        require_task(kind.task, settings.encoder)
    except BenchmdError:
        return settings, f"{settings.encoder.network} is not a network for {kind.task.kind}"
    if name not in TECHNIQUES or not TECHNIQUES[name].imagenet:
        return settings, None
    try:
        require_images(kind.signal)
    except BenchmdError:
        return settings, "ImageNet weights are for 2-D images of 224 × 224 pixels"
    size = ENCODERS[protocol_encoder(name)]
    if _architecture(settings.encoder) in (_architecture(size), _architecture(EncoderSettings())):
        return settings, None
    reason = "the settings choose another encoder than that of its weights"
    if name in choice.techniques:
        raise BenchmdError(
            f"technique {name}: {reason}. Omit all encoder settings except dropout and "
            "embedding_dropout, or omit that technique."
        )
    return settings, reason


def settings_for(choice: Choice, task: Task, technique: str) -> tuple[str, ...]:
    """Transfer settings of a technique: those chosen, or all of the task's protocol.

    What cannot be fine-tuned takes the linear setting with as many labels instead.
    """
    names = choice.settings or (MASKS if task.segments else PROTOCOL)
    if technique in BASELINES:
        linear = {"mode": "linear"}
        names = tuple(
            TransferSettings(**{**TRANSFERS[name], **linear}).setting
            if TRANSFERS[name]["mode"] == "finetune"
            else name
            for name in names
        )
    return tuple(dict.fromkeys(names))


def _architecture(encoder: EncoderSettings) -> EncoderSettings:
    return replace(encoder, dropout=0.0, embedding_dropout=0.0)


def _require_free(choice: Choice) -> None:
    """Refuse settings that the plan itself varies, even if they state the default."""
    for name, option in (
        ("seed", "--seed"),
        ("transfer.mode", "--setting"),
        ("transfer.labels", "--setting"),
    ):
        if values := choice.values_of(name):
            raise BenchmdError(
                f"the settings choose {name} ({shown(values[-1])}), which a plan varies itself: "
                f"omit it and choose with {option}."
            )


def with_setting(settings: Settings, name: str) -> Settings:
    """Settings with a transfer setting applied; with a frozen encoder one worker is used."""
    transfer, execution = replace(settings.transfer, **TRANSFERS[name]), settings.execution
    if transfer.freezes:
        execution = replace(execution, workers=1)
    return replace(settings, transfer=transfer, execution=execution)
