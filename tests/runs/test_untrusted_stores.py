"""What a store or a catalog says is neither executed nor believed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from forging import (
    forge_json,
    forge_line,
    forge_metadata,
    json_leaves,
    log_lines,
    with_value,
)
from kinds import MODALITIES
from stored import runs
from tiers import SHARES, sample
from untrusted import use

from benchmd_ray.cli import main
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.errors import BenchmdError
from benchmd_ray.extensions import plugins
from benchmd_ray.files.atomic import remove
from benchmd_ray.files.integrity import Damaged, read_hashed_json, write_hash, write_hashed_json
from benchmd_ray.report.scored import read_scored
from benchmd_ray.runs.predictions import predictions_path, read_predictions
from benchmd_ray.runs.store import read_run, read_stores
from benchmd_ray.service.search_session import _Worked
from benchmd_ray.training.checkpoints import _description
from benchmd_ray.training.jobs import transfer_result
from benchmd_ray.tuning.families import Family
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.records import read_searches, read_trials
from benchmd_ray.tuning.spaces import space_for
from benchmd_ray.tuning.study import Study

EVIL = "evil:make"
REPORTED = ("run.json", "georgia.parquet", "ptb-xl.parquet", "search.json", "trials.parquet")
"""Files whose texts a report shows, but within ``inner``."""
MODULE = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\ndef make(*_): pass\n"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def source(ecg_catalogs):
    return ecg_catalogs["ptb-xl"]


@pytest.fixture(scope="session")
def made(untrusted):
    """A store, not to be changed."""
    return untrusted / "runs"


@pytest.fixture
def store(made, tmp_path):
    """A copy of it."""
    shutil.copy(made.parent / "space.yaml", tmp_path)
    return shutil.copytree(made, tmp_path / "runs")


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A module that leaves a mark where it is imported, found by every import."""
    (tmp_path / "evil.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv(plugins.ALLOWED, raising=False)
    yield tmp_path / "ran"
    sys.modules.pop("evil", None)


def files_of(store: Path) -> list[Path]:
    """Files that hold text of ours, each kind of run and of file once."""
    kinds = {}
    for path in sorted(store.rglob("*")):
        if path.suffix in (".json", ".jsonl", ".log", ".parquet") and "shards" not in path.parts:
            parts = path.relative_to(store).parts[:-1]
            kinds.setdefault((*(re.split("[-_]", part)[0] for part in parts), path.name), path)
    return list(kinds.values())


def test_every_kind_of_file_is_looked_at(made):
    names = {path.name for path in files_of(made)}
    assert names >= {
        *("run.json", "done.json", "model.json", "training.json", "checkpoint.json"),
        *("metrics.jsonl", "history.jsonl", "search.json", "result.json", "trials.parquet"),
        *("study.log", "manifest.json", "georgia.parquet", "ptb-xl.parquet"),
    }


def test_a_store_as_it_was_written_is_refused_nowhere(made, source):
    assert use(made, source) == []


def test_the_module_that_a_catalog_s_card_names_is_not_imported(store, source, evil):
    path = min(store.glob("inner/catalogs/ptb-xl-*/manifest.json"))
    content = json.loads(path.read_text())
    content["card"]["module"] = "evil"
    forge_json(path, content)
    assert open_catalog(path.parent).card.module == "evil"
    use(store, source)
    assert not evil.exists()


@pytest.mark.parametrize("share", SHARES)
def test_no_name_in_a_store_or_a_catalog_is_imported(made, store, source, evil, share):
    tried = 0
    for path in files_of(store):
        folder, whole = path.parent, path.read_bytes()
        chosen = sample(share, [*forgeries(path)], 3, str(path.relative_to(store)))
        for number, forge in enumerate(chosen):
            renamed = forge(path) or folder
            shown = path.name in REPORTED and "inner" not in path.parts
            use(store, source, report=shown and number % 4 == 0)  # a report takes a second or two
            assert not evil.exists(), f"{path.relative_to(store)}, forgery {number}"
            if renamed != folder:
                shutil.rmtree(renamed)
                shutil.copytree(made / folder.relative_to(store), folder)
            path.write_bytes(whole)
            tried += 1
        if path.suffix == ".parquet":
            write_hash(path)
    assert use(store, source) == []
    assert tried > (100 if share == "whole" else 30)
    assert "evil" not in sys.modules


def forgeries(path: Path):
    """Ways to write an import path in the place of each text that a file holds."""
    if path.suffix == ".json":
        content = json.loads(path.read_text())
        for way, value in json_leaves(content):
            if isinstance(value, str) and way[0] not in ("sha256", "digest"):
                changed = with_value(content, way, EVIL)
                yield lambda at, changed=changed: forge_json(at, changed)
        if "encoder" in content:
            foreign = {**content["encoder"], "network": EVIL}
            yield lambda at: forge_json(at, content | {"encoder": foreign, "network_source": None})
    elif path.suffix in (".jsonl", ".log"):
        kinds = {tuple(line): number for number, line in enumerate(log_lines(path))}
        for number in kinds.values():
            line = log_lines(path)[number]
            for way, value in json_leaves(line):
                if isinstance(value, str):
                    changed = with_value(line, way, EVIL)
                    yield lambda at, number=number, changed=changed: forge_line(at, number, changed)
    else:
        for name in pq.read_schema(path).metadata or {}:
            yield lambda at, name=name: forge_metadata(at, name.decode(), EVIL)


@pytest.mark.parametrize("command", ["evaluate", "transfer", "run"])
def test_a_network_that_a_store_names_is_not_imported_by_commands(
    store, ecg_catalogs, tmp_path, command
):
    """The attack of a store that holds a module, from the folder above it."""
    (store / "evil.py").write_text(MODULE)
    for run in runs([store]):
        model = read_hashed_json(run.folder / "model.json", "")
        foreign = model["encoder"] | {"network": "runs.evil:make"}
        write_hashed_json(run.folder / "model.json", model | {"encoder": foreign})
        changed = run.description["settings"] | {"encoder": foreign}
        write_hashed_json(run.folder / "run.json", run.description | {"settings": changed})
    pretrained = next(run for run in runs([store]) if run.description["kind"] == "pretrain")
    transferred = next(run for run in runs([store]) if run.description["kind"] == "transfer")
    names = {name: str(catalog.path) for name, catalog in ecg_catalogs.items()}
    source = ["--catalog", names["ptb-xl"]]
    arguments = {
        "evaluate": [str(transferred.folder), "--catalog", names["cpsc"]],
        "transfer": [*source, "--from", str(pretrained.folder), "--set", "transfer.epochs=1"],
        "run": [*source, "--technique", "scratch", "--setting", "linear", "--dry-run"],
    }[command]
    environment = {k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", plugins.ALLOWED)}
    done = subprocess.run(
        [sys.executable, "-m", "benchmd_ray.cli", command, *arguments],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(tmp_path)},  # as docs recommend for custom methods
        capture_output=True,
        text=True,
    )
    assert not (store / "ran").exists(), done.stderr
    if command == "run":  # which only measures with what the store holds
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode == 1
        assert "--allow-plugin runs.evil:make" in done.stderr


def test_a_search_found_nothing_that_is_imported(store, evil, tmp_path):
    (folder,) = (store / "searches").iterdir()
    (folder / "best.yaml").write_text(f"encoder: {{network: '{EVIL}'}}\n")
    wanted = ["settings", "--settings", str(folder / "best.yaml")]
    CliRunner().invoke(main, wanted)
    assert EVIL not in plugins.allowed()
    (run, *_) = store.glob("transfer-*")
    for place in (
        store,
        store / "searches",
        folder / "sub" / "x",
        run / "predictions" / "classification",
    ):
        place.mkdir(parents=True, exist_ok=True)
        theirs = shutil.copy(folder / "best.yaml", place / "s.yaml")
        CliRunner().invoke(main, ["settings", "--settings", str(theirs)])
        assert EVIL not in plugins.allowed(), place
    mine = shutil.copy(folder / "best.yaml", tmp_path / "mine.yaml")  # the user's own by now
    CliRunner().invoke(main, ["settings", "--settings", str(mine)])
    assert EVIL in plugins.allowed()
    os.environ.pop(plugins.ALLOWED)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--technique", "mine:Method"], ["mine:Method"]),
        (["--set", "encoder.network=mine:Net"], ["mine:Net"]),
        (["--allow-plugin", "mine:Other"], ["mine:Other"]),
        (["--technique", "mae", "--set", "seed=1"], []),
    ],
)
def test_what_the_command_line_names_is_allowed(monkeypatch, tmp_path, arguments, names):
    monkeypatch.setenv(plugins.ALLOWED, "")
    CliRunner().invoke(main, ["run", "--catalog", str(tmp_path), *arguments])
    assert list(plugins.allowed()) == names


def test_a_name_to_allow_must_be_an_import_path():
    done = CliRunner().invoke(main, ["run", "--allow-plugin", "os.system('x')"])
    assert "is not of the form package.module:name" in done.output


def test_neither_commands_nor_workers_search_the_working_folder(tmp_path):
    (tmp_path / "here.py").write_text("")
    code = (
        "import sys; from benchmd_ray.cluster.connection import connected\n"
        "with connected(cpus=1):\n"
        "    import ray\n"
        "    find = ray.remote(lambda: __import__('importlib.util').util.find_spec('here'))\n"
        "    print('worker', ray.get(find.remote()))\n"
    )
    (tmp_path / "script").mkdir()
    (tmp_path / "script" / "main.py").write_text(code)
    environment = {k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "PYTHONPATH")}
    found = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "script/main.py"], **found)
    assert "worker None" in done.stdout, done.stdout + done.stderr
    (tmp_path / "yaml.py").write_text("raise SystemExit('the working folder was searched')")
    done = subprocess.run([sys.executable, "-m", "benchmd_ray.cli", "settings"], **found)
    assert done.returncode == 0, done.stderr


# Columns that would be unpickled


class Planted:
    def __reduce__(self):
        return (Path.touch, (Path(os.environ["BENCHMD_TEST_MARK"]),))


def planted_column(rows: int) -> pa.ExtensionArray:
    """A column of the type by which Ray Data stores pickled objects."""
    import ray.data
    from ray.data._internal.object_extensions.arrow import ArrowPythonObjectArray

    assert ray.data  # registers the type
    return ArrowPythonObjectArray.from_objects([Planted()] * rows)


@pytest.mark.ray
@pytest.mark.parametrize("where", ["predictions", "trials", "shard"])
def test_a_column_of_pickled_objects_is_not_read(
    store, source, tmp_path, monkeypatch, where, ecg_catalogs
):
    mark = tmp_path / "unpickled"
    monkeypatch.setenv("BENCHMD_TEST_MARK", str(mark))
    if where == "shard":
        folder = shutil.copytree(source.path, tmp_path / "catalog")
        (path,) = (folder / "shards").glob("train-*")
        column = "group_id"
    elif where == "trials":
        (path,) = store.glob("searches/*/trials.parquet")
        column = "reason"
    else:
        path, column = (
            next(store.glob("transfer-*/predictions/classification/georgia.parquet")),
            "sex",
        )
    table = pq.read_table(path)
    place = table.schema.get_field_index(column)
    planted = table.set_column(place, column, planted_column(len(table)))
    pq.write_table(planted.replace_schema_metadata(table.schema.metadata), path)
    assert planted[column][0].as_py() is None  # it works, where it is read carelessly
    mark.unlink()
    write_hash(path)
    if where == "shard":
        manifest = json.loads((folder / "manifest.json").read_text())
        for shard in manifest["shards"]:
            if shard["file"].endswith(path.name):
                shard["sha256"] = path.with_name(f"{path.name}.sha256").read_text()[:64]
                shard["bytes"] = path.stat().st_size
        forge_json(folder / "manifest.json", manifest)
        with pytest.raises(BenchmdError, match="is of a foreign type"):
            list(open_catalog(folder).tables("train"))
    else:
        read = read_predictions if where == "predictions" else read_trials
        with pytest.raises(BenchmdError, match="is of a foreign type"):
            read(path)
        use(store, source)
    assert not mark.exists()


# Bits that flip


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= 1 << place % 8
    path.write_bytes(data)


@pytest.mark.parametrize("command", ["transfer", "evaluate"])
@pytest.mark.parametrize("file", ["run.json", "done.json", "model.json", "model.safetensors"])
def test_a_flipped_bit_in_a_run_is_found_where_it_is_read(
    made, ecg_catalogs, tmp_path, file, command
):
    whole = next(made.glob("pretrain-*" if command == "transfer" else "transfer-*")).name
    size = (made / whole / file).stat().st_size
    names = {name: ["--catalog", str(catalog.path)] for name, catalog in ecg_catalogs.items()}
    for number, place in enumerate(np.random.default_rng(1).integers(0, size, 8).tolist()):
        copy = tmp_path / f"{number}"
        run = shutil.copytree(made / whole, copy / whole)
        before = (run / file).read_bytes()
        flip(run / file, place)
        if file.endswith("json") and same_json(before, (run / file).read_bytes()):
            continue  # white space
        arguments = [str(run), *names["cpsc"]]
        if command == "transfer":
            arguments = [*names["ptb-xl"], "--from", str(run), "--store", str(copy)]
        done = CliRunner().invoke(main, [command, *arguments, "--set", "transfer.epochs=1"])
        assert done.exit_code == 1
        assert "is damaged" in done.output, done.output
        assert str(run) in done.output


def same_json(one: bytes, other: bytes) -> bool:
    try:
        return json.loads(one) == json.loads(other)
    except ValueError:
        return False


def test_a_flipped_bit_in_predictions_never_changes_the_table(made, store, ecg_catalogs):
    run = next(store.glob("transfer-*"))
    path = predictions_path(run, "georgia")
    whole, size = path.read_bytes(), path.stat().st_size
    before = read_predictions(path)
    for place in np.random.default_rng(2).integers(0, size, 40).tolist():
        flip(path, place)
        with pytest.raises(BenchmdError, match="benchmd evaluate"):
            read_predictions(path)
        path.write_bytes(whole)
    flip(path, size // 2)
    done = CliRunner().invoke(
        main, ["evaluate", str(run), "--catalog", str(ecg_catalogs["georgia"].path)]
    )
    assert done.exit_code == 0, done.output
    again = read_predictions(path)  # which was made again
    assert again.description == before.description  # which names the threads that computed it
    assert again.table.equals(before.table)
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("kind", "files"),
    [
        ("pretrain-*", {"done.json", "checkpoint.json"}),
        ("transfer-*", {"done.json", "training.json", "ptb-xl.parquet", "georgia.parquet"}),
        ("searches/*", {"result.json", "trials.parquet", "study.log"}),
    ],
)
def test_a_file_of_another_run_or_search_is_damaged(store, tmp_path, kind, files):
    held = {path: {file.name for file in path.rglob("*")} for path in sorted(store.glob(kind))}
    mine = next(path for path, names in held.items() if files <= names)
    for file in ("run.json", "search.json"):
        if (mine / file).is_file():
            other = shutil.copytree(mine, tmp_path / "other" / mine.name)
            content = json.loads((other / file).read_text())
            content["determinants"]["seed"] = 7
            other = forge_json(other / file, content)  # with files that say that they are of it
    moved = set()
    for path in sorted(path for path in other.rglob("*") if path.is_file()):
        place, whole = mine / path.relative_to(other), path.read_bytes()
        own = place.read_bytes()
        if path.name in files:
            place.write_bytes(whole)
            if path.suffix == ".parquet":
                write_hash(place)
            assert own != whole
            said = " ".join(refusals(store, place))
            assert f"it was written for '{other.name[-12:]}', expected '{mine.name[-12:]}'" in said
            moved.add(path.name)
            place.write_bytes(own)
            if path.suffix == ".parquet":
                write_hash(place)
    assert moved == files
    assert not refusals(store, mine)


def test_predictions_of_another_dataset_are_damaged(store):
    one, other = (
        next(store.glob("transfer-*")) / "predictions" / "classification" / f"{name}.parquet"
        for name in ("georgia", "ptb-xl")
    )
    shutil.copy(one, other)
    write_hash(other)
    assert read_predictions(one)
    with pytest.raises(Damaged, match="it is of the dataset 'georgia'"):
        read_predictions(other)


@pytest.mark.parametrize("seconds", [-1e18, 9e18])
def test_hours_of_a_search_that_nobody_can_have_worked_are_damage(tmp_path, seconds):
    write_hashed_json(tmp_path / "sessions.json", {"seconds": seconds})
    with pytest.raises(Damaged, match="its seconds are"):
        _Worked(tmp_path)


def test_a_file_of_another_trial_is_damaged(tmp_path):
    searches, within = tmp_path / "searches", "trials/00003/000/1/transfer"
    mine = searches / "tune-ecg-0123456789ab" / within
    write_hashed_json(mine / "training.json", {"best_epoch": 1}, of=mine)
    assert read_hashed_json(mine / "training.json", "", of=mine) == {"best_epoch": 1}
    others = (mine.parents[3] / "00007/000/1/transfer", searches / "tune-ecg-ba9876543210" / within)
    for other in others:
        write_hashed_json(mine / "training.json", {"best_epoch": 1}, of=other)
        with pytest.raises(Damaged, match=f"expected '0123456789ab/{within}'"):
            read_hashed_json(mine / "training.json", "", of=mine)
    write_hashed_json(mine / "training.json", {"best_epoch": 1})
    with pytest.raises(Damaged, match="does not name its run or search"):
        read_hashed_json(mine / "training.json", "", of=mine)


def refusals(store: Path, path: Path) -> list[str]:
    """What commands say of the files of a run or a search that they refuse or skip."""
    stored, searched = read_stores([store]), read_searches([store])
    said = [*stored.notes, *searched.notes]
    said += [note for run in stored.found for note in read_scored(run).skipped]
    reads = {
        "training.json": transfer_result,
        "study.log": reopened,
        "checkpoint.json": _description,
    }
    for name, read in reads.items():
        try:
            if path.name == name:
                read(path.parent)
        except BenchmdError as error:
            said.append(str(error))
    return said


def reopened(search: Path) -> object:
    space = space_for("mae", "linear", MODALITIES["ecg"], search.parents[2] / "space.yaml")
    families = [Family("mae", "linear", space, ())]
    return Study(search / "study.log", families, Method()).trials()


def test_one_damaged_run_is_named_and_excluded(store, tmp_path):
    pretrained, transferred = next(store.glob("pretrain-*")), sorted(store.glob("transfer-*"))
    assert len(transferred) > 1
    flip(transferred[0] / "run.json", 60)
    flip(predictions_path(transferred[1], "georgia"), 999)
    flip(pretrained / "done.json", 20)
    (search,) = store.glob("searches/*")
    flip(search / "search.json", 100)
    listed = CliRunner().invoke(main, ["list", str(store)])
    assert listed.exit_code == 0, listed.output
    assert f"{transferred[0]}/run.json is damaged" in listed.output
    assert f"{pretrained}/done.json is damaged" in listed.output
    assert "2 damaged" in listed.output.splitlines()[-1]
    out = ["--out", str(tmp_path / "report"), "--figures", "none", "--resamples", "10"]
    reported = CliRunner().invoke(main, ["report", str(store), *out])
    assert reported.exit_code == 0, reported.output
    for damaged in (
        "run.json",
        "done.json",
        "predictions/classification/georgia.parquet",
        "search.json",
    ):
        assert f"{damaged} is damaged" in reported.output
    assert "ptb-xl (validation)" in reported.output  # what the second run has besides
    page = (tmp_path / "report" / "report.html").read_text()
    assert "is damaged" in page
    pruned = CliRunner().invoke(main, ["prune", str(store), "--keep", "predictions"])
    assert "which of them a damaged run needs is not known" in pruned.output
    assert (transferred[1] / "model.safetensors").exists()


@pytest.mark.parametrize("name", [".lock-classification.georgia", "history.jsonl"])
def test_a_link_in_a_store_changes_no_file_of_its_user(store, ecg_catalogs, tmp_path, name):
    victim = tmp_path / "thesis.txt"
    victim.write_text("thesis")
    run = next(store.glob("transfer-*"))
    remove(predictions_path(run, "georgia"))
    remove(run / name)
    (run / name).symlink_to(victim)
    command = ["evaluate", str(run), "--catalog", str(ecg_catalogs["georgia"].path)]
    done = CliRunner().invoke(main, command)
    CliRunner().invoke(main, ["prune", str(store), "--keep", "predictions"])
    assert victim.read_text() == "thesis"
    if name.startswith(".lock"):
        assert done.exit_code == 1
        assert "is a link or not a regular file" in done.output


@pytest.mark.parametrize("name", ["done.json", "predictions/classification/georgia.parquet.sha256"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_pipes_and_devices_are_damaged_files(store, name, kind):
    path = next(store.glob("transfer-*")) / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    stored = read_stores([store])
    notes = [*stored.notes, *(note for run in stored.found for note in read_scored(run).skipped)]
    assert len([note for note in notes if "is damaged" in note]) == (name != "done.json")


@pytest.mark.parametrize("seconds", [10**400, float("inf"), float("nan")])
def test_numbers_that_no_clock_shows_are_damage(store, seconds):
    path = next(store.glob("transfer-*")) / "done.json"
    content = read_hashed_json(path, "")
    forge_json(path, {**content, "seconds": seconds})
    (note,) = read_stores([store]).notes
    assert "is damaged: seconds is " in note


def test_a_run_in_a_folder_of_another_name_is_refused(store):
    folder = next(store.glob("transfer-*"))
    other = folder.rename(folder.with_name("transfer-ecg-mae-linear-0123456789ab"))
    with pytest.raises(BenchmdError, match=f"a run whose folder ends in -{folder.name[-12:]}"):
        read_run(other)
