"""The documentation as a site: built strictly without a network, whole, and used from a folder."""

import ast
import html
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from browsers import started_browser
from markdown_it import MarkdownIt

import benchmd_ray
from benchmd_ray.evaluation.benchmark import Benchmark, Published, Start
from benchmd_ray.evaluation.evaluation import Evaluation
from benchmd_ray.runs.predictions import Form
from benchmd_ray.settings.definition import setting_names

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "README.md": "index",
    "CHANGELOG.md": "changelog",
    "CONTRIBUTING.md": "contributing",
    "SECURITY.md": "security",
    "search_spaces/README.md": "search_spaces",
    "speed/README.md": "speed",
    **{f"docs/{path.name}": path.stem for path in (ROOT / "docs").glob("*.md")},
}
NOWHERE = "http://127.0.0.1:9"
pytestmark = pytest.mark.slow


def build(root, out):
    """Build the site of a checkout, where every proxy is a port that nothing listens at."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    environment = {**os.environ, "http_proxy": NOWHERE, "https_proxy": NOWHERE}
    return subprocess.run(
        [*command, "--config-file", str(root / "docs/site/mkdocs.yml")],
        env={**environment, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    built = build(ROOT, out)
    assert built.returncode == 0, built.stderr
    return out


def article(path):
    """The page itself, without what surrounds it and what the theme adds to headings and code."""
    text = path.read_text("utf-8")
    text = re.search(r"<article.*?>(.*)</article>", text, re.DOTALL)[1]
    return re.sub(r'<a class="headerlink".*?</a>|<nav.*?</nav>', "", text, flags=re.DOTALL)


def words(text):
    """What a reader sees of HTML, without blanks."""
    text = re.sub(r"<!--.*?-->|<[^>]*>", "", text, flags=re.DOTALL)
    return "".join(html.unescape(text).split())


@pytest.mark.parametrize("source", sorted(PAGES))
def test_a_page_of_the_site_is_as_the_repository_shows_it(site, source):
    """By a parser of CommonMark, which agrees with GitHub's on lists, tables and blocks."""
    shown = MarkdownIt("commonmark").enable("table").render((ROOT / source).read_text("utf-8"))
    page = article(site / f"{PAGES[source]}.html")
    assert words(page) == words(shown)
    for tag in ("h1", "h2", "h3", "li", "ol", "pre", "table", "tr", "td", "em", "strong", "a"):
        assert len(re.findall(f"<{tag}[ >]", page)) == len(re.findall(f"<{tag}[ >]", shown)), tag


def every_command():
    """What click says of all commands, in a process that no other test has changed."""
    code = "import click, json; from benchmd_ray.cli import main as m; "
    code += "print(json.dumps(m.to_info_dict(click.Context(m)), default=str))"
    return json.loads(subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True))


def test_every_command_is_in_the_reference_with_its_options(site):
    page = article(site / "reference/commands.html")
    parts = re.split(r"<h3[^>]*>(.*?)</h3>", page)
    found = dict(zip(parts[1::2], map(html.unescape, parts[2::2]), strict=True))

    def commands(described, path):
        yield path, described
        for name, inner in described.get("commands", {}).items():
            yield from commands(inner, f"{path} {name}")

    (_, top), *others = commands(every_command(), "benchmd")
    assert [path for path, _ in others] == sorted(found, key=[p for p, _ in others].index)
    assert set(top["commands"]) <= set(re.findall(r"^  (\w+)  ", html.unescape(parts[0]), re.M))
    for path, described in others:
        for option in (name for param in described["params"] for name in param.get("opts", ())):
            if option.startswith("-"):
                assert re.search(rf"{option}(?![-\w])", found[path]), f"{path} {option}"


def test_every_setting_is_in_the_reference(site):
    page = article(site / "reference/settings.html")
    assert re.findall(r"<dt><code>(\S+) = .*?</code></dt>", page) == list(setting_names())


def test_names_of_the_package_and_those_that_pages_import_are_in_the_reference(site):
    page = article(site / "reference/python.html")
    named = {f"benchmd_ray.{name}" for name in benchmd_ray.__all__}
    named |= {f"benchmd_ray.CatalogData.{name}" for name in ("torch", "ray", "frame", "splits")}
    for path in ROOT.glob("docs/*.md"):
        for code in re.findall(r"^```python\n(.*?)^```", path.read_text("utf-8"), re.M | re.S):
            for node in ast.walk(ast.parse(code)):
                if isinstance(node, ast.ImportFrom) and str(node.module).startswith("benchmd_ray."):
                    named |= {f"{node.module}.{alias.name}" for alias in node.names}
    for kind in (Benchmark, Start, Published, Evaluation, Form):
        named |= {f"{kind.__module__}.{kind.__name__}.{field.name}" for field in fields(kind)}
    assert len(named) > 60
    assert named <= set(re.findall(r'<h[34] id="([\w.]+)"', page))
    assert "<em>" not in page  # stars of shapes are stars


def test_the_notebook_is_a_page_with_its_code_and_figures(site):
    page = article(site / "ecg.html")
    assert page.count("<img ") == 3
    assert "bmd.pretrain(" in words(page)
    assert '<a href="python.html">' in page


def test_pages_take_nothing_from_other_hosts(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) >= 30
    for path in pages:
        text = path.read_text("utf-8")
        assert not re.findall(r'<[^>]*\bsrc="(?:https?:)?//[^"]*"', text), path
        assert not re.findall(r'<link[^>]*href="(?:https?:)?//[^"]*"', text), path
    for path in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import) *[\"']?(?:https?:)?//", path.read_text("utf-8"))


@pytest.mark.nightly
def test_the_site_is_searched_from_a_folder(site):
    with started_browser() as browser:
        page = browser.new_page()
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"file://{site}/start.html")
        page.locator(".md-search__input").click()
        page.keyboard.type("stall_seconds")
        page.locator('.md-search-result__link[href*="reference/settings.html"]').first.wait_for()
        assert all(url.startswith(("file://", "data:")) for url in asked)


def test_dead_links_fail_the_build(tmp_path):
    for name in ("docs", "search_spaces", "speed"):
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("ecg", "*.json")
        )
    for name in (*(name for name in PAGES if "/" not in name), "cluster.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "benchmd_ray").symlink_to(ROOT / "benchmd_ray")
    with (tmp_path / "docs/data.md").open("a", encoding="utf-8") as page:
        page.write("\n[a](absent.md) [b](start.md#absent) [c](../NOTICE.md)\n")
    built = build(tmp_path, tmp_path / "site")
    assert built.returncode != 0
    for link in ("absent.md", "start.md#absent", "NOTICE.md"):
        assert f"'{link}'" in built.stderr, built.stderr
