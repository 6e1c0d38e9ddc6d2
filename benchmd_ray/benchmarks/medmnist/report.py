"""Results on MedMNIST with its own scores, next to the published ones.

Published are means of three runs or more on the files of version 2: Yang et al., MedMNIST v2
(Scientific Data 10, 41, 2023), tables 3 and 4. AUC and ACC are AUROC and accuracy of score rows, as
in MedMNIST's evaluator; no AUC where a class has none.
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Collection, Iterable, Sequence
from importlib import resources
from pathlib import Path

import numpy as np
import pandas as pd

from benchmd_ray.benchmarks.medmnist.recipes import BASELINES
from benchmd_ray.benchmarks.medmnist.scores import score, write_result
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.medmnist_cards import EARLIER, IMAGE_GROUPS, PLAIN_SIZE, UNOFFICIAL, task_name
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import replacing
from benchmd_ray.modality.modalities import Modality
from benchmd_ray.report.analysis import Analysis
from benchmd_ray.report.columns import column_of, columns_of, interval_of, part
from benchmd_ray.report.formats import csv_text
from benchmd_ray.report.frames import KEY
from benchmd_ray.report.protocols import ENSEMBLES, TUNED
from benchmd_ray.report.scored import Scored, read_scored
from benchmd_ray.report.table import Table, constant
from benchmd_ray.report.tables import Declared, aggregates
from benchmd_ray.runs.predictions import CLASSIFIED
from benchmd_ray.runs.store import Run
from benchmd_ray.tuning.records import SearchRecord

SOURCE = "MedMNIST v2, tables 3 and 4"
WIDTH = 64
"""Channels of the first stage of the published ResNets."""
PUBLISHED = "published"
"""Protocol of rows that are not ours."""
SPLIT = "test"
SCORES = {"auroc": "auc", "accuracy": "acc"}
"""Metrics of score rows by MedMNIST's names."""
ENDS = {"": "value", "_low": "low", "_high": "high", "_sd": "sd"}
"""Columns of score rows by the ends of the names of ours."""
NAMED = ["dataset", "file", "method", "technique", "setting", "protocol"]
"""What runs that differ only by their seeds share."""
FOUND = "tuned network"
"""Method of averages over tuned settings: a search may find another network for each dataset."""
_RECORD = re.compile(r"(?:train|val|test)-(\d+)")
"""A record's id, which ends with its row in MedMNIST's file."""


@functools.cache
def published() -> pd.DataFrame:
    """MedMNIST's tables: dataset, method, auc, acc."""
    path = resources.files("benchmd_ray.benchmarks.medmnist") / "published.csv"
    rows = list(csv.DictReader(path.read_text("utf-8").splitlines()))
    return pd.DataFrame(rows).astype({"auc": "float64", "acc": "float64"})


def _published_on(datasets: Iterable[str]) -> pd.DataFrame:
    results = published()
    return results[results["dataset"].isin({name.partition("-")[0] for name in datasets})]


def published_rows(datasets: Collection[str]) -> pd.DataFrame:
    """The published results on these datasets as score rows, their method as technique."""
    results = _published_on(datasets)
    parts = [
        results[["dataset"]].assign(technique=results["method"], metric=metric, value=results[name])
        for metric, name in SCORES.items()
    ]
    shared = {"evaluation": CLASSIFIED.evaluation, "split": SPLIT, "protocol": PUBLISHED}
    return pd.concat(parts, ignore_index=True).assign(**shared, **{"class": "mean"})


def run_frame(analysis: Analysis) -> pd.DataFrame:
    """AUC and ACC on the test split, a row for each run.

    ``file`` is empty for the current official file; ``unscored`` are the classes without an AUC;
    ``trained`` is when training ended, after which the test split was read (ISO time, UTC).
    """
    runs = {run.folder.name: run for run in analysis.runs}
    rows = analysis.rows
    rows = rows[(rows["run"] != "") & (rows["evaluation"] == CLASSIFIED.evaluation)]
    ours = rows[rows["modality"].isin(IMAGE_GROUPS) & (rows["split"] == SPLIT)]
    if not len(ours):
        raise BenchmdError(
            f"none of the {len(runs)} runs has scored the {SPLIT} split of a dataset of MedMNIST: "
            "build a catalog of one (`benchmd catalog list`) and run `benchmd transfer` on it."
        )
    results = []
    for (name, dataset), scores in ours.groupby(["run", "dataset"], sort=False):
        run = runs[str(name)]
        results.append(
            {
                **_named(str(dataset), run),
                **scores[["technique", "setting", "protocol", "seed"]].iloc[0],
                **_pooled(scores, ("",)),
                "unscored": _unscored(scores),
                "run": name,
                "trained": run.done["finished"],
            }
        )
    return pd.DataFrame(results)


def compared(analysis: Analysis) -> pd.DataFrame:
    """Our results, seeds pooled, and the published ones, by dataset; highest AUC first.

    Columns: `NAMED`, seeds, and for auc and acc the value, ``_low``, ``_high`` and ``_sd``.
    """
    runs = {run.folder.name: run for run in analysis.runs}
    scores = analysis.scores
    ours = scores[scores["modality"].isin(IMAGE_GROUPS) & (scores["split"] == SPLIT)]
    pooled = []
    for _, rows in ours.groupby([*KEY], sort=False):
        first = rows.iloc[0]
        named = _named(first["dataset"], runs[first["runs"].split("; ")[0]])
        row = first[["technique", "setting", "protocol", "seeds"]]
        pooled.append({**named, **row, **_pooled(rows)})
    columns = [*NAMED, "seeds", *(f"{n}{end}" for n in SCORES.values() for end in ENDS)]
    theirs = _published_on(ours["dataset"]).assign(
        file="", technique="", setting="", protocol=PUBLISHED
    )
    frame = pd.DataFrame([*pooled, *theirs.to_dict("records")], columns=columns)
    order = list(dict.fromkeys(published()["dataset"]))
    frame = frame.sort_values("auc", ascending=False, kind="stable")
    return frame.sort_values(
        "dataset", key=lambda names: names.map(order.index), kind="stable", ignore_index=True
    )


def _pooled(rows: pd.DataFrame, ends: Sequence[str] = tuple(ENDS)) -> dict[str, float]:
    values: dict[str, float] = {}
    for metric, name in SCORES.items():
        row = rows[(rows["metric"] == metric) & (rows["class"] == "mean")].iloc[0]
        lost = metric == "auroc" and bool(_unscored(rows))
        values |= {f"{name}{end}": np.nan if lost else row[ENDS[end]] for end in ends}
    return values


def _unscored(rows: pd.DataFrame) -> str:
    unscored = rows[(rows["metric"] == "auroc") & (rows["class"] != "mean") & rows["value"].isna()]
    return "; ".join(unscored["class"])


def _named(dataset: str, run: Run) -> dict[str, str]:
    file = dataset.removeprefix(run.modality.signal.name).lstrip("-")
    return {"dataset": _dataset(run.modality), "file": file, "method": _method(run)}


def _dataset(kind: Modality) -> str:
    return kind.signal.name.partition("-")[0]


def _method(run: Run) -> str:
    """Such as resnet18-28, resnet18-3d, transformer mae-28, or resnet18-28, width 16."""
    encoder, kind = run.settings.encoder, run.modality
    plain = run.description.get("upstream") is None and encoder.network != "transformer"
    both = dict.fromkeys((encoder.network, str(run.description["technique"])))
    named = encoder.network if plain else " ".join(both)
    seen = int(encoder.options.get("resize", 0) or kind.signal.input_shape[-1])
    sized = named if len(kind.signal.axes) == 4 and seen == PLAIN_SIZE else f"{named}-{seen}"
    width = encoder.options.get("width", WIDTH) if encoder.network in BASELINES else WIDTH
    return sized if width == WIDTH else f"{sized}, width {width}"


def averages(both: pd.DataFrame) -> pd.DataFrame:
    """Mean AUC and ACC of each method that has one result on each dataset.

    2-D and 3-D datasets apart, as in the paper's tables 5 and 6. NaN where a dataset has no AUC.
    """
    method = both["method"].where(~both["protocol"].isin([TUNED, ENSEMBLES[TUNED]]), FOUND)
    images = np.where(both["dataset"].str.endswith("3d"), "3-D", "2-D")
    whole = both.assign(images=images, method=method)
    rows = []
    for dimensions, together in whole.groupby("images"):
        count = together["dataset"].nunique()
        for key, group in together.groupby(["method", "setting", "protocol"], sort=False):
            if group["dataset"].nunique() == count == len(group):
                file = ", ".join(sorted(set(group["file"]) - {""}))
                means = (group[name].mean(skipna=False) for name in ("auc", "acc"))
                rows.append((dimensions, count, file, *key, *means))
    columns = ["images", "datasets", "file", "method", "setting", "protocol", "auc", "acc"]
    averaged = pd.DataFrame(rows, columns=columns)
    return averaged.sort_values(["images", "auc"], ascending=[True, False], ignore_index=True)


def _table(analysis: Analysis) -> Table | None:
    both = compared(analysis)
    columns = (
        column_of("dataset", _marked(both, "dataset"), "text"),
        *columns_of(both, "text", *NAMED[2:]),
        *(
            column
            for name in SCORES.values()
            for column in (
                interval_of(f"{name.upper()} [95 %]", part(both, name), name),
                column_of(f"sd of {name.upper()}", both[f"{name}_sd"], "number"),
            )
        ),
        column_of("seeds", ["≥ 3" if n != n else f"{n:.0f}" for n in both["seeds"]], "text"),
    )
    kept, note = constant(columns)
    caption = f"AUC and ACC on MedMNIST's test splits; those published are of {SOURCE}."
    return None if both.empty else Table(f"{caption}{note}", kept)


def _averages_table(analysis: Analysis) -> Table | None:
    means = averages(compared(analysis))
    means = means[means["datasets"] > 1]
    columns = (
        column_of("images", means["images"], "text"),
        column_of("datasets", _marked(means, "datasets"), "text"),
        *columns_of(means, "text", "method", "setting", "protocol"),
        *(column_of(name.upper(), means[name], "number") for name in SCORES.values()),
    )
    caption = "Means over the datasets at hand, of the methods that have all of them."
    return None if means.empty else Table(caption, columns)


TABLES = aggregates(
    Declared.both("medmnist", "MedMNIST", compared, _table),
    Declared.both(
        "medmnist_averages", "MedMNIST", lambda a: averages(compared(a)), _averages_table
    ),
)


def _marked(frame: pd.DataFrame, column: str) -> list[str]:
    return [
        f"{value} ({file} file)" if file else str(value)
        for value, file in zip(frame[column], frame["file"], strict=True)
    ]


def notes(analysis: Analysis, frame: pd.DataFrame) -> list[str]:
    """Notes on the tables; ``frame`` is that of `run_frame`."""
    lines = [f"The published results are of {SOURCE}, means of three runs or more on version 2."]
    changed = [name for name in frame["dataset"].unique() if EARLIER in dataset_card(name).layouts]
    if changed:
        lines.append(f"Version 3 has another file for {', '.join(changed)}.")
    for file, rows in frame[frame["file"] != ""].groupby("file"):
        names = ", ".join(rows["dataset"].unique())
        lines.append(f"Not the official file of version 3: {names} ({file}).")
    unscored = frame[frame["unscored"] != ""]
    lines += [
        f"{run}: no AUC, as {classes} has only positives or only negatives."
        for run, classes in zip(unscored["run"], unscored["unscored"], strict=True)
    ]
    about = ("Skipped: ", ENSEMBLES[TUNED], *IMAGE_GROUPS, *frame["dataset"].unique())
    lines += [note for note in analysis.notes if note.startswith(about)]
    return [*lines, *_readings(frame, analysis.records)]


def _readings(frame: pd.DataFrame, searched: Sequence[SearchRecord]) -> list[str]:
    """How often and when each test split was read, and what searches cost before."""
    lines = []
    for dataset, rows in frame.groupby("dataset", sort=False):
        runs = f"{len(rows)} runs, once by each" if len(rows) > 1 else "1 run, once"
        lines.append(
            f"The test split of {dataset} was read by {runs} after its training, "
            f"which ended {_span(rows['trained'], rows['trained'])}."
        )
    for record in searched:
        datasets = {str(source["source"]).partition("-")[0] for source in record.sources}
        if not record.is_finished or not datasets & set(frame["dataset"]):
            continue
        device = "CPU" if record.device == "cpu" else "GPU"
        lines.append(
            f"{record.name} read only training and validation, "
            f"{_span(record.trials['started'], record.trials['finished'])}: {len(record.trials)} "
            f"trials, {record.device_hours:.3g} {device} hours."
        )
    return lines


def _span(starts: pd.Series, ends: pd.Series) -> str:
    """From the first start to the last end, to seconds."""
    times = [pd.Timestamp(text) for text in (starts.min(), ends.dropna().max())]
    return " to ".join(dict.fromkeys(f"{time:%Y-%m-%d %H:%M:%S}" for time in times)) + " UTC"


def write(analysis: Analysis, folder: Path) -> list[Path]:
    """Write the tables as CSV, and a standard result file of MedMNIST for every run."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = {"runs": run_frame(analysis)} | {
        declared.name: declared.data(analysis) for declared in TABLES
    }
    paths = []
    for name, table in tables.items():
        paths.append(folder / f"{name}.csv")
        with replacing(paths[-1]) as partial:
            partial.write_text(csv_text(table), "utf-8")
    return paths + write_results(analysis.runs, folder / "results")


def write_results(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Write a standard result file for every run, in a folder of the run's name.

    Skips unofficial files with unreadable images, as a result file has every row.
    """
    written = []
    for run in runs:
        for prediction in _on_medmnist(run):
            kind, run_folder = run.modality, folder / run.folder.name
            places = [_row(name) for name in prediction.units["unit_id"]]
            if prediction.dataset.endswith(f"-{UNOFFICIAL}") and {*places} != {*range(len(places))}:
                continue
            run_folder.mkdir(parents=True, exist_ok=True)
            size = kind.signal.input_shape[-1]
            got = score(
                prediction.targets, prediction.scores, task_name(kind.task), prediction.classes
            )
            rows = pd.DataFrame(prediction.scores, index=places)
            name = f"seed{run.settings.seed}"
            written.append(write_result(run_folder, _dataset(kind), size, SPLIT, name, got, rows))
    return written


def _row(record_id: str) -> int:
    named = _RECORD.fullmatch(record_id)
    if named is None:
        raise BenchmdError(
            f"the record {record_id!r} names no row of MedMNIST's file: expected one such as "
            "test-000012."
        )
    return int(named[1])


def _on_medmnist(run: Run) -> list[Scored]:
    if not run.finished or run.modality.name not in IMAGE_GROUPS:
        return []
    return [prediction for prediction in read_scored(run).scored if prediction.split == SPLIT]
