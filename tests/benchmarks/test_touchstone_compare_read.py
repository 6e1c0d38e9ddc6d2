"""Reading and joining scores: nothing is renamed, dropped or guessed silently."""

import numpy as np
import pytest
from touchstone_scores import CLASSES, algorithm, simulated, write_csv

from benchmd_ray.benchmarks.touchstone import imported
from benchmd_ray.benchmarks.touchstone.comparing import compare
from benchmd_ray.benchmarks.touchstone.contests import read_means
from benchmd_ray.benchmarks.touchstone.imported import read_csv_folder
from benchmd_ray.benchmarks.touchstone.joining import completed, joined, unequal
from benchmd_ray.benchmarks.touchstone.metadata import read_metadata
from benchmd_ray.benchmarks.touchstone.scored import read_scores
from benchmd_ray.errors import BenchmdError


def values(seed=0, cases=12):
    return np.random.default_rng(seed).random((cases, len(CLASSES)))


def test_an_algorithm_without_a_framework_is_compared_like_any_other(tmp_path):
    for name in ("nnU-Net_U-Net", "_MedFormer", "_Diff-UNet", "Nobody_Knows_It"):
        write_csv(tmp_path / name, values())
    found = joined(read_csv_folder(tmp_path))
    assert set(found.algorithms) == {"U-Net", "MedFormer", "Diff-UNet", "Nobody_Knows_It"}


def test_algorithms_of_one_family_keep_their_own_names(tmp_path):
    for letter in "BLH":
        write_csv(tmp_path / f"nnU-Net_STU-Net_{letter}", values())
    assert joined(read_csv_folder(tmp_path)).algorithms == ("STU-Net-B", "STU-Net-H", "STU-Net-L")


def test_two_inputs_with_one_display_name_are_refused(tmp_path):
    for name in ("_Net", "Net"):
        write_csv(tmp_path / name, values())
    with pytest.raises(BenchmdError, match=r"_?Net and .*Net have one display name, Net: rename"):
        joined(read_csv_folder(tmp_path))


def test_the_order_of_folders_does_not_matter(tmp_path):
    one, other = algorithm("a", values(1)), algorithm("b", values(2))
    forth, back = (compare(joined(pair), resamples=50) for pair in ((one, other), (other, one)))
    columns = ["class", "algorithm", "rank", "wins", "level"]
    keyed = [c.ranking[columns].sort_values(columns[:2], ignore_index=True) for c in (forth, back)]
    assert keyed[0].equals(keyed[1])


def test_cases_that_only_some_algorithms_have_are_counted_and_kept_apart():
    one = algorithm("all", values(1, 20))
    cases = [f"s{i:04}" for i in range(14)]
    scores = joined([one, algorithm("few", values(2, 14), cases=cases)])
    assert int(scores.common.sum()) == 14
    assert any("14 of 20 cases were scored by all" in n and "few 14" in n for n in unequal(scores))
    found = compare(scores, resamples=50)
    cells = found.cells.set_index(["algorithm", "class"])
    assert cells.loc[("all", "liver"), "own_n"] == 20
    assert cells.loc[("all", "liver"), "n"] == 14
    expected = one.rows[one.rows["class"].eq("liver") & one.rows["case"].isin(cases)]["dsc"].mean()
    assert cells.loc[("all", "liver"), "value"] == pytest.approx(expected)
    assert set(found.pairs["n"]) == {14}


def test_a_case_that_is_there_twice_is_refused(tmp_path):
    write_csv(tmp_path / "a", values(cases=3), cases=["s1", "s2", "s1"])
    with pytest.raises(BenchmdError, match="1 case repeated, such as 's1': keep one row"):
        read_csv_folder(tmp_path)
    rows = algorithm("a", values(cases=2), cases=["s1", "s1"])
    with pytest.raises(BenchmdError, match=r"run-a: 1 case repeated \(s1\)"):
        joined([rows])


def test_cases_without_any_organ_stay_among_the_cases():
    dsc = values(cases=5)
    dsc[2] = np.nan
    scores = joined([algorithm("a", dsc)])
    assert len(scores.cases) == 5
    assert any("1 case of 5 have none of the classes" in note for note in unequal(scores))


def test_a_value_of_one_metric_says_nothing_of_the_other(tmp_path):
    dsc, nsd = values(1, 6), values(2, 6)
    dsc[0, 0], nsd[0, 0], dsc[1, 1], nsd[1, 1], nsd[2, 2] = 0.04, 0.0, 0.0, 0.03, np.nan
    write_csv(tmp_path / "a", dsc)
    write_csv(tmp_path / "a", nsd, metric="nsd")
    scores = joined(read_csv_folder(tmp_path))
    for metric, expected in (("dsc", dsc), ("nsd", nsd)):
        order = [scores.classes.index(name) for name in CLASSES]
        np.testing.assert_array_equal(scores.values(metric)[:, 0][:, order], expected)


def test_nsd_of_others_is_named_so_and_not_compared_with_ours(tmp_path):
    write_csv(tmp_path / "a", values())
    write_csv(tmp_path / "a", values(3), metric="nsd")
    scores = joined(read_csv_folder(tmp_path))
    assert scores.title("nsd") == "NSD (authors', tolerance not stated)"
    theirs = algorithm("theirs", values(), nsd=0.5)
    ours = algorithm("ours", values(), nsd=0.5, tolerance=2.0)
    assert joined([ours]).title("nsd") == "NSD@2mm"
    with pytest.raises(BenchmdError, match=r"other tolerances \(not stated and 2 mm\)"):
        joined([theirs, ours])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"classes": ("spleen", "liver", "heart")}, r"have other classes \(aorta, heart\)"),
        ({"task": "brain"}, "are of two tasks, abdomen and brain"),
        ({"rows": None}, "there is no case"),
    ],
)
def test_scores_that_cannot_be_compared_are_refused(other, message):
    from dataclasses import replace

    one = algorithm("a", values(), classes=other.get("classes", CLASSES))
    if "task" in other:
        one = replace(one, task=other["task"])
    if "rows" in other:
        one = replace(one, rows=one.rows[:0])
    with pytest.raises(BenchmdError, match=message):
        joined([algorithm("b", values()), one])


def test_percentages_are_refused(tmp_path):
    write_csv(tmp_path / "a", 100 * values())
    with pytest.raises(BenchmdError, match=r"dsc of s0000, .* and \d+ others is not within 0 to 1"):
        joined(read_csv_folder(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "its header is empty"),
        ("case,liver\ns1,0.5\n", "its header is case, liver; expected name"),
        ("name,liver,liver\ns1,1,1\n", "a column appears twice"),
        ("name,liver\ns1,0.5,0.6\n", "line 2: expected 2 cells"),
        ("name,liver\ns1,good\n", "line 2: 'good' is not a number"),
        ("name,liver\ns1,\xff\n", "not a table as UTF-8 text"),
    ],
)
def test_a_broken_table_is_one_clear_error(tmp_path, text, message):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "dsc.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(BenchmdError, match=message):
        read_csv_folder(tmp_path)


def test_folders_without_scores_are_refused(tmp_path):
    with pytest.raises(BenchmdError, match="no folder in it has a dsc"):
        read_csv_folder(tmp_path)
    with pytest.raises(BenchmdError, match="is not a folder"):
        read_csv_folder(tmp_path / "none")
    with pytest.raises(BenchmdError, match="so one of the two"):
        read_scores([])


def test_cards_of_ones_own_name_algorithms_and_their_earlier_training(tmp_path, monkeypatch):
    card = tmp_path / "cards" / "touchstone" / "algorithms-mine.yaml"
    card.parent.mkdir(parents=True)
    card.write_text("mine: {title: My net, pretrained_on: [TotalSegmentator train]}\n")
    monkeypatch.setenv("BENCHMD_CARDS", str(tmp_path / "cards"))
    write_csv(tmp_path / "scores" / "mine", values())
    scores = joined(read_csv_folder(tmp_path / "scores"))
    notes = compare(scores, resamples=10).notes
    assert any("pretrained: My net (TotalSegmentator train)" in note for note in notes)
    card.write_text("_MedFormer: {title: Another}\n")
    imported._all.cache_clear()
    with pytest.raises(BenchmdError, match="there is a card of _MedFormer already"):
        read_csv_folder(tmp_path / "scores")
    imported._all.cache_clear()


META = (
    "\ufeffimage_id;age;gender;institute;split;manufacturer;pathology\n"
    "s0000;12.00;f;I;train;siemens;tumor\n"
    "s0001;50.00;;I;test;ge;\n"
    "s0002;;m;C;train;image generator;no_pathology\n"
)


def test_children_and_cases_without_sex_stay_and_groups_are_whole_values(tmp_path):
    path = tmp_path / "meta.csv"
    path.write_text(META, "utf-8")
    found = read_metadata(path)
    cases = ["s0000", "s0001", "s0002"]
    assert found.groups("age", cases) == ["10–19", "50–59", None]
    assert found.groups("sex", cases) == ["female", None, "male"]
    assert found.groups("scanner", cases) == ["siemens", "ge", "image generator"]
    assert found.groups("diagnosis", cases) == ["tumor", None, "no_pathology"]
    assert found.splits == {"s0000": "train", "s0001": "test", "s0002": "train"}


@pytest.mark.parametrize("first", ["sep=;\n", '\ufeff"sep=;"\r\n'])
def test_a_spreadsheet_may_state_its_separator(tmp_path, first):
    path = tmp_path / "meta.csv"
    path.write_text(first + META.removeprefix("\ufeff"), "utf-8")
    assert read_metadata(path).groups("age", ["s0000", "s0001"]) == ["10–19", "50–59"]
    path.write_text(f"{first}name;liver\ns1;0.5\n", "utf-8")
    assert imported.read_scores_csv(path).loc["s1", "liver"] == 0.5


def test_metadata_in_another_form_of_unicode_are_of_the_same_case(tmp_path):
    path = tmp_path / "meta.csv"
    path.write_text("case,sex\nfa\u0308lle,w\n", "utf-8")
    assert read_metadata(path).groups("sex", ["f\u00e4lle"]) == ["female"]


def test_cases_of_a_training_part_are_stated(tmp_path):
    path = tmp_path / "meta.csv"
    path.write_text(META, "utf-8")
    notes = compare(simulated(cases=40), metadata=read_metadata(path), resamples=10).notes
    assert any("2 train, 1 test" in n and "has seen those cases" in n for n in notes)
    assert any("37 cases without a row in it" in n for n in notes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "its columns are none; expected one that names the case"),
        ("name,age\ns1,old\n", "the age 'old' is not a number of years"),
        ("name,age\ns1,-3\n", "the age '-3' is not within 0 to 150"),
        ("name,age\ns1,3\ns1,4\n", "the case 's1' appears twice"),
        ("name,age\ns1\n", "line 2: expected 2 cells"),
        ("name,age\n\ns1\n", "line 3: expected 2 cells"),
        ("sep=;\nname;age\ns1\n", "line 3: expected 2 cells"),
    ],
)
def test_broken_metadata_are_one_clear_error(tmp_path, text, message):
    path = tmp_path / "meta.csv"
    path.write_text(text)
    with pytest.raises(BenchmdError, match=message):
        read_metadata(path)
    path.write_text("name,age\ns1,3\n")
    with pytest.raises(BenchmdError, match="unknown column"):
        read_metadata(path, ["race"])


def test_other_columns_make_groups_where_they_are_named(tmp_path):
    path = tmp_path / "meta.csv"
    path.write_text("name\tRace\tpatient\ns1\tblack\tp1\ns2\twhite\tp1\n")
    found = read_metadata(path, ["race"])
    assert found.groups("race", ["s2", "s1", "s3"]) == ["white", "black", None]
    assert [found.patient(case) for case in ("s1", "s2", "s3")] == ["p1", "p1", "s3"]


def test_published_means_are_read_once_each(tmp_path):
    path = tmp_path / "means.csv"
    path.write_text("algorithm,class,mean\na,liver,90\nb,liver,80\na,aorta,70\nb,aorta,80\n")
    found = read_means(path)
    assert found["dsc", "mean"].values.tolist() == [80, 80]
    for text, message in (
        ("algorithm,mean\na,3\n", "lacks the column class"),
        ("algorithm,class,mean\na,liver,1\na,liver,2\n", "a appears twice in liver"),
        ("algorithm,class,mean\na,liver,good\n", "'good' is not a number"),
    ):
        path.write_text(text)
        with pytest.raises(BenchmdError, match=message):
            read_means(path)


def test_metadata_may_be_quoted_and_their_delimiter_follows_from_the_case(tmp_path):
    path = tmp_path / "meta.csv"
    for text in (
        '"case","age"\n"s1","12"\n',
        '"case","age"\n"s1",12\n',
        "case;age;comment,x,y,z\ns1;12;a\n",
    ):
        path.write_text(text)
        assert read_metadata(path).groups("age", ["s1"]) == ["10–19"]
    path.write_text("case,Patient,patient\ns1,a,b\n")
    with pytest.raises(BenchmdError, match="the column 'patient' appears twice"):
        read_metadata(path)
    path.write_text("case,diagnosis\ns1,none\ns2,NA\n")
    assert read_metadata(path).groups("diagnosis", ["s1", "s2"]) == ["none", None]


@pytest.mark.parametrize(("value", "said"), [("nan", "is not a number"), ("inf", "is not a num")])
def test_means_that_are_not_finite_are_refused(tmp_path, value, said):
    path = tmp_path / "means.csv"
    path.write_text(f"algorithm,class,mean\na,liver,{value}\n")
    with pytest.raises(BenchmdError, match=said):
        read_means(path)
    path.write_text("algorithm,class,mean\n")
    with pytest.raises(BenchmdError, match="has no rows below its header"):
        read_means(path)


@pytest.mark.parametrize("name", ["mean", "$x", "a\nb"])
def test_classes_that_tables_and_figures_cannot_show_are_refused(tmp_path, name):
    write_csv(tmp_path / "one", values(), classes=("spleen", "liver", name))
    with pytest.raises(BenchmdError, match=r"a class is named mean|the class is named"):
        joined(read_csv_folder(tmp_path))


def test_folders_without_scores_among_others_are_named(tmp_path):
    write_csv(tmp_path / "one", values())
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "DSC.csv").write_text("name,spleen\n")
    notes = compare(joined(read_csv_folder(tmp_path)), resamples=10).notes
    assert any("not read: two in" in note for note in notes)


def test_both_metrics_are_of_the_same_cases(tmp_path):
    write_csv(tmp_path / "one", values())
    write_csv(tmp_path / "one", values(cases=13), metric="nsd")
    with pytest.raises(BenchmdError, match="differ in 1 case, such as 's0012'"):
        read_csv_folder(tmp_path)


def test_what_another_set_has_otherwise_is_said_and_not_compared():
    ours = simulated(cases=40)
    with_nsd = [algorithm(f"net-{n}", values(n, 40), nsd=0.5, tolerance=2.0) for n in range(3)]
    unstated = [algorithm(f"net-{n}", values(n, 40), nsd=0.5) for n in range(3)]
    one = compare(joined(with_nsd), against=joined(unstated), resamples=20)
    assert set(one.distance["metric"]) == {"dsc"}
    assert any("NSD@2mm here and NSD (authors', tolerance" in note for note in one.notes)
    two = compare(ours, against=simulated(1, cases=40, classes=CLASSES[:2]), resamples=20)
    assert set(two.distance["class"]) == set(CLASSES[:2])
    assert any("so that averages are not compared" in note for note in two.notes)


def test_an_algorithm_without_any_score_is_named():
    empty = algorithm("empty", np.full((12, 3), np.nan))
    with pytest.raises(BenchmdError, match="empty: no case has a DSC"):
        compare(joined([algorithm("one", values()), empty]), resamples=10)


def test_own_averages_skip_classes_that_no_case_shows():
    dsc = values()
    dsc[:, 2] = np.nan
    cells = compare(joined([algorithm("one", dsc)]), resamples=10).cells.set_index("class")
    assert cells.loc["mean", "own_mean"] == pytest.approx(dsc[:, :2].mean(axis=0).mean())
    assert cells.loc["mean", "own_mean"] == pytest.approx(cells.loc["mean", "value"])


def test_cases_without_a_score_may_count_as_missed():
    dsc = values(cases=30)
    dsc[20, 1] = np.nan
    whole = algorithm("whole", dsc, nsd=0.5, tolerance=2.0, code="both")
    part = algorithm("part", dsc[:18], nsd=0.5, tolerance=2.0, code="both")
    found = completed(joined([whole, part]))
    assert found.common.all()
    own = found.values("dsc")[:, 1]
    np.testing.assert_array_equal(own[:18], dsc[:18])
    np.testing.assert_array_equal(np.isnan(own), np.isnan(dsc))
    assert np.nansum(own[18:]) == 0
    rows = found.rows[(found.rows["algorithm"] == "part") & (found.rows["case"] == "s0020")]
    assert rows["code"].tolist() == ["missed", "absent", "missed"]
    assert rows["hd95"].tolist()[0] == np.inf
    assert "part: 12 cases without a score, counted as missed." in found.by_name["part"].notes
    assert completed(joined([whole])).rows.equals(joined([whole]).rows)
    without = algorithm("first", np.where(dsc < 0.5, np.nan, dsc))  # its scores of some are missing
    found = completed(joined([without, algorithm("whole", dsc), algorithm("part", dsc[:18])]))
    np.testing.assert_array_equal(np.isnan(found.values("dsc")[:, 2]), np.isnan(dsc))


def test_metadata_of_other_cases_are_refused_and_contradictions_are_noted(tmp_path):
    path = tmp_path / "meta.csv"
    path.write_text("case,sex\nfoo,f\n")
    with pytest.raises(
        BenchmdError, match="none of the 60 cases: it has 'foo', the scores 's0000'"
    ):
        compare(simulated(), metadata=read_metadata(path), resamples=10)
    path.write_text("case,patient,sex\ns0000,p,f\ns0001,p,m\ns0002,q,m\n")
    notes = compare(simulated(), metadata=read_metadata(path), resamples=10).notes
    assert any("1 patient of several sexes, such as 'p'" in note for note in notes)
