"""Synthetic raw data: real layouts, the same bytes from the same seed, findings in the signal."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import wfdb
from kinds import CLASSES
from scipy.io import loadmat
from written import content

from benchmd_ray.data.cards import code_classes
from benchmd_ray.demo import write_ecg

CLASSES = CLASSES["ecg"]
NUMBERS = {"chapman-shaoxing": "JS00001", "georgia": "E00001", "cpsc": "A0001"}


def test_same_seed_gives_the_same_bytes(tmp_path):
    folders = write_ecg(tmp_path / "a", source_records=12, target_records=6)
    write_ecg(tmp_path / "b", source_records=12, target_records=6)
    write_ecg(tmp_path / "c", source_records=12, target_records=6, seed=1)
    first, second, other = (content(tmp_path / name) for name in "abc")
    assert first == second
    assert set(folders) == {"ptb-xl", *NUMBERS}
    assert not {first[name] for name in first} & {other[name] for name in other}


def test_source_is_what_wfdb_itself_would_write(synthetic_raw, tmp_path):
    folder = synthetic_raw["ptb-xl"] / "records500/00000"
    for name in ("00001_hr", "00077_hr"):
        record = wfdb.rdrecord(str(folder / name), physical=False)
        assert record.sig_name[3:6] == ["AVR", "AVL", "AVF"]
        wfdb.wrsamp(
            name, record.fs, record.units, record.sig_name, d_signal=record.d_signal,
            fmt=record.fmt, adc_gain=record.adc_gain, baseline=record.baseline,
            write_dir=str(tmp_path),
        )  # fmt: skip
        assert (tmp_path / f"{name}.dat").read_bytes() == (folder / f"{name}.dat").read_bytes()
        again = wfdb.rdheader(str(tmp_path / name)).__dict__
        assert again == wfdb.rdheader(str(folder / name)).__dict__


def test_source_table_has_the_owners_columns(synthetic_raw):
    with (synthetic_raw["ptb-xl"] / "ptbxl_database.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:4] == ["ecg_id", "patient_id", "age", "sex"]
    assert len(rows[0]) == 28
    assert all(row["patient_id"].endswith(".0") for row in rows)
    folds: dict[str, set[str]] = {}
    for row in rows:
        folds.setdefault(row["patient_id"], set()).add(row["strat_fold"])
        assert (synthetic_raw["ptb-xl"] / f"{row['filename_hr']}.hea").is_file()
    assert 100 < len(folds) < 130
    assert all(len(fold) == 1 for fold in folds.values())
    assert {fold for own in folds.values() for fold in own} == {str(i) for i in range(1, 11)}


@pytest.mark.parametrize("name", NUMBERS)
def test_target_files_are_those_of_the_challenge(synthetic_raw, name):
    headers = sorted(synthetic_raw[name].rglob("*.hea"))
    assert headers[0].stem == NUMBERS[name]
    assert len(headers) == 35
    for header in headers[:5]:
        mat = header.with_suffix(".mat")
        signal = loadmat(mat)["val"]
        assert (signal.dtype, signal.shape[0]) == (np.int16, 12)
        assert mat.read_bytes()[24:26] == signal[0, 0].tobytes()
        limbs = signal[:6].astype(int)
        assert np.abs(limbs[2] - (limbs[1] - limbs[0])).max() <= 1  # III = II − I, rounded
        assert np.abs(limbs[3:6].sum(axis=0)).max() <= 2  # aVR + aVL + aVF = 0


def test_header_quirks_differ(synthetic_raw):
    text = {n: next(synthetic_raw[n].rglob("*00003.hea")).read_text() for n in list(NUMBERS)[:2]}
    text["cpsc"] = next(synthetic_raw["cpsc"].rglob("A0003.hea")).read_text()
    assert text["chapman-shaoxing"].startswith("JS00003 12 500 5000\n")
    assert " 16x1+24 1000.0(0)/mV " in text["chapman-shaoxing"]
    assert "\n# Dx: " in text["chapman-shaoxing"]
    assert text["georgia"].startswith("E00003.mat 12 500 5000 ")
    assert " 16+24 1000/mV " in text["georgia"]
    assert "\n#Dx: " in text["georgia"]
    assert " avr\n" in text["cpsc"]
    lengths = {int(p.read_text().split()[3]) for p in synthetic_raw["cpsc"].rglob("*.hea")}
    assert lengths == {3750, 5000, 10500}


def test_every_class_that_has_a_code_occurs_in_every_split(ecg_catalogs):
    for name, built in ecg_catalogs.items():
        mapped = set(CLASSES)
        if name != "ptb-xl":
            mapped = set(code_classes("ecg_snomed.csv", name).values()) - {""}
        for stated in built.manifest["splits"].values():
            assert {k for k, count in stated["classes"].items() if count} == mapped


def test_targets_are_noisier_than_the_source(synthetic_raw):
    def roughness(signals):
        return np.median([np.abs(np.diff(s.astype(float))).mean() for s in signals])

    source = [
        np.fromfile(path, "<i2").reshape(-1, 12).T
        for path in synthetic_raw["ptb-xl"].rglob("*.dat")
    ]
    for name in NUMBERS:
        target = [loadmat(path)["val"] for path in synthetic_raw[name].rglob("*.mat")]
        assert roughness(target) > 1.2 * roughness(source)
        assert max(np.abs(signal.astype(int)).max() for signal in target) < 20_000  # 20 mV
