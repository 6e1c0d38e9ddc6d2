"""Hostile bundles: each is refused with its reason, executes nothing, and the others stay."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from made_bundles import forge, forge_part, make_bundle, pem, rehash, sign, write_official

from benchmd_ray.board import build as build_module
from benchmd_ray.board import content as contents
from benchmd_ray.board.build import RefusedBundle, board_of
from benchmd_ray.board.bundle import part_path, row_form
from benchmd_ray.board.keys import SIGNED, Signature, board_key, is_signed
from benchmd_ray.board.official import read_official
from benchmd_ray.board.site import verify, write_site
from benchmd_ray.cli import main
from benchmd_ray.errors import BenchmdError

EVIL = '"><script>alert(1)</script>'
PATH = "../../../../tmp/outside"


@pytest.fixture
def official(tmp_path):
    return write_official(tmp_path / "official.parquet")


@pytest.fixture
def good(tmp_path):
    return make_bundle(tmp_path / "good", "Good")


def build(folders, official):
    return board_of(folders, read_official(official), title="A board", resamples=50)


def doubled(rows):
    return np.concatenate((rows, rows[:3]))


def with_scores(change):
    def changed(rows):
        rows = rows.copy()
        rows["scores"] = change(rows["scores"])
        return rows

    return changed


def nan(scores):
    scores = scores.copy()
    scores[5, 2] = np.nan
    return scores


def with_records(records):
    def changed(rows):
        rows = rows.copy()
        rows["record"] = np.frombuffer(b"".join(records(rows["record"].tolist())), "V16")
        return rows

    return changed


def padded_names(hashes):
    return [f"patient-{n:05d}".ljust(16).encode() for n in range(len(hashes))]


def others(hashes):
    return sorted([bytes(16), *hashes[1:]])


def fewer_classes(rows):
    fewer = np.zeros(len(rows), row_form(2))
    fewer["record"] = rows["record"]
    return fewer


def as_another_board(bundle):
    return forge(bundle, lambda content: content.update(board=board_key("other").check))


def other_dataset(content):
    content["runs"][0]["predictions"][0]["dataset"] = PATH


def scores_stated(content):
    content["runs"][0]["predictions"][0]["auroc"] = 0.999


def twice(content):
    content["runs"].append(content["runs"][0])


def add(name, text="{}"):
    def changed(bundle):
        (bundle / name).write_text(text)
        return bundle

    return changed


def linked(bundle):
    path = part_path(bundle, 0)
    path.rename(bundle.with_name("elsewhere.parquet"))
    path.symlink_to(bundle.with_name("elsewhere.parquet"))
    return bundle


def with_pipe(bundle):
    os.mkfifo(bundle / "signature.json")
    return bundle


def too_many(rows):
    return np.concatenate([rows] * 3)


def parquet(bundle):
    """What decodes to 2 GB where it is read as Parquet."""
    rows = 2**24
    flat = pa.DictionaryArray.from_arrays(pa.nulls(rows, pa.int32()).fill_null(0), ["x" * 128])
    pq.write_table(pa.table({"record": flat}), part_path(bundle, 0), compression="zstd")
    return rehash(bundle)


def described(change):
    return lambda bundle: forge(bundle, change)


def nested(bundle):
    (bundle / "bundle.json").write_text('{"format": 1, "runs": ' + "[" * 100_000)
    return bundle


def oversized(bundle):
    with (bundle / "bundle.json").open("ab") as file:
        file.truncate(2**25)
    return bundle


def with_names_after(bundle):
    with part_path(bundle, 0).open("ab") as file:
        file.write(b"Ada Lovelace")
    return rehash(bundle)


def linked_within(bundle):
    part_path(bundle, 1).unlink()
    part_path(bundle, 1).symlink_to(part_path(bundle, 0).name)
    return rehash(bundle)


def linked_folder(bundle):
    (bundle / "predictions").rename(bundle.with_name("elsewhere"))
    (bundle / "predictions").symlink_to(bundle.with_name("elsewhere"))
    return bundle


def wrong_signature(bundle):
    key = "11" * 32
    add("signature.json", f'{{"public_key": "{key}", "signature": "{"22" * 64}"}}')(bundle)
    return bundle


def settings_of_code(content):
    content["runs"][0]["settings"]["encoder"]["network"] = {"__reduce__": "os.system"}


def of_one_name(content):
    """A further seed without a classification of its own: it has the name of a run with one."""
    run = content["runs"][0]
    under = {"evaluation": "robustness", "version": 1, "condition": "noise 1"}
    parts = [part | under for part in run["predictions"][:1]]
    content["runs"].append(run | {"seed": 1, "predictions": parts})


def one_more_seed(bundle):
    shutil.copyfile(part_path(bundle, 0), part_path(bundle, 2))
    return forge(bundle, of_one_name)


def with_options(options):
    def changed(content):
        content["runs"][0]["settings"]["encoder"] |= {"network": "resnet18-1d", "options": options}

    return described(changed)


def below_zero(content):
    content["runs"][0]["device_hours"] = -1.0


def of_run(change):
    return described(lambda content: change(content["runs"][0]))


PARTS = {
    "doubled records": (doubled, r"3 records more than once, of 240 records"),
    "missing records": (lambda rows: rows[4:], r"4 records missing, of 240 records"),
    "other records": (with_records(others), r"1 record missing, 1 record that the official"),
    "another order": (lambda rows: rows[::-1], "its records in another order"),
    "names": (with_records(padded_names), "240 records missing, 240 records that the"),
    "NaN": (with_scores(nan), "a score is NaN or outside 0 to 1"),
    "infinite": (with_scores(lambda s: s + np.inf), "a score is NaN or outside 0 to 1"),
    "classes": (fewer_classes, r"has 7,680 bytes, expected 240 rows of 72: a hash and 7 scores"),
    "nothing": (lambda rows: rows[:0], "240 records missing"),
    "too many": (too_many, "has 51,840 bytes, expected 240 rows of 72"),
}
BUNDLES = {
    "another board": (as_another_board, "packed for another board, or with another key"),
    "stated scores": (described(scores_stated), "unknown key in .*'auroc'"),
    "path": (described(other_dataset), r"predictions of '../../../../tmp/outside' .* pack with"),
    "a run twice": (described(twice), "the predictions of a run for a dataset twice"),
    "a seed without scores": (one_more_seed, "it has a run, or the predictions"),
    "odd settings": (with_options({"a\u202e\x1b": 1}), "settings: .* of printable text"),
    "many settings": (with_options(dict.fromkeys(map(str, range(2000)), 1)), "at most 1,000"),
    "another file": (add("run.py", "import os"), "files that it does not name, such as 'run.py'"),
    "link": (linked, "holds a link, or what is not a regular file"),
    "link within": (linked_within, "holds a link, or what is not a regular file"),
    "link of the folder": (linked_folder, "holds a link, or what is not a regular file"),
    "pipe": (with_pipe, "holds a link, or what is not a regular file"),
    "Parquet": (parquet, "has [0-9,]+ bytes, expected 240 rows"),
    "names after the rows": (with_names_after, "has 17,292 bytes, expected 240 rows"),
    "nested": (nested, "not valid JSON"),
    "oversized": (oversized, "more than 4,194,304 bytes"),
    "signature": (wrong_signature, "its signature is not one of its content"),
    "code": (described(settings_of_code), "settings: .*network"),
    "time": (described(below_zero), "device_hours"),
    "date in other digits": (described(lambda c: c.update(made="٢٠٢٦-01-01T00:00:00Z")), "made"),
    "another format": (described(lambda c: c.update(format=2)), "format"),
    "no predictions": (of_run(lambda run: run.update(predictions=[])), "predictions"),
    "many runs": (described(lambda c: c.update(runs=c["runs"] * 101)), "runs"),
    "no settings": (of_run(lambda run: run.update(settings={})), "not those expected: encoder, tr"),
    "another setting": (
        of_run(lambda run: run.update(setting="knn")),
        "settings of transfer.* are those of linear, not of 'knn'",
    ),
    "condition": (
        of_run(lambda run: run["predictions"][0].update(condition=EVIL)),
        "condition is",
    ),
    "evaluation": (
        of_run(lambda run: run["predictions"][0].update(evaluation="ood", condition="a 1")),
        "has no classification of 'georgia'",
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_forged_predictions_are_refused_with_the_reason(name, tmp_path, official, good):
    change, reason = PARTS[name]
    bad = forge_part(make_bundle(tmp_path / "bad", "Bad", noise=1), change)
    board = build([bad, good], official)
    assert [entry.bundle.about.submitter for entry in board.entries] == ["Good"]
    ((refused, why),) = [(each.name, each.reason) for each in board.refused]
    assert refused == "bad"
    assert re.search(reason, why), why
    assert "patient-0" not in why
    assert "Ada" not in why


@pytest.mark.parametrize("name", BUNDLES)
def test_forged_bundles_are_refused_with_the_reason(name, tmp_path, official, good):
    change, reason = BUNDLES[name]
    bad = change(make_bundle(tmp_path / "bad", "Bad", noise=1))
    board = build([good, bad], official)
    assert [entry.bundle.about.submitter for entry in board.entries] == ["Good"]
    ((refused, why),) = [(each.name, each.reason) for each in board.refused]
    assert refused == "bad"
    assert re.search(reason, why), why
    assert "Ada" not in why


ODD = {
    "settings that are a text": lambda c: c["runs"][0]["settings"].update(encoder="paper"),
    "costs": lambda c: c["runs"][0].update(device_hours=1e-300),
    "more costs": lambda c: c["runs"][0].update(device_hours=9e18),
    "no names": lambda c: c["runs"][0].update(row="", run="", source=""),
}


@pytest.mark.parametrize("name", ODD)
def test_whatever_a_bundle_states_the_others_are_written(name, tmp_path, official, good):
    odd = forge(make_bundle(tmp_path / "odd", "Odd", noise=1), ODD[name])
    board = build([odd, good], official)
    write_site(board, tmp_path / "site")
    assert "Good" in (tmp_path / "site" / "index.html").read_text("utf-8")
    assert [*verify(tmp_path / "site", read_official(official))] == []


def test_an_error_of_one_bundle_is_a_refusal_without_its_text(
    tmp_path, official, good, monkeypatch
):
    bad = os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff")
    shutil.copytree(good, bad)
    real = build_module.read_bundle

    def read(folder):
        if folder.name != "good":
            raise RuntimeError("Ada Lovelace")
        return real(folder)

    monkeypatch.setattr(build_module, "read_bundle", read)
    board = build([Path(bad), good], official)
    assert board.refused == [
        RefusedBundle(r"bad\udcff", "it cannot be read or scored (RuntimeError)")
    ]
    write_site(board, tmp_path / "site")
    stated = json.loads((tmp_path / "site" / "build.json").read_text("utf-8"))
    (tmp_path / "site" / "build.json").write_text(json.dumps(stated | {"title": "\ud800"}))
    with pytest.raises(BenchmdError, match=r"title is .*, expected"):
        [*verify(tmp_path / "site", read_official(official))]


def test_many_of_one_name_are_counted_and_not_all_listed(tmp_path, official, good, monkeypatch):
    folders = [shutil.copytree(good, tmp_path / f"key-{n}") for n in range(6)]
    for folder in folders:
        sign(folder, pem(tmp_path / "key.pem"))
    monkeypatch.setattr(contents, "MOST_NAMED", 2)
    entries = contents.content(build(folders, official))["entries"]
    notes = [note for entry in entries for note in entry["notes"] if note.startswith("Name:")]
    assert len(notes) == 6
    assert all(" and 3 more: who is who is unknown" in note for note in notes)


def test_a_published_bundle_has_no_mode_of_its_submitter(tmp_path, official, good):
    bad = shutil.copytree(good, tmp_path / "odd")
    bad.chmod(0o500)
    part_path(bad, 0).chmod(0o7555)
    write_site(build([bad], official), tmp_path / "site")
    (kept,) = (tmp_path / "site" / "bundles").iterdir()
    assert kept.stat().st_mode & 0o200
    assert not part_path(kept, 0).stat().st_mode & 0o7111


def test_nobody_who_verifies_is_made_to_draw_without_end(tmp_path, official, good):
    write_site(build([good], official), tmp_path / "site")
    made = json.loads((tmp_path / "site" / "build.json").read_text("utf-8"))
    (tmp_path / "site" / "build.json").write_text(json.dumps(made | {"resamples": 10_001}))
    with pytest.raises(BenchmdError, match="resamples"):
        next(verify(tmp_path / "site", read_official(official)))
    with pytest.raises(BenchmdError, match="10,001 resamples: expected at most 10,000"):
        board_of([good], read_official(official), title="A board", resamples=10_001)


def test_what_changes_after_it_was_scored_is_not_published(tmp_path, official, good):
    board = build([good], official)
    (tmp_path / "secret").write_text("Ada Lovelace")
    part_path(good, 0).unlink()
    part_path(good, 0).symlink_to(tmp_path / "secret")
    with pytest.raises(BenchmdError, match="was changed meanwhile"):
        write_site(board, tmp_path / "site")
    assert [*(tmp_path / "site" / "bundles").iterdir()] == []


def test_an_archive_is_no_bundle(tmp_path, official, good):
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../bundle.json", b"0" * 2**24)
    board = build([path, good], official)
    assert board.refused[0].reason.startswith("it is not a folder")


def test_a_site_without_a_bundle_that_can_be_scored_is_told_as_one(tmp_path, official, good):
    write_site(build([good], official), tmp_path / "site")
    (kept,) = (tmp_path / "site" / "bundles").iterdir()
    part_path(kept, 1).unlink()
    lines = [*verify(tmp_path / "site", read_official(official))]
    assert "lacks files that it names, such as 'predictions/0001.bin'" in lines[0]
    assert lines[1:] == [
        "nothing else was compared, as scores, groups and pages depend on all of its bundles"
    ]


def test_other_labels_than_those_of_the_build_are_told_instead_of_all_that_differs(
    tmp_path, official, good
):
    write_site(build([good], official), tmp_path / "site")
    other = write_official(tmp_path / "other.parquet")
    table = pq.read_table(other)
    at = table.column_names.index("sex")
    table = table.set_column(at, "sex", pa.array(["a"] * len(table)))
    pq.write_table(table, other, compression="none", use_dictionary=False)
    with pytest.raises(BenchmdError, match="was built with other official labels") as told:
        [*verify(tmp_path / "site", read_official(other))]
    assert read_official(official).sha256 in str(told.value)


def test_an_altered_file_of_predictions_is_refused(tmp_path, official, good):
    bad = make_bundle(tmp_path / "bad", "Bad", noise=1)
    part_path(bad, 1).write_bytes(part_path(good, 1).read_bytes())
    board = build([bad, good], official)
    assert "file 1 of its predictions has another SHA-256" in board.refused[0].reason


def test_a_signature_of_another_text_or_key_is_none(tmp_path):
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw().hex()
    text = b"a bundle"
    right = key.sign(SIGNED + sha256(text).digest()).hex()
    assert is_signed(text, Signature(public, right))
    assert not is_signed(b"another", Signature(public, right))
    assert not is_signed(text, Signature(public, key.sign(text).hex()))
    assert not is_signed(text, Signature("not hexadecimal", right))
    other = Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex()
    assert not is_signed(text, Signature(other, right))


def test_markup_and_paths_in_names_are_text(tmp_path, official):
    def evil(content):
        content |= {"submitter": EVIL, "title": EVIL, "licence": EVIL}
        for run in content["runs"]:
            run |= {"row": EVIL + PATH, "technique": EVIL, "weights": EVIL, "run": PATH}
            run |= {"hardware": [EVIL], "versions": {EVIL: EVIL}, "source": PATH}
            for part in run["predictions"]:
                part["contamination"] = EVIL

    bundle = forge(make_bundle(tmp_path / "evil"), evil)
    arguments = ["--catalog-digests", str(official), "--out", str(tmp_path / "site")]
    result = CliRunner().invoke(main, ["board", "build", str(bundle), *arguments])
    assert result.exit_code == 0, result.output
    written = {path.relative_to(tmp_path / "site") for path in (tmp_path / "site").rglob("*")}
    assert all(str(path).isascii() and ".." not in str(path) for path in written)
    assert not (tmp_path.parent / "outside").exists()
    for path in (tmp_path / "site").glob("*.html"):
        text = path.read_text("utf-8")
        assert "<script>alert" not in text
        assert text.count("<script") == 1 + text.count('<script type="application/json">')
    assert '""><script>' in (tmp_path / "site" / "board.csv").read_text("utf-8")  # as CSV quotes


def test_no_entry_and_strict_builds_end_with_an_error(tmp_path, official, good):
    bad = forge_part(make_bundle(tmp_path / "bad", "Bad"), doubled)
    arguments = ["--catalog-digests", str(official), "--out", str(tmp_path / "site")]

    def build_site(*folders):
        return CliRunner().invoke(main, ["board", "build", *map(str, folders), *arguments])

    none = build_site(bad)
    assert none.exit_code == 1
    assert "no bundle can be on the board" in none.output
    assert not (tmp_path / "site").exists()
    assert build_site(bad, good).exit_code == 0
    assert build_site(bad, good, "--strict").exit_code == 1
    page = (tmp_path / "site" / "index.html").read_text("utf-8")
    assert "3 records more than once" in page
    kept = [path.name for path in (tmp_path / "site" / "bundles").iterdir()]
    assert len(kept) == 1  # what is refused is not published


@pytest.fixture
def two_seeds(tmp_path):
    return make_bundle(tmp_path / "bad", "Bad", noise=1, seeds=2)


def test_a_seed_twice_is_refused(official, good, two_seeds):
    forge(two_seeds, lambda content: content["runs"][1].update(seed=0))
    reason = build([two_seeds, good], official).refused[0].reason
    assert reason == "2 runs of 'scratch' have the seed 0: submit one of them"


@pytest.mark.parametrize("put", [shutil.copyfile, os.link])
def test_a_run_that_is_submitted_as_two_seeds_is_refused(official, good, two_seeds, put):
    """Whether it is a copy, or one file by two names; also where only one dataset is alike."""
    part_path(two_seeds, 2).unlink()
    put(part_path(two_seeds, 0), part_path(two_seeds, 2))
    rehash(two_seeds)
    reason = build([two_seeds, good], official).refused[0].reason
    assert reason.startswith("seeds 0 and 1 of 'scratch' have the same predictions of georgia")


def test_what_is_computed_of_a_bundle_takes_no_more_than_its_file(tmp_path, official, good):
    """The peak of a process that refuses a file which claims to be large."""
    bad = parquet(make_bundle(tmp_path / "bad", "Bad", noise=1))
    program = (
        "import resource; from pathlib import Path; "
        "from benchmd_ray.board.bundle import Refused, read_bundle, read_part; "
        f"bundle = read_bundle(Path({str(bad)!r})); "
        "usage = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; before = usage()\n"
        "try: read_part(bundle, 0, 240, 7)\n"
        "except Refused: print(usage() - before)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert int(result.stdout) < 2**15  # KiB


def test_digests_of_a_site_that_decode_to_more_than_they_take_are_refused(tmp_path, official):
    table = pq.read_table(official)
    many = table.take([0] * 100_000).replace_schema_metadata(table.schema.metadata)
    long = table.set_column(5, table.schema.field(5), pa.array(["0" * 100_000] * len(table)))
    for changed, how in (
        (many, {"compression": "zstd"}),
        (many, {"compression": "none"}),  # each value by its number in a dictionary
        (long, {"compression": "none"}),
    ):
        pq.write_table(changed, tmp_path / "forged.parquet", **how)
        assert (tmp_path / "forged.parquet").stat().st_size < 400_000
        with pytest.raises(BenchmdError, match="it is compressed, or repeats values by number"):
            read_official(tmp_path / "forged.parquet")
