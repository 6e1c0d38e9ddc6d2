"""Synthetic sleep: real layouts, the same bytes from the same seed, stages in the signal."""

from __future__ import annotations

import re
from pathlib import Path

import edfio
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from written import content

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.datasets import DATASETS
from benchmd_ray.data.raw import Choices
from benchmd_ray.demo import WRITERS, write_eeg

BANDS = ((0.5, 2), (2, 4), (4, 8), (8, 12), (12, 16), (16, 30))


def read_all(root: Path, name: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Signals in µV, (epochs, 2, time), and class numbers, by split."""
    card = dataset_card(name)
    defaults = {key: option.default for key, option in card.options.items()}
    found: dict[str, tuple[list, list]] = {}
    for item in DATASETS[name].discover(root, card, Choices(options=defaults)).items:
        signals, targets = found.setdefault(item.split, ([], []))
        for record in DATASETS[name].read(root, item, card).records:
            signals.append(record.signal * record.scale)
            targets.append(list(record.target).index(1))
    return {split: (np.array(x), np.array(y)) for split, (x, y) in found.items()}


@pytest.fixture(scope="module")
def sleep(synthetic_eeg) -> dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]:
    return {name: read_all(root, name) for name, root in synthetic_eeg.items()}


def powers(signals: np.ndarray) -> np.ndarray:
    """Logarithm of the power in `BANDS` of both channels, (epochs, bands × 2)."""
    spectrum = np.abs(np.fft.rfft(signals, axis=-1)) ** 2
    hertz = np.fft.rfftfreq(signals.shape[-1], 1 / 125)
    bands = [spectrum[..., (hertz >= a) & (hertz < b)].mean(axis=-1) for a, b in BANDS]
    return np.log(np.concatenate(bands, axis=1))


def test_same_seed_gives_the_same_bytes(tmp_path):
    sizes = {"source_records": 2, "target_records": 2, "epochs": 6}
    folders = write_eeg(tmp_path / "a", **sizes)
    write_eeg(tmp_path / "b", **sizes)
    write_eeg(tmp_path / "c", **sizes, seed=1)
    first, second, other = (content(tmp_path / name) for name in "abc")
    assert first == second
    assert list(folders) == ["shhs", "isruc"]
    assert first.keys() == other.keys()
    recordings = [name for name in first if name.endswith((".edf", ".rec"))]
    assert len(recordings) == 5
    assert all(first[name] != other[name] for name in recordings)
    assert WRITERS["eeg"] is write_eeg


def test_a_night_is_the_same_whatever_the_number_of_nights(tmp_path):
    few = content(
        write_eeg(tmp_path / "few", source_records=1, target_records=1, epochs=6)["isruc"]
    )
    many = content(
        write_eeg(tmp_path / "many", source_records=1, target_records=3, epochs=6)["isruc"]
    )
    assert few.items() <= many.items()


def test_the_source_lies_in_the_folders_of_the_nsrr(synthetic_eeg):
    names = sorted(content(synthetic_eeg["shhs"]))
    kinds = [re.sub(r"29\d{4}", "N", name) for name in names]
    assert kinds[0] == "datasets/shhs1-dataset-0.21.0.csv"
    staging = "polysomnography/annotations-events-profusion/shhs1/shhs1-N-profusion.xml"
    assert kinds.count(staging) == 4
    assert kinds.count("polysomnography/edfs/shhs1/shhs1-N.edf") == 5
    assert len(kinds) == 10


def test_the_files_are_edf_with_mixed_rates(synthetic_eeg):
    (first, *_) = sorted(synthetic_eeg["shhs"].rglob("*.edf"))
    night = edfio.read_edf(first)
    assert [s.sampling_frequency for s in night.signals] == [1, 125, 50, 125]
    assert night.labels == ("SaO2", "EEG(sec)", "EOG(L)", "EEG")
    assert night.duration == 30 * 30
    (other, *_) = sorted(synthetic_eeg["isruc"].rglob("*.rec"))
    assert {s.sampling_frequency for s in edfio.read_edf(other.open("rb")).signals} == {200}


def test_the_target_lies_in_subgroups_with_two_experts(synthetic_eeg):
    names = sorted(content(synthetic_eeg["isruc"]))
    assert names == sorted(
        f"{folder}/{folder[-1]}{end}"
        for folder in ("subgroupI/1", "subgroupII/1/1", "subgroupII/1/2", "subgroupIII/2")
        for end in (".rec", "_1.txt", "_2.txt")
    )


def test_every_stage_occurs_in_every_split(sleep):
    assert set(sleep["shhs"]) == {"train", "validation"}
    assert set(sleep["isruc"]) == {"test"}
    for splits in sleep.values():
        for _, classes in splits.values():
            assert set(classes) == set(range(5))


def test_stages_can_be_learned_from_the_source_and_told_in_the_target(sleep):
    signals, classes = sleep["shhs"]["train"]
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    model.fit(powers(signals), classes)
    for name, split in (("shhs", "validation"), ("isruc", "test")):
        signals, classes = sleep[name][split]
        scores = model.predict_proba(powers(signals))
        assert roc_auc_score(classes, scores, multi_class="ovr") > 0.95


def test_the_target_is_weaker_noisier_and_hums(sleep):
    source, _ = sleep["shhs"]["train"]
    target, _ = sleep["isruc"]["test"]

    def power(signals: np.ndarray, low: float, high: float) -> float:
        spectrum = np.abs(np.fft.rfft(signals, axis=-1)) ** 2
        hertz = np.fft.rfftfreq(signals.shape[-1], 1 / 125)
        return float(np.median(spectrum[..., (hertz >= low) & (hertz < high)].mean(axis=-1)))

    assert power(target, 0.5, 30) < 0.8 * power(source, 0.5, 30)
    assert power(target, 35, 45) > 1.5 * power(source, 35, 45)
    assert power(target, 49.9, 50.1) > 100 * power(source, 49.9, 50.1)


def test_the_shares_of_stages_differ_between_source_and_target(sleep):
    shares = [
        np.mean(sleep[name][split][1] == 0)
        for name, split in (("shhs", "train"), ("isruc", "test"))
    ]
    assert shares[1] > 1.3 * shares[0]
