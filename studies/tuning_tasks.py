"""Records and tasks of `studies.tuning`, from small public files.

A task is a set of records, a label, and the size of the label set that is drawn. Records of one
source share patients or a population, so a source counts once.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from benchmd_ray.modality.tasks import TaskKind

Floats = npt.NDArray[np.float32]
Targets = npt.NDArray[np.int8]
MOST = 1500
"""Records of a set at most: a random subset of a larger one."""
MULTI_LABEL = ("superclass",)


@dataclass(frozen=True)
class Records:
    """Records of one kind with their labels."""

    signals: Floats
    """(records, channel, *space), standardised over all."""
    labels: dict[str, Targets]
    """(records, classes) by name of the label."""
    groups: npt.NDArray[np.str_]
    """Patient of each record, or another unit of which no part is both labelled and judged."""

    def at(self, rows: Any) -> Records:
        labels = {name: targets[rows] for name, targets in self.labels.items()}
        return Records(self.signals[rows], labels, self.groups[rows])


def one_hot(classes: Any) -> Targets:
    """Targets (records, classes) of a class for each record."""
    names, index = np.unique(np.asarray(classes), return_inverse=True)
    return np.eye(len(names), dtype=np.int8)[index]


def medmnist(path: Path, label: str) -> Records:
    content = np.load(path)
    images, classes = (
        np.concatenate([content[f"{split}_{part}"] for split in ("train", "val", "test")])
        for part in ("images", "labels")
    )
    labels = {label: one_hot(classes.ravel())}
    return Records(images[:, None].astype(np.float32), labels, np.arange(len(images)).astype(str))


def nih(folder: Path, view: str) -> Records:
    from PIL import Image

    table = pd.read_csv(folder / "labels.csv")
    views = table.groupby("Patient ID")["View Position"].transform("nunique")
    table = table[(table["View Position"] == view) & (views == 1)]
    images = []
    for name in table["Image Index"]:
        with Image.open(folder / "images_224" / name) as image:
            images.append(np.asarray(image.convert("L").resize((224, 224)), np.float32))
    finding = table["Finding Labels"] != "No Finding"
    labels = {"any finding": one_hot(finding), "sex": one_hot(table["Patient Gender"])}
    return Records(np.stack(images)[:, None], labels, table["Patient ID"].to_numpy(np.str_))


def isic(folder: Path) -> Records:
    """The central square of each image; ``lesion``: melanoma or seborrheic keratosis."""
    from PIL import Image

    table = pd.read_csv(folder / "example_ground_truth.csv").set_index("image_id")
    paths, images = sorted((folder / "images_256").glob("*.jpg")), []
    for path in paths:
        with Image.open(path) as image:
            width, height = image.size
            side = min(width, height)
            x, y = (width - side) // 2, (height - side) // 2
            square = image.convert("RGB").crop((x, y, x + side, y + side)).resize((112, 112))
        images.append(np.asarray(square, np.float32).transpose(2, 0, 1))
    table = table.loc[[path.stem for path in paths]]
    labels = {"lesion": one_hot(table.sum(axis=1) > 0)}
    return Records(np.stack(images), labels, table.index.to_numpy(np.str_))


ORGANS = (1, 2, 3, 5, 6, 18, 20, 86)
"""Spleen, kidneys, liver, stomach, small bowel, colon and a muscle, as TotalSegmentator numbers
them."""


def organs(folder: Path, axis: int) -> Records:
    """Patches of 24 × 24 pixels of a CT, across an axis (0: z), around voxels of organs."""
    volume = np.clip(_volume(folder / "example_ct.nii.gz"), -200, 300)
    mask = _volume(folder / "example_seg_fast_force_split.nii.gz").astype(int)
    draws, parts, classes, groups = np.random.default_rng(0), [], [], []
    padded = np.pad(volume, 12, mode="edge")
    for organ in ORGANS:
        voxels = np.argwhere(mask == organ)
        for place in voxels[draws.choice(len(voxels), 150, replace=False)]:
            cut = [slice(at, at + 24) for at in place]
            cut[axis] = slice(place[axis] + 12, place[axis] + 13)
            parts.append(padded[tuple(cut)].squeeze(axis))
            classes.append(organ)
            groups.append(str(place[axis] // 4))
    labels = {"organ": one_hot(classes)}
    return Records(np.stack(parts)[:, None].astype(np.float32), labels, np.array(groups))


def hippocampus(folder: Path) -> Records:
    """The centre of each volume, and whether size and anterior share are above the median."""
    volumes, sizes, shares, paths = [], [], [], sorted((folder / "images").glob("*.nii.gz"))
    for path in paths:
        volume, mask = _volume(path), _volume(folder / "labels" / path.name)
        padded = np.pad((volume - volume.mean()) / volume.std(), 24, mode="edge")
        middle = np.array(padded.shape) // 2
        volumes.append(
            padded[tuple(slice(m - n, m + n) for m, n in zip(middle, (16, 22, 16), strict=True))]
        )
        sizes.append((mask > 0).sum())
        shares.append((mask == 1).sum() / (mask > 0).sum())
    labels = {"size": sizes, "anterior share": shares}
    return Records(
        np.stack(volumes)[:, None],
        {name: one_hot(values > np.median(values)) for name, values in labels.items()},
        np.array([path.name for path in paths]),
    )


def _volume(path: Path) -> Floats:
    import SimpleITK

    array = SimpleITK.GetArrayFromImage(SimpleITK.ReadImage(str(path)))
    return np.asarray(array, np.float32)


def ptb_xl(folder: Path) -> Records:
    """Twelve leads at 100 Hz."""
    import wfdb

    table = pd.read_csv(folder / "ptbxl_database.csv")
    statements = pd.read_csv(folder / "scp_statements.csv", index_col=0)
    classes = statements[statements["diagnostic"] == 1]["diagnostic_class"]
    names = sorted(classes.unique())
    superclass = np.zeros((len(table), len(names)), np.int8)
    for row, codes in enumerate(table["scp_codes"]):
        for code in ast.literal_eval(codes):
            if code in classes:
                superclass[row, names.index(classes[code])] = 1
    signals = [wfdb.rdrecord(str(folder / name)).p_signal.T for name in table["filename_hr"]]
    labels = {"superclass": superclass, "sex": one_hot(table["sex"])}
    return Records(_slower(np.stack(signals)), labels, table["patient_id"].to_numpy(np.str_))


def leads(folder: Path) -> Records:
    """Strips of 2.56 s of one lead at 100 Hz, and which lead it is."""
    from scipy.io import loadmat

    paths = sorted(folder.rglob("*.mat"))
    strips = np.concatenate([loadmat(path)["val"][:, :1280] for path in paths])[:, None]
    strips = _slower(strips / (strips.std(axis=2, keepdims=True) + 1.0))
    groups = np.repeat([path.stem for path in paths], 12)
    return Records(strips, {"lead": one_hot([*range(12)] * len(paths))}, groups)


def _slower(signals: npt.NDArray[Any]) -> Floats:
    """500 Hz to 100 Hz."""
    return np.asarray(signals.reshape(*signals.shape[:-1], -1, 5).mean(axis=-1), np.float32)


REGIONS = {"F": "frontal", "A": "frontal", "C": "central", "P": "back", "O": "back", "I": "back"}


def eeg(path: Path) -> Records:
    """Windows of 2 s of one electrode at 128 Hz, and where on the head it is."""
    import mne

    raw = mne.io.read_raw_edf(path, verbose="error")
    windows = raw.get_data().reshape(len(raw.ch_names), -1, 256)
    chosen = np.random.default_rng(0).permuted(
        np.tile(np.arange(windows.shape[1]), (64, 1)), axis=1
    )
    parts = np.stack([rows[index] for rows, index in zip(windows, chosen[:, :23], strict=True)])
    names = np.repeat([name.strip(".").upper() for name in raw.ch_names], 23)
    regions = ["central" if n[:2] == "FC" else REGIONS.get(n[0], "temporal") for n in names]
    signals = parts.reshape(-1, 1, 256).astype(np.float32)
    return Records(signals, {"region": one_hot(regions)}, names)


STAGES = {"Sleep stage W": 0, "Sleep stage 1": 1, "Sleep stage 2": 2, "Sleep stage R": 4}
STAGES |= {"Sleep stage 3": 3, "Sleep stage 4": 3}


def hypnograms(folder: Path) -> Records:
    """The last 32 minutes of sleep stages (one-hot), and what follows; groups are subjects."""
    import mne

    draws = np.random.default_rng(0)
    parts: list[Floats] = []
    stages: list[int] = []
    dreams: list[bool] = []
    groups: list[str] = []
    for path in sorted(folder.glob("*.edf")):
        notes = mne.read_annotations(path)
        epochs = np.concatenate(
            [
                np.full(round(seconds / 30), STAGES.get(text, -1))
                for seconds, text in zip(notes.duration, notes.description, strict=True)
            ]
        )
        asleep = np.flatnonzero(epochs > 0)
        epochs = epochs[max(0, asleep[0] - 60) : asleep[-1] + 60]
        for begin in draws.permutation(len(epochs) - 124)[:60]:
            window, after = epochs[begin : begin + 64], epochs[begin + 64 : begin + 124]
            if min(window.min(), after.min()) < 0:
                continue
            parts.append(np.eye(5, dtype=np.float32)[window].T)
            stages.append(int(after[19]))
            dreams.append(bool((after == 4).any()))
            groups.append(path.name[:5])
    labels = {"stage in 10 min": one_hot(stages), "REM in 30 min": one_hot(dreams)}
    return Records(np.stack(parts), labels, np.array(groups))


SETS: dict[str, tuple[str, Callable[[Path], Records]]] = {
    "breast ultrasound": (
        "BreastMNIST",
        lambda f: medmnist(f / "medmnist/breastmnist.npz", "benign"),
    ),
    "pneumonia": (
        "PneumoniaMNIST",
        lambda f: medmnist(
            f / "medmnist-unofficial/pneumoniamnist_content_complete.npz", "pneumonia"
        ),
    ),
    "adrenal": ("AdrenalMNIST3D", lambda f: medmnist(f / "medmnist/adrenalmnist3d.npz", "mass")),
    "PA films": ("NIH PA", lambda f: nih(f / "nih-cxr-1000", "PA")),
    "AP films": ("NIH AP", lambda f: nih(f / "nih-cxr-1000", "AP")),
    "skin": ("ISIC 2017", lambda f: isic(f / "isic2017")),
    "axial patches": ("CT", lambda f: organs(f / "segmentation/totalsegmentator", 0)),
    "coronal patches": ("CT", lambda f: organs(f / "segmentation/totalsegmentator", 1)),
    "hippocampus": ("Hippocampus", lambda f: hippocampus(f / "segmentation/hippocampus")),
    "ECG": ("PTB-XL", lambda f: ptb_xl(f / "ptb-xl-500")),
    "ECG leads": ("CinC 2021", lambda f: leads(f / "cinc2021/sample-data")),
    "EEG": ("EEG", lambda f: eeg(f / "edf-odd/test_edf_overlapping_annotations.edf")),
    "hypnograms": ("Sleep-EDF", lambda f: hypnograms(f / "sleep-edf-hypnograms")),
}
"""Source and reader of each set of records."""


@dataclass(frozen=True)
class Task:
    records: str
    """Of `SETS`."""
    label: str
    size: int
    """Records of the label set."""

    @property
    def name(self) -> str:
        return f"{self.records}, {self.label}, {self.size} labels"

    @property
    def source(self) -> str:
        return SETS[self.records][0]

    @property
    def kind(self) -> TaskKind:
        return "multi-label" if self.label in MULTI_LABEL else "single-label"


TASKS = tuple(
    Task(*about)
    for about in (
        ("breast ultrasound", "benign", 100),
        ("breast ultrasound", "benign", 300),
        ("pneumonia", "pneumonia", 100),
        ("pneumonia", "pneumonia", 400),
        ("adrenal", "mass", 150),
        ("adrenal", "mass", 400),
        ("PA films", "any finding", 150),
        ("PA films", "sex", 150),
        ("AP films", "any finding", 150),
        ("AP films", "sex", 150),
        ("skin", "lesion", 40),
        ("skin", "lesion", 56),
        ("axial patches", "organ", 200),
        ("coronal patches", "organ", 200),
        ("hippocampus", "anterior share", 100),
        ("hippocampus", "size", 100),
        ("ECG", "superclass", 200),
        ("ECG", "sex", 200),
        ("ECG leads", "lead", 150),
        ("ECG leads", "lead", 300),
        ("EEG", "region", 100),
        ("EEG", "region", 300),
        ("hypnograms", "stage in 10 min", 300),
        ("hypnograms", "REM in 30 min", 150),
    )
)


def read_records(name: str, data: Path) -> Records:
    """A set of records, at most `MOST`, with zero mean and unit deviation of all values."""
    records = SETS[name][1](data)
    most = MOST if records.signals.ndim < 5 else MOST // 2
    if len(records.groups) > most:
        rows = np.random.default_rng(0).permutation(len(records.groups))[:most]
        records = records.at(np.sort(rows))
    signals = records.signals
    signals = (signals - signals.mean()) / signals.std()
    return Records(signals.astype(np.float32), records.labels, records.groups)
