"""Boards: bundles hold what is said, scores are those of reports, groups those of the tests."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from hashlib import sha256
from itertools import combinations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from browsers import started_browser
from click.testing import CliRunner
from made_bundles import (
    KEY,
    SEEDS,
    forge,
    forge_part,
    made_at,
    make_bundle,
    pem,
    rows_of,
    sign,
    write_official,
)
from stores import ECG_DATA, make_transfer, people, predict_all, targets_of

from benchmd_ray.board import build as building
from benchmd_ray.board import recompute
from benchmd_ray.board.build import board_of, entry_id, whose
from benchmd_ray.board.bundle import Refused, part_path, read_bundle
from benchmd_ray.board.content import content
from benchmd_ray.board.copies import copies, sketch
from benchmd_ray.board.keys import board_key
from benchmd_ray.board.official import read_official, write_rows
from benchmd_ray.board.pack import leaving, pack
from benchmd_ray.board.pages import MOST_DIGITS, pages
from benchmd_ray.board.pages import _column as table_column
from benchmd_ray.board.pages import _digits as digits_of
from benchmd_ray.board.ranking import cost_of, division, front
from benchmd_ray.board.rerun import command as again
from benchmd_ray.board.site import verify, write_site
from benchmd_ray.board.submitters import compared, is_shown_as_written, read_submitters
from benchmd_ray.cli import main
from benchmd_ray.data.cards import kind_of
from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.registry import evaluations, starts
from benchmd_ray.files.integrity import name_of, write_hash
from benchmd_ray.modality.modalities import modality
from benchmd_ray.report.analysis import analyse
from benchmd_ray.runs.predictions import predictions_path, read_predictions
from benchmd_ray.runs.store import read_stores
from benchmd_ray.scores.comparison import delong
from benchmd_ray.scores.metrics import auroc
from benchmd_ray.scores.support import TEST_PATIENTS
from benchmd_ray.settings.definition import as_dict, default_settings
from speed import boards

RESAMPLES = 200


def run(*arguments, code=0):
    result = CliRunner().invoke(main, [*map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def official(tmp_path):
    return write_official(tmp_path / "official.parquet")


def build(folders, official, **options):
    options = {"title": "A board", "resamples": RESAMPLES, **options}
    return board_of(folders, read_official(official), **options)


def values(board, dataset="georgia"):
    """AUROC by submitter."""
    return {entry.bundle.about.submitter: entry.results[dataset].value for entry in board.entries}


def ranked(board, dataset="georgia"):
    ((_, members),) = [(c, m) for c, m in board.contests.items() if c[0] == dataset]
    return [(place.entry.bundle.about.submitter, place.group) for place in members]


@pytest.mark.slow
def test_scores_are_those_of_a_report_on_the_same_runs(tmp_path, official):
    runs = []
    for seed in (0, 1):
        runs.append(make_transfer(tmp_path / "runs", seed=seed))
        predict_all(runs[-1], ECG_DATA)
    analysis = analyse(runs, resamples=RESAMPLES, curves=False)
    arguments = ("--board", "test-board", "--submitter", "A lab", "--yes")
    run("pack", tmp_path / "runs", "--out", tmp_path / "bundle", *arguments)
    (entry,) = build([tmp_path / "bundle"], official).entries
    scores = analysis.scores[analysis.scores["split"] == "test"]
    for dataset, result in entry.results.items():
        rows = scores[scores["dataset"] == dataset].set_index(["metric", "class"])
        classes = ["mean", *read_official(official).datasets[dataset].about.task.classes]
        for metric, numbers in result.metrics.items():
            expected = rows.loc[metric].loc[classes, "value"].to_numpy(float)
            np.testing.assert_allclose(numbers, expected, rtol=1e-12)
        # patients have other names, so that the same resamples are of other patients
        ends = rows.loc["auroc"].loc[classes, ["value", "low", "high"]].to_numpy(float)
        np.testing.assert_allclose(result.auroc, ends, atol=0.05)
    assert set(entry.results) == {"ptb-xl", "georgia"}


def test_what_leaves_is_listed_and_written_only_if_confirmed(tmp_path):
    make_bundle(tmp_path / "unused")
    arguments = ["pack", tmp_path / "unused-store", "--out", tmp_path / "bundle"]
    arguments += ["--board", "test-board", "--submitter", "A lab"]
    text = run(*arguments)
    assert not (tmp_path / "bundle").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"unused", "unused-store"}
    for words in ("1 run of A lab", "classification of georgia (test)", "stays: labels, patients"):
        assert words in text
    assert re.search(r"bytes: predictions [\d,]+, descriptions [\d,]+, together [\d,]+", text)
    assert "terms of georgia: CC BY 4.0" in text
    assert "Nothing was written. If all of this may leave, add --yes." in text
    assert "written" in run(*arguments, "--yes")
    assert "exists: nothing was written" in run(*arguments, "--yes", code=1)


def test_what_cannot_be_packed_or_built_says_what_to_do(tmp_path, official):
    bundle = make_bundle(tmp_path / "unused")
    board, key = ("--board", "test-board"), pem(tmp_path / "me.pem")
    arguments = ["pack", tmp_path / "unused-store", "--out", tmp_path / "bundle", "--yes"]

    def packed(*more):
        text = " ".join(run(*arguments, *more, code=1).split())
        assert not (tmp_path / "bundle").exists()
        return text

    for name in ("", " A lab", "A  lab", "a" * 81):
        assert "expected" in packed(*board, "--submitter", name)
    for option in ("--submitter", "--title", "--licence"):
        more = () if option == "--submitter" else ("--submitter", "A lab")
        text = packed(*board, *more, option, "A$ lab")
        assert f"{option} 'A$ lab': expected at most" in text
    assert "is a key to sign with (PEM)" in packed("--board", key, "--submitter", "A lab")
    missing = run(*arguments, *board, "--submitter", "A", "--key", tmp_path / "no.pem", code=2)
    assert "does not exist" in missing
    (tmp_path / "no.pem").write_text("no key")
    assert "without folders" in packed(*board, "--submitter", "Lab /home/x")
    text = packed(*board, "--submitter", "A lab", "--key", tmp_path / "no.pem")
    assert "is not a private Ed25519 key" in text
    assert "runs/s" not in text  # told before the work
    (tmp_path / "all").mkdir()
    bundle.rename(tmp_path / "all" / "one")
    text = run(*command(official, tmp_path / "site"), tmp_path / "all", code=1)
    assert "to build from a folder of bundles, name FOLDER/*" in " ".join(text.split())
    assert "is not a board's site" in run("board", "verify", tmp_path / "all", code=1)
    shown = run(*arguments, *board, "--submitter", "A lab", "--key", key)
    assert f"signed by {read_bundle(tmp_path / 'bundle').signer}\n" in shown


def test_a_bundle_has_no_name_of_a_record_or_patient_and_no_label(tmp_path):
    bundle = make_bundle(tmp_path / "bundle")
    whole = b"".join(path.read_bytes() for path in bundle.rglob("*") if path.is_file())
    named = people(240)
    for name in (*named["record_id"], *named["group_id"]):
        assert name.encode() not in whole
    assert b"north" not in whole  # a site
    for number, count in enumerate((240, 160)):
        records = rows_of(bundle, number)["record"].tolist()
        assert len(records) == count
        assert records == sorted(records)


def test_hashes_are_of_one_board_one_dataset_and_one_kind(tmp_path):
    file = tmp_path / "board.key"
    file.write_text("0123456789abcdef")
    keys = [KEY, board_key("test-board-2"), board_key(str(file))]
    hashes = {
        key.hashes(kind, dataset, ["r0001"])[0]
        for key in keys
        for kind in ("record", "patient")
        for dataset in ("georgia", "cpsc")
    }
    assert len(hashes) == 12
    assert keys[2].key.hex() not in repr(keys[2])
    assert [key.public for key in keys] == [True, True, False]
    file.write_text("short")
    with pytest.raises(BenchmdError, match="has another length than 16"):
        board_key(str(file))
    with pytest.raises(BenchmdError, match=r"'\./no\.key' is neither a file nor a name"):
        board_key("./no.key")


def test_groups_are_those_that_paired_tests_tell_apart(tmp_path, official):
    skills = {"A": 2.0, "B": 1.95, "C": 1.1, "D": 1.05, "E": 0.2}
    folders = [
        make_bundle(tmp_path / name, name, skill=skill, noise=n)
        for n, (name, skill) in enumerate(skills.items())
    ]
    board = build(folders, official, resamples=1000)
    order = ranked(board)
    assert dict(order) == {"A": 1, "B": 1, "C": 2, "D": 2, "E": 3}
    # an independent test of neighbours in a group and across groups
    dataset = read_official(official).datasets["georgia"]
    scores = {name: rows_of(folder)["scores"] for name, folder in zip(skills, folders, strict=True)}
    assert [p.dataset for _, p in read_bundle(folders[0]).about.parts] == ["georgia", "ptb-xl"]
    for a, b in combinations(skills, 2):
        p = delong(dataset.targets, scores[a], scores[b], dataset.groups).p
        assert (p < 0.01) == (dict(order)[a] != dict(order)[b]), (a, b, p)
    ((_, members),) = [(c, m) for c, m in board.contests.items() if c[0] == "georgia"]
    assert [place.rank for place in members] == [1, 2, 3, 4, 5]
    assert all(place.low <= place.rank <= place.high for place in members)
    assert (members[-1].low, members[-1].high) == (5, 5)


def test_an_end_that_excludes_zero_is_not_shown_as_zero():
    assert [digits_of(end) for end in (-0.2, -0.0005001, -0.00049, -0.00002)] == [3, 3, 4, 5]
    assert digits_of(-1e-9) == MOST_DIGITS
    rows = [
        {"behind": value, "behind_low": 2 * value if value else None, "behind_high": high}
        for value, high in ((None, None), (-0.01, 0.0003), (-0.01, -0.0002))
    ]
    column = table_column(rows, "behind")
    assert (column.digits, column.differs) == (4, [False, False, True])
    assert table_column(rows[:2], "behind").digits == 3


def test_a_dataset_of_few_patients_says_why_nothing_is_tested(tmp_path):
    rows = {"georgia": 45, "ptb-xl": 600}
    official = write_official(tmp_path / "few.parquet", rows)
    folders = [
        make_bundle(tmp_path / name, name, skill=skill, noise=n, rows=rows)
        for n, (name, skill) in enumerate((("A", 3.0), ("B", 0.1)))
    ]
    data = content(build(folders, official))
    few, many = data["datasets"]
    assert few["first_group"] is None
    of_few = read_official(official).datasets["georgia"]
    sides = [
        min(len({*of_few.groups[target == side]}) for side in (0, 1))
        for target in of_few.unit_targets.T
    ]
    rare = sum(0 < side < 5 for side in sides)
    told = re.fullmatch(
        "([1-7]) of 7 classes have fewer than 5 patients on the rarer side", few["untested"]
    )
    assert 0 < rare <= int(told[1])  # those with more records count as fewer
    assert (many["first_group"], many["untested"]) == (1, "")
    assert {s["group"] for e in data["entries"] for s in e["scores"][:1]} == {None}
    of = dict(pages(data))
    text = " ".join(of[few["page"]].split())
    assert f"nothing is tested, as there are too few patients ({few['untested']})" in text
    assert "fewer than 20 patients, or than 10 on the rarer side of a class" in text
    assert "nothing is tested, as" not in of[many["page"]]


def test_a_dataset_without_a_class_that_can_be_scored_says_so(tmp_path):
    official = write_official(tmp_path / "official.parquet")
    table = pq.read_table(official)
    nothing = pa.array(["0" * len(target) for target in table["target"].to_pylist()])
    table = table.set_column(table.column_names.index("target"), "target", nothing)
    pq.write_table(table, official, compression="none", use_dictionary=False)
    folders = [make_bundle(tmp_path / name, name, noise=n) for n, name in enumerate("ab")]
    data = content(build(folders, official))
    (first, _) = data["datasets"]
    assert (first["first_group"], first["highest_auroc"]) == (None, None)
    text = " ".join(dict(pages(data))[first["page"]].split())
    assert "No AUROC can be computed: no class has records with it and records without" in text
    assert "in group 1" not in text.split('id="methods"')[0]


def test_the_front_is_what_nothing_dominates():
    rng = np.random.default_rng(0)
    for _ in range(20):
        costs = rng.integers(1, 8, 12).astype(float).tolist()
        scores = rng.integers(1, 8, 12).astype(float).tolist()
        costs[0] = float("nan")
        points = [*zip(costs, scores, strict=True)]
        expected = [
            not np.isnan(c) and not any(x <= c and y >= v and (x, y) != (c, v) for x, y in points)
            for c, v in points
        ]
        assert front(np.array(costs), np.array(scores)).tolist() == expected


def test_copies_are_flagged_and_other_models_are_not(tmp_path, official):
    def with_noise(scores):
        noise = np.random.default_rng(0).normal(0, 0.002, scores.shape)
        return np.clip(scores + noise, 0, 1)

    folders = [
        make_bundle(tmp_path / "original", "Original", noise=1),
        make_bundle(tmp_path / "same", "Same", noise=1),
        make_bundle(tmp_path / "noisy", "Noisy", noise=1, change=with_noise),
        make_bundle(tmp_path / "bent", "Bent", noise=1, change=lambda scores: scores**3),
        make_bundle(tmp_path / "other", "Other", noise=2),
    ]
    board = build(folders, official)
    by_id = {entry_id(entry): entry.bundle.about.submitter for entry in board.entries}
    pairs = {
        (by_id[name], other.bundle.about.submitter): correlation
        for (name, dataset), others in board.alike.items()
        if dataset == "georgia"
        for other, correlation in others
    }
    assert {name for pair in pairs for name in pair} == {"Original", "Same", "Noisy", "Bent"}
    assert pairs["Original", "Same"] == pytest.approx(1)
    assert 0.995 < pairs["Original", "Noisy"] < 1
    assert pairs["Original", "Bent"] == pytest.approx(1)
    remarks = run(*command(official, tmp_path / "site"), *folders)
    flagged = re.findall(r"^copy\?: scratch, linear of (\w+) \(not signed\), see", remarks, re.M)
    assert flagged == ["Bent", "Noisy", "Original", "Same"]
    notes = " ".join(note for entry in content(board)["entries"] for note in entry["notes"])
    assert "it has the same predictions as scratch, linear of Same (not signed)" in notes
    assert "nearly the same predictions (correlation 0.99" in notes
    assert "of Other" not in notes


def test_a_sketch_keeps_the_correlation_of_scores():
    rng = np.random.default_rng(3)
    first = rng.random((500, 4))
    for noise in (0.005, 0.01, 0.05):
        second = first + rng.normal(0, noise, first.shape)
        truth = np.corrcoef((first - first.mean(0)).ravel(), (second - second.mean(0)).ravel())
        halves = sketch(first)[:256] @ sketch(second)[:256]
        assert 1 - halves == pytest.approx(1 - truth[0, 1], rel=0.35)
    same = [sketch(first)[None], np.stack([sketch(second), sketch(first)])]
    assert [*copies(same, ["one", "one"])] == [[], []]
    assert [*copies(same, ["one", "other"])] == [[(1, 1)], [(0, 1)]]
    many = [*copies([same[0]] * 30, range(30))]
    assert {len(others) for others in many} == {10}


def test_a_later_submission_replaces_an_earlier_one_and_both_are_told(tmp_path, official):
    first = made_at(make_bundle(tmp_path / "first", "A lab", skill=2.0), 1)
    second = made_at(make_bundle(tmp_path / "second", "A lab", skill=0.5, noise=1), 2)
    board = build([second, first], official)
    (entry,) = board.entries
    assert entry.bundle.folder == second
    assert [e.bundle.folder for e in board.earlier[entry_id(entry)]] == [first]
    assert board.alike == {}
    run(*command(official, tmp_path / "site"), first, second)
    page = (tmp_path / "site" / f"entry-{entry_id(entry)}.html").read_text("utf-8")
    assert "2026-01-01T00:00:00Z" in page
    assert len([*(tmp_path / "site" / "bundles").iterdir()]) == 2


def test_settings_that_decide_nothing_do_not_make_a_run_custom(tmp_path, official):
    """As in reports, which compare what a run's name is made of."""
    changes = {"transfer": {"solver": "logistic", "epochs": 3}}
    made = make_transfer(tmp_path / "runs", changes=changes)
    predict_all(made, ECG_DATA)
    whole = made.description["settings"]["transfer"]
    decisive = {n: whole[n] for n in ("mode", "labels", "solver", "shuffle_labels")}
    about = made.description["determinants"] | {"transfer": decisive}
    made = replace(made, description={**made.description, "determinants": about})
    (tmp_path / "bundle").mkdir()
    pack([made], tmp_path / "bundle", KEY, submitter="A lab")
    (entry,) = build([tmp_path / "bundle"], official).entries
    assert whole["epochs"] == 3
    assert entry.first.settings["transfer"] == decisive


def test_a_submission_that_leaves_out_datasets_is_told(tmp_path, official):
    made_at(make_bundle(tmp_path / "first", "A lab"), 1)
    made_at(make_bundle(tmp_path / "second", "A lab", noise=1, rows={"georgia": 240}), 2)
    text = run(*command(official, tmp_path / "site"), tmp_path / "first", tmp_path / "second")
    assert "fewer datasets: scratch, linear of A lab (not signed), see entry-" in text
    (entry,) = json.loads((tmp_path / "site" / "board.json").read_text("utf-8"))["entries"]
    assert "Fewer datasets: the newest submission stands for" in entry["notes"][0]
    assert "leaves out ptb-xl, which an earlier one has" in entry["notes"][0]


def test_a_run_without_its_pretraining_is_told(tmp_path, official):
    def without(about):
        for run in about["runs"]:
            run["device_hours"] = None

    folder = forge(make_bundle(tmp_path / "bundle"), without)
    lines = [*leaving(read_bundle(folder), KEY)]
    assert any("without the settings and hours of its pretraining" in line for line in lines)
    (entry,) = content(build([folder], official))["entries"]
    assert "Pretraining unknown: its settings and device hours are not stated" in entry["notes"][0]


def test_pages_of_synthetic_data_say_so(tmp_path, official):
    table = pq.read_table(official)
    named = json.loads(table.schema.metadata[b"official"])
    named["datasets"][1]["provenance"] = "synthetic"
    table = table.replace_schema_metadata({"official": json.dumps(named)})
    pq.write_table(table, official, compression="none", use_dictionary=False)
    data = content(build([make_bundle(tmp_path / "a")], official))
    of = dict(pages(data))
    said = "Synthetic data (georgia): such numbers say nothing about patients."
    entry = data["entries"][0]["page"]
    assert [said in of[page] for page in ("index.html", entry)] == [True, True]
    texts = [of[dataset["page"]] for dataset in data["datasets"]]
    assert ["Synthetic data: such numbers" in text for text in texts] == [False, True]
    assert {s["dataset"]: s["provenance"] for s in data["entries"][0]["scores"]} == {
        "ptb-xl": "whole",
        "georgia": "synthetic",
    }


def command(official, site):
    options = ("--catalog-digests", official, "--out", site, "--resamples", RESAMPLES)
    return ("board", "build", *options)


def test_a_name_belongs_to_a_key_only_by_the_organisers_file(tmp_path, official):
    victim = make_bundle(tmp_path / "victim", "Lab", skill=0.5)
    thief = shutil.copytree(victim, tmp_path / "thief")  # what is published, signed by a stranger
    stranger = sign(thief, pem(tmp_path / "stranger.pem"))
    board = build([victim, thief], official)
    assert {whose(e) for e in board.entries} == {"Lab (not signed)", f"Lab ({stranger[:16]})"}
    assert not board.refused
    assert len({bundle.id for bundle in board.bundles}) == 2
    notes = " ".join(note for entry in content(board)["entries"] for note in entry["notes"])
    assert "Name: the same, by another key or none, has Lab (not signed): who" in notes
    assert f"has Lab ({stranger[:16]}): who" in notes
    key = sign(victim, pem(tmp_path / "victim.pem"))
    (tmp_path / "submitters").write_text(f"{key} LAB\n")
    text = run(
        *command(official, tmp_path / "site"),
        victim,
        thief,
        "--submitters",
        tmp_path / "submitters",
    )
    assert "refused: thief: its submitter's name belongs to another key" in text
    assert len([*(tmp_path / "site" / "bundles").iterdir()]) == 1
    (tmp_path / "submitters").write_text(f"{key} Lab\n{stranger} lab\n")
    with pytest.raises(BenchmdError, match="line 2: the name 'lab' is there twice"):
        read_submitters(tmp_path / "submitters")
    (tmp_path / "submitters").write_text(f"{key.upper()} Lab\n")
    with pytest.raises(BenchmdError, match="line 1: expected a public key") as told:
        read_submitters(tmp_path / "submitters")
    assert key.upper()[:8] not in str(told.value)  # it may be the key of the board


def test_a_site_is_verified_when_a_bundle_was_signed_later(tmp_path, official):
    bundle = make_bundle(tmp_path / "bundle", "Lab")
    run(*command(official, tmp_path / "site"), bundle)
    unsigned = read_bundle(bundle).id
    sign(bundle, pem(tmp_path / "key.pem"))
    assert read_bundle(bundle).id != unsigned
    run(*command(official, tmp_path / "site"), bundle)
    run("board", "verify", tmp_path / "site", "--catalog-digests", official)
    (tmp_path / "other").mkdir()
    run(*command(official, tmp_path / "two"), bundle, make_bundle(tmp_path / "other" / "b", "Lab"))
    run("board", "verify", tmp_path / "two", "--catalog-digests", official)


def test_names_that_look_alike_are_one(tmp_path, official):
    alike = ("A lab", "a LAB", "A\u034f lab", "A \u3164lab", "\uff21 lab", "A\u2800lab")
    assert {compared(name) for name in alike} == {"a lab"}
    assert compared("A lab 2") != compared("A lab")
    assert all(map(is_shown_as_written, alike))
    for n, name in enumerate(("A lab ", "A  lab", "/x/A lab", "\u3164")):
        assert not is_shown_as_written(name)
        bad = forge(
            make_bundle(tmp_path / str(n)), lambda content, n=name: content.update(submitter=n)
        )
        with pytest.raises(Refused, match="pages would not show its submitter"):
            read_bundle(bad)


def test_a_signature_has_one_form(tmp_path):
    bundle = make_bundle(tmp_path / "bundle")
    sign(bundle, pem(tmp_path / "key.pem"))
    with (bundle / "signature.json").open("a") as file:
        file.write(" ")
    with pytest.raises(Refused, match=r"signature\.json has another form"):
        read_bundle(bundle)


@pytest.mark.parametrize("change", [str.upper, " {}".format, "{}\n".format])
def test_a_key_has_one_form(tmp_path, change):
    bundle = make_bundle(tmp_path / "bundle")
    sign(bundle, pem(tmp_path / "key.pem"))
    path = bundle / "signature.json"
    stated = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(stated | {"public_key": change(stated["public_key"])}), "utf-8")
    with pytest.raises(Refused, match="public_key"):
        read_bundle(bundle)


def test_what_is_tuned_contaminated_or_not_the_protocol_is_ranked_apart(tmp_path, official):
    def change(**changes):
        return lambda content: [r.update(changes) for r in content["runs"]]

    def contaminate(content):
        for each in content["runs"][0]["predictions"]:
            each["contamination"] = "its pretraining saw this dataset's recordings"

    def with_rate(content):
        content["runs"][0]["settings"]["transfer"]["optimiser"]["lr"] = 0.5

    def small(content):
        for run in content["runs"]:
            start = starts()["small"].settings(modality(run["modality"]), run["technique"], "")
            stated, transfer = as_dict(start), run["settings"]["transfer"]
            stated["transfer"] |= {name: transfer[name] for name in ("mode", "labels")}
            run["settings"] = {name: stated[name] for name in run["settings"]}
            run["protocol"] = "small"

    forgeries = {
        "fixed": lambda content: None,
        "small": small,
        "tuned": change(protocol="tuned"),
        "custom": with_rate,  # though it says that it is fixed
        "published": change(technique="encoder:rad-dino"),
        "contaminated": contaminate,
    }
    folders = [
        forge(make_bundle(tmp_path / name, name, noise=n), forged)
        for n, (name, forged) in enumerate(forgeries.items())
    ]
    board = build(folders, official)
    found = {c[2]: [p.entry.bundle.about.submitter for p in m] for c, m in board.contests.items()}
    assert found == {
        "fixed protocol": ["fixed"],
        "small protocol": ["small"],
        "tuned": ["tuned"],
        "custom settings": ["custom"],
        "published weights": ["published"],
        "contaminated": ["contaminated"],
    }


def test_costs_are_beside_quality_and_the_best_for_them_is_marked(tmp_path, official):
    costs = {"cheap": (1.0, 60.0), "dear": (2.0, 7200.0), "dominated": (0.5, 9000.0)}
    folders = []
    for n, (name, (skill, seconds)) in enumerate(costs.items()):
        bundle = make_bundle(tmp_path / name, name, skill=skill, noise=n)

        def cost(content, seconds=seconds):
            content["runs"][0]["device_hours"] = seconds / 1800

        folders.append(forge(bundle, cost))
    board = build(folders, official)
    ((_, members),) = [(c, m) for c, m in board.contests.items() if c[0] == "georgia"]
    best = {place.entry.bundle.about.submitter: place.on_front for place in members}
    assert best == {"cheap": True, "dear": True, "dominated": False}
    hours = {e.bundle.about.submitter: cost_of(e) for e in board.entries}
    assert hours == pytest.approx({"cheap": 120 / 3600, "dear": 4.0, "dominated": 5.0})


def test_an_unchanged_bundle_is_not_scored_again(tmp_path, official, monkeypatch):
    folder = make_bundle(tmp_path / "bundle")
    first = values(build([folder], official))
    monkeypatch.setattr(recompute, "read_part", lambda *_: pytest.fail("it was read again"))
    assert values(build([folder], official)) == first
    with pytest.raises(BaseException, match="it was read again"):
        build([folder], official, fresh=True)


def test_processes_build_the_board_that_one_process_builds(tmp_path, official, monkeypatch):
    folders = [make_bundle(tmp_path / name, name, noise=n) for n, name in enumerate("abc")]
    forge_part(folders[1], lambda rows: rows[:-1])
    alone = content(build(folders, official, fresh=True))
    monkeypatch.setattr(building, "MANY", 2)
    monkeypatch.setattr(building, "usual_threads", lambda: 2)
    done = []
    assert content(build(folders, official, fresh=True, done=done.append)) == alone
    assert done == [1, 2, 3]
    assert [each["name"] for each in alone["refused"]] == ["b"]


def test_a_process_that_dies_is_an_error(tmp_path, official, monkeypatch):
    folders = [make_bundle(tmp_path / name, name) for name in "ab"]
    monkeypatch.setattr(building, "MANY", 2)
    monkeypatch.setattr(building, "usual_threads", lambda: 2)
    monkeypatch.setattr(building, "read_bundle", lambda _: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(BenchmdError, match="a process that scored bundles was killed, perhaps"):
        build(folders, official)


def test_processes_import_nothing_of_the_working_folder_and_end_with_an_interrupt(
    tmp_path, official
):
    """Who sends bundles may write into it; and a script need not guard its own import."""
    folders = [make_bundle(tmp_path / name, name) for name in "ab"]
    script = """
        import os, signal, sys, time
        from pathlib import Path
        from benchmd_ray.board import build
        from benchmd_ray.board.official import read_official
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
        build.MANY = 2
        found = read_official(Path(sys.argv[1]))
        if "wait" in sys.argv:
            build.read_bundle = lambda _: time.sleep(60 * bool(os.write(1, b"reads\\n")))
        board = build.board_of(map(Path, sys.argv[2:4]), found, title="A board", resamples=10)
        print(len(board.entries))
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(script))
    work = tmp_path / "work"
    work.mkdir()
    for name in ("multiprocessing.py", "pickle.py", "struct.py"):
        (work / name).write_text("open('imported', 'w')")
    command = [sys.executable, tmp_path / "script.py", official, *folders]
    about = {"cwd": work, "env": {**os.environ, "OMP_NUM_THREADS": "2"}, "text": True}
    assert subprocess.check_output(command, **about) == "2\n"
    assert not (work / "imported").exists()
    about |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}
    with subprocess.Popen([*command, "wait"], **about) as waiting:
        assert waiting.stdout.readline() == "reads\n"
        os.killpg(waiting.pid, signal.SIGINT)
        _, told = waiting.communicate(timeout=20)
    assert told.count("Traceback") == 1  # that of this process
    assert told.strip().endswith("KeyboardInterrupt")


def test_a_site_is_verified_and_whatever_was_changed_is_told(tmp_path, official):
    folders = [make_bundle(tmp_path / name, name, noise=n) for n, name in enumerate("ab")]
    site = tmp_path / "site"
    run(*command(official, site), *folders, "--publish-labels")
    text = run("board", "verify", site)
    assert "is what its bundles and the official labels give" in text
    labels = sha256(official.read_bytes()).hexdigest()
    assert f"official labels that the site publishes: {labels}" in text
    data = json.loads((site / "board.json").read_text("utf-8"))
    data["entries"][0]["scores"][0]["auroc"] = 0.999
    (site / "board.json").write_text(json.dumps(data), "utf-8")
    page = site / f"entry-{data['entries'][1]['id']}.html"
    page.write_text(page.read_text("utf-8").replace("0.7", "0.9"), "utf-8")
    (site / "more.html").write_text("<p>more")
    (site / "board.csv").unlink()
    text = run("board", "verify", site, code=1)
    assert re.search(r"scores\.0\.auroc: the site says 0\.999, its bundles give 0\.[5-9]", text)
    assert f"{page.name} is not what its bundles give" in text
    assert "more.html is not of this board" in text
    assert "board.csv is missing" in text
    assert (site / "official.parquet").exists()
    run(*command(official, site), *folders)  # writes it again, and no longer its labels
    assert not (site / "official.parquet").exists()
    run(*command(official, site), *folders, "--publish-labels")
    (site / "more.html").unlink()
    run("board", "verify", site)
    made = json.loads((site / "build.json").read_text("utf-8"))
    (site / "build.json").write_text(
        json.dumps(made | {"versions": made["versions"] | {"matplotlib": "0"}})
    )
    assert "built with other versions of packages" in run("board", "verify", site, code=1)
    run(*command(official, site), *folders, "--publish-labels")
    kept, _ = sorted((site / "bundles").iterdir())
    forge(kept, lambda content: content.update(title="changed"))
    text = run("board", "verify", site, code=1)
    assert f"the bundle {kept.name} is another than the site was built with" in text
    assert "nothing else was compared" in text
    assert "is missing" not in text
    shutil.rmtree(kept)
    text = run("board", "verify", site, code=1)
    assert f"the bundle {kept.name} is missing" in text
    assert "the site says" not in text


def test_whatever_else_is_in_a_site_is_reported_and_links_are_not_followed(tmp_path, official):
    site, secret = tmp_path / "site", tmp_path / "secret"
    run(*command(official, site), make_bundle(tmp_path / "a", "a"), "--publish-labels")
    secret.write_text("Ada Lovelace")
    (site / "bundles" / "evil.html").write_text("<script>")
    (site / "bundles" / "more").symlink_to(tmp_path / "a")
    (site / "board.csv").unlink()
    (site / "board.csv").symlink_to(secret)
    (site / "folder").mkdir()
    text = run("board", "verify", site, code=1)
    assert "evil.html is not of this board" in text
    assert "more is a link, which is not followed" in text
    assert "board.csv is a link, which is not followed" in text
    assert "folder is not of this board" in text
    assert "Ada" not in text
    (site / "official.parquet").unlink()
    (site / "official.parquet").symlink_to(official)
    with pytest.raises(AssertionError, match="does not publish its official labels"):
        run("board", "verify", site)
    options = ("--catalog-digests", official)
    assert "official.parquet is a link" in run("board", "verify", site, *options, code=1)
    (site / "official.parquet").unlink()
    (site / "official.parquet").write_text("other labels")
    assert "official.parquet is not of this" in run("board", "verify", site, *options, code=1)
    (site / "bundles").rename(tmp_path / "bundles")
    (site / "bundles").symlink_to(tmp_path / "bundles")
    with pytest.raises(AssertionError, match="has no folder bundles"):
        run("board", "verify", site, *options)
    (site / "build.json").rename(tmp_path / "build.json")
    (site / "build.json").symlink_to(tmp_path / "build.json")
    (site / "bundles").unlink()
    (tmp_path / "bundles").rename(site / "bundles")
    with pytest.raises(AssertionError, match=r"build\.json is a link"):
        run("board", "verify", site, *options)


def test_an_entry_is_tuned_if_one_of_its_runs_is(tmp_path, official):
    def tune(content):
        content["runs"][1]["settings"]["tuned"] = "search-1"

    folders = [make_bundle(tmp_path / name, name, seeds=2, noise=n) for n, name in enumerate("ab")]
    forge(folders[0], tune)
    board = build(folders, official)
    best = {
        of: (p.entry.bundle.about.submitter, p.on_front) for (_, _, of), (p,) in contests(board)
    }
    assert best == {"tuned": ("a", False), "fixed protocol": ("b", True)}


def contests(board):
    return [(of, places) for of, places in board.contests.items() if of[0] == "georgia"]


@pytest.mark.parametrize(
    ("technique", "changes", "where"),
    [
        ("mae", {}, "custom settings"),  # its pretraining is not stated
        ("scratch", {}, "fixed protocol"),
        ("encoder:rad-dino", {}, "published weights"),
        ("scratch", {"protocol": "tuned"}, "tuned"),
        ("scratch", {"modality": "cxr"}, "custom settings"),  # the dataset's is another
    ],
)
def test_only_entries_of_a_protocol_or_custom_ones_are_best_for_their_cost(
    tmp_path, official, technique, changes, where
):
    def change(content):
        content["runs"][0] |= {"technique": technique, "device_hours": 1.0, **changes}

    folder = forge(make_bundle(tmp_path / "a"), change)
    ((of, (place,)),) = contests(build([folder], official))
    assert of[2] == where
    assert place.on_front == (where in ("custom settings", "fixed protocol"))


def test_one_of_two_seeds_with_the_same_predictions_is_packed(tmp_path):
    make_bundle(tmp_path / "unused")
    store = tmp_path / "unused-store"
    (first,) = store.glob("transfer-*")
    second = make_transfer(store, seed=1)
    for path in (first / "predictions" / "classification").glob("*.parquet"):
        table = pq.read_table(path)
        stated = table.schema.metadata | {b"of": name_of(second.folder).encode()}
        other = predictions_path(second.folder, path.stem)
        other.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table.replace_schema_metadata(stated), other)
        write_hash(other)
    arguments = ("--board", "test-board", "--submitter", "A lab", "--yes")
    text = run("pack", store, "--out", tmp_path / "bundle", *arguments)
    assert re.search("not packed: .*: its predictions are those of .*, which stands for both", text)
    assert len(read_bundle(tmp_path / "bundle").about.runs) == 1
    assert "pack: 2/2 runs" in text


def test_subgroups_are_those_of_reports_and_not_published(tmp_path, official):
    names = ("record_id", "unit_id", "group_id", "age", "sex")
    about = read_official(official).datasets["georgia"].about
    labels = targets_of(about.task.classes, 240, about.task.kind, SEEDS["georgia"])
    held = people(240, SEEDS["georgia"])
    target = pa.FixedSizeListArray.from_arrays(pa.array(labels.ravel()), labels.shape[1])
    table = pa.table({**{name: held[name] for name in names}, "target": target})
    digests = tmp_path / "digests.parquet"
    write_rows([about], [table], KEY, digests)
    folder = make_bundle(tmp_path / "a", seeds=2, rows={"georgia": 240})
    board = build([folder], digests)
    rows = {row["subgroup"]: row for row in board.entries[0].results["georgia"].others}
    assert {"female", "male"} <= rows.keys()
    assert min(row["patients"] for row in rows.values()) >= TEST_PATIENTS
    inside = np.array(held["sex"]) == "female"
    assert rows["female"]["patients"] == len(set(np.array(held["group_id"])[inside]))
    parts = [
        p for run in sorted(tmp_path.glob("a-store/transfer-*")) for p in run.rglob("georgia.*t")
    ]
    scores = [np.stack(pq.read_table(p)["scores"].to_numpy(zero_copy_only=False)) for p in parts]
    expected = np.mean([auroc(labels[inside], each[inside]).mean for each in scores])
    assert rows["female"]["auroc"] == pytest.approx(expected)
    with pytest.raises(BenchmdError, match="has ages and sexes of patients"):
        write_site(board, tmp_path / "site", labels=digests)
    write_site(board, tmp_path / "site")
    assert not (tmp_path / "site" / "official.parquet").exists()
    page = (tmp_path / "site" / f"entry-{entry_id(board.entries[0])}.html").read_text("utf-8")
    assert 'id="subgroups"' in page
    assert [*verify(tmp_path / "site", read_official(digests))] == []


def test_a_site_needs_no_server_and_loads_nothing(tmp_path, official):
    folder = make_bundle(tmp_path / "bundle", seeds=2)
    run(*command(official, tmp_path / "site"), folder)
    names = {path.name for path in (tmp_path / "site").iterdir()}
    for path in (tmp_path / "site").glob("*.html"):
        text = path.read_text("utf-8")
        assert "default-src 'none'" in text
        assert not re.search(r"<(link|iframe|object|embed)\b|\bsrc=\"(?!data:)", text)
        assert {*re.findall(r'href="([^"#]+)"', text)} <= names, path.name
    assert not (tmp_path / "site" / "official.parquet").exists()
    table = pd.read_csv(tmp_path / "site" / "board.csv")
    assert set(table["dataset"]) == {"ptb-xl", "georgia"}
    with pytest.raises(AssertionError, match="does not publish its official labels"):
        run("board", "verify", tmp_path / "site")


def test_a_table_counts_the_seeds_that_were_scored_on_its_dataset(tmp_path, official):
    def leave_out(content):
        content["runs"][1]["predictions"].pop()

    folder = make_bundle(tmp_path / "bundle", seeds=2)
    part_path(forge(folder, leave_out), 3).unlink()
    site = tmp_path / "site"
    run(*command(official, site), folder)
    table = pd.read_csv(site / "board.csv").set_index("dataset")["seeds"].astype(str)
    assert dict(table) == {"georgia": "0 1", "ptb-xl": "0"}


def test_the_command_of_an_entry_runs_it_again_and_is_quoted(tmp_path, official):
    def evil(content):
        for each in content["runs"]:
            each["technique"] = "mae; rm -rf ~"
            each["settings"]["transfer"]["optimiser"]["lr"] = 0.01

    folder = forge(make_bundle(tmp_path / "bundle", seeds=2), evil)
    (entry,) = build([folder], official).entries
    text = again(entry, read_official(official))
    assert "--technique 'mae; rm -rf ~'" in text
    assert "--set transfer.optimiser.lr=0.01" in text
    assert "--seed 0 \\\n    --seed 1" in text
    assert "--catalog catalogs/georgia" in text


def test_a_run_of_medmnist_follows_the_protocol_of_its_dataset(tmp_path, official):
    kind = kind_of("breastmnist")

    def small(content):
        (run,) = content["runs"]
        run |= {"source": "breastmnist", "modality": kind.name, "protocol": "small"}
        stated = as_dict(starts()["small"].settings(kind, "scratch", ""))
        stated["transfer"] |= {n: run["settings"]["transfer"][n] for n in ("mode", "labels")}
        run["settings"] = {name: stated[name] for name in run["settings"]}

    (entry,) = build([forge(make_bundle(tmp_path / "bundle"), small)], official).entries
    about = replace(read_official(official).datasets["georgia"].about, modality=kind.name)
    assert division(entry, about) == "small protocol"
    stated = re.findall("--set ([^= ]+)=", again(entry, read_official(official)))
    usual, own = (
        settings["encoder"] for settings in (as_dict(default_settings(kind)), entry.first.settings)
    )
    assert {f"encoder.{name}" for name in own if own[name] != usual[name]} <= {*stated}
    assert {"encoder.width", "encoder.depth"} <= {*stated}


def test_a_folder_that_is_no_site_is_left_alone(tmp_path, official):
    folder = make_bundle(tmp_path / "bundle")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    text = run(*command(official, tmp_path / "mine"), folder, code=1)
    assert "is not a board's site" in text
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_digests_are_of_the_official_labels(tmp_path, official):
    table = pq.read_table(official)
    assert table.schema.field("record").type == pa.binary(16)
    assert table["sex"].null_count == len(table)  # only with --subgroups
    dataset = read_official(official).datasets["georgia"]
    assert dataset.patients == 120
    assert dataset.targets.shape == (240, 7)
    changed = tmp_path / "changed.parquet"
    doubled = pa.concat_tables([table, table.slice(0, 1)])
    pq.write_table(doubled, changed, compression="none", use_dictionary=False)
    with pytest.raises(BenchmdError, match="records of 'ptb-xl' are doubled"):
        read_official(changed)
    pq.write_table(table.replace_schema_metadata(None), changed)
    with pytest.raises(BenchmdError, match="not a file of digests"):
        read_official(changed)


def robust(run, dataset, scores_of_fault):
    """Write predictions of the evaluation robustness next to those of a classification."""
    clean = pq.read_table(predictions_path(run.folder, dataset))
    blocks = []
    for fault, severity in (("clean", 0), ("noise", 1)):
        scores = np.stack(clean["scores"].to_numpy(zero_copy_only=False))
        scores = scores_of_fault(scores) if severity else scores
        flat = pa.FixedSizeListArray.from_arrays(pa.array(scores.ravel()), scores.shape[1])
        rows = len(clean)
        faults = pa.array([fault] * rows).dictionary_encode()
        block = clean.set_column(clean.column_names.index("scores"), "scores", flat)
        block = block.append_column("fault", faults)
        block = block.append_column("severity", pa.array([severity] * rows, pa.int8()))
        block = block.append_column("control", pa.array([False] * rows))
        blocks.append(block.append_column("altered", pa.array([severity > 0] * rows)))
    path = predictions_path(run.folder, dataset, "robustness")
    path.parent.mkdir(parents=True)
    stated = clean.schema.metadata | {b"evaluation": b"robustness", b"version": b"1"}
    pq.write_table(pa.concat_tables(blocks).replace_schema_metadata(stated), path)
    write_hash(path)


def test_robustness_is_scored_with_the_official_labels(tmp_path, official):
    make_bundle(tmp_path / "unused", skill=2.0)
    (run_of,) = read_stores([tmp_path / "unused-store"]).found
    robust(run_of, "georgia", lambda scores: np.full_like(scores, 0.5))
    arguments = ("--board", "test-board", "--submitter", "A lab", "--yes")
    run("pack", tmp_path / "unused-store", "--out", tmp_path / "bundle", *arguments)
    assert len(read_bundle(tmp_path / "bundle").about.parts) == 4
    board = build([tmp_path / "bundle"], official)
    assert not board.refused, board.refused
    assert again(board.entries[0], read_official(official)).endswith("    --evaluate robustness")
    result = board.entries[0].results["georgia"]
    rows = {row["condition"]: row["auroc"] for row in result.others}
    assert rows["clean"] == pytest.approx(result.value)
    assert rows["noise 1"] == pytest.approx(0.5)  # as all its scores are tied
    # those of the evaluation's own code
    path = predictions_path(run_of.folder, "georgia", "robustness")
    of = evaluations()["robustness"]
    own = of.scores(read_predictions(path, of.form), RESAMPLES).query("metric == 'auroc'")
    expected = {(row["group"], row["class"]): row["value"] for _, row in own.iterrows()}
    assert expected["clean", "mean"] == pytest.approx(rows["clean"])
    assert expected["noise", "severity 1"] == pytest.approx(rows["noise 1"])
    run(*command(official, tmp_path / "site"), tmp_path / "bundle")
    page = tmp_path / "site" / f"entry-{entry_id(board.entries[0])}.html"
    assert 'id="conditions"' in page.read_text("utf-8")
    # a condition of other records is refused
    conditions = [p.condition for _, p in read_bundle(tmp_path / "bundle").about.parts]
    bad = forge_part(tmp_path / "bundle", lambda rows: rows[:-10], conditions.index("noise 1"))
    assert "robustness of georgia: 10 records missing" in build([bad], official).refused[0].reason


def test_the_measurement_builds_a_board_of_all_of_its_bundles(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BENCHMD_CACHE", "")
    arguments = ("--bundles", "3", "--runs", "4", "--entries", "2", "--records", "60")
    boards.main(["--folder", str(tmp_path), *arguments])
    result = json.loads(capsys.readouterr().out)
    assert result["bytes_of_a_bundle"] > 4 * 60 * 72
    assert {"seconds", "cpu_seconds", "peak_mib"} <= result["again"].keys()
    data = json.loads((tmp_path / "site" / "board.json").read_text("utf-8"))
    assert len(data["entries"]) == 6
    assert data["refused"] == []
    assert {entry["scores"][0]["division"] for entry in data["entries"]} == {"fixed protocol"}


@pytest.mark.slow
def test_a_real_run_is_packed_scored_and_verified(trained, ecg_catalogs, tmp_path):
    store, _, transfer = trained
    paths = [ecg_catalogs[name].path for name in ("ptb-xl", "georgia")]
    key = pem(tmp_path / "me.pem")
    (tmp_path / "board.key").write_text("a secret of all who submit")
    board = ("--board", tmp_path / "board.key")
    submitted = ("--submitter", "A lab", "--key", key, "--yes")
    text = run("pack", store, "--out", tmp_path / "bundle", *board, *submitted)
    assert "signed by" in text
    assert "anybody" not in text
    digests = tmp_path / "official.parquet"
    text = run("board", "digest", *paths, *board, "--out", digests)
    content_of = digests.read_bytes()
    assert sha256(content_of).hexdigest() in text
    for name, dataset in read_official(digests).datasets.items():
        count, patients = len(dataset.records), len({*dataset.patient_names})
        assert re.search(rf"^{name} \(test\): {count} records?, {patients} patients?:", text, re.M)
    assert digests.stat().st_mode & 0o777 == 0o600  # it has labels
    text = run("board", "digest", paths[0], *board, "--out", digests, code=1)
    assert "exists: nothing was written" in text
    assert digests.read_bytes() == content_of
    other = ("--out", tmp_path / "other.parquet", "--detection")
    text = run("board", "digest", paths[1], *board, *other, code=1)  # a target has no detectors
    assert "no dataset has a set out of distribution" in " ".join(text.split())
    assert not (tmp_path / "other.parquet").exists()
    run(*command(digests, tmp_path / "site"), tmp_path / "bundle", "--publish-labels")
    run("board", "verify", tmp_path / "site")
    data = json.loads((tmp_path / "site" / "board.json").read_text("utf-8"))
    (entry,) = data["entries"]
    analysis = analyse([transfer], resamples=2, curves=False)
    rows = analysis.scores.query("metric == 'auroc' and `class` == 'mean' and split == 'test'")
    expected = dict(zip(rows["dataset"], rows["value"], strict=True))
    assert {s["dataset"]: s["auroc"] for s in entry["scores"]} == pytest.approx(expected)
    assert entry["parameters"] > 1000
    assert entry["device_hours"] > 0


@pytest.mark.nightly
@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_scrolls_sideways_in_a_browser(tmp_path, official, width):
    folders = [make_bundle(tmp_path / name, name * 30, noise=n) for n, name in enumerate("abc")]
    run(*command(official, tmp_path / "site"), *folders)
    with started_browser() as browser:
        tab = browser.new_context(viewport={"width": width, "height": 800}).new_page()
        for path in sorted((tmp_path / "site").glob("*.html")):
            heard = []
            tab.on("pageerror", lambda error, heard=heard: heard.append(str(error)))
            tab.goto(path.as_uri())
            wide = "document.documentElement.scrollWidth"
            assert tab.evaluate(wide) <= width, path.name
            assert heard == []
        tab.goto((tmp_path / "site" / "dataset-1-georgia.html").as_uri())
        tab.get_by_role("button", name="AUROC").click()  # sorted, a name is a link still
        tab.locator("#table-entries-0 tbody a").first.click()
        assert "entry-" in tab.url
