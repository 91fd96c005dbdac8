"""The watermarking tool in Python: a message into one image at a PSNR floor, and back out of it."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from samplewise.checkpoint import MODEL_FILE
from samplewise.errors import ConfigurationError, DataError, RefusedError
from samplewise.watermark.certificate import Certificate, fidelity, sha256
from samplewise.watermark.formats import StoredImage
from samplewise.watermark.networks import Network
from samplewise.watermark.networks.swift import CELL, Swift
from samplewise.watermark.payload import Codec, Key, Payload, Reading
from samplewise.watermark.strength import Strongest, checked_floor, highest_floor
from samplewise.watermark.view import View
from samplewise.watermark.weights import SHIPPED_FILE, load_network

__all__ = ["Embedded", "Extracted", "Marking", "Watermarker"]

STRONGEST = 8.0
"""How many times its residual a network is given where the floor leaves room."""
MUCH = 0.25
"""Share of an image; where more is protected, that is named as a reason."""

Message = Payload | str | bytes


@dataclass(frozen=True, eq=False)
class Embedded:
    """A marked image and what holds for it."""

    image: NDArray[Any]
    """The stored integers, of the same shape and type as those given."""
    certificate: Certificate


@dataclass(frozen=True)
class Extracted:
    """What was read from an image: exactly what was embedded, or nothing."""

    message: str | bytes | None
    """None: there is no watermark, or none that can be read (with this key)."""
    confidence: float
    """The probability that an unmarked image would not have read as any message; 0 without a message."""
    corrected_errors: int
    """How many bits were read wrong and put right."""
    payload: Payload | None = None
    """The message with its kind."""

    def __bool__(self) -> bool:
        return self.message is not None

    def to_dict(self) -> dict[str, Any]:
        """For JSON, where bytes are hexadecimal digits."""
        return {
            "message": self.message.hex() if isinstance(self.message, bytes) else self.message,
            "kind": self.payload.kind.name.lower() if self.payload else None,
            "confidence": self.confidence,
            "corrected_errors": self.corrected_errors,
        }


@dataclass(frozen=True, eq=False)
class Marking:
    """Pixels with a message in them, and how many of its bits are read wrong from them."""

    pixels: NDArray[Any]
    bit_errors: int
    readable: bool = True
    """Whether the error correction makes up for them, with reserves for what may happen to the file."""


class Watermarker:
    """Hides messages in images of any size and bit depth, and reads them.

    Args:
        network: a trained :class:`Swift`.
        model: its name in certificates.
        key: whoever does not have it can neither read nor write; None for everybody.

    Example:
        >>> import numpy as np, samplewise as sw
        >>> image = (60 + np.add.outer(np.arange(256), np.arange(256)) // 4).astype(np.uint8)
        >>> marker = sw.watermark.Watermarker.load()
        >>> marked = marker.embed(image, "patient 4711", psnr=40)
        >>> marker.extract(marked.image).message
        'patient 4711'
    """

    def __init__(self, network: Network, *, model: str, key: Key | None = None) -> None:
        if not isinstance(network, Swift):
            raise ConfigurationError(
                f"expected a network of kind swift, got {type(network).__name__.lower()}: others are bound to one size"
            )
        self.network = network.eval()
        self.model = model
        self.codec = Codec(network.bits, key)

    @classmethod
    def load(cls, path: Path | str | None = None, *, key: Key | None = None) -> Self:
        """Load trained weights.

        Args:
            path: a file of weights, or the folder that ``samplewise watermark train`` left; the shipped weights if not
                given.
            key: to read and write with.
        """
        if path is None:
            with resources.as_file(resources.files("samplewise.watermark") / SHIPPED_FILE) as file:
                return cls.load(file, key=key)
        path = Path(path)
        file = path / MODEL_FILE if path.is_dir() else path
        if not file.exists():
            raise DataError(f"{file}: no such file; expected trained weights, or a run of samplewise watermark train")
        # Enough of the hash to tell the network from others.
        return cls(load_network(file), model=f"swift-{sha256(file)[:12]}", key=key)

    @property
    def least_cells(self) -> int:
        """How many cells an image must have, so that every bit has a place."""
        return -(-self.network.bits // self.network.slots)

    def embed(
        self, image: Any, message: Message, *, psnr: float = 45.0, protect: NDArray[np.bool_] | None = None
    ) -> Embedded:
        """Hide a message in an image.

        Args:
            image: an array ``(H, W)`` or ``(H, W, 3)`` of uint8 or uint16, or a Pillow image in grey or RGB.
            message: text, bytes, or a :class:`Payload`.
            psnr: floor in dB that the stored integers keep.
            protect: True where no pixel may change, shape ``(H, W)``.

        Raises:
            RefusedError: the message cannot be read back at this floor. It says which floor would do.
            DataError: not an image of this kind, or one too small.
            ConfigurationError: the message is too long, or the floor makes no sense.
        """
        stored = as_stored(image)
        marking = self.mark(stored, message, psnr=psnr, protect=protect)
        hashes = _digest(stored.pixels), _digest(marking.pixels)
        return Embedded(marking.pixels, self.certify(stored, marking, hashes, floor=psnr, protect=protect))

    def extract(self, image: Any) -> Extracted:
        """Read the message of an image, if it has one; arguments as for :meth:`embed`."""
        reading = self.read(as_stored(image))
        if reading is None:
            return Extracted(None, 0.0, 0)
        return Extracted(reading.payload.value, reading.confidence, reading.corrected, reading.payload)

    def mark(
        self, image: StoredImage, message: Message, *, psnr: float, protect: NDArray[np.bool_] | None = None
    ) -> Marking:
        """The pixels of ``image`` with the message in them, at the floor and readable, or :class:`RefusedError`."""
        floor = checked_floor(psnr)
        payload = Payload.of(message)
        bits = self.codec.encode(payload)
        view = View.of(image)
        if view.cells < self.least_cells:
            raise DataError(self._too_small(view))
        seen = view.tensor(image.pixels)
        with torch.inference_mode():
            marked = self.network.embed(seen, torch.from_numpy(bits)[None].float())
        residual = view.residual(marked - seen)
        if protect is not None:
            residual[_checked_mask(protect, image)] = 0.0
        if image.pixels.ndim == 3:
            residual = residual[..., None]
        # A deep image that uses a part of its range keeps the floor against that part, so all the more in the whole.
        strongest = Strongest(image, residual, min(image.peak, view.span), STRONGEST)

        def attempt(at: float) -> Marking:
            return self._checked(image, strongest.pixels(at), payload, bits)

        marking = attempt(floor)
        if not marking.readable:
            highest = highest_floor(lambda at: attempt(at).readable, floor)
            raise RefusedError(self._refusal(floor, marking, highest, self._difficulties(view, protect)))
        return marking

    def certify(
        self,
        original: StoredImage,
        marking: Marking,
        hashes: tuple[str, str],
        *,
        floor: float,
        protect: NDArray[np.bool_] | None = None,
    ) -> Certificate:
        """What holds for ``original`` and what became of it; ``hashes`` are theirs."""
        return Certificate(
            *hashes,
            model=self.model,
            floor=float(floor),
            bits=self.network.bits,
            bit_errors=marking.bit_errors,
            fidelity=fidelity(original.pixels, marking.pixels, peak=original.peak, protected=protect),
        )

    def read(self, image: StoredImage) -> Reading | None:
        """The payload of an image with how surely it was read, or None."""
        large_enough = View.of(image).cells >= self.least_cells
        return self.codec.decode(self._logits(image)) if large_enough else None

    def _logits(self, image: StoredImage) -> NDArray[np.float32]:
        with torch.inference_mode():
            logits: NDArray[np.float32] = self.network.extract(View.of(image).tensor(image.pixels))[0].numpy()
        return logits

    def _checked(self, image: StoredImage, pixels: NDArray[Any], payload: Payload, bits: NDArray[np.uint8]) -> Marking:
        logits = self._logits(image.with_pixels(pixels))
        errors = int(np.count_nonzero((logits > 0) != bits))
        # What counting errors can correct must do here; weighing them is left for what happens to the file.
        correctable = self.codec.correctable(len(payload.content))
        reading = self.codec.decode(logits) if errors <= correctable else None
        return Marking(pixels, errors, reading is not None and reading.payload == payload)

    def _too_small(self, view: View) -> str:
        side = CELL * math.ceil(math.sqrt(self.least_cells))
        return (
            f"expected an image of at least {self.least_cells} squares of {CELL} x {CELL} pixels for "
            f"{self.network.bits} bits, such as {side} x {side}, got {view.width} x {view.height}"
        )

    def _refusal(self, floor: float, marking: Marking, highest: float | None, reasons: list[str]) -> str:
        usual = (
            "the floor is too high" if highest else "the image is too flat, too black or white, or nothing but noise"
        )
        wrong = f"{marking.bit_errors} of {self.network.bits} bits are wrong when read back at {floor:g} dB"
        advice = f"the highest floor that works is {highest:g} dB" if highest else "no floor would work"
        return f"{wrong}: {' and '.join(reasons) or usual}; {advice}"

    def _difficulties(self, view: View, protect: NDArray[np.bool_] | None) -> list[str]:
        """What makes an image a hard one."""
        protected = 0.0 if protect is None else float(protect.mean())
        found = {
            "the image is small": view.cells < 2 * self.least_cells,
            f"{100 * protected:.0f}% of it is protected": protected > MUCH,
        }
        return [reason for reason, holds in found.items() if holds]


def as_stored(image: Any) -> StoredImage:
    """An array or a Pillow image as stored integers."""
    if isinstance(image, StoredImage):
        return image
    mode = getattr(image, "mode", None)
    if mode is not None and mode not in ("L", "RGB", "I;16"):
        raise DataError(f"expected an image in grey (L, I;16) or RGB, got mode {mode}: convert it first")
    pixels = np.array(image)
    shaped = pixels.ndim >= 2 and pixels.size and pixels.shape[2:] in ((), (3,))
    if not shaped or pixels.dtype not in (np.uint8, np.uint16):
        raise DataError(
            f"expected an image (H, W) or (H, W, 3) of uint8 or uint16, got shape {pixels.shape} of {pixels.dtype}"
        )
    return StoredImage(pixels, 8 * pixels.itemsize)


def _checked_mask(mask: NDArray[np.bool_], image: StoredImage) -> NDArray[np.bool_]:
    protect = np.asarray(mask)
    if protect.dtype != np.bool_ or protect.shape != image.pixels.shape[:2]:
        raise ConfigurationError(
            f"expected a mask of bool and shape {image.pixels.shape[:2]}, as the image, got {protect.dtype} of "
            f"{protect.shape}"
        )
    return protect


def _digest(pixels: NDArray[Any]) -> str:
    """Of stored integers that are in no file: in the order of rows, low byte first."""
    return hashlib.sha256(np.ascontiguousarray(pixels, pixels.dtype.newbyteorder("<")).tobytes()).hexdigest()
