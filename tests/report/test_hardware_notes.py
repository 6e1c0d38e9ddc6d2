"""The report says where results that are pooled or compared were computed by different hardware."""

from dataclasses import replace

import pandas as pd
import pytest
from kinds import CLASSES, MODALITIES
from stored import runs
from stores import (
    HARDWARE,
    make_pretraining,
    make_report_store,
    make_transfer,
    people,
    predict_all,
    scores_of,
    targets_of,
    write_predictions,
)

from benchmd_ray.report import tables as page_sections
from benchmd_ray.report.analysis import Analysis, analyse
from benchmd_ray.runs.history import SESSIONS, record_session, trained_by

OTHER = replace(HARDWARE, model="AMD EPYC (family 25, model 17)")
GPU = replace(HARDWARE, model="NVIDIA H100", instructions="compute capability 9.0", threads="")
DATA = {"ptb-xl": {"validation": 60}, "georgia": {"test": 60}}
FASTER = {"transfer": {"optimiser": {"lr": 1e-3}}}


def noted(*found):
    return [note for note in analyse(found, resamples=2, curves=False).notes if "hardware" in note]


def transferred(store, technique="scratch", *, trained=HARDWARE, **about):
    """A transfer with predictions, trained on some hardware."""
    run = make_transfer(store, technique, **about)
    record_session(run.folder, [trained], 0)
    predict_all(run, DATA)
    return run


def note(stages, *kinds, source="ptb-xl"):
    return (
        f"{source}: results that are pooled or compared were {stages} on different hardware, which "
        f"rounds differently: {'; '.join(sorted(map(str, kinds)))}. This may explain part of "
        "their differences."
    )


@pytest.mark.slow
def test_one_kind_of_hardware_gives_no_note(tmp_path):
    assert noted(*runs([make_report_store(tmp_path)])) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [
        OTHER,
        replace(HARDWARE, instructions="PyTorch AVX2, NumPy X86_V3"),
        replace(HARDWARE, threads="1"),
    ],
)
def test_seeds_on_different_hardware_give_one_note_with_the_kinds(tmp_path, other):
    first, second = transferred(tmp_path), transferred(tmp_path, seed=1, trained=other)
    assert noted(first, second) == [note("trained", HARDWARE, other)]
    assert noted(first) == noted(second) == []


@pytest.mark.slow
def test_compared_techniques_on_different_hardware_are_noted(tmp_path):
    upstreams = {t: make_pretraining(tmp_path, t) for t in ("mae", "shed")}
    found = [transferred(tmp_path)]
    found += [transferred(tmp_path, t, upstream=run) for t, run in upstreams.items()]
    record_session(upstreams["mae"].folder, [GPU], 0)
    everything = [*found, *upstreams.values()]
    assert noted(*everything) == [note("pretrained", GPU, HARDWARE)]
    record_session(upstreams["shed"].folder, [GPU], 0)
    assert noted(*everything) == []  # scratch, which has no pretraining, was trained as the others
    record_session(found[0].folder, [OTHER], 0)
    assert noted(*everything) == [note("trained", OTHER, HARDWARE)]


def test_a_setting_is_compared_with_others_of_its_kind_and_no_other_source(tmp_path):
    linear = transferred(tmp_path)
    tuned = transferred(tmp_path, trained=OTHER, changes=FASTER, fixed=False)
    finetuned = transferred(tmp_path, trained=OTHER, setting="finetune-small")
    cxr = transferred(tmp_path, trained=OTHER, source="another")
    assert noted(linear, finetuned, cxr) == []
    assert noted(linear, tuned) == [note("trained", HARDWARE, OTHER)]
    as_many = transferred(tmp_path, trained=OTHER, setting="finetune-full")
    assert noted(linear, as_many) == [note("trained", HARDWARE, OTHER)]


def test_sessions_of_one_run_on_different_hardware_are_noted(tmp_path):
    run = transferred(tmp_path)
    record_session(run.folder, [OTHER], 5)
    assert noted(run) == [note("trained", HARDWARE, OTHER)]


def test_predictions_on_other_hardware_are_noted(tmp_path):
    found = [transferred(tmp_path, seed=seed) for seed in (0, 1)]
    task, rows = MODALITIES["ecg"].task, 60
    targets = targets_of(task.classes, rows, task.kind)
    for run, hardware in zip(found, (HARDWARE, OTHER), strict=True):
        scores = scores_of(targets, task.kind, 1.0, [run.settings.seed])
        splits = {"test": (people(rows), targets, scores)}
        write_predictions(run, "georgia", splits, hardware=hardware)
    assert noted(*found) == [note("scored", HARDWARE, OTHER)]
    record_session(found[1].folder, [OTHER], 0)
    assert noted(*found) == [note("trained and scored", HARDWARE, OTHER)]


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000])
def test_predictions_with_a_damaged_description_are_skipped(tmp_path, text):
    class Damaged:
        def to_json(self):
            return text

    run = transferred(tmp_path)
    targets = targets_of(CLASSES["ecg"], 60, "single-label")
    splits = {"test": (people(60), targets, scores_of(targets, "single-label", 1.0, [0]))}
    write_predictions(run, "georgia", splits, hardware=Damaged())
    notes = analyse([run], resamples=2, curves=False).notes
    (skipped,) = [note for note in notes if note.startswith("Skipped: ")]
    assert "georgia.parquet is damaged" in skipped


def test_damaged_lines_of_sessions_say_nothing(tmp_path):
    run = transferred(tmp_path)
    assert trained_by(run.folder)
    (run.folder / SESSIONS).write_text(f"{{}}\n7\n{HARDWARE.to_json()}\n")
    assert trained_by(run.folder) == ()


def test_the_table_of_runs_has_the_hardware_of_each(tmp_path):
    first, second = transferred(tmp_path), transferred(tmp_path, seed=1, trained=GPU)
    record_session(second.folder, [HARDWARE, GPU], 3)
    third = transferred(tmp_path, seed=2)
    (third.folder / SESSIONS).unlink()
    ran = analyse([first, second, third], resamples=2, curves=False).ran
    known = ran.set_index("seed")[["hardware", "instructions", "threads"]]
    assert known.loc[0].tolist() == [HARDWARE.model, HARDWARE.instructions, HARDWARE.threads]
    both = [f"{GPU.model}; {HARDWARE.model}", f"{GPU.instructions}; {HARDWARE.instructions}", "2"]
    assert known.loc[1].tolist() == both
    assert pd.isna(known.loc[2]).all()
    shown = page_sections.ran(Analysis(ran=ran))
    assert {"hardware", "instructions", "threads"} <= {column.title for column in shown.columns}
