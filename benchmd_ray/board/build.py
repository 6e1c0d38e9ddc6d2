"""A board: bundles read one by one, entries accepted or refused, compared and written as a site."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from benchmd_ray.board.again import command, settings_of
from benchmd_ray.board.bundle import Bundle, Refused, read_bundle
from benchmd_ray.board.copies import SAME, copies
from benchmd_ray.board.official import Official
from benchmd_ray.board.ranking import (
    CONTAMINATED,
    DIVISIONS,
    Placed,
    cost_of,
    division,
    front,
    labels_of,
    placed,
)
from benchmd_ray.board.recompute import RESAMPLES, Entry, entries, key_of
from benchmd_ray.console.terminal import visible
from benchmd_ray.errors import BenchmdError
from benchmd_ray.report.frames import LABELS, rank_of
from benchmd_ray.report.table import text_of
from benchmd_ray.scores.resampling import usual_threads

LONGEST = 1000
"""Characters of a title, and of the name of a refused bundle and the reason."""
AT_ONCE = 2
"""Most bundles that are read at a time: each may have 1 GiB."""
Contest = tuple[str, str, str]
"""Dataset, labels, division: what entries are compared within."""


@dataclass(frozen=True)
class RefusedBundle:
    """A bundle that is not on the board."""

    name: str
    reason: str


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
    alike: Mapping[tuple[str, str], Sequence[tuple[Entry, float]]] = field(default_factory=dict)
    """By `entry_id` and dataset: entries of others with (nearly) the same predictions, and their
    correlation."""
    refused: Sequence[RefusedBundle] = ()

    def remarks(self) -> list[str]:
        """What an organiser should look at."""
        names = {
            f"shared name: {whose(entry)}, also of {', '.join(map(whose, others))}"
            for entry in self.entries
            if (others := self.namesakes(entry))
        }
        return [*sorted(names), *_of_copies(self)]

    def namesakes(self, entry: Entry) -> list[Entry]:
        """An entry of each other key by the same name, or of none."""
        name, key = entry.bundle.identity
        found = {e.bundle.signer: e for e in self.entries if e.bundle.identity[0] == name}
        return [found[other] for other in sorted(found) if other != key]

    @property
    def bundles(self) -> list[Bundle]:
        """All that are on the board, those of earlier submissions too."""
        every = [*self.entries, *(e for earlier in self.earlier.values() for e in earlier)]
        return [*{entry.bundle.id: entry.bundle for entry in every}.values()]


def _of_copies(board: Board) -> Iterator[str]:
    for (name, dataset), others in sorted(board.alike.items()):
        entry = next(e for e in board.entries if entry_id(e) == name)
        for other, correlation in others:
            if entry_id(other) < name:
                continue
            a, b = (f"{e.first.row} of {whose(e)}" for e in (entry, other))
            yield f"alike: on {dataset} {a} has {alike_text(correlation)} {b}"


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
        BenchmdError: No bundle is on the board.
    """
    turned_away, whole = [*refused], list[list[Entry]]()

    def read(folder: Path) -> list[Entry] | RefusedBundle:
        try:
            bundle = read_bundle(folder)
            name, key = bundle.identity
            if (submitters or {}).get(name, key) != key:
                raise Refused("its submitter's name belongs to another key: sign it by that key")
            found = entries(bundle, official, resamples, fresh=fresh)
            for entry in found:  # what pages need of its statements
                command(entry), settings_of(entry.first)
                [division(entry, dataset) for dataset in entry.results]
            return found
        except Refused as error:
            return _refused(folder, str(error))
        except Exception as error:  # one bundle never stops the others; the text may be its own
            return _refused(folder, f"it cannot be read or scored ({type(error).__name__})")

    with ThreadPoolExecutor(min(AT_ONCE, usual_threads())) as pool:
        for count, result in enumerate(pool.map(read, folders), start=1):
            done(count)
            if isinstance(result, RefusedBundle):
                turned_away.append(result)
            else:
                whole.append(result)
    current, earlier = _current([entry for each in whole for entry in each])
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


def _refused(folder: Path, reason: str) -> RefusedBundle:
    name, why = (visible(text_of(text)) for text in (folder.name, reason))
    return RefusedBundle(name[:LONGEST], why[:LONGEST])


def whose(entry: Entry) -> str:
    """The submitter, and the beginning of the key."""
    name, key = entry.bundle.about.submitter, entry.bundle.signer
    return f"{name} ({key[:16] or 'not signed'})"


def entry_id(entry: Entry) -> str:
    """Name of an entry's page: its submitter's, whatever bundle it is in."""
    text = "\0".join((*entry.bundle.identity, *key_of(entry.first)))
    return sha256(text.encode()).hexdigest()[:16]


def _current(whole: Sequence[Entry]) -> tuple[list[Entry], dict[str, list[Entry]]]:
    """The newest of each submitter's entries of one name, and those that it replaces."""
    by_id: dict[str, dict[str, Entry]] = {}
    for entry in whole:
        by_id.setdefault(entry_id(entry), {})[entry.bundle.id] = entry
    current, earlier = list[Entry](), dict[str, list[Entry]]()
    for name, submissions in sorted(by_id.items()):
        newest = sorted(
            submissions.values(), key=lambda e: (e.bundle.about.made, e.bundle.id), reverse=True
        )
        current.append(newest[0])
        if newest[1:]:
            earlier[name] = newest[1:]
    return current, earlier


def contests(current: Sequence[Entry], official: Official) -> dict[Contest, list[Placed]]:
    """Entries by dataset, labels and division, the best first."""
    result: dict[Contest, list[Placed]] = {}
    for name, dataset in official.datasets.items():
        groups: dict[tuple[str, str], list[Entry]] = {}
        for entry in current:
            if name in entry.results:
                groups.setdefault((labels_of(entry), division(entry, name)), []).append(entry)
        on_front = _fronts(groups, name)
        for labels, of in sorted(
            groups, key=lambda g: (rank_of(LABELS, g[0]), rank_of(DIVISIONS, g[1]))
        ):
            members = groups[labels, of]
            result[name, labels, of] = placed(members, name, dataset.basis, on_front)
    return result


def _fronts(groups: Mapping[tuple[str, str], Sequence[Entry]], dataset: str) -> dict[int, bool]:
    """By `id`: whether an entry is the best for its cost among all with as many labels."""
    result: dict[int, bool] = {}
    for labels in {labels for labels, _ in groups}:
        members = [
            (entry, of)
            for (with_labels, of), those in groups.items()
            if with_labels == labels
            for entry in those
        ]
        clean = [entry for entry, of in members if of != CONTAMINATED]
        values = [entry.results[dataset].value for entry in clean]
        best = front([cost_of(entry) for entry in clean], values)
        result |= {id(entry): False for entry, _ in members}
        result |= {id(entry): is_best for entry, is_best in zip(clean, best, strict=True)}
    return result


def _alike(current: Sequence[Entry]) -> dict[tuple[str, str], list[tuple[Entry, float]]]:
    found: dict[tuple[str, str], dict[str, tuple[Entry, float]]] = {}
    for name in {name for entry in current for name in entry.results}:
        whole = [
            (entry, sketch)
            for entry in current
            if name in entry.results
            for sketch in entry.results[name].sketches.values()
        ]
        owners = [entry.bundle.identity for entry, _ in whole]
        for a, b, correlation in copies([sketch for _, sketch in whole], owners):
            for one, other in ((whole[a][0], whole[b][0]), (whole[b][0], whole[a][0])):
                alike = found.setdefault((entry_id(one), name), {})
                _, before = alike.get(entry_id(other), (other, 0.0))
                alike[entry_id(other)] = other, max(before, correlation)
    return {key: [*alike.values()] for key, alike in found.items()}


def alike_text(correlation: float) -> str:
    """How alike predictions are, in words."""
    return (
        "the same predictions as"
        if correlation >= SAME
        else (f"nearly the same predictions (correlation {correlation:.4f}) as")
    )


def require_some(board: Board) -> None:
    """Refuse to write a site without entries."""
    if not board.entries:
        reasons = " ".join(f"{each.name}: {each.reason}." for each in board.refused[:3])
        raise BenchmdError(f"no bundle can be on the board. {reasons}")
