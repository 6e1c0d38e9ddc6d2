"""Write docs/gallery.md: run its examples, measure them, and keep a picture of each.

`python docs/gallery.py --data FOLDER --folder NEW` runs all, `--only NAME` one of them. Its
commands are blocks of the other pages, which tests run; they are named there, not copied.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from PIL import Image

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "gallery.md"
WIDTH, COLOURS = 900, 128  # of a picture
INTRO = """\
# Gallery

Seven examples on small samples of open data: commands, seconds on two cores, and what came out.
`DATA` is the folder of the samples; the linked pages say what is in it, and what to do with your
own files. Networks are small and trained briefly: the figures show the way, not what is possible.
Seconds are those of an idle machine, but for the ECGs (a load of 2).
"""


@dataclass(frozen=True)
class Example:
    """A block of commands, the picture that it makes, and how its result is said."""

    name: str
    title: str
    page: str
    picture: str
    result: Callable[[Path], str]


def best(report: str, dataset: str, split: str, what: str) -> Callable[[Path], str]:
    """A sentence on the row with the highest AUROC of a split."""

    def sentence(folder: Path) -> str:
        table = pd.read_csv(folder / report / "auroc.csv")
        rows = table[(table["dataset"] == dataset) & (table["split"] == split)]
        row = rows.loc[rows["value"].idxmax()]
        bounds = f"95 % interval {row['low']:.3f} to {row['high']:.3f}"
        interval = bounds if pd.notna(row["low"]) else "no interval: too few patients"
        return (
            f"{what}, the highest AUROC is that of {row['technique']}: "
            f"{row['value']:.3f} ({interval}; {int(row['patients']):,} patients)."
        )

    return sentence


def screened(folder: Path) -> str:
    verdicts = pd.read_csv(folder / "verdicts.csv")
    shares = (verdicts["verdict"] == "reject").groupby(verdicts["data"], sort=False)
    near, far = ((int(group.sum()), len(group)) for _, group in shares)
    return (
        f"Of {far[1]} photographs of skin the guard of an ultrasound model rejects {far[0]}, of "
        f"{near[1]} ultrasound pictures {near[0]}; the picture shows the AUROC under faults."
    )


def overlap(folder: Path) -> str:
    scores = pd.read_parquet(folder / "scores/fast/scores.parquet")
    worst = scores.loc[scores["dsc"].idxmin()]
    return (
        f"Mean Dice of {len(scores)} organs: {scores['dsc'].mean():.3f}; the lowest is that of the "
        f"{worst['class']}, {worst['dsc']:.3f}, shown here on the CT."
    )


FIGURE = "figures/auroc.png"
EXAMPLES = (
    Example("real-ecg", "Electrocardiograms", "start.md", f"ecg/report/{FIGURE}",
            best("ecg/report", "ptb-xl", "test", "On the test patients of PTB-XL")),
    Example("real-cxr", "Chest X-rays", "start.md", f"cxr/report/{FIGURE}",
            best("cxr/report", "nih-cxr-pa", "test", "Trained on AP films, scored on PA films")),
    Example("small-medmnist", "MedMNIST", "medmnist.md", f"breast/report/{FIGURE}",
            best("breast/report", "breastmnist", "test", "On the test images of BreastMNIST")),
    Example("own-pictures", "Your own pictures", "own_data.md", f"films-report/{FIGURE}",
            best("films-report", "films", "test", "Telling the sex from a chest film")),
    Example("own-signal", "Your own signal", "own_data.md", f"hearts-report/{FIGURE}",
            best("hearts-report", "hearts", "test", "Telling the sex from one lead")),
    Example("small-ood", "Detection", "ood.md", "ood-report/figures/robustness*.png", screened),
    Example("real-masks", "Segmentation", "touchstone_compare.md",
            "comparison/figures/worst-pancreas.png", overlap),
)  # fmt: skip


def block(example: Example) -> tuple[str, str]:
    """The line of the example's block that says where the data is, and its commands."""
    text = (DOCS / example.page).read_text("utf-8").split(f"<!-- commands: {example.name} -->")[1]
    line, _, commands = re.split(r"^```\n", text, maxsplit=2, flags=re.M)[1].partition("\n\n")
    return line, commands


def section(example: Example, data: Path, folder: Path) -> str:
    """Run an example in a folder, keep its picture, and describe it."""
    line, commands = block(example)
    script = f"{line.replace('../shared/data', str(data))}\n{commands}"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    begin = time.monotonic()
    subprocess.run(
        ["bash", "-euc", script], cwd=folder, env={**os.environ, "PATH": path}, check=True
    )
    seconds = time.monotonic() - begin
    image = Image.open(min(folder.glob(example.picture))).convert("RGB")
    image.thumbnail((WIDTH, WIDTH))
    kept = DOCS / "images" / f"gallery-{example.name}.png"
    image.quantize(COLOURS).save(kept, optimize=True)
    return (
        f"## {example.title}\n\n{example.result(folder)} {seconds:.0f} seconds; "
        f"more: [{example.page}]({example.page}).\n\n```\n{commands}```\n\n"
        f"![{example.title}: the figure of its report](images/{kept.name})\n"
    )


def sections() -> dict[str, str]:
    """The page's sections by title, as they are."""
    text = PAGE.read_text("utf-8") if PAGE.exists() else ""
    return {part.split("\n")[0]: f"## {part.rstrip()}\n" for part in text.split("\n## ")[1:]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", choices=[example.name for example in EXAMPLES])
    parser.add_argument("--folder", type=Path, required=True, help="Where the examples run.")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for example in EXAMPLES:
        if options.only in (None, example.name):
            made = section(example, options.data.resolve(), options.folder)
            written = {**sections(), example.title: made}
            titles = [each.title for each in EXAMPLES if each.title in written]
            PAGE.write_text("\n".join([INTRO, *(written[title] for title in titles)]), "utf-8")


if __name__ == "__main__":
    main()
