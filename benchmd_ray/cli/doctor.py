"""``benchmd doctor``: what this machine has, what is missing, and how to get it."""

from __future__ import annotations

import sys

from benchmd_ray.cli.group import main
from benchmd_ray.cli.options import JSON, print_json
from benchmd_ray.console.terminal import echo


@main.command()
@JSON
def doctor(*, as_json: bool) -> None:
    """Say what this machine has and lacks for the work, and how to get what is missing.

    Looks at versions, GPUs, compiler, memory, disks and the cluster; starts and changes nothing.
    Exits with 1 where something is missing that nothing works without.
    """
    from benchmd_ray.service.doctor import findings

    found = list(findings())
    if as_json:
        print_json([vars(each) for each in found])
    else:
        for line in (line for each in found for line in each.lines):
            echo(line)
    if missing := [each.what for each in found if each.state == "missing"]:
        echo(f"missing: {', '.join(missing)}", err=True)
        sys.exit(1)
