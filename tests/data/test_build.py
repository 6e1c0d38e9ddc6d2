"""What a build takes over from a dataset's readers, with a dataset that is made up here."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from benchmd_ray.data import build as building
from benchmd_ray.data.build import build
from benchmd_ray.data.cards import Layout, Option
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.raw import Dataset, Discovery, RawItem, Reading
from benchmd_ray.data.records import Record, RecordError, RecordLeftOut
from benchmd_ray.data.verify import verify
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modalities import MODALITIES

CXR = MODALITIES["cxr"]
LAYOUTS = {"films": Layout(description="Made-up films.", records=6)}
OPTIONS = {
    "view": Option("frontal", "Which films.", ("frontal", "lateral")),
    "seed": Option("1", "Any number."),
}
SIZES = [(224, 224), (31, 224), (224, 100), (11, 7), (2, 223), (97, 1)]


def image(number):
    """Grey levels of an item within its valid area, zero beyond."""
    height, width = SIZES[number]
    top, left = (224 - height) // 2, (224 - width) // 2
    signal = np.zeros(CXR.stored_shape, np.uint8)
    pixels = np.random.default_rng(number).integers(1, 256, (height, width), np.uint8)
    signal[0, top : top + height, left : left + width] = pixels
    return signal


def record(item, number, name=None, unit=None):
    name = name or item.record_id
    target = item.target(dataclasses.replace(building.dataset_card("films")))
    return Record(name, item.group_id, unit or name, image(number), 1.0, SIZES[number], target)


@dataclasses.dataclass
class Films:
    """Six films of three patients; ``reads`` replaces what reading one gives."""

    reads: dict = dataclasses.field(default_factory=dict)
    names: tuple = ("f0", "f1", "f2", "f3", "f4", "f5")
    paths: tuple = ("f0.png", "f1.png", "f2.png", "f3.png", "f4.png", "f5.png")
    details: dict = dataclasses.field(default_factory=dict)
    choices: list = dataclasses.field(default_factory=list)

    def discover(self, root, card, choices):
        self.choices.append(dict(choices.options))
        items = [
            RawItem(
                path,
                name,
                f"p{number // 2}",
                "train" if number < 4 else "test",
                labels={"edema": number % 2, "cardiomegaly": 1},
                details={"number": number, **self.details},
            )
            for number, (name, path) in enumerate(zip(self.names, self.paths, strict=True))
        ]
        return Discovery("films", items, left_out={"it is no film": 0})

    def read(self, root, item, card):
        number = item.details["number"]
        if number in self.reads:
            return self.reads[number](root, item)
        return Reading([record(item, number)])


@pytest.fixture
def films(changed_card, monkeypatch):
    """The dataset ``films``, built in this process and without Ray."""
    made = Films()
    changed_card("films", modality="cxr", layouts=LAYOUTS, options=OPTIONS)
    monkeypatch.setitem(building.DATASETS, "films", Dataset(made.discover, made.read))
    monkeypatch.setattr(building, "connected", lambda *_, **__: contextlib.nullcontext())

    def build_all(chunks):
        for chunk in chunks:
            row = {"chunk": json.dumps(dataclasses.asdict(chunk))}
            yield json.loads(building._build_row(row)["part"])

    monkeypatch.setattr(building, "_map", build_all)
    return made


@pytest.fixture
def raw(tmp_path):
    (tmp_path / "raw").mkdir()
    return tmp_path / "raw"


# --- options ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, {"view": "frontal", "seed": "1"}),
        ({}, {"view": "frontal", "seed": "1"}),
        ({"view": "lateral"}, {"view": "lateral", "seed": "1"}),
        ({"seed": "anything"}, {"view": "frontal", "seed": "anything"}),
    ],
)
def test_options_reach_the_dataset_and_the_manifest(films, raw, tmp_path, given, expected):
    built = build("films", raw, tmp_path / "out", options=given)
    assert films.choices == [expected]
    assert built.manifest["options"] == expected


def test_unknown_options_and_values_are_refused(films, raw, tmp_path):
    for given, message in (
        ({"veiw": "frontal"}, r"unknown option of films 'veiw'\. Did you mean 'view'\?.* seed, vi"),
        ({"view": "latral"}, r"value of the option view of films: 'latral'\. Did you mean 'later"),
    ):
        with pytest.raises(BenchmdError, match=message):
            build("films", raw, tmp_path / "out", options=given)
    assert films.choices == []


def test_other_options_are_another_catalog(films, raw, tmp_path):
    first = build("films", raw, tmp_path / "out")
    assert build("films", raw, tmp_path / "out", options={"view": "frontal"}).digest == first.digest
    with pytest.raises(BenchmdError, match="built from other raw files, policy, options or ver"):
        build("films", raw, tmp_path / "out", options={"view": "lateral"})
    other = build("films", raw, tmp_path / "other", options={"view": "lateral"})
    assert other.manifest["plan"] != first.manifest["plan"]


# --- what is kept ----------------------------------------------------------------------------


def rows(built, split):
    import pyarrow.parquet as pq

    return [row for path, _ in built.shards(split) for row in pq.read_table(path).to_pylist()]


def test_an_id_that_is_there_twice_is_kept_once_and_counted(films, raw, tmp_path):
    films.names = ("f0", "f1", "f0", "f3", "f1", "f1")
    built = build("films", raw, tmp_path / "out")
    kept = rows(built, "train") + rows(built, "test")
    assert [row["record_id"] for row in kept] == ["f0", "f1", "f3"]
    assert [row["valid_size"] for row in kept] == [list(SIZES[i]) for i in (0, 1, 3)]
    assert built.manifest["left_out"]["its id is there twice; the first is kept"] == 3
    assert built.manifest["raw"]["records"] == 6  # so that a whole folder counts as whole
    assert not verify(built).faults


def test_ids_that_are_all_different_are_counted_nowhere(films, raw, tmp_path):
    built = build("films", raw, tmp_path / "out")
    assert built.manifest["left_out"] == {"it is no film": 0}
    assert built.manifest["remarks"] == {}
    assert [built.rows("train"), built.rows("test")] == [4, 2]


def test_remarks_and_parts_left_out_are_counted_over_all_files(films, raw, tmp_path):
    def several(root, item):
        number = item.details["number"]
        records = [record(item, number, f"{item.record_id}-{i}", item.record_id) for i in range(3)]
        return Reading(records, Counter({"it is unscored": 4}), Counter({"it is padded": 3}))

    def one(root, item):
        return Reading([record(item, 3)], remarks=Counter({"it is padded": 1, "it is old": 1}))

    def none(root, item):
        raise RecordLeftOut("it is unscored")

    films.reads = {0: several, 3: one, 4: several, 5: none}
    built = build("films", raw, tmp_path / "out")
    assert built.manifest["remarks"] == {"it is old": 1, "it is padded": 7}
    assert built.manifest["left_out"] == {"it is no film": 0, "it is unscored": 9}
    splits = built.manifest["splits"]
    for split, (records, units, patients) in {"train": (6, 4, 2), "test": (3, 1, 1)}.items():
        held = rows(built, split)
        assert len(held) == splits[split]["records"] == records
        assert len({row["unit_id"] for row in held}) == splits[split]["units"] == units
        assert len({row["group_id"] for row in held}) == splits[split]["patients"] == patients
        for place, name in enumerate(CXR.classes):
            positive = sum(row["target"][place] == 1 for row in held)
            assert splits[split]["classes"][name] == positive
    notes = verify(built).notes
    assert "7 records: it is padded" in notes
    assert "1 records: it is old" in notes


def test_statistics_are_of_the_pixels_within_the_valid_size(films, raw, tmp_path):
    built = build("films", raw, tmp_path / "out")
    values = []
    for number in range(4):
        height, width = SIZES[number]
        top, left = (224 - height) // 2, (224 - width) // 2
        values += image(number)[0, top : top + height, left : left + width].ravel().tolist()
    assert built.statistics["mean"] == pytest.approx([np.mean(values)])
    assert built.statistics["std"] == pytest.approx([np.std(values)])
    padded = np.stack([image(number) for number in range(4)])
    assert built.statistics["mean"][0] > 1.3 * padded.mean()


# --- quarantine ------------------------------------------------------------------------------

SECRET = "DOE-JANE-1951"
FOLDER = f"ward7/{SECRET}"
FILE = f"{FOLDER}/{SECRET}_L_film.png"
SIBLING = f"{FOLDER}/DOE-JANE-notes.csv"


def failing(kind):
    def read(root, item):
        if kind == "message":
            raise RecordError(f"{root / FILE}: {SECRET}_L_film.png beside {root / SIBLING} is cut")
        if kind == "names":
            raise RecordError(f"{SECRET}_L_film and DOE-JANE-notes.csv in {SECRET} do not agree")
        return (root / FILE).read_bytes() and (root / SIBLING).open()  # errors name the file

    return read


def no_name(text):
    return not [
        name for name in (SECRET, "DOE", "JANE", "_L_film", "notes", "ward7") if name in text
    ]


@pytest.mark.parametrize("kind", ["message", "names", "missing file"])
@pytest.mark.parametrize(
    "details", [{"notes": SIBLING}, {"files": [SIBLING], "one": {"two": SECRET}}]
)
def test_names_that_name_patients_are_not_written_down(
    films, raw, tmp_path, changed_card, kind, details
):
    changed_card("films", modality="cxr", layouts=LAYOUTS, options=OPTIONS, private_names=True)
    films.paths = (*films.paths[:2], FILE, *films.paths[3:])
    films.reads, films.details = {2: failing(kind)}, details
    with pytest.raises(BenchmdError, match="1 of 6 records cannot be read") as caught:
        build("films", raw, tmp_path / "out")
    assert "record f2: " in str(caught.value)
    assert no_name(str(caught.value))
    built = build("films", raw, tmp_path / "out", max_quarantined=0.5)
    (entry,) = built.manifest["quarantined"]
    assert (entry["record"], entry["file"]) == ("f2", None)
    words = {"message": "is cut", "names": "do not agree", "missing file": "FileNotFoundError"}
    assert words[kind] in entry["reason"]
    for path in (tmp_path / "out").rglob("*"):
        assert path.is_dir() or no_name(path.read_bytes().decode("latin-1")), path


def test_files_of_a_series_and_short_names_are_not_written_down(films, raw, tmp_path, changed_card):
    changed_card("films", modality="cxr", layouts=LAYOUTS, options=OPTIONS, private_names=True)
    (raw / FOLDER / "P7").mkdir(parents=True)
    (raw / FOLDER / "P7" / "DOE-JANE.004.dcm").touch()
    films.paths = (*films.paths[:2], FOLDER, *films.paths[3:])

    def read(root, item):
        raise RecordError("P7/DOE-JANE.004.dcm, slice 9 of UP71 in DOE-JANE.004: cut off; see P7")

    films.reads = {2: read}
    built = build("films", raw, tmp_path / "out", max_quarantined=0.5)
    (entry,) = built.manifest["quarantined"]
    assert no_name(entry["reason"])
    assert entry["reason"] == "…/…, slice 9 of UP71 in …: cut off; see …"


def test_other_datasets_name_the_file_and_the_reason_in_full(films, raw, tmp_path):
    films.paths = (*films.paths[:2], FILE, *films.paths[3:])
    films.reads = {2: failing("names")}
    built = build("films", raw, tmp_path / "out", max_quarantined=0.5)
    reason = f"{SECRET}_L_film and DOE-JANE-notes.csv in {SECRET} do not agree"
    assert built.manifest["quarantined"] == [{"record": "f2", "file": FILE, "reason": reason}]


# --- verify ----------------------------------------------------------------------------------


@pytest.fixture
def notes(films, raw, tmp_path, changed_card):
    """The notes of `verify` where the card expects some counts."""

    def make(expected):
        layouts = {"films": Layout(description="Made-up films.", records=6)}
        changed_card("films", modality="cxr", layouts=layouts, expected={"clean": expected})
        built = build("films", raw, tmp_path / f"out{len(films.choices)}")
        return set(verify(open_catalog(Path(built.path))).notes)

    return make


def test_published_counts_of_a_split_and_in_total_are_compared(notes):
    # edema is positive in two films of train and one of test, cardiomegaly in all
    base = notes({})
    assert notes({"total": {"edema": 3, "cardiomegaly": 6}}) == base
    assert notes({"train": {"edema": 2}, "test": {"cardiomegaly": 2}}) == base
    found = notes({"total": {"edema": 4, "cardiomegaly": 5}, "test": {"edema": 3}}) - base
    assert found == {
        "total, edema: 3 records, published 4 (-1, -25.0%)",
        "total, cardiomegaly: 6 records, published 5 (+1, +20.0%)",
        "test, edema: 1 records, published 3 (-2, -66.7%)",
    }
    assert notes({"total": {"consolidation": 0}, "train": {"edema": 0}}) - base == {
        "train, edema: 2 records, published 0 (+2)"
    }
