"""Losses of pretraining's steps on their way to what is reported."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from benchmd_ray.data.batches import Worker
from benchmd_ray.settings.definition import Settings
from benchmd_ray.training.engine import gather
from benchmd_ray.training.reporter import Reporter, require_finite


class Losses:
    """Losses that were not reported yet.

    A GPU works on while the values of an interval are on their way to the host: they are looked at,
    and reported, with those of the next interval.
    """

    def __init__(
        self, earlier: Sequence[float], worker: Worker, settings: Settings, reporter: Reporter
    ) -> None:
        """Begin a session.

        ``earlier`` are the losses, over all workers, of steps that an earlier session did
        not report.
        """
        self._earlier, self._own = list(earlier), list[torch.Tensor]()
        self._worker, self._settings, self._reporter = worker, settings, reporter
        self._underway: _Underway | None = None

    def add(self, loss: torch.Tensor) -> None:
        """Take this worker's loss of a step, on the device."""
        self._own.append(loss)

    def report(self, done: int) -> None:
        """Report the interval that ends with a step; every worker calls it.

        Raises:
            BenchmdError: A loss is not finite; the message names the step.
        """
        self._settle()
        self._underway = self._over_workers(done)
        self._earlier, self._own = [], []
        if self._worker.device.type != "cuda":
            self._settle()

    def unreported(self, done: int) -> list[float]:
        """Losses, over all workers, of the steps since the last interval, once that is reported.

        Raises:
            BenchmdError: A loss is not finite.
        """
        self._settle()
        if self._own:
            self._earlier, self._own = self._checked(self._over_workers(done)).tolist(), []
        return self._earlier

    def _over_workers(self, done: int) -> _Underway:
        means = gather(torch.stack(self._own).float()[None]).mean(dim=0)
        return _Underway(means, self._earlier, done)

    def _settle(self) -> None:
        underway, self._underway = self._underway, None
        if underway is not None:
            mean = float(self._checked(underway).mean())
            lr = self._lr(underway.done - 1)
            self._reporter.report(underway.done, {"loss": mean, "lr": lr})

    def _checked(self, underway: _Underway) -> torch.Tensor:
        """Each step's loss, (steps,), on the host."""
        losses = underway.arrived()
        require_finite(losses, underway.done - len(losses) + 1, self._lr)
        return losses

    def _lr(self, step: int) -> float:
        chosen = self._settings.pretrain
        return chosen.optimiser.lr_at(step, chosen.steps)


class _Underway:
    """Losses on their way to the host."""

    def __init__(self, losses: torch.Tensor, earlier: Sequence[float], done: int) -> None:
        self.done, self._earlier = done, torch.tensor(earlier, dtype=losses.dtype)
        self._arrived: torch.cuda.Event | None = None
        if losses.device.type == "cuda":
            self._own = torch.empty(losses.shape, dtype=losses.dtype, pin_memory=True)
            self._own.copy_(losses, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()
        else:
            self._own = losses

    def arrived(self) -> torch.Tensor:
        if self._arrived is not None:
            self._arrived.synchronize()
        return torch.cat([self._earlier, self._own])
