"""What a build takes over from a dataset's readers, with a dataset that is made up here."""

from __future__ import annotations

import dataclasses
import errno
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from in_process import build_in_process
from kinds import MODALITIES

from benchmd_ray.data import build as building
from benchmd_ray.data import chunks
from benchmd_ray.data.build import build
from benchmd_ray.data.cards import Layout, Option
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.datasets import DATASETS
from benchmd_ray.data.duplicates import COPIES
from benchmd_ray.data.raw import Discovery, RawItem, RawReader, Reading
from benchmd_ray.data.records import Record, RecordError, RecordExcluded
from benchmd_ray.data.verify import verify
from benchmd_ray.errors import BenchmdError, Busy
from benchmd_ray.modality.modalities import modality

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
    signal = np.zeros(CXR.signal.stored_shape, np.uint8)
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
        return Discovery("films", items, excluded={"it is not a film": 0})

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
    monkeypatch.setitem(DATASETS, "films", RawReader(made.discover, made.read))
    build_in_process(monkeypatch)
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


def test_a_card_that_was_edited_is_said_to_be(films, raw, tmp_path, changed_card):
    build("films", raw, tmp_path / "out")
    cxr = modality("cxr")
    other = dataclasses.replace(cxr, signal=dataclasses.replace(cxr.signal, unit="another"))
    changed_card("films", modality=other, layouts=LAYOUTS, options=OPTIONS)
    with pytest.raises(BenchmdError, match=r"since then its signal\.unit changed\. Choose another"):
        build("films", raw, tmp_path / "out")


# --- what is kept ----------------------------------------------------------------------------


def rows(built, split):
    import pyarrow.parquet as pq

    return [row for path, *_ in built.shards(split) for row in pq.read_table(path).to_pylist()]


def test_an_id_that_is_there_twice_is_kept_once_and_counted(films, raw, tmp_path):
    films.names = ("f0", "f1", "f0", "f3", "f1", "f1")
    with pytest.raises(BenchmdError, match="holds 3 records of films, the card expects 6"):
        build("films", raw, tmp_path / "out")  # what appears twice is not a further record
    built = build("films", raw, tmp_path / "out", allow_missing=True)
    kept = rows(built, "train") + rows(built, "test")
    assert [row["record_id"] for row in kept] == ["f0", "f1", "f3"]
    assert [row["valid_size"] for row in kept] == [list(SIZES[i]) for i in (0, 1, 3)]
    assert built.manifest["excluded"]["its id appears twice; the first is kept"] == 3
    assert built.manifest["raw"]["records"] == 3
    assert not verify(built).faults


def test_ids_that_are_all_different_are_counted_nowhere(films, raw, tmp_path):
    built = build("films", raw, tmp_path / "out")
    assert built.manifest["excluded"] == {"it is not a film": 0}
    assert built.manifest["warnings"] == {}
    assert [built.rows("train"), built.rows("test")] == [4, 2]


def test_warnings_and_parts_excluded_are_counted_over_all_files(films, raw, tmp_path):
    def several(root, item):
        number = item.details["number"]
        records = [record(item, number, f"{item.record_id}-{i}", item.record_id) for i in range(3)]
        return Reading(records, Counter({"it is unscored": 4}), Counter({"it is padded": 3}))

    def one(root, item):
        return Reading([record(item, 3)], warnings=Counter({"it is padded": 1, "it is old": 1}))

    def none(root, item):
        raise RecordExcluded("it is unscored")

    films.reads = {0: several, 3: one, 4: several, 5: none}
    built = build("films", raw, tmp_path / "out")
    copies = {COPIES: 4}  # of two films, three records each
    assert built.manifest["warnings"] == {"it is old": 1, "it is padded": 7} | copies
    assert built.manifest["excluded"] == {"it is not a film": 0, "it is unscored": 9}
    splits = built.manifest["splits"]
    for split, (records, units, patients) in {"train": (6, 4, 2), "test": (3, 1, 1)}.items():
        held = rows(built, split)
        assert len(held) == splits[split]["records"] == records
        assert len({row["unit_id"] for row in held}) == splits[split]["units"] == units
        assert len({row["group_id"] for row in held}) == splits[split]["patients"] == patients
        for place, name in enumerate(CXR.task.classes):
            positive = sum(row["target"][place] == 1 for row in held)
            assert splits[split]["classes"][name] == positive
    notes = verify(built).notes
    assert "7 records: it is padded" in notes
    assert "1 record: it is old" in notes


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
        name for name in (SECRET, "DOE", "JANE", "_L_film", "notes.", "ward7") if name in text
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
        "test, edema: 1 record, published 3 (-2, -66.7%)",
    }
    assert notes({"total": {"consolidation": 0}, "train": {"edema": 0}}) - base == {
        "train, edema: 2 records, published 0 (+2)"
    }


# --- resuming --------------------------------------------------------------------------------


def chunks_of(monkeypatch, records):
    """Shards of so many records."""
    monkeypatch.setattr(building, "CHUNK_BYTES", records * 224 * 224)


def killed_before_the_manifest(monkeypatch, raw, out, **changes):
    with monkeypatch.context() as patch:
        patch.setattr(building, "manifest_of", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build("films", raw, out, **changes)


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2), (1, 3), (3, 1)])
def test_a_build_goes_on_with_shards_of_another_size(
    films, raw, tmp_path, monkeypatch, before, after
):
    chunks_of(monkeypatch, before)
    killed_before_the_manifest(monkeypatch, raw, tmp_path / "out")
    chunks_of(monkeypatch, after)
    built = build("films", raw, tmp_path / "out")
    held = [row["record_id"] for row in rows(built, "train") + rows(built, "test")]
    assert held == list(films.names)
    assert built.digest == build("films", raw, tmp_path / "whole").digest
    assert not verify(built).faults


def test_a_new_shard_never_ends_beside_an_older_part(films, raw, tmp_path, monkeypatch):
    out = tmp_path / "out"
    whole = build("films", raw, tmp_path / "whole")
    killed_before_the_manifest(monkeypatch, raw, out)
    write = chunks.write

    def killed(path, content):
        if path.parent.name == "parts":
            raise KeyboardInterrupt
        write(path, content)

    other = {number: lambda root, item: Reading([record(item, 0)]) for number in range(6)}
    with monkeypatch.context() as patch:
        patch.setattr(chunks, "write", killed)
        patch.setattr(films, "reads", other)
        with pytest.raises(KeyboardInterrupt):
            build("films", raw, out, options={"view": "lateral"})
    built = build("films", raw, out)
    assert not verify(built).faults
    assert built.digest == whole.digest


@pytest.mark.parametrize(
    "damaged", [lambda b: b[: len(b) // 2], lambda b: b.replace(b"rows", b"rowz")]
)
def test_a_shard_with_a_damaged_part_is_built_again(films, raw, tmp_path, monkeypatch, damaged):
    whole = build("films", raw, tmp_path / "whole")
    killed_before_the_manifest(monkeypatch, raw, tmp_path / "out")
    for part in (tmp_path / "out" / "parts").iterdir():
        held = part.read_bytes()
        part.write_bytes(damaged(held))
        assert part.read_bytes() != held
    assert build("films", raw, tmp_path / "out").digest == whole.digest


def test_chunks_that_never_came_back_are_noticed(films, raw, tmp_path, monkeypatch):
    whole = building._map
    chunks_of(monkeypatch, 2)
    monkeypatch.setattr(building, "_map", lambda chunks: list(whole(chunks))[1:])
    with pytest.raises(BenchmdError, match=r"hold 4 raw records of 6: .* resumes where it stopped"):
        build("films", raw, tmp_path / "out")


# --- the folder --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "foreign",
    ["notes.txt", "shards/my.parquet", "parts/train.json", "shards/train-00001/x", "figures/a.png"],
)
def test_what_no_build_wrote_is_never_removed(films, raw, tmp_path, foreign):
    path = tmp_path / "out" / foreign
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(
        BenchmdError, match=r"holds something else than a catalog, .*move that away"
    ):
        build("films", raw, tmp_path / "out")
    assert path.read_text() == "mine"
    assert not (tmp_path / "out" / ".lock").exists()


def test_figures_beside_a_finished_catalog_are_left_alone(films, raw, tmp_path):
    first = build("films", raw, tmp_path / "out")
    (tmp_path / "out" / "figures").mkdir()
    (tmp_path / "out" / "figures" / "a.png").write_text("mine")
    (first.path / first.manifest["shards"][0]["file"]).unlink()
    assert build("films", raw, tmp_path / "out").digest == first.digest
    assert (tmp_path / "out" / "figures" / "a.png").read_text() == "mine"


def test_a_split_table_of_no_use_is_refused(films, raw, tmp_path, changed_card):
    with pytest.raises(BenchmdError, match="is only for the policy released"):
        build("films", raw, tmp_path / "out", split_table=tmp_path / "a.csv")
    changed_card("films", modality="cxr", layouts=LAYOUTS, options=OPTIONS, split_table="")
    with pytest.raises(BenchmdError, match="is only for other datasets"):
        build("films", raw, tmp_path / "out", policy="released", split_table=tmp_path / "a.csv")


# --- records that a catalog cannot hold, and files that cannot be read for now --------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"signal": np.zeros((1, 7, 7), np.uint8)}, "f2: signal of shape (1, 7, 7) and type uint8"),
        ({"metadata": {"age": "061Y"}}, "f2: its age is '061Y', expected float"),
        ({"metadata": {"age": 91.0}}, "f2: an age is not within 0 to 90 years"),
        ({"target": [0, 2, 0, 0, 0]}, "f2: its targets are not 1, 0 or -1"),
    ],
)
def test_a_record_that_no_catalog_can_hold_is_quarantined(films, raw, tmp_path, change, reason):
    def odd(root, item):
        return Reading([record(item, 2), dataclasses.replace(record(item, 2), **change)])

    films.reads = {2: odd}
    built = build("films", raw, tmp_path / "out", max_quarantined=0.5)
    (entry,) = built.manifest["quarantined"]
    assert reason in entry["reason"]
    assert [built.rows("train"), built.rows("test")] == [3, 2]


def failing_with(number, wrapped):
    def read(root, item):
        error = OSError(number, "odd", str(root / item.path))
        if wrapped:
            raise RecordError("not a readable film") from error
        raise error

    return read


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("name", ["EIO", "ESTALE", "ENFILE", "EMFILE", "ENOMEM", "ENOSPC"])
def test_a_disk_that_fails_for_now_quarantines_nothing(films, raw, tmp_path, name, wrapped):
    films.reads = {2: failing_with(getattr(errno, name), wrapped)}
    with pytest.raises(
        BenchmdError, match=r"f2\.png cannot be read at the moment: .*command again"
    ):
        build("films", raw, tmp_path / "out", max_quarantined=1.0)
    films.reads = {}
    assert build("films", raw, tmp_path / "out").manifest["quarantined"] == []


@pytest.mark.parametrize("error", [MemoryError("no"), PermissionError(13, "no")])
def test_an_error_while_writing_names_the_records(films, raw, tmp_path, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(chunks, "shard_part", fail)
    with pytest.raises(
        BenchmdError, match=r"the records f. to f. could not be built: .*Error: .*no"
    ):
        build("films", raw, tmp_path / "out")


def test_quarantined_files_are_read_again_when_asked(films, raw, tmp_path, monkeypatch):
    whole = build("films", raw, tmp_path / "whole")
    chunks_of(monkeypatch, 1)
    several = build("films", raw, tmp_path / "several")
    out, read = tmp_path / "out", []
    films.reads = {2: failing_with(errno.ENOENT, False)}
    first = build("films", raw, out, max_quarantined=0.5)
    assert len(first.manifest["quarantined"]) == 1
    reading = {n: lambda r, i, n=n: read.append(n) or Reading([record(i, n)]) for n in range(6)}
    films.reads = reading
    assert build("films", raw, out).digest == first.digest
    assert read == []
    mended = build("films", raw, out, retry_quarantined=True)
    assert read == [2]
    assert mended.manifest["quarantined"] == []
    assert mended.digest == several.digest != whole.digest
    assert not (out / "parts").exists()
    assert build("films", raw, out, retry_quarantined=True).digest == mended.digest
    assert read == [2]


def test_a_build_that_is_no_longer_alone_after_tidying_up_writes_no_manifest(tmp_path):
    stale = tmp_path / "shards" / "train-00009.parquet"
    stale.parent.mkdir()
    stale.touch()

    def require_alone():
        if not stale.exists():
            raise Busy("taken over")

    with pytest.raises(Busy):
        building._finish(tmp_path, {"shards": [], "quarantined": []}, require_alone)
    assert not (tmp_path / "manifest.json").exists()


def test_reasons_do_not_depend_on_where_the_raw_folder_lies(films, tmp_path):
    films.reads = {2: failing_with(errno.ENOENT, False)}
    digests = set()
    for name in ("a", "elsewhere/b"):
        (tmp_path / name).mkdir(parents=True)
        built = build("films", tmp_path / name, tmp_path / f"{name}-out", max_quarantined=0.5)
        assert built.manifest["quarantined"][0]["reason"].endswith(" odd: 'f2.png'")
        digests.add(built.digest)
    assert len(digests) == 1


def test_words_that_are_no_names_stay_in_reasons(films, raw, tmp_path, changed_card):
    tree = "FOLDER/\n  valid/patient00001/view1.jpg\n"
    layouts = {"films": dataclasses.replace(LAYOUTS["films"], tree=tree)}
    changed_card("films", modality="cxr", layouts=layouts, options=OPTIONS, private_names=True)
    films.paths = (*films.paths[:2], "valid/patient00001/view1.jpg", *films.paths[3:])
    films.details = {"readers": "3", "slices": 2.5, "agreement": "none"}

    def read(root, item):
        raise RecordError(
            "a valid mark of 3 readers, none at 2.5 mm, in patient00001_view1: invalid"
        )

    films.reads = {2: read}
    built = build("films", raw, tmp_path / "out", max_quarantined=0.5)
    reason = "a valid mark of 3 readers, none at 2.5 mm, in …_…: invalid"
    assert built.manifest["quarantined"][0]["reason"] == reason
