"""Fundus datasets: what their tables say, against an independent reading of them."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.datasets import DATASETS
from benchmd_ray.data.datasets.photographs import Photograph, by_class
from benchmd_ray.data.raw import Choices, Discovery
from benchmd_ray.data.records import decode_targets, hashed_patient
from benchmd_ray.data.splits import label_subset
from benchmd_ray.data.verify import verify
from benchmd_ray.errors import BenchmdError
from benchmd_ray.training.predict import merging

RELEASED = Choices("released")
PUBLISHED = {
    "messidor-2": (1017, 270, 347, 75, 35),
    "aptos-2019": (1805, 370, 999, 193, 295),
}
DAVIS = {"ndr": "Davis NDR", "sdr": "Davis SDR", "ppdr": "Davis PPDR", "pdr": "Davis PDR"}


def discover(name: str, root: Path, choices: Choices | None = None) -> Discovery:
    return DATASETS[name].discover(root, dataset_card(name), choices or Choices())


def table(path: Path, separator: str = ",") -> pd.DataFrame:
    return pd.read_csv(path, sep=separator, dtype=str, keep_default_na=False)


# Messidor-2


def test_messidor_grades_and_examinations_are_those_of_the_tables(synthetic_photos):
    root = synthetic_photos["messidor-2"]
    grades = table(root / "messidor_data.csv")
    partner = {}
    for left, right in table(root / "messidor-2.csv", ";").itertuples(index=False):
        partner |= {left.lower(): left, right.lower(): left}
    found = discover("messidor-2", root)
    assert (found.layout, found.missing, found.grouped_by) == ("adcis", [], "patient")
    graded = grades[grades["adjudicated_gradable"] == "1"].reset_index()
    assert found.excluded == {"it is not gradable": len(grades) - len(graded)}
    assert len(found.items) == len(graded) == 118
    for item, (_, row) in zip(found.items, graded.iterrows(), strict=True):
        assert item.record_id == row["image_id"].rsplit(".", 1)[0]
        assert item.label == f"ICDR {row['adjudicated_dr_grade']}"
        left = partner[row["image_id"].lower()].rsplit(".", 1)[0].lower()
        assert item.group_id == hashed_patient("messidor-2", left)
    sites = {item.record_id[:2]: item.metadata.get("site") for item in found.items}
    assert sites == {"IM": "Brest", "20": None}


def test_messidor_suffixes_differ_in_case_between_files_and_grades(synthetic_photos):
    listed = set(table(synthetic_photos["messidor-2"] / "messidor_data.csv")["image_id"])
    files = {path.name for path in (synthetic_photos["messidor-2"] / "IMAGES").iterdir()}
    assert any(name.endswith(".JPG") for name in files)
    assert any(name.endswith(".jpg") for name in listed)
    assert {name.lower() for name in listed} == {name.lower() for name in files}
    assert not discover("messidor-2", synthetic_photos["messidor-2"]).missing


def test_both_eyes_of_an_examination_are_in_one_split(synthetic_photos):
    items = discover("messidor-2", synthetic_photos["messidor-2"]).items
    splits: dict[str, list[str]] = {}
    for item in items:
        splits.setdefault(item.group_id, []).append(item.split)
    assert all(len(set(own)) == 1 for own in splits.values())
    assert Counter(len(own) for own in splits.values()) == {2: 58, 1: 2}
    for split in ("train", "validation"):
        assert {i.label for i in items if i.split == split} == {f"ICDR {n}" for n in range(5)}


def test_a_messidor_image_in_no_pair_is_excluded_of_clean(copied_photos):
    root = copied_photos("messidor-2")
    expected = discover("messidor-2", root)
    pairs = (root / "messidor-2.csv").read_text().splitlines()
    eyes = {Path(eye).stem.lower() for eye in pairs.pop(1).split(";")}
    (root / "messidor-2.csv").write_text("\n".join(pairs))
    kept = [item for item in expected.items if item.record_id.lower() not in eyes]
    found = discover("messidor-2", root)
    assert found.items == kept
    assert len(expected.items) - len(kept) == 2
    assert found.excluded == expected.excluded | {"its pair of eyes is not known": 2}
    assert len(discover("messidor-2", root, RELEASED).items) == len(expected.items)


def test_clean_messidor_needs_the_pairs_and_released_does_not(copied_photos):
    root = copied_photos("messidor-2")
    with_pairs = discover("messidor-2", root, RELEASED)
    assert with_pairs.grouped_by == "patient"
    (root / "messidor-2.csv").unlink()
    with pytest.raises(BenchmdError, match=r"messidor-2\.csv is missing: .* \(ADCIS\)"):
        discover("messidor-2", root)
    without = discover("messidor-2", root, RELEASED)
    assert without.grouped_by == "record"
    assert len({item.group_id for item in without.items}) == 118
    assert [(i.record_id, i.label, i.split) for i in without.items] == [
        (i.record_id, i.label, i.split) for i in with_pairs.items
    ]


def test_messidor_grades_may_be_written_as_fractions(synthetic_photos, copied_photos):
    root = copied_photos("messidor-2")
    grades = table(root / "messidor_data.csv")
    for column in ("adjudicated_dr_grade", "adjudicated_dme"):
        grades[column] = [f"{value}.0" if value else "" for value in grades[column]]
    grades.to_csv(root / "messidor_data.csv", index=False)
    assert discover("messidor-2", root) == discover("messidor-2", synthetic_photos["messidor-2"])


def test_messidor_odd_rows_are_counted(copied_photos):
    root = copied_photos("messidor-2")
    grades = table(root / "messidor_data.csv")
    graded = grades.index[grades["adjudicated_gradable"] == "1"]
    grades.loc[graded[0], "adjudicated_dr_grade"] = "7"
    grades.loc[graded[1], "adjudicated_dr_grade"] = ""
    (root / "IMAGES" / grades.loc[graded[2], "image_id"]).unlink()
    grades.drop(graded[3]).to_csv(root / "messidor_data.csv", index=False)
    found = discover("messidor-2", root)
    assert found.excluded == {
        "it is not gradable": 2,
        "its label '7' is unknown": 1,
        "it has no label": 1,
        "no table names it": 1,
    }
    assert found.missing == [f"IMAGES/{grades.loc[graded[2], 'image_id']}"]
    assert len(found.items) == 114


def test_few_labels_of_messidor_come_from_its_training_rows(synthetic_photos, build_here, tmp_path):
    built = build_here("messidor-2", synthetic_photos["messidor-2"], tmp_path)
    assert not verify(built).faults
    ids, groups, targets = {}, {}, {}
    for split in ("train", "validation"):
        rows = pq.read_table([path for path, *_ in built.shards(split)])
        ids[split] = np.array(rows["record_id"].to_pylist())
        groups[split] = np.array(rows["group_id"].to_pylist())
        targets[split] = decode_targets(rows["target"])
    chosen = label_subset(targets["train"], 8, "single-label", seed=5)
    few = set(ids["train"][chosen])
    assert len(few) == len(chosen) == 40  # 8 of each grade, no image twice
    assert few < set(ids["train"])
    assert not few & set(ids["validation"])
    assert not set(groups["train"]) & set(groups["validation"])


# APTOS 2019


def test_aptos_grades_are_those_of_the_table(synthetic_photos):
    rows = table(synthetic_photos["aptos-2019"] / "train.csv")
    found = discover("aptos-2019", synthetic_photos["aptos-2019"])
    assert (found.layout, found.missing, found.excluded) == ("kaggle", [], {})
    assert found.grouped_by == "record"
    assert [(i.record_id, i.label) for i in found.items] == [
        (code, f"ICDR {grade}") for code, grade in rows.itertuples(index=False)
    ]
    assert len({item.group_id for item in found.items}) == 36


def test_aptos_has_no_training_rows(synthetic_photos, build_here, tmp_path):
    built = build_here("aptos-2019", synthetic_photos["aptos-2019"], tmp_path)
    assert {k: v["records"] for k, v in built.manifest["splits"].items()} == {"test": 36}
    assert built.statistics is None


def test_aptos_test_images_are_ignored(synthetic_photos, copied_photos):
    root = copied_photos("aptos-2019")
    (root / "test_images").mkdir()
    shutil.copy(next((root / "train_images").iterdir()), root / "test_images" / "0005cfc8afb6.png")
    (root / "test.csv").write_text("id_code\n0005cfc8afb6\n")
    assert discover("aptos-2019", root) == discover("aptos-2019", synthetic_photos["aptos-2019"])


def test_aptos_images_that_are_there_twice_are_kept(synthetic_photos):
    found = discover("aptos-2019", synthetic_photos["aptos-2019"])
    contents = [(synthetic_photos["aptos-2019"] / item.path).read_bytes() for item in found.items]
    assert len(set(contents)) == len(contents) - 1 == 35


# Jinchi


def test_jinchi_grades_patients_and_eyes_are_those_of_the_table(synthetic_photos):
    rows = table(synthetic_photos["jinchi"] / "list.csv")
    found = discover("jinchi", synthetic_photos["jinchi"])
    assert (found.missing, found.excluded) == ([], {"it has no label": 1})
    assert found.grouped_by == "patient"
    graded = rows[rows["Davis_grading_of_one_figure"] != ""]
    for item, (_, row) in zip(found.items, graded.iterrows(), strict=True):
        assert item.path == row["Image"]
        assert item.label == DAVIS[row["Davis_grading_of_one_figure"]]
        patient, _, eye = row["Image"].removesuffix(".jpg").split("_")
        assert item.group_id == hashed_patient("jinchi", patient)
        assert item.metadata == {"view": {"L": "left", "R": "right"}[eye]}
    assert len({item.group_id for item in found.items}) == 12


def test_jinchi_targets_have_four_grades_that_merge_the_modalitys_five(synthetic_photos):
    card = dataset_card("jinchi")
    assert card.classes == tuple(DAVIS.values())
    for item in discover("jinchi", synthetic_photos["jinchi"]).items:
        (record,) = DATASETS["jinchi"].read(synthetic_photos["jinchi"], item, card).records
        assert [card.classes[i] for i, on in enumerate(record.target) if on] == [item.label]
        assert len(record.target) == 4
    scores = np.array([[0.1, 0.2, 0.3, 0.15, 0.25]])
    assert scores @ merging(card) == pytest.approx(np.array([[0.1, 0.5, 0.15, 0.25]]))


def test_no_name_of_jinchi_is_written_down(copied_photos, build_here, tmp_path):
    root = copied_photos("jinchi")
    (root / "2_1_R.jpg").unlink()
    (root / "4_2_L.jpg").write_bytes((root / "4_2_L.jpg").read_bytes()[:700])
    found = discover("jinchi", root)
    assert found.missing == [f"the image of record {hashed_patient('jinchi', '2_1_R')}"]
    out = tmp_path / "catalog"
    built = build_here("jinchi", root, out, max_quarantined=0.1)
    (entry,) = built.manifest["quarantined"]
    assert entry["record"] == hashed_patient("jinchi", "4_2_L")
    written = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    names = [path.stem.encode() for path in root.glob("*.jpg")]
    assert not [name for name in names if name in written]


def test_jinchi_grades_are_read_without_regard_to_case_and_odd_ones_excluded(copied_photos):
    root = copied_photos("jinchi")
    rows = table(root / "list.csv")
    rows["Davis_grading_of_one_figure"] = rows["Davis_grading_of_one_figure"].str.upper()
    rows.loc[0, "Davis_grading_of_one_figure"] = "ungradable"
    rows.to_csv(root / "list.csv", index=False)
    found = discover("jinchi", root)
    assert found.excluded == {"it has no label": 1, "its label 'ungradable' is unknown": 1}
    assert len(found.items) == 34


# all


@pytest.mark.parametrize("name", PUBLISHED)
def test_released_rule_gives_the_papers_counts(name):
    card = dataset_card(name)
    photographs = [
        Photograph(f"{grade}-{i}.png", str(grade))
        for grade, count in enumerate(PUBLISHED[name])
        for i in range(count)
    ]
    splits = by_class(card, photographs, int)
    for split, expected in card.expected["released"].items():
        counts = Counter(f"ICDR {p.label}" for p in photographs if splits[p.name] == split)
        assert dict(counts) == expected


@pytest.mark.parametrize("name", PUBLISHED)
def test_clean_counts_are_those_of_the_owners(name):
    (counts,) = dataset_card(name).expected["clean"].values()
    assert tuple(counts.values()) == PUBLISHED[name]
    assert sum(PUBLISHED["messidor-2"]) == 1748 - 4
    assert sum(PUBLISHED["aptos-2019"]) == dataset_card("aptos-2019").layouts["kaggle"].records
