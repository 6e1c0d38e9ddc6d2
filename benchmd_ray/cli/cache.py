"""``benchmd cache``: this machine's cache of catalogs and reports."""

from __future__ import annotations

import time

import click

from benchmd_ray.cli.group import main
from benchmd_ray.cli.options import Real
from benchmd_ray.console.terminal import echo


@main.group()
def cache() -> None:
    """Show the content of BENCHMD_CACHE, and free space in it.

    It has decoded splits, computations and working files of searches in a bucket, all of which are
    made again when needed.
    """


@cache.command("list")
def cache_list() -> None:
    """List the entries, least recently used first."""
    from benchmd_ray.files.atomic import cache_folder
    from benchmd_ray.files.cache import entries

    files = entries()
    for entry in files:
        name = entry.path.relative_to(cache_folder())
        echo(f"{_when(entry.used)}  {entry.bytes:>16,}  {name}")
    count = f"{len(files)} entr{'y' if len(files) == 1 else 'ies'}"
    echo(f"{cache_folder()}: {count}, {sum(each.bytes for each in files):,} bytes")


@cache.command("prune")
@click.option(
    "--keep-gib",
    type=Real(0),
    required=True,
    help="Size to keep; the least recently used files beyond this size are removed.",
)
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
def cache_prune(keep_gib: float, dry_run: bool) -> None:
    """Remove the least recently used files beyond a size; those of the last hour stay.

    With BENCHMD_CACHE_GIB this happens automatically whenever a split is decoded.
    """
    from benchmd_ray.files.cache import GIB, prune

    removed = prune(keep_gib * GIB, dry_run=dry_run)
    for entry in removed:
        echo(f"  {entry.path.name}, {entry.bytes:,} bytes")
    verb = "would free" if dry_run else "freed"
    echo(f"{verb} {sum(entry.bytes for entry in removed):,} bytes")


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
