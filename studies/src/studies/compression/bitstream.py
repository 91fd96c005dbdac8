"""Files of the codec: every block at its floor, entropy-coded, and decoded to the pixels that were promised."""

import hashlib
import math
import struct
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import constriction
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from samplewise.errors import CheckpointError, DataError
from samplewise.storage import atomic, write_json
from studies.compression.blocks import Grey, cut, joined, read_grey
from studies.compression.codec import HYPER, LEVELS, PIXELS, SIDE, SYMBOL_LIMIT, Codec, Symbols
from studies.compression.study import CODECS, read_codec

MAGIC = b"SWBLOCK1"
HEADER = struct.Struct("<8s8sdIIIII")
"""Magic, the codec's fingerprint, floor in dB, height, width, words of the range coder, bytes that say which blocks are
stored as their pixels, and the check sum of the symbols."""
HYPER_LIMIT = 1000
LARGEST = 2**26  # pixels of a picture


@dataclass(frozen=True)
class FloorCertificate:
    """What holds for a compressed file, measured on the pixels that it decodes to."""

    floor: float
    """In dB, asked for in every block."""
    lowest: float
    """PSNR of the worst block, in dB; infinite where all blocks are exact."""
    blocks: int
    sent_as_is: int
    """Blocks that no gain brings above the floor, stored as their pixels."""
    file_bytes: int
    bits_per_pixel: float
    counted_bits: float
    """What the entropy model says of the coded part."""
    coded_bytes: int
    """What the coded part takes."""
    file_sha256: str
    pixels_sha256: str

    @property
    def message(self) -> str:
        """The verdict in a sentence."""
        return (
            f"every one of {self.blocks:,} blocks has at least {self.lowest:.2f} dB, {self.floor:g} were asked for: "
            f"{self.file_bytes:,} bytes, {self.bits_per_pixel:.3f} bits a pixel; {self.sent_as_is:,} blocks as they are"
        )

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain values."""
        return {**asdict(self), "lowest": None if math.isinf(self.lowest) else self.lowest}


def encode(codec: Codec, symbols: Symbols) -> NDArray[np.uint32]:
    """The words of some blocks' symbols."""
    models, coder = _Models(codec), constriction.stream.queue.RangeEncoder()
    level, hyper, coefficients = (each.numpy().astype(np.int32) for each in symbols)
    coder.encode(level, models.level)
    coder.encode(hyper.ravel(), models.hyper, *models.hyper_parameters(len(level)))
    coder.encode(coefficients.ravel(), models.coefficients, *models.coefficient_parameters(symbols))
    words: NDArray[np.uint32] = coder.get_compressed()
    return words


def decode(codec: Codec, words: NDArray[np.uint32], blocks: int) -> Symbols:
    """The symbols of so many blocks."""
    models, coder = _Models(codec), constriction.stream.queue.RangeDecoder(words)
    level = torch.from_numpy(coder.decode(models.level, blocks)).double()
    hyper = torch.from_numpy(coder.decode(models.hyper, *models.hyper_parameters(blocks))).double().view(-1, HYPER)
    known = Symbols(level, hyper, torch.empty(0))
    coefficients = coder.decode(models.coefficients, *models.coefficient_parameters(known))
    return Symbols(level, hyper, torch.from_numpy(coefficients).double().view(-1, PIXELS))


class _Models:
    """The entropy models of a codec as the coder takes them."""

    def __init__(self, codec: Codec) -> None:
        model = constriction.stream.model
        self.codec = codec
        self.level = model.Categorical(codec.level_probabilities().detach().numpy(), perfect=False)
        self.hyper = model.QuantizedLaplace(-HYPER_LIMIT, HYPER_LIMIT)
        self.coefficients = model.QuantizedLaplace(-SYMBOL_LIMIT, SYMBOL_LIMIT)

    @torch.no_grad()
    def hyper_parameters(self, blocks: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        scales = np.tile(self.codec.hyper_scales().exp().numpy(), blocks)
        return np.zeros_like(scales), scales

    @torch.no_grad()
    def coefficient_parameters(self, symbols: Symbols) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        scales = self.codec.coefficient_scales(symbols).exp().numpy().ravel()
        return np.zeros_like(scales), scales


def fingerprint(codec: Codec) -> bytes:
    """Eight bytes that tell codecs apart: a file is decoded by the one that made it."""
    digest = hashlib.blake2b(digest_size=8)
    for name, value in sorted(codec.state_dict().items()):
        digest.update(name.encode() + value.numpy().tobytes())
    return digest.digest()


@torch.no_grad()
def cheapest_above_floor(codec: Codec, blocks: Tensor, real: Tensor) -> tuple[Symbols, Tensor]:
    """Try every gain for every block ``(B, PIXELS)``: the symbols of the cheapest above the floor, and their bits.

    Bits are infinite where no gain is above the floor for less than the pixels take. ``real`` masks the pixels that are
    not padding.
    """
    levels = torch.arange(LEVELS).double()
    tried = [codec(blocks, level.expand(len(blocks))) for level in levels]
    costs = []
    for coded in tried:
        symbols = coded.symbols
        errors = block_errors(codec.shown(symbols), blocks, real) / codec.allowed
        held = (symbols.coefficients.abs().amax(1) < SYMBOL_LIMIT) & (symbols.hyper.abs().amax(1) < HYPER_LIMIT)
        worth = coded.bits < 8 * PIXELS  # else the pixels themselves take less
        costs.append(torch.where((errors <= 1) & held & worth, coded.bits, math.inf))
    bits, best = torch.stack(costs).min(0)
    rows = torch.arange(len(blocks))
    return Symbols(
        *(torch.stack(each)[best, rows] for each in zip(*(each.symbols for each in tried), strict=True))
    ), bits


def block_errors(shown: Tensor, blocks: Tensor, real: Tensor) -> Tensor:
    """Mean squared error of the real pixels of each block, peak 1, ``(B,)``."""
    squares = (shown.double() - blocks.double()).square() * real
    return squares.sum(1) / real.sum(1) / 255**2


def compress(codec: Codec, picture: Grey) -> tuple[bytes, FloorCertificate]:
    """A picture as a file with every block above the floor, and what was measured on what the file decodes to."""
    height, width = picture.shape
    blocks = cut(picture).reshape(-1, PIXELS)
    real = cut(np.ones_like(picture), fill=0).reshape(-1, PIXELS)
    symbols, bits = cheapest_above_floor(codec, blocks, real)
    above = bits < math.inf
    coded = Symbols(*(each[above] for each in symbols))
    words = encode(codec, coded) if above.any() else np.empty(0, np.uint32)
    exact = zlib.compress(blocks[~above].numpy().tobytes(), 9) if not above.all() else b""
    where = zlib.compress(np.packbits(above.numpy()).tobytes(), 9) if exact else b""
    header = HEADER.pack(MAGIC, fingerprint(codec), codec.floor, height, width, len(words), len(where), _check(coded))
    data = header + words.tobytes() + where + exact
    shown = decompress(codec, data)
    worst = float(block_errors(cut(shown).reshape(-1, PIXELS), blocks, real).max())
    lowest = math.inf if worst == 0 else -10 * math.log10(worst)
    if lowest < codec.floor:
        raise DataError(f"a block of the file would decode to {lowest:.3f} dB, below {codec.floor:g}: not written")
    certificate = FloorCertificate(
        floor=codec.floor,
        lowest=lowest,
        blocks=len(blocks),
        sent_as_is=int((~above).sum()),
        file_bytes=len(data),
        bits_per_pixel=8 * len(data) / (height * width),
        counted_bits=float(bits[above].sum()),
        coded_bytes=4 * len(words),
        file_sha256=hashlib.sha256(data).hexdigest(),
        pixels_sha256=hashlib.sha256(np.ascontiguousarray(shown).tobytes()).hexdigest(),
    )
    return data, certificate


@torch.no_grad()
def decompress(codec: Codec, data: bytes) -> Grey:
    """The picture of a file."""
    made_by, height, width, words, where, check = _header(data)
    if made_by != fingerprint(codec):
        raise DataError("this file was made by another codec: give the run that compressed it")
    rows, columns = -(-height // SIDE), -(-width // SIDE)
    body = memoryview(data)[HEADER.size :]
    try:
        coded = np.frombuffer(body[: 4 * words], np.uint32)
        above = np.ones(rows * columns, bool)
        if where:
            packed = zlib.decompress(body[4 * words : 4 * words + where])
            above = np.unpackbits(np.frombuffer(packed, np.uint8), count=rows * columns).astype(bool)
        symbols = decode(codec, coded, int(above.sum())) if above.any() else None
        pixels = zlib.decompress(body[4 * words + where :]) if where else b""
        exact = np.frombuffer(pixels, np.uint8).reshape(-1, PIXELS)
    except (ValueError, AssertionError, zlib.error, MemoryError) as error:
        raise DataError(f"this file is damaged: {error}") from error
    if symbols is not None and _check(symbols) != check:
        raise DataError("this file is damaged: what was decoded is not what was encoded")
    blocks = torch.empty((rows * columns, PIXELS), dtype=torch.uint8)
    if symbols is not None:
        blocks[above] = codec.shown(symbols)
    blocks[~above] = torch.from_numpy(exact.copy())
    return joined(blocks.view(rows, columns, PIXELS), height, width)


def _header(data: bytes) -> tuple[bytes, int, int, int, int, int]:
    if len(data) < HEADER.size or not data.startswith(MAGIC):
        raise DataError("expected a file of studies compression --compress, got something else")
    _, made_by, _, height, width, words, where, check = HEADER.unpack_from(data)
    if not 0 < height * width <= LARGEST:
        raise DataError(f"this file is damaged: a picture of {width} x {height} pixels")
    return made_by, height, width, words, where, check


def _check(symbols: Symbols) -> int:
    return zlib.crc32(b"".join(each.numpy().astype(np.int32).tobytes() for each in symbols))


def compress_file(run: Path, arm: str | None, seed: int, image: Path, file: Path) -> FloorCertificate:
    """Compress an image with a codec of a run, and write the certificate beside the file."""
    wanted = f"{CODECS}/{arm.replace(':', '-') if arm else 'penalty-*'}-{seed}"
    folders = sorted(run.glob(wanted))
    if not folders:
        raise CheckpointError(f"{run}: no codec of {arm or 'a penalty'} with seed {seed}: train it, or name its --arm")
    data, certificate = compress(read_codec(folders[-1]), read_grey(image))
    with atomic(file) as temporary:
        temporary.write_bytes(data)
    write_json(file.with_name(f"{file.name}.json"), certificate.to_dict())
    return certificate


def decompress_file(run: Path, file: Path, image: Path) -> str:
    """Give back the image of a file, by the codec of the run that made it; returns what was done in words."""
    data = _read(file)
    made_by = data[len(MAGIC) : len(MAGIC) + 8]
    for folder in sorted(run.glob(f"{CODECS}/*")):
        codec = read_codec(folder)
        if fingerprint(codec) == made_by:
            picture = decompress(codec, data)
            with atomic(image) as temporary:
                Image.fromarray(picture).save(temporary, format="png")
            return f"{image}: {picture.shape[1]} x {picture.shape[0]} pixels, by the codec {folder.name}"
    _header(data)
    raise CheckpointError(f"{run}: none of its codecs made {file}; give the folder of the run that did with --out")


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error
