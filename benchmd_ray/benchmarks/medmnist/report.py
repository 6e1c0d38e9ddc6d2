"""Results on MedMNIST with its own scores, beside those that are published.

Source of the published ones: Yang et al., MedMNIST v2 (Scientific Data 10, 41, 2023), tables 3
and 4, which are means of three runs or more on the files of version 2.
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import pandas as pd

from benchmd_ray.benchmarks.medmnist.recipes import BASELINES
from benchmd_ray.benchmarks.medmnist.scores import Score, score, write_result
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.medmnist_cards import EARLIER, IMAGE_GROUPS, PLAIN_SIZE, task_name
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files import replacing
from benchmd_ray.modalities import Modality
from benchmd_ray.results.report.cells import with_predictions
from benchmd_ray.results.report.hardware_notes import different_hardware
from benchmd_ray.results.report.protocols import protocols
from benchmd_ray.results.report.scored import Scored, read_scored
from benchmd_ray.results.report.table_cells import number
from benchmd_ray.results.store import Run
from benchmd_ray.results.written import csv_text
from benchmd_ray.tuning.records import SearchRecord

SOURCE = "MedMNIST v2, tables 3 and 4"
WIDTH = 64
"""Channels of the first stage of the published ResNets."""
PUBLISHED = "published"
"""Protocol of rows that are not ours."""
SPLIT = "test"
COLUMNS = (
    "dataset",
    "file",
    "method",
    "setting",
    "protocol",
    "seed",
    "auc",
    "acc",
    "unscored",
    "run",
    "trained",
)
KEYS = ["dataset", "file", "method", "setting", "protocol"]
"""What runs that differ by their seeds alone share."""
FOUND = "tuned network"
"""Method of averages over tuned settings: a search may find another network for each dataset."""
_RECORD = re.compile(r"(?:train|val|test)-(\d+)")
"""A record's id, which ends with its row in MedMNIST's file."""


def medmnist_frame(found: Sequence[Run]) -> pd.DataFrame:
    """AUC and ACC on the test split, one row per run, with the columns `COLUMNS`.

    ``dataset`` is MedMNIST's name, ``file`` says more where it is not the official one of now;
    ``method`` names network and technique with the images' size, ``setting`` is that of the
    transfer; ``unscored`` are the classes without an AUC; ``trained`` is when training ended, after
    which the test split was read (ISO time, UTC).

    Raises:
        BenchmdError: No finished run has predictions on a dataset of MedMNIST.
    """
    rows = []
    names = protocols(found).names
    for run in with_predictions(found):
        for one in _on_medmnist(run):
            kind, got = run.modality, _score(one, run.modality)
            rows.append(
                {
                    "dataset": _dataset(kind),
                    "file": one.dataset.removeprefix(kind.signal.name).lstrip("-"),
                    "method": _method(run, kind),
                    "setting": run.description["setting"],
                    "protocol": names[run.folder],
                    "seed": run.settings.seed,
                    "auc": got.auc,
                    "acc": got.acc,
                    "unscored": "; ".join(got.unscored),
                    "run": run.folder.name,
                    "trained": run.done["finished"],
                }
            )
    if not rows:
        raise BenchmdError(
            f"none of the {len(found)} runs has scored the {SPLIT} split of a dataset of MedMNIST: "
            "build a catalog of one (`benchmd catalog list`) and run `benchmd transfer` on it."
        )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _on_medmnist(run: Run) -> list[Scored]:
    if run.description["kind"] != "transfer":
        return []
    if run.modality.name not in IMAGE_GROUPS:
        return []
    return [s for s in read_scored(run).scored if s.split == SPLIT]


def _dataset(kind: Modality) -> str:
    """Name of the dataset, which all sizes of its images share."""
    return kind.signal.name.partition("-")[0]


def _score(one: Scored, kind: Modality) -> Score:
    return score(one.targets, one.scores, task_name(kind.task), one.classes)


def _method(run: Run, kind: Modality) -> str:
    """Such as resnet18-28, resnet18-3d, or transformer mae-28 where it was pretrained.

    A ResNet of another width than the published ones says so: resnet18-28, width 16.
    """
    encoder = run.settings.encoder
    plain = run.description.get("upstream") is None and encoder.network != "transformer"
    named = encoder.network if plain else f"{encoder.network} {run.description['technique']}"
    seen = int(encoder.options.get("resize", 0) or kind.signal.input_shape[-1])
    sized = named if len(kind.signal.axes) == 4 and seen == PLAIN_SIZE else f"{named}-{seen}"
    width = encoder.options.get("width", WIDTH) if encoder.network in BASELINES else WIDTH
    return sized if width == WIDTH else f"{sized}, width {width}"


@functools.cache
def published() -> pd.DataFrame:
    """MedMNIST's tables: dataset, method, auc, acc."""
    path = resources.files("benchmd_ray.benchmarks.medmnist") / "published.csv"
    rows = list(csv.DictReader(path.read_text("utf-8").splitlines()))
    return pd.DataFrame(rows).astype({"auc": "float64", "acc": "float64"})


def beside_published(frame: pd.DataFrame) -> pd.DataFrame:
    """Our means over seeds and the published ones, by dataset; the best AUC of each first.

    Columns: `KEYS`, seeds, auc, auc_sd, acc, acc_sd.
    """
    grouped = frame.groupby(KEYS, sort=False)
    ours = grouped.agg(
        seeds=("seed", "nunique"),
        auc=("auc", lambda values: values.mean(skipna=False)),
        auc_sd=("auc", "std"),
        acc=("acc", "mean"),
        acc_sd=("acc", "std"),
    ).reset_index()
    held = published()
    theirs = held[held["dataset"].isin(ours["dataset"])].assign(
        file="", setting="", protocol=PUBLISHED
    )
    both = pd.concat([ours, theirs], ignore_index=True)
    order = list(dict.fromkeys(held["dataset"]))
    both["place"] = both["dataset"].map(order.index)
    both = both.sort_values(["place", "auc"], ascending=[True, False], kind="stable")
    return both.drop(columns="place").reset_index(drop=True)


def averages(both: pd.DataFrame) -> pd.DataFrame:
    """Mean AUC and ACC over datasets of each method that has one result on each of those at hand.

    2-D and 3-D datasets apart, as in the paper's tables 5 and 6. Numbers and letters of protocols
    tell apart the runs of one dataset and are left out. No mean of the AUC where one is missing.
    Columns: images, datasets, file (of datasets whose file is not the official one of now), method,
    setting, protocol, auc, acc.
    """
    protocol = both["protocol"].str.partition(" ")[0]
    method = both["method"].where(protocol != "tuned", FOUND)
    whole = both.assign(images=both["dataset"].map(_images), protocol=protocol, method=method)
    rows = []
    for images, part in whole.groupby("images"):
        count = part["dataset"].nunique()
        for key, held in part.groupby(["method", "setting", "protocol"], sort=False):
            if held["dataset"].nunique() == count == len(held):
                file = ", ".join(sorted(set(held["file"]) - {""}))
                means = (held[name].mean(skipna=False) for name in ("auc", "acc"))
                rows.append((images, count, file, *key, *means))
    columns = ["images", "datasets", "file", "method", "setting", "protocol", "auc", "acc"]
    found = pd.DataFrame(rows, columns=columns)
    return found.sort_values(["images", "auc"], ascending=[True, False], ignore_index=True)


def _images(dataset: str) -> str:
    return "3-D" if dataset.endswith("3d") else "2-D"


def shown(both: pd.DataFrame) -> pd.DataFrame:
    """The comparison as people read it."""
    return pd.DataFrame(
        {
            "dataset": _marked(both, "dataset"),
            "method": both["method"],
            "setting": both["setting"],
            "protocol": both["protocol"],
            "AUC": both["auc"].map(number),
            "sd": both["auc_sd"].map(number),
            "ACC": both["acc"].map(number),
            "sd of ACC": both["acc_sd"].map(number),
            "seeds": ["≥ 3" if n != n else f"{n:.0f}" for n in both["seeds"]],
        }
    )


def averages_shown(frame: pd.DataFrame) -> pd.DataFrame:
    """Averages as people read them."""
    columns = {name: frame[name].map(number) for name in ("auc", "acc")}
    marked = frame.assign(datasets=_marked(frame, "datasets"), **columns)
    return marked.drop(columns="file").rename(columns={"auc": "AUC", "acc": "ACC"})


def _marked(frame: pd.DataFrame, column: str) -> list[str]:
    """A column with what the column ``file`` says."""
    return [
        f"{value} ({file} file)" if file else str(value)
        for value, file in zip(frame[column], frame["file"], strict=True)
    ]


def notes(
    found: Sequence[Run], frame: pd.DataFrame, searched: Sequence[SearchRecord] = ()
) -> list[str]:
    """What readers of the tables should know.

    Args:
        found: Runs.
        frame: As `medmnist_frame` gives it of them.
        searched: Searches of the same stores.
    """
    lines = [f"The published results are of {SOURCE}, means of three runs or more on version 2."]
    lines += [note for run in found if run.finished for note in read_scored(run).skipped]
    datasets = frame["dataset"].unique()
    changed = [name for name in datasets if EARLIER in dataset_card(name).layouts]
    if changed:
        lines.append(f"Version 3 has another file for {', '.join(changed)}.")
    for file, held in frame[frame["file"] != ""].groupby("file"):
        names = ", ".join(held["dataset"].unique())
        lines.append(f"Not the official file of version 3: {names} ({file}).")
    unscored = frame[frame["unscored"] != ""]
    lines += [
        f"{run}: no AUC, as {classes} has positives or negatives alone."
        for run, classes in zip(unscored["run"], unscored["unscored"], strict=True)
    ]
    lines += [note for note in protocols(found).notes if note.startswith(IMAGE_GROUPS)]
    scored = [(run, one) for run in with_predictions(found) for one in _on_medmnist(run)]
    for name in datasets:
        own = [one for run, one in scored if _dataset(run.modality) == name]
        lines += different_hardware(name, [own], found)
    return [*lines, *_readings(frame, searched)]


def _readings(frame: pd.DataFrame, searched: Sequence[SearchRecord]) -> list[str]:
    """Which test split was read by how many runs and when, and what searches cost before it."""
    lines = []
    for dataset, held in frame.groupby("dataset", sort=False):
        runs = f"{len(held)} runs, once by each" if len(held) > 1 else "1 run, once"
        lines.append(
            f"The test split of {dataset} was read by {runs} after its training, "
            f"which ended {_span(held['trained'], held['trained'])}."
        )
    for record in searched:
        datasets = {str(source["source"]).partition("-")[0] for source in record.sources}
        if record.result is None or not datasets & set(frame["dataset"]):
            continue
        device = "CPU" if record.device == "cpu" else "GPU"
        lines.append(
            f"{record.name} read training and validation alone, "
            f"{_span(record.trials['started'], record.trials['finished'])}: {len(record.trials)} "
            f"trials, {record.result['device_hours']:.3g} {device} hours."
        )
    return lines


def _span(starts: pd.Series, ends: pd.Series) -> str:
    """The time from the first start to the last end, to seconds."""
    times = [pd.Timestamp(text) for text in (starts.min(), ends.dropna().max())]
    return " to ".join(dict.fromkeys(f"{time:%Y-%m-%d %H:%M:%S}" for time in times)) + " UTC"


def write(
    found: Sequence[Run], frame: pd.DataFrame, both: pd.DataFrame, folder: Path
) -> list[Path]:
    """Write the tables, and a standard result file of MedMNIST for every run.

    Returns:
        The tables (every run, means beside the published, averages) and the result files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables = {"runs": frame, "medmnist": both, "averages": averages(both)}
    paths = []
    for name, table in tables.items():
        paths.append(folder / f"{name}.csv")
        with replacing(paths[-1]) as partial:
            partial.write_text(csv_text(table), "utf-8")
    return paths + write_results(found, folder / "results")


def write_results(found: Sequence[Run], folder: Path) -> list[Path]:
    """A standard result file of MedMNIST for every run, in a folder of the run's name.

    Raises:
        BenchmdError: Predictions are not of every row of MedMNIST's file.
    """
    written = []
    for run in with_predictions(found):
        for one in _on_medmnist(run):
            kind, own = run.modality, folder / run.folder.name
            places = [_row(name) for name in one.units["unit_id"]]
            own.mkdir(parents=True, exist_ok=True)
            size, got = kind.signal.input_shape[-1], _score(one, kind)
            rows = pd.DataFrame(one.scores, index=places)
            name = f"seed{run.settings.seed}"
            written.append(write_result(own, _dataset(kind), size, SPLIT, name, got, rows))
    return written


def _row(record_id: str) -> int:
    named = _RECORD.fullmatch(record_id)
    if named is None:
        raise BenchmdError(
            f"the record {record_id!r} names no row of MedMNIST's file: expected one such as "
            "test-000012."
        )
    return int(named[1])
