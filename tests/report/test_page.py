import base64
import configparser
import hashlib
import json
import math
import socket
from dataclasses import replace
from fnmatch import fnmatch
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from analysis_frames import IMAGES, invented

from benchmd_ray.report import tables as sections
from benchmd_ray.report.analysis import Analysis
from benchmd_ray.report.canvas import new_figure, styled
from benchmd_ray.report.document import FIRST, document, html
from benchmd_ray.report.figures_parts import Skipped, Titled
from benchmd_ray.report.frames import FRAMES, frame
from benchmd_ray.report.page import page, write_page
from benchmd_ray.report.page_findings import judged
from benchmd_ray.report.table import Column, Table, constant, shown, text_of
from benchmd_ray.scores.metrics import METRICS
from benchmd_ray.scores.support import ALIKE, caution

EVIL = "</script><script>window.hacked=1</script><img src=x onerror=hacked=1>\"'&amp;"
ROOT = Path(__file__).resolve().parents[2]
VOID = {"meta", "img", "input", "br"}


class Parsed(HTMLParser):
    """Elements, attributes and texts of a page; raises where elements do not nest."""

    def __init__(self, text):
        super().__init__()
        self.found, self.open, self.texts = [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append((tag, len(self.texts)))

    def handle_endtag(self, tag):
        name, start = self.open.pop()
        assert name == tag, f"<{name}> is ended by </{tag}>"
        if tag in ("style", "script", "tbody", "title"):
            self.found.append((f"/{tag}", "".join(self.texts[start:])))

    def handle_data(self, data):
        self.texts.append(data)

    def of(self, tag):
        return [attrs for name, attrs in self.found if name == tag]

    @property
    def text(self):
        return "\n".join(self.texts)


def drawn(count=2, section="Results", title="What it shows", caption="What the marks are."):
    figures = []
    with styled():
        for number in range(count):
            figure = new_figure(title, 2.0, width=4.0)
            axes = figure.add_subplot()
            axes.plot([0, 1], [0, number], clip_on=True)
            axes.bar([0], [1], hatch="//")
            figures.append(Titled(f"figure-{number}", section, title, caption, figure))
    return figures


@pytest.fixture(scope="module")
def analysis():
    return invented(("ecg", "cxr"), settings=("linear", "finetune-full"))


@pytest.fixture(scope="module")
def parsed(analysis):
    return Parsed(page(analysis, drawn()))


def data_of(parsed):
    """Data of all tables."""
    return [json.loads(text) for text in parsed.of("/script")[:-1]]


def renamed(analysis, column, old, new):
    """An analysis with a value of a column replaced in all frames."""
    changed = {}
    for name in FRAMES:
        held = getattr(analysis, name)
        if column in held:
            changed[name] = held.assign(**{column: held[column].replace(old, new)})
    return replace(analysis, **changed)


def test_the_page_is_one_file_written_whole(tmp_path, analysis):
    path = write_page(analysis, drawn(), tmp_path / "report")
    assert path == tmp_path / "report" / "report.html"
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
    assert path.read_text("utf-8") == page(analysis, drawn())


def test_a_failed_writing_keeps_the_page_of_before(tmp_path, analysis):
    path = write_page(analysis, [], tmp_path)
    before = path.read_bytes()
    with pytest.raises(AttributeError):
        write_page(analysis, [object()], tmp_path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_the_same_analysis_gives_the_same_bytes(analysis):
    assert page(analysis, drawn()) == page(analysis, drawn())


def test_nothing_is_fetched(parsed):
    tags = {tag for tag, _ in parsed.found}
    assert not tags & {"link", "iframe", "object", "embed", "base", "video", "audio", "source"}
    attributes = [(k, v) for _, a in parsed.found if isinstance(a, dict) for k, v in a.items()]
    sources = [v for k, v in attributes if k in ("src", "srcset", "data", "poster", "action")]
    assert sources
    assert all(v.startswith("data:image/svg+xml,") for v in sources)
    assert all(v.startswith("#") for k, v in attributes if k == "href")
    assert not [k for k, _ in attributes if k.startswith("on") or k == "style"]
    (style,) = parsed.of("/style")
    assert "url(" not in style
    assert "@import" not in style
    script = parsed.of("/script")[-1]
    assert not [w for w in ("fetch(", "XMLHttp", "import(", "innerHTML", "eval(") if w in script]


def test_the_policy_allows_this_style_and_this_script_alone(parsed):
    (policy,) = [a["content"] for a in parsed.of("meta") if "http-equiv" in a]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for kind, text in (("style", parsed.of("/style")[0]), ("script", parsed.of("/script")[-1])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy


def test_links_lead_somewhere_and_ids_are_unique(parsed):
    ids = [a["id"] for _, a in parsed.found if isinstance(a, dict) and "id" in a]
    assert len(ids) == len(set(ids))
    targets = [a["href"][1:] for a in parsed.of("a")]
    targets += [a["aria-labelledby"] for _, a in parsed.found if "aria-labelledby" in a]
    assert set(targets) <= set(ids)


def test_landmarks_language_and_captions(parsed):
    assert parsed.of("html") == [{"lang": "en"}]
    assert len(parsed.of("main")) == len(parsed.of("h1")) == len(parsed.of("nav")) == 1
    assert len(parsed.of("caption")) == len(parsed.of("table"))
    assert all(a["alt"] for a in parsed.of("img"))
    assert {a.get("scope") for a in parsed.of("th")} == {"col", "colgroup", "row", "rowgroup"}
    assert len(parsed.of("label")) == len(parsed.of("input")) + len(parsed.of("select"))


def test_why_figures_are_missing_is_said_once(analysis):
    reasons = ("no <class> can be drawn", "no target", "no <class> can be drawn")
    text = page(analysis, [], skipped=[Skipped(str(n), why) for n, why in enumerate(reasons)])
    assert text.count("no &lt;class&gt; can be drawn") == text.count("<li>no target</li>") == 1
    assert "Figures not drawn" not in page(analysis, [])


def test_sections_come_in_the_order_of_reading(parsed):
    assert [a["id"] for a in parsed.of("section")] == [
        *("main", "notes", "figures-1", "results", "all-metrics", "in-distribution-and-target"),
        *("against-the-baseline", "pairs", "ranking", "subgroups", "runs", "methods"),
    ]


@pytest.mark.parametrize("column", ["dataset", "technique", "setting", "group", "class"])
def test_names_are_shown_and_never_run(column, analysis):
    frames = [getattr(analysis, name) for name in FRAMES]
    old = next(held[column].iloc[-1] for held in frames if column in held and len(held))
    parsed = Parsed(page(renamed(analysis, column, old, EVIL), []))
    assert len(parsed.of("script")) == len(Parsed(page(analysis, [])).of("script"))
    assert not parsed.of("img")
    columns = [column for data in data_of(parsed) for column in data["columns"]]
    assert any(level.startswith(EVIL) for c in columns for level in c.get("levels", ()))
    assert EVIL in parsed.text


def test_title_notes_and_captions_are_escaped(analysis):
    evil = replace(analysis, notes=[EVIL])
    figures = drawn(1, section=EVIL, title="a", caption=EVIL)
    figures = [replace(figures[0], title=EVIL, name=EVIL)]
    parsed = Parsed(page(evil, figures, title=EVIL))
    assert len(parsed.of("img")) == 1
    assert "hacked" not in "".join(parsed.of("/script"))
    assert parsed.of("img")[0]["alt"] == EVIL
    assert (
        parsed.text.count("window.hacked=1") == 7
    )  # title, h1, contents, section, note, 2 × caption


def test_an_empty_analysis_says_so():
    text = page(Analysis(), [])
    parsed = Parsed(text)
    assert not parsed.of("table")
    for said in ("No results.", "No two rows were scored", "No runs.", "on both its source"):
        assert said in parsed.text


def test_what_is_empty_is_told_at_the_end_and_not_in_the_contents(analysis):
    empty = {n: getattr(analysis, n).iloc[:0] for n in ("subgroups", "subgroup_pairs", "excluded")}
    text = page(replace(analysis, **empty), [])
    said = "No dataset of this report has age, sex, site, device or view."
    assert said in Parsed(text).text
    assert text.index(said) > text.index('id="methods"')
    assert 'href="#subgroups"' not in text
    del empty["excluded"]  # groups are stated, and too small
    text = page(replace(analysis, **empty), [])
    assert said not in text
    for whole in (text, page(analysis, [])):
        assert 'href="#subgroups"' in whole


@pytest.mark.slow
def test_frames_that_are_empty_one_by_one_leave_the_others(analysis):
    for name in FRAMES:
        text = page(replace(analysis, **{name: frame(name, ())}), [])
        assert Parsed(text).of("section")


def test_no_path_user_or_host_is_told(report_store, report_analysis):
    told = replace(report_analysis, notes=[f"skipped {report_store}/runs/transfer-1: not read"])
    text = page(told, drawn())
    assert "skipped transfer-1: not read" in "".join(Parsed(text).texts)
    for secret in (str(report_store), str(Path.home()) + "/", socket.gethostname()):
        assert secret not in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/ada/runs/transfer-1", "transfer-1"),
        ("see ~/runs/a.json now", "see a.json now"),
        (r"C:\Users\ada\runs\b", "b"),
        ("file:///home/ada/x.parquet", "x.parquet"),
        ("'/scratch/ada/x' is missing", "'x' is missing"),
        ("atrial fibrillation/flutter", "atrial fibrillation/flutter"),
        ("a / b / c, 3/4", "a / b / c, 3/4"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        (math.nan, "–"),
        (None, "–"),
    ],
)
def test_texts_leave_their_machine(text, expected):
    assert text_of(text) == expected


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (0.87349, "number", "0.873"),
        (-0.0001, "number", "0.000"),
        (-0.0315, "signed", "−0.032"),
        (0.0315, "signed", "+0.032"),
        (0.0, "signed", "0.000"),
        (12345, "integer", "12,345"),
        (np.int64(7), "integer", "7"),
        (0.0004, "p", "<0.001"),
        (0.0016, "p", "0.002"),
        (1.0, "p", "1.000"),
        (math.nan, "number", "–"),
        (math.inf, "number", "–"),
        (None, "number", "–"),
    ],
)
def test_numbers_as_readers_see_them(value, kind, expected):
    assert shown(value, kind) == expected


def test_the_first_rows_stand_in_the_html():
    values = np.random.default_rng(0).uniform(size=3 * FIRST)
    parsed = Parsed(html("t", Table("Many.", (Column("a", list(values), "number"),))))
    (body,) = parsed.of("/tbody")
    assert body == "".join(f"{value:.3f}" for value in values[:FIRST])
    assert f"The first {FIRST} of {3 * FIRST} rows" in parsed.text
    (data,) = [json.loads(text) for text in parsed.of("/script")]
    assert data["columns"][0]["values"] == [round(value, 3) for value in values]


def test_empty_cells_choose_no_rows():
    """A page without a script shows all rows where nothing is chosen."""
    wins = Column("wins", ["yes", "", "yes"], filtered=True)
    shown = html("t", Table("", (wins, Column("name", ["a", "b", "c"]))))
    assert [f"<td>{name}</td>" in shown for name in "abc"] == [True] * 3


def test_a_chosen_text_chooses_the_first_rows():
    metric = Column("metric", ["b", "a", "b"], filtered=True, required=True, chosen="b")
    text = html("t", Table("Some.", (metric, Column("v", [1, 2, 3], "integer"))))
    parsed = Parsed(text)
    assert parsed.of("/tbody") == ["13"]
    assert "2 of 3 rows: metric b" in parsed.text
    assert [a for a in parsed.of("option") if "selected" in a] == [{"value": "1", "selected": None}]


def test_differences_are_marked_where_a_test_says_so_and_not_by_their_interval():
    changes = Column(
        "c", [0.2, -0.2, 0.1, math.nan, 0.3, 0.4], "change",
        low=[0.1, -0.3, -0.1, math.nan, math.nan, 0.1],
        high=[0.3, -0.1, 0.3, math.nan, math.nan, 0.7],
        differs=[True, True, False, False, True, False],
    )  # fmt: skip
    parsed = Parsed(html("t", Table("Some.", (changes,))))
    classes = [a["class"] for a in parsed.of("td")]
    assert classes == ["n up gain", "n down loss", "n", "n", "n up gain", "n"]
    assert parsed.of("/tbody")[0].endswith("+0.100 [−0.100, +0.300]–+0.300+0.400 [+0.100, +0.700]")


def test_a_rise_where_lower_is_better_has_the_colour_of_a_loss(analysis):
    errors = Column(
        "c", [0.2, -0.2, 0.2], "change", low=[0.1, -0.3, 0.1], high=[0.3, -0.1, 0.3],
        differs=[True, True, True], worse=[True, True, False],
    )  # fmt: skip
    parsed = Parsed(html("t", Table("Some.", (errors,))))
    classes = [a["class"] for a in parsed.of("td")]
    assert classes == ["n up loss", "n down gain", "n up gain"]
    changes = pd.concat([analysis.changes, analysis.changes.assign(metric="brier")])
    table = sections.changes(replace(analysis, changes=changes))
    (column,) = (c for c in table.columns if c.title == "row − baseline [95 %]")
    assert list(column.worse) == [name == "brier" for name in changes["metric"]]
    (gap,) = (c for c in sections.gaps(analysis).columns if c.title == "gap [95 %]")
    assert all(gap.worse)  # of AUROC


def test_marks_follow_p_and_the_tables_say_what_is_missing(analysis):
    few = analysis.changes.assign(p=0.2)
    few.loc[few.index[0], ["low", "high", "p"]] = np.nan
    few["caution"] = ["no interval, no p: 8 patients"] + [""] * (len(few) - 1)
    table = sections.changes(replace(analysis, changes=few))
    column = next(c for c in table.columns if c.title.startswith("row −"))
    assert not any(column.differs)
    said = next(c for c in table.columns if c.title == "caution")
    assert said.values[0] == "no interval, no p: 8 patients"
    assert all(c.title != "caution" for c in sections.changes(analysis).columns)
    marked = sections.pairs(analysis)
    column = next(c for c in marked.columns if c.title.startswith("b −"))
    assert list(column.differs) == [p < 0.05 for p in analysis.pairs["p_holm"]]


def test_columns_of_one_text_are_said_once():
    kept, said = constant(
        (Column("policy", ["clean"] * 2), Column("dataset", ["a", "b"]), Column("n", [1, 1], "p"))
    )
    assert [column.title for column in kept] == ["dataset", "n"]
    assert said == " In all rows: policy clean."


def test_texts_sort_in_the_order_of_the_benchmark(parsed):
    results = data_of(parsed)[0]
    levels = {c["title"]: c["levels"] for c in results["columns"] if "levels" in c}
    assert levels["technique"] == list(IMAGES)
    assert levels["setting"] == ["linear", "finetune-full"]


def test_the_results_table_holds_the_frame(analysis):
    table = sections.results(analysis)
    columns = {column.title: column for column in table.columns}
    rows = analysis.scores.query("metric == 'auroc' and `class` == 'mean'")
    np.testing.assert_array_equal(columns["AUROC [95 %]"].values, rows["value"])
    np.testing.assert_array_equal(columns["AUROC [95 %]"].low, rows["low"])
    np.testing.assert_array_equal(columns["AUROC [95 %]"].high, rows["high"])
    np.testing.assert_array_equal(columns["paper"].values, rows["paper"])
    difference = np.array(columns["ours − paper"].values)
    np.testing.assert_array_equal(difference, (rows["value"] - rows["paper"]).to_numpy())
    assert columns["dataset"].values[0] == "ptb-xl (validation)"


def test_all_metrics_are_one_table_with_a_chooser(report_analysis):
    table = sections.metrics(report_analysis)
    (metric,) = [column for column in table.columns if column.title == "metric"]
    assert metric.required
    assert metric.chosen == "AUPRC ↑"
    assert set(metric.values) == {
        f"{m.title} {'↑' if m.higher_is_better else '↓'}" for m in METRICS.values()
    }
    assert table.rows == len(report_analysis.scores)


def test_every_column_of_the_tables_is_found_in_the_frames(report_analysis):
    assert all(
        table is not None and table.rows
        for table in (
            sections.results(report_analysis),
            sections.metrics(report_analysis),
            *(
                getattr(sections, name)(report_analysis)
                for name in ("gaps", "changes", "pairs", "ranking", "subgroups", "ran")
            ),
        )
    )


def test_differences_that_no_test_could_show_are_said_not_to_be_tested():
    rows = pd.DataFrame(
        {"difference": 0.3, "p": [1e-9, 5e-5, np.nan], "p_holm": [1e-7, *2 * [np.nan]]}
    )
    names = ("better", "worse")
    said = judged(rows, "difference", *names, subject="b was", p="p_holm", corrected=" after Holm")
    assert said == (
        "b was better in 1 of 1 comparison (p < 0.05 after Holm). 1 comparison was not tested: too "
        "few patients, in all or in a class. 1 comparison was not tested: no 20,000 exchanges can "
        "be significant among so many tests."
    )


@pytest.mark.parametrize(
    ("values", "p", "expected"),
    [
        ([0.1, 0.1], [0.01, 0.5], "a in 1 of 2 comparisons; the other showed no difference (p"),
        ([0.1, -0.1], [0.01, 0.01], "a in 1 of 2 comparisons and b in 1 (p < 0.05)."),
        ([-0.1, 0.1, 0.1], [0.01, 0.5, 0.5], "b in 1 of 3 comparisons; the other 2 showed no"),
        ([0.1], [0.5], "1 comparison showed no difference (p < 0.05)."),
    ],
)
def test_verdicts_count_what_a_test_shows_in_both_directions(values, p, expected):
    rows = pd.DataFrame({"value": values, "p": p})
    assert judged(rows, "value", "a", "b").startswith(expected)


def test_pairs_that_score_alike_are_not_called_too_few_patients():
    rows = pd.DataFrame(
        {
            "difference": [0.0, 0.1, 0.2],
            "p": [np.nan, np.nan, 0.001],
            "caution": [caution(interval=ALIKE, p=ALIKE), caution(p="8 patients"), ""],
        }
    )
    assert judged(rows, "difference", "better", "worse", corrected=" after Holm's correction") == (
        "better in 1 of 1 comparison (p < 0.05 after Holm's correction). 1 comparison was not "
        "tested: both have the same score in every resample of the patients. 1 comparison was not "
        "tested: too few patients, in all or in a class."
    )


def test_every_file_that_the_report_reads_is_part_of_the_package():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    for name in (
        "report.page_assets",
        "report.templates",
        "benchmarks.benchmd",
        "benchmarks.medmnist",
    ):
        package = f"benchmd_ray.{name}"
        patterns = setup["options.package_data"][package].replace(",", " ").split()
        files = [p.name for p in (ROOT / package.replace(".", "/")).iterdir() if p.is_file()]
        files = [file for file in files if not file.endswith(".py")]
        assert files
        assert [f for f in files if not any(fnmatch(f, one) for one in patterns)] == []


def test_templates_escape_whatever_is_not_markup_and_drop_the_folders_of_paths():
    written = str(document("t", "l", [("id", "head", f"{EVIL} /home/ada/runs/mae-1")], "foot"))
    assert "<script>window" not in written
    assert "<img" not in written
    assert "mae-1" in written
    assert "ada" not in written
