"""Names of submitters: which are the same to a reader, and to whose key a name belongs."""

from __future__ import annotations

import re
from pathlib import Path
from unicodedata import normalize

from benchmd_ray.board.keys import KEY
from benchmd_ray.errors import BenchmdError, is_name, shown
from benchmd_ray.report.table import text_of

INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
"""Unicode's default-ignorable characters (DerivedCoreProperties.txt), which are not displayed."""
BLANK = "\u2800"
"""Braille without a dot, which looks like a space."""
MOST_BYTES = 2**20


def compared(name: str) -> str:
    """What names are compared by: of two that look alike in one script it is the same."""
    seen = INVISIBLE.sub("", normalize("NFKC", name.replace(BLANK, " ")))
    folded = normalize("NFKC", seen.casefold())
    return " ".join(folded.split())


def is_shown_as_written(name: str) -> bool:
    """Whether pages show a name as it is, and something of it can be seen."""
    return bool(compared(name)) and text_of(name) == name == " ".join(name.split())


def read_submitters(path: Path) -> dict[str, str]:
    """Public key by compared name, of an organiser's file: on each line a key and a name.

    Raises:
        BenchmdError: A line has another form, or a name is there twice.
    """
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise BenchmdError(f"{path} has more than {MOST_BYTES:,} bytes: expected a key and a name.")
    keys: dict[str, str] = {}
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), start=1):
        key, _, name = line.strip().partition(" ")
        name = name.strip()
        if not re.fullmatch(KEY, key) or not is_name(name) or not is_shown_as_written(name):
            raise BenchmdError(
                f"{path}, line {number}: expected a public key (64 lower-case hexadecimal digits, "
                "as `benchmd pack --key` prints it), a space and a name that pages show as written."
            )
        if compared(name) in keys:
            raise BenchmdError(f"{path}, line {number}: the name {shown(name)} is there twice.")
        keys[compared(name)] = key
    return keys
