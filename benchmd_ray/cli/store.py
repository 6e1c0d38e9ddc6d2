"""Commands for stores of runs: ``list``, ``prune``, ``watch``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from benchmd_ray.cli.group import main
from benchmd_ray.cli.options import JSON, STORE, or_runs, print_json
from benchmd_ray.console.terminal import echo

LEAVE = "Ctrl-C ends only this view."


@main.command("list")
@click.argument("stores", type=STORE, nargs=-1, callback=or_runs, metavar="[STORE]...")
@click.option(
    "--state",
    "states",
    type=click.Choice(["done", "working", "interrupted", "failed", "waiting"]),
    multiple=True,
    help="Only runs in this state (repeatable).",
)
@JSON
def list_runs(stores: tuple[Path, ...], states: tuple[str, ...], *, as_json: bool) -> None:
    """List the runs of each STORE: state, steps or epochs, seconds worked, score, name.

    If STORE is omitted, ./runs is used.

    The score is the best one on the source's validation records, which selects the epoch.

    \b
    benchmd list runs
    benchmd list runs --state failed --state interrupted
    """
    from benchmd_ray.runs.index import indexed
    from benchmd_ray.runs.listing import counts, listed
    from benchmd_ray.runs.store import read_stores

    with indexed() as index:
        stored = read_stores(list(stores), index)
        rows = [listed(run, index) for run in stored.found]
    chosen = [row for row in rows if not states or row.state in states]
    if as_json:
        print_json({"runs": [row.data for row in chosen], "damaged": stored.notes})
        return
    for row in chosen:
        echo(row.line)
    for why in stored.damaged.values():
        echo(f"damaged: {why}")
    echo(counts(rows, len(stored.damaged)))


@main.command()
@click.argument("stores", type=STORE, nargs=-1, required=True, metavar="STORE...")
@click.option(
    "--keep",
    type=click.Choice(["models", "predictions"]),
    default="models",
    show_default=True,
    help="What to keep of finished runs: weights and predictions, or predictions only.",
)
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@click.option(
    "--mirror",
    is_flag=True,
    help="Remove only this machine's copies of weights of a store in a bucket, nothing from the "
    "store.",
)
def prune(stores: tuple[Path, ...], keep: str, dry_run: bool, mirror: bool) -> None:
    """Remove unneeded files of finished runs and leftovers of killed runs from each STORE.

    Predictions, metrics, settings and histories always stay, and so does the checkpoint of an
    unfinished run. Files in use are not touched. There is no prompt. Runs without weights cannot be
    evaluated on another dataset or used for transfer.

    \b
    benchmd prune runs                        # checkpoints of finished runs, half-written files
    benchmd prune runs --keep predictions     # and weights that no unfinished run needs
    benchmd prune s3://bucket/study --keep predictions --dry-run
    benchmd prune s3://bucket/study --mirror  # free this machine's disk only
    """
    from benchmd_ray.runs.retention import drop_copies
    from benchmd_ray.runs.retention import prune as prune_store
    from benchmd_ray.runs.store import shown

    for store in stores:
        echo(shown(store))
        if mirror:
            pruned = drop_copies(store, dry_run=dry_run)
        else:
            pruned = prune_store(store, keep, dry_run=dry_run)  # type: ignore[arg-type]
        print_pruned(pruned, dry_run=dry_run)


def print_pruned(pruned: Any, *, dry_run: bool) -> None:
    """Print what was removed, what stays and why, and the bytes freed by kind."""
    from benchmd_ray.runs.retention import KINDS

    for removal in pruned.removals:
        names = ", ".join(removal.names) if removal.kind != "checkpoints" else removal.kind
        echo(f"  {removal.run}: {names}, {removal.bytes:,} bytes")
    for line in pruned.left:
        echo(f"  left alone: {line}")
    verb = "would free" if dry_run else "freed"
    kinds = ", ".join(f"{kind} {pruned.bytes_of(kind):,}" for kind in KINDS)
    echo(f"  {verb} {sum(map(pruned.bytes_of, KINDS)):,} bytes ({kinds})")


@main.command()
@click.argument("stores", type=STORE, nargs=-1, required=True, metavar="STORE...")
@click.option("--once", is_flag=True, help="Print it once, the default without a terminal.")
@click.option(
    "--every",
    type=click.FloatRange(0.5),
    default=2.0,
    show_default=True,
    help="Seconds between updates.",
)
def watch(stores: tuple[Path, ...], once: bool, every: float) -> None:
    """Watch each STORE until Ctrl-C: runs in progress, failures, searches.

    The view lists the runs of this machine's processes with loss curve, speed and time left, and
    searches with their best trial so far.

    \b
    benchmd watch runs
    benchmd watch runs --once
    """
    import sys
    import time

    from benchmd_ray.service.watching import watched

    while True:
        lines = watched(stores)
        once = once or not sys.stdout.isatty()
        if not once:
            click.clear()
            lines = [f"{time.strftime('%H:%M:%S')}  {lines[0]}", *lines[1:], "", LEAVE]
        for line in lines:
            echo(line)
        if once:
            return
        time.sleep(every)
