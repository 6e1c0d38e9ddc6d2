"""Surface Dice and Hausdorff distance against slow formulas, closed forms and MONAI."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from benchmd_ray.scores import surfaces
from benchmd_ray.scores.surfaces import areas, codes, distances, surface

SPACINGS = [(1.0, 1.0, 1.0), (0.7, 0.8, 5.0), (3.0, 1.0, 2.0)]


def ball(shape, centre, radius, spacing=(1, 1, 1)):
    grid = np.indices(shape)
    away = [(g - c) * s for g, c, s in zip(grid, centre, spacing, strict=True)]
    return np.sqrt(sum(a**2 for a in away)) <= radius


def noise(seed, shape=(7, 6, 8), share=0.4):
    return np.random.default_rng(seed).random(shape) < share


def measured(reference, prediction, spacing):
    return distances(surface(reference, spacing), surface(prediction, spacing), spacing)


def triangles_of_one_corner(spacing):
    """mm² of the triangle through the middles of a voxel's three edges, by Heron's formula."""
    halves = np.diag(np.array(spacing) / 2)
    a, b, c = (np.linalg.norm(halves[i] - halves[j]) for i, j in ((0, 1), (1, 2), (0, 2)))
    s = (a + b + c) / 2
    return math.sqrt(s * (s - a) * (s - b) * (s - c))


@pytest.mark.parametrize("spacing", SPACINGS)
def test_a_single_voxel_has_eight_corners(spacing):
    own = surface(np.ones((1, 1, 1), bool), spacing)
    assert len(own.areas) == 8
    assert own.areas.sum() == pytest.approx(8 * triangles_of_one_corner(spacing))


@pytest.mark.parametrize("spacing", SPACINGS)
def test_a_flat_face_has_the_area_of_its_voxels(spacing):
    table = areas(spacing)
    flat = np.zeros((4, 4, 4), bool)
    for axis in range(3):
        half = flat.copy()
        half[(slice(None),) * axis + (slice(0, 2),)] = True
        across = math.prod(spacing) / spacing[axis]
        assert table[codes(half)[2, 2, 2]] == pytest.approx(across)


@pytest.mark.parametrize("spacing", SPACINGS)
def test_areas_are_those_of_the_triangles_of_monai(spacing):
    from monai.metrics.utils import get_code_to_measure_table

    theirs, kernel = get_code_to_measure_table(spacing)
    kernel = kernel.numpy().reshape(-1).astype(int)
    own = areas(spacing)
    for inside in itertools.product((0, 1), repeat=8):
        cube = np.array(inside).reshape(2, 2, 2)
        code = sum(int(cube[i, j, k]) << (i + 2 * j + 4 * k) for i, j, k in np.ndindex(2, 2, 2))
        assert own[code] == pytest.approx(float(theirs[int(cube.reshape(-1) @ kernel)]), abs=1e-5)


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("dense", [0.0, 1.0])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_distances_are_those_of_all_pairs(seed, dense, spacing, monkeypatch):
    monkeypatch.setattr(surfaces, "DENSE", dense)
    first = surface(noise(seed, share=0.05), spacing)
    second = surface(noise(seed + 9, share=0.05), spacing)
    found = distances(first, second, spacing)
    pairs = cdist(first.cells * np.array(spacing), second.cells * np.array(spacing))
    np.testing.assert_allclose(found.reference, pairs.min(axis=1), atol=1e-12)
    np.testing.assert_allclose(found.prediction, pairs.min(axis=0), atol=1e-12)


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("tolerance", [0.5, 1.0, 2.0])
def test_surface_dice_is_that_of_monai(spacing, tolerance):
    from monai.metrics import compute_surface_dice

    for first, second in (
        (noise(0), noise(1)),
        (ball((20, 18, 22), (9, 9, 9), 6), ball((20, 18, 22), (11, 9, 10), 5)),
    ):
        given = [torch.from_numpy(each)[None, None].float() for each in (second, first)]
        theirs = compute_surface_dice(
            *given, [tolerance], True, spacing=spacing, use_subvoxels=True
        )
        own = measured(first, second, spacing).surface_dice(tolerance)
        assert own == pytest.approx(float(theirs), abs=1e-4)


@pytest.mark.parametrize("dense", [0.0, 1.0])
@pytest.mark.parametrize(("step", "tolerance", "unit"), [(0.6, 3, 0.2), (0.1, 0.3, 0.1)])
def test_a_tolerance_of_whole_steps_holds_wherever_the_organ_is(
    step, tolerance, unit, dense, monkeypatch
):
    monkeypatch.setattr(surfaces, "DENSE", dense)
    whole = round(step / unit)  # in these units all lengths are whole numbers, and sums exact
    for length in range(10, 100):
        first, second = np.zeros((length + 12, 5, 5), bool), np.zeros((length + 12, 5, 5), bool)
        first[1 : length + 1, 1:4, 1:4] = True
        shift = round(tolerance / step)
        second[1 + shift : length + 1 + shift, 1:4, 1:4] = True
        found = measured(first, second, (step, step, step)).surface_dice(tolerance)
        exact = measured(first, second, (whole,) * 3).surface_dice(round(tolerance / unit))
        assert found == pytest.approx(exact)
        assert exact == 1.0


def slow_percentile(values, weights, share):
    """The least distance within which so large a share of the area is."""
    for value in sorted(values):
        if weights[values <= value].sum() >= share * weights.sum() - 1e-9:
            return value
    return None


@pytest.mark.parametrize("spacing", SPACINGS)
def test_hausdorff_is_a_percentile_of_area_in_each_direction(spacing):
    shape = (16, 18, 17)
    found = measured(ball(shape, (7, 8, 8), 5), ball(shape, (8, 9, 6), 6), spacing)
    expected = max(
        slow_percentile(found.reference, found.reference_areas, 0.95),
        slow_percentile(found.prediction, found.prediction_areas, 0.95),
    )
    assert found.hausdorff(95) == pytest.approx(expected)
    assert found.hausdorff(100) == max(found.reference.max(), found.prediction.max())


def test_balls_that_are_shifted_score_as_measured_elsewhere():
    shape = (40, 40, 40)
    found = measured(ball(shape, (18, 20, 20), 10), ball(shape, (20, 20, 20), 10), (1, 1, 1))
    assert found.surface_dice(1.0) == pytest.approx(0.789, abs=5e-4)


def test_two_voxels_next_to_each_other_share_half_of_their_surface():
    first, second = np.zeros((1, 1, 4), bool), np.zeros((1, 1, 4), bool)
    first[..., 1] = second[..., 2] = True
    assert measured(first, second, (1, 1, 1)).surface_dice(0.5) == pytest.approx(0.5)


def test_scores_do_not_depend_on_which_side_is_which():
    first, second = noise(3), noise(4)
    one, other = (measured(*pair, (1, 2, 3)) for pair in ((first, second), (second, first)))
    assert one.surface_dice(1) == pytest.approx(other.surface_dice(1))
    assert one.hausdorff(95) == other.hausdorff(95)


def test_a_mask_at_the_border_of_the_volume_is_closed_there():
    inside, border = np.zeros((6, 6, 6), bool), np.ones((2, 2, 2), bool)
    inside[2:4, 2:4, 2:4] = True
    own, other = surface(inside, (1, 1, 1)), surface(border, (1, 1, 1), (2, 2, 2))
    assert own.areas.sum() == other.areas.sum()
    np.testing.assert_array_equal(own.cells, other.cells)
