"""One joint histogram against counting class by class, and the four states of presence."""

import math

import numpy as np
import pytest

from benchmd_ray.scores.dice import BOTH, PREDICTED, dice
from benchmd_ray.scores.segmentation import Masks, of_labels, scored, voxels


def of(labels, classes=3):
    return of_labels(np.asarray(labels), {n + 1: n for n in range(classes)}, classes)


def drawn(seed, shape=(5, 7, 6), classes=3):
    return np.random.default_rng(seed).integers(0, classes + 1, shape).astype(np.uint8)


def test_dice_is_that_of_each_class_by_itself():
    first, second = drawn(0), drawn(1)
    found = dice(voxels(of(first), of(second)))
    for number in range(3):
        a, b = first == number + 1, second == number + 1
        assert found[number] == pytest.approx(2 * (a & b).sum() / (a.sum() + b.sum()))


def test_pairs_of_many_classes_do_not_wrap_around():
    labels = np.arange(1, 201, dtype=np.uint8).reshape(2, 10, 10)
    own = of_labels(labels, {n: n - 1 for n in range(1, 201)}, 200)
    counts = voxels(own, own)
    assert counts.tolist() == [[1, 1, 1]] * 200
    assert dice(counts).tolist() == [1.0] * 200


def test_more_than_255_kinds_are_told_apart():
    labels = np.arange(1, 301, dtype=np.uint16).reshape(3, 10, 10)
    own = of_labels(labels, {n: n - 1 for n in range(1, 301)}, 300)
    assert voxels(own, own).tolist() == [[1, 1, 1]] * 300


def test_overlapping_masks_are_scored_each_from_its_own():
    random = np.random.default_rng(2)
    masks = [random.random((6, 5, 7)) < 0.5 for _ in range(9)]
    made = Masks((6, 5, 7), 9)
    for number, mask in enumerate(masks):
        made.add(number, mask)
    own = made.segmentation()
    assert own.overlapping == int((np.sum(masks, axis=0) > 1).sum())
    reference = of(drawn(3, (6, 5, 7), 9), 9)
    counts = voxels(reference, own)
    box = (slice(None),) * 3
    for number, mask in enumerate(masks):
        np.testing.assert_array_equal(own.mask(number, box), mask)
        assert counts[number, PREDICTED] == mask.sum()
        assert counts[number, BOTH] == (mask & reference.mask(number, box)).sum()


def test_boxes_are_the_smallest():
    labels = np.zeros((8, 9, 10), np.uint8)
    labels[2:5, 3, 4:9] = 1
    labels[7, 8, 0] = 3
    found = of(labels).boxes()
    assert found[0] == (slice(2, 5), slice(3, 4), slice(4, 9))
    assert found[1] is None
    assert found[2] == (slice(7, 8), slice(8, 9), slice(0, 1))
    assert of(np.zeros((2, 2, 2), np.uint8)).boxes() == [None] * 3


def test_sides_of_other_shapes_are_not_compared():
    with pytest.raises(ValueError, match="different shapes"):
        voxels(of(np.zeros((2, 3, 4), np.uint8)), of(np.zeros((4, 3, 2), np.uint8)))


def test_presence_has_four_states():
    reference, prediction = np.zeros((6, 6, 6), np.uint8), np.zeros((6, 6, 6), np.uint8)
    reference[:2, :2, :2], prediction[:2, :2, :1] = 1, 1  # both
    reference[4, 4, 4] = 2  # missed
    prediction[5, 5, 3:] = 3  # spurious
    both, missed, spurious, absent = scored(
        of(reference, 4), of(prediction, 4), (2.0, 1.0, 1.0), [1.0] * 4
    )
    assert [each.code for each in (both, missed, spurious, absent)] == [
        *("both", "missed", "spurious", "absent")
    ]
    assert both.dsc == pytest.approx(2 * 4 / (8 + 4))
    assert (missed.dsc, missed.nsd, missed.hd95) == (0.0, 0.0, math.inf)
    assert spurious.volume_pred_ml == pytest.approx(3 * 2 / 1000)
    for each in (spurious, absent):
        assert all(map(math.isnan, (each.dsc, each.nsd, each.hd95)))


def test_one_perfect_voxel_has_a_dice_of_1():
    """Without smoothing: an added 1 would make it 2/3."""
    one = np.zeros((3, 3, 3), np.uint8)
    one[1, 1, 1] = 1
    assert scored(of(one, 1), of(one, 1), (1, 1, 1), [1.0])[0].dsc == 1.0


def test_neither_score_follows_from_the_other():
    """Voxels of a chequered pair never overlap, and their surfaces are within a tolerance."""
    reference = np.indices((6, 6, 6)).sum(axis=0) % 2 == 0
    apart = scored(
        of(reference.astype(np.uint8), 1), of((~reference).astype(np.uint8), 1), (1, 1, 1), [2.0]
    )[0]
    assert apart.dsc == 0.0
    assert apart.nsd == 1.0
    plate, solid = np.zeros((30, 30, 30), np.uint8), np.ones((30, 30, 30), np.uint8)
    plate[14:16, 14:16, 14:16] = 1
    thin = scored(of(plate, 1), of(solid, 1), (1, 1, 1), [1.0])[0]
    assert thin.dsc > 0
    assert thin.nsd == 0.0
