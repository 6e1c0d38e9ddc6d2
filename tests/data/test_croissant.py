"""Croissant metadata of catalogs, read by the reference package; and cards from such files."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from benchmd_ray.cli import main
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.croissant import croissant
from benchmd_ray.data.records import decode_signals
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.card_folders import CARDS


@pytest.fixture
def catalog(ecg_catalogs, tmp_path):
    """A catalog whose folder may be written to."""
    opened = ecg_catalogs["ptb-xl"]
    return opened, Path(shutil.copytree(opened.path, tmp_path / "catalog"))


def text(value):
    return value.decode() if isinstance(value, bytes) else value


def test_the_reference_package_reads_a_catalog_by_its_croissant(catalog):
    mlcroissant = pytest.importorskip("mlcroissant", reason="mlcroissant is not installed")
    opened, folder = catalog
    shown = CliRunner().invoke(main, ["catalog", "show", str(folder), "--croissant"])
    assert shown.exit_code == 0, shown.output
    (folder / "croissant.json").write_text(shown.output)
    dataset = mlcroissant.Dataset(jsonld=str(folder / "croissant.json"))
    assert not dataset.metadata.ctx.issues.errors
    assert dataset.metadata.license == ["https://creativecommons.org/licenses/by/4.0/"]
    rows = list(dataset.records("records"))
    assert len(rows) == sum(opened.rows(name) for name in opened.manifest["splits"])
    table = {row["record_id"]: row for t in opened.tables("train") for row in t.to_pylist()}
    for row in rows:
        if text(row["records/split"]) == "train":
            stored = table.pop(text(row["records/record_id"]))
            assert text(row["records/group_id"]) == stored["group_id"]
            assert row["records/signal"] == stored["signal"]
            assert list(row["records/target"]) == stored["target"]
    assert not table
    names = [text(row["classes/name"]) for row in dataset.records("classes")]
    assert names == list(opened.card.classes)
    splits = {text(row["splits/name"]) for row in dataset.records("splits")}
    assert splits == {name for name in opened.manifest["splits"] if opened.rows(name)}


def test_signals_are_described_as_they_are_stored(ecg_catalogs):
    opened = ecg_catalogs["georgia"]
    about = croissant(opened)
    fields = {field["@id"]: field["description"] for field in about["recordSet"][2]["field"]}
    assert "int16 of channel × time (12 × 5000) at 500 Hz" in fields["records/signal"]
    table = next(opened.tables("test"))
    raw = np.frombuffer(table["signal"][0].as_py(), "<i2").reshape(12, 5000)
    np.testing.assert_array_equal(raw, decode_signals(table["signal"], opened.signal)[0])
    assert f"({opened.provenance} data)" in about["description"]
    assert "no patient is known" in about["description"]
    hashes = {file["contentUrl"]: file.get("sha256") for file in about["distribution"][:-1]}
    assert hashes == {shard["file"]: shard["sha256"] for shard in opened.manifest["shards"]}


def test_a_dataset_without_a_catalog_is_refused():
    shown = CliRunner().invoke(main, ["catalog", "show", "ptb-xl", "--croissant"])
    assert shown.exit_code
    assert "name the folder" in str(shown.output) + str(shown.exception)


def write_pictures(root):
    for kind in ("cat", "dog"):
        for number in range(3):
            path = root / kind / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((12, 10, 3), number * 9, np.uint8)).save(path)


def test_a_card_starts_from_a_croissant_file(tmp_path, monkeypatch):
    write_pictures(tmp_path / "raw")
    about = {
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": "Pets: of\ntwo kinds # all",
        "url": "https://example.org/pets",
        "license": {"@type": "CreativeWork", "url": "https://creativecommons.org/licenses/by/4.0/"},
        "citeAs": "A. Author, 'Pets' (2020)",
        "distribution": [{"contentUrl": "http://127.0.0.1:1/never-fetched"}],
    }
    file = tmp_path / "pets.json"
    file.write_text(json.dumps(about))
    arguments = ["--from", str(tmp_path / "raw"), "--out", str(tmp_path / "cards")]
    arguments = ["catalog", "new", "pets", *arguments, "--croissant", str(file)]
    made = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert made.exit_code == 0, made.output
    monkeypatch.setenv(CARDS, str(tmp_path / "cards"))
    card = dataset_card("pets")
    assert card.title == "Pets: of two kinds # all"
    assert card.licence == "CC BY 4.0"
    assert card.homepage == "https://example.org/pets"
    assert card.citation == "A. Author, 'Pets' (2020)"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{}", "is not a Croissant file"),
        ("[]", "expected an object"),
        ("{", "not valid JSON"),
        ('{"conformsTo": 3}', "is not a Croissant file"),
    ],
)
def test_other_files_are_refused(tmp_path, text, fault):
    from benchmd_ray.data.croissant import card_facts

    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(BenchmdError, match=fault):
        card_facts(file)
    with pytest.raises(BenchmdError, match="cannot be read"):
        card_facts(tmp_path / "absent.json")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BenchmdError, match="is no file of up to"):
        card_facts(tmp_path / "pipe")


def test_addresses_that_are_not_of_the_web_and_halves_of_characters_are_left_out(tmp_path):
    from benchmd_ray.data.croissant import card_facts

    about = {"conformsTo": "http://mlcommons.org/croissant/1.0", "name": "a\ud800b"}
    file = tmp_path / "x.json"
    for address in ("javascript:alert(1)", "file:///etc/passwd"):
        file.write_text(json.dumps(about | {"url": address}))
        assert card_facts(file) == {"title": "a?b"}
