"""``benchmd encoder``: cards are listed, shown and refused, and weights are fetched."""

import json
import re

import pytest
import yaml
from click.testing import CliRunner
from kinds import MODALITIES
from tiny_encoder import Hub, serving, tiny_card, tiny_weights, use_hub, write_card

from benchmd_ray.cli import main
from benchmd_ray.errors import BenchmdError
from benchmd_ray.models.encoder_cards import encoder_cards
from benchmd_ray.models.fetched import ENCODERS
from benchmd_ray.models.networks import PUBLISHED
from benchmd_ray.service.choice import Choice, technique_settings
from benchmd_ray.service.plan import make_plan
from benchmd_ray.service.probe import probe_plan
from benchmd_ray.ssl.brought import ensure_brought, misfit, start_weights


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of cards that is used."""
    cards = tmp_path / "cards"
    cards.mkdir()
    monkeypatch.setenv("BENCHMD_CARDS", str(cards))
    monkeypatch.setenv(ENCODERS, str(tmp_path / "weights"))
    return cards


@pytest.fixture
def hub(monkeypatch):
    with serving(Hub(tiny_weights())) as hub:
        use_hub(monkeypatch, hub.address)
        yield hub


def invoke(*arguments):
    return CliRunner().invoke(main, ["encoder", *map(str, arguments)])


def said(result):
    return " ".join(result.output.split())


def test_list_and_show_say_what_an_encoder_is_and_whether_it_is_here(folder, hub):
    write_card(folder, tiny_card(hub.content, terms="a form of the lab"))
    listed = invoke("list")
    assert listed.exit_code == 0, listed.output
    row = next(line for line in listed.output.splitlines() if line.startswith("tiny "))
    assert row.split() == ["tiny", "MIT", "0", "terms", "nih-cxr-ap"]
    assert all(len(line) <= 100 for line in listed.output.splitlines())
    shown = said(invoke("show", "encoder:tiny"))
    assert "terms a form of the lab" in shown
    assert "here no: benchmd encoder fetch tiny" in shown
    data = json.loads(invoke("list", "--json").stdout)
    assert json.loads(invoke("show", "tiny", "--json").stdout) in data
    assert "Did you mean 'tiny'?" in said(invoke("show", "tiney"))
    assert not hub.asked


@pytest.mark.parametrize("name", sorted(encoder_cards().sound))
def test_every_card_is_shown(name):
    card, text = encoder_cards()[name], said(invoke("show", name))
    assert card.weights.address.split("/")[-1] in text
    assert all(dataset in text for dataset in [*card.pretrained_on, *card.also])


def test_terms_are_accepted_before_anything_is_asked_of_the_hub(folder, hub):
    write_card(folder, tiny_card(hub.content, terms="a form of the lab"))
    refused = invoke("fetch", "tiny")
    assert refused.exit_code == 1
    assert "a form of the lab. Nothing was fetched" in said(refused)
    assert not hub.asked
    assert "fetched:" in said(invoke("fetch", "tiny", "--accept-terms"))
    assert "already here" in said(invoke("fetch", "tiny"))


def changed(**changes):
    return lambda card: card | changes


def weights(**changes):
    return lambda card: card | {"weights": card["weights"] | changes}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda card: {k: v for k, v in card.items() if k != "licence"}, "licence"),
        (changed(licence=" "), "licence"),
        (changed(network={"library": "torch", "config": {}, "feature": "mean"}), "torch"),
        (changed(pretrained_on={"nih-cxr-app": "x"}), "nih-cxr-app"),
        (changed(pretrained_on={}), "expected what it was pretrained on"),
        (changed(name="other"), "expected the file's name"),
        (
            changed(input={"image": {"size": [32, 32], "mean": [float("nan")], "std": [1.0]}}),
            "mean",
        ),
        (
            changed(
                input={
                    "image": {"size": [32, 32], "mean": [0.5], "std": [0.5], "shorter_side": 10**9}
                }
            ),
            "4096",
        ),
        (weights(file="../x.pt"), "the name of one of"),
        (weights(file="/etc/x.pt"), "the name of one of"),
        (weights(file="model.ckpt"), "the name of one of"),
        (weights(repository="tiny"), "expected owner/name"),
        (weights(repository="../tiny"), "expected owner/name"),
        (weights(sha256="abc"), "sha256"),
        (weights(revision="main"), "revision"),
        (weights(page="https://example.org"), "or else a page"),
    ],
)
def test_a_faulty_card_is_reported_and_does_not_affect_others(folder, change, message):
    card = change(tiny_card())
    write_card(folder, card | {"name": "tiny"}, yaml.safe_dump(card))
    result = invoke("list")
    assert result.exit_code == 0
    assert "dinov2-small" in result.stdout
    assert message in said(result)
    assert "broken:" in result.stderr
    with pytest.raises(BenchmdError):
        encoder_cards()["tiny"]


@pytest.mark.parametrize(
    "text", ["- a list\n", "just text\n", "a: [\n", "!!python/object:os.x {}\n"]
)
def test_a_file_that_is_no_card_is_reported(folder, text):
    write_card(folder, {"name": "tiny"}, text)
    result = invoke("list")
    assert (result.exit_code, "broken:" in result.stderr) == (0, True)


def test_a_second_card_of_a_name_is_reported(folder):
    write_card(folder, tiny_card() | {"name": "dinov2-small"})
    assert "has the name dinov2-small, which is that of" in said(invoke("list"))


def test_what_does_not_fit_is_skipped_with_the_reason(folder):
    leads = {"time": {"channels": ["I", "X9"], "rate": 100.0, "samples": 1000}}
    write_card(folder, tiny_card(name="leads") | {"input": leads})
    write_card(folder, tiny_card())
    choice = Choice(techniques=("encoder:tiny",))
    settings, reason = technique_settings(choice, MODALITIES["cxr"], "encoder:tiny")
    assert (settings.encoder.network, reason) == (PUBLISHED, None)
    _, reason = technique_settings(choice, MODALITIES["ecg"], "encoder:tiny")
    assert reason.startswith("it takes images")
    assert "lacks X9" in misfit("encoder:leads", MODALITIES["ecg"].signal)
    with pytest.raises(BenchmdError, match=r"encoder:leads does not fit: .*lacks X9"):
        start_weights("encoder:leads", None, MODALITIES["ecg"].signal, settings.encoder)


@pytest.mark.parametrize(
    ("technique", "message"),
    [
        ("encoder:tiney", "unknown published encoder 'tiney'. Did you mean 'tiny'?"),
        ("tiny", "unknown pretraining technique 'tiny'. Did you mean 'encoder:tiny'?"),
        ("encoder:broken", "'titel'. Did you mean 'title'?"),
    ],
)
def test_a_misspelt_encoder_is_refused_and_not_skipped(folder, technique, message):
    write_card(folder, tiny_card())
    write_card(folder, tiny_card(name="broken") | {"titel": "Tiny ViT"})
    choice = Choice(techniques=("scratch", technique), modalities=("cxr",))
    with pytest.raises(BenchmdError, match=re.escape(message)):
        make_plan(choice, tflops=1.0)
    with pytest.raises(BenchmdError, match=re.escape(message)):
        probe_plan(choice, folder / "probes", skip_unfit=True)


def test_lines_of_a_note_are_indented_below_its_first(folder):
    write_card(folder, tiny_card(notes=["twelve words " * 12]))
    lines = invoke("show", "tiny").output.partition("Notes\n")[2].splitlines()
    assert lines[0].startswith("  - twelve")
    assert lines[1].startswith("    twelve") or lines[1].startswith("    words")


def test_settings_of_other_networks_do_not_change_a_published_one(folder):
    write_card(folder, tiny_card())
    choice = Choice(techniques=("encoder:tiny",), assignments=("encoder.network=resnet18",))
    settings, _ = technique_settings(choice, MODALITIES["cxr"], "encoder:tiny")
    assert settings.encoder == encoder_cards()["tiny"].settings


def test_a_plan_notes_absent_weights_and_fetches_nothing(folder, hub):
    write_card(folder, tiny_card(hub.content))
    choice = Choice(techniques=("scratch", "encoder:tiny"), modalities=("cxr", "ecg"))
    plan = make_plan(choice, device="cpu", measure=False)
    assert {item.modality for item in plan.items if item.technique == "encoder:tiny"} == {"cxr"}
    notes = " ".join(plan.notes)
    assert "encoder:tiny: skipped, it takes images" in notes
    assert "weights of Tiny ViT (0 MiB, MIT) are fetched from" in notes
    assert not hub.asked
    with pytest.raises(BenchmdError, match=r"nothing is left to run.*it takes images"):
        make_plan(Choice(techniques=("encoder:tiny",), modalities=("ecg",)), measure=False)
    ensure_brought("encoder:tiny")
    assert "weights of" not in " ".join(make_plan(choice, device="cpu", measure=False).notes)


def test_names_of_encoders_complete_in_the_shell(folder):
    from benchmd_ray.cli.options import complete_encoder, complete_technique

    assert complete_encoder(None, None, "dinov2-s") == ["dinov2-small"]
    assert "encoder:dinov2-small" in complete_technique(None, None, "enc")
    assert "mae" in complete_technique(None, None, "m")
