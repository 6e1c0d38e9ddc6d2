"""Out-of-distribution detection without a network: scores, thresholds, cards."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from benchmd_ray.benchmarks.ood import _also as also_of
from benchmd_ray.benchmarks.ood.cards import in_distribution, use_case_of
from benchmd_ray.benchmarks.ood.detectors import best_threshold
from benchmd_ray.benchmarks.ood.measures import Compared, metrics, resampled_auroc
from benchmd_ray.benchmarks.ood.sets import calibrates
from benchmd_ray.cli import main
from benchmd_ray.data.cards import cards, dataset_card
from benchmd_ray.data.origins import family, of_one_origin
from benchmd_ray.errors import BenchmdError, unknown_name

PROJECT = Path(__file__).resolve().parents[2]


def test_which_part_a_patient_is_in_follows_from_the_patient_alone():
    """Fault F4."""
    names = [f"ptb-xl/{number}" for number in range(2000)]
    assert 0.45 < np.mean([calibrates(name) for name in names]) < 0.55
    assert [calibrates(name) for name in names] == [calibrates(name) for name in names]


def test_without_larger_than_threshold_nothing_is_turned_round():
    """Fault F20: a score below chance stands."""
    found = metrics(np.array([2.0, 3.0, 4.0]), np.array([0.0, 1.0]), 2.5)
    assert found["auroc"] == 0.0
    assert found["rejected"] == 0.0
    assert found["balanced accuracy"] == pytest.approx(1 / 6)
    assert found["fpr at 95"] == 1.0
    assert found["detected at 5"] == 0.0


def test_equal_scores_are_chance():
    found = metrics(np.zeros(5), np.zeros(7), 0.0)
    assert found["auroc"] == 0.5
    assert found["aupr out"] == pytest.approx(0.5)
    assert found["rejected"] == 0.0


def test_the_threshold_is_the_best_of_all():
    """Fault F15: it is searched, and never worse on its own data than to accept everything."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        scores, out = np.round(rng.normal(size=40), 1), rng.random(40) < 0.4
        limit = best_threshold(scores, out)

        def balanced(threshold, scores=scores, out=out):
            return ((scores[out] > threshold).mean() + (scores[~out] <= threshold).mean()) / 2

        best = max(balanced(t) for t in [-9, *scores, *(scores + 0.05)])
        assert balanced(limit) == pytest.approx(best)
        assert balanced(limit) >= 0.5


@pytest.mark.slow
def test_intervals_cover_the_truth():
    """Fault F14: of normal scores whose AUROC is known, in 100 patients with two records each."""
    from scipy.stats import norm

    from benchmd_ray.benchmarks.ood.scores import Where
    from benchmd_ray.benchmarks.ood.scores import _of_set as of_set
    from benchmd_ray.benchmarks.ood.scores import _rows as rows_of

    covered, truth = 0, norm.cdf(1 / np.sqrt(2 * (1 + 0.5)))
    for seed in range(200):
        rng = np.random.default_rng(seed)

        def made(shift, name, rng=rng):
            own = rng.normal(size=60).repeat(2) * np.sqrt(0.5)
            return pd.DataFrame(
                {
                    "score": own + rng.normal(size=120) + shift,
                    "unit_id": [f"{name}{number}" for number in range(120)],
                    "group_id": [f"{name}{number}" for number in np.arange(60).repeat(2)],
                    "abnormal": False,
                }
            )

        compared = Compared(made(0.0, "a"), made(1.0, "b"), 0.0)
        one = of_set(Where("x", "none", "unseen", "y"), [compared], 300)
        row = next(rows_of([one]))
        covered += row["low"] <= truth <= row["high"]
    assert 0.91 <= covered / 200 <= 0.99


def test_patients_of_in_and_out_are_drawn_apart_and_copies_together():
    own = pd.DataFrame({"score": np.arange(20.0), "group_id": [f"a{i}" for i in range(20)]})
    copies = own.assign(score=own["score"])
    draws = resampled_auroc(Compared(own, copies, 0.0), 100)
    np.testing.assert_allclose(draws, 0.5)  # each copy is drawn with its record
    others = own.assign(group_id=[f"b{i}" for i in range(20)])
    assert resampled_auroc(Compared(own, others, 0.0), 100).std() > 0.05


class Plain:
    """A dataset of a plan."""

    def __init__(self, name):
        card = dataset_card(family(name) if family(name) in cards() else name)
        self.name, self.kind, self.role, self.catalog = name, card.modality, card.role, "here"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("chestmnist", "nih-cxr-ap"),
        ("dermamnist-64", "isic-2017"),
        ("lidc-idri", "nodulemnist3d"),
        ("organamnist", "organsmnist-128"),
    ],
)
def test_datasets_of_one_origin_are_not_out_for_each_other(one, other):
    """Fault F13."""
    assert of_one_origin(one, other)
    with pytest.raises(BenchmdError, match="have records of one origin"):
        also_of(Plain(one), [Plain(one), Plain(other)])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("breastmnist-64-unofficial", "breastmnist"),
        ("organmnist3d-v2", "organmnist3d"),
        ("liverus-128", "liverus"),
        ("liverus-unofficial", "liverus"),
        ("isic-2017", "isic-2017"),
        ("messidor-2", "messidor-2"),
        ("nih-cxr-ap", "nih-cxr-ap"),
    ],
)
def test_sizes_and_files_of_a_dataset_are_one_family(name, expected, tmp_path, monkeypatch):
    own = (PROJECT / "data_catalog" / "breastmnist.yaml").read_text("utf-8")
    (tmp_path / "liverus.yaml").write_text(own.replace("breastmnist", "liverus"), "utf-8")
    monkeypatch.setenv("BENCHMD_CARDS", str(tmp_path))
    assert "liverus-64" in cards()
    assert family(name) == expected


def test_a_shifted_dataset_of_the_same_origin_is_one_by_its_card():
    ap, pa = (dataset_card(f"nih-cxr-{view}").modality for view in ("ap", "pa"))
    assert use_case_of("nih-cxr-ap", ap, "nih-cxr-pa", pa) == "shifted"


def test_every_card_names_classes_that_its_dataset_has():
    from benchmd_ray.benchmarks.ood.cards import USE_CASES, use_cases

    assert len(in_distribution()) > 25
    for name in in_distribution():
        own, card = use_cases(name), cards()[name]
        assert set(own.normal) <= set(card.task.classes), name
        for case in USE_CASES:
            assert set(getattr(own, case)) <= set(cards()), (name, case)


def test_a_plan_from_cards_leaves_datasets_of_one_origin_out_of_each_other():
    known = [Plain(name) for name in ("chestmnist", "nih-cxr-ap", "breastmnist", "ptb-xl")]
    for each in known:
        each.catalog = None
    assert also_of(known[0], known) == ("breastmnist",)  # no ECG either


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.yaml", "georgia: {shifted: [isruk]}\n", "Did you mean 'isruc'?"),
        ("x.yaml", "georgia: {unrelated: [isruc], faulty: [isruc]}\n", "the dataset isruc twice"),
        (
            "x.yaml",
            "georgia: {hold_out: {unseen: [flat], faulty: [flat]}}\n",
            "the condition flat twice",
        ),
        ("x.yaml", "georgia: {shifted: [georgia]}\n", "georgia as a use-case of itself"),
        ("x.yaml", "breastmnist-64: {}\n", "name breastmnist"),
        ("x.yaml", "", "x.yaml is empty"),
    ],
)
def test_cards_that_would_say_nothing_or_two_things_are_refused(
    tmp_path, monkeypatch, name, text, message
):
    (tmp_path / "ood").mkdir()
    (tmp_path / "ood" / name).write_text(text)
    monkeypatch.setenv("BENCHMD_CARDS", str(tmp_path))
    said = CliRunner().invoke(main, ["ood", "list"])
    assert said.exit_code == 1
    assert message in " ".join(said.output.split())
    assert name in said.output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- [georgia, cinc2012]\n", "Did you mean 'cinc2021'?"),
        ("- [chestmnits, georgia]\n", "Did you mean 'chestmnist'?"),
        ("# none\n", "own.yaml is empty"),
    ],
)
def test_origins_of_what_is_not_there_are_refused(tmp_path, monkeypatch, text, message):
    (tmp_path / "origins").mkdir()
    (tmp_path / "origins" / "own.yaml").write_text(text)
    monkeypatch.setenv("BENCHMD_CARDS", str(tmp_path))
    with pytest.raises(BenchmdError, match=re.escape(message)) as caught:
        of_one_origin("georgia", "isruc")
    assert "own.yaml" in str(caught.value)


def test_origins_may_name_sizes_and_what_only_another_folder_knows(tmp_path, monkeypatch):
    (tmp_path / "origins").mkdir()
    (tmp_path / "origins" / "own.yaml").write_text("- [georgia, breastmnist-64]\n- [riga, isruc]\n")
    monkeypatch.setenv("BENCHMD_CARDS", str(tmp_path))
    assert of_one_origin("georgia", "breastmnist-224")
    assert of_one_origin("isruc", "riga")


def test_the_list_says_where_nothing_is_held_out():
    lines = CliRunner().invoke(main, ["ood", "list"]).output.splitlines()
    following = lines[lines.index("breastmnist") + 1]
    assert following == "  nothing held out; synthetic faults and unrelated datasets still apply"
    assert lines[lines.index("octmnist") + 1] == "  unseen, held out: drusen"


def test_the_beginning_of_a_name_is_taken_before_what_is_spelled_like_it():
    names = ("ash", "mahalanobis-layers", "mahalanobis")
    assert "Did you mean 'mahalanobis'?" in str(unknown_name("detector", "maha", names))
    assert "Did you mean 'ash'?" in str(unknown_name("detector", "ahs", names))
    assert "Did you mean" not in str(unknown_name("detector", "zzz", names))
