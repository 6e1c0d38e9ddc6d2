"""The DICOM reader, against files written by hand, pydicom itself and odd real files."""

from __future__ import annotations

import io
import random
import struct
import tracemalloc
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom import uid
from pydicom.data import get_testdata_file
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.encaps import encapsulate, get_frame
from pydicom.sequence import Sequence

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.datasets import images, vindr_cxr
from benchmd_ray.data.raw import RawItem
from benchmd_ray.data.readers import codec, dicom
from benchmd_ray.data.readers.dicom import (
    numbers,
    open_dicom,
    pixels,
    read_dicom,
    rescaled,
    text,
)
from benchmd_ray.data.readers.dicom_padding import WARNING
from benchmd_ray.data.records import RecordError

PATIENT = "Somebody^Secret"
GRADIENT = (np.arange(48)[:, None] * 60 + np.arange(60) ** 2 // 3).astype(np.uint16)
"""12 bits, (48, 60), no two rows alike."""
COLOURS = np.stack([GRADIENT // 18, GRADIENT[::-1] // 18, GRADIENT[:, ::-1] // 18], -1)


def image(values: np.ndarray, **elements: object) -> FileDataset:
    """A dataset of one image; elements override those that follow from the values."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = uid.SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = uid.UID("2.25.1")
    meta.TransferSyntaxUID = uid.ExplicitVRLittleEndian
    dataset = FileDataset("", {}, file_meta=meta, preamble=bytes(128))
    colours = values.ndim == 3
    own: dict[str, object] = {
        "SOPClassUID": meta.MediaStorageSOPClassUID,
        "SOPInstanceUID": meta.MediaStorageSOPInstanceUID,
        "PatientName": PATIENT,
        "PatientID": PATIENT,
        "Rows": values.shape[0],
        "Columns": values.shape[1],
        "SamplesPerPixel": 3 if colours else 1,
        "PhotometricInterpretation": "RGB" if colours else "MONOCHROME2",
        "BitsAllocated": 8 * values.dtype.itemsize,
        "BitsStored": 8 * values.dtype.itemsize,
        "HighBit": 8 * values.dtype.itemsize - 1,
        "PixelRepresentation": int(values.dtype.kind == "i"),
        "PixelData": values.tobytes(),
    } | ({"PlanarConfiguration": 0} if colours else {})
    for keyword, value in (own | elements).items():
        setattr(dataset, keyword, value)
    return dataset


def written(dataset: FileDataset, path: Path, syntax: str | None = None) -> Path:
    """The file of a dataset, compressed where a syntax is given."""
    if syntax in (uid.JPEG2000Lossless, uid.JPEGLSLossless, uid.RLELossless):
        dataset.compress(syntax, generate_instance_uid=False)
    elif syntax:
        dataset.file_meta.TransferSyntaxUID = uid.UID(syntax)
    dataset.save_as(path, enforce_file_format=True)
    return path


def shows(found: np.ndarray, values: np.ndarray, *, inverted: bool = False) -> bool:
    """Whether grey levels are the values scaled to 0–255 over their own range, rounded."""
    exact = 255 * (values.astype(float) - values.min()) / (float(values.max()) - values.min())
    exact = 255 - exact if inverted else exact
    return found.dtype == np.uint8 and bool((np.abs(found - exact) < 0.5 + 1e-9).all())


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "uint32"])
@pytest.mark.parametrize("kind", ["MONOCHROME1", "MONOCHROME2"])
def test_grey_levels_span_the_images_own_range(tmp_path, dtype, kind):
    values = (GRADIENT // (20 if dtype == "uint8" else 1) - (90 if dtype == "int16" else 0)).astype(
        dtype
    )
    path = written(image(values, PhotometricInterpretation=kind), tmp_path / "a.dcm")
    assert np.array_equal(pixels(open_dicom(path)), values)
    assert shows(read_dicom(path), values, inverted=kind == "MONOCHROME1")
    assert np.array_equal(read_dicom(path, 3), np.stack([read_dicom(path)] * 3, -1))


@pytest.mark.parametrize(("slope", "intercept"), [("0.37", "-1024"), ("-2", "10"), ("3", None)])
def test_slope_and_intercept_are_applied_before_scaling(tmp_path, slope, intercept):
    elements = {"RescaleSlope": slope} | ({"RescaleIntercept": intercept} if intercept else {})
    path = written(image(GRADIENT, **elements), tmp_path / "a.dcm")
    expected = GRADIENT.astype(float) * float(slope) + float(intercept or 0)
    dataset = open_dicom(path)
    assert np.array_equal(rescaled(pixels(dataset), dataset), expected)
    assert shows(read_dicom(path), expected)


def test_no_modality_lut_leaves_the_stored_values(tmp_path):
    dataset = open_dicom(written(image(GRADIENT), tmp_path / "a.dcm"))
    assert rescaled(pixels(dataset), dataset).dtype == np.uint16


def test_table_of_a_modality_lut_is_looked_up(tmp_path):
    table = Dataset()
    table.LUTDescriptor = [64, 10, 16]
    table.add_new("LUTData", "US", [(7 * i * i) % 60_000 for i in range(64)])
    table.ModalityLUTType = "US"
    values = (GRADIENT % 80).astype(np.uint16)  # below and above the table's 10 to 73
    dataset = image(values, ModalityLUTSequence=Sequence([table]))
    path = written(dataset, tmp_path / "a.dcm")
    expected = np.array(table.LUTData)[np.clip(values.astype(int) - 10, 0, 63)]
    assert shows(read_dicom(path), expected)


def functional_group(slope: float, intercept: float) -> Dataset:
    transformation, group = Dataset(), Dataset()
    transformation.RescaleSlope, transformation.RescaleIntercept = slope, intercept
    group.PixelValueTransformationSequence = Sequence([transformation])
    return group


def test_slope_of_an_enhanced_image_is_that_of_its_frame(tmp_path):
    frames = np.stack([GRADIENT, GRADIENT[::-1]])
    groups = [functional_group(2, 5), functional_group(4, -7)]
    path = written(
        image(
            GRADIENT,
            NumberOfFrames=2,
            PixelData=frames.tobytes(),
            PerFrameFunctionalGroupsSequence=Sequence(groups),
            SharedFunctionalGroupsSequence=Sequence([functional_group(1, 0)]),
        ),
        tmp_path / "a.dcm",
    )
    dataset = open_dicom(path)
    found = rescaled(pixels(dataset, frame=1), dataset, frame=1)
    assert np.array_equal(found, GRADIENT[::-1].astype(float) * 4 - 7)


def test_several_frames_are_refused_unless_one_is_chosen(tmp_path):
    frames = np.stack([GRADIENT, GRADIENT[::-1], GRADIENT[:, ::-1]])
    dataset = image(GRADIENT, NumberOfFrames=3, PixelData=frames.tobytes())
    path = written(dataset, tmp_path / "a.dcm")
    with pytest.raises(RecordError, match="the image has 3 frames, expected one"):
        read_dicom(path)
    for number, frame in enumerate(frames):
        assert shows(read_dicom(path, frame=number), frame)
    for number in (3, -1):
        with pytest.raises(RecordError, match=f"frame {number} is not among the image's 3"):
            read_dicom(path, frame=number)


@pytest.mark.parametrize("planar", [0, 1])
def test_colours_turn_grey_by_bt_601(tmp_path, planar):
    values = COLOURS.astype(np.uint8)
    stored = values.transpose(2, 0, 1) if planar else values
    dataset = image(values, PlanarConfiguration=planar, PixelData=stored.tobytes())
    path = written(dataset, tmp_path / "a.dcm")
    assert np.array_equal(read_dicom(path, 3), values)
    grey = values @ np.array([0.299, 0.587, 0.114])
    assert np.abs(read_dicom(path, 1) - grey).max() < 1


def test_colours_of_more_bits_are_scaled_by_the_range_they_can_hold(tmp_path):
    values = (COLOURS * 18).astype(np.uint16)
    path = written(image(values, BitsStored=12, HighBit=11), tmp_path / "a.dcm")
    assert np.array_equal(read_dicom(path, 3), np.rint(values / 4095 * 255))


def test_ybr_becomes_rgb(tmp_path):
    y, cb, cr = (channel.astype(float) for channel in np.moveaxis(COLOURS, -1, 0))
    path = written(
        image(COLOURS.astype(np.uint8), PhotometricInterpretation="YBR_FULL"), tmp_path / "a.dcm"
    )
    rgb = np.stack(  # PS3.3 C.7.6.3.1.2
        [
            y + 1.402 * (cr - 128),
            y - 0.344136 * (cb - 128) - 0.714136 * (cr - 128),
            y + 1.772 * (cb - 128),
        ],
        -1,
    )
    assert np.abs(read_dicom(path, 3) - np.clip(rgb, 0, 255)).max() <= 1


def palette(bits: int) -> tuple[np.ndarray, dict[str, object]]:
    """Red, green and blue of 200 entries from 20 on, and their elements."""
    tables = np.stack([np.arange(200), np.arange(200)[::-1], (np.arange(200) * 77) % 251])
    tables = tables * (257 if bits == 16 else 1)
    elements: dict[str, object] = {"PhotometricInterpretation": "PALETTE COLOR"}
    for colour, table in zip(("Red", "Green", "Blue"), tables, strict=True):
        elements[f"{colour}PaletteColorLookupTableDescriptor"] = [200, 20, bits]
        data = table.astype(np.uint8 if bits == 8 else np.uint16).tobytes()
        elements[f"{colour}PaletteColorLookupTableData"] = data
    return tables // (257 if bits == 16 else 1), elements


@pytest.mark.parametrize("bits", [8, 16])
def test_palettes_are_looked_up(tmp_path, bits):
    tables, elements = palette(bits)
    values = (GRADIENT % 256).astype(np.uint8)
    path = written(image(values, **elements), tmp_path / "a.dcm")
    expected = np.moveaxis(tables[:, np.clip(values.astype(int) - 20, 0, 199)], 0, -1)
    assert np.array_equal(read_dicom(path, 3), expected)


@pytest.mark.parametrize(
    "syntax",
    [
        uid.ImplicitVRLittleEndian,
        uid.DeflatedExplicitVRLittleEndian,
        uid.JPEG2000Lossless,
        uid.JPEGLSLossless,
        uid.RLELossless,
    ],
)
@pytest.mark.parametrize("bits", [8, 16])
def test_lossless_syntaxes_give_the_samples_that_were_written(tmp_path, syntax, bits):
    values = GRADIENT if bits == 16 else (GRADIENT // 18).astype(np.uint8)
    path = written(image(values), tmp_path / "a.dcm", syntax)
    assert np.array_equal(pixels(open_dicom(path)), values)


@pytest.mark.parametrize("colours", [False, True])
def test_jpeg_gives_what_pillow_reads_from_the_same_stream(tmp_path, colours):
    values = (COLOURS if colours else GRADIENT // 18).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(values).save(stream, "JPEG", quality=90, subsampling=0)
    kind = "YBR_FULL" if colours else "MONOCHROME2"
    dataset = image(values, PhotometricInterpretation=kind)
    dataset.PixelData = encapsulate([stream.getvalue()])
    dataset["PixelData"].is_undefined_length = True
    path = written(dataset, tmp_path / "a.dcm", uid.JPEGBaseline8Bit)
    expected = np.asarray(Image.open(stream))
    assert np.abs(pixels(open_dicom(path)).astype(int) - expected).max() <= 1


def test_header_alone_is_read_without_the_pixels(tmp_path):
    path = written(image(GRADIENT, PixelSpacing=["0.7", "0.8"]), tmp_path / "a.dcm")
    dataset = open_dicom(path, stop_before_pixels=True)
    assert numbers(dataset, "PixelSpacing", 2) == (0.7, 0.8)
    assert "PixelData" not in dataset
    with pytest.raises(RecordError, match="it holds no pixel data"):
        pixels(dataset)


def test_values_of_the_header(tmp_path):
    dataset = open_dicom(
        written(image(GRADIENT, StudyDescription="  ", Modality="MG "), tmp_path / "a.dcm")
    )
    assert text(dataset, "Modality") == "MG"
    assert text(dataset, "StudyDescription") is None
    assert text(dataset, "Manufacturer") is None
    assert numbers(dataset, "Rows", 1) == (48.0,)
    assert numbers(dataset, "RescaleSlope", 1) is None
    with pytest.raises(RecordError, match=r"Rows is not 2 finite number"):
        numbers(dataset, "Rows", 2)
    with pytest.raises(RecordError, match=r"PatientName cannot be read \(\w+\)\. Fetch it again"):
        numbers(dataset, "PatientName", 1)


@pytest.mark.parametrize(
    ("elements", "reason"),
    [
        ({"PhotometricInterpretation": "HSV"}, "not known; expected one of MONOCHROME1"),
        ({"PhotometricInterpretation": None}, "photometric interpretation is missing"),
        ({"Rows": None}, "Rows is not a positive whole number, or missing"),
        ({"Columns": 0}, "Columns is not a positive whole number"),
        ({"Rows": 60_000, "Columns": 60_000}, "60000 × 60000 pixels, expected at most 100,000,000"),
        ({"Rows": 49}, r"its pixel data cannot be read \(ValueError\)"),
        ({"SamplesPerPixel": 2}, r"2 sample\(s\) of 16 bits are not taken for MONOCHROME2"),
        ({"BitsAllocated": 24}, r"1 sample\(s\) of 24 bits are not taken"),
        ({"PhotometricInterpretation": "PALETTE COLOR"}, "its colour palette cannot be looked up"),
        ({"RescaleSlope": "0"}, "RescaleSlope is 0"),
        ({"ModalityLUTSequence": Sequence([Dataset()])}, "its modality LUT cannot be used"),
        ({"PixelData": bytes(2 * 48 * 60)}, "every pixel is 0; expected an image"),
        ({"NumberOfFrames": "0"}, "NumberOfFrames is not a positive whole number"),
    ],
)
def test_images_that_are_not_taken_say_why(tmp_path, elements, reason):
    path = written(image(GRADIENT, **elements), tmp_path / "a.dcm")
    with pytest.raises(RecordError, match=reason):
        read_dicom(path)


def test_float_values_that_are_not_finite_are_refused(tmp_path):
    values = GRADIENT.astype(np.float32)
    values[3, 4] = np.nan
    dataset = image(values, FloatPixelData=values.tobytes())
    del dataset.PixelData
    with pytest.raises(RecordError, match="values that are not finite"):
        read_dicom(written(dataset, tmp_path / "a.dcm"))


@pytest.mark.parametrize("content", [b"", b"DICM", bytes(132), b"GIF89a" * 100])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "a.dcm").write_bytes(content)
    with pytest.raises(RecordError, match="it cannot be read as a DICOM file") as refusal:
        read_dicom(tmp_path / "a.dcm")
    assert "Fetch it again" not in str(refusal.value)


def test_missing_files_and_folders_are_refused(tmp_path):
    for path in (tmp_path / "none.dcm", tmp_path):
        with pytest.raises(RecordError, match=r"it cannot be read as a DICOM file \(\w+Error\)"):
            open_dicom(path)


def bare(path: Path, *, meta: bool) -> Path:
    """A file without its preamble, and its meta information unless that is kept."""
    content = path.read_bytes()
    start = 132 if meta else 144 + int.from_bytes(content[140:144], "little")
    path.write_bytes(content[start:])
    return path


@pytest.mark.parametrize(
    "syntax",
    [uid.ImplicitVRLittleEndian, uid.ExplicitVRLittleEndian, uid.JPEG2000Lossless,
     uid.DeflatedExplicitVRLittleEndian],
)  # fmt: skip
def test_without_its_preamble_a_file_is_read_as_its_meta_information_says(tmp_path, syntax):
    path = bare(written(image(GRADIENT), tmp_path / "a.dcm", syntax), meta=True)
    assert np.array_equal(pixels(open_dicom(path)), GRADIENT)


@pytest.mark.parametrize("syntax", [uid.ImplicitVRLittleEndian, uid.ExplicitVRLittleEndian])
def test_a_data_set_that_names_its_class_is_read_without_meta_information(tmp_path, syntax):
    path = bare(written(image(GRADIENT, RescaleSlope="2"), tmp_path / "a.dcm", syntax), meta=False)
    assert path.read_bytes().startswith(b"\x08\0\x16\0")
    dataset = open_dicom(path)
    assert np.array_equal(rescaled(pixels(dataset), dataset), GRADIENT * 2.0)
    assert shows(read_dicom(path), GRADIENT)
    assert open_dicom(path, stop_before_pixels=True).Rows == 48


def test_compressed_pixels_without_meta_information_are_refused(tmp_path):
    path = written(image(GRADIENT), tmp_path / "a.dcm", uid.RLELossless)
    with pytest.raises(RecordError, match="compressed, and without a preamble nothing says how"):
        read_dicom(bare(path, meta=False))


def test_a_data_set_without_a_preamble_is_bounded_as_any_file(tmp_path, monkeypatch):
    path = written(image(GRADIENT), tmp_path / "a.dcm", uid.DeflatedExplicitVRLittleEndian)
    bare(path, meta=True)
    monkeypatch.setattr(dicom, "MAX_INFLATED", 1000)
    with pytest.raises(RecordError, match="it inflates to more than 1,000 bytes"):
        read_dicom(path)
    monkeypatch.setattr(dicom, "MAX_BYTES", 100)
    with pytest.raises(RecordError, match="bytes, expected at most 100"):
        read_dicom(path)


@pytest.mark.parametrize("elements", [{"SOPClassUID": None}, {"SOPClassUID": "1.2.3"},
                                      {"SOPClassUID": "1.2.840.10008.1.3.10"}])  # fmt: skip
def test_a_data_set_that_does_not_name_what_it_is_needs_its_preamble(tmp_path, elements):
    dataset = image(GRADIENT, **elements)
    path = written(dataset, tmp_path / "a.dcm", uid.ImplicitVRLittleEndian)
    assert read_dicom(path).shape == GRADIENT.shape
    with pytest.raises(RecordError, match="it has neither a preamble"):
        read_dicom(bare(path, meta=False))


@pytest.mark.parametrize("begin", [b"\x08\0", b"\x02\0", b"\x08\0\x16\0UI", b"\x02\0\0\0UL"])
def test_other_files_that_begin_as_data_sets_do_are_refused(tmp_path, begin):
    rng = np.random.default_rng(len(begin))
    for number in range(50):
        (tmp_path / "a.dcm").write_bytes(begin + rng.bytes(200 + 37 * number))
        with pytest.raises(RecordError, match="it has neither a preamble"):
            open_dicom(tmp_path / "a.dcm")


# Padding around images.


def padded(values: np.ndarray, padding: int) -> np.ndarray:
    values = values.copy()
    values[:, :10] = padding
    return values


@pytest.mark.parametrize(
    ("values", "elements", "is_warned"),
    [
        (padded(GRADIENT, 0), {"PixelPaddingValue": 0}, False),  # next to the smallest value
        (padded(GRADIENT + 20_000, 0), {"PixelPaddingValue": 0}, True),
        (padded(GRADIENT + 20_000, 0), {}, False),
        (padded(GRADIENT, 65_535), {"PixelPaddingValue": 65_535}, True),
        (padded(GRADIENT, 60_003), {"PixelPaddingValue": 65_535}, False),
        (padded(GRADIENT, 60_003),
         {"PixelPaddingValue": 65_535, "PixelPaddingRangeLimit": 60_000}, True),
        (padded(GRADIENT.astype(np.int16), -20_000), {"PixelPaddingValue": -20_000}, True),
        (padded(GRADIENT.astype(np.int16), -20_000), {"PixelPaddingValue": 45_536}, True),
        (GRADIENT, {"PixelPaddingValue": 65_535}, False),  # none of it is there
    ],
)  # fmt: skip
def test_padding_that_most_of_the_range_is_for_is_warned_of(tmp_path, values, elements, is_warned):
    path = tmp_path / "a.dcm"
    dataset = image(values)
    for keyword, value in elements.items():
        dataset.add_new(keyword, "SS" if value < 0 else "US", value)
    warnings = Counter[str]()
    found = read_dicom(written(dataset, path), warnings=warnings)
    assert warnings == (Counter({WARNING: 1}) if is_warned else Counter())
    assert shows(found, values)  # the padding counts as any other value (decision D6)


def test_padding_is_judged_behind_the_modality_lut(tmp_path):
    """The table maps the far padding next to the rest."""
    values = padded((GRADIENT // 60).astype(np.uint8), 255)
    lut = Dataset()
    lut.LUTDescriptor, lut.ModalityLUTType = [256, 0, 16], "US"
    lut.LUTData = np.arange(256).clip(0, 90).astype(np.uint16).tobytes()
    warnings = Counter[str]()
    elements = {"PixelPaddingValue": 255, "ModalityLUTSequence": Sequence([lut])}
    path = written(image(values, **elements), tmp_path / "a.dcm")
    read_dicom(path, warnings=warnings)
    assert not warnings


@pytest.mark.parametrize("name", ["vindr-cxr", "cbis-ddsm"])
def test_padding_is_counted_where_a_dataset_is_read(tmp_path, name):
    values = padded(GRADIENT + 20_000, 0)
    written(image(values, PixelPaddingValue=0), tmp_path / "a.dcm")
    card = dataset_card(name)
    item = RawItem("a.dcm", "a", "p", "test", label=card.classes[0],
                   labels=dict.fromkeys(card.classes, 0))  # fmt: skip
    read = vindr_cxr.read if name == "vindr-cxr" else images.read_dicom_image
    assert read(tmp_path, item, card).warnings == {WARNING: 1}


@pytest.mark.parametrize("syntax", [None, uid.JPEG2000Lossless, uid.DeflatedExplicitVRLittleEndian])
def test_files_cut_off_anywhere_are_refused(tmp_path, syntax):
    path = written(image(GRADIENT), tmp_path / "a.dcm", syntax)
    content = path.read_bytes()
    for kept in np.linspace(0, len(content) - 9, 60).astype(int):
        path.write_bytes(content[:kept])
        with pytest.raises(RecordError):
            read_dicom(path)


@pytest.mark.parametrize(
    ("syntax", "named"),
    [(uid.MPEG2MPML, uid.MPEG2MPML), ("1.2.3.4", "none known"), (PATIENT, "none known")],
)
def test_transfer_syntaxes_that_are_not_decoded_are_named(tmp_path, syntax, named):
    dataset = image(GRADIENT)
    dataset.PixelData = encapsulate([b"x" * 100])
    dataset["PixelData"].is_undefined_length = True
    dataset.file_meta.TransferSyntaxUID = uid.ExplicitVRLittleEndian
    path = written(dataset, tmp_path / "a.dcm")
    old, new = uid.ExplicitVRLittleEndian.encode(), syntax.encode().ljust(20, b"\0")
    content = path.read_bytes()
    start = content.index(old)
    length = struct.pack("<H", len(new))
    path.write_bytes(content[: start - 2] + length + new + content[start + len(old) + 1 :])
    with pytest.raises(RecordError, match=rf"its transfer syntax \({named}\) is not decoded here"):
        read_dicom(path)


def test_compressed_data_of_another_size_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    def never(*_: object) -> None:
        raise AssertionError("it was decoded")

    monkeypatch.setattr(dicom, "decompress", never)
    for syntax, marker, at in (
        (uid.JPEG2000Lossless, b"\xff\x4f\xff\x51", 8),
        (uid.JPEGLSLossless, b"\xff\xf7", 5),
    ):
        path = written(image(GRADIENT), tmp_path / "a.dcm", syntax)
        content = bytearray(path.read_bytes())
        start = content.index(marker) + at
        content[start : start + 2] = b"\x7f\xff"
        path.write_bytes(content)
        with pytest.raises(RecordError, match=r"its compressed data has \d+ × \d+ pixels"):
            read_dicom(path)


EXTENDED = ["JPGExtended", "JPEG-lossy"]
"""Files of pydicom with extended JPEG of 12 bits."""


def extended(name: str) -> tuple[FileDataset, bytes]:
    dataset = pydicom.dcmread(get_testdata_file(f"{name}.dcm", download=False))
    return dataset, get_frame(dataset.PixelData, 0, number_of_frames=1)


@pytest.mark.parametrize("name", EXTENDED)
def test_extended_jpeg_of_12_bits_is_the_inverse_transform_of_its_coefficients(name):
    dataset, stream = extended(name)
    assert dataset.file_meta.TransferSyntaxUID == uid.JPEGExtended12Bit
    found = pixels(open_dicom(Path(get_testdata_file(f"{name}.dcm", download=False))))
    assert (found.dtype, found.shape) == (np.uint16, (1024, 256))
    assert (found[420, 140], found[230, 120]) == (244, 95)  # what pydicom's own tests expect
    assert np.abs(found - slowly_decoded(stream)).max() <= 1  # an integer transform


@pytest.mark.parametrize("name", EXTENDED)
def test_extended_jpeg_that_is_cut_off_is_refused(tmp_path, name):
    dataset, stream = extended(name)
    for kept in range(200, len(stream) - 2, 411):
        dataset.PixelData = encapsulate([stream[:kept]])
        dataset.save_as(tmp_path / "a.dcm")
        with pytest.raises(RecordError, match=r"cannot be decoded \(ValueError\)\. Fetch it again"):
            pixels(open_dicom(tmp_path / "a.dcm"))


@pytest.mark.parametrize(
    "elements",
    [
        {"PixelRepresentation": 1},
        {"SamplesPerPixel": 3, "PhotometricInterpretation": "RGB", "PlanarConfiguration": 0},
    ],
)
def test_extended_jpeg_that_is_not_decoded_is_no_damage(tmp_path, elements):
    dataset, _ = extended("JPGExtended")
    for keyword, value in elements.items():
        setattr(dataset, keyword, value)
    dataset.save_as(tmp_path / "a.dcm")
    with pytest.raises(RecordError, match="only unsigned grey levels are decoded; convert") as why:
        pixels(open_dicom(tmp_path / "a.dcm"))
    assert "Fetch it again" not in str(why.value)


def slowly_decoded(stream: bytes) -> np.ndarray:
    """Grey levels of a sequential JPEG of one component, word by word as ISO/IEC 10918-1 has it."""
    tables, steps, at = {}, np.zeros(64), 2
    while True:
        marker, length = struct.unpack_from(">HH", stream, at)
        part, at = stream[at + 4 : at + 2 + length], at + 2 + length
        if marker == 0xFFC1:
            bits, height, width = struct.unpack_from(">BHH", part)
        elif marker == 0xFFDB:
            steps = np.frombuffer(part[1:65], np.uint8 if part[0] < 16 else ">u2").astype(float)
        elif marker == 0xFFC4:
            while part:
                counts, codes, code, first = part[1:17], {}, 0, 17
                for size, count in enumerate(counts, 1):
                    for _ in range(count):
                        codes[size, code] = part[first]
                        code, first = code + 1, first + 1
                    code *= 2
                tables[part[0]], part = codes, part[first:]
        elif marker == 0xFFDA:
            chosen = part[2]
            break
    data = stream[at : stream.rindex(b"\xff\xd9")].replace(b"\xff\0", b"\xff")
    left = iter("".join(f"{byte:08b}" for byte in data))

    def number(count: int) -> int:
        return int("".join(next(left) for _ in range(count)) or "0", 2)

    def symbol(codes: dict) -> int:
        size, code = 0, 0
        while (size, code) not in codes:
            size, code = size + 1, 2 * code + number(1)
        return codes[size, code]

    def signed(count: int) -> int:
        value = number(count)
        return value if not count or value >> (count - 1) else value - 2**count + 1

    order = sorted(np.ndindex(8, 8), key=lambda p: (sum(p), p[0] if sum(p) % 2 else p[1]))
    row = np.arange(8)
    basis = np.cos((2 * row + 1) * row[:, None] * np.pi / 16) / 2
    basis[0] /= np.sqrt(2)
    image, last = np.zeros((height, width)), 0
    for top in range(0, height, 8):
        for left_edge in range(0, width, 8):
            block, place = np.zeros((8, 8)), 1
            last += signed(symbol(tables[chosen >> 4]))
            block[0, 0] = last * steps[0]
            while place < 64 and (code := symbol(tables[0x10 | chosen & 15])):
                place += code >> 4
                if code & 15:
                    block[order[place]] = signed(code & 15) * steps[place]
                place += 1
            image[top : top + 8, left_edge : left_edge + 8] = basis.T @ block @ basis
    return np.rint(image + 2 ** (bits - 1)).clip(0, 2**bits - 1)


def test_frame_size_of_each_kind_of_stream(tmp_path):
    stream = io.BytesIO()
    Image.fromarray(COLOURS.astype(np.uint8)).save(stream, "JPEG", comment=b"x" * 300)
    assert codec.frame_size(stream.getvalue()) == (60, 48)
    for syntax in (uid.JPEG2000Lossless, uid.JPEGLSLossless):
        dataset = open_dicom(written(image(GRADIENT), tmp_path / "a.dcm", syntax))
        assert codec.frame_size(get_frame(dataset.PixelData, 0, number_of_frames=1)) == (60, 48)
    for nothing in (b"", b"\xff\xd8", b"\xff\xd8\xff\xe0\0\0" * 5, b"\xff\x4f\xff\x51\0", b"abc"):
        with pytest.raises(codec.CodecError, match="does not say its size"):
            codec.frame_size(nothing)


def test_deflated_file_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(dicom, "MAX_BYTES", 100_000)
    monkeypatch.setattr(dicom, "MAX_INFLATED", 100_000)
    path = written(image(GRADIENT), tmp_path / "a.dcm", uid.DeflatedExplicitVRLittleEndian)
    assert read_dicom(path).shape == (48, 60)
    packer = zlib.compressobj(wbits=-15)
    content = path.read_bytes()
    meta = 144 + int.from_bytes(content[140:144], "little")
    path.write_bytes(content[:meta] + packer.compress(bytes(10**7)) + packer.flush())
    assert path.stat().st_size < 100_000
    with pytest.raises(RecordError, match="it inflates to more than 100,000 bytes"):
        read_dicom(path)
    path.write_bytes(bytes(100_001))
    with pytest.raises(RecordError, match="the file has 100,001 bytes, expected at most 100,000"):
        read_dicom(path)


def test_a_header_of_a_million_elements_is_refused_while_it_is_read(tmp_path, monkeypatch):
    dataset = image(GRADIENT)
    for number in range(2000):
        dataset.add_new(0x00091000 + number, "LO", "x")
    path = written(dataset, tmp_path / "a.dcm")
    assert shows(read_dicom(path), GRADIENT)
    monkeypatch.setattr(dicom, "MAX_READS", 2000)
    with pytest.raises(RecordError, match="more parts than any such file"):
        read_dicom(path)


@pytest.mark.parametrize("keyword", ["RescaleSlope", "PhotometricInterpretation"])
def test_a_value_that_would_become_many_objects_is_refused(tmp_path, keyword):
    dataset = image(GRADIENT)
    setattr(dataset, keyword, ["1"] * 2**16)
    path = written(dataset, tmp_path / "a.dcm", uid.ImplicitVRLittleEndian)
    with pytest.raises(RecordError, match=f"{keyword} has 131,072 bytes"):
        read_dicom(path)


def test_length_that_claims_more_than_the_file_sets_no_memory_aside(tmp_path):
    path = written(image(GRADIENT), tmp_path / "a.dcm")
    content = bytearray(path.read_bytes())
    at = content.index(b"\xe0\x7f\x10\x00OW\0\0") + 8
    content[at : at + 4] = struct.pack("<I", 0xFFFFFFF0)
    path.write_bytes(content)
    tracemalloc.start()
    try:
        assert shows(read_dicom(path), GRADIENT)
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()


def outcome(path: Path) -> str | None:
    """Why a file is not read, with what stands behind; None where it is."""
    try:
        grey = read_dicom(path, frame=0)
    except RecordError as error:
        return f"{error} {error.__cause__ or ''}"
    assert (grey.dtype, grey.ndim) == (np.uint8, 2)
    return None


def test_nothing_of_the_patient_is_in_a_reason(tmp_path):
    path = written(image(GRADIENT, RescaleSlope="1.00"), tmp_path / "a.dcm")
    content = path.read_bytes()
    name = PATIENT.encode()
    for element in (b"\x28\x00\x10\x00US", b"\x28\x00\x04\x00CS", b"\x28\x00\x53\x10DS"):
        start = content.index(element)
        for form in (b"PN", b"IS", b"DS", b"US", b"??"):
            value = element[:4] + form + struct.pack("<H", 16) + name.ljust(16)[:16]
            path.write_bytes(content[:start] + value + content[start:])
            assert "Secret" not in (outcome(path) or "")
            path.write_bytes(content[:start] + value)
            assert "Secret" not in outcome(path)


def test_nothing_is_printed_logged_or_warned_of(tmp_path, recwarn, caplog, capfd):
    dataset = image(GRADIENT, PixelSpacing=["0.7", "0.8"])
    path = written(dataset, tmp_path / "a.dcm")
    content = path.read_bytes()
    start = content.index(b"0.7\\0.8 ")
    # a number with blanks within, and more pixel data than there should be
    damaged = bytearray(content[:start] + b"0.\x007\\.8 " + content[start + 8 :] + bytes(40))
    at = damaged.index(b"\xe0\x7f\x10\x00OW\0\0") + 8
    damaged[at : at + 4] = struct.pack("<I", 2 * 48 * 60 + 40)
    path.write_bytes(damaged)
    assert shows(read_dicom(path), GRADIENT)
    with pytest.raises(RecordError, match=r"PixelSpacing cannot be read"):
        numbers(open_dicom(path), "PixelSpacing", 2)
    assert not recwarn.list
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


def mutated(content: bytes, seed: int) -> bytes:
    """A file with some bytes changed: in the header, at the start of the pixels or anywhere."""
    rng = random.Random(seed)
    damaged = bytearray(content)
    start = max(content.rfind(b"\xe0\x7f\x10\x00"), 132)
    low, high = [(0, start + 12), (start + 12, start + 300), (start + 12, len(content))][seed % 3]
    for _ in range(rng.choice([1, 2, 5, 20])):
        damaged[rng.randrange(low, min(high, len(content)))] = rng.randrange(256)
    return bytes(damaged)


def outcomes(content: bytes, path: Path, seeds: range) -> set[str]:
    """What becomes of mutations: an image, or a reason without the patient's name."""
    found = set()
    for seed in seeds:
        path.write_bytes(mutated(content, seed))
        reason = outcome(path)
        assert "Secret" not in (reason or "")
        found.add("reason" if reason else "image")
    return found


@pytest.mark.parametrize(
    "syntax",
    [
        None,
        uid.DeflatedExplicitVRLittleEndian,
        uid.JPEG2000Lossless,
        uid.JPEGLSLossless,
        uid.RLELossless,
    ],
)
def test_damaged_files_give_an_image_or_a_reason(tmp_path, syntax):
    path = written(image(GRADIENT), tmp_path / "a.dcm", syntax)
    assert outcomes(path.read_bytes(), path, range(90)) == {"image", "reason"}


# What becomes of each file of the folder dicom-odd: the shape of its (first) frame, the number of
# its frames where there are several, or the reason why it is not read.
ODD: dict[str, tuple[int, ...] | str] = {
    "693_J2KR": (512, 512),
    "693_UNCR": (512, 512),
    "HTJ2KLossless_08_RGB": (480, 640, 3),
    "HTJ2K_08_RGB": (480, 640, 3),
    "JLSL_08_07_0_1F": (128, 128),
    "JLSL_16_15_1_1F": (128, 128),
    "JPEG-LL": (1024, 256),
    "JPEG2000_UNC": (1024, 256),
    "JPGLosslessP14SV1_1s_1f_8b": (768, 1024),
    "MR-SIEMENS-DICOM-WithOverlays": (484, 484),
    "MR2_J2KR": (1024, 1024),
    "MR2_UNCR": (1024, 1024),
    "OBXXXX1A": (600, 800),
    "OBXXXX1A_2frame": (600, 800),
    "OBXXXX1A_expb": (600, 800),
    "OBXXXX1A_expb_2frame": (600, 800),
    "OBXXXX1A_rle": (600, 800),
    "OBXXXX1A_rle_2frame": (600, 800),
    "RG1_J2KI": (1955, 1841),
    "RG3_J2KI": (1760, 1760),
    "RG3_J2KR": (1760, 1760),
    "SC_rgb": (100, 100, 3),
    "SC_rgb_16bit": (100, 100, 3),
    "SC_rgb_16bit_2frame": (100, 100, 3),
    "SC_rgb_2frame": (100, 100, 3),
    "SC_rgb_32bit": (100, 100, 3),
    "SC_rgb_32bit_2frame": (100, 100, 3),
    "SC_rgb_dcmtk_ebcr_dcmd": (100, 100, 3),
    "SC_rgb_dcmtk_ebcyn1_dcmd": (100, 100, 3),
    "SC_rgb_dcmtk_ebcyn2_dcmd": (100, 100, 3),
    "SC_rgb_dcmtk_ebcynp_dcmd": (100, 100, 3),
    "SC_rgb_dcmtk_ebcys2_dcmd": (100, 100, 3),
    "SC_rgb_dcmtk_ebcys4_dcmd": (100, 100, 3),
    "SC_rgb_expb": (100, 100, 3),
    "SC_rgb_expb_16bit": (100, 100, 3),
    "SC_rgb_expb_16bit_2frame": (100, 100, 3),
    "SC_rgb_expb_2frame": (100, 100, 3),
    "SC_rgb_expb_32bit": (100, 100, 3),
    "SC_rgb_expb_32bit_2frame": (100, 100, 3),
    "SC_rgb_gdcm2k_uncompressed": (100, 100, 3),
    "SC_ybr_full_uncompressed": (100, 100, 3),
    "US1_J2KR": (480, 640, 3),
    "US1_UNCR": (480, 640, 3),
    "bad_sequence": (512, 512),
    "color-pl": (120, 256, 3),
    "color-px": (120, 256, 3),
    "eCT_Supplemental": (512, 512),
    "emri_small": (64, 64),
    "emri_small_RLE": (64, 64),
    "emri_small_big_endian": (64, 64),
    "emri_small_jpeg_2k_lossless": (64, 64),
    "emri_small_jpeg_2k_lossless_too_short": "it holds no pixel data: it is not an image, or",
    "emri_small_jpeg_ls_lossless": (64, 64),
    "explicit_VR-UN": (512, 512),
    "gdcm-US-ALOKA-16": (480, 640),
    "gdcm-US-ALOKA-16_big": (480, 640),
    "liver": (512, 512),
    "liver_deflate": r"its transfer syntax \(1\.2\.840\.10008\.1\.2\.8\.1\) is not decoded here",
    "liver_expb": (512, 512),
    "liver_j2k": (512, 512),
    "liver_nonbyte_aligned": (510, 510),
    "liver_nonbyte_aligned_deflate": r"its transfer syntax \(1\.2\.840\.10008\.1\.2\.8\.1\)",
    "liver_nonbyte_aligned_j2k": (510, 510),
    "liver_nonbyte_aligned_rle": r"its compressed data cannot be decoded \(RuntimeError\)",
    "liver_rle": r"its compressed data cannot be decoded \(RuntimeError\)",
    "mlut_18": (512, 512),
    "parametric_map_double_float": (128, 128),
    "parametric_map_float": (128, 128),
    "vlut_04": (512, 512),
}
FRAMES = {
    **dict.fromkeys([name for name in ODD if "2frame" in name] + ["eCT_Supplemental"], 2),
    **{name: 3 for name in ODD if name.startswith("liver")},
    **{name: 10 for name in ODD if name.startswith("emri") and "short" not in name},
}


@pytest.fixture(scope="session")
def odd(real_data) -> Path:
    return real_data / "dicom-odd"


@pytest.mark.data
def test_every_odd_file_is_listed(odd):
    assert {path.stem for path in odd.glob("*.dcm")} == set(ODD)
    assert len(ODD) == 69


@pytest.mark.data
@pytest.mark.parametrize("name", ODD)
def test_odd_file_gives_its_image_or_a_reason(odd, name, recwarn, caplog, capfd):
    path, expected = odd / f"{name}.dcm", ODD[name]
    if name in FRAMES:
        with pytest.raises(RecordError, match=f"the image has {FRAMES[name]} frames"):
            read_dicom(path)
    frame = 0 if name in FRAMES else None
    if isinstance(expected, str):
        with pytest.raises(RecordError, match=expected) as refusal:
            read_dicom(path, frame=frame)
        ends = (". Fetch it again.", "Explicit VR Little Endian", "or it is cut off", "64 bits")
        assert str(refusal.value).endswith(ends)
        assert "^" not in str(refusal.value)
    else:
        dataset = open_dicom(path)
        assert pixels(dataset, frame=frame).shape == expected
        for channels, shape in ((1, expected[:2]), (3, (*expected[:2], 3))):
            found = read_dicom(path, channels, frame=frame)
            assert (found.dtype, found.shape) == (np.uint8, shape)
            if text(dataset, "PhotometricInterpretation").startswith("MONOCHROME"):
                assert (found.min(), found.max()) == (0, 255)
    assert not recwarn.list
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


NATIVE = [
    "693_UNCR", "JPEG2000_UNC", "MR-SIEMENS-DICOM-WithOverlays", "MR2_UNCR", "OBXXXX1A",
    "OBXXXX1A_2frame", "SC_rgb", "SC_rgb_16bit", "SC_rgb_32bit_2frame", "SC_rgb_expb_16bit",
    "SC_rgb_expb_32bit", "US1_UNCR", "eCT_Supplemental", "emri_small", "emri_small_big_endian",
    "gdcm-US-ALOKA-16_big", "vlut_04", "mlut_18", "parametric_map_float",
]  # fmt: skip
"""Uncompressed files, whose samples can be taken from the bytes of the file itself."""


@pytest.mark.data
@pytest.mark.parametrize("name", NATIVE)
def test_uncompressed_samples_are_the_bytes_of_the_file(odd, name):
    path = odd / f"{name}.dcm"
    content, dataset = path.read_bytes(), pydicom.dcmread(path, stop_before_pixels=True)
    kind = "f" if "float" in name else "ui"[dataset.get("PixelRepresentation", 0)]
    order = "<" if dataset.original_encoding[1] else ">"
    last = FRAMES.get(name, 1) - 1
    shape = (last + 1, *ODD[name])
    tag = {"f": b"\xe0\x7f\x08\x00"}.get(kind, b"\xe0\x7f\x10\x00")
    if order == ">":
        tag = tag[1::-1] + tag[3:1:-1]
    dtype = np.dtype(f"{order}{kind}{dataset.BitsAllocated // 8}")
    start = content.rindex(tag) + (8 if dataset.original_encoding[0] else 12)
    samples = np.frombuffer(content, dtype, np.prod(shape), start).reshape(shape)
    bits = dataset.get("BitsStored") or dataset.BitsAllocated
    if kind == "i":  # the bits above may hold an overlay
        samples = (samples.astype(int) << (64 - bits)) >> (64 - bits)
    assert np.array_equal(pixels(open_dicom(path), frame=last), samples[last])


TWINS = [
    ("693_J2KR", "693_UNCR", 0), ("MR2_J2KR", "MR2_UNCR", 0), ("US1_J2KR", "US1_UNCR", 0),
    ("OBXXXX1A", "OBXXXX1A_expb", 0), ("OBXXXX1A", "OBXXXX1A_rle", 0),
    ("OBXXXX1A", "OBXXXX1A_2frame", 0), ("OBXXXX1A_2frame", "OBXXXX1A_rle_2frame", 0),
    ("OBXXXX1A_2frame", "OBXXXX1A_expb_2frame", 0),
    ("gdcm-US-ALOKA-16", "gdcm-US-ALOKA-16_big", 0),
    ("emri_small", "emri_small_RLE", 0), ("emri_small", "emri_small_big_endian", 0),
    ("emri_small", "emri_small_jpeg_2k_lossless", 0),
    ("emri_small", "emri_small_jpeg_ls_lossless", 0),
    ("liver", "liver_expb", 0), ("liver", "liver_j2k", 0),
    ("liver_nonbyte_aligned", "liver_nonbyte_aligned_j2k", 0),
    ("SC_rgb", "SC_rgb_16bit", 0), ("SC_rgb", "SC_rgb_32bit", 0), ("SC_rgb", "SC_rgb_expb", 0),
    ("SC_rgb", "SC_rgb_expb_16bit", 0), ("SC_rgb", "SC_rgb_expb_32bit", 0),
    ("SC_rgb_2frame", "SC_rgb_16bit_2frame", 0), ("SC_rgb_2frame", "SC_rgb_32bit_2frame", 0),
    ("SC_rgb_2frame", "SC_rgb_expb_2frame", 0), ("SC_rgb_2frame", "SC_rgb_expb_16bit_2frame", 0),
    ("SC_rgb_2frame", "SC_rgb_expb_32bit_2frame", 0), ("SC_rgb", "SC_rgb_gdcm2k_uncompressed", 0),
    ("color-pl", "color-px", 0), ("parametric_map_float", "parametric_map_double_float", 0),
    # lossy on one side, or through YBR
    ("SC_rgb", "SC_ybr_full_uncompressed", 6), ("SC_rgb", "SC_rgb_dcmtk_ebcr_dcmd", 2),
    ("SC_rgb", "SC_rgb_dcmtk_ebcys4_dcmd", 6), ("SC_rgb_dcmtk_ebcyn1_dcmd",
    "SC_rgb_dcmtk_ebcyn2_dcmd", 80), ("RG3_J2KI", "RG3_J2KR", 2),
    ("HTJ2K_08_RGB", "HTJ2KLossless_08_RGB", 4),
]  # fmt: skip
"""Two files of one image, and how much their grey levels may differ."""


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize(("first", "second", "most"), TWINS)
def test_two_files_of_one_image_are_equal(odd, first, second, most):
    for frame in range(min(FRAMES.get(first, 1), FRAMES.get(second, 1))):
        a, b = (
            read_dicom(odd / f"{name}.dcm", 3, frame=frame if name in FRAMES else None).astype(int)
            for name in (first, second)
        )
        assert np.abs(a - b).max() <= most


@pytest.mark.data
def test_modality_lut_of_a_real_file_by_hand(odd):
    dataset = open_dicom(odd / "mlut_18.dcm")
    (table,) = dataset.ModalityLUTSequence
    entries, first, _ = table.LUTDescriptor
    values = np.clip(pixels(dataset).astype(int) - first, 0, (entries or 65536) - 1)
    lut = np.array(table.LUTData)
    assert np.array_equal(rescaled(pixels(dataset), dataset), lut[values])
    assert shows(read_dicom(odd / "mlut_18.dcm"), lut[values])


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "slope", "intercept"),
    [("693_UNCR", 1, -1024), ("bad_sequence", 1, -1024), ("MR2_UNCR", 3.774114, 0.000061)],
)
def test_rescale_of_a_real_file_by_hand(odd, name, slope, intercept):
    dataset = open_dicom(odd / f"{name}.dcm")
    stored = pixels(dataset)
    assert np.array_equal(rescaled(stored, dataset), stored * float(slope) + intercept)


@pytest.mark.data
@pytest.mark.parametrize("name", ["RG1_J2KI", "RG3_J2KR"])
def test_real_monochrome1_is_inverted(odd, name):
    stored = pixels(open_dicom(odd / f"{name}.dcm")).astype(float)
    grey = read_dicom(odd / f"{name}.dcm")
    assert grey[np.unravel_index(stored.argmax(), stored.shape)] == 0
    assert grey[np.unravel_index(stored.argmin(), stored.shape)] == 255
    assert shows(grey, stored, inverted=True)


@pytest.mark.data
@pytest.mark.parametrize("name", ["JPEG-LL", "JPGLosslessP14SV1_1s_1f_8b", "bad_sequence"])
def test_lossless_jpeg_is_what_simpleitk_reads(odd, name):
    import SimpleITK as sitk

    stored = pixels(open_dicom(odd / f"{name}.dcm"))
    other = sitk.GetArrayFromImage(sitk.ReadImage(odd / f"{name}.dcm")).squeeze()
    dataset = open_dicom(odd / f"{name}.dcm")
    assert np.array_equal(rescaled(stored, dataset), other)


@pytest.mark.data
@pytest.mark.parametrize(
    "name", ["bad_sequence", "JPEG-LL", "HTJ2KLossless_08_RGB", "JLSL_16_15_1_1F"]
)
def test_damaged_real_files_give_an_image_or_a_reason(odd, tmp_path, name):
    content = (odd / f"{name}.dcm").read_bytes()
    assert outcomes(content, tmp_path / "a.dcm", range(60)) == {"image", "reason"}
