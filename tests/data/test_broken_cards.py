"""A broken card spoils what uses it alone, and is said with its line."""

from __future__ import annotations

import re
import sys

import pytest
from click.testing import CliRunner

from benchmd_ray.cli import main
from benchmd_ray.data.cards import broken_cards, cards, dataset_card
from benchmd_ray.data.datasets import dataset_of
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.card_folders import CARDS
from benchmd_ray.modality.modalities import modality

SOUND = """\
# a comment
name: own
modality: derm
task:
  kind: single-label
  classes: [a, b]
files:
  table: t.csv
  split: part
  splits: {one: train}
"""
SIGNAL = """\
name: own
batch_size: 64
signal:
  axes: [channel, time]
  stored_shape: [3, 320]
  input_shape: [3, 320]
  dtype: int16
  unit: g
  patch: [16]
  normaliser: record-range
  rate: 32
task:
  kind: single-label
  classes: [a, b]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(CARDS, str(tmp_path))
    (tmp_path / "modalities").mkdir()
    (tmp_path / "other.yaml").write_text(SOUND.replace("own", "other"))
    return tmp_path


FAULTS = [
    ("modality: derm", "modality: dern", 3, r"unknown modality 'dern'\. Did you mean 'derm'\?"),
    ("  table: t.csv", "  tabel: t.csv", 8, r"unknown key .*files.* 'tabel'\. .*'table'"),
    ("  kind: single-label", "  kind: single", 5, r"unknown value .*'single'\. .*'single-label'"),
    ("  table: t.csv", "  table: [1]", 8, "expected text"),
    ("{one: train}", "{one: trian}", 10, r"unknown value .*'trian'\. Did you mean 'train'\?"),
    ("  classes: [a, b]", "  classes: [a]", 6, "expected 2 or more"),
    ("name: own", "name: own\nclass_mapping: {x: c}", 3, r"unknown class in .*class_mapping.*'c'"),
    ("name: own", "name: another", 2, "expected the file's name"),
    ("task:", "task: [a, b]\nx:", 4, "expected its keys"),
    ("files:", "files: {a: [}", 7, "cannot read"),
    ("files:", "files:\n  rate: -1", 8, "files: rate: it is -1 Hz, expected 0.001 Hz or more"),
    ("files:", "files:\n  rate: 0", 8, "files: rate: it is 0 Hz, expected 0.001 Hz or more"),
    ("files:", "files:\n  rate: 1e-5", 8, "files: rate: it is 1e-05 Hz, expected 0.001 Hz"),
    ("  split: part\n", "", 9, "files: splits: add split"),
    (
        "split: part",
        "lists: {train: x.txt}\n  split: part",
        9,
        "files: lists: split says",
    ),
    ("split: part", "metadata: {ages: x}\n  split: part", 9, "'ages'.* Did you mean 'age'"),
    ("split: part", "drawn: {test: 1}\n  split: part", 9, "files: drawn: train has no share"),
    ("split: part", "labels: [c]\n  split: part", 9, "labels is of multi-label tasks"),
    ("split: part", "folder: /raw\n  split: part", 9, "files: folder: '/raw' is not a path within"),
    ("table: t.csv", "table: a/../../t.csv", 8, r"files: table: .* is not a path within the raw"),
    ("  table: t.csv\n", "", 8, "files: split: it names columns: add the table"),
    ("split: part", "levels: [class, class]\n  split: part", 9, "levels: one appears twice"),
    ("files:", "evaluation_splits: {odd: [test]}\nfiles:", 7, "unknown policy in .*'odd'"),
    ("files:", "evaluation_splits: {}\nfiles:", 7, r"is empty, expected \{clean: \[test\]\}"),
    ("files:", "evaluation_splits: {clean: [train]}\nfiles:", 7, "never trained on"),
    ("files:", "evaluation_splits: {clean: [tset]}\nfiles:", 7, "'tset'.* Did you mean 'test'"),
    ("[a, b]", "[a, b]\n  scored: scan", 7, "'scan'.* Did you mean 'scans'"),
    ("task:", "module: faulty\nsignal: {name: ../x}\ntask:", 5, "'../x' is not a valid name"),
]


@pytest.mark.parametrize(("before", "after", "line", "message"), FAULTS)
def test_a_broken_card_is_named_with_line_key_and_nearest_name(
    folder, before, after, line, message
):
    assert SOUND.count(before) == 1
    (folder / "own.yaml").write_text(SOUND.replace(before, after))
    listed = CliRunner().invoke(main, ["catalog", "list"], env={"COLUMNS": "2000"})
    assert listed.exit_code == 0
    assert "ptb-xl" in listed.stdout
    said = " ".join(listed.stderr.split())
    assert "own.yaml" in said
    assert re.search(rf"line {line}\b", said)
    assert re.search(message, said.replace(f", line {line}", ""))
    with pytest.raises(BenchmdError, match=rf"line {line}\b"):
        dataset_card("own")
    assert set(broken_cards()) == {"own"}
    assert cards()["other"].classes == ("a", "b")


MODALITY_FAULTS = [
    ("  normaliser: record-range", "  normaliser: record-rang", 10, r"Did you mean 'record-range'"),
    ("  rate: 32", "  rat: 32", 11, r"unknown key .* 'rat'\. Did you mean 'rate'\?"),
    (
        "  stored_shape: [3, 320]",
        "  stored_shape: [3, 319]",
        6,
        "central 320 of 319 stored values along time",
    ),
    ("batch_size: 64", "batch_size: many", 2, "expected a whole number"),
    ("batch_size: 64", "batch_size: -3", 2, "batch_size is -3, expected 1 or more"),
    (
        "  unit: g",
        "  unit: g\n  name: ../../x",
        9,
        r"name: '\.\./\.\./x' is not a valid name",
    ),
    ("  rate: 32", "  rate: 1e-5", 11, "its rate is 1e-05 Hz, expected 0.001 Hz or more"),
    ("  dtype: int16", "  dtype: uint8", 7, "signals over time are int16"),
    ("record-range", "window\n  parameters: {centre: 0, width: -5}", 11, "has the width -5"),
    ("name: own", "name: another", 1, "has the name 'another': expected the file's name"),
    ("  axes: [channel, time]", "  axes: [time, channel]", 4, "expected channel, time or"),
    ("  axes: [channel, time]", r'  axes: [channel, "\e[2J"]', 4, r"'channel', '\\x1b\[2J'\], exp"),
    ("  rate: 32\n", "", 3, "signals over time are int16 and have a rate"),
    ("  dtype: int16", "  dtype: int61", 7, r"Did you mean 'int16'"),
]


@pytest.mark.parametrize(("before", "after", "line", "message"), MODALITY_FAULTS)
def test_a_broken_signal_spoils_its_datasets_alone(folder, before, after, line, message):
    assert SIGNAL.count(before) == 1
    (folder / "modalities" / "own.yaml").write_text(SIGNAL.replace(before, after))
    (folder / "own.yaml").write_text(SOUND.replace("derm", "own"))
    for use in (modality, dataset_card):
        with pytest.raises(BenchmdError, match=rf"line {line}\b") as refusal:
            use("own")
        assert re.search(message, str(refusal.value).replace(f", line {line}", ""))
    assert cards()["other"].modality.name == modality("derm").name
    listed = CliRunner().invoke(main, ["catalog", "list"])
    assert listed.exit_code == 0
    assert listed.stderr.count("modalities/own.yaml") >= 1


def test_a_card_of_a_name_that_is_taken_is_broken(folder):
    (folder / "georgia.yaml").write_text(SOUND.replace("own", "georgia"))
    assert cards()["georgia"].modality.name == "ecg"
    listed = CliRunner().invoke(main, ["catalog", "list"], env={"COLUMNS": "2000"})
    assert listed.exit_code == 0
    said = " ".join(listed.stderr.split())
    with pytest.raises(BenchmdError, match="has the name georgia, which is that of"):
        dataset_card("georgia")  # which of the two?
    assert re.search(r"georgia\.yaml has the name georgia, which is that of .*georgia\.yaml", said)


def test_each_broken_file_is_named_also_where_two_have_one_name(folder, monkeypatch):
    (folder / "more").mkdir()
    monkeypatch.setenv(CARDS, f"{folder}:{folder}/more")
    for place in (folder, folder / "more"):
        (place / "own.yaml").write_text(SOUND.replace("derm", "dern"))
    assert len(broken_cards()) == 2
    assert f"{folder}/more/own.yaml" in "".join(broken_cards().values())
    (folder / "more" / "own.yaml").write_text(SOUND)
    (folder / "more" / "modalities").mkdir()
    monkeypatch.setenv(CARDS, f"{folder}:{folder}/more:{folder}/more/modalities")  # read anew
    assert dataset_card("own") is cards()["own"]
    assert len(broken_cards()) == 1


def test_labels_have_a_class_each(folder):
    several = SOUND.replace("single-label", "multi-label")
    (folder / "own.yaml").write_text(several.replace("split: part", "labels: [c]\n  split: part"))
    with pytest.raises(BenchmdError, match=r"unknown class in .*files, labels, line 9: 'c'"):
        dataset_card("own")


def test_a_folder_that_is_named_twice_has_its_cards_once(folder, monkeypatch):
    (folder / "again").symlink_to(folder)
    monkeypatch.setenv(CARDS, f"{folder}:{folder}/again")
    assert cards()["other"].name == "other"
    assert broken_cards() == {}


@pytest.mark.parametrize("text", ["def x(:\n", "1 / 0\n", "import nowhere\n"])
def test_a_module_that_cannot_be_imported_is_named(folder, monkeypatch, text):
    (folder / "faulty.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "faulty", raising=False)
    before = SOUND[: SOUND.index("files:")]
    (folder / "own.yaml").write_text(before + "module: faulty\n")
    with pytest.raises(BenchmdError, match=r"the module faulty of own cannot be imported \(\w+\):"):
        dataset_of(dataset_card("own"))
