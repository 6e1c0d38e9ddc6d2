"""SHHS-1: nights, stagings and persons, against the files themselves and by hand."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.datasets import shhs
from benchmd_ray.data.datasets.eeg import EEG
from benchmd_ray.data.normalise import normaliser
from benchmd_ray.data.raw import DUPLICATE, Choices, RawItem
from benchmd_ray.data.readers import xml
from benchmd_ray.data.readers.edf import read_edf, read_header
from benchmd_ray.data.records import RecordError, hashed_patient
from benchmd_ray.errors import BenchmdError

CARD = dataset_card("shhs")
RECORDINGS = Path("polysomnography/edfs/shhs1")
STAGINGS = Path("polysomnography/annotations-events-profusion/shhs1")
CLASSES = {"0": "wake", "1": "n1", "2": "n2", "3": "n3", "4": "n3", "5": "rem"}
SECOND = 125
EPOCH = 30 * SECOND


def profusion(*codes: object, length: str = "<EpochLength>30</EpochLength>") -> str:
    scored = "".join(f"<SleepStage>{code}</SleepStage>" for code in codes)
    return (
        f'<?xml version="1.0" encoding="UTF-8"?><CMPStudyConfig>{length}<ScoredEvents>'
        "<ScoredEvent><Name>SleepStage</Name></ScoredEvent></ScoredEvents>"
        f"<SleepStages>{scored}</SleepStages></CMPStudyConfig>"
    )


@pytest.fixture
def staging(tmp_path) -> Path:
    return tmp_path / "staging.xml"


@pytest.fixture
def night(tmp_path, write_edf):
    """Writes a night of noise and its staging, and reads it."""

    def read(*codes: object, epochs: float = 4, rate: float = SECOND, change=None, **header):
        noise = np.random.default_rng(5).normal(0, 30, (2, int(epochs * 30 * rate))).clip(-399, 399)
        if change:
            change(noise)
        channels = {"EEG(sec)": (noise[0], rate), "EEG": (noise[1], rate)}
        write_edf(tmp_path / "night.edf", channels, **header)
        (tmp_path / "night.xml").write_text(profusion(*codes))
        item = RawItem("night.edf", "p1", "p1", "train", details={"stages": "night.xml"})
        return shhs.read(tmp_path, item, CARD)

    return read


@pytest.fixture
def listed(tmp_path):
    """Empty stand-ins for nights and stagings, listed."""

    def discover(nights, stagings, policy="clean"):
        for folder, names in (
            (RECORDINGS, [f"shhs1-{n}.edf" for n in nights]),
            (STAGINGS, [f"shhs1-{n}-profusion.xml" for n in stagings]),
        ):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            for name in names:
                (tmp_path / folder / name).touch()
        return shhs.discover(tmp_path, CARD, Choices(policy))

    return discover


def labels(reading) -> list[str]:
    return [CARD.classes[list(record.target).index(1)] for record in reading.records]


def test_expected_counts_are_those_of_table_8():
    for split, total in (("train", 4_071_139), ("validation", 1_015_327)):
        counts = CARD.expected["released"][split]
        assert tuple(counts) == CARD.classes
        assert sum(counts.values()) == total


def test_records_are_the_epochs_of_the_files(synthetic_eeg):
    root = synthetic_eeg["shhs"]
    found = shhs.discover(root, CARD, Choices())
    assert (found.layout, found.missing, len(found.items)) == ("nsrr", [], 4)
    assert found.excluded == {"it has no Profusion staging": 1}
    for item in found.items:
        codes = re.findall(r"<SleepStage>(\d)<", (root / item.details["stages"]).read_text())
        second = [c.name for c in read_header(root / item.path).channels][1]
        signals = read_edf(root / item.path, [second, "EEG"]).signals.values()
        whole = np.stack(list(signals))
        reading = shhs.read(root, item, CARD)
        names = [record.record_id for record in reading.records]
        kept = [int(name.removeprefix(f"{item.record_id}-")) for name in names]
        assert kept == sorted(set(kept))
        assert labels(reading) == [CLASSES[codes[epoch]] for epoch in kept]
        assert {sum(record.target) for record in reading.records} == {1}
        assert len(kept) + sum(reading.excluded.values()) == len(codes)
        for record, epoch in zip(reading.records, kept, strict=True):
            expected = whole[:, epoch * EPOCH :][:, :EPOCH]
            assert record.signal.dtype == np.int16
            assert np.abs(record.signal * record.scale - expected).max() <= record.scale * 0.51
            assert (record.unit_id, record.group_id) == (record.record_id, item.group_id)


def test_what_is_excluded_of_the_synthetic_nights_is_counted(synthetic_eeg):
    root = synthetic_eeg["shhs"]
    total: Counter[str] = Counter()
    for item in shhs.discover(root, CARD, Choices()).items:
        total += shhs.read(root, item, CARD).excluded
    assert total == {
        "an epoch of movement": 1,
        "an epoch that is not scored": 2,
        "an epoch whose channels are both constant": 1,
        "a stage without signal": 1,
    }


def test_the_first_channel_is_c3_and_the_second_c4(tmp_path, write_edf):
    """Names vary, and so does their order in the file."""
    time = np.arange(EPOCH) / SECOND
    c3, c4 = 50 * np.sin(2 * np.pi * 3 * time), 20 * np.sin(2 * np.pi * 9 * time)
    (tmp_path / "night.xml").write_text(profusion(2))
    item = RawItem("night.edf", "p1", "p1", "train", details={"stages": "night.xml"})
    for name in ("EEG(sec)", "EEG(SEC)", "EEG sec", "EEG2", "EEG 2"):
        order = {"EEG": (c4, SECOND), name: (c3, SECOND)}
        write_edf(
            tmp_path / "night.edf", order if name == "EEG2" else dict(reversed(order.items()))
        )
        (record,) = shhs.read(tmp_path, item, CARD).records
        assert record.signal[0] * record.scale == pytest.approx(c3, abs=0.02)
        assert record.signal[1] * record.scale == pytest.approx(c4, abs=0.02)


def test_stage_4_is_n3_and_rem_stays_apart(night):
    """Section 5 of the protocol: the released code merges stage 4 and REM."""
    assert labels(night(3, 4, 5, 0)) == ["n3", "n3", "rem", "wake"]
    targets = {tuple(record.target) for record in night(4, 5).records}
    assert targets == {(0, 0, 0, 1, 0), (0, 0, 0, 0, 1)}


def test_train_and_validation_share_no_patient_and_do_not_change(listed):
    """Section 5 of the protocol: the released code draws both independently, without a seed."""
    people = range(200_001, 200_601)
    first = listed(people, people)
    again = listed(people, people, policy="released")
    assert [(i.record_id, i.split) for i in first.items] == [
        (i.record_id, i.split) for i in again.items
    ]
    by_split: dict[str, set[str]] = {}
    for item in first.items:
        by_split.setdefault(item.split, set()).add(item.group_id)
    assert set(by_split) == {"train", "validation"}
    assert not by_split["train"] & by_split["validation"]
    assert 0.76 < len(by_split["train"]) / 600 < 0.84
    # frozen: another split would be another dataset version
    assert [i.split for i in first.items[:8]] == ["train"] * 2 + ["validation"] + ["train"] * 5


def test_a_person_keeps_the_split_whoever_else_is_there(listed):
    alone = {i.record_id: i.split for i in listed([200_007, 200_003], [200_003, 200_007]).items}
    people = range(200_001, 200_051)
    among = {i.record_id: i.split for i in listed(people, people).items}
    assert alone.items() <= among.items()
    assert len(alone) == 2


def test_numbers_of_persons_stay_out_of_all_names(listed):
    found = listed([200_001, 200_002], [200_002, 200_003])
    assert [item.record_id for item in found.items] == [hashed_patient("shhs", "200002")]
    assert found.excluded == {"it has no Profusion staging": 1}
    assert found.missing == [f"the EDF file of patient {hashed_patient('shhs', '200003')}"]
    texts = [i.record_id for i in found.items] + [i.group_id for i in found.items] + found.missing
    assert not [text for text in texts if "20000" in text]
    assert CARD.private_names


def test_nights_and_stagings_that_are_there_twice_are_counted(listed, tmp_path):
    listed(["200001", "200002"], ["200001", "200002"])
    for name in ("shhs1-200001.edf", "shhs1-200001-profusion.xml", "shhs1-200002.EDF"):
        (tmp_path / "more").mkdir(exist_ok=True)
        (tmp_path / "more" / name).touch()
    found = listed([], [])
    assert len(found.items) == found.total == 2
    assert found.excluded == {DUPLICATE: 3}


def test_the_second_visit_is_not_taken(listed, tmp_path):
    (tmp_path / "polysomnography/edfs/shhs2").mkdir(parents=True)
    (tmp_path / "polysomnography/edfs/shhs2/shhs2-200001.edf").touch()
    assert [i.path for i in listed([200_001], [200_001]).items] == [
        (RECORDINGS / "shhs1-200001.edf").as_posix()
    ]


def test_age_and_sex_are_those_of_the_table(synthetic_eeg):
    root = synthetic_eeg["shhs"]
    (path,) = root.rglob("*.csv")
    rows = pd.read_csv(path, index_col="nsrrid")
    for item in shhs.discover(root, CARD, Choices()).items:
        row = rows.loc[int(re.search(r"\d{6}", item.path)[0])]
        sex = {1: "male", 2: "female"}[row["gender"]]
        assert item.metadata == {"age": min(row["age_s1"], 90.0), "sex": sex}


def test_the_newest_table_is_read_whatever_its_encoding_and_order(listed, tmp_path):
    folder = tmp_path / "datasets"
    folder.mkdir()
    (folder / "shhs1-dataset-0.9.0.csv").write_text("nsrrid,age_s1,gender\n200001,30,2\n")
    newest = "race,gender,note,age_s1,nsrrid\n1,1,caf\xe9,93,200001\n1,,,,200002\n"
    (folder / "shhs1-dataset-0.21.0.csv").write_bytes(newest.encode("latin-1"))
    found = listed([200_001, 200_002, 200_003], [200_001, 200_002, 200_003])
    assert [item.metadata for item in found.items] == [
        {"age": 90.0, "sex": "male"},
        {"age": None, "sex": None},
        {},
    ]


def test_a_table_without_its_columns_is_named(listed, tmp_path):
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets/shhs1-dataset-0.21.0.csv").write_text("nsrrid,age,gender\n1,2,3\n")
    with pytest.raises(BenchmdError, match=r"0\.21\.0\.csv has no column 'age_s1'; expected the"):
        listed([200_001], [200_001])


def test_movement_unscored_and_unknown_epochs_are_excluded_by_reason(night):
    reading = night(6, 2, 9, 7)
    assert labels(reading) == ["n2"]
    assert reading.records[0].record_id == "p1-0001"
    assert reading.excluded == {
        "an epoch of movement": 1,
        "an epoch that is not scored": 1,
        "an epoch with a stage that the card does not name": 1,
    }


def test_signal_and_stages_of_different_length_share_what_they_have(night):
    longer = night(0, 0, 0, 0, 0, 0, epochs=4.5)
    assert len(longer.records) == 4
    assert longer.excluded == {"a stage without signal": 2}
    shorter = night(0, 0, epochs=4.5)
    assert len(shorter.records) == 2
    assert shorter.excluded == {"an epoch without a stage": 2}


def test_a_dead_epoch_is_excluded_and_the_night_is_kept(night):
    def die(noise: np.ndarray) -> None:
        noise[:, EPOCH : 2 * EPOCH] = 17.0
        noise[0, 2 * EPOCH : 3 * EPOCH] = 17.0  # one dead channel is kept, as a dead lead is

    reading = night(2, 2, 2, 2, change=die)
    assert [record.record_id for record in reading.records] == ["p1-0000", "p1-0002", "p1-0003"]
    assert reading.excluded == {"an epoch whose channels are both constant": 1}


def test_a_dead_epoch_is_found_although_resampling_blurs_its_ends(night):
    def die(noise: np.ndarray) -> None:
        noise[:, 30 * 250 : 60 * 250] = 17.0

    reading = night(2, 2, 2, 2, change=die, rate=250)
    assert reading.excluded == {"an epoch whose channels are both constant": 1}


def test_a_night_that_is_all_dead_gives_nothing(night):
    reading = night(2, 2, change=lambda noise: noise.fill(0.0))
    assert reading.records == []
    assert sum(reading.excluded.values()) == 4


def test_both_channels_may_differ_in_rate(tmp_path, write_edf):
    channels = {
        "EEG(sec)": (30 * np.sin(2 * np.pi * 4 * np.arange(30 * 250) / 250), 250),
        "EEG": (30 * np.sin(2 * np.pi * 4 * np.arange(30 * 100) / 100), 100),
    }
    write_edf(tmp_path / "night.edf", channels)
    (tmp_path / "night.xml").write_text(profusion(2))
    item = RawItem("night.edf", "p1", "p1", "train", details={"stages": "night.xml"})
    (record,) = shhs.read(tmp_path, item, CARD).records
    expected = 30 * np.sin(2 * np.pi * 4 * np.arange(EPOCH) / SECOND)
    inner = slice(2 * SECOND, -2 * SECOND)
    for row in record.signal * record.scale:
        assert row[inner] == pytest.approx(expected[inner], abs=0.3)


@pytest.mark.parametrize("rate", [1.0, 40.0])
def test_a_rate_that_cannot_be_right_is_refused(night, rate):
    with pytest.raises(RecordError, match=rf"sampled at {rate:g} Hz; expected one rate from 50 to"):
        night(2, 2, rate=rate)


def test_a_missing_channel_is_named_with_what_would_do(tmp_path, write_edf):
    write_edf(tmp_path / "n.edf", {"EEG": (np.zeros(EPOCH), SECOND), "ECG": (np.zeros(30), 1)})
    (tmp_path / "n.xml").write_text(profusion(2))
    item = RawItem("n.edf", "p1", "p1", "train", details={"stages": "n.xml"})
    with pytest.raises(RecordError, match=r"C3 is missing: expected EEG\(sec\) or .*are ecg, eeg"):
        shhs.read(tmp_path, item, CARD)


def test_microvolts_are_those_of_the_file_and_its_range_is_the_targets(night):
    """Decision D4: the unit comes from the file, and ±125 µV maps to [0, 1] for both datasets."""
    normalise = normaliser(EEG, None)

    def seen(reading) -> torch.Tensor:
        (record,) = reading.records
        signal = torch.from_numpy(record.signal)[None]
        return normalise(signal, torch.tensor([record.scale]), torch.tensor([[EPOCH]]))

    def high(noise: np.ndarray) -> None:
        noise[:] = 0
        noise[0, 100], noise[0, 200], noise[1, 300] = 100, -50, 350

    micro = seen(night(2, epochs=1, change=high))
    milli = seen(
        night(2, epochs=1, change=lambda n: (high(n), n.__imul__(1e-3)), unit="mV", limit=0.4)
    )
    for values in (micro, milli):
        assert values.shape == (1, 2, EPOCH)
        assert values[0, 0, 100] == pytest.approx(225 / 250, abs=1e-3)
        assert values[0, 0, 200] == pytest.approx(75 / 250, abs=1e-3)
        assert values[0, 1, 300] == 1
        assert values[0, 0, 50] == pytest.approx(0.5, abs=1e-3)


def test_stages_of_profusion_are_those_of_the_staging_alone(staging):
    staging.write_text(profusion(0, " 1 ", "\n2\n", 3))
    assert shhs.profusion_stages(staging) == ["0", "1", "2", "3"]
    staging.write_text(profusion(5, length=""))
    assert shhs.profusion_stages(staging) == ["5"]
    staging.write_bytes(profusion(0, 5).replace("UTF-8", "UTF-16").encode("utf-16"))
    assert shhs.profusion_stages(staging) == ["0", "5"]


BOMB = """<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "5"><!ENTITY b "&a;&a;&a;&a;&a;">]>
<CMPStudyConfig><SleepStages><SleepStage>&b;</SleepStage></SleepStages></CMPStudyConfig>"""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (BOMB, "its staging declares a document type; expected plain XML"),
        (BOMB.replace('version="1.0"', 'version="1.0" encoding="UTF-16"'), "document type"),
        (profusion(1)[:-20], "its staging is not XML, or damaged"),
        ("", "its staging is not XML"),
        ("<html></html>", "its staging holds no stage; expected a number for each epoch"),
        (profusion(), "its staging holds no stage"),
        (profusion(1, "", 2), "its staging holds the stage ''"),
        (profusion(1, "W"), "its staging holds the stage 'W'"),
        (profusion(1, "-1"), "its staging holds the stage '-1'"),
        (profusion(1, length="<EpochLength>20</EpochLength>"), "its epochs last 20 s; expected 30"),
        (profusion(1) + profusion(1), "its staging is not XML"),
    ],
)
def test_a_staging_that_cannot_be_read_is_refused(staging, content, message):
    staging.write_bytes(content.encode("utf-16" if "UTF-16" in content else "utf-8"))
    with pytest.raises(RecordError, match=message):
        shhs.profusion_stages(staging)


def test_a_staging_that_is_missing_or_too_large_is_refused(staging, monkeypatch):
    with pytest.raises(RecordError, match="its staging cannot be opened") as error:
        shhs.profusion_stages(staging)
    assert str(staging) not in str(error.value)
    staging.write_text(profusion(1, 2))
    monkeypatch.setattr(xml, "MAX_BYTES", 50)
    with pytest.raises(RecordError, match="expected at most 50"):
        shhs.profusion_stages(staging)


def test_the_catalog_has_the_epochs_and_no_name_of_a_person(synthetic_eeg, tmp_path, build_here):
    root = synthetic_eeg["shhs"]
    codes = [
        code
        for path in sorted((root / STAGINGS).iterdir())
        for code in re.findall(r"<SleepStage>(\d)<", path.read_text())
    ]
    built = build_here("shhs", root, tmp_path / "shhs", max_quarantined=0.0)
    manifest = built.manifest
    held: Counter[str] = Counter()
    for split in manifest["splits"].values():
        held.update(split["classes"])
    excluded = sum(manifest["excluded"].values()) - 1  # the night without staging
    assert sum(held.values()) + excluded == len(codes)
    assert held["n3"] == codes.count("3") + codes.count("4")
    assert set(manifest["splits"]) == {"train", "validation"}
    persons = [re.search(r"\d{6}", path.name)[0] for path in (root / RECORDINGS).iterdir()]
    text = (built.path / "manifest.json").read_text()
    assert not [person for person in persons if person in text]
    shards = [path for split in manifest["splits"] for path, *_ in built.shards(split)]
    rows = pd.concat([pq.read_table(path).drop("signal").to_pandas() for path in shards])
    assert rows["record_id"].is_unique
    columns = rows[["record_id", "unit_id", "group_id"]].to_numpy().ravel()
    assert not [value for value in columns if any(person in value for person in persons)]


def test_a_broken_night_is_quarantined_without_the_number_of_the_person(
    synthetic_eeg, tmp_path, build_here
):
    for path in synthetic_eeg["shhs"].rglob("*.*"):
        copy = tmp_path / "raw" / path.relative_to(synthetic_eeg["shhs"])
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    night = sorted((tmp_path / "raw" / RECORDINGS).iterdir())[0]
    night.write_bytes(night.read_bytes()[:50_000])
    person = re.search(r"\d{6}", night.name)[0]
    built = build_here("shhs", tmp_path / "raw", tmp_path / "out", max_quarantined=0.5)
    (entry,) = built.manifest["quarantined"]
    assert entry["record"] == hashed_patient("shhs", person)
    assert entry["reason"].startswith("it is cut off: ")
    assert person not in (built.path / "manifest.json").read_text()


def test_a_staging_of_too_many_or_too_deep_elements_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "s.xml"
    monkeypatch.setattr(xml, "MAX_ELEMENTS", 1000)
    for content in ("<a>" + "<b/>" * 1000 + "</a>", "<a>" * 51 + "</a>" * 51):
        path.write_text(content)
        with pytest.raises(RecordError, match="more than 1,000 elements, or deeper than 50"):
            shhs.profusion_stages(path)
    path.write_text("<a>" + "<b/>" * 999 + "</a>")
    with pytest.raises(RecordError, match="its staging holds no stage"):
        shhs.profusion_stages(path)


def test_a_pipe_is_no_staging(tmp_path):
    os.mkfifo(tmp_path / "s.xml")
    with pytest.raises(RecordError, match="its staging is a pipe, expected a file"):
        shhs.profusion_stages(tmp_path / "s.xml")
