"""Records that look alike: resized, recompressed, brightened and rescaled ones, and no others."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import wfdb
from click.testing import CliRunner
from PIL import Image, ImageEnhance
from scipy.fft import dctn
from scipy.ndimage import gaussian_filter

from benchmd_ray.cli import main
from benchmd_ray.data import near
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.near import alike, described, description, near_duplicates
from benchmd_ray.data.records import Record
from benchmd_ray.data.transforms import quantise
from benchmd_ray.errors import BenchmdError

FILM, ECG = dataset_card("nih-cxr-ap"), dataset_card("ptb-xl")
EDGE = 224


def picture(seed: int, blur: float = 6.0) -> Image.Image:
    """A smooth random picture, darker than white."""
    noise = gaussian_filter(np.random.default_rng(seed).normal(size=(300, 260)), blur)
    low, high = noise.min(), noise.max()
    return Image.fromarray(((noise - low) / (high - low) * 180 + 10).astype(np.uint8))


def stored(image: Image.Image, height: int = EDGE) -> tuple[np.ndarray, tuple[int, int]]:
    """A picture in the middle of a black square, its height as stated."""
    width = round(height * image.width / image.height)
    signal = np.zeros((1, EDGE, EDGE), np.uint8)
    top, left = (EDGE - height) // 2, (EDGE - width) // 2
    resized = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
    signal[0, top : top + height, left : left + width] = resized
    return signal, (height, width)


def record(card, name, patient, signal, size=None):
    size = size or signal.shape[1:]
    target = [int(n == 0) for n in range(len(card.classes))]
    return Record(name, patient, name, signal, 1.0, tuple(size), target)


def recompressed(image: Image.Image) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "jpeg", quality=40)
    return Image.open(file)


def changed(image: Image.Image) -> dict[str, tuple[np.ndarray, tuple[int, int]]]:
    """Copies of a picture as other datasets have them."""
    return {
        "resized": stored(image.resize((90, 104)), 140),
        "recompressed": stored(recompressed(image)),
        "brightened": stored(ImageEnhance.Brightness(image).enhance(1.5)),
        "flatter": stored(ImageEnhance.Contrast(image).enhance(0.5)),
    }


@pytest.fixture
def films(write_catalog):
    """Twelve pictures, changed copies of the first, most of them in another split, blank ones."""
    train = [record(FILM, f"r{n:02}", f"p{n}", *stored(picture(n))) for n in range(12)]
    copies = [
        record(FILM, f"copy-{name}", "p0" if name == "resized" else f"q-{name}", *about)
        for name, about in changed(picture(0)).items()
    ]
    level = np.full((1, EDGE, EDGE), 90, np.uint8)
    noise = np.random.default_rng(0).integers(0, 2, level.shape, np.uint8)
    blank = [record(FILM, f"blank{n}", f"b{n}", level + n * noise) for n in range(4)]
    return write_catalog(FILM, {"train": [[*train, copies[0]], blank], "test": [copies[1:]]})


def test_changed_copies_of_a_picture_are_alike_and_others_are_not(films):
    one = described(films)
    result = alike(one, one)
    names = ["r00", *(f"copy-{name}" for name in changed(picture(0)))]
    assert {(one.names[i], one.names[j]) for _, i, j in result.first} == {
        *combinations(sorted(names), 2)
    }
    assert (result.pairs, result.across_splits, result.of_two_patients) == (10, 6, 9)
    assert one.constant == 4


def test_short_signals_of_an_offset_and_small_pictures_are_not_all_alike():
    """There are no more frequencies than values, and the mean is none."""
    signal, rng = ECG.signal, np.random.default_rng(0)
    short = replace(signal, stored_shape=(1, 96), input_shape=(1, 96), channels=("I",), patch=(8,))
    one, other = (
        description(rng.normal(1000, 5, (1, 96)).astype(np.int16), [96], short) for _ in range(2)
    )
    assert abs(float(one @ other)) < 0.5
    assert description(np.full((1, 96), 1000, np.int16), [96], short) is None
    assert description(np.full((1, EDGE, EDGE), 9, np.uint8), [4, 7], FILM.signal) is None


def test_a_smooth_picture_is_not_compared_by_what_rounding_leaves():
    """Its high frequencies are less than a stored step; recompression changes their signs."""
    y, x = np.mgrid[:EDGE, :EDGE] / EDGE
    blob = (200 * np.exp(-((x - 0.5) ** 2 + (y - 0.4) ** 2) / 0.05)).astype(np.uint8)
    found = [
        description(np.asarray(image)[None], [EDGE, EDGE], FILM.signal)
        for image in (Image.fromarray(blob), recompressed(Image.fromarray(blob)))
    ]
    assert found[0] is None or float(found[0] @ found[1]) > 0.8


def test_a_report_counts_pairs_and_names_those_across_splits_and_of_two_patients_first(films):
    count, first, *others, constant = near_duplicates(films)
    assert count == (
        "10 pairs of records look alike (at most 10% of 255 bits differ): 6 across splits, 9 with "
        "different patient IDs, 0 of equal content"
    )
    assert first == "copy-brightened (test) and copy-resized (train), different patient IDs"
    assert len(others) == near.NAMED - 1
    assert others[-1] == "copy-resized (train) and r00 (train), one patient"
    assert constant == f"4 records of {films.path} are too smooth to be compared"
    result = CliRunner().invoke(main, ["catalog", "verify", str(films.path), "--near"])
    assert result.exit_code == 0
    assert f"note: {first}" in result.output.splitlines()
    assert result.output.splitlines()[-1].endswith("whole")


def test_hashes_are_signs_of_the_lowest_frequencies_of_the_picture(films):
    for seed in range(5):
        signal, (height, width) = stored(picture(seed, blur=1.5), 150)
        left, top = (EDGE - width) // 2, (EDGE - height) // 2
        inner = signal[0, top : top + height, left : left + width].astype(float)
        waves = dctn(inner, norm="ortho")[:16, :16].ravel()[1:]
        bits = np.where(np.abs(waves) < near.CLEAR_STEPS, 0, np.sign(waves))
        assert np.count_nonzero(bits) > 200
        found = description(signal, [height, width], FILM.signal)
        np.testing.assert_allclose(found, bits / np.linalg.norm(bits), atol=1e-6)


@pytest.mark.parametrize("block", [1, 3, 100])
@pytest.mark.parametrize("two_catalogs", [False, True])
def test_blocks_find_what_a_comparison_of_all_pairs_finds(block, two_catalogs, films, monkeypatch):
    monkeypatch.setattr(near, "BLOCK", block)
    rng = np.random.default_rng(block)
    base = np.where(rng.random((5, 255)) < 0.5, 1, -1)
    flips = rng.random((40, 255)) < 0.04
    vectors = (np.where(flips, -1, 1) * base[rng.integers(0, 5, 40)] / np.sqrt(255)).astype("f4")
    made = [
        replace(
            described(films),
            vectors=rows,
            names=np.array([f"{n:02}" for n in range(20)]),
            patients=rng.integers(0, 9, 20).astype(str),
            splits=rng.choice(["train", "test"], 20),
            contents=rng.integers(0, 6, 20).astype(np.uint64),
        )
        for rows in (vectors[:20], vectors[20:])
    ]
    one, two = made[0], made[1 if two_catalogs else 0]
    rows, counts = [], np.zeros(4, int)
    for i in range(20):
        for j in range(0 if two_catalogs else i + 1, 20):
            if ((one.vectors[i] > 0) != (two.vectors[j] > 0)).sum() <= 25:
                split = not two_catalogs and one.splits[i] != two.splits[j]
                patient = one.patients[i] != two.patients[j]
                counts += [1, split, patient, one.contents[i] == two.contents[j] != 0]
                rows.append((not split, not patient, i, j))
    result = alike(one, two)
    found = (result.pairs, result.across_splits, result.of_two_patients, result.copies)
    assert found == tuple(counts)
    assert counts[0] > near.NAMED
    assert [(i, j) for _, i, j in result.first] == [row[2:] for row in sorted(rows)[: near.NAMED]]


def signal_of(seed: int) -> np.ndarray:
    """Twelve different leads in µV."""
    noise = np.random.default_rng(seed).normal(size=(12, 5000))
    return gaussian_filter(noise, (0, 40)) * 3000


def test_signals_of_another_gain_offset_and_rounding_are_alike(write_catalog):
    gains = np.linspace(0.5, 3, 12)[:, None]
    copies = {
        "gain": signal_of(0) * 2.5,
        "of-leads": signal_of(0) * gains,
        "offset": signal_of(0) + 400,
        "noisy": signal_of(0) + np.random.default_rng(9).normal(size=(12, 5000)) * 20,
        "rounded": np.round(signal_of(0) / 5) * 5,
        "off": np.where(np.arange(12)[:, None] == 3, 7.0, signal_of(0) * 0),
    }
    train = [record(ECG, f"r{n}", f"p{n}", quantise(signal_of(n))[0]) for n in range(9)]
    test = [record(ECG, name, name, quantise(signal)[0]) for name, signal in copies.items()]
    one = described(write_catalog(ECG, {"train": [train], "test": [test]}))
    result = alike(one, one)
    assert (one.constant, one.vectors.shape) == (1, (14, 1020))
    assert (result.pairs, result.across_splits) == (15, 5)
    least = min(
        float(np.corrcoef(signal_of(0).ravel(), copies[name].ravel())[0, 1])
        for name in ("gain", "noisy", "rounded")
    )
    assert least > near.CORRELATION


def test_another_catalog_is_compared_and_refused_if_its_signals_are_others(films, write_catalog):
    card = dataset_card("vindr-cxr")
    rows = [record(card, "theirs", "t", *changed(picture(3))["resized"])]
    target = write_catalog(card, {"test": [rows]})
    lines = near_duplicates(films, target)
    assert lines[:2] == [
        f"1 pair of records of {films.path} and {target.path} looks alike (at most 10% of 255 bits "
        "differ): patient IDs cannot be compared, 0 of equal content",
        "r03 (train) and theirs (test)",
    ]
    command = ["catalog", "verify", str(films.path), "--against", str(target.path)]
    result = CliRunner().invoke(main, command)
    assert f"note: {lines[0]}" in result.output.splitlines()
    assert "note: 10 pairs" not in result.output  # within films: only with --near
    ecg = write_catalog(ECG, {"train": [[record(ECG, "e", "e", quantise(signal_of(1))[0])]]})
    assert near_duplicates(ecg) == ["no two records look alike (correlation of at least 0.98)"]
    with pytest.raises(BenchmdError, match=r"signals of .* cannot be compared: expected two"):
        near_duplicates(films, ecg)
    with pytest.raises(BenchmdError, match="are one catalog: name another, or use --near"):
        near_duplicates(films, films)


@pytest.mark.slow
def test_twenty_thousand_records_take_seconds_and_the_memory_of_a_block(films):
    rng = np.random.default_rng(0)
    count = 20_000
    vectors = rng.choice(np.array([-1, 1], "f4"), (count, 255)) / np.float32(np.sqrt(255))
    vectors[:100] = vectors[0]
    text = np.array([f"{n:05}" for n in range(count)])
    one = replace(
        described(films),
        **{"vectors": vectors, "names": text, "patients": text, "splits": text},
        contents=np.arange(count, dtype=np.uint64),
    )
    result = alike(one, one)
    assert (result.pairs, result.first[0]) == (4950, (0, 0, 1))


@pytest.mark.data
@pytest.mark.slow
def test_of_real_films_and_ecgs_only_exact_copies_are_alike(real_data):
    """1,000 films have one pair of exact copies, 500 ECGs five; no other pair is alike."""
    folder = real_data / "nih-cxr-1000"
    with (folder / "labels.csv").open(encoding="utf-8") as file:
        names = [row["Image Index"] for row in csv.DictReader(file)]
    images = [np.asarray(Image.open(folder / "images_224" / n).convert("L")) for n in names]
    descriptions = [
        description(np.resize(image, (1, EDGE, EDGE)), [EDGE, EDGE], FILM.signal)
        if image.shape == (EDGE, EDGE)
        else description(*_boxed(image), FILM.signal)
        for image in images
    ]
    limits = {1 - 2 * near.DIFFERENT_BITS: (descriptions, images)}
    headers = sorted((real_data / "ptb-xl-500").rglob("*_hr.hea"))
    signals = [wfdb.rdrecord(str(path.with_suffix(""))).p_signal.T for path in headers]
    of_signals = [description(quantise(s)[0], [s.shape[1]], ECG.signal) for s in signals]
    limits[near.CORRELATION] = (of_signals, signals)
    counts = []
    for limit, (vectors, raw) in limits.items():
        whole = np.stack(vectors)
        pairs = np.argwhere(np.triu(whole @ whole.T >= limit, 1)).tolist()
        assert all(np.array_equal(raw[i], raw[j]) for i, j in pairs)
        counts.append(len(pairs))
    assert counts == [1, 5]


def _boxed(image: np.ndarray) -> tuple[np.ndarray, list[int]]:
    signal, size = stored(Image.fromarray(image), EDGE)
    return signal, list(size)
