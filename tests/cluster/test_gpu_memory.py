"""Shares of a GPU's memory; the GPU is made up."""

import pytest
import torch

from benchmd_ray.cluster.gpu_memory import is_exhausted, room, take_share


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of 1,000 bytes of which others hold 300, and this process 100."""
    held = {"fraction": 1.0, "initialized": False}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: held["initialized"])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (600, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 100)
    monkeypatch.setattr(
        torch.cuda,
        "get_per_process_memory_fraction",
        lambda index: held["fraction"] if index in (None, 1) else 1 / 0,
    )
    monkeypatch.setattr(
        torch.cuda,
        "set_per_process_memory_fraction",
        lambda share: held.update(fraction=share, initialized=True),
    )
    return held


@pytest.mark.parametrize(
    ("share", "left"), [(0.25, 137), (0.5, 375), (0.0, 600), (1.0, 600), (2.0, 600)]
)
def test_a_process_has_its_share_and_no_more_than_is_free(gpu, share, left):
    take_share(share)
    assert room(torch.device("cuda")) == room(torch.device("cuda", 1)) == left


def test_a_process_that_had_a_share_has_a_whole_gpu_later(gpu):
    take_share(0.25)
    take_share(1.0)
    assert room(torch.device("cuda")) == 600


@pytest.mark.parametrize("share", [0.0, 1.0, 2.0])
def test_a_process_without_a_share_does_not_begin_to_use_the_gpu(gpu, share):
    """It may only wait for workers, who do."""
    take_share(share)
    assert not gpu["initialized"]


@pytest.mark.parametrize(
    ("error", "exhausted"),
    [
        (torch.OutOfMemoryError("tried to allocate 2 GiB"), True),
        (RuntimeError("CUDA error: out of memory\nCompile with"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (MemoryError("can't allocate memory"), False),
    ],
)
def test_a_gpu_without_memory_is_known_by_what_libraries_say(error, exhausted):
    assert is_exhausted(error) is exhausted


def test_without_a_gpu_nothing_is_limited(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    take_share(0.25)
    assert gpu["fraction"] == 1.0
