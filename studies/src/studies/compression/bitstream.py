"""Files of the codec: every block above its floor, entropy-coded; the certificate holds for the decoded pixels."""

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
from studies.compression.arms import Arm
from studies.compression.blocks import Grey, cut, joined, read_grey
from studies.compression.codec import HYPER, LEVELS, PIXELS, SIDE, SYMBOL_LIMIT, Codec, Symbols
from studies.compression.study import CODEC, CODECS, codec_folder, read_codec
from studies.records import fingerprint_of

MAGIC = b"SWBLOCK2"
HEADER = struct.Struct("<8s8sdIIII")
"""Magic, the codec's fingerprint, floor in dB, height, width, words of the range coder, and bytes of the map of blocks
that are stored raw. The check sum of header, body and decoded pixels follows."""
CHECK = struct.Struct("<II")
HYPER_LIMIT = 1000
LARGEST_PICTURE = 2**26  # pixels, with padding
AT_ONCE = 4096  # blocks
QuantizedLaplace = constriction.stream.model.QuantizedLaplace


@dataclass(frozen=True)
class FloorCertificate:
    """The floor that a compressed file keeps, measured on the pixels that it decodes to."""

    floor: float
    """In dB, asked for in every block."""
    lowest: float
    """PSNR of the worst block, in dB; infinite where all blocks are exact."""
    blocks: int
    raw_blocks: int
    """Blocks stored raw, since no gain brings them above the floor for fewer bits."""
    file_bytes: int
    bits_per_pixel: float
    counted_bits: float
    """Bits of the coded part by the entropy model."""
    coded_bytes: int
    """Bytes of the coded part in the file."""
    file_sha256: str
    source_sha256: str
    """Of the 8-bit pixels that were compressed."""
    pixels_sha256: str
    """Of those that the file decodes to."""

    @property
    def message(self) -> str:
        """The verdict in a sentence."""
        return (
            f"every one of {self.blocks:,} blocks has at least {self.lowest:.2f} dB, {self.floor:g} were asked for: "
            f"{self.file_bytes:,} bytes, {self.bits_per_pixel:.3f} bits a pixel; {self.raw_blocks:,} blocks stored raw"
        )

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain values."""
        return {**asdict(self), "lowest": None if math.isinf(self.lowest) else self.lowest}


@torch.no_grad()
def encode(codec: Codec, symbols: Symbols) -> NDArray[np.uint32]:
    """The words of some blocks' symbols."""
    coder = constriction.stream.queue.RangeEncoder()
    level, hyper, coefficients = (each.numpy().astype(np.int32) for each in symbols)
    coder.encode(hyper.ravel(), *_hyper_model(codec, len(level)))
    coder.encode(level, *_level_model(codec, symbols))
    coder.encode(coefficients.ravel(), *_coefficient_model(codec, symbols))
    words: NDArray[np.uint32] = coder.get_compressed()
    return words


@torch.no_grad()
def decode(codec: Codec, words: NDArray[np.uint32], blocks: int) -> Symbols:
    """The symbols of so many blocks."""
    coder = constriction.stream.queue.RangeDecoder(words)
    hyper = torch.from_numpy(coder.decode(*_hyper_model(codec, blocks))).double().view(-1, HYPER)
    known = Symbols(torch.empty(0), hyper, torch.empty(0))
    known = known._replace(level=torch.from_numpy(coder.decode(*_level_model(codec, known))).double())
    coefficients = torch.from_numpy(coder.decode(*_coefficient_model(codec, known))).double()
    return known._replace(coefficients=coefficients.view(-1, PIXELS))


Model = tuple[Any, NDArray[np.float64], NDArray[np.float64]]
"""A family of distributions, and their means and scales, as the coder takes them."""


def _hyper_model(codec: Codec, blocks: int) -> Model:
    scales = np.tile(codec.hyper_scales().exp().numpy(), blocks)
    return QuantizedLaplace(-HYPER_LIMIT, HYPER_LIMIT), np.zeros_like(scales), scales


def _level_model(codec: Codec, symbols: Symbols) -> Model:
    expected = codec.expected_level(symbols).numpy()
    return QuantizedLaplace(0, LEVELS - 1), expected, np.full_like(expected, codec.level_scale().exp().item())


def _coefficient_model(codec: Codec, symbols: Symbols) -> Model:
    scales = codec.coefficient_scales(symbols).exp().numpy().ravel()
    return QuantizedLaplace(-SYMBOL_LIMIT, SYMBOL_LIMIT), np.zeros_like(scales), scales


def fingerprint(codec: Codec) -> bytes:
    """Eight bytes that identify a codec: a file can be decoded only by the codec that made it."""
    return bytes.fromhex(fingerprint_of(codec))


@torch.no_grad()
def cheapest_above_floor(codec: Codec, blocks: Tensor, real: Tensor) -> tuple[Symbols, Tensor]:
    """Try every gain for every block ``(B, PIXELS)``: the symbols of the cheapest above the floor, and their bits.

    Bits are infinite where no gain is above the floor for less than the pixels take. ``real`` masks the pixels that are
    not padding.
    """
    best = torch.full((len(blocks),), math.inf, dtype=torch.float64)
    chosen: Symbols | None = None
    for level in torch.arange(LEVELS).double():
        coded = codec(blocks, level.expand(len(blocks)))
        symbols = coded.symbols
        errors = block_errors(codec.shown(symbols), blocks, real) / codec.allowed
        held = (symbols.coefficients.abs().amax(1) < SYMBOL_LIMIT) & (symbols.hyper.abs().amax(1) < HYPER_LIMIT)
        better = (errors <= 1) & held & (coded.bits < best.clamp_max(8 * PIXELS))
        best = torch.where(better, coded.bits, best)
        if chosen is None:
            chosen = symbols
        rows = better.unsqueeze(1)
        chosen = Symbols(
            torch.where(better, symbols.level, chosen.level),
            torch.where(rows, symbols.hyper, chosen.hyper),
            torch.where(rows, symbols.coefficients, chosen.coefficients),
        )
    assert chosen is not None
    return chosen, best


def block_errors(shown: Tensor, blocks: Tensor, real: Tensor) -> Tensor:
    """Mean squared error of the real pixels of each block, peak 1, ``(B,)``."""
    squares = (shown.double() - blocks.double()).square() * real
    return squares.sum(1) / real.sum(1) / 255**2


def compress(codec: Codec, picture: Grey) -> tuple[bytes, FloorCertificate]:
    """Compress a picture with every block above the floor; returns the file and its certificate."""
    height, width = picture.shape
    _check_size(height, width)
    blocks = cut(picture).reshape(-1, PIXELS)
    real = cut(np.ones_like(picture), fill=0).reshape(-1, PIXELS)
    tried = [
        cheapest_above_floor(codec, *each) for each in zip(blocks.split(AT_ONCE), real.split(AT_ONCE), strict=True)
    ]
    bits = torch.cat([costs for _, costs in tried])
    coded = bits < math.inf
    symbols = Symbols(*(torch.cat(each)[coded] for each in zip(*(symbols for symbols, _ in tried), strict=True)))
    words = encode(codec, symbols) if coded.any() else np.empty(0, np.uint32)
    raw = blocks[~coded].numpy().tobytes()
    where = np.packbits(coded.numpy()).tobytes() if raw else b""
    header = HEADER.pack(MAGIC, fingerprint(codec), codec.floor, height, width, len(words), len(where))
    body = words.tobytes() + where + raw
    decoded = _pixels(codec, symbols, coded, blocks[~coded], height, width)
    data = header + CHECK.pack(zlib.crc32(header + body), zlib.crc32(decoded.tobytes())) + body
    decoded = decompress(codec, data)
    worst = float(block_errors(cut(decoded).reshape(-1, PIXELS), blocks, real).max())
    lowest = math.inf if worst == 0 else -10 * math.log10(worst)
    if lowest < codec.floor:
        raise DataError(f"a block of the file would decode to {lowest:.3f} dB, below {codec.floor:g}: not written")
    certificate = FloorCertificate(
        floor=codec.floor,
        lowest=lowest,
        blocks=len(blocks),
        raw_blocks=int((~coded).sum()),
        file_bytes=len(data),
        bits_per_pixel=8 * len(data) / (height * width),
        counted_bits=float(bits[coded].sum()),
        coded_bytes=4 * len(words),
        file_sha256=hashlib.sha256(data).hexdigest(),
        source_sha256=hashlib.sha256(np.ascontiguousarray(picture).tobytes()).hexdigest(),
        pixels_sha256=hashlib.sha256(decoded.tobytes()).hexdigest(),
    )
    return data, certificate


def decompress(codec: Codec, data: bytes) -> Grey:
    """The picture of a file; a damaged one, or one that decodes to other pixels than were certified, is refused."""
    made_by, height, width, words, where, sums = _header(data)
    if made_by != fingerprint(codec):
        raise DataError("this file was made by another codec: give the run that compressed it")
    body = data[HEADER.size + CHECK.size :]
    if zlib.crc32(data[: HEADER.size] + body) != sums[0]:
        raise DataError("this file is damaged: its check sum is wrong")
    blocks = _blocks(height) * _blocks(width)
    coded, raw = torch.ones(blocks, dtype=torch.bool), np.frombuffer(body[4 * words + where :], np.uint8)
    if where:
        flags = np.unpackbits(np.frombuffer(body[4 * words : 4 * words + where], np.uint8), count=blocks)
        coded = torch.from_numpy(flags.astype(bool))
    if len(coded) != blocks or len(raw) != PIXELS * int((~coded).sum()):
        raise DataError(f"expected {blocks:,} blocks in this file, got another number: it is damaged")
    try:
        symbols = decode(codec, np.frombuffer(body[: 4 * words], np.uint32), int(coded.sum()))
    except (ValueError, AssertionError) as error:
        raise DataError(f"this file is damaged: {error}") from error
    picture = _pixels(codec, symbols, coded, torch.from_numpy(raw.reshape(-1, PIXELS).copy()), height, width)
    if zlib.crc32(picture.tobytes()) != sums[1]:
        raise DataError("this file decodes to other pixels here than where it was made: decode it there")
    return picture


@torch.no_grad()
def _pixels(codec: Codec, symbols: Symbols, coded: Tensor, raw: Tensor, height: int, width: int) -> Grey:
    blocks = torch.empty((len(coded), PIXELS), dtype=torch.uint8)
    parts = zip(*(each.split(AT_ONCE) for each in symbols), strict=True)
    blocks[coded] = torch.cat([torch.empty((0, PIXELS), dtype=torch.uint8), *(codec.shown(Symbols(*p)) for p in parts)])
    blocks[~coded] = raw
    return np.ascontiguousarray(joined(blocks.view(_blocks(height), -1, PIXELS), height, width))


def _blocks(length: int) -> int:
    return -(-length // SIDE)


def _check_size(height: int, width: int) -> None:
    if not 0 < _blocks(height) * _blocks(width) * PIXELS <= LARGEST_PICTURE:
        raise DataError(f"expected a picture of at most {LARGEST_PICTURE:,} pixels, got {width} x {height}")


def _header(data: bytes) -> tuple[bytes, int, int, int, int, tuple[int, int]]:
    if len(data) < HEADER.size + CHECK.size or not data.startswith(MAGIC):
        raise DataError("expected a file of studies compression --compress, got something else")
    _, made_by, _, height, width, words, where = HEADER.unpack_from(data)
    _check_size(height, width)
    return made_by, height, width, words, where, CHECK.unpack_from(data, HEADER.size)


def compress_file(run: Path, arm: str | None, seed: int, image: Path, file: Path) -> FloorCertificate:
    """Compress an image with a codec of a run, and write the certificate beside the file."""
    codecs = sorted(path.parent for path in run.glob(f"{CODECS}/*/{CODEC}"))
    if arm is not None:
        codecs = [path for path in codecs if path == codec_folder(run, Arm.parse(arm), seed)]
    if len(codecs) != 1:
        found = f"{len(codecs)}: name one with --arm and --seed" if codecs else "none: train one first"
        raise CheckpointError(f"{run}: expected one codec{f' of {arm}, seed {seed}' if arm else ''}, found {found}")
    data, certificate = compress(read_codec(codecs[0]), read_grey(image, strict=True))
    with atomic(file) as temporary:
        temporary.write_bytes(data)
    write_json(file.with_name(f"{file.name}.json"), certificate.to_dict())
    return certificate


def decompress_file(run: Path, file: Path, image: Path) -> str:
    """Give back the image of a file, by the codec of the run that made it; returns what was done in words."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error
    made_by, *_ = _header(data)
    for path in sorted(run.glob(f"{CODECS}/*/{CODEC}")):
        codec = read_codec(path.parent)
        if fingerprint(codec) == made_by:
            picture = decompress(codec, data)
            with atomic(image) as temporary:
                Image.fromarray(picture).save(temporary, format="png")
            return f"{image}: {picture.shape[1]} x {picture.shape[0]} pixels, by the codec {path.parent.name}"
    raise CheckpointError(f"{run}: none of its codecs made {file}; give the folder of the run that did with --out")
