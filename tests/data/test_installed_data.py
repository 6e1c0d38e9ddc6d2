"""Cards and datasets of installed packages; versions of code in a catalog's plan."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from PIL import Image

from benchmd_ray.cli import main
from benchmd_ray.data.cards import cards, dataset_card
from benchmd_ray.data.datasets import any_file, dataset_of, listed, versions_of
from benchmd_ray.data.raw import Choices
from benchmd_ray.data.readers import image
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.card_folders import CARDS

CARD = """\
name: {name}
modality: derm
task: {{classes: [smooth, rough]}}
"""
MODULE = '''\
"""Pictures whose names end in their class."""

from benchmd_ray.data.datasets.photographs import read  # noqa: F401
from benchmd_ray.data.raw import Discovery, RawItem, files


def discover(root, card, choices):
    items = []
    for path in files(root, "*.png"):
        name = path.stem
        items.append(RawItem(path.name, name, name, "test", label=name.split("_")[1]))
    return Discovery("files", items)
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package with a card and the code of its dataset."""
    site = tmp_path / "site"
    (site / "clinic" / "cards").mkdir(parents=True)
    (site / "clinic" / "__init__.py").write_text("")
    (site / "clinic" / "cards" / "clinic-edges.yaml").write_text(CARD.format(name="clinic-edges"))
    (site / "clinic" / "edges.py").write_text(MODULE)
    about = site / "clinic-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: clinic\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[benchmd_ray.cards]\nclinic = clinic.cards\n\n"
        "[benchmd_ray.datasets]\nclinic-edges = clinic.edges\n"
    )
    monkeypatch.syspath_prepend(site)
    yield site
    for name in [name for name in sys.modules if name.split(".")[0] == "clinic"]:
        del sys.modules[name]


@pytest.fixture
def raw(tmp_path):
    folder, rng = tmp_path / "raw", np.random.default_rng(0)
    folder.mkdir()
    for number in range(6):
        pixels = rng.integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}_{'rough' if number % 2 else 'smooth'}.png")
    return folder


def test_cards_and_datasets_of_an_installed_package_are_found(package, raw, tmp_path, build_here):
    assert "clinic-edges" in cards()
    assert "clinic" not in sys.modules, "looking for cards runs no code"
    catalog = build_here("clinic-edges", raw, tmp_path / "catalog")
    assert catalog.manifest["splits"]["test"]["classes"] == {"smooth": 3, "rough": 3}


def test_a_package_without_cards_stops_nothing(package):
    about = package / "clinic-1.0.dist-info" / "entry_points.txt"
    about.write_text(about.read_text().replace("clinic.cards", "clinic.nowhere"))
    listed = CliRunner().invoke(main, ["catalog", "list"])
    assert listed.exit_code == 0
    assert "ptb-xl" in listed.stdout
    assert "clinic of benchmd_ray.cards names clinic.nowhere, which is no" in listed.stderr


def test_without_the_package_there_is_no_card():
    assert "clinic-edges" not in cards()


def test_an_edited_module_makes_another_plan(package, raw, tmp_path, build_here):
    first = build_here("clinic-edges", raw, tmp_path / "catalog")
    again = build_here("clinic-edges", raw, tmp_path / "catalog")
    assert again.manifest["digest"] == first.manifest["digest"]
    module = package / "clinic" / "edges.py"
    module.write_text(MODULE.replace('split("_")[1]', 'split("_")[1].lower()'))
    del sys.modules["clinic.edges"]
    importlib.invalidate_caches()
    with pytest.raises(BenchmdError, match="built from other raw files, policy, options or vers"):
        build_here("clinic-edges", raw, tmp_path / "catalog")


@pytest.mark.parametrize("module", [listed, any_file, image])
def test_a_raised_version_makes_another_plan(
    raw, tmp_path, build_here, monkeypatch, own_card, module
):
    own_card("pictures", raw)
    first = build_here("pictures", raw, tmp_path / "catalog")
    assert build_here("pictures", raw, tmp_path / "catalog").manifest == first.manifest
    before = versions_of(dataset_card("pictures"))
    monkeypatch.setattr(module, "VERSION", module.VERSION + 1)
    changed = versions_of(dataset_card("pictures"))
    assert {name for name in changed if changed[name] != before[name]} == {
        module.__name__.removeprefix("benchmd_ray.data.")
    }
    with pytest.raises(BenchmdError, match="built from other raw files, policy, options or vers"):
        build_here("pictures", raw, tmp_path / "catalog")


@pytest.fixture
def own_card(tmp_path, monkeypatch):
    """Writes a card and a table of the raw folder's pictures."""

    def write(name, raw, *more, keys=""):
        (tmp_path / "cards").mkdir(exist_ok=True)
        text = CARD.format(name=name) + "files: {table: t.csv, patient: patient}\n" + keys
        (tmp_path / "cards" / f"{name}.yaml").write_text(text)
        monkeypatch.setenv(CARDS, str(tmp_path / "cards"))
        rows = (f"{p.name},{p.stem.split('_')[1]},Jane Doe {p.stem[0]}" for p in raw.glob("*.png"))
        (raw / "t.csv").write_text("\n".join(["path,label,patient", *sorted(rows), *more]))

    return write


def test_a_parquet_table_is_the_csv_table(raw, tmp_path, own_card):
    own_card("pictures", raw)
    card = dataset_card("pictures")
    expected = dataset_of(card).discover(raw, card, Choices())
    table = pa.csv.read_csv(raw / "t.csv")
    pq.write_table(table, raw / "t.parquet")
    path = tmp_path / "cards" / "pictures.yaml"
    (tmp_path / "parquet").mkdir()
    moved = tmp_path / "parquet" / path.name
    moved.write_text(path.read_text().replace("t.csv", "t.parquet"))
    from benchmd_ray.data.cards import _cards_of

    other = _cards_of(moved)["pictures"]
    assert dataset_of(other).discover(raw, other, Choices()) == expected
    assert len(expected.items) == 6


def test_names_of_patients_are_nowhere(raw, tmp_path, own_card, build_here, caplog, capfd):
    for path in sorted(raw.glob("*.png")):
        path.rename(path.with_name(f"{path.stem.replace('_', '-Jane-Doe_')}.png"))
    more = ("9-Jane-Doe_rough.png,rough,Jane Doe 9", "8-Jane-Doe_rough.png,rough,Jane Doe 8")
    own_card("pictures", raw, *more, keys="private_names: true\n")
    (raw / "9-Jane-Doe_rough.png").write_bytes(b"no image")  # and the other one is missing
    build_here("pictures", raw, tmp_path / "catalog", max_quarantined=0.5)
    said = "".join(capfd.readouterr()) + caplog.text
    assert "Jane" not in said
    found = [path for path in (tmp_path / "catalog").rglob("*") if path.is_file()]
    assert len(found) > 3
    for path in found:
        assert b"Jane" not in path.read_bytes(), path
        assert "Jane" not in path.name
    for path in (tmp_path / "catalog").rglob("*.arrow"):
        with pa.ipc.open_file(path) as shard:
            assert "Jane" not in str(shard.read_all().drop(["signal"]).to_pylist())
