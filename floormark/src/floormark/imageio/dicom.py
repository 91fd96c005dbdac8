"""DICOM files, by pydicom: stored values, padding, display window, and a derived instance as the standard asks for."""

import datetime
import hashlib
import io
import math
import re
import uuid
import warnings
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from pydicom import DataElement, Dataset, FileDataset, dcmread, uid
from pydicom.encaps import encapsulate, encapsulate_buffer, generate_frames
from pydicom.filereader import read_dataset, read_preamble
from pydicom.filewriter import correct_ambiguous_vr
from pydicom.pixels.processing import apply_color_lut
from pydicom.pixels.utils import get_expected_length, pixel_array

from floormark.errors import DataError
from floormark.imageio import streams
from floormark.imageio.stored import Format, ImageFile, Pixels, StoredImage, Window, check_size, one_line

DESCRIPTION = "Invisible watermark embedded by floormark"
MAX_INFLATED, MAX_RATIO = 1 << 26, 20
"""Bytes to which any deflated file may inflate; beyond them, the largest ratio to the file's own size."""
DEFERRED_BYTES = 1 << 16  # values from this size on are read only when needed
INFLATED_AT_ONCE = 1 << 20  # bytes that are inflated at once
LOSSY_SYNTAXES = (uid.JPEGBaseline8Bit, uid.JPEGExtended12Bit, uid.JPEGLSNearLossless, uid.JPEG2000, uid.HTJ2K)
"""The last two may have been lossless: the file does not say."""
MAX_FRAMES_BYTES = 1 << 28
"""Of the pixels of all frames: 512 slices of 512 x 512 with 16 bits. Of these, one frame at a time is decoded."""
PALETTE = "PALETTE COLOR"
COLOUR = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")
UNITS = frozenset({"HU", "HU_MOD", "OD", "MGML", "PCT", "ED", "EDW", "Z_EFF"})
"""Values of RescaleType that the standard defines; anything else there is free text."""
HEAD_PARTS = frozenset({"HEAD", "BRAIN", "SKULL", "HEADNECK"})
BRAIN_WINDOW, SOFT_TISSUE_WINDOW = (40.0, 80.0), (40.0, 400.0)
"""Centre and width in HU that are assumed for a CT image without a window: the narrow presets of viewers."""
PALETTE_ATTRIBUTES = re.compile(
    r"(Segmented)?(Red|Green|Blue|Alpha)PaletteColorLookupTable\w+|PaletteColorLookupTableUID"
)
MARKED_SERIES, MAX_SERIES_DESCRIPTION = " watermarked", 64  # characters that the attribute's type takes
MAX_ENTRIES = 1 << 16
SIGNATURES, OFFSET_TABLES, PIXEL_DATA = (0xFFFAFFFA, 0x4FFE0001), (0x7FE00001, 0x7FE00002), 0x7FE00010


def _code(value: str, meaning: str) -> list[Dataset]:
    """The content of a code sequence: one code of the standard's own (PS3.16, annex D)."""
    code = Dataset()
    code.CodeValue, code.CodingSchemeDesignator, code.CodeMeaning = value, "DCM", meaning
    return [code]


def _derive(dataset: FileDataset, marked: str, *, lossy: bool, keep_series: bool) -> None:
    """Make the dataset a derived instance with a UID of its own that names its source and this tool.

    The UID is derived from the source's and from ``marked``, a hash of the pixels. So marking an image again, as after
    a kill, makes the same instance, and another message makes another one.

    PS3.3, C.7.6.1 (general image), C.12.1 (SOP common) and C.7.3.1 (general series); in an enhanced one, C.7.6.16.2.6
    (derivation image).
    """
    now = datetime.datetime.now()
    source = Dataset()
    source.ReferencedSOPClassUID = dataset.SOPClassUID
    source.ReferencedSOPInstanceUID = dataset.SOPInstanceUID
    source.PurposeOfReferenceCodeSequence = _code("121322", "Source image for image processing operation")
    added = _code("113042", "Pixel by pixel addition")
    if "Enhanced" in uid.UID(dataset.SOPClassUID).name or "SharedFunctionalGroupsSequence" in dataset:
        _derive_frames(dataset, source, added)
    else:
        dataset.SourceImageSequence = [*(dataset.get("SourceImageSequence") or ()), source]
        dataset.DerivationCodeSequence = [*(dataset.get("DerivationCodeSequence") or ()), *added]
        before = dataset.get("DerivationDescription")
        dataset.DerivationDescription = f"{before}; {DESCRIPTION}"[:1024] if before else DESCRIPTION
    kind = dataset.get("ImageType") or []
    kind = [kind] if isinstance(kind, str) else list(kind)
    dataset.ImageType = ["DERIVED", *(kind[1:] or ["SECONDARY"])]
    tool = Dataset()
    tool.PurposeOfReferenceCodeSequence = _code("109103", "Modifying Equipment")
    tool.Manufacturer = tool.ManufacturerModelName = "floormark"
    tool.SoftwareVersions, tool.ContributionDescription = version("floormark"), DESCRIPTION
    tool.ContributionDateTime = now.strftime("%Y%m%d%H%M%S")
    dataset.ContributingEquipmentSequence = [*(dataset.get("ContributingEquipmentSequence") or ()), tool]
    if lossy:
        dataset.LossyImageCompression = "01"
    for tag in SIGNATURES:  # of other pixels
        dataset.pop(tag, None)
    series = dataset.get("SeriesInstanceUID")
    if series and not keep_series:
        # By the source's UID alone: all processes, and a run that is resumed, find the same one.
        dataset.SeriesInstanceUID = _derived_uid(series)
        described = str(dataset.get("SeriesDescription") or "")[: MAX_SERIES_DESCRIPTION - len(MARKED_SERIES)]
        dataset.SeriesDescription = (described + MARKED_SERIES).strip()
    dataset.InstanceCreationDate, dataset.InstanceCreationTime = now.strftime("%Y%m%d"), now.strftime("%H%M%S")
    made = _derived_uid(f"{dataset.SOPInstanceUID} {marked}")
    dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID = made


def _derived_uid(text: str) -> uid.UID:
    """A UID that follows from a text (PS3.5, B.2)."""
    return uid.UID(f"2.25.{uuid.uuid5(uuid.NAMESPACE_OID, f'floormark {text}').int}")


def _derive_frames(dataset: FileDataset, source: Dataset, added: list[Dataset]) -> None:
    """Say in the functional groups of an enhanced image how its frames were derived."""
    shared, frames = (dataset.get(f"{which}FunctionalGroupsSequence") or () for which in ("Shared", "PerFrame"))
    apart = any("DerivationImageSequence" in frame for frame in frames)  # a macro is in one of the two
    for group in frames if apart else shared:
        derived = Dataset()
        derived.DerivationDescription, derived.DerivationCodeSequence = DESCRIPTION, added
        derived.SourceImageSequence = [source]
        group.DerivationImageSequence = [*(group.get("DerivationImageSequence") or ()), derived]
    for macro in (element for group in (*shared, *frames) for element in group if element.VR == "SQ"):
        for item in macro.value if macro.keyword.endswith("FrameTypeSequence") else ():
            item.FrameType = ["DERIVED", *list(item.get("FrameType") or ())[1:]]
    if shared or frames:
        named, series, study = Dataset(), Dataset(), Dataset()
        named.ReferencedSOPClassUID, named.ReferencedSOPInstanceUID = dataset.SOPClassUID, dataset.SOPInstanceUID
        series.SeriesInstanceUID, series.ReferencedSOPSequence = dataset.get("SeriesInstanceUID"), [named]
        study.StudyInstanceUID, study.ReferencedSeriesSequence = dataset.get("StudyInstanceUID"), [series]
        dataset.SourceImageEvidenceSequence = [*(dataset.get("SourceImageEvidenceSequence") or ()), study]


def encode(image: ImageFile, frames: Iterable[Pixels], file: BinaryIO) -> None:
    """Write the file that ``image`` was read from with other pixels, as a derived instance."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of values that were invalid before and are kept
        dataset = dcmread(io.BytesIO(image.kept), defer_size=DEFERRED_BYTES)
        del dataset[PIXEL_DATA]
        if any(dataset.get_item(tag).VR is None for tag in dataset.keys()):  # noqa: SIM118 - raw, not decoded
            list(dataset.iterall())  # implicit VR, maybe in a file that claims otherwise: look all types up
            correct_ambiguous_vr(dataset, True)
    encoder = streams.ENCODERS.get(dataset.file_meta.TransferSyntaxUID)
    least, most = image.lowest + image.peak, image.lowest
    marked = hashlib.sha256()
    plain, encoded = io.BytesIO(), list[io.BufferedIOBase]()  # written from there, not copied: all frames may be much
    for pixels in frames:
        least, most = min(least, int(pixels.min())), max(most, int(pixels.max()))
        marked.update(np.ascontiguousarray(pixels).data)
        if encoder is None:
            plain.write(np.ascontiguousarray(pixels, pixels.dtype.newbyteorder("<")).data)
        else:
            encoded.append(io.BytesIO(encoder(pixels, image.bits)))
    plain.write(bytes(plain.tell() % 2))
    plain.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _derive(dataset, marked.hexdigest(), lossy=image.lossy, keep_series=image.keep_series)
        for tag in OFFSET_TABLES:
            dataset.pop(tag, None)
        if image.had_palette:
            _drop_palette(dataset)
        if image.pixels.ndim == 3:
            colours = streams.PHOTOMETRIC.get(dataset.file_meta.TransferSyntaxUID, "RGB")
            dataset.PhotometricInterpretation = colours
            dataset.PlanarConfiguration = 0
        for name, value in (("SmallestImagePixelValue", least), ("LargestImagePixelValue", most)):
            if name in dataset:
                dataset[name].value = value
        if encoded:
            dataset[PIXEL_DATA] = DataElement(PIXEL_DATA, "OB", encapsulate_buffer(encoded))
            dataset[PIXEL_DATA].is_undefined_length = True
        else:
            dataset[PIXEL_DATA] = DataElement(PIXEL_DATA, "OB" if image.pixels.itemsize == 1 else "OW", plain)
            if dataset.file_meta.TransferSyntaxUID.is_encapsulated:
                dataset.file_meta.TransferSyntaxUID = uid.ExplicitVRLittleEndian
        dataset.save_as(file, enforce_file_format=True)


def _drop_palette(dataset: FileDataset) -> None:
    """Describe colours of 8 bits instead of the indices of a palette."""
    for name in [name for name in dataset.dir("Palette") if PALETTE_ATTRIBUTES.fullmatch(name)]:
        delattr(dataset, name)
    for name in ("SmallestImagePixelValue", "LargestImagePixelValue", "WindowCenter", "WindowWidth"):
        dataset.pop(name, None)
    dataset.SamplesPerPixel, dataset.PixelRepresentation = 3, 0
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 8, 8, 7


def read(kind: Format, path: Path, content: bytes) -> ImageFile:
    """Decode the first frame of a file of the format ``kind``."""
    return next(frames(kind, path, content))


def frames(kind: Format, path: Path, content: bytes) -> Iterator[ImageFile]:
    """Decode the frames of a file of the format ``kind`` one by one."""
    with _decoding():
        _check_inflated(content)
        dataset = dcmread(io.BytesIO(content), defer_size=DEFERRED_BYTES)
        _refuse(dataset)
        count = int(dataset.get("NumberOfFrames") or 1)
        each = dataset.get("SamplesPerPixel", 1) * dataset.BitsAllocated // 8
        check_size(dataset.Columns, dataset.Rows, each, content)
        if count > 1 and count * dataset.Columns * dataset.Rows * each > MAX_FRAMES_BYTES:
            raise DataError(
                f"expected at most {MAX_FRAMES_BYTES >> 20} MB of pixels, got {count} frames: split the file"
            )
        encoded = _encoded_frames(dataset, content, count)
    for number in range(count):
        with _decoding():
            if (frame := next(encoded, None)) is None:
                raise DataError(f"expected {count} frames, got {number}: the file is torn")
            dataset.NumberOfFrames, dataset[PIXEL_DATA] = 1, DataElement(PIXEL_DATA, "OB", frame)
            image = _image(kind, path, content, dataset, number)
            if number == count - 1 and next(encoded, None) is not None:
                raise DataError(f"expected NumberOfFrames to be how many there are, got {count} and more frames")
        yield replace(image, frame_count=count)


@contextmanager
def _decoding() -> Iterator[None]:
    """Turn errors of a file into one line, without pydicom's messages about values: they may name a patient."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except DataError:
            raise
        except Exception as error:  # pydicom raises errors of any kind for a torn file
            raise DataError(f"torn or not a valid DICOM file ({type(error).__name__})") from error


def _encoded_frames(dataset: FileDataset, content: bytes, count: int) -> Iterator[bytes]:
    """The pixel data of each frame, encoded as those of a file that has no other."""
    raw: Any = dataset.get_item(PIXEL_DATA, keep_deferred=True)
    syntax = dataset.file_meta.TransferSyntaxUID
    start, end = raw.value_tell, raw.value_tell + raw.length
    if raw.value is not None or syntax == uid.DeflatedExplicitVRLittleEndian:
        content, start, end = dataset.PixelData, 0, len(dataset.PixelData)
    if syntax.is_encapsulated:
        file = io.BytesIO(content)  # which shares the memory
        file.seek(start)
        tables = [dataset.get(tag) for tag in OFFSET_TABLES]
        offsets = None if count == 1 or None in tables else tuple(table.value for table in tables)
        for frame in generate_frames(file, number_of_frames=count, extended_offsets=offsets):
            yield encapsulate([frame])
    elif count == 1:
        yield content[start:end]
    else:
        dataset.NumberOfFrames = 1
        size = get_expected_length(dataset)
        yield from (content[place : place + size] for place in range(start, end - size + 1, size))


def _check_inflated(content: bytes) -> None:
    """Refuse a decompression bomb, which pydicom would inflate at once."""
    if uid.DeflatedExplicitVRLittleEndian.encode() not in content:
        return  # then pydicom inflates nothing, however it reads the header
    file = io.BytesIO(content)
    read_preamble(file, force=False)
    header = read_dataset(file, False, True, stop_when=lambda tag, vr, length: tag >> 16 != 2)
    list(header)  # where a type makes no sense, pydicom would read the header otherwise: that is refused
    if header.get("TransferSyntaxUID") != uid.DeflatedExplicitVRLittleEndian:
        return
    inflate, left, most = zlib.decompressobj(-zlib.MAX_WBITS), file.read(), max(MAX_INFLATED, MAX_RATIO * len(content))
    size = 0
    while left and not inflate.eof:
        size += len(inflate.decompress(left, INFLATED_AT_ONCE))
        left = inflate.unconsumed_tail
        if size > most:
            raise DataError(f"expected a deflated file of at most {most >> 20} MB when inflated, got more")


def _refuse(dataset: FileDataset) -> None:
    """Refuse what cannot be marked."""
    if "PixelData" not in dataset:
        raise DataError("expected a DICOM image, got one without pixel data")
    for name in ("SOPClassUID", "SOPInstanceUID", "Rows", "Columns", "BitsAllocated", "BitsStored", "HighBit"):
        if dataset.get(name) in (None, ""):
            raise DataError(f"expected a DICOM image with {name}, got none")
    frames, samples = int(dataset.get("NumberOfFrames") or 1), dataset.get("SamplesPerPixel", 1)
    photometric, signed = dataset.get("PhotometricInterpretation"), dataset.get("PixelRepresentation", 0)
    allocated, stored, high = dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit
    if "TransferSyntaxUID" not in dataset.file_meta:
        raise DataError("expected a DICOM file that names its transfer syntax")
    grey = samples == 1 and photometric in ("MONOCHROME1", "MONOCHROME2", PALETTE)
    colour = samples == 3 and photometric in COLOUR and not signed
    expected = ""
    if not dataset.file_meta.TransferSyntaxUID.is_little_endian:
        expected = "a little endian DICOM file, got the retired big endian syntax: convert it, as with dcmconv +te"
    elif frames < 1:
        expected = f"at least one frame, got {frames}"
    elif (allocated, signed) not in ((8, 0), (16, 0), (16, 1)):
        expected = f"8 or 16 bits, got {allocated} bits, {'' if signed else 'un'}signed"
    elif not 2 <= stored <= allocated or high != stored - 1:
        expected = f"2 to {allocated} bits stored from the lowest on, got {stored} up to bit {high}"
    elif not grey and not colour:
        expected = (
            f"MONOCHROME1, MONOCHROME2 or colour, got {photometric} with {samples} samples: convert it to RGB first, "
            "as with dcmj2pnm and img2dcm"
        )
    if expected:
        raise DataError(f"expected {expected}")


def _pixels(dataset: FileDataset) -> Pixels:
    syntax = dataset.file_meta.TransferSyntaxUID
    try:
        if syntax.is_encapsulated:
            _check_frame(dataset)
        if (decoder := streams.decoder(syntax)) is not None:
            pixels, _ = decoder.as_array(dataset)
        else:
            # Uncompressed, the words as they are: what lies above the stored bits would be lost, so it must be seen.
            pixels = pixel_array(dataset, correct_unused_bits=syntax.is_encapsulated)
    except Exception as error:  # of pydicom or of the decoder it calls
        advice = "; if it is not torn, convert it first, as with gdcmconv --raw" if syntax.is_encapsulated else ""
        raise DataError(f"{syntax.name} cannot be decoded: {one_line(error)}{advice}") from error
    shape = (dataset.Rows, dataset.Columns) + ((3,) if dataset.SamplesPerPixel == 3 else ())
    if pixels.shape != shape or pixels.itemsize * 8 != dataset.BitsAllocated:
        raise DataError(f"expected pixels of shape {shape}, got {pixels.shape} of type {pixels.dtype}")
    return np.array(pixels, pixels.dtype.newbyteorder("="), order="C")


def _check_frame(dataset: FileDataset) -> None:
    """Refuse a stream that its decoder would refuse only after filling the memory, or after a long time."""
    for tag in OFFSET_TABLES:  # the stream that is checked here must be the one that is decoded
        dataset.pop(tag, None)
    if dataset.file_meta.TransferSyntaxUID == uid.JPEGBaseline8Bit:  # which Pillow decodes
        found = streams.stream_shape(next(generate_frames(dataset.PixelData, number_of_frames=1)))
        if (found.width, found.height) != (dataset.Columns, dataset.Rows):
            raise DataError(
                f"expected {dataset.Columns} x {dataset.Rows} pixels in its stream, got {found.width} x {found.height}"
            )


def _image(kind: Format, path: Path, content: bytes, dataset: FileDataset, number: int) -> ImageFile:
    """The frame of that number, whose pixel data the dataset holds."""
    pixels, syntax, notes = _pixels(dataset), dataset.file_meta.TransferSyntaxUID, []
    if had_palette := dataset.PhotometricInterpretation == PALETTE:
        pixels = _coloured(pixels, dataset)
        notes.append("palette turned into RGB, 8 bits")
    lossy = syntax in LOSSY_SYNTAXES or dataset.get("LossyImageCompression") == "01"
    if syntax.is_encapsulated and syntax not in streams.ENCODERS:
        notes.append(f"{syntax.name} will be written uncompressed")
    reversible = dataset.PhotometricInterpretation == streams.PHOTOMETRIC.get(syntax)
    if pixels.ndim == 3 and not reversible and dataset.PhotometricInterpretation not in ("RGB", PALETTE):
        notes.append(f"{dataset.PhotometricInterpretation} turned into RGB")
    if any(tag in dataset for tag in SIGNATURES):
        notes.append("digital signatures will not be kept, as they are of the original pixels")
    first, last = dataset.get("PixelPaddingValue"), dataset.get("PixelPaddingRangeLimit")
    padding = None
    if first is not None and pixels.ndim == 2:
        # As a stored value: files are seen that give it unsigned for signed pixels, or the other way round.
        ends = [
            int(np.array(int(end) & 0xFFFF).astype(pixels.dtype)) for end in (first, first if last is None else last)
        ]
        padding = (min(ends), max(ends))
    bits = 8 if had_palette else dataset.BitsStored
    image = ImageFile(pixels, bits, path, kind, lossy, tuple(notes), content, padding_range=padding)
    inverted = dataset.PhotometricInterpretation == "MONOCHROME1"
    window = display_window(dataset, image, number)
    image = replace(image, window=window, inverted=inverted, had_palette=had_palette)
    outside = (pixels < image.lowest) | (pixels > image.lowest + image.peak)
    if (outside & ~image.padding(pixels)).any():
        raise DataError(
            f"expected {dataset.BitsStored} bits a pixel, got the value {pixels[outside][0]}, as with an overlay in "
            "the unused bits: remove it first"
        )
    return image


def _coloured(indices: Pixels, dataset: FileDataset) -> Pixels:
    """The colours that a palette shows, with 8 bits: all that displays and RGB images of most kinds have."""
    colours = apply_color_lut(indices, dataset)[..., :3]
    entries: int = dataset.RedPaletteColorLookupTableDescriptor[2]  # bits of an entry
    return np.ascontiguousarray(colours >> (entries - 8) if entries > 8 else colours, np.uint8)


def display_window(dataset: Dataset, image: StoredImage, number: int = 0) -> Window | None:
    """The stored values shown from black to white (PS3.3, C.11.1 and C.11.2); None where nothing valid says so.

    Of the frame of that number, if each has its own.
    """
    places = list(_places(dataset, number))
    if image.pixels.ndim != 2 or _value(places, "ModalityLUTSequence") is not None:
        return None
    try:
        slope, intercept = float(_value(places, "RescaleSlope", 1)), float(_value(places, "RescaleIntercept", 0))
        unit = _unit(dataset, places)
        shown = [each for each in (_from_table(places), _from_numbers(places)) if each is not None]
        if not shown and unit == "HU" and _value(places, "RescaleSlope") is not None:
            centre, width = BRAIN_WINDOW if dataset.get("BodyPartExamined") in HEAD_PARTS else SOFT_TISSUE_WINDOW
            shown = [(centre - width / 2, centre + width / 2)]
        if not shown:
            return None
        low, high = min(shown, key=lambda ends: ends[1] - ends[0])  # either may be used: the one that shows more
        ends = sorted(((low - intercept) / slope, (high - intercept) / slope))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # invalid values in the file
        return None
    return _within(image, ends[0], ends[1], unit, abs(slope))


def _within(image: StoredImage, low: float, high: float, unit: str, step: float) -> Window | None:
    """A window clipped to the values that the bits can hold, at least one step wide; None if it lies outside."""
    least, most = float(image.lowest), float(image.lowest + image.peak)
    if not all(map(math.isfinite, (low, high, step))) or low > most or high < least:
        return None
    low, high = max(low, least), min(high, most)
    if high - low < 1.0:
        low = min(max((low + high - 1.0) / 2, least), most - 1.0)
        high = low + 1.0
    return Window(low, high, unit, step)


def _from_numbers(places: list[Dataset]) -> tuple[float, float] | None:
    """The ends of the first window, in units."""
    centre, width = (_value(places, name) for name in ("WindowCenter", "WindowWidth"))
    if centre is None or width is None or not width > 0:
        return None
    centre, width = float(centre), float(width)
    if _value(places, "VOILUTFunction", "LINEAR") == "LINEAR":
        centre, width = centre - 0.5, max(width - 1.0, 0.0)
    return centre - width / 2, centre + width / 2


def _from_table(places: list[Dataset]) -> tuple[float, float] | None:
    """The ends of the input of the first lookup table between which its output changes."""
    table = _value(places, "VOILUTSequence")
    if table is None:
        return None
    entries, first, _ = (int(value) for value in table.LUTDescriptor)
    entries = entries % MAX_ENTRIES or MAX_ENTRIES  # 16 bits do not hold the number itself
    data: Any = table.LUTData
    if isinstance(data, bytes):
        data = np.frombuffer(data, np.uint8 if len(data) < 2 * entries else "<u2")
    changes = np.flatnonzero(np.diff(np.atleast_1d(np.asarray(data, np.int64))[:entries]))
    return (float(first + changes[0]), float(first + changes[-1] + 1)) if changes.size else None


def _unit(dataset: Dataset, places: list[Dataset]) -> str:
    said = _value(places, "RescaleType")
    if said is None and dataset.get("Modality") == "CT" and "LOCALIZER" not in (dataset.get("ImageType") or ()):
        return "HU"
    return said if said in UNITS else ""


def _value(places: list[Dataset], name: str, default: Any = None) -> Any:
    """The first value of an attribute of the image or, in an enhanced one, of its frame."""
    for place in places:
        found = place.get(name)
        if found is not None and not isinstance(found, str | bytes) and hasattr(found, "__len__"):
            found = found[0] if len(found) else None
        if found not in (None, ""):
            return found
    return default


def _places(dataset: Dataset, number: int) -> Iterator[Dataset]:
    """Where attributes of the frame of that number are."""
    yield dataset
    frame, shared = (dataset.get(f"{which}FunctionalGroupsSequence") or () for which in ("PerFrame", "Shared"))
    for group in (*frame[number : number + 1], *shared):
        for macro in ("FrameVOILUTSequence", "PixelValueTransformationSequence"):
            yield from group.get(macro) or ()
