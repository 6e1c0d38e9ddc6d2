"""The modalities that have cards, with what tests take of them."""

from benchmd_ray.modality.modalities import modalities

MODALITIES = modalities()
SIGNALS = {name: kind.signal for name, kind in MODALITIES.items()}
CLASSES = {name: kind.task.classes for name, kind in MODALITIES.items()}
