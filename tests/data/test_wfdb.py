"""The WFDB reader, against what was written and against independent reading."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import wfdb
from scipy.io import loadmat

from benchmd_ray.data.readers.wfdb import read_comments, read_wfdb
from benchmd_ray.data.records import RecordError


def test_samples_names_rate_and_gain_are_those_of_the_files(tmp_path, write_cinc, ecg_signal):
    waveform = read_wfdb(write_cinc(tmp_path, "E1", ecg_signal, gain="200.0(0)/uV"))
    assert np.array_equal(waveform.samples, ecg_signal)
    assert np.array_equal(waveform.samples, loadmat(tmp_path / "E1.mat")["val"])
    assert waveform.names[:4] == ("I", "II", "III", "aVR")
    assert waveform.rate == 500.0
    assert waveform.steps_per_mv == pytest.approx(np.full(12, 200_000.0))


@pytest.mark.parametrize(
    ("unit", "per_mv"), [("mV", 50.0), ("mv", 50.0), ("V", 0.05), ("uV", 50e3), ("nV", 50e6)]
)
def test_every_voltage_unit_is_turned_into_millivolts(
    tmp_path, write_cinc, ecg_signal, unit, per_mv
):
    waveform = read_wfdb(write_cinc(tmp_path, "E1", ecg_signal, gain=f"50/{unit}"))
    assert waveform.steps_per_mv == pytest.approx(np.full(12, per_mv))


def test_baseline_is_taken_off(tmp_path, write_cinc, ecg_signal):
    waveform = read_wfdb(write_cinc(tmp_path, "E1", ecg_signal, gain="1000(-250)/mV"))
    assert np.array_equal(waveform.samples, ecg_signal.astype(int) + 250)


def test_dat_files_of_wfdb_itself_read_back(tmp_path, ecg_signal):
    wfdb.wrsamp(
        "r", 500, ["mV"] * 12, [f"c{i}" for i in range(12)], d_signal=ecg_signal.T.astype(int),
        fmt=["16"] * 12, adc_gain=[1000.0] * 12, baseline=[0] * 12, write_dir=str(tmp_path),
    )  # fmt: skip
    assert np.array_equal(read_wfdb(tmp_path / "r.hea").samples, ecg_signal)


def test_record_name_with_its_files_ending_is_mended(tmp_path, write_cinc, ecg_signal):
    header = write_cinc(tmp_path, "E1", ecg_signal, first="E1.mat")
    with pytest.raises(wfdb.io.header.HeaderSyntaxError):
        wfdb.rdrecord(str(header.with_suffix("")))
    assert np.array_equal(read_wfdb(header).samples, ecg_signal)


def test_checksums_may_be_signed_or_unsigned(tmp_path, write_cinc, ecg_signal):
    header = write_cinc(tmp_path, "E1", ecg_signal)
    lines = header.read_text().splitlines()
    for i in range(1, 13):
        fields = lines[i].split()
        fields[6] = str(int(fields[6]) % 65536)
        lines[i] = " ".join(fields)
    header.write_text("\n".join(lines) + "\n")
    assert np.array_equal(read_wfdb(header).samples, ecg_signal)


def test_damaged_samples_are_refused(tmp_path, write_cinc, ecg_signal):
    header = write_cinc(tmp_path, "E1", ecg_signal)
    content = bytearray((tmp_path / "E1.mat").read_bytes())
    content[24 + 2 * (12 * 1000 + 3)] ^= 1  # lead 3, sample 1000
    (tmp_path / "E1.mat").write_bytes(content)
    with pytest.raises(RecordError, match=r"channel aVR: the samples' checksum .* fetch it again"):
        read_wfdb(header)


@pytest.mark.parametrize("kept", [0, 30_000, 120_023])
def test_truncated_samples_are_refused(tmp_path, write_cinc, ecg_signal, kept):
    header = write_cinc(tmp_path, "E1", ecg_signal)
    content = (tmp_path / "E1.mat").read_bytes()
    (tmp_path / "E1.mat").write_bytes(content[:kept])
    with pytest.raises(RecordError, match=r"is cut off: .* expected 120,000\. Fetch it again"):
        read_wfdb(header)


@pytest.mark.parametrize("first", ["E1", "E1.mat"])
def test_missing_samples_are_refused(tmp_path, write_cinc, ecg_signal, first):
    header = write_cinc(tmp_path, "E1", ecg_signal, first=first)
    (tmp_path / "E1.mat").unlink()
    with pytest.raises(
        RecordError,
        match=r"samples' file, next to the header, cannot be opened \(FileNotFoundError",
    ):
        read_wfdb(header)


def test_invalid_samples_are_refused(tmp_path, write_cinc, ecg_signal):
    ecg_signal[4, 100:103] = -32768
    with pytest.raises(RecordError, match=r"3 samples are marked invalid \(NaN\)"):
        read_wfdb(write_cinc(tmp_path, "E1", ecg_signal))


def test_unit_that_is_no_voltage_is_refused(tmp_path, write_cinc, ecg_signal):
    with pytest.raises(RecordError, match="unit 'mmHg' is not a voltage"):
        read_wfdb(write_cinc(tmp_path, "E1", ecg_signal, gain="100/mmHg"))


@pytest.mark.parametrize("text", ["", "\n", "E1 twelve 500\n", "E1 12 500 5000\n", "\0\1\2"])
def test_broken_headers_are_refused(tmp_path, text):
    (tmp_path / "E1.hea").write_text(text)
    with pytest.raises(RecordError):
        read_wfdb(tmp_path / "E1.hea")


@pytest.mark.parametrize("first", ["E2", "E2.mat"])  # both ways of reading a header
@pytest.mark.parametrize("elsewhere", ["../E1", "{}/E1", "sub/E1"])
def test_a_header_that_names_a_file_elsewhere_is_refused(
    tmp_path, write_cinc, ecg_signal, first, elsewhere
):
    other = write_cinc(tmp_path, "E1", ecg_signal)
    header = tmp_path / "own" / "E2.hea"
    header.parent.mkdir()
    name = elsewhere.format(tmp_path)
    text = other.read_text().replace("E1.mat", f"{name}.mat")
    header.write_text(text.replace("E1 ", f"{first} ", 1))
    with pytest.raises(RecordError, match="names no file in the header's own folder"):
        read_wfdb(header)


def test_header_without_signals_is_refused(tmp_path):
    (tmp_path / "E1.hea").write_text("E1 0 500 5000\n")
    with pytest.raises(
        RecordError, match="names 0 signals and describes 0; expected as many, 1 to"
    ):
        read_wfdb(tmp_path / "E1.hea")


@pytest.mark.parametrize("line", ["# Dx: 1,2", "#Dx: 1,2", "#\tdx :1,2  ", "# DX:1,2"])
def test_comments_are_read_however_they_are_written(tmp_path, line):
    path = tmp_path / "E1.hea"
    path.write_text(f"E1 12 500 5000\n{line}\n# Age: 61\n")
    assert read_comments(path) == {"dx": "1,2", "age": "61"}


def test_empty_comment_does_not_take_the_next_line(tmp_path: Path):
    path = tmp_path / "E1.hea"
    path.write_text("E1 12 500 5000\r\n# Age:\r\n# Sex: \n#\n# Dx: 1\n")
    assert read_comments(path) == {"age": "", "sex": "", "dx": "1"}


def test_header_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "E1.hea").write_bytes(b"\xff\xfe# Dx: 1\n")
    with pytest.raises(RecordError, match="the header cannot be read"):
        read_comments(tmp_path / "E1.hea")


@pytest.mark.parametrize("rate", ["0", "-500", "nan", "abc"])
def test_a_rate_that_cannot_be_read_is_no_default_rate(tmp_path, write_cinc, ecg_signal, rate):
    header = write_cinc(tmp_path, "E1", ecg_signal)
    header.write_text(header.read_text().replace("E1 12 500 ", f"E1 12 {rate} ", 1))
    with pytest.raises(RecordError, match=r"a sampling rate of|not a readable WFDB record"):
        read_wfdb(header)


@pytest.mark.parametrize("rate", ["500", "500.0", "500/1000", "360.5(0)"])
def test_rates_of_the_format_are_read(tmp_path, write_cinc, ecg_signal, rate):
    header = write_cinc(tmp_path, "E1", ecg_signal)
    header.write_text(header.read_text().replace("E1 12 500 ", f"E1 12 {rate} ", 1))
    assert read_wfdb(header).rate == float(rate.split("/")[0].split("(")[0])


# --- what a header may say --------------------------------------------------------------------


def replaced(header: Path, old: str, new: str, count: int = -1) -> Path:
    text = header.read_text()
    assert old in text
    header.write_text(text.replace(old, new, count), newline="")
    return header


@pytest.mark.parametrize(
    ("old", "new", "steps_per_mv", "baseline", "rate"),
    [
        ("1000/mV", "0/mV", 200.0, 0, 500.0),  # no gain: the format's default
        ("1000/mV 16 0", "250 16 77", 250.0, 77, 500.0),  # the zero level, without a baseline
        ("1000/mV 16 0", "1e3(-5)/uV 16 77", 1e6, -5, 500.0),
        ("1000/mV 16 0", "33.25(12)/nV 8 0", 33.25e6, 12, 500.0),
        ("1000/mV", "1000/µV", 1e6, 0, 500.0),
        (" 500 5000", " 360.5/1000(4.5) 5000 10:11:12 05/05/2020", 1000.0, 0, 360.5),
        (" 500 5000\n", "\n", 1000.0, 0, 250.0),  # neither rate nor length: the default, and all
        ("\n", "\r\n", 1000.0, 0, 500.0),
        (" 16+24 ", " 16x1:0+24 ", 1000.0, 0, 500.0),
        ("E1.mat", "  \tE1.mat", 1000.0, 0, 500.0),
        ("# Age", "\n\n#\n# Age", 1000.0, 0, 500.0),
    ],
)
def test_headers_are_read_as_the_format_defines(
    tmp_path, write_cinc, ecg_signal, old, new, steps_per_mv, baseline, rate
):
    waveform = read_wfdb(replaced(write_cinc(tmp_path, "E1", ecg_signal), old, new))
    stored = np.fromfile(tmp_path / "E1.mat", "<i2", offset=24).reshape(-1, 12).T
    assert np.array_equal(waveform.samples, stored.astype(int) - baseline)
    assert waveform.steps_per_mv == pytest.approx(np.full(12, steps_per_mv))
    assert waveform.rate == rate
    assert waveform.names[:3] == ("I", "II", "III")


def test_a_record_of_several_files_and_fewer_samples_than_they_hold(tmp_path, ecg_signal):
    ecg_signal[:2].T.astype("<i2").tofile(tmp_path / "a.dat")
    ecg_signal[2:3].T.astype("<i2").tofile(tmp_path / "b.dat")
    sums = ecg_signal[:, :700].sum(axis=1, dtype=int) % 65536
    lines = [
        f"{file} 16 200/mV 16 0 0 {checksum} 0 {name}"
        for file, name, checksum in zip(
            ("a.dat", "a.dat", "b.dat"), ("x, of 3", "y", "z"), sums[:3], strict=True
        )
    ]
    header = tmp_path / "r.hea"
    header.write_text("\n".join(["r 3 500 700", *lines]))
    waveform = read_wfdb(header)
    assert np.array_equal(waveform.samples, ecg_signal[:3, :700])
    assert waveform.names == ("x, of 3", "y", "z")
    header.write_text("\n".join(["r 3", *lines]))
    ecg_signal[2:3, :80].T.astype("<i2").tofile(tmp_path / "b.dat")
    with pytest.raises(RecordError, match="samples' file is cut off: 160 bytes of samples"):
        read_wfdb(header)


# --- what no record has: refused before a sample is read -----------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (" 16+24 ", " 212+24 ", "of a format that is not decoded here; expected format 16"),
        (" 16+24 ", " 16x4+24 ", "of a format that is not decoded here"),
        (" 16+24 ", " 16:3+24 ", "of a format that is not decoded here"),
        (" 16+24 ", " 16+999999999 ", "is cut off: -9"),
        (" 16+24 ", " 16+" + "9" * 400, "signal 1 is not described as one"),
        (" 5000\n", " 999999999999\n", "999,999,999,999 samples of each channel; expected 1 to 5,"),
        (" 5000\n", " 5001\n", "is cut off"),
        (" 12 ", " 999999 ", "names 999999 signals and describes 12"),
        (" 12 ", " -1 ", "does not begin with one"),
        (" 12 ", "/3 12 ", "does not begin with one|names"),  # segments
        ("1000/mV", "1e999/mV", "signal 1 is not described as one"),
        ("1000/mV", "1E3/mV", "signal 1 is not described as one"),
        ("1000/mV", "-5/mV", "a gain of -5 steps per unit"),
        ("1000/mV", "1000(9999999999)/mV", "signal 1 is not described as one"),
        (" 500 ", " 1e999 ", "does not begin with one"),
        (" 500 ", " 0.0 ", "a sampling rate of 0 Hz"),
        (" I\n", "\n", "a signal without a name"),
    ],
)
def test_impossible_headers_are_refused(tmp_path, write_cinc, ecg_signal, old, new, message):
    header = replaced(write_cinc(tmp_path, "E1", ecg_signal), old, new)
    with pytest.raises(RecordError, match=message):
        read_wfdb(header)


@pytest.mark.parametrize(
    "text",
    [
        "E1 5000 500 10\n" + "E1.mat 16+24 1000/mV 16 0 0 0 0 I\n" * 5000,
        "E1 1 500 10\nE1.mat 16+24 1000/mV 16 0 0 0 0 I\n" + "# x\n" * 10**6,
        "E1 1000 500 10\n" + "a 16 1/mV 1 0 0 0 0 I\n" * 1000,
    ],
    ids=["signals", "comments", "short signals"],
)
def test_headers_of_thousands_of_lines_are_refused_at_once(tmp_path, text):
    (tmp_path / "E1.hea").write_text(text)
    start = time.process_time()
    with pytest.raises(RecordError, match=r"the header has .* bytes|expected as many, 1 to 256"):
        read_wfdb(tmp_path / "E1.hea")
    assert time.process_time() - start < 0.5


def test_messages_quote_nothing_that_may_name_a_patient(tmp_path, write_cinc, ecg_signal):
    lines = write_cinc(tmp_path, "E1", ecg_signal).read_text().splitlines()
    messages = []
    for number, line in enumerate(lines[:13]):
        fields = line.split(" ")
        for place in range(len(fields)):
            for odd in ("Jane Doe", "Doe", "../Doe", "Doe/Doe"):
                own = " ".join([*fields[:place], odd, *fields[place + 1 :]])
                (tmp_path / "E1.hea").write_text(
                    "\n".join([*lines[:number], own, *lines[number + 1 :]])
                )
                try:
                    read_wfdb(tmp_path / "E1.hea")
                except RecordError as error:
                    messages.append(str(error))
    assert len(messages) > 300
    assert not [message for message in messages if "Doe" in message]
