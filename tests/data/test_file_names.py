"""Files by names in either form of Unicode."""

from __future__ import annotations

import pytest

from benchmd_ray.data.file_names import FileNames
from benchmd_ray.errors import BenchmdError

COMPOSED, DECOMPOSED = "n\u00e4vus", "na\u0308vus"


def write(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("x")
    return FileNames(root, hidden=False)


@pytest.mark.parametrize("stored", [COMPOSED, DECOMPOSED])
@pytest.mark.parametrize("asked", [COMPOSED, DECOMPOSED])
def test_a_file_is_found_by_the_name_that_it_really_has(tmp_path, stored, asked):
    names = write(tmp_path, f"{stored}/{stored}/1{stored}.png")
    assert names.real(f"{asked}/{asked}/1{asked}.png") == f"{stored}/{stored}/1{stored}.png"
    assert names.real(asked) == stored
    assert names.real(f"{asked}/none.png") == f"{asked}/none.png"


def test_names_of_one_letter_that_becomes_ascii_are_found(tmp_path):
    names = write(tmp_path, "37\u212a.png")  # the sign for kelvin, whose composed form is a K
    assert names.real("37K.png") == "37\u212a.png"


def test_of_folders_in_both_forms_the_one_with_the_file_is_taken(tmp_path):
    names = write(tmp_path, f"{COMPOSED}/1.png", f"{DECOMPOSED}/2.png")
    assert names.real(f"{DECOMPOSED}/1.png") == f"{COMPOSED}/1.png"
    assert names.real(f"{COMPOSED}/2.png") == f"{DECOMPOSED}/2.png"


def test_two_files_that_differ_only_in_the_form_are_refused(tmp_path):
    names = write(tmp_path, f"a/{COMPOSED}.png", f"a/{DECOMPOSED}.png")
    with pytest.raises(BenchmdError, match=r"files 'a/n.*vus\.png' and 'a/n.*vus\.png'"):
        names.real(f"a/{COMPOSED}.png")
    hidden = FileNames(tmp_path, hidden=True)
    with pytest.raises(BenchmdError, match="holds files whose names differ only in the form") as no:
        hidden.real(f"a/{COMPOSED}.png")
    assert "vus" not in str(no.value).removeprefix(str(tmp_path))
