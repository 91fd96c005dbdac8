import io
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from PIL import Image, ImageCms, ImageOps
from PIL.PngImagePlugin import PngInfo
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from floormark.errors import ConfigurationError, DataError, OutputError
from floormark.imageio import read
from floormark.imageio.raster import RASTERS
from floormark.imageio.stored import MAX_PIXELS

sides = st.integers(1, 6)
GREY, DEEP, RGB = (np.uint8, ()), (np.uint16, ()), (np.uint8, (3,))
HOLDS: dict[str, list[Any]] = {
    ".png": [GREY, DEEP, RGB],
    ".tif": [GREY, DEEP, RGB],
    ".TIFF": [GREY, DEEP, RGB],
    ".bmp": [GREY, RGB],
    ".webp": [RGB],
}
LAYOUTS = [(suffix, *layout) for suffix, layouts in HOLDS.items() for layout in layouts]


@st.composite
def images(draw: st.DrawFn) -> tuple[str, NDArray[Any], NDArray[Any]]:
    """A suffix, and two arrays of one shape that the format can hold."""
    suffix, dtype, colours = draw(st.sampled_from(LAYOUTS))
    shape = (draw(sides), draw(sides), *colours)
    return suffix, draw(arrays(dtype, shape)), draw(arrays(dtype, shape))


def gradient(dtype: Any = np.uint8, colours: tuple[int, ...] = (), side: int = 12) -> NDArray[Any]:
    top = np.iinfo(dtype).max
    return (
        np.linspace(0, top, side * side * int(np.prod(colours, dtype=int))).astype(dtype).reshape(side, side, *colours)
    )


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(images())
def test_every_pixel_comes_back(tmp_path: Path, case: tuple[str, NDArray[Any], NDArray[Any]]) -> None:
    suffix, before, after = case
    source, target = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    options: dict[str, Any] = {"lossless": True} if suffix == ".webp" else {}
    Image.fromarray(before).save(source, **options)
    picture = read(source)
    np.testing.assert_array_equal(picture.pixels, before)
    assert picture.pixels.dtype == before.dtype
    assert (picture.peak, picture.lowest) == (np.iinfo(before.dtype).max, 0)
    assert not picture.lossy
    assert picture.notes == ()
    picture.write(target, after, force=True)
    np.testing.assert_array_equal(np.asarray(Image.open(target)), after)
    np.testing.assert_array_equal(read(target).pixels, after)


@pytest.mark.parametrize("mode", ["LA", "RGBA"])
@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_alpha_stays_as_it_is(mode: str, suffix: str, tmp_path: Path) -> None:
    values = gradient(colours=(len(mode),))
    Image.fromarray(values).save(tmp_path / f"a{suffix}")
    picture = read(tmp_path / f"a{suffix}")
    assert picture.pixels.shape == ((12, 12) if mode == "LA" else (12, 12, 3))
    picture.write(tmp_path / f"b{suffix}", 255 - picture.pixels)
    written = np.asarray(Image.open(tmp_path / f"b{suffix}"))
    np.testing.assert_array_equal(written[..., -1], values[..., -1])
    np.testing.assert_array_equal(written[..., :-1], 255 - values[..., :-1])


def test_webp_keeps_alpha_profile_and_exif_and_tells_of_loss(tmp_path: Path) -> None:
    values = gradient(colours=(4,))
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    exif = Image.Exif()
    exif[0x010F] = "Maker"
    options: dict[str, Any] = {"icc_profile": profile, "exif": exif.tobytes(), "exact": True}
    Image.fromarray(values).save(tmp_path / "a.webp", lossless=True, **options)
    Image.fromarray(values).save(tmp_path / "lossy.webp", **options)
    assert [read(tmp_path / name).lossy for name in ("a.webp", "lossy.webp")] == [False, True]
    picture = read(tmp_path / "a.webp")
    picture.write(tmp_path / "b.webp", picture.pixels ^ 1)
    with Image.open(tmp_path / "b.webp") as after:
        np.testing.assert_array_equal(np.asarray(after), values ^ np.array([1, 1, 1, 0], np.uint8))
        assert after.info["icc_profile"] == profile
        assert after.getexif()[0x010F] == "Maker"
    frames = [Image.fromarray(gradient(colours=(3,))), Image.fromarray(255 - gradient(colours=(3,)))]
    frames[0].save(tmp_path / "moving.webp", save_all=True, append_images=frames[1:])
    with pytest.raises(DataError, match="several frames"):
        read(tmp_path / "moving.webp")
    Image.fromarray(gradient()).save(tmp_path / "grey.png")
    grey = read(tmp_path / "grey.png")
    with pytest.raises(ConfigurationError, match=r"WEBP cannot hold grey: write \.png or \.tif"):
        grey.write(tmp_path / "grey.webp", grey.pixels)


def with_chunk(content: bytes, name: bytes, change: bytes) -> bytes:
    """A PNG file with one byte of a chunk's checksum changed."""
    place = content.index(name)
    end = place + 4 + int.from_bytes(content[place - 4 : place])
    return content[:end] + change + content[end + len(change) :]


def test_a_damaged_png_is_refused(tmp_path: Path) -> None:
    file = io.BytesIO()
    info = PngInfo()
    info.add_text("Comment", "x")
    Image.fromarray(gradient()).save(file, "PNG", pnginfo=info)
    content = file.getvalue()
    for name in (b"IHDR", b"tEXt", b"IDAT", b"IEND"):
        (tmp_path / "a.png").write_bytes(with_chunk(content, name, b"\0\1\2\3"))
        with pytest.raises(
            DataError, match=f"a.png: torn or not a valid PNG file: the checksum of '{name.decode()}' is wrong"
        ):
            read(tmp_path / "a.png")
    (tmp_path / "a.png").write_bytes(content[: content.index(b"IEND") - 4])
    with pytest.raises(DataError, match=r"a\.png: torn or not a valid PNG file: the end of the file is missing"):
        read(tmp_path / "a.png")
    (tmp_path / "a.png").write_bytes(content + b"what follows the end is not the image's")
    np.testing.assert_array_equal(read(tmp_path / "a.png").pixels, gradient())


def test_pixels_that_do_not_fit_their_own_checksum_are_refused(tmp_path: Path) -> None:
    rows = b"".join(b"\0" + row.tobytes() for row in gradient())
    packed = bytearray(zlib.compress(rows))
    packed[-1] ^= 1  # of the checksum over the pixels, with the chunk's own put right
    (tmp_path / "a.png").write_bytes(png(12, 12, bytes(packed)))
    with pytest.raises(DataError, match="torn or not a valid PNG file"):
        read(tmp_path / "a.png")


def png(width: int, height: int, data: bytes) -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def test_png_keeps_text_profile_resolution_and_colour_chunks(tmp_path: Path) -> None:
    info = PngInfo()
    info.add_text("Comment", "grüße")
    info.add_itxt("Title", "日本", lang="ja")
    info.add_text("Long", "x" * 500, zip=True)
    info.add(b"gAMA", struct.pack(">I", 45455))
    info.add(b"orNt", b"safe")  # private, safe to copy
    info.add(b"orNT", b"not")  # private, of these pixels only
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    exif = Image.Exif()
    exif[0x010F] = "Maker"
    Image.fromarray(gradient()).save(
        tmp_path / "a.png", pnginfo=info, icc_profile=profile, dpi=(300, 150), exif=exif.tobytes()
    )
    picture = read(tmp_path / "a.png")
    picture.write(tmp_path / "b.png", picture.pixels ^ 1)
    with Image.open(tmp_path / "a.png") as before, Image.open(tmp_path / "b.png") as after:
        after.load()
        assert after.text == {"Comment": "grüße", "Title": "日本", "Long": "x" * 500}  # type: ignore[attr-defined]
        assert after.text["Title"].lang == "ja"  # type: ignore[attr-defined]
        for key in ("icc_profile", "dpi", "gamma", "exif"):
            assert after.info[key] == before.info[key], key
    content = (tmp_path / "b.png").read_bytes()
    assert b"orNtsafe" in content
    assert b"orNT" not in content


@pytest.mark.parametrize("compression", [None, "tiff_lzw", "tiff_adobe_deflate", "packbits"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_tiff_keeps_tags_and_compression(compression: str | None, dtype: Any, tmp_path: Path) -> None:
    tags = ImageFileDirectory_v2()
    tags[270], tags[305], tags[315] = "description", "software", "artist"
    tags[282], tags[283], tags[296] = 118.5, 59.25, 3  # per centimetre
    tags[65000] = "private"
    options: dict[str, Any] = {"compression": compression} if compression else {}
    Image.fromarray(gradient(dtype)).save(tmp_path / "a.tif", tiffinfo=tags, **options)
    picture = read(tmp_path / "a.tif")
    assert picture.notes == ("TIFF tags that will not be kept: 65000",)
    picture.write(tmp_path / "b.tif", picture.pixels ^ 1)
    with Image.open(tmp_path / "b.tif") as after:
        found: Any = after.tag_v2  # type: ignore[attr-defined]
        assert [found[tag] for tag in (270, 305, 315, 282, 283, 296)] == [
            "description",
            "software",
            "artist",
            118.5,
            59.25,
            3,
        ]
        assert after.info["compression"] == (compression or "raw")
    picture.write(tmp_path / "c.png", picture.pixels)
    with Image.open(tmp_path / "c.png") as image:
        assert image.info["dpi"] == pytest.approx((118.5 * 2.54, 59.25 * 2.54), rel=1e-3)


def test_tiff_of_16_bits_where_white_is_zero_stays_so(tmp_path: Path) -> None:
    Image.fromarray(gradient(np.uint16)).save(tmp_path / "a.tif", tiffinfo={262: 0})
    picture = read(tmp_path / "a.tif")
    picture.write(tmp_path / "b.tif", picture.pixels ^ 1)
    with Image.open(tmp_path / "b.tif") as after:
        assert after.tag_v2[262] == 0  # type: ignore[attr-defined]
        np.testing.assert_array_equal(np.asarray(after), gradient(np.uint16) ^ 1)


def test_big_endian_tiff(tmp_path: Path) -> None:
    image = Image.frombytes("I;16B", (12, 12), gradient(np.uint16).astype(">u2").tobytes())
    image.save(tmp_path / "a.tif")
    assert (tmp_path / "a.tif").read_bytes().startswith(b"MM")
    np.testing.assert_array_equal(read(tmp_path / "a.tif").pixels, gradient(np.uint16))
    assert read(tmp_path / "a.tif").pixels.dtype.isnative


def test_jpeg_is_read_as_lossy_and_written_only_when_asked(tmp_path: Path) -> None:
    Image.fromarray(gradient(colours=(3,))).save(tmp_path / "a.jpg", dpi=(100, 100))
    picture = read(tmp_path / "a.jpg")
    assert (picture.format.name, picture.lossy) == ("jpeg", True)
    with pytest.raises(ConfigurationError, match=r"JPEG changes the pixels.*write \.png"):
        picture.write(tmp_path / "b.jpg", picture.pixels)
    assert not (tmp_path / "b.jpg").exists()
    picture.write(tmp_path / "b.jpg", picture.pixels, lossy=True)
    assert np.abs(read(tmp_path / "b.jpg").pixels.astype(int) - picture.pixels).mean() < 5
    picture.write(tmp_path / "b.png", picture.pixels)
    np.testing.assert_array_equal(read(tmp_path / "b.png").pixels, picture.pixels)


def test_jpeg_inside_tiff_is_lossy_and_is_not_compressed_so_again(tmp_path: Path) -> None:
    Image.fromarray(gradient(side=32)).save(tmp_path / "a.tif", compression="jpeg")
    picture = read(tmp_path / "a.tif")
    assert picture.lossy
    picture.write(tmp_path / "b.tif", picture.pixels)
    assert not read(tmp_path / "b.tif").lossy


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".tif"])
def test_a_turned_picture_is_read_upright_and_stays_so(suffix: str, tmp_path: Path) -> None:
    image = Image.fromarray(gradient()[:, :8])
    exif = Image.Exif()
    exif[274] = 6
    image.save(tmp_path / f"a{suffix}", exif=exif.tobytes() if suffix != ".tif" else exif)
    with Image.open(tmp_path / f"a{suffix}") as stored:
        raw = np.asarray(image if suffix == ".tif" else stored)  # Pillow turns TIFF itself
    expected = np.rot90(raw, -1)
    picture = read(tmp_path / f"a{suffix}")
    np.testing.assert_array_equal(picture.pixels, expected)
    picture.write(tmp_path / "b.png", picture.pixels)
    with Image.open(tmp_path / "b.png") as written:
        np.testing.assert_array_equal(np.asarray(ImageOps.exif_transpose(written)), expected)


def test_palettes_and_transparent_colours_are_resolved_with_a_note(tmp_path: Path) -> None:
    colour = Image.fromarray(gradient(colours=(3,)))
    palette = colour.quantize(16)
    cases: dict[str, Any] = {
        "palette": (palette, {}, "palette turned into RGB, 8 bits", palette.convert("RGB")),
        "index": (palette, {"transparency": 3}, "palette turned into RGBA, 8 bits", palette.convert("RGB")),
        "key": (colour, {"transparency": (0, 0, 1)}, "transparent colour turned into RGBA, 8 bits", colour),
        "bit": (Image.fromarray(gradient() > 99), {}, "one bit a pixel turned into L, 8 bits", None),
    }
    for name, (image, options, note, expected) in cases.items():
        image.save(tmp_path / f"{name}.png", **options)
        picture = read(tmp_path / f"{name}.png")
        assert picture.notes == (note,), name
        if expected is not None:
            np.testing.assert_array_equal(picture.pixels, np.asarray(expected))
        picture.write(tmp_path / f"{name} written.png", picture.pixels)
    with Image.open(tmp_path / "index written.png") as written, Image.open(tmp_path / "index.png") as before:
        np.testing.assert_array_equal(np.asarray(written), np.asarray(before.convert("RGBA")))


def deep_colour_png() -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(7))) + chunk(b"IEND", b"")


def deep_colour_tiff() -> bytes:
    # One pixel, from byte 8 on; its three depths follow it, then the directory.
    entries = [(256, 3, 1, 1), (257, 3, 1, 1), (258, 3, 3, 14), (259, 3, 1, 1), (262, 3, 1, 2), (273, 4, 1, 8)]
    entries += [(277, 3, 1, 3), (278, 3, 1, 1), (279, 4, 1, 6)]
    directory = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    data = struct.pack("<6H", 1, 2, 3, 16, 16, 16)
    return b"II*\0" + struct.pack("<I", 20) + data + struct.pack("<H", len(entries)) + directory + bytes(4)


def test_what_would_not_come_back_is_refused(tmp_path: Path) -> None:
    grey = Image.fromarray(gradient())
    (tmp_path / "deep.png").write_bytes(deep_colour_png())
    (tmp_path / "deep.tif").write_bytes(deep_colour_tiff())
    for name in ("deep.png", "deep.tif"):  # Pillow would halve them without a word
        assert np.asarray(Image.open(tmp_path / name)).dtype == np.uint8
    grey.save(tmp_path / "pages.tif", save_all=True, append_images=[grey])
    grey.save(tmp_path / "animated.png", save_all=True, append_images=[ImageOps.invert(grey)])
    grey.convert("F").save(tmp_path / "float.tif")
    grey.convert("I").save(tmp_path / "long.tif")
    grey.convert("CMYK").save(tmp_path / "cmyk.jpg")
    expected = {
        "deep.png": "8 bits, or 16 bits of grey",
        "deep.tif": "8 bits, or 16 bits of grey",
        "pages.tif": "several frames or pages",
        "animated.png": "several frames or pages",
        "float.tif": "got F",
        "long.tif": "got I",
        "cmyk.jpg": "got CMYK",
    }
    for name, message in expected.items():
        with pytest.raises(DataError, match=message) as caught:
            read(tmp_path / name)
        assert str(caught.value).startswith(str(tmp_path / name))
        assert "\n" not in str(caught.value)


def test_bombs_are_refused_before_they_are_decoded(tmp_path: Path) -> None:
    small = io.BytesIO()
    Image.fromarray(gradient()).save(small, "PNG")
    for side in (8193, 10_000, 100_000):  # beyond our limit, where Pillow warns, where Pillow refuses
        assert side**2 > MAX_PIXELS
        header = b"IHDR" + struct.pack(">II", side, side) + small.getvalue()[24:29]
        content = small.getvalue()[:12] + header + struct.pack(">I", zlib.crc32(header)) + small.getvalue()[33:]
        (tmp_path / "bomb.png").write_bytes(content)
        with pytest.raises(
            DataError, match=r"expected 1 to 67,108,864 pixels|not a valid PNG file: Image size .* exceeds limit"
        ):
            read(tmp_path / "bomb.png")
    tiff = io.BytesIO()
    Image.fromarray(gradient()).save(tiff, "TIFF")
    large = tiff.getvalue().replace(struct.pack("<HHII", 256, 4, 1, 12), struct.pack("<HHII", 256, 4, 1, 1 << 30))
    assert large != tiff.getvalue()
    (tmp_path / "bomb.tif").write_bytes(large)
    with pytest.raises(DataError, match="pixels"):
        read(tmp_path / "bomb.tif")


def test_files_that_are_no_images_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.dcm").write_text("not an image\n" * 50)
    (tmp_path / "torn.png").write_bytes(deep_colour_png()[:40])
    (tmp_path / "bare.jpg").write_bytes(b"\xff\xd8\xff")
    (tmp_path / "bare.bmp").write_bytes(b"BM")
    (tmp_path / "bare.tif").write_bytes(b"II*\0")
    (tmp_path / "broken link.png").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "folder.png").mkdir()
    for path in [*tmp_path.iterdir(), tmp_path / "missing.png", tmp_path / "nul\0.png", tmp_path / ("x" * 300)]:
        with pytest.raises(DataError) as caught:
            read(path)
        assert str(caught.value).startswith(str(path))
        assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission_is_refused(tmp_path: Path) -> None:
    Image.fromarray(gradient()).save(tmp_path / "a.png")
    (tmp_path / "a.png").chmod(0)
    with pytest.raises(DataError, match="Permission denied"):
        read(tmp_path / "a.png")


def test_links_are_followed_and_names_do_not_matter(tmp_path: Path) -> None:
    Image.fromarray(gradient()).save(tmp_path / "a.png")
    (tmp_path / "link.tif").symlink_to(tmp_path / "a.png")
    assert read(tmp_path / "link.tif").format.name == "png"


def test_nothing_is_overwritten_unless_forced(tmp_path: Path) -> None:
    Image.fromarray(gradient()).save(tmp_path / "a.png")
    picture = read(tmp_path / "a.png")
    (tmp_path / "dangling.png").symlink_to(tmp_path / "nowhere")
    before = (tmp_path / "a.png").read_bytes()
    for name in ("a.png", "dangling.png"):
        with pytest.raises(ConfigurationError, match="is there already; choose another name or force"):
            picture.write(tmp_path / name, picture.pixels ^ 1)
    assert (tmp_path / "a.png").read_bytes() == before
    picture.write(tmp_path / "a.png", picture.pixels ^ 1, force=True)
    np.testing.assert_array_equal(read(tmp_path / "a.png").pixels, gradient() ^ 1)
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ConfigurationError, match="is a folder"):
        picture.write(tmp_path / "folder.png", picture.pixels, force=True)


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.fromarray(gradient()).save(tmp_path / "a.png")
    picture = read(tmp_path / "a.png")
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot write"):
        picture.write(tmp_path / "file" / "b.png", picture.pixels)
    monkeypatch.setattr(
        Image, "fromarray", lambda values, of=Image.fromarray: of(values // 2 * 2)
    )  # an encoder that lies
    with pytest.raises(DataError, match="does not read back"):
        picture.write(tmp_path / "b.png", picture.pixels)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "file"]


@pytest.mark.parametrize(
    ("dtype", "name", "message"),
    [
        (np.uint16, "b.bmp", "BMP cannot hold 16 bits"),
        (np.uint8, "b.gif", "expected a name that ends in"),
        (np.uint8, "b.dcm", "expected a name that ends in"),
        (np.uint8, "b", "expected a name that ends in"),
    ],
)
def test_formats_that_cannot_hold_the_picture_are_refused(dtype: Any, name: str, message: str, tmp_path: Path) -> None:
    Image.fromarray(gradient(dtype)).save(tmp_path / "a.png")
    picture = read(tmp_path / "a.png")
    with pytest.raises(ConfigurationError, match=message):
        picture.write(tmp_path / name, picture.pixels)


def test_pixels_are_not_written_to(tmp_path: Path) -> None:
    Image.fromarray(gradient()).save(tmp_path / "a.png")
    with pytest.raises(ValueError, match="read-only"):
        read(tmp_path / "a.png").pixels[0] = 1


@given(arrays(np.float64, (3, 3), elements=st.floats(-1e6, 1e6)))
def test_nearest_rounds_and_clips(values: NDArray[np.float64]) -> None:
    file = io.BytesIO()
    Image.fromarray(np.zeros((3, 3), np.uint8)).save(file, "PNG")
    found = RASTERS[0].read(Path("a.png"), file.getvalue()).nearest(values)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, [[min(255, max(0, round(value))) for value in row] for row in values])
