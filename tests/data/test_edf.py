"""The EDF reader, against the bytes of the files and against real files with odd headers."""

from __future__ import annotations

import re
import tracemalloc
from collections import Counter
from pathlib import Path

import edfio
import mne
import numpy as np
import pytest

from benchmd_ray.data.datasets.eeg import stages
from benchmd_ray.data.readers import edf
from benchmd_ray.data.readers.edf import TimedAnnotation, read_annotations, read_edf, read_header
from benchmd_ray.data.records import RecordError

FIELDS = {"records": 236, "seconds": 244, "signals": 252}
"""Where the numbers of a header begin that this file changes."""


@pytest.fixture
def noise() -> np.ndarray:
    return np.random.default_rng(3).normal(0, 40, 2000).clip(-400, 400)


def patched(path: Path, at: int, text: str | bytes, width: int = 8) -> Path:
    """The file with one field of its header overwritten."""
    content = bytearray(path.read_bytes())
    value = text.encode() if isinstance(text, str) else text
    content[at : at + width] = value.ljust(width)
    path.write_bytes(content)
    return path


def place(signals: int, index: int, name: str) -> int:
    """Where a field of one of the signals begins."""
    start = 256
    for field_name, width in edf._SIGNAL_FIELDS:
        if field_name == name:
            return start + index * width
        start += signals * width
    raise KeyError(name)


def field(path: Path, index: int, name: str) -> int:
    return place(int(path.read_bytes()[252:256]), index, name)


def by_hand(path: Path, index: int) -> np.ndarray:
    """Physical values of a signal, computed from the bytes."""
    content = path.read_bytes()
    signals = int(content[252:256])

    def number(name: str, which: int) -> float:
        at = place(signals, which, name)
        return float(content[at : at + 8])

    samples = [int(number("samples", which)) for which in range(signals)]
    data = np.frombuffer(content, "<i2", offset=256 * (signals + 1)).reshape(-1, sum(samples))
    own = data[:, sum(samples[:index]) :][:, : samples[index]].reshape(-1).astype(float)
    low, high = number("physical minimum", index), number("physical maximum", index)
    lowest, highest = number("digital minimum", index), number("digital maximum", index)
    return low + (own - lowest) * (high - low) / (highest - lowest)


def test_values_are_those_of_the_bytes_at_each_channels_own_rate(tmp_path, write_edf, noise):
    path = write_edf(
        tmp_path / "night.edf",
        {"slow": (noise[:10], 1), "C3-A2": (noise, 200), "EOG": (noise[:500], 50)},
    )
    recording = read_edf(path, ["EOG", "C3-A2", "slow"])
    assert recording.rates == {"EOG": 50.0, "C3-A2": 200.0, "slow": 1.0}
    for index, name in enumerate(("slow", "C3-A2", "EOG")):
        assert recording.signals[name] == pytest.approx(by_hand(path, index), abs=1e-9)
    assert recording.signals["C3-A2"] == pytest.approx(noise, abs=800 / 65535)


@pytest.mark.parametrize(
    ("unit", "microvolts"),
    [
        ("uV", 1), ("UV", 1), (b"\xb5V", 1), (b"\xc2\xb5V", 1), (b"\xce\xbcV", 1),
        (b"\x83\xcaV", 1), (b"\xa6\xccV", 1), ("mV", 1e3),
        ("MV", 1e3), ("V", 1e6), ("v", 1e6), ("nV", 1e-3),
    ],
)  # fmt: skip
def test_units_are_those_of_the_file(tmp_path, write_edf, noise, unit, microvolts):
    path = write_edf(tmp_path / "night.edf", {"C3": (noise, 200)})
    patched(path, field(path, 0, "unit"), unit)
    found = read_edf(path, ["C3"]).signals["C3"]
    assert found == pytest.approx(by_hand(path, 0) * microvolts, rel=1e-9)


def test_a_file_in_millivolts_gives_the_same_microvolts(tmp_path, write_edf, noise):
    micro = write_edf(tmp_path / "micro.edf", {"C3": (noise, 200)}, limit=400)
    milli = write_edf(tmp_path / "milli.edf", {"C3": (noise / 1e3, 200)}, limit=0.4, unit="mV")
    first, second = (read_edf(path, ["C3"]).signals["C3"] for path in (micro, milli))
    assert first == pytest.approx(second, abs=1e-6)


@pytest.mark.parametrize("name", ["EEG(sec)", "eeg(SEC)", " EEG (sec) ", "EEG(Sec)"])
def test_names_match_without_regard_to_case_and_blanks(tmp_path, write_edf, noise, name):
    path = write_edf(tmp_path / "night.edf", {"EEG": (-noise, 200), "EEG(sec)": (noise, 200)})
    patched(path, field(path, 1, "label"), "EEG (SEC)", 16)
    assert read_edf(path, [name]).signals[name] == pytest.approx(by_hand(path, 1), abs=1e-9)


def test_a_name_that_is_a_kind_of_channel_or_a_status_is_a_name(tmp_path, write_edf, noise):
    path = write_edf(tmp_path / "n.edf", {"EEG": (noise, 200), "Status": (noise / 2, 200)})
    found = read_edf(path, ["eeg", "status"]).signals
    assert found["eeg"] == pytest.approx(by_hand(path, 0), abs=1e-9)
    assert found["status"] == pytest.approx(by_hand(path, 1), abs=1e-9)


def test_a_name_that_is_there_twice_is_refused_when_it_is_wanted(tmp_path, write_edf, noise):
    path = write_edf(
        tmp_path / "night.edf", {"EEG": (noise, 200), "eeg ": (noise, 200), "C3": (noise, 200)}
    )
    assert len(read_edf(path, ["C3"]).signals["C3"]) == 2000
    with pytest.raises(RecordError, match=r"has channel EEG 2 times, expected once; .*EEG, eeg"):
        read_edf(path, ["EEG"])
    with pytest.raises(RecordError, match="has no channel C4"):
        read_edf(path, ["C4"])


def test_the_ending_of_the_file_does_not_matter(tmp_path, write_edf, noise):
    path = write_edf(tmp_path / "1.rec", {"C3": (noise, 200)})
    assert read_edf(path, ["C3"]).signals["C3"] == pytest.approx(by_hand(path, 0), abs=1e-9)


def test_a_rate_comes_from_samples_and_duration(tmp_path, write_edf, noise):
    path = write_edf(tmp_path / "n.edf", {"C3": (noise, 62.5)}, data_record_duration=2)
    assert read_header(path).seconds == 2
    assert read_edf(path, ["C3"]).rates == {"C3": 62.5}


def test_decoding_says_nothing_and_warns_of_nothing(tmp_path, write_edf, noise, capfd, recwarn):
    path = write_edf(tmp_path / "n.edf", {"C3": (noise, 200), "C4": (noise, 200)})
    patched(path, 168, "xx.xx.xx")  # no date
    patched(path, field(path, 0, "prefilter"), "HP:70Hz LP:30Hz", 80)
    assert set(read_edf(path, ["C3", "C4"]).signals) == {"C3", "C4"}
    assert not recwarn.list
    assert capfd.readouterr() == ("", "")


def test_a_recording_that_was_never_closed_is_as_long_as_its_file(tmp_path, write_edf, noise):
    path = patched(write_edf(tmp_path / "n.edf", {"C3": (noise, 200)}), FIELDS["records"], "-1")
    assert len(read_edf(path, ["C3"]).signals["C3"]) == 2000


@pytest.mark.parametrize(
    ("at", "text", "message"),
    [
        (0, b"\xffBIOSEMI", "it is not an EDF file: it does not begin with '0'"),
        (184, "1024", "its header of 1 signals says it is 1024 bytes long, the file has"),
        (FIELDS["records"], "99999999", "it is cut off: 4,000 bytes of data, expected 99,999,999"),
        (FIELDS["records"], "9", "it is longer than its header says: 4,000 bytes"),
        (FIELDS["records"], "ten", "its header is damaged: number of data records is not a number"),
        (FIELDS["records"], "0", "longer than its header says"),
        (FIELDS["seconds"], "0", "its data records last 0 s; expected a positive duration"),
        (FIELDS["seconds"], "-1", "its data records last -1 s"),
        (
            FIELDS["seconds"],
            "nan",
            "its header is damaged: duration of a data record is not a number",
        ),
        (192, "EDF+D", r"it is discontinuous \(EDF\+D\); expected a recording without gaps"),
    ],
)
def test_a_faulty_header_is_refused(tmp_path, write_edf, noise, at, text, message):
    path = patched(write_edf(tmp_path / "n.edf", {"C3": (noise, 200)}), at, text)
    with pytest.raises(RecordError, match=message):
        read_edf(path, ["C3"])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("unit", "%", "channel C3: unit '%' is not a voltage; expected one of V, mV, µV, nV"),
        ("unit", "", "channel C3: unit '' is not a voltage"),
        ("physical maximum", "-400", "stand for values from -400 to -400; expected two ranges"),
        ("digital maximum", "-32768", "samples from -32768 to -32768 stand for"),
        ("physical maximum", "inf", "its header is damaged: physical range is not a number"),
        ("samples", "0", "a signal has 0 samples in a data record"),
        ("samples", "99999999", "it is cut off"),
        ("samples", "2e2", "its header is damaged: number of samples is not a number"),
    ],
)
def test_a_faulty_channel_is_refused(tmp_path, write_edf, noise, name, text, message):
    path = write_edf(tmp_path / "n.edf", {"C3": (noise, 200)})
    patched(path, field(path, 0, name), text)
    with pytest.raises(RecordError, match=message):
        read_edf(path, ["C3"])


def test_a_number_of_signals_that_is_not_there_is_refused(tmp_path, write_edf, noise):
    path = write_edf(tmp_path / "n.edf", {"C3": (noise, 200)})
    for text, message in (("9999", "header of 9999 signals"), ("0", "names 0 signals")):
        patched(path, FIELDS["signals"], text, 4)
        with pytest.raises(RecordError, match=message):
            read_edf(path, ["C3"])


@pytest.mark.parametrize("size", [0, 100, 300, 511, 512, 700, 4511])
def test_a_file_that_is_cut_off_is_refused(tmp_path, write_edf, noise, size):
    path = write_edf(tmp_path / "n.edf", {"C3": (noise, 200)})
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(RecordError, match="Fetch it again"):
        read_edf(path, ["C3"])


def test_a_missing_file_is_refused_without_its_path(tmp_path):
    with pytest.raises(RecordError, match="cannot be opened: No such file") as error:
        read_edf(tmp_path / "shhs1-200001.edf", ["EEG"])
    assert "shhs1" not in str(error.value)


def test_a_channel_that_is_too_long_is_refused_before_it_is_decoded(
    tmp_path, write_edf, noise, monkeypatch
):
    path = write_edf(tmp_path / "n.edf", {"C3": (noise, 200)})
    monkeypatch.setattr(edf, "MAX_SAMPLES", 1999)
    monkeypatch.setattr(np, "memmap", None)
    with pytest.raises(
        RecordError, match="its channels have 2,000 samples, expected at most 1,999"
    ):
        read_edf(path, ["C3"])


def test_little_more_than_the_signal_is_in_memory(tmp_path, write_edf, monkeypatch):
    """The file is sparse, as one that claims a lot may be, and what is in it does not matter."""
    monkeypatch.setattr(edf, "AT_ONCE", 2**14)
    path = write_edf(tmp_path / "n.edf", {"C3": (np.arange(1024.0) % 9, 1024)})
    patched(path, FIELDS["records"], "1024")
    with path.open("r+b") as file:
        file.truncate(512 + 2 * 2**20)
    read_edf(path, ["C3"])  # which imports
    tracemalloc.start()
    try:
        signal = read_edf(path, ["C3"]).signals["C3"]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(signal) == 2**20
    assert peak < 1.5 * signal.nbytes
    np.testing.assert_allclose(signal[:1024], by_hand(path, 0)[:1024], rtol=1e-12)


# --- channels that are not wanted ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "width"),
    [
        ("unit", "mmHg", 8),
        ("unit", b"\xb0C", 8),
        ("physical maximum", "-400", 8),  # an empty range
        ("physical minimum", "none", 8),
        ("physical minimum", "nan", 8),
        ("digital maximum", "", 8),
        ("digital minimum", "99999", 8),
        ("label", b"Gef\xe4\xdf", 16),
        ("label", "C3 ", 16),
        ("transducer", b"\xff\xfe\x00", 80),
        ("prefilter", b"HP:\xb50,1 LP:zwei", 80),
        ("reserved", b"\xe4\xf6\xfc", 32),
    ],
)
def test_what_is_wrong_with_another_channel_does_not_matter(
    tmp_path, write_edf, noise, name, text, width
):
    path = write_edf(
        tmp_path / "n.edf",
        {"EEG": (noise, 200), "Pleth": (noise[:500], 50), "EOG": (-noise, 200)},
        annotations=[edfio.EdfAnnotation(0, 30, "Wake")],
    )
    expected = mne.io.read_raw_edf(path, include=["EEG", "EOG"], verbose="ERROR").get_data() * 1e6
    patched(path, field(path, 1, name), text, width)
    recording = read_edf(path, ["EEG", "EOG"])
    assert recording.rates == {"EEG": 200.0, "EOG": 200.0}
    assert np.stack(list(recording.signals.values())) == pytest.approx(expected, abs=1e-9)
    assert [annotation.text for annotation in read_annotations(path)] == ["Wake"]


def test_a_channel_without_samples_matters_only_where_it_is_wanted(tmp_path, write_edf, noise):
    """Written by hand: no library writes one."""
    path = write_edf(tmp_path / "n.edf", {"EEG": (noise, 200), "none": (noise[:10], 1)})
    data = np.frombuffer(path.read_bytes()[768:], "<i2").reshape(10, 201)
    path.write_bytes(path.read_bytes()[:768] + data[:, :200].tobytes())
    patched(path, field(path, 1, "samples"), "0")
    assert read_edf(path, ["EEG"]).signals["EEG"] == pytest.approx(by_hand(path, 0), abs=1e-9)
    with pytest.raises(RecordError, match=r"channel none: it has 0 samples in a data record"):
        read_edf(path, ["none"])


def test_text_that_is_not_ascii_is_read_wherever_it_is(tmp_path, write_edf, noise):
    path = write_edf(tmp_path / "N.EDF", {"C3": (noise, 200), "C4": (noise, 200)})
    patched(path, 8, "Müller, geb. Größe".encode("latin-1"), 80)
    patched(path, 88, b"\xff\x00\xe9", 80)
    patched(path, field(path, 0, "label"), "Mü".encode(), 16)
    patched(path, field(path, 1, "label"), "Mü-2".encode("latin-1"), 16)
    for index, name in enumerate(("mü", "MÜ-2")):
        assert read_edf(path, [name]).signals[name] == pytest.approx(by_hand(path, index), abs=1e-9)


def test_a_range_that_no_number_holds_is_refused(tmp_path, write_edf, noise):
    path = write_edf(tmp_path / "n.edf", {"C3": (noise, 200)})
    for name, text in (("physical minimum", "-1e308"), ("physical maximum", "1e308")):
        patched(path, field(path, 0, name), text)
    with pytest.raises(RecordError, match="channel C3: a step of its samples stands for inf µV"):
        read_edf(path, ["C3"])
    for name, text in (("physical minimum", "-1e-99"), ("physical maximum", "1e-99")):
        patched(path, field(path, 0, name), text)
    with pytest.raises(RecordError, match=r"stands for 3\.05.*e-104 µV; expected 1e-12 to 1e\+12"):
        read_edf(path, ["C3"])
    for name, text in (("physical minimum", "-2e30"), ("physical maximum", "-2.1e30")):
        patched(path, field(path, 0, name), text)
    with pytest.raises(RecordError, match="expected 1e-12 to 1e\\+12"):
        read_edf(path, ["C3"])


def test_samples_that_16_bits_do_not_hold_are_refused(tmp_path, write_edf, noise):
    path = write_edf(tmp_path / "n.edf", {"C3": (noise, 200)})
    for name, text in (("digital minimum", "0"), ("digital maximum", "65535")):
        patched(path, field(path, 0, name), text)
    with pytest.raises(RecordError, match=r"samples from 0 to 65535; expected .* of 16 bits"):
        read_edf(path, ["C3"])


# --- annotations ---------------------------------------------------------------------------------


def test_annotations_are_those_that_were_written(tmp_path, write_edf, noise):
    written = [
        (30.0, 60.0, "Sleep stage 2"),
        (0.0, 30.0, "Sleep stage W"),
        (12.5, None, "Licht än"),
    ]
    path = write_edf(
        tmp_path / "n.edf",
        {"C3": (noise, 200)},
        annotations=[edfio.EdfAnnotation(*each) for each in written],
    )
    assert read_annotations(path) == sorted(TimedAnnotation(*each) for each in written)
    assert len(read_edf(path, ["C3"]).signals["C3"]) == 2000


def test_annotations_are_decoded_without_the_signals(tmp_path, write_edf, noise):
    path = write_edf(
        tmp_path / "n.edf",
        {"C3": (np.tile(noise, 100), 20_000)},
        annotations=[edfio.EdfAnnotation(1.5, 2, "Wake")],
    )
    read_annotations(path)  # which imports
    tracemalloc.start()
    try:
        assert read_annotations(path) == [TimedAnnotation(1.5, 2, "Wake")]
        assert tracemalloc.get_traced_memory()[1] < path.stat().st_size / 2
    finally:
        tracemalloc.stop()


def test_a_file_without_annotations_is_refused(tmp_path, write_edf, noise):
    path = write_edf(tmp_path / "n.edf", {"C3": (noise, 200)})
    with pytest.raises(RecordError, match="has no channel 'EDF Annotations'"):
        read_annotations(path)


def test_annotations_that_are_no_text_are_refused(tmp_path, write_edf, noise):
    path = write_edf(
        tmp_path / "n.edf", {"C3": (noise, 200)}, annotations=[edfio.EdfAnnotation(0, 1, "Wake")]
    )
    path.write_bytes(path.read_bytes().replace(b"Wake", b"W\xff\xfee"))
    with pytest.raises(RecordError, match=r"its annotations cannot be read .*UnicodeDecodeError"):
        read_annotations(path)


def test_stages_fill_their_epochs_and_what_is_not_scored_is_empty():
    found = stages(
        [
            TimedAnnotation(150, 30, "SLEEP STAGE R"),
            TimedAnnotation(0, 60, "Sleep stage W"),
            TimedAnnotation(60, 30, "Sleep stage 4"),
            TimedAnnotation(90, 30, "Movement time"),
        ]
    )
    assert found == ["wake", "wake", "n3", "", "", "rem"]
    assert stages([]) == []


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        ([(0, 30, "RECORD START")], "the annotation at 0 s is not a sleep stage; expected"),
        ([(0, None, "Sleep stage W")], "the stage at 0 s lasts None s; expected whole epochs"),
        ([(0, 45, "Sleep stage W")], "lasts 45 s; expected whole epochs of 30 s"),
        ([(15, 30, "Sleep stage W")], "the stage at 15 s"),
        ([(0, 60, "Sleep stage W"), (30, 30, "Sleep stage 1")], "the stage at 30 s .* one after"),
        ([(0, 3e12, "Sleep stage W")], "more than a week"),
        ([(3e12, 30, "Sleep stage W")], "more than a week"),
        ([(float("inf"), 30, "Sleep stage W")], "the stage at inf s"),
    ],
)
def test_annotations_that_are_no_hypnogram_are_refused(annotations, message):
    with pytest.raises(RecordError, match=message):
        stages([TimedAnnotation(*each) for each in annotations])


@pytest.mark.data
def test_real_hypnograms_give_a_stage_for_each_epoch_of_a_day(real_data):
    merged = {
        "Sleep stage 3": "n3",
        "Sleep stage 4": "n3",
        "Movement time": "",
        "Sleep stage ?": "",
    }
    merged |= {"Sleep stage W": "wake", "Sleep stage R": "rem"}
    merged |= {f"Sleep stage {i}": f"n{i}" for i in (1, 2)}
    paths = sorted((real_data / "sleep-edf-hypnograms").glob("*.edf"))
    assert len(paths) == 20
    total: Counter[str] = Counter()
    for path in paths:
        found = stages(read_annotations(path))
        assert len(found) == 24 * 120
        independent = Counter()
        listed = mne.read_annotations(path)
        for text, duration in zip(listed.description, listed.duration, strict=True):
            independent[merged[text]] += int(duration) // 30
        assert Counter(found) == independent
        total.update(found)
    first = Counter(stages(read_annotations(paths[0])))
    assert [first[name] for name in ("n1", "n2", "n3", "rem")] == [58, 250, 220, 125]
    assert total["wake"] == 37115


@pytest.mark.data
@pytest.mark.slow
def test_every_odd_file_decodes_to_its_bytes_or_is_refused(real_data):
    outcomes = {}
    for path in sorted((real_data / "edf-odd").iterdir()):
        names = [c.name for c in read_header(path).channels if c.name != edf.ANNOTATIONS]
        if path.name == "MB0400FU.EDF":
            with pytest.raises(RecordError, match="discontinuous"):
                read_edf(path, names)
            continue
        usable = [name for name in names if names.count(name) == 1]
        recording = read_edf(path, usable)
        for name in usable[::7]:
            index = names.index(name)
            assert recording.signals[name] == pytest.approx(by_hand(path, index), abs=1e-6)
        outcomes[path.stem] = len(usable)
    assert outcomes == {
        "SC4001EC-Hypnogram": 0,
        "chtypes_edf": 42,
        "subsecond_starttime": 3,
        "test_edf_overlapping_annotations": 64,
        "test_generator_2": 11,
        "test_reduced": 139,
        "test_utf8_annotations": 11,
    }


@pytest.mark.data
def test_generated_sines_have_their_frequency_and_amplitude(real_data):
    path = real_data / "edf-odd" / "test_generator_2.edf"
    names = [c.name for c in read_header(path).channels if c.name.startswith("sine")]
    assert len(names) == 6
    recording = read_edf(path, names)
    for name in names:
        signal = recording.signals[name]
        spectrum = np.abs(np.fft.rfft(signal))
        hertz = float(re.search(r"[\d.]+", name)[0])
        peak = np.fft.rfftfreq(len(signal), 1 / recording.rates[name])[spectrum[1:].argmax() + 1]
        assert peak == pytest.approx(hertz, abs=0.01)
        assert signal.std() == pytest.approx(100 / np.sqrt(2), rel=0.01)


@pytest.mark.data
def test_channels_of_many_rates_each_keep_theirs(real_data):
    path = real_data / "edf-odd" / "test_reduced.edf"
    recording = read_edf(path, ["A1", "A9", "A10"])
    assert recording.rates == {"A1": 1.0, "A9": 256.0, "A10": 512.0}
    assert [len(recording.signals[name]) for name in ("A1", "A9", "A10")] == [6, 1536, 3072]


@pytest.mark.data
def test_annotations_of_odd_files_are_those_that_mne_finds(real_data):
    for name in ("test_utf8_annotations", "test_edf_overlapping_annotations", "test_reduced"):
        path = real_data / "edf-odd" / f"{name}.edf"
        listed = mne.read_annotations(path)
        expected = zip(listed.onset, listed.duration, listed.description, strict=True)
        found = [(a.onset, a.duration or 0.0, a.text) for a in read_annotations(path)]
        assert sorted(found) == sorted(expected)


def test_no_message_quotes_the_patient_whatever_is_lost_or_added(tmp_path, write_edf, noise):
    path = write_edf(tmp_path / "n.edf", {"C3": (noise, 200), "C4": (noise, 200)})
    whole = bytearray(path.read_bytes())
    whole[8:168] = b"Doe " * 40
    messages = []
    for count in (*range(1, 20), 40, 60, 80, 100, 120, 140, 160, 180, 200):
        for place in (0, 4, 8, 50, 88, 160, 168, 192, 236, 252):
            lost = whole[:place] + whole[place + count :]
            added = whole[:place] + whole[8 : 8 + count] + whole[place:]
            written = bytearray(whole)
            written[place : place + count] = whole[8 : 8 + count]
            for content in (lost, added, written):
                path.write_bytes(content)
                for read in (lambda: read_edf(path, ["C3"]), lambda: read_annotations(path)):
                    try:
                        read()
                    except RecordError as error:
                        messages.append(str(error))
    assert len(messages) > 1000
    assert not [message for message in messages if "Doe" in message]


@pytest.mark.data
def test_annotations_of_more_than_a_hypnogram_are_refused(tmp_path, monkeypatch, real_data):
    path = sorted((real_data / "sleep-edf-hypnograms").glob("*.edf"))[0]
    header = read_header(path)
    size = 2 * header.records * header.channels[0].samples
    monkeypatch.setattr(edf, "MAX_ANNOTATION_BYTES", size)
    assert read_annotations(path)
    monkeypatch.setattr(edf, "MAX_ANNOTATION_BYTES", size - 1)
    with pytest.raises(RecordError, match="its annotations have more than"):
        read_annotations(path)
