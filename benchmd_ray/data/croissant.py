"""Croissant metadata (MLCommons, version 1.0): of a catalog, and read for a first card.

Specification: https://docs.mlcommons.org/croissant/docs/croissant-spec.html
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.manifest_form import SHARDS
from benchmd_ray.data.records import schema
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.integrity import parsed_json

MAX_BYTES, LONGEST = 16 * 2**20, 2_000
"""Largest Croissant file that is read, and the characters that are taken of a text in it."""
CONFORMS_TO = "http://mlcommons.org/croissant/1.0"
PARQUET = "application/x-parquet"
LICENCES = {
    "CC BY 3.0": "https://creativecommons.org/licenses/by/3.0/",
    "CC BY 4.0": "https://creativecommons.org/licenses/by/4.0/",
    "CC BY-SA 4.0": "https://creativecommons.org/licenses/by-sa/4.0/",
    "CC BY-NC 4.0": "https://creativecommons.org/licenses/by-nc/4.0/",
    "CC0": "https://creativecommons.org/publicdomain/zero/1.0/",
}
"""Addresses of licences; others are stated in words."""
SPLITS = {
    "train": "https://mlcommons.org/definitions/training_split",
    "validation": "https://mlcommons.org/definitions/validation_split",
    "test": "https://mlcommons.org/definitions/test_split",
}
CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
} | {
    name: f"cr:{name}"
    for name in (
        *("citeAs", "column", "equivalentProperty", "extract", "field", "fileObject"),
        *("fileProperty", "fileSet", "format", "includes", "isLiveDataset", "jsonPath", "key"),
        *("md5", "parentField", "path", "recordSet", "references", "regex", "repeated", "replace"),
        *("samplingRate", "separator", "source", "subField", "transform"),
    )
}
ABOUT = {
    "record_id": "Identifier of the record.",
    "group_id": "The patient, as a pseudonym (a keyed hash). Splits are by patient, or by record "
    "where the dataset names no patients; resample and split by this column.",
    "unit_id": "What is scored: the record, or the scan that it is a part of.",
    "split": "The split of the record; see the record set splits.",
    "scale": "Value in the unit = stored value × scale.",
    "valid_size": "Extent along each axis but the channel's; what follows is padding.",
    "age": "Age in years; ages above 90 are stored as 90.",
    "held_out": "Conditions for which the record is held out of all training.",
}
"""Descriptions of columns; others are named by themselves."""


def croissant(catalog: Catalog) -> dict[str, Any]:
    """Croissant metadata of a catalog, for a file in its folder: shards have relative addresses."""
    card = catalog.card
    people = "patient" if _knows_patients(catalog) else "record: no patient is known"
    texts = {
        "license": LICENCES.get(card.licence, card.licence),
        "url": card.homepage,
        "citeAs": card.citation,
        "conditionsOfAccess": card.access,
    }
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS_TO,
        "name": catalog.dataset,
        "description": f"Catalog of {card.title or card.name} ({catalog.provenance} data) as "
        f"{catalog.modality} signals with labels, written by benchmd_ray. Splits follow the policy "
        f"{catalog.manifest['policy']}; records are grouped by {people}.",
        **{key: text for key, text in texts.items() if text},
        "version": f"{card.version}.0.0",
        "identifier": f"sha256:{catalog.digest}",
        "rai:personalSensitiveInformation": "Records of people; patients are pseudonyms. Age, sex, "
        "site and device are stored where the source states them.",
        "distribution": [*map(_shard, catalog.manifest["shards"]), _all_shards()],
        "recordSet": [_splits(catalog), _classes(catalog), _records(catalog)],
    }


def _knows_patients(catalog: Catalog) -> bool:
    return bool(catalog.manifest["raw"]["grouped_by"] == "patient")


def _shard(shard: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": shard["file"],
        "name": shard["file"].removeprefix(f"{SHARDS}/"),
        "contentUrl": shard["file"],
        "contentSize": f"{shard['bytes']} B",
        "encodingFormat": PARQUET,
        "sha256": shard["sha256"],
    }


def _all_shards() -> dict[str, Any]:
    return {
        "@type": "cr:FileSet",
        "@id": SHARDS,
        "name": SHARDS,
        "description": "All shards, in the folder of this file.",
        "encodingFormat": PARQUET,
        "includes": f"{SHARDS}/*.parquet",
    }


def _splits(catalog: Catalog) -> dict[str, Any]:
    counts = {name: n for name, n in catalog.manifest["splits"].items() if n["records"]}
    told = "; ".join(f"{k} {v['records']} of {v['patients']}" for k, v in counts.items())
    rows = [{"splits/name": name, "splits/url": SPLITS.get(name, "")} for name in counts]
    fields = [
        _field("splits/name", "sc:Text", "Name of the split."),
        _field("splits/url", "sc:Text", "Its definition, where it has one."),
    ]
    by_patient = catalog.manifest["policy"] == "clean" and _knows_patients(catalog)
    about = f"{'Splits by patient. ' * by_patient}Records and patients: {told}."
    return _record_set("splits", about, "name", fields) | {"dataType": "cr:Split", "data": rows}


def _classes(catalog: Catalog) -> dict[str, Any]:
    fields = [
        _field("classes/index", "sc:Integer", "Place of the class in a target."),
        _field("classes/name", "sc:Text", "Name of the class."),
    ]
    names = enumerate(catalog.card.classes)
    rows = [{"classes/index": index, "classes/name": name} for index, name in names]
    about = f"Classes in the order of targets ({catalog.task.kind})."
    classes = _record_set("classes", about, "index", fields)
    return classes | {"dataType": "sc:Enumeration", "data": rows}


def _records(catalog: Catalog) -> dict[str, Any]:
    signal, target = catalog.signal, catalog.card.target
    shape = " × ".join(map(str, signal.stored_shape))
    rate = f" at {signal.rate:g} Hz" if signal.rate else ""
    described = {
        "signal": f"{signal.dtype} of {' × '.join(signal.axes)} ({shape}){rate}, raw bytes in C "
        f"order, little-endian; {signal.unit} after multiplying by scale.",
        "target": f"Mask of {' × '.join(map(str, target.shape))} bytes, in C order."
        if target.is_mask
        else "One value per class (record set classes): 1, 0, or -1 for unknown.",
    }
    columns = [column for column in schema(catalog.card) if not pa.types.is_struct(column.type)]
    fields = [_column(c, (described | ABOUT).get(c.name, f"{c.name}.")) for c in columns]
    return _record_set("records", "Records with signal, target and patient.", "record_id", fields)


def _record_set(
    name: str, description: str, key: str, fields: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "@type": "cr:RecordSet",
        "@id": name,
        "name": name,
        "description": description,
        "key": {"@id": f"{name}/{key}"},
        "field": fields,
    }


def _column(column: pa.Field, description: str) -> dict[str, Any]:
    kind = column.type
    is_list = pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind)
    value = kind.value_type if is_list else kind
    types = {pa.types.is_integer: "sc:Integer", pa.types.is_floating: "sc:Float"}
    name = next((name for is_of, name in types.items() if is_of(value)), "sc:Text")
    field = _field(f"records/{column.name}", name, description)
    field["source"] = {"fileSet": {"@id": SHARDS}, "extract": {"column": column.name}}
    if is_list:
        field["repeated"] = True
    if column.name == "split":
        field["references"] = {"field": {"@id": "splits/name"}}
    return field


def _field(name: str, kind: str, description: str) -> dict[str, Any]:
    return {
        "@type": "cr:Field",
        "@id": name,
        "name": name,
        "description": description,
        "dataType": kind,
    }


def card_facts(path: Path) -> dict[str, str]:
    """Title, homepage, licence and citation of a dataset for its card, from its Croissant file.

    Nothing that the file names is fetched.

    Raises:
        BenchmdError: It cannot be read, or is not Croissant.
    """
    try:
        size = path.stat().st_size
        size = size if path.is_file() else MAX_BYTES + 1
        content = path.read_bytes() if size <= MAX_BYTES else b""
    except OSError as error:
        raise BenchmdError(f"{path} cannot be read: {error.strerror}.") from error
    if size > MAX_BYTES:
        raise BenchmdError(
            f"{path} is no file of up to {MAX_BYTES:,} bytes: expected a Croissant file."
        )
    about = parsed_json(content, path, "Download it again.")
    stated = about.get("conformsTo", about.get("dct:conformsTo"))
    if not any("mlcommons.org/croissant" in text for text in _texts(stated)):
        raise BenchmdError(
            f"{path} is not a Croissant file: its conformsTo names no version of Croissant."
        )
    names = {address: name for name, address in LICENCES.items()}
    licences = [names.get(text, text) for text in _texts(about.get("license"))]
    facts = {
        "title": next(iter(_texts(about.get("name"))), ""),
        "homepage": next(filter(_is_of_web, _texts(about.get("url"))), ""),
        "licence": "; ".join(licences),
        "citation": next(iter(_texts(about.get("citeAs"))), ""),
    }
    return {key: text for key, text in facts.items() if text}


def _is_of_web(address: str) -> bool:
    return address.startswith(("https://", "http://"))


def _texts(value: object) -> list[str]:
    """Texts of a value of JSON-LD: itself, in a list, or of an object with an address or a name."""
    if isinstance(value, Mapping):
        keys = ("url", "@id", "name", "@value", "en")
        return next((_texts(value[key]) for key in keys if isinstance(value.get(key), str)), [])
    if isinstance(value, list):
        return [text for part in value[:10] for text in _texts(part)]
    text = " ".join(value[:LONGEST].split()) if isinstance(value, str) else ""
    text = text.encode("utf-8", "replace").decode()  # JSON may hold halves of characters
    return [text] if text else []
