"""Weights of published encoders come whole and with the card's hash, or not at all."""

import errno
import os
import time

import pytest
from tiny_encoder import Hub, serving, tiny_card, tiny_weights, use_hub

from benchmd_ray.errors import BenchmdError, DiskFull
from benchmd_ray.models import fetched
from benchmd_ray.models.encoder_cards import EncoderCard
from benchmd_ray.schema.typed import typed

CONTENT = b"tensors" * 1000


@pytest.fixture
def hub(monkeypatch, tmp_path):
    monkeypatch.setenv(fetched.ENCODERS, str(tmp_path / "encoders"))
    with serving(Hub(CONTENT)) as hub:
        use_hub(monkeypatch, hub.address)
        yield hub


def card(content=CONTENT, **changes):
    return typed(EncoderCard, tiny_card(content, **changes), "the card")


def stored(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def test_fetched_weights_are_the_hubs_file_and_are_fetched_once(hub, tmp_path):
    path = fetched.fetch(card())
    assert stored(tmp_path) == [path]
    assert path.read_bytes() == CONTENT
    asked = len(hub.asked)
    fetched.ensure_weights(card())
    assert fetched.require_weights(card()) == path
    assert len(hub.asked) == asked


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (401, "GatedRepo", "accepted its terms"),
        (403, "GatedRepo", "hf auth login"),
        (404, "RevisionNotFound", "no longer there in revision cccc"),
        (404, "EntryNotFound", "is not in the repository"),
        (401, "RepoNotFound", "the repository has gone or needs a login"),
        (500, "", "the hub answers 500"),
    ],
)
def test_what_the_hub_refuses_is_said_and_nothing_stays(hub, tmp_path, status, code, message):
    hub.status, hub.code = status, code
    begun = time.monotonic()
    with pytest.raises(BenchmdError, match=message):
        fetched.fetch(card())
    assert time.monotonic() - begun < 3  # the library tries again for half a minute
    assert not stored(tmp_path)


def test_a_hub_that_cannot_be_reached_is_asked_once(hub, tmp_path, monkeypatch):
    use_hub(monkeypatch, "http://127.0.0.1:9")
    begun = time.monotonic()
    with pytest.raises(BenchmdError, match=r"cannot be reached.*--from FILE"):
        fetched.fetch(card())
    assert time.monotonic() - begun < 3
    assert not stored(tmp_path)


def test_a_hub_that_is_switched_off_is_not_asked(hub, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(BenchmdError, match="HF_HUB_OFFLINE is set"):
        fetched.fetch(card())
    assert not hub.asked


def test_weights_with_another_hash_are_refused_wherever_they_are(hub, tmp_path):
    other = card(b"other")
    with pytest.raises(BenchmdError, match=r"^model.safetensors of lab/tiny has the SHA-256"):
        fetched.fetch(other)
    file = tmp_path / "mine.safetensors"
    file.write_bytes(CONTENT)
    with pytest.raises(BenchmdError, match=r"mine.safetensors has the SHA-256"):
        fetched.take(other, file)
    assert stored(tmp_path) == [file]
    path = fetched.take(card(), file)
    with pytest.raises(BenchmdError, match="damaged, or another version"):
        fetched.ensure_weights(other)
    with pytest.raises(BenchmdError, match="damaged, or another version"):
        fetched.read_tensors(path, other)


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), DiskFull, "space"),
        (PermissionError(errno.EACCES, "no"), BenchmdError, "cannot be stored in .*Permission"),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
    ],
)
def test_a_fetch_that_is_interrupted_or_cannot_write_leaves_nothing(
    hub, tmp_path, monkeypatch, fault, error, message
):
    from huggingface_hub import file_download

    def failing(url, temp_file, **_):
        temp_file.write(CONTENT[:100])
        raise fault

    monkeypatch.setattr(file_download, "http_get", failing)
    with pytest.raises(error, match=message):
        fetched.fetch(card())
    assert not stored(tmp_path)
    assert fetched.weights_here(card()) is None


def test_weights_with_terms_are_never_fetched_for_a_run(hub):
    with pytest.raises(BenchmdError, match=r"have terms \(a form\).*encoder fetch tiny"):
        fetched.ensure_weights(card(terms="a form"))
    assert not hub.asked


def test_a_run_needs_weights_here_and_asks_nobody(hub):
    with pytest.raises(BenchmdError, match=r"not on this machine.*BENCHMD_ENCODERS"):
        fetched.require_weights(card())
    assert not hub.asked


def test_tensors_are_read_and_nothing_else(hub, tmp_path):
    content = tiny_weights()
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    assert "embeddings.cls_token" in fetched.read_tensors(file, card(content))
    with pytest.raises(BenchmdError, match="cannot be read as tensors alone"):
        fetched.read_tensors(_written(file, b"junk"), card(b"junk"))


def _written(path, content):
    path.write_bytes(content)
    return path
