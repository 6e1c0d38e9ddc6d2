"""ISRUC-Sleep: subgroups, experts, derivations and resampling, against the files and by hand."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.datasets import isruc
from benchmd_ray.data.raw import DUPLICATE, Choices, Discovery, RawItem
from benchmd_ray.data.records import RecordError, hashed_patient

CARD = dataset_card("isruc")
CLASSES = {"0": "wake", "1": "n1", "2": "n2", "3": "n3", "5": "rem"}
RATE = 200
SECONDS = 120


def chosen(**options: str) -> Choices:
    defaults = {name: option.default for name, option in CARD.options.items()}
    policy = options.pop("policy", "clean")
    return Choices(policy, options=defaults | options)


def patient(subgroup: int, person: int) -> str:
    return hashed_patient("isruc", f"{subgroup}/{person}")


@pytest.fixture
def listed(tmp_path):
    """Empty stand-ins for files, listed."""

    def discover(*names: str, **options: str) -> Discovery:
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        return isruc.discover(tmp_path, CARD, chosen(**options))

    return discover


@pytest.fixture
def night(tmp_path, write_edf):
    """Writes a recording and its staging, and reads it."""

    def read(channels, text="2\n2\n2\n2\n", rate=RATE, **header):
        write_edf(tmp_path / "1.rec", {k: (v, rate) for k, v in channels.items()}, **header)
        (tmp_path / "1_1.txt").write_text(text)
        item = RawItem("1.rec", "p-1", "p", "test", details={"stages": "1_1.txt"})
        return isruc.read(tmp_path, item, CARD)

    return read


@pytest.fixture
def noise() -> np.ndarray:
    return np.random.default_rng(8).normal(0, 30, (4, SECONDS * RATE)).clip(-199, 199)


def microvolts(reading) -> np.ndarray:
    return np.concatenate([record.signal * record.scale for record in reading.records], axis=1)


def test_expected_counts_are_those_of_table_8():
    """They sum to 18,028; the table's total of 18,208 is a misprint."""
    counts = CARD.expected["released"]["validation"]
    assert tuple(counts) == CARD.classes
    assert sum(counts.values()) == 18_028


def test_records_are_the_epochs_of_the_files(synthetic_eeg):
    root = synthetic_eeg["isruc"]
    found = isruc.discover(root, CARD, chosen())
    assert (found.layout, found.missing, found.excluded) == ("subgroups", [], {})
    assert [(item.group_id, item.record_id) for item in found.items] == [
        (patient(1, 1), f"{patient(1, 1)}-1"),
        (patient(2, 1), f"{patient(2, 1)}-1"),
        (patient(2, 1), f"{patient(2, 1)}-2"),
        (patient(3, 2), f"{patient(3, 2)}-1"),
    ]
    assert {item.split for item in found.items} == {"test"}
    for item in found.items:
        recording = root / item.path
        codes = recording.with_name(f"{recording.stem}_1.txt").read_text().split()
        records = isruc.read(root, item, CARD).records
        assert [r.record_id for r in records] == [f"{item.record_id}-{i:04d}" for i in range(30)]
        labels = [CARD.classes[list(record.target).index(1)] for record in records]
        assert labels == [CLASSES[code] for code in codes]


def test_resampling_is_that_of_the_waves_themselves(night):
    """200 Hz to 125 Hz, against the same waves computed at 125 Hz; beyond 62.5 Hz nothing stays."""

    def waves(rate: float) -> np.ndarray:
        time = np.arange(SECONDS * rate) / rate
        slow = 60 * np.sin(2 * np.pi * 1.3 * time + 0.2)
        fast = 25 * np.sin(2 * np.pi * 13.7 * time) + 8 * np.cos(2 * np.pi * 31 * time)
        return np.stack([slow, fast])

    c3, c4 = waves(RATE)
    time = np.arange(SECONDS * RATE) / RATE
    beyond = 40 * np.sin(2 * np.pi * 85 * time)
    found = microvolts(night({"C3-A2": c3 + beyond, "C4-A1": c4 + beyond}))
    expected = waves(125)
    assert found.shape == expected.shape == (2, 15_000)
    inner = slice(250, -250)
    assert np.abs(found - expected)[:, inner].max() < 0.25


def test_epochs_join_without_a_seam(night):
    """The night is resampled before it is cut."""
    time = np.arange(SECONDS * RATE) / RATE
    wave = 80 * np.sin(2 * np.pi * 2.05 * time)
    found = microvolts(night({"C3-A2": wave, "C4-A1": wave}))[0]
    expected = 80 * np.sin(2 * np.pi * 2.05 * np.arange(SECONDS * 125) / 125)
    for seam in (3750, 7500, 11250):
        assert found[seam - 50 : seam + 50] == pytest.approx(
            expected[seam - 50 : seam + 50], abs=0.1
        )


def test_the_rate_of_the_file_is_believed(night):
    """Whatever the paper says: 150 Hz is as good as 200 Hz."""
    for rate in (100, 150, 256, 500):
        time = np.arange(SECONDS * rate) / rate
        wave = 50 * np.sin(2 * np.pi * 10 * time)
        found = microvolts(night({"C3-A2": wave, "C4-A1": wave}, rate=rate))
        expected = 50 * np.sin(2 * np.pi * 10 * np.arange(SECONDS * 125) / 125)
        assert np.abs(found - expected)[:, 250:-250].max() < 0.5


@pytest.mark.parametrize("names", [("C3-A2", "C4-A1"), ("C3-M2", "C4-M1"), ("c3 - a2", "C4-a1")])
def test_channels_go_by_several_names(night, noise, names):
    reading = night({"LOC-A2": noise[2], names[1]: noise[1], names[0]: noise[0]}, rate=125)
    found = microvolts(reading)
    length = found.shape[1]
    assert np.abs(found - noise[:2, :length]).max() < 0.02
    assert not reading.warnings


def test_electrodes_are_referred_to_the_opposite_mastoid(night, noise):
    channels = dict(zip(("A1", "C3", "A2", "C4"), noise, strict=True))
    reading = night(channels, rate=125)
    found = microvolts(reading)
    expected = np.stack([noise[1] - noise[2], noise[3] - noise[0]])
    assert np.abs(found - expected[:, : found.shape[1]]).max() < 0.04
    warning = "C3 or C4 is the difference of an electrode and the opposite mastoid"
    assert reading.warnings == {warning: 4}


def test_an_electrode_without_its_mastoid_is_refused(night, noise):
    with pytest.raises(RecordError, match=r"C4 is missing: expected C4-A1 or .* or C4 minus M1;"):
        night({"C3": noise[0], "C4": noise[1], "A2": noise[2], "M2": noise[3]}, rate=125)


def test_the_derivation_of_the_file_wins_over_one_that_is_computed(night, noise):
    names = ("C3-A2", "C4-A1", "C3", "A2")
    reading = night(dict(zip(names, noise, strict=True)), rate=125)
    assert not reading.warnings
    assert np.abs(microvolts(reading) - noise[:2, :15_000]).max() < 0.02


def test_electrode_and_mastoid_of_different_rate_are_refused(tmp_path, write_edf, noise):
    channels = {"C3": (noise[0], 200), "A2": (noise[1, ::2], 100), "C4-A1": (noise[2], 200)}
    write_edf(tmp_path / "1.rec", channels)
    (tmp_path / "1_1.txt").write_text("2\n")
    item = RawItem("1.rec", "p-1", "p", "test", details={"stages": "1_1.txt"})
    with pytest.raises(
        RecordError, match="C3 and A2: sampled at 100 and 200 Hz; expected one rate"
    ):
        isruc.read(tmp_path, item, CARD)


def test_a_recording_without_c4_is_refused(night, noise):
    with pytest.raises(RecordError, match=r"C4 is missing: expected C4-A1 or .* or C4 minus A1 or"):
        night({"C3-A2": noise[0], "F4-A1": noise[1]})


def test_a_recording_in_volts_is_read_in_microvolts(night, noise):
    channels = {"C3-A2": noise[0] * 1e-6, "C4-A1": noise[1] * 1e-6}
    found = microvolts(night(channels, rate=125, unit="V", limit=4e-4))
    assert np.abs(found - noise[:2, :15_000]).max() < 0.02


def test_subgroups_may_lie_under_several_names_or_alone(listed):
    files = [
        f"{folder}/1/1{end}"
        for folder in ("subgroup I", "SubgroupIII")
        for end in (".rec", "_1.txt")
    ]
    files += [f"x/subgroup_2/4/2/2{end}" for end in (".rec", "_1.txt")]
    found = listed(*files)
    assert [item.record_id for item in found.items] == [
        f"{patient(1, 1)}-1", f"{patient(2, 4)}-2", f"{patient(3, 1)}-1"
    ]  # fmt: skip
    assert found.layout == "subgroups"


def test_subgroup_1_may_lie_at_the_top(listed):
    found = listed("10/10.rec", "10/10_1.txt", "9/9.rec", "9/9_1.txt", "9/9.xlsx")
    assert found.layout == "subgroup-1"
    assert [item.path for item in found.items] == ["9/9.rec", "10/10.rec"]
    assert [item.group_id for item in found.items] == [patient(1, 9), patient(1, 10)]


def test_a_recording_whose_ending_was_changed_is_found_once(listed):
    found = listed("1/1.edf", "1/1.rec", "1/1_1.txt", "2/2.EDF", "2/2_1.txt")
    assert [item.path for item in found.items] == ["1/1.rec", "2/2.EDF"]
    assert found.excluded == {DUPLICATE: 1}


def test_files_elsewhere_are_counted_not_guessed(listed):
    found = listed("1/1.rec", "1/1_1.txt", "3/4.rec", "notes/a.edf", "subgroupI/1/1/1.rec", "5.rec")
    assert [item.path for item in found.items] == ["1/1.rec"]
    assert found.excluded == {"its folders do not say whose recording it is": 4}


def test_missing_siblings_are_named_without_numbers_of_persons(listed):
    found = listed("1/1.rec", "1/1_2.txt", "2/2_1.txt", "3/3.rec", "3/3_1.txt")
    assert [item.path for item in found.items] == ["3/3.rec"]
    assert found.excluded == {"it has no staging by expert 1": 1}
    assert found.missing == [f"recording 1 of patient {patient(1, 2)}"]
    assert CARD.private_names


def test_the_option_takes_the_other_expert(synthetic_eeg):
    root = synthetic_eeg["isruc"]
    by_expert = {}
    for expert in ("1", "2"):
        items = isruc.discover(root, CARD, chosen(expert=expert)).items
        readings = [isruc.read(root, item, CARD) for item in items]
        by_expert[expert] = [[tuple(r.target) for r in reading.records] for reading in readings]
        excluded = sum((reading.excluded for reading in readings), Counter())
        # the second expert's stagings are 0, 1, 2 and 3 epochs short
        assert excluded == ({} if expert == "1" else {"an epoch without a stage": 6})
    assert [len(each) for each in by_expert["2"]] == [30, 29, 28, 27]
    agreed = [
        a == b
        for first, second in zip(*by_expert.values(), strict=True)
        for a, b in zip(first[: len(second)], second, strict=True)
    ]
    assert 0.7 < np.mean(agreed) < 1


def test_the_option_takes_one_subgroup_and_counts_the_others(listed):
    for subgroup, person in (("I", "1"), ("I", "2"), ("III", "1")):
        listed(f"subgroup{subgroup}/{person}/{person}.rec")
        listed(f"subgroup{subgroup}/{person}/{person}_1.txt")
    found = listed(subgroup="I")
    assert [item.path for item in found.items] == ["subgroupI/1/1.rec", "subgroupI/2/2.rec"]
    assert found.excluded == {"it is of a subgroup that was not asked for": 1}
    listed("subgroupI/3/3_1.txt", "subgroupIII/2/2_1.txt")
    assert listed(subgroup="I").missing == [f"recording 1 of patient {patient(1, 3)}"]
    assert found.layout == "subgroups"


def test_released_scores_a_fifth_of_the_persons(listed):
    names = [f"subgroupI/{n}/{n}" for n in range(1, 101)]
    names += [f"subgroupII/{n}/{m}/{m}" for n in range(1, 9) for m in (1, 2)]
    files = [f"{name}{end}" for name in names for end in (".rec", "_1.txt")]
    found = listed(*files, policy="released")
    assert Counter(i.split for i in found.items).keys() == {"train", "validation"}
    scored = {i.group_id for i in found.items if i.split == "validation"}
    others = {i.group_id for i in found.items if i.split == "train"}
    assert not scored & others
    assert 12 <= len(scored) <= 32
    assert {i.split for i in listed().items} == {"test"}


def test_stagings_may_have_blank_lines_and_any_line_ends(tmp_path):
    path = tmp_path / "1_1.txt"
    for text in ("0\n1\n5\n", "0\r\n1\r\n5\r\n\r\n\r\n", "\ufeff0\n\n1\n5", "0\r1\r5"):
        path.write_bytes(text.encode())
        assert isruc.text_stages(path) == ["0", "1", "5"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "its staging holds no stage; expected a number for each epoch"),
        (b"0\nW\n", "its staging holds the stage 'W'"),
        (b"0\n-1\n", "its staging holds the stage '-1'"),
        (b"0\n1.5\n", "its staging holds the stage '1.5'"),
        (b"PK\x03\x04" + b"\xff" * 100, "its staging holds the stage 'PK"),
        ("٣".encode(), "its staging holds the stage"),
    ],
)
def test_a_staging_that_is_not_of_numbers_is_refused(tmp_path, content, message):
    (tmp_path / "1_1.txt").write_bytes(content)
    with pytest.raises(RecordError, match=message):
        isruc.text_stages(tmp_path / "1_1.txt")


def test_a_staging_that_is_missing_or_too_large_is_refused(tmp_path, monkeypatch):
    with pytest.raises(RecordError, match="its staging cannot be opened"):
        isruc.text_stages(tmp_path / "1_1.txt")
    (tmp_path / "1_1.txt").write_text("0\n" * 100)
    monkeypatch.setattr(isruc, "MAX_TEXT_BYTES", 100)
    with pytest.raises(RecordError, match="expected at most 100"):
        isruc.text_stages(tmp_path / "1_1.txt")


def test_a_stage_that_the_card_does_not_name_is_excluded(night, noise):
    reading = night({"C3-A2": noise[0], "C4-A1": noise[1]}, text="0\n4\n5\n2\n")
    assert len(reading.records) == 3
    assert reading.excluded == {"an epoch with a stage that the card does not name": 1}


def test_the_catalog_holds_both_nights_of_a_person_as_one_patient(
    synthetic_eeg, tmp_path, build_here
):
    root = synthetic_eeg["isruc"]
    built = build_here("isruc", root, tmp_path / "isruc", max_quarantined=0.0)
    held = built.manifest["splits"]["test"]
    assert (held["records"], held["units"], held["patients"]) == (120, 120, 3)
    codes = [code for path in root.rglob("*_1.txt") for code in path.read_text().split()]
    assert held["classes"] == {name: codes.count(code) for code, name in CLASSES.items()}
    manifest = json.loads((built.path / "manifest.json").read_text())
    assert manifest["options"] == {"expert": "1", "subgroup": "all"}
    assert manifest["warnings"] == {
        "C3 or C4 is the difference of an electrode and the opposite mastoid": 30
    }
