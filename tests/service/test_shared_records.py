"""What a source's training has is not scored, wherever it comes from, and reports say so."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from PIL import Image

from benchmd_ray.cli import main
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.card_folders import CARDS
from benchmd_ray.report.analysis import analyse
from benchmd_ray.runs.predictions import predictions_path, read_predictions, shared_in
from benchmd_ray.runs.pretraining_data import LEARNED, read_learned
from benchmd_ray.service.execute import evaluate_run, pretrain_run, transfer_run
from benchmd_ray.settings.definition import ENCODERS, Settings, updated

SMALL = updated(
    Settings(encoder=ENCODERS["tiny"]),
    {
        "pretrain": {"steps": 1, "batch_size": 4},
        "transfer": {"epochs": 1, "batch_size": 16},
        "execution": {"device": "cpu"},
    },
)
RECORDS = 60


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def card(tmp_path, monkeypatch):
    """Makes a card of pictures in a table."""
    folders = []

    def make(name, role="source", columns=("patient", "split"), **about):
        files = {"table": "table.csv", "path": "image", **{c: c for c in columns}}
        content = {
            **{"name": name, "modality": "derm", "role": role, "files": files},
            "task": {"kind": "single-label", "classes": ["a", "b"]},
            **about,
        }
        folders.append(tmp_path / "cards" / name)
        folders[-1].mkdir(parents=True)
        (folders[-1] / f"{name}.yaml").write_text(yaml.safe_dump(content), "utf-8")
        monkeypatch.setenv(CARDS, os.pathsep.join(map(str, folders)))
        return dataset_card(name)

    return make


def write_pictures(folder: Path, numbers, patients=lambda n: n // 2, split=None) -> Path:
    """Pictures that their numbers determine, 60 % train, 20 % validation, 20 % test."""
    (folder / "images").mkdir(parents=True)
    lines = ["image,label,patient,split"]
    for number in numbers:
        name = f"images/{number}.png"
        pixels = np.random.default_rng(number).integers(0, 256, (24, 24, 3), np.uint8)
        Image.fromarray(pixels).save(folder / name)
        of = split or ("train", "train", "train", "validation", "test")[number // 2 % 5]
        lines.append(f"{name},{'ab'[number % 2]},p{patients(number)},{of}")
    (folder / "table.csv").write_text("\n".join(lines), "utf-8")
    return folder


@pytest.fixture
def source(card, build_here, tmp_path):
    card("hospital")
    raw = write_pictures(tmp_path / "raw", range(RECORDS))
    return build_here("hospital", raw, tmp_path / "hospital")


def evaluated(run, catalog):
    return read_predictions(evaluate_run(run, catalog.path, SMALL))


def names_in(catalog, *splits) -> set[str]:
    tables = (table for split in splits for table in catalog.tables(split, ["record_id"]))
    return {name for table in tables for name in table["record_id"].to_pylist()}


def notes_of(run) -> list[str]:
    return [line for line in analyse([run], resamples=20).notes if "training or validation" in line]


def test_a_target_of_the_sources_files_is_scored_without_what_trained(
    source, card, build_here, tmp_path
):
    card("twin", "target", columns=("patient",))
    target = build_here("twin", tmp_path / "raw", tmp_path / "twin")
    total = sum(map(target.rows, target.evaluation_splits))
    run = transfer_run(source.path, tmp_path / "runs", SMALL, targets=(target.path,))
    path = predictions_path(run.folder, "twin")
    learned = names_in(source, "train", "validation")
    names = names_in(target, *target.evaluation_splits)
    assert 0 < len(names - learned) < len(names)
    predictions = read_predictions(path)
    assert {*predictions.table["record_id"].to_pylist()} == names - learned
    count = len(names & learned)
    text = (
        f"{count} of {total} records excluded: the training or validation of hospital has them or "
        "their patients"
    )
    assert shared_in(path) == text
    assert notes_of(run) == [f"twin: {text}."]
    path.unlink()
    command = ["evaluate", str(run.folder), "--catalog", str(target.path)]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines()[-1] == f"note: {text}"


def test_patients_hashed_by_different_secrets_are_not_taken_for_different_patients(
    card, build_here, tmp_path, monkeypatch
):
    """Other pictures of the same patients, who are only found if both catalogs have one secret."""
    card("hospital", patient_namespace="region")
    raw = write_pictures(tmp_path / "raw", range(RECORDS))
    source = build_here("hospital", raw, tmp_path / "hospital")
    run = transfer_run(source.path, tmp_path / "runs", SMALL)
    card("clinic", "target", columns=("patient",), patient_namespace="region")
    raw = write_pictures(tmp_path / "others", range(200, 240), lambda n: n - 200)
    same = build_here("clinic", raw, tmp_path / "same")
    assert shared_in(evaluate_run(run, same.path, SMALL))
    monkeypatch.setenv("BENCHMD_ID_KEY", "a secret")
    keyed = build_here("clinic", raw, tmp_path / "keyed")
    assert "secret" not in (keyed.path / "manifest.json").read_text()
    with pytest.raises(BenchmdError, match=r"one namespace, region, but hashed by different secr"):
        evaluate_run(run, keyed.path, SMALL)
    card("alone", "target", columns=("patient",))
    alone = build_here("alone", raw, tmp_path / "alone")
    assert not shared_in(evaluate_run(run, alone.path, SMALL))


def test_a_report_says_that_patients_are_unknown(card, build_here, tmp_path):
    card("hospital", columns=("split",))
    raw = write_pictures(tmp_path / "raw", range(RECORDS))
    source = build_here("hospital", raw, tmp_path / "hospital")
    run = transfer_run(source.path, tmp_path / "runs", SMALL)
    said = "hospital: 60 records: its patient is unknown, so each record counts as one"
    assert any(line.startswith(said) for line in analyse([run], resamples=20).notes)


def test_nothing_left_to_score_is_an_error_and_so_are_shared_records_if_the_card_refuses(
    source, card, build_here, tmp_path
):
    raw = write_pictures(tmp_path / "same", range(6), split="test")  # of the source's training
    run = transfer_run(source.path, tmp_path / "runs", SMALL)
    card("same", "target")
    same = build_here("same", raw, tmp_path / "same-catalog")
    with pytest.raises(BenchmdError, match=r"6 of the 6 records .* nothing is left to score"):
        evaluate_run(run, same.path, SMALL)
    raw = write_pictures(tmp_path / "some", [0, *range(100, 120)], lambda n: n, "test")
    card("strict", "target", duplicates="refuse")
    strict = build_here("strict", raw, tmp_path / "strict")
    with pytest.raises(BenchmdError, match=r"1 of the 21 records .* has duplicates: refuse"):
        evaluate_run(run, strict.path, SMALL)
    assert not list((run.folder / "predictions").rglob("s*.parquet"))


@pytest.mark.parametrize("how", ["duplicates: keep", "released"])
def test_shared_records_that_are_kept_are_scored_and_named(how, card, build_here, tmp_path):
    policy = "released" if how == "released" else "clean"
    scored = {"evaluation_splits": {policy: ["test"]}}
    card("hospital", **scored)
    raw = write_pictures(tmp_path / "raw", range(RECORDS))
    source = build_here("hospital", raw, tmp_path / "hospital", policy=policy)
    raw = write_pictures(tmp_path / "some", [0, *range(100, 120)], lambda n: n, "test")
    card("kept", "target", duplicates="merge" if how == "released" else "keep", **scored)
    kept = build_here("kept", raw, tmp_path / "kept", policy=policy)
    run = transfer_run(source.path, tmp_path / "runs", SMALL, targets=(kept.path,))
    assert evaluated(run, kept).table.num_rows == 21
    assert notes_of(run) == [
        "kept: 1 of 21 records scored though the training or validation of hospital has them or "
        "their patients."
    ]


def test_patients_are_compared_where_cards_name_one_namespace(card, build_here, tmp_path):
    for name in ("one", "other", "apart"):
        about = {} if name == "apart" else {"patient_namespace": "town"}
        card(name, "source" if name == "one" else "target", **about)
    raw = write_pictures(tmp_path / "raw", range(RECORDS))
    source = build_here("one", raw, tmp_path / "one")
    # other pictures, of the patients 0 to 9, three of whom are in the source's test split
    raw = write_pictures(tmp_path / "others", range(200, 220), lambda n: n - 200, "test")
    targets = [build_here(name, raw, tmp_path / name) for name in ("other", "apart")]
    run = transfer_run(source.path, tmp_path / "runs", SMALL)
    tested = {number for number in range(20) if number % 5 == 4}
    rows = evaluated(run, targets[0]).table["record_id"].to_pylist()
    assert {int(re.search(r"\d+", name)[0]) - 200 for name in rows} == tested
    assert evaluated(run, targets[1]).table.num_rows == 20


def test_all_runs_of_a_source_are_scored_on_the_same_records(source, card, build_here, tmp_path):
    raw = write_pictures(tmp_path / "some", range(20, 120), split="test")
    card("target", "target")
    target = build_here("target", raw, tmp_path / "target")
    before = pretrain_run("mae", source.path, tmp_path / "runs", SMALL)
    few = updated(SMALL, {"transfer": {"labels": "small"}, "seed": 1})
    runs = [
        transfer_run(source.path, tmp_path / "runs", settings, upstream=upstream)
        for settings, upstream in ((SMALL, None), (few, None), (few, before.folder))
    ]
    names = [evaluated(run, target).table["record_id"].to_pylist() for run in runs]
    assert names[0] == names[1] == names[2]
    assert len(names[0]) == 100 - 32  # 40 are in the source, 8 of them in its test split


def test_what_a_pretraining_elsewhere_saw_is_refused_by_content(source, card, build_here, tmp_path):
    card("elsewhere")
    raw = write_pictures(tmp_path / "more", [8, *range(300, 340)], lambda n: n, "train")
    elsewhere = build_here("elsewhere", raw, tmp_path / "elsewhere")
    before = pretrain_run("mae", elsewhere.path, tmp_path / "runs", SMALL)
    with pytest.raises(
        BenchmdError, match="pretraining on elsewhere saw exact copies of 1 record that is scored"
    ):
        transfer_run(source.path, tmp_path / "runs", SMALL, upstream=before.folder)
    assert not list((tmp_path / "runs").glob("transfer-*"))


def test_a_run_that_did_not_store_what_it_learned_from_is_refused(
    source, card, build_here, tmp_path
):
    run = transfer_run(source.path, tmp_path / "runs", SMALL)
    assert read_learned(run.folder).namespace == "hospital"
    (run.folder / LEARNED).unlink()
    card("twin", "target")
    target = build_here("twin", tmp_path / "raw", tmp_path / "twin")
    with pytest.raises(BenchmdError, match="did not store which records it was trained on"):
        evaluate_run(run, target.path, SMALL)
    shutil.rmtree(run.folder / "predictions")
    assert shared_in(evaluate_run(run, source.path, SMALL)) == ""  # the catalog says it all
