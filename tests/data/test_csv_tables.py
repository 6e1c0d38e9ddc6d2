"""Tables that come with raw data: what is read, and what is refused."""

from __future__ import annotations

import gzip
import os
import resource
import time

import pytest

from benchmd_ray.data import tables
from benchmd_ray.data.any_table import table_rows
from benchmd_ray.data.tables import age, age_string, read_rows, sex
from benchmd_ray.errors import BenchmdError

COLUMNS = ("image", "grade")
ROWS = [{"image": "a.png", "grade": "0"}, {"image": "b, c.png", "grade": "4"}]


@pytest.fixture
def write(tmp_path):
    def make(content):
        path = tmp_path / "table.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return make


def read(path, **options):
    return read_rows(path, COLUMNS, "the grades", **options)


@pytest.mark.parametrize(
    "content",
    [
        'image,grade\na.png,0\n"b, c.png",4\n',
        '\ufeffimage,grade\na.png,0\n"b, c.png",4\n',  # a byte order mark
        '\ufeff"image","grade"\r\n"a.png","0"\r\n"b, c.png","4"\r\n',
        'image, grade \na.png,0\n"b, c.png",4',
        'image,grade\n\na.png,0\n\n"b, c.png",4\n\n',
    ],
)
def test_rows_are_read_by_column_name(write, content):
    assert read(write(content)) == ROWS


def test_columns_stand_in_any_order_and_further_ones_are_kept(write):
    rows = read(write('x,grade,image\nü,0,a.png\n,4,"b, c.png"\n'))
    assert [{name: row[name] for name in COLUMNS} for row in rows] == ROWS
    assert [row["x"] for row in rows] == ["ü", ""]


def test_a_greek_question_mark_separates_no_values(write):
    """In its composed form it is a semicolon."""
    path = write("image;grade;note\na.png;1;\u03c4\u03b9\u037e p9\n")
    assert read_rows(path, COLUMNS, "grades", delimiter=";")[0]["grade"] == "1"
    (row,) = table_rows(path, COLUMNS, "grades")
    assert (row["image"], row["note"]) == ("a.png", "\u03c4\u03b9; p9")


def test_another_delimiter(write):
    assert read(write("image;grade\na.png;0\nb, c.png;4\n"), delimiter=";") == ROWS


@pytest.mark.parametrize(
    ("first", "mark"),
    [
        ("sep=;\n", ";"),
        ("\ufeffsep=;\r\n", ";"),  # as Excel writes it
        ('\ufeff"sep=;"\r\n', ";"),
        ("SEP=;;\n", ";"),  # saved again, with as many cells as the other lines
        ("sep=,\n", ","),
        ("sep=|\n", "|"),  # which is not looked for without such a line
        ("sep=\t\n", "\t"),
        ("sep=\\t\n", "\t"),
    ],
)
def test_the_first_line_of_a_spreadsheet_states_the_separator(write, first, mark):
    rows = [("image", "grade"), ("a.png", "0"), ("b; c.png" if mark != ";" else "b c.png", "4")]
    path = write(first + "".join(f"{mark.join(row)}\n" for row in rows))
    assert tables.header_of(path) == (["image", "grade"], mark)
    expected = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
    assert read(path) == list(table_rows(path, COLUMNS, "the grades")) == expected


@pytest.mark.parametrize("first", ["sep=a\n", "sep=\n", "sep=;x\n", "image;sep=;\n"])
def test_other_first_lines_are_headers(write, first):
    with pytest.raises(BenchmdError, match="has no column"):
        read(write(f"{first}image,grade\na.png,0\n"))


def test_names_and_values_are_read_in_the_composed_form(write):
    path = write("image,o\u0308\na,na\u0308vus\n")  # ö and ä as two characters each
    assert tables.header_of(path)[0] == ["image", "\u00f6"]
    assert read_rows(path, ["\u00f6"], "it")[0]["\u00f6"] == "n\u00e4vus"


def test_columns_that_differ_only_in_their_form_are_refused(write):
    path = write("image,grade,\u00e4,a\u0308\na.png,0,1,2\n")
    with pytest.raises(BenchmdError, match=r"column 'ä' twice \(names are compared .* NFC\)"):
        read(path)


def test_a_missing_column_is_named_with_those_expected(write):
    message = (
        r"table\.csv has no column 'grade'; expected the table of the grades with image, grade"
    )
    for content in ("image,Grade\na.png,0\n", "image;grade\na.png;0\n", "image\n"):
        with pytest.raises(BenchmdError, match=message.replace("'grade'", "'(grade|image)'")):
            read(write(content))
    with pytest.raises(BenchmdError, match=message):
        read(write("image,Grade\na.png,0\n"))


def test_an_empty_file_has_no_column(write):
    with pytest.raises(BenchmdError, match="has no column 'image'"):
        read(write(""))


def test_a_table_without_rows_holds_no_record(write):
    with pytest.raises(BenchmdError, match=r"table\.csv holds no record, expected a row for each"):
        read(write("image,grade\n"))


def test_a_table_that_is_cut_off_is_refused(write):
    with pytest.raises(
        BenchmdError, match="record 2: it has 1 values, the header 2 columns: the file is cut off"
    ):
        read(write("image,grade\na.png,0\nb.pn"))


def test_values_are_read_without_blanks_at_their_ends(write):
    assert read(write('image,grade\n a.png ,0\t\n" b, c.png", 4\n')) == ROWS


def test_a_column_that_is_there_twice_is_refused(write):
    with pytest.raises(BenchmdError, match=r"table\.csv has the column 'grade' twice"):
        read(write("image,grade, grade\na.png,0,1\n"))
    assert len(read(write("image,grade,,\na.png,0,,\n"))) == 1  # blanks are not names


def test_a_row_of_too_many_values_is_refused(write):
    with pytest.raises(BenchmdError, match="record 2: it has 3 values, the header 2 columns"):
        read(write("image,grade\na.png,0\nb, c.png,4\n"))
    assert read(write("image,grade\na.png,0,\n")) == ROWS[:1]


def test_a_row_may_end_before_columns_that_are_not_needed(write):
    assert read(write("image,grade,x\na.png,0\n")) == [ROWS[0] | {"x": ""}]


def test_a_folder_is_no_table(tmp_path):
    with pytest.raises(BenchmdError, match="cannot be opened: Is a directory"):
        read(tmp_path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(BenchmdError, match=r"none\.csv is missing: expected the table of the gra"):
        read(tmp_path / "none.csv")


@pytest.mark.parametrize(
    "content",
    ["image,grade\nä.png,0\n".encode("latin-1"), b"PK\x03\x04\xff\xfe", b"\xff\xfei\x00m\x00"],
)
def test_a_file_that_is_no_utf8_text_is_refused(write, content):
    with pytest.raises(BenchmdError, match=r"table\.csv is not a table in UTF-8 .*save it as CSV"):
        read(write(content))


@pytest.mark.parametrize(("asked", "there"), [(".csv", ".csv.gz"), (".csv.gz", ".csv")])
def test_a_table_may_be_packed_or_not_whatever_name_is_asked_for(tmp_path, asked, there):
    content = '\ufeffimage,grade\na.png,0\n"b, c.png",4\n'.encode()
    packed = gzip.compress(content)
    (tmp_path / f"t{there}").write_bytes(packed if there.endswith(".gz") else content)
    assert read(tmp_path / f"t{asked}") == read(tmp_path / f"t{there}") == ROWS
    (tmp_path / f"t{asked}").write_bytes(b"image,grade\nx,1\n")
    if asked == ".csv":  # where both are there, it is the one asked for
        assert read(tmp_path / "t.csv") == [{"image": "x", "grade": "1"}]


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-12], lambda b: b"x" + b, lambda b: b[:12] + b[14:]]
)
def test_a_packed_table_that_is_not_whole_is_refused(tmp_path, damage):
    path = tmp_path / "table.csv.gz"
    path.write_bytes(damage(gzip.compress(b"image,grade\n" + b"a.png,0\nb.png,1\n" * 50)))
    with pytest.raises(
        BenchmdError, match=r"table\.csv\.gz is not a whole gzip file .*Fetch it again"
    ):
        read(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("61", 61.0), ("89", 89.0), ("91", 90.0), ("0", 0.0), ("120", 90.0)]
    + [(text, None) for text in ("", "NaN", "nan", "-1", "inf", "Unknown", "120.5", "300.0")],
)
def test_age(text, expected):
    assert age(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("Male", "male"), (" m ", "male"), ("F", "female"), ("FEMALE", "female")]
    + [("W", "female"), ("weiblich", "female"), ("Femenino", "female"), ("Kvinna", "female")]
    + [("MÄNNLICH", "male"), ("ma\u0308nnlich", "male"), ("masc.", "male"), ("Hombre", "male")]
    + [(text, None) for text in ("", "NaN", "O", "unknown", "0", "1", "2", "H", "V", "K")],
)
def test_sex(text, expected):
    assert sex(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("058Y", 58.0), ("58", 58.0), (" 094y ", 90.0), ("006M", 0.5), ("000D", 0.0), ("120Y", 90.0)]
    + [(text, None) for text in ("", "Y", "412", "200Y", "000Y", "0", "058Z", "-5Y", "58.5", "²")],
)
def test_age_string(text, expected):
    assert age_string(text) == expected


@pytest.mark.parametrize("digits", [10, 400, 5000])
def test_an_age_of_many_digits_is_none(digits):
    assert age_string("9" * digits) is None
    assert age_string("9" * digits + "D") is None
    assert age("9" * 400) is None


def memory() -> int:
    """The largest that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def bomb(line: bytes, times: int) -> bytes:
    """A table in gzip with one line many times over, in many members of one file."""
    lines = 2**22 // len(line)
    member = gzip.compress(line * lines)
    return gzip.compress(b"image,grade\n") + member * (times // lines)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "times"),
    [
        (b"a.png,0\n", 2**29),  # 4 GiB of rows
        (b"," * 2**16 + b"\n", 2**16),  # 4 GiB of values
        (b"a" * 2**20, 2**12),  # 4 GiB in one line
        (b"\n", 2**32),  # 4 GiB of nothing
    ],
    ids=["rows", "values", "one line", "empty lines"],
)
def test_a_packed_table_that_inflates_to_gigabytes_is_refused(tmp_path, line, times):
    path = tmp_path / "table.csv.gz"
    path.write_bytes(bomb(line, times))
    assert path.stat().st_size < 20e6
    before, start = memory(), time.process_time()
    with pytest.raises(BenchmdError, match=r"table\.csv\.gz is larger than any table: expected"):
        read(path)
    assert memory() - before < 2.5e9
    assert time.process_time() - start < 20


def test_bounds_of_a_table_are_exact(write, monkeypatch):
    monkeypatch.setattr(tables, "MAX_VALUES", 6)
    assert len(read(write("image,grade\na,0\nb,1\n"))) == 2
    for content in ("image,grade\na,0\nb,1\nc,2\n", "image,grade,,,,\na\n", "image,grade\na,,,,\n"):
        with pytest.raises(BenchmdError, match="expected at most 6 values"):
            read(write(content))
    monkeypatch.setattr(tables, "MAX_VALUES", 100)
    monkeypatch.setattr(tables, "MAX_LINE", 13)
    assert len(read(write("image,grade\na,0\n"))) == 1  # 12 characters and more than 13 in all
    with pytest.raises(BenchmdError, match="lines of up to 13"):
        read(write("image,grade\naaaaaaaaaaa,0\n"))
    monkeypatch.setattr(tables, "MAX_BYTES", 16)
    assert len(read(write("image,grade\na,0\n"))) == 1
    with pytest.raises(BenchmdError, match="at most 16 characters"):
        read(write("image,grade\na,00\n"))
    monkeypatch.setattr(tables, "MAX_LINES", 2)
    assert len(read(write("image,grade\na,0\n"))) == 1
    with pytest.raises(BenchmdError, match="in 2 lines"):
        read(write("image,grade\n\na,0"))


def test_a_pipe_is_no_table(tmp_path):
    os.mkfifo(tmp_path / "table.csv")
    with pytest.raises(BenchmdError, match="is not a file: expected a table"):
        read(tmp_path / "table.csv")
    with pytest.raises(BenchmdError, match="is not a file: expected a table"):
        tables.header_of(tmp_path / "table.csv")
