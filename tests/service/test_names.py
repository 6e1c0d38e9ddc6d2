"""Names of runs and searches, and what catalogs hold of cards, as earlier versions gave them.

    python tests/service/test_names.py     # record them, after a version was raised

Whoever resumes a store finds its runs by these names: a change of the code that alters no result
leaves them as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path

import pytest

from benchmd_ray.data.cards import cards, dataset_card, without_build
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.files.atomic import digest, json_bytes
from benchmd_ray.runs.store import Run
from benchmd_ray.service.choice import Choice, technique_settings, with_setting
from benchmd_ray.service.families import Tuning
from benchmd_ray.service.naming import pretraining, transferring
from benchmd_ray.service.resolved import resolve_settings
from benchmd_ray.service.searches import planned_searches
from benchmd_ray.ssl import SCRATCH

RECORDED = Path(__file__).with_name("names.json")
STORE = Path("runs")
TECHNIQUES = {
    "ptb-xl": ("e-mix", "shed", "mae", SCRATCH),
    "bcn20000": ("mae", SCRATCH),
    "mimic-cxr": ("e-mix", SCRATCH),
    "lidc-idri": ("shed",),
    "messidor-2": ("mae",),
}
"""Techniques by the source that they are trained on."""
SETTINGS = ("linear", "finetune-small", "finetune-full", "knn")
CHANGES = (
    ("transfer.optimiser.lr=0.003", "transfer.epochs=7"),
    ("encoder.network=resnet18",),
    ("execution.precision=bf16", "execution.device=cuda"),
    ("execution.feed=streaming", "execution.workers=2"),
    ("transfer.augmentation.noise=0.1",),
    ("transfer.shuffle_labels=true",),
)
"""Settings over the protocol's, each group of another transfer."""


class Finished(Run):
    """A pretraining whose weights nobody has to have."""

    @property
    def model_sha256(self) -> str:
        return digest(self.folder.name)


def catalog(name: str) -> Catalog:
    """A catalog of which there is only the manifest's part that names depend on."""
    card = dataset_card(name)
    manifest = {
        "digest": digest(name),
        "policy": "clean",
        "options": {},
        "held_out": [],
        "layout": next(iter(card.layouts)),
        "raw": {"records": 9, "expected": 9, "provenance": "whole"},
        "splits": {"train": {"records": 9000}, "validation": {"records": 1000}},
    }
    return Catalog(Path("catalogs") / name, manifest, card)


def runs() -> Iterator[tuple[str, str]]:
    """Names of pretrainings and transfers, by what is asked for."""
    for source, techniques in TECHNIQUES.items():
        for technique in techniques:
            yield from of_technique(catalog(source), technique)
    for changes in CHANGES:
        settings, _ = technique_settings(
            Choice(assignments=changes), dataset_card("ptb-xl").modality, SCRATCH
        )
        settings = resolve_settings(with_setting(settings, "finetune-medium"), gpu=False)
        resolved = transferring(catalog("ptb-xl"), settings, None)
        yield f"ptb-xl {' '.join(changes)}", resolved.run(STORE).folder.name


def of_technique(source: Catalog, technique: str) -> Iterator[tuple[str, str]]:
    settings, _ = technique_settings(Choice(), source.card.modality, technique)
    settings = resolve_settings(settings, gpu=False)
    upstream = None
    if technique != SCRATCH:
        resolved = pretraining(technique, source, settings, None)
        folder = resolved.run(STORE).folder
        yield f"{source.card.name} {technique} pretraining", folder.name
        upstream = Finished(folder, resolved.description)
    for setting in SETTINGS if source.card.name == "ptb-xl" else SETTINGS[:2]:
        chosen = with_setting(settings, setting)
        resolved = transferring(source, chosen, upstream)
        yield f"{source.card.name} {technique} {setting}", resolved.run(STORE).folder.name


def searches() -> Iterator[tuple[str, str]]:
    """Names of the searches that are planned from cards."""
    choice = Choice(datasets=("ptb-xl", "bcn20000"))
    for technique, setting in product(("mae", SCRATCH), ("linear", "finetune-full")):
        for plan in planned_searches(Tuning(choice, (technique,), (setting,)), gpu=False):
            yield f"search {plan.sources[0].name} {technique} {setting}", plan.name
    for plan in planned_searches(Tuning(choice, ("mae", SCRATCH)), gpu=False):
        yield f"search {plan.sources[0].name} of {len(plan.families)} families", plan.name


def card_digests() -> Iterator[tuple[str, str]]:
    """Hashes of the cards as catalogs hold them, which are part of a catalog's digest."""
    for name, card in cards().items():
        yield f"card {name}", digest(json.loads(json_bytes(asdict(without_build(card)))))


def names() -> dict[str, str]:
    return dict(runs()) | dict(searches()) | dict(card_digests())


@pytest.fixture(scope="module")
def recorded() -> dict[str, str]:
    return json.loads(RECORDED.read_text("utf-8"))


def test_runs_searches_and_cards_keep_their_names(recorded):
    now = names()
    assert len(dict(runs())) >= 30
    assert len(set(now.values())) == len(now)
    assert now == recorded


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(names(), indent=1) + "\n", "utf-8")
