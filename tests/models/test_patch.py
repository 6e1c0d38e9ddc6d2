import itertools
import math

import pytest
import torch

from benchmd_ray.models.patch import patchify


def slow_patchify(signals, patch):
    """Slow reference: every patch cut out by its own slices, in C order of its position."""
    space = signals.shape[2:]
    places = itertools.product(*(range(0, s, p) for s, p in zip(space, patch, strict=True)))
    cut = []
    for place in places:
        window = tuple(slice(a, a + p) for a, p in zip(place, patch, strict=True))
        cut.append(torch.stack([signal[(slice(None), *window)].flatten() for signal in signals]))
    return torch.stack(cut, dim=1)


@pytest.mark.parametrize(
    ("shape", "patch"),
    [
        ((2, 12, 50), (25,)),
        ((3, 2, 12), (1,)),
        ((1, 5, 7), (7,)),
        ((2, 3, 8, 12), (4, 3)),
        ((2, 1, 6, 6), (2, 6)),
        ((2, 1, 4, 6, 8), (4, 3, 2)),
        ((1, 2, 4, 4, 4), (2, 2, 2)),
    ],
)
def test_agrees_with_cutting_each_patch(shape, patch):
    signals = torch.arange(math.prod(shape)).reshape(shape)
    assert torch.equal(patchify(signals, patch), slow_patchify(signals, patch))


def test_a_patch_holds_one_channel_after_the_other():
    signals = torch.tensor([[[1, 2, 3, 4], [5, 6, 7, 8]]])
    assert patchify(signals, (2,)).tolist() == [[[1, 2, 5, 6], [3, 4, 7, 8]]]


def test_every_value_is_in_one_patch():
    signals = torch.arange(2 * 3 * 8 * 8).reshape(2, 3, 8, 8)
    patches = patchify(signals, (4, 4))
    assert patches.shape == (2, 4, 48)
    for example, cut in zip(signals, patches, strict=True):
        assert sorted(cut.flatten().tolist()) == sorted(example.flatten().tolist())


@pytest.mark.parametrize(
    ("shape", "patch"),
    [
        ((1, 12, 51), (25,)),
        ((1, 12, 10), (25,)),
        ((1, 3, 224, 220), (16, 16)),
        ((1, 3, 224, 224), (16,)),
        ((1, 3, 224), (16, 16)),
        ((1, 1, 23, 32, 32), (24, 16, 16)),
    ],
)
def test_an_extent_that_does_not_fit_is_refused(shape, patch):
    with pytest.raises(ValueError, match=r"cannot be cut into patches .* multiples"):
        patchify(torch.zeros(shape), patch)
