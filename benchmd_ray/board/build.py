"""A board: bundles read one by one, entries accepted or refused, and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Annotated

from pydantic import Field

from benchmd_ray.board.bundle import Bundle, Refused, read_bundle
from benchmd_ray.board.copies import copies
from benchmd_ray.board.official import Official
from benchmd_ray.board.ranking import Contest, Placed, contests, division
from benchmd_ray.board.recompute import MOST_RESAMPLES, RESAMPLES, Entry, entries
from benchmd_ray.board.rerun import command
from benchmd_ray.console.terminal import visible
from benchmd_ray.data.forked import results_of
from benchmd_ray.errors import BenchmdError
from benchmd_ray.report.table import text_of
from benchmd_ray.schema.typed import checked
from benchmd_ray.scores.resampling import usual_threads

LONGEST = 1000
"""Characters of a title, and of the name of a refused bundle and the reason."""
Text = Annotated[str, Field(max_length=LONGEST), checked(str.isprintable, "printable text")]
AT_ONCE = 2
"""Most bundles that are read at a time: each may have 1 GiB."""
MANY = 8
"""Bundles from which on processes score them: Python's own work takes a third of the time."""


@dataclass(frozen=True)
class RefusedBundle:
    """A bundle that is not on the board."""

    name: Text
    reason: Text


@dataclass(frozen=True, eq=False)
class Board:
    """What a site shows."""

    title: str
    official: Official
    resamples: int
    entries: Sequence[Entry]
    """Current entries, those of earlier submissions not among them."""
    earlier: Mapping[str, Sequence[Entry]]
    """Earlier submissions of each entry by `entry_id`, newest first."""
    contests: Mapping[Contest, Sequence[Placed]]
    alike: Mapping[tuple[str, str], Sequence[tuple[Entry, float]]]
    """By `entry_id` and dataset: entries of others with (nearly) the same predictions, and their
    correlation."""
    refused: Sequence[RefusedBundle]

    @cached_property
    def names(self) -> Mapping[str, Mapping[str, Entry]]:
        """An entry of each key, by the submitter's name."""
        names: dict[str, dict[str, Entry]] = {}
        for entry in self.entries:
            name, key = entry.bundle.identity
            names.setdefault(name, {})[key] = entry
        return names

    def namesakes(self, entry: Entry) -> list[Entry]:
        """An entry of each other key by the same name, or of none."""
        name, key = entry.bundle.identity
        return [other for of, other in sorted(self.names[name].items()) if of != key]

    @property
    def bundles(self) -> list[Bundle]:
        """All that are on the board, those of earlier submissions too."""
        every = [*self.entries, *(e for earlier in self.earlier.values() for e in earlier)]
        return [*{entry.bundle.id: entry.bundle for entry in every}.values()]


def board_of(
    folders: Iterable[Path],
    official: Official,
    *,
    title: str,
    resamples: int = RESAMPLES,
    fresh: bool = False,
    refused: Sequence[RefusedBundle] = (),
    submitters: Mapping[str, str] | None = None,
    done: Callable[[int], None] = lambda count: None,
) -> Board:
    """Read and score bundles.

    Args:
        folders: The bundles.
        official: Digests of the official catalogs.
        title: Of the board.
        resamples: Of the patients.
        fresh: Whether nothing is taken from the cache.
        refused: Bundles that were refused before.
        submitters: Key by compared name of those whose names belong to them.
        done: Called with the number of bundles read so far.

    Raises:
        BenchmdError: Too many resamples.
    """
    if resamples > MOST_RESAMPLES:
        raise BenchmdError(
            f"{resamples:,} resamples: expected at most {MOST_RESAMPLES:,}, as whoever verifies a "
            "site computes as many."
        )
    paths = [*folders]
    processes = min(AT_ONCE, usual_threads()) if len(paths) >= MANY else 1

    def score(number: int) -> list[Entry] | RefusedBundle:
        return _accepted(paths[number], official, resamples, submitters or {}, fresh=fresh)

    turned_away, whole = [*refused], list[Entry]()
    with closing(results_of(score, len(paths), processes, "scored bundles")) as results:
        for count, result in enumerate(results, start=1):
            done(count)
            if isinstance(result, RefusedBundle):
                turned_away.append(result)
            else:
                whole += result
    current, earlier = _current(whole)
    return Board(
        title=visible(title)[:LONGEST],
        official=official,
        resamples=resamples,
        entries=current,
        earlier=earlier,
        contests=contests(current, official),
        alike=_alike(current),
        refused=turned_away,
    )


def _accepted(
    folder: Path,
    official: Official,
    resamples: int,
    submitters: Mapping[str, str],
    *,
    fresh: bool,
) -> list[Entry] | RefusedBundle:
    """The entries of a bundle, or why it is refused."""
    try:
        bundle = read_bundle(folder)
        name, key = bundle.identity
        if submitters.get(name, key) != key:
            raise Refused("its submitter's name belongs to another key: sign it by that key")
        accepted = entries(bundle, official, resamples, fresh=fresh)
        for entry in accepted:  # what pages need of its statements
            command(entry, official)
            [division(entry, official.datasets[name].about) for name in entry.results]
        return accepted
    except Refused as error:
        return _refused(folder, str(error))
    except Exception as error:  # one bundle never stops the others; the text may be its own
        return _refused(folder, f"it cannot be read or scored ({type(error).__name__})")


def _refused(folder: Path, reason: str) -> RefusedBundle:
    name, why = (visible(text_of(text)) for text in (folder.name, reason))
    return RefusedBundle(name[:LONGEST], why[:LONGEST])


def whose(entry: Entry) -> str:
    """The submitter, and the beginning of the key."""
    name, key = entry.bundle.about.submitter, entry.bundle.signer
    return f"{name} ({key[:16] or 'not signed'})"


def entry_id(entry: Entry) -> str:
    """Name of an entry's page: its submitter's, whatever bundle it is in."""
    text = "\0".join((*entry.bundle.identity, *entry.first.entry))
    return sha256(text.encode()).hexdigest()[:24]


def _current(whole: Sequence[Entry]) -> tuple[list[Entry], dict[str, list[Entry]]]:
    """The newest of each submitter's entries of one name, and those that it replaces."""
    by_id: dict[str, dict[str, Entry]] = {}
    for entry in sorted(whole, key=lambda e: (*e.bundle.identity, *e.first.entry)):
        by_id.setdefault(entry_id(entry), {})[entry.bundle.id] = entry
    current, earlier = list[Entry](), dict[str, list[Entry]]()
    for name, submissions in by_id.items():
        newest = sorted(
            submissions.values(), key=lambda e: (e.bundle.about.made, e.bundle.id), reverse=True
        )
        current.append(newest[0])
        if newest[1:]:
            earlier[name] = newest[1:]
    return current, earlier


def _alike(current: Sequence[Entry]) -> dict[tuple[str, str], list[tuple[Entry, float]]]:
    alike: dict[tuple[str, str], list[tuple[Entry, float]]] = {}
    for name in sorted({name for entry in current for name in entry.results}):
        members = [entry for entry in current if name in entry.results]
        sketches = [entry.results[name].sketches for entry in members]
        owners = [entry.bundle.identity for entry in members]
        for entry, others in zip(members, copies(sketches, owners), strict=True):
            if others:
                alike[entry_id(entry), name] = [(members[n], value) for n, value in others]
    return alike


def alike_text(correlation: float) -> str:
    """How alike predictions are, in words."""
    if correlation >= 1:
        return "the same predictions as"
    return f"nearly the same predictions (correlation {correlation:.4f}) as"
