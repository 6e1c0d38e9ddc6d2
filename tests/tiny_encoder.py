"""A card of a small published encoder, its random weights, and a hub that serves files."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import threading
from dataclasses import dataclass, field

import torch
import transformers
import yaml
from safetensors.torch import save

REVISION = "c" * 40
CONFIG = {
    "model_type": "vit",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 32,
    "patch_size": 16,
}


def tiny_weights() -> bytes:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = transformers.ViTModel(
            transformers.ViTConfig(**{k: v for k, v in CONFIG.items() if k != "model_type"}),
            add_pooling_layer=False,
        )
    return save({name: value.contiguous() for name, value in network.state_dict().items()})


def tiny_card(content: bytes = b"", **changes) -> dict:
    weights = {
        "repository": "lab/tiny",
        "revision": REVISION,
        "file": "model.safetensors",
        "sha256": hashlib.sha256(content).hexdigest(),
        "bytes": len(content),
    }
    return {
        "name": "tiny",
        "title": "Tiny ViT",
        "paper": "none",
        "licence": "MIT",
        "weights": weights | changes.pop("weights", {}),
        "network": {"library": "transformers", "config": CONFIG, "feature": "class-token"},
        "input": {"image": {"size": [32, 32], "mean": [0.5] * 3, "std": [0.5] * 3}},
        "pretrained_on": {"nih-cxr-ap": "the paper"},
        "checked": {"weights": "here"},
        **changes,
    }


def write_card(folder, card: dict, text: str = "") -> None:
    place = folder / "encoders"
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{card['name']}.yaml").write_text(text or yaml.safe_dump(card, sort_keys=False))


@dataclass
class Hub:
    """What a hub answers to any file, and what it was asked."""

    content: bytes = b""
    status: int = 200
    code: str = ""
    """The hub's name of an error."""
    sent: int | None = None
    """Bytes after which the connection ends; None sends all."""
    asked: list[str] = field(default_factory=list)
    address: str = ""


@contextlib.contextmanager
def serving(hub: Hub):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self._answer()

        def do_GET(self):
            self._answer()
            if hub.status == 200:
                self.wfile.write(hub.content[: hub.sent])

        def _answer(self):
            hub.asked.append(f"{self.command} {self.path}")
            self.send_response(hub.status)
            if hub.code:
                self.send_header("X-Error-Code", hub.code)
            if hub.status == 200:
                self.send_header("ETag", f'"{hashlib.sha256(hub.content).hexdigest()}"')
                self.send_header("X-Repo-Commit", REVISION)
                self.send_header("Content-Length", str(len(hub.content)))
            else:
                self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    hub.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def use_hub(monkeypatch, address: str) -> None:
    """Let the hub's library ask another address, as HF_ENDPOINT does in a new process."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
