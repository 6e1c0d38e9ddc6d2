"""Fixtures for the tests of results."""

from __future__ import annotations

from pathlib import Path

import pytest
from stored import runs
from stores import make_report_store

from benchmd_ray.results.report.analysis import Analysis, analyse


@pytest.fixture(scope="session")
def report_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of hand-made runs of two modalities with predictions, not to be changed."""
    return make_report_store(tmp_path_factory.mktemp("report") / "runs")


@pytest.fixture(scope="session")
def report_analysis(report_store: Path) -> Analysis:
    """The analysis of `report_store`."""
    return analyse(runs([report_store]), resamples=100)
