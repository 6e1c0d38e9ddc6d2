"""The start ``small`` of BenchMD, and ``--small``."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from benchmd_ray.cli import main
from benchmd_ray.cli.tune import SMALL_FIXED, SMALL_HOURS, tune
from benchmd_ray.evaluation.registry import benchmark, protocol_of
from benchmd_ray.modality.modalities import modalities
from benchmd_ray.service import tune_dry_run
from benchmd_ray.settings.definition import ENCODERS, as_dict, updated
from benchmd_ray.ssl import SCRATCH, TECHNIQUES


@pytest.mark.parametrize("kind", ["ecg", "eeg", "derm", "ldct"])
@pytest.mark.parametrize("technique", [SCRATCH, "mae", "imagenet"])
def test_a_small_run_is_named_so_and_no_other_is(kind, technique):
    card = modalities()[kind]
    start, variant = benchmark("benchmd").start_named("small", card)
    small = start.settings(card, technique, variant)
    fixed = benchmark("benchmd").starts[0].settings(card, technique, "")
    few = updated(small, {"transfer": {"mode": "finetune", "labels": "small"}})
    parts = [{part: as_dict(s)[part] for part in ("encoder", "transfer")} for s in (small, few)]
    assert [protocol_of(card, technique, part) for part in parts] == ["small", "small"]
    assert protocol_of(card, technique, {"transfer": as_dict(fixed)["transfer"]}) == "fixed"
    longer = updated(small, {"transfer": {"epochs": small.transfer.epochs + 1}})
    assert protocol_of(card, technique, {"transfer": as_dict(longer)["transfer"]}) == ""
    if technique == "imagenet":
        assert small.encoder == fixed.encoder
        return
    assert small.encoder.width == ENCODERS["small"].width
    tokens = card.signal.with_patch(small.encoder.patch_size).tokens
    assert tokens <= 100 or kind == "eeg"  # whose 125 patches have no larger ones
    assert tokens > 25
    assert small.pretrain.steps <= 200 < fixed.pretrain.steps


def test_every_technique_and_modality_has_a_small_start():
    start, _ = benchmark("benchmd").start_named("small", modalities()["ecg"])
    for kind in modalities().values():
        for technique in (SCRATCH, *TECHNIQUES):
            assert start.settings(kind, technique, "").transfer.epochs == 10


def test_small_is_a_start():
    asked = ["run", "--dry-run", "--small", "--modality", "derm", "--start", "fixed"]
    both = CliRunner().invoke(main, asked)
    assert both.exit_code != 0
    assert "--small is a start: use it without --start." in both.output


@pytest.mark.slow
def test_medmnist_has_a_small_start():
    asked = ["run", "--dry-run", "--small", "--modality", "medmnist-2d", "--bench", "medmnist"]
    of_medmnist = CliRunner().invoke(main, asked)
    assert of_medmnist.exit_code == 0, of_medmnist.output


@pytest.mark.parametrize("given", [(), ("--hours", "2"), ("--trials", "3")])
def test_a_small_search_has_a_short_limit_and_keeps_its_lengths(monkeypatch, given):
    asked = []

    def estimate(tunings, *_, **__):
        asked.extend(tunings)
        return []

    monkeypatch.setattr(tune_dry_run, "estimate_searches", estimate)
    arguments = ["--small", "--fix", "transfer.dropout", "--cpus", "1", "--dry-run", *given]
    result = CliRunner().invoke(tune, arguments)
    assert result.exit_code == 0, result.output
    (tuning,) = asked
    assert tuning.choice.start == "small"
    assert (tuning.held, tuning.fixed) == (("transfer.dropout",), SMALL_FIXED)
    expected = {
        (): (SMALL_HOURS, None),
        ("--hours", "2"): (2.0, None),
        ("--trials", "3"): (None, 3),
    }
    assert (tuning.budget.hours, tuning.budget.trials) == expected[given]
