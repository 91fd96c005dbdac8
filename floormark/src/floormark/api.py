"""The watermarking tool in Python: a message into one image at a PSNR floor, and back out of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from floormark.certificate import ImageCertificate
from floormark.display_range import shown_range
from floormark.errors import ConfigurationError, DataError, RefusedError
from floormark.fidelity import fidelity
from floormark.imageio import StoredImage
from floormark.network import SHIPPED_FILE, Lattice, load_network, network_name
from floormark.payload import Extracted, Key, Payload
from floormark.strength import FLOOR_STEP, Strongest, checked_floor, highest_floor
from floormark.tiling import Woven

MODEL_FILE = "model.safetensors"
"""What was trained, in the folder of its run."""
STRONGEST = 24.0
"""How many times its residual a network is given where the floor leaves room."""
SEARCHED = 1 << 22, 1 << 23
"""Values of the largest images for which the highest floor that works is looked for: finely, and coarsely."""
OBLONG = 16
"""How many times longer than wide they are at most: of narrow ones the network sees more."""
NOTHING = "no floor would work"
OTHERS = "the mark hides what tells this image from others, so that its message would be taken for another image's"
MUCH = 0.25
"""Share of an image; where more is protected, that is named as a reason."""

Message = Payload | str | bytes


@dataclass(frozen=True, eq=False)
class Embedded:
    """A marked image and what holds for it."""

    image: NDArray[Any]
    """The stored integers, of the same shape and type as those given."""
    certificate: ImageCertificate


class Watermarker:
    """Hides messages in images of any size and bit depth, and reads them.

    Args:
        network: trained.
        key: whoever does not have it can neither read messages nor write one of their choice; None for everybody.

    Example:
        >>> import numpy as np
        >>> from floormark import Watermarker
        >>> image = (60 + np.add.outer(np.arange(256), np.arange(256)) // 4).astype(np.uint8)
        >>> marker = Watermarker.load()
        >>> marked = marker.embed(image, "patient 4711", psnr=40)
        >>> marker.extract(marked.image).message
        'patient 4711'
    """

    def __init__(self, network: Lattice, *, key: Key | None = None) -> None:
        if not isinstance(network, Lattice):
            raise ConfigurationError(f"expected a network of the kind lattice, got {type(network).__name__}")
        self.network = network.eval()
        self.model = network_name(network)
        self.scheme = Woven(network, key)
        self.codec = self.scheme.codec

    @classmethod
    def load(cls, path: Path | str | None = None, *, key: Key | None = None) -> Self:
        """Load trained weights: a file, the folder of the training run that left it, or the shipped ones."""
        if path is None:
            with resources.as_file(resources.files("floormark") / SHIPPED_FILE) as file:
                return cls(_lattice(file), key=key)
        path = Path(path)
        file = path / MODEL_FILE if path.is_dir() else path
        if not file.exists():
            raise DataError(f"{file}: no such file; expected trained weights, or the folder of a training run")
        return cls(_lattice(file), key=key)

    def embed(
        self,
        image: Any,
        message: Message,
        *,
        psnr: float = 45.0,
        protect: NDArray[np.bool_] | None = None,
        max_difference: float | None = None,
        replace: bool = False,
    ) -> Embedded:
        """Hide a message in an image.

        Args:
            image: an array ``(H, W)`` or ``(H, W, 3)`` of uint8 or uint16, or a Pillow image in grey or RGB.
            message: text, bytes, or a :class:`Payload`.
            psnr: floor in dB that the stored integers keep; that of a patch is the higher the calmer it is.
            protect: True where no pixel may change, shape ``(H, W)``.
            max_difference: the most by which a stored value may change.
            replace: write the message in the place of the one that is there, instead of refusing that.

        Raises:
            RefusedError: the message cannot be read back at this floor, and it says which floor would do; it would be
                taken for another image's; or the image is marked already.
            DataError: not an image of this kind, or one too small.
            ConfigurationError: the message is too long, or the floor makes no sense.
        """
        stored = as_stored(image)
        pixels, errors = self.mark(
            stored, message, psnr=psnr, protect=protect, max_difference=max_difference, replace=replace
        )
        hashes = _digest(stored.pixels), _digest(pixels)
        return Embedded(pixels, self.certify(stored, pixels, errors, hashes, psnr, protect))

    def extract(self, image: Any) -> Extracted:
        """Read the message of an image, if it has one; arguments as for :meth:`embed`.

        One look if nobody moved the image; else it is looked for.
        """
        stored = as_stored(image)
        found = self.scheme.look(stored).found or self.scheme.search(stored)
        if found is None:
            return Extracted()
        return replace(found, chance=min(1.0, self.scheme.tries * found.chance))

    def mark(
        self,
        image: StoredImage,
        message: Message,
        *,
        psnr: float,
        protect: NDArray[np.bool_] | None = None,
        max_difference: float | None = None,
        replace: bool = False,
    ) -> tuple[NDArray[Any], int]:
        """The image's pixels with the message in them, and how many bits are read wrong, or :class:`RefusedError`."""
        floor = checked_floor(psnr)
        payload = Payload.of(message)
        self.codec.correctable(len(payload.content))  # refuses what is too long before any work
        self.scheme.check_room(image)
        there = self.scheme.look(image)
        if there.found is not None and not replace:
            raise RefusedError(
                f"the image is marked already, with {there.found.message!r}: mark the original, or replace that message"
            )
        instead = None if there.found is None else there
        mask = None if protect is None else _checked_mask(protect, image)

        def attempt(at: float) -> tuple[NDArray[Any], int, bool, bool]:
            """Pixels at a floor, how many bits are read wrong, whether that leaves reserves, and whose message it is.

            The reserves are for what may happen to the file; the last is False if it would be taken for another's.
            """
            drawing = self.scheme.draw(image, payload, at, instead=instead)
            pixels = Strongest(image, drawing, STRONGEST, mask, max_difference).pixels(at)
            look = self.scheme.look(image.with_pixels(pixels))
            wrong = self.codec.bits
            if look.logits is not None:
                wrong = int(np.count_nonzero((look.logits > 0) != drawing.bits))
            # What counting errors can correct must do here; weighing them is left for what happens to the file.
            enough = wrong <= self.codec.correctable(len(payload.content))
            readable = enough and look.found is not None and look.found.payload == payload
            return pixels, wrong, readable, look.found is None or look.found.belongs is not False

        pixels, errors, readable, believed = attempt(floor)
        if readable and believed:
            return pixels, errors
        if readable:
            raise RefusedError(f"{OTHERS}: try a higher floor than {floor:g} dB")
        advice = "try a lower floor"
        narrow, long = sorted(image.pixels.shape[:2])
        if image.pixels.size <= SEARCHED[1] and long <= OBLONG * narrow:
            step = FLOOR_STEP if image.pixels.size <= SEARCHED[0] else 4 * FLOOR_STEP
            highest = highest_floor(lambda at: all(attempt(at)[2:]), floor, step=step)
            advice = f"the highest floor that works is {highest:g} dB" if highest else NOTHING
        raise RefusedError(
            f"{errors} of {self.network.bits} bits are wrong when read back at {floor:g} dB{_in_window(image)}: "
            f"{_difficulty(self.scheme.room(image), protect, hopeless=advice == NOTHING)}; {advice}"
        )

    def certify(
        self,
        original: StoredImage,
        marked: NDArray[Any],
        bit_errors: int,
        hashes: tuple[str, str],
        floor: float,
        protect: NDArray[np.bool_] | None = None,
    ) -> ImageCertificate:
        """What holds for ``original`` and the pixels it has become; ``hashes`` are of the two."""
        return ImageCertificate(
            *hashes,
            model=self.model,
            floor=float(floor),
            bits=self.network.bits,
            bit_errors=bit_errors,
            fidelity=fidelity(original, marked, protected=protect),
        )


def _lattice(file: Path) -> Lattice:
    """The network in a file, which knows no other kind."""
    network = load_network(file)
    assert isinstance(network, Lattice)
    return network


def _difficulty(room: float, protect: NDArray[np.bool_] | None, *, hopeless: bool) -> str:
    """Why an image may be a hard one."""
    protected = 0.0 if protect is None else float(protect.mean())
    reasons = ["the image is small"] if room < 2 else []
    if protected > MUCH:
        reasons.append(f"{100 * protected:.0f}% of it is protected")
    flat = "the image is too flat, too black or white, or nothing but noise"
    return " and ".join(reasons) or (flat if hopeless else "the floor is too high")


def _in_window(image: StoredImage) -> str:
    """In which window the floor is kept, if the image has one."""
    if image.window is None:
        return ""
    return f" in its window of {shown_range(image)[1] * image.window.step:g} {image.window.unit or 'units'}"


def as_stored(image: Any) -> StoredImage:
    """An array or a Pillow image as stored integers."""
    if isinstance(image, StoredImage):
        return image
    mode = None if isinstance(image, np.ndarray) else getattr(image, "mode", None)  # that of np.memmap is another
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
