"""PNG, TIFF, BMP and JPEG, by Pillow."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from samplewise.errors import ConfigurationError, DataError, MissingPackageError
from samplewise.watermark.formats.picture import MAX_PIXELS, Picture, Pixels, one_line

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

__all__ = ["RasterPicture", "read_raster"]

SUFFIXES = {".png": "png", ".tif": "tiff", ".tiff": "tiff", ".bmp": "bmp", ".jpg": "jpeg", ".jpeg": "jpeg"}
SIXTEEN_BITS = ("I;16", "I;16B", "I;16L", "I;16N")
LOSSLESS_TIFF = ("raw", "packbits", "tiff_lzw", "tiff_adobe_deflate", "tiff_deflate")
ORIENTATION, PHOTOMETRIC = 274, 262
# Tags that describe the image and not how it is stored: name, description, device, resolution, software, date,
# artist, XMP, copyright, IPTC, Photoshop.
KEPT_TAGS = (269, 270, 271, 272, 282, 283, 285, 296, 305, 306, 315, 316, 700, 33432, 33723, 34377)
ICC_TAG, FIRST_PRIVATE_TAG = 34675, 32768
# Colour and text; of private chunks those that may be copied though the pixels change.
KEPT_CHUNKS = (b"gAMA", b"cHRM", b"sRGB", b"cICP", b"tEXt", b"zTXt", b"iTXt")
JPEG_QUALITY = 95


@dataclass(frozen=True)
class Metadata:
    """What is kept beside the pixels, as Pillow's writers take it."""

    icc: bytes | None = None
    dpi: tuple[float, float] | None = None
    exif: bytes | None = None
    chunks: tuple[tuple[bytes, bytes], ...] = ()
    """Of a PNG file."""
    tags: Any = None
    """Of a TIFF file, with their types."""
    compression: str = "tiff_adobe_deflate"
    """Of a TIFF file."""


@dataclass(frozen=True, eq=False)
class RasterPicture(Picture):
    """A picture that Pillow reads; it can be written in any of Pillow's formats that hold its pixels."""

    alpha: Pixels | None
    metadata: Metadata

    def _check_format(self, path: Path, *, lossy: bool) -> bool:
        kind = SUFFIXES.get(path.suffix.lower())
        if kind is None:
            raise ConfigurationError(f"{path}: expected a name that ends in {', '.join(SUFFIXES)}, got {path.suffix!r}")
        if kind == "jpeg" and not lossy:
            raise ConfigurationError(
                f"{path}: JPEG changes the pixels, and with them the watermark; write .png, or allow it with lossy"
            )
        if kind in ("bmp", "jpeg") and (self.bits > 8 or self.alpha is not None):
            what = "16 bits" if self.bits > 8 else "an alpha channel"
            raise ConfigurationError(f"{path}: {kind.upper()} cannot hold {what}: write .png or .tif")
        return kind != "jpeg"

    def _encoded(self, pixels: Pixels, suffix: str) -> bytes:
        from PIL import Image
        from PIL.PngImagePlugin import PngInfo

        data, file = self.metadata, io.BytesIO()
        if self.alpha is not None:
            pixels = np.dstack([pixels, self.alpha])
        image = Image.fromarray(np.ascontiguousarray(pixels))
        options: dict[str, Any] = {"icc_profile": data.icc}
        kind = SUFFIXES[suffix]
        if data.dpi is not None and not (kind == "tiff" and data.tags is not None):  # there the tags have it
            options["dpi"] = data.dpi
        if kind in ("png", "jpeg") and data.exif is not None:
            options["exif"] = data.exif
        if kind == "png":
            options["pnginfo"] = info = PngInfo()
            for name, content in data.chunks:
                info.add(name, content)
        elif kind == "tiff":
            options["compression"] = data.compression
            if data.tags is not None:
                options["tiffinfo"] = data.tags
        elif kind == "jpeg":
            options |= {"quality": JPEG_QUALITY, "subsampling": 0}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of metadata; whether the pixels are right is seen by reading them back
            image.save(file, format=kind.upper(), **options)
        return file.getvalue()

    def _same(self, other: RasterPicture, pixels: Pixels) -> bool:
        own, its = self.alpha, other.alpha
        same_alpha = own is its if own is None or its is None else np.array_equal(own, its)
        return same_alpha and super()._same(other, pixels)


def read_raster(path: Path, content: bytes, kind: str) -> RasterPicture:
    """Decode the file ``content`` of format ``kind``."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingPackageError("reading images needs Pillow: pip install 'samplewise[watermark]'") from error
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with Image.open(io.BytesIO(content), formats=(kind.upper(),)) as image:
                _refuse(path, image)
                image.load()
                picture = _picture(path, kind, image, content)
        told = dict.fromkeys(one_line(warning.message) for warning in caught if isinstance(warning.message, Exception))
        return replace(picture, notes=(*picture.notes, *told))
    except (DataError, MissingPackageError):
        raise
    except Image.DecompressionBombError as error:
        raise DataError(f"{path}: expected at most {MAX_PIXELS:,} pixels: {one_line(error)}") from error
    except Exception as error:  # Pillow's decoders raise whatever a torn file makes them stumble over
        raise DataError(f"{path}: torn or not a valid {kind.upper()} file: {one_line(error)}") from error


def _refuse(path: Path, image: ImageFile) -> None:
    """Say no, before anything is decoded, to what is too large or would not come back as it is."""
    if not 0 < image.width * image.height <= MAX_PIXELS:
        raise DataError(f"{path}: expected 1 to {MAX_PIXELS:,} pixels, got {image.width} x {image.height}")
    frames = getattr(image, "n_frames", 1)
    if frames != 1:
        raise DataError(f"{path}: expected one image, got {frames} frames or pages: split the file first")
    stored = {tile.args if isinstance(tile.args, str) else tile.args[0] for tile in image.tile if tile.args}
    deep = any(isinstance(mode, str) and mode.partition(";")[2][:2] in ("16", "12") for mode in stored)
    if deep and (image.mode not in SIXTEEN_BITS or not stored <= set(SIXTEEN_BITS)):
        raise DataError(f"{path}: expected 8 bits, or 16 bits of grey, got {image.mode} stored with more: convert it")


def _picture(path: Path, kind: str, image: Image, content: bytes) -> RasterPicture:
    from PIL import ImageOps

    notes: list[str] = []
    metadata = _metadata(image, kind, content, notes)
    if kind != "tiff" and image.getexif().get(ORIENTATION, 1) != 1:  # Pillow turns TIFF itself
        notes.append("turned upright, as its orientation says")
        ImageOps.exif_transpose(image, in_place=True)
        metadata = replace(metadata, exif=image.info.get("exif"))
    image, note = _plain(path, image)
    notes += note
    values = np.array(image)
    if image.mode in SIXTEEN_BITS:
        values = values.astype(np.uint16)  # in the machine's byte order
    alpha = values[..., -1].copy() if image.mode in ("LA", "RGBA") else None
    pixels = values if alpha is None else values[..., 0 if image.mode == "LA" else slice(3)].copy()
    lossy = kind == "jpeg" or (kind == "tiff" and image.info.get("compression", "raw") not in LOSSLESS_TIFF)
    return RasterPicture(pixels, 8 * pixels.dtype.itemsize, path, kind, lossy, tuple(notes), alpha, metadata)


def _plain(path: Path, image: Image) -> tuple[Image, list[str]]:
    """The image as grey or RGB, with or without alpha; palettes and transparent colours are resolved."""
    transparent = "transparency" in image.info
    if image.mode in (*SIXTEEN_BITS, "L", "RGB") and not transparent:
        return image, []
    if image.mode in ("LA", "RGBA"):
        return image, []
    if image.mode in ("P", "L", "RGB", "1", "PA"):
        if image.mode == "1":
            wanted = "L"
        elif image.mode == "L":
            wanted = "LA"
        else:
            wanted = "RGBA" if transparent or image.mode == "PA" else "RGB"
        what = {"P": "palette", "PA": "palette", "1": "one bit a pixel"}.get(image.mode, "transparent colour")
        return image.convert(wanted), [f"{what} turned into {wanted}, 8 bits"]
    raise DataError(
        f"{path}: expected grey or RGB of 8 bits, or grey of 16, got {image.mode}"
        f"{' with a transparent colour' if transparent else ''}: convert it"
    )


def _metadata(image: Image, kind: str, content: bytes, notes: list[str]) -> Metadata:
    info = image.info
    found = Metadata(info.get("icc_profile"), info.get("dpi"), info.get("exif"))
    if kind == "png":
        kept = (chunk for chunk in _chunks(content) if chunk[0] in KEPT_CHUNKS or _safe_to_copy(chunk[0]))
        return replace(found, chunks=tuple(kept))
    if kind == "tiff":
        return _tiff_metadata(image, found, notes)
    return found


def _chunks(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Name and content of the chunks of a PNG file."""
    position = 8
    while position + 8 <= len(content):
        size = int.from_bytes(content[position : position + 4])
        yield content[position + 4 : position + 8], content[position + 8 : position + 8 + size]
        position += size + 12


def _safe_to_copy(name: bytes) -> bool:
    """Whether a chunk is ancillary, private and independent of the pixels: the case of its letters says so."""
    return name.isalpha() and name[0:1].islower() and name[1:2].islower() and name[3:4].islower()


def _tiff_metadata(image: Any, found: Metadata, notes: list[str]) -> Metadata:
    from PIL.TiffImagePlugin import ImageFileDirectory_v2

    tags = ImageFileDirectory_v2()
    for tag in KEPT_TAGS:
        if tag in image.tag_v2:
            tags.tagtype[tag] = image.tag_v2.tagtype[tag]
            tags[tag] = image.tag_v2[tag]
    if image.mode in SIXTEEN_BITS and image.tag_v2.get(PHOTOMETRIC) == 0:
        tags[PHOTOMETRIC] = 0  # white is zero; with 8 bits Pillow has turned the values
    dropped = [tag for tag in image.tag_v2 if tag >= FIRST_PRIVATE_TAG and tag not in (*KEPT_TAGS, ICC_TAG)]
    if dropped:
        notes.append(f"TIFF tags that will not be kept: {', '.join(map(str, dropped))}")
    compression = image.info.get("compression", "raw")
    found = replace(found, exif=None, tags=tags)
    return replace(found, compression=compression) if compression in LOSSLESS_TIFF else found
