"""Bundles of hand-made runs, and the digests that they are compared with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from stores import make_transfer, people, scores_of, targets_of, write_predictions

from benchmd_ray.board.bundle import ABOUT, part_path, read_bundle, row_form
from benchmd_ray.board.keys import board_key, private_key, signed
from benchmd_ray.board.official import AboutDataset, write_rows
from benchmd_ray.board.pack import pack, write_signature
from benchmd_ray.data.cards import cards, kind_of
from benchmd_ray.evaluation.evaluation import DetectedRecords
from benchmd_ray.files.atomic import json_bytes

KEY = board_key("test-board")
ROWS = {"ptb-xl": 160, "georgia": 240}
SEEDS = {"ptb-xl": 1, "georgia": 10}
"""Those of `stores.predict_all` with `stores.ECG_DATA`."""


def write_official(
    path: Path,
    rows: Mapping[str, int] = ROWS,
    detections: Mapping[str, DetectedRecords] = MappingProxyType({}),
) -> Path:
    """Digests of the test splits that `stores.predict_all` makes up, and of detection."""
    abouts, tables = [], []
    for name, count in rows.items():
        card, task = cards()[name], kind_of(name).task
        labels = targets_of(task.classes, count, task.kind, SEEDS[name])
        columns = {k: v for k, v in people(count, SEEDS[name]).items() if k.endswith("_id")}
        targets = pa.FixedSizeListArray.from_arrays(pa.array(labels.ravel()), labels.shape[1])
        tables.append(pa.table({**columns, "target": targets}))
        about = {n: str(getattr(card, n)) for n in ("title", "licence", "access", "homepage")}
        abouts.append(
            AboutDataset(
                name=name,
                split="test",
                modality="ecg",
                role=card.role,
                policy="clean",
                catalog=f"digest of {name}",
                provenance="whole",
                notes=[],
                task=task,
                **about,
            )
        )
    write_rows(abouts, tables, KEY, path, detections)
    return path


def make_bundle(
    folder: Path,
    submitter: str = "A lab",
    *,
    skill: float = 1.0,
    technique: str = "scratch",
    seeds: int = 1,
    noise: int = 0,
    change: Callable[[np.ndarray], np.ndarray] = lambda scores: scores,
    rows: Mapping[str, int] = ROWS,
    **about: Any,
) -> Path:
    """A bundle of one entry.

    Args:
        folder: The bundle.
        submitter: Its name.
        skill: The higher, the better the scores.
        technique: Of the runs.
        seeds: How many runs.
        noise: Seed of the scores' noise.
        change: Changes the scores, (records, classes).
        rows: Records of each dataset.
        about: Of `pack`.
    """
    store, runs = folder.with_name(f"{folder.name}-store"), []
    for seed in range(seeds):
        run = make_transfer(store, technique, seed=seed)
        for name, count in rows.items():
            task = kind_of(name).task
            labels = targets_of(task.classes, count, task.kind, SEEDS[name])
            drawn = scores_of(labels, task.kind, skill, [SEEDS[name], seed, noise])
            split = {"test": (people(count, SEEDS[name]), labels, change(drawn))}
            write_predictions(run, name, split)
        runs.append(run)
    folder.mkdir(parents=True)
    pack(runs, folder, KEY, submitter=submitter, **about)
    return folder


def forge(bundle: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change what a bundle says of itself, as who forges it would."""
    content = json.loads((bundle / ABOUT).read_text("utf-8"))
    change(content)
    (bundle / ABOUT).write_bytes(json_bytes(content))
    return bundle


def rows_of(bundle: Path, number: int = 0) -> np.ndarray:
    """Rows of a file of predictions of the ECG datasets."""
    return np.fromfile(part_path(bundle, number), row_form(7))


def forge_part(bundle: Path, change: Callable[[np.ndarray], np.ndarray], number: int = 0) -> Path:
    """Change the rows of a file of predictions, with its right hash."""
    part_path(bundle, number).write_bytes(change(rows_of(bundle, number)).tobytes())
    return rehash(bundle)


def rehash(bundle: Path) -> Path:
    """State the hashes of the files as they are."""

    def restate(content: dict[str, Any]) -> None:
        parts = [part for run in content["runs"] for part in run["predictions"]]
        for number, part in enumerate(parts):
            part["sha256"] = sha256(part_path(bundle, number).read_bytes()).hexdigest()

    return forge(bundle, restate)


def made_at(bundle: Path, day: int) -> Path:
    """Say that it was made on a day of 2026."""
    return forge(bundle, lambda content: content.update(made=f"2026-01-{day:02d}T00:00:00Z"))


def pem(path: Path) -> Path:
    """A new private key in a file."""
    key = Ed25519PrivateKey.generate()
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    path.write_bytes(key.private_bytes(*form, serialization.NoEncryption()))
    return path


def sign(bundle: Path, key: Path) -> str:
    """Sign a bundle; gives the public key."""
    write_signature(bundle, signed((bundle / ABOUT).read_bytes(), private_key(key)))
    return read_bundle(bundle).signer
