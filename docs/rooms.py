"""Draw the rooms of the package as docs/images/rooms.svg: `python docs/rooms.py`.

A room stands one floor above the highest room that it imports, as the sources say; what is written
in its box is the first line of its docstring.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from functools import cache
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "benchmd_ray"
PICTURE = ROOT / "docs" / "images" / "rooms.svg"
TOP = ("api", "errors")
"""Modules at the top of the package, drawn as rooms."""
WIDTH, HEIGHT, GAP, COLUMNS = 224, 78, 12, 5
"""Of a box and between boxes, in pixels; boxes in a line at most."""
CHARACTERS = 33
"""Of a line in a box."""


def rooms() -> dict[str, Path]:
    """Folder or file of each room by name."""
    folders = {path.parent.name: path.parent for path in PACKAGE.glob("*/__init__.py")}
    return folders | {name: PACKAGE / f"{name}.py" for name in TOP}


@cache
def imported(room: Path) -> set[str]:
    """Names of the rooms that a room imports."""
    names: set[str] = set()
    for path in room.rglob("*.py") if room.is_dir() else [room]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("benchmd_ray"):
                below = (node.module or "").split(".")[1:2]
                names |= {*below} or {alias.name for alias in node.names}
    return (names & rooms().keys()) - {room.stem}


def floors() -> list[list[str]]:
    """Names of the rooms by floor, from the lowest."""
    waiting = {name: imported(path) for name, path in rooms().items()}
    result: list[list[str]] = []
    while waiting:
        floor = sorted(name for name, below in waiting.items() if not below & waiting.keys())
        if not floor:
            raise ValueError(f"imports go in a circle: {', '.join(sorted(waiting))}")
        result.append(floor)
        waiting = {name: below for name, below in waiting.items() if name not in floor}
    return result


def description(room: Path) -> str:
    """First line of its docstring."""
    path = room / "__init__.py" if room.is_dir() else room
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return text.partition("\n")[0]


def picture() -> str:
    """The rooms as SVG, the lowest floor at the bottom."""
    lines = [
        floor[start : start + COLUMNS]
        for floor in reversed(floors())
        for start in range(0, len(floor), COLUMNS)
    ]
    width = COLUMNS * (WIDTH + GAP) + GAP
    height = len(lines) * (HEIGHT + GAP) + GAP
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" role="img">',
        "<title>Rooms of benchmd_ray: each imports only rooms on floors below it</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, names in enumerate(lines):
        left = (width - len(names) * (WIDTH + GAP) + GAP) / 2
        for column, name in enumerate(names):
            parts += box(name, left + column * (WIDTH + GAP), GAP + number * (HEIGHT + GAP))
    return "\n".join([*parts, "</svg>", ""])


def box(name: str, left: float, top: float) -> Iterator[str]:
    """A room as SVG."""
    yield (
        f'<rect x="{left:g}" y="{top:g}" width="{WIDTH}" height="{HEIGHT}" rx="6" '
        'fill="#eef3f8" stroke="#5b7aa0"/>'
    )
    x = left + 10
    yield (
        f'<text x="{x:g}" y="{top + 20:g}" font-size="14" font-weight="bold" fill="#14304f">'
        f"{name}</text>"
    )
    text = textwrap.wrap(
        description(rooms()[name]),
        CHARACTERS,
        max_lines=3,
        placeholder=" …",
        break_on_hyphens=False,
    )
    for number, line in enumerate(text):
        y = top + 37 + 15 * number
        yield f'<text x="{x:g}" y="{y:g}" font-size="11" fill="#333333">{escape(line)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(picture(), "utf-8")
