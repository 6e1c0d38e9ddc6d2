"""Logs of JSON lines, which people and other programs read."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any


def json_lines(path: Path) -> list[dict[str, Any]]:
    """Lines of a log but those that were cut off; none where it is missing."""
    lines = []
    for text in path.read_text().splitlines() if path.is_file() else ():
        with suppress(json.JSONDecodeError):
            lines.append(json.loads(text))
    return lines
