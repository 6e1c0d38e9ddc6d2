"""The released scores of 19 algorithms, against the published table and known figures of them.

They are read where the user has them; nothing of them is stored here.
"""

import csv
import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kendalltau

from benchmd_ray.benchmarks.touchstone.comparing import compare
from benchmd_ray.benchmarks.touchstone.groups import ALL, RAW
from benchmd_ray.benchmarks.touchstone.imported import read_csv_folder
from benchmd_ray.benchmarks.touchstone.joining import joined
from benchmd_ray.benchmarks.touchstone.metadata import read_metadata

pytestmark = [pytest.mark.data, pytest.mark.slow]
OURS = {
    "kidneyR": "kidney_right",
    "kidneyL": "kidney_left",
    "gallbladder": "gall_bladder",
    "IVC": "postcava",
    "average": "mean",
}


@pytest.fixture(scope="module")
def folder(real_data):
    path = real_data / "touchstone-totalsegmentator"
    if not path.is_dir():
        pytest.skip(f"no released scores at {path}")
    return path


@pytest.fixture(scope="module")
def one(folder):
    metadata = read_metadata(folder / "metaTotalSeg.csv")
    return compare(joined(read_csv_folder(folder)), metadata=metadata)


@pytest.fixture(scope="module")
def table3(real_data):
    """Legible cells of the published table, but those of an algorithm without released scores."""
    path = real_data.parent / "reference" / "touchstone_tables.csv"
    if not path.is_file():
        pytest.skip(f"no published table at {path}")
    rows = pd.DataFrame(csv.DictReader(path.read_text("utf-8").splitlines()))
    rows = rows[(rows["table"] == "table3") & (rows["metric"] == "DSC_pct")]
    rows = rows[rows["algorithm"] != "ResEncL*"]
    return rows.assign(
        **{name: pd.to_numeric(rows[name], errors="coerce") for name in ("mean", "sd")},
        **{"class": rows["class"].replace(OURS)},
    )


def test_the_published_means_and_sds_come_out(one, table3):
    cells = one.cells.set_index(["algorithm", "class"])
    places = list(zip(table3["algorithm"], table3["class"], strict=True))
    assert {name for name, _ in places} == set(one.scores.algorithms)
    found = cells.loc[places]
    gaps = np.abs(100 * found["own_mean"].to_numpy() - table3["mean"].to_numpy())
    average = table3["class"].eq("mean").to_numpy()
    legible = ~np.isnan(gaps)
    assert np.count_nonzero(legible & ~average) == 159
    assert np.count_nonzero(legible & average) == 18
    assert (gaps[legible] <= 0.05 + 1e-6).all()  # within rounding to one decimal
    sds = np.abs(100 * found["own_sd"].to_numpy() - table3["sd"].to_numpy())
    wrong = np.flatnonzero(sds > 0.05 + 1e-6)
    assert [places[i] for i in wrong] == [("UNETR", "liver")]
    assert 100 * found["own_sd"].iloc[wrong[0]] == pytest.approx(29.87, abs=0.005)


def test_the_numbers_of_cases_are_not_that_of_the_caption(one):
    found = one.cells[one.cells["algorithm"] == "U-Net"].set_index("class")["own_n"]
    expected = {"gall_bladder": 135, "kidney_right": 275, "kidney_left": 295, "pancreas": 295}
    expected |= {"spleen": 392, "stomach": 408, "liver": 443, "postcava": 481, "aorta": 614}
    assert {name: int(found[name]) for name in expected} == expected
    assert len(one.scores.cases) == 743
    assert int(one.scores.common.sum()) == 656


def test_common_cases_change_the_order_of_the_averages(one):
    held = one.cells[one.cells["class"] == "mean"].set_index("algorithm")
    assert one.order[:5] == ["ResEncL", "STU-Net-L", "STU-Net-B", "STU-Net-H", "U-Net"]
    expected = [83.05, 82.97, 82.95, 82.68, 82.63]
    np.testing.assert_allclose(100 * held.loc[one.order[:5], "value"], expected, atol=0.005)
    gain = 100 * (held.loc["UniSeg", "value"] - held.loc["UniSeg", "own_mean"])
    assert gain == pytest.approx(1.8, abs=0.05)


def test_the_map_of_the_liver_has_all_algorithms(one):
    held = one.pairs[one.pairs["class"] == "liver"]
    assert len(held) == 342
    wins = held.groupby("a")["wins"].sum()
    assert int(wins.sum()) == 146
    assert (wins["MedNeXt"], wins["STU-Net-L"]) == (17, 16)
    per_class = one.pairs.groupby("class")["wins"].sum()
    assert per_class.min() >= 117
    assert per_class.max() == 146


def test_level_with_the_best(one):
    level = one.ranking[one.ranking["level"]].groupby("class")["algorithm"].count()
    assert level.max() == 8


def test_orders_agree_with_those_of_resamples(one):
    """Next to a bootstrap of its own draws, which SciPy ranks."""
    values = one.scores.common_values("dsc")[one.scores.common][:, :, 4]
    assert one.scores.classes[4] == "liver"
    rng, full = np.random.default_rng(7), np.nanmean(values, axis=0)
    drawn = [np.nanmean(values[rng.integers(0, 656, 656)], axis=0) for _ in range(1000)]
    taus = [kendalltau(means, full).statistic for means in drawn]
    first = np.mean([np.argmax(means) == np.argmax(full) for means in drawn])
    liver = one.ranking[one.ranking["class"] == "liver"].set_index("algorithm")
    assert liver["tau"].iloc[0] == pytest.approx(np.mean(taus), abs=0.006)
    # four standard errors of the difference of two shares of 1,000 resamples
    assert liver.loc["STU-Net-L", "first"] == pytest.approx(first, abs=0.09)
    held = one.ranking.groupby("class")["tau"].first().drop("mean")
    assert (held.idxmin(), held.min()) == ("gall_bladder", pytest.approx(0.90, abs=0.01))
    assert held.max() == pytest.approx(0.96, abs=0.01)


def test_groups_have_the_known_p_values(one):
    held = one.groups[(one.groups["algorithm"] == ALL) & (one.groups["class"] == RAW)]
    found = held.groupby("variable")["kruskal_p"].first()
    expected = {"sex": 0.285, "age": 0.366, "scanner": 0.0149, "institute": 0.0020}
    for name, p in {**expected, "diagnosis": 6.2e-7}.items():
        assert found[name] == pytest.approx(p, rel=0.02), name
    trauma = held[held["group"] == "trauma"]["median"].item()
    assert trauma == pytest.approx(0.385, abs=0.0005)
    assert not math.isnan(one.groups["p_holm"].dropna().min())
