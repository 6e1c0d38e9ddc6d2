"""The WFDB reader, against what was written and against independent reading."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile
import wfdb
from scipy.io import loadmat

from benchmd_ray.data.readers import wfdb as reader
from benchmd_ray.data.readers import wfdb_header
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
    (tmp_path / "E1.hea").write_bytes(b"\xff\xfe# Dx: 1\n\0")
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
        (" 16+24 ", " 17+24 ", "of a format that is not decoded here; expected one of 8, 16"),
        (" 16+24 ", " 16x4+24 ", "is cut off: 120,000 bytes of samples, expected 480,000"),
        (" 16+24 ", " 32+24 ", "is cut off: 120,000 bytes of samples, expected 240,000"),
        (" 16+24 ", " 516 ", "format 516 is FLAC, and it is not"),
        (" 16+24 ", " 16:5000+24 ", "skewed by more samples than they have"),
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
        ("1000/mV", "1e-20/mV", r"channel I: a step of its samples stands for 1e\+23 µV; expected"),
        ("1000/mV", "1e20/nV", r"stands for 1e-23 µV; expected 1e-12 to 1e\+12"),
        ("1000/mV", "1000(9999999999)/mV", "signal 1 is not described as one"),
        (" 500 ", " 1e999 ", "does not begin with one"),
        (" 500 ", " 0.0 ", "a sampling rate of 0 Hz"),
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


# --- formats of samples, against bits that are packed by hand ------------------------------------


def twelve_bits(values: list[int]) -> bytes:
    """Format 212: two samples in three bytes."""
    content = bytearray()
    for first, second in zip(values[::2], [*values[1::2], 0], strict=False):
        low, high = first % 4096, second % 4096
        content += bytes([low % 256, low // 256 + 16 * (high // 256), high % 256])
    return bytes(content)


def ten_bits_of_words(values: list[int]) -> bytes:
    """Format 310: three samples in two words of 16 bits; the third shares the words' high bits."""
    content = bytearray()
    for start in range(0, len(values), 3):
        first, second, third = ([*values[start : start + 3], 0, 0][i] % 1024 for i in range(3))
        content += (2 * first + 2048 * (third % 32)).to_bytes(2, "little")
        content += (2 * second + 2048 * (third // 32)).to_bytes(2, "little")
    return bytes(content)


def ten_bits_in_a_row(values: list[int]) -> bytes:
    """Format 311: three samples in 30 of 32 bits."""
    content = bytearray()
    for start in range(0, len(values), 3):
        own = [value % 1024 for value in [*values[start : start + 3], 0, 0][:3]]
        content += (own[0] + 1024 * own[1] + 1024**2 * own[2]).to_bytes(4, "little")
    return bytes(content)


def whole(size: int, order: str, offset: int = 0):
    return lambda values: b"".join(
        (value + offset).to_bytes(size, order, signed=not offset) for value in values
    )


PACKED = {
    "16": (whole(2, "little"), 16),
    "24": (whole(3, "little"), 24),
    "32": (whole(4, "little"), 32),
    "61": (whole(2, "big"), 16),
    "80": (whole(1, "little", 128), 8),
    "160": (whole(2, "little", 2**15), 16),
    "212": (twelve_bits, 12),
    "310": (ten_bits_of_words, 10),
    "311": (ten_bits_in_a_row, 10),
}
"""What writes a format, and the bits of a sample."""


def described(folder: Path, form: str, values: np.ndarray, *, name="r", gain="200/mV") -> Path:
    """A header of signals c0, c1, … in one file, with their checksums."""
    lines = [f"{name} {len(values)} 360 {values.shape[1]}"]
    for place, own in enumerate(values):
        numbers = f"16 0 {own[0]} {int(own.sum()) % 65536} 0"
        lines.append(f"{name}.dat {form} {gain} {numbers} c{place}")
    (folder / f"{name}.hea").write_text("\n".join(lines) + "\n")
    return folder / f"{name}.hea"


@pytest.mark.parametrize("form", PACKED)
def test_every_format_gives_the_samples_that_were_packed(tmp_path, form):
    """One to three channels; the last block of bits may be cut."""
    pack, bits = PACKED[form]
    largest = 2 ** (bits - 1) - 1
    rng = np.random.default_rng(3)
    for channels, count in itertools.product((1, 2, 3), (7, 8, 9)):
        values = rng.integers(-largest, largest, (channels, count), endpoint=True)
        values[0, :2] = (-largest, largest)
        (tmp_path / "r.dat").write_bytes(pack(values.T.ravel().tolist()))
        header = described(tmp_path, form, values)
        assert np.array_equal(read_wfdb(header).samples, values)
        theirs = wfdb.rdrecord(str(tmp_path / "r"))
        assert theirs.p_signal.T * 200 == pytest.approx(values)
        if values.size % 6 == 0:  # whole blocks, in all formats: no length says all that there are
            replaced(header, f" 360 {count}", " 360")
            assert np.array_equal(read_wfdb(header).samples, values)


@pytest.mark.parametrize("form", PACKED)
def test_the_lowest_number_of_a_format_is_no_sample(tmp_path, form):
    pack, bits = PACKED[form]
    values = np.array([[3, -(2 ** (bits - 1)), 5], [1, 2, 3]])
    (tmp_path / "r.dat").write_bytes(pack(values.T.ravel().tolist()))
    header = described(tmp_path, form, values)
    with pytest.raises(RecordError, match=r"channel c0: 1 samples are marked invalid"):
        read_wfdb(header)
    assert read_wfdb(header, lambda _: [1]).samples.tolist() == [[1, 2, 3]]


def test_differences_add_up_to_the_samples(tmp_path):
    values = np.array([[100, 90, 95, 95, -20], [-7, -7, 120, 0, 1]])
    steps = np.diff(values, axis=1, prepend=values[:, :1]).T.ravel()  # the first is the header's
    (tmp_path / "r.dat").write_bytes(steps.astype(np.int8).tobytes())
    assert np.array_equal(read_wfdb(described(tmp_path, "8", values)).samples, values)


@pytest.mark.parametrize(("form", "kind", "bits"), [("516", "PCM_16", 16), ("524", "PCM_24", 24)])
def test_compressed_samples_are_read_as_they_were_written(tmp_path, form, kind, bits):
    values = np.random.default_rng(1).integers(-(2 ** (bits - 2)), 2 ** (bits - 2), (3, 4000))
    scaled = (values.T << (16 if bits == 16 else 8)).astype(np.int32)  # to the highest bits
    soundfile.write(tmp_path / "r.dat", scaled, 360, kind, format="FLAC")
    header = described(tmp_path, form, values)
    assert np.array_equal(read_wfdb(header).samples, values)
    replaced(header, " 360 4000", " 360 4001")
    with pytest.raises(RecordError, match=r"4,000 samples of each channel, expected 4,001"):
        read_wfdb(header)


def test_a_holter_of_two_leads_in_twelve_bits_is_in_millivolts(tmp_path):
    """As the MIT-BIH Arrhythmia Database has them: 360 Hz, 11 bits over 10 mV, zero at 1024."""
    time = np.arange(3600) / 360
    millivolts = np.stack([np.sin(6 * time), 2 * np.cos(40 * time)])
    values = np.rint(1024 + 200 * millivolts).astype(int)
    assert values.min() > 0
    assert values.max() < 2048
    (tmp_path / "100.dat").write_bytes(twelve_bits(values.T.ravel().tolist()))
    lines = ["100 2 360 3600 0:0:0"]
    for name, own in zip(("MLII", "V5"), values, strict=True):
        lines.append(f"100.dat 212 200 11 1024 {own[0]} {int(own.sum()) % 65536} 0 {name}")
    (tmp_path / "100.hea").write_text("\n".join([*lines, "# 69 M 1085 1629 x1", ""]))
    waveform = read_wfdb(tmp_path / "100.hea")
    found = waveform.samples / waveform.steps_per_mv[:, None]
    assert np.abs(found - millivolts).max() <= 0.5 / 200 + 1e-12
    assert (waveform.names, waveform.rate) == (("MLII", "V5"), 360.0)


def test_frames_of_several_samples_and_skewed_signals(tmp_path):
    """Of each frame the file has four samples of c0 and one of c1, which is two frames late."""
    fast, slow = np.arange(40), np.arange(10) * 100
    flat = np.concatenate([[*fast[4 * i :][:4], slow[i]] for i in range(10)])
    (tmp_path / "r.dat").write_bytes(flat.astype("<i2").tobytes())
    text = "r 2 50 10\nr.dat 16x4 200 16 0 0 780 0 c0\nr.dat 16:2 200 16 0 0 4500 0 c1\n"
    (tmp_path / "r.hea").write_text(text)
    first = read_wfdb(tmp_path / "r.hea", lambda names: [names.index("c0")])
    assert (first.rate, first.samples[0].tolist()) == (200.0, fast.tolist())
    second = read_wfdb(tmp_path / "r.hea", lambda _: [1])
    assert (second.rate, second.samples[0].tolist()) == (50.0, slow[2:].tolist())
    with pytest.raises(RecordError, match="have 1 and 4 samples in a frame; expected channels of"):
        read_wfdb(tmp_path / "r.hea")


# --- signals that are not wanted -----------------------------------------------------------------


def one_more(folder: Path, line: str, values: np.ndarray, third: np.ndarray) -> Path:
    """Two leads and a third signal, in a file."""
    header = described(folder, "16", values, name="m")
    (folder / "m.dat").write_bytes(np.stack([*values, third]).T.astype("<i2").tobytes())
    header.write_text(header.read_text().replace("m 2 ", "m 3 ") + line + "\n")
    return header


@pytest.mark.parametrize(
    "line",
    [
        "m.dat 16 200/NU 16 0 0 0 0 PLETH",
        "m.dat 16 200/mmHg 16 0 0 0 0 ABP",
        "m.dat 16 200/°C 16 0 0 0 0 Temp",
        "m.dat 16 200/l/min 16 0 0 0 0 Flow",
        "m.dat 16 -1/mV 16 0 0 0 0 turned",
        "m.dat 16 nan(x)/mV twelve",
        "m.dat 16",
        "m.dat 16 200/mV 16 0 0 12345 0 c0x",  # another checksum
        "gone.dat 16 200/mV 16 0 0 0 0 elsewhere",
        "gone.dat 99x7:3 200/mV 16 0 0 0 0 elsewhere",
    ],
)
def test_what_is_wrong_with_other_signals_does_not_matter(tmp_path, line):
    values = np.random.default_rng(0).integers(-900, 900, (2, 500))
    third = np.full(500, -(2**15))  # no sample is valid
    header = one_more(tmp_path, line, values, third)
    if line.startswith("gone"):
        (tmp_path / "m.dat").write_bytes(values.T.astype("<i2").tobytes())
    waveform = read_wfdb(header, lambda names: [names.index("c1"), names.index("c0")])
    assert np.array_equal(waveform.samples, values[::-1])
    assert waveform.names == ("c1", "c0")
    with pytest.raises(RecordError):
        read_wfdb(header)


def test_a_file_that_is_cut_off_has_no_lead_whole(tmp_path):
    values = np.random.default_rng(0).integers(-900, 900, (2, 500))
    header = one_more(tmp_path, "m.dat 16 200/NU 16 0 0 0 0 PLETH", values, values[0])
    (tmp_path / "m.dat").write_bytes((tmp_path / "m.dat").read_bytes()[:-2])
    with pytest.raises(RecordError, match="is cut off"):
        read_wfdb(header, lambda _: [0, 1])


# --- text of headers -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "encoded",
    [
        lambda text: text.encode("utf-8"),
        lambda text: text.encode("utf-8-sig"),
        lambda text: text.encode("utf-16"),
        lambda text: text.encode("latin-1"),
        lambda text: text.replace("\n", "\r\n").encode("latin-1"),
        lambda text: (text + "# 5 µm\n").encode("utf-8") + b"# caf\xe9 \x85 twelve leads\n",
    ],
)
def test_headers_are_read_in_any_encoding(tmp_path, write_cinc, ecg_signal, encoded):
    header = write_cinc(tmp_path, "E1", ecg_signal, comments=["# Gerät: älter", "# Dx: 1"])
    header.write_bytes(encoded(header.read_text("utf-8")))
    assert np.array_equal(read_wfdb(header).samples, ecg_signal)
    assert read_comments(header)["dx"] == "1"


@pytest.mark.parametrize(
    "unit",
    ["uV", "\u00b5V", "\u03bcV", "\u00b5v", "\u03bcv", "UV", b"\xb5V"],  # two signs for micro
)
def test_microvolts_are_a_thousandth_of_a_millivolt(tmp_path, write_cinc, ecg_signal, unit):
    header = write_cinc(tmp_path, "E1", ecg_signal, gain="5/XX")
    encoded = unit if isinstance(unit, bytes) else unit.encode()
    header.write_bytes(header.read_bytes().replace(b"XX", encoded))
    assert read_wfdb(header).steps_per_mv == pytest.approx(np.full(12, 5000.0))


@pytest.mark.parametrize(
    ("header", "stated", "stored"),
    [
        ("E1.HEA", "E1.mat", "E1.mat"),
        ("E1.hea", "E1.dat", "E1.DAT"),
        ("E1.HEA", "E1.DAT", "e1.dat"),
    ],
)
def test_case_of_file_names_does_not_matter(
    tmp_path, write_cinc, ecg_signal, header, stated, stored
):
    written = replaced(write_cinc(tmp_path, "E1", ecg_signal), "E1.mat", stated)
    (tmp_path / "E1.mat").rename(tmp_path / stored)
    path = written.rename(tmp_path / header)
    assert np.array_equal(read_wfdb(path).samples, ecg_signal)


def test_of_files_that_differ_in_case_the_named_one_is_read_or_none(
    tmp_path, write_cinc, ecg_signal
):
    header = write_cinc(tmp_path, "E1", ecg_signal)
    (tmp_path / "e1.MAT").write_bytes(b"")
    assert np.array_equal(read_wfdb(header).samples, ecg_signal)
    (tmp_path / "E1.mat").rename(tmp_path / "E1.MAT")
    with pytest.raises(RecordError, match="cannot be opened"):
        read_wfdb(header)


# --- records of several segments -----------------------------------------------------------------


@pytest.fixture
def segments(tmp_path) -> list[np.ndarray]:
    """Three segments of two channels, s0 to s2, of 300, 200 and 100 samples."""
    rng = np.random.default_rng(5)
    values = [rng.integers(-900, 900, (2, count)) for count in (300, 200, 100)]
    for number, own in enumerate(values):
        (tmp_path / f"s{number}.dat").write_bytes(own.T.astype("<i2").tobytes())
        described(tmp_path, "16", own, name=f"s{number}")
    return values


def joined(folder: Path, *lines: str, total: int = 600, channels: int = 2) -> Path:
    text = "\n".join([f"joined/{len(lines)} {channels} 360 {total}", *lines, "# Dx: 7"])
    (folder / "joined.hea").write_text(text + "\n")
    return folder / "joined.hea"


FIXED = ("s0 300", "s1 200", "s2 100")
"""Lines of a record of the three segments."""


def test_segments_of_one_layout_follow_one_another(tmp_path, segments):
    header = joined(tmp_path, *FIXED)
    waveform = read_wfdb(header)
    assert np.array_equal(waveform.samples, np.concatenate(segments, axis=1))
    assert (waveform.names, waveform.rate) == (("c0", "c1"), 360.0)
    assert read_comments(header) == {"dx": "7"}
    theirs = wfdb.rdrecord(str(header.with_suffix("")))
    assert np.allclose(theirs.p_signal.T, waveform.samples / waveform.steps_per_mv[:, None])


def test_gains_and_zeros_may_change_between_segments(tmp_path, segments):
    replaced(tmp_path / "s1.hea", "200/mV 16 0", "0.5(40)/uV 16 0")
    header = joined(tmp_path, *FIXED)
    waveform = read_wfdb(header, lambda _: [1, 0])
    first, second, third = segments
    expected = np.concatenate([first / 200, (second - 40) / 500, third / 200], axis=1)[::-1]
    assert np.allclose(waveform.samples / waveform.steps_per_mv[:, None], expected, atol=1e-12)


def test_segments_of_a_variable_layout_are_joined_by_names(tmp_path, segments):
    """The first segment only describes the signals; the others have them in any order, or more."""
    layout = "layout 3 360 0\n~ 0 200/mV 16 0 0 0 0 c1\n~ 0 1/NU 8 0 0 0 0 RESP\n"
    (tmp_path / "layout.hea").write_text(layout + "~ 0 200/mV 16 0 0 0 0 c0\n")
    lines = (tmp_path / "s1.hea").read_text().splitlines()
    (tmp_path / "s1.hea").write_text("\n".join([lines[0], lines[1], lines[2], ""]))
    own = np.stack([segments[2][1], segments[2][0], segments[2][0] * 0 + 3])
    (tmp_path / "s2.dat").write_bytes(own.T.astype("<i2").tobytes())
    described(tmp_path, "16", own, name="s2")
    text = (tmp_path / "s2.hea").read_text()
    text = text.replace(" c0\n", " X\n").replace(" c1\n", " c0\n").replace(" X\n", " c1\n")
    (tmp_path / "s2.hea").write_text(text.replace("c2", "RESP"))
    header = joined(tmp_path, "layout 0", *FIXED, channels=3)
    waveform = read_wfdb(header, lambda names: [names.index("c0"), names.index("c1")])
    assert np.array_equal(waveform.samples, np.concatenate(segments, axis=1))
    theirs = wfdb.rdrecord(str(header.with_suffix("")), channel_names=["c0", "c1"])
    assert np.allclose(theirs.p_signal.T, waveform.samples / 200)
    with pytest.raises(RecordError, match=r"channel RESP: 300 of 600 samples are missing .segment"):
        read_wfdb(header)


@pytest.mark.parametrize("name", ["", " ECG"])
def test_channels_of_a_variable_layout_that_no_name_tells_apart_are_refused(
    tmp_path, segments, name
):
    line = f"~ 0 200/mV 16 0 0 0 0{name}\n"
    (tmp_path / "layout.hea").write_text(f"layout 2 360 0\n{line}{line}")
    for part in ("s1", "s2"):
        text = (tmp_path / f"{part}.hea").read_text()
        for own in (" c0\n", " c1\n"):
            text = text.replace(own, f"{name}\n")
        (tmp_path / f"{part}.hea").write_text(text)
    with pytest.raises(RecordError, match=r"matched by name, and .* has none or shares it"):
        read_wfdb(joined(tmp_path, "layout 0", *FIXED))


def test_a_missing_initial_value_is_the_zero_level(tmp_path):
    """https://physionet.org/physiotools/wag/header-5.htm, of differences (format 8)."""
    (tmp_path / "r.hea").write_text("r 1 250 10\nr.dat 8 200/mV 12 1024\n")
    (tmp_path / "r.dat").write_bytes(bytes([1] * 10))
    assert read_wfdb(tmp_path / "r.hea").samples.tolist() == [list(range(1, 11))]


def test_a_gap_between_segments_is_missing_samples(tmp_path, segments):
    header = joined(tmp_path, "s0 300", "~ 50", "s1 200", total=550)
    with pytest.raises(
        RecordError, match=r"every channel: 50 of 550 samples are missing .segment 2"
    ):
        read_wfdb(header)


@pytest.mark.parametrize(
    ("lines", "total", "message"),
    [
        (("s0 300", "s1 201"), 501, "segment 2 has 200 samples .* the record's header says 201"),
        (("s0 300", "s1 200"), 600, "its segments have 500 samples .* its header says 600"),
        (("s0 300", "gone 200"), 500, "the header cannot be opened"),
        (("s0 300", "../s1 200"), 500, "segment 2 is not described as one of the header's own"),
        (("/etc/s0 300", "s1 200"), 500, "segment 1 is not described as one of the header's own"),
        (("s0 300", "joined 300"), 600, "segment 2 has segments itself"),
        (("~ 300", "~ 200"), 500, "it has no segment with samples"),
        (("s0 300", "s1"), 500, "segment 2 is not described"),
    ],
)
def test_segments_that_cannot_be_are_refused(tmp_path, segments, lines, total, message):
    with pytest.raises(RecordError, match=message):
        read_wfdb(joined(tmp_path, *lines, total=total))


def test_segments_of_other_channels_or_rates_are_refused(tmp_path, segments):
    header = joined(tmp_path, *FIXED)
    replaced(tmp_path / "s1.hea", " c1\n", " V1\n")
    with pytest.raises(RecordError, match="segment 2 has other channels than those before"):
        read_wfdb(header)
    replaced(tmp_path / "s1.hea", "s1 2 360", "s1 2 500")
    with pytest.raises(RecordError, match=r"segment 2 is sampled at 500 Hz, the record at 360 Hz"):
        read_wfdb(header)


def test_samples_of_all_segments_are_bounded_before_one_is_read(tmp_path, segments, monkeypatch):
    header = joined(tmp_path, *["s0 300"] * 4, total=1200)
    monkeypatch.setattr(reader, "MAX_SAMPLES", 2399)
    monkeypatch.setattr(reader, "channels_of", None)
    with pytest.raises(RecordError, match="2,400 samples; expected at most 2,399"):
        read_wfdb(header)


def test_more_segments_than_any_record_has_are_refused(tmp_path, segments, monkeypatch):
    monkeypatch.setattr(wfdb_header, "MAX_SEGMENTS", 2)
    with pytest.raises(RecordError, match="names 3 segments and describes 3; expected as many, 1"):
        read_wfdb(joined(tmp_path, *FIXED))
