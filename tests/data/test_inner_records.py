"""Which records a search may see: none of patients scored later, and only a setting's labels."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from made_catalogs import change_manifest, write_catalog

from benchmd_ray.data import inner
from benchmd_ray.data.cards import DatasetCard, dataset_card
from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.data.inner import (
    FOLDS,
    Labelled,
    barred_patients,
    inner_catalog,
    patients_seen,
    validation_patients,
)
from benchmd_ray.data.records import Record
from benchmd_ray.data.verify import verify
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import sha256
from benchmd_ray.service.choice import Choice
from benchmd_ray.service.families import Tuning
from benchmd_ray.service.searches import planned_searches
from benchmd_ray.service.simulate import Resources
from benchmd_ray.service.tune import inner_catalogs
from benchmd_ray.service.tune_dry_run import estimate_searches
from benchmd_ray.settings.definition import load_settings
from benchmd_ray.storage.location import Address, entries, location
from benchmd_ray.training.selection import transfer_data

SIDES = ("train", "validation")
TRAINED = [f"p{n // 2}" for n in range(40)]
"""Patients of the source's training records: p0 to p19, two records of each."""
SCORED = ["p3", "p4", "p4", "p11", "q0"]
"""Patients of its scored records, three of whom are trained on."""


def record(name: str, patient: str, positive: set[int], card: DatasetCard) -> Record:
    """A record with some positive classes."""
    signal = np.zeros(card.signal.stored_shape, card.signal.dtype)
    target = [int(number in positive) for number in range(len(card.classes))]
    return Record(name, patient, name, signal, 1.0, card.signal.stored_shape[1:], target)


def films(
    path: Path, name: str, policy: str, several: bool = False, **patients: list[str]
) -> Catalog:
    """A catalog with a record of each of some patients in each split, in shards of up to 15.

    The records' classes take turns; with ``several`` most records have two.
    """
    card = dataset_card(name)
    classes, splits = len(card.classes), {}
    for split, of in patients.items():
        records = []
        for n, patient in enumerate(of):
            positive = {n % classes, n // 3 % classes} if several else {n % classes}
            records.append(record(f"{split}-{n}", patient, positive, card))
        splits[split] = [records[n : n + 15] for n in range(0, len(records), 15)]
    return open_catalog(write_catalog(path, card, splits, policy=policy))


def ids_of(catalog: Catalog, *splits: str) -> dict[str, str]:
    """Patient by record."""
    tables = [t for split in splits for t in catalog.tables(split, ["record_id", "group_id"])]
    return {row["record_id"]: row["group_id"] for table in tables for row in table.to_pylist()}


@pytest.fixture
def source(tmp_path: Path) -> Catalog:
    """Films of which some patients are trained on and scored, as the policy released allows."""
    return films(tmp_path / "ap", "nih-cxr-ap", "released", train=TRAINED, validation=SCORED)


@pytest.mark.parametrize("evaluation", [0, 7])
def test_no_patient_of_a_scored_split_takes_part(source, tmp_path, evaluation):
    barred = barred_patients(source)
    assert barred == {"p3", "p4", "p11"}
    catalog = inner_catalog(source, tmp_path / "inner", evaluation, barred=barred)
    train, validation = (ids_of(catalog, side) for side in SIDES)
    expected = {f"train-{n}": p for n, p in enumerate(TRAINED) if p not in SCORED}
    assert train | validation == expected
    assert len(train) + len(validation) == len(expected) == 34
    assert not set(train.values()) & set(validation.values())
    assert len(validation) in range(4, 11)
    assert patients_seen(source, barred=barred) == 17
    assert patients_seen(source) == 20
    assert verify(catalog).faults == ()


def test_no_patient_of_a_target_of_the_same_origin_takes_part(source, tmp_path):
    """The hashes of another origin have another key, so that an equal one means nothing."""
    target = films(tmp_path / "pa", "nih-cxr-pa", "released", validation=["p0", "r1"], train=["p1"])
    other = films(tmp_path / "vindr", "vindr-cxr", "released", validation=["p2"])
    assert barred_patients(source, [target, other]) == {"p0", "p3", "p4", "p11"}
    catalog = inner_catalog(source, tmp_path / "i", barred=barred_patients(source, [target, other]))
    assert set(ids_of(catalog, *SIDES).values()) == set(TRAINED) - {"p0", *SCORED}


def test_where_no_patient_is_shared_nothing_changes(tmp_path):
    source = films(tmp_path / "ap", "nih-cxr-ap", "clean", train=TRAINED, validation=["q0", "q1"])
    target = films(tmp_path / "pa", "nih-cxr-pa", "clean", test=["r0", "r1"])
    assert barred_patients(source, [target]) == frozenset()
    first = inner_catalog(source, tmp_path / "inner", barred=barred_patients(source, [target]))
    assert first == inner_catalog(source, tmp_path / "inner")


def test_of_scored_splits_only_the_ids_are_read(source):
    shards = []
    for shard in source.manifest["shards"]:
        path = source.path / shard["file"]
        if shard["split"] == "validation":
            _keep_column(path, "group_id")
            shard = shard | {"sha256": sha256(path)}
        shards.append(shard)
    change_manifest(source.path, shards=shards)
    damaged = open_catalog(source.path)
    assert barred_patients(damaged) == {"p3", "p4", "p11"}
    with pytest.raises(BenchmdError, match="is not a whole Parquet file"):
        list(damaged.tables("validation", ["target"]))


def _keep_column(path: Path, name: str) -> None:
    """Overwrite the bytes of all other columns of a Parquet file."""
    data, metadata = bytearray(path.read_bytes()), pq.read_metadata(path)
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            if column.path_in_schema != name:
                start, size = column.data_page_offset, column.total_compressed_size
                data[start : start + size] = bytes([255]) * size
    path.write_bytes(data)


def test_each_choice_of_records_has_its_own_folder(source, tmp_path):
    barred = barred_patients(source)
    choices = [{}, {"barred": barred}, {"barred": frozenset(["p3"])}, {"labelled": Labelled(2, 0)}]
    choices += [{"labelled": Labelled(2, 1)}, {"barred": barred, "labelled": Labelled(2, 1)}]
    catalogs = [inner_catalog(source, tmp_path / "inner", **choice) for choice in choices]
    assert len({catalog.path for catalog in catalogs}) == 6
    assert len({catalog.digest for catalog in catalogs}) == 6
    assert not any(patient in catalog.path.name for catalog in catalogs for patient in barred)
    catalogs[0].path.rename(tmp_path / "away")
    catalogs[2].path.rename(catalogs[0].path)
    with pytest.raises(BenchmdError, match="is not an inner catalog of"):
        inner_catalog(source, tmp_path / "inner")


# Few labels.


def first_of_each_class(targets: list[list[int]], per_class: int, seed: int) -> set[int]:
    """Rows of a single-label setting, one by one in the order of a seed."""
    counts, rows = [0] * len(targets[0]), set()
    for row in np.random.default_rng([seed, 0x1AB]).permutation(len(targets)).tolist():
        number = targets[row].index(1)
        if counts[number] < per_class:
            counts[number] += 1
            rows.add(row)
    return rows


@pytest.mark.parametrize(("evaluation", "seed"), [(0, 0), (6, 3)])
def test_a_few_label_setting_sees_only_the_labels_of_its_run(
    ecg_catalogs, tmp_path, evaluation, seed
):
    source = ecg_catalogs["ptb-xl"]
    catalog = inner_catalog(source, tmp_path, evaluation, labelled=Labelled(8, seed))
    train, validation = (ids_of(catalog, side) for side in SIDES)
    names = list(ids_of(source, "train"))
    targets = [row for t in source.tables("train", ["target"]) for row in t["target"].to_pylist()]
    labelled = {names[row] for row in first_of_each_class(targets, 8, seed)}
    assert train.keys() | validation.keys() == labelled
    assert len(train) + len(validation) == len(labelled) < len(names)
    settings = load_settings(assignments=["transfer.labels=small", f"seed={seed}"])
    assert labelled == {names[row] for row in transfer_data(settings, source).rows}
    assert not set(train.values()) & set(validation.values())
    assert len(validation) <= len(labelled) / 3
    assert verify(catalog).faults == ()
    # A trial with this setting trains on all of the fold's labels.
    trial = load_settings(assignments=["transfer.labels=small", "seed=99"])
    assert len(transfer_data(trial, catalog).rows) == len(train)


def test_the_labels_of_several_classes_are_those_of_the_run_without_who_is_scored(tmp_path):
    about = {"train": TRAINED, "validation": SCORED}
    source = films(tmp_path / "several", "nih-cxr-ap", "released", several=True, **about)
    assert source.task.kind == "multi-label"
    limits = {"barred": barred_patients(source), "labelled": Labelled(8, 5)}
    catalog = inner_catalog(source, tmp_path / "inner", **limits)
    run = load_settings(assignments=["transfer.labels=small", "seed=5"])
    rows = {f"train-{row}" for row in transfer_data(run, source).rows}
    assert 8 < len(rows) < len(TRAINED)
    expected = {f"train-{n}" for n, p in enumerate(TRAINED) if p not in SCORED} & rows
    assert expected < rows
    assert set(ids_of(catalog, *SIDES)) == expected
    assert patients_seen(source, **limits) == len(set(ids_of(catalog, *SIDES).values()))


def test_too_few_labels_are_refused_with_what_to_do(source):
    with pytest.raises(
        BenchmdError,
        match=r"training split of .*ap, with 1 label per class by seed 0, has 5 records of \d "
        r"patients, too few to cut .* expected two patients or more with a class in common\. To "
        r"search, use a source with more patients, or search a setting with more labels\.$",
    ):
        validation_patients(source, labelled=Labelled(1, 0))


def test_where_all_patients_are_scored_nothing_is_left_to_search(tmp_path):
    source = films(
        tmp_path / "ap", "nih-cxr-ap", "released", train=["p0", "p1", "p1"], validation=["p0", "p1"]
    )
    with pytest.raises(
        BenchmdError,
        match=r"without the 2 patients scored later has 0 records of 0 patients, too few .*, or "
        r"build the catalogs with --policy clean\.$",
    ):
        inner_catalog(source, tmp_path / "inner", barred=barred_patients(source))


def test_a_class_of_fewer_records_than_folds_leaves_every_evaluation_a_fold(tmp_path):
    """Three labels of each class are cut into three folds, and evaluations 3 and 4 anew."""
    patients = [f"p{n}" for n in range(40)]
    source = films(tmp_path / "ap", "nih-cxr-ap", "clean", train=patients, validation=["q"])
    labelled = Labelled(3, 0)
    folds = [validation_patients(source, e, labelled=labelled) for e in range(FOLDS)]
    few = set().union(*folds[:3])
    assert sum(map(len, folds[:3])) == len(few) == patients_seen(source, labelled=labelled) == 15
    assert len(set(folds)) == FOLDS


# Callers.


@pytest.fixture
def manifests(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """Manifests of inner catalogs, in the order in which they are made."""
    manifests, manifest_of = [], inner.manifest_of

    def noted(*arguments: object) -> dict:
        manifests.append(manifest_of(*arguments))
        return manifests[-1]

    monkeypatch.setattr(inner, "manifest_of", noted)
    return manifests


def asked_at_once(source: Catalog, folder: Path | Address) -> list[Catalog]:
    barred = barred_patients(source)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(inner_catalog, source, folder, 4, barred=barred) for _ in range(4)]
        return [catalog.result() for catalog in waiting]


def test_any_number_may_ask_for_a_catalog_at_once(source, manifests, tmp_path):
    first, *others = asked_at_once(source, tmp_path / "inner")
    assert all(catalog == first for catalog in others)
    assert len(manifests) == 1
    assert verify(first).faults == ()


def test_any_number_may_ask_for_a_catalog_on_s3_at_once(
    source, manifests, s3, tmp_path, monkeypatch
):
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(inner, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr("benchmd_ray.files.atomic.LOOK_SECONDS", 0.01)
    folder = location(f"{s3}/inner")
    first, *others = asked_at_once(source, folder)
    assert all(catalog == first for catalog in others)
    assert len(manifests) == 1
    assert verify(first).faults == ()
    assert entries(folder)[1] == [first.path.name]
    assert not [path for path in (tmp_path / "cache" / "inner").rglob("*") if path.is_file()]


@pytest.mark.parametrize("policy", ["clean", "released"])
def test_a_search_is_named_by_the_targets_of_its_sources_origin(source, tmp_path, policy):
    splits = {"clean": {"test": ["p0"]}, "released": {"validation": ["p0"]}}
    target = films(tmp_path / "pa", "nih-cxr-pa", policy, **splits[policy])
    other = films(tmp_path / "vindr", "vindr-cxr", "released", validation=["p0"])

    def planned(*catalogs: Catalog):
        choice = Choice(tuple(c.path for c in catalogs))
        (plan,) = planned_searches(Tuning(choice, ("scratch",), ("linear",)), gpu=False)
        return plan

    alone, both = planned(source, other), planned(source, target, other)
    assert alone.related == ()
    assert [dataset.name for dataset in both.related] == ["nih-cxr-pa"] * (policy == "released")
    assert (alone.name == both.name) == (policy == "clean")  # another policy is not scored with it


@pytest.mark.parametrize("setting", ["linear", "linear-small"])
def test_the_trials_of_a_search_see_no_patient_scored_later(tmp_path, setting):
    about = {"train": TRAINED, "validation": SCORED}
    source = films(tmp_path / "ap", "nih-cxr-ap", "released", several=True, **about)
    target = films(tmp_path / "pa", "nih-cxr-pa", "released", validation=["p0", "r1"])
    choice = Choice((source.path, target.path), seeds=(5,))
    (plan,) = planned_searches(Tuning(choice, ("scratch",), (setting,)), gpu=False)
    catalogs = inner_catalogs(plan, tmp_path / "store", lambda: None)(0)
    run = load_settings(assignments=["transfer.labels=small", "seed=5"])
    small = {f"train-{row}" for row in transfer_data(run, source).rows}
    free = {f"train-{n}" for n, p in enumerate(TRAINED) if p not in {"p0", *SCORED}}
    assert set(ids_of(catalogs[0], *SIDES)) == (free if setting == "linear" else free & small)


def test_a_dry_run_counts_the_labels_of_a_few_label_setting(tmp_path):
    about = {"train": [f"p{n}" for n in range(200)], "validation": ["q0"]}
    source = films(tmp_path / "ap", "nih-cxr-ap", "clean", **about)
    seen = {}
    for setting in ("finetune-full", "finetune-small"):
        tuning = Tuning(Choice((source.path,)), ("scratch",), (setting,))
        (estimate,) = estimate_searches([tuning], tmp_path, Resources(1, 0), tflops=0.1)
        text = "\n".join(estimate.lines())
        seen[setting] = re.findall(r"1 / 5 of the (.*) records of nih-cxr-ap, by patient", text)
    assert seen == {"finetune-full": ["200 train"], "finetune-small": ["40 labelled train"]}
