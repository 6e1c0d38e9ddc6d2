"""Comparing score runs: what their manifests say, and pictures of their masks."""

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
import SimpleITK
from touchstone_scores import algorithm

from benchmd_ray.benchmarks.touchstone.cases import Manifest, read_manifest, write_scored
from benchmd_ray.benchmarks.touchstone.comparing import compare
from benchmd_ray.benchmarks.touchstone.report_slices import draw_slices
from benchmd_ray.benchmarks.touchstone.scored import read_scores
from benchmd_ray.benchmarks.touchstone.tasks import task_named
from benchmd_ray.errors import BenchmdError
from benchmd_ray.report.figures_parts import Skipped, Titled

TASK = task_named("hippocampus")
SHAPE, SPACING = (6, 12, 14), (3.0, 1.5, 1.0)
"""z, y, x."""


def write_volume(path, values, turned=False):
    """A NIfTI file; turned: its axes go to the patient's right and front, as many files' do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = SimpleITK.GetImageFromArray(values[:, ::-1, ::-1].copy() if turned else values)
    image.SetSpacing(SPACING[::-1])
    if turned:
        image.SetDirection((-1, 0, 0, 0, -1, 0, 0, 0, 1))
        _, y, x = SHAPE
        image.SetOrigin(((x - 1) * SPACING[2], (y - 1) * SPACING[1], 0))
    SimpleITK.WriteImage(image, str(path))


def box(label, *, moved=0):
    values = np.zeros(SHAPE, np.uint8)
    values[2:4, 3:6, 4 + moved : 9 + moved] = label
    return values


def run(folder, name, *, moved=0, turned=False, **changes):
    """A score run of one case with both classes, as `benchmd segment score` leaves it."""
    reference, predicted = box(1), box(1, moved=moved)
    reference[5, 8:10, 1:4] = predicted[5, 8:10, 1:4] = 2
    write_volume(folder / "labels" / "s0000.nii.gz", reference, turned)
    write_volume(folder / name / "s0000.nii.gz", predicted, turned)
    ml = np.prod(SPACING) / 1000
    both = [(reference == c).sum() * ml for c in (1, 2)]
    rows = algorithm(
        name,
        [[2 * (5 - moved) / 10, 1.0]],
        classes=TASK.classes,
        tolerance=1.0,
        nsd=[0.5, 1.0],
        code="both",
        volume_ref_ml=both,
        volume_pred_ml=both,
    ).rows
    manifest = Manifest(
        task=TASK,
        algorithm=name,
        tolerance=dict.fromkeys(TASK.classes, 1.0),
        scorer="1",
        predictions=str(folder / name),
        labels=str(folder / "labels"),
        layouts=("", ""),
        resample=False,
        scores="",
    )
    write_scored(folder / f"run-{name}", rows.to_dict("records"), replace(manifest, **changes))
    return folder / f"run-{name}"


def test_runs_are_compared_under_their_algorithms_names(tmp_path):
    runs = [run(tmp_path, "near", moved=1), run(tmp_path, "far", moved=3, quarantined=2)]
    scores = read_scores(runs)
    assert scores.algorithms == ("near", "far")
    assert scores.metrics == ("dsc", "nsd")
    assert scores.title("nsd") == "NSD@1mm"
    one = compare(scores, resamples=10)
    assert one.order == ["near", "far"]
    assert any("far: 2 cases quarantined" in note for note in one.notes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scorer": "2"}, "were scored by two versions of the scorer"),
        ({"task": replace(TASK, name="spleen")}, "are of two tasks, hippocampus and spleen"),
        ({"algorithm": "one"}, "have one display name, one"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(tmp_path, changes, message):
    runs = [run(tmp_path, "one"), run(tmp_path, "two", **changes)]
    with pytest.raises(BenchmdError, match=message):
        read_scores(runs)


def test_an_unfinished_run_is_refused(tmp_path):
    with pytest.raises(BenchmdError, match="is not a finished score run"):
        read_scores([tmp_path])


def spans(mask):
    """First and last row and column."""
    return [tuple(np.flatnonzero(mask.any(axis=axis))[[0, -1]].tolist()) for axis in (1, 0)]


@pytest.mark.parametrize("turned", [False, True])
def test_worst_cases_are_drawn_the_way_the_patient_lies(tmp_path, turned):
    scores = read_scores([run(tmp_path, "far", moved=3, turned=turned)])
    image = np.arange(np.prod(SHAPE), dtype=np.int16).reshape(SHAPE)
    path = tmp_path / "images" / "s0000.nii.gz"
    write_volume(path, image, turned)
    planes = scores.by_name["far"].planes("s0000", "anterior", path)
    axial, coronal, sagittal = planes.views  # the margin takes in the whole small volume
    assert [view.steps for view in planes.views] == [(1.5, 1.0), (3.0, 1.0), (3.0, 1.5)]
    for plane, mask, own in (
        (axial, box(1)[2], image[2]),
        (coronal, box(1)[:, 4], image[:, 4]),
        (sagittal, box(1)[:, :, 6], image[:, :, 6]),
    ):
        np.testing.assert_array_equal(plane.reference, mask == 1)
        np.testing.assert_array_equal(plane.image, own)
    assert spans(axial.prediction) == [(3, 5), (7, 11)]
    drawn = list(draw_slices(compare(scores, resamples=10), {"s0000": path}))
    assert [type(each) for each in drawn] == [Titled, Titled]
    assert drawn[0].title == "Worst cases of anterior: DSC from 40 % (s0000)"


def test_a_picture_goes_without_an_image_that_cannot_be_read_and_says_so(tmp_path):
    scores = read_scores([run(tmp_path, "far", moved=3)])
    (tmp_path / "broken.nii.gz").write_bytes(b"no image")
    drawn = list(draw_slices(compare(scores, resamples=10), {"s0000": tmp_path / "broken.nii.gz"}))
    reasons = [each.reason for each in drawn if isinstance(each, Skipped)]
    assert len([each for each in drawn if isinstance(each, Titled)]) == 2
    assert "s0000: no image, s0000 cannot be drawn: broken.nii.gz" in reasons[0]


def test_files_that_were_changed_after_scoring_are_not_drawn(tmp_path):
    scores = read_scores([run(tmp_path, "far", moved=3)])
    write_volume(tmp_path / "far" / "s0000.nii.gz", np.ones(SHAPE, np.uint8))
    drawn = list(draw_slices(compare(scores, resamples=10), {}))
    assert all(isinstance(each, Skipped) for each in drawn)
    assert "are not what was scored" in drawn[0].reason


def test_runs_against_two_references_are_refused(tmp_path):
    runs = [run(tmp_path, "one"), run(tmp_path, "two")]
    table = pq.read_table(runs[1] / "scores.parquet").to_pandas()
    table["volume_ref_ml"] *= 1.01
    manifest = read_manifest(runs[1])
    write_scored(runs[1], table.to_dict("records"), manifest)
    with pytest.raises(BenchmdError, match="were scored against two references: anterior of s0000"):
        read_scores(runs)
