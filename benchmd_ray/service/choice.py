"""What a user chooses of the benchmark: datasets, techniques, label settings, seeds, settings."""

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
from benchmd_ray.ssl import HUB, SCRATCH, TECHNIQUES, protocol_encoder, technique_named
from benchmd_ray.ssl.brought import own_encoder, technique_label
from benchmd_ray.storage.location import Location

Mode = Literal["linear", "finetune", "knn"]
MODES, LABELS = (get_args(get_type_hints(TransferSettings)[name]) for name in ("mode", "labels"))
TRANSFERS: dict[str, dict[str, Any]] = {
    TransferSettings(mode=mode, labels=labels).setting: {"mode": mode, "labels": labels}
    for mode in MODES
    for labels in LABELS
}
"""Transfer settings by the name that tables use."""
PROTOCOL = ("linear", *(name for name in TRANSFERS if name.startswith("finetune")))
"""Those of the fixed protocol."""
MASKS = ("finetune-full",)
"""Those of masks, of which there are no few labels and no features of a frozen encoder."""
ALL_TECHNIQUES = (SCRATCH, *TECHNIQUES)
"""Built-in techniques, in the tables' order."""


@dataclass(frozen=True)
class Choice:
    """What a user chose of the benchmark; an empty tuple stands for everything available."""

    catalogs: tuple[Location, ...] = ()
    """Catalogs, and folders that contain catalogs; none plans from the cards only."""
    datasets: tuple[str, ...] = ()
    """Datasets whose cards are planned from where there are no catalogs."""
    also: tuple[Location, ...] = ()
    """Catalogs that evaluations read and nothing is trained on, such as out-of-distribution ones;
    evaluations that read others read those of ``catalogs``, too."""
    pretrain_on: tuple[Location, ...] = ()
    """Catalogs that are pretrained on, together as one, instead of each source's own."""
    modalities: tuple[str, ...] = ()
    techniques: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    """Transfer settings as tables name them: ``linear``, ``finetune-small``, …"""
    seeds: tuple[int, ...] = (0,)
    policies: tuple[str, ...] = ()
    file: InitVar[Path | None] = None
    """YAML file of settings for all runs, over the fixed protocol's; read once, into
    ``overrides``."""
    assignments: InitVar[tuple[str, ...]] = ()
    """``a.b=value`` settings, over the file's; parsed once, into ``overrides``."""
    overrides: tuple[Mapping[str, Any], ...] = ()
    """Changes of settings by group, each over the ones before it: those of ``file`` and
    ``assignments``, where these are named."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings by group that a search found, over the fixed protocol's and under ``overrides``."""
    weights: Path | None = None
    bench: str = USUAL
    """Name of the benchmark whose datasets and starts are taken."""
    start: str = ""
    """What the settings change: one of the benchmark's starts, or a variant of one; empty for the
    usual one."""
    evaluated: str = ""
    """Name of the benchmark whose evaluations are made, or of one evaluation; empty for those of
    ``bench``."""

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
                    f"{', '.join(others)} was chosen: leave --{option} out, or choose another "
                    "--start."
                )
            object.__setattr__(self, name, (only,))

    def values_of(self, name: str) -> list[Any]:
        """What the user's settings say of one of them, such as ``execution.device``, in order."""
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
        """The start, whichever of its variants is chosen."""
        chosen = benchmark(self.bench)
        for start in chosen.starts:
            kinds = (card.modality for card in cards().values())
            if self.start == start.name or any(self.start in start.variants(k) for k in kinds):
                return start
        return chosen.starts[0]


def require_known(choice: Choice) -> None:
    """Refuse names that do not exist, seeds below 0 and settings of what a plan varies."""
    # Those of catalogs are what their cards say, which need not be here.
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
        if name != SCRATCH:
            technique_named(name, also=(SCRATCH,))
    labels = [technique_label(name) for name in dict.fromkeys(choice.techniques)]
    if both := sorted({label for label in labels if labels.count(label) > 1}):
        raise BenchmdError(
            f"two folders of encoders are called {both[0]}, and tables could not tell them apart: "
            "rename one of them."
        )
    for seed in choice.seeds:
        if seed < 0:
            raise BenchmdError(f"seed {seed} is below 0: name seeds from 0 on.")
    if not choice.seeds:
        raise BenchmdError("no seed is chosen: name one, such as 0.")
    _require_free(choice)


def chosen_datasets(choice: Choice) -> Found:
    """Sources that can be trained on with what they are scored on, of the chosen modalities."""
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
    kept = tuple(d for d in chosen if d not in alone)
    others = tuple(d for d in also.datasets if d not in kept)  # else it would be read twice
    return Found(kept, (*available.notes, *notes, *also.notes), others)


def _no_source(missing: Sequence[str], datasets: Iterable[PlannedDataset]) -> BenchmdError:
    names = ", ".join(f"{d.name} ({d.modality} {d.role}, policy {d.policy})" for d in datasets)
    of = f" of {', '.join(missing)}" if missing else ""
    return BenchmdError(
        f"there is no catalog of a source{of} to train on among {names or 'none'}. Build one with "
        "`benchmd catalog build`, or choose other modalities or policies."
    )


def technique_settings(choice: Choice, kind: Modality, name: str) -> tuple[Settings, str | None]:
    """Settings of a technique's runs but for seed and label setting, or why it does not fit."""
    start, variant = benchmark(choice.bench).start_named(choice.start, kind)
    base = start.settings(kind, name, variant)
    if name.startswith(HUB) and not kind.signal.is_image:
        return base, "networks of transformers are for images"
    base = replace(base, encoder=own_encoder(name) or base.encoder)
    settings = reduce(updated, (choice.changes, *choice.overrides), base)
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
    reason = "the settings choose another encoder than its weights are of"
    if name in choice.techniques:
        raise BenchmdError(
            f"technique {name}: {reason}. Leave all of encoder out but dropout and "
            "embedding_dropout, or leave that technique out."
        )
    return settings, reason


def settings_for(task: Task) -> tuple[str, ...]:
    """Transfer settings of a task where none are chosen."""
    return MASKS if task.segments else PROTOCOL


def _architecture(encoder: EncoderSettings) -> EncoderSettings:
    return replace(encoder, dropout=0.0, embedding_dropout=0.0)


def _require_free(choice: Choice) -> None:
    """Refuse settings of what the plan itself varies, even where they state the default."""
    for name, option in (
        ("seed", "--seed"),
        ("transfer.mode", "--setting"),
        ("transfer.labels", "--setting"),
    ):
        if values := choice.values_of(name):
            raise BenchmdError(
                f"the settings choose {name} ({shown(values[-1])}), which a plan varies itself: "
                f"leave it out and choose with {option}."
            )


def with_setting(settings: Settings, name: str) -> Settings:
    """Settings of a transfer setting; what leaves the encoder as it is runs on one worker."""
    transfer, execution = replace(settings.transfer, **TRANSFERS[name]), settings.execution
    if transfer.freezes:
        execution = replace(execution, workers=1)
    return replace(settings, transfer=transfer, execution=execution)
