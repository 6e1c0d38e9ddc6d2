"""A stage that trains nothing, whose processes are lost where a test says so."""

import os
import time
from collections.abc import Mapping

from benchmd_ray.settings.definition import Settings
from benchmd_ray.training.jobs import RESULT
from benchmd_ray.tuning.stages import Setup, Stage
from benchmd_ray.tuning.trial_files import TRANSFER

STEPS = 3


class Faulty(Stage):
    """Three steps with a checkpoint after each; notes in ``attempts`` where each process begins."""

    def __init__(self, faults: Mapping[str, tuple[int, int, str]]) -> None:
        """``faults``: by name of a job, step at which so many processes exit or raise an error."""
        self._faults = faults

    def last_step(self, settings: Settings) -> int:
        return STEPS

    def train(self, setup: Setup) -> float:
        """Train, and return a score that depends on the learning rate and the seed."""
        name, state = setup.folder.parent.name, setup.folder / "state"
        setup.folder.mkdir(parents=True, exist_ok=True)
        done = int(state.read_text()) if state.is_file() else 0
        attempts = setup.work.local / "attempts"
        with attempts.open("a") as file:
            file.write(f"{name} {done}\n")
        step, times, how = self._faults.get(name, (0, 0, ""))
        faulty = attempts.read_text().count(f"{name} ") <= times
        for after in range(done + 1, STEPS + 1):
            if after == step and faulty:
                if how == "exit":
                    os._exit(1)
                raise OSError(5, "Input/output error")
            time.sleep(0.05)
            state.write_text(str(after))
            if after in setup.rungs:
                setup.report(after, 0.5)
        (setup.folder / TRANSFER).mkdir(exist_ok=True)
        for file_name in ("model.safetensors", "model.json", RESULT):
            (setup.folder / TRANSFER / file_name).write_text(name)
        return 0.5 + setup.settings.transfer.optimiser.lr + setup.settings.seed % 97 / 1000
