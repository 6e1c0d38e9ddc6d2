"""One module per raw layout: it lists what a raw folder holds and turns a file into records.

`discover` raises `BenchmdError` where tables or folders are not as expected; `read` raises
`RecordError` of a file that is quarantined, `RecordExcluded` of one that the protocol leaves out.
"""

from __future__ import annotations

import importlib
import sys
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.datasets import (
    any_file,
    aptos,
    bcn20000,
    cbis_ddsm,
    chexpert,
    cinc,
    cxr,
    decathlon,
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
from benchmd_ray.data.raw import Discovery, RawReader
from benchmd_ray.errors import BenchmdError, first_line
from benchmd_ray.extensions.extras import require
from benchmd_ray.extensions.plugins import GROUPS, find_module
from benchmd_ray.files.atomic import sha256

_CINC = RawReader(cinc.discover, cinc.read)
DATASETS: dict[str, RawReader] = {
    "ptb-xl": RawReader(ptbxl.discover, ptbxl.read),
    "chapman-shaoxing": _CINC,
    "georgia": _CINC,
    "cpsc": _CINC,
    "shhs": RawReader(shhs.discover, shhs.read, packages=("mne",)),
    "isruc": RawReader(isruc.discover, isruc.read, packages=("mne",)),
    "mimic-cxr": RawReader(mimic_cxr.discover, cxr.read),
    "chexpert": RawReader(chexpert.discover, cxr.read),
    "vindr-cxr": RawReader(vindr_cxr.discover, vindr_cxr.read),
    "vindr-mammo": RawReader(vindr_mammo.discover, images.read_dicom_image),
    "cbis-ddsm": RawReader(cbis_ddsm.discover, images.read_dicom_image),
    "nih-cxr-ap": RawReader(partial(nih_cxr.discover, view="AP"), nih_cxr.read),
    "nih-cxr-pa": RawReader(partial(nih_cxr.discover, view="PA"), nih_cxr.read),
    "bcn20000": RawReader(bcn20000.discover, photographs.read),
    "ham10000": RawReader(ham10000.discover, photographs.read),
    "pad-ufes-20": RawReader(pad_ufes.discover, photographs.read),
    "isic-2017": RawReader(isic2017.discover, photographs.read),
    "messidor-2": RawReader(messidor.discover, photographs.read),
    "aptos-2019": RawReader(aptos.discover, photographs.read),
    "jinchi": RawReader(jinchi.discover, photographs.read),
    "lidc-idri": RawReader(lidc.discover, lidc.read),
    "lndb": RawReader(lndb.discover, lndb.read, packages=("SimpleITK",)),
    "medmnist": RawReader(medmnist.discover, medmnist.read),
    "decathlon": RawReader(decathlon.discover, decathlon.read, packages=("SimpleITK",)),
}
"""By the name of the card, or of its collection."""
PACKAGE = "benchmd_ray.data."
GROUP = GROUPS["dataset"]
"""Entry points of modules that know datasets, by the names of their cards."""
LISTED = RawReader(listed.discover, listed.read)
"""Of cards that say themselves how their files are found."""


def dataset_of(card: DatasetCard) -> RawReader:
    """The code that knows the raw layout of a card's dataset."""
    if card.files is not None:
        return LISTED
    name = card.collection or card.name
    if card.module or (name not in DATASETS and name in entry_points(group=GROUP).names):
        module = card.module or entry_points(group=GROUP)[name].module
        return _outside(module, card.name)
    if name not in DATASETS:
        raise BenchmdError(
            f"the card of {card.name} does not say how its files are found: expected files, or the "
            "module that knows them."
        )
    return DATASETS[name]


def require_readers(card: DatasetCard, discovery: Discovery) -> None:
    """Refuse to read a dataset's files where a package for it is not installed."""
    packages = dataset_of(card).packages
    if card.files is not None:
        packages = any_file.packages_for(item.path for item in discovery.items)
    require(f"reading the files of {card.name}", *packages)


def versions_of(card: DatasetCard) -> dict[str, int | str]:
    """Versions of the code that decides what a dataset's records are.

    Of the package's modules, the `VERSION` of each that the dataset's module uses, which is raised
    whenever the same files give other records, labels or splits; of others the SHA-256 of the
    source.
    """
    reader = dataset_of(card)
    if reader.source:
        return {card.module or card.name: reader.source}
    functions = (getattr(function, "func", function) for function in (reader.discover, reader.read))
    waiting, versions = {function.__module__ for function in functions}, dict[str, int | str]()
    while waiting:
        name = waiting.pop()
        module = sys.modules[name]
        if hasattr(module, "VERSION"):
            versions[name.removeprefix(PACKAGE)] = module.VERSION
        used = {getattr(value, "__module__", None) or "" for value in vars(module).values()}
        waiting |= {
            other
            for other in used
            if other.startswith(PACKAGE)
            and other.removeprefix(PACKAGE) not in versions
            and hasattr(sys.modules[other], "VERSION")
        }
    return dict(sorted(versions.items()))


def _outside(name: str, dataset: str) -> RawReader:
    spec = find_module(name)
    if spec is None or not spec.origin:
        raise BenchmdError(
            f"the card of {dataset} names the module {name}, which cannot be found: install it, or "
            'put its folder into PYTHONPATH on every node that works (export PYTHONPATH="$PWD").'
        )
    try:
        module = importlib.import_module(name)
    except Exception as error:  # whatever a module of the user does
        raise BenchmdError(
            f"the module {name} of {dataset} cannot be imported ({type(error).__name__}): "
            f"{first_line(error)}."
        ) from error
    missing = [part for part in ("discover", "read") if not callable(getattr(module, part, None))]
    if missing:
        raise BenchmdError(
            f"the module {name} of {dataset} defines no {' and no '.join(missing)}: expected both, "
            "as docs/formats.md shows."
        )
    return RawReader(module.discover, module.read, sha256(Path(spec.origin)))
