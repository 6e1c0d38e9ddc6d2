"""Accelerations at the wrists of volunteers, every second one with a tremor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import yaml

RATE, SECONDS = 32, 4
SIGNAL = {
    "axes": ["channel", "time"],
    "stored_shape": [3, RATE * SECONDS],
    "input_shape": [3, RATE * SECONDS],
    "dtype": "int16",
    "unit": "g",
    "patch": [16],
    "channels": ["x", "y", "z"],
    "rate": RATE,
    "normaliser": "record-range",
}


def write_wrist(
    raw: Path, volunteers: int = 15, each: int = 2, *, names: str = "v", noise: float = 0.3
) -> None:
    """Write recordings as CSV, and a table with their diagnosis and patient."""
    rng = np.random.default_rng(0)
    (raw / "signals").mkdir(parents=True)
    lines, time = ["file,diagnosis,patient"], np.arange(RATE * SECONDS) / RATE
    for volunteer in range(volunteers):
        tremor = volunteer % 2
        for number in range(each):
            shakes = np.sin(2 * np.pi * 5 * time[:, None] + rng.uniform(0, 6, 3))
            values = rng.normal(0, noise, (len(time), 3)) + tremor * rng.uniform(0.2, 1) * shakes
            name = f"signals/{names}{volunteer:02}_{number}.csv"
            np.savetxt(raw / name, values, delimiter=",", header="x,y,z", comments="", fmt="%.4f")
            label = "tremor" if tremor else "healthy"
            lines.append(f"{name},{label},{names}{volunteer:02}")
    (raw / "recordings.csv").write_text("\n".join(lines) + "\n")


def write_card(cards: Path, splits: Any, name: str = "wrist", **about: Any) -> None:
    """Write the card of these recordings, with ``splits``, and the one of their signal."""
    task = {"kind": "single-label", "classes": ["healthy", "tremor"]}
    files = {"table": "recordings.csv", "path": "file", "label": "diagnosis", "rate": RATE}
    files |= {"patient": "patient"} | ({} if splits is None else {"splits": splits})
    card = {"name": name, "modality": "wrist", "task": task, "files": files} | about
    kind = {"name": "wrist", "batch_size": 64, "signal": SIGNAL, "task": task}
    (cards / "modalities").mkdir(parents=True, exist_ok=True)
    (cards / f"{name}.yaml").write_text(yaml.safe_dump(card))
    (cards / "modalities" / "wrist.yaml").write_text(yaml.safe_dump(kind))
