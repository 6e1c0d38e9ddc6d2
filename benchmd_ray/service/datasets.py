"""Datasets for a plan: from catalogs on disk, or from cards before catalogs are built."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from benchmd_ray.data.cards import DatasetCard, dataset_card
from benchmd_ray.data.catalog import MANIFEST, Catalog, open_catalog
from benchmd_ray.data.folds import fold_catalogs
from benchmd_ray.data.manifest_form import SHARDS
from benchmd_ray.data.pooled import members_of, open_pretraining
from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.evaluation import Evaluation
from benchmd_ray.modality.modalities import Modality
from benchmd_ray.storage.location import Location, entries

DEPTH = 2
"""Levels of subfolders that are searched for catalogs."""
TRAINED_SHARE = 0.8
"""Fraction of a source's records used for training if no counts are published (decisions D7 and
D20).
"""


@dataclass(frozen=True)
class PlannedDataset:
    """What a plan needs to know about one dataset under one policy."""

    name: str
    kind: Modality
    """Its signal and its task."""
    role: str
    policy: str
    rows: Mapping[str, int]
    """Records of each split."""
    scored: tuple[str, ...]
    """Splits that are scored."""
    positives: tuple[int, ...] = ()
    """Positive training records of each class; empty if unknown."""
    catalog: Location | None = None
    """Its catalog; None if only the card is known."""
    digest: str | None = field(default=None, repr=False)
    """Hash of the catalog."""
    fold: int | None = None
    """Fold of a cross-validation that is scored, of which the others are trained on."""

    @property
    def fold_name(self) -> str:
        """Its part of the names of items: ``fold-2/``; empty without folds."""
        return "" if self.fold is None else f"fold-{self.fold}/"

    @property
    def without(self) -> str:
        """For messages: ``, fold 2 held out``; empty without folds."""
        return "" if self.fold is None else f", fold {self.fold} held out"

    @property
    def modality(self) -> str:
        return self.kind.name

    @property
    def scored_rows(self) -> int:
        return sum(self.rows.get(split, 0) for split in self.scored)


@dataclass(frozen=True)
class Found:
    """Datasets that can be used, and notes on what was excluded and why."""

    datasets: tuple[PlannedDataset, ...]
    notes: tuple[str, ...] = ()
    also: tuple[PlannedDataset, ...] = ()
    """Further datasets, only for evaluations."""


def from_catalogs(paths: Iterable[Location]) -> Found:
    """Datasets of catalogs or folders, by modality, role (sources first), name and policy.

    A catalog that is cut into folds is a dataset for each.

    Raises:
        BenchmdError: A path has no catalog, a catalog cannot be read, or two catalogs have the same
            dataset and policy.
    """
    folders: dict[Location, None] = {}
    notes: list[str] = []
    for path in paths:
        catalogs = list(_catalog_folders(path))
        if not any(finished for _, finished in catalogs):
            raise BenchmdError(
                f"{path} holds no catalog (no {MANIFEST} in it or up to {DEPTH} levels below). "
                "Name a catalog, or a folder with catalogs, that `benchmd catalog build` wrote."
            )
        folders |= {folder: None for folder, finished in catalogs if finished}
        notes += [
            f"{folder}: skipped, an unfinished catalog (run its `benchmd catalog build`)."
            for folder, finished in catalogs
            if not finished
        ]
    datasets: dict[tuple[str, str, int | None], PlannedDataset] = {}
    for dataset in (dataset for folder in folders for dataset in _datasets_of(folder)):
        key = (dataset.name, dataset.policy, dataset.fold)
        if key in datasets:
            raise BenchmdError(
                f"{datasets[key].catalog} and {dataset.catalog} are both catalogs of "
                f"{dataset.name} with policy {dataset.policy}: name one of them. If they are of "
                "other records, build one from a card with another name (role: target, to be "
                "scored only)."
            )
        datasets[key] = dataset
    return Found(tuple(sorted(datasets.values(), key=_order)), tuple(notes))


def for_pretraining(paths: Sequence[Location]) -> tuple[PlannedDataset, ...]:
    """What is pretrained on, as one dataset without labels, and the catalogs that it is of.

    Raises:
        BenchmdError: A catalog cannot be read, or two cannot be pretrained on together.
    """
    catalog = open_pretraining([path.resolve() for path in paths])
    members = [_of_catalog(member) for member in members_of(catalog)]
    if len(members) == 1 and members[0].role == "source":
        return members[0], *members
    rows = {"train": catalog.rows("train")}
    whole = replace(
        members[0],
        name=catalog.dataset,
        policy=str(catalog.manifest["policy"]),
        rows=rows,
        scored=(),
        positives=(),
        digest=catalog.digest,
    )
    return whole, *members


def read_also(
    evaluation: Evaluation, source: PlannedDataset, datasets: Sequence[PlannedDataset]
) -> tuple[PlannedDataset, ...]:
    """Further datasets that an evaluation of a source reads."""
    names = () if evaluation.also is None else evaluation.also(source, datasets)
    chosen = tuple(dataset for dataset in datasets if dataset.name in names)
    require_one_each((dataset.name, dataset.catalog) for dataset in chosen)
    return chosen


def require_one_each(catalogs: Iterable[tuple[str, Location | None]]) -> None:
    """Refuse two catalogs of the same dataset if an evaluation would read both."""
    places: dict[str, Location | None] = {}
    for name, place in catalogs:
        if name in places:
            raise BenchmdError(
                f"{places[name]} and {place} are both catalogs of {name}, whose records would "
                "count twice: name one of them."
            )
        places[name] = place


def _order(dataset: PlannedDataset) -> tuple[str | int, ...]:
    fold = -1 if dataset.fold is None else dataset.fold
    return (dataset.modality, dataset.role, dataset.name, dataset.policy, fold)


def _datasets_of(folder: Location) -> list[PlannedDataset]:
    """The dataset of a catalog, or those of its folds."""
    catalog = open_catalog(folder, folds=True)
    catalogs = fold_catalogs(catalog) if "folds" in catalog.manifest else [catalog]
    return [_of_catalog(catalog) for catalog in catalogs]


def _catalog_folders(path: Location, depth: int = DEPTH) -> Iterator[tuple[Location, bool]]:
    """The catalogs in or below a folder, in order, and whether each is finished."""
    try:
        files, folders = entries(path)
    except PermissionError:  # such as lost+found next to catalogs
        return
    if MANIFEST in files:
        yield path.resolve(), True
    elif SHARDS in folders:
        yield path, False
    elif depth:
        for name in sorted(folders):
            yield from _catalog_folders(path / name, depth - 1)


def _of_catalog(catalog: Catalog) -> PlannedDataset:
    splits = catalog.manifest["splits"]
    classes = splits.get("train", {}).get("classes", {})
    return PlannedDataset(
        name=catalog.dataset,
        kind=catalog.card.modality,
        role=catalog.card.role,
        policy=str(catalog.manifest["policy"]),
        rows={split: catalog.rows(split) for split in splits},
        scored=catalog.evaluation_splits,
        positives=tuple(classes[name] for name in catalog.card.classes if name in classes),
        catalog=catalog.path,
        digest=catalog.digest,
        fold=None if catalog.held_out_fold is None else catalog.held_out_fold["number"],
    )


def from_cards(names: Iterable[str], policies: Sequence[str] = ("clean",)) -> Found:
    """Datasets as stated in their cards, with approximate record counts of complete downloads."""
    chosen = [dataset_card(name) for name in sorted(names)]
    datasets = [_of_card(card, policy) for card in chosen for policy in policies]
    return Found(tuple(sorted(datasets, key=_order)))


def _of_card(card: DatasetCard, policy: str) -> PlannedDataset:
    return PlannedDataset(
        name=card.name,
        kind=card.modality,
        role=card.role,
        policy=policy,
        rows=card_rows(card, policy),
        scored=card.evaluation_splits[policy],
        positives=_card_positives(card, policy),
    )


def card_rows(card: DatasetCard, policy: str) -> dict[str, int]:
    """Approximate number of records of each split in a complete catalog.

    Taken from the owner's split file; otherwise from published counts of records (one class per
    record, no scans); otherwise from the total of the first layout, all for a target and
    `TRAINED_SHARE` for the training split of a source.
    """
    layout = next(iter(card.layouts.values()))
    if layout.splits:
        return dict(layout.splits)
    counts = card.expected.get(policy, {})
    countable = card.task.exclusive and card.task.scored == "records"
    published = {split: sum(of.values()) for split, of in counts.items()} if countable else {}
    if published and "total" not in published:
        return published
    scored = card.evaluation_splits[policy]
    whole = published.get("total") or _whole(card)
    if card.role == "target":
        return {scored[0]: whole}
    train = round(TRAINED_SHARE * whole)
    return {"train": train} | dict.fromkeys(scored, (whole - train) // len(scored))


def _whole(card: DatasetCard) -> int:
    """Rows of a complete catalog, or of the records that a build samples by default."""
    layout = next(iter(card.layouts.values()))
    whole = layout.records * layout.rows_per_record
    drawn = card.options["images"].default if "images" in card.options else ""
    return min(whole, int(drawn)) if drawn.isdecimal() else whole


def _card_positives(card: DatasetCard, policy: str) -> tuple[int, ...]:
    """Published training records of each class, for this policy or else the other one."""
    for counts in (card.expected.get(policy, {}), *card.expected.values()):
        if train := counts.get("train"):
            return tuple(train.get(name, 0) for name in card.classes)
    return ()
