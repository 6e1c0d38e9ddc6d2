import pytest
import yaml

from benchmd_ray.data.cards import resource_folder
from benchmd_ray.settings import Settings, as_dict, updated

SPACES = sorted(resource_folder("search_spaces").rglob("*.yaml"))
KINDS = {"float", "log float", "int", "choice"}


def entries():
    for path in SPACES:
        for name, entry in yaml.safe_load(path.read_text("utf-8")).items():
            yield pytest.param(name, entry, id=f"{path.stem}:{name}")


def test_there_is_a_space_for_each_technique_and_transfer_mode():
    assert {path.stem for path in SPACES} == {"e-mix", "shed", "mae", "linear", "finetune"}


@pytest.mark.parametrize(("name", "entry"), entries())
def test_a_default_is_the_fixed_protocols_value_and_lies_in_its_range(name, entry):
    value = as_dict(Settings())
    for part in name.split("."):
        value = value[part]
    assert entry["default"] == value
    assert entry["kind"] in KINDS
    if entry["kind"] == "choice":
        assert value in entry["values"]
    else:
        assert entry["low"] <= value <= entry["high"]


@pytest.mark.parametrize(("name", "entry"), entries())
def test_the_ends_of_a_range_are_valid_settings(name, entry):
    for value in entry.get("values") or (entry["low"], entry["high"]):
        change = value
        for part in reversed(name.split(".")):
            change = {part: change}
        assert updated(Settings(), change) is not None
