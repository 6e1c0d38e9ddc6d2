"""Commands: parse, call, print."""

import sys

if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:
    # `python -m` searches the working folder first, which may have modules of others.
    del sys.path[0]

from benchmd_ray.cli import (  # noqa: F401 - they register
    bench,
    board,
    cache,
    catalog,
    demo,
    doctor,
    encoder,
    jobs,
    probe,
    report,
    run,
    runs,
    settings,
    store,
    tune,
)
from benchmd_ray.cli.group import main

__all__ = ["main"]
