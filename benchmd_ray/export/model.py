"""Export of a run's model to a folder: weights, description, model card, and optional programs."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.errors import BenchmdError
from benchmd_ray.export import portable
from benchmd_ray.export.averaged_runs import origins, require_averageable
from benchmd_ray.export.model_card import Program, model_card
from benchmd_ray.extensions.extras import EXTRAS, require
from benchmd_ray.extensions.parts import package_versions
from benchmd_ray.files.atomic import TEMPORARY, flush, removed_on_failure, sha256
from benchmd_ray.files.integrity import write_hashed_json
from benchmd_ray.runs.files import MODEL
from benchmd_ray.runs.store import Run, require_weights, shown
from benchmd_ray.storage.location import Location
from benchmd_ray.training.applied import FeatureEncoder, SignalClassifier
from benchmd_ray.training.members import tensors_of
from benchmd_ray.training.weights import CONFIG, model_description, write_weights

CARD = "README.md"


@dataclass(frozen=True)
class Exported:
    """The exported folder."""

    folder: Path
    programs: tuple[Program, ...]


def export_run(
    run: Run | Sequence[Run],
    out: Path,
    *,
    catalog: Location | None = None,
    torch_export: bool = False,
    onnx: bool = False,
) -> Exported:
    """Write the model of a finished run, or the average of several, to a new folder, atomically.

    Args:
        run: A pretraining, or a transfer to classes; or several such transfers
            (`require_averageable`), whose probabilities are averaged.
        out: The folder, which must be empty or not exist.
        catalog: Catalog whose first records are used to compare programs with the model; None:
            noise.
        torch_export: Write `portable.TORCH`, too.
        onnx: Write `portable.ONNX`, too.
    """
    if catalog is not None and not (torch_export or onnx):
        raise BenchmdError(
            "the catalog would not be used: it only serves to check model.pt2 and model.onnx. "
            "Request one of them with --torch-export or --onnx, or omit --catalog."
        )
    if onnx:
        require("--onnx", *EXTRAS["onnx"].packages)
    out = out.resolve()
    require_empty(out)
    runs = [run] if isinstance(run, Run) else [*run]
    for exported in runs:
        _require_exportable(exported)
    require_averageable(runs)
    opened = None if catalog is None else open_catalog(catalog)
    for exported in runs:
        require_weights(exported)
    model = _model(runs)
    with _new_folder(out) as folder:
        weights = write_weights(folder / MODEL, _tensors(model))
        chosen = {portable.TORCH: torch_export, portable.ONNX: onnx}
        names = [name for name, asked in chosen.items() if asked]
        programs = _programs(runs[0], model, folder, names, opened) if names else ()
        write_hashed_json(folder / CONFIG, _config(runs, model, weights, folder, programs))
        card = model_card(
            runs,
            portable.output_name(model),
            _width(model),
            takes_sizes=portable.takes_sizes(model.signal),
            programs=programs,
        )
        (folder / CARD).write_text(card, "utf-8")
    return Exported(out, programs)


def require_empty(out: Path) -> None:
    """Refuse a file, and a folder that is not empty."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise BenchmdError(
            f"{out} exists and is not an empty folder: name another one with --out, or remove it."
        )


def _require_exportable(run: Run) -> None:
    if run.settings.transfer.mode == "knn" and run.description["kind"] == "transfer":
        raise BenchmdError(
            f"{shown(run.folder)} uses nearest neighbours: its model contains the features and "
            "labels of all training records, which are patient data. Export its pretraining, "
            "or a transfer of another mode."
        )
    if run.description["kind"] == "transfer" and run.modality.task.segments:
        raise BenchmdError(
            f"{shown(run.folder)} has a segmentation model, which cannot be exported yet: name "
            "a pretraining, or a transfer to classes."
        )


def _model(runs: Sequence[Run]) -> portable.Model:
    folder, *others = (run.folder for run in runs)
    if runs[0].description["kind"] == "transfer":
        return SignalClassifier(folder, "cpu", others)
    return FeatureEncoder(folder, "cpu")


def _tensors(model: portable.Model) -> dict[str, Any]:
    if isinstance(model, SignalClassifier):
        return tensors_of(model.models)
    tensors: dict[str, Any] = model.encoder.state_dict(prefix="encoder.")
    return tensors


def _width(model: portable.Model) -> int:
    return len(model.classes) if isinstance(model, SignalClassifier) else model.width


def _programs(
    run: Run, model: portable.Model, folder: Path, names: list[str], catalog: Catalog | None
) -> tuple[Program, ...]:
    if catalog is None:
        checks = portable.noise(model.signal, model_description(run.folder)["statistics"])
    else:
        checks = portable.records_of(catalog, model.signal)
    program, programs = portable.traced(model), []
    for name in names:
        if name == portable.TORCH:
            outputs = portable.write_torch(program, folder)
        else:
            inputs = portable.input_names(model.signal)
            outputs = portable.write_onnx(program, folder, inputs, portable.output_name(model))
        apart = portable.require_equal(name, outputs, model, checks)
        programs.append(Program(name, apart, checks.what))
    return tuple(programs)


def _config(
    runs: Sequence[Run],
    model: portable.Model,
    weights: str,
    folder: Path,
    programs: tuple[Program, ...],
) -> dict[str, Any]:
    """Content of ``config.json``: `model_description` and the model's origin."""
    described, (trained, members) = model_description(runs[0].folder), origins(runs)
    if len(runs) > 1:
        statistics = [model_description(run.folder)["statistics"] for run in runs]
        pairs = zip(statistics, members, strict=True)
        described["members"] = [{"statistics": of, "trained": about} for of, about in pairs]
        described["statistics"] = None
    return {
        **described,
        "weights": weights,
        "output": {"name": portable.output_name(model), "width": _width(model)},
        "programs": {program.file: sha256(folder / program.file) for program in programs},
        "versions": dict(package_versions()),
        "trained": trained,
    }


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """A temporary folder next to ``out``, renamed to it on success."""
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f"{TEMPORARY}{uuid.uuid4().hex[:12]}-{out.name}")
    with removed_on_failure(partial, out):
        partial.mkdir()
        yield partial
        flush(partial)
        require_empty(out)
        os.replace(partial, out)
