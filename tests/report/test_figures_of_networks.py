"""Figures of a search over networks, whose names are long and trials short."""

from itertools import pairwise

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

from benchmd_ray.models.resnet import RESNETS
from benchmd_ray.report.figures_settings import _setting_axis
from benchmd_ray.report.figures_tuning import _single

THREE = [name for name in RESNETS if "-" in name]


@pytest.mark.parametrize("names", [["transformer", "resnet18", "resnet50"], THREE])
def test_names_below_a_panel_do_not_lie_on_each_other(names):
    figure = Figure(figsize=(3.0, 2.0), layout="constrained", dpi=100)
    axes = figure.add_subplot()
    _setting_axis(axes, np.zeros(1), {"kind": "choice"}, names)
    figure.canvas.draw()
    labels = axes.get_xticklabels()
    assert [label.get_text() for label in labels] == names
    boxes = [label.get_window_extent() for label in labels]
    if labels[0].get_rotation() == 0:
        assert all(a.x1 < b.x0 for a, b in pairwise(boxes))
    else:  # slanted lines of one length: their ends are further apart than a line is high
        high = mpl.rcParams["font.size"] * figure.dpi / 72
        ends = np.diff([box.x1 for box in boxes]) * np.sin(np.pi / 6)
        assert len(names) > 3
        assert ends.min() > high / 2


def test_a_single_epoch_is_seen():
    assert _single((1,)) == "."
    assert _single((1, 2)) == ""
