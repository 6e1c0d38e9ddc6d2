"""What the tests of synthetic data share."""

from __future__ import annotations

import hashlib
from pathlib import Path


def content(root: Path) -> dict[str, str]:
    """Hash of each file below a folder, by its path."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
