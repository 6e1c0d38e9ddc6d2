"""What the commands of `speed` and `studies` print: one JSON object."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]


def run(module: str, *arguments: str) -> dict[str, Any]:
    """The JSON that a module prints, in this process."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        importlib.import_module(module).main([*arguments])
    result: dict[str, Any] = json.loads(printed.getvalue())
    return result


def run_process(*command: str) -> dict[str, Any]:
    """The JSON that a Python process prints, where memory is measured or Ray is started."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout)
    return result
