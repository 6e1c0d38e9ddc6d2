"""Files by their names in Unicode's composed form, in which names are compared.

A file system keeps a name in the form in which it was written, and copies keep it, too: on older
Macs every ``ä`` is decomposed. A file must be opened by the name that it really has.
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
    """Real names of files below a folder, by their composed ones; each folder is listed once."""

    def __init__(self, root: Path, *, hidden: bool) -> None:
        """Look at nothing yet.

        Args:
            root: The folder.
            hidden: Whether names are not written into messages, as they name patients.
        """
        self.root, self._hidden = root, hidden
        self._folders: dict[str, dict[str, list[str]]] = {}

    def real(self, name: str) -> str:
        """The path of a file or folder as the file system has it; `name` itself where it is not.

        Args:
            name: Its path below the folder, in any form of Unicode.

        Raises:
            BenchmdError: Several have that name.
        """
        if name.isascii() and not COMPOSED_TO & {*name} and (self.root / name).exists():
            return name
        places = [""]
        for part in PurePosixPath(name).parts:
            inside = ((place, self._names(place).get(composed(part), ())) for place in places)
            places = [f"{place}/{own}".lstrip("/") for place, names in inside for own in names]
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
        """Real names of what is in a folder, by composed ones; none where it is not a folder."""
        if folder not in self._folders:
            names = self._folders[folder] = {}
            with suppress(OSError):
                for name in sorted(os.listdir(self.root / folder)):
                    names.setdefault(composed(name), []).append(name)
        return self._folders[folder]
