import itertools
import shutil
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_catalogs import change_manifest

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.catalog import confined, open_catalog
from benchmd_ray.data.feed import read_columns
from benchmd_ray.data.inner import FOLDS, inner_catalog, validation_patients
from benchmd_ray.data.records import Record, decode_signals
from benchmd_ray.data.splits import rarest_class
from benchmd_ray.data.verify import verify
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import TEMPORARY

SIDES = ("train", "validation")


@pytest.fixture(scope="session")
def ecg_source(ecg_catalogs):
    """The source among the synthetic catalogs, not to be changed."""
    (source,) = (c for c in ecg_catalogs.values() if c.card.role == "source")
    return source


@pytest.fixture(scope="session")
def inner(ecg_source, tmp_path_factory):
    """Its inner catalog, not to be changed."""
    return inner_catalog(ecg_source, tmp_path_factory.mktemp("inner"))


@pytest.fixture
def copied(ecg_source, tmp_path):
    """A copy of the source, to be damaged."""
    return open_catalog(shutil.copytree(ecg_source.path, tmp_path / "copy"))


def rows_of(catalog, *splits):
    """Rows of splits by record: all columns but the split's."""
    tables = [pq.read_table(p) for split in splits for p, *_ in catalog.shards(split)]
    rows = pa.concat_tables(tables).to_pylist()
    for row in rows:
        del row["split"]
    return {row["record_id"]: row for row in rows}


def patients_of(rows):
    return {row["group_id"] for row in rows.values()}


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_the_inner_folds_share_no_patient(ecg_source, inner):
    train, validation = (rows_of(inner, side) for side in SIDES)
    held = rows_of(ecg_source, "train")
    assert not patients_of(train) & patients_of(validation)
    assert train | validation == held  # ids, signals, targets, ages: all of the training split …
    assert len(train) + len(validation) == len(held)
    other = rows_of(ecg_source, *ecg_source.manifest["splits"].keys() - {"train"})
    assert other
    assert not other.keys() & (train.keys() | validation.keys())  # … and nothing of another
    assert not patients_of(other) & (patients_of(train) | patients_of(validation))
    assert set(inner.manifest["splits"]) == set(SIDES)
    assert 0.15 <= len(validation) / len(held) <= 0.25


def test_the_folds_of_a_cut_hold_each_patient_once_and_the_next_cut_is_another(ecg_source):
    folds = [validation_patients(ecg_source, evaluation) for evaluation in range(2 * FOLDS)]
    patients = patients_of(rows_of(ecg_source, "train"))
    for cut in (folds[:FOLDS], folds[FOLDS:]):
        assert sum(map(len, cut)) == len(patients)
        assert frozenset().union(*cut) == patients
        assert max(map(len, cut)) - min(map(len, cut)) <= 0.1 * len(patients)
    assert len(set(folds)) == 2 * FOLDS
    assert validation_patients(ecg_source, 7) == folds[7]


@pytest.mark.parametrize("evaluation", [3, 6])
def test_no_fold_shares_a_patient(ecg_source, tmp_path, evaluation):
    made = inner_catalog(ecg_source, tmp_path, evaluation)
    train, validation = (rows_of(made, side) for side in SIDES)
    assert patients_of(validation) == validation_patients(ecg_source, evaluation)
    assert not patients_of(train) & patients_of(validation)
    assert train | validation == rows_of(ecg_source, "train")
    assert verify(made).faults == ()
    shutil.move(made.path, tmp_path / made.path.name.replace(f"{evaluation:03d}", "000"))
    with pytest.raises(BenchmdError, match="is not an inner catalog of"):
        inner_catalog(ecg_source, tmp_path)  # of another evaluation


def test_a_class_of_enough_patients_is_on_both_sides(ecg_source, inner):
    held, (train, validation) = rows_of(ecg_source, "train"), (rows_of(inner, s) for s in SIDES)

    def patients(rows, number):
        return {r["group_id"] for r in rows.values() if r["target"][number] == 1}

    common = [n for n in range(7) if len(patients(held, n)) >= FOLDS]
    assert len(common) >= 4
    for number in common:
        assert patients(train, number)
        assert patients(validation, number)


def test_the_statistics_are_those_of_the_inner_training_side_alone(ecg_source, inner):
    def statistics(catalog):
        table = pa.concat_tables([pq.read_table(p) for p, *_ in catalog.shards("train")])
        signals = decode_signals(table["signal"], catalog.signal).astype(np.float64)
        signals *= np.array(table["scale"], np.float64)[:, None, None]
        return signals.mean(axis=(0, 2)), signals.std(axis=(0, 2))

    mean, std = statistics(inner)
    np.testing.assert_allclose(inner.statistics["mean"], mean, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(inner.statistics["std"], std, rtol=1e-6)
    whole_mean, whole_std = statistics(ecg_source)
    assert abs(whole_std - std).max() > 1e-4 * std.max()  # the whole split's are others
    assert abs(whole_mean - mean).max() > 1e-6


def test_an_inner_catalog_is_cut_with_validation_and_targets_unreadable(
    copied, inner, tmp_path, ecg_catalogs
):
    for split in copied.manifest["splits"].keys() - {"train"}:
        for path, *_ in copied.shards(split):
            path.unlink()
    with confined([copied.path, tmp_path / "made" / inner.path.name]):  # nor any other catalog
        made = inner_catalog(copied, tmp_path / "made")
    assert made.digest == inner.digest
    assert contents(made.path) == contents(inner.path)


def test_an_inner_catalog_passes_verification(inner):
    found = verify(inner)
    assert found.faults == ()
    assert not any(" share " in note for note in found.notes)


def test_verification_can_find_fault_with_one(inner, tmp_path):
    path = shutil.copytree(inner.path, tmp_path / "copy")
    (shard, *_) = (path / "shards").glob("validation-*")
    shard.unlink()
    assert len(verify(open_catalog(path)).faults) == 1


def test_a_second_call_rewrites_nothing(copied, tmp_path):
    first = inner_catalog(copied, tmp_path / "made")
    before = {path: path.stat().st_mtime_ns for path in first.path.rglob("*")}
    shutil.rmtree(copied.path / "shards")  # nor does it read any shard
    again = inner_catalog(copied, tmp_path / "made")
    assert again == first
    assert {path: path.stat().st_mtime_ns for path in first.path.rglob("*")} == before


def test_what_was_left_half_written_is_removed(ecg_source, inner, tmp_path):
    leftover = tmp_path / f"{TEMPORARY}abc-{inner.path.name}"
    (leftover / "shards").mkdir(parents=True)
    (leftover / "shards" / "train-00000.parquet").write_bytes(b"half")
    other = tmp_path / f"{TEMPORARY}abc-another-clean-0123"
    other.mkdir()
    made = inner_catalog(ecg_source, tmp_path)
    assert not leftover.exists()
    assert other.exists()  # of another catalog, which another process may be writing
    assert contents(made.path) == contents(inner.path)


def test_nothing_stays_of_a_cut_that_failed(ecg_source, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("gone")

    monkeypatch.setattr("benchmd_ray.data.inner.manifest_of", fail)
    with pytest.raises(OSError, match="gone"):
        inner_catalog(ecg_source, tmp_path)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


def test_an_altered_training_shard_is_refused(copied, tmp_path):
    (path, *_), *_ = copied.shards("train")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(BenchmdError, match=r"train-.*is damaged: its SHA-256 is not the one"):
        inner_catalog(copied, tmp_path / "made")
    assert not list((tmp_path / "made").glob("*/manifest.json"))


def test_a_target_is_refused(ecg_catalogs, tmp_path):
    target = next(c for c in ecg_catalogs.values() if c.card.role == "target")
    with pytest.raises(BenchmdError, match=rf"target {target.dataset}: a search never sees"):
        inner_catalog(target, tmp_path)


def test_a_folder_of_another_source_is_refused(ecg_source, inner, tmp_path):
    path = shutil.copytree(inner.path, tmp_path / inner.path.name)
    change_manifest(path, inner_of="0" * 64)
    with pytest.raises(BenchmdError, match=r"is not an inner catalog of .*: remove that folder"):
        inner_catalog(ecg_source, tmp_path)


def record(name, group, target, card, unit=""):
    signal = np.zeros(card.signal.stored_shape, card.signal.dtype)
    extent = card.signal.stored_shape[1:]
    return Record(name, group, unit or name, signal, 1.0, extent, target)


def one_hot(number):
    return np.eye(7, dtype=int)[number].tolist()


@pytest.mark.parametrize(
    ("groups", "classes", "numbers"),
    [
        (["a"] * 6, [0] * 6, "6 records of 1 patient"),
        (["a", "b", "c"], [0, 1, 2], "3 records of 3 patients"),  # none has a class in common
    ],
)
def test_too_few_patients_are_refused(write_catalog, groups, classes, numbers):
    card = dataset_card("ptb-xl")
    records = [
        record(f"r{i}", group, one_hot(number), card)
        for i, (group, number) in enumerate(zip(groups, classes, strict=True))
    ]
    with pytest.raises(BenchmdError, match=rf"{numbers}, too few to cut"):
        validation_patients(write_catalog(card, {"train": [records]}))


@pytest.mark.parametrize("patients", [2, 3, 4, 7])
def test_few_patients_are_cut_with_someone_on_both_sides(write_catalog, patients):
    card = dataset_card("ptb-xl")
    records = [record(f"r{i}", f"p{i % patients}", one_hot(0), card) for i in range(2 * patients)]
    held = validation_patients(write_catalog(card, {"train": [records]}))
    assert 1 <= len(held) < patients


def test_of_fewer_folds_no_cut_is_shared_by_the_race_and_what_is_fresh(write_catalog):
    """Seven classes of three patients each are enough for three folds."""
    card = dataset_card("ptb-xl")
    records = [record(f"r{i}", f"p{i}", one_hot(i % 7), card) for i in range(21)]
    catalog = write_catalog(card, {"train": [records]})
    folds = [validation_patients(catalog, evaluation) for evaluation in range(2 * FOLDS)]
    for first in (0, FOLDS):
        assert sorted(set().union(*folds[first : first + 3])) == sorted(f"p{i}" for i in range(21))
        assert sum(map(len, folds[first : first + 3])) == 21
    assert len(set(folds)) == 2 * FOLDS


@pytest.mark.parametrize("rare", [2, 3, 4, 6])
def test_every_evaluation_of_few_patients_can_be_scored(write_catalog, rare):
    """Each side has patients with and without the rarer class, however few have it."""
    card = dataset_card("ptb-xl")
    classes = [1] * rare + [0] * (13 - rare)
    records = [record(f"r{i}", f"p{i}", one_hot(at), card) for i, at in enumerate(classes)]
    catalog = write_catalog(card, {"train": [records]})
    folds = min(rare, FOLDS)
    held = [validation_patients(catalog, evaluation) for evaluation in range(2 * FOLDS)]
    for side in (*held, *({f"p{i}" for i in range(13)} - patients for patients in held)):
        assert {classes[int(patient[1:])] for patient in side} == {0, 1}
    assert sorted(p for fold in held[:folds] for p in fold) == sorted(f"p{i}" for i in range(13))


def test_windows_of_a_patient_stay_together(write_catalog):
    """Patients of one to three windows, of two scans, in several shards."""
    card, generator = dataset_card("lidc-idri"), np.random.default_rng(3)
    classes = len(card.classes)
    records = []
    for patient in range(12):
        for window in range(int(generator.integers(1, 4))):
            target = (np.arange(classes) == patient % classes).astype(int)
            name = f"w{patient}-{window}"
            made = record(name, f"p{patient}", target.tolist(), card, f"s{patient}-{window % 2}")
            records.append(made)
    order = generator.permutation(len(records))  # of a patient, windows lie in several shards
    parts = [[records[i] for i in part] for part in np.array_split(order, 3)]
    source = write_catalog(card, {"train": parts})
    held = validation_patients(source)
    assert 0 < len(held) < 12
    inside = [r for r in records if r.group_id in held]
    assert 0.08 <= len(inside) / len(records) <= 0.35
    for number in range(classes):
        of_class = {f"p{p}" for p in range(12) if p % classes == number}
        assert of_class & held
        assert of_class - held


def slow_rarest(targets):
    """Rarest positive class of each row, by counting."""
    counts = Counter(n for row in targets for n, value in enumerate(row) if value)
    found = []
    for row in targets:
        positive = [n for n, value in enumerate(row) if value]
        found.append(min(positive, key=lambda n: (counts[n], n)) if positive else len(row))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_a_record_of_several_classes_goes_by_its_rarest(seed):
    generator = np.random.default_rng(seed)
    targets = generator.random((60, 6)) < np.array([0.6, 0.5, 0.3, 0.1, 0.05, 0.0])
    assert rarest_class(targets).tolist() == slow_rarest(targets.tolist())


def test_a_rare_class_beside_a_common_one_is_on_both_sides(write_catalog):
    """All records have class 0; five patients have class 1 too, which a plain cut would miss."""
    card = dataset_card("mimic-cxr")
    assert card.task.kind == "multi-label"
    card_records = []
    for patient in range(50):
        target = [1, int(patient % 10 == 0)] + [0] * (len(card.classes) - 2)
        card_records.append(record(f"r{patient}", f"p{patient}", target, card))
    held = validation_patients(write_catalog(card, {"train": [card_records]}))
    assert len({f"p{n}" for n in range(0, 50, 10)} & held) == 1
    assert len(held) == 10


# What a search may open.


@pytest.fixture
def other(ecg_catalogs):
    """A catalog that was opened before the search."""
    return next(c for c in ecg_catalogs.values() if c.card.role == "target")


def test_no_other_catalog_is_opened_or_read_while_confined(ecg_source, inner, other):
    assert read_columns(other, other.evaluation_splits[0]).targets.size
    with confined([inner.path]):
        assert open_catalog(inner.path) == inner
        assert len(read_columns(inner, "train").targets) == inner.rows("train")
        for catalog in (ecg_source, other):
            with pytest.raises(BenchmdError, match="must not be opened: a search sees"):
                open_catalog(catalog.path)
            split = next(iter(catalog.manifest["splits"]))
            with pytest.raises(BenchmdError, match=f"{catalog.path} must not be opened"):
                catalog.shards(split)
            with pytest.raises(BenchmdError, match="must not be opened"):
                read_columns(catalog, split)
    assert open_catalog(other.path) == other
    assert open_catalog(ecg_source.path).shards("train")


def test_a_path_by_another_name_is_the_same(inner, other, tmp_path):
    for number, catalog in enumerate((inner, other)):
        (tmp_path / f"link{number}").symlink_to(catalog.path)
    with confined([inner.path]):
        assert open_catalog(tmp_path / "link0").digest == inner.digest
        with pytest.raises(BenchmdError, match="must not be opened"):
            open_catalog(tmp_path / "link1")


def test_confinement_ends_as_it_began(ecg_source, inner, other):
    def allowed():
        found = []
        for catalog in (inner, ecg_source, other):
            try:
                found.append(bool(open_catalog(catalog.path)))
            except BenchmdError:
                found.append(False)
        return found

    def fail_within():
        with confined([]):
            assert allowed() == [False, False, False]
            raise RuntimeError("gone")

    assert allowed() == [True, True, True]
    with confined([inner.path, ecg_source.path]):
        assert allowed() == [True, True, False]
        with confined(iter([inner.path])):
            assert allowed() == [True, False, False]
        with confined([inner.path, other.path]):  # never wider than the one around it
            assert allowed() == [True, False, False]
        assert allowed() == [True, True, False]
        with pytest.raises(RuntimeError, match="gone"):
            fail_within()
        assert allowed() == [True, True, False]
    assert allowed() == [True, True, True]


def test_the_order_of_the_records_plays_no_part(write_catalog):
    card = dataset_card("ptb-xl")
    generator = np.random.default_rng(0)
    found = set()
    names = [f"p{n}" for n in generator.permutation(30)]
    records = [record(n, n, one_hot(i % 3), card) for i, n in enumerate(sorted(names))]
    for number, order in enumerate(itertools.islice(itertools.permutations(range(3)), 2)):
        parts = [records[10 * i : 10 * i + 10] for i in order]
        folder = write_catalog(card, {"train": parts})
        found.add(validation_patients(folder))
        folder.path.rename(folder.path.with_name(f"kept-{number}"))
    assert len(found) == 1
