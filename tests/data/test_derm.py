"""Dermoscopy datasets: what their tables say, against an independent reading of them."""

from __future__ import annotations

import csv
import random
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.datasets import DATASETS
from benchmd_ray.data.datasets.bcn20000 import of_ham10000
from benchmd_ray.data.datasets.photographs import Photograph, by_class
from benchmd_ray.data.raw import Choices, Discovery
from benchmd_ray.data.records import RecordError, hashed_patient
from benchmd_ray.data.synthetic.derm import write_derm
from benchmd_ray.data.verify import verify
from benchmd_ray.errors import BenchmdError

NAMES = ("bcn20000", "ham10000", "pad-ufes-20")
RELEASED = Choices("released")
CLASS_OF = {
    "bcn20000": {"MEL": "mel", "NV": "nev", "BCC": "bcc", "AK": "akiec", "SCC": "akiec",
                 "BKL": "other", "DF": "other", "VASC": "other"},
    "ham10000": {"mel": "mel", "nv": "nev", "bcc": "bcc", "akiec": "akiec", "bkl": "other",
                 "df": "other", "vasc": "other"},
    "pad-ufes-20": {"MEL": "mel", "NEV": "nev", "BCC": "bcc", "ACK": "akiec", "SCC": "akiec",
                    "SEK": "other"},
}  # fmt: skip
PUBLISHED = {  # images of each label, as the owners state them
    "bcn20000": {"MEL": 4522, "NV": 12875, "BCC": 3323, "AK": 867, "SCC": 628, "BKL": 2624,
                 "DF": 239, "VASC": 253},
    "ham10000": {"mel": 1113, "nv": 6705, "bcc": 514, "akiec": 327, "bkl": 1099, "df": 115,
                 "vasc": 142},
    "pad-ufes-20": {"MEL": 52, "NEV": 244, "BCC": 845, "ACK": 730, "SCC": 192, "SEK": 235},
}  # fmt: skip


@pytest.fixture(scope="module")
def raw(tmp_path_factory) -> dict[str, Path]:
    """Raw folders, not to be changed."""
    return write_derm(tmp_path_factory.mktemp("derm"), source_records=120, target_records=36)


@pytest.fixture
def copied(raw, tmp_path):
    """A raw folder to be changed."""

    def copy(name: str) -> Path:
        shutil.copytree(raw[name], tmp_path / name)
        return tmp_path / name

    return copy


def discover(name: str, root: Path, choices: Choices | None = None) -> Discovery:
    return DATASETS[name].discover(root, dataset_card(name), choices or Choices())


def edit(path: Path, change) -> None:
    """Rewrite a table after a change of its rows, a list of dictionaries."""
    rows = pd.read_csv(path, dtype=str, keep_default_na=False).to_dict("records")
    change(rows)
    pd.DataFrame(rows).to_csv(path, index=False)


def isic_2019(root: Path) -> pd.DataFrame:
    truth = pd.read_csv(root / "ISIC_2019_Training_GroundTruth.csv", index_col="image")
    people = pd.read_csv(
        root / "ISIC_2019_Training_Metadata.csv", index_col="image", keep_default_na=False
    )
    return people.assign(label=truth.idxmax(axis=1))


# BCN20000


def test_bcn20000_labels_groups_and_people_are_those_of_the_tables(raw):
    table = isic_2019(raw["bcn20000"])
    found = discover("bcn20000", raw["bcn20000"])
    assert (found.layout, found.missing, found.grouped_by) == ("isic-2019", [], "lesion")
    kept = table[~table["lesion_id"].str.startswith("HAM_") & (table["label"] != "UNK")]
    assert [item.record_id for item in found.items] == list(kept.index)
    for item in found.items:
        row = kept.loc[item.record_id]
        assert item.label == CLASS_OF["bcn20000"][row["label"]]
        lesion = row["lesion_id"] or item.record_id
        assert item.group_id == hashed_patient("bcn20000", lesion)
        assert item.path == f"ISIC_2019_Training_Input/{item.record_id}.jpg"
        assert item.metadata == {
            "age": float(row["age_approx"]) if row["age_approx"] else None,
            "sex": row["sex"] or None,
            "site": row["lesion_id"].split("_")[0] or None,
        }
    assert {item.metadata["site"] for item in found.items} == {"BCN", "MSK4", None}
    assert any(item.record_id.endswith("_downsampled") for item in found.items)


def test_bcn20000_leaves_out_and_counts_the_images_of_its_target(raw):
    of_target = {item.record_id for item in discover("ham10000", raw["ham10000"]).items}
    clean = discover("bcn20000", raw["bcn20000"])
    assert clean.left_out == {
        "it belongs to HAM10000, a target": 6,
        "its label 'UNK' has no class": 1,
    }
    assert not of_target & {item.record_id for item in clean.items}
    released = discover("bcn20000", raw["bcn20000"], RELEASED)
    assert len(of_target & {item.record_id for item in released.items}) == 6
    assert len(released.items) == len(clean.items) + 6


@pytest.mark.parametrize(
    ("name", "lesion", "expected"),
    [
        ("ISIC_0024306", "", True),
        ("ISIC_0034320", "", True),
        ("ISIC_0034321", "", False),
        ("ISIC_0024305", "", False),
        ("ISIC_0053453", "HAM_0000001", True),
        ("ISIC_0053453", "BCN_0000001", False),
        ("ISIC_0024310_downsampled", "", False),
    ],
)
def test_images_of_ham10000_are_known_by_lesion_or_number(name, lesion, expected):
    assert of_ham10000(name, lesion) is expected


def test_no_lesion_of_bcn20000_is_in_two_splits(raw):
    items = discover("bcn20000", raw["bcn20000"]).items
    splits: dict[str, set[str]] = {}
    for item in items:
        splits.setdefault(item.group_id, set()).add(item.split)
    assert all(len(own) == 1 for own in splits.values())
    assert len(splits) < len(items)
    for split in ("train", "validation"):
        assert {i.label for i in items if i.split == split} == set(CLASS_OF["ham10000"].values())


def test_clean_bcn20000_needs_the_lesions_and_released_does_not(copied):
    root = copied("bcn20000")
    with_lesions = discover("bcn20000", root, RELEASED)
    (root / "ISIC_2019_Training_Metadata.csv").unlink()
    with pytest.raises(BenchmdError, match=r"Metadata\.csv is missing: policy 'clean' tells by it"):
        discover("bcn20000", root)
    without = discover("bcn20000", root, RELEASED)
    assert [(i.record_id, i.label, i.split) for i in without.items] == [
        (i.record_id, i.label, i.split) for i in with_lesions.items
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"MEL": "1.0", "NV": "1.0"}, "its label 'MEL+NV' is unknown"),
        ({"MEL": "0.0", "NV": "0.0"}, "it has no label"),
        ({"MEL": "", "NV": "1.0"}, "its label '?' is unknown"),
    ],
)
def test_a_row_without_exactly_one_label_is_left_out(copied, change, reason):
    root = copied("bcn20000")

    def clear(rows):
        rows[5].update(dict.fromkeys(CLASS_OF["bcn20000"], "0.0") | change)

    edit(root / "ISIC_2019_Training_GroundTruth.csv", clear)
    found = discover("bcn20000", root)
    assert found.left_out[reason] == 1
    assert len(found.items) == 112


# HAM10000


def test_ham10000_labels_groups_and_people_are_those_of_the_table(raw):
    path = raw["ham10000"] / "HAM10000_metadata"
    table = pd.read_csv(path, index_col="image_id", keep_default_na=False)
    found = discover("ham10000", raw["ham10000"])
    assert (found.layout, found.missing, found.left_out) == ("dataverse", [], {})
    assert [item.record_id for item in found.items] == list(table.index)
    for item in found.items:
        row = table.loc[item.record_id]
        assert item.split == "test"
        assert item.label == CLASS_OF["ham10000"][row["dx"]]
        assert item.group_id == hashed_patient("ham10000", row["lesion_id"])
        assert item.metadata == {
            "age": float(row["age"]) if row["age"] else None,
            "sex": {"unknown": None}.get(row["sex"], row["sex"]),
            "site": row["dataset"],
        }
    assert len({item.group_id for item in found.items}) == table["lesion_id"].nunique() < 36


@pytest.mark.parametrize(("name", "separator"), [("csv", ","), ("tab", "\t")])
def test_ham10000_metadata_may_have_a_suffix_and_tabs(raw, copied, name, separator):
    root = copied("ham10000")
    table = pd.read_csv(root / "HAM10000_metadata", dtype=str, keep_default_na=False)
    (root / "HAM10000_metadata").unlink()
    table.to_csv(root / f"HAM10000_metadata.{name}", sep=separator, index=False)
    assert discover("ham10000", root) == discover("ham10000", raw["ham10000"])


def test_both_layouts_of_ham10000_give_the_same_images_labels_and_lesions(raw, copied):
    root = copied("ham10000")
    table = pd.read_csv(root / "HAM10000_metadata", keep_default_na=False)
    (root / "HAM10000_metadata").unlink()
    truth = pd.DataFrame({"image": table["image_id"]})
    for label in ("MEL", "NV", "BCC", "AKIEC", "BKL", "DF", "VASC"):
        truth[label] = (table["dx"].str.upper() == label).astype(float)
    (root / "ISIC2018_Task3_Training_GroundTruth").mkdir()
    name = "ISIC2018_Task3_Training_GroundTruth"
    truth.to_csv(root / name / f"{name}.csv", index=False)

    def known(found):
        return [(i.path, i.record_id, i.group_id, i.split, i.label) for i in found.items]

    alone = discover("ham10000", root)
    assert alone.layout == "isic-2018"
    assert len({item.group_id for item in alone.items}) == 36
    groupings = table[["image_id", "lesion_id"]].rename(columns={"image_id": "image"})
    groupings.to_csv(root / "ISIC2018_Task3_Training_LesionGroupings.csv", index=False)
    assert known(discover("ham10000", root)) == known(discover("ham10000", raw["ham10000"]))


def test_other_images_beside_ham10000_are_ignored_or_counted(raw, copied):
    root = copied("ham10000")
    image = next(root.rglob("*.jpg"))
    copies = (
        "ham10000_images_part_9",  # the copy on Kaggle holds each folder twice
        "ISIC2018_Task3_Test_Images",
        "ISIC2018_Task3_Validation_Input",
    )
    names = (image.name, "ISIC_0034524.jpg", "ISIC_0034321.jpg")
    for folder, name in zip(copies, names, strict=True):
        (root / folder).mkdir()
        shutil.copy(image, root / folder / name)
    shutil.copy(image, image.with_name(f"._{image.name}"))
    shutil.copy(image, image.with_name("ISIC_0024306_segmentation.png"))
    assert discover("ham10000", root) == discover("ham10000", raw["ham10000"])
    shutil.copy(image, image.with_name("ISIC_0099999.jpg"))
    assert discover("ham10000", root).left_out == {"no table names it": 1}


def test_missing_images_and_labels_are_named_and_counted(copied):
    root = copied("ham10000")
    next(root.rglob("ISIC_0024308.jpg")).unlink()

    def change(rows):
        rows[0]["dx"], rows[1]["dx"] = "", "scar"

    edit(root / "HAM10000_metadata", change)
    found = discover("ham10000", root)
    assert found.missing == ["ISIC_0024308.jpg"]
    assert found.left_out == {"it has no label": 1, "its label 'scar' is unknown": 1}
    assert len(found.items) == 33


def test_ham10000_without_labels_is_refused(tmp_path):
    with pytest.raises(BenchmdError, match=r"has neither HAM10000_metadata .* nor ISIC2018_Task3"):
        discover("ham10000", tmp_path)


# PAD-UFES-20


def test_pad_ufes_labels_patients_and_people_are_those_of_the_table(raw):
    table = pd.read_csv(raw["pad-ufes-20"] / "metadata.csv", keep_default_na=False)
    found = discover("pad-ufes-20", raw["pad-ufes-20"])
    assert (found.missing, found.left_out, found.grouped_by) == ([], {}, "patient")
    assert len(found.items) == len(table) == 36
    for item, (_, row) in zip(found.items, table.iterrows(), strict=True):
        assert Path(item.path).name == row["img_id"]
        assert item.label == CLASS_OF["pad-ufes-20"][row["diagnostic"]]
        assert item.group_id == hashed_patient("pad-ufes-20", row["patient_id"])
        assert item.metadata["sex"] == (row["gender"].lower() or None)
        assert item.metadata["age"] == float(row["age"])
    assert len({i.group_id for i in found.items}) < table["lesion_id"].nunique() < 36
    assert len({i.record_id for i in found.items}) == 36


def test_no_name_of_pad_ufes_is_written_down(copied, build_here, tmp_path):
    root = copied("pad-ufes-20")
    first, second = sorted(root.rglob("*.png"))[:2]
    first.unlink()
    second.write_bytes(second.read_bytes()[:2000])
    found = discover("pad-ufes-20", root)
    (missing,) = found.missing
    assert missing == f"the image of record {hashed_patient('pad-ufes-20', first.stem)}"
    out = tmp_path / "catalog"
    built = build_here("pad-ufes-20", root, out, max_quarantined=0.1)
    (entry,) = built.manifest["quarantined"]
    assert entry["record"] == hashed_patient("pad-ufes-20", second.stem)
    written = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    assert b"PAT_" not in written
    assert built.rows("test") == 34


# all


@pytest.mark.parametrize("name", NAMES)
def test_order_of_columns_and_rows_does_not_matter(raw, copied, name):
    root = copied(name)
    tables = [p for p in root.iterdir() if p.is_file()]
    for path in tables:
        rows = pd.read_csv(path, dtype=str, keep_default_na=False)
        rows = rows[random.Random(3).sample(list(rows.columns), len(rows.columns))]
        rows.sample(frac=1, random_state=3).to_csv(path, index=False)
    for choices in (Choices(), RELEASED):
        before, after = discover(name, raw[name], choices), discover(name, root, choices)
        assert sorted(before.items, key=repr) == sorted(after.items, key=repr)
        assert before.left_out == after.left_out


@pytest.mark.parametrize("choices", [Choices(), RELEASED], ids=lambda c: c.policy)
@pytest.mark.parametrize("name", NAMES)
def test_train_and_validation_are_drawn_once_and_never_overlap(raw, copied, name, choices):
    first = discover(name, raw[name], choices)
    again = discover(name, raw[name], choices)
    assert first == again
    ids = [item.record_id for item in first.items]
    assert len(ids) == len(set(ids))
    if choices.policy == "clean":
        return
    counts = Counter((item.label, item.split) for item in first.items)
    for label in {item.label for item in first.items}:
        total = counts[label, "train"] + counts[label, "validation"]
        assert counts[label, "train"] == round(0.8 * total)
    root = copied(name)  # who is drawn does not depend on which files are there
    (root / first.items[4].path).unlink()
    fewer = discover(name, root, choices)
    assert fewer.items == [item for item in first.items if item is not first.items[4]]


@pytest.mark.parametrize("name", NAMES)
def test_released_rule_gives_the_papers_counts(name):
    card = dataset_card(name)
    photographs = [
        Photograph(f"{label}-{i}.jpg", label)
        for label, count in PUBLISHED[name].items()
        for i in range(count)
    ]
    splits = by_class(card, photographs, round)
    for split, expected in card.expected["released"].items():
        counts = Counter(CLASS_OF[name][p.label] for p in photographs if splits[p.name] == split)
        assert dict(counts) == expected
    first_half = [f"{max(PUBLISHED[name], key=PUBLISHED[name].get)}-{i}" for i in range(100)]
    assert 8 <= sum(splits[image] == "validation" for image in first_half) <= 32  # not by order


def test_clean_counts_are_those_of_the_owners():
    def classes(name):
        counts = Counter()
        for label, count in PUBLISHED[name].items():
            counts[CLASS_OF[name][label]] += count
        return counts

    expected = {name: dataset_card(name).expected["clean"] for name in NAMES}
    assert expected["ham10000"]["test"] == classes("ham10000")
    assert expected["pad-ufes-20"]["test"] == classes("pad-ufes-20")
    assert expected["bcn20000"]["total"] == classes("bcn20000") - classes("ham10000")
    # images of BCN20000 and of MSK in ISIC 2019
    assert sum(expected["bcn20000"]["total"].values()) == 12413 + 2903


@pytest.mark.parametrize("name", NAMES)
def test_read_fits_the_image_into_the_square(raw, name):
    root, card = raw[name], dataset_card(name)
    shapes = set()
    for item in discover(name, root).items[:12]:
        (record,) = DATASETS[name].read(root, item, card).records
        image = Image.open(root / item.path).convert("RGB")
        factor = 224 / max(image.size)
        width, height = (round(side * factor) for side in image.size)
        small = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
        top, left = (224 - height) // 2, (224 - width) // 2
        expected = np.zeros((224, 224, 3), np.uint8)
        expected[top : top + height, left : left + width] = small
        assert np.array_equal(record.signal.transpose(1, 2, 0), expected)
        assert record.valid_size == (height, width)
        assert [card.classes[i] for i, on in enumerate(record.target) if on] == [item.label]
        shapes.add(record.valid_size)
    assert len(shapes) == {"bcn20000": 2, "ham10000": 1}.get(name, len(shapes))
    assert name != "pad-ufes-20" or any(height > width for height, width in shapes)


def test_a_broken_image_is_refused(copied):
    root = copied("ham10000")
    item = discover("ham10000", root).items[0]
    (root / item.path).write_bytes((root / item.path).read_bytes()[:900])
    with pytest.raises(RecordError, match="cannot be read as an image"):
        DATASETS["ham10000"].read(root, item, dataset_card("ham10000"))


@pytest.mark.parametrize("policy", ["clean", "released"])
def test_catalog_of_the_source_is_whole(raw, build_here, tmp_path, policy):
    built = build_here("bcn20000", raw["bcn20000"], tmp_path, policy=policy)
    assert not verify(built).faults
    assert set(built.manifest["splits"]) == {"train", "validation"}
    assert built.evaluation_splits == ("validation",)
    assert built.manifest["raw"]["records"] == 120
    assert len(built.statistics["mean"]) == 3
    shared = [note for note in verify(built).notes if "both in" in note]
    assert bool(shared) == (policy == "released")
    with (raw["bcn20000"] / "ISIC_2019_Training_Metadata.csv").open() as file:
        lesions = {row["lesion_id"] for row in csv.DictReader(file)} - {""}
    text = (tmp_path / "manifest.json").read_text()
    assert not [lesion for lesion in lesions if lesion in text]
