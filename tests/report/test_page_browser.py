"""The report's page in a real browser, from file://."""

import math
from collections import Counter
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from analysis_frames import invented
from browsers import started_browser
from test_page import EVIL, drawn, renamed
from waiting import until

from benchmd_ray.report.document import FIRST
from benchmd_ray.report.formats import csv_text
from benchmd_ray.report.matrix import matrix_of
from benchmd_ray.report.page import write_page
from benchmd_ray.report.table import rounded, shown

NOTHING = "–"
pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def browser():
    with started_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def analysis():
    """Two modalities, so many rows that a table grows, and some results next to the paper."""
    return invented(("ecg", "cxr"))


@pytest.fixture(scope="module")
def report(tmp_path_factory, analysis):
    figures = [*drawn(2), *drawn(1, section="Training")]
    return write_page(analysis, figures, tmp_path_factory.mktemp("page"))


@pytest.fixture
def opened(browser, report):
    """Opens the report; in the end nothing may have failed or been fetched."""
    pages, heard = [], []

    def opens(path=report, *, width=1280, unfolded=True, **options):
        context = browser.new_context(viewport={"width": width, "height": 800}, **options)
        context.set_default_timeout(30_000)
        tab = context.new_page()
        tab.on("request", lambda r: heard.append(r.url) if _outside(r.url, path) else None)
        tab.on("console", lambda m: heard.append(f"{m.type}: {m.text}"))
        tab.on("pageerror", lambda e: heard.append(str(e)))
        tab.on("dialog", lambda d: heard.append(d.message))
        tab.goto(path.as_uri())
        if unfolded:
            tab.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
        pages.append(context)
        return tab

    yield opens
    for context in pages:
        context.close()
    assert heard == []


def _outside(url, path):
    return url != path.as_uri() and not url.startswith("data:image/svg+xml,")


def head(tab, table, title):
    return tab.locator(f"#table-{table} th", has=tab.get_by_role("button", name=title, exact=True))


ALL_ROWS = """async (table, title) => {
  const box = table.querySelector(".scroll");
  const frame = () => new Promise(requestAnimationFrame);
  for (let before = -1; before !== box.scrollHeight; await frame(), await frame()) {
    before = box.scrollHeight;
    box.scrollTop = before;
    await frame();
  }
  const place = [...table.querySelectorAll("th")].findIndex(head => head.textContent === title);
  return [...table.querySelectorAll("tbody tr")].map(row => row.cells[place].textContent);
}"""


def column(tab, table, title):
    """Texts of a column, of all rows: they are made as one scrolls."""
    return tab.locator(f"#table-{table}").evaluate(ALL_ROWS, title)


def eventually(look, expected):
    """Whether it comes to be so within seconds; the page's policy forbids Playwright's own wait."""
    until(f"{expected!r}", lambda: look() == expected, 30, lambda: f"it is {look()!r}")
    return True


def number(text):
    """Value of a cell, without its interval and mark."""
    first = text.split(" [")[0]
    return math.nan if first == NOTHING else float(first.replace("−", "-").replace(",", ""))


def results_of(analysis):
    held = analysis.scores.query("metric == 'auroc' and `class` == 'mean'")
    return held.assign(difference=held["value"] - held["paper"])


def test_the_page_opens_from_a_file_and_fetches_nothing(opened, analysis):
    tab = opened()
    assert tab.title() == "BenchMD report"
    assert tab.locator("#table-auroc .count").inner_text() == f"{len(results_of(analysis))} rows"
    images = tab.locator("figure img")
    assert images.count() == 3
    assert images.evaluate_all("all => all.every(i => i.complete && i.naturalWidth > 0)")


def test_names_from_outside_are_text(opened, tmp_path):
    small = invented(("ecg",), settings=("linear",), techniques=("scratch", "MAE"))
    evil = renamed(renamed(small, "dataset", "georgia", EVIL), "technique", "MAE", EVIL)
    path = write_page(evil, drawn(1, section=EVIL, caption=EVIL), tmp_path, title=EVIL)
    tab = opened(path)
    assert tab.title() == EVIL
    assert EVIL in column(tab, "auroc", "dataset")
    tab.locator("#table-auroc select").first.select_option(label=EVIL)
    assert tab.evaluate("typeof window.hacked") == "undefined"
    assert tab.locator("img").count() == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("AUROC [95 %]", "value"),
        ("paper", "paper"),
        ("ours − paper", "difference"),
        ("records", "records"),
    ],
)
def test_numbers_sort_both_ways_with_nothing_last(opened, analysis, title, name):
    tab = opened()
    held = [rounded(v, "number") for v in results_of(analysis)[name]]
    values = sorted(v for v in held if v is not None)
    missing = len(held) - len(values)
    for way, expected in (("ascending", values), ("descending", values[::-1])):
        head(tab, "auroc", title).get_by_role("button").click()
        assert head(tab, "auroc", title).get_attribute("aria-sort") == way
        found = [number(text) for text in column(tab, "auroc", title)]
        np.testing.assert_array_equal(found, [*expected, *[math.nan] * missing])
    assert missing or name != "paper"


def test_texts_sort_in_the_benchmarks_order_and_back(opened, analysis):
    tab = opened()
    first = column(tab, "auroc", "technique")
    order = ["scratch", "e-Mix", "ShED", "MAE", "ImageNet", "ImageNet, then MAE"]
    button = head(tab, "auroc", "technique").get_by_role("button")
    button.click()
    assert column(tab, "auroc", "technique") == sorted(first, key=order.index)
    button.click()
    assert column(tab, "auroc", "technique") == sorted(first, key=order.index)[::-1]
    button.click()
    assert column(tab, "auroc", "technique") == first
    assert head(tab, "auroc", "technique").get_attribute("aria-sort") == "none"


def test_equal_rows_keep_their_order(opened):
    tab = opened()
    datasets, techniques = (column(tab, "auroc", name) for name in ("dataset", "technique"))
    head(tab, "auroc", "dataset").get_by_role("button").click()
    pairs = sorted(zip(datasets, techniques, strict=True), key=lambda pair: pair[0])
    assert column(tab, "auroc", "technique") == [technique for _, technique in pairs]


def test_headers_sort_by_keyboard(opened):
    tab = opened()
    button = head(tab, "changes", "p").get_by_role("button")
    button.focus()
    tab.keyboard.press("Enter")
    assert head(tab, "changes", "p").get_attribute("aria-sort") == "ascending"
    tab.keyboard.press("Space")
    assert head(tab, "changes", "p").get_attribute("aria-sort") == "descending"
    assert button.evaluate("button => button === document.activeElement")
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "p (DeLong)"


def test_filters_leave_the_rows_chosen(opened, analysis):
    tab = opened()
    rows = results_of(analysis)
    table = tab.locator("#table-auroc")
    table.get_by_label("technique", exact=True).select_option(label="MAE")
    some = rows[rows["technique"] == "MAE"]
    count = table.locator(".count")
    assert count.inner_text() == f"{len(some)} of {len(rows)} rows: technique MAE"
    assert len(column(tab, "auroc", "technique")) == len(some)
    table.get_by_label("setting", exact=True).select_option(label="linear")
    few = some[some["setting"] == "linear"]
    assert Counter(column(tab, "auroc", "dataset")).total() == len(few)
    found = [number(text) for text in column(tab, "auroc", "AUROC [95 %]")]
    np.testing.assert_array_equal(found, [round(value, 3) for value in few["value"]])
    table.get_by_role("button", name="Reset").click()
    table.get_by_label("Search", exact=True).fill("GEORGIA finetune-full")
    both = rows[(rows["dataset"] == "georgia") & (rows["setting"] == "finetune-full")]
    assert count.inner_text().startswith(f"{len(both)} of {len(rows)} rows")
    assert len(column(tab, "auroc", "dataset")) == len(both) > 0
    table.get_by_label("Search", exact=True).fill("nothing like it")
    assert count.inner_text().startswith(f"0 of {len(rows)} rows")
    table.get_by_role("button", name="Reset").click()
    assert eventually(count.inner_text, f"{len(rows)} rows")


def test_a_metric_and_a_class_are_chosen(opened, analysis):
    tab = opened()
    table = tab.locator("#table-metrics")
    scores = analysis.scores
    table.get_by_label("metric", exact=True).select_option(label="AUROC ↑")
    table.get_by_label("class", exact=True).select_option(label="hypertrophy")
    rows = scores[(scores["metric"] == "auroc") & (scores["class"] == "hypertrophy")]
    found = [number(text) for text in column(tab, "metrics", "value [95 %]")]
    np.testing.assert_array_equal(found, [round(value, 3) for value in rows["value"]])
    said = table.locator(".count").inner_text()
    assert said == f"{len(rows)} of {len(scores):,} rows: metric AUROC ↑, class hypertrophy"
    assert "all" not in table.get_by_label("metric", exact=True).locator("option").all_inner_texts()


def test_large_tables_grow_as_one_scrolls(opened, analysis):
    tab = opened()
    rows = tab.locator("#table-pairs tbody tr")
    assert len(analysis.pairs) > 3 * FIRST
    assert rows.count() == FIRST
    assert len(column(tab, "pairs", "a")) == len(analysis.pairs)


def test_the_script_shows_what_the_html_shows(opened):
    plain, alive = opened(java_script_enabled=False), opened()
    for name in ("auroc", "metrics", "gaps", "changes", "pairs", "ranking", "subgroups"):
        body = f"#table-{name} tbody"
        assert plain.locator(body).inner_html() == alive.locator(body).inner_html()
        count = f"#table-{name} .count"
        assert plain.locator(count).inner_text() == alive.locator(count).inner_text()
    assert plain.locator("form").first.is_hidden()
    assert "need JavaScript" in plain.locator("#table-pairs .more").inner_text()
    assert alive.locator("#table-pairs .more").inner_text() == ""


def test_numbers_look_alike_in_both_languages(opened):
    tab = opened()
    values = [*np.random.default_rng(0).normal(size=200), 0.0625, -0.0625, 0.5, 0, 1e-9, 12345.5]
    for kind in ("number", "signed", "p", "integer", "interval"):
        held = [rounded(value, kind) for value in values if kind != "p" or value >= 0]
        script = "([all, kind]) => all.map(v => shown(v, kind, 3))"
        assert tab.evaluate(script, [held, kind]) == [shown(v, kind) for v in held]


@pytest.mark.slow
def test_the_page_prints_whole_without_controls(opened, analysis):
    tab = opened()
    printed = tab.pdf(prefer_css_page_size=True)
    assert printed.startswith(b"%PDF-")
    assert b"/MediaBox [0 0 594" in printed or b"/MediaBox [0 0 595" in printed  # A4, points
    assert tab.locator("#table-pairs tbody tr").count() == len(analysis.pairs)
    tab.emulate_media(media="print")
    for hidden in ("form.controls", "nav", ".skip", "button"):
        assert not tab.locator(hidden).first.is_visible()
    for seen in (
        ".matrix .interval",
        "#results",
        "#methods",
        "figure img",
        "#table-pairs tbody tr:last-child",
    ):
        assert tab.locator(seen).first.is_visible()
    style = "box => { const s = getComputedStyle(box); return [s.overflow, s.maxHeight]; }"
    assert tab.locator(".scroll").first.evaluate(style) == ["visible", "none"]
    whole = "all => all.map(one => getComputedStyle(one).breakInside)"
    assert set(tab.locator("figure").evaluate_all(whole)) == {"avoid"}
    repeated = "all => all.map(one => getComputedStyle(one).display)"
    assert set(tab.locator("thead").evaluate_all(repeated)) == {"table-header-group"}


WIDE = """() => [...document.body.querySelectorAll("*")]
  .filter(e => !e.parentElement.closest(".scroll") && !e.closest(".skip"))
  .filter(e => e.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5)
  .map(e => e.outerHTML.slice(0, 200))"""


@pytest.mark.parametrize("width", [1280, 375])
def test_nothing_is_wider_than_the_window(opened, width):
    tab = opened(width=width)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate(WIDE) == []


CONTRASTS = """() => {
  const parsed = text => (text.match(/[0-9.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = e => {
    for (; e; e = e.parentElement) {
      const colour = parsed(getComputedStyle(e).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const seen = [...document.body.querySelectorAll("*")].filter(e => e.checkVisibility() &&
    [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()));
  return seen.map(e => {
    const [a, b] = [light(parsed(getComputedStyle(e).color)), light(ground(e))];
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.outerHTML.slice(0, 100)];
  });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(opened, scheme):
    tab = opened(color_scheme=scheme)
    ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (int(ground[4:].split(",")[0]) < 64) == (scheme == "dark")
    found = tab.evaluate(CONTRASTS)
    assert len(found) > 500
    assert [one for one in found if one[0] < 4.5] == []  # WCAG 2.2, level AA


def test_figures_keep_a_white_card_in_the_dark(opened):
    tab = opened(color_scheme="dark")
    ground = "image => getComputedStyle(image).backgroundColor"
    assert tab.locator("figure img").first.evaluate(ground) == "rgb(255, 255, 255)"


def downloaded(tab, button, tmp_path):
    with tab.expect_download() as download:
        button.click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    return path


def test_a_click_downloads_a_figure_and_a_table(opened, analysis, tmp_path):
    tab = opened()
    path = downloaded(tab, tab.locator("figure button").first, tmp_path)
    assert path.name == "figure-0.svg"
    assert ElementTree.parse(path).getroot().tag.endswith("svg")
    path = downloaded(tab, tab.locator("[data-matrix] > button"), tmp_path)
    assert path.read_text("utf-8") == csv_text(matrix_of(analysis).frame)
    table = tab.locator("#table-auroc")
    table.get_by_label("technique", exact=True).select_option(label="MAE")
    path = downloaded(tab, table.get_by_role("button", name="Download CSV"), tmp_path)
    held = pd.read_csv(path)
    rows = results_of(analysis).query("technique == 'MAE'")
    np.testing.assert_allclose(held["AUROC [95 %]"], rows["value"], atol=5e-4)
    np.testing.assert_allclose(held["AUROC [95 %], low"], rows["low"], atol=5e-4)
    assert held["technique"].unique().tolist() == ["MAE"]


def test_downloaded_names_are_no_formulas(opened, analysis, tmp_path):
    evil = '=HYPERLINK("x"),\n@"'
    path = write_page(renamed(analysis, "technique", "MAE", evil), [], tmp_path)
    tab = opened(path)
    button = tab.locator("#table-auroc").get_by_role("button", name="Download CSV")
    assert f"'{evil}" in set(pd.read_csv(downloaded(tab, button, tmp_path))["technique"])


def test_sections_are_folded_but_for_the_first_and_links_open_them(opened):
    tab = opened(unfolded=False)
    assert tab.locator("#main table").is_visible()
    assert tab.locator("#notes li").first.is_visible()
    assert not tab.locator("#table-pairs table").is_visible()
    tab.get_by_role("link", name="Table", exact=True).first.click()
    assert tab.locator("#table-pairs table").is_visible()
    tab.emulate_media(media="print")
    assert tab.locator("#table-gaps table").is_visible()


def test_on_a_phone_wide_tables_have_a_cue_and_figures_keep_their_size(opened):
    tab = opened(width=390)
    box = tab.locator(".scroll:has(.matrix)")
    assert box.evaluate("box => box.className") == "scroll wide cut"
    assert "Scroll sideways" in box.evaluate("box => getComputedStyle(box, '::before').content")
    box.evaluate("box => box.scrollLeft = box.scrollWidth")
    assert eventually(lambda: box.evaluate("box => box.className"), "scroll wide")
    image = tab.locator("figure img").first
    shown, natural = image.evaluate("image => [image.clientWidth, image.naturalWidth]")
    assert shown == pytest.approx(natural, abs=2)
    phone = opened(width=390, has_touch=True, is_mobile=True)
    assert phone.locator(".matrix .interval").first.is_visible()
    assert not opened().locator(".matrix .interval").first.is_visible()


@pytest.mark.slow
def test_the_contents_lead_to_the_sections(opened):
    tab = opened(unfolded=False)
    tab.get_by_role("link", name="Ranking", exact=True).click()
    top = "section => Math.abs(section.getBoundingClientRect().top) < 100"
    assert eventually(lambda: tab.locator("#ranking").evaluate(top), True)
    tab.wait_for_selector("nav a[href='#ranking'][aria-current]")
