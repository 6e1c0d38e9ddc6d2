"""Environment variables of a submitted job, set in each of its processes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

FILE = "job-variables.json"
"""File next to the package in a job's folder, readable only by its owner."""

PYTHON = "BENCHMD_PYTHON"
"""Variable with the interpreter of the cluster's workers, for the command of the job."""

HOOK = f"{__name__}.set_variables"
"""Called by Ray when a process of the job starts; the command inherits its environment."""


def write_variables(folder: Path, variables: dict[str, str]) -> None:
    """Write the variables of a job into its folder."""
    path = folder / FILE
    path.touch(mode=0o600)
    path.write_text(json.dumps(variables, sort_keys=True), "utf-8")


def set_variables() -> None:
    """Set the job's variables in this process, which imported the package from a job's folder."""
    path = Path(__file__).resolve().parents[2] / FILE
    os.environ.update(json.loads(path.read_text("utf-8")))
    os.environ[PYTHON] = sys.executable
