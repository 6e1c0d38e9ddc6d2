"""Rows whose pretraining saw what they are scored on are marked, and only these."""

from __future__ import annotations

import json
import re
import shutil
import sys
from types import SimpleNamespace

import pandas as pd
import pyarrow.parquet as pq
import pytest
from matplotlib.text import Text
from stores import make_pretraining, make_transfer, predict_all

from benchmd_ray.errors import BenchmdError
from benchmd_ray.export.model_card import model_card
from benchmd_ray.files.integrity import Damaged, write_hashed_json
from benchmd_ray.report import rows
from benchmd_ray.report.analysis import analyse
from benchmd_ray.report.contamination import contamination
from benchmd_ray.report.frames import FRAMES, UNKNOWN
from benchmd_ray.report.names import RowName
from benchmd_ray.report.page import page
from benchmd_ray.report.page_findings import winners
from benchmd_ray.report.probes import probe_table, write_probes
from benchmd_ray.report.report_figures import draw
from benchmd_ray.report.write import write_tables
from benchmd_ray.runs.predictions import predictions_path, read_predictions
from benchmd_ray.runs.pretraining_data import checked_published
from benchmd_ray.runs.store import read_run
from benchmd_ray.tracking.upload import KEPT
from benchmd_ray.tracking.values import tell_scores

DATA = {"ptb-xl": {"validation": 60}, "georgia": {"test": 240}}
SAW = "its pretraining saw"


def published(*names, also=("a hospital's archive",)):
    stated = {"name": "ecg-net", "title": "ECG-Net", "licence": "MIT"}
    return {**stated, "pretrained_on": [*names], "also": [*also], "unlisted": ""}


def foreign(store, *names, technique="hf:ecg-net"):
    """A published encoder's linear transfer, with predictions."""
    upstream = make_pretraining(store, technique.replace(":", "-"))
    stated = {"published": published(*names)} if names else {}
    run = make_transfer(store, "mae", upstream=upstream, **stated)
    description = {**run.description, "technique": technique}
    write_hashed_json(run.folder / "run.json", description)
    run = read_run(run.folder)
    predict_all(run, DATA, skill=0.8)
    return run


def pretrained_here(store, patients, *, policy="released", catalog="digest of ptb-xl"):
    """A MAE that saw these patients of PTB-XL; None: it recorded none."""
    upstream = make_pretraining(store, "mae")
    if patients is not None:
        seen = {"patients": {catalog: sorted(patients)}}
        write_hashed_json(upstream.folder / "seen.json", seen, of=upstream.folder)
    entry = {"dataset": "ptb-xl", "policy": policy, "catalog": catalog}
    run = make_transfer(store, "mae", upstream=upstream, policy=policy, pretrained_on=[entry])
    predict_all(run, DATA)
    return run


def patients_of(run, dataset):
    return sorted(set(pq.read_table(predictions_path(run.folder, dataset))["group_id"].to_pylist()))


def texts(analysis):
    """Contamination of AUROC by technique and dataset."""
    scores = analysis.scores
    rows = scores[(scores["metric"] == "auroc") & (scores["class"] == "mean")]
    columns = ("technique", "dataset", "contamination")
    return {(n, d): text for n, d, text in rows[[*columns]].itertuples(index=False, name=None)}


@pytest.mark.parametrize(
    ("names", "dataset", "expected"),
    [
        (("georgia",), "georgia", f"{SAW} this dataset's recordings"),
        (("georgia",), "ptb-xl", ""),
        (("cinc2021",), "ptb-xl", f"{SAW} cinc2021, whose recordings have this dataset's origin"),
        (("chapman-shaoxing", "mimic-cxr"), "ptb-xl", ""),
    ],
)
def test_a_published_encoder_is_judged_by_what_its_card_names(tmp_path, names, dataset, expected):
    run = make_transfer(tmp_path, published=published(*names))
    assert contamination(run, {"dataset": dataset, "catalog": "c"}, ()) == expected


@pytest.mark.parametrize(
    ("kind", "source", "named", "things"),
    [
        ("cxr", "nih-cxr-ap", "chestmnist", "images"),
        ("ldct", "lidc-idri", "nodulemnist3d", "volumes"),
    ],
)
def test_records_are_called_by_their_signal(tmp_path, kind, source, named, things):
    run = make_transfer(tmp_path, modality=kind, source=source, published=published(named))
    scored = {"dataset": source, "catalog": "c"}
    assert (
        contamination(run, scored, ())
        == f"{SAW} {named}, whose {things} have this dataset's origin"
    )


def test_what_a_card_does_not_list_is_unknown_unless_it_is_named(tmp_path):
    stated = published("georgia") | {"unlisted": "four further datasets"}
    run = make_transfer(tmp_path, published=stated)
    assert contamination(run, {"dataset": "ptb-xl", "catalog": "c"}, ()) == UNKNOWN
    assert contamination(run, {"dataset": "georgia", "catalog": "c"}, ()).startswith(SAW)


def test_a_misspelt_dataset_is_refused_and_unmarks_nothing(tmp_path):
    stated = published("georgai")
    with pytest.raises(BenchmdError, match=r"georgai.*georgia"):
        checked_published(stated, "the card")
    assert checked_published(published("cinc2021", "mimic-cxr"), "the card")
    run = make_transfer(tmp_path, published=stated)
    text = contamination(run, {"dataset": "georgia", "catalog": "c"}, ())
    assert text == f"{SAW} georgai, which no card names: its recordings may be these"


def test_what_a_published_encoder_states_is_validated_when_its_run_is_read(tmp_path):
    run = make_transfer(tmp_path)
    broken = {**published("georgia"), "pretrained_on": "georgia"}
    write_hashed_json(run.folder / "run.json", {**run.description, "published": broken})
    with pytest.raises(Damaged, match="pretrained_on"):
        read_run(run.folder)


def test_patients_that_a_pretraining_saw_are_counted_exactly(tmp_path):
    everyone = patients_of(pretrained_here(tmp_path / "first", ()), "ptb-xl")
    assert len(everyone) > 3
    run = pretrained_here(tmp_path / "second", {*everyone[:3], "another patient"})
    targets = patients_of(run, "georgia")  # the made-up patients of two datasets have one name
    both = len({*everyone[:3]} & {*targets})
    analysis = analyse([run], resamples=20)
    assert texts(analysis) == {
        ("MAE", "ptb-xl"): f"{SAW} 3 of the {len(everyone)} patients scored",
        ("MAE", "georgia"): f"{SAW} {both} of the {len(targets)} patients scored" if both else "",
    }


def test_of_a_pretraining_that_saw_no_scored_patient_the_description_says_so(tmp_path):
    run = pretrained_here(tmp_path, {"another patient"})
    analysis = analyse([run], resamples=20)
    assert set(texts(analysis).values()) == {""}
    assert set(analysis.descriptions["contamination"]) == {f"{SAW} none of the patients scored"}
    assert not any("†" in note for note in analysis.notes)


def test_of_a_published_encoder_no_patients_are_said_to_have_been_compared(tmp_path):
    analysis = analyse([foreign(tmp_path, "mimic-cxr")], resamples=20)
    assert set(texts(analysis).values()) == {""}
    assert set(analysis.descriptions["contamination"]) == {""}


@pytest.mark.parametrize(
    ("policy", "expected"), [("clean", ""), ("released", f"{SAW} this dataset's recordings")]
)
def test_without_recorded_patients_the_split_of_the_catalog_decides(tmp_path, policy, expected):
    run = pretrained_here(tmp_path, None, policy=policy)
    assert texts(analyse([run], resamples=20))["MAE", "ptb-xl"] == expected


@pytest.mark.parametrize(
    ("source", "dataset", "expected"),
    [
        ("nih-cxr-ap", "chestmnist", f"{SAW} nih-cxr-ap, whose images have this dataset's origin"),
        ("breastmnist", "breastmnist-64", f"{SAW} this dataset's images"),
        ("nih-cxr-ap", "nih-cxr-pa", ""),  # hashed alike: their patients were compared
        ("nih-cxr-ap", "nih-cxr-ap", ""),
        ("nih-cxr-ap", "vindr-cxr", ""),
    ],
)
def test_patients_hashed_with_another_key_are_judged_by_origin(tmp_path, source, dataset, expected):
    upstream = make_pretraining(tmp_path, "mae", modality="cxr", source=source)
    seen = {"patients": {"c": ["a patient"]}}
    write_hashed_json(upstream.folder / "seen.json", seen, of=upstream.folder)
    entry = {"dataset": source, "policy": "clean", "catalog": "c"}
    about = {"modality": "cxr", "source": source, "pretrained_on": [entry]}
    run = make_transfer(tmp_path, "mae", upstream=upstream, **about)
    assert contamination(run, {"dataset": dataset, "catalog": "d"}, {"another"}) == expected


@pytest.fixture
def analysis(tmp_path):
    """A contaminated row, one of an encoder of which nothing is known, and one from scratch."""
    runs = [foreign(tmp_path, "georgia"), foreign(tmp_path / "b", technique="hf:unknown")]
    runs.append(make_transfer(tmp_path, "scratch"))
    predict_all(runs[-1], DATA)
    return analyse(runs, resamples=50)


def test_tables_mark_the_row_on_its_dataset_only(analysis, tmp_path):
    write_tables(analysis, tmp_path)
    for name in ("auroc", "changes", "pairs", "ranking", "subgroups", "gaps", "metrics"):
        lines = (tmp_path / f"{name}.md").read_text().splitlines()
        marked = [line for line in lines if "hf ecg-net" in line and line.startswith("|")]
        assert marked, name
        for line in marked:
            assert ("†" in line) == ("georgia" in line or name == "gaps"), (name, line)
        assert "† Its pretraining saw this dataset's recordings: hf ecg-net" in lines[0], name
        assert not any(
            "†" in line for line in lines if "hf unknown" in line and "ecg-net" not in line
        )
    table = pd.read_csv(tmp_path / "auroc.csv").fillna({"contamination": ""})
    places = zip(table["technique"], table["dataset"], strict=True)
    assert dict(zip(places, table["contamination"], strict=True)) == {
        ("scratch", "ptb-xl"): "",
        ("scratch", "georgia"): "",
        ("hf ecg-net", "ptb-xl"): "",
        ("hf ecg-net", "georgia"): f"{SAW} this dataset's recordings",
        ("hf unknown", "ptb-xl"): "what its pretraining saw is not known",
        ("hf unknown", "georgia"): "what its pretraining saw is not known",
    }
    matrix = (tmp_path / "main.md").read_text().splitlines()
    assert sum(line.count("†") for line in matrix if line.startswith("|")) == 1
    assert "$\\dagger$" in (tmp_path / "main.tex").read_text()


def test_probes_mark_the_row_on_its_dataset_only(analysis, tmp_path):
    table = probe_table(analysis)
    georgia = table["catalog"].str.contains("georgia")
    named = table["encoder"].str.startswith("hf ecg-net")
    assert (table["encoder"].str.endswith("†") == (georgia & named)).all()
    assert (georgia & named).sum() == 1
    write_probes(analysis, tmp_path)
    meaning = "† Its pretraining saw this dataset's recordings: hf ecg-net on georgia."
    assert (tmp_path / "probes.md").read_text().splitlines()[-1] == meaning
    assert SAW in (tmp_path / "probes.csv").read_text()


def test_comparisons_name_their_contaminated_side(analysis):
    pairs = analysis.pairs[analysis.pairs["dataset"] == "georgia"]
    for row in pairs.to_dict("records"):
        for side in ("a", "b"):
            assert ("dataset's" in row[f"contamination_{side}"]) == (row[side] == "hf ecg-net")
    (said,) = winners(analysis)
    assert "hf ecg-net is best" not in said
    assert "hf ecg-net† is" not in said
    note = "Its pretraining saw this dataset's recordings: hf ecg-net on georgia."
    assert f"† {note}".replace("† ", "†: ") in analysis.notes


def test_the_page_names_it_first_and_what_is_not_known_once(analysis):
    content = page(analysis, [])
    body = content[content.index("<main") :]
    assert body.index("recordings: hf ecg-net on georgia") < body.index('id="methods"')
    unknown = [note for note in analysis.notes if "not known" in note]
    assert len(unknown) == 1
    assert unknown[0].startswith("hf unknown: what its pretraining saw is not known.")
    assert "as far as known" in unknown[0]


def texts_of(titled):
    """All texts of a figure and those of its ticks, without line breaks."""
    axes = titled.figure.axes
    ticks = [text for a in axes for text in (*a.get_xticklabels(), *a.get_yticklabels())]
    content = [text.get_text() for text in (*titled.figure.findobj(Text), *ticks)]
    return [" ".join(text.split()) for text in content]


def test_figures_mark_the_name_and_say_why(analysis):
    drawn, _ = draw(analysis, which="all", resamples=50)
    meaning = "† Its pretraining saw this dataset's recordings: hf ecg-net on georgia."
    marked = set()
    for titled in drawn:
        content = texts_of(titled)
        is_named = any("hf ecg-net" in text for text in content)
        is_of_ptb_only = "georgia" not in f"{content} {titled.caption}" and "ptb-xl" in f"{content}"
        if not is_named or is_of_ptb_only:
            assert "†" not in f"{content} {titled.caption}", titled.name
            continue
        marked.add(titled.name)
        assert meaning in titled.caption
        assert meaning in content
        names = [text for text in content if re.match("hf (ecg-net|unknown)", text)]
        assert {"†" in text for text in names if "ecg-net" in text} == {True}, titled.name
        assert {"†" in text for text in names if "unknown" in text} <= {False}
    assert {"auroc", "ranking-ecg-ptb-xl", "critical-difference-targets"} <= marked


def test_a_figure_without_contaminated_rows_is_unchanged(tmp_path):
    run = pretrained_here(tmp_path, {"another patient"})
    drawn, _ = draw(analyse([run], resamples=20), which="main", resamples=20)
    assert drawn
    for titled in drawn:
        assert not any("†" in text.get_text() for text in titled.figure.findobj(Text))


def test_the_model_card_says_what_is_scored_below(tmp_path):
    run = foreign(tmp_path, "georgia", "chapman-shaoxing")
    card = model_card([run], "features", 32, takes_sizes=False, programs=())
    flat = " ".join(card.split())
    assert (
        "Its encoder was pretrained on georgia, chapman-shaoxing, a hospital's archive; of these, "
        "or of their origin, are scored below: georgia (its pretraining saw this dataset's "
        "recordings)."
    ) in flat
    assert "ECG-Net (licence: MIT)" in flat
    assert "| georgia† |" in card
    assert "| ptb-xl (validation) |" in card


def test_rows_of_other_evaluations_have_it(tmp_path, monkeypatch):
    run = foreign(tmp_path, "georgia")
    for dataset in DATA:
        path = predictions_path(run.folder, dataset)
        again = predictions_path(run.folder, dataset, "again")
        again.parent.mkdir(exist_ok=True)
        shutil.copy(path, again)
    evaluation = SimpleNamespace(
        scores=lambda predictions, resamples: pd.DataFrame([{"metric": "dice", "value": 0.5}]),
        form=None,
    )
    monkeypatch.setattr(
        rows,
        "read_predictions",
        lambda path, form: read_predictions(predictions_path(run.folder, path.stem)),
    )
    monkeypatch.setattr(rows, "evaluations", lambda: {"again": evaluation})
    frame, notes = rows.other_rows([run], {run.folder: RowName("hf ecg-net", "custom")}, 20)
    assert notes == []
    assert dict(zip(frame["dataset"], frame["contamination"], strict=True)) == {
        "ptb-xl": "",
        "georgia": f"{SAW} this dataset's recordings",
    }


def test_wandb_has_it_in_configuration_and_summary(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(Table=dict))
    summary: dict[str, object] = {}
    told = SimpleNamespace(summary=summary, log=lambda values: None)
    run = foreign(tmp_path, "georgia")
    for dataset in DATA:
        tell_scores(told, run.folder, dataset, "classification")
    assert {k: v for k, v in summary.items() if k.endswith("contamination")} == {
        "georgia/test/contamination": f"{SAW} this dataset's recordings"
    }
    assert "published" in KEPT


def test_every_table_of_scores_has_the_column():
    for name, columns in FRAMES.items():
        if "caution" in columns:
            assert any(column.startswith("contamination") for column in columns), name
    assert json.dumps([*FRAMES["pairs"]]).count("contamination") == 2
