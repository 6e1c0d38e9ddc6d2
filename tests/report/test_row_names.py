"""Rows are called by what made their features: short, unique, alike for all transfer settings."""

from __future__ import annotations

import json
import shutil

import pytest
from click.testing import CliRunner
from stores import make_pretraining, make_transfer, predict_all

from benchmd_ray import read_results
from benchmd_ray.cli import main
from benchmd_ray.errors import BenchmdError
from benchmd_ray.report.analysis import analyse
from benchmd_ray.report.frames import by_name, technique_in, with_mark, with_mode
from benchmd_ray.report.matrix import matrix_of
from benchmd_ray.report.names import names_of, source_title, technique_words
from benchmd_ray.report.page_findings import winners

FASTER = {"transfer": {"optimiser": {"lr": 1e-3}}}
SLOWER = {"transfer": {"optimiser": {"lr": 1e-5}}}
LONGER = {"pretrain": {"steps": 200_000}}
SHORTER = {"pretrain": {"steps": 1_000}}
RESNET = {"encoder": {"network": "resnet18-1d"}}


@pytest.fixture
def store(tmp_path):
    return tmp_path / "runs"


def made(store, technique="scratch", changes=None, pretraining=None, *, fixed=False, **about):
    """A pretraining where there is to be one, and its transfer."""
    seed = about.get("seed", 0)
    upstream = None
    if pretraining is not None:
        chosen = {"changes": pretraining, "seed": about.pop("upstream_seed", seed)}
        source = {"source": about.pop("pretrained_on")} if "pretrained_on" in about else {}
        upstream = make_pretraining(store, technique, fixed=fixed, **chosen, **source)
    run = make_transfer(store, technique, upstream=upstream, changes=changes, fixed=fixed, **about)
    return [run] if upstream is None else [upstream, run]


def names(*runs):
    """Names of each transfer."""
    every = {run.folder: run for together in runs for run in together}
    rows = names_of(list(every.values())).of_runs
    return [rows[together[-1].folder].technique for together in runs]


@pytest.mark.parametrize(
    ("technique", "expected"),
    [
        ("scratch", "scratch"),
        ("mae", "MAE"),
        ("e-mix", "e-Mix"),
        ("shed", "ShED"),
        ("imagenet", "ImageNet"),
        ("imagenet+mae", "ImageNet, then MAE"),
        ("random-kernels", "random kernels"),
        ("hf:tiny-vit", "hf tiny-vit"),
        ("model:pkg.module:function", "function"),
        ("my.methods:Contrast", "Contrast"),
        ("contrast", "contrast"),
    ],
)
def test_techniques_are_in_words(technique, expected):
    assert technique_words([technique]) == {technique: expected}


def test_more_of_an_import_path_is_named_only_where_it_takes_it_to_be_unique():
    paths = ["model:a.nets:big", "model:b.nets:big", "model:b.nets:small", "model:x:MAE"]
    words = technique_words(paths)
    assert [words[path] for path in paths] == ["a.nets:big", "b.nets:big", "small", "x:MAE"]


def test_another_network_and_other_pretraining_data_are_named(store):
    georgia = {"pretrained_on": "georgia+chapman-shaoxing"}
    runs = [
        made(store, changes=RESNET),
        made(store, changes={"encoder": {"network": "my.nets:Wide"}}),
        made(store, "mae", pretraining={}),
        made(store, "mae", pretraining={}, **georgia),
        made(store, changes={"tuned": "tune-ecg", **FASTER}),
        made(store, changes={"transfer": {"shuffle_labels": True}}),
    ]
    assert names(*runs) == [
        "ResNet-18, scratch",
        "Wide, scratch",
        "MAE",
        "MAE on georgia and Chapman-Shaoxing",
        "scratch, tuned",
        "scratch, shuffled labels",
    ]


def test_a_dataset_is_called_by_its_title_where_that_is_short():
    assert source_title("ptb-xl") == "PTB-XL"
    assert source_title("georgia") == "georgia"
    assert source_title("mimic-cxr+chexpert") == "MIMIC-CXR-JPG and CheXpert"
    assert source_title("of-mine") == "of-mine"


def test_settings_that_differ_are_named_and_the_fixed_protocol_is_not_qualified(store):
    runs = [
        made(store, "mae", pretraining={}, fixed=True),
        made(store, "mae", FASTER, {}),
        made(store, "mae", pretraining=SHORTER),
        made(store, "mae", FASTER, SHORTER),
    ]
    expected = ["MAE", "MAE (lr 0.001)", "MAE (steps 1000)", "MAE (steps 1000, lr 0.001)"]
    assert names(*runs) == expected
    assert names(runs[1]) == names(runs[2]) == ["MAE"]


def test_without_a_fixed_row_all_are_qualified(store):
    runs = [made(store, changes=changes) for changes in (FASTER, SLOWER)]
    assert names(*runs) == ["scratch (lr 0.001)", "scratch (lr 1e-05)"]


def test_rows_that_only_their_protocol_tells_apart_have_two_names(store):
    """As of a run whose file states no protocol."""
    assert names(made(store, fixed=True), made(store, seed=1)) == [
        "scratch",
        "scratch (protocol custom)",
    ]


def test_many_or_long_differences_are_numbered(store):
    many = {"encoder": {"depth": 3, "width": 32, "heads": 2}}
    long = {"transfer": {"augmentation": {"flip": 0.123456789, "lead_dropout": 0.987654321}}}
    runs = [made(store, fixed=True), made(store, changes=many), made(store, changes=long)]
    assert names(*runs) == ["scratch", "scratch (2)", "scratch (settings 2)"]


def test_the_group_of_a_setting_is_named_where_another_ends_alike(store):
    faster = {"pretrain": {"optimiser": {"lr": 1e-3}}}
    runs = [made(store, "mae", changes, pre) for changes in (None, FASTER) for pre in ({}, faster)]
    assert len(set(names(*runs))) == 4
    assert names(*runs)[-1] == "MAE (pretrain lr 0.001, transfer lr 0.001)"


def test_seeds_make_no_difference(store):
    runs = [made(store, "mae", FASTER, LONGER, seed=seed) for seed in (0, 1, 2)]
    runs.append(made(store, "mae", FASTER, LONGER, seed=0, upstream_seed=7))
    assert names(*runs) == ["MAE"] * 4


def test_an_encoder_has_one_name_in_all_transfer_settings(store):
    settings = ("linear", "finetune-small", "finetune-full")
    runs = [
        made(store, "mae", pretraining=pretraining, setting=setting)
        for pretraining in (SHORTER, LONGER)
        for setting in settings[: 3 if pretraining is LONGER else 1]
    ]
    assert names(*runs) == ["MAE (steps 1000)", *["MAE (steps 200000)"] * 3]


def test_settings_of_one_transfer_say_nothing_of_those_of_another(store):
    runs = [made(store, changes=FASTER), made(store, changes=SLOWER, setting="finetune-small")]
    assert names(*runs) == ["scratch", "scratch"]


def test_another_precision_or_catalog_is_told_apart(store):
    runs = [made(store, fixed=True), made(store, fixed=True, seed=1)]
    determinants = runs[1][0].description["determinants"]
    determinants["precision"] = "bf16"
    assert sorted(names(*runs)) == ["scratch (precision bf16)", "scratch (precision float32)"]
    determinants |= {"precision": "float32", "catalog": "0" * 64}
    assert names(*runs)[1] == "scratch (catalog 000000000000)"


def test_pretrainings_that_are_gone_are_not_taken_for_each_other(store):
    runs = [made(store, "mae", FASTER, steps) for steps in (LONGER, SHORTER)]
    for upstream, _ in runs:
        shutil.rmtree(upstream.folder)
    assert sorted(names(*(run[1:] for run in runs))) == ["MAE", "MAE (2)"]


def test_of_a_pretraining_that_is_gone_the_run_says_what_it_was_on(store):
    seen = [{"dataset": "georgia"}, {"dataset": "chapman-shaoxing"}]
    for stated, expected in ((seen, "MAE on georgia and Chapman-Shaoxing"), (7, "MAE")):
        upstream, run = made(store, "mae", pretraining={})
        run.description["pretrained_on"] = stated
        shutil.rmtree(upstream.folder)
        assert names([run]) == [expected]


def test_versions_of_pretrainings_are_told_apart(store):
    pretrained = [make_pretraining(store, "mae", parts={"mae": version}) for version in (1, 2)]
    runs = [[upstream, make_transfer(store, "mae", upstream=upstream)] for upstream in pretrained]
    expected = ["MAE (version of mae 1)", "MAE (version of mae 2)"]
    assert names(*runs) == expected
    for upstream in pretrained:
        shutil.rmtree(upstream.folder)
    assert names(*(run[1:] for run in runs)) == expected


def test_a_pretraining_is_found_in_the_store_when_it_is_not_among_the_runs(store):
    runs = [made(store, "mae", FASTER, LONGER, seed=seed) for seed in (0, 1)]
    assert names(*(run[1:] for run in runs)) == ["MAE", "MAE"]


def test_pretrainings_have_names_too(store):
    pretrained = [make_pretraining(store, "mae", changes=c, fixed=False) for c in (LONGER, SHORTER)]
    rows = names_of(pretrained).of_runs
    assert {row.technique for row in rows.values()} == {"MAE (steps 200000)", "MAE (steps 1000)"}


def brought(store, technique, **options):
    encoder = {"encoder": {"network": "transformers", "options": options}}
    if technique.startswith("model:"):
        encoder = {"encoder": {"network": technique.removeprefix("model:")}}
    return made(store, technique, encoder, encoder)


def test_encoders_of_all_kinds_have_short_unique_names_and_are_all_compared(store):
    runs = [
        made(store),
        brought(store, "hf:tiny-vit", architecture="vit"),
        brought(store, "hf:dino", architecture="dinov2"),
        brought(store, "hf:swin", architecture="swin"),
        brought(store, "model:my.pkg.nets:resnet"),
    ]
    for run in runs:
        predict_all(run[-1], {"ptb-xl": {"validation": 80}, "georgia": {"test": 80}}, skill=1.0)
    analysis = analyse([run for together in runs for run in together], resamples=20)
    expected = ["scratch", "hf dino", "hf swin", "hf tiny-vit", "resnet"]
    assert by_name(analysis.scores["technique"]) == expected
    pairs = analysis.pairs[analysis.pairs["dataset"] == "georgia"]
    assert len(pairs) == 10
    assert {*pairs["a"], *pairs["b"]} == set(expected)
    assert set(analysis.changes["baseline"]) == {"scratch, linear"}
    assert set(analysis.changes["technique"]) == set(expected[1:])


def test_descriptions_say_what_each_row_is_and_nothing_is_escaped(store):
    runs = [
        made(store, fixed=True),
        made(store, "mae", pretraining={}, fixed=True),
        made(store, "shed", {"transfer": {"epochs": 7}}, {}),
        made(store, "imagenet+mae", pretraining={}),
        made(store, "e-mix", {"tuned": "tune-ecg", **FASTER}, {}),
        brought(store, "hf:tiny-vit", architecture="vit"),
    ]
    rows = names_of([run for together in runs for run in together]).descriptions
    about = {row["technique"]: row for row in rows}
    assert list(about) == by_name(about)
    assert {name: row["technique_id"] for name, row in about.items()}["ShED"] == "shed"
    assert {name: row["pretrained_on"] for name, row in about.items()} == {
        "scratch": "",
        "e-Mix, tuned": "PTB-XL",
        "ShED": "PTB-XL",
        "MAE": "PTB-XL",
        "ImageNet, then MAE": "ImageNet, PTB-XL",
        "hf tiny-vit": "elsewhere",
    }
    assert about["ShED"]["settings"] == "transfer.epochs 7"
    tuned = "found by tune-ecg; transfer.optimiser.lr 0.001"
    assert about["e-Mix, tuned"]["settings"] == tuned
    assert about["scratch"]["settings"] == ""
    assert not any('"' in row["settings"] for row in rows)


def test_settings_of_a_row_are_given_by_transfer_setting_where_they_differ(store):
    runs = [made(store), made(store, setting="finetune-small", changes=FASTER)]
    for technique in ("mae", "shed"):
        runs += [
            made(store, technique, pretraining={}, setting=s) for s in ("linear", "finetune-small")
        ]
    (row, *_) = names_of([run for together in runs for run in together]).descriptions
    assert row["settings"] == "finetune-small: transfer.optimiser.lr 0.001"


@pytest.mark.parametrize(
    ("name", "technique"),
    [
        ("MAE", "MAE"),
        ("ResNet-18, MAE on PTB-XL (lr 0.003)", "MAE"),
        ("ImageNet, then MAE, tuned", "ImageNet, then MAE"),
        ("ImageNet", "ImageNet"),
        ("hf MAE-large", ""),
        ("MAE-like", ""),
    ],
)
def test_the_technique_is_found_in_a_name(name, technique):
    assert technique_in(name) == technique


def test_rows_are_in_the_order_of_techniques():
    order = ["scratch", "ResNet-18, scratch", "MAE", "MAE, tuned", "MAE (lr 0.1)", "random kernels"]
    assert by_name(sorted([*order, "hf x"])) == [*order, "hf x"]


def test_modes_and_marks_are_added_to_names():
    assert with_mode("MAE", "finetune-full") == "MAE, fine-tuning"
    assert with_mode("random kernels", "knn") == "random kernels, k-NN"
    assert with_mark("MAE", "fixed") == "MAE"
    assert with_mark("MAE", "custom") == "MAE (custom)"
    assert with_mark("MAE (lr 0.1)", "custom") == "MAE (lr 0.1, custom)"
    assert with_mark("MAE, tuned", "tuned") == "MAE, tuned"


def test_an_unknown_baseline_is_refused_with_the_names_before_anything_is_read(store):
    runs = [made(store), made(store, "mae", pretraining={})]
    for run in runs:
        predict_all(run[-1], {"ptb-xl": {"validation": 80}})
    every = [run for together in runs for run in together]
    for name in ("MAE", "MAE, linear", "mae", "scratch"):
        assert set(analyse(every, resamples=5, curves=False, baseline=name).changes["baseline"])
    expected = r"Did you mean 'MAE'\? Rows: 'scratch', 'MAE'; add their mode .* 'MAE, linear'"
    for name in ("MEA", "mea", "Mae"):
        with pytest.raises(BenchmdError, match=f"called '{name}'.*{expected}"):
            analyse(every, resamples=5, baseline=name)
    with pytest.raises(BenchmdError, match="Did you mean 'MAE, linear'"):
        analyse(every, resamples=5, baseline="mae linear")


def test_the_command_and_the_interface_take_a_baseline_and_write_nothing_with_an_unknown_one(store):
    for run in (made(store), made(store, "mae", pretraining={})):
        predict_all(run[-1], {"ptb-xl": {"validation": 80}})
    out = store.parent / "report"
    command = ["report", str(store), "--out", str(out), "--resamples", "5", "--figures", "none"]
    refused = CliRunner().invoke(main, [*command, "--baseline", "MEA"])
    assert refused.exit_code == 1
    assert "Did you mean 'MAE'?" in refused.output
    assert not out.exists()
    result = CliRunner().invoke(main, [*command, "--baseline", "MAE"])
    assert result.exit_code == 0, result.output
    table = (out / "changes.md").read_text("utf-8")
    assert "baseline MAE, linear" in table
    said = (out / "report.html").read_text("utf-8")
    assert "over MAE;" in said or "over MAE, not" in said or "the baseline itself" in said
    changes = read_results(store, resamples=5, baseline="mae").changes
    assert set(changes["baseline"]) == {"MAE, linear"}
    assert "| mae |" in (out / "descriptions.md").read_text("utf-8")


def test_random_kernels_are_named_once(store):
    kernels = {"encoder": {"network": "random-kernels"}}
    assert names(made(store, "random-kernels", kernels)) == ["random kernels"]


def test_a_config_of_transformers_is_described_setting_by_setting(store):
    def folder(width):
        config = json.dumps({"model_type": "vit", "hidden_size": width})
        return {"encoder": {"network": "transformers", "options": {"config": config}}}

    runs = [made(store, "hf:vit", folder(48))[0], made(store, "hf:vit", folder(96), seed=1)[0]]
    first, second = sorted(row["settings"] for row in names_of(runs).descriptions)
    assert "encoder.options.config.hidden_size 48" in first
    assert "encoder.options.config.hidden_size 96" in second
    assert not {*'{}"\\'} & {*first, *second}


def test_the_first_sentence_of_a_page_names_the_chosen_baseline(store):
    for run in (*made(store), *made(store, "mae", None, {})):
        if run.description["kind"] == "transfer":
            predict_all(run, {"ptb-xl": {"validation": 80}})
    said = {
        "".join(winners(read_results(store, resamples=20, baseline=baseline)))
        for baseline in (None, "MAE")
    }
    assert sum("the baseline itself" in sentence for sentence in said) == 1
    assert len(said) == 2


def test_rows_of_a_place_that_are_on_other_records_have_other_names(store):
    for setting, records in (("linear", 80), ("finetune-full", 60)):
        for technique, pretraining in (("scratch", None), ("mae", {})):
            run = made(store, technique, None, pretraining, setting=setting)[-1]
            predict_all(run, {"ptb-xl": {"validation": records}})
    analysis = read_results(store, resamples=20)
    pairs = {frozenset(pair) for pair in analysis.pairs[["a", "b"]].itertuples(index=False)}
    assert pairs == {
        frozenset({"scratch, linear", "MAE, linear"}),
        frozenset({"scratch, fine-tuning", "MAE, fine-tuning"}),
    }
    assert (matrix_of(analysis).frame["mark"] == "best").sum() == 2
