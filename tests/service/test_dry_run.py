"""The printed plan."""

import re

import pytest
from click.testing import CliRunner

from benchmd_ray.cli import main
from benchmd_ray.service import dry_run as module
from benchmd_ray.service.dry_run import (
    Status,
    estimate_plan,
    estimate_run,
    figure,
    print_estimates,
    size,
    status,
)
from benchmd_ray.service.execute import evaluate_run, pretrain_run, transfer_run
from benchmd_ray.service.plan import Choice, make_plan
from benchmd_ray.service.simulate import Resources, simulate

SMALL = (
    "encoder=tiny",
    "execution.device=cpu",
    "pretrain.steps=2",
    "pretrain.batch_size=4",
    "transfer.epochs=1",
)


@pytest.fixture
def full():
    return make_plan(Choice(), device="cuda", tflops=50.0)


def row(text, name):
    """Cells of a table's row, columns told apart by two blanks."""
    line = next(line for line in text.splitlines() if line.startswith(name))
    return re.split(r"\s{2,}", line.strip())


def test_the_table_counts_each_modality_and_all(full):
    text = "\n".join(estimate_plan(full, Resources(16, 1)).lines())
    assert row(text, "ecg")[:7] == ["ecg", "ptb-xl", "clean", "3", "20", "60", "0"]
    assert row(text, "fundus")[3:6] == ["5", "30", "60"]
    assert row(text, "all")[1:5] == ["29", "180", "310", "0"]
    assert "519 entries: 7 modalities, 6 techniques, 5 transfer settings, 1 seed." in text
    hours = sum(item.seconds * item.gpus for item in full.items) / 3600
    assert row(text, "all")[5] == figure(hours)
    assert "50 TFLOP/s sustained by each device, as stated." in text


def test_a_plan_from_cards_says_how_to_run_it(full, capsys):
    print_estimates([estimate_plan(full, Resources(16, 1))], "Build catalogs.")
    *_, blank, last = capsys.readouterr().out.splitlines()
    assert not blank
    assert last.startswith("Planned from the datasets' cards")
    assert last.endswith(" Build catalogs.")


def test_time_and_disk_are_those_of_the_simulated_schedule(full):
    resources = Resources(4, 2)
    text = "\n".join(estimate_plan(full, resources).lines())
    schedule = simulate(full.items, resources)
    assert f"Time: about {module.duration(schedule.seconds)} on 4 CPUs and 2 GPUs, up to 4 " in text
    assert "runs on a GPU at once." in text
    kept = size(sum(item.disk_bytes for item in full.items))
    assert f"{kept} more when all is done, at most {size(schedule.peak_bytes)} on the way" in text
    assert schedule.peak_bytes >= sum(item.disk_bytes for item in full.items)


def test_what_is_done_is_neither_counted_nor_waited_for(full):
    ecg = frozenset(item.name for item in full.items if item.modality == "ecg")
    text = "\n".join(estimate_plan(full, Resources(4, 2), Status(done=ecg)).lines())
    assert row(text, "ecg")[6:] == ["83", "0", "0 B"]
    assert "Done already: 83 of 519." in text
    everything = Status(done=frozenset(item.name for item in full.items))
    assert "Nothing is left to do." in "\n".join(
        estimate_plan(full, Resources(4, 2), everything).lines()
    )


def test_notes_and_items_are_listed(full):
    text = "\n".join(estimate_plan(full, Resources(4, 2)).lines(items=True))
    reason = "ImageNet weights are for 2-D images of 224 × 224 pixels (ecg, eeg, ldct)."
    assert f"- imagenet: skipped, {reason}" in text
    listed = [line.split()[0] for line in text.splitlines() if "/clean/" in line]
    assert listed == [item.name for item in full.items]
    assert "/clean/" not in "\n".join(estimate_plan(full, Resources(4, 2)).lines())


def test_a_plan_that_does_not_fit_says_so():
    choice = Choice(modalities=("ecg",), assignments=("execution.workers=8",))
    text = "\n".join(
        estimate_plan(make_plan(choice, device="cuda", tflops=1.0), Resources(8, 4)).lines()
    )
    assert re.search(r"It cannot run on 8 CPUs and 4 GPUs: .* needs 8 GPUs at once", text)


def test_hours_are_those_of_cpus_where_there_is_no_gpu():
    plan = make_plan(Choice(modalities=("ecg",)), device="cpu", tflops=0.1)
    assert "CPU-hours left" in "\n".join(estimate_plan(plan, Resources(2)).lines())


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1_000, "1 kB"), (38_553_484, "38.6 MB"), (1.2e13, "12 TB")],
)
def test_sizes_are_read_easily(count, text):
    assert size(count) == text


@pytest.mark.parametrize("option", ["--items", "--json", "--gpus=0", "--gpus=2"])
def test_what_only_plans_is_refused_without_a_dry_run(write_manifest, tmp_path, option):
    store = tmp_path / "runs"
    command = ["run", f"--catalog={write_manifest('ptb-xl')}", f"--store={store}", option]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2
    assert "--items, --gpus and --json go with --dry-run: nothing was started." in result.output
    assert not store.exists()


@pytest.fixture
def sources(ecg_catalogs):
    return ecg_catalogs["ptb-xl"].path, ecg_catalogs["georgia"].path


def test_the_status_is_what_the_store_holds(sources, tmp_path):
    store = tmp_path / "runs"
    choice = Choice(catalogs=sources, techniques=("mae",), settings=("linear",), assignments=SMALL)
    plan = make_plan(choice, store, measure=False)
    pretrained, linear, georgia = plan.items
    assert status(plan, store) == Status()
    first = pretrain_run("mae", pretrained.catalog, store, pretrained.settings)
    assert status(plan, store).done == {pretrained.name}
    second = transfer_run(linear.catalog, store, linear.settings, upstream=first.folder)
    assert status(plan, store).done == {pretrained.name, linear.name}
    (second.folder / "done.json").unlink()
    begun = status(plan, store)
    assert (begun.done, begun.begun) == ({pretrained.name}, {linear.name})
    second = transfer_run(linear.catalog, store, linear.settings, upstream=first.folder)
    evaluate_run(second, georgia.catalog, georgia.settings)
    assert status(plan, store).done == {item.name for item in plan.items}
    text = "\n".join(estimate_run(choice, store, Resources(2)).lines())
    assert "Nothing is left to do." in text
    assert "measured speed of runs like them" in text


def test_nothing_is_downloaded_to_look(write_manifest, tmp_path, monkeypatch):
    def refuse(*_):
        raise AssertionError("downloaded")

    monkeypatch.setattr("benchmd_ray.models.imagenet._downloaded", refuse)
    monkeypatch.setattr(module, "_downloaded_weights", lambda: None)
    catalog = write_manifest("bcn20000")
    choice = Choice(catalogs=(catalog,), techniques=("imagenet", "imagenet+mae"))
    plan = make_plan(choice, device="cpu", tflops=1.0)
    (tmp_path / "runs").mkdir()
    held = status(plan, tmp_path / "runs")
    assert held.unknown == {item.name for item in plan.items}
    text = "\n".join(estimate_plan(plan, Resources(2), held).lines())
    assert f"not looked up, without --weights: {len(plan.items)}" in text
