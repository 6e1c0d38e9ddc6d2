"""Frames as text, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import benchmd_ray
from benchmd_ray.report import tables
from benchmd_ray.report.formats import LATEX, aligned, csv_text, latex, latex_text, markdown
from benchmd_ray.report.frames import TUNING
from benchmd_ray.report.table import plain
from benchmd_ray.report.write import write_tables

ODD = r"50 % of a_b & c #1 {x} ~ ^ $ \ <0.001 | −0.1 ± – τ → …"
FRAME = pd.DataFrame({"name": ["a", ODD], "gap [95 % interval]": ["[-0.1, 2]", "-3"], "n": [1, 22]})


def closed(printed):
    """Lines of LaTeX, by a small parser: every brace and environment must close."""
    lines = [line for line in printed.splitlines() if not line.startswith("%")]
    depth = 0
    for mark in re.findall(r"\\.|[{}]", "\n".join(lines), re.S):
        depth += {"{": 1, "}": -1}.get(mark, 0)
        assert depth >= 0
    assert depth == 0
    opened = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", "\n".join(lines)):
        if kind == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert not opened
    return lines


def rows_of(printed):
    """Body rows of a LaTeX table."""
    lines = closed(printed)
    columns = len(re.search(r"\\begin\{longtable\}\{([lr]+)\}", printed)[1])
    rows = [line for line in lines if line.endswith(r" \\")]
    rows = [line for line in rows if not line.startswith((r"\caption", r"\multicolumn"))]
    cells = [re.split(r"(?<!\\)&", row.removesuffix(r" \\")) for row in rows]
    assert {len(row) for row in cells} == {columns}
    for row in rows:
        bare = re.sub(r"\\[&%$#_{}]", "", row)  # escaped
        bare = re.sub(r"\$\\?[a-z]*-?\$", "", bare)  # mathematics
        assert not re.search(r"[%$#_^~|<>\[\]]", re.sub(r"\{[\[\]]\}", "", bare)), row
        assert bare.isascii(), row
    assert printed.count(r"\toprule") == 2
    return [[cell.strip() for cell in row] for row in cells]


def test_latex_escapes_what_latex_reads_in_another_way():
    rows = rows_of(latex(FRAME, "A_caption", "tab:x", ["note & more"]))
    assert rows[0] == rows[1] == ["name", r"gap {[}95 \% interval{]}", "n"]
    assert rows[2] == ["a", r"{[}$-$0.1, 2{]}", "1"]
    assert rows[3] == [latex_text(ODD), "$-$3", "22"]
    assert latex_text("ptb-xl isic-2017 finetune-small") == "ptb-xl isic-2017 finetune-small"
    printed = latex(FRAME, "A_caption", "tab:x", ["note & more"])
    assert r"\caption{A\_caption} \label{tab:x}" in printed
    assert "\nnote \\& more\n" in printed
    assert r"\begin{longtable}{llr}" in printed


@pytest.mark.parametrize("character", list(LATEX))
def test_each_odd_character_is_written_so_that_latex_takes_it(character):
    frame = pd.DataFrame({"x": [f"a{character}b"], "y": ["c"]})
    assert rows_of(latex(frame, "c", "tab:x"))[2] == [latex_text(f"a{character}b"), "c"]


@pytest.mark.slow
def test_every_table_of_a_report_is_latex(report_analysis, tmp_path):
    write_tables(report_analysis, tmp_path)
    found = sorted(tmp_path.glob("*.tex"))
    held = [one for one in tables.TABLES if one.printed and one.name not in TUNING]
    assert {path.stem for path in found} == {"main", *(table.name for table in held)}
    assert closed((tmp_path / "main.tex").read_text("utf-8"))[0] == r"\begin{table}"
    for table in held:
        rows = rows_of((tmp_path / f"{table.name}.tex").read_text("utf-8"))
        assert len(rows) == 2 + len(plain(table.printed(report_analysis))[0])


def test_markdown_keeps_its_columns():
    lines = markdown(FRAME).splitlines()
    assert lines[1] == "| --- | --- | ---: |"
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in lines] == [4, 4, 4, 4]
    assert r"<0.001 \| −0.1" in lines[3]


def test_text_has_numbers_to_the_right():
    lines = aligned(FRAME)
    assert [line[-2:] for line in lines[2:]] == [" 1", "22"]
    assert len(lines) == 4


HOSTILE = (
    '=HYPERLINK("http://x.example","MI")',
    "+1+cmd|' /C calc'!A0",
    "-2+3",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "\n=1",
)
SPLIT = ("a;=1+1", "a\t=1+1", "a\r=1+1", 'a"\n=1+1')


@pytest.mark.parametrize("cell", HOSTILE)
def test_no_text_of_a_csv_begins_as_a_formula(cell):
    frame = pd.DataFrame({"class": [cell, "normal = 1", ""], "value": [-0.5, 1e-7, float("nan")]})
    head, *rows = csv.reader(io.StringIO(csv_text(frame), newline=""))
    assert head == ["class", "value"]
    assert rows == [[f"'{cell}", "-0.5"], ["normal = 1", "1e-07"], ["", ""]]
    (head, *_) = csv.reader(io.StringIO(csv_text(pd.DataFrame({cell: [1]})), newline=""))
    assert head == [f"'{cell}"]


@pytest.mark.parametrize("cell", SPLIT)
def test_what_separates_elsewhere_begins_no_cell(cell):
    written = csv_text(pd.DataFrame({"class": [cell]}))
    quoted = cell.replace('"', '""')
    assert written == f'"class"\n"{quoted}"\n'


def test_numbers_of_a_csv_stay_numbers_in_a_column_of_mixed_types():
    frame = pd.DataFrame({"value": [-1, -2.5, None, "-3"]}, dtype=object)
    assert csv_text(frame) == '"value"\n-1\n-2.5\n""\n"\'-3"\n'


def test_tables_for_people_are_made_into_csv_in_one_place():
    package = Path(benchmd_ray.__file__).parent
    writers = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"\.to_csv\(|csv\.(Dict)?[wW]riter\(", path.read_text("utf-8"))
    }
    own_formats = {path for path in writers if path.startswith("demo/")}
    assert writers - own_formats == {
        "report/formats.py",
        "benchmarks/medmnist/scores.py",  # MedMNIST's result files: numbers only
    }


@pytest.mark.slow
def test_a_report_whose_reader_ends_still_writes_its_page(report_store, tmp_path):
    code = "import sys; from benchmd_ray.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "report", str(report_store), "--figures", "none"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, text=True
    ) as process:
        process.stdout.close()
        _, errors = process.communicate()
    assert process.returncode == 1
    assert not re.search("Traceback|error|Broken pipe", errors)
    assert (tmp_path / "report" / "report.html").is_file()
