"""Shares of a GPU's memory; the GPU is made up."""

import pytest
import torch

from benchmd_ray.gpu_memory import room, take_share


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of 1,000 bytes of which others hold 300, and this process 100."""
    held = {"fraction": 1.0}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (600, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 100)
    monkeypatch.setattr(
        torch.cuda,
        "get_per_process_memory_fraction",
        lambda index: held["fraction"] if index in (None, 1) else 1 / 0,
    )
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share: held.update(fraction=share)
    )
    return held


@pytest.mark.parametrize(
    ("share", "left"), [(0.25, 137), (0.5, 375), (0.0, 600), (1.0, 600), (2.0, 600)]
)
def test_a_process_has_its_share_and_no_more_than_is_free(gpu, share, left):
    take_share(share)
    assert room(torch.device("cuda")) == room(torch.device("cuda", 1)) == left


def test_without_a_gpu_nothing_is_limited(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    take_share(0.25)
    assert gpu["fraction"] == 1.0
