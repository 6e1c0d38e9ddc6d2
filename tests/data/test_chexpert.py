"""CheXpert: its validation and test sets in each of their layouts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.datasets import chexpert
from benchmd_ray.data.discovery import chosen
from benchmd_ray.data.records import hashed_patient
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.tasks import UNKNOWN

CARD = dataset_card("chexpert")
COLUMNS = ["Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Pleural Effusion"]
VALID, TEST = "CheXpert-v1.0-small/valid.csv", "CheXpert/test_labels.csv"


def discover(root, policy="clean", **options):
    return chexpert.discover(root, CARD, chosen(CARD, policy, None, options))


def targets(found) -> dict[str, list[int]]:
    return {item.record_id: item.target(CARD) for item in found.items}


@pytest.fixture
def root(synthetic_cxr) -> Path:
    return synthetic_cxr["chexpert"]


@pytest.fixture
def copied(root, tmp_path) -> Path:
    """A copy, to be changed."""
    return Path(shutil.copytree(root, tmp_path / "chexpert"))


def edit(path: Path, change) -> None:
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    change(table).to_csv(path, index=False)


def by_study(table: pd.DataFrame) -> pd.DataFrame:
    """The table of the test set as it is published per study."""
    table["Study"] = "CheXpert-v1.0/" + table.pop("Path").str.rpartition("/")[0]
    return table.drop_duplicates("Study")


def test_labels_patients_and_metadata_are_those_of_the_tables(root):
    found = discover(root)
    assert (found.layout, found.missing, found.excluded) == ("stanford", [], {})
    valid, test = (pd.read_csv(root / path) for path in (VALID, TEST))
    rows = pd.concat([valid, test.assign(Path="CheXpert/" + test["Path"])]).set_index("Path")
    assert len(found.items) == len(rows) == 32
    for item in found.items:
        row = rows.loc[item.path]
        assert item.split == "test"
        assert item.target(CARD) == row[COLUMNS].astype(int).tolist()
        assert item.group_id == hashed_patient("chexpert", Path(item.path).parts[-3])
        lateral = "lateral" in item.path
        labelled = "valid" in item.path
        assert item.metadata == {
            "age": min(row["Age"], 90.0) if labelled else None,
            "sex": row["Sex"].lower() if labelled else None,
            "view": "lateral" if lateral else "AP" if labelled else "frontal",
        }


def test_record_ids_are_unique_and_name_no_patient(root):
    items = discover(root).items
    assert len({item.record_id for item in items}) == len(items)
    for item in items:
        patient = Path(item.path).parts[-3].removeprefix("patient")
        assert patient not in item.record_id + item.group_id
        assert item.record_id.startswith(item.group_id)


def test_labels_are_taken_by_column_name_not_position(root, copied):
    for path in (VALID, TEST):
        edit(copied / path, lambda table: table[table.columns[::-1]])
    assert discover(copied) == discover(root)


def test_labels_of_studies_hold_for_each_of_their_images(root, copied):
    edit(copied / TEST, by_study)
    (copied / TEST).rename(copied / "groundtruth.csv")
    assert discover(copied) == discover(root)


def test_other_names_and_places_of_the_same_files(root, copied):
    small = copied / "CheXpert-v1.0-small"
    edit(small / "valid.csv", lambda t: t.assign(Path=t["Path"].str.replace("valid", "val")))
    (small / "valid.csv").rename(copied / "val_labels.csv")
    (small / "valid").rename(copied / "val")
    for path in (copied / "CheXpert").iterdir():
        path.rename(copied / path.name)
    assert targets(discover(copied)) == targets(discover(root))


def test_released_scores_one_image_of_each_test_study(root):
    found = discover(root, "released")
    studies = [Path(item.path).parent for item in found.items if "/test/" in item.path]
    assert len(studies) == len(set(studies))
    tested = list((root / "CheXpert/test").rglob("*.jpg"))
    assert set(studies) == {path.parent.relative_to(root) for path in tested}
    assert found.excluded == {chexpert.FURTHER: len(tested) - len(studies)}
    assert {item.split for item in found.items} == {"validation"}
    valid = [item for item in found.items if "/valid/" in item.path]
    assert len(valid) == len(list(root.rglob("valid/*/*/*.jpg")))


def test_the_image_scored_of_a_study_is_a_frontal_one(copied):
    both = [p for p in (copied / "CheXpert/test").rglob("view1_frontal.jpg")
            if p.with_name("view2_lateral.jpg").exists()]  # fmt: skip
    frontal = both[0]
    folder = frontal.parent
    (folder / "view2_lateral.jpg").rename(folder / "view1_lateral.jpg")
    frontal.rename(folder / "view2_frontal.jpg")
    edit(copied / TEST, by_study)
    (copied / TEST).rename(copied / "groundtruth.csv")
    named = [i.path for i in discover(copied, "released").items if f"/{folder.name}/" in i.path]
    assert [Path(path).name for path in named] == ["view2_frontal.jpg"]


@pytest.mark.parametrize(
    ("uncertain", "unmentioned", "expected"),
    [
        ("masked", "negative", [UNKNOWN, 0, 1, 0, 0]),
        ("positive", "masked", [1, UNKNOWN, 1, 0, 0]),
        ("negative", "negative", [0, 0, 1, 0, 0]),
    ],
)
def test_uncertain_and_blank_labels_follow_the_options(copied, uncertain, unmentioned, expected):
    def change(table):
        table.loc[0, [*COLUMNS, "No Finding"]] = ["-1.0", "", "1.0", "0.0", "0", "0"]
        return table

    edit(copied / VALID, change)
    path = pd.read_csv(copied / VALID).loc[0, "Path"]
    found = discover(copied, uncertain=uncertain, unmentioned=unmentioned)
    (item,) = (item for item in found.items if item.path == path)
    assert item.target(CARD) == expected


def test_files_and_rows_without_each_other_are_counted(copied):
    edit(copied / TEST, lambda table: table[1:])
    lost = copied / pd.read_csv(copied / VALID).loc[2, "Path"]
    lost.unlink()
    found = discover(copied)
    assert found.excluded == {"no table names it": 1}
    assert len(found.items) == 30
    (missing,) = found.missing
    assert missing.startswith(f"image {hashed_patient('chexpert', lost.parts[-3])}-study")
    assert lost.parts[-3].removeprefix("patient") not in missing


def test_a_set_that_was_not_fetched_is_missing(copied):
    shutil.rmtree(copied / "CheXpert")
    found = discover(copied)
    assert found.missing == ["test_labels.csv"]
    assert {Path(item.path).parts[1] for item in found.items} == {"valid"}


def test_a_table_of_another_kind_is_refused(copied):
    edit(copied / TEST, lambda table: table.drop(columns="Edema"))
    with pytest.raises(BenchmdError, match="has no column 'Edema'; expected the table of CheXpert"):
        discover(copied)


def test_a_row_that_names_no_patient_is_refused(copied):
    edit(copied / TEST, lambda table: table.assign(Path="test/view1_frontal.jpg"))
    with pytest.raises(BenchmdError, match="record 1: neither the column Path nor Study names"):
        discover(copied)


def test_a_catalog_scores_every_labelled_image(root, build_here, tmp_path):
    catalog = build_here("chexpert", root, tmp_path / "out")
    assert catalog.manifest["splits"]["test"]["records"] == 32
    rows = pd.concat(pd.read_csv(root / path) for path in (VALID, TEST))
    assert list(catalog.manifest["splits"]["test"]["classes"].values()) == [
        int(rows[column].sum()) for column in COLUMNS
    ]
    text = (tmp_path / "out" / "manifest.json").read_text()
    assert "patient9" not in text
    assert set(CARD.evaluation_splits["clean"]) == set(catalog.manifest["splits"])


def test_a_second_row_of_an_image_is_counted_or_refused(root, copied):
    expected = discover(root)

    def twice(table):
        return pd.concat([table, table.iloc[:1]])

    edit(copied / VALID, twice)
    found = discover(copied)
    assert found.items == expected.items
    assert found.excluded == {"its id appears twice; the first is kept": 1}

    def contradict(table):
        table.iloc[-1, table.columns.get_loc("Edema")] = (
            "0.0" if table["Edema"].iloc[0] in ("1", "1.0") else "1.0"
        )
        return table

    edit(copied / VALID, contradict)
    with pytest.raises(BenchmdError, match=r"valid\.csv, record \d+ contradicts an earlier one"):
        discover(copied)
