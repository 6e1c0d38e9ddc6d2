"""For notebooks and programs: what commands do as functions, what they write as arrays and tables.

What a function needs is imported when it is called. Paths are text or `pathlib.Path`; catalogs,
stores and runs may be in a bucket, as text (``s3://bucket/prefix``, ``gs://…``,
``az://…``). Where one path is expected an opened catalog or a run may be given, where several, a
single one. Defaults are those of the commands; errors are `BenchmdError`.

Code of your own that a run or settings name (methods, networks) is imported where `allow` names it,
and nowhere else: nothing that a store says is believed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from benchmd_ray.console.terminal import echo
from benchmd_ray.errors import BenchmdError
from benchmd_ray.service.notebooks import (
    CatalogData,
    PathLike,
    Place,
    as_folder,
    as_location,
    as_store,
    folder_or_none,
    several,
    weights_folder,
)

if TYPE_CHECKING:
    import torch

    from benchmd_ray.report.analysis import Analysis
    from benchmd_ray.runs.store import Run
    from benchmd_ray.service.estimator import Classifier
    from benchmd_ray.settings.definition import Settings
    from benchmd_ray.training.applied import FeatureEncoder, SignalClassifier

__all__ = [
    "BenchmdError",
    "CatalogData",
    "Classifier",
    "allow",
    "build",
    "catalog",
    "classifier",
    "encoder",
    "export_model",
    "pretrain",
    "read_results",
    "transfer",
    "tune",
    "write_report",
]

Say = Callable[[str], None]
Values = Mapping[str, Any]
"""Settings by group, as in a YAML file: ``{"transfer": {"epochs": 5}}``."""


def __getattr__(name: str) -> Any:
    """`Classifier`, whose base class is scikit-learn's."""
    if name != "Classifier":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from benchmd_ray.service.estimator import Classifier

    return Classifier


def allow(*names: str) -> None:
    """Let this process, and a Ray that it starts afterwards, import code of your own.

    Args:
        names: Import paths of methods and networks, ``package.module:name``.
    """
    from benchmd_ray.extensions.plugins import IMPORT_PATH
    from benchmd_ray.extensions.plugins import allow as let_import

    if odd := [name for name in names if not IMPORT_PATH.fullmatch(name)]:
        raise BenchmdError(f"{odd[0]!r} is not of the form package.module:name.")
    let_import(*names)


def catalog(path: PathLike) -> CatalogData:
    """Open a catalog."""
    from benchmd_ray.data.catalog import open_catalog

    return CatalogData(open_catalog(as_location(path).resolve()))


def encoder(run: PathLike | Run, device: str | torch.device = "auto") -> FeatureEncoder:
    """The encoder of a finished run, for signals in their unit.

    Args:
        run: A pretraining or transfer run, its folder, or one that `export_model` wrote.
        device: ``auto``, ``cpu`` or ``cuda``.
    """
    from benchmd_ray.training.applied import FeatureEncoder

    return FeatureEncoder(weights_folder(run), device)


def classifier(
    run: PathLike | Run | Sequence[PathLike | Run], device: str | torch.device = "auto"
) -> SignalClassifier:
    """The classifier of a finished transfer run, for files or signals in their unit; see `encoder`.

    Several runs of one setting, the folder of a search or an exported average predict as one model.
    """
    from benchmd_ray.export.averaged_runs import classifier_of

    runs = [run] if isinstance(run, str) or not isinstance(run, Sequence) else run
    places = [as_store(place) if isinstance(place, str | Path) else place for place in runs]
    return classifier_of(places, device)


def export_model(
    run: PathLike | Run | Sequence[PathLike | Run],
    out: PathLike,
    *,
    catalog: Place | None = None,
    torch_export: bool = False,
    onnx: bool = False,
) -> Path:
    """Write the model of a finished run for others: weights, ``config.json`` and a model card.

    Args:
        run: A pretraining or transfer run, or its folder; several transfers of one setting, whose
            probabilities are averaged; or the folder of a search, for the average that it delivers.
        out: The folder; it is empty or not there.
        catalog: Programs are compared with the model on its records; None: on seeded noise.
        torch_export: Add ``model.pt2``, which needs PyTorch only.
        onnx: Add ``model.onnx``; needs the extra ``onnx``.

    Returns:
        The folder.

    Raises:
        BenchmdError: A run is not finished, segments or is damaged, runs differ in their settings,
            the folder is not empty, or a program cannot be written or differs from the model.
    """
    from benchmd_ray.export.averaged_runs import exported_runs
    from benchmd_ray.export.model import export_run

    runs = [run] if isinstance(run, str) or not isinstance(run, Sequence) else run
    opened = exported_runs([as_store(r) if isinstance(r, str | Path) else r for r in runs])
    place = None if catalog is None else as_location(catalog)
    programs = {"torch_export": torch_export, "onnx": onnx}
    return export_run(opened, as_folder(out), catalog=place, **programs).folder


def read_results(*stores: PathLike, resamples: int = 1000, baseline: str | None = None) -> Analysis:
    """The results of a report as DataFrames, without curves and benchmarks' own tables.

    ``rows`` is the long table of score rows: one for every run, split, metric and class. The others
    are made of it: ``scores`` (seeds pooled), ``gaps``, ``changes``, ``pairs``, ``ranking``,
    ``subgroups`` with ``subgroup_pairs`` and ``excluded``, ``tuned``; ``searches``, ``training``
    and ``ran`` are of searches and runs, and ``descriptions`` says what each row is. ``notes`` is
    what a reader must know.

    Args:
        stores: Stores of runs, or folders of single runs.
        resamples: Of the patients, for the intervals.
        baseline: Row or technique that others are compared with in ``changes``, such as ``MAE`` or
            ``MAE, linear``; None: training from scratch.
    """
    from benchmd_ray.report.analysis import analyse_stores

    paths = [as_store(each) for each in stores]
    return analyse_stores(paths, resamples=resamples, curves=False, baseline=baseline)


def write_report(
    *stores: PathLike,
    out: PathLike = "report",
    resamples: int = 1000,
    baseline: str | None = None,
    figures: Literal["main", "all", "none"] = "main",
    say: Say = echo,
) -> Path:
    """Write a report and give its page: tables and figures are next to it.

    Args:
        stores: Stores of runs, or folders of single runs.
        out: The folder.
        resamples: Of the patients, for the intervals.
        baseline: As for `read_results`.
        figures: Which are drawn.
        say: Takes the notes, and a line for each kind of what is written.
    """
    from benchmd_ray.report import write
    from benchmd_ray.report.analysis import analyse_stores

    paths = [as_store(each) for each in stores]
    curves = figures != "none"
    analysis = analyse_stores(paths, resamples=resamples, curves=curves, baseline=baseline)
    for note in analysis.notes:
        say(note)
    return write.write_report(analysis, as_folder(out), figures, say)


def build(
    dataset: str,
    raw: PathLike,
    out: PathLike,
    *,
    cards: PathLike | Sequence[PathLike] = (),
    policy: str = "clean",
    split_table: PathLike | None = None,
    options: Mapping[str, str] | None = None,
    hold_out: Sequence[str] = (),
    allow_missing: bool = False,
    max_quarantined: float = 0.01,
    address: str | None = None,
) -> CatalogData:
    """Build a catalog of raw files, or what is missing of it.

    Args:
        dataset: Name of its card.
        raw: Folder of the raw files.
        out: Folder of the catalog, or its address in a bucket.
        cards: Folders with cards of your own; they count for the rest of the process.
        policy: ``clean`` or ``released``.
        split_table: That BenchMD released, for ``released`` where there is one.
        options: Values of the card's options; else its defaults.
        hold_out: Conditions whose patients are kept out of all training.
        allow_missing: Accept another number of records than the card expects.
        max_quarantined: Largest share of unreadable records that is accepted.
        address: Ray cluster to work on; None works embedded.
    """
    from benchmd_ray.data.build import build as build_catalog
    from benchmd_ray.modality.card_folders import add_card_folders

    if folders := [as_folder(folder) for folder in several(cards)]:
        add_card_folders(folders)
    catalog = build_catalog(
        dataset,
        as_folder(raw),
        as_location(out),
        policy=policy,
        split_table=folder_or_none(split_table),
        options=options,
        hold_out=hold_out,
        allow_missing=allow_missing,
        max_quarantined=max_quarantined,
        address=address,
    )
    return CatalogData(catalog)


def pretrain(
    catalog: Place | Sequence[Place],
    technique: str,
    store: PathLike = "runs",
    *,
    settings: Values | None = None,
    weights: PathLike | None = None,
    address: str | None = None,
) -> Run:
    """Pretrain an encoder on a source's training split, without labels, unless it is done.

    Args:
        catalog: Of the source, or several of one signal that it is pretrained on together.
        technique: ``e-mix``, ``shed``, ``mae``; for images also ``imagenet``, ``imagenet+mae``; or
            ``package.module:name`` of your own.
        store: Of all runs.
        settings: What differs from the fixed protocol, by group.
        weights: File of ImageNet weights; None downloads them.
        address: Ray cluster to work on; None works embedded.

    Returns:
        The finished run; its ``folder`` is what `transfer` and `encoder` take.
    """
    from benchmd_ray.service.execute import base_settings, pretrain_run

    places = [as_location(each) for each in several(catalog)]
    changed = _changed(base_settings(places, technique), settings)
    used: dict[str, Any] = {"address": address, "weights": folder_or_none(weights)}
    return pretrain_run(technique, places, as_store(store), changed, **used)


def transfer(
    catalog: Place,
    store: PathLike = "runs",
    *,
    upstream: PathLike | Run | None = None,
    targets: Place | Sequence[Place] = (),
    settings: Values | None = None,
    address: str | None = None,
) -> Run:
    """Train on a source's labels, and score its evaluation splits and the targets, unless done.

    Args:
        catalog: Of the source.
        store: Of all runs.
        upstream: A pretraining run on this catalog or another one of such signals, its folder, or
            one that `export_model` wrote; or an encoder that was trained elsewhere:
            ``hf:FOLDER`` of transformers, or ``package.module:function`` that makes one, which
            `allow` names. None starts from random weights.
        targets: Catalogs that are scored without training on them.
        settings: What differs from the fixed protocol, by group.
        address: Ray cluster to work on; None works embedded.

    Returns:
        The finished run; its ``folder`` is what `classifier` takes.
    """
    from benchmd_ray.service.execute import transfer_run, transfer_settings
    from benchmd_ray.ssl.brought import brought_name

    place, start = as_location(catalog), None
    if isinstance(upstream, str | Path):
        start = brought_name(str(upstream)) or as_store(upstream)
    elif upstream is not None:
        start = upstream.folder
    changed = _changed(transfer_settings(place, start), settings)
    others = tuple(as_location(each) for each in several(targets))
    return transfer_run(
        place, as_store(store), changed, upstream=start, targets=others, address=address
    )


def tune(
    catalogs: Place | Sequence[Place],
    technique: str | Sequence[str] = (),
    setting: str | Sequence[str] = (),
    store: PathLike = "runs",
    *,
    trials: int | None = None,
    evaluations: int | None = None,
    hours: float | None = None,
    device_hours: float | None = None,
    single: bool = False,
    seeds: Sequence[int] = (0,),
    fix: str | Sequence[str] = (),
    space: PathLike | None = None,
    pretrain_on: Place | Sequence[Place] = (),
    settings: Values | None = None,
    bench: str = "benchmd",
    start: str = "",
    weights: PathLike | None = None,
    search_only: bool = False,
    address: str | None = None,
    cpus: int | None = None,
    say: Say = echo,
) -> None:
    """Search models and settings on a source's own records; score the start and the choice.

    `read_results` has the outcome in ``tuned`` and ``searches``. The portfolio is the usual one.

    Args:
        catalogs: The source, its targets, and folders of catalogs.
        technique: One or several, see `pretrain`, or ``scratch``; empty for all that fit.
        setting: What is searched: ``pretrain``, or ``linear``, ``knn``, ``finetune-full``, …, one
            or several of equal labels; empty for all that a technique allows.
        store: Of all runs and searches.
        trials: Of each search; 50 where no budget is given.
        evaluations: Of all trials of each search.
        hours: By the clock, of each search.
        device_hours: Of GPUs, or of CPUs without one, of each search.
        single: Also train start and choice on all labels, once for each seed.
        seeds: The first is that of the search; the others are for ``single``.
        fix: Settings that are not searched.
        space: YAML file of your own search space.
        pretrain_on: Catalogs that are pretrained on, as one, instead of the source's own.
        settings: What the start differs in from the fixed protocol, by group.
        bench: Name of the benchmark whose starts are taken.
        start: What settings begin with; empty for the benchmark's usual one.
        weights: File of ImageNet weights; None downloads them where they are needed.
        search_only: Do not train and score what was chosen.
        address: Ray cluster to work on; None works embedded.
        cpus: CPUs to use at once; None takes all.
        say: Takes a line of what is done.

    Raises:
        BenchmdError: Something named does not exist or fit, or not all of it could be done.
    """
    from benchmd_ray.evaluation.registry import benchmark
    from benchmd_ray.service.choice import Choice
    from benchmd_ray.service.families import Tuning
    from benchmd_ray.service.tune_and_train import search_and_train
    from benchmd_ray.settings.arguments import assignments
    from benchmd_ray.tuning.limits import Budget
    from benchmd_ray.tuning.method import Method
    from benchmd_ray.tuning.portfolio import read_portfolio

    budget = (trials, evaluations, hours, device_hours)
    choice = Choice(
        catalogs=tuple(as_location(each) for each in several(catalogs)),
        pretrain_on=tuple(as_location(each) for each in several(pretrain_on)),
        seeds=tuple(seeds),
        assignments=assignments(settings),
        weights=folder_or_none(weights),
        bench=benchmark(bench).name,
        start=start,
    )
    tuning = Tuning(
        choice,
        techniques=tuple(map(str, several(technique))),
        searched=tuple(map(str, several(setting))),
        space=folder_or_none(space),
        held=tuple(map(str, several(fix))),
        method=Method(seed=choice.seeds[0]),
        budget=Budget() if all(limit is None for limit in budget) else Budget(*budget),
        portfolio=read_portfolio(),
        single=single,
    )
    used: dict[str, Any] = {"address": address, "cpus": cpus, "search_only": search_only}
    if not search_and_train(tuning, as_store(store), say=say, **used):
        raise BenchmdError(
            f"the search in {store}, or a run after it, failed: the lines before say why. The same "
            "call resumes with what is left."
        )


def _changed(base: Settings, settings: Values | None) -> Settings:
    from benchmd_ray.settings.arguments import plain
    from benchmd_ray.settings.definition import updated

    return updated(base, plain(settings))
