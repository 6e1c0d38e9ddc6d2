"""Small raw dermoscopy datasets in the layouts of ISIC 2019, HAM10000 and PAD-UFES-20.

A lesion is a blob with a ragged edge on textured skin. Its class gives it colour, outline, edge
and structures, into which each lesion mixes those of another class.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.splits import hashed_split
from benchmd_ray.demo.draw import drawn_labels, generator, save_image, texture, write_csv
from benchmd_ray.modality.modalities import modality

Floats = npt.NDArray[np.float32]
CLASSES = modality("derm").task.classes


@dataclass(frozen=True)
class _Look:
    colour: tuple[float, float, float]
    ragged: float
    """Share of the radius by which the outline moves in and out."""
    edge: float
    """Width of the edge, in shorter half sides of the image."""
    structures: str


LOOKS = {
    "mel": _Look((0.30, 0.19, 0.17), 0.28, 0.03, "blue"),
    "nev": _Look((0.50, 0.33, 0.24), 0.06, 0.04, "net"),
    "bcc": _Look((0.80, 0.55, 0.56), 0.12, 0.05, "vessels"),
    "akiec": _Look((0.77, 0.42, 0.36), 0.18, 0.14, "scales"),
    "other": _Look((0.63, 0.51, 0.31), 0.10, 0.02, "dots"),
}


@dataclass(frozen=True)
class _SkinDomain:
    dataset: str
    prevalence: tuple[float, ...]
    sizes: tuple[tuple[int, int], ...]
    skin: tuple[float, float, float]
    balance: tuple[float, float, float]
    """Factors of red, green and blue."""
    off_centre: float
    """How far lesions lie from the centre, in shorter half sides."""
    vignette: float
    noise: float
    hairs: int


SOURCE = _SkinDomain(
    dataset="bcn20000",
    prevalence=(0.20, 0.36, 0.16, 0.14, 0.14),
    sizes=((208, 208), (180, 240), (208, 208)),
    skin=(0.86, 0.68, 0.62),
    balance=(1.0, 1.0, 1.0),
    off_centre=0.22,
    vignette=0.10,
    noise=0.02,
    hairs=6,
)
HAM10000 = _SkinDomain(
    dataset="ham10000",
    prevalence=(0.14, 0.46, 0.12, 0.10, 0.18),
    sizes=((180, 240),),
    skin=(0.90, 0.66, 0.68),
    balance=(1.02, 0.92, 1.02),
    off_centre=0.06,
    vignette=0.55,
    noise=0.015,
    hairs=3,
)
PAD = _SkinDomain(
    dataset="pad-ufes-20",
    prevalence=(0.08, 0.16, 0.34, 0.30, 0.12),
    sizes=((200, 200), (240, 180), (230, 220), (190, 250)),
    skin=(0.80, 0.60, 0.50),
    balance=(1.10, 0.95, 0.80),
    off_centre=0.30,
    vignette=0.0,
    noise=0.04,
    hairs=2,
)


@dataclass(frozen=True)
class _Lesion:
    number: int
    label: str
    first: bool


def write_derm(
    root: Path, *, source_records: int = 560, target_records: int = 140, seed: int = 0
) -> dict[str, Path]:
    """Write ISIC 2019, HAM10000 and PAD-UFES-20, in images; the defaults take 30 MB.

    A twentieth of the images of ISIC 2019 are those of HAM10000, as in the real one.
    """
    folders = {d.dataset: root / d.dataset for d in (SOURCE, HAM10000, PAD)}
    _write_isic_2019(folders[SOURCE.dataset], source_records, target_records, seed)
    _write_ham10000(folders[HAM10000.dataset], target_records, seed)
    _write_pad(folders[PAD.dataset], target_records, seed)
    return folders


def _write_isic_2019(root: Path, records: int, shared: int, seed: int) -> None:
    """Images of BCN20000, MSK and HAM10000, and one of an unknown class."""
    folder = root / "ISIC_2019_Training_Input"
    columns = [label for label in dataset_card("bcn20000").class_mapping if label != "UNK"]
    truths, people = [], []
    for name, lesion_id, lesion, domain in _isic_2019(records, shared, seed):
        label = _owners_label("bcn20000", lesion)
        truth = {"image": name} | {c: f"{float(c == label):.1f}" for c in columns}
        truths.append(truth | {"UNK": "0.0"})
        age, sex = _person(domain, lesion.number, seed)
        person = {"image": name, "age_approx": age, "anatom_site_general": "anterior torso"}
        people.append(person | {"lesion_id": lesion_id, "sex": sex})
        save_image(_photograph(domain, lesion, name, seed), folder / f"{name}.jpg", quality=92)
    truths[0] = dict.fromkeys(truths[0], "0.0") | {"image": truths[0]["image"], "UNK": "1.0"}
    write_csv(root / "ISIC_2019_Training_GroundTruth.csv", truths)
    write_csv(root / "ISIC_2019_Training_Metadata.csv", people)


def _isic_2019(
    records: int, shared: int, seed: int
) -> Iterator[tuple[str, str, _Lesion, _SkinDomain]]:
    of_target = _ham10000(shared, seed)[: records // 20]
    rng = generator(seed, SOURCE.dataset, "table")
    count = records - len(of_target)
    labels = drawn_labels(CLASSES, SOURCE.prevalence, count, rng)
    used = {"train": 0, "validation": 0}
    dealt: dict[str, int] = {}
    lesion_id = ""
    for index, lesion in enumerate(_lesions(labels)):
        if index % 9 == 4:  # of MSK, every other one without a lesion
            msk_id = f"MSK4_{lesion.number:07d}" if index % 2 else ""
            yield f"ISIC_{1 + index:07d}_downsampled", msk_id, lesion, SOURCE
            continue
        if lesion.first or not lesion_id:
            turn = dealt[lesion.label] = dealt.get(lesion.label, 0) + 1
            lesion_id = _lesion_id("validation" if turn % 5 == 2 else "train", used)
        yield f"ISIC_{52212 + index:07d}", lesion_id, lesion, SOURCE
    for name, lesion in of_target:
        yield name, f"HAM_{lesion.number:07d}", lesion, HAM10000


def _lesion_id(split: str, used: dict[str, int]) -> str:
    """The next lesion number of a split, so that small datasets have records in each split."""
    number = used[split] + 1
    while hashed_split(SOURCE.dataset, f"BCN_{number:07d}") != split:
        number += 1
    used[split] = number
    return f"BCN_{number:07d}"


def _ham10000(records: int, seed: int) -> list[tuple[str, _Lesion]]:
    rng = generator(seed, HAM10000.dataset, "table")
    lesions = _lesions(drawn_labels(CLASSES, HAM10000.prevalence, records, rng))
    return [(f"ISIC_{24306 + i:07d}", lesion) for i, lesion in enumerate(lesions)]


def _write_ham10000(root: Path, records: int, seed: int) -> None:
    """The metadata without suffix and the images in two folders, as Dataverse has them."""
    rows = []
    for index, (name, lesion) in enumerate(_ham10000(records, seed)):
        age, sex = _person(HAM10000, lesion.number, seed)
        rows.append(
            {
                "lesion_id": f"HAM_{lesion.number:07d}",
                "image_id": name,
                "dx": _owners_label("ham10000", lesion),
                "dx_type": ("histo", "follow_up", "consensus", "confocal")[lesion.number % 4],
                "age": age,
                "sex": sex or "unknown",
                "localization": "back",
                "dataset": ("vidir_modern", "rosendahl", "vienna_dias")[lesion.number % 3],
            }
        )
        folder = root / f"HAM10000_images_part_{1 + 2 * index // records}"
        save_image(_photograph(HAM10000, lesion, name, seed), folder / f"{name}.jpg", quality=92)
    write_csv(root / "HAM10000_metadata", rows)


def _write_pad(root: Path, records: int, seed: int) -> None:
    """PNG images, some with transparency, in three folders; patients with several lesions."""
    rng = generator(seed, PAD.dataset, "table")
    rows = []
    lesions = _lesions(drawn_labels(CLASSES, PAD.prevalence, records, rng))
    for index, lesion in enumerate(lesions):
        patient = 1 + lesion.number * 5 // 6
        name = f"PAT_{patient}_{lesion.number}_{index % 900 + 100}.png"
        age, sex = _person(PAD, patient, seed)
        rows.append(
            {
                "patient_id": f"PAT_{patient}",
                "lesion_id": str(lesion.number),
                "smoke": "",
                "age": age or "55",
                "gender": sex.upper(),
                "fitspatrick": "",
                "region": "FOREARM",
                "diagnostic": _owners_label("pad-ufes-20", lesion),
                "img_id": name,
                "biopsed": str(lesion.label in ("mel", "bcc")),
            }
        )
        image = _photograph(PAD, lesion, name, seed)
        image = image.convert("RGBA") if index % 10 == 3 else image
        save_image(image, root / f"images/imgs_part_{1 + index % 3}" / name, compress_level=1)
    write_csv(root / "metadata.csv", rows)


def _lesions(labels: Sequence[str]) -> list[_Lesion]:
    """The lesion of each image: every fourth image of a class shows the same as the last of it."""
    seen: dict[str, list[_Lesion]] = {}
    lesions: list[_Lesion] = []
    for label in labels:
        same_class = seen.setdefault(label, [])
        if len(same_class) % 4 == 3:
            lesion = _Lesion(same_class[-1].number, label, first=False)
        else:
            lesion = _Lesion(sum(previous.first for previous in lesions) + 1, label, first=True)
        same_class.append(lesion)
        lesions.append(lesion)
    return lesions


def _owners_label(dataset: str, lesion: _Lesion) -> str:
    mapping = dataset_card(dataset).class_mapping
    labels = [label for label, name in mapping.items() if name == lesion.label]
    return labels[lesion.number % len(labels)]


def _person(domain: _SkinDomain, number: int, seed: int) -> tuple[str, str]:
    """Age in steps of five years and sex, now and then unknown."""
    rng = generator(seed, domain.dataset, f"person {number}")
    age = 5 * int(np.clip(rng.normal(11, 3), 2, 17))
    return ("" if number % 13 == 5 else f"{age}.0", ("male", "female", "")[number % 11 % 3])


def _photograph(domain: _SkinDomain, lesion: _Lesion, name: str, seed: int) -> Image.Image:
    fixed = generator(seed, domain.dataset, f"lesion {lesion.number}")
    rng = generator(seed, domain.dataset, f"image {name}")
    height, width = domain.sizes[int(rng.integers(len(domain.sizes)))]
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    half = min(height, width) / 2
    y, x = (y - height / 2) / half, (x - width / 2) / half
    beside = LOOKS[CLASSES[int(fixed.integers(len(CLASSES)))]]  # nobody is a textbook case
    look, share = LOOKS[lesion.label], float(fixed.uniform(0, 0.4))
    outline = _outline(look, y - rng.normal(0, domain.off_centre), x, fixed, rng)
    skin = np.array(domain.skin, np.float32) * rng.normal(1, 0.05)
    inside = (1 - share) * np.array(look.colour) + share * np.array(beside.colour)
    inside = (inside + fixed.normal(0, 0.04, 3)).astype(np.float32)
    grain = texture((height, width), 6.0, rng)[..., None]
    image = skin + outline[..., None] * (inside - skin)
    image = image * (1 + 0.05 * grain)
    image = _with_structures(image, look.structures, outline, rng)
    image = _with_hairs(image, int(rng.integers(domain.hairs + 1)), y, x, rng)
    light = 1 - domain.vignette * np.clip(y**2 + x**2 - 0.7, 0, 1.5)
    image = image * light[..., None] * np.array(domain.balance, np.float32)
    image = image + domain.noise * rng.standard_normal(image.shape, np.float32)
    return Image.fromarray(np.asarray(np.clip(image * 255, 0, 255), np.uint8))


def _outline(
    look: _Look, y: Floats, x: Floats, fixed: np.random.Generator, rng: np.random.Generator
) -> Floats:
    radius = fixed.uniform(0.38, 0.64)
    angle = np.arctan2(y, x) + rng.uniform(0, 2 * np.pi)
    wave = np.zeros_like(x)
    for k in range(2, 7):
        wave += (fixed.normal() / k * np.cos(k * angle + fixed.uniform(0, 6))).astype(np.float32)
    reach = radius * (1 + 1.2 * look.ragged * wave)
    distance = np.hypot(y, x * fixed.uniform(0.8, 1.2))
    falling = np.clip((distance - reach) / look.edge, -30, 30)
    return np.asarray(1 / (1 + np.exp(falling)), np.float32)


def _with_structures(image: Floats, kind: str, outline: Floats, rng: np.random.Generator) -> Floats:
    pattern, colour, strength = _STRUCTURES[kind](outline.shape, rng)
    weight = (strength * rng.uniform(0.4, 1.0) * outline * pattern)[..., None]
    return np.asarray(image + weight * (np.array(colour, np.float32) - image), np.float32)


def _blobs(shape: tuple[int, ...], grain: float, level: float, rng: Any) -> Floats:
    """1 where smooth noise exceeds a level, in standard deviations."""
    return np.asarray(texture(shape, grain, rng) > level, np.float32)


def _net(shape: tuple[int, ...], rng: Any) -> Floats:
    y, x = np.mgrid[0 : shape[0], 0 : shape[1]].astype(np.float32)
    turn, step = rng.uniform(0, np.pi), rng.uniform(7, 11)
    along, across = np.cos(turn) * x + np.sin(turn) * y, np.cos(turn) * y - np.sin(turn) * x
    lines = np.maximum(np.cos(2 * np.pi * along / step), np.cos(2 * np.pi * across / step))
    return np.asarray(np.clip(lines, 0, 1) ** 2, np.float32)


_STRUCTURES: dict[str, Any] = {
    "blue": lambda shape, rng: (_blobs(shape, 14, 0.4, rng), (0.33, 0.38, 0.52), 0.8),
    "net": lambda shape, rng: (_net(shape, rng), (0.30, 0.18, 0.12), 0.6),
    "vessels": lambda shape, rng: (abs(texture(shape, 7.0, rng)) < 0.12, (0.72, 0.15, 0.18), 0.9),
    "scales": lambda shape, rng: (_blobs(shape, 2.5, 1.0, rng), (0.95, 0.90, 0.82), 0.8),
    "dots": lambda shape, rng: (_blobs(shape, 4.0, 1.3, rng), (0.97, 0.93, 0.70), 0.9),
}
"""Pattern (y, x), colour and strength of the structures of each kind."""


def _with_hairs(
    image: Floats, hairs: int, y: Floats, x: Floats, rng: np.random.Generator
) -> Floats:
    for _ in range(hairs):
        turn, shift, bend = rng.uniform(0, np.pi), rng.normal(0, 0.5), rng.normal(0, 0.3)
        along, across = np.cos(turn) * x + np.sin(turn) * y, np.cos(turn) * y - np.sin(turn) * x
        on_line = np.abs(across - shift - bend * along**2) < 0.012
        image[on_line] *= 0.35
    return image
