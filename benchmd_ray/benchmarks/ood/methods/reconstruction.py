"""How badly a network that learned from in-distribution records reconstructs a record."""

from __future__ import annotations

from functools import partial

import numpy as np

from benchmd_ray.benchmarks.ood.methods.method import Floats, Head, Method, Seen, State, nothing


def score(_: State, seen: Seen, head: Head, *, quantity: str) -> Floats:
    """(records,): mean squared error."""
    return np.asarray(seen.more[quantity], np.float64).reshape(len(seen))


METHODS = tuple(
    Method(name, title, nothing, partial(score, quantity=quantity), source, needs=(quantity,))
    for name, title, quantity, source in (
        ("mae-loss", "MAE reconstruction", "mae loss", "the objective of He et al., CVPR 2022"),
        ("autoencoder", "autoencoder", "autoencoder loss", "Shafaei et al., BMVC 2019"),
        ("vae", "VAE", "vae loss", "Kingma and Welling, ICLR 2014"),
    )
)
