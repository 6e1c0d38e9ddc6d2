"""Files by their names in composed Unicode, in which names are compared.

File systems and copies keep a name as it was written (older Macs decompose every ``ä``), and a file
opens only by its real name.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from benchmd_ray.errors import BenchmdError, composed

COMPOSED_TO = frozenset("K;`")
"""The ASCII characters that others are composed to: the Kelvin sign, the Greek question mark and
the varia."""


class FileNames:
    """Real names of files below a folder, by composed ones; each folder is listed once."""

    def __init__(self, root: Path, *, hidden: bool) -> None:
        """Take the folder, and whether messages hide names because they name patients."""
        self.root, self._hidden = root, hidden
        self._folders: dict[str, dict[str, list[str]]] = {}

    def real(self, name: str) -> str:
        """The path of a file below the folder as the file system has it; `name` itself if missing.

        Raises:
            BenchmdError: Several files have that name.
        """
        if name.isascii() and not COMPOSED_TO & {*name} and (self.root / name).exists():
            return name
        places = [""]
        for part in PurePosixPath(name).parts:
            inside = ((place, self._names(place).get(composed(part), ())) for place in places)
            places = [f"{place}/{real}".lstrip("/") for place, names in inside for real in names]
        if len(places) > 1:
            raise self.clash(places)
        return places[0] if places else name

    def clash(self, paths: Sequence[str]) -> BenchmdError:
        """An error for files that have one name in different forms of Unicode."""
        which = "files" if self._hidden else f"the files {paths[0]!a} and {paths[1]!a}"
        return BenchmdError(
            f"{self.root} holds {which} whose names differ only in the form of Unicode (composed, "
            "NFC, or decomposed, NFD), in which names are not told apart: rename or remove one."
        )

    def _names(self, folder: str) -> dict[str, list[str]]:
        if folder not in self._folders:
            names = self._folders[folder] = {}
            with suppress(OSError):
                for name in sorted(os.listdir(self.root / folder)):
                    names.setdefault(composed(name), []).append(name)
        return self._folders[folder]
