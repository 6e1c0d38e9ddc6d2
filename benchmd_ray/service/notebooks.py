"""Interface for notebooks: catalogs as datasets and tables, paths as text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from benchmd_ray.errors import BenchmdError

if TYPE_CHECKING:
    import pandas as pd

    from benchmd_ray.data.catalog import Catalog
    from benchmd_ray.data.map_style import SplitDataset
    from benchmd_ray.runs.store import Run
    from benchmd_ray.storage.location import Location


class CatalogData:
    """A catalog as datasets and tables. `info` has its card, digest, counts and statistics."""

    def __init__(self, opened: Catalog) -> None:
        """Take an opened catalog."""
        self.info = opened

    def __repr__(self) -> str:
        """The dataset and its number of records."""
        counts = ", ".join(f"{name} {self.info.rows(name)}" for name in self.splits)
        return f"<catalog {self.info.dataset} at {self.info.path}: {counts}>"

    @property
    def splits(self) -> tuple[str, ...]:
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
            source: Catalog whose training split gives the statistics for normalisation; None takes
                this one. A target needs its source.
            physical: Keep signals in their unit, and return their valid sizes too.

        Raises:
            BenchmdError: The split has no record, or the source is missing or has another signal.
        """
        from benchmd_ray.data.map_style import SplitDataset
        from benchmd_ray.data.normalise import NORMALISERS
        from benchmd_ray.modality.signals import differing_in

        by, signal = self.info if source is None else source.info, self.info.signal
        if by.signal != signal:
            raise BenchmdError(
                f"the source {by.path} is of {by.signal.name}, and {self.info.path} of "
                f"{signal.name}{differing_in(by.signal, signal)}: name a source of the same signal."
            )
        needed = NORMALISERS[signal.normaliser].by_statistics and not physical
        if needed and source is None and self.info.card.role == "target":
            raise BenchmdError(
                f"signals of {signal.name} are normalised by statistics of their source, and "
                f"{self.info.dataset} is a target: name the catalog of the source, "
                "torch(split, source=catalog(…))."
            )
        return SplitDataset(self.info, split, by.statistics, physical=physical)

    def ray(self, split: str) -> Any:
        """A split as a `ray.data.Dataset`; connect to Ray first, such as by ``ray.init()``.

        A row has ``record_id``, ``group_id`` (the patient, hashed), ``unit_id``, ``signal``
        (float32 ``(*stored_shape)``, in the signal's unit), ``target`` (int8 ``(classes,)`` of 1, 0
        or -1; of masks uint8 ``(*extents)``) and ``valid_size`` (int32, for all axes but the
        channel). Ray Data is configured to keep order and to show no progress; its tasks verify the
        hashes of shards.
        """
        from benchmd_ray.cluster.connection import connected_already
        from benchmd_ray.data.streaming import ray_dataset

        if not connected_already():
            raise BenchmdError(
                "Ray is not connected: call ray.init() first, or ray.init(address=…) for a cluster."
            )
        return ray_dataset(self.info, split)

    def frame(self, split: str | None = None) -> pd.DataFrame:
        """Records of a split, or of all splits, one row each, without signals.

        Columns are ``split``, ``record_id``, ``group_id`` (the patient, hashed), ``unit_id``, a
        column ``target.CLASS`` for each class (1, 0, or -1 for unknown; not for masks), and
        metadata of patient and acquisition: ``age``, ``sex``, ``site``, ``device``, ``view``.
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
        stored = names if target.is_mask else [*names, "target"]
        table = split_table(self.info, split, [*stored, *METADATA])
        columns: dict[str, Any] = {"split": split, **{n: table[n].to_pandas() for n in names}}
        if not target.is_mask:
            values = targets_of(table["target"], target)
            columns |= {f"target.{n}": values[:, i] for i, n in enumerate(self.classes)}
        return pd.DataFrame(columns | {n: table[n].to_pandas() for n in METADATA})


PathLike: TypeAlias = str | Path
Place: TypeAlias = str | Path | CatalogData
"""A catalog, as path, address or opened catalog."""


def several(places: Any) -> tuple[Any, ...]:
    """One or several places as a tuple."""
    return (places,) if isinstance(places, str | Path | CatalogData) else tuple(places)


def _text(place: object) -> str:
    """A path or an address as text."""
    from benchmd_ray.storage.address import is_address, is_broken

    text = str(place)
    if is_broken(text):
        raise BenchmdError(
            f"{text} is an address given as a path: give it as text, {text[:2]}://BUCKET/PREFIX."
        )
    return text if is_address(text) else str(Path(text).expanduser())


def as_location(place: Place) -> Location:
    from benchmd_ray.storage.location import location

    return place.info.path if isinstance(place, CatalogData) else location(_text(place))


def as_folder(place: PathLike) -> Path:
    from benchmd_ray.storage.address import is_address

    if is_address(text := _text(place)):
        raise BenchmdError(
            f"{text}: expected a path, only catalogs and stores may be in an object store."
        )
    return Path(text)


def folder_or_none(place: PathLike | None) -> Path | None:
    return None if place is None else as_folder(place)


def as_store(place: PathLike) -> Path:
    """Folder of a store or run; for an address, its mirror."""
    from benchmd_ray.runs.places import store_folder

    return store_folder(_text(place))


def weights_folder(run: PathLike | Run) -> Path:
    """Folder of an exported model, or of a finished run whose weights are on this machine."""
    from benchmd_ray.runs.store import read_run, require_weights
    from benchmd_ray.training.weights import is_exported, require_programs

    if isinstance(run, str | Path):
        folder = as_store(run)
        if is_exported(folder):
            require_programs(folder)
            return folder
        run = read_run(folder)
    require_weights(run)
    return run.folder
