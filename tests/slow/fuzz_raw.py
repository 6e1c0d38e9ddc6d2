"""Mutates raw files and reads them, in processes with bounded memory; prints what came out.

``python fuzz_raw.py MEGABYTES`` takes a job on each line of its input, ``[reader, seed, inputs,
groups of sibling files]`` as JSON, and prints a line of JSON for each. Of a group, one file is
mutated at a time, and the path of the first is read. Each job has a process of its own, forked
from one that has imported everything.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from raw_mutants import MUTATORS

SECONDS = 180
"""After these an input ends its job."""
LOOP_SECONDS = 20
"""Of processor time, after which a library counts as one that does not return."""
REFUSED, FAULT = 1, 2
"""Exit codes of a process that imports an HDF5 file."""
HUGE = (b"0", b"-1", b"99999999", b"4294967295", b"1e308", b"nan", b"../../x", b"\x00", b"%n")


def mutated(path: Path, content: bytes, rng: np.random.Generator) -> bytes:
    """Another content of a file, of the same structure where the format has one, half the time."""
    mutate = MUTATORS.get(path.suffix.lower())
    if mutate and rng.random() < 0.5:
        return mutate(content, rng)
    return damaged(content, rng)


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """The content with one to three changes of a kind each."""
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 4))):
        if not data:
            return bytes(data)
        # headers decide most: half of the changes are in the first kilobyte
        end = len(data) if rng.random() < 0.5 else min(len(data), 1024)
        at = int(rng.integers(end))
        length = int(rng.integers(1, 1 + min(64, len(data) - at)))
        match int(rng.integers(8)):
            case 0:  # flipped bits
                data[at] ^= 1 << int(rng.integers(8))
            case 1:  # random bytes
                data[at : at + length] = rng.bytes(length)
            case 2:  # cut off
                del data[at:]
            case 3:  # a piece is lost
                del data[at : at + length]
            case 4:  # a piece appears twice
                data[at:at] = data[at : at + length]
            case 5:  # the largest and the smallest values
                data[at : at + length] = (b"\xff" if rng.random() < 0.5 else b"\x00") * length
            case 6:  # odd values where text is expected
                odd = HUGE[int(rng.integers(len(HUGE)))]
                data[at : at + len(odd)] = odd
            case _:  # bytes that do not belong there
                data[at:at] = rng.bytes(length)
    return bytes(data)


class Ended(Exception):
    """A library ended its process, which builds and imports turn into a refusal."""


def finite(values: Any, *ranks: int) -> None:
    """Fail unless an array has one of the ranks, a value, and finite numbers alone."""
    array = np.asarray(values)
    assert array.ndim in ranks, array.shape
    assert array.size, array.shape
    assert np.isfinite(array).all()


def image(pixels: Any) -> None:
    """Fail unless it is an image of three channels in 8 bits."""
    finite(pixels, 3)
    assert pixels.dtype == np.uint8
    assert pixels.shape[2] == 3


def waveform(found: Any) -> None:
    """Fail unless it is a waveform: samples of named channels, whole unless their gains change."""
    assert found.samples.dtype in (np.int32, np.float64)
    assert found.samples.shape[0] == len(found.names) == len(found.steps_per_mv)
    finite(found.samples, 2)
    finite(found.steps_per_mv, 1)
    finite(found.rate, 0)
    assert found.rate > 0


def first_channels(path: Path) -> None:
    """Read two channels of an EDF file, as its header names them."""
    from benchmd_ray.data.readers.edf import read_edf, read_header

    found = read_edf(path, [channel.name for channel in read_header(path).channels[:2]])
    assert found.signals.keys() == found.rates.keys()
    for name, values in found.signals.items():
        assert values.dtype == np.float64
        finite(values, 1)
        finite(found.rates[name], 0)
        assert found.rates[name] > 0


def annotations(path: Path) -> None:
    """Read the annotations of an EDF+ file."""
    from benchmd_ray.data.readers.edf import read_annotations

    for each in read_annotations(path):
        finite([each.onset, each.duration or 0], 1)
        assert isinstance(each.text, str)


def codes(found: list[str]) -> None:
    """Fail unless it is a staging: numbers as text."""
    assert found
    assert all(code.isascii() and code.isdigit() for code in found)


def outlines(found: Any) -> None:
    """Fail unless it is what radiologists outlined."""
    for outline in (one for reader in found.readers for nodule in reader for one in nodule):
        finite(outline.points, 2)
        finite(outline.height, 0)


def volume(found: Any) -> None:
    """Fail unless it is a volume whose slices have its shape."""
    finite(found.origins, 2)
    finite(found.spacing, 1)
    assert len(found.origins) == found.shape[0]
    assert (np.diff(found.positions) > 0).all()
    for values in found.slices():
        assert values.shape == found.shape[1:]
        finite(values, 2)


def in_child(read: Callable[[], bool]) -> None:
    """Read in a process of its own, as builds and imports do: native libraries may not return."""
    from benchmd_ray.data.records import RecordError
    from benchmd_ray.errors import BenchmdError

    child = os.fork()
    if not child:
        code = FAULT
        with contextlib.suppress(BaseException):
            resource.setrlimit(resource.RLIMIT_CPU, (LOOP_SECONDS, LOOP_SECONDS + 1))
            try:
                code = 0 if read() else REFUSED
            except (RecordError, BenchmdError):
                code = REFUSED
            except MemoryError:
                code = REFUSED
            except BaseException:
                traceback.print_exc()
                raise
        os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status != FAULT
    if status < 0:
        raise Ended(signal.Signals(-status).name)
    if status == REFUSED:
        raise BenchmdError("refused")


def imported(path: Path) -> None:
    """Import an HDF5 file."""
    from benchmd_ray.data import hdf5

    (path.parent / "catalog").mkdir()

    def read() -> bool:
        failed, _ = hdf5.answer({"path": str(path), "out": str(path.parent / "catalog")})
        assert "errno" not in failed
        return not failed

    in_child(read)


def own(path: Path) -> None:
    """Read a file as a signal over time, an image or a volume of a user's own."""
    from benchmd_ray.data.card_files import Files
    from benchmd_ray.data.datasets.any_file import read_file
    from benchmd_ray.modality.signals import Signal

    axes, shape, patch = {
        "time": (("channel", "time"), (2, 100), (10,)),
        "image": (("channel", "y", "x"), (1, 32, 32), (8, 8)),
        "volume": (("channel", "z", "y", "x"), (1, 8, 32, 32), (8, 8, 8)),
    }[path.name.split("-")[0]]
    made = Signal("x", axes, shape, shape, "int16", "mV", patch, "none", rate=50.0)

    def read() -> bool:
        for part in read_file(path, made, Files(rate=100.0)):
            assert part.signal.shape == shape
            assert part.signal.dtype == np.int16
            assert np.isfinite(part.scale)
            assert part.scale > 0
            assert all(
                0 < held <= extent for held, extent in zip(part.valid_size, shape[1:], strict=True)
            )
        return True

    in_child(read)


def listed_rows(path: Path) -> None:
    """List what a table and lists of splits say of a folder, next to which they are."""
    from benchmd_ray.data.card_files import Files
    from benchmd_ray.data.cards import DatasetCard
    from benchmd_ray.data.datasets.listed import discover
    from benchmd_ray.data.raw import Choices
    from benchmd_ray.errors import BenchmdError
    from benchmd_ray.modality.modalities import modality

    beside = {p.stem: p.name for p in path.parent.iterdir() if p.suffix == ".txt"}
    files = Files(table=path.name, patient="patient", metadata={"age": "age"}, lists=beside)
    card = DatasetCard("x", modality("fundus"), files=files)
    found = discover(path.parent, card, Choices())
    assert all(sum(item.target(card)) == 1 for item in found.items)
    if not found.items:
        raise BenchmdError("nothing is left")


def rows(path: Path) -> None:
    """Read a table by the columns of its first line as it was."""
    from benchmd_ray.data.tables import read_rows

    columns = ("Image Index", "Patient ID", "Finding Labels")
    for row in read_rows(path, columns, "NIH ChestX-ray14"):
        assert all(isinstance(row[column], str) for column in columns)


def records(name: str, path: Path, details: dict[str, Any], **given: Any) -> None:
    """Read an item of a dataset, and fail unless a catalog can hold the records."""
    from benchmd_ray.data.cards import dataset_card
    from benchmd_ray.data.datasets import DATASETS
    from benchmd_ray.data.raw import RawItem
    from benchmd_ray.data.records import RecordError, checked

    card = dataset_card(name)
    item = RawItem(path.name, "x", "g", "test", details=details, **given)
    for record in DATASETS[name].read(path.parent, item, card).records:
        try:
            checked(record, card)
        except RecordError as error:
            raise AssertionError(str(error)) from error


def scan(path: Path) -> None:
    """Read a scan of LIDC-IDRI: the annotation stands next to its slices."""
    from benchmd_ray.data.datasets.lidc import read_annotation

    details = {"annotation": f"{path.parent.name}/{path.name}", "readers": "1"}
    details["series"] = read_annotation(path).series
    records("lidc-idri", path.parent, details)


def masked(path: Path) -> None:
    """Read a scan of LNDb with the mask of its first radiologist."""
    nodule = {"class": "large nodule", "centre": [0.0, 0.0, 10.0], "marks": [["1", 1]]}
    masks = {"1": f"{path.stem}_rad1.mhd"}
    records("lndb", path, {"masks": masks, "nodules": [nodule]})


def night(name: str) -> Callable[[Path], None]:
    """Reads a night with the staging next to it."""

    def read(path: Path) -> None:
        beside = next(p.name for p in path.parent.iterdir() if p.suffix in (".xml", ".txt"))
        records(name, path, {"stages": beside})

    return read


def breast_images(path: Path) -> None:
    """List and read the images of a file of BreastMNIST."""
    from benchmd_ray.data.cards import dataset_card
    from benchmd_ray.data.datasets import medmnist
    from benchmd_ray.data.raw import Choices
    from benchmd_ray.data.records import checked

    card = dataset_card("breastmnist")
    for item in medmnist.discover(path.parent, card, Choices(options={"md5": "allow"})).items:
        for record in medmnist.read(path.parent, item, card).records:
            checked(record, card)


def database(path: Path) -> None:
    """List the records of PTB-XL by its table."""
    from benchmd_ray.data.cards import dataset_card
    from benchmd_ray.data.datasets import ptbxl
    from benchmd_ray.data.raw import Choices

    ptbxl.discover(path.parent, dataset_card("ptb-xl"), Choices(options={}))


def assigned(path: Path) -> None:
    """Take each line of a file as what ``--set`` is given."""
    from benchmd_ray.settings.definition import load_settings

    load_settings(assignments=path.read_text("utf-8", "surrogateescape").split("\n"))


def readers() -> dict[str, Callable[[Path], Any]]:
    """What reads a file and checks the result; takes the path of the first file of a group."""
    from benchmd_ray.data.cards import _cards_of
    from benchmd_ray.data.datasets.isruc import text_stages
    from benchmd_ray.data.datasets.lidc import read_annotation
    from benchmd_ray.data.datasets.shhs import profusion_stages
    from benchmd_ray.data.readers.dicom import open_dicom, pixels, read_dicom, rescaled
    from benchmd_ray.data.readers.image import read_image
    from benchmd_ray.data.readers.metaimage import read_mhd
    from benchmd_ray.data.readers.volume import read_series
    from benchmd_ray.data.readers.wfdb import read_wfdb
    from benchmd_ray.modality.modalities import _read as read_modality
    from benchmd_ray.modality.modalities import modality
    from benchmd_ray.settings.definition import load_settings
    from benchmd_ray.tuning.spaces import space_for

    def hounsfield(path: Path) -> None:
        dataset = open_dicom(path)
        values = rescaled(pixels(dataset, frame=0), dataset)
        assert np.issubdtype(values.dtype, np.number)
        assert values.ndim in (2, 3)

    return {
        "image": lambda path: image(read_image(path, 3)),
        "wfdb": lambda path: waveform(read_wfdb(path)),
        "dicom": lambda path: image(read_dicom(path, 3, frame=0)),
        "dicom-values": hounsfield,
        "series": lambda path: volume(read_series(path.parent)),
        "mhd": lambda path: volume(read_mhd(path)),
        "edf": first_channels,
        "annotations": annotations,
        "profusion": lambda path: codes(profusion_stages(path)),
        "stages": lambda path: codes(text_stages(path)),
        "lidc-xml": lambda path: outlines(read_annotation(path)),
        "table": rows,
        "ptb-xl": database,
        "settings": load_settings,
        "set": assigned,
        "card": _cards_of,
        "space": lambda path: space_for("mae", "pretrain", modality("ecg"), path),
        "hdf5": imported,
        "own": own,
        "own-rows": listed_rows,
        "modality": read_modality,
        "shhs": night("shhs"),
        "isruc": night("isruc"),
        "georgia": lambda path: records("georgia", path, {}),
        "lidc-idri": scan,
        "lndb": masked,
        "medmnist": breast_images,
    }


def outcomes_of(
    read: Callable[[Path], Any], seed: int, inputs: int, groups: list[list[str]]
) -> dict[str, Any]:
    """Read mutated files and count what came out."""
    from benchmd_ray.data.records import RecordError, RecordExcluded
    from benchmd_ray.errors import BenchmdError

    rng = np.random.default_rng(seed)
    held = [[Path(name) for name in group] for group in groups]
    contents = {path: path.read_bytes() for group in held for path in group}
    outcomes: Counter[str] = Counter()
    faults, slowest = [], 0.0
    if not any(_reads(read, group) for group in held):
        faults.append("no file is read as it was written")
    with tempfile.TemporaryDirectory() as folder:
        for number in range(inputs):
            group = held[int(rng.integers(len(held)))]
            changed = int(rng.integers(len(group)))
            place = Path(folder, str(number))
            place.mkdir()
            for index, path in enumerate(group):
                content = contents[path]
                (place / path.name).write_bytes(
                    mutated(path, content, rng) if index == changed else content
                )
            start = time.process_time()
            signal.alarm(SECONDS)
            try:
                read(place / group[0].name)
                outcomes["read"] += 1
            except (RecordError, RecordExcluded, BenchmdError):
                outcomes["refused"] += 1
            except Ended:
                outcomes["ended its process"] += 1
            except BaseException as error:
                outcomes["anything else"] += 1
                faults.append(f"{group[0].name} #{number}: {type(error).__name__}: {error}"[:300])
            signal.alarm(0)
            slowest = max(slowest, time.process_time() - start)
            shutil.rmtree(place)
    return {"outcomes": outcomes, "faults": faults[:20], "slowest": round(slowest, 3)}


def _reads(read: Callable[[Path], Any], group: list[Path]) -> bool:
    """Whether files are read as they were written."""
    from benchmd_ray.data.records import RecordError, RecordExcluded
    from benchmd_ray.errors import BenchmdError

    with tempfile.TemporaryDirectory() as folder:
        for path in group:
            shutil.copy(path, folder)
        try:
            read(Path(folder, group[0].name))
        except (RecordError, RecordExcluded, BenchmdError):
            return False
    return True


def tell(content: dict[str, Any]) -> None:
    """Print a line of JSON."""
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


def main(megabytes: int) -> None:
    """Do each job in a forked process."""
    named = readers()
    for line in sys.stdin:
        reader, seed, inputs, groups = json.loads(line)
        child = os.fork()
        if not child:
            resource.setrlimit(resource.RLIMIT_AS, (megabytes * 2**20,) * 2)
            tell(outcomes_of(named[reader], seed, inputs, groups))
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            tell({"ended": status})


if __name__ == "__main__":
    main(int(sys.argv[1]))
