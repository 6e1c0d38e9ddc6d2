"""For notebooks and programs: what commands do as functions, what they write as arrays and tables.

The package exports all of it, and what a function needs is imported when it is called. Paths are
text or `pathlib.Path`; catalogs, stores and runs may be on S3, as text (``s3://bucket/prefix``).
Where one path is expected an opened catalog or a run may be given, where several, a single one.
What is not given is as the commands have it; errors are `BenchmdError`.

Code of your own that a run or settings name (methods, networks) is imported where `allow` names
it, and nowhere else: nothing that a store says is believed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from benchmd_ray.console.terminal import echo
from benchmd_ray.errors import BenchmdError

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from benchmd_ray.data.catalog import Catalog
    from benchmd_ray.data.map_style import SplitDataset
    from benchmd_ray.report.analysis import Analysis
    from benchmd_ray.runs.store import Run
    from benchmd_ray.settings.definition import Settings
    from benchmd_ray.storage.location import Location
    from benchmd_ray.training.applied import FeatureEncoder, SignalClassifier

__all__ = [
    "BenchmdError",
    "CatalogData",
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

PathLike = str | Path
Place: TypeAlias = "str | Path | CatalogData"
"""A catalog: its path or address, or opened."""
Say = Callable[[str], None]
Values = Mapping[str, Any]
"""Settings by group, as in a YAML file: ``{"transfer": {"epochs": 5}}``."""


class CatalogData:
    """A catalog as datasets and tables. `info` has its card, digest, counts and statistics."""

    def __init__(self, opened: Catalog) -> None:
        """Take an opened catalog."""
        self.info = opened

    def __repr__(self) -> str:
        """What it is of, and how many records it has."""
        counts = ", ".join(f"{name} {self.info.rows(name)}" for name in self.splits)
        return f"<catalog {self.info.dataset} at {self.info.path}: {counts}>"

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits with records."""
        return tuple(name for name in self.info.manifest["splits"] if self.info.rows(name))

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of targets."""
        return tuple(self.info.card.classes)

    def torch(
        self, split: str, *, source: CatalogData | None = None, physical: bool = False
    ) -> SplitDataset:
        """A split as a map-style dataset of PyTorch: normalised signals with their targets.

        Args:
            split: Its name, such as ``train``.
            source: Catalog by whose training split signals are normalised, where their
                normaliser needs statistics; None takes this one. Targets need their source.
            physical: Leave signals in their unit, with their valid sizes next to them.

        Raises:
            BenchmdError: The split has no record, the source is of another signal, or a target
                needs its source.
        """
        from benchmd_ray.data.map_style import SplitDataset
        from benchmd_ray.data.normalise import NORMALISERS
        from benchmd_ray.modality.signals import differing_in

        by, own = self.info if source is None else source.info, self.info.signal
        if by.signal != own:
            raise BenchmdError(
                f"the source {by.path} is of {by.signal.name}, and {self.info.path} of "
                f"{own.name}{differing_in(by.signal, own)}: name a source of the same signal."
            )
        needed = NORMALISERS[own.normaliser].by_statistics and not physical
        if needed and source is None and self.info.card.role == "target":
            raise BenchmdError(
                f"signals of {own.name} are normalised by statistics of their source, and "
                f"{self.info.dataset} is a target: name the catalog of the source, "
                "torch(split, source=catalog(…))."
            )
        return SplitDataset(self.info, split, by.statistics, physical=physical)

    def ray(self, split: str) -> Any:
        """A split as a `ray.data.Dataset`; connect to a Ray before, such as by ``ray.init()``.

        A row has ``record_id``, ``group_id`` (the patient, hashed), ``unit_id``, ``signal``
        (float32 ``(*stored_shape)``, in the signal's unit), ``target`` (int8 ``(classes,)`` of 1, 0
        or -1; of masks uint8 ``(*extents)``) and ``valid_size`` (int32, for the axes but the
        channel's). Ray Data is set to keep order and to show no progress. Tasks that read a shard
        compare it with its hash.

        Raises:
            BenchmdError: No Ray is connected, or the split has no record.
        """
        from benchmd_ray.cluster.connection import connected_already
        from benchmd_ray.data.streaming import ray_dataset

        if not connected_already():
            raise BenchmdError(
                "no Ray is connected: begin with ray.init(), or ray.init(address=…) of a cluster."
            )
        return ray_dataset(self.info, split)

    def frame(self, split: str | None = None) -> pd.DataFrame:
        """Records without their signals, a row each.

        Columns are ``split``, ``record_id``, ``group_id`` (the patient, hashed), ``unit_id``, a
        column ``target.CLASS`` for each class (1, 0, or -1 for unknown; none of masks), and what is
        known of person and acquisition: ``age``, ``sex``, ``site``, ``device``, ``view``.

        Args:
            split: Its name; None takes all.

        Raises:
            BenchmdError: The split has no record, or a shard is missing or another one.
        """
        import pandas as pd

        names = self.splits if split is None else (split,)
        return pd.concat([self._frame(name) for name in names], ignore_index=True)

    def _frame(self, split: str) -> pd.DataFrame:
        import pandas as pd

        from benchmd_ray.data.records import METADATA, targets_of
        from benchmd_ray.data.resident import split_table

        target = self.info.card.target
        names = ["record_id", "group_id", "unit_id"]
        held = [] if target.is_mask else ["target"]
        table = split_table(self.info, split, [*names, *held, *METADATA])
        columns: dict[str, Any] = {"split": split, **{n: table[n].to_pandas() for n in names}}
        if held:
            values = targets_of(table["target"], target)
            columns |= {f"target.{n}": values[:, i] for i, n in enumerate(self.classes)}
        return pd.DataFrame(columns | {n: table[n].to_pandas() for n in METADATA})


def allow(*names: str) -> None:
    """Let this process, and a Ray that it starts afterwards, import code of your own.

    Args:
        names: Import paths of methods and networks, ``package.module:name``.

    Raises:
        BenchmdError: One is of another form.
    """
    from benchmd_ray.extensions.plugins import IMPORT_PATH
    from benchmd_ray.extensions.plugins import allow as let_import

    if odd := [name for name in names if not IMPORT_PATH.fullmatch(name)]:
        raise BenchmdError(f"{odd[0]!r} is not of the form package.module:name.")
    let_import(*names)


def catalog(path: PathLike) -> CatalogData:
    """Open a catalog.

    Args:
        path: Of the catalog, also on S3.

    Raises:
        BenchmdError: There is none, or it is of another format or not what was written.
    """
    from benchmd_ray.data.catalog import open_catalog

    return CatalogData(open_catalog(_location(path).resolve()))


def encoder(run: PathLike | Run, device: str | torch.device = "auto") -> FeatureEncoder:
    """The encoder of a finished run, for signals in their unit.

    Args:
        run: A pretraining or transfer run, its folder, or one that `export_model` wrote.
        device: ``auto``, ``cpu`` or ``cuda``.

    Raises:
        BenchmdError: There is no model, or it is not what was written.
    """
    from benchmd_ray.training.applied import FeatureEncoder

    return FeatureEncoder(_with_weights(run), device)


def classifier(run: PathLike | Run, device: str | torch.device = "auto") -> SignalClassifier:
    """The classifier of a finished transfer run, for signals in their unit.

    Args:
        run: A transfer run, its folder, or one that `export_model` wrote.
        device: ``auto``, ``cpu`` or ``cuda``.

    Raises:
        BenchmdError: There is no model, it has no head, or it is not what was written.
    """
    from benchmd_ray.training.applied import SignalClassifier

    return SignalClassifier(_with_weights(run), device)


def export_model(
    run: PathLike | Run,
    out: PathLike,
    *,
    catalog: Place | None = None,
    torch_export: bool = False,
    onnx: bool = False,
) -> Path:
    """Write the model of a finished run for others: weights, ``config.json`` and a model card.

    Args:
        run: A pretraining or transfer run, or its folder.
        out: The folder; it is empty or not there.
        catalog: Programs are compared with the model on its records; None: on seeded noise.
        torch_export: Add ``model.pt2``, which needs PyTorch only.
        onnx: Add ``model.onnx``; needs the extra ``onnx``.

    Returns:
        The folder.

    Raises:
        BenchmdError: The run is not finished, segments or is damaged, the folder holds something,
            or a program cannot be written or differs from the model.
    """
    from benchmd_ray.export.model import export_run
    from benchmd_ray.runs.store import read_run

    opened = read_run(_store(run)) if isinstance(run, str | Path) else run
    place = None if catalog is None else _location(catalog)
    asked = {"torch_export": torch_export, "onnx": onnx}
    return export_run(opened, _folder(out), catalog=place, **asked).folder


def read_results(*stores: PathLike, resamples: int = 1000) -> Analysis:
    """What a report says of runs, as DataFrames, but for its curves and benchmarks' own tables.

    ``rows`` is the long table of score rows: one for every run, split, metric and class. The others
    are made of it: ``scores`` (seeds pooled), ``gaps``, ``changes``, ``pairs``, ``ranking``,
    ``subgroups`` with ``subgroup_pairs`` and ``excluded``, ``tuned``; ``searches``, ``training``
    and ``ran`` are of searches and runs. ``notes`` is what a reader must know.

    Args:
        stores: Stores of runs, or folders of single runs.
        resamples: Of the patients, for the intervals.

    Raises:
        BenchmdError: No run is finished and has predictions.
    """
    from benchmd_ray.report.analysis import analyse_stores

    return analyse_stores([_store(each) for each in stores], resamples=resamples, curves=False)


def write_report(
    *stores: PathLike,
    out: PathLike = "report",
    resamples: int = 1000,
    figures: Literal["main", "all", "none"] = "main",
    say: Say = echo,
) -> Path:
    """Write a report: the page, its tables and its figures.

    Args:
        stores: Stores of runs, or folders of single runs.
        out: The folder.
        resamples: Of the patients, for the intervals.
        figures: Which are drawn.
        say: Takes the notes, and a line for each kind of what is written.

    Returns:
        The page.

    Raises:
        BenchmdError: No run is finished and has predictions.
    """
    from benchmd_ray.report import write
    from benchmd_ray.report.analysis import analyse_stores

    paths = [_store(each) for each in stores]
    analysis = analyse_stores(paths, resamples=resamples, curves=figures != "none")
    for note in analysis.notes:
        say(note)
    return write.write_report(analysis, _folder(out), figures, say)


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
        out: Folder of the catalog, or its address on S3.
        cards: Folders with cards of your own; they count for the rest of the process.
        policy: ``clean`` or ``released``.
        split_table: That BenchMD released, for ``released`` where there is one.
        options: Values of the card's options; else its defaults.
        hold_out: Conditions whose patients are kept out of all training.
        allow_missing: Accept another number of records than the card expects.
        max_quarantined: Largest share of unreadable records that is accepted.
        address: Ray cluster to work on; None works embedded.

    Raises:
        BenchmdError: The raw folder is missing, of another layout or incomplete, ``out`` holds
            something else, or too many records cannot be read.
    """
    from benchmd_ray.data.build import build as build_catalog
    from benchmd_ray.modality.card_folders import add_card_folders

    if folders := [_folder(folder) for folder in _several(cards)]:
        add_card_folders(folders)
    made = build_catalog(
        dataset,
        _folder(raw),
        _location(out),
        policy=policy,
        split_table=None if split_table is None else _folder(split_table),
        options=options,
        hold_out=hold_out,
        allow_missing=allow_missing,
        max_quarantined=max_quarantined,
        address=address,
    )
    return CatalogData(made)


def pretrain(
    catalog: Place,
    technique: str,
    store: PathLike = "runs",
    *,
    settings: Values | None = None,
    weights: PathLike | None = None,
    address: str | None = None,
) -> Run:
    """Pretrain an encoder on a source's training split, without labels, unless it is done.

    Args:
        catalog: Of the source.
        technique: ``e-mix``, ``shed``, ``mae``; for images also ``imagenet``, ``imagenet+mae``; or
            ``package.module:name`` of your own.
        store: Of all runs.
        settings: What differs from the fixed protocol, by group.
        weights: File of ImageNet weights; None downloads them.
        address: Ray cluster to work on; None works embedded.

    Returns:
        The finished run; its ``folder`` is what `transfer` and `encoder` take.

    Raises:
        BenchmdError: Something named does not exist or fit, or the work failed.
    """
    from benchmd_ray.service.execute import base_settings, pretrain_run

    place = _location(catalog)
    made = _changed(base_settings(place, technique), settings)
    file = None if weights is None else _folder(weights)
    return pretrain_run(technique, place, _store(store), made, address, weights=file)


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
        upstream: A pretraining run, or its folder; or an encoder that was trained elsewhere:
            ``hf:FOLDER`` of transformers, or ``package.module:function`` that makes one, which
            `allow` names. None starts from random weights.
        targets: Catalogs that are scored without training on them.
        settings: What differs from the fixed protocol, by group.
        address: Ray cluster to work on; None works embedded.

    Returns:
        The finished run; its ``folder`` is what `classifier` takes.

    Raises:
        BenchmdError: Something named does not exist or fit, or the work failed.
    """
    from benchmd_ray.service.execute import transfer_run, transfer_settings
    from benchmd_ray.ssl.brought import brought_name

    place, start = _location(catalog), None
    if isinstance(upstream, str | Path):
        start = brought_name(str(upstream)) or _store(upstream)
    elif upstream is not None:
        start = upstream.folder
    made = _changed(transfer_settings(place, start), settings)
    others = tuple(_location(each) for each in _several(targets))
    return transfer_run(place, _store(store), made, upstream=start, targets=others, address=address)


def tune(
    catalogs: Place | Sequence[Place],
    technique: str,
    setting: str = "linear",
    store: PathLike = "runs",
    *,
    trials: int | None = None,
    hours: float | None = None,
    device_hours: float | None = None,
    seeds: Sequence[int] = (0,),
    fix: str | Sequence[str] = (),
    space: PathLike | None = None,
    settings: Values | None = None,
    bench: str = "benchmd",
    start: str = "",
    weights: PathLike | None = None,
    search_only: bool = False,
    address: str | None = None,
    cpus: int | None = None,
    say: Say = echo,
) -> None:
    """Search settings on a source's own records; train the start and what was chosen.

    `read_results` has what came of it in ``tuned`` and ``searches``. Racing, choice and portfolio
    are the usual ones.

    Args:
        catalogs: The source, its targets, and folders of catalogs.
        technique: See `pretrain`, or ``scratch``.
        setting: What is searched: ``pretrain``, ``linear``, ``finetune-full``, …
        store: Of all runs and searches.
        trials: Of each search; 50 where no budget is given.
        hours: By the clock, of each search.
        device_hours: Of GPUs, or of CPUs without one, of each search.
        seeds: Of the runs after the search; the first is that of the search.
        fix: Settings that are not searched.
        space: YAML file of your own search space.
        settings: What the start differs in from the fixed protocol, by group.
        bench: Name of the benchmark whose starts are taken.
        start: What settings begin with; empty for the benchmark's usual one.
        weights: File of ImageNet weights; None downloads them where they are needed.
        search_only: Do not train what was found.
        address: Ray cluster to work on; None works embedded.
        cpus: CPUs to use at once; None takes all.
        say: Takes a line of what is done.

    Raises:
        BenchmdError: Something named does not exist or fit, or not all of it could be done.
    """
    from benchmd_ray.evaluation.registry import benchmark
    from benchmd_ray.service.choice import Choice, require_known
    from benchmd_ray.service.searches import Tuning
    from benchmd_ray.service.tune_and_train import search_and_train
    from benchmd_ray.settings.arguments import assignments
    from benchmd_ray.tuning.limits import Budget
    from benchmd_ray.tuning.method import Method
    from benchmd_ray.tuning.portfolio import read_portfolio

    budget: dict[str, Any] = {"trials": trials, "hours": hours, "device_hours": device_hours}
    if all(value is None for value in budget.values()):
        budget = {}
    choice = Choice(
        catalogs=tuple(_location(each) for each in _several(catalogs)),
        techniques=(technique,),
        seeds=tuple(seeds),
        assignments=assignments(settings),
        weights=None if weights is None else _folder(weights),
        bench=benchmark(bench).name,
        start=start,
    )
    require_known(choice)
    tuning = Tuning(
        choice,
        searched=(setting,),
        space=None if space is None else _folder(space),
        held=tuple(map(str, _several(fix))),
        method=Method(seed=choice.seeds[0]),
        budget=Budget(**budget),
        portfolio=read_portfolio(),
    )
    where = _store(store)
    if not search_and_train(
        tuning, where, say=say, address=address, cpus=cpus, search_only=search_only
    ):
        raise BenchmdError(
            f"the search in {store}, or a run after it, failed: the lines before say why. The same "
            "call goes on with what is left."
        )


def _several(given: Any) -> tuple[Any, ...]:
    """One or several, as several."""
    one = isinstance(given, str | Path | CatalogData)
    return (given,) if one else tuple(given)


def _text(place: object) -> str:
    """A path or an address as text.

    Raises:
        BenchmdError: It is an address that was made a path, which has lost a slash.
    """
    text = str(place)
    if text.startswith("s3:") and not text.startswith("s3://"):
        raise BenchmdError(f"{text} is an address as a path: give it as text, s3://BUCKET/PREFIX.")
    return text if text.startswith("s3://") else str(Path(text).expanduser())


def _location(place: Place) -> Location:
    from benchmd_ray.storage.location import location

    return place.info.path if isinstance(place, CatalogData) else location(_text(place))


def _folder(place: PathLike) -> Path:
    """A path of this machine.

    Raises:
        BenchmdError: It is an address.
    """
    if (text := _text(place)).startswith("s3://"):
        raise BenchmdError(f"{text}: expected a path, only catalogs and stores may be on S3.")
    return Path(text)


def _store(place: PathLike) -> Path:
    from benchmd_ray.runs.places import store_folder

    return store_folder(_text(place))


def _with_weights(run: PathLike | Run) -> Path:
    """Folder of a finished run, whose weights are on this machine then, or of an exported model."""
    from benchmd_ray.runs.store import read_run, require_weights
    from benchmd_ray.training.weights import is_exported, require_programs

    if isinstance(run, str | Path):
        folder = _store(run)
        if is_exported(folder):
            require_programs(folder)
            return folder
        run = read_run(folder)
    require_weights(run)
    return run.folder


def _changed(base: Settings, settings: Values | None) -> Settings:
    from benchmd_ray.settings.arguments import plain
    from benchmd_ray.settings.definition import updated

    return updated(base, plain(settings))
