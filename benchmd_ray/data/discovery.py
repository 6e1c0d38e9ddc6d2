"""From a raw folder and a user's choices to the list of its records."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmd_ray.data.binary import in_two_classes
from benchmd_ray.data.cards import DatasetCard, dataset_card
from benchmd_ray.data.datasets import dataset_of
from benchmd_ray.data.holding_out import conditions_in, held_out
from benchmd_ray.data.raw import DUPLICATE, Choices, Discovery, RawItem, inside
from benchmd_ray.errors import BenchmdError, composed, count_of, unknown_name


def discovered(
    card: DatasetCard,
    raw: Path,
    policy: str,
    split_table: Path | None,
    options: Mapping[str, str],
    hold_out: Sequence[str] = (),
    two_classes: Sequence[str] = (),
) -> tuple[Choices, Discovery, DatasetCard]:
    """What a raw folder holds, under the arguments of `build`, and the card of its catalog.

    Raises:
        BenchmdError: The folder is missing, of another layout or names files elsewhere, or a choice
            is unknown.
    """
    choices = chosen(card, policy, split_table, options, hold_out, two_classes)
    discovery = _listed(card, raw, choices)
    for item in discovery.items:
        inside(item.path, raw)
    discovery = _unique(discovery)
    if choices.policy == "clean" or card.files is not None:
        _require_own_splits(discovery, card)
    discovery, card = held_out(discovery, card, choices.hold_out)
    return choices, *in_two_classes(discovery, card, choices.two_classes)


def conditions_there(
    card: DatasetCard, raw: Path, options: Mapping[str, str], names: Sequence[str]
) -> tuple[str, ...]:
    """The given conditions that some record of a raw folder has, under the policy ``clean``."""
    discovery = _listed(card, raw, chosen(card, "clean", None, options, names))
    stated = conditions_in(discovery.items) | {*discovery.states.values()}
    return tuple(name for name in names if name in stated)


def _listed(card: DatasetCard, raw: Path, choices: Choices) -> Discovery:
    if not raw.is_dir():
        raise BenchmdError(f"the raw folder {raw} does not exist. {_expectation(card)}")
    discovery = dataset_of(card).discover(raw, card, choices)
    return dataclasses.replace(discovery, items=[_composed(item) for item in discovery.items])


def _composed(item: RawItem) -> RawItem:
    """The item with labels and conditions in composed Unicode, as cards have them."""
    names = (item.label or "", *item.labels, *item.conditions)
    if all(map(str.isascii, names)):
        return item
    return dataclasses.replace(
        item,
        label=item.label and composed(item.label),
        labels={composed(name): value for name, value in item.labels.items()},
        conditions=tuple(map(composed, item.conditions)),
    )


def chosen(
    card: DatasetCard,
    policy: str,
    split_table: Path | None,
    options: Mapping[str, str],
    hold_out: Sequence[str] = (),
    two_classes: Sequence[str] = (),
) -> Choices:
    """The choices with a value for each of the card's options.

    Raises:
        BenchmdError: The policy, an option or its value is unknown, or a split table has no use.
    """
    if policy not in card.evaluation_splits:
        raise unknown_name(f"policy of {card.name}:", policy, card.evaluation_splits)
    for name, value in options.items():
        if name not in card.options:
            raise unknown_name(f"option of {card.name}", name, card.options)
        valid = card.options[name].choices
        if valid and value not in valid:
            raise unknown_name(f"value of the option {name} of {card.name}:", value, valid)
    if split_table and not (policy == "released" and card.split_table):
        needed = "the policy released" if card.split_table else "other datasets"
        raise BenchmdError(
            f"--split-table {split_table} is only for {needed} and would change nothing here: "
            "leave it out."
        )
    defaults = {name: option.default_under(policy) for name, option in card.options.items()}
    kept_out, normal = (tuple(sorted({*map(composed, n)})) for n in (hold_out, two_classes))
    return Choices(policy, split_table, defaults | dict(options), kept_out, normal)


def _unique(discovery: Discovery) -> Discovery:
    """Keep the first item of each record id, and count the others as excluded."""
    kept = {item.record_id: item for item in reversed(discovery.items)}
    items = [item for item in discovery.items if kept[item.record_id] is item]
    if len(items) == len(discovery.items):
        return discovery
    excluded = Counter(discovery.excluded) + Counter({DUPLICATE: len(discovery.items) - len(items)})
    return dataclasses.replace(discovery, items=items, excluded=dict(excluded))


def _require_own_splits(discovery: Discovery, card: DatasetCard) -> None:
    first: dict[str, RawItem] = {}
    shared: dict[str, RawItem] = {}
    for item in discovery.items:
        if item.split != first.setdefault(item.group_id, item).split:
            shared.setdefault(item.group_id, item)
    if shared:
        group, other = next(iter(shared.items()))
        raise BenchmdError(
            f"{len(shared):,} of {len(first):,} patients of {card.name} are in several splits: of "
            f"one the record {first[group].record_id} is in {first[group].split} and "
            f"{other.record_id} in {other.split}. Expected each in one, so that no model is scored "
            "on patients that it learnt from: correct the splits, or leave them out of the card "
            "to have them drawn by patient."
        )


def _expectation(card: DatasetCard) -> str:
    layouts = " Or: ".join(layout.description for layout in card.layouts.values())
    if card.files is not None:
        named = ", ".join(filter(None, (card.files.table, card.files.folder))) or "its files"
        layouts = f"{named}, as its card says."
    return f"Expected for {card.name}: {layouts} See `benchmd catalog show {card.name}`."


def require_complete(
    discovery: Discovery, card: DatasetCard, raw: Path, allow_missing: bool
) -> None:
    """Refuse a raw folder with fewer or more records than the card's layout, unless allowed."""
    total = discovery.total
    if total == 0:
        raise BenchmdError(f"{raw} holds no record of {card.name}. {_expectation(card)}")
    stated = card.layouts.get(discovery.layout)
    expected = stated.records if stated else total + len(discovery.missing)
    if allow_missing or (total == expected and not discovery.missing):
        return
    first = f", the first is {discovery.missing[0]}" if discovery.missing else ""
    who = "the card expects" if stated else "its table and lists name"
    raise BenchmdError(
        f"{raw} holds {count_of(total, 'record')} of {card.name}, {who} {expected:,} (layout "
        f"{discovery.layout}); files that its tables name and that are missing: "
        f"{len(discovery.missing):,}{first}. "
        "Complete the download, or accept what is there with --allow-missing."
    )


def locate(
    name: str,
    raw: Path,
    record_ids: Sequence[str],
    *,
    policy: str = "clean",
    split_table: Path | None = None,
    options: Mapping[str, str] | None = None,
    hold_out: Sequence[str] = (),
) -> dict[str, Path]:
    """The raw file, or folder of files, of each record, by listing the raw folder again.

    A record of a part of a file (a segment, an epoch, a window) has the file's id with a suffix.
    All other arguments must be those of the build.

    Raises:
        BenchmdError: The raw folder is missing or of another layout, or holds no such record.
    """
    card = dataset_card(name)
    _, discovery, _ = discovered(card, raw, policy, split_table, options or {}, hold_out)
    paths = {item.record_id: raw / item.path for item in discovery.items}
    located = {}
    for record_id in record_ids:
        # a part of a file has the file's id with a suffix: the longest beginning is the file's
        ends = [len(record_id), *(m.start() for m in re.finditer(r"[^A-Za-z0-9]", record_id))]
        beginnings = (record_id[:end] for end in sorted(ends, reverse=True))
        whole = next((name for name in beginnings if name in paths), None)
        if whole is None:
            raise BenchmdError(
                f"{raw} holds no record {record_id!r} of {name} under the policy {policy}; its "
                f"records are named like {min(paths, default='nothing')!r}. Give the policy, split "
                "table and options that the catalog was built with, and the same BENCHMD_ID_KEY."
            )
        located[record_id] = paths[whole]
    return located
