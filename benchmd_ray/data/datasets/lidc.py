"""LIDC-IDRI as The Cancer Imaging Archive hands it out: DICOM series and one XML file per scan.

Four radiologists read each scan, each in a ``readingSession``. A nodule of 3 mm and more is
outlined on each of its slices, a smaller one marked by one point.
Source: https://www.cancerimagingarchive.net/collection/lidc-idri/; Armato et al. 2011.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree.ElementTree import Element

import numpy as np
import numpy.typing as npt

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.datasets.ct import (
    Labels,
    scan_metadata,
    scan_windows,
    size_class,
    window_targets,
)
from benchmd_ray.data.plain_numbers import number_of
from benchmd_ray.data.raw import DUPLICATE, Choices, Discovery, RawItem, Reading, by_key, walk
from benchmd_ray.data.readers.volume import Volume, read_series, series_header
from benchmd_ray.data.readers.xml import children, name, read_xml, text
from benchmd_ray.data.records import RecordError, RecordExcluded, hashed_patient
from benchmd_ray.data.splits import hashed_split, stable_fraction

VERSION = 2
ROOT = "LidcReadMessage"
MAX_POINTS = 2_000
POSITIVE_SLICES = 4
"""Positive slices that make a window positive (decision D5)."""
PATIENT = re.compile(r"LIDC-IDRI-\d+", re.IGNORECASE)
UID = re.compile(r"\d+(\.\d+)+$")


@dataclass(frozen=True)
class Outline:
    """A mark on one slice."""

    uid: str
    """SOP instance of the slice; empty where the file does not say."""
    height: float
    """Patient z of the slice, mm."""
    points: npt.NDArray[np.float64]
    """(points, 2): column and row in pixels; one point for a nodule below 3 mm."""


@dataclass(frozen=True)
class Annotation:
    """What the radiologists marked in a scan."""

    series: str
    readers: tuple[tuple[tuple[Outline, ...], ...], ...]
    """Nodules of each radiologist, each with its outlines; holes are excluded."""


def discover(root: Path, card: DatasetCard, choices: Choices) -> Discovery:
    """List the CT series for which there is an annotation.

    Of a folder whose name is not an annotated series, the header of one file is read.
    """
    folders, files = _listed(root)
    annotations, further, unreadable = _annotations(files)
    items: list[RawItem] = []
    excluded = +Counter({DUPLICATE: further})
    seen: set[str] = set()
    for folder, first in folders:
        try:
            series, patient = _identified(folder.relative_to(root), first, annotations)
        except RecordError:
            excluded["the header of its first slice cannot be read"] += 1
            continue
        if series is None:
            continue
        seen.add(series)
        split = _split(card, patient, choices.policy)
        if not patient or series not in annotations:
            excluded["it names no patient" if not patient else "it has no annotation"] += 1
        elif split is None:
            excluded["the paper's rule puts it neither into training nor validation"] += 1
        else:
            details = {
                "series": series,
                "annotation": annotations[series].relative_to(root).as_posix(),
                "readers": choices.options["readers"],
            }
            path = folder.relative_to(root).as_posix()
            name = hashed_patient(card.name, series)
            group = hashed_patient(card.namespace, patient)
            item = RawItem(path, name, group, split, details=details)
            sizes = _sizes(root, item, card) if choices.hold_out else ()
            items.append(replace(item, conditions=sizes))
    names = [hashed_patient(card.name, series) for series in annotations.keys() - seen]
    missing = [f"the scan of annotation {name}" for name in sorted(names)]
    missing += ["an annotation file that can be read"] * unreadable
    items.sort(key=lambda item: (item.record_id, item.path))
    return Discovery("tcia", items, missing, dict(excluded))


def read(root: Path, item: RawItem, card: DatasetCard) -> Reading:
    """Records of one scan, one per window."""
    volume, positive, unplaced = _marked(root, item, card)
    item = replace(item, metadata=scan_metadata(volume) | item.metadata)
    reading = scan_windows(volume, positive, item, card, least=POSITIVE_SLICES)
    if unplaced:
        reading.warnings["a mark lies on none of its slices and is not used"] += 1
    return reading


def _marked(root: Path, item: RawItem, card: DatasetCard) -> tuple[Volume, Labels, int]:
    """A scan, with what `positive_slices` gives for it."""
    annotation = read_annotation(root / item.details["annotation"])
    agreement = int(item.details["readers"])
    if len(annotation.readers) < agreement:
        raise RecordExcluded(f"fewer than {agreement} radiologists read it")
    volume = read_series(root / item.path, item.details["series"])
    return volume, *positive_slices(annotation, volume, agreement, card)


def _sizes(root: Path, item: RawItem, card: DatasetCard) -> tuple[str, ...]:
    """Classes of a scan's windows, for which the annotation and all headers are read.

    A scan that cannot be read has none, and is quarantined when it is read as a whole.
    """
    try:
        _, positive, _ = _marked(root, item, card)
    except (RecordError, RecordExcluded):
        return ()
    targets = window_targets(positive, card.signal.stored_shape[1], POSITIVE_SLICES)
    return tuple(
        name
        for name, values in zip(card.classes, zip(*targets, strict=True), strict=True)
        if any(values)
    )


def positive_slices(
    annotation: Annotation, volume: Volume, agreement: int, card: DatasetCard
) -> tuple[Labels, int]:
    """(slices, classes) that enough radiologists marked (decision D5), and how many marks are lost.

    Nodules of different radiologists are not matched: what counts is how many of them marked any
    nodule of that size on the slice. A nodule's diameter is its outlines' largest extent in mm.
    Marks are lost that are on none of the slices.
    """
    marked = np.zeros((len(annotation.readers), volume.shape[0], len(card.classes)), bool)
    places = {uid: number for number, uid in enumerate(volume.uids)}
    unplaced = 0
    for reader, nodules in enumerate(annotation.readers):
        for outlines in nodules:
            diameter = max(extent(outline.points, volume.spacing[1:]) for outline in outlines)
            if size_class(diameter) not in card.classes:
                continue  # that class is held out
            column = card.classes.index(size_class(diameter))
            for outline in outlines:
                place = places.get(outline.uid)
                place = volume.slice_of_height(outline.height) if place is None else place
                if place is None:
                    unplaced += 1
                else:
                    marked[reader, place, column] = True
    return marked.sum(axis=0) >= agreement, unplaced


def extent(points: npt.NDArray[np.float64], spacing: tuple[float, ...]) -> float:
    """Largest distance in mm between two of some points, (points, 2): column and row."""
    rows, row = np.unique(points[:, 1], return_inverse=True)
    ends = np.full((2, len(rows)), [[np.inf], [-np.inf]])
    np.minimum.at(ends[0], row, points[:, 0])  # the two farthest are ends of their rows
    np.maximum.at(ends[1], row, points[:, 0])
    outer = np.stack([ends.ravel() * spacing[1], np.tile(rows, 2) * spacing[0]], axis=1)
    return float(max(np.hypot(*(outer - point).T).max() for point in outer))


def _split(card: DatasetCard, patient: str, policy: str) -> str | None:
    """By patient: 80/20, or 70 % to train and 15 % to validate as BenchMD's counts have it."""
    if policy == "clean":
        return hashed_split(card.name, patient)
    fraction = stable_fraction(f"{card.name}/{patient}")
    return "train" if fraction < 0.7 else "validation" if fraction >= 0.85 else None


def _listed(root: Path) -> tuple[list[tuple[Path, Path]], list[Path]]:
    """Folders that hold DICOM files, each with its first file, and all XML files."""
    folders: list[tuple[Path, Path]] = []
    annotations: list[Path] = []
    for folder, files in walk(root, "*.dcm", "*.xml"):
        slices = [file for file in files if file.lower().endswith(".dcm")]
        if slices:
            folders.append((folder, folder / min(slices)))
        annotations += [folder / file for file in files if file not in slices]
    return sorted(folders), sorted(annotations)


def _annotations(files: list[Path]) -> tuple[dict[str, Path], int, int]:
    """Annotation file of each CT series, how many duplicates, and how many cannot be read.

    Of several for one series the latest is taken: some were corrected.
    """
    headers: dict[Path, dict[str, str]] = {}
    unreadable = 0
    for path in files:
        try:
            headers[path] = _message_header(path) or {}
        except RecordError:
            unreadable += 1

    def written(path: Path) -> tuple[str, ...]:
        return tuple(headers[path].get(key, "") for key in ("DateService", "TimeService"))

    latest_first = sorted(headers, key=written, reverse=True)
    annotations, further = by_key(
        latest_first, lambda p: headers[p].get("SeriesInstanceUid") or None
    )
    return annotations, further, unreadable


def _identified(
    folder: Path, first: Path, annotations: Mapping[str, Path]
) -> tuple[str | None, str]:
    """Series and patient of a folder; no series where it holds no CT scan."""
    uid, patients = UID.search(folder.name), PATIENT.findall(folder.as_posix())
    if uid and patients and uid[0] in annotations:
        return uid[0], patients[-1].upper()
    header = series_header(first)
    if header["Modality"] != "CT":
        return None, ""
    named = patients[-1] if patients else header["PatientID"] or ""
    return header["SeriesInstanceUID"], named.upper()


def _message_header(path: Path) -> dict[str, str] | None:
    """Texts of the ``ResponseHeader`` of a CT annotation; None for other XML files."""
    tree = read_xml(path, "the annotation", first_bytes=2**16)
    if name(tree) != ROOT:
        return None
    header = next((part for part in tree if name(part) == "ResponseHeader"), Element("none"))
    return {name(part): (part.text or "").strip() for part in header}


def read_annotation(path: Path) -> Annotation:
    """Read the annotation of a CT scan."""
    tree = read_xml(path, "the annotation")
    if name(tree) != ROOT:
        raise RecordError(f"the annotation is of another kind; expected a {ROOT}")
    series = next((e.text for e in tree.iter() if name(e) == "SeriesInstanceUid"), None)
    readers = tuple(
        tuple(filter(None, map(_outlines, children(session, "unblindedReadNodule"))))
        for session in children(tree, "readingSession")
    )
    return Annotation((series or "").strip(), readers)


def _outlines(nodule: Element) -> tuple[Outline, ...]:
    """The marks of a nodule on its slices, without those of holes."""
    outlines = []
    for roi in children(nodule, "roi"):
        if text(roi, "inclusion").upper() != "FALSE" and (edges := children(roi, "edgeMap")):
            if len(edges) > MAX_POINTS:
                raise RecordError(f"an outline has {len(edges):,} points in the annotation")
            points = [[_number(edge, "xCoord"), _number(edge, "yCoord")] for edge in edges]
            height = _number(roi, "imageZposition")
            outlines.append(Outline(text(roi, "imageSOP_UID"), height, np.array(points)))
    return tuple(outlines)


def _number(element: Element, wanted: str) -> float:
    value = number_of(text(element, wanted))
    if value is None:
        raise RecordError(f"the annotation has a {name(element)} whose {wanted} is not a number")
    return value
