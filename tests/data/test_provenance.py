"""What a catalog says its records are: all that there are, a sample, unofficial or synthetic."""

import dataclasses

import pytest
from in_process import build_in_process
from test_build import LAYOUTS, OPTIONS, films, raw  # noqa: F401  (fixtures)

from benchmd_ray.data.build import build
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.provenance import (
    PROVENANCES,
    mark_synthetic,
    provenance_of,
    together,
)
from benchmd_ray.demo.segmentation import write_segmentation
from benchmd_ray.errors import BenchmdError
from benchmd_ray.service.demo import catalogs_of


@pytest.mark.parametrize(
    ("records", "mark", "part", "expected"),
    [
        (6, "", False, "whole"),
        (7, "", False, "whole"),
        (5, "", False, "sample"),
        (6, "", True, "sample"),
        (5, "unofficial", False, "unofficial"),
    ],
)
def test_records_are_counted_and_layouts_are_marked(tmp_path, records, mark, part, expected):
    assert provenance_of(tmp_path, records, 6, mark=mark, part=part) == expected
    mark_synthetic(tmp_path)
    assert provenance_of(tmp_path, records, 6, mark=mark, part=part) == "synthetic"


@pytest.mark.parametrize("name", ["nih-cxr-ap", "nih-cxr-pa"])
def test_the_layout_of_a_sample_is_a_part_of_its_dataset(name):
    layouts = dataset_card(name).layouts
    assert [each for each, layout in layouts.items() if layout.part] == ["sample"]
    assert layouts["sample"].records < layouts["official"].records


def test_a_result_is_as_weak_as_the_weakest_of_its_datasets():
    for place, weaker in enumerate(PROVENANCES):
        for stronger in PROVENANCES[: place + 1]:
            assert together(stronger, weaker) == together(weaker, stronger) == weaker
        assert together("", weaker) == weaker  # a published result says nothing of its data
    assert together("", "") == ""


def test_a_catalog_says_it(films, raw, tmp_path, changed_card):  # noqa: F811
    assert build("films", raw, tmp_path / "whole").provenance == "whole"
    more = {"films": dataclasses.replace(LAYOUTS["films"], records=60)}
    changed_card("films", modality="cxr", layouts=more, options=OPTIONS)
    assert build("films", raw, tmp_path / "some", allow_missing=True).provenance == "sample"


def test_synthetic_records_make_another_catalog(films, raw, tmp_path):  # noqa: F811
    first = build("films", raw, tmp_path / "out")
    mark_synthetic(raw)
    with pytest.raises(BenchmdError, match="built from other raw files"):
        build("films", raw, tmp_path / "out")
    second = build("films", raw, tmp_path / "other")
    assert second.provenance == "synthetic"
    assert second.digest != first.digest


@pytest.mark.slow
def test_what_the_demo_draws_is_marked(tmp_path, monkeypatch):
    build_in_process(monkeypatch)
    made = catalogs_of("derm", tmp_path, lambda line: None, sizes={"source_records": 12})
    assert len(made) > 1
    assert {catalog.provenance for catalog in made} == {"synthetic"}
    for folder in write_segmentation(tmp_path, source_records=1).values():
        assert provenance_of(folder, 1, 1, mark="", part=False) == "synthetic"
