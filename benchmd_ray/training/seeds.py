"""Seeds as a function of their purpose, so that a resumed run draws the same numbers."""

from __future__ import annotations

import numpy as np
import torch

WEIGHTS, DRAWS, DROPOUT, AUGMENTATION, PATCHES = 1, 2, 3, 4, 5


def derived_seed(*parts: int) -> int:
    """A 63-bit seed that depends on all parts."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))


def generator(*parts: int) -> torch.Generator:
    """A CPU generator seeded by all parts."""
    return torch.Generator().manual_seed(derived_seed(*parts))


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed this process's global generators of CPU and current GPU for one step, for dropout.

    ``torch.manual_seed`` would check further devices, which takes ten times as long.
    """
    value = derived_seed(DROPOUT, seed, step, rank)
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(value)
