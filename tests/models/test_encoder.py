import itertools
import math

import pytest
import torch
from kinds import SIGNALS
from torch.nn import functional

from benchmd_ray.models.encoder import Block, Encoder, patchify
from benchmd_ray.settings.definition import ENCODERS, EncoderSettings, PretrainSettings
from benchmd_ray.ssl.emix import EMix

TINY = ENCODERS["tiny"]


def parameters(module):
    return sum(p.numel() for p in module.parameters())


def normed(x, norm):
    """LayerNorm by its formula."""
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + norm.eps) * norm.weight + norm.bias


def slow_block(block, x, size):
    """A pre-norm block with attention written out, head by head; no dropout."""
    inner, wide = size.heads * size.head_dim, normed(x, block.attention_norm)
    q, k, v = (torch.einsum("btw,iw->bti", wide, w) for w in block.qkv.weight.split(inner))
    heads = []
    for h in range(size.heads):
        own = slice(h * size.head_dim, (h + 1) * size.head_dim)
        logits = torch.einsum("bqd,bkd->bqk", q[..., own], k[..., own]) / math.sqrt(size.head_dim)
        attention = torch.exp(logits) / torch.exp(logits).sum(-1, keepdim=True)
        heads.append(torch.einsum("bqk,bkd->bqd", attention, v[..., own]))
    mixed = torch.cat(heads, dim=-1)
    x = x + mixed @ block.project.weight.T + block.project.bias
    first, last = block.mlp[0], block.mlp[3]
    hidden = normed(x, block.mlp_norm) @ first.weight.T + first.bias
    hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
    return x + hidden @ last.weight.T + last.bias


def randomised(module):
    """The module in float64 with every parameter drawn anew, norms and biases too."""
    generator = torch.Generator().manual_seed(1)
    module.double()
    for p in module.parameters():
        p.data = torch.randn(p.shape, generator=generator, dtype=torch.float64) * 0.3
    return module


def test_the_paper_encoder_with_its_projection_has_9_62_million_parameters():
    with torch.device("meta"):
        method = EMix(Encoder(SIGNALS["ecg"], ENCODERS["paper"]), PretrainSettings())
    assert parameters(method) == pytest.approx(9.62e6, rel=0.005)


@pytest.mark.parametrize(
    ("name", "millions"),
    [("tiny", 0.033), ("small", 0.165), ("paper", 9.6), ("base", 86), ("large", 303)],
)
def test_named_sizes_are_as_large_as_they_say(name, millions):
    with torch.device("meta"):
        encoder = Encoder(SIGNALS["ecg"], ENCODERS[name])
    assert parameters(encoder) == pytest.approx(millions * 1e6, rel=0.01)


@pytest.mark.parametrize(
    ("name", "tokens", "values"),
    [
        ("ecg", 200, 300),
        ("eeg", 125, 60),
        ("cxr", 196, 256),
        ("mammo", 196, 256),
        ("derm", 196, 768),
        ("fundus", 196, 768),
        ("ldct", 196, 6144),
    ],
)
def test_tokens_of_each_modality(name, tokens, values):
    modality = SIGNALS[name]
    encoder = Encoder(modality, TINY)
    signals = torch.zeros(1, *modality.input_shape)
    assert (modality.tokens, modality.patch_size) == (tokens, values)
    assert encoder.patches(signals).shape == (1, tokens, values)
    assert encoder.embed(signals).shape == (1, tokens, 32)
    assert encoder.encode(encoder.embed(signals)).shape == (1, tokens + 1, 32)
    assert encoder(signals).shape == (1, 32)


def test_positions_and_cls_are_drawn_from_the_standard_normal():
    torch.manual_seed(0)
    encoder = Encoder(SIGNALS["ecg"], EncoderSettings(width=1024, depth=1))
    assert encoder.positions.shape == (1, 201, 1024)
    assert encoder.cls.shape == (1, 1, 1024)
    for values, tolerance in ((encoder.positions, 0.01), (encoder.cls, 0.1)):
        assert values.mean().item() == pytest.approx(0, abs=tolerance)
        assert values.std().item() == pytest.approx(1, abs=tolerance)
        within = (values.abs() < 1).float().mean().item()
        assert within == pytest.approx(0.6827, abs=tolerance / 2)


def test_queries_keys_and_values_have_no_bias():
    assert Block(TINY).qkv.bias is None


@pytest.mark.parametrize(
    "size",
    [
        EncoderSettings(width=12, depth=1, heads=1, head_dim=8, mlp=20),
        EncoderSettings(width=16, depth=1, heads=3, head_dim=4, mlp=8),
    ],
)
def test_a_block_agrees_with_attention_written_out(size):
    block = randomised(Block(size)).eval()
    x = torch.randn(3, 7, size.width, dtype=torch.float64)
    torch.testing.assert_close(block(x), slow_block(block, x, size), atol=1e-12, rtol=1e-10)


def test_the_encoder_agrees_with_its_parts_written_out():
    modality = SIGNALS["eeg"]
    encoder = randomised(Encoder(modality, TINY)).eval()
    signals = torch.randn(2, *modality.input_shape, dtype=torch.float64)
    rows = []
    for signal in signals:
        patches = [signal[:, 30 * t : 30 * t + 30].flatten() for t in range(125)]
        tokens = [
            encoder.patch_embedding.weight @ p + encoder.patch_embedding.bias for p in patches
        ]
        rows.append(torch.stack([encoder.cls[0, 0], *tokens]) + encoder.positions[0])
    x = torch.stack(rows)
    for block in encoder.blocks:
        x = slow_block(block, x, TINY)
    expected = x.sum(dim=1) / 126  # every token, CLS included, and no norm after the last block
    torch.testing.assert_close(encoder(signals), expected, atol=1e-10, rtol=1e-8)


def test_eval_mode_is_deterministic_and_train_mode_drops():
    encoder = Encoder(SIGNALS["eeg"], TINY)
    signals = torch.randn(2, 2, 3750)
    encoder.eval()
    assert torch.equal(encoder(signals), encoder(signals))
    encoder.train()
    assert not torch.allclose(encoder(signals), encoder(signals))


@pytest.mark.parametrize("which", ["dropout", "embedding_dropout"])
def test_each_dropout_drops_its_own_place(which):
    values = {"dropout": 0.0, "embedding_dropout": 0.0, which: 0.5}
    size = EncoderSettings(width=16, depth=1, heads=1, head_dim=8, mlp=16, **values)
    block = Block(size).train()
    x = torch.randn(1, 4, 16)
    assert torch.equal(block(x), block(x)) == (which == "embedding_dropout")
    encoder = Encoder(SIGNALS["eeg"], size).train()
    dropped = encoder.dropout(torch.ones(10_000))
    share = (dropped == 0).float().mean().item()
    assert share == pytest.approx(values["embedding_dropout"], abs=0.03)
    assert not torch.equal(encoder(torch.zeros(1, 2, 3750)), encoder(torch.zeros(1, 2, 3750)))


def test_examples_do_not_touch_each_other():
    encoder = Encoder(SIGNALS["eeg"], TINY).eval()
    signals = torch.randn(4, 2, 3750)
    alone = torch.cat([encoder(signal[None]) for signal in signals])
    torch.testing.assert_close(encoder(signals), alone, atol=1e-5, rtol=1e-4)


def test_pooling_is_the_mean_over_all_tokens():
    encoder = Encoder(SIGNALS["eeg"], TINY)
    hidden = torch.randn(2, 126, 32)
    assert torch.allclose(encoder.pool(hidden), functional.avg_pool1d(hidden.mT, 126)[..., 0])


def slow_patchify(signals, patch):
    """Slow reference: every patch cut out by its own slices, in C order of its position."""
    space = signals.shape[2:]
    places = itertools.product(*(range(0, s, p) for s, p in zip(space, patch, strict=True)))
    cut = []
    for place in places:
        window = tuple(slice(a, a + p) for a, p in zip(place, patch, strict=True))
        cut.append(torch.stack([signal[(slice(None), *window)].flatten() for signal in signals]))
    return torch.stack(cut, dim=1)


@pytest.mark.parametrize(
    ("shape", "patch"),
    [
        ((2, 12, 50), (25,)),
        ((3, 2, 12), (1,)),
        ((1, 5, 7), (7,)),
        ((2, 3, 8, 12), (4, 3)),
        ((2, 1, 6, 6), (2, 6)),
        ((2, 1, 4, 6, 8), (4, 3, 2)),
        ((1, 2, 4, 4, 4), (2, 2, 2)),
    ],
)
def test_agrees_with_cutting_each_patch(shape, patch):
    signals = torch.arange(math.prod(shape)).reshape(shape)
    assert torch.equal(patchify(signals, patch), slow_patchify(signals, patch))


def test_a_patch_holds_one_channel_after_the_other():
    signals = torch.tensor([[[1, 2, 3, 4], [5, 6, 7, 8]]])
    assert patchify(signals, (2,)).tolist() == [[[1, 2, 5, 6], [3, 4, 7, 8]]]


def test_every_value_is_in_one_patch():
    signals = torch.arange(2 * 3 * 8 * 8).reshape(2, 3, 8, 8)
    patches = patchify(signals, (4, 4))
    assert patches.shape == (2, 4, 48)
    for example, cut in zip(signals, patches, strict=True):
        assert sorted(cut.flatten().tolist()) == sorted(example.flatten().tolist())


@pytest.mark.parametrize(
    ("shape", "patch"),
    [
        ((1, 12, 51), (25,)),
        ((1, 12, 10), (25,)),
        ((1, 3, 224, 220), (16, 16)),
        ((1, 3, 224, 224), (16,)),
        ((1, 3, 224), (16, 16)),
        ((1, 1, 23, 32, 32), (24, 16, 16)),
    ],
)
def test_an_extent_that_does_not_fit_is_refused(shape, patch):
    with pytest.raises(ValueError, match=r"cannot be cut into patches .* multiples"):
        patchify(torch.zeros(shape), patch)
