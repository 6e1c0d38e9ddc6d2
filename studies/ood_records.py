"""Records of classes, and others that are out of distribution, as an encoder might see them.

Features are drawn at random: not negative, correlated, around a centre for each class; a share of
the records are around another one. The head is that of nearest centres with noise.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from benchmd_ray.benchmarks.ood.methods.method import Bank, Head, Seen

BLOCK = 32768
"""Records that are drawn at once."""


class Problem:
    """Centres of classes and a head, from which records are drawn."""

    def __init__(self, width: int, classes: int, seed: int) -> None:
        """Draw centres, and make the head of them."""
        self.generator, self.width, self.classes = np.random.default_rng(seed), width, classes
        self.centres = self.generator.normal(size=(classes, width)).astype(np.float32)
        mixing = self.generator.normal(size=(width, width)) * 2 / np.sqrt(width)
        self.mixing = mixing.astype(np.float32)
        self.head = Head(np.zeros((classes, width)), np.zeros(classes), exclusive=True)
        features, label = self.features(max(2000, 20 * classes))
        means = np.stack([features[label == k].mean(axis=0) for k in range(classes)])
        weight = means - means.mean(axis=0)
        weight = weight + self.generator.normal(size=weight.shape) * weight.std() / 4
        bias = -(weight * means).sum(axis=1) / 2
        size = 2 / (features @ weight.T + bias).std()  # logits are within about ± 8
        self.head = Head(weight * size, bias * size, exclusive=True)

    def features(
        self, records: int, out: float = 0.0
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.intp]]:
        """(records, width) and their classes; a share of them is around another centre."""
        label = self.generator.integers(self.classes, size=records)
        features = np.empty((records, self.width), np.float32)
        for start in range(0, records, BLOCK):
            around = self.centres[label[start : start + BLOCK]]
            around[self.generator.random(len(around)) < out] = self.centres[0][::-1]
            noise = self.generator.standard_normal(around.shape, np.float32)
            np.maximum(0.6 * around + noise @ self.mixing, 0, out=features[start : start + BLOCK])
        return features, label

    def seen(self, features: npt.NDArray[np.float32]) -> Seen:
        """Features with the head's logits."""
        weight, bias = (v.astype(np.float32) for v in (self.head.weight, self.head.bias))
        return Seen(features, features @ weight.T + bias)

    def bank(self, records: int) -> Bank:
        """Records of the classes only."""
        features, label = self.features(records)
        targets = np.eye(self.classes, dtype=np.int8)[label]
        return Bank(self.seen(features), targets, self.head)
