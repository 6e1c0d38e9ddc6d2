"""XML files by expat: elements of bounded number, no document types, no entities."""

from __future__ import annotations

from pathlib import Path
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from benchmd_ray.data.readers.bounded import read_bounded
from benchmd_ray.data.records import RecordError

VERSION = 1
MAX_BYTES = 2**23
"""Larger files are refused; those of SHHS and LIDC-IDRI have well under 2 MiB."""
MAX_ELEMENTS = 500_000
"""Files of more elements are refused; an annotation of LIDC-IDRI has some ten thousand."""
MAX_DEPTH = 50


def read_xml(path: Path, what: str, *, first_bytes: int | None = None) -> Element:
    """The root element of a file, or of its first bytes, whose open elements are closed."""
    content = read_bounded(path, MAX_BYTES, what, first_bytes=first_bytes)
    return _tree(content, what, whole=first_bytes is None)


def _tree(content: bytes, what: str, *, whole: bool) -> Element:
    builder, inside = TreeBuilder(), list[str]()
    parser = expat.ParserCreate(namespace_separator="}")
    elements = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal elements
        elements += 1
        inside.append(name)
        if elements > MAX_ELEMENTS or len(inside) > MAX_DEPTH:
            raise RecordError(
                f"{what} has more than {MAX_ELEMENTS:,} elements, or deeper than {MAX_DEPTH}"
            )
        builder.start(name, attributes)

    def end(name: str) -> None:
        inside.pop()
        builder.end(name)

    def refuse(*_: object) -> None:  # entities can be declared nowhere else
        raise RecordError(f"{what} declares a document type; expected plain XML")

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(content, whole)
        while inside:
            end(inside[-1])
        root: Element | None = builder.close()
    except (expat.ExpatError, AssertionError, LookupError, ValueError) as error:
        # the last two are for an encoding that it declares and that Python lacks or cannot use
        why = error if isinstance(error, expat.ExpatError) else type(error).__name__
        raise RecordError(f"{what} is not XML, or damaged ({why})") from None
    if root is None:
        raise RecordError(f"{what} holds nothing")
    return root


def name(element: Element) -> str:
    """Name of an element without its namespace."""
    return element.tag.rpartition("}")[2]


def children(element: Element, wanted: str) -> list[Element]:
    """Children of a name, in any namespace."""
    return [child for child in element if name(child) == wanted]


def text(element: Element, wanted: str) -> str:
    """Text of the first child of a name; empty where there is none."""
    return next(((child.text or "").strip() for child in children(element, wanted)), "")
