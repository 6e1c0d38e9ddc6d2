"""Pictures of catalogs, and the numbers behind them."""

from __future__ import annotations

import dataclasses
import itertools
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import made_catalogs
import matplotlib
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from kinds import CLASSES, MODALITIES
from masks import write_masks
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from PIL import Image
from tiers import by_tier

from benchmd_ray.cli import main
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.data.records import Record
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.modalities import modality
from benchmd_ray.report.canvas import styled
from benchmd_ray.report.catalogs import contents
from benchmd_ray.report.catalogs.contents import (
    NO_CLASS,
    Balance,
    People,
    class_balance,
    examples,
    people,
)
from benchmd_ray.report.catalogs.example_figures import _stacked, draw_examples
from benchmd_ray.report.catalogs.figures import draw_class_balance, draw_people, write_figures

SIZES = {"train": 60, "validation": 24, "test": 12}
SCALES = {"ecg": 0.005, "eeg": 0.02}


def signal_of(kind, rng, label, valid):
    """Something that can be told apart by eye, with zeros beyond the valid area."""
    shape, rate = kind.signal.stored_shape, kind.signal.rate
    if rate:
        time = np.arange(shape[1]) / rate
        wave = np.sin(2 * np.pi * (1 + label) * time + rng.uniform(0, 6, (shape[0], 1)))
        spikes = 3 * np.exp(-(((time + rng.uniform(0, 1)) % 1 - 0.5) ** 2) / 2e-4)
        drawn = 0.4 * wave + spikes + rng.normal(0, 0.1, shape)
        return (drawn * (0.5 if kind.name == "ecg" else 40) / SCALES[kind.name]).astype(np.int16)
    axes = np.meshgrid(*(np.linspace(-1, 1, n) for n in shape[1:]), indexing="ij")
    radius = np.sqrt(axes[-1] ** 2 + axes[-2] ** 2)
    blob = np.exp(-((axes[-1] - 0.3) ** 2 + (axes[-2] + 0.1 * label) ** 2) * 40)
    if kind.name == "ldct":
        drawn = np.where(radius < 0.8, -850 + 700 * blob, -1024.0)
        return (drawn[None] + rng.normal(0, 20, shape)).astype(np.int16)
    colours = rng.uniform(0.5, 1, (shape[0], 1, 1))
    drawn = np.clip(40 + 120 * (radius < 0.9) + 90 * blob, 0, 255) * colours
    drawn = drawn + rng.normal(0, 4, shape)
    square = np.zeros(shape, np.uint8)
    top, left = (224 - valid[0]) // 2, (224 - valid[1]) // 2
    inside = np.s_[:, top : top + valid[0], left : left + valid[1]]
    square[inside] = drawn[inside].clip(1, 255)
    return square


def target_of(kind, rng, row):
    if kind.task.exclusive:
        return np.eye(len(kind.task.classes), dtype=int)[row % len(kind.task.classes)].tolist()
    return rng.choice([0, 0, 0, 1, -1], len(kind.task.classes)).tolist()


def records_of(kind, split, count):
    rng = np.random.default_rng([len(split), count])
    for row in range(count):
        valid = kind.signal.stored_shape[1:]
        if kind.signal.dtype == "uint8":
            valid = [(224, 180), (150, 224), (224, 224)][row % 3]
        target = target_of(kind, rng, row)
        patient = f"{split}-patient-{row // 2}"
        yield Record(
            record_id=f"{split}-secret-{row}",
            group_id=patient,
            unit_id=f"{split}-secret-{row}",
            signal=signal_of(kind, rng, int(np.argmax(target)), valid),
            scale=SCALES.get(kind.name, 1.0),
            valid_size=valid,
            target=target,
            metadata={
                "age": None if row % 7 == 0 else float(rng.integers(1, 91)),
                "sex": [None, "female", "male"][rng.integers(3)],
                "site": "secret site",
            },
        )


def write_catalog(path, card, sizes=SIZES, per_shard=16):
    splits = {}
    for split, count in sizes.items():
        records = list(records_of(card.modality, split, count))
        splits[split] = [records[i : i + per_shard] for i in range(0, count, per_shard)]
    made_catalogs.write_catalog(path, card, splits, statistics=None)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Catalogs by modality, written by hand."""
    folder = tmp_path_factory.mktemp("made")
    ptbxl, written = dataset_card("ptb-xl"), {}

    def card_of(name):
        if not name.startswith("made-"):
            return dataset_card(name)
        kind = modality(name.removeprefix("made-"))
        return dataclasses.replace(ptbxl, name=name, modality=kind, expected={}, class_mapping={})

    def make(name) -> Catalog:
        if name not in written:
            card = card_of(f"made-{name}")
            write_catalog(folder / name, card)
            written[name] = open_catalog(folder / name)
        return written[name]

    return make


def all_rows(catalog: Catalog) -> pd.DataFrame:
    paths = [path for split in catalog.manifest["splits"] for path, *_ in catalog.shards(split)]
    return pd.concat([pq.read_table(path).to_pandas() for path in paths], ignore_index=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODALITIES)
def test_class_balance_is_that_of_the_rows(made, name):
    catalog = made(name)
    rows, found = all_rows(catalog), class_balance(catalog)
    assert list(found) == ["train", "validation", "test"]
    for split, held in found.items():
        targets = np.stack(rows[rows["split"] == split]["target"])
        assert held.records == len(targets)
        assert list(held.positive) == list(held.unknown) == list(catalog.card.classes)
        assert list(held.positive.values()) == (targets == 1).sum(axis=0).tolist()
        assert list(held.unknown.values()) == (targets == -1).sum(axis=0).tolist()
    unknown = sum(sum(held.unknown.values()) for held in found.values())
    assert (unknown > 0) == (catalog.task.kind == "multi-label")


@pytest.mark.parametrize("name", ["cxr", "eeg"])
def test_people_are_counted_once_each(made, name, monkeypatch):
    catalog = made(name)
    whole = people(catalog)
    monkeypatch.setattr(contents, "ROWS_AT_ONCE", 3)
    assert people(catalog) == whole
    rows = all_rows(catalog)
    for split, held in whole.items():
        mine = rows[rows["split"] == split].groupby("group_id")[["age", "sex"]].first()
        mine["sex"] = mine["sex"].fillna("unknown")
        assert held.patients == len(mine)
        for sex in ("female", "male", "unknown"):
            ages = mine[mine["sex"] == sex]["age"]
            assert held.of_sex(sex) == len(ages)
            assert held.age_unknown[sex] == ages.isna().sum()
            edges = [*range(0, 91, 10), 200]
            assert held.ages[sex] == np.histogram(ages.dropna(), edges)[0].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", MODALITIES)
def test_examples_are_the_valid_area_of_rows_of_their_class(made, name):
    catalog = made(name)
    rows = all_rows(catalog).set_index("record_id")
    found = examples(catalog, 3)
    names = [*catalog.card.classes, *[NO_CLASS] * (catalog.task.kind == "multi-label")]
    assert list(found) == names
    for label, chosen in found.items():
        assert len(chosen) == 3
        assert len({example.group_id for example in chosen}) == 3
        for example in chosen:
            row = rows.loc[example.record_id]
            classes = [c for c, v in zip(catalog.card.classes, row["target"], strict=True) if v > 0]
            assert list(example.classes) == classes
            assert label in classes or (label == NO_CLASS and set(row["target"]) == {0})
            assert example.split == row["split"]
            assert example.signal.shape[1:] == tuple(row["valid_size"])
            stored = np.frombuffer(row["signal"], catalog.signal.dtype)
            stored = stored.reshape(catalog.signal.stored_shape)
            if catalog.signal.dtype == "uint8":
                assert (stored > 0).sum() == example.signal.size == (example.signal > 0).sum()
            expected = stored.astype(float).sum() * row["scale"]
            assert example.signal.sum(dtype=float) == pytest.approx(expected, rel=1e-4)
    everyone = [example.record_id for chosen in found.values() for example in chosen]
    assert len(set(everyone)) == len(everyone)


def test_examples_do_not_depend_on_how_rows_are_read(made, monkeypatch):
    catalog = made("cxr")
    ids = {name: [e.record_id for e in found] for name, found in examples(catalog, 2).items()}
    monkeypatch.setattr(contents, "ROWS_AT_ONCE", 5)
    again = {name: [e.record_id for e in found] for name, found in examples(catalog, 2).items()}
    assert again == ids


def test_class_with_fewer_patients_or_records_shows_what_there_is(tmp_path, made, monkeypatch):
    card = dataclasses.replace(dataset_card("ptb-xl"), name="made-ecg")
    write_catalog(tmp_path, card, {"train": 9})
    counts = {name: len(found) for name, found in examples(open_catalog(tmp_path), 3).items()}
    assert counts == {name: 2 if n < 2 else 1 for n, name in enumerate(card.classes)}


def test_signals_that_are_not_drawn_are_not_read(made, monkeypatch):
    read, group = [], pq.ParquetFile.read_row_group

    def counted(self, number, columns):
        read.append(columns)
        return group(self, number, columns=columns)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", refuse_signals(pq.ParquetFile.iter_batches))
    found = examples(made("ecg"), 2)
    class_balance(made("ecg"))
    people(made("ecg"))
    assert len(read) == sum(map(len, found.values())) == 14


def refuse_signals(iter_batches):
    def checked(self, rows, columns):
        assert "signal" not in columns
        return iter_batches(self, rows, columns=columns)

    return checked


def test_stacked_leads_clear_each_other():
    rng = np.random.default_rng(0)
    signal = rng.normal(0, 0.3, (12, 1000)).astype(np.float32)
    signal[3, 500] -= 2
    values, offsets = _stacked(signal, 0.5, 20)
    assert (np.diff(values, axis=0) <= 0).all()
    assert set(np.diff(offsets) % 0.5) == {0.0}
    assert offsets[3] - offsets[4] > 2
    signal[5, 0] = 1e6
    _, offsets = _stacked(signal, 0.5, 20)
    assert np.diff(offsets).min() == -6


@pytest.fixture(scope="module")
def drawn(made, tmp_path_factory):
    """Figures by modality."""
    folder = tmp_path_factory.mktemp("figures")
    return cache(lambda name: write_figures(made(name), folder / name))


@pytest.mark.parametrize("name", by_tier(["cxr"], ["ecg", "ldct"], MODALITIES))
@pytest.mark.slow
def test_figures_are_drawn(made, drawn, name):
    files = {path.name: path for path in drawn(name)}
    pictures = {path.stem for path in files.values()}
    assert {"class-balance", "people"} < pictures
    assert len(pictures) == (9 if name == "ecg" else 3)
    for picture in pictures:
        pixels = np.asarray(Image.open(files[f"{picture}.png"]).convert("L"))
        assert min(pixels.shape) > 300
        assert max(pixels.shape) < 4000
        assert 0.005 < (pixels < 250).mean() < 0.9
        assert len(np.unique(pixels)) > 50
    text = texts(files["class-balance.svg"])
    assert f"Class balance of made-{name} (clean): 60 train, 24 validation, 12 test" in text
    for label in CLASSES[name]:
        assert label in text
    assert "share of the split's" in text
    people_text = texts(files["people.svg"])
    assert "30 train, 12 validation, 6 test patients" in people_text
    assert "age (years)" in people_text


def texts(path: Path) -> str:
    """All text of an SVG file, wrapped lines joined."""
    content = path.read_text("utf-8")
    found = re.findall(r"<text[^>]*>([^<]*)</text>|<tspan[^>]*>([^<]*)</tspan>", content)
    joined = " ".join(" ".join(pair).strip() for pair in found)
    return joined.replace("&#x27;", "'").replace("&amp;", "&")


@pytest.mark.parametrize("name", by_tier(["cxr"], ["ecg"]))
def test_pictures_name_no_patient_and_no_record(drawn, name):
    for path in drawn(name):
        content = path.read_bytes()
        assert b"secret" not in content
        assert b"patient-" not in content


@pytest.mark.slow
def test_the_same_catalog_gives_the_same_bytes_whatever_the_user_has_set(made, drawn, tmp_path):
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"font.size": 22, "svg.hashsalt": None, "lines.linewidth": 9}):
        again = write_figures(made("eeg"), tmp_path)
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in drawn("eeg")]
    assert dict(matplotlib.rcParams) == before
    assert not re.search(rb"<dc:date>|\d{4}-\d\d-\d\dT", again[1].read_bytes())


def test_drawing_leaves_the_global_state_of_pyplot_alone():
    code = (
        "import sys, benchmd_ray.report.catalogs.figures as f; "
        "print('matplotlib.pyplot' in sys.modules, 'torch' in sys.modules, 'ray' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "False", "False"]


def overlapping_texts(figure) -> list[tuple[str, str]]:
    """Pairs of texts whose boxes share some area, and texts beyond the figure's edge."""
    canvas, drawn, draw = FigureCanvasAgg(figure), [], Text.draw

    def recorded(text, renderer):
        drawn.append(text)
        draw(text, renderer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", recorded)
        canvas.draw()
    texts_drawn = [text for text in drawn if text.get_visible() and text.get_text().strip()]
    assert texts_drawn
    boxes = [(t.get_text(), t.get_window_extent(canvas.get_renderer())) for t in texts_drawn]
    shared = [
        (a, b)
        for (a, first), (b, second) in itertools.combinations(boxes, 2)
        if min(first.x1, second.x1) - max(first.x0, second.x0) > 1
        and min(first.y1, second.y1) - max(first.y0, second.y0) > 1
    ]
    edge = figure.bbox
    beyond = [
        (text, "edge")
        for text, box in boxes
        if box.x0 < -1 or box.y0 < -1 or box.x1 > edge.x1 + 1 or box.y1 > edge.y1 + 1
    ]
    return shared + beyond


@pytest.mark.parametrize("name", by_tier(["cxr"], ["ecg", "ldct"], MODALITIES))
def test_texts_do_not_overlap(made, name):
    catalog = made(name)
    chosen = list(examples(catalog, 2).items())
    with styled():
        figures = [
            draw_class_balance(catalog, class_balance(catalog)),
            draw_people(catalog, people(catalog)),
            *draw_examples(catalog, dict(chosen[-3:])).values(),
        ]
        assert [pair for figure in figures for pair in overlapping_texts(figure)] == []


@pytest.mark.parametrize("name", ["ecg", "cxr"])
def test_texts_do_not_overlap_when_counts_are_large(made, name):
    catalog = made(name)
    names = catalog.card.classes
    ages = dict.fromkeys(("female", "male", "unknown"), [12_345] * 10)
    splits = ("train", "validation", "test")
    balance = Balance(9_999_999, dict.fromkeys(names, 3_333_333), dict.fromkeys(names, 2_222_222))
    everyone = People(1_111_111, ages, dict.fromkeys(ages, 54_321))
    with styled():
        for figure in (
            draw_class_balance(catalog, dict.fromkeys(splits, balance)),
            draw_people(catalog, dict.fromkeys(splits, everyone)),
        ):
            assert overlapping_texts(figure) == []


def test_classes_without_a_record_and_people_without_data_are_drawn(made):
    catalog = made("ecg")
    names = catalog.card.classes
    nobody = Balance(3, dict.fromkeys(names, 0), dict.fromkeys(names, 0))
    with styled():
        assert overlapping_texts(draw_class_balance(catalog, {"test": nobody})) == []
        unknown = People(3, age_unknown={"female": 0, "male": 0, "unknown": 3})
        figure = draw_people(catalog, {"test": unknown})
    shown = [text.get_text() for text in figure.findobj(Text)]
    assert "test: female 0, male 0, sex unknown 3; age unknown 3" in shown


def test_figures_of_a_damaged_catalog_are_refused(tmp_path, made):
    card = dataclasses.replace(dataset_card("ptb-xl"), name="made-ecg")
    write_catalog(tmp_path / "made", card, {"train": 9})
    (shard,) = (tmp_path / "made" / "shards").iterdir()
    shard.unlink()
    with pytest.raises(BenchmdError, match="is missing or of another size"):
        write_figures(open_catalog(tmp_path / "made"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_command_draws_a_built_catalog(ecg_catalogs, tmp_path):
    path = ecg_catalogs["ptb-xl"].path
    result = CliRunner().invoke(
        main, ["catalog", "show", str(path), "--figures", str(tmp_path / "out")]
    )
    assert result.exit_code == 0, result.output
    assert "written: " in result.output
    assert "the dataset's terms: CC BY 4.0" in result.output
    assert {file.suffix for file in (tmp_path / "out").iterdir()} == {".png", ".svg"}
    assert len(list((tmp_path / "out").iterdir())) == 18


@pytest.mark.slow
def test_a_catalog_without_an_example_has_no_figure_of_examples(made):
    for name in ("ecg", "eeg", "cxr", "ldct"):
        assert draw_examples(made(name), {}) == {}


def test_examples_of_masks_have_contours_and_a_scale_of_their_own(tmp_path):
    catalog = write_masks(tmp_path / "catalog")
    chosen = examples(catalog, 2)
    assert list(chosen) == ["anterior", "posterior"]
    (figure,) = draw_examples(catalog, chosen).values()
    panels = [axes for axes in figure.axes if axes.images]
    shown = [example for found in chosen.values() for example in found]
    names = [name for name, found in chosen.items() for _ in found]
    for axes, example, name in zip(panels, shown, names, strict=True):
        assert "background" not in example.classes
        where = example.mask == catalog.card.classes.index(name)
        place = where.sum(axis=(1, 2)).argmax()
        image = example.signal[0, place]
        np.testing.assert_array_equal(axes.images[0].get_array(), image)
        assert axes.images[0].get_clim() == pytest.approx(np.percentile(image, (1, 99)))
        (contour,) = axes.collections
        inside = np.argwhere(where[place])
        (path, *_) = contour.get_paths()
        low, high = path.vertices.min(axis=0), path.vertices.max(axis=0)
        assert (np.abs(low[::-1] - inside.min(axis=0)) <= 1).all()
        assert (np.abs(high[::-1] - inside.max(axis=0)) <= 1).all()
