"""For notebooks and programs: what commands do as functions, what they write as arrays and tables.

The package exports all of it, and what a function needs is imported when it is called. Paths are
text or `pathlib.Path`; catalogs, stores and runs may be on S3 (``s3://bucket/prefix``). Defaults
and refusals are those of the commands; errors are `benchmd_ray.errors.BenchmdError`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas as pd

    from benchmd_ray.data.catalog import Catalog
    from benchmd_ray.data.map_style import SplitDataset
    from benchmd_ray.results.report.analysis import Analysis
    from benchmd_ray.results.store import Run
    from benchmd_ray.training.applied import FeatureEncoder, SignalClassifier

__all__ = [
    "CatalogData",
    "build",
    "catalog",
    "classifier",
    "encoder",
    "pretrain",
    "read_results",
    "report",
    "transfer",
    "tune",
]

PathLike = str | Path
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
                normaliser needs statistics; None takes this one. A target takes its source.
            physical: Leave signals in their unit.

        Raises:
            BenchmdError: The split has no record, or statistics are needed that there are not.
        """
        from benchmd_ray.data.map_style import SplitDataset

        by = self.info if source is None else source.info
        return SplitDataset(self.info, split, by.statistics, physical=physical)

    def ray(self, split: str) -> Any:
        """A split as a `ray.data.Dataset`; connect to a Ray before, such as by ``ray.init()``.

        A row has ``record_id``, ``group_id`` (the patient, hashed), ``unit_id``, ``signal``
        (float32 (*stored_shape), in the signal's unit), ``target`` and ``valid_size``.

        Raises:
            BenchmdError: The split has no record, or a shard is missing or another one.
        """
        from benchmd_ray.data.streaming import ray_dataset

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


def catalog(path: PathLike) -> CatalogData:
    """Open a catalog.

    Args:
        path: Of the catalog, also on S3.

    Raises:
        BenchmdError: There is none, or it is of another format or not what was written.
    """
    from benchmd_ray.data.catalog import open_catalog
    from benchmd_ray.storage.location import location

    return CatalogData(open_catalog(location(str(path))))


def encoder(run: PathLike | Run, device: str = "auto") -> FeatureEncoder:
    """The encoder of a finished run, for signals in their unit.

    Args:
        run: A pretraining or transfer run, or its folder.
        device: ``auto``, ``cpu`` or ``cuda``.

    Raises:
        BenchmdError: There is no model, or it is not what was written.
    """
    from benchmd_ray.training.applied import FeatureEncoder

    return FeatureEncoder(_run_folder(run), device)


def classifier(run: PathLike | Run, device: str = "auto") -> SignalClassifier:
    """The classifier of a finished transfer run, for signals in their unit.

    Args:
        run: A transfer run, or its folder.
        device: ``auto``, ``cpu`` or ``cuda``.

    Raises:
        BenchmdError: There is no model, it has no head, or it is not what was written.
    """
    from benchmd_ray.training.applied import SignalClassifier

    return SignalClassifier(_run_folder(run), device)


def read_results(*stores: PathLike, resamples: int = 1000) -> Analysis:
    """Everything that a report says of runs, as DataFrames.

    ``rows`` is the long table of score rows: one for every run, split, metric and class. The others
    are made of it: ``scores`` (seeds pooled), ``gaps``, ``changes``, ``pairs``, ``ranking``,
    ``subgroups``, ``searches``, ``tuned``. ``notes`` is what a reader must know.

    Args:
        stores: Stores of runs, or folders of single runs.
        resamples: Of the patients, for the intervals.

    Raises:
        BenchmdError: No run is finished and has predictions.
    """
    from benchmd_ray.results.report.analysis import analyse_stores

    return analyse_stores([_store(each) for each in stores], resamples=resamples, curves=False)


def report(
    *stores: PathLike,
    out: PathLike = "report",
    resamples: int = 1000,
    figures: Literal["main", "all", "none"] = "main",
    say: Say = print,
) -> Path:
    """Write a report: the page, its tables and its figures.

    Args:
        stores: Stores of runs, or folders of single runs.
        out: The folder.
        resamples: Of the patients, for the intervals.
        figures: Which are drawn.
        say: Takes a line for each kind of what is written.

    Returns:
        The page.

    Raises:
        BenchmdError: No run is finished and has predictions.
    """
    from benchmd_ray.results.report.analysis import analyse_stores
    from benchmd_ray.results.report.write import write_report

    paths = [_store(each) for each in stores]
    analysis = analyse_stores(paths, resamples=resamples, curves=figures != "none")
    return write_report(analysis, Path(out), figures, say)


def build(
    dataset: str,
    raw: PathLike,
    out: PathLike,
    *,
    cards: Sequence[PathLike] = (),
    **options: Any,
) -> CatalogData:
    """Build a catalog of raw files, or what is missing of it.

    Args:
        dataset: Name of its card.
        raw: Folder of the raw files.
        out: Folder of the catalog, or its address on S3.
        cards: Folders with cards of your own.
        options: As `benchmd_ray.data.build.build` takes them: ``allow_missing``, ``policy``,
            ``options`` of the card, ``hold_out``, ``max_quarantined``, ``address``, …

    Raises:
        BenchmdError: The raw folder is missing, of another layout or incomplete, ``out`` holds
            something else, or too many records cannot be read.
    """
    from benchmd_ray.card_folders import add_card_folders
    from benchmd_ray.data.build import build as build_catalog
    from benchmd_ray.storage.location import location

    if cards:
        add_card_folders([Path(folder) for folder in cards])
    return CatalogData(build_catalog(dataset, Path(raw), location(str(out)), **options))


def pretrain(
    catalog: PathLike,
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
    from benchmd_ray.settings import load_settings
    from benchmd_ray.storage.location import location

    place, chosen = location(str(catalog)), _assignments(settings, technique)
    made = load_settings(assignments=chosen, base=base_settings(place, technique))
    file = None if weights is None else Path(weights)
    return pretrain_run(technique, place, _store(store), made, address, weights=file)


def transfer(
    catalog: PathLike,
    store: PathLike = "runs",
    *,
    upstream: PathLike | Run | None = None,
    targets: Sequence[PathLike] = (),
    settings: Values | None = None,
    address: str | None = None,
) -> Run:
    """Train on a source's labels, and score its evaluation splits and the targets, unless done.

    Args:
        catalog: Of the source.
        store: Of all runs.
        upstream: A pretraining run, or its folder; None starts from random weights.
        targets: Catalogs that are scored without training on them.
        settings: What differs from the fixed protocol, by group.
        address: Ray cluster to work on; None works embedded.

    Returns:
        The finished run; its ``folder`` is what `classifier` takes.

    Raises:
        BenchmdError: Something named does not exist or fit, or the work failed.
    """
    from benchmd_ray.results.store import read_run
    from benchmd_ray.service.execute import base_settings, transfer_run
    from benchmd_ray.settings import load_settings
    from benchmd_ray.ssl import SCRATCH
    from benchmd_ray.storage.location import location

    place, technique, start = location(str(catalog)), SCRATCH, None
    if upstream is not None:
        start = _run_folder(upstream)
        technique = str(read_run(start).description["technique"])
    made = load_settings(
        assignments=_assignments(settings, ""), base=base_settings(place, technique)
    )
    others = tuple(location(str(each)) for each in targets)
    return transfer_run(place, _store(store), made, upstream=start, targets=others, address=address)


def tune(
    catalogs: Sequence[PathLike],
    technique: str,
    setting: str = "linear",
    store: PathLike = "runs",
    *,
    trials: int | None = None,
    hours: float | None = None,
    device_hours: float | None = None,
    seeds: Sequence[int] = (0,),
    fix: Sequence[str] = (),
    space: PathLike | None = None,
    settings: Values | None = None,
    address: str | None = None,
    cpus: int | None = None,
    say: Say = print,
) -> None:
    """Search settings on a source's own records; train the start and what was chosen.

    `read_results` has what came of it in ``tuned`` and ``searches``.

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
        address: Ray cluster to work on; None works embedded.
        cpus: CPUs to use at once; None takes all.
        say: Takes a line of what is done.

    Raises:
        BenchmdError: Something named does not exist or fit, or not all of it could be done.
    """
    from benchmd_ray.errors import BenchmdError
    from benchmd_ray.service.choice import Choice
    from benchmd_ray.service.searches import Tuning
    from benchmd_ray.service.tune_and_train import search_and_train
    from benchmd_ray.storage.location import location
    from benchmd_ray.tuning.limits import Budget
    from benchmd_ray.tuning.method import Method
    from benchmd_ray.tuning.portfolio import read_portfolio

    budget: dict[str, Any] = {"trials": trials, "hours": hours, "device_hours": device_hours}
    if all(value is None for value in budget.values()):
        budget = {}
    choice = Choice(
        catalogs=tuple(location(str(each)) for each in catalogs),
        techniques=(technique,),
        seeds=tuple(seeds),
        assignments=tuple(_assignments(settings, technique)),
    )
    tuning = Tuning(
        choice,
        searched=(setting,),
        space=None if space is None else Path(space),
        held=tuple(fix),
        method=Method(seed=seeds[0]),
        budget=Budget(**budget),
        portfolio=read_portfolio(),
    )
    if not search_and_train(tuning, _store(store), say=say, address=address, cpus=cpus):
        raise BenchmdError("not all of it could be done; the same call goes on with what is left.")


def _store(place: PathLike) -> Path:
    from benchmd_ray.results.storage.places import store_folder

    return store_folder(str(place))


def _run_folder(run: PathLike | Run) -> Path:
    """Folder of a run, of which a finished one of S3 is on this machine then."""
    from benchmd_ray.results.store import read_run, require_weights

    found = read_run(_store(run)) if isinstance(run, str | Path) else run
    require_weights(found)
    return found.folder


def _assignments(settings: Values | None, technique: str) -> list[str]:
    """Settings as commands take them; import paths that the caller names in them are allowed."""
    from benchmd_ray.plugins import allow

    found = list(_flat(settings or {}))
    allow(technique, *(value for _, value in found if isinstance(value, str)))
    return [f"{name}={json.dumps(value)}" for name, value in found]


def _flat(settings: Values, above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
