"""What the tests of networks share."""

import torch
from torch import nn

from benchmd_ray.modality.signals import Signal
from benchmd_ray.models.encoder import make_encoder
from benchmd_ray.settings.definition import EncoderSettings

RESNETS_1D = ["resnet18-1d", "resnet50-1d"]
BUILT_IN = [*RESNETS_1D, "xresnet1d101"]
MONAI = ["monai-densenet121", "monai-efficientnet-b0", "monai-seresnet50"]


def kind(samples, channels=2):
    """A signal over time."""
    shape = (channels, samples)
    return Signal("made", ("channel", "time"), shape, shape, "int16", "mV", (1,), "none", rate=100)


def encoder_of(network, signal, **options):
    return make_encoder(signal, EncoderSettings(network=network, options=options))


def randomised(module, seed=1):
    """The module in eval mode and float64; norms, running statistics too, drawn anew."""
    generator = torch.Generator().manual_seed(seed)
    for part in module.double().eval().modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            for values in (part.weight, part.running_var):
                values.data = 0.5 + torch.rand(values.shape, generator=generator).double()
            for values in (part.bias, part.running_mean):
                values.data = torch.randn(values.shape, generator=generator).double() * 0.1
    return module
