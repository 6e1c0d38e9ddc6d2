"""Portfolios: settings that searches found on other datasets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmd_ray.data.cards import cards, kind_of
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.signals import Signal
from benchmd_ray.runs.places import backing_of, shown
from benchmd_ray.ssl import BASELINES, SCRATCH
from benchmd_ray.tuning.gains import FEWEST, learned
from benchmd_ray.tuning.portfolio import Portfolio, SearchKind
from benchmd_ray.tuning.records import read_searches


def search_kind(technique: str, setting: str, signal: Signal, metric: str) -> SearchKind:
    """Key of a search: searches with the same key can learn from each other."""
    kind = technique if technique in (SCRATCH, *BASELINES) else "pretrained"
    return SearchKind(len(signal.axes) - 1, kind, setting.split("-")[0], metric)


def learned_in(
    stores: Sequence[Path],
    say: Callable[[str], None] = lambda text: None,
    wanted: Callable[[str], bool] = lambda name: True,
) -> Portfolio:
    """A portfolio from the stores' finished searches, each on one source.

    Raises:
        BenchmdError: No search has enough trials, no settings gain over a start, or a bucket cannot
            be reached.
    """
    for store in stores:
        for why in backing_of(store).refresh_store().values():
            say(f"skipped: {why}")
    searches = read_searches(stores)
    records = [
        record
        for record in searches.found
        if len(record.sources) == 1 and record.is_finished and wanted(record.name)
    ]
    for why in searches.damaged.values():
        say(f"skipped: {why}")
    kinds = {}
    for record in records:
        starts = (settings for family in record.families for settings in family.settings)
        if any(settings.get("tuned") for settings in starts):
            say(
                f"skipped {record.name}: its start was tuned, perhaps on a dataset that will use "
                "this portfolio."
            )
            continue
        try:
            signal = _signal_of(str(record.sources[0]["modality"]))
        except BenchmdError as error:
            say(f"skipped {record.name}: {error}")
            continue
        for family in record.families:
            kinds[record.name, family.name] = search_kind(
                family.technique, family.setting, signal, record.metric
            )
    portfolio = learned(records, kinds)
    if not portfolio.candidates:
        raise BenchmdError(
            f"nothing can be learned from {len(records)} search{'es' * (len(records) != 1)} of "
            f"{', '.join(map(shown, stores))}: expected one with {FEWEST} trials or more that have "
            "a score, and settings that gain over the start."
        )
    return portfolio


def _signal_of(modality: str) -> Signal:
    """Signals of a modality, also if only a dataset's card defines it."""
    stated = (card.signal for card in cards().values() if card.modality.name == modality)
    return next(stated, None) or kind_of(modality).signal
