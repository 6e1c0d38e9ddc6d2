"""Detection on a board: the official records, the AUROC of reports, and what is refused."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_bundles import KEY, forge, make_bundle, rehash, write_official
from sklearn.metrics import roc_auc_score

from benchmd_ray.benchmarks.ood import DETECTION
from benchmd_ray.benchmarks.ood.board import scores as detected
from benchmd_ray.benchmarks.ood.scores import scored
from benchmd_ray.benchmarks.ood.table import ABOUT, ABOUT_KEYS, ALL, IN, KEYS, THRESHOLDS
from benchmd_ray.board.build import board_of, entry_id
from benchmd_ray.board.bundle import part_path, read_bundle, row_form
from benchmd_ray.board.official import read_official
from benchmd_ray.board.pack import pack
from benchmd_ray.board.site import verify, write_site
from benchmd_ray.evaluation.evaluation import DETECTED
from benchmd_ray.files.integrity import Damaged, write_hash
from benchmd_ray.runs.predictions import predictions_path, read_predictions
from benchmd_ray.runs.store import read_stores
from benchmd_ray.scores.seeds import pooled_seeds

RESAMPLES = 100
SETS = (
    ("noise 1", "faulty", 1, 40, False),
    ("noise 2", "faulty", 2, 40, False),
    ("photographs", "unrelated", 0, 30, False),
    ("few", "unrelated", 0, 10, False),  # in no mean
    ("another hospital", "shifted", 0, 30, False),  # not out of distribution
    ("gain", "faulty", 0, 40, True),  # a control
)
"""Name, use-case, severity, patients, control; faulty scans are those in distribution."""


def table_of(seed):
    """Scans of two windows, scored by two detectors; a third one is calibrated."""
    rng = np.random.default_rng(seed)
    rows = []

    def add(own, patients, away, **columns):
        for name in (f"{own}/{n}/{window}" for n in range(patients) for window in range(2)):
            ids = {"record_id": name, "unit_id": name[:-2], "group_id": name[:-2]}
            values = {"first": rng.normal(away), "second": rng.normal()}
            rows.append(dict.fromkeys(KEYS) | {"part": "test", "regime": "none"} | ids | columns)
            rows[-1] |= values

    add("calibrating", 30, 0, set=IN, part="calibration")
    add(IN, 40, 0, set=IN, abnormal=False)
    for name, case, severity, patients, control in SETS:
        about = {"use_case": case, "severity": severity, "control": control}
        add(IN if case == "faulty" else name, patients, 0.5 + severity, set=name, **about)
    calibrated = {"regime": "calibrated", "calibrated_on": "photographs"}
    rows += [
        row | {**calibrated, "first": None, "second": None, "third": 0.5}
        for row in rows
        if row["set"] == IN and row["part"] == "test"
    ]
    stated = {name: kind() for name, kind in ABOUT_KEYS.items()} | {"shape": [2, 2]}
    fields = [
        pa.field(name, kind, metadata={ABOUT: json.dumps(stated)} if name == "set" else None)
        for name, kind in KEYS.items()
    ]
    limits = {THRESHOLDS: json.dumps({"photographs": 0.5})}
    fields += [pa.field(n, pa.float64(), metadata=limits) for n in ("first", "second", "third")]
    return pa.Table.from_pylist(rows, pa.schema(fields))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of an entry, with detection on Georgia."""
    folder = tmp_path_factory.mktemp("detection") / "made"
    make_bundle(folder, seeds=2, skill=2.0)
    found = read_stores([folder.with_name("made-store")]).found
    for run in found:
        clean = pq.read_schema(predictions_path(run.folder, "georgia", "classification"))
        path = predictions_path(run.folder, "georgia", "ood")
        path.parent.mkdir(parents=True)
        stated = {b"evaluation": b"ood", b"version": str(DETECTION.form.version).encode()}
        table = table_of(run.description["seed"])
        pq.write_table(table.replace_schema_metadata(clean.metadata | stated), path)
        write_hash(path)
    return found


def predictions_of(run):
    return read_predictions(predictions_path(run.folder, "georgia", "ood"), DETECTION.form)


@pytest.fixture
def official(runs, tmp_path):
    records = detected(predictions_of(runs[0])).select([*DETECTED])
    return write_official(tmp_path / "official.parquet", detections={"georgia": ("ood", records)})


@pytest.fixture
def bundle(runs, tmp_path):
    (tmp_path / "bundle").mkdir()
    pack(runs, tmp_path / "bundle", KEY, submitter="A lab", detection=True)
    return tmp_path / "bundle"


def build(bundle, official):
    return board_of([bundle], read_official(official), title="A board", resamples=RESAMPLES)


def number_of(bundle, detector):
    parts = read_bundle(bundle).about.parts
    return next(n for n, (_, part) in enumerate(parts) if part.condition == detector)


def test_detection_is_scored_on_the_official_records_as_in_reports(runs, bundle, official):
    board = build(bundle, official)
    assert not board.refused, board.refused
    found = {
        (row["detector"], row["use_case"]): row
        for row in board.entries[0].results["georgia"].others
        if "detector" in row
    }
    cases = [("faulty", 2), ("unrelated", 1)]
    assert found.keys() == {(name, case) for name in ("first", "second") for case, _ in cases}
    assert {key[1]: row["sets"] for key, row in found.items()} == dict(cases)
    assert board.entries[0].results["ptb-xl"].others == []
    tables = [predictions_of(run).table.to_pandas().query("part == 'test'") for run in runs]
    for detector, case in found:
        expected = []
        for table in tables:
            alone = table[table["regime"] == "none"]
            scans = alone.groupby(["set", "unit_id"])[detector].max()
            for name in (name for name, of, *_ in SETS[:3] if of == case):
                out = [False] * len(scans[IN]) + [True] * len(scans[name])
                expected.append(roc_auc_score(out, [*scans[IN], *scans[name]]))
        assert found[detector, case]["auroc"] == pytest.approx(np.mean(expected))
    # intervals are those of reports, but for the order in which patients are drawn
    of_seeds = [
        {(each.where.method, each.where.use_case): each for each in scored(p, 2000)}
        for p in (replace(predictions_of(run)) for run in runs)
    ]
    for key, row in found.items():
        pair = [seed[key] for seed in of_seeds]
        assert {each.where.group for each in pair} == {ALL}
        usual = pooled_seeds(
            [each.values["auroc"] for each in pair], [each.draws for each in pair], pair[0].basis
        )
        ends = (row["auroc_low"], row["auroc_high"])
        assert ends == pytest.approx((usual.low, usual.high), abs=0.03)


def test_a_page_shows_detection_and_verify_recomputes_it(bundle, official, tmp_path):
    board = build(bundle, official)
    data = write_site(board, tmp_path / "site", labels=official)
    assert not [*verify(tmp_path / "site", read_official(tmp_path / "site" / "official.parquet"))]
    page = (tmp_path / "site" / f"entry-{entry_id(board.entries[0])}.html").read_text("utf-8")
    assert 'id="detectors"' in page
    georgia = next(each for each in data["datasets"] if each["name"] == "georgia")
    assert georgia["sets_out_of_distribution"] == {"faulty": 2, "unrelated": 1}
    assert "faulty 2, unrelated 1" in (tmp_path / "site" / georgia["page"]).read_text("utf-8")


def test_detection_is_packed_only_if_asked_for_and_for_boards_that_score_it(
    runs, bundle, official, tmp_path
):
    (tmp_path / "plain").mkdir()
    notes = pack(runs, tmp_path / "plain", KEY, submitter="A lab")
    assert sum("name --detection" in note for note in notes) == len(runs)
    assert not build(tmp_path / "plain", official).refused
    (refused,) = build(bundle, write_official(tmp_path / "other.parquet")).refused
    assert "'ood' of 'georgia', which this board does not score" in refused.reason
    text = (bundle / "bundle.json").read_text("utf-8") + repr(part_path(bundle, 2).read_bytes())
    assert "photographs" not in text  # nor any other name of a record's origin


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda rows: rows[:-3], "ood of georgia: 3 records missing"),
        (
            lambda rows: rows[[0, *range(len(rows) - 1)]],
            "1 record missing, 1 record more than once",
        ),
        (lambda rows: with_score(rows, np.nan), "ood of georgia: a score is NaN or infinite"),
        (lambda rows: with_score(rows, np.inf), "ood of georgia: a score is NaN or infinite"),
        (lambda rows: rows.repeat(3), "expected"),
    ],
)
def test_forged_detection_is_refused(bundle, official, change, reason):
    number = number_of(bundle, "first")
    path = part_path(bundle, number)
    path.write_bytes(change(np.fromfile(path, row_form(1))).tobytes())
    (refused,) = build(rehash(bundle), official).refused
    assert reason in refused.reason


def with_score(rows, value):
    rows["scores"][0] = value
    return rows


def test_detection_cannot_pass_for_classification_nor_the_reverse(bundle, official):
    def restate(content):
        for run in content["runs"]:
            for part in run["predictions"]:
                if part["evaluation"] == "ood":
                    part["split"] = "test"

    (refused,) = build(forge(bundle, restate), official).refused
    assert "states a wrong split" in refused.reason


def test_digests_whose_sets_are_not_those_named_are_refused(official, tmp_path):
    table = pq.read_table(official)
    named = json.loads(table.schema.metadata[b"official"])
    named["datasets"][1]["sets"].append({"name": "more", "use_case": "faulty"})
    stated = table.replace_schema_metadata({"official": json.dumps(named)})
    pq.write_table(stated, tmp_path / "forged.parquet", compression="none")
    with pytest.raises(Damaged, match="other sets than named"):
        read_official(tmp_path / "forged.parquet")
