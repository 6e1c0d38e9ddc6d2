"""MedMNIST: its cards against the paper, its official files, and synthetic ones of every task."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmd_ray.data.cards import cards, dataset_card
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.datasets import medmnist
from benchmd_ray.data.duplicates import COPIES
from benchmd_ray.data.medmnist_cards import task_name
from benchmd_ray.data.normalise import normaliser
from benchmd_ray.data.quarantine import summarised
from benchmd_ray.data.raw import Choices
from benchmd_ray.data.records import decode_signals, decode_targets
from benchmd_ray.data.verify import verify
from benchmd_ray.errors import BenchmdError

PAPER = {  # table 2: training, validation, test
    "pathmnist": (89_996, 10_004, 7_180),
    "chestmnist": (78_468, 11_219, 22_433),
    "dermamnist": (7_007, 1_003, 2_005),
    "octmnist": (97_477, 10_832, 1_000),
    "pneumoniamnist": (4_708, 524, 624),
    "retinamnist": (1_080, 120, 400),
    "breastmnist": (546, 78, 156),
    "bloodmnist": (11_959, 1_712, 3_421),
    "tissuemnist": (165_466, 23_640, 47_280),
    "organamnist": (34_581, 6_491, 17_778),
    "organcmnist": (13_000, 2_392, 8_268),
    "organsmnist": (13_940, 2_452, 8_829),
    "organmnist3d": (972, 161, 610),
    "nodulemnist3d": (1_158, 165, 310),
    "adrenalmnist3d": (1_188, 98, 298),
    "fracturemnist3d": (1_027, 103, 240),
    "vesselmnist3d": (1_335, 192, 382),
    "synapsemnist3d": (1_230, 177, 352),
}
TASKS = {  # table 2: task and number of classes or labels
    "chestmnist": ("multi-label", 14),
    "retinamnist": ("ordinal-regression", 5),
    **dict.fromkeys(("pneumoniamnist", "breastmnist"), ("binary-class", 2)),
    **dict.fromkeys(("nodulemnist3d", "adrenalmnist3d"), ("binary-class", 2)),
    **dict.fromkeys(("vesselmnist3d", "synapsemnist3d"), ("binary-class", 2)),
    "pathmnist": ("multi-class", 9),
    "dermamnist": ("multi-class", 7),
    "octmnist": ("multi-class", 4),
    "fracturemnist3d": ("multi-class", 3),
    **dict.fromkeys(("bloodmnist", "tissuemnist"), ("multi-class", 8)),
    **dict.fromkeys(
        ("organamnist", "organcmnist", "organsmnist", "organmnist3d"), ("multi-class", 11)
    ),
}
PREFIXES = {"train": "train", "validation": "val", "test": "test"}
ALLOW = {"options": {"md5": "allow"}}


def test_the_cards_are_those_of_table_2_at_all_sizes():
    held = {name: card for name, card in cards().items() if card.collection == "medmnist"}
    assert {name.partition("-")[0] for name in held} == set(PAPER)
    assert len(held) == 12 * 4 + 6 * 2
    assert all(card.evaluation_splits["clean"] == ("test",) for card in held.values())
    md5s = [layout.md5 for card in held.values() for layout in card.layouts.values() if layout.md5]
    assert len(set(md5s)) == len(md5s)
    assert all(len(md5) == 32 and set(md5) <= set("0123456789abcdef") for md5 in md5s)
    assert sum(sum(PAPER[name]) for name in PAPER if "3d" not in name) == 708_069
    assert sum(sum(PAPER[name]) for name in PAPER if "3d" in name) == 9_998


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_counts_are_those_of_the_file_that_it_used(name):
    card = dataset_card(name)
    layout = card.layouts.get("version-2", card.layouts["version-3"])
    assert tuple(layout.splits) == ("train", "validation", "test")
    assert tuple(layout.splits.values()) == PAPER[name]
    assert layout.records == sum(PAPER[name])
    assert (task_name(card.task), len(card.classes)) == TASKS[name]


def catalog_arrays(catalog: Catalog, split: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Signals, targets and record ids of a split."""
    tables = list(catalog.tables(split))
    signals = np.concatenate([decode_signals(t["signal"], catalog.signal) for t in tables])
    targets = np.concatenate([decode_targets(t["target"]) for t in tables])
    return signals, targets, [name for t in tables for name in t["record_id"].to_pylist()]


def require_same(catalog: Catalog, file: Path, **gone: int) -> None:
    """A catalog holds what numpy reads of the file, but exact copies of what is scored."""
    raw = np.load(file)
    for split, prefix in PREFIXES.items():
        images, labels = raw[f"{prefix}_images"], raw[f"{prefix}_labels"]
        signals, targets, names = catalog_arrays(catalog, split)
        channels = catalog.signal.stored_shape[0]
        assert len(images) - len(names) == gone.get(split, 0)
        rows = [int(name.rpartition("-")[2]) for name in names]
        assert names == [f"{prefix}-{row:06d}" for row in rows]
        images, labels = images[rows], labels[rows]
        np.testing.assert_array_equal(
            signals, images.transpose(0, 3, 1, 2) if channels == 3 else images[:, np.newaxis]
        )
        if catalog.task.exclusive:
            labels = np.eye(len(catalog.card.classes), dtype=int)[labels.ravel()]
        np.testing.assert_array_equal(targets, labels)


@pytest.mark.data
@pytest.mark.parametrize(("name", "copies"), [("breastmnist", 1), ("adrenalmnist3d", 0)])
def test_an_official_file_is_accepted_and_kept_to_the_byte(
    real_data, build_here, tmp_path, name, copies
):
    file = real_data / "medmnist" / f"{name}.npz"
    catalog = build_here(name, file.parent, tmp_path / "c", allow_missing=False)
    require_same(catalog, file, train=copies)
    assert (catalog.dataset, catalog.manifest["layout"]) == (name, "version-3")
    held = {split: catalog.rows(split) for split in PREFIXES}
    assert tuple((held | {"train": held["train"] + copies}).values()) == PAPER[name]
    found = verify(catalog)
    assert found.faults == ()
    assert found.notes[copies:] == (
        "no patient IDs: every record is treated as a separate patient",
    )


@pytest.mark.data
def test_an_unofficial_file_is_refused_and_marked_where_it_is_allowed(
    real_data, build_here, tmp_path
):
    file = tmp_path / "raw" / "pneumoniamnist.npz"
    file.parent.mkdir()
    held = real_data / "medmnist-unofficial" / "pneumoniamnist_content_complete.npz"
    shutil.copyfile(held, file)
    own, official = hashlib.md5(file.read_bytes()).hexdigest(), "28209eda62fecd6e6a2d98b1501bb15f"
    with pytest.raises(
        BenchmdError,
        match=rf"pneumoniamnist\.npz has the MD5 {own}, the official file {official} \(version 3\)"
        r".*zenodo\.org/records/10519652/files/pneumoniamnist\.npz.*--option md5=allow",
    ):
        build_here("pneumoniamnist", file.parent, tmp_path / "c", allow_missing=False)
    catalog = build_here(
        "pneumoniamnist", file.parent, tmp_path / "c", allow_missing=False, **ALLOW
    )
    # 29 exact copies: 21 in one split, 8 in train of images in validation
    require_same(catalog, file, train=10)
    assert catalog.manifest["excluded"] == {
        "exact copies show that its patient is in validation, too": 10
    }
    assert catalog.dataset == "pneumoniamnist-unofficial"
    assert (catalog.modality, catalog.signal.name) == ("medmnist-2d", "pneumoniamnist")
    warning = f"of an unofficial file, MD5 {own}; the official one's is {official}"
    assert catalog.manifest["warnings"] == {warning: 5856, COPIES: 19}
    assert f"5,856 records: {warning}" in verify(catalog).notes


@pytest.mark.data
def test_flat_labels_are_read_as_those_of_the_official_file(real_data, tmp_path):
    flat = real_data / "medmnist-unofficial" / "breastmnist_flatlabels.npz"
    shutil.copyfile(flat, tmp_path / "breastmnist.npz")
    card, choices = dataset_card("breastmnist"), Choices(options={"md5": "allow"})
    found = medmnist.discover(tmp_path, card, choices).items
    official = medmnist.discover(real_data / "medmnist", card, choices).items
    assert [(i.record_id, i.label, i.split) for i in found] == [
        (i.record_id, i.label, i.split) for i in official
    ]


def test_several_images_of_a_file_are_one_line():
    entries = [
        {"record": f"train-{number}", "file": "a.npz", "reason": "flat"} for number in range(12)
    ]
    entries += [{"record": "r", "file": None, "reason": "it is cut off."}]
    assert summarised(entries) == [
        "a.npz, 12 records such as train-0: flat",
        "record r: it is cut off",
    ]


@pytest.mark.parametrize(
    ("name", "row", "reason"),
    [
        ("breastmnist", 0, "every pixel is the same; expected an image"),
        ("pathmnist", [7, 9, 200], "every pixel is the same; expected an image"),
        ("adrenalmnist3d", 1, "every voxel is the same; expected a volume"),
    ],
)
def test_constant_images_of_an_unofficial_file_are_quarantined(
    write, build_here, tmp_path, name, row, reason
):
    images = arrays(name)["train_images"]
    images[4] = row
    file = write(name, train_images=images)
    catalog = build_here(name, file.parent, tmp_path / "c", max_quarantined=1.0, **ALLOW)
    assert catalog.manifest["quarantined"] == [
        {"record": "train-000004", "file": file.name, "reason": reason}
    ]
    assert summarised(catalog.manifest["quarantined"]) == [f"{file.name}: {reason}"]
    signals, _, names = catalog_arrays(catalog, "train")
    assert names == [f"train-{number:06d}" for number in range(9) if number != 4]
    others = np.delete(images, 4, axis=0)
    expected = np.moveaxis(others, -1, 1) if name == "pathmnist" else others[:, None]
    np.testing.assert_array_equal(signals, expected)


def test_constant_images_of_an_official_file_are_kept(write, build_here, tmp_path, monkeypatch):
    images = arrays("breastmnist")["train_images"]
    images[4] = 0
    file = write("breastmnist", train_images=images)
    official = dataset_card("breastmnist").layouts["version-3"].md5
    monkeypatch.setattr(medmnist, "md5", lambda path: official)
    require_same(build_here("breastmnist", file.parent, tmp_path / "c"), file)


COUNTS = {"train": 9, "val": 4, "test": 5}


def arrays(name: str) -> dict[str, np.ndarray]:
    """Random images and labels as the dataset of that name has them."""
    card, rng = dataset_card(name), np.random.default_rng(11)
    channels, *extent = card.signal.stored_shape
    shape = (*extent, channels) if channels == 3 else tuple(extent)
    made = {}
    for prefix, count in COUNTS.items():
        made[f"{prefix}_images"] = rng.integers(0, 256, (count, *shape), np.uint8)
        several = card.task.kind == "multi-label"
        size = (count, len(card.classes)) if several else (count, 1)
        made[f"{prefix}_labels"] = rng.integers(0, 2 if several else len(card.classes), size)
    return {key: value.astype(np.uint8) for key, value in made.items()}


@pytest.fixture
def write(tmp_path) -> Callable[..., Path]:
    """Writes a dataset's file with some arrays changed, or left out where they are None."""

    def make(name: str, **changes: np.ndarray | None) -> Path:
        held = {k: v for k, v in (arrays(name) | changes).items() if v is not None}
        path = tmp_path / "raw" / dataset_card(name).layouts["version-3"].pattern
        path.parent.mkdir(exist_ok=True)
        np.savez_compressed(path, **held)
        return path

    return make


@pytest.mark.parametrize(
    "name",
    "breastmnist-64 pathmnist retinamnist-128 chestmnist bloodmnist-224 fracturemnist3d "
    "synapsemnist3d-64".split(),
)
def test_files_of_every_task_shape_and_size_are_kept_to_the_byte(name, write, build_here, tmp_path):
    file = write(name)
    catalog = build_here(name, file.parent, tmp_path / "c", **ALLOW)
    require_same(catalog, file)
    found = verify(catalog)
    assert found.faults == ()
    count = dataset_card(name).layouts["version-3"].splits["train"]
    assert f"train: 9 records, the card expects {count:,}" in found.notes


def test_shards_of_one_split_go_on_in_the_file(write, build_here, tmp_path, monkeypatch):
    monkeypatch.setattr("benchmd_ray.data.build.CHUNK_BYTES", 2 * 28 * 28)  # two images
    file = write("breastmnist")
    catalog = build_here("breastmnist", file.parent, tmp_path / "c", **ALLOW)
    assert len(catalog.shards("train")) == 5
    require_same(catalog, file)


def test_a_file_with_other_images_and_the_same_labels_is_another_catalog(
    write, build_here, tmp_path
):
    file = write("breastmnist")
    build_here("breastmnist", file.parent, tmp_path / "c", **ALLOW)
    write("breastmnist", train_images=np.zeros((9, 28, 28), np.uint8))
    with pytest.raises(BenchmdError, match=r"holds a catalog of breastmnist-unofficial .* built"):
        build_here("breastmnist", file.parent, tmp_path / "c", **ALLOW)


def test_the_file_of_version_2_is_known_and_named(write, build_here, tmp_path, monkeypatch):
    file = write("organmnist3d")
    monkeypatch.setattr(medmnist, "md5", lambda path: "21f0a239e7f502e6eca33c3fc453c0b6")
    catalog = build_here("organmnist3d", file.parent, tmp_path / "c")
    assert (catalog.dataset, catalog.manifest["layout"]) == ("organmnist3d-v2", "version-2")
    assert catalog.manifest["raw"]["expected"] == 1743
    (warning,) = catalog.manifest["warnings"]
    assert "file of version 2" in warning
    assert "train: 9 records, the card expects 972" in verify(catalog).notes


def test_other_sizes_of_version_3_have_no_file_of_version_2():
    assert "version-2" not in dataset_card("organmnist3d-64").layouts
    assert "version-2" not in dataset_card("breastmnist").layouts


LABELS = np.zeros((9, 1), np.uint8)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("breastmnist", {"val_images": None}, "it holds no array val_images, but train_images"),
        ("breastmnist", {"test_labels": None}, "it holds no array test_labels"),
        (
            "breastmnist",
            {"train_labels": LABELS[:8]},
            "train_images has 9 rows and train_labels 8, expected as many",
        ),
        (
            "breastmnist",
            {"train_labels": LABELS + np.uint8([[0]] * 6 + [[2]] + [[0]] * 2)},
            "train_labels, row 6: label 2, expected 0 to 1",
        ),
        ("breastmnist", {"train_labels": np.repeat(LABELS, 2, 1)}, r"\(9, 2\), expected \(9, 1\)"),
        ("breastmnist", {"train_labels": LABELS.astype(int)}, "train_labels has the type int64"),
        ("chestmnist", {"train_labels": LABELS}, r"\(9, 1\), expected \(9, 14\)"),
        ("chestmnist", {"train_labels": LABELS[:, 0]}, r"\(9,\), expected \(9, 14\)"),
        (
            "chestmnist",
            {"test_labels": np.full((5, 14), 2, np.uint8)},
            "test_labels, row 0: label 2, expected 0 to 1",
        ),
        (
            "breastmnist-64",
            {"train_images": np.zeros((9, 28, 28), np.uint8)},
            r"train_images has the shape \(9, 28, 28\), expected \(images, 64, 64\)",
        ),
        (
            "pathmnist",
            {"train_images": np.zeros((9, 28, 28), np.uint8)},
            r"expected \(images, 28, 28, 3\)",
        ),
        (
            "nodulemnist3d",
            {"val_images": np.zeros((4, 28, 28, 28), np.float32)},
            "val_images has the type float32",
        ),
    ],
)
def test_arrays_that_are_not_as_they_must_be_are_told(
    write, build_here, tmp_path, name, changes, message
):
    file = write(name, **changes)
    with pytest.raises(BenchmdError, match=rf"{file.name}: .*{message}.*Fetch it from https://zen"):
        build_here(name, file.parent, tmp_path / "c", **ALLOW)


def test_a_folder_without_the_file_says_what_to_fetch(build_here, tmp_path):
    with pytest.raises(
        BenchmdError, match=r"vesselmnist3d_64\.npz is missing.*files/vesselmnist3d_64\.npz"
    ):
        build_here("vesselmnist3d-64", tmp_path, tmp_path / "c")


def test_less_than_the_whole_is_refused_unless_allowed(write, build_here, tmp_path):
    file = write("breastmnist")
    with pytest.raises(BenchmdError, match=r"18 records of breastmnist, the card expects 780"):
        build_here("breastmnist", file.parent, tmp_path / "c", allow_missing=False, **ALLOW)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("pathmnist", [-1.0, 1.0, 2 * 51 / 255 - 1]), ("adrenalmnist3d", [0.0, 1.0, 51 / 255])],
)
def test_grey_levels_are_mapped_as_the_baselines_do(name, expected):
    kind = dataset_card(name).signal
    levels = torch.tensor([0, 255, 51], dtype=torch.uint8)
    signals = levels.reshape(3, *[1] * len(kind.stored_shape)).expand(3, *kind.stored_shape)
    found = normaliser(kind, None)(signals, torch.ones(3), torch.ones(3, 2))
    assert found.shape == (3, *kind.input_shape)
    torch.testing.assert_close(found.flatten(1).amin(1), torch.tensor(expected))
    torch.testing.assert_close(found.flatten(1).amax(1), torch.tensor(expected))
