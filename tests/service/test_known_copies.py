"""Copies that the field is known for: HAM10000 in BCN20000, and one patient's films in NIH."""

from __future__ import annotations

import csv
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmd_ray.data.splits import stable_fraction
from benchmd_ray.demo.derm import write_derm
from benchmd_ray.errors import BenchmdError
from benchmd_ray.report.analysis import analyse
from benchmd_ray.runs.predictions import predictions_path, read_predictions, shared_in
from benchmd_ray.runs.pretraining_data import write_learned
from benchmd_ray.service.execute import transfer_run
from benchmd_ray.service.shared_records import learned_of, shared_records
from benchmd_ray.settings.definition import ENCODERS, Settings, updated

SMALL = updated(
    Settings(encoder=ENCODERS["tiny"]),
    {"transfer": {"epochs": 1, "batch_size": 16}, "execution": {"device": "cpu"}},
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path / "cache"))


def table_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write_derm(tmp_path_factory.mktemp("derm"), source_records=120, target_records=40)


@pytest.fixture
def raw(written, tmp_path):
    """Folders of HAM10000 and BCN20000 that may be changed."""
    names = ("bcn20000", "ham10000")
    return {n: shutil.copytree(written[n], tmp_path / "raw" / n) for n in names}


@pytest.fixture
def copied(raw):
    """Names of HAM10000 that BCN20000 has, byte by byte, under other names and lesions."""
    theirs = [
        row["image"]
        for row in table_of(raw["bcn20000"] / "ISIC_2019_Training_Metadata.csv")[1:]
        if row["lesion_id"].startswith("BCN_")
    ]
    folder = raw["bcn20000"] / "ISIC_2019_Training_Input"
    files = sorted(raw["ham10000"].rglob("*.jpg"))[14:20]
    for name, file in zip(theirs[: len(files)], files, strict=True):
        shutil.copy(file, folder / f"{name}.jpg")
    return {file.stem for file in files}


@pytest.mark.slow
def test_images_of_ham10000_in_bcn20000_are_not_scored_and_counted(
    raw, copied, build_here, tmp_path
):
    source, target = (
        build_here(name, raw[name], tmp_path / name) for name in ("bcn20000", "ham10000")
    )
    run = transfer_run(source.path, tmp_path / "runs", SMALL, targets=(target.path,))
    path = predictions_path(run.folder, "ham10000")
    rows = table_of(raw["ham10000"] / "HAM10000_metadata")
    lesions = {row["lesion_id"] for row in rows if row["image_id"] in copied}
    expected = {row["image_id"] for row in rows if row["lesion_id"] not in lesions}
    assert {*read_predictions(path).table["record_id"].to_pylist()} == expected
    assert 0 < len(copied) <= 40 - len(expected)
    text = (
        f"{40 - len(expected)} of 40 records excluded: the training or validation of bcn20000 has "
        "them or their patients"
    )
    assert shared_in(path) == text
    notes = analyse([run], resamples=20).notes
    assert f"ham10000: {text}." in notes
    refusing = replace(target, card=replace(target.card, duplicates="refuse"))
    with pytest.raises(BenchmdError, match=r"\d of the 40 records .* has duplicates: refuse"):
        shared_records(run, refusing)


@pytest.mark.slow
def test_released_scores_images_of_ham10000_that_bcn20000_has_and_says_so(
    raw, build_here, tmp_path
):
    source, target = (
        build_here(name, raw[name], tmp_path / name, policy="released")
        for name in ("bcn20000", "ham10000")
    )
    run = transfer_run(source.path, tmp_path / "runs", SMALL, targets=(target.path,))
    path = predictions_path(run.folder, "ham10000")
    scored = {*read_predictions(path).table["record_id"].to_pylist()}
    rows = table_of(raw["ham10000"] / "HAM10000_metadata")
    assert len(scored) == target.rows("validation")
    names = {
        row["image"]
        for row in table_of(raw["bcn20000"] / "ISIC_2019_Training_Metadata.csv")
        if row["lesion_id"].startswith("HAM_")
    }
    lesions = {row["lesion_id"] for row in rows if row["image_id"] in names}
    shared = {row["image_id"] for row in rows if row["lesion_id"] in lesions} & scored
    assert shared_in(path).startswith(f"{len(shared)} of {len(scored)} records scored though")


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("option", ["exclude", "keep"])
def test_pa_films_of_patients_with_ap_films_are_not_scored(real_data, build_here, tmp_path, option):
    """Counts are those of labels.csv: 14 films are of validation patients, 43 of training ones."""
    folder = real_data / "nih-cxr-1000"
    source = build_here("nih-cxr-ap", folder, tmp_path / "ap")
    target = build_here("nih-cxr-pa", folder, tmp_path / "pa", options={"shared_patients": option})
    write_learned(tmp_path, learned_of(source))
    about = {"source": "nih-cxr-ap", "determinants": {"catalog": source.digest}}
    shared = shared_records(SimpleNamespace(folder=tmp_path, description=about), target)
    rows = table_of(folder / "labels.csv")
    patients = {row["Patient ID"] for row in rows if row["View Position"] == "AP"}
    films = [row["Patient ID"] for row in rows if row["View Position"] == "PA"]
    selecting = {n for n in patients if stable_fraction(f"nih-cxr/{n}") >= 0.8}
    assert [sum(n in of for n in films) for of in (patients, selecting)] == [57, 14]
    if option == "exclude":  # films of training patients are not in the catalog
        assert (len(shared.records), shared.of, shared.excluded) == (14, 433 - 43, True)
    else:
        assert (len(shared.records), shared.of, shared.excluded) == (57, 433, False)
