r"""``python -m speed.figures`` from the project's root.

The figures of a report, written as PNG and SVG: laid out once and drawn by as many processes as
there are CPUs, against matplotlib's ``savefig`` for each format in turn. Both must give the same
pictures first, but for a layout that ends at another fraction of a pixel.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.image import imread

from benchmd_ray.report.canvas import DPI, look, new_figure, styled, write_all
from speed import measure

TOLERANCE = 0.1
"""Largest mean difference of two pictures where either is not white; black and white: 1."""


def bar_charts(count: int, seed: int) -> list[tuple[str, Figure]]:
    """New figures of three panels with twenty bars each: a figure is laid out only once."""
    generator, figures = np.random.default_rng(seed), []
    with styled():
        for number in range(count):
            figure = new_figure(f"Figure {number} of {count}", 4.0)
            for place, axes in enumerate(figure.subplots(1, 3)):
                values = generator.random(20)
                axes.bar(np.arange(20), values, yerr=values / 10, label="bars", **look(place))
                axes.set_title(f"Panel {place}")
                axes.legend()
            figures.append((f"figure-{number}", figure))
    return figures


def require_same(ours: Path, peer: Path) -> None:
    """Compare the pictures of two folders.

    Raises:
        AssertionError: Two of the same name differ.
    """
    for path in sorted(peer.glob("*.png")):
        expected, picture = (imread(file)[..., :3] for file in (path, ours / path.name))
        is_inked = (expected < 1).any(axis=-1) | (picture < 1).any(axis=-1)
        difference = np.abs(expected - picture)[is_inked].mean()
        if difference > TOLERANCE:
            raise AssertionError(f"{path.name} differs by {difference:.3g} of 1")


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    declared = {"figures": (12, "of the report")}
    settings = measure.options(__doc__, arguments, declared, repetitions=3, warm_up=0)
    with tempfile.TemporaryDirectory() as folder:
        ours, peer = Path(folder, "ours"), Path(folder, "peer")

        def together() -> None:
            ours.mkdir(exist_ok=True)
            write_all(bar_charts(settings.figures, settings.seed), ours, lambda count: None)

        def one_by_one() -> None:
            peer.mkdir(exist_ok=True)
            for name, figure in bar_charts(settings.figures, settings.seed):
                with styled():
                    figure.savefig(peer / f"{name}.png", dpi=DPI, metadata={"Software": None})
                    figure.savefig(peer / f"{name}.svg")

        together()
        one_by_one()
        require_same(ours, peer)
        tasks = {"together": together, "one_by_one": one_by_one}
        measure.compare("figures", settings, tasks, unit="figures/s", units=settings.figures)


if __name__ == "__main__":
    main()
