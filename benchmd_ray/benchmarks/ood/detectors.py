"""Detectors of a network: all that they learn, before a record that is scored is opened."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations, product

import numpy as np
import numpy.typing as npt

from benchmd_ray.benchmarks.ood.methods.formulas import auroc, drawn
from benchmd_ray.benchmarks.ood.methods.method import (
    Bank,
    Calibration,
    Detector,
    Floats,
    Head,
    Seen,
    State,
    finite,
)
from benchmd_ray.benchmarks.ood.network import Network
from benchmd_ray.benchmarks.ood.observe import NetworkObserver, median_seconds
from benchmd_ray.benchmarks.ood.sets import FEWEST, Inside, OutSet, SplitRecords
from benchmd_ray.benchmarks.ood.table import JOINED
from benchmd_ray.console.progress import progress
from benchmd_ray.data.splits import stable_fraction
from benchmd_ray.errors import BenchmdError, count_of

DRAWS, TOGETHER = 10, 3
"""How many draws of a use-case calibrate detectors, and how many sets of unrelated records one
has."""
HELD = 0.2
"""Share of the calibrating patients that choose the threshold."""


@dataclass(frozen=True)
class Draw:
    """Sets that calibrate together."""

    sets: tuple[OutSet, ...]
    shared: bool
    """Whether it calibrates for other sets; else only for records of the very set."""
    only_for: str = ""
    """Of all others of its use-case, the kind of set that it calibrates for."""

    @property
    def name(self) -> str:
        """Names of its sets, or what it is not of."""
        if self.only_for:
            return f"all but {self.only_for}"
        return JOINED.join(out_set.name for out_set in self.sets)

    def regime(self, out_set: OutSet) -> str:
        """How it calibrates for a set; empty where it does not."""
        if out_set.control or out_set.use_case != self.sets[0].use_case:
            return ""
        if self.only_for:
            return "other-sources" if out_set.kind == self.only_for else ""
        if out_set.origin not in {member.origin for member in self.sets}:
            return "other-sources" if self.shared else ""
        return "same-source" if {member.kind for member in self.sets} == {out_set.kind} else ""


def calibration_draws(sets: Sequence[OutSet]) -> list[Draw]:
    """Which sets calibrate, the same for all detectors.

    Of unrelated records fixed draws of three sets, of the other use-cases one set each; at most
    `DRAWS`, and one more for a set that is in all of them. Each set also calibrates by itself, for
    other patients of the same set.
    """
    draws: list[Draw] = []
    every = representatives(sets)
    for case in dict.fromkeys(out_set.use_case for out_set in every):
        kinds = [out_set for out_set in every if out_set.use_case == case]
        shared = _shared(kinds, case == "unrelated")
        draws += [Draw(draw, True) for draw in shared]
        draws += [Draw((out_set,), False) for out_set in kinds if (out_set,) not in shared]
    return draws


def representatives(sets: Sequence[OutSet]) -> list[OutSet]:
    """The set of each kind that calibrates: of faults the most severe, none that is too small."""
    kinds: dict[tuple[str, str], OutSet] = {}
    for out_set in sets:
        if out_set.use_case != "shifted" and out_set.learnable and out_set.is_most_severe:
            kinds[out_set.use_case, out_set.kind] = out_set
    return [*kinds.values()]


def _shared(sets: list[OutSet], unrelated: bool) -> list[tuple[OutSet, ...]]:
    together = TOGETHER if unrelated and len(sets) > TOGETHER else 1
    draws = sorted(
        combinations(sets, together),
        key=lambda draw: stable_fraction("/".join(member.name for member in draw)),
    )
    kept = draws[:DRAWS]
    for out_set in sets:
        if all(out_set in draw for draw in kept):
            kept += [draw for draw in draws if out_set not in draw][:1]
    return kept


def calibrated(
    method: Detector, state: State, calibration: Calibration, patients: Sequence[str], bank: Bank
) -> tuple[State, float]:
    """A detector that learned from four fifths of the patients, and its threshold by the others.

    The threshold has the highest balanced accuracy, unless the detector learns its own.
    """
    choosing = np.array([stable_fraction(f"ood/threshold/{name}") < HELD for name in patients])
    if (
        len(np.unique(calibration.out[choosing])) < 2
        or len(np.unique(calibration.out[~choosing])) < 2
    ):
        choosing = np.zeros(len(choosing), bool)
    first = calibration.at(~choosing)
    other = calibration.at(choosing) if choosing.any() else calibration
    if method.calibrate is None:
        learned = _of_grid(method, first, bank)
    else:
        learned = method.calibrate(state, first, other, bank.head)
    if method.threshold is not None:
        return learned, method.threshold
    scores = finite(method.scores(learned, other.seen, bank.head), method.name)
    return learned, best_threshold(scores, other.out)


def combinations_of(method: Detector) -> Iterator[dict[str, object]]:
    """All combinations of values of a detector's grid."""
    for values in product(*method.grid.values()):
        yield dict(zip(method.grid, values, strict=True))


def _of_grid(method: Detector, calibration: Calibration, bank: Bank) -> State:
    """The state with the highest AUROC, the first of several."""
    states = [method.fit(bank, **values) for values in combinations_of(method)]
    return max(states, key=lambda state: auroc_of(method, state, calibration, bank.head))


def auroc_of(method: Detector, state: State, calibration: Calibration, head: Head) -> float:
    """AUROC of a detector on records that calibrate."""
    scores = finite(method.scores(state, calibration.seen, head), method.name)
    return auroc(scores[~calibration.out], scores[calibration.out])


def best_threshold(scores: Floats, out: npt.NDArray[np.bool_]) -> float:
    """The score (records,) above which rejecting has the highest balanced accuracy.

    Of several such it is the middle of the first gap.
    """
    levels = np.unique(scores)
    limits = np.concatenate(([levels[0] - 1], (levels[1:] + levels[:-1]) / 2, [levels[-1] + 1]))
    inside, outside = np.sort(scores[~out]), np.sort(scores[out])
    accepted = np.searchsorted(inside, limits, side="right") / len(inside)
    rejected = 1 - np.searchsorted(outside, limits, side="right") / len(outside)
    return float(limits[int((accepted + rejected).argmax())])


PIXEL_RECORDS = 5000
"""Training records whose pictures detectors are fitted on, drawn by a fixed seed."""
TIMED = 256
"""Records whose scores are timed."""


@dataclass(frozen=True)
class Learned:
    """A detector that was calibrated."""

    state: State
    threshold: float


@dataclass(frozen=True)
class Detectors:
    """Fitted and calibrated detectors of a network."""

    observer: NetworkObserver
    methods: Mapping[str, Detector]
    bank: Bank
    states: dict[str, State]
    skipped: dict[str, str]
    draws: list[Draw]
    learned: dict[str, dict[str, Learned]]
    """Of each draw, by its name, the detectors that it calibrated."""
    costs: dict[str, dict[str, float]] = field(default_factory=dict)
    """Seconds by detector: ``setup``, and for each record ``network`` and ``score``."""

    @property
    def uncalibrated(self) -> list[str]:
        """Those that need no records of the other kind."""
        return [name for name, method in self.methods.items() if method.calibrate is None]

    @property
    def learning(self) -> list[str]:
        """Those that are calibrated."""
        return [name for name, method in self.methods.items() if method.calibrate or method.grid]

    def seen(self, records: Sequence[SplitRecords], of: OutSet | None = None) -> Seen:
        """Outputs of the network for records, with what single detectors need."""
        seen = pictured(self.observer, records, of)
        asked = {
            name: self.observer.asked(records, method, self.states[name], of)
            for name, method in self.methods.items()
            if method.asks is not None
        }
        seen = replace(seen, more={**seen.more, **asked})
        once = {
            name: method.once(self.states[name], seen, self.bank.head)
            for name, method in self.methods.items()
            if method.once is not None
        }
        return replace(seen, more={**seen.more, **once})

    def scores(self, name: str, state: State, seen: Seen, ids: Sequence[str]) -> Floats:
        """(records,): larger is more out. A NaN is an error that names the record."""
        values = self.methods[name].scores(state, seen, self.bank.head)
        return finite(values, name, np.array(ids))


def prepared(
    observer: NetworkObserver,
    inside: Inside,
    sets: Sequence[OutSet],
    methods: Mapping[str, Detector],
    *,
    calibrates: bool = True,
) -> Detectors:
    """Fit and calibrate all detectors that fit the network, without the records to be scored."""
    inside, sets = replace(inside, scored=()), [replace(out_set, scored=()) for out_set in sets]
    banks = {pixels: bank_of(observer, inside, pixels=pixels) for pixels in (False, True)}
    states: dict[str, State] = {}
    costs: dict[str, dict[str, float]] = {}
    skipped: dict[str, str] = {}
    for name, method in methods.items():
        pixels = "pixels" in method.needs
        bank = banks[pixels]
        negative = bool((bank.seen.features < 0).any())
        if why := unfit(method, observer.network, bank.seen.more, negative):
            skipped[name] = why
            continue
        start = time.perf_counter()
        states[name] = method.fit(bank)
        spent = time.perf_counter() - start
        shared = 0.0 if method.shared is None else method.shared(bank)
        costs[name] = {"setup": max(spent, shared)}
    fitting = {name: methods[name] for name in states}
    detectors = Detectors(observer, fitting, banks[False], states, skipped, [], {}, costs)
    draws = calibration_draws(sets) if detectors.learning and calibrates else []
    learned = _calibrations(detectors, inside, draws, banks)
    detectors = replace(detectors, draws=draws, learned=learned)
    _time(detectors, inside)
    return detectors


def _calibrations(
    detectors: Detectors, inside_records: Inside, draws: Sequence[Draw], banks: Mapping[bool, Bank]
) -> dict[str, dict[str, Learned]]:
    seen: dict[str, Seen] = {}
    learned: dict[str, dict[str, Learned]] = {}
    if not draws:
        return learned
    inside = detectors.seen(inside_records.calibrating)
    patients = [name for records in inside_records.calibrating for name in records.patients]
    display = progress("calibrating detectors", len(draws), "draws")
    for number, draw in enumerate(draws):
        display.update(number)
        for out_set in draw.sets:
            if out_set.name not in seen:
                seen[out_set.name] = detectors.seen(out_set.calibrating, out_set)
        parts = [inside, *(seen[out_set.name] for out_set in draw.sets)]
        out = np.repeat(np.arange(len(parts)) > 0, [len(part) for part in parts])
        calibration = Calibration(joined(parts), out)
        people = patients + [
            name
            for out_set in draw.sets
            for records in out_set.calibrating
            for name in records.patients
        ]
        learned[draw.name] = {}
        for name in detectors.learning:
            method = detectors.methods[name]
            bank, start = banks["pixels" in method.needs], time.perf_counter()
            learned_state = calibrated(method, detectors.states[name], calibration, people, bank)
            learned[draw.name][name] = Learned(*learned_state)
            took = (time.perf_counter() - start) / len(draws)
            detectors.costs[name]["setup"] += took  # of one calibration, on average
    display.update(len(draws))
    display.close()
    return learned


def _time(detectors: Detectors, inside: Inside) -> None:
    """Add to the costs the seconds of a record, of the network and of each detector."""
    asking = {
        name: (method, detectors.states[name])
        for name, method in detectors.methods.items()
        if method.asks is not None
    }
    network = detectors.observer.costs(inside.trained, asking)
    records = inside.calibrating[0]
    few = records.at(np.isin(np.arange(len(records)), drawn(len(records), TIMED)))
    seen = detectors.seen([few])
    some = next(iter(detectors.learned.values()), {})
    for name, method in detectors.methods.items():
        if method.calibrate is None or some:
            state = some[name].state if method.calibrate else detectors.states[name]
            work = partial(_scored_anew, detectors, method, state, seen)
            detectors.costs[name]["score"] = median_seconds(work) / len(few)
        parts = [part for part in network if part == name or part.startswith(method.needs)]
        detectors.costs[name]["network"] = network["features"] + sum(
            network[part] for part in parts
        )


def _scored_anew(detectors: Detectors, method: Detector, state: State, seen: Seen) -> Floats:
    if method.once is not None:
        once = method.once(state, seen, detectors.bank.head)
        seen = replace(seen, more={**seen.more, method.name: once})
    return method.score(state, seen, detectors.bank.head)


def pictured(
    observer: NetworkObserver, records: Sequence[SplitRecords], of: OutSet | None = None
) -> Seen:
    seen = observer.seen(records, of)
    return replace(seen, more={**seen.more, "pixels": observer.pixels(records, of)})


def bank_of(observer: NetworkObserver, inside: Inside, *, pixels: bool) -> Bank:
    """What detectors are fitted on: with pictures, at most `PIXEL_RECORDS` records.

    Raises:
        BenchmdError: There are fewer training records than calibration takes of either kind.
    """
    if len(inside.trained) < FEWEST:
        raise BenchmdError(
            f"{inside.trained.catalog.path} has "
            f"{count_of(len(inside.trained), 'training record')}: "
            f"detectors learn from at least {FEWEST}."
        )
    trained, head = inside.trained, observer.network.head
    seen = observer.seen([trained])
    if pixels:
        chosen = np.isin(np.arange(len(trained)), drawn(len(trained), PIXEL_RECORDS))
        few = seen.at(chosen)
        more = {**few.more, "pixels": observer.pixels([trained.at(chosen)])}
        return Bank(replace(few, more=more), trained.targets[chosen], head)
    targets = np.concatenate([records.targets for records in inside.calibrating])
    return Bank(seen, trained.targets, head, observer.seen(inside.calibrating), targets)


def unfit(
    method: Detector, network: Network, available: Iterable[str], negative: bool = False
) -> str:
    """Why a detector is skipped; empty where it is not.

    ``available`` are the quantities in addition to features and logits; ``negative`` is whether a
    feature is.
    """
    if method.exclusive_only and not network.head.exclusive:
        return "it needs a softmax, and a record may have several labels"
    if method.non_negative and negative:
        return "it assumes features that are never negative"
    if method.images_only and len(network.signal.axes) != 3:
        return "it takes values within 0 and 1, which only images have"
    names = tuple(available)
    for need in method.needs:
        if not any(name.startswith(need) for name in names):
            return f"the network has no {need.strip()}"
    return ""


def joined(parts: Sequence[Seen]) -> Seen:
    """Records one after the other."""
    more = {name: np.concatenate([part.more[name] for part in parts]) for name in parts[0].more}
    return Seen(
        np.concatenate([part.features for part in parts]),
        np.concatenate([part.logits for part in parts]),
        more,
    )
