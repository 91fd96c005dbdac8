"""The network that draws a message into a picture and reads it back, in NumPy, and the file of its weights.

It is small enough for NumPy: a program that marks and reads images needs no training framework. The ``studies`` package
trains it; both agree to the last digits of float32.
"""

import functools
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from floormark.disk import atomic, cannot_write, check_regular, decoding
from floormark.errors import ConfigurationError
from floormark.filters import Picture, gaussian, resized
from floormark.patches import above_image, calmness
from floormark.periods import whitened

NETWORK_FORMAT = "floormark-network-1"
SHIPPED_FILE = "lattice.safetensors"  # the trained network that comes with the package, in its folder
CELL = 8  # side of a cell in pixels: that of a JPEG block
GROUPS = 8  # of channels for group norm
TILE = 64  # side in pixels of the tile that repeats
CELLS_ACROSS = TILE // CELL
SLOTS = 4  # bits that are written into each cell
BASIS_SIDE = 16
"""Side in pixels of the basis patterns for bits: twice a cell, so that neighbours overlap."""
PILOT_AMPLITUDE = 0.5  # of the pilot, relative to the message: a fifth of the energy
PILOT_BAND = 5.0, 22.0
"""Lowest and highest frequency of a pilot, in cycles per tile: lungs are full of lower ones, JPEG removes higher."""
UNIT_CHANGE = 0.02  # change of a pixel where the gain is one
UNSHUFFLED = 4  # side in pixels of the squares that become the channels of the first layers
NORM_EPSILON = 1e-5  # that group norm adds to a variance
MATCHED_SIGMA = 0.7  # pixels: the matched filter takes smoother structure for the picture's
BAND_VALUES = 1 << 21  # values that a convolution gathers at once: all of a large picture would fill the memory

Array = NDArray[np.float32]
Weights = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Encoding:
    """A message encoded for a picture, before the emphasis of its bits is chosen."""

    signs: Array  # 1 or -1 for the bit of each slot, (4, h, w)
    amounts: Array  # how strongly each slot is drawn, (4, h, w)
    pilot: Array  # (H, W)
    gain: Array  # how much a pixel may change, (H, W)


@dataclass(frozen=True, eq=False)
class Lattice:
    """A tile of 64 x 64 pixels that carries the whole message, laid side by side all over the picture.

    The residual is ``gain(picture) * (message pattern + pilot)``. The gain is what the floors of the patches allow,
    times a learned factor. The message pattern is a sum of learned basis patterns, linear in the bits. Each bit has its
    slots in the tile; the network chooses the amplitude of each slot of each tile, always with the sign of its bit. So
    the mark stays periodic: its periods show in the autocorrelation of an image that was cropped, resized and rotated,
    and the known pilot tells where a tile begins. The decoder gives a log-likelihood ratio for every slot; those of a
    bit are added over all tiles.

    Pictures are grey, ``(H, W)`` in [0, 1], with sides that are multiples of 8.
    """

    weights: Weights
    """By their names in training."""
    bits: int
    """Length of a message, at most 256."""
    width: int
    """Channels of the first convolutions, a multiple of 8."""
    arguments: Mapping[str, int]
    """Arguments with which training builds the same network."""

    @classmethod
    def of(cls, arguments: Mapping[str, int], weights: Weights) -> Self:
        """The network of a file, or a ``ValueError`` that says what does not fit."""
        expected = {"bits", "size", "channels", "width"}
        if set(arguments) != expected or any(type(value) is not int for value in arguments.values()):
            raise ValueError(f"expected whole numbers as {', '.join(sorted(expected))}, got {dict(arguments)}")
        bits, width = arguments["bits"], arguments["width"]
        check_lattice(bits=bits, size=arguments["size"], width=width)
        if arguments["channels"] not in (1, 3):
            raise ValueError(f"expected images of 1 or 3 channels, got {arguments['channels']}")
        shapes = {name: value.shape for name, value in weights.items()}
        if shapes != (wanted := weight_shapes(width)):
            wrong = sorted(set(shapes.items()) ^ set(wanted.items()))[0][0]
            raise ValueError(f"expected {wrong} of shape {wanted.get(wrong)}, got {shapes.get(wrong)}")
        for name, value in weights.items():
            if value.dtype != np.float32:
                raise ValueError(f"expected {name} of type float32, got {value.dtype}")
        return cls(dict(weights), bits, width, dict(arguments))

    @property
    def name(self) -> str:
        """The name of this network in certificates."""
        return network_name("lattice", self.arguments, self.weights)

    def encode(self, picture: Picture, bits: NDArray[np.uint8], pilot: Array) -> Encoding:
        """Encode a message ``(L,)`` of zeros and ones for a picture: a residual, up to the emphasis of its bits."""
        height, width = picture.shape
        signs = self.signs(bits, (height // CELL, width // CELL))
        features = self._block("coarse", self._block("fine", _unshuffled(picture)), stride=2)
        amounts = 2.0 * _sigmoid(self._convolved("mix.1", self._block("mix.0", np.concatenate([features, signs]))))
        learned = np.logaddexp(np.float32(0.0), self._convolved("gain", features)[0])  # softplus
        allowed = (10.0 ** (-above_image(calmness(picture)) / 20.0)).astype(np.float32)
        gain = resized(learned, (height, width)) * resized(allowed, (height, width))
        return Encoding(signs, amounts, _repeated(pilot, height, width), gain)

    def draw(self, encoding: Encoding, emphasis: Array | None = None) -> Array:
        """The residual ``(H, W)``; bits are drawn ``emphasis (L,)`` times as strongly, if given."""
        amounts = encoding.amounts
        if emphasis is not None:
            amounts = amounts * self._laid_out(emphasis, *amounts.shape[1:])
        drawn = self._drawn(encoding.signs * amounts)
        residual: Array = UNIT_CHANGE * encoding.gain * (drawn + PILOT_AMPLITUDE * encoding.pilot)
        return residual

    def _laid_out(self, values: Array, down: int, across: int) -> Array:
        """The value of each bit at each of its slots, ``(L,)`` to ``(4, down, across)``."""
        return _repeated(values[slot_owners(self.bits)].reshape(SLOTS, CELLS_ACROSS, CELLS_ACROSS), down, across)

    @functools.cached_property
    def _basis(self) -> Array:
        """The basis patterns ``(4, 16, 16)``, scaled so that amplitudes of 1 or -1 give a mean square of 1."""
        strokes = self.weights["strokes"][:, 0]
        basis: Array = strokes * (CELL * SLOTS**-0.5 / np.linalg.norm(strokes, axis=(1, 2), keepdims=True))
        return basis.astype(np.float32)

    def _drawn(self, amounts: Array) -> Array:
        """The sum of basis patterns times their amounts, ``(4, h, w)`` to ``(8 h, 8 w)``."""
        _, down, across = amounts.shape
        drawn = np.tensordot(amounts, self._basis, (0, 0)).reshape(down, across, 2, CELL, 2, CELL)
        cells = np.zeros((down + 1, across + 1, CELL, CELL), np.float32)  # a pattern reaches half a cell further
        for i, j in np.ndindex(2, 2):
            cells[i : down + i, j : across + j] += drawn[:, :, i, :, j]
        reach = (BASIS_SIDE - CELL) // 2
        whole = cells.swapaxes(1, 2).reshape(CELL * (down + 1), CELL * (across + 1))
        return whole[reach : reach + CELL * down, reach : reach + CELL * across]

    def basis_tiles(self) -> Array:
        """What each slot of the first cell adds to a tile, ``(4, 64, 64)``; for other cells it is shifted."""
        tiles = np.zeros((SLOTS, TILE, TILE), np.float32)
        tiles[:, :BASIS_SIDE, :BASIS_SIDE] = self._basis
        reach = (BASIS_SIDE - CELL) // 2
        return np.roll(tiles, (-reach, -reach), (1, 2))

    def extract(self, picture: Picture, weights: Array | None = None) -> Array:
        """The logits ``(L,)`` of a picture whose first tile begins at its corner: above zero is a 1.

        Cells are weighted by ``weights (H / 8, W / 8)``; equally if not given.
        """
        return self.read(self.evidence(picture, weights))

    def read(self, evidence: Array) -> Array:
        """The logit of each bit from the evidence of cells, ``(4, h, w)`` to ``(L,)``; the first cell begins a tile."""
        return np.bincount(slot_owners(self.bits), _folded(evidence).ravel(), self.bits).astype(np.float32)

    def signs(self, bits: NDArray[np.uint8], cells: tuple[int, ...]) -> Array:
        """1 or -1 by its bit for each slot of ``cells`` (rows, columns), ``(L,)`` to ``(4, h, w)``."""
        return self._laid_out(2.0 * bits.astype(np.float32) - 1.0, *cells)

    def evidence(self, picture: Picture, weights: Array | None = None) -> Array:
        """The log-likelihood ratio of each slot of each cell, ``(4, h, w)``."""
        values = _unshuffled(picture)
        for number, stride in enumerate((1, 1, 2, 1)):
            values = self._block(f"decoder.{number}", values, stride=stride)
        found = self._convolved("decoder.4", values)
        return found if weights is None else found * weights

    def matched(self, grey: Picture, usable: NDArray[np.bool_]) -> Array:
        """How well the basis patterns fit each cell, ``(4, h, w)``: a matched filter over ``usable`` pixels.

        ``grey`` is from 0 to 255. It reads weak marks and edges better than the decoder, compressed images less
        well.
        """
        white = np.where(usable, whitened(grey, MATCHED_SIGMA), np.float32(0.0))
        down, across = (length // CELL for length in white.shape)
        cells = white.reshape(down, CELL, across, CELL).transpose(1, 3, 0, 2).reshape(-1, down, across)
        return convolved(cells, self._matched_kernel, np.zeros(SLOTS, np.float32), 1)

    @functools.cached_property
    def _matched_kernel(self) -> Array:
        """The basis patterns, filtered as the picture is, over a cell and its neighbours, ``(4, 64, 3, 3)``."""
        tiles = self.basis_tiles()
        tiles = np.roll(tiles - gaussian(tiles, MATCHED_SIGMA, truncate=3.0, mode="wrap"), (CELL, CELL), (1, 2))
        around = tiles[:, : 3 * CELL, : 3 * CELL].reshape(SLOTS, 3, CELL, 3, CELL)
        return np.ascontiguousarray(around.transpose(0, 2, 4, 1, 3).reshape(SLOTS, CELL**2, 3, 3))

    def _convolved(self, name: str, values: Array, *, stride: int = 1) -> Array:
        return convolved(values, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], stride)

    def _block(self, name: str, values: Array, *, stride: int = 1) -> Array:
        """A 3x3 convolution, group norm, ReLU."""
        values = self._convolved(f"{name}.0", values, stride=stride)
        groups = values.reshape(GROUPS, -1)
        groups -= groups.mean(1, keepdims=True)
        groups /= np.sqrt(np.square(groups).mean(1, keepdims=True) + NORM_EPSILON)
        values *= self.weights[f"{name}.1.weight"][:, None, None]
        values += self.weights[f"{name}.1.bias"][:, None, None]
        return np.maximum(values, 0.0, out=values)


def check_lattice(*, bits: int, size: int, width: int) -> None:
    """Refuse arguments that no network of this kind has."""
    if size < TILE or size % TILE:
        raise ConfigurationError(f"expected a size that is a multiple of {TILE} pixels, got {size}")
    if width < GROUPS or width % GROUPS:
        raise ConfigurationError(f"expected a width that is a multiple of {GROUPS} channels, got {width}")
    if not 1 <= bits <= SLOTS * CELLS_ACROSS**2:
        raise ConfigurationError(f"a tile holds 1 to {SLOTS * CELLS_ACROSS**2} bits, got {bits}: use fewer bits")


def weight_shapes(width: int) -> dict[str, tuple[int, ...]]:
    """The shapes of all weights of a network."""
    first, double = UNSHUFFLED**2, 2 * width
    blocks = {"fine": (width, first), "coarse": (double, width), "mix.0": (double, double + SLOTS)}
    inner = [(width, first), (width, width), (double, width), (double, double)]
    blocks |= {f"decoder.{number}": layer for number, layer in enumerate(inner)}
    found: dict[str, tuple[int, ...]] = {"strokes": (SLOTS, 1, BASIS_SIDE, BASIS_SIDE)}
    for name, (outputs, inputs) in blocks.items():
        found |= {f"{name}.0.weight": (outputs, inputs, 3, 3)}
        found |= {f"{name}.{part}": (outputs,) for part in ("0.bias", "1.weight", "1.bias")}
    last = {"gain": (1, double, 3, 3), "mix.1": (SLOTS, double, 1, 1), "decoder.4": (SLOTS, double, 1, 1)}
    for name, layer in last.items():
        found |= {f"{name}.weight": layer, f"{name}.bias": layer[:1]}
    return found


def _unshuffled(picture: Picture) -> Array:
    """Squares of 4 x 4 pixels as channels, ``(H, W)`` to ``(16, H / 4, W / 4)``, around zero."""
    down, across = (length // UNSHUFFLED for length in picture.shape)
    squares = (picture - np.float32(0.5)).reshape(down, UNSHUFFLED, across, UNSHUFFLED)
    channels: Array = squares.transpose(1, 3, 0, 2).reshape(-1, down, across)
    return channels


def convolved(values: Array, weight: Array, bias: Array, stride: int) -> Array:
    """A convolution that keeps height and width, divided by the stride, ``(C, H, W)`` to ``(O, H', W')``."""
    side = weight.shape[2]
    padded = np.pad(values, [(0, 0), (side // 2, side // 2), (side // 2, side // 2)])
    windows = sliding_window_view(padded, (side, side), (1, 2))[:, ::stride, ::stride].transpose(0, 3, 4, 1, 2)
    kernel, (down, across) = weight.reshape(len(weight), -1), windows.shape[3:]
    found = np.empty((len(weight), down, across), np.float32)
    step = max(1, BAND_VALUES // (kernel.shape[1] * across))
    for top in range(0, down, step):
        gathered = windows[:, :, :, top : top + step].reshape(kernel.shape[1], -1)
        found[:, top : top + step] = (kernel @ gathered).reshape(len(weight), -1, across)
    found += bias[:, None, None]
    return found


def _sigmoid(values: Array) -> Array:
    found: Array = np.float32(0.5) * (np.tanh(np.float32(0.5) * values) + np.float32(1.0))
    return found


def _folded(evidence: Array) -> Array:
    """The evidence of cells summed over tiles, ``(4, h, w)`` to ``(4, 8, 8)``; the first cell begins a tile."""
    down, across = evidence.shape[1:]
    whole = np.pad(evidence, [(0, 0), (0, -down % CELLS_ACROSS), (0, -across % CELLS_ACROSS)])
    found: Array = whole.reshape(SLOTS, -1, CELLS_ACROSS, whole.shape[2] // CELLS_ACROSS, CELLS_ACROSS).sum((1, 3))
    return found


def _repeated(tiles: Array, height: int, width: int) -> Array:
    """Tiles ``(..., h, w)`` side by side until they fill ``height`` x ``width``."""
    rows, columns = np.arange(height) % tiles.shape[-2], np.arange(width) % tiles.shape[-1]
    return tiles[..., rows[:, None], columns]


@functools.lru_cache(maxsize=64)
def slot_owners(bits: int) -> NDArray[np.intp]:
    """The bit of each of a tile's 256 slots: by a hash, so that every later version reads the same."""
    slots = SLOTS * CELLS_ACROSS**2
    draws = np.frombuffer(hashlib.shake_256(f"samplewise lattice {bits}".encode()).digest(8 * slots), "<u8")
    owners: NDArray[np.intp] = np.argsort(draws, kind="stable") % bits
    return owners


def banded(noise: NDArray[np.floating[Any]]) -> Array:
    """Noise ``(n, 64, 64)`` limited to the frequency band of a pilot, with mean square 1."""
    along = np.fft.fftfreq(TILE, 1 / TILE)
    radius = np.hypot(along[:, None], along)
    lowest, highest = PILOT_BAND
    kept = np.fft.ifft2(np.fft.fft2(noise) * ((radius >= lowest) & (radius <= highest))).real
    found: Array = (kept / np.sqrt(np.square(kept).mean((1, 2), keepdims=True))).astype(np.float32)
    return found


def pilot_tiles(seeds: Sequence[bytes]) -> Array:
    """The pilot of each seed, ``(seeds, 64, 64)``: the same in every version."""
    streams = (hashlib.shake_256(b"samplewise pilot " + seed).digest(TILE**2 * 2) for seed in seeds)
    draws = np.frombuffer(b"".join(streams), "<u2").reshape(-1, TILE, TILE)
    return banded(draws / 65535.0 - 0.5)


def network_name(kind: str, arguments: Mapping[str, int], weights: Weights) -> str:
    """The name of a network in certificates: its kind, and a part of the hash of all its weights."""
    digest = hashlib.sha256(json.dumps(dict(arguments), sort_keys=True).encode())
    return f"{kind}-{_hashed(digest, weights)[:12]}"


def _hashed(digest: Any, weights: Weights) -> str:
    """The hexadecimal digest after adding names, types, shapes and values of weights to ``digest``."""
    for key, value in sorted(weights.items()):
        digest.update(f"{key}:torch.{value.dtype}:{tuple(value.shape)}".encode())
        digest.update(np.ascontiguousarray(value).data)
    return str(digest.hexdigest())


def weights_digest(header: Mapping[str, str], weights: Weights) -> str:
    """The digest of a file's header and all its weights."""
    return _hashed(hashlib.blake2b(json.dumps(dict(header), sort_keys=True).encode(), digest_size=16), weights)


def save_weights(path: Path, kind: str, arguments: Mapping[str, int], weights: Weights) -> None:
    """Write a network to a safetensors file, whole or not at all.

    The header holds the format, the kind and the arguments of the network as JSON, and a digest of these and of all
    weights.
    """
    header = {"format": NETWORK_FORMAT, "kind": kind, "arguments": json.dumps(dict(arguments))}
    whole = {name: np.ascontiguousarray(value) for name, value in weights.items()}
    try:
        with atomic(Path(path)) as temporary:
            save_file(whole, temporary, metadata={**header, "digest": weights_digest(header, whole)})
    except SafetensorError as error:
        raise cannot_write(Path(path), OSError(0, str(error))) from error


@dataclass(frozen=True)
class SavedNetwork:
    """The content of a network file."""

    kind: str
    arguments: Mapping[str, int]
    weights: Weights


def read_weights(path: Path, kinds: Collection[str]) -> SavedNetwork:
    """Read what :func:`save_weights` wrote.

    Raises:
        DataError: the file is torn, foreign or damaged, or of a kind that is not among ``kinds``.
    """
    with decoding(path, "a network"):
        check_regular(path)
        try:
            with safe_open(path, framework="numpy") as file:
                header = file.metadata() or {}
                weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dictionary
        except SafetensorError as error:
            raise ValueError(str(error)) from error
        if (written := header.get("format")) != NETWORK_FORMAT:
            raise ValueError(f"expected the format {NETWORK_FORMAT}, got {written!r}")
        if header.pop("digest", None) != weights_digest(header, weights):
            raise ValueError("it is damaged, as its contents do not match its checksum")
        if (kind := header["kind"]) not in kinds:
            raise ValueError(f"expected the kind {' or '.join(kinds)}, got {kind!r}")
        return SavedNetwork(kind, json.loads(header["arguments"]), weights)


def load_network(path: Path) -> Lattice:
    """The network of a file of the kind lattice; errors are those of :func:`read_weights`."""
    saved = read_weights(path, ("lattice",))
    with decoding(path, "a network"):
        return Lattice.of(saved.arguments, saved.weights)
