"""``benchmd doctor``: checks of this machine, with remedies."""

from __future__ import annotations

import sys

from benchmd_ray.cli.group import main
from benchmd_ray.cli.options import JSON, print_json
from benchmd_ray.console.terminal import echo


@main.command()
@JSON
def doctor(*, as_json: bool) -> None:
    """Check what this machine has and lacks, and how to install what is missing.

    Looks at versions, GPUs, compiler, memory, disks and the cluster; starts and changes nothing.
    Exits with 1 if a requirement is missing.
    """
    from benchmd_ray.service.doctor import findings

    results = list(findings())
    if as_json:
        print_json([vars(finding) for finding in results])
    else:
        for line in (line for finding in results for line in finding.lines):
            echo(line)
    if missing := [finding.what for finding in results if finding.state == "missing"]:
        echo(f"missing: {', '.join(missing)}", err=True)
        sys.exit(1)
