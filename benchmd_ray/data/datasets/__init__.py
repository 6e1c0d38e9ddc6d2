"""One module per raw layout: it lists what a raw folder holds and turns a file into records."""

from __future__ import annotations

from functools import partial

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.datasets import (
    aptos,
    bcn20000,
    cbis_ddsm,
    chexpert,
    cinc,
    cxr,
    ham10000,
    images,
    isic2017,
    isruc,
    jinchi,
    lidc,
    listed,
    lndb,
    medmnist,
    messidor,
    mimic_cxr,
    nih_cxr,
    pad_ufes,
    photographs,
    ptbxl,
    shhs,
    vindr_cxr,
    vindr_mammo,
)
from benchmd_ray.data.raw import Dataset
from benchmd_ray.errors import BenchmdError

_CINC = Dataset(cinc.discover, cinc.read)

DATASETS: dict[str, Dataset] = {
    "ptb-xl": Dataset(ptbxl.discover, ptbxl.read),
    "chapman-shaoxing": _CINC,
    "georgia": _CINC,
    "cpsc": _CINC,
    "shhs": Dataset(shhs.discover, shhs.read),
    "isruc": Dataset(isruc.discover, isruc.read),
    "mimic-cxr": Dataset(mimic_cxr.discover, cxr.read),
    "chexpert": Dataset(chexpert.discover, cxr.read),
    "vindr-cxr": Dataset(vindr_cxr.discover, vindr_cxr.read),
    "vindr-mammo": Dataset(vindr_mammo.discover, images.read_dicom_image),
    "cbis-ddsm": Dataset(cbis_ddsm.discover, images.read_dicom_image),
    "nih-cxr-ap": Dataset(partial(nih_cxr.discover, view="AP"), nih_cxr.read),
    "nih-cxr-pa": Dataset(partial(nih_cxr.discover, view="PA"), nih_cxr.read),
    "bcn20000": Dataset(bcn20000.discover, photographs.read),
    "ham10000": Dataset(ham10000.discover, photographs.read),
    "pad-ufes-20": Dataset(pad_ufes.discover, photographs.read),
    "isic-2017": Dataset(isic2017.discover, photographs.read),
    "messidor-2": Dataset(messidor.discover, photographs.read),
    "aptos-2019": Dataset(aptos.discover, photographs.read),
    "jinchi": Dataset(jinchi.discover, photographs.read),
    "lidc-idri": Dataset(lidc.discover, lidc.read),
    "lndb": Dataset(lndb.discover, lndb.read),
    "medmnist": Dataset(medmnist.discover, medmnist.read),
}
"""By the name of the card, or of its collection."""
LISTED = Dataset(listed.discover, listed.read)
"""Of cards that say themselves how their files are found."""


def dataset_of(card: DatasetCard) -> Dataset:
    """The code that knows the raw layout of a card's dataset.

    Raises:
        BenchmdError: There is none.
    """
    if card.files is not None:
        return LISTED
    name = card.collection or card.name
    if name not in DATASETS:
        raise BenchmdError(
            f"the card of {card.name} says nothing of how its files are found: expected files, or "
            "the module that knows them."
        )
    return DATASETS[name]
