"""Small raw fundus datasets in the layouts of Messidor-2, APTOS 2019 and Jinchi.

A retina is an orange disc with an optic disc, vessels and a macula. The grade of retinopathy gives
it dark and bright spots, pale patches and bleeding.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter

from benchmd_ray.data.splits import hashed_split
from benchmd_ray.demo.draw import drawn_labels, generator, save_image, texture, write_csv

Floats = npt.NDArray[np.float32]
GRADES = ("0", "1", "2", "3", "4")
DAVIS = {"0": "ndr", "1": "sdr", "2": "sdr", "3": "ppdr", "4": "pdr"}

SIGNS = {  # smallest and largest number of dark spots, bright spots, pale patches, bleedings
    "0": ((0, 1), (0, 0), (0, 0), (0, 0)),
    "1": ((6, 12), (0, 1), (0, 0), (0, 0)),
    "2": ((16, 28), (10, 18), (0, 1), (0, 0)),
    "3": ((50, 80), (4, 14), (5, 9), (0, 1)),
    "4": ((10, 30), (4, 14), (0, 3), (2, 4)),
}


@dataclass(frozen=True)
class _EyeDomain:
    dataset: str
    prevalence: tuple[float, ...]
    sizes: tuple[tuple[int, int], ...]
    radius: tuple[float, float]
    """Smallest and largest radius of the retina, in shorter half sides."""
    colour: tuple[float, float, float]
    """Red, green and blue of the retina, 0–1."""
    brightness: float
    blur: float
    """Standard deviation of the camera's blur, in pixels."""
    noise: float


SOURCE = _EyeDomain(
    dataset="messidor-2",
    prevalence=(0.36, 0.16, 0.20, 0.14, 0.14),
    sizes=((160, 240),),
    radius=(0.93, 0.97),
    colour=(0.72, 0.36, 0.13),
    brightness=1.0,
    blur=0.0,
    noise=0.015,
)
APTOS = _EyeDomain(
    dataset="aptos-2019",
    prevalence=(0.36, 0.14, 0.24, 0.12, 0.14),
    sizes=((200, 200), (170, 220), (190, 250)),
    radius=(0.95, 1.15),
    colour=(0.62, 0.38, 0.10),
    brightness=0.95,
    blur=0.7,
    noise=0.03,
)
JINCHI = _EyeDomain(
    dataset="jinchi",
    prevalence=(0.44, 0.14, 0.16, 0.12, 0.14),
    sizes=((200, 216),),
    radius=(0.96, 1.02),
    colour=(0.74, 0.37, 0.16),
    brightness=1.15,
    blur=0.4,
    noise=0.02,
)


def write_fundus(
    root: Path, *, source_records: int = 560, target_records: int = 140, seed: int = 0
) -> dict[str, Path]:
    """Write Messidor-2, APTOS 2019 and Jinchi, in images; the defaults take 30 MB."""
    folders = {domain.dataset: root / domain.dataset for domain in (SOURCE, APTOS, JINCHI)}
    _write_messidor(folders[SOURCE.dataset], source_records, seed)
    _write_aptos(folders[APTOS.dataset], target_records, seed)
    _write_jinchi(folders[JINCHI.dataset], target_records, seed)
    return folders


def _write_messidor(root: Path, records: int, seed: int) -> None:
    """Grades, pairs of eyes, and images: PNG of one part, ``.JPG`` of the other."""
    folder = root / "IMAGES"
    grades: list[dict[str, str]] = []
    pairs: list[dict[str, str]] = []
    for patient, (names, labels) in enumerate(_messidor_patients(records // 2, seed)):
        for eye, (name, label) in enumerate(zip(names, labels, strict=True)):
            gradable = patient % 40 != 11 or eye == 0
            grades.append(
                {"image_id": name.replace(".JPG", ".jpg")}  # the grades write it in another way
                | {"adjudicated_dr_grade": label if gradable else ""}
                | {"adjudicated_dme": str(int(label in "34")) if gradable else ""}
                | {"adjudicated_gradable": str(int(gradable))}
            )
            image = _retina(SOURCE, label, patient, eye, name, seed)
            save_image(image, folder / name, quality=92, compress_level=1)
        pairs.append({"left": names[0], "right": names[1]})
    grades.sort(key=lambda row: row["image_id"])
    write_csv(root / "messidor_data.csv", grades)
    write_csv(root / "messidor-2.csv", pairs, delimiter=";")


def _messidor_patients(
    patients: int, seed: int
) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    rng = generator(seed, SOURCE.dataset, "table")
    used = {"train": 0, "validation": 0}
    dealt: dict[str, int] = {}
    for patient, grade in enumerate(drawn_labels(GRADES, SOURCE.prevalence, patients, rng)):
        turn = dealt[grade] = dealt.get(grade, 0) + 1
        split = "validation" if turn % 5 == 2 else "train"
        other = str(max(0, int(grade) - 1)) if patient % 4 == 3 else grade
        yield _eye_names(patient, split, used), (grade, other)


def _eye_names(patient: int, split: str, used: dict[str, int]) -> tuple[str, str]:
    """The next pair of names that falls into a split, so that few patients reach every one."""
    number = used[split]
    while True:
        number += 2
        if patient % 3 == 2:
            names = f"IM{number:06d}.JPG", f"IM{number + 1:06d}.JPG"
        else:
            names = f"20051020_{number:05d}_0100_PP.png", f"20051020_{number + 1:05d}_0100_PP.png"
        if hashed_split(SOURCE.dataset, Path(names[0]).stem.lower()) == split:
            used[split] = number
            return names


def _write_aptos(root: Path, records: int, seed: int) -> None:
    """``train.csv`` and PNG images; now and then an image twice, with another grade."""
    folder = root / "train_images"
    rng = generator(seed, APTOS.dataset, "table")
    rows: list[dict[str, str]] = []
    for index, grade in enumerate(drawn_labels(GRADES, APTOS.prevalence, records, rng)):
        name = rng.bytes(6).hex()
        if index % 30 == 29:
            shutil.copyfile(folder / f"{rows[0]['id_code']}.png", folder / f"{name}.png")
        else:
            image = _retina(APTOS, grade, index, int(rng.integers(2)), name, seed)
            save_image(image, folder / f"{name}.png", compress_level=1)
        rows.append({"id_code": name, "diagnosis": grade})
    write_csv(root / "train.csv", rows)


def _write_jinchi(root: Path, records: int, seed: int) -> None:
    """``list.csv`` and JPEG images of up to four a patient; one row without a grade."""
    rng = generator(seed, JINCHI.dataset, "table")
    rows = []
    for index, grade in enumerate(drawn_labels(GRADES, JINCHI.prevalence, records, rng)):
        patient, number = 1 + index // 3, 1 + index % 3
        eye = number % 2
        name = f"{patient}_{number}_{'LR'[eye]}.jpg"
        save_image(_retina(JINCHI, grade, patient, eye, name, seed), root / name, quality=92)
        rows.append(
            {"Image": name, "Davis_grading_of_concatenated_figures": DAVIS[grade]}
            | {"Davis_grading_of_one_figure": "" if index == 7 else DAVIS[grade]}
        )
    write_csv(root / "list.csv", rows)


def _retina(
    domain: _EyeDomain, grade: str, patient: int, eye: int, name: str, seed: int
) -> Image.Image:
    """One image. ``eye`` 0 has the optic disc to the left of the macula, 1 to the right."""
    fixed = generator(seed, domain.dataset, f"person {patient}")
    rng = generator(seed, domain.dataset, f"image {name}")
    height, width = domain.sizes[int(rng.integers(len(domain.sizes)))]
    half = min(height, width) / 2
    radius = half * rng.uniform(*domain.radius)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    y, x = (y - height / 2) / radius, (x - width / 2) / radius
    colour = (np.array(domain.colour) * fixed.normal(1, 0.06, 3)).astype(np.float32)
    light = 1 - 0.35 * (y**2 + (x - rng.normal(0, 0.2)) ** 2) + 0.04 * texture(y.shape, 9.0, rng)
    image = light[..., None] * colour
    side = -0.5 if eye == 0 else 0.5
    macula = np.exp(-((y**2) + (x + side * 0.4) ** 2) / 0.03)
    image = image * (1 - 0.35 * macula[..., None])
    centre = (width / 2 + side * radius, height / 2)
    image = _laid(
        image, _vessels(domain, (width, height), centre, radius, fixed), (0.42, 0.10, 0.06)
    )
    disc = np.exp(-(((y / 0.17) ** 2 + ((x - side) / 0.15) ** 2) ** 2))
    image = image + (0.8 * disc)[..., None] * (np.array([0.98, 0.86, 0.55], np.float32) - image)
    image = _with_signs(image, grade, radius, rng)
    image = image * (y**2 + x**2 < 1)[..., None] * domain.brightness * rng.normal(1, 0.05)
    image = image + domain.noise * rng.standard_normal(image.shape, np.float32)
    drawn = Image.fromarray(np.asarray(np.clip(image * 255, 0, 255), np.uint8))
    return drawn.filter(ImageFilter.GaussianBlur(domain.blur)) if domain.blur else drawn


def _laid(image: Floats, mask: Image.Image, colour: tuple[float, float, float]) -> Floats:
    weight = np.asarray(mask, np.float32)[..., None] / 255
    return np.asarray(image + weight * (np.array(colour, np.float32) - image), np.float32)


def _vessels(
    domain: _EyeDomain,
    size: tuple[int, int],
    start: tuple[float, float],
    radius: float,
    fixed: np.random.Generator,
) -> Image.Image:
    """A mask of arcs from the optic disc up and down around the macula."""
    mask = Image.new("L", size)
    pen = ImageDraw.Draw(mask)
    t = np.linspace(0, 1, 24)
    inwards = np.sign(size[0] / 2 - start[0])
    for sign in (-1, -1, 1, 1):
        reach, bow = fixed.uniform(0.9, 1.5), fixed.uniform(0.35, 0.9)
        xs = start[0] + inwards * radius * reach * t
        ys = start[1] + sign * radius * bow * np.sqrt(t) * (1 + 0.05 * np.sin(9 * t))
        pen.line(list(zip(xs.tolist(), ys.tolist(), strict=True)), fill=170, width=2)
    return mask.filter(ImageFilter.GaussianBlur(0.6))


def _with_signs(image: Floats, grade: str, radius: float, rng: np.random.Generator) -> Floats:
    kinds = (  # smallest and largest radius, in radii of the retina; colour; blur in pixels
        (0.014, 0.028, (0.30, 0.03, 0.02), 0.5),
        (0.016, 0.034, (0.98, 0.92, 0.45), 0.5),
        (0.05, 0.09, (0.95, 0.90, 0.78), 3.0),
        (0.12, 0.24, (0.25, 0.02, 0.02), 2.0),
    )
    for (low, high), (small, large, colour, blur) in zip(SIGNS[grade], kinds, strict=True):
        if not (count := int(rng.integers(low, high + 1))):
            continue
        mask = Image.new("L", (image.shape[1], image.shape[0]))
        pen = ImageDraw.Draw(mask)
        for _ in range(count):
            angle, distance = rng.uniform(0, 2 * np.pi), 0.88 * radius * np.sqrt(rng.uniform())
            x = image.shape[1] / 2 + distance * np.cos(angle)
            y = image.shape[0] / 2 + distance * np.sin(angle)
            size = radius * rng.uniform(small, large)
            pen.ellipse((x - size, y - size * 0.8, x + size, y + size * 0.8), fill=230)
        image = _laid(image, mask.filter(ImageFilter.GaussianBlur(blur)), colour)
    return image
