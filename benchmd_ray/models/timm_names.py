"""Names of the tensors of a timm ViT as checkpoints of transformers have them."""

from __future__ import annotations

import re

import torch

TOP = {
    "cls_token": "embeddings.cls_token",
    "pos_embed": "embeddings.position_embeddings",
    "patch_embed.proj.weight": "embeddings.patch_embeddings.projection.weight",
    "patch_embed.proj.bias": "embeddings.patch_embeddings.projection.bias",
    "norm.weight": "layernorm.weight",
    "norm.bias": "layernorm.bias",
}
PARTS = {
    "attn.proj": "attention.output.dense",
    "ls1.gamma": "layer_scale1.lambda1",
    "ls2.gamma": "layer_scale2.lambda1",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}
"""Parts of a block with layer scale (Dinov2); a plain ViT has its own in `PLAIN`."""
PLAIN = {
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}
BLOCK = re.compile(r"blocks\.(\d+)\.(.+?)(\.weight|\.bias)?")


def from_timm(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A timm ViT's tensors for ``ViTModel``, or with layer scale for ``Dinov2Model``."""
    is_scaled = any(name.endswith("ls1.gamma") for name in tensors)
    parts = PARTS | ({} if is_scaled else PLAIN)
    result = {}
    for name, value in tensors.items():
        match = BLOCK.fullmatch(name)
        if match is None:
            result[TOP.get(name, name)] = value
            continue
        number, part, kind = match.groups("")
        start = f"encoder.layer.{number}."
        if part == "attn.qkv":
            for which, third in zip(("query", "key", "value"), value.chunk(3), strict=True):
                result[f"{start}attention.attention.{which}{kind}"] = third.contiguous()
        else:
            result[f"{start}{parts.get(part, part)}{kind}"] = value
    if is_scaled:  # a token for masked patches, which features do not need
        result["embeddings.mask_token"] = torch.zeros(1, tensors["cls_token"].shape[-1])
    return result
