"""docs/gallery.md: its commands are those of the other pages, and each example has its picture."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("gallery", ROOT / "docs" / "gallery.py")
gallery = sys.modules[SPEC.name] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(gallery)
PARTS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", gallery.PAGE.read_text(), re.M | re.S))


def test_the_page_has_each_example_and_no_other():
    assert list(PARTS) == [example.title for example in gallery.EXAMPLES]
    assert len(PARTS) == 7


@pytest.mark.parametrize("example", gallery.EXAMPLES, ids=lambda example: example.name)
def test_commands_are_those_of_the_pages_which_tests_run(example):
    (code,) = re.findall(r"```\n(.*?)```", PARTS[example.title], re.S)
    mark = f"<!-- commands: {example.name} -->\n```\n"
    (block,) = (
        path.read_text("utf-8").split(mark)[1].split("```")[0]
        for path in (ROOT / "docs").glob("*.md")
        if mark in path.read_text("utf-8")
    )
    assert block.splitlines() == [block.splitlines()[0], "", *code.splitlines()], (
        "run: python docs/gallery.py --data FOLDER"
    )
    assert block.startswith("DATA=")
    assert 3 <= len(code.splitlines()) <= 6
    assert f'"{example.name}"' in (ROOT / "tests/test_project.py").read_text("utf-8")


@pytest.mark.parametrize("example", gallery.EXAMPLES, ids=lambda example: example.name)
def test_each_example_says_seconds_and_shows_a_picture(example):
    text = PARTS[example.title]
    assert re.search(r"\b\d+ seconds", text)
    (name,) = re.findall(r"!\[.+?\]\((images/gallery-[\w-]+\.png)\)", text)
    with Image.open(ROOT / "docs" / name) as image:
        assert min(image.size) >= 200


def test_pictures_are_small():
    pictures = (ROOT / "docs/images").glob("gallery-*.png")
    assert sum(path.stat().st_size for path in pictures) < 600_000
