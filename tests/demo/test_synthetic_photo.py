"""Synthetic dermoscopy and fundus: the owners' layouts, the same bytes again, classes to learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler
from written import content, records

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.demo import WRITERS
from benchmd_ray.training.predict import merging

pytestmark = pytest.mark.slow

NAMES = {
    "derm": ("bcn20000", "ham10000", "pad-ufes-20"),
    "fundus": ("messidor-2", "aptos-2019", "jinchi"),
}


def arrays(root: Path, name: str):
    """Items, images (n, 3, 224, 224) and targets that a build would take."""
    items, read = records(root, name)
    return items, np.stack([r.signal for r in read]), np.array([r.target for r in read])


@pytest.fixture(scope="module", params=list(NAMES))
def learnt(request, tmp_path_factory):
    """Modality, and items, images and targets of each dataset, enough of them to learn from."""
    root = tmp_path_factory.mktemp(request.param)
    folders = WRITERS[request.param](root, source_records=160, target_records=60)
    return request.param, {name: arrays(folder, name) for name, folder in folders.items()}


def features(signals: np.ndarray) -> np.ndarray:
    """What tells colours and structures: spread and means of patches, sorted within an image."""
    patches = signals.reshape(-1, 3, 28, 8, 28, 8).transpose(0, 2, 4, 1, 3, 5)
    patches = patches.reshape(len(signals), 784, 3, 64).astype(float)
    means, spreads = patches.mean(axis=-1), patches.std(axis=-1)
    quantiles = np.linspace(0, 1, 15)[1:-1]
    parts = [np.quantile(x, quantiles, axis=1) for x in (means, spreads)]
    return np.concatenate([p.transpose(1, 0, 2).reshape(len(signals), -1) for p in parts], axis=1)


@pytest.mark.parametrize("modality", NAMES)
def test_same_arguments_give_the_same_bytes(tmp_path, modality):
    write = WRITERS[modality]
    folders = write(tmp_path / "a", source_records=20, target_records=8)
    write(tmp_path / "b", source_records=20, target_records=8)
    write(tmp_path / "c", source_records=20, target_records=8, seed=1)
    first, second, other = (content(tmp_path / name) for name in "abc")
    assert first == second
    assert tuple(folders) == NAMES[modality]
    images = [{v for k, v in own.items() if not k.endswith("csv")} for own in (first, other)]
    assert not images[0] & images[1]


def classifier(signals: np.ndarray, targets: np.ndarray):
    """A linear model of the features; it gives a score of each class."""
    seen, scale = features(signals), StandardScaler()
    model = LogisticRegression(C=0.05, max_iter=500)
    model.fit(scale.fit_transform(seen), targets.argmax(axis=1))
    return lambda others: model.predict_proba(scale.transform(features(others)))


def mean_auroc(targets: np.ndarray, scores: np.ndarray) -> float:
    aurocs = [roc_auc_score(t, s) for t, s in zip(targets.T, scores.T, strict=True)]
    return float(np.mean(aurocs))


def test_classes_can_be_learnt_and_the_shift_costs(learnt):
    modality, data = learnt
    source, *names = NAMES[modality]
    items, signals, targets = data[source]
    train = np.array([item.split == "train" for item in items])
    scored = classifier(signals[train], targets[train])
    in_distribution = mean_auroc(targets[~train], scored(signals[~train]))
    assert in_distribution > 0.85
    for name in names:
        _, signals, targets = data[name]
        half = np.arange(len(targets)) % 2 == 0
        own = classifier(signals[half], targets[half])(signals[~half])
        assert mean_auroc(targets[~half], own) > 0.7  # learnt where it is scored
        zero_shot = mean_auroc(targets, scored(signals) @ merging(dataset_card(name)))
        assert zero_shot < in_distribution - 0.03


def test_colours_of_the_targets_are_shifted(learnt):
    modality, data = learnt
    source, *targets = NAMES[modality]

    def colour(name):
        _, signals, _ = data[name]
        bright = signals.max(axis=1, keepdims=True) > 40  # neither padding nor background
        return np.array([signals[:, c][bright[:, 0]].mean() for c in range(3)])

    for name in targets:
        assert np.abs(colour(name) - colour(source)).max() > 8  # grey levels


def test_every_class_is_in_every_split(learnt):
    modality, data = learnt
    for name in NAMES[modality]:
        items, _, targets = data[name]
        splits = np.array([item.split for item in items])
        for split in set(splits):
            assert targets[splits == split].any(axis=0).all()
    assert {item.split for item in data[NAMES[modality][0]][0]} == {"train", "validation"}


def test_isic_2019_holds_the_very_images_of_ham10000(tmp_path):
    folders = WRITERS["derm"](tmp_path, source_records=60, target_records=20)
    people = pd.read_csv(folders["bcn20000"] / "ISIC_2019_Training_Metadata.csv", dtype=str)
    shared = people[people["lesion_id"].str.startswith("HAM_", na=False)]["image"]
    assert len(shared) == 3
    for name in shared:
        ours = folders["bcn20000"] / f"ISIC_2019_Training_Input/{name}.jpg"
        (theirs,) = folders["ham10000"].rglob(f"{name}.jpg")
        assert ours.read_bytes() == theirs.read_bytes()
    truth = pd.read_csv(folders["bcn20000"] / "ISIC_2019_Training_GroundTruth.csv")
    columns = ["image", "MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC", "UNK"]
    assert sorted(truth.columns) == sorted(columns)
    assert (truth[columns[1:]].sum(axis=1) == 1).all()


def test_images_have_the_formats_of_the_owners(tmp_path):
    folders: dict[str, Path] = {}
    for modality in NAMES:
        folders |= WRITERS[modality](tmp_path, source_records=20, target_records=14)
    formats = {
        name: {
            (image.format, image.mode)
            for path in folders[name].rglob("*")
            if path.suffix.lower() in (".png", ".jpg")
            for image in [Image.open(path)]
        }
        for own in NAMES.values()
        for name in own
    }
    assert formats == {
        "bcn20000": {("JPEG", "RGB")},
        "ham10000": {("JPEG", "RGB")},
        "pad-ufes-20": {("PNG", "RGB"), ("PNG", "RGBA")},
        "messidor-2": {("PNG", "RGB"), ("JPEG", "RGB")},
        "aptos-2019": {("PNG", "RGB")},
        "jinchi": {("JPEG", "RGB")},
    }
    for name in formats:
        sizes = {max(Image.open(path).size) for path in folders[name].rglob("*.[pjPJ]*[gG]")}
        assert sizes <= set(range(180, 261))
