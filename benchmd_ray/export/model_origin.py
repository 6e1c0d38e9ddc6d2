"""Where the weights of an exported model are from: from its source, or from elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from benchmd_ray.report.protocols import pretraining_of
from benchmd_ray.runs.store import Run

BROUGHT = ("hf:", "model:")
"""How the names of techniques begin whose encoder was trained elsewhere (`ssl.brought`)."""
IMAGENET = ("imagenet", "imagenet+mae")
"""Techniques that start from ImageNet weights."""
TRAINED_FURTHER = "imagenet+mae"
"""The one of all these whose pretraining trains."""
TRAINING, NORMALISATION, SHAPE = "training", "normalisation", "shape of the signals"
USES = {
    TRAINING: "It was trained on {data}.",
    NORMALISATION: "Nothing was trained here: signals are normalised by the mean and standard "
    "deviation of {data}.",
    SHAPE: "Nothing was trained here: only the shape of the signals is that of {data}.",
    "head": "Only a linear head was trained here, on {data}.",
    "fine-tuning": "Encoder and head were fine-tuned here, on {data}.",
    "pretraining": "The encoder was pretrained further here, on {data}.",
    "pretraining, head": "The encoder was pretrained further here and a linear head trained, both "
    "on {data}.",
    "pretraining, fine-tuning": "The encoder was pretrained further here, then encoder and head "
    "fine-tuned, both on {data}.",
}
"""What the source was used for, and the sentence that says so."""


@dataclass(frozen=True)
class Origin:
    """Where a model's weights are from."""

    use: str
    """What the source was used for, of `USES`."""
    name: str = ""
    """Of the encoder's weights, if they were trained elsewhere; empty: all were trained here."""
    sha256: str = ""
    """Of these weights, or how the pretraining stored them; empty where it is not known."""

    @property
    def elsewhere(self) -> bool:
        """Whether the encoder's weights were trained elsewhere."""
        return bool(self.name)

    @property
    def trains(self) -> bool:
        """Whether anything was trained on the source."""
        return self.use not in (NORMALISATION, SHAPE)

    def sentences(self, data: str) -> str:
        """What a card begins with.

        Args:
            data: What the source is, in words.
        """
        here = USES[self.use].format(data=data)
        if not self.elsewhere:
            return here
        stated = f" ({self.sha256})" if self.sha256 else ""
        return (
            f"The weights of its encoder were trained elsewhere: {self.name}{stated}. They have "
            "terms of their own, and this card does not know their training data, which may hold "
            f"patients of the datasets below.\n{here}"
        )


def origin_of(run: Run) -> Origin:
    """Where the weights of a run's model are from.

    The hash of weights that were trained elsewhere is what the pretraining states; where a transfer
    has lost its pretraining, it is that of the file that the transfer read.
    """
    about = run.description
    technique = str(about["technique"])
    if not technique.startswith(BROUGHT) and technique not in IMAGENET:
        return Origin(TRAINING)
    name = "ImageNet weights for timm's ViT-Tiny" if technique in IMAGENET else technique
    return Origin(_use(run, technique), name, _hash(run, technique))


def _use(run: Run, technique: str) -> str:
    pretrained = ["pretraining"] if technique == TRAINED_FURTHER else []
    if run.description["kind"] == "transfer":
        tuned = run.settings.transfer.mode == "finetune"
        return ", ".join([*pretrained, "fine-tuning" if tuned else "head"])
    if pretrained:
        return "pretraining"
    by_statistics = run.modality.signal.normaliser in ("source-statistics", "source-mean")
    return NORMALISATION if by_statistics else SHAPE


def _hash(run: Run, technique: str) -> str:
    pretraining = pretraining_of(run, {}) if run.description["kind"] == "transfer" else run
    stated = pretraining and pretraining.description["determinants"].get("weights")
    if stated:
        return f"SHA-256 {stated}"
    file = run.description["determinants"].get("upstream")
    return f"stored with the SHA-256 {file}" if file and technique != TRAINED_FURTHER else ""
