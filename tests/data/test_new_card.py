"""`benchmd catalog new`: a folder's first card builds as it is, or says what is missing."""

from __future__ import annotations

import re

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import wfdb
from click.testing import CliRunner
from PIL import Image

from benchmd_ray.cli import main
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.guess import guessed
from benchmd_ray.data.new_card import new_card
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.card_folders import CARDS

KINDS = ("cat", "dog", "eel")
NO_RATE = "the files state no rate: 100 Hz is only a guess, see rate in both cards"


def write_pictures(root, names, channels=3, size=(12, 10)):
    rng = np.random.default_rng(0)
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shape = size if channels == 1 else (*size, 3)
        Image.fromarray(rng.integers(0, 256, shape, np.uint8)).save(path)


def build(name, raw, tmp_path, monkeypatch, build_here):
    paths, guess = new_card(name, raw, tmp_path / "cards")
    monkeypatch.setenv(CARDS, str(tmp_path / "cards"))
    assert [path.name for path in paths] == [f"{name}.yaml", f"{name}.yaml"]
    return build_here(name, raw, tmp_path / "catalog", allow_missing=False), guess.unknown


def counts(catalog):
    held = [split["classes"] for split in catalog.manifest["splits"].values()]
    return {name: sum(split[name] for split in held) for name in catalog.task.classes}


def test_folders_of_splits_and_classes(tmp_path, monkeypatch, build_here):
    raw = tmp_path / "raw"
    sizes = {"Train": 4, "valid": 2, "test": 3}
    write_pictures(
        raw, [f"{s}/{k}/{n}.jpg" for s, c in sizes.items() for k in KINDS for n in range(c)]
    )
    catalog, unknown = build("pets", raw, tmp_path, monkeypatch, build_here)
    assert not unknown
    assert {split: catalog.rows(split) for split in ("train", "validation", "test")} == {
        "train": 12, "validation": 6, "test": 9,
    }  # fmt: skip
    assert counts(catalog) == dict.fromkeys(KINDS, 9)


@pytest.mark.parametrize(
    ("codes", "expected"),
    [(("0", "1"), {}), (("m", "F"), {"sex": "sex"}), (("", "M"), {"sex": "sex"})],
)
def test_a_column_of_codes_is_no_metadata(codes, expected, tmp_path):
    """No one can say whether 0 is male."""
    write_pictures(tmp_path, [f"{n}.png" for n in range(6)], channels=1)
    lines = [f"{n}.png,{KINDS[n % 3]},{codes[n % 2]}" for n in range(6)]
    (tmp_path / "list.csv").write_text("name,diagnosis,sex\n" + "\n".join(lines) + "\n")
    found = guessed(tmp_path)
    assert found.files.get("metadata", {}) == expected
    assert ("what the codes of the column sex mean" in found.unknown) == (not expected)
    assert found.files["label"] == "diagnosis"


@pytest.mark.parametrize("column", ["donor", "Volunteer ID"])
def test_a_column_of_people_is_that_of_patients(column, tmp_path):
    write_pictures(tmp_path, [f"{n}.png" for n in range(6)], channels=1)
    lines = [f"{n}.png,{KINDS[n % 3]},D{n // 2}" for n in range(6)]
    (tmp_path / "list.csv").write_text(f"name,diagnosis,{column}\n" + "\n".join(lines) + "\n")
    found = guessed(tmp_path)
    assert found.files["patient"] == column
    assert not found.cautions


def test_a_table_of_grey_pictures_in_a_folder(tmp_path, monkeypatch, build_here):
    raw = tmp_path / "raw"
    write_pictures(raw, [f"images/{n}.png" for n in range(30)], channels=1)
    lines = [f"{n}\tp{n // 2}\t{KINDS[n % 3]}\t{40 + n}" for n in range(30)]
    (raw / "list.tsv").write_text("name\tpatient\tdiagnosis\tage\n" + "\n".join(lines) + "\n")
    catalog, unknown = build("grey-pets", raw, tmp_path, monkeypatch, build_here)
    assert (unknown, catalog.signal.stored_shape) == ([], (1, 28, 28))
    assert counts(catalog) == dict.fromkeys(KINDS, 10)
    assert sum(held["patients"] for held in catalog.manifest["splits"].values()) == 15
    files = dataset_card("grey-pets").files
    assert (files.path, files.suffix, files.folder) == ("name", ".png", "images")
    assert (files.patient, files.metadata) == ("patient", {"age": "age"})


def test_a_parquet_table(tmp_path, monkeypatch, build_here):
    raw = tmp_path / "raw"
    write_pictures(raw, [f"{n}.png" for n in range(12)])
    rows = {"file": [f"{n}.png" for n in range(12)], "class": [KINDS[n % 3] for n in range(12)]}
    pq.write_table(pa.table(rows), raw / "rows.parquet")
    catalog, unknown = build("parquet-pets", raw, tmp_path, monkeypatch, build_here)
    assert counts(catalog) == dict.fromkeys(KINDS, 4)
    assert not unknown


def test_recordings_in_folders_named_by_class(tmp_path, monkeypatch, build_here):
    raw, rng = tmp_path / "raw", np.random.default_rng(1)
    for kind in KINDS[:2]:
        (raw / kind).mkdir(parents=True)
        for number in range(6):
            wfdb.wrsamp(
                f"{kind}{number}", 40, ["mV"] * 2, ["a", "b"], p_signal=rng.normal(size=(400, 2)),
                fmt=["16"] * 2, write_dir=str(raw / kind),
            )  # fmt: skip
    catalog, unknown = build("waves", raw, tmp_path, monkeypatch, build_here)
    assert not unknown
    assert (catalog.signal.channels, catalog.signal.rate) == (("a", "b"), 40)
    assert counts(catalog) == {"cat": 6, "dog": 6}


def test_of_a_recording_only_voltages_are_guessed_to_be_wanted(tmp_path, monkeypatch, build_here):
    raw, rng = tmp_path / "raw", np.random.default_rng(1)
    for kind in KINDS[:2]:
        (raw / kind).mkdir(parents=True)
        for number in range(6):
            wfdb.wrsamp(
                f"{kind}{number}", 40, ["NU", "mV", "mmHg"], ["P", "II", "ABP"],
                p_signal=rng.normal(size=(400, 3)), fmt=["16"] * 3, write_dir=str(raw / kind),
            )  # fmt: skip
    catalog, _ = build("waves", raw, tmp_path, monkeypatch, build_here)
    assert (catalog.signal.channels, catalog.signal.rate) == (("II",), 40)
    assert counts(catalog) == {"cat": 6, "dog": 6}


def test_a_rate_that_no_file_states_is_said(tmp_path, monkeypatch, build_here):
    raw = tmp_path / "raw"
    for kind in KINDS[:2]:
        (raw / kind).mkdir(parents=True)
        for number in range(4):
            values = np.random.default_rng(number).normal(size=(1000, 2))
            np.savetxt(raw / kind / f"{number}.csv", values, "%.4f", ",", header="x,y", comments="")
    catalog, (unknown,) = build("steps", raw, tmp_path, monkeypatch, build_here)
    assert unknown == NO_RATE
    assert catalog.signal.channels == ("x", "y")
    assert unknown in (tmp_path / "cards" / "steps.yaml").read_text()


def test_a_name_of_a_table_adds_no_line_to_the_card(tmp_path):
    write_pictures(tmp_path / "raw", [f"{n}.png" for n in range(6)])
    lines = [f"{n}.png,{KINDS[n % 2]}" for n in range(6)]
    (tmp_path / "raw" / "t\nroot: 1\n.csv").write_text("name,kind\n" + "\n".join(lines) + "\n")
    new_card("pets", tmp_path / "raw", tmp_path / "cards")
    text = (tmp_path / "cards" / "pets.yaml").read_text()
    assert "root: 1" in text
    assert not [line for line in text.splitlines() if line.startswith("root")]


@pytest.mark.parametrize("header", ["x,y", ""])
@pytest.mark.parametrize(("samples", "expected"), [(400, 400), (410, 425), (5000, 1000), (9, 9)])
def test_records_are_as_long_as_the_longest_up_to_ten_seconds(tmp_path, samples, expected, header):
    for kind in KINDS[:2]:
        (tmp_path / kind).mkdir()
        values = np.zeros((samples if kind == KINDS[0] else 8, 2))
        np.savetxt(tmp_path / kind / "1.csv", values, "%.1f", ",", header=header, comments="")
    assert guessed(tmp_path).signal["stored_shape"] == [2, expected]


@pytest.mark.parametrize(
    ("files", "name", "message"),
    [
        (["1.png"], "pets", "nothing in .* tells the classes of its files: expected a table"),
        (["a/1.png", "a/2.png"], "pets", "all files of .* are in one folder, a: expected two"),
        (["train/1.png"], "pets", "the folders in .* name splits, and none in them classes"),
        (["a/1.xyz"], "pets", r"holds no file of a known format: expected one of \.png"),
        (["a/1.png", "b/1.png"], "../pets", "'../pets' is not a valid name of a dataset"),
    ],
)
def test_what_cannot_be_guessed_is_refused_and_nothing_written(tmp_path, files, name, message):
    raw = tmp_path / "raw"
    write_pictures(raw, [file for file in files if file.endswith("png")])
    for file in files:
        (raw / file).parent.mkdir(parents=True, exist_ok=True)
        (raw / file).touch()
    with pytest.raises(BenchmdError, match=message):
        new_card(name, raw, tmp_path / "cards")
    assert not (tmp_path / "cards").exists()


def test_no_card_is_written_over(tmp_path):
    raw = tmp_path / "raw"
    write_pictures(raw, ["a/1.png", "b/1.png"])
    arguments = ["catalog", "new", "pets", "--from", str(raw), "--out", str(tmp_path / "cards")]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert f"next: benchmd catalog build pets --cards {tmp_path / 'cards'}" in done.output
    held = (tmp_path / "cards" / "pets.yaml").read_bytes()
    again = CliRunner().invoke(main, arguments)
    assert (again.exit_code, "is there already" in again.output) == (1, True)
    assert (tmp_path / "cards" / "pets.yaml").read_bytes() == held


def test_real_volumes_in_folders_named_by_class(tmp_path, monkeypatch, build_here, real_data):
    raw = tmp_path / "raw"
    files = sorted((real_data / "segmentation" / "hippocampus" / "images").glob("*.nii.gz"))
    for kind, held in zip(("left", "right"), (files[:6], files[6:12]), strict=True):
        (raw / kind).mkdir(parents=True)
        for path in held:
            (raw / kind / path.name).symlink_to(path)
    (raw / "left" / "notes.csv").write_text("a,b\n1,2\n")
    catalog, unknown = build("brains", raw, tmp_path, monkeypatch, build_here)
    assert not unknown
    assert catalog.signal.axes == ("channel", "z", "y", "x")
    assert catalog.signal.stored_shape == (1, 32, 96, 96)
    # a window of 32 slices, and a second one where there are more
    assert set(counts(catalog).values()) <= set(range(6, 13))
    assert sum(held["patients"] for held in catalog.manifest["splits"].values()) == 12


@pytest.mark.parametrize("end", [".npy", ".npz", ".h5"])
def test_arrays_in_folders_named_by_class(tmp_path, monkeypatch, build_here, end):
    rng, raw = np.random.default_rng(2), tmp_path / "raw"
    for kind in KINDS[:2]:
        (raw / kind).mkdir(parents=True)
        for number in range(6):
            values = rng.normal(size=(3, 1000))
            path = raw / kind / f"{number}{end}"
            if end == ".h5":
                with h5py.File(path, "w") as file:
                    file["values"] = values
            else:
                (np.save if end == ".npy" else np.savez)(path, values)
    catalog, unknown = build("wrists", raw, tmp_path, monkeypatch, build_here)
    assert len(unknown) == 1
    assert "100 Hz is only a guess" in unknown[0]
    assert catalog.signal.stored_shape == (3, 1000)
    assert counts(catalog) == dict.fromkeys(KINDS[:2], 6)


def test_an_array_that_has_to_be_named_is_said(tmp_path):
    for kind in KINDS[:2]:
        (tmp_path / "raw" / kind).mkdir(parents=True)
        np.savez(tmp_path / "raw" / kind / "x.npz", one=np.zeros((2, 9)), two=np.zeros((2, 9)))
    with pytest.raises(BenchmdError, match=r"several arrays .*its arrays are: one, two"):
        new_card("pairs", tmp_path / "raw", tmp_path / "cards")
    assert not (tmp_path / "cards").exists()


def guess_of(raw, tmp_path, name="own"):
    return new_card(name, raw, tmp_path / "cards")[1]


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_columns_are_known_by_name_however_they_are_written(tmp_path, mark):
    raw = tmp_path / "raw"
    write_pictures(raw, [f"{n}.png" for n in range(6)])
    rows = [["File", "PatientId", "target", "Set", "kind"]]
    rows += [
        [f"{n}.png", f"p{n}", str(n / 7), "val" if n else "odd", KINDS[n % 2]] for n in range(6)
    ]
    rows += [[f"x{n}.png", "p", str(n / 7), "train", "cat"] for n in range(300)]
    (raw / "list.csv").write_text("\n".join(mark.join(row) for row in rows))
    guess = guess_of(raw, tmp_path)
    assert guess.files == {
        "table": "list.csv", "path": "File", "patient": "PatientId", "split": "Set",
        "splits": {"train": "train", "val": "validation"}, "label": "kind",
    }  # fmt: skip
    assert guess.classes == ["cat", "dog"]
    odd, too_many = guess.unknown
    assert "the column target is: it has 300 different values" in too_many
    assert "'odd' in the column Set" in odd
    assert (
        "# Guessed: patients are in the column PatientId."
        in (tmp_path / "cards" / "own.yaml").read_text()
    )


def test_a_column_that_names_no_split_is_not_taken_for_one(tmp_path):
    raw = tmp_path / "raw"
    write_pictures(raw, [f"{n}.png" for n in range(6)])
    lines = [f"{n}.png,{KINDS[n % 2]},{n % 3}" for n in range(6)]
    (raw / "list.csv").write_text("\n".join(["file,class,fold", *lines]))
    guess = guess_of(raw, tmp_path)
    assert "split" not in guess.files
    (fold,) = guess.unknown
    assert fold == "what the column fold is: none of its values names a split"


def test_recordings_next_to_their_table_are_no_tables(tmp_path):
    raw = tmp_path / "raw"
    raw.mkdir()
    values = np.random.default_rng(0).normal(size=(50, 2))
    for number in range(6):
        np.savetxt(raw / f"{number}.csv", values, "%.4f", ",", header="x,y", comments="")
    (raw / "broken.csv").write_text("a,a,b\n1,2\n")
    lines = [f"{n}.csv\t{KINDS[n % 2]}" for n in range(6)]
    (raw / "sessions.tsv").write_text("\n".join(["file\tactivity", *lines]))
    guess = guess_of(raw, tmp_path)
    assert guess.files == {
        "table": "sessions.tsv",
        "path": "file",
        "label": "activity",
        "rate": 100,
    }
    assert guess.signal["channels"] == ["x", "y"]
    assert any("broken.csv" in what for what in guess.unknown)


@pytest.mark.parametrize("name", ["2024", "on", "1e5"])
def test_names_and_classes_that_yaml_reads_otherwise_are_quoted(tmp_path, monkeypatch, name):
    raw = tmp_path / "raw"
    write_pictures(raw, [f"{label}/{n}.png" for label in ("on", "2024", "1e5") for n in range(2)])
    guess_of(raw, tmp_path, name)
    monkeypatch.setenv(CARDS, str(tmp_path / "cards"))
    assert dataset_card(name).classes == ("1e5", "2024", "on")


@pytest.mark.parametrize("name", ["ptb-xl", "ecg", "breastmnist"])
def test_names_of_datasets_and_modalities_are_not_taken(tmp_path, name):
    raw = tmp_path / "raw"
    write_pictures(raw, ["a/1.png", "b/1.png"])
    with pytest.raises(BenchmdError, match=f"of the name {name}: choose another"):
        guess_of(raw, tmp_path, name)
    assert not (tmp_path / "cards").exists()


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe\x00"])
def test_files_of_samples_without_any_are_refused(tmp_path, content):
    raw = tmp_path / "raw"
    for label in KINDS:
        (raw / label).mkdir(parents=True)
        (raw / label / "x.csv").write_bytes(content)
    with pytest.raises(BenchmdError, match=r"x\.csv (cannot be read: it is empty|is not a table)"):
        guess_of(raw, tmp_path)


def test_a_file_that_ends_its_reader_ends_no_command(tmp_path, monkeypatch):
    raw = tmp_path / "raw"
    write_pictures(raw, ["a/1.png", "b/1.png"])
    path = tmp_path / "sitecustomize.py"
    path.write_text(
        "import os, PIL.Image\nPIL.Image.open = lambda *_, **__: os.kill(os.getpid(), 11)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BenchmdError, match=r"its first file crashed .*\(SIGSEGV\): write the card"):
        guess_of(raw, tmp_path)
    assert not (tmp_path / "cards").exists()


@pytest.mark.parametrize(
    ("size", "side", "patch"),
    [((28, 28), 28, 4), ((64, 60), 64, 8), ((90, 65), 96, 8), ((100, 50), 112, 16),
     ((300, 20), 224, 16)],
)  # fmt: skip
def test_pictures_are_stored_as_large_as_they_are(tmp_path, size, side, patch):
    write_pictures(tmp_path / "raw", ["a/1.png", "b/1.png"], size=size)
    guess = guess_of(tmp_path / "raw", tmp_path)
    assert guess.signal["stored_shape"] == guess.signal["input_shape"] == [3, side, side]
    assert guess.signal["patch"] == [patch, patch]
    stored = f"pictures have up to {max(size)} pixels a side and are stored as {side} × {side}"
    assert stored in guess.guessed


@pytest.mark.parametrize(
    ("form", "patient"),
    [
        ("{kind}/p{patient:02}_{n}.png", "p00"),
        ("{kind}/{patient:03}-{n}.png", "000"),
        ("{kind}/img_patient{patient}-{n}.png", "patient0"),
        ("{kind}/S{patient:03}R{n:02}.png", "S000"),
        ("{kind}/sub-{patient:02}/{n}.png", "sub-00"),
        ("{kind}/walk_S{patient:02}_{n}.png", "S00"),
    ],
)
def test_patients_in_names_of_files_are_proposed(tmp_path, monkeypatch, build_here, form, patient):
    raw = tmp_path / "raw"
    names = [form.format(kind=KINDS[p % 2], patient=p, n=n) for p in range(12) for n in range(3)]
    write_pictures(raw, names)
    catalog, _ = build("folk", raw, tmp_path, monkeypatch, build_here)
    text = (tmp_path / "cards" / "folk.yaml").read_text()
    assert "12 in 36 files. Check the pattern of patient" in text
    assert patient.isdigit() or patient not in text
    assert "private_names: true" in text
    assert sum(split["patients"] for split in catalog.manifest["splits"].values()) == 12
    assert catalog.manifest["raw"]["grouped_by"] == "patient"
    manifest = (tmp_path / "catalog" / "manifest.json").read_text()
    assert patient.isdigit() or patient not in manifest


def test_files_that_each_stand_for_a_patient_are_a_loud_caution(tmp_path):
    raw = tmp_path / "raw"
    write_pictures(raw, [f"{kind}/{kind}{n}.png" for kind in KINDS for n in range(4)])
    arguments = ["catalog", "new", "pets", "--from", str(raw), "--out", str(tmp_path / "cards")]
    done = CliRunner().invoke(main, arguments)
    assert "CAUTION: EVERY FILE IS TAKEN FOR A PATIENT. If a patient has several" in done.output
    text = (tmp_path / "cards" / "pets.yaml").read_text()
    assert "# CAUTION: EVERY FILE IS TAKEN FOR A PATIENT" in text
    assert "private_names" not in text


def test_private_names_are_proposed_where_a_table_says_so(tmp_path):
    raw = tmp_path / "raw"
    write_pictures(raw, [f"scan_p{n}_left.png" for n in range(6)])
    lines = [f"scan_p{n}_left.png,p{n},{KINDS[n % 2]}" for n in range(6)]
    (raw / "list.csv").write_text("\n".join(["file,patient,class", *lines]))
    guess = guess_of(raw, tmp_path)
    assert guess.private_names
    assert "names of files hold patients: private_names keeps" in "".join(guess.guessed)
    assert "private_names: true" in (tmp_path / "cards" / "own.yaml").read_text()


def test_a_folder_that_only_wraps_another_is_looked_into(tmp_path, monkeypatch, build_here):
    raw = tmp_path / "raw"
    write_pictures(raw, [f"pets-v2/data/{k}/{n}.png" for k in KINDS for n in range(4)])
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["catalog", "new", "pets", "--from", "raw"])
    assert done.exit_code == 0, done.output
    assert "note: the files are in raw/pets-v2/data, which is the --raw to name" in done.output
    assert "next: benchmd catalog build pets --raw raw/pets-v2/data --out" in done.output
    assert build_here("pets", raw / "pets-v2" / "data", tmp_path / "pets").rows("train")


@pytest.mark.parametrize("folders", [True, False])
def test_a_table_without_names_of_files_says_what_it_lacks(tmp_path, folders):
    raw = tmp_path / "raw"
    write_pictures(raw, ["a/1.png", "b/1.png"] if folders else ["1.png", "2.png"])
    (raw / "metadata.csv").write_text("age,dx\n61,cat\n62,dog\n")
    what = (
        r"what metadata\.csv is for: none of its columns \(age, dx\) names any of the \.png files"
    )
    if folders:
        (lack,) = guess_of(raw, tmp_path).unknown
        assert re.match(what, lack)
    else:
        with pytest.raises(BenchmdError, match=f"{what}. Add a column with the path"):
            guess_of(raw, tmp_path)


def test_cards_of_the_working_folder_are_found(tmp_path, monkeypatch):
    write_pictures(tmp_path / "raw", ["a/1.png", "b/1.png"])
    guess_of(tmp_path / "raw", tmp_path)
    with pytest.raises(BenchmdError, match=r"Your own cards are read from \./cards"):
        dataset_card("own")
    monkeypatch.chdir(tmp_path)
    assert dataset_card("own").classes == ("a", "b")
    monkeypatch.setenv(CARDS, str(tmp_path / "raw"))  # another folder is named
    with pytest.raises(BenchmdError, match="unknown dataset 'own'"):
        dataset_card("own")


def heartbeats(path, place, mark, *, header=False, form="{:.18e}"):
    """A file of 40 records of 50 samples and two classes, in rows; its samples and labels."""
    rng = np.random.default_rng(len(path.name))
    samples, labels = rng.normal(size=(40, 50)), np.arange(40) % 2
    columns = [labels, *samples.T] if place == "first" else [*samples.T, labels]
    lines = [mark.join(form.format(value) for value in row) for row in zip(*columns, strict=True)]
    if header:
        lines.insert(0, mark.join(f"c{number}" for number in range(51)))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return samples, labels


@pytest.mark.parametrize(
    ("names", "place", "mark", "header"),
    [
        (["ECG200_TRAIN.tsv", "ECG200_TEST.tsv"], "first", "\t", False),
        (["ECG200_TRAIN.txt"], "first", "   ", False),
        (["mitbih_train.csv"], "last", ",", False),
        (["beats.csv"], "last", ",", True),
    ],
)
def test_a_record_in_each_row(tmp_path, monkeypatch, build_here, names, place, mark, header):
    raw = tmp_path / "raw"
    tables = {name: heartbeats(raw / name, place, mark, header=header) for name in names}
    catalog, unknown = build("beats", raw, tmp_path, monkeypatch, build_here)
    assert unknown == [NO_RATE]
    card = (tmp_path / "cards" / "beats.yaml").read_text()
    assert f"rows: label {place}" in card
    assert "CAUTION: EVERY ROW IS TAKEN FOR A PATIENT" in card
    assert catalog.task.classes == ("0", "1")
    assert counts(catalog) == {"0": 20 * len(names), "1": 20 * len(names)}
    records = {}
    for split in catalog.manifest["splits"]:
        for path, *_ in catalog.shards(split):
            records |= {row["record_id"]: row for row in pq.read_table(path).to_pylist()}
    for name, (samples, labels) in tables.items():
        for number in (0, 7, 39):
            row = records[f"{name}/{number:06}"]
            stored = np.frombuffer(row["signal"], np.int16) * np.float32(row["scale"])
            start = (len(stored) - 50) // 2
            np.testing.assert_allclose(stored[start : start + 50], samples[number], atol=1e-3)
            assert row["target"] == [1 - labels[number], labels[number]]


def test_rows_of_unequal_length_are_said(tmp_path, monkeypatch, build_here):
    raw = tmp_path / "raw"
    heartbeats(raw / "beats.csv", "last", ",")
    new_card("beats", raw, tmp_path / "cards")
    monkeypatch.setenv(CARDS, str(tmp_path / "cards"))
    with (raw / "beats.csv").open("a") as file:
        file.write("1,2,3\n")
    with pytest.raises(BenchmdError, match=r"beats.csv: it is not a table with a record in each"):
        build_here("beats", raw, tmp_path / "catalog")


def test_samples_that_blanks_separate(tmp_path, monkeypatch, build_here):
    raw, rng = tmp_path / "raw", np.random.default_rng(0)
    values = {}
    for kind in KINDS[:2]:
        (raw / kind).mkdir(parents=True)
        for number in range(4):
            values[f"{kind}/{number}"] = rng.normal(size=(1000, 2))
            np.savetxt(raw / kind / f"{number}.txt", values[f"{kind}/{number}"], "  %.6f")
    catalog, unknown = build("steps", raw, tmp_path, monkeypatch, build_here)
    assert unknown == [NO_RATE]
    assert dataset_card("steps").files.suffixes == (".txt",)
    assert catalog.signal.stored_shape == (2, 1000)
    (path, *_) = next(iter(catalog.shards("train")))
    for row in pq.read_table(path).to_pylist():
        stored = np.frombuffer(row["signal"], np.int16).reshape(2, -1) * np.float32(row["scale"])
        np.testing.assert_allclose(stored, values[row["record_id"]].T, atol=1e-3)


def test_recordings_of_many_channels_in_folders_are_no_records_in_rows(tmp_path):
    for kind in KINDS:
        heartbeats(tmp_path / "raw" / kind / "night.csv", "last", ",")
    guess = guess_of(tmp_path / "raw", tmp_path)
    assert "rows" not in guess.files
    assert guess.classes == sorted(KINDS)
    assert guess.signal["stored_shape"][0] == 51
