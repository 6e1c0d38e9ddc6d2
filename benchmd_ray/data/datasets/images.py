"""What the image datasets share: an image's way to a record."""

from __future__ import annotations

import numpy as np

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.raw import RawItem, Reading
from benchmd_ray.data.readers.image import Pixels
from benchmd_ray.data.records import Record, RecordError
from benchmd_ray.data.transforms import fitted


def image_record(pixels: Pixels, item: RawItem, card: DatasetCard) -> Reading:
    """The one record of an image, labelled as the item says.

    Args:
        pixels: (y, x) or (y, x, channel) grey levels, with the modality's channels.
        item: Its names, labels and metadata.
        card: Card of the dataset.

    Raises:
        RecordError: Every pixel is equal.
    """
    if (pixels == pixels.flat[0]).all():
        raise RecordError(f"every pixel is {pixels.flat[0]}; expected an image")
    size = card.kind.stored_shape[-1]
    signal, valid = fitted(pixels, size)
    record = Record(
        record_id=item.record_id,
        group_id=item.group_id,
        unit_id=item.record_id,
        signal=np.ascontiguousarray(signal),
        scale=1.0,
        valid_size=valid,
        target=item.target(card),
        metadata=item.metadata,
    )
    return Reading([record])
