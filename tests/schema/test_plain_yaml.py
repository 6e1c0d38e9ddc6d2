"""YAML of plain values: what is read as ever, and what is refused before it takes long."""

import resource
import time

import pytest
import yaml
from kinds import MODALITIES

from benchmd_ray.data.cards import _cards_of
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import resource_folder
from benchmd_ray.schema.plain_yaml import MAX_CHARACTERS, MAX_DEPTH, read_yaml, read_yaml_file
from benchmd_ray.settings.definition import load_settings
from benchmd_ray.tuning.spaces import space_for

FILES = [
    p for name in ("data_catalog", "search_spaces") for p in resource_folder(name).glob("*.y*")
]
LAUGHS = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
CHAIN = "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 2000))
HOSTILE = {
    "aliases of aliases": LAUGHS,
    "a chain of aliases": CHAIN,
    "an alias within its anchor": "a: &a [*a]",
    "an alias of nothing": "a: *b",
    "a date that is none": "a: !!timestamp 2020-13-45",
    "a tag": "a: !!int x",
    "a tag on a list": "a: !!set [1]",
    "a long number": "a: " + "9" * 5000,
    "a long hexadecimal number": "a: 0x" + "f" * 5000,
    "a long number to the base of 60": "a: 1" + ":59" * 5000,
    "half a number": "a: 0x_",
    "deep lists": "[" * 5000 + "]" * 5000,
    "deep mappings": "{a: " * 5000 + "1" + "}" * 5000,
    "deep keys": "? " * 5000 + "a",
    "no character": 'a: "\\UFFFFFFFF"',
    "half a character": 'a: "\\ud800"',
    "a list as a key": "{[1]: 2}",
    "two documents": "a: 1\n--- \nb: 2",
    "a long text": "a: " + "b" * MAX_CHARACTERS,
    "a control character": "a: \x07",
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_files_of_the_package_are_read_as_by_yaml_itself(path):
    text = path.read_text("utf-8")
    assert read_yaml_file(path, "it") == yaml.safe_load(text)
    assert len(text) * 10 < MAX_CHARACTERS


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts_are_refused_soon_and_in_little_memory(text, tmp_path):
    (tmp_path / "x.yaml").write_text(text, "utf-8")
    peak, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(BenchmdError, match="cannot read the thing: "):
        read_yaml(text, "the thing")
    for read in (
        lambda: load_settings(tmp_path / "x.yaml"),
        lambda: load_settings(assignments=[f"encoder.options={text}"]),
        lambda: _cards_of(tmp_path / "x.yaml"),
        lambda: space_for("mae", "linear", MODALITIES["ecg"], tmp_path / "x.yaml"),
    ):
        with pytest.raises(BenchmdError, match="cannot read the ") as caught:
            read()
        assert len(str(caught.value)) < 2000
    assert time.process_time() - start < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 2**17  # kB


@pytest.mark.parametrize(
    "text", ["2020-13-45", "2020-01-01", "<<", "=", "1.5.2", "0o17", "_", "9" * 19 + "x"]
)
def test_what_looks_like_a_date_or_a_number_stays_a_text(text):
    assert read_yaml(f"a: {text}", "it") == {"a": text}
    assert read_yaml(f"{text}: 1", "it") == {text: 1}


@pytest.mark.parametrize("text", ["1e-4", "-2E3", "+1.e+2", ".5e1", "1.0e+4"])
def test_numbers_with_an_exponent_are_numbers(text):
    assert read_yaml(f"a: {text}", "it") == {"a": float(text)}
    assert read_yaml(f"a: '{text}'", "it") == {"a": text}


def test_aliases_stand_for_what_they_name():
    text = "a: &a {x: [1, 2]}\nb: *a\nc: [*a, &d 3, *d]\n"
    assert read_yaml(text, "it") == yaml.safe_load(text)


@pytest.mark.parametrize("levels", [MAX_DEPTH - 1, MAX_DEPTH])
def test_values_are_nested_to_a_depth(levels):
    text = "[" * levels + "1" + "]" * levels
    if levels < MAX_DEPTH:
        assert read_yaml(text, "it") == yaml.safe_load(text)
    else:
        with pytest.raises(BenchmdError, match=rf"nested in {MAX_DEPTH} levels"):
            read_yaml(text, "it")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "latin").write_bytes(b"a: \xe4")
    (tmp_path / "long").write_bytes(b"#" * 10 * MAX_CHARACTERS)
    for name, reason in (
        ("none", "No such file or directory"),
        ("", "Is a directory"),
        ("latin", "it is not UTF-8 text"),
        ("long", "it has more than 65,536 characters"),
    ):
        with pytest.raises(BenchmdError, match=f"cannot read the card x: {reason}"):
            read_yaml_file(tmp_path / name, "the card x")
