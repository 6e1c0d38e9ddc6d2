"""docs/ecg.ipynb: its cells in a fresh process, and the outputs that are stored in it."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import wfdb
from sklearn.metrics import roc_auc_score

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "docs" / "ecg.ipynb"
LESS = (('"steps": 150', '"steps": 2'), ('"epochs": 12', '"epochs": 1'))
KEEP = """
kept = {
    "record": people[people["split"] == "train"]["record_id"].iloc[0],
    "title": plt.figure(1).get_suptitle(),
    "drawn": [axis.lines[0].get_xydata().T.tolist() for axis in plt.figure(1).axes],
    "leads": [axis.get_ylabel() for axis in plt.figure(1).axes],
    "figures": plt.get_fignums(),
    "splits": people.groupby("split")["group_id"].agg(["size", "nunique"]).to_dict(),
    "means": {"/".join(key): value for key, value in means["value"].items()},
    "runs": {"scratch": str(scratch.folder), "MAE": str(pretrained.folder)},
    "features": {name: list(values.shape) for name, values in features.items()},
    "probabilities": probabilities.tolist(),
    "classes": classifier.classes,
    "page": str(page),
}
import json
Path("kept.json").write_text(json.dumps(kept), encoding="utf-8")
"""


def code_cells():
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.nightly
@pytest.mark.data
def test_the_notebook_leads_from_raw_files_to_figures(real_data, tmp_path):
    code = "\n\n".join("".join(cell["source"]) for cell in code_cells())
    for written, changed in (*LESS, ('"../../shared/data"', repr(str(real_data)))):
        assert code.count(written) == 1
        code = code.replace(written, changed)
    done = subprocess.run(
        [sys.executable, "-c", code + KEEP],
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    kept = json.loads((tmp_path / "kept.json").read_text("utf-8"))

    with (real_data / "ptb-xl-500/ptbxl_database.csv").open(encoding="utf-8") as file:
        raw = list(csv.DictReader(file))
    assert sum(kept["splits"]["size"].values()) == len(raw) == 500
    owners = {}  # patients with the same signal are one
    for row in raw:
        signal = (real_data / "ptb-xl-500" / row["filename_hr"]).with_suffix(".dat").read_bytes()
        owners.setdefault(signal, set()).add(row["patient_id"])
    patients = len({row["patient_id"] for row in raw})
    merged = sum(len(those) - 1 for those in owners.values())
    assert (patients, merged) == (466, 1)
    assert sum(kept["splits"]["nunique"].values()) == patients - merged

    (file,) = real_data.glob(f"ptb-xl-500/records500/*/{kept['record'].removeprefix('HR')}_hr.hea")
    signal, fields = wfdb.rdsamp(str(file.with_suffix("")))
    drawn = dict(zip(kept["leads"], np.asarray(kept["drawn"]), strict=True))
    assert {lead.upper() for lead in drawn} == {lead.upper() for lead in fields["sig_name"]}
    for lead, (seconds, values) in drawn.items():
        place = [name.upper() for name in fields["sig_name"]].index(lead.upper())
        np.testing.assert_allclose(values, signal[:, place], atol=0.006)  # steps of 5 µV
        np.testing.assert_allclose(seconds, np.arange(5000) / 500)

    for technique, folder in kept["runs"].items():
        for dataset, split in (("ptb-xl", "test"), ("ptb-xl", "validation"), ("georgia", "test")):
            path = tmp_path / folder / "predictions/classification" / f"{dataset}.parquet"
            table = pd.read_parquet(path)
            table = table[table["split"] == split]
            targets, scores = np.stack(table["target"]), np.stack(table["scores"])
            scored = [i for i in range(targets.shape[1]) if 0 < targets[:, i].sum() < len(table)]
            mean = np.mean([roc_auc_score(targets[:, i], scores[:, i]) for i in scored])
            assert kept["means"][f"{dataset}/{split}/{technique}"] == pytest.approx(mean)
    assert len(kept["means"]) == 6

    tests = kept["splits"]["size"]["test"]
    assert kept["features"] == {"PTB-XL, test": [tests, 64], "Georgia": [21, 64]}
    assert kept["title"] in kept["classes"]
    assert np.shape(kept["probabilities"]) == (1, len(kept["classes"])) == (1, 7)
    np.testing.assert_allclose(np.sum(kept["probabilities"]), 1, rtol=1e-5)
    assert kept["figures"] == [1, 2, 3]
    assert "georgia" in (tmp_path / kept["page"]).read_text("utf-8")


def test_the_outputs_of_the_notebook_are_those_of_one_whole_execution():
    cells = code_cells()
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"display_data", "execute_result"}
    assert sum("image/png" in output["data"] for output in outputs) == 3


def test_the_notebook_is_small_and_names_no_place():
    text = NOTEBOOK.read_text("utf-8")
    assert len(text) < 400_000
    shown = re.sub(r'"image/png": "[^"]*"', "", text)
    assert not re.search(r"[^.\w/](/(?:home|root|tmp|usr|work|Users)/|[A-Z]:\\)", shown)
