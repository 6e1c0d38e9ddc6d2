"""Label sets of `studies.tuning`, and heads that are trained on stored features.

An evaluation trains on four of five folds of a label set and is scored on the fifth, as in the
package: the epoch is chosen on one half of the fold's patients and scored on the other, both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import rankdata
from torch import nn

from benchmd_ray.data.batches import Worker
from benchmd_ray.data.inner import FOLDS
from benchmd_ray.data.splits import balanced_folds, rarest_class
from benchmd_ray.models.neighbours import NearestNeighbours
from benchmd_ray.settings.definition import Settings, updated
from benchmd_ray.training.features import head_epoch, head_steps
from benchmd_ray.training.logistic import fit_head
from benchmd_ray.training.seeds import derived_seed
from benchmd_ray.training.selection import FEWEST
from benchmd_ray.tuning.families import Family
from benchmd_ray.tuning.parameters import nested
from benchmd_ray.tuning.spaces import Parameter, Space
from studies.tuning_features import BIASES, POOL, Features
from studies.tuning_tasks import Records, Targets, Task

Rows = npt.NDArray[np.intp]
Floats = npt.NDArray[np.float64]
Values = Mapping[str, Any]
DEFAULT_BIASES = {BIASES[1]: 8, BIASES[2]: 2}
STEPPED = {"transfer.solver": ("adamw",)}
HIDDEN = "transfer.hidden"
LINEAR = Space(
    "linear",
    (
        Parameter("transfer.solver", "choice", "adamw", values=("adamw", "logistic")),
        Parameter(HIDDEN, "choice", 0, values=(0, 64), when=STEPPED),
        Parameter(
            "transfer.dropout", "float", 0.1, low=0.0, high=0.5, when={**STEPPED, HIDDEN: (64,)}
        ),
        Parameter("transfer.optimiser.lr", "log float", 3e-3, low=1e-5, high=1e-1, when=STEPPED),
        Parameter(
            "transfer.optimiser.weight_decay", "log float", 1e-4, low=1e-6, high=1e-1, when=STEPPED
        ),
        Parameter(
            "transfer.optimiser.schedule",
            "choice",
            "constant",
            values=("constant", "cosine"),
            when=STEPPED,
        ),
        Parameter("transfer.epochs", "int", 200, low=20, high=200, step=20, when=STEPPED),
        Parameter("transfer.batch_size", "choice", 32, values=(32, 64, 128), when=STEPPED),
        Parameter("transfer.label_smoothing", "float", 0.0, low=0.0, high=0.3, when=STEPPED),
    ),
)
"""Of linear and MLP heads; its start is trained until more epochs change nothing."""
NEIGHBOURS = Space("knn", (Parameter("transfer.neighbours", "log int", 20, low=1, high=100),))


def families_of(axes: int) -> tuple[Family, ...]:
    """The families of a signal with so many axes; the first has the start."""
    most = POOL[axes]
    kernels = Space(
        "random-kernels",
        (
            Parameter("encoder.options.kernels", "log int", most * 2 // 3, low=100, high=most),
            Parameter("encoder.options.biases", "choice", 0, values=(0, 1, 4)),
        ),
    )
    spaces = (
        ("pretrained", "linear", LINEAR),
        ("pretrained", "knn", NEIGHBOURS),
        ("kernels", "linear", kernels),
        ("untrained", "linear", LINEAR),
        ("untrained", "knn", NEIGHBOURS),
    )
    return tuple(Family(encoder, head, space, ()) for encoder, head, space in spaces)


@dataclass(frozen=True)
class Trained:
    """A head after an evaluation."""

    score: float
    """AUROC on the fold, of the epoch that was chosen on other patients."""
    logits: Floats
    """Of the fold: (rows, classes)."""
    predict: Callable[[Rows], Floats]
    """Logits of records by the epoch that is best on the whole fold."""


@dataclass(frozen=True)
class Sample:
    """A label set that was drawn for a task."""

    task: Task
    features: Mapping[str, Features]
    """Of all records, by encoder."""
    targets: Targets
    groups: npt.NDArray[np.str_]
    labelled: Rows
    judged: Rows
    """Records of groups without a label."""

    @classmethod
    def draw(
        cls, task: Task, records: Records, features: Mapping[str, Features], seed: int
    ) -> Sample:
        """Draw labelled records, of as few groups as have half of all records or enough."""
        draws, groups = np.random.default_rng([seed, task.size]), records.groups
        names, index = np.unique(groups, return_inverse=True)
        order = draws.permutation(len(names))
        counts = np.bincount(index)[order].cumsum()
        enough = max(task.size, len(groups) // 2)
        chosen = order[: int(np.searchsorted(counts, enough)) + 1]
        rows = draws.permutation(np.flatnonzero(np.isin(index, chosen)))[: task.size]
        judged = np.flatnonzero(~np.isin(groups, groups[rows]))
        targets = records.labels[task.label]
        return cls(task, features, targets, groups, np.sort(rows), judged)

    @cached_property
    def _folds(self) -> dict[int, list[Rows]]:
        return {}

    def fold(self, evaluation: int) -> Rows:
        """Records on which an evaluation is scored; it trains on the other labelled ones."""
        cut, fold = divmod(evaluation, FOLDS)
        if cut not in self._folds:
            classes = rarest_class(self.targets[self.labelled] == 1)
            folds = balanced_folds(self.groups[self.labelled], classes, FOLDS, cut)
            self._folds[cut] = [self.labelled[rows] for rows in folds]
        return self._folds[cut][fold]

    def halves(self, evaluation: int) -> list[npt.NDArray[np.bool_]]:
        """Rows of the fold's halves by patient; the fold itself twice if these are too few."""
        rows = self.fold(evaluation)
        second = np.zeros(len(rows), bool)
        if len(np.unique(self.groups[rows])) >= FEWEST:
            classes = rarest_class(self.targets[rows] == 1)
            second[balanced_folds(self.groups[rows], classes, 2, seed=0)[1]] = True
            halves = [~second, second]
            if all(np.isfinite(aurocs(self.targets[rows][h])).any() for h in halves):
                return halves
        return [~second, ~second]

    def evaluate(self, family: str, values: Values, evaluation: int, seed: int) -> Trained:
        """Train a family's head with settings on an evaluation's folds."""
        encoder, head = family.split()
        seed = seed if evaluation == 0 else derived_seed(seed, evaluation) % 2**31
        rows = self.fold(evaluation)
        training = np.setdiff1d(self.labelled, rows)
        features = self._features(encoder, values, seed)
        if head == "knn" or encoder == "kernels" or values["transfer.solver"] == "logistic":
            predict = self._solved(features, head, values, training, seed)
            by_epoch = predict(rows)[None]
            predictions = [predict]
        else:
            predictions = self._stepped(features, values, training, seed)
            by_epoch = np.stack([predict(rows) for predict in predictions])
        targets = self.targets[rows]
        first, second = (
            aurocs(targets[half], by_epoch[:, half]) for half in self.halves(evaluation)
        )
        places = int(first.argmax()), int(second.argmax())
        score = (second[places[0]] + first[places[1]]) / 2
        best = int(aurocs(targets, by_epoch).argmax())
        return Trained(float(score), by_epoch[best], predictions[best])

    def _features(
        self, encoder: str, values: Values, seed: int
    ) -> Callable[[Rows], npt.NDArray[np.float32]]:
        features = self.features[encoder]
        if encoder != "kernels":
            return lambda rows: features[rows]
        count, biases = (values[f"encoder.options.{name}"] for name in ("kernels", "biases"))
        _, most, outputs = features.shape
        chosen = np.random.default_rng(seed).permutation(most)[:count]
        columns = [*range(biases or DEFAULT_BIASES[outputs - 1]), outputs - 1]
        return lambda rows: (
            features[rows][:, chosen][:, :, columns].reshape(len(rows), -1).astype(np.float32)
        )

    def _solved(
        self, features: Any, head: str, values: Values, training: Rows, seed: int
    ) -> Callable[[Rows], Floats]:
        """Nearest neighbours, or a logistic regression."""
        targets, kind = self.targets[training], self.task.kind
        if head == "knn":
            votes = NearestNeighbours(
                torch.from_numpy(features(training)),
                torch.from_numpy(targets),
                kind,
                values["transfer.neighbours"],
            )
            return lambda rows: votes(torch.from_numpy(features(rows))).double().numpy()
        solved = fit_head(features(training), targets, self.groups[training], kind, seed)
        return lambda rows: features(rows) @ solved.weight.T + solved.bias

    def _stepped(
        self, features: Any, values: Values, training: Rows, seed: int
    ) -> list[Callable[[Rows], Floats]]:
        """A linear or an MLP head after each epoch."""
        about = {name: v for name, v in values.items() if name not in (HIDDEN, "transfer.dropout")}
        settings = updated(Settings(), nested({**about, "seed": seed}))
        torch.manual_seed(seed)
        inputs = torch.from_numpy(features(training))
        targets = torch.from_numpy(self.targets[training])
        width, classes = inputs.shape[1], targets.shape[1]
        head: nn.Module = nn.Linear(width, classes)
        if hidden := values[HIDDEN]:
            dropout = nn.Dropout(values["transfer.dropout"])
            head = nn.Sequential(
                nn.Linear(width, hidden), nn.GELU(), dropout, nn.Linear(hidden, classes)
            )
        steps = head_steps(head, settings, len(training), Worker(), self.task.kind)
        states = []
        for epoch in range(settings.transfer.epochs):
            head_epoch(steps, inputs, targets, settings, epoch)
            states.append([p.detach().clone() for p in head.parameters()])
        return [partial(_logits, features, state) for state in states]


def _logits(features: Any, state: list[torch.Tensor], rows: Rows) -> Floats:
    weight, bias, *after = state
    outputs = torch.from_numpy(features(rows)) @ weight.T + bias
    if after:
        outputs = nn.functional.gelu(outputs) @ after[0].T + after[1]
    return outputs.double().numpy()


def aurocs(targets: Targets, logits: Floats | None = None) -> Floats:
    """Mean AUROC over classes of several models: logits (models, rows, classes) to (models,).

    NaN if no class has both positives and negatives.
    """
    positive = targets == 1
    scored = positive.any(axis=0) & ~positive.all(axis=0)
    if logits is None:
        logits = np.zeros((1, *targets.shape))
    if not scored.any():
        return np.full(len(logits), np.nan)
    positive, ranks = positive[:, scored], rankdata(logits[:, :, scored], axis=1)
    count = positive.sum(axis=0)
    above = (ranks * positive).sum(axis=1) - count * (count + 1) / 2
    return np.asarray((above / (count * (len(positive) - count))).mean(axis=1), np.float64)
