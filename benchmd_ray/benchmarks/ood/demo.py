"""The demo of detection: the whole way on small synthetic data, with controls that must hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute

from benchmd_ray.benchmarks.ood import DETECTION
from benchmd_ray.benchmarks.ood.cards import USE_CASES, use_cases
from benchmd_ray.benchmarks.ood.conform import conformable
from benchmd_ray.benchmarks.ood.detect import detected
from benchmd_ray.benchmarks.ood.methods import METHODS, USUAL, autoencoder, binary_network
from benchmd_ray.benchmarks.ood.methods.method import Detector
from benchmd_ray.benchmarks.ood.scores import chance_p, score_rows
from benchmd_ray.benchmarks.ood.table import HALF
from benchmd_ray.cluster.connection import connected, own_cpus
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.discovery import conditions_there
from benchmd_ray.errors import BenchmdError, count_of
from benchmd_ray.evaluation.evaluation import Asked
from benchmd_ray.runs.files import predictions_of
from benchmd_ray.runs.predictions import read_predictions
from benchmd_ray.scores.comparison import LEVEL, holm
from benchmd_ray.service.choice import Choice
from benchmd_ray.service.demo import TFLOPS, catalogs_of, chosen_modalities
from benchmd_ray.service.outcome import PlanOutcome
from benchmd_ray.service.plan import Item, Plan, make_plan
from benchmd_ray.service.schedule import run_plan
from benchmd_ray.service.steps import Evaluate
from benchmd_ray.ssl import SCRATCH

SIZES: dict[str, dict[str, int]] = {
    "ecg": {"source_records": 400, "target_records": 24},
    "eeg": {"source_records": 20, "target_records": 1, "epochs": 24},
    "cxr": {"source_records": 240, "target_records": 24},
    "mammo": {"source_records": 400, "target_records": 24},
    "derm": {"source_records": 400, "target_records": 24},
    "fundus": {"source_records": 200, "target_records": 24},
    "ldct": {"source_records": 180, "target_records": 6},
}
"""Of the synthetic data, by modality: small, and enough for several patients that are scored."""
SETTINGS = (
    "encoder=tiny",
    "transfer.epochs=2",
    "transfer.batch_size=32",
    "transfer.optimiser.lr=1e-3",
)
PATCH = 56
"""Extent of patches of images and volumes, along y and x: a twelfth of the usual tokens."""
STEPS = {"autoencoder": 10, "binary-network": 1}
"""Of the training of each autoencoder, and of an epoch of the binary classifier's: with the usual
ones they would take most of the time."""
RESAMPLES = 200
SHOWN = ("msp", "energy", "mahalanobis-layers", "pixel-knn-8")
"""Detectors of the table: the paper's simplest, one of logits, one of layers, one of pictures."""
NOISE = "white-noise"
DETECTED = 0.9
"""AUROC that white noise exceeds by the detector that is taken where none is named."""


def demo(
    folder: Path, say: Callable[[str], None], modalities: Sequence[str] = ()
) -> dict[str, pd.DataFrame]:
    """Write data, build catalogs, train, detect, show a table, and check the controls; it resumes.

    Returns:
        Score rows by modality; none named takes all modalities.

    Raises:
        BenchmdError: A modality does not exist, a catalog could not be built, a run failed, or a
            control does not hold (see `require_controls`).
    """
    chosen = chosen_modalities(modalities)
    with connected(None, cpus=own_cpus()):
        catalogs: dict[str, list[Catalog]] = {}
        for number, name in enumerate(chosen, 1):
            say(f"{number}/{len(chosen)} {name}: synthetic raw data, catalogs by Ray Data")
            catalogs[name] = _catalogs(name, folder, say)
        plan = demo_plan(catalogs)
        say(f"{count_of(len(plan.items), 'run')}, several at a time: train, detect")
        outcome = run_plan(plan, folder / "runs", say=say, cpus=own_cpus())
    for line in outcome.lines():
        say(line)
    if not outcome.whole:
        raise BenchmdError(
            "detection was not tried on all modalities: the lines above name what failed. The same "
            "command resumes."
        )
    rows = {item.modality: _scores(item, outcome) for item in plan.items if _detects(item)}
    text = table_of(rows).to_string(index=False, float_format="{:.3f}".format, na_rep="")
    for line in text.split("\n"):
        say(line)
    require_controls(rows)
    say(
        "All controls hold: AUROC 0.500 exactly for what cannot be seen, no random half told from "
        f"the other (Holm, {LEVEL}), white noise above {DETECTED} by {USUAL[0]}."
    )
    return rows


def demo_plan(catalogs: Mapping[str, Sequence[Catalog]]) -> Plan:
    """A network of each source, and all that it is to detect.

    Catalogs are given by modality, the source first. The others are what is to be detected, and so
    is the last target of another modality.
    """
    plans = []
    for name, datasets in catalogs.items():
        source, over_time = datasets[0], len(datasets[0].signal.axes) == 2
        choice = Choice(
            catalogs=(source.path,),
            also=tuple(catalog.path for catalog in (*datasets[1:], *_unrelated(name, catalogs))),
            techniques=(SCRATCH,),
            settings=("finetune-full",),
            assignments=SETTINGS if over_time else (*SETTINGS, f"encoder.patch_size={PATCH}"),
            evaluated=DETECTION.name,
        )
        plans.append(make_plan(choice, tflops=TFLOPS))
    items = (item for plan in plans for item in plan.items)
    brief = (replace(item, step=Evaluate(BRIEF)) if _detects(item) else item for item in items)
    return Plan(tuple(brief), plans[0].basis, tuple(note for plan in plans for note in plan.notes))


def _unrelated(name: str, catalogs: Mapping[str, Sequence[Catalog]]) -> list[Catalog]:
    names = list(catalogs)
    place = names.index(name)
    others = (catalogs[other][-1] for other in (*names[place + 1 :], *names[:place]))
    signal = catalogs[name][0].signal
    return [catalog for catalog in others if conformable(catalog.signal, signal)][:1]


def _detects(item: Item) -> bool:
    return item.step.evaluation.name == DETECTION.name


def _compute(asked: Asked) -> pa.Table:
    return detected(asked, brief_detectors())


BRIEF = replace(DETECTION, compute=_compute, current=None)


def brief_detectors() -> dict[str, Detector]:
    """The package's detectors; those that train a network take `STEPS` steps."""
    methods = dict(METHODS)
    for method in autoencoder.METHODS:
        fit = partial(method.fit, steps=STEPS["autoencoder"])
        methods[method.name] = replace(method, fit=fit)
    classifier = binary_network.METHOD
    calibrate = partial(binary_network.calibrate, steps=STEPS[classifier.name])
    return methods | {classifier.name: replace(classifier, calibrate=calibrate)}


def _few(asked: Asked) -> pa.Table:
    return detected(asked, {name: METHODS[name] for name in SHOWN})


FEW = replace(DETECTION, compute=_few, current=None)
"""The evaluation in the demo of everything, with the detectors `SHOWN`."""


def _catalogs(modality: str, folder: Path, say: Callable[[str], None]) -> list[Catalog]:
    def hold_out(name: str, raw: Path) -> tuple[str, ...]:
        conditions = tuple(use_cases(name).conditions)
        there = conditions_there(dataset_card(name), raw, {}, conditions)
        say(f"    {name}: held out {', '.join(there) or 'nothing'}")
        if absent := [condition for condition in conditions if condition not in there]:
            say(f"    not held out, as no record has it: {', '.join(absent)}")
        return there

    catalogs = catalogs_of(modality, folder, say, sizes=SIZES[modality], hold_out=hold_out)
    if not catalogs[0].held_out:
        raise BenchmdError(
            f"the catalog {catalogs[0].path} is not of this demo, as it holds nothing out: choose "
            "another folder with --out."
        )
    return catalogs


def _scores(item: Item, outcome: PlanOutcome) -> pd.DataFrame:
    for path in predictions_of(outcome.folders[item.name]):
        if path.parent.name == DETECTION.name:
            predictions = read_predictions(path, DETECTION.form)
            table = predictions.table.filter(pa.compute.equal(predictions.table["regime"], "none"))
            rows = score_rows(replace(predictions, table=table), RESAMPLES)
            rows = rows[rows["metric"] == "auroc"]
            chance = {name: chance_p(predictions, name) for name in SHOWN}
            return rows.assign(chance=rows["method"].map(chance).where(rows["group"] == HALF))
    raise BenchmdError(f"{outcome.folders[item.name]} has no predictions of {DETECTION.name}.")


def table_of(rows: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """AUROC of `SHOWN`: means over the sets of each use-case, small ones too, and the controls."""
    return pd.DataFrame([line for name, scores in rows.items() for line in _lines(name, scores)])


def _lines(modality: str, rows: pd.DataFrame) -> Iterator[dict[str, object]]:
    sets = rows[rows["group"] != "all"]
    control = sets["use_case"] == "control"
    parts: dict[str, Any] = {case: sets["use_case"] == case for case in USE_CASES}
    parts["control, cannot be seen"] = control & (sets["group"] != HALF)
    parts[f"control, {HALF}"] = control & (sets["group"] == HALF)
    parts[f"control, {NOISE}"] = sets["group"] == NOISE
    for name, chosen in parts.items():
        if not chosen.any():
            continue
        group = sets[chosen]
        means = group.groupby("method")["value"].mean()
        count = len(group[["group", "class"]].drop_duplicates())
        yield {"modality": modality, "use-case": name, "sets": count, **means.reindex(SHOWN)}


def require_controls(rows: Mapping[str, pd.DataFrame]) -> None:
    """Refuse scores with a control that is missing or does not hold."""
    alone = [
        f"{name}: {line}"
        for name, scores in rows.items()
        for check in (_invisible, _noise)
        for line in check(scores)
    ]
    if failed := [*alone, *_chance(rows)]:
        raise BenchmdError(
            f"{count_of(len(failed), 'control')} of detection failed: {'; '.join(failed)}"
        )


def _invisible(rows: pd.DataFrame) -> Iterator[str]:
    """Changes that the normalisation removes: 0.5 exactly by every detector."""
    controls = rows[(rows["use_case"] == "control") & (rows["group"] != HALF)]
    if controls.empty:
        yield "there is no negative control."
    for name, group, value in _values(controls, "method", "group", "value"):
        if value != 0.5:
            yield f"negative control {group}: AUROC {value:.4f} by {name}, expected 0.5."


def _chance(rows: Mapping[str, pd.DataFrame]) -> Iterator[str]:
    """A random half of the in-distribution patients: 0.5 by chance, with Holm's correction."""
    tested: list[tuple[str, str, float, float]] = []
    for modality, all_rows in rows.items():
        halves = all_rows[(all_rows["group"] == HALF) & all_rows["method"].isin(SHOWN)]
        if halves.empty:
            yield f"{modality}: there is no {HALF}."
        tested += [(modality, *test) for test in _values(halves, "method", "value", "chance")]
    adjusted = holm([test[3] for test in tested])
    for (modality, name, value, _), p in zip(tested, adjusted, strict=True):
        if p < LEVEL:
            stated = f"AUROC {value:.3f} by {name} (p {p:.2g})"
            yield f"{modality}: {HALF}: {stated}, expected about 0.5."


def _noise(rows: pd.DataFrame) -> Iterator[str]:
    noise = rows[(rows["group"] == NOISE) & (rows["method"] == USUAL[0])]
    if not (noise["value"] > DETECTED).any():
        values = [f"{value:.3f}" for value in noise["value"]]
        yield (
            f"positive control {NOISE}: AUROC {', '.join(values) or 'missing'} by {USUAL[0]}, "
            f"expected more than {DETECTED}."
        )


def _values(rows: pd.DataFrame, *columns: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(rows[name] for name in columns), strict=True)
