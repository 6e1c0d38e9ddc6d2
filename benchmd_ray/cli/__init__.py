"""Commands: parse, call, print."""

from benchmd_ray.cli import (  # noqa: F401 - they register
    catalog,
    demo,
    jobs,
    medmnist,
    report,
    run,
    runs,
    settings,
    store,
    tune,
)
from benchmd_ray.cli.group import main

__all__ = ["main"]
