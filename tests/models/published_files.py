"""Networks of published encoders at a small size, in files as their authors publish them."""

import dataclasses

import torch
import transformers
from monai.networks import nets
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "conv_dim": [16] * 5,
    "embedding_size": 8,
    "hidden_sizes": [8, 16, 24, 32],
    "depths": [1, 2, 1, 1],
    "init_filters": 4,
    "blocks_down": [1, 1, 2, 1, 1],
}
"""Widths and numbers of layers instead of those of the cards; all else is kept."""
TEXTS = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 20,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def small(card):
    """The card with a small network, of weights without a hash."""
    config = {name: SMALL.get(name, value) for name, value in card.network.config.items()}
    if config.get("network", "").startswith("resnet"):
        config["widen_factor"] = 0.125
    return dataclasses.replace(
        card,
        network=dataclasses.replace(card.network, config=config),
        weights=dataclasses.replace(card.weights, sha256="", bytes=0),
    )


def published(card, folder):
    """The authors' network with random weights, in eval mode, and the file that they publish."""
    torch.manual_seed(1)
    config = {k: v for k, v in card.network.config.items() if k not in ("model_type", "network")}
    network = NETWORKS[card.network.config.get("model_type", card.network.library)](card, config)
    drawn(network)
    path = folder / card.name / card.weights.file
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors" and hasattr(network, "save_pretrained"):
        network.save_pretrained(path.parent)
    elif path.suffix == ".safetensors":
        save_file(network.state_dict(), path)
    else:
        torch.save(wrapped(card, network.state_dict()), path)
    return network, path


def drawn(network):
    """Weights, biases and running statistics drawn anew."""
    generator = torch.Generator().manual_seed(2)
    network.eval().requires_grad_(False)
    for name, value in network.state_dict().items():
        if value.is_floating_point() and "position_ids" not in name:
            noise = torch.randn(value.shape, generator=generator)
            value.copy_(0.5 + noise.abs() if name.endswith("running_var") else 0.15 * noise)
    for part in network.modules():
        if isinstance(part, nn.LayerNorm | nn.BatchNorm2d | nn.BatchNorm3d | nn.GroupNorm):
            part.weight.copy_(1 + 0.2 * torch.randn(part.weight.shape, generator=generator))


def wrapped(card, tensors):
    """What the authors save by torch.save."""
    if card.network.library == "monai":
        return {"state_dict": {f"module.{name}": value for name, value in tensors.items()}}
    if card.weights.names.timm:
        more = {"mask_token": torch.zeros(1, 1, 8), "decoder_blocks.0.norm1.weight": torch.ones(8)}
        return {"model": tensors | more, "epoch": 800}
    places = (card.network.config["image_size"] // card.network.config["patch_size"]) ** 2 + 1
    return tensors | {  # earlier versions of transformers saved them
        "vision_model.embeddings.position_ids": torch.arange(places)[None],
        "text_model.embeddings.position_ids": torch.arange(77)[None],
    }


def two_towers(model, config, text):
    return lambda card, of: model(config(vision_config=of, text_config=text, projection_dim=16))


def vit(card, of):
    if card.weights.names.timm:
        return TimmViT(of)
    return transformers.ViTModel(transformers.ViTConfig(**of))


class HubertECG(transformers.HubertModel):
    """With the heads of pretraining, as the authors' class has them."""

    def __init__(self, config):
        super().__init__(config)
        self.final_proj = nn.ModuleList([nn.Linear(config.hidden_size, 8)])
        self.label_embedding = nn.ModuleList([nn.Embedding(10, 8)])


def hubert(card, of):
    masks = {"mask_time_prob": 0.33, "mask_time_length": 1}  # as in its config.json
    return HubertECG(transformers.HubertConfig(**(of | masks)))


def monai(card, of):
    if card.network.config["network"] == "segresnet-encoder":
        return nets.segresnet_ds.SegResEncoder(spatial_dims=3, **of)
    make = getattr(nets, card.network.config["network"])
    return make(pretrained=False, spatial_dims=3, n_input_channels=1, feed_forward=False, **of)


class TimmViT(nn.Module):
    """A ViT with the names of timm, written out."""

    def __init__(self, of, *, scaled=False):
        super().__init__()
        width, side = of["hidden_size"], of["image_size"] // of["patch_size"]
        self.heads, self.eps = of["num_attention_heads"], of["layer_norm_eps"]
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + side**2, width))
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv2d(3, width, of["patch_size"], of["patch_size"])
        self.blocks = nn.ModuleList()
        for _ in range(of["num_hidden_layers"]):
            block = nn.Module()
            block.norm1 = nn.LayerNorm(width, self.eps)
            block.attn, block.mlp = nn.Module(), nn.Module()
            block.attn.qkv, block.attn.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            block.norm2 = nn.LayerNorm(width, self.eps)
            inside = of.get("intermediate_size", 4 * width)
            block.mlp.fc1, block.mlp.fc2 = nn.Linear(width, inside), nn.Linear(inside, width)
            if scaled:
                block.ls1, block.ls2 = nn.Module(), nn.Module()
                block.ls1.gamma = nn.Parameter(torch.ones(width))
                block.ls2.gamma = nn.Parameter(torch.ones(width))
            self.blocks.append(block)
        self.norm = nn.LayerNorm(width, self.eps)

    def forward(self, images):
        """Tokens after the last normalisation."""
        x = self.patch_embed.proj(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), 1) + self.pos_embed
        for block in self.blocks:
            first = block.ls1.gamma if hasattr(block, "ls1") else 1
            second = block.ls2.gamma if hasattr(block, "ls2") else 1
            x = x + first * self.attended(block.attn, block.norm1(x))
            x = x + second * block.mlp.fc2(functional.gelu(block.mlp.fc1(block.norm2(x))))
        return self.norm(x)

    def attended(self, attn, x):
        batch, count, width = x.shape
        q, k, v = attn.qkv(x).reshape(batch, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)
        return attn.proj((weights @ v).transpose(1, 2).reshape(batch, count, width))


NETWORKS = {
    "dinov2": lambda card, of: transformers.Dinov2Model(transformers.Dinov2Config(**of)),
    "dinov3_vit": lambda card, of: transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(**of)),
    "siglip_vision_model": two_towers(
        transformers.SiglipModel, transformers.SiglipConfig, TEXTS | {"projection_size": 32}
    ),
    "clip_vision_model": two_towers(transformers.CLIPModel, transformers.CLIPConfig, TEXTS),
    "vit": vit,
    "vit_mae": lambda card, of: transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(**of)),
    "resnet": lambda card, of: transformers.ResNetForImageClassification(
        transformers.ResNetConfig(**of, num_labels=5)
    ),
    "hubert": hubert,
    "monai": monai,
}
"""The authors' class by the model_type of a card."""
