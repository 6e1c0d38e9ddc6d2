"""The plan: which runs there are, in which order, with which settings."""

import csv
import itertools
import random
from collections import Counter
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
from kinds import MODALITIES

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.tasks import Task
from benchmd_ray.service import choice as choice_module
from benchmd_ray.service import plan as plans
from benchmd_ray.service.choice import chosen_datasets
from benchmd_ray.service.cost import Inputs
from benchmd_ray.service.datasets import Found, PlannedDataset
from benchmd_ray.service.estimate import Measured
from benchmd_ray.service.plan import Choice, make_plan
from benchmd_ray.service.resolved import resolve_settings
from benchmd_ray.settings.definition import ENCODERS, default_settings, load_settings

METHODS = ("e-mix", "shed", "mae")
IMAGES = ("cxr", "mammo", "derm", "fundus")
SETTINGS = ("linear", "finetune-small", "finetune-medium", "finetune-large", "finetune-full")


def planned(choice=None, **options):
    """A plan that measures nothing."""
    return make_plan(choice or Choice(), tflops=10.0, **options)


def reference():
    path = resources.files("benchmd_ray.benchmarks.benchmd") / "published.csv"
    return list(csv.DictReader(path.read_text("utf-8").splitlines()))


def scored(item):
    """Cells of the results table that an item fills."""
    return [] if item.kind == "pretrain" else [(item.dataset, item.setting, item.technique)]


def test_the_full_protocol_scores_each_cell_of_the_papers_tables_once():
    cells = Counter(cell for item in planned().items for cell in scored(item))
    paper = {(row["dataset"], row["setting"], row["technique"]) for row in reference()}
    assert len(paper) == 460
    assert paper <= cells.keys()
    assert set(cells.values()) == {1}
    # ImageNet weights with MAE are in the paper for two of the four modalities of images.
    of_images = {r["dataset"] for r in reference() if r["modality"] in ("cxr", "derm")}
    assert cells.keys() - paper == {
        (dataset, setting, "imagenet+mae")
        for dataset, setting in itertools.product(of_images, SETTINGS)
    }


def test_the_full_protocol_pretrains_once_for_each_source_and_technique():
    pretrained = [i for i in planned().items if i.kind == "pretrain"]
    sources = {row["modality"]: row["dataset"] for row in reference() if row["role"] == "source"}
    wanted = [(source, method) for source in sources.values() for method in METHODS]
    wanted += [(sources[m], t) for m in IMAGES for t in ("imagenet", "imagenet+mae")]
    assert sorted((i.source, i.technique) for i in pretrained) == sorted(wanted)


def test_three_seeds_make_three_of_each_run_but_one_of_what_draws_nothing():
    one = planned(Choice(modalities=("derm",))).items
    three = planned(Choice(modalities=("derm",), seeds=(0, 1, 2))).items
    drawn = [item for item in one if (item.kind, item.technique) != ("pretrain", "imagenet")]
    assert len(three) == 3 * len(drawn) + 1
    upstreams = {i.after for i in three if i.technique == "imagenet" and i.kind == "transfer"}
    assert upstreams == {"bcn20000/clean/imagenet/seed-0/pretrain"}


def assert_sound(items):
    """Names are unique, and each item stands behind the one of which it continues the run."""
    seen = {}
    for item in items:
        assert item.name not in seen
        if item.kind == "pretrain" or (item.kind, item.technique) == ("transfer", "scratch"):
            assert item.after is None
        else:
            before = seen[item.after]
            assert before.kind == ("pretrain" if item.kind == "transfer" else "transfer")
            shared = ("modality", "source", "policy", "technique")
            assert all(getattr(before, n) == getattr(item, n) for n in shared)
            if item.kind == "evaluate":
                assert (before.setting, before.seed) == (item.setting, item.seed)
                assert before.settings == item.settings
        seen[item.name] = item


@pytest.mark.parametrize("seed", range(40))
def test_any_choice_makes_a_sound_plan(seed):
    draw = random.Random(seed)

    def some(names):
        return tuple(draw.choices(names, k=draw.randint(0, len(names))))  # repeated, too

    choice = Choice(
        modalities=some(tuple(MODALITIES)),
        techniques=("scratch", *some((*METHODS, "imagenet", "imagenet+mae"))),
        settings=some((*SETTINGS, "linear-small")),
        seeds=some(range(4)) or (5,),
        policies=some(("clean", "released")),
    )
    items = planned(choice, device=draw.choice(("cpu", "cuda"))).items
    assert_sound(items)
    named = {i.technique for i in items} - {"imagenet", "imagenet+mae"}
    assert named == set(choice.techniques) - {"imagenet", "imagenet+mae"}
    assert {i.modality for i in items} == set(choice.modalities or MODALITIES)
    assert {i.seed for i in items} == set(choice.seeds)
    assert {i.policy for i in items} == set(choice.policies or ("clean",))
    transfers = {i.setting for i in items if i.kind == "transfer"}
    assert transfers == set(choice.settings or SETTINGS)
    assert all(i.seconds > 0 or i.technique == "imagenet" for i in items)
    assert all(i.disk_bytes > 0 for i in items)


def test_settings_are_the_fixed_protocols_with_the_runs_own_seed_and_labels():
    items = {i.name: i for i in planned(Choice(seeds=(3,)), device="cpu").items}
    small = items["lidc-idri/clean/mae/seed-3/finetune-small"].settings
    wanted = load_settings(
        assignments=["seed=3", "transfer.mode=finetune", "transfer.labels=small"],
        base=default_settings(MODALITIES["ldct"]),
    )
    assert small == resolve_settings(wanted, gpu=False)
    assert small.pretrain.batch_size == 32
    pretrained = items["bcn20000/clean/imagenet+mae/seed-3/pretrain"].settings
    assert pretrained.encoder == ENCODERS["vit-tiny"]
    assert items["bcn20000/clean/mae/seed-3/pretrain"].settings.encoder == ENCODERS["paper"]


def test_the_users_settings_come_over_the_protocols(tmp_path: Path):
    file = tmp_path / "settings.yaml"
    file.write_text("pretrain: {steps: 9}\ntransfer: {epochs: 4}\n", "utf-8")
    choice = Choice(modalities=("ecg",), file=file, assignments=("transfer.epochs=2",))
    for item in planned(choice).items:
        assert (item.settings.pretrain.steps, item.settings.transfer.epochs) == (9, 2)


def test_a_settings_file_is_read_once_for_all_techniques_and_sources(tmp_path: Path):
    file = tmp_path / "settings.yaml"
    file.write_text("pretrain: {steps: 9}\n", "utf-8")
    choice = Choice(modalities=("ecg", "derm"), file=file)
    file.unlink()
    assert {item.settings.pretrain.steps for item in planned(choice).items} == {9}
    assert replace(choice, seeds=(1,)).overrides == choice.overrides


@pytest.mark.parametrize(
    ("assignment", "option"),
    [
        ("seed=0", "--seed"),
        ("transfer.mode=linear", "--setting"),
        ("transfer.labels=full", "--setting"),
    ],
)
def test_settings_that_the_plan_varies_are_refused_even_at_their_default(assignment, option):
    with pytest.raises(BenchmdError, match=f"omit it and choose with {option}"):
        planned(Choice(assignments=(assignment,)))


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"modalities": ("eccg",)}, "unknown modality 'eccg'. Did you mean 'ecg'"),
        ({"techniques": ("shet",)}, "unknown pretraining technique 'shet'. Did you mean 'shed'"),
        ({"settings": ("finetune",)}, "unknown transfer setting 'finetune'"),
        ({"policies": ("dirty",)}, "unknown policy 'dirty'"),
        ({"seeds": (-1,)}, "seed -1 is below 0"),
        ({"seeds": ()}, "no seed is chosen"),
        ({"assignments": ("pretrain.stepps=1",)}, "Did you mean 'steps'"),
    ],
)
def test_a_name_that_does_not_exist_is_refused(choice, message):
    with pytest.raises(BenchmdError, match=message):
        planned(Choice(**choice))


@pytest.mark.parametrize("tflops", [0.0, -1.0, float("nan"), float("inf")])
def test_a_speed_that_is_none_is_refused(tflops):
    with pytest.raises(BenchmdError, match="expected a number above 0"):
        make_plan(Choice(), tflops=tflops)


def test_catalogs_in_a_folder_give_sources_with_the_targets_of_their_modality(
    write_manifest, tmp_path
):
    for name in ("ptb-xl", "georgia", "cpsc", "bcn20000", "ham10000"):
        write_manifest(name)
    deeper = write_manifest("pad-ufes-20", folder=tmp_path / "catalogs" / "more")
    choice = Choice(
        catalogs=(tmp_path / "catalogs",), techniques=("scratch", "mae"), settings=("linear",)
    )
    plan = planned(choice)
    assert_sound(plan.items)
    evaluated = {(i.source, i.dataset) for i in plan.items if i.kind == "evaluate"}
    assert evaluated == {
        ("ptb-xl", "georgia"),
        ("ptb-xl", "cpsc"),
        ("bcn20000", "ham10000"),
        ("bcn20000", "pad-ufes-20"),
    }
    catalogs = {i.dataset: i.catalog for i in plan.items}
    assert catalogs["pad-ufes-20"] == deeper.resolve()
    assert catalogs["ptb-xl"] == (tmp_path / "catalogs" / "ptb-xl-clean").resolve()
    assert not plan.notes


def test_a_policy_is_never_mixed_with_another(write_manifest, tmp_path):
    for name, policy in (("ptb-xl", "clean"), ("ptb-xl", "released"), ("georgia", "released")):
        write_manifest(name, policy)
    plan = planned(Choice(catalogs=(tmp_path / "catalogs",), techniques=("scratch",)))
    assert {(i.policy, i.dataset) for i in plan.items if i.kind == "evaluate"} == {
        ("released", "georgia")
    }
    assert plan.notes == (
        "ptb-xl: no catalog of a target, so it is scored on its own splits only.",
    )
    only = planned(Choice(catalogs=(tmp_path / "catalogs",), policies=("released",)))
    assert {item.policy for item in only.items} == {"released"}


def test_the_same_catalog_named_twice_counts_once(write_manifest, tmp_path):
    source = write_manifest("ptb-xl")
    twice = Choice(catalogs=(source, tmp_path / "catalogs"), techniques=("scratch",))
    assert planned(twice).items == planned(replace(twice, catalogs=(source,))).items


def test_two_catalogs_of_a_dataset_with_one_policy_are_refused(write_manifest, tmp_path):
    one, two = write_manifest("ptb-xl"), write_manifest("ptb-xl", folder=tmp_path / "other")
    with pytest.raises(
        BenchmdError, match=r"are both catalogs of ptb-xl with policy clean"
    ) as told:
        planned(Choice(catalogs=(one, two)))
    assert str(one) in str(told.value)
    assert str(two) in str(told.value)
    assert "If they are of other records, build one from a card with another name" in str(
        told.value
    )


def test_a_target_without_its_source_is_named_and_excluded(write_manifest, tmp_path):
    write_manifest("ptb-xl")
    write_manifest("ham10000")
    plan = planned(Choice(catalogs=(tmp_path / "catalogs",), techniques=("scratch",)))
    assert {item.modality for item in plan.items} == {"ecg"}
    assert "ham10000 (derm, policy clean): skipped, no catalog of a source" in plan.notes[0]


def test_targets_alone_cannot_be_planned(write_manifest):
    target = write_manifest("georgia")
    with pytest.raises(BenchmdError, match=r"no catalog of a source .* georgia \(ecg target"):
        planned(Choice(catalogs=(target,)))


def test_a_chosen_modality_needs_a_source(write_manifest):
    source = write_manifest("ptb-xl")
    with pytest.raises(BenchmdError, match="no catalog of a source of cxr to train on"):
        planned(Choice(catalogs=(source,), modalities=("ecg", "cxr")))


def test_a_chosen_modality_of_a_catalog_needs_no_card_here(write_manifest):
    card = dataset_card("ptb-xl")
    own = replace(card, name="steps", modality=replace(card.modality, name="wrist"))
    catalogs = (write_manifest("ptb-xl"), write_manifest(own))
    items = planned(Choice(catalogs=catalogs, modalities=("wrist",))).items
    assert {(item.modality, item.source) for item in items} == {("wrist", "steps")}
    with pytest.raises(
        BenchmdError, match=r"no catalog of a source of wirst .* steps \(wrist sour"
    ):
        planned(Choice(catalogs=catalogs, modalities=("wirst",)))


def test_a_folder_without_a_catalog_is_refused(tmp_path):
    with pytest.raises(BenchmdError, match=r"holds no catalog \(no manifest.json"):
        planned(Choice(catalogs=(tmp_path,)))


def test_an_unfinished_catalog_beside_others_is_named(write_manifest, tmp_path):
    write_manifest("ptb-xl")
    (tmp_path / "catalogs" / "georgia" / "shards").mkdir(parents=True)
    plan = planned(Choice(catalogs=(tmp_path / "catalogs",), techniques=("scratch",)))
    assert any("georgia: skipped, an unfinished catalog" in note for note in plan.notes)


def test_imagenet_weights_are_excluded_where_there_are_no_images():
    plan = planned(Choice(modalities=("ecg", "derm"), techniques=("imagenet", "scratch")))
    assert {i.modality for i in plan.items if i.technique == "imagenet"} == {"derm"}
    assert (
        "imagenet: skipped, ImageNet weights are for 2-D images of 224 × 224 pixels (ecg)."
        in plan.notes
    )
    with pytest.raises(BenchmdError, match=r"nothing is left to run .* imagenet: skipped"):
        planned(Choice(modalities=("ecg",), techniques=("imagenet",)))


def test_imagenet_weights_without_a_file_are_kept_and_noted(tmp_path):
    choice = Choice(modalities=("derm",), techniques=("imagenet",))
    assert any("name their file with --weights" in note for note in planned(choice).notes)
    assert not planned(replace(choice, weights=tmp_path / "model.safetensors")).notes


def test_imagenet_weights_do_not_go_with_another_encoder():
    tiny = Choice(modalities=("derm",), assignments=("encoder=tiny",))
    plan = planned(tiny)
    assert {i.technique for i in plan.items} == {"scratch", *METHODS}
    assert any("imagenet: skipped, the settings choose another encoder" in n for n in plan.notes)
    with pytest.raises(BenchmdError, match="technique imagenet: the settings choose another"):
        planned(replace(tiny, techniques=("imagenet",)))
    dropping = replace(tiny, assignments=("encoder.dropout=0.2",))
    assert "imagenet" in {i.technique for i in planned(dropping).items}


def test_small_work_takes_a_share_of_a_gpu_and_linear_evaluation_one_worker():
    choice = Choice(
        modalities=("derm",),
        assignments=("execution.workers=4", "execution.cpus_per_worker=2"),
    )
    items = {
        i.name.removeprefix("bcn20000/clean/"): i for i in planned(choice, device="cuda").items
    }
    needed = {name: (item.cpus, item.gpus) for name, item in items.items()}
    assert needed["mae/seed-0/pretrain"] == (8, 4)
    assert needed["mae/seed-0/linear"] == (2, 0.25)
    assert needed["mae/seed-0/linear/ham10000"] == (2, 0.25)
    assert needed["mae/seed-0/finetune-full"] == (8, 4)
    assert needed["imagenet/seed-0/pretrain"] == (2, 0)
    assert items["mae/seed-0/linear"].settings.execution.workers == 1
    for modality, full in (("derm", 0.5), ("eeg", 1.0)):
        share = Choice(modalities=(modality,), assignments=("execution.gpu_share=0.5",))
        items = planned(share, device="cuda").items
        shares = {i.setting: i.gpus for i in items if i.kind == "transfer"}
        assert shares["finetune-full"] == full
        assert shares["linear"] == 0.5
        assert {i.gpus for i in items if i.technique == "mae" and i.kind == "pretrain"} == {1.0}
    assert all(item.gpus == 0 for item in planned(choice, device="cpu").items)
    forced = replace(choice, assignments=("execution.device=cpu",))
    assert all(item.gpus == 0 for item in planned(forced, device="cuda").items)


def test_large_runs_may_share_a_gpu_and_then_take_as_much_longer():
    choice = Choice(modalities=("derm",), techniques=("mae",), settings=("finetune-full",))
    packed = replace(choice, assignments=("execution.gpu_share_large=0.5",))
    whole, half = (planned(each, device="cuda").items for each in (choice, packed))
    before, after = (next(i for i in items if i.kind == "pretrain") for items in (whole, half))
    assert (before.gpus, after.gpus) == (1.0, 0.5)
    assert after.seconds == pytest.approx(2 * before.seconds)
    several = replace(choice, assignments=("execution.gpu_share_large=0.5", "execution.workers=2"))
    assert {i.gpus for i in planned(several, device="cuda").items if i.kind == "pretrain"} == {2.0}


def test_it_is_said_where_workers_do_less_than_runs_beside_each_other(monkeypatch):
    choice = Choice(modalities=("ecg",), techniques=("mae",), assignments=("execution.workers=4",))
    (asked,) = (i for i in planned(choice, device="cuda").items if i.kind == "pretrain")
    step = asked.step
    (ecg,) = (d for d in chosen_datasets(choice).datasets if d.role == "source")
    work = step.work(Inputs("mae", asked.settings, ecg))

    def rates(of_four):
        speeds = {1: 100.0, 4: of_four}
        held = [Measured(f"{n}", "cuda", replace(work, workers=n), r) for n, r in speeds.items()]
        monkeypatch.setattr(plans, "measured_runs", lambda *_: held)
        return make_plan(choice, Path("store"), device="cuda").notes

    said = next(note for note in rates(250.0) if "workers" in note)
    assert "4 workers are measured to be 2.5 times as fast as one" in said
    assert not [note for note in rates(290.0) if "workers" in note]


def test_a_target_is_scored_by_sources_of_its_signal_and_classes_alone(monkeypatch):
    derm = MODALITIES["derm"]
    own = replace(derm, task=Task("single-label", ("mole", "other")))
    rows = {"train": 80, "validation": 10, "test": 10}
    scored = ("test",)
    found = [
        PlannedDataset("theirs", derm, "source", "clean", rows,
                scored, catalog=Path("a"), digest="a"),
        PlannedDataset("mine", own, "source", "clean", rows,
                scored, catalog=Path("b"), digest="b"),
        PlannedDataset("target", derm, "target", "clean", rows,
                scored, catalog=Path("c"), digest="c"),
        PlannedDataset("strange", replace(own, signal=MODALITIES["cxr"].signal), "target",
                "clean", rows, scored, catalog=Path("d"), digest="d"),
    ]  # fmt: skip
    monkeypatch.setattr(choice_module, "from_catalogs", lambda _: Found(tuple(found)))
    chosen = choice_module.chosen_datasets(Choice(catalogs=(Path("x"),)))
    assert [d.name for d in chosen.datasets] == ["theirs", "mine", "target"]
    (note,) = chosen.notes
    assert note.startswith("strange (derm, policy clean): skipped, no catalog of a source of its")
    named = Choice(catalogs=(Path("x"),), techniques=("scratch",), settings=("linear",))
    plan = planned(named)
    pairs = {(item.source, item.dataset) for item in plan.items if item.kind == "evaluate"}
    assert pairs == {("theirs", "target")}


def test_catalogs_that_nothing_would_read_are_refused(tmp_path):
    with pytest.raises(
        BenchmdError, match="no evaluation of benchmd reads any besides the one that it scores"
    ):
        planned(Choice(also=(tmp_path,)))
