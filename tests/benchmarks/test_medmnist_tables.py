"""MedMNIST's tables: what is pooled, what is averaged over datasets, and what the notes say."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score
from stored import runs
from stores import (
    HARDWARE,
    make_pretraining,
    make_transfer,
    people,
    scores_of,
    targets_of,
    write_predictions,
)

from benchmd_ray.benchmarks.medmnist import report as medmnist
from benchmd_ray.benchmarks.medmnist.recipes import medmnist_settings
from benchmd_ray.data.cards import kind_of
from benchmd_ray.errors import BenchmdError
from benchmd_ray.report.analysis import analyse
from benchmd_ray.report.table import plain
from benchmd_ray.runs.history import record_session
from benchmd_ray.settings.definition import as_dict

ROWS = 40


def score(
    store, dataset, network=None, *, mark="", skill=1.0, technique="scratch", first=0, **about
):
    """A run with predictions for the test split, from its row ``first`` on; its AUC."""
    kind, source = kind_of(dataset), f"{dataset}-{mark}" if mark else dataset
    changes = about.pop("changes", {})
    if network:
        recipe = as_dict(medmnist_settings(kind, network, about.pop("resize", 0)))
        changes = {name: recipe[name] for name in ("encoder", "transfer")} | changes
    upstream = None
    if technique != "scratch":
        upstream = make_pretraining(store, technique, modality=dataset, source=source)
    about = {"setting": "finetune-full", "fixed": not changes} | about
    run = make_transfer(
        store,
        technique,
        upstream=upstream,
        modality=dataset,
        source=source,
        changes=changes,
        **about,
    )
    held = people(ROWS)
    held["record_id"] = held["unit_id"] = [f"test-{first + row:06d}" for row in range(ROWS)]
    targets = targets_of(kind.task.classes, ROWS, kind.task.kind)
    scores = scores_of(
        targets, kind.task.kind, skill, [run.settings.seed, sum(run.folder.name.encode())]
    )
    splits = {"test": (held, targets, scores)}
    write_predictions(run, source, splits, classes=kind.task.classes, role="source")
    return roc_auc_score(targets[:, 1], scores[:, 1])


def ours(store):
    """Analysis, means over seeds and averages of a store, the last two without published rows."""
    analysis = analyse(runs([store]), resamples=20, curves=False)
    both = medmnist.compared(analysis)
    return analysis, *(t[t["protocol"] != "published"] for t in (both, medmnist.averages(both)))


def test_settings_and_techniques_are_not_pooled_and_seeds_are(tmp_path):
    tuned = [score(tmp_path, "breastmnist", technique="mae", skill=3.0, seed=s) for s in (0, 1)]
    linear = score(tmp_path, "breastmnist", technique="mae", skill=0.1, setting="linear")
    other = score(tmp_path, "breastmnist", technique="shed", skill=1.0)
    own = {"changes": {"encoder": {"network": "my:Net"}}, "fixed": False}
    plugged = [score(tmp_path, "breastmnist", technique=t, **own) for t in ("mae", "scratch")]
    _, means, _ = ours(tmp_path)
    found = {(row.method, row.setting): (row.seeds, row.auc) for row in means.itertuples()}
    assert found == {
        ("transformer mae-28", "finetune-full"): (2, pytest.approx(np.mean(tuned))),
        ("transformer mae-28", "linear"): (1, pytest.approx(linear)),
        ("transformer shed-28", "finetune-full"): (1, pytest.approx(other)),
        ("my:Net mae-28", "finetune-full"): (1, pytest.approx(plugged[0])),
        ("my:Net-28", "finetune-full"): (1, pytest.approx(plugged[1])),
    }


def test_an_unofficial_file_without_one_image_has_no_result_file(tmp_path):
    score(tmp_path, "breastmnist")
    score(tmp_path, "pneumoniamnist", mark="unofficial", first=1)  # its first image is constant
    written = medmnist.write_results(runs([tmp_path]), tmp_path / "out")
    assert [path.name.partition("_")[0] for path in written] == ["breastmnist"]
    score(tmp_path, "adrenalmnist3d", first=1)
    with pytest.raises(BenchmdError, match="the scores of adrenalmnist3d, test have 40 rows whose"):
        medmnist.write_results(runs([tmp_path]), tmp_path / "out")


def test_a_baseline_is_averaged_over_datasets_of_which_one_has_others_too(tmp_path):
    first = score(tmp_path, "breastmnist", "resnet18")
    score(tmp_path, "breastmnist", "resnet50")  # on one dataset alone
    second = score(tmp_path, "pneumoniamnist", "resnet18", mark="unofficial")
    analysis, _, averages = ours(tmp_path)
    (row,) = averages.itertuples()
    assert (row.images, row.datasets, row.method) == ("2-D", 2, "resnet18-28")
    assert (row.setting, row.protocol) == ("finetune-full", "baseline")
    assert row.auc == pytest.approx((first + second) / 2)
    assert row.file == "unofficial"
    (table,) = (one for one in medmnist.TABLES if one.name == "medmnist_averages")
    assert "2 (unofficial file)" in plain(table.printed(analysis))[0]["datasets"].tolist()
    notes = medmnist.notes(analysis, medmnist.run_frame(analysis))
    assert "ResNet-18, scratch" in set(medmnist.compared(analysis)["technique"])
    assert "Not the official file of version 3: pneumoniamnist (unofficial)." in notes
    assert any("breastmnist was read by 2 runs, once by each after its" in n for n in notes)
    assert any("pneumoniamnist was read by 1 run, once after its training" in n for n in notes)


def test_seeds_on_different_hardware_are_noted(tmp_path):
    score(tmp_path, "breastmnist", "resnet18", seed=0)
    score(tmp_path, "pneumoniamnist", "resnet18", seed=0)
    score(tmp_path, "breastmnist", "resnet18", seed=1)
    found = runs([tmp_path])

    def noted():
        analysis, *_ = ours(tmp_path)
        notes = medmnist.notes(analysis, medmnist.run_frame(analysis))
        return [note for note in notes if "hardware" in note]

    assert not noted()
    other = replace(HARDWARE, model="Another processor")
    (second,) = (r for r in found if r.settings.seed == 1)
    record_session(second.folder, [other], 0)
    (note,) = noted()
    assert note == (
        "breastmnist: results that are pooled or compared were trained on different hardware, "
        f"which rounds differently: {HARDWARE}; {other}. This may explain part of their "
        "differences."
    )


def test_what_searches_found_is_averaged_whichever_networks_they_are(tmp_path):
    tuned = {"protocol": "", "changes": {"tuned": "tune-x", "transfer": {"epochs": 7}}}
    aucs = [
        score(tmp_path, "breastmnist", "resnet18", **tuned),
        score(tmp_path, "pneumoniamnist", "resnet50", **tuned),
    ]
    *_, averages = ours(tmp_path)
    (row,) = averages.itertuples()
    assert (row.method, row.protocol, row.datasets) == ("tuned network", "tuned", 2)
    assert row.auc == pytest.approx(np.mean(aucs))
    score(
        tmp_path,
        "breastmnist",
        "resnet18",
        fixed=False,
        changes={"tuned": "tune-y"} | {"transfer": {"epochs": 9}},
    )  # of two searches neither is the one that counts
    assert ours(tmp_path)[-1].empty


def test_a_missing_auc_is_missing_in_the_average_too():
    rows = [
        ("breastmnist", "", "resnet18-28", "", "finetune-full", "baseline", np.nan, 0.5),
        ("pneumoniamnist", "", "resnet18-28", "", "finetune-full", "baseline", 0.9, 0.7),
    ]
    both = pd.DataFrame(rows, columns=[*medmnist.NAMED, "auc", "acc"])
    (row,) = medmnist.averages(both).itertuples()
    assert np.isnan(row.auc)
    assert row.acc == pytest.approx(0.6)


def test_published_averages_are_those_of_the_paper():
    held = medmnist.published().assign(file="", setting="", protocol=medmnist.PUBLISHED)
    found = medmnist.averages(held).set_index(["images", "method"])
    assert found.groupby(level=0)["datasets"].unique().map(list).to_dict() == {
        "2-D": [12],
        "3-D": [6],
    }
    paper = {  # tables 5 and 6
        ("2-D", "resnet18-28"): (0.922, 0.819),
        ("2-D", "resnet18-224"): (0.925, 0.821),
        ("2-D", "resnet50-28"): (0.920, 0.816),
        ("2-D", "resnet50-224"): (0.923, 0.821),
        ("2-D", "auto-sklearn"): (0.878, 0.722),
        ("2-D", "autokeras"): (0.917, 0.813),
        ("2-D", "google-automl-vision"): (0.927, 0.809),
        ("3-D", "resnet18-2.5d"): (0.750, 0.731),
        ("3-D", "resnet18-3d"): (0.849, 0.767),
        ("3-D", "resnet18-acs"): (0.842, 0.775),
        ("3-D", "resnet50-2.5d"): (0.752, 0.732),
        ("3-D", "resnet50-3d"): (0.863, 0.780),
        ("3-D", "resnet50-acs"): (0.848, 0.762),
        ("3-D", "auto-sklearn"): (0.815, 0.765),
        ("3-D", "autokeras"): (0.763, 0.737),
    }
    assert set(found.index) == set(paper)
    for place, means in paper.items():
        assert found.loc[place, ["auc", "acc"]].tolist() == pytest.approx(means, abs=0.0006)


def test_the_extent_that_a_network_sees_is_part_of_its_name(tmp_path):
    for resize in (0, 14):
        score(tmp_path, "adrenalmnist3d", "resnet18-3d", resize=resize)
        score(tmp_path, "adrenalmnist3d-64", "resnet18-3d", resize=resize)
    frame = medmnist.run_frame(ours(tmp_path)[0])
    assert set(frame["dataset"]) == {"adrenalmnist3d"}
    assert sorted(frame["method"]) == [
        "resnet18-3d",
        "resnet18-3d-14",
        "resnet18-3d-14",
        "resnet18-3d-64",
    ]


def test_a_resnet_of_another_width_is_not_named_as_the_published_one(tmp_path):
    narrow = {"network": "resnet18", "options": {"width": 16}}
    score(tmp_path, "breastmnist", changes={"encoder": narrow})
    score(tmp_path, "breastmnist", changes={"encoder": narrow | {"options": {"width": 64}}})
    _, both, _ = ours(tmp_path)
    assert set(both["method"]) == {"resnet18-28, width 16", "resnet18-28"}
