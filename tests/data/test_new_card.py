"""`benchmd catalog new`: a folder's first card builds as it is, or says what is missing."""

from __future__ import annotations

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
from benchmd_ray.data.new_card import new_card
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.card_folders import CARDS

KINDS = ("cat", "dog", "eel")


def write_pictures(root, names, channels=3):
    rng = np.random.default_rng(0)
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shape = (12, 10) if channels == 1 else (12, 10, 3)
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


def test_a_table_of_grey_pictures_in_a_folder(tmp_path, monkeypatch, build_here):
    raw = tmp_path / "raw"
    write_pictures(raw, [f"images/{n}.png" for n in range(30)], channels=1)
    lines = [f"{n}\tp{n // 2}\t{KINDS[n % 3]}\t{40 + n}" for n in range(30)]
    (raw / "list.tsv").write_text("name\tpatient\tdiagnosis\tage\n" + "\n".join(lines) + "\n")
    catalog, unknown = build("grey-pets", raw, tmp_path, monkeypatch, build_here)
    assert (unknown, catalog.signal.stored_shape) == ([], (1, 224, 224))
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
    (patients,) = unknown
    assert patients.startswith("which column names the patients")


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
    assert unknown == "the files state no sampling rate: 100 Hz is only a guess, see rate"
    assert catalog.signal.channels == ("x", "y")
    assert unknown in (tmp_path / "cards" / "steps.yaml").read_text()


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
    _, fold = guess.unknown
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
