"""The card of an exported model: where its weights are from, what it takes, what trained it."""

import re

import numpy as np
import pytest
import yaml
from PIL import Image, UnidentifiedImageError
from stores import make_pretraining, make_transfer, predict_all

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.datasets.images import image_record
from benchmd_ray.data.raw import RawItem
from benchmd_ray.data.readers.image import read_image
from benchmd_ray.data.records import RecordError
from benchmd_ray.export.model_card import Program, input_section, model_card
from benchmd_ray.export.model_facts import (
    BROUGHT,
    IMAGENET,
    TRAINED_FURTHER,
    origin_of,
    scores_of,
    training_rows,
)
from benchmd_ray.modality.modalities import modality
from benchmd_ray.settings.definition import setting_names
from benchmd_ray.settings.explain import meaning
from benchmd_ray.settings.in_use import in_use
from benchmd_ray.ssl import HUB, OWN, TECHNIQUES

SHA = "0123456789abcdef" * 4


def features_card(run):
    return model_card([run], "features", 32, takes_sizes=True, programs=())


def lead(card):
    """The first paragraph below the title."""
    return " ".join(card.split("---\n", 2)[2].split("\n\n")[1].split())


def front(card):
    return yaml.safe_load(card.split("---")[1])


def used(card, dataset):
    """What the table of data says that a dataset was used for."""
    return re.search(rf"^\| {dataset} \| ([^|]+) \|", card, re.M)[1]


def test_techniques_of_weights_from_elsewhere_are_all_known():
    assert set(BROUGHT) == {HUB, OWN}
    assert set(IMAGENET) == {name for name, each in TECHNIQUES.items() if each.imagenet}
    both = {name for name in IMAGENET if TECHNIQUES[name].method}
    assert both == {TRAINED_FURTHER}


@pytest.mark.parametrize(
    ("kind", "source", "use", "words"),
    [
        ("cxr", "nih-cxr-ap", "normalisation", "signals are normalised by the mean and standard"),
        ("ecg", "ptb-xl", "shape of the signals", "only the shape of the signals is that of all"),
    ],
)
def test_an_encoder_as_it_is_was_trained_elsewhere(tmp_path, kind, source, use, words):
    run = make_pretraining(tmp_path, "hf:vit", modality=kind, source=source, weights=SHA)
    card = features_card(run)
    assert f"trained elsewhere: hf:vit (SHA-256 {SHA})" in lead(card)
    assert "their training data are unknown to this card; they may include patients of the" in lead(
        card
    )
    assert f"Nothing was trained here: {words}" in lead(card)
    assert "trained on" not in lead(card)
    assert used(card, source) == use
    fields = front(card)
    assert fields["license"] == "unknown"
    assert not {"license_name", "license_link", "datasets"} & fields.keys()
    assert "pretrained-elsewhere" in fields["tags"]
    assert "| training | none |" in card


@pytest.mark.parametrize(
    ("technique", "setting", "use", "words"),
    [
        ("model:mine:Net", "linear", "head", "Only a head was trained here, on"),
        ("hf:vit", "finetune-full", "fine-tuning", "Encoder and head were fine-tuned here, on"),
        ("imagenet", "linear", "head", "Only a head was trained here, on"),
        ("imagenet+mae", "linear", "pretraining, head", "pretrained further here and a head"),
    ],
)
def test_a_transfer_says_what_was_trained_here(tmp_path, technique, setting, use, words):
    about = {"modality": "cxr", "source": "nih-cxr-ap"}
    upstream = make_pretraining(tmp_path, technique, weights=SHA, **about)
    run = make_transfer(tmp_path, technique, upstream=upstream, setting=setting, **about)
    card = model_card([run], "probabilities", 5, takes_sizes=True, programs=())
    assert f"(SHA-256 {SHA}). They have their own terms" in lead(card)
    assert words in lead(card)
    assert used(card, "nih-cxr-ap") == use
    assert front(card)["datasets"] == ["nih-cxr-ap"]
    assert front(card)["license"] == "unknown"


def test_a_transfer_without_its_pretraining_states_what_it_read(tmp_path):
    upstream = make_pretraining(tmp_path / "gone", "hf:vit", weights=SHA)
    run = make_transfer(tmp_path / "here", "hf:vit", upstream=upstream)
    card = model_card([run], "probabilities", 7, takes_sizes=False, programs=())
    assert f"hf:vit (stored with the SHA-256 weights of {upstream.folder.name})" in lead(card)


def test_weights_that_were_trained_here_claim_nothing_else(tmp_path):
    card = features_card(make_pretraining(tmp_path, "mae"))
    assert "elsewhere" not in card
    assert used(card, "ptb-xl") == "training"
    assert front(card)["license"] == "other"


@pytest.mark.parametrize(
    ("source", "raw", "words"),
    [
        ("nih-cxr-ap", [1000, 1000], "(nih-cxr-ap), 1,000 of its 112,120 raw records."),
        ("nih-cxr-ap", [900, 112120], "(nih-cxr-ap), 900 of its 112,120 raw records."),
        ("mine", [1000, 1000], "a sample of mine, 1,000 raw records."),
    ],
)
def test_a_sample_is_of_the_whole_dataset_where_that_is_known(tmp_path, source, raw, words):
    about = {"modality": "cxr", "source": source, "provenance": "sample", "raw": raw}
    run = make_transfer(tmp_path, **about)
    assert words in lead(model_card([run], "probabilities", 5, takes_sizes=True, programs=()))


@pytest.mark.parametrize(
    ("provenance", "raw", "words"),
    [
        ("whole", [21837, 21837], "It was trained on all records of PTB-XL (ptb-xl)."),
        ("sample", [500, 21837], "a sample of PTB-XL (ptb-xl), 500 of its 21,837 raw records."),
        ("unofficial", [9, 9], "unofficial files of PTB-XL (ptb-xl), those of a mirror or of"),
        ("synthetic", [9, 9], "synthetic records in the layout of PTB-XL (ptb-xl), generated by"),
    ],
)
def test_the_first_sentence_says_what_it_was_trained_on(tmp_path, provenance, raw, words):
    run = make_transfer(tmp_path, provenance=provenance, raw=raw)
    predict_all(run, {"ptb-xl": {"validation": 60}})
    card = model_card([run], "probabilities", 7, takes_sizes=False, programs=())
    first = card.split("---\n", 2)[2].split("\n\n")[1]
    assert words in " ".join(first.split())
    tags = yaml.safe_load(card.split("---")[1])["tags"]
    assert (f"{provenance}-data" in tags) == (provenance != "whole")


def test_few_patients_have_no_interval_on_the_card(tmp_path):
    run = make_transfer(tmp_path)
    predict_all(run, {"ptb-xl": {"validation": 14}})  # of seven patients
    card = model_card([run], "probabilities", 7, takes_sizes=False, programs=())
    assert "with fewer than 10 there is no interval" in card
    scores = card[card.index("## Scores") : card.index("## Limits")]
    assert not re.search(r"\d \[\d", scores)


def test_names_that_are_markup_stay_text(tmp_path):
    about = make_pretraining(tmp_path, "mae", source="<b>x</b>|y")
    card = model_card([about], "features", 32, takes_sizes=False, programs=())
    body = card.split("---", 2)[2]
    assert "<b>" not in body
    assert "&lt;b>x&lt;/b>\\|y" in body


def test_tuned_settings_name_their_search(tmp_path):
    changes = {"tuned": "tune-ecg-1", "transfer": {"epochs": 7}}
    run = make_transfer(tmp_path / "tuned", fixed=False, changes=changes)
    rows = training_rows([run], origin_of(run))
    assert rows["protocol"] == "tuned: settings found by tune-ecg-1"
    other = make_transfer(tmp_path / "custom", fixed=False, changes={"transfer": {"epochs": 7}})
    assert training_rows([other], origin_of(other))["protocol"] == "custom"


def read(group, technique="mae", **held):
    """Names of a group's settings that are read; `held` are values of some."""
    values = dict.fromkeys(name for name in setting_names() if name.startswith(f"{group}."))
    given = {f"{group}.{name.replace('__', '.')}": value for name, value in held.items()}
    return set(in_use({**values, **given}, technique))


def beginning(group, word):
    """Settings of which the documentation says that only something reads them."""
    names = {name for name in setting_names() if name.startswith(f"{group}.")}
    return {name for name in names if meaning(name).startswith(word)}


def test_settings_that_a_mode_does_not_read_are_no_rows():
    strengths = {name for name in setting_names() if ".augmentation." in name}
    fine = beginning("transfer", "Fine-tuning") | strengths
    nearest = beginning("transfer", "Nearest neighbours")
    drops = {"transfer.optimiser.drops", "transfer.optimiser.drop_factor"}
    everything = {name for name in setting_names() if name.startswith("transfer.")}
    hidden = {"transfer.hidden", "transfer.dropout"}
    assert len(fine) >= 19
    assert len(nearest) == 1
    assert read("transfer", mode="linear") == everything - fine - nearest - drops - hidden
    assert read("transfer", mode="linear", hidden=8) - read("transfer", mode="linear") == hidden
    linear = beginning("transfer", "Linear evaluation")
    assert linear == {"transfer.solver", "transfer.hidden"}
    assert read("transfer", mode="finetune") == everything - nearest - drops - linear
    stepping = {"mode": "finetune", "optimiser__schedule": "steps"}
    assert read("transfer", **stepping) == everything - nearest - linear
    always = {f"transfer.{name}" for name in ("mode", "labels", "shuffle_labels")}
    solved = {"mode": "linear", "solver": "logistic", "hidden": 8, "normalisation": "catalog"}
    assert read("transfer", **solved) == {*always, "transfer.solver"}
    assert read("transfer", mode="knn", normalisation="catalog") == always | nearest


def test_settings_of_other_techniques_are_no_rows():
    own = {"e-mix": "e-Mix", "shed": "ShED", "mae": "MAE"}
    each = {technique: beginning("pretrain", word) for technique, word in own.items()}
    assert [len(names) for names in each.values()] == [2, 1, 1]
    for technique, names in each.items():
        assert read("pretrain", technique) & set().union(*each.values()) == names
    assert read("pretrain", "mine:Method") >= set().union(*each.values())


def test_the_table_of_a_linear_run_has_what_linear_evaluation_reads(tmp_path):
    run = make_transfer(tmp_path, changes={"transfer": {"layer_decay": 0.5, "neighbours": 3}})
    names = {name for name in training_rows([run], origin_of(run)) if name.startswith("transfer.")}
    settings = {"mode", "labels", "solver", "epochs", "batch_size", "label_smoothing"}
    settings |= {"shuffle_labels"}
    optimiser = {"lr", "weight_decay", "schedule", "warmup_steps"}
    expected = settings | {f"optimiser.{name}" for name in optimiser}
    assert names == {f"transfer.{name}" for name in expected}


@pytest.mark.parametrize("size", [(301, 200), (97, 224), (500, 500), (3, 700)])
@pytest.mark.parametrize("name", ["nih-cxr-ap", "bcn20000"])
def test_the_example_makes_of_an_image_what_the_catalog_does(tmp_path, monkeypatch, name, size):
    card = dataset_card(name)
    channels = card.signal.stored_shape[0]
    drawn = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    Image.fromarray(drawn if channels == 3 else drawn[..., 0]).save(tmp_path / "image.png")
    item = RawItem("image.png", "r", "p", "train", card.classes[0])
    (record,) = image_record(read_image(tmp_path / "image.png", channels), item, card).records
    section = input_section(card.signal, takes_sizes=True, segments=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)  # the example sets it
    made = {}
    exec(re.search(r"```python\n(.*?)```", section, re.S)[1], made)
    np.testing.assert_array_equal(made["signals"], record.signal[None])
    assert made["sizes"].tolist() == [list(record.valid_size)]
    assert made["sizes"].dtype == np.int64


def test_the_example_refuses_what_the_catalogs_reader_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)  # the example sets it
    section = input_section(dataset_card("nih-cxr-ap").signal, takes_sizes=True, segments=False)
    code = re.search(r"```python\n(.*?)```", section, re.S)[1]
    Image.new("1", (10_001, 10_000)).save("image.png")
    with pytest.raises(RecordError, match="100,000,000"):
        read_image(tmp_path / "image.png", 1)
    with pytest.raises(Image.DecompressionBombError):
        exec(code, {})
    Image.new("L", (8, 8)).save("image.png", "GIF")
    with pytest.raises(RecordError, match="it cannot be read as an image of JPEG"):
        read_image(tmp_path / "image.png", 1)
    with pytest.raises(UnidentifiedImageError):
        exec(code, {})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cxr", ["| values | 0 to 255, not 0 to 1 |", "MONOCHROME1 inverted", "224 × 224"]),
        ("derm", ["| values | 0 to 255, not 0 to 1 |", "red, green, blue"]),
        ("ecg", ["resampled", "segments of 5000 samples"]),
        ("ldct", ["HU by slope and intercept", "256 × 256", "windows of 24", "−1024 HU"]),
    ],
)
def test_the_card_says_how_a_file_becomes_a_signal(name, words):
    section = input_section(modality(name).signal, takes_sizes=False, segments=False)
    assert all(word in section for word in words)
    assert ("0 to 255" in section) == (modality(name).signal.dtype == "uint8")


def test_differences_are_relative_above_one():
    said = Program("model.onnx", 2e-5, "seeded noise").checked
    assert said.startswith("differs from the model by at most 2e-05 on seeded noise")
    assert "relative to the largest output if that is above 1" in said


def test_the_hub_reads_the_scores_of_the_card(trained):
    from huggingface_hub import ModelCard

    _, _, run = trained
    text = model_card([run], "probabilities", 7, takes_sizes=False, programs=())
    data = ModelCard(text).data
    rows = scores_of([run])
    whole = rows[(rows["class"] == "mean") & (rows["metric"] == "auroc")]
    expected = {(row["dataset"], row["split"]): row["value"] for _, row in whole.iterrows()}
    results = {
        (each.dataset_type, each.dataset_split): each.metric_value
        for each in data.eval_results
        if each.metric_type == "roc_auc"
    }
    assert results == pytest.approx(expected, abs=1e-6)
    assert data.license == "other"
