"""Commands: parse, call, print."""

from benchmd_ray.cli import catalog, demo, report, run, runs, settings, store  # noqa: F401 - they register
from benchmd_ray.cli.group import main

__all__ = ["main"]
