"""The synthetic volumes with masks."""

from __future__ import annotations

import numpy as np
import SimpleITK

from benchmd_ray.demo.segmentation import LEAST, MOST, drawn_volume, write_segmentation


def test_the_same_seed_gives_the_same_volumes(tmp_path):
    one, two, other = (
        write_segmentation(tmp_path / name, source_records=2, seed=seed)["hippocampus"]
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    for name in ("imagesTr", "labelsTr"):
        held, again, else_ = (
            SimpleITK.GetArrayFromImage(
                SimpleITK.ReadImage(str(root / name / "hippocampus_001.nii.gz"))
            )
            for root in (one, two, other)
        )
        np.testing.assert_array_equal(held, again)
        assert held.shape != else_.shape or (held != else_).any()


def test_volumes_show_both_classes_and_differ_in_extents():
    drawn = [drawn_volume(number, 0) for number in range(12)]
    assert len({values.shape for values, _ in drawn}) > 6
    for values, mask in drawn:
        assert values.shape == mask.shape
        assert all(LEAST <= extent <= MOST for extent in mask.shape)
        assert set(np.unique(mask)) == {0, 1, 2}
        levels = [values[mask == label].mean() for label in (0, 2, 1)]
        assert levels == sorted(levels)
