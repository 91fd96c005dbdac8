"""PNG, TIFF, BMP, JPEG and WebP, by Pillow. A new one takes an entry at the end of this module."""

import io
import math
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngInfo
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from floormark.errors import DataError
from floormark.imageio.stored import MAX_PIXELS, Format, ImageFile, Pixels, bands, check_scans, check_size, one_line

SIXTEEN_BITS = ("I;16", "I;16B", "I;16L", "I;16N")
LOSSLESS_TIFF = ("raw", "packbits", "tiff_lzw", "tiff_adobe_deflate", "tiff_deflate")
ORIENTATION, PHOTOMETRIC = 274, 262
TILE_SIDES = (322, 323)
# Tags that describe the image and not how it is stored: name, description, device, resolution, software, date,
# artist, XMP, copyright, IPTC, Photoshop.
KEPT_TAGS = (269, 270, 271, 272, 282, 283, 285, 296, 305, 306, 315, 316, 700, 33432, 33723, 34377)
ICC_TAG, FIRST_PRIVATE_TAG = 34675, 32768
# Colour and text; of private chunks those that may be copied though the pixels change.
KEPT_CHUNKS = (b"gAMA", b"cHRM", b"sRGB", b"cICP", b"tEXt", b"zTXt", b"iTXt")
MAX_CHUNKS = 1000  # beside those of the pixels
Kept = dict[str, Any]
"""Metadata, as Pillow writes them: icc_profile, dpi, exif, the chunks of a PNG and the tags of a TIFF file."""
QUICK_PNG_VALUES = 1 << 24  # values of an image whose file is compressed less


@dataclass(frozen=True)
class RasterFormat(Format):
    """A format that Pillow reads and writes."""

    modes: frozenset[str]  # Pillow's names of what it holds: grey L and I;16, colour RGB, with alpha LA and RGBA
    options: Callable[[Kept, Pixels], Kept]
    """Options of Pillow's writer beside the colour profile, from the metadata and the pixels."""
    check: Callable[[bytes], None] = lambda content: None  # refuses files before they are decoded
    metadata: Callable[[Any, bytes, list[str]], Kept] = lambda image, content, notes: {}
    """Metadata beyond those that Pillow gives for every format, from the image and the file; it may add notes."""
    was_lossy: Callable[[Any, bytes], bool] = lambda image, content: False
    """Whether the image in a file was compressed with loss."""

    def read(self, path: Path, content: bytes) -> ImageFile:
        """Decode a file."""
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                self.check(content)
                with Image.open(io.BytesIO(content), formats=(self.name.upper(),)) as image:
                    _refuse(image, content)
                    image.load()
                    found = self._image(path, image, content)
            told = dict.fromkeys(one_line(each.message) for each in caught if isinstance(each.message, Exception))
            return replace(found, notes=(*found.notes, *told))
        except DataError:
            raise
        except Exception as error:  # Pillow's decoders raise errors of any kind for a torn file
            raise DataError(f"torn or not a valid {self.name.upper()} file: {one_line(error)}") from error

    def _image(self, path: Path, image: Image.Image, content: bytes) -> ImageFile:
        notes: list[str] = []
        kept = {name: image.info.get(name) for name in ("icc_profile", "dpi", "exif")}
        kept |= self.metadata(image, content, notes)
        if "tags" not in kept and image.getexif().get(ORIENTATION, 1) != 1:  # Pillow turns TIFF itself
            notes.append("turned upright, as its orientation says")
            ImageOps.exif_transpose(image, in_place=True)
            kept["exif"] = image.info.get("exif")
        image, note = _plain(image)
        values = _values(image)
        alpha = values[..., -1].copy() if image.mode in ("LA", "RGBA") else None
        pixels = values if alpha is None else values[..., 0 if image.mode == "LA" else slice(3)].copy()
        lossy = self.was_lossy(image, content)
        tags = kept.get("tags")
        inverted = tags is not None and tags.get(PHOTOMETRIC) == 0
        bits = 8 * pixels.itemsize
        return ImageFile(pixels, bits, path, self, lossy, (*notes, *note), kept, alpha, inverted=inverted)

    def encode(self, image: ImageFile, frames: Iterable[Pixels], file: BinaryIO) -> None:
        (pixels,) = frames
        if image.alpha is not None:
            pixels = np.dstack([pixels, image.alpha])
        options = {"icc_profile": image.kept["icc_profile"], **self.options(image.kept, pixels)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of metadata; whether the pixels are right is seen by reading them back
            Image.fromarray(np.ascontiguousarray(pixels)).save(
                file, format=self.name.upper(), **{key: one for key, one in options.items() if one is not None}
            )


def _values(image: Image.Image) -> Pixels:
    """The pixels of an image, in bands: converting all at once would take twice the memory."""
    depth = () if len(image.getbands()) == 1 else (len(image.getbands()),)
    values = np.empty((image.height, image.width, *depth), np.uint16 if image.mode in SIXTEEN_BITS else np.uint8)
    for rows in bands(values):
        values[rows] = np.asarray(image.crop((0, rows.start, image.width, rows.stop)))
    return values


def _refuse(image: Any, content: bytes) -> None:
    """Refuse, before decoding, images that are too large or could not be written back unchanged."""
    each = 2 if image.mode in SIXTEEN_BITS else len(image.getbands())
    check_size(image.width, image.height, each, content)
    tags = getattr(image, "tag_v2", {})
    tile = [int(tags.get(tag, 0)) for tag in TILE_SIDES]
    if math.prod(tile) > MAX_PIXELS:  # unpacked whole, however small the image is
        raise DataError(f"expected tiles of at most {MAX_PIXELS:,} pixels, got {tile[0]} x {tile[1]}")
    # A chain of TIFF pages is not walked: it may be long.
    if (getattr(image, "tag_v2", None) is not None and image.tag_v2.next) or getattr(image, "n_frames", 1) != 1:
        raise DataError("expected one image, got several frames or pages: split the file first")
    stored = {tile.args if isinstance(tile.args, str) else tile.args[0] for tile in image.tile if tile.args}
    deep = any(isinstance(mode, str) and mode.partition(";")[2][:2] in ("16", "12") for mode in stored)
    if deep and (image.mode not in SIXTEEN_BITS or not stored <= set(SIXTEEN_BITS)):
        raise DataError(f"expected 8 bits, or 16 bits of grey, got {image.mode} stored with more: convert it")


def _plain(image: Image.Image) -> tuple[Image.Image, list[str]]:
    """The image as grey or RGB, with or without alpha; palettes and transparent colours are resolved."""
    mode, transparent = image.mode, "transparency" in image.info
    if mode in ("LA", "RGBA") or (mode in (*SIXTEEN_BITS, "L", "RGB") and not transparent):
        return image, []
    if mode not in ("P", "PA", "1", "L", "RGB"):
        colour = " with a transparent colour" if transparent else ""
        raise DataError(
            f"expected grey or RGB of 8 bits, or grey of 16, got {mode}{colour}: "
            "convert it, as with ImageMagick's -colorspace sRGB -depth 8"
        )
    wanted = {"1": "L", "L": "LA", "PA": "RGBA"}.get(mode, "RGBA" if transparent else "RGB")
    what = {"P": "palette", "PA": "palette", "1": "one bit a pixel"}.get(mode, "transparent colour")
    return image.convert(wanted), [f"{what} turned into {wanted}, 8 bits"]


def _chunks(content: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Name, content and checksum of the chunks of a PNG file."""
    position = 8
    while position + 8 <= len(content):
        end = position + 8 + int.from_bytes(content[position : position + 4])
        yield content[position + 4 : position + 8], content[position + 8 : end], content[end : end + 4]
        position = end + 4


def _check_png(content: bytes) -> None:
    """Pillow decodes pixels whose checksum is wrong, and is slow with chunks by the hundred thousand."""
    others = 0
    for name, data, checksum in _chunks(content):
        if zlib.crc32(data, zlib.crc32(name)).to_bytes(4) != checksum:
            raise ValueError(f"the checksum of {name.decode('latin-1')!r} is wrong")
        others += name != b"IDAT"
        if others > MAX_CHUNKS:
            raise ValueError(f"more than {MAX_CHUNKS:,} chunks")
        if name == b"IEND":
            return
    raise ValueError("the end of the file is missing")


def _png_metadata(image: Image.Image, content: bytes, notes: list[str]) -> Kept:
    def kept(name: bytes) -> bool:
        # Ancillary, private and independent of the pixels: the case of the letters says so.
        private = name.isalpha() and all(name[place : place + 1].islower() for place in (0, 1, 3))
        return private or name in KEPT_CHUNKS

    return {"chunks": [(name, data) for name, data, _ in _chunks(content) if kept(name)]}


def _png_options(kept: Kept, pixels: Pixels) -> Kept:
    info = PngInfo()
    for name, content in kept.get("chunks", ()):
        info.add(name, content)
    quick = 1 if pixels.size > QUICK_PNG_VALUES else None  # some percent larger, in a third of the time
    return {"dpi": kept["dpi"], "exif": kept["exif"], "pnginfo": info, "compress_level": quick}


def _tiff_metadata(image: Any, content: bytes, notes: list[str]) -> Kept:
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
    return {"exif": None, "tags": tags} | ({"compression": compression} if compression in LOSSLESS_TIFF else {})


def _webp_lossy(image: Image.Image, content: bytes) -> bool:
    position = 12
    while content[position : position + 4] not in (b"VP8 ", b"VP8L", b""):
        size = int.from_bytes(content[position + 4 : position + 8], "little")
        position += 8 + size + size % 2
    return content[position : position + 4] != b"VP8L"


ALL_MODES = frozenset({"L", "LA", "RGB", "RGBA", "I;16"})
GREY_AND_RGB = frozenset({"L", "RGB"})
RASTERS = (
    RasterFormat("png", (".png",), rb"\x89PNG\r\n\x1a\n", ALL_MODES, _png_options, _check_png, _png_metadata),
    RasterFormat(
        "tiff",
        (".tif", ".tiff"),
        rb"II[*+]\0|MM\0[*+]",
        ALL_MODES,
        # Where there are tags, they have the resolution.
        lambda kept, _: {
            "compression": kept.get("compression", "tiff_adobe_deflate"),
            "tiffinfo": kept.get("tags"),
            "dpi": None if "tags" in kept else kept["dpi"],
        },
        metadata=_tiff_metadata,
        was_lossy=lambda image, content: image.info.get("compression", "raw") not in LOSSLESS_TIFF,
    ),
    RasterFormat("bmp", (".bmp",), rb"BM", GREY_AND_RGB, lambda kept, _: {"dpi": kept["dpi"]}),
    RasterFormat(
        "jpeg",
        (".jpg", ".jpeg"),
        rb"\xff\xd8\xff",
        GREY_AND_RGB,
        lambda kept, _: {"dpi": kept["dpi"], "exif": kept["exif"], "quality": 95, "subsampling": 0},
        check_scans,
        was_lossy=lambda image, content: True,
        exact=False,
    ),
    RasterFormat(
        "webp",
        (".webp",),
        rb"RIFF....WEBP",
        frozenset({"RGB", "RGBA"}),
        # Exact: also the colour of transparent pixels.
        lambda kept, _: {"exif": kept["exif"], "lossless": True, "exact": True},
        was_lossy=_webp_lossy,
    ),
)
"""All formats that Pillow reads and writes for us."""
