"""Cards and catalogs as text."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from benchmd_ray.data.card_files import Files
from benchmd_ray.data.cards import DatasetCard, Layout, Option, cards, dataset_card
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.modality.modalities import modality
from benchmd_ray.report.catalogs.describe import describe_card, list_cards, unmapped
from benchmd_ray.report.catalogs.describe_catalog import QUARANTINE_SHOWN, WIDTH, describe_catalog

WHOLE = DatasetCard(
    name="whole",
    title="A Card with Everything",
    modality=modality("fundus"),
    role="target",
    version=17,
    homepage="https://example.org/whole",
    access="registration; sign the agreement",
    licence="a licence of its own",
    citation="Author et al., Of Everything. Journal 1, 2 (2020). doi:10.1/2",
    layouts={
        "flat": Layout("All in one folder.", 1234, pattern="*.png", tree="FOLDER\n└── 1.png"),
        "deep": Layout("A folder each.", 56, rows_per_record=789),
    },
    evaluation_splits={"clean": ("test", "extra"), "released": ("validation",)},
    download=("https://example.org/" + "long/" * 25 + "file.zip", "labels.csv"),
    code_table="ptbxl_scp.csv",
    class_mapping={"none": "grade a", "mild": "grade b", "unclear": ""},
    merged_classes={"grade a": ("ICDR 0",), "grade b": ("ICDR 1", "ICDR 2")},
    split_table="whole_splits.csv",
    options={
        "eye": Option("both", "Which eye is taken.", ("left", "right", "both")),
        "how_many_images_are_drawn": Option("10", "How many."),
    },
    normalisation="those of the source",
    private_names=True,
    expected={"released": {"validation": {"grade a": 4321, "grade b": 1}}},
    notes=("First warning " + "word " * 60, "Second warning."),
)
"""Every field has a value of its own."""


def card_text(card):
    return "\n".join(describe_card(card))


def catalog_text(catalog):
    return "\n".join(describe_catalog(catalog))


def squeezed(text: str) -> str:
    return " ".join(text.split())


def said(card: DatasetCard) -> list[str]:
    """What a text on the card must say, field by field."""
    plain = [card.name, card.title, card.modality.name, card.role, f"card version {card.version}"]
    plain += [card.homepage, card.access, card.licence, card.citation, card.normalisation]
    plain += [card.split_table, card.code_table, *card.download, *card.notes, *card.classes]
    for name, layout in card.layouts.items():
        plain += [name, layout.description, f"{layout.records:,}", layout.pattern]
        plain += [layout.md5, *(f"{split} {n:,}" for split, n in layout.splits.items())]
        plain += [f"{card.name}-{layout.mark}"] if layout.mark else []
        plain += [layout.tree, f"{layout.rows_per_record:,}" * (layout.rows_per_record > 1)]
    for policy, scored in card.evaluation_splits.items():
        plain += [policy, f"Scored and never trained on: {', '.join(scored)}."]
    for name, option in card.options.items():
        plain += [name, option.description, f"Default: {option.default}.", *option.choices]
        plain += [f"Under the policy released: {option.released}."] * bool(option.released)
    plain += [f"{label} → {name or unmapped(card)}" for label, name in card.class_mapping.items()]
    plain += [f"{name} = {' + '.join(held)}" for name, held in card.merged_classes.items()]
    for policy, splits in card.expected.items():
        plain += [f"policy {policy} {' '.join(splits)}"]
        for name in card.classes:
            counts = " ".join(f"{held.get(name, 0):,}" for held in splits.values())
            plain += [f"{name} {counts}"]
    if card.private_names:
        plain.append("name patients")
    return [squeezed(text) for text in plain if text]


@pytest.mark.parametrize("card", [*cards().values(), WHOLE], ids=lambda card: card.name)
def test_every_field_of_a_card_is_in_its_text_whose_lines_fit(card):
    """A line is longer only where one word is."""
    text = card_text(card)
    assert [part for part in said(card) if part not in squeezed(text)] == []
    for line in text.splitlines():
        assert len(line) <= WIDTH or " " not in line.strip().removeprefix("- "), line
        assert line == line.rstrip()


@pytest.mark.parametrize("field", dataclasses.fields(DatasetCard), ids=lambda field: field.name)
def test_no_field_is_forgotten(field):
    other = {
        "modality": modality("derm"),
        "files": Files(table="files.csv"),
        "role": "source",
        "version": 18,
        "layouts": {"flat": Layout("Other files.", 9)},
        "evaluation_splits": {"clean": ("other",)},
        "download": ("other file",),
        "code_table": "ecg_snomed.csv",
        "class_mapping": {"other": "grade a"},
        "merged_classes": {"grade a": ("ICDR 4",)},
        "options": {"other": Option("1", "Of the other.")},
        "private_names": False,
        "expected": {"clean": {"test": {"grade a": 99}}},
        "notes": ("Another.",),
    }.get(field.name, "something else")
    assert card_text(dataclasses.replace(WHOLE, **{field.name: other})) != card_text(WHOLE)


def test_the_tree_keeps_its_lines():
    assert "\n      FOLDER\n      └── 1.png\n" in card_text(WHOLE)


def test_codes_are_counted_by_class():
    text = squeezed(card_text(dataset_card("georgia")))
    table = (Path(__file__).parents[2] / "data_catalog/tables/ecg_snomed.csv").read_text("utf-8")
    for name in ("normal", "hypertrophy"):
        held = len(re.findall(rf"^georgia,.*,{name}$", table, re.MULTILINE))
        assert held > 0
        assert f"{name} {held}" in text


@pytest.mark.parametrize(
    ("files", "role", "rule"),
    [
        (Files(), "source", "Drawn file by file, each class in these shares: 70 % train, 15 % val"),
        (Files(), "target", "All records are scored."),
        (Files(levels=("split", "class")), "source", "The splits that the files state."),
        (Files(table="t.csv", split="fold"), "source", "The splits that the files state."),
        (None, "source", "clean Scored and never trained on: test."),
    ],
)
def test_a_card_with_the_least_says_its_splits_and_nothing_empty(files, role, rule):
    card = DatasetCard("skin", modality("derm"), role=role, files=files, module="m" * (not files))
    text = card_text(card)
    assert text.startswith("skin\n====\n\nWhat it is")
    assert "Source and terms of use" not in text
    assert "\n\n\n" not in text
    assert rule in squeezed(text)


def test_datasets_are_listed_by_modality_with_sources_first():
    lines = list_cards([*cards().values(), WHOLE])
    columns = [re.split(r"\s{2,}", line) for line in lines]
    assert columns[0] == ["name", "modality", "role", "access", "title"]
    assert ["whole", "fundus", "target", "registration", "A Card with Everything"] in columns
    rows, own = columns[1:], {name for name, card in cards().items() if not card.collection}
    listed = [row for row in rows if row[0] in own | {"whole"}]
    order = "ecg eeg cxr mammo derm fundus ldct".split()
    assert rows[: len(own) + 1] == listed
    assert listed == sorted(listed, key=lambda r: (order.index(r[1]), r[2] == "target", r[0]))
    assert [row[0] for row in rows[len(own) + 1 :]] == sorted(
        name for name in set(cards()) - own if "-" not in name
    )
    assert ["breastmnist", "medmnist-2d", "source", "open"] in [row[:4] for row in rows]
    assert lines[-1].endswith("; also -64")
    starts = {line.index(row[4]) for line, row in zip(lines, columns, strict=True)}
    assert len(starts) == 1


LIDC = dataset_card("lidc-idri")


def manifest(**changes):
    classes = {"small nodule": 1234, "large nodule": 7}
    return {
        "policy": "clean",
        "layout": "tcia",
        "digest": "0123456789abcdef0123",
        "options": {"which": "this"},
        "splits": {
            "train": {"records": 5000, "units": 400, "patients": 390, "classes": classes},
        },
        "excluded": {"it has no label": 4},
        "warnings": {"it is padded": 3},
        "quarantined": [],
        "statistics": None,
        "raw": {
            "records": 410,
            "expected": 1018,
            "missing": 6,
            "grouped_by": "patient",
            "provenance": "sample",
        },
    } | changes


def test_a_catalog_tells_its_counts_options_and_what_is_missing(tmp_path):
    text = squeezed(catalog_text(Catalog(tmp_path, manifest(), LIDC)))
    for part in (
        "lidc-idri, policy clean, layout tcia, which=this, digest 0123456789abcdef",
        "records 5,000 scans 400 patients 390 small nodule 1,234 large nodule 7",
        "excluded: 4, it has no label",
        "noted: 3, it is padded",
        "raw records: 410 of 1,018; files listed in tables but missing: 6",
        "quarantined: 0",
    ):
        assert part in text
    assert "names no patients" not in text


def test_image_statistics_are_shown(tmp_path):
    held = {"mean": [120.5, 80.25, 10.0], "std": [1.0, 2.0, 3.0]}
    splits = {"train": {"records": 3, "patients": 3, "classes": dict.fromkeys(MELANOMA, 1)}}
    shown = Catalog(tmp_path, manifest(statistics=held, splits=splits), dataset_card("ham10000"))
    assert "mean 120.50 80.25 10.00, standard deviation 1.00 2.00 3.00" in catalog_text(shown)


MELANOMA = ("mel", "nev", "bcc", "akiec", "other")


def test_quarantine_names_records_where_files_are_private_and_ends(tmp_path):
    entries = [
        {"record": f"r{n}", "file": None if n else "folder/file.dcm", "reason": "it is cut off"}
        for n in range(QUARANTINE_SHOWN + 5)
    ]
    text = catalog_text(Catalog(tmp_path, manifest(quarantined=entries), LIDC))
    assert "- folder/file.dcm: it is cut off" in text
    assert "- record r1: it is cut off" in text
    assert "quarantined: 25" in text
    assert "and 5 more, in manifest.json" in text
    assert text.count("it is cut off") == QUARANTINE_SHOWN


def test_records_that_stand_for_patients_are_told(tmp_path):
    raw = {"records": 1, "expected": 1, "missing": 0}
    raw |= {"grouped_by": "record", "provenance": "synthetic"}
    text = catalog_text(Catalog(tmp_path, manifest(raw=raw), LIDC))
    assert "no patient IDs: every" in text
    assert "provenance: synthetic" in text


def test_nothing_is_said_of_other_splits_where_there_are_none():
    text = squeezed(card_text(dataset_card("vindr-cxr")))
    assert "nothing is trained on it" in text
    assert "the others" not in text
