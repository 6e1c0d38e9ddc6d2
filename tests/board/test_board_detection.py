"""Detection on a board: the official records, the AUROC of reports, and what is refused."""

import json
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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
from benchmd_ray.board.content import content
from benchmd_ray.board.official import read_official
from benchmd_ray.board.pack import pack
from benchmd_ray.board.pages import pages
from benchmd_ray.board.rerun import command as again
from benchmd_ray.board.site import verify, write_site
from benchmd_ray.evaluation.evaluation import DETECTED, DetectedRecords
from benchmd_ray.files.integrity import Damaged, name_of, write_hash
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
    return write_official(tmp_path / "official.parquet", detections=of_georgia(records))


@pytest.fixture
def bundle(runs, tmp_path):
    (tmp_path / "bundle").mkdir()
    pack(runs, tmp_path / "bundle", KEY, submitter="A lab", detection=True)
    return tmp_path / "bundle"


def of_georgia(records):
    return {"georgia": DetectedRecords("ood", ("cpsc", "ptb-xl"), records)}


def build(bundle, official):
    return build_of(bundle, read_official(official))


def build_of(bundle, official):
    return board_of([bundle], official, title="A board", resamples=RESAMPLES)


def number_of(bundle):
    """The number of the first file of detection."""
    parts = read_bundle(bundle).about.parts
    return next(n for n, (_, part) in enumerate(parts) if part.detectors)


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
    assert "--also catalogs/cpsc \\\n" in page
    assert "--also catalogs/ptb-xl" not in page  # already among its catalogs
    assert "--evaluate ood" in page
    georgia = next(each for each in data["datasets"] if each["name"] == "georgia")
    assert georgia["sets_out_of_distribution"] == {"faulty": 2, "unrelated": 1}
    text = (tmp_path / "site" / georgia["page"]).read_text("utf-8")
    assert "faulty 2, unrelated 1" in text
    assert 'id="detection"' in text
    other = next(each for each in data["datasets"] if each["name"] == "ptb-xl")
    assert 'id="detection"' not in (tmp_path / "site" / other["page"]).read_text("utf-8")


def test_a_dataset_page_compares_detectors_by_their_titles(bundle, official, monkeypatch):
    def rename(content):
        for run in content["runs"]:
            for part in run["predictions"]:
                part["detectors"] = ["fdbd", "unknown-here"] * bool(part["detectors"])

    data = content(build(forge(bundle, rename), official))
    rows = next(s for s in data["entries"][0]["scores"] if s["dataset"] == "georgia")["detectors"]
    titles = {row["detector_name"]: row["detector"] for row in rows}
    assert titles == {"fdbd": "fDBD", "unknown-here": "unknown-here"}
    page = dict(pages(data))[next(d for d in data["datasets"] if d["name"] == "georgia")["page"]]
    assert "fDBD" in page
    assert "Of each entry and use-case" not in page
    monkeypatch.setattr("benchmd_ray.board.pages.MOST_DETECTED", 3)
    (name,) = (d["page"] for d in data["datasets"] if d["name"] == "georgia")
    short = dict(pages(data))[name]
    assert "Of each entry and use-case the 1 highest" in short
    for case in ("faulty", "unrelated"):  # nobody's detectors take the place of another's
        values = sorted(row["auroc"] for row in rows if row["use_case"] == case)
        assert f"{values[0]:.3f}" in page
        assert f"{values[0]:.3f}" not in short
        assert f"{values[-1]:.3f}" in short


def test_detection_is_packed_only_if_asked_for_and_for_boards_that_score_it(
    runs, bundle, official, tmp_path
):
    (tmp_path / "plain").mkdir()
    notes = pack(runs, tmp_path / "plain", KEY, submitter="A lab")
    assert [note.partition(" and 1 other: ")[2] for note in notes] == [
        "name --detection for a board that scores it"
    ]
    assert not build(tmp_path / "plain", official).refused
    (refused,) = build(bundle, write_official(tmp_path / "other.parquet")).refused
    assert "its ood of georgia is not scored on this board: pack without" in refused.reason
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
    number = number_of(bundle)
    path = part_path(bundle, number)
    path.write_bytes(change(np.fromfile(path, row_form(2))).tobytes())
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


@pytest.mark.parametrize(
    ("evaluation", "version", "condition"),
    [("segmentation", 2, ""), ("ood-released", 3, ""), ("ood-tuned", 3, "knn")],
)
def test_classification_cannot_pass_for_what_a_board_does_not_score(
    bundle, official, evaluation, version, condition
):
    other = {"evaluation": evaluation, "version": version, "condition": condition}

    def restate(content):
        content["runs"][0]["predictions"].append(content["runs"][0]["predictions"][0] | other)
        moved = content["runs"][1]["predictions"]
        numbers = [*range(len(content["runs"][0]["predictions"]) - 1)]
        files = [part_path(bundle, n).read_bytes() for n in range(len(numbers) + len(moved))]
        for number, file in enumerate(
            [*(files[n] for n in numbers), files[0], *files[len(numbers) :]]
        ):
            part_path(bundle, number).write_bytes(file)

    (refused,) = build(forge(bundle, restate), official).refused
    assert refused.reason.startswith(f"its {evaluation} of ")
    assert refused.reason.endswith("is not scored on boards: it does not classify the same records")


@pytest.mark.parametrize(
    ("about", "reason"),
    [
        ({"detectors": []}, "its ood of georgia lacks names of detectors"),
        ({"detectors": ["first", "first"]}, "names a detector twice"),
        ({"condition": "noise 1"}, "states a condition of detectors"),
        ({"detectors": ["first"]}, "ood of georgia: 200 records missing"),
        ({"detectors": [*"abcdefghijk"]}, "of 104: a hash and 11 scores"),
        ({"detectors": ["<b>", "first"]}, "detectors is '<b>'"),
        ({"detectors": ["d"] * 65}, "expected List should have at most 64"),
    ],
)
def test_detectors_that_are_not_those_of_the_file_are_refused(bundle, official, about, reason):
    def restate(content):
        for run in content["runs"]:
            next(p for p in run["predictions"] if p["evaluation"] == "ood").update(about)

    (refused,) = build(forge(bundle, restate), official).refused
    assert reason in refused.reason


def test_the_command_of_an_entry_names_all_of_its_evaluations(bundle, official):
    """Each by a run, of which only what is missing is computed."""
    official = read_official(official)
    (entry,) = build_of(bundle, official).entries
    text = again(entry, official)
    robust = replace(entry.first.predictions[0], evaluation="robustness", condition="noise 1")
    first = replace(entry.first, predictions=[*entry.first.predictions, robust])
    both = again(replace(entry, runs=(first, *entry.runs[1:])), official)
    echo = f"benchmd() {{ printf '%s ' \"$@\"; echo; }}; {both}"
    done = subprocess.run(["bash", "-c", echo], capture_output=True, text=True, check=True)
    asked = [
        dict(zip(line.split()[1::2], line.split()[2::2], strict=True))
        for line in done.stdout.splitlines()
    ]
    assert [each["--evaluate"] for each in asked] == ["ood", "robustness"]
    # other catalogs go with the evaluation that reads them: `benchmd run` refuses them otherwise
    assert [each.get("--also") for each in asked] == ["catalogs/cpsc", None]
    assert {**asked[0], "--evaluate": ""}.keys() - {"--also"} == asked[1].keys()
    assert both.startswith(text)


def test_a_classification_has_no_detectors(bundle, official):
    forge(bundle, lambda content: content["runs"][0]["predictions"][0].update(detectors=["knn"]))
    (refused,) = build(bundle, official).refused
    assert "its classification of georgia has names of detectors" in refused.reason


def test_seeds_may_have_other_detectors(runs, official, store, tmp_path):
    """Such as one that could not learn."""
    second = read_stores([store]).found[1]
    path = predictions_path(second.folder, "georgia", "ood")
    table = pq.read_table(path)
    pq.write_table(table.drop(["first"]), path)
    write_hash(path)
    packed(store, tmp_path / "bundle")
    (entry,) = build(tmp_path / "bundle", official).entries
    seeds = {r["detector"]: r["seeds"] for r in entry.results["georgia"].others if "detector" in r}
    assert seeds == {"first": [1 - second.description["seed"]], "second": [0, 1]}


def first_of(sets, **about):
    """Another first set that is out of distribution."""
    next(each for each in sets if each["use_case"]).update(about)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda about: about["sets"].append({"name": "more", "use_case": "faulty"}), "other sets"),
        (lambda about: first_of(about["sets"], use_case=""), "other sets"),
        (lambda about: about.update(detection=""), "other sets"),
        (lambda about: about["sets"].__setitem__(0, about["sets"][1]), "other sets"),
        (lambda about: first_of(about["sets"], use_case="<b>"), "use_case is '<b>'"),
        (lambda about: first_of(about["sets"], use_case="w" * 41), "use_case is 'www"),
        (lambda about: about["sets"].extend(about["sets"] * 200), "sets is"),
    ],
)
def test_forged_sets_of_digests_are_refused(official, tmp_path, change, reason):
    table = pq.read_table(official)
    named = json.loads(table.schema.metadata[b"official"])
    change(named["datasets"][1])
    stated = table.replace_schema_metadata({"official": json.dumps(named)})
    pq.write_table(stated, tmp_path / "forged.parquet", compression="none", use_dictionary=False)
    with pytest.raises(Damaged, match=reason):
        read_official(tmp_path / "forged.parquet")


def test_use_cases_are_few(official, tmp_path):
    """A name of each would be shown for each detector."""
    sets = [("in", "")] + [(f"set-{n}", "case-" + "abcdefghijkl"[n]) for n in range(11)]
    rows = [dict(zip(DETECTED, ("a", "a", "a", *about), strict=True)) for about in sets]
    detections = of_georgia(pa.Table.from_pylist(rows))
    with pytest.raises(Damaged, match="other sets than named"):
        read_official(write_official(tmp_path / "cases.parquet", detections=detections))


def test_digests_have_no_detection_where_all_sets_are_too_small(runs, tmp_path):
    records = detected(predictions_of(runs[0])).select([*DETECTED])
    alone = records.filter(pc.equal(records["set"], IN))
    path = write_official(tmp_path / "small.parquet", detections=of_georgia(alone))
    dataset = read_official(path).datasets["georgia"]
    assert (dataset.detected, dataset.about.detection) == (None, "")


def test_sets_of_one_name_and_sets_of_few_patients(tmp_path):
    """The former are of two use-cases; the latter give a value without an interval."""
    rng = np.random.default_rng(0)
    sets = {("in", ""): 40, ("all together", "unseen"): 30, ("all together", "faulty"): 4}
    rows = [
        {"record_id": f"{case}/{n}/{m}", "unit_id": f"{case}/{n}/{m}", "group_id": f"{case}/{n}"}
        | {"set": name, "use_case": case}
        for (name, case), patients in sets.items()
        for n in range(patients)
        for m in range(5)
    ]
    table = pa.Table.from_pylist(rows)
    path = write_official(tmp_path / "o.parquet", detections=of_georgia(table))
    of = read_official(path).datasets["georgia"].detected
    cases = [of.sets[number].use_case for number in of.numbers]
    scores = rng.normal(np.array([{"": 0.0, "unseen": 5.0, "faulty": -5.0}[c] for c in cases]))
    unseen, faulty = sorted(of.results([scores], 50), key=lambda r: -r["auroc"])
    assert (unseen["use_case"], unseen["sets"], faulty["use_case"]) == ("unseen", 1, "faulty")
    assert unseen["auroc"] > 0.99 > 0.01 > faulty["auroc"]
    assert unseen["auroc_low"] > 0.8
    assert np.isnan(faulty["auroc_low"])
    assert (unseen["caution"], faulty["caution"]) == (
        "",
        "no interval: 4 patients on the rarer side",
    )


@pytest.fixture
def store(runs, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(runs[0].folder.parent, tmp_path / "store")


def packed(store, folder):
    folder.mkdir()
    runs = read_stores([store]).found
    return pack(runs, folder, KEY, submitter="A lab", detection=True)


def test_detection_of_fewer_seeds_says_so(store, official, tmp_path):
    second = read_stores([store]).found[1]
    shutil.rmtree(predictions_path(second.folder, "georgia", "ood").parent)
    packed(store, tmp_path / "bundle")
    (entry,) = content(build(tmp_path / "bundle", official))["entries"]
    score = next(each for each in entry["scores"] if each["dataset"] == "georgia")
    seeds = {tuple(row["seeds"]) for row in score["detectors"]}
    assert (score["seeds"], seeds) == ([0, 1], {(1 - second.description["seed"],)})


def test_a_seed_whose_classification_is_anothers_is_not_packed(store, official, tmp_path):
    """Although its detectors, some of which draw at random, score otherwise."""
    first, second = (run.folder for run in read_stores([store]).found)
    path, other = (predictions_path(folder, "georgia") for folder in (first, second))
    table = pq.read_table(path)
    stated = table.schema.metadata | {b"of": name_of(second).encode()}
    pq.write_table(table.replace_schema_metadata(stated), other)
    write_hash(other)
    (note,) = packed(store, tmp_path / "bundle")
    assert f"its predictions are those of {first.name}, which stands for both seeds" in note
    assert not build(tmp_path / "bundle", official).refused


def test_a_detector_whose_name_a_board_would_refuse_is_not_packed(store, tmp_path):
    for run in read_stores([store]).found:
        path = predictions_path(run.folder, "georgia", "ood")
        table = pq.read_table(path)
        fields = [f.with_name("My_Detector") if f.name == "first" else f for f in table.schema]
        schema = pa.schema(fields, table.schema.metadata)
        pq.write_table(pa.Table.from_arrays(table.columns, schema=schema), path)
        write_hash(path)
    notes = packed(store, tmp_path / "bundle")
    (note,) = notes
    assert note.startswith("ood of georgia of transfer-ecg-scratch-linear-")
    assert "and 1 other: 'My_Detector' is not a name of" in note
    assert {part.evaluation for _, part in read_bundle(tmp_path / "bundle").about.parts} == {
        "classification"
    }
