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
from torch import Tensor

from samplewise.checkpoint import MODEL_FILE
from samplewise.errors import ConfigurationError, DataError, RefusedError
from samplewise.watermark.certificate import Certificate, fidelity, sha256
from samplewise.watermark.formats import StoredImage
from samplewise.watermark.networks import Network
from samplewise.watermark.payload import Codec, Decoded, Key, Payload
from samplewise.watermark.strength import FLOOR_STEP, Strongest, checked_floor, highest_floor
from samplewise.watermark.view import NetworkView
from samplewise.watermark.weights import SHIPPED_FILE, load_network, network_name

__all__ = ["Embedded", "Extracted", "Watermarker"]

STRONGEST = 8.0
"""How many times its residual a network is given where the floor leaves room."""
SEARCHED = 1 << 22, 1 << 23
"""Values of the largest images for which the highest floor that works is looked for: finely, and coarsely."""
NOTHING = "no floor would work"
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


class Watermarker:
    """Hides messages in images of any size and bit depth, and reads them.

    Args:
        network: trained, of any kind.
        model: its name in certificates; made of its weights if not given.
        key: whoever does not have it can neither read nor write; None for everybody.
        formerly: its name in certificates of earlier versions, which hashed the file of weights.

    Example:
        >>> import numpy as np, samplewise as sw
        >>> image = (60 + np.add.outer(np.arange(256), np.arange(256)) // 4).astype(np.uint8)
        >>> marker = sw.watermark.Watermarker.load()
        >>> marked = marker.embed(image, "patient 4711", psnr=40)
        >>> marker.extract(marked.image).message
        'patient 4711'
    """

    def __init__(
        self, network: Network, *, model: str | None = None, key: Key | None = None, formerly: str | None = None
    ) -> None:
        self.network = network.eval()
        self.model = network_name(network) if model is None else model
        self.formerly = formerly
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
        return cls(load_network(file), key=key, formerly=f"swift-{sha256(file)[:12]}")

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
        pixels, errors = self.mark(stored, message, psnr=psnr, protect=protect)
        hashes = _digest(stored.pixels), _digest(pixels)
        return Embedded(pixels, self.certify(stored, pixels, errors, hashes, psnr, protect))

    def extract(self, image: Any) -> Extracted:
        """Read the message of an image, if it has one; arguments as for :meth:`embed`."""
        found = self.read(as_stored(image))
        if found is None:
            return Extracted(None, 0.0, 0)
        return Extracted(found.payload.value, found.confidence, found.corrected, found.payload)

    def mark(
        self, image: StoredImage, message: Message, *, psnr: float, protect: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[Any], int]:
        """The pixels of ``image`` with the message in them, at the floor and readable, or :class:`RefusedError`.

        Returns:
            The pixels, and how many bits are read wrong from them.
        """
        floor = checked_floor(psnr)
        payload = Payload.of(message)
        bits = self.codec.encode(payload)
        view = self._view(image)
        if view.cells < self.network.least_cells:
            raise DataError(self._too_small(view))
        seen = self._seen(view, image)
        with torch.inference_mode():
            marked = self.network.embed(seen, torch.from_numpy(bits)[None].float())
        # One residual for all channels, so that nothing is lost where a file is stored in grey.
        residual = view.residual((marked - seen).mean(1, keepdim=True))
        if protect is not None:
            residual[_checked_mask(protect, image)] = 0.0
        # A deep image that uses a part of its range keeps the floor against that part, so all the more in the whole.
        strongest = Strongest(image, residual, min(image.peak, view.span), STRONGEST)

        pixels = strongest.pixels(floor)
        errors, readable = self._check(image.with_pixels(pixels), payload, bits)
        if not readable:
            roughly = image.pixels.size > SEARCHED[0]

            def works(at: float) -> bool:
                tried = strongest.pixels(at, roughly=roughly)
                return self._check(image.with_pixels(tried), payload, bits)[1]

            advice = "try a lower floor"
            if image.pixels.size <= SEARCHED[1]:
                highest = highest_floor(works, floor, step=4 * FLOOR_STEP if roughly else FLOOR_STEP)
                advice = f"the highest floor that works is {highest:g} dB" if highest else NOTHING
            raise RefusedError(self._refusal(floor, errors, advice, self._difficulties(view, protect)))
        return pixels, errors

    def certify(
        self,
        original: StoredImage,
        marked: NDArray[Any],
        bit_errors: int,
        hashes: tuple[str, str],
        floor: float,
        protect: NDArray[np.bool_] | None = None,
    ) -> Certificate:
        """What holds for ``original`` and the pixels it has become; ``hashes`` are of the two."""
        return Certificate(
            *hashes,
            model=self.model,
            floor=float(floor),
            bits=self.network.bits,
            bit_errors=bit_errors,
            fidelity=fidelity(original.pixels, marked, peak=original.peak, protected=protect),
        )

    def read(self, image: StoredImage) -> Decoded | None:
        """The payload of an image with how surely it was read, or None."""
        view = self._view(image)
        return self.codec.decode(self._logits(view, image)) if view.cells >= self.network.least_cells else None

    def _view(self, image: StoredImage) -> NetworkView:
        return NetworkView.of(image, cell=self.network.cell)

    def _logits(self, view: NetworkView, image: StoredImage) -> NDArray[np.float32]:
        with torch.inference_mode():
            logits: NDArray[np.float32] = self.network.extract(self._seen(view, image))[0].numpy()
        return logits

    def _seen(self, view: NetworkView, image: StoredImage) -> Tensor:
        return view.tensor(image.pixels).expand(-1, self.network.channels, -1, -1)

    def _check(self, marked: StoredImage, payload: Payload, bits: NDArray[np.uint8]) -> tuple[int, bool]:
        """How many bits are read wrong, and whether the payload is read, with reserves for what may happen to it."""
        logits = self._logits(self._view(marked), marked)
        errors = int(np.count_nonzero((logits > 0) != bits))
        # What counting errors can correct must do here; weighing them is left for what happens to the file.
        if errors > self.codec.correctable(len(payload.content)):
            return errors, False
        found = self.codec.decode(logits)
        return errors, found is not None and found.payload == payload

    def _too_small(self, view: NetworkView) -> str:
        cell, least = self.network.cell, self.network.least_cells
        side = cell * math.ceil(math.sqrt(least))
        return (
            f"expected an image of at least {least} squares of {cell} x {cell} pixels for "
            f"{self.network.bits} bits, such as {side} x {side}, got {view.width} x {view.height}"
        )

    def _refusal(self, floor: float, errors: int, advice: str, reasons: list[str]) -> str:
        flat = "the image is too flat, too black or white, or nothing but noise"
        usual = flat if advice == NOTHING else "the floor is too high"
        wrong = f"{errors} of {self.network.bits} bits are wrong when read back at {floor:g} dB"
        return f"{wrong}: {' and '.join(reasons) or usual}; {advice}"

    def _difficulties(self, view: NetworkView, protect: NDArray[np.bool_] | None) -> list[str]:
        """What makes an image a hard one."""
        protected = 0.0 if protect is None else float(protect.mean())
        found = {
            "the image is small": view.cells < 2 * self.network.least_cells,
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
