"""Numbers in files and tables: what Python takes and nobody writes is none."""

from __future__ import annotations

import struct

import numpy as np
import pydicom
import pytest
from pydicom.filebase import DicomBytesIO
from pydicom.filereader import read_dataset

from benchmd_ray.benchmarks.touchstone.imported import read_scores_csv
from benchmd_ray.data.card_files import Files
from benchmd_ray.data.datasets import any_file
from benchmd_ray.data.plain_numbers import number_of, whole_of
from benchmd_ray.data.readers.dicom_values import numbers
from benchmd_ray.data.readers.edf import read_edf, read_header
from benchmd_ray.data.records import RecordError
from benchmd_ray.data.tables import age, is_sample
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.signals import Signal

ODD = (
    *("1_0", "1_000.5", "\uff11\uff10", "\u0661", "1e1_0"),
    *("0x10", "1e", ".", "+", "", "1 0", "--1"),
)
"""Python takes the first five for numbers, and so it does `NOT_FINITE` and `PADDED`."""
NOT_FINITE = ("inf", "-inf", "infinity", "nan", "1e999", "9" * 400)
PADDED = (" 10", "10\n", "\u00a010", "\u200310")


@pytest.mark.parametrize("text", [*ODD, *NOT_FINITE, *PADDED, "9" * 10**5])
def test_what_is_not_a_plain_number_is_none(text):
    assert number_of(text) is None
    if text != "9" * 400:
        assert whole_of(text) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("61.5", 61.5), (".5", 0.5), ("5.", 5), ("1e-3", 0.001), ("-2.5E+02", -250)],
)
def test_plain_numbers_are_their_value(text, value):
    assert number_of(text) == value
    assert whole_of(text) is None


@pytest.mark.parametrize(
    ("text", "value"), [("10", 10), ("-3", -3), ("+07", 7), ("0" * 300 + "1", 1)]
)
def test_whole_numbers_are_their_value(text, value):
    assert whole_of(text) == number_of(text) == value


@pytest.mark.parametrize("text", [*ODD, *NOT_FINITE])
def test_no_age_is_read_of_them(text):
    assert age(text) is None


@pytest.mark.parametrize("text", ["1_0", "\uff11", "1 0"])
def test_a_row_of_them_is_one_of_names(text):
    assert not is_sample(text)
    for sample in ("1.5", "nan", "-INF", "+inf"):
        assert is_sample(sample)


@pytest.mark.parametrize(
    ("at", "text", "what"),
    [(236, "1_0", "number of data records"), (244, "1_0", "duration of a data record"),
     (244, "infinity", "duration of a data record"), (236, "\x8510", "number of data records"),
     (184, "5_12", "size of the header"), (252, "0_1", "number of signals")],
)  # fmt: skip
def test_headers_of_edf_hold_plain_numbers(tmp_path, write_edf, at, text, what):
    path = write_edf(tmp_path / "n.edf", {"C3": (np.arange(2000.0) % 7, 200)})
    content = bytearray(path.read_bytes())
    width = 4 if at == 252 else 8
    content[at : at + width] = text.encode("latin-1").ljust(width)
    path.write_bytes(content)
    with pytest.raises(RecordError, match=f"its header is damaged: {what} is not a number"):
        read_header(path)


def test_ranges_of_edf_are_plain_numbers_with_blanks_or_a_comma(tmp_path, write_edf):
    path = write_edf(tmp_path / "n.edf", {"C3": (np.arange(2000.0) % 7, 200)})
    content = bytearray(path.read_bytes())
    place = 256 + 16 + 80 + 8
    lowest = np.float64(content[place : place + 8].decode())
    content[place : place + 8] = f" {lowest:g},0".encode().ljust(8, b"\0")
    path.write_bytes(content)
    assert len(read_edf(path, ["C3"]).signals["C3"]) == 2000
    content[place : place + 8] = b"-4_0.0  "
    path.write_bytes(content)
    with pytest.raises(RecordError, match="physical range is not a number"):
        read_edf(path, ["C3"])


@pytest.mark.parametrize(("kind", "tag", "keyword"), [
    (b"DS", 0x00281053, "RescaleSlope"), (b"IS", 0x00280008, "NumberOfFrames"),
])  # fmt: skip
def test_numbers_of_dicom_headers_are_plain(kind, tag, keyword):
    def element(text: str) -> pydicom.Dataset:
        value = text.encode().ljust(len(text) + len(text) % 2)
        head = struct.pack("<HH2sH", tag >> 16, tag & 0xFFFF, kind, len(value))
        return read_dataset(DicomBytesIO(head + value), is_implicit_VR=False, is_little_endian=True)

    assert numbers(element("10"), keyword, 1) == (10.0,)
    assert numbers(element("+10 "), keyword, 1) == (10.0,)
    with pytest.raises(RecordError, match=f"{keyword} is not 1 finite number"):
        numbers(element("1_0"), keyword, 1)


def test_scores_of_others_are_plain_numbers(tmp_path):
    path = tmp_path / "dsc.csv"
    path.write_text("name,liver,spleen\na, NaN , 0.5 \n")
    scores = read_scores_csv(path)
    assert np.isnan(scores["liver"]["a"])
    assert scores["spleen"]["a"] == 0.5
    path.write_text("name,liver\na,1_0\n")
    with pytest.raises(BenchmdError, match=r"line 2: '1_0' is not a number"):
        read_scores_csv(path)


def test_a_first_row_that_is_not_finite_is_one_of_samples(tmp_path):
    signal = Signal(
        name="two", axes=("channel", "time"), stored_shape=(2, 4), input_shape=(2, 4),
        dtype="int16", unit="1", patch=(2,), normaliser="record-range", rate=1.0,
    )  # fmt: skip
    (tmp_path / "x.csv").write_text("nan,1\n2,3\n4,5\n6,7\n")
    with pytest.raises(RecordError, match="not finite"):
        any_file.read_file(tmp_path / "x.csv", signal, Files(rate=1.0))
