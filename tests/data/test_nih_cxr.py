"""NIH ChestX-ray14 in both layouts, and the sample's real films."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from PIL import Image

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.datasets import nih_cxr
from benchmd_ray.data.discovery import chosen
from benchmd_ray.data.readers.image import read_image
from benchmd_ray.data.records import decode_signals, hashed_patient
from benchmd_ray.data.splits import stable_fraction
from benchmd_ray.data.transforms import fitted
from benchmd_ray.data.verify import verify
from benchmd_ray.errors import BenchmdError

AP, PA = dataset_card("nih-cxr-ap"), dataset_card("nih-cxr-pa")
FINDINGS = ["Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Effusion"]
HEADER = (
    "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,"
    "OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y],"
)
ROWS = [
    ("00000001_000.png", "Cardiomegaly", 0, 1, "057Y", "M", "PA"),
    ("00000001_001.png", "Cardiomegaly|Effusion", 1, 1, "058Y", "M", "AP"),
    ("00000002_000.png", "No Finding", 0, 2, "412", "F", "AP"),
    ("00000003_000.png", "Edema|Infiltration|Atelectasis", 0, 3, "94", "F", "AP"),
    ("00000003_001.png", "Consolidation", 1, 3, "81", "F", "AP"),
    ("00000004_000.png", "Hernia|Pleural_Thickening", 0, 4, "6", "M", "PA"),
]

SHARED = [
    *((f"{n:08}_000.png", "Edema", 0, n, "50", "F", "PA") for n in (3, 11, 12, 13, 19)),
    *((f"{n:08}_001.png", "Edema", 1, n, "50", "F", "AP") for n in (3, 11, 12, 19)),
    ("00000013_001.png", "", 1, 13, "50", "F", "AP"),
]
"""Patient 3 is tested, 13 has an AP film without labels; the others fall by their hash."""


def discover(root, card=AP, policy="clean", **options):
    view = {"nih-cxr-ap": "AP", "nih-cxr-pa": "PA"}[card.name]
    return nih_cxr.discover(root, card, chosen(card, policy, None, options), view=view)


def write_table(path: Path, rows=ROWS, header=HEADER) -> None:
    lines = [header, *(",".join(map(str, row)) + ",2500,2048,0.168,0.168," for row in rows)]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def official(tmp_path) -> Path:
    """Six films in the official layout."""
    write_table(tmp_path / "Data_Entry_2017_v2020.csv")
    (tmp_path / "test_list.txt").write_text("00000003_000.png\n00000003_001.png\n")
    rng = np.random.default_rng(0)
    for number, row in enumerate(ROWS):
        folder = tmp_path / f"images_{number % 2 + 1:03d}" / "images"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (40, 40), np.uint8)
        Image.fromarray(pixels).save(folder / row[0])
    return tmp_path


def test_official_layout_splits_labels_and_metadata(official):
    found = discover(official)
    assert (found.layout, found.missing) == ("official", [])
    assert found.excluded == {"its view position is PA": 2}
    one, two, three = (hashed_patient("nih-cxr", str(number)) for number in (1, 2, 3))
    rest = {n: "train" if stable_fraction(f"nih-cxr/{n}") < 0.8 else "validation" for n in (1, 2)}
    assert [(i.group_id, i.split, i.target(AP)) for i in found.items] == [
        (one, rest[1], [0, 1, 0, 0, 1]),
        (two, rest[2], [0, 0, 0, 0, 0]),
        (three, "test", [1, 0, 0, 1, 0]),
        (three, "test", [0, 0, 1, 0, 0]),
    ]
    assert [i.metadata["age"] for i in found.items] == [58.0, None, 90.0, 81.0]
    assert [i.metadata["sex"] for i in found.items] == ["male", "female", "female", "female"]
    assert {i.metadata["view"] for i in found.items} == {"AP"}
    assert found.items[0].path == "images_002/images/00000001_001.png"
    assert found.items[0].record_id == f"{one}-001"


def test_every_film_of_a_target_can_be_scored(official):
    found = discover(official, PA, shared_patients="keep")
    assert {(i.record_id, i.split) for i in found.items} == {
        (f"{hashed_patient('nih-cxr', '1')}-000", "test"),
        (f"{hashed_patient('nih-cxr', '4')}-000", "test"),
    }
    assert [i.target(PA) for i in found.items] == [[0, 1, 0, 0, 0], [0, 0, 0, 0, 0]]


WARNING = "its patient's AP films are in the source's training split"


@pytest.fixture
def shared(official) -> Path:
    """Films of both views of patients in the source's training, validation and test splits."""
    write_table(official / "Data_Entry_2017_v2020.csv", SHARED)
    for number, (name, *_) in enumerate(SHARED):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 40), np.uint8)
        Image.fromarray(pixels).save(official / "images_001/images" / name)
    splits = {n: "train" if stable_fraction(f"nih-cxr/{n}") < 0.8 else "validation"
              for n in (11, 12, 19)}  # fmt: skip
    assert set(splits.values()) == {"train", "validation"}
    assert max(stable_fraction(f"nih-cxr/{n}") for n in (3, 13)) < 0.8  # but for their films
    return official


def of_training(rows) -> set[str]:
    """Patients in the source's training split, by hand."""
    return {
        row[3]
        for row in rows
        if row[6] == "AP" and row[1] and row[3] != 3 and stable_fraction(f"nih-cxr/{row[3]}") < 0.8
    }


def groups(catalog, split: str) -> set[str]:
    return {
        g for table in catalog.tables(split, ["group_id"]) for g in table["group_id"].to_pylist()
    }


def test_a_targets_patients_never_train(shared, build_here, tmp_path):
    source, target = (build_here(c.name, shared, tmp_path / c.name) for c in (AP, PA))
    trained = {hashed_patient("nih-cxr", str(patient)) for patient in of_training(SHARED)}
    assert groups(source, "train") == trained
    films = [row for row in SHARED if row[6] == "PA"]
    remaining = {hashed_patient("nih-cxr", str(row[3])) for row in films} - trained
    assert groups(target, "test") == remaining
    assert groups(source, "validation") & remaining  # they choose the epoch, and do not train
    excluded = target.manifest["excluded"][WARNING]
    assert (
        (excluded, target.rows("test")) == (2, 3) == (len(films) - len(remaining), len(remaining))
    )
    assert (target.options, target.manifest["warnings"]) == ({}, {})


def test_kept_patients_that_train_are_counted_and_the_option_is_named(shared, build_here, tmp_path):
    target = build_here("nih-cxr-pa", shared, tmp_path / "pa", options={"shared_patients": "keep"})
    assert target.rows("test") == sum(row[6] == "PA" for row in SHARED) == 5
    assert target.options == {"shared_patients": "keep"}
    assert target.manifest["warnings"] == {WARNING: 2}
    assert f"2 records: {WARNING}" in verify(target).notes


def test_released_keeps_all_patients_unless_told_otherwise(shared):
    """The paper's rule splits by film: it has patients on both sides."""
    named = chosen(PA, "released", None, {}).options
    assert named == {"shared_patients": "keep"}
    kept = discover(shared, PA, "released")
    fewer = discover(shared, PA, "released", shared_patients="exclude")
    trained = {item.group_id for item in discover(shared, AP, "released").items
               if item.split == "train"}  # fmt: skip
    assert 0 < len(fewer.items) < len(kept.items)
    assert fewer.items == [item for item in kept.items if item.group_id not in trained]
    assert {item.details["trained_on"] for item in fewer.items} == {False}


def test_a_name_without_a_number_of_its_own_gives_no_patient_away():
    ids = {nih_cxr.record_id("7", name) for name in ("00000007.png", "7.png", "00000007_001.png")}
    assert len(ids) == 3
    assert not [own for own in ids if "0000007" in own or own.endswith("-7")]


def test_without_the_list_of_test_images_the_official_layout_is_refused(official):
    (official / "test_list.txt").unlink()
    with pytest.raises(BenchmdError, match=r"test_list\.txt is missing: it lists the official"):
        discover(official)


def test_a_list_of_test_images_that_is_no_text_is_refused(official):
    (official / "test_list.txt").write_bytes("00000003_000.png\n".encode("utf-16"))
    with pytest.raises(BenchmdError, match=r"test_list\.txt is not a list of images"):
        discover(official)


def test_a_message_does_not_give_a_patient_away(official):
    write_table(
        official / "Data_Entry_2017_v2020.csv",
        [*ROWS, ("9_0.png", "Edema", 0, "MRN 4711 Smith", "9", "F", "AP")],
    )
    with pytest.raises(BenchmdError, match="record 7: Patient ID is not a whole number") as caught:
        discover(official)
    assert "4711" not in str(caught.value)


def test_a_second_file_of_a_film_is_counted(official):
    expected = discover(official)
    name = Path(expected.items[0].path).name
    (official / "images_009").mkdir()
    (official / "images_009" / name).touch()
    found = discover(official)
    assert found.items == expected.items
    assert found.excluded == expected.excluded | {"its id appears twice; the first is kept": 1}


def test_without_a_table_the_folder_is_refused(tmp_path):
    with pytest.raises(BenchmdError, match=r"neither Data_Entry_2017\*\.csv .* nor labels\.csv"):
        discover(tmp_path)


def test_labels_are_taken_by_column_name_not_position(official):
    expected = [discover(official, card) for card in (AP, PA)]
    path = official / "Data_Entry_2017_v2020.csv"
    table = pd.read_csv(path, dtype=str).dropna(axis=1, how="all")
    table[table.columns[::-1]].to_csv(path, index=False)
    assert [discover(official, card) for card in (AP, PA)] == expected


def test_files_and_rows_without_each_other_are_counted(official):
    write_table(official / "Data_Entry_2017_v2020.csv", ROWS[:-1])
    (official / "images_002/images/00000001_001.png").unlink()
    found = discover(official)
    assert found.missing == [f"image {hashed_patient('nih-cxr', '1')}-001"]
    assert found.excluded["no table names it"] == 1
    assert len(found.items) == 3


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("9_0.png", "Oedema", 0, 9, "9", "F", "AP"), "'Oedema'. Did you mean 'Edema'"),
        (
            ("9_0.png", "Edema", 0, "x", "9", "F", "PA"),
            "record 7: Patient ID is not a whole number",
        ),
    ],
)
def test_a_value_that_cannot_be_used_is_named(official, row, message):
    (official / "9_0.png").touch()
    write_table(official / "Data_Entry_2017_v2020.csv", [*ROWS, row])
    with pytest.raises(BenchmdError, match=message):
        discover(official)


def test_a_film_without_labels_is_excluded(official):
    rows = [(name, "", *rest) for name, _, *rest in ROWS]
    write_table(official / "Data_Entry_2017_v2020.csv", rows)
    found = discover(official)
    assert not found.items
    assert found.excluded["none of its labels is known"] == 4


def test_released_splits_by_film(official):
    splits = {i.split for card in (AP, PA) for i in discover(official, card, "released").items}
    assert splits <= {"train", "validation"}


@pytest.mark.parametrize("mode", ["RGBA", "LA", "RGB", "P"])
def test_films_with_transparency_or_a_palette_read_as_grey_ones(official, mode):
    item = discover(official).items[0]
    (expected,) = nih_cxr.read(official, item, AP).records
    with Image.open(official / item.path) as image:
        image.convert(mode).save(official / item.path)
    (record,) = nih_cxr.read(official, item, AP).records
    assert np.array_equal(record.signal, expected.signal)


# The sample's real films.


@pytest.fixture(scope="module")
def sample(real_data) -> Path:
    return real_data / "nih-cxr-1000"


@pytest.fixture(scope="module")
def table(sample) -> pd.DataFrame:
    return pd.read_csv(sample / "labels.csv").set_index("Image Index")


@pytest.mark.data
@pytest.mark.parametrize(
    ("card", "films", "counts"),
    [(AP, 567, (37, 9, 15, 87, 45)), (PA, 390, (69, 7, 16, 8, 36))],
    ids=lambda value: getattr(value, "name", None),
)
def test_sample_counts_are_those_of_the_table(sample, table, card, films, counts):
    found = discover(sample, card)
    own = table[table["View Position"] == card.name[-2:].upper()]
    trained = table["Patient ID"].map(lambda n: stable_fraction(f"nih-cxr/{n}") < 0.8)
    trained_on = set(table.loc[trained & (table["View Position"] == "AP"), "Patient ID"])
    other_view, excluded = len(table) - len(own), 0
    if card is PA:
        excluded = int(own["Patient ID"].isin(trained_on).sum())
        own = own[~own["Patient ID"].isin(trained_on)]
    named = own["Finding Labels"].str.split("|")
    expected = [int(named.map(lambda names, f=f: f in names).sum()) for f in FINDINGS]
    held = [sum(i.target(card)[column] for i in found.items) for column in range(5)]
    assert held == expected == list(counts)
    assert (found.layout, found.missing, len(found.items)) == ("sample", [], films)
    other = f"its view position is {'PA' if card is AP else 'AP'}"
    assert found.excluded == {other: other_view} | ({WARNING: excluded} if excluded else {})
    assert len({item.group_id for item in found.items}) == own["Patient ID"].nunique()
    total = len(found.items) + sum(found.excluded.values())
    assert total == card.layouts["sample"].records


@pytest.mark.data
def test_sample_patients_are_in_one_split_and_share_their_pseudonym(sample, table):
    source = discover(sample, AP).items
    target = discover(sample, PA, shared_patients="keep").items
    splits: dict[str, set[str]] = {}
    for item in source:
        splits.setdefault(item.group_id, set()).add(item.split)
    assert all(len(own) == 1 for own in splits.values())
    assert Counter(item.split for item in source) == {"train": 442, "validation": 125}
    patients = table.groupby("View Position")["Patient ID"].agg(set)
    both = patients["AP"] & patients["PA"]
    assert len({i.group_id for i in source} & {i.group_id for i in target}) == len(both) == 42
    assert sum(item.details["trained_on"] for item in target) == 43
    training = {item.group_id for item in source if item.split == "train"}
    shown = [item.group_id for item in target if item.group_id in training]
    assert (len(shown), len(set(shown))) == (43, 36)
    fewer = discover(sample, PA)
    assert (len(fewer.items), fewer.excluded[WARNING]) == (390, 43)
    assert not {item.group_id for item in fewer.items} & training
    selecting = {item.group_id for item in source if item.split == "validation"}
    assert len({item.group_id for item in fewer.items} & selecting) == 6


@pytest.mark.data
def test_sample_catalogs_hold_the_films(sample, table, build_here, tmp_path):
    for card in (AP, PA):
        catalog = build_here(card.name, sample, tmp_path / card.name, allow_missing=False)
        assert not verify(catalog).faults
        names = {nih_cxr.record_id(str(row["Patient ID"]), name): name
                 for name, row in table.iterrows()}  # fmt: skip
        assert len(names) == 1000
        rows = 0
        for split in catalog.manifest["splits"]:
            for path, *_ in catalog.shards(split):
                shard = pq.read_table(path)
                signals = decode_signals(shard["signal"], card.signal)
                rows += len(signals)
                for index in range(0, len(signals), 9):
                    name = names[shard["record_id"][index].as_py()]
                    assert np.array_equal(signals[index][0], film(sample, name))
                    assert shard["valid_size"][index].as_py() == [224, 224]
        assert rows == {"nih-cxr-ap": 567, "nih-cxr-pa": 390}[card.name]
        text = json.dumps(catalog.manifest)
        assert not [name for name in table.index if name.partition(".")[0] in text]


def film(sample: Path, name: str) -> np.ndarray:
    with Image.open(sample / "images_224" / name) as image:
        return np.asarray(image.convert("L").resize((224, 224), Image.Resampling.BILINEAR))


@pytest.mark.data
def test_sample_films_of_1024_pixels_become_nearly_those_of_224(sample):
    paths = sorted((sample / "images_1024").iterdir())
    assert len(paths) == 10
    for path in paths:
        resized, valid = fitted(read_image(path, 1), 224)
        assert valid == (224, 224)
        difference = np.abs(resized[0] - film(sample, path.name).astype(int))
        assert difference.mean() < 4
