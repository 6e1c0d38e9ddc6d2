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

APART = 0.1
"""Mean difference of two pictures of the same where either is not white, at most; black and white
are 1 apart."""


def made(count: int, seed: int) -> list[tuple[str, Figure]]:
    """Figures of three panels with twenty bars each, new ones: a figure is laid out only once."""
    draws, found = np.random.default_rng(seed), []
    with styled():
        for number in range(count):
            figure = new_figure(f"Figure {number} of {count}", 4.0)
            for place, axes in enumerate(figure.subplots(1, 3)):
                values = draws.random(20)
                axes.bar(np.arange(20), values, yerr=values / 10, label="made", **look(place))
                axes.set_title(f"Panel {place}")
                axes.legend()
            found.append((f"figure-{number}", figure))
    return found


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    options = measure.parser(__doc__)
    options.add_argument("--figures", type=int, default=12, help="of the report (12)")
    options.set_defaults(repetitions=3, warm_up=0)  # the comparison of the pictures runs both
    chosen = measure.parsed(options, arguments)
    if chosen.figures < 1:
        options.error("--figures has to be 1 or more")
    with tempfile.TemporaryDirectory() as folder:
        ours, peer = Path(folder, "ours"), Path(folder, "peer")

        def together() -> None:
            ours.mkdir(exist_ok=True)
            write_all(made(chosen.figures, chosen.seed), ours, lambda count: None)

        def one_by_one() -> None:
            peer.mkdir(exist_ok=True)
            for name, figure in made(chosen.figures, chosen.seed):
                with styled():
                    figure.savefig(peer / f"{name}.png", dpi=DPI, metadata={"Software": None})
                    figure.savefig(peer / f"{name}.svg")

        together()
        one_by_one()
        for path in sorted(peer.glob("*.png")):
            one, other = (imread(each)[..., :3] for each in (path, ours / path.name))
            inked = (one < 1).any(axis=-1) | (other < 1).any(axis=-1)
            apart = np.abs(one - other)[inked].mean()
            if apart > APART:
                raise AssertionError(f"{path.name} is not the same picture, by {apart:.3g} of 1")
        seconds = measure.alternating(
            {"together": together, "one_by_one": one_by_one},
            repetitions=chosen.repetitions,
            warm_up=chosen.warm_up,
        )
    measure.report(
        "figures",
        chosen,
        seconds,
        units=chosen.figures,
        unit="figures/s",
        ours="together",
        peer="one_by_one",
    )


if __name__ == "__main__":
    main()
