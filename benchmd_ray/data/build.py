"""Building catalogs: raw files to Parquet shards with a manifest, as a Ray Data job.

The same raw files, policy, options and versions give the same bytes.
"""

from __future__ import annotations

import json
import logging
import queue
import re
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmd_ray.cluster.connection import connected, ray_data
from benchmd_ray.cluster.telemetry import count
from benchmd_ray.console.progress import progress
from benchmd_ray.data import binary, duplicates, folds, holding_out
from benchmd_ray.data.cards import DatasetCard, dataset_card, without_build
from benchmd_ray.data.catalog import FORMAT, MANIFEST, Catalog, open_catalog
from benchmd_ray.data.chunks import (
    PARTS,
    Chunk,
    Part,
    as_row,
    build_row,
    items_digest,
    rewritten,
    seen_nowhere,
)
from benchmd_ray.data.datasets import require_readers, versions_of
from benchmd_ray.data.discovery import discovered, require_complete
from benchmd_ray.data.manifest import manifest_of, origin_of
from benchmd_ray.data.manifest_form import SHARD, SHARDS
from benchmd_ray.data.provenance import SYNTHETIC
from benchmd_ray.data.quarantine import summarised
from benchmd_ray.data.raw import Choices, Discovery, RawItem
from benchmd_ray.data.records import (
    hashed_patient,
    schema,
)
from benchmd_ray.errors import BenchmdError, count_of
from benchmd_ray.files.atomic import TEMPORARY, digest, json_bytes, resource_folder, sha256
from benchmd_ray.storage.address import CLOCK
from benchmd_ray.storage.location import (
    LEASE,
    Location,
    alone,
    delete,
    entries,
    location,
    write,
)

CHUNK_BYTES = 16 * 2**20
"""Signal bytes of a shard, about."""
OWN = {SHARDS: SHARD, PARTS: r"[a-z]{1,20}-\d{5,9}\.json", folds.FOLDER: r"\d{1,3}"}
"""Folders of a catalog that a build writes and clears, and what it names the files in them."""
LOST_TRIES = 4
"""Times that a Ray worker may be lost with one chunk."""
READING = 8
"""Parts of an earlier build that are read at once."""


def build(
    name: str,
    raw: Path,
    out: Location,
    *,
    policy: str = "clean",
    split_table: Path | None = None,
    options: Mapping[str, str] | None = None,
    hold_out: Sequence[str] = (),
    two_classes: Sequence[str] = (),
    allow_missing: bool = False,
    max_quarantined: float = 0.01,
    address: str | None = None,
    cpus: int = 1,
    retry_quarantined: bool = False,
) -> Catalog:
    """Build a catalog, or the missing shards of an unfinished one.

    Args:
        name: Name of the dataset's card.
        raw: Folder with the raw files in one of the card's layouts.
        out: Folder of the catalog, or its address in a bucket.
        policy: ``clean`` or ``released``.
        split_table: Split table that BenchMD released, for ``released`` where there is one.
        options: Values of the card's options, instead of its defaults.
        hold_out: Conditions whose records are kept out of all training; see `data.holding_out`.
        two_classes: Conditions of normal records: the task is to tell these from all others; see
            `data.binary`.
        allow_missing: Accept another number of records than the card expects, and missing files.
        max_quarantined: Largest share of unreadable records that is accepted.
        address: Ray cluster to work on; None works embedded.
        cpus: CPUs that an embedded Ray offers at least.
        retry_quarantined: Read shards with unreadable records once more.

    Raises:
        BenchmdError: The raw folder is missing, incomplete or of another layout, ``out`` holds
            something else, a reader is not installed, too many records cannot be read, or a file
            or the bucket cannot be reached.
        Busy: Another build works on ``out``.
    """
    whole = dataset_card(name)
    choices, discovery, card = discovered(
        whole, raw, policy, split_table, options or {}, hold_out, two_classes
    )
    require_complete(discovery, card, raw, allow_missing)
    plan = _plan(card, choices, discovery, raw)
    _require_own(out)
    with alone(out, f"the catalog {out}", OWN) as require_alone:
        if catalog := _finished(out, plan, card, choices, retry_quarantined):
            return catalog
        require_readers(card, discovery)
        chunks = _chunks(discovery, card, raw, out, plan)
        parts = _run(chunks, card, address, cpus, require_alone, retry_quarantined)
        _require_readable(parts, max_quarantined, out)
        _require_records(parts, discovery, out)
        discovery, parts = _settled(card, choices, discovery, parts, out, require_alone)
        manifest = manifest_of(card, origin_of(card, choices, plan, discovery, parts, raw), parts)
        if _has_folds(card):
            manifest = folds.with_folds(out, manifest, card, require_alone)
        _finish(out, manifest, require_alone)
    return open_catalog(out, folds=True)


def _has_folds(card: DatasetCard) -> bool:
    return card.files is not None and card.files.folds is not None


def _require_own(out: Location) -> None:
    """Refuse a folder with files that no build wrote, as this build could remove them.

    Other files next to a finished catalog, such as its figures, are left alone.
    """
    files, folders = entries(out)
    foreign: list[Location] = []
    if MANIFEST not in files:
        foreign = [out / n for n in (*files, *folders) if n not in (".lock", LEASE, *OWN)]
    for folder, pattern in OWN.items():
        inside = [name for names in entries(out / folder) for name in names]
        foreign += [out / folder / name for name in inside if not re.fullmatch(pattern, name)]
    foreign += folds.foreign_to(out)
    foreign = [path for path in foreign if not path.name.startswith((TEMPORARY, CLOCK))]
    if foreign:
        raise BenchmdError(
            f"{out} holds something else than a catalog, {min(map(str, foreign))} (in all "
            f"{len(foreign)}): choose another --out, or move that away."
        )


def _finished(
    out: Location, plan: str, card: DatasetCard, choices: Choices, retry_quarantined: bool
) -> Catalog | None:
    """The finished catalog of that plan; None if shards are to be built."""
    if MANIFEST not in entries(out)[0]:
        return None
    catalog = open_catalog(out, folds=True)
    if catalog.manifest["plan"] != plan:
        why = (
            "other raw files, policy, options or version, from other `files` in the card, or with "
            "another BENCHMD_ID_KEY"
        )
        if catalog.dataset != card.name:
            why = f"other raw files than those of {card.name}"
        elif _chosen_alike(catalog, card, choices):
            if changed := _changed_keys(catalog.card, card):
                why = f"an earlier card of it; since then its {', '.join(changed)} changed"
        raise BenchmdError(
            f"{out} holds a catalog of {catalog.dataset} ({catalog.manifest['policy']}) built from "
            f"{why}. Choose another --out, or remove that folder."
        )
    is_whole = not catalog.altered_shards() and (not _has_folds(card) or folds.are_whole(catalog))
    if is_whole and not (retry_quarantined and catalog.manifest["quarantined"]):
        return catalog
    delete([out / MANIFEST])
    return None


def _settled(
    card: DatasetCard,
    choices: Choices,
    discovery: Discovery,
    parts: list[Part],
    out: Location,
    require_alone: Callable[[], None],
) -> tuple[Discovery, list[Part]]:
    """The discovery with warnings of duplicates, and the parts after what becomes of these."""
    mode = card.duplicates if choices.policy == "clean" else "keep"
    changes = duplicates.changes(parts, merge=mode == "merge")
    if mode == "refuse" and changes.warnings:
        reasons = "; ".join(
            f"{count_of(n, 'record')}: {text}" for text, n in changes.warnings.items()
        )
        raise BenchmdError(
            f"{reasons}. The card of {card.name} has duplicates: "
            "refuse. Remove them from the raw folder, or state merge or keep."
        )
    warned = Counter(discovery.warnings) + Counter(changes.warnings)
    discovery = replace(discovery, warnings=dict(warned))
    if not changes.of:
        return discovery, parts
    settled = {part["name"]: part for part in parts}
    bar = progress(f"duplicates of {card.name}", len(changes.of), "shards")
    for number, (name, change) in enumerate(changes.of.items(), 1):
        require_alone()
        settled[name] = rewritten(settled[name], change, card, out)
        bar.update(number)
    bar.close()
    return discovery, [*settled.values()]


def _finish(out: Location, manifest: dict[str, Any], require_alone: Callable[[], None]) -> None:
    sizes = {f"{SHARDS}/{name}": size for name, size in entries(out / SHARDS)[0].items()}
    wanted = {shard["file"]: shard["bytes"] for shard in manifest["shards"]}
    lost = [file for file, size in wanted.items() if sizes.get(file) != size]
    if lost:
        raise seen_nowhere(out / lost[0])
    require_alone()
    delete(out / file for file in sizes if file not in wanted)
    require_alone()  # deleting may have waited for the server
    write(out / MANIFEST, json_bytes(manifest))
    if not manifest["quarantined"]:  # else the parts stay for --retry-quarantined
        delete(out / PARTS / name for name in entries(out / PARTS)[0])
        if isinstance(out, Path):
            with suppress(OSError):  # it is not there, or not empty
                (out / PARTS).rmdir()


def _decisive(card: DatasetCard) -> dict[str, Any]:
    """Fields of a card that determine the content of its catalogs."""
    descriptive = {"title", "homepage", "access", "licence", "citation", "download", "notes"}
    fields = asdict(card)
    if fields["files"] is not None:
        del fields["files"]["samples"]  # it is only checked
    return {k: v for k, v in fields.items() if k not in descriptive | {"expected", "layouts"}}


def _chosen_alike(catalog: Catalog, card: DatasetCard, choices: Choices) -> bool:
    """Whether a catalog was built with these choices, some of which change the card."""
    stated = (catalog.manifest["policy"], catalog.manifest["options"], catalog.held_out)
    chosen = (choices.policy, dict(choices.options), choices.hold_out)
    return stated == chosen and binary.normal_names(catalog.card) == binary.normal_names(card)


def _changed_keys(before: DatasetCard, after: DatasetCard) -> list[str]:
    """Decisive keys in which two cards differ, except what only a build reads."""
    contents = []
    for card in (before, after):
        keys = _decisive(without_build(card))
        parts = keys.pop("modality")
        keys |= {f"{part}.{k}": v for part in ("signal", "task") for k, v in parts[part].items()}
        contents.append(keys)
    return [key for key, value in contents[1].items() if contents[0][key] != value]


def _plan(card: DatasetCard, choices: Choices, discovery: Discovery, raw: Path) -> str:
    """Digest of everything that determines the catalog, except the contents of raw files."""
    tables = resource_folder("data_catalog") / "tables"
    added = {"two classes": binary.VERSION} if choices.two_classes else {}
    added |= {"folds": folds.VERSION} if _has_folds(card) else {}
    return digest(
        added
        | {
            "format": FORMAT,
            "versions": versions_of(card),
            "card": [_decisive(card), choices.policy, dict(choices.options)],
            "held out": [holding_out.VERSION, *choices.hold_out] if choices.hold_out else [],
            "table": sha256(tables / card.code_table) if card.code_table else None,
            "schema": str(schema(card)),
            "patients": hashed_patient(card.namespace, ""),
            "items": items_digest(discovery.items),
            "synthetic": (raw / SYNTHETIC).is_file(),
        }
    )


def _chunks(
    discovery: Discovery, card: DatasetCard, raw: Path, out: Location, plan: str
) -> list[Chunk]:
    stated = card.layouts.get(discovery.layout)
    rows = stated.rows_per_record if stated else 1
    size = max(1, CHUNK_BYTES // (rows * schema(card).field("signal").type.byte_width))
    by_split: dict[str, list[RawItem]] = {}
    for item in discovery.items:
        by_split.setdefault(item.split, []).append(item)
    return [
        Chunk(
            name=f"{split}-{start // size:05d}",
            split=split,
            card=card,
            root=str(raw.resolve()),
            out=str(out.resolve()),
            plan=digest([plan, items_digest(own)]),
            items=tuple(own),
        )
        for split, items in sorted(by_split.items())
        for start in range(0, len(items), size)
        for own in [items[start : start + size]]
    ]


def _run(
    chunks: list[Chunk],
    card: DatasetCard,
    address: str | None,
    cpus: int,
    require_alone: Callable[[], None],
    retry_quarantined: bool,
) -> list[dict[str, Any]]:
    """Parts of all chunks, in order; missing ones are built on Ray."""
    shards = entries(location(chunks[0].out) / SHARDS)[0] if chunks else {}
    with ThreadPoolExecutor(READING) as pool:
        finished = pool.map(lambda chunk: chunk.finished(shards, retry_quarantined), chunks)
        parts = dict(zip([chunk.name for chunk in chunks], finished, strict=True))
    todo = [chunk for chunk in chunks if parts[chunk.name] is None]
    total = sum(len(chunk.items) for chunk in chunks)
    if todo:
        done = total - sum(len(chunk.items) for chunk in todo)
        bar = progress(f"catalog {card.name}", total, "records", done)
        with connected(address, cpus=cpus):
            # the largest first, so that no worker is left with one at the end
            for part in _map(sorted(todo, key=lambda chunk: -len(chunk.items))):
                require_alone()
                if "error" in part:
                    raise BenchmdError(part["error"])
                parts[part["name"]] = part
                done += part["items"]
                count("benchmd_records_built_total", part["items"], dataset=card.name)
                bar.update(done)
        bar.close()
    built = [part for part in parts.values() if part]
    if (items := sum(part["items"] for part in built)) != total:
        raise BenchmdError(
            f"the shards of {card.name} hold {items:,} raw records of {total:,}: the work on Ray "
            "ended early. Run the same command again: it resumes where it stopped."
        )
    return built


def _map(chunks: list[Chunk]) -> Iterator[dict[str, Any]]:
    """Parts of the chunks in order, as a Ray Data job builds them.

    Raises:
        BenchmdError: Ray ended, or a chunk's worker was lost `LOST_TRIES` times; the others are
            built.
    """
    rows = [as_row(chunk) for chunk in chunks]
    dataset = ray_data().from_items(rows, override_num_blocks=len(rows))
    with warnings.catch_warnings():  # Ray warns of the only way to bound the tries
        warnings.simplefilter("ignore")
        dataset = dataset.map(
            build_row,
            fn_args=(chunks[0].card,),
            ray_remote_args_fn=lambda: {"max_retries": LOST_TRIES - 1},
        )
    dataset.context.max_errored_blocks = len(rows)  # the others continue, the lost are named
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # they are named below
    waiting = {chunk.name: chunk for chunk in chunks}
    try:
        for row in _rows(dataset):
            part = json.loads(row["part"])
            yield part
            del waiting[part["name"]]
    except Exception as error:  # of Ray: a node went away with its head, …
        raise BenchmdError(
            f"Ray stopped building at {next(iter(waiting.values())).span} or after them "
            f"({type(error).__name__}: {str(error).partition(chr(10))[0]}). Run the same command "
            "again: it resumes where it stopped. If memory was short, with fewer --cpus."
        ) from error
    if waiting:
        raise BenchmdError(
            f"the Ray worker that built {next(iter(waiting.values())).span} was lost {LOST_TRIES} "
            f"times, such as for want of memory or with its node (in all {len(waiting)} shards). "
            "The others are built: run the same command again, with fewer --cpus if memory was "
            "short."
        )


def _rows(dataset: Any) -> Iterator[dict[str, Any]]:
    """Rows of a Ray dataset as they are ready.

    Another thread asks Ray for them, so that a signal interrupts this one and not Ray halfway.
    """
    ready: queue.SimpleQueue[dict[str, Any] | Exception | None] = queue.SimpleQueue()

    def ask() -> None:
        try:
            for row in dataset.iter_rows():
                ready.put(row)
            ready.put(None)
        except Exception as error:
            ready.put(error)

    threading.Thread(target=ask, daemon=True).start()
    while (row := ready.get()) is not None:
        if isinstance(row, Exception):
            raise row
        yield row


def _require_readable(parts: list[dict[str, Any]], allowed: float, out: Location) -> None:
    quarantined = [entry for part in parts for entry in part["quarantined"]]
    total = sum(part["items"] for part in parts)
    if len(quarantined) > allowed * total:
        reasons = "; ".join(summarised(quarantined)[:5])
        for part in parts:
            if part["quarantined"]:  # read these files again next time: they may be mended by then
                delete([out / PARTS / f"{part['name']}.json"])
        raise BenchmdError(
            f"{len(quarantined)} of {total} records cannot be read, more than the accepted share "
            f"of {allowed:.1%}: {reasons}. Mend the files, or accept more with --max-quarantined."
        )


def _require_records(parts: list[dict[str, Any]], discovery: Discovery, out: Location) -> None:
    if any(part["rows"] for part in parts):
        return
    excluded = Counter(discovery.excluded)
    for part in parts:
        excluded.update(part["excluded"])
        excluded.update(entry["reason"] for entry in part["quarantined"])
    reasons = "; ".join(f"{count}: {reason}" for reason, count in sorted(excluded.items()))
    raise BenchmdError(f"the catalog {out} would be empty; no record can be used: {reasons}")
