"""Dermoscopy datasets: what their tables say, against an independent reading of them."""

from __future__ import annotations

import csv
import shutil
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.datasets import DATASETS
from benchmd_ray.data.datasets.bcn20000 import of_ham10000
from benchmd_ray.data.datasets.photographs import Photograph, by_class
from benchmd_ray.data.raw import Choices, Discovery
from benchmd_ray.data.records import RecordError, hashed_patient
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


def test_bcn20000_labels_groups_and_people_are_those_of_the_tables(synthetic_photos):
    table = isic_2019(synthetic_photos["bcn20000"])
    found = discover("bcn20000", synthetic_photos["bcn20000"])
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


def test_bcn20000_leaves_out_and_counts_the_images_of_its_target(synthetic_photos):
    of_target = {
        item.record_id for item in discover("ham10000", synthetic_photos["ham10000"]).items
    }
    clean = discover("bcn20000", synthetic_photos["bcn20000"])
    assert clean.excluded == {
        "it belongs to HAM10000, a target": 6,
        "its label 'UNK' has no class": 1,
    }
    assert not of_target & {item.record_id for item in clean.items}
    released = discover("bcn20000", synthetic_photos["bcn20000"], RELEASED)
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


def test_no_lesion_of_bcn20000_is_in_two_splits(synthetic_photos):
    items = discover("bcn20000", synthetic_photos["bcn20000"]).items
    splits: dict[str, set[str]] = {}
    for item in items:
        splits.setdefault(item.group_id, set()).add(item.split)
    assert all(len(own) == 1 for own in splits.values())
    assert len(splits) < len(items)
    for split in ("train", "validation"):
        assert {i.label for i in items if i.split == split} == set(CLASS_OF["ham10000"].values())


def test_clean_bcn20000_needs_the_lesions_and_released_does_not(copied_photos):
    root = copied_photos("bcn20000")
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
def test_a_row_without_exactly_one_label_is_excluded(copied_photos, change, reason):
    root = copied_photos("bcn20000")

    def clear(rows):
        rows[5].update(dict.fromkeys(CLASS_OF["bcn20000"], "0.0") | change)

    edit(root / "ISIC_2019_Training_GroundTruth.csv", clear)
    found = discover("bcn20000", root)
    assert found.excluded[reason] == 1
    assert len(found.items) == 112


# HAM10000


def test_ham10000_labels_groups_and_people_are_those_of_the_table(synthetic_photos):
    path = synthetic_photos["ham10000"] / "HAM10000_metadata"
    table = pd.read_csv(path, index_col="image_id", keep_default_na=False)
    found = discover("ham10000", synthetic_photos["ham10000"])
    assert (found.layout, found.missing, found.excluded) == ("dataverse", [], {})
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
def test_ham10000_metadata_may_have_a_suffix_and_tabs(
    synthetic_photos, copied_photos, name, separator
):
    root = copied_photos("ham10000")
    table = pd.read_csv(root / "HAM10000_metadata", dtype=str, keep_default_na=False)
    (root / "HAM10000_metadata").unlink()
    table.to_csv(root / f"HAM10000_metadata.{name}", sep=separator, index=False)
    assert discover("ham10000", root) == discover("ham10000", synthetic_photos["ham10000"])


def test_both_layouts_of_ham10000_give_the_same_images_labels_and_lesions(
    synthetic_photos, copied_photos
):
    root = copied_photos("ham10000")
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
    assert known(discover("ham10000", root)) == known(
        discover("ham10000", synthetic_photos["ham10000"])
    )


def test_other_images_beside_ham10000_are_ignored_or_counted(synthetic_photos, copied_photos):
    root = copied_photos("ham10000")
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
    found = discover("ham10000", root)
    assert found.items == discover("ham10000", synthetic_photos["ham10000"]).items
    assert found.excluded == {"its id appears twice; the first is kept": 1}
    shutil.copy(image, image.with_name("ISIC_0099999.jpg"))
    assert discover("ham10000", root).excluded["no table names it"] == 1


def test_missing_images_and_labels_are_named_and_counted(copied_photos):
    root = copied_photos("ham10000")
    next(root.rglob("ISIC_0024308.jpg")).unlink()

    def change(rows):
        rows[0]["dx"], rows[1]["dx"] = "", "scar"

    edit(root / "HAM10000_metadata", change)
    found = discover("ham10000", root)
    assert found.missing == ["ISIC_0024308.jpg"]
    assert found.excluded == {"it has no label": 1, "its label 'scar' is unknown": 1}
    assert len(found.items) == 33


def test_ham10000_without_labels_is_refused(tmp_path):
    with pytest.raises(BenchmdError, match=r"has neither HAM10000_metadata .* nor ISIC2018_Task3"):
        discover("ham10000", tmp_path)


# PAD-UFES-20


def test_pad_ufes_labels_patients_and_people_are_those_of_the_table(synthetic_photos):
    table = pd.read_csv(synthetic_photos["pad-ufes-20"] / "metadata.csv", keep_default_na=False)
    found = discover("pad-ufes-20", synthetic_photos["pad-ufes-20"])
    assert (found.missing, found.excluded, found.grouped_by) == ([], {}, "patient")
    assert len(found.items) == len(table) == 36
    for item, (_, row) in zip(found.items, table.iterrows(), strict=True):
        assert Path(item.path).name == row["img_id"]
        assert item.label == CLASS_OF["pad-ufes-20"][row["diagnostic"]]
        assert item.group_id == hashed_patient("pad-ufes-20", row["patient_id"])
        assert item.metadata["sex"] == (row["gender"].lower() or None)
        assert item.metadata["age"] == float(row["age"])
    assert len({i.group_id for i in found.items}) < table["lesion_id"].nunique() < 36
    assert len({i.record_id for i in found.items}) == 36


def test_no_name_of_pad_ufes_is_written_down(copied_photos, build_here, tmp_path):
    root = copied_photos("pad-ufes-20")
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


def test_a_broken_image_is_refused(copied_photos):
    root = copied_photos("ham10000")
    item = discover("ham10000", root).items[0]
    (root / item.path).write_bytes((root / item.path).read_bytes()[:900])
    with pytest.raises(RecordError, match="cannot be read as an image"):
        DATASETS["ham10000"].read(root, item, dataset_card("ham10000"))


@pytest.mark.parametrize("policy", ["clean", "released"])
def test_catalog_of_the_source_is_whole(synthetic_photos, build_here, tmp_path, policy):
    built = build_here("bcn20000", synthetic_photos["bcn20000"], tmp_path, policy=policy)
    assert not verify(built).faults
    assert set(built.manifest["splits"]) == {"train", "validation"}
    assert built.evaluation_splits == ("validation",)
    assert built.manifest["raw"]["records"] == 120
    assert len(built.statistics["mean"]) == 3
    shared = [note for note in verify(built).notes if "and validation share" in note]
    assert bool(shared) == (policy == "released")
    with (synthetic_photos["bcn20000"] / "ISIC_2019_Training_Metadata.csv").open() as file:
        lesions = {row["lesion_id"] for row in csv.DictReader(file)} - {""}
    text = (tmp_path / "manifest.json").read_text()
    assert not [lesion for lesion in lesions if lesion in text]
