"""Comparing score runs: what their manifests say, and pictures of their masks."""

from dataclasses import replace

import numpy as np
import pytest
import SimpleITK
from touchstone_scores import algorithm

from benchmd_ray.benchmarks.touchstone.cases import Manifest, write_scored
from benchmd_ray.benchmarks.touchstone.comparing import compare
from benchmd_ray.benchmarks.touchstone.report_slices import draw_slices
from benchmd_ray.benchmarks.touchstone.scored import read_image, read_scores
from benchmd_ray.benchmarks.touchstone.tasks import task_named
from benchmd_ray.errors import BenchmdError
from benchmd_ray.results.report.figures_parts import Skipped, Titled

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
        task="hippocampus",
        algorithm=name,
        classes=TASK.classes,
        tolerance=dict.fromkeys(TASK.classes, 1.0),
        scorer="1",
        identity="1",
        predictions=str(folder / name),
        labels=str(folder / "labels"),
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
        ({"task": "spleen"}, "are of two tasks, hippocampus and spleen"),
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


@pytest.mark.parametrize("turned", [False, True])
def test_worst_cases_are_drawn_the_way_the_patient_lies(tmp_path, turned):
    scores = read_scores([run(tmp_path, "far", moved=3, turned=turned)])
    masks = scores.by_name["far"].masks("s0000", "anterior")
    assert masks.spacing == SPACING
    np.testing.assert_array_equal(masks.reference, box(1) == 1)
    np.testing.assert_array_equal(masks.prediction, box(1, moved=3) == 1)
    image = np.arange(np.prod(SHAPE), dtype=np.int16).reshape(SHAPE)
    write_volume(tmp_path / "images" / "s0000.nii.gz", image, turned)
    np.testing.assert_array_equal(read_image(tmp_path / "images", "s0000"), image)
    assert read_image(tmp_path / "images", "s0001") is None
    drawn = list(draw_slices(compare(scores, resamples=10), lambda case: image.astype(float)))
    assert [type(each) for each in drawn] == [Titled, Titled]
    assert drawn[0].title == "Worst cases of anterior: DSC from 40 % (s0000)"


def test_files_that_were_changed_after_scoring_are_not_drawn(tmp_path):
    scores = read_scores([run(tmp_path, "far", moved=3)])
    write_volume(tmp_path / "far" / "s0000.nii.gz", np.ones(SHAPE, np.uint8))
    drawn = list(draw_slices(compare(scores, resamples=10)))
    assert all(isinstance(each, Skipped) for each in drawn)
    assert "is not what was scored" in drawn[0].reason
