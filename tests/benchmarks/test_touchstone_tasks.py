"""Cards of tasks: what they say, and what is refused."""

import pytest
from made_masks import CARD, card

from benchmd_ray.benchmarks.touchstone.tasks import read_task, task_named, tasks
from benchmd_ray.errors import BenchmdError


def test_the_packages_own_cards_are_sound():
    found = tasks()
    assert found.broken == {}
    assert {"abdomen9", "hippocampus", "spleen"} <= found.sound.keys()


def test_a_file_is_known_by_its_name_in_either_layout():
    named = task_named("abdomen9").file_names()
    assert named["gallbladder"] == named["gall_bladder"] == "gall_bladder"
    assert named["inferior_vena_cava"] == named["postcava"] == "postcava"


def test_labels_are_those_that_the_datasets_publish():
    task = task_named("abdomen9")
    alphabetical = sorted(task.classes)
    assert task.layouts["abdomenatlas"].ids == {n: i for i, n in enumerate(alphabetical, 1)}
    theirs = task.layouts["totalsegmentator"].ids
    assert (theirs["spleen"], theirs["aorta"], theirs["postcava"]) == (1, 52, 63)


def test_tolerances_are_of_the_card_a_preset_or_a_number():
    task = task_named("abdomen9")
    assert set(task.tolerances().values()) == {2.0}
    assert task.tolerances("1mm")["aorta"] == 1.0
    flare = task.tolerances("flare")
    assert (flare["liver"], flare["spleen"], flare["aorta"]) == (5.0, 3.0, 2.0)
    assert set(task.tolerances("2.5").values()) == set(task.tolerances("2.5 mm").values()) == {2.5}
    with pytest.raises(
        BenchmdError, match="expected a number of mm, as hippocampus has no presets"
    ):
        task_named("hippocampus").tolerances("wide")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("flar", "number of mm or one of its presets: 1mm, 3mm, flare"),
        ("-1", "above 0"),
        ("nan", "above 0"),
        ("inf", "above"),
    ],
)
def test_other_tolerances_are_refused(asked, said):
    with pytest.raises(BenchmdError, match=said):
        task_named("abdomen9").tolerances(asked)


def test_a_card_of_your_own_is_named_by_its_path(tmp_path):
    assert task_named(str(card(tmp_path))).classes == ("near", "far")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("near: 1, far: 2", "near: 1, far: 1", "the same label"),
        ("near: 1, far: 2", "near: 1", "all classes, or none"),
        ("near: 1, far: 2", "near: 0, far: 2", "from 1 to 65,535"),
        ("[near, far]", "[near, near]", "different classes"),
        ("[near, far]", "[../near, far]", "names no file"),
        ("near_one", "../../near", "not that of a file"),
        ("classes: {far: 6}", "classes: {fur: 6}", "which is none of them"),
        ("tolerance: 1.5", "tolerance: 0", "above 0 mm"),
        ("name: two", "name: three", "expected the file's name"),
    ],
)
def test_a_broken_card_says_what_is_wrong(tmp_path, before, after, said):
    with pytest.raises(BenchmdError, match=said):
        read_task(card(tmp_path, CARD.replace(before, after)))


def test_an_unknown_task_is_answered_with_the_nearest():
    with pytest.raises(BenchmdError, match="abdomen9"):
        task_named("abdomen")


def test_a_name_of_files_has_one_meaning(tmp_path):
    text = CARD.replace("names: {near: near_one}", "names: {near: far, far: near}")
    with pytest.raises(BenchmdError, match="files named far are of near, and of far elsewhere"):
        read_task(card(tmp_path, text))


def test_no_class_is_named_as_the_mean_over_classes(tmp_path):
    with pytest.raises(BenchmdError, match="'mean' names no file of a class's masks"):
        read_task(card(tmp_path, CARD.replace("far", "mean")))
