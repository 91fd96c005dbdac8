"""The watermarking tool in Python: embed a message in one image at a PSNR floor, and extract it."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np
from numpy.typing import NDArray

from floormark.certificate import ImageCertificate
from floormark.errors import ConfigurationError, DataError, RefusedError
from floormark.fidelity import fidelity
from floormark.network import SHIPPED_FILE, Lattice, load_network
from floormark.options import ADVISED_FLOOR, EmbedOptions, OptionsByName
from floormark.payload import Extracted, Key, Payload
from floormark.prepared import PreparedImage
from floormark.strength import FLOOR_STEP, fit_to_floor, highest_floor
from floormark.threads import one_thread
from floormark.tiling import TiledScheme

MODEL_FILE = "model.safetensors"  # what was trained, in the folder of its run
FINE_SEARCH_VALUES, COARSE_SEARCH_VALUES = 1 << 22, 1 << 23
"""Values of the largest images in which the highest floor that works is searched for: finely, and coarsely."""
MAX_OBLONG = 16
"""Largest ratio of their sides: narrower images have more of the network's pixels, and the search takes too long."""
MUCH_PROTECTED = 0.25  # part of an image; if more is protected, the error names that as a reason
NO_FLOOR_WORKS = f"no floor from {ADVISED_FLOOR:g} dB on would work, and a lower one may show"
TAKEN_FOR_ANOTHER = (
    "the mark hides what tells this image from others, so that its message would be taken for another image's"
)

Message = Payload | str | bytes


@dataclass(frozen=True, eq=False)
class Embedded:
    """A marked image and its certificate."""

    image: NDArray[Any]
    """The stored integers, of the same shape and type as those given."""
    certificate: ImageCertificate


@dataclass(frozen=True, eq=False)
class Marked:
    """Pixels that carry a message, and what is decoded from them."""

    pixels: NDArray[Any]
    found: Extracted | None
    bit_errors: int  # number of bits that are decoded wrong


class Watermarker:
    """Hides messages in images of any size and bit depth, and reads them.

    Args:
        network: a trained one.
        key: without it nobody can read messages or write one of their choice; if None, everybody can.
        former_keys: keys to read with as well, but not to write with.

    Example:
        >>> import numpy as np
        >>> from floormark import Watermarker
        >>> image = (60 + np.add.outer(np.arange(256), np.arange(256)) // 4).astype(np.uint8)
        >>> marker = Watermarker.load()
        >>> marked = marker.embed(image, "patient 4711", psnr=40)
        >>> marker.extract(marked.image).message
        'patient 4711'
    """

    def __init__(self, network: Lattice, *, key: Key | None = None, former_keys: Sequence[Key] = ()) -> None:
        if not isinstance(network, Lattice):
            raise ConfigurationError(f"expected a network of the kind lattice, got {type(network).__name__}")
        self.network = network
        self.model = network.name
        self.readers = [TiledScheme(network, each) for each in (key, *former_keys)]
        self.scheme = self.readers[0]
        self.codec = self.scheme.codec

    @classmethod
    def load(cls, path: Path | str | None = None, *, key: Key | None = None, former_keys: Sequence[Key] = ()) -> Self:
        """Load trained weights: from a file or the folder of a training run; by default, the shipped ones."""
        if path is None:
            with resources.as_file(resources.files("floormark") / SHIPPED_FILE) as file:
                return cls.load(file, key=key, former_keys=former_keys)
        path = Path(path)
        file = path / MODEL_FILE if path.is_dir() else path
        if not file.exists():
            raise DataError(f"{file}: no such file; expected trained weights, or the folder of a training run")
        return cls(load_network(file), key=key, former_keys=former_keys)

    def embed(self, image: Any, message: Message, **options: Unpack[OptionsByName]) -> Embedded:
        """Hide a message in an image.

        Args:
            image: an array ``(H, W)`` or ``(H, W, 3)`` of uint8 or uint16, or a Pillow image in grey or RGB.
            message: text, bytes, or a :class:`Payload`.
            options: by name, those of :class:`~floormark.options.EmbedOptions`, such as ``psnr``, the floor in dB.

        Raises:
            RefusedError: the message cannot be read back at this floor (the error names a floor that works); it would
                be taken for another image's; or the image is marked already.
            DataError: not an image of this kind, or one too small.
            ConfigurationError: the message is too long, or the floor makes no sense.
        """
        asked = EmbedOptions(**options)
        original = PreparedImage.of(image)
        marked = self.mark(original, message, asked)
        certificate = self.certify(original, marked.pixels, asked, bit_errors=marked.bit_errors)
        return Embedded(marked.pixels, certificate)

    @one_thread
    def extract(self, image: Any) -> Extracted:
        """Read the message of an image, if it has one; ``image`` as for :meth:`embed`.

        An image that was not moved is decoded directly; any other is registered first. Of several marked images in one
        picture the first that is found is read. Without a message, ``other_key`` says whether there is a mark of
        another key.
        """
        return next(self._each(image), Extracted())

    @one_thread
    def extract_all(self, image: Any) -> list[Extracted]:
        """Read the messages of all marked images in a picture, each with its place.

        If there is only a mark of another key, the list has one entry that says so.
        """
        return list(self._each(image))

    def _each(self, image: Any) -> Iterator[Extracted]:
        prepared = PreparedImage.of(image)
        if self.scheme.tiles(prepared) < 1:
            return
        trials = sum(each.trials for each in self.readers)
        # An image that was not moved is quick to read, with every key.
        aligned = ((each, found) for each in self.readers if (found := each.decode_aligned(prepared).found))
        registered = ((each, found) for each in self.readers for found in each.decode_registered(prepared))
        first, other = next(aligned, None), None
        for reader, found in registered if first is None else [first]:
            if not found:
                other = found
                continue
            first = reader, found
            key = "" if reader.key is None else reader.key.fingerprint
            yield dataclasses.replace(found, chance=min(1.0, trials * found.chance), key=key)
        if first is None and other is not None:  # a mark that none of the keys reads
            yield other

    @one_thread
    def mark(self, original: PreparedImage, message: Message, options: EmbedOptions) -> Marked:
        """The image's pixels with the message in them, or :class:`RefusedError`."""
        payload = Payload.of(message)
        correctable = self.codec.correctable(len(payload.content))  # refuses what is too long before any work
        self.scheme.check_size(original)
        mask = options.mask(original.pixels.shape)
        there = self.scheme.decode_aligned(original)
        if there.found is not None and not options.replace:
            raise RefusedError(
                f"the image is marked already, with {there.found.message!r}: mark the original, or replace that message"
            )
        replaced = None if there.found is None else there
        encoded = self.scheme.encode(original, payload, replaced=replaced, partial=mask is not None)

        def attempt(floor: float) -> Marked:
            residual = self.scheme.residual(original, encoded, floor)
            pixels = fit_to_floor(original, residual, floor, protect=mask, max_difference=options.max_difference)
            decoded = self.scheme.decode_aligned(original.with_pixels(pixels))
            wrong = self.codec.bits
            if decoded.logits is not None:
                wrong = int(np.count_nonzero((decoded.logits > 0) != encoded.bits))
            return Marked(pixels, decoded.found, wrong)

        def readable(marked: Marked) -> bool:
            # Only errors that hard decoding always corrects: the rest of soft decoding is kept for later attacks.
            return marked.bit_errors <= correctable and marked.found is not None and marked.found.payload == payload

        def works(floor: float) -> bool:
            marked = attempt(floor)
            return readable(marked) and not _taken_for_another(marked)

        marked = attempt(options.psnr)
        if readable(marked):
            if _taken_for_another(marked):
                raise RefusedError(f"{TAKEN_FOR_ANOTHER}: try a higher floor than {options.psnr:g} dB")
            return marked
        advice, size = "try a lower floor", original.pixels.size
        narrow, long = sorted(original.pixels.shape[:2])
        if size <= COARSE_SEARCH_VALUES and long <= MAX_OBLONG * narrow:
            step = FLOOR_STEP if size <= FINE_SEARCH_VALUES else 4 * FLOOR_STEP
            highest = highest_floor(works, options.psnr, step=step)
            advice = f"the highest floor that works is {highest:g} dB" if highest else NO_FLOOR_WORKS
        why = _difficulty(self.scheme.tiles(original), mask, hopeless=advice == NO_FLOOR_WORKS)
        window = original.image.window
        shown = "" if window is None else f"{original.shown[1] * window.step:g} {window.unit or 'units'}"
        raise RefusedError(
            f"{marked.bit_errors} of {self.network.bits} bits are wrong when read back at {options.psnr:g} dB"
            f"{shown and f' in its window of {shown}'}: {why}; {advice}"
        )

    def certify(
        self,
        original: PreparedImage,
        marked: NDArray[Any],
        options: EmbedOptions,
        *,
        bit_errors: int,
    ) -> ImageCertificate:
        """The certificate for ``original`` and its marked pixels, as images that are in no file."""
        image = original.image
        before, after = image.pixels_sha256, image.with_pixels(marked).pixels_sha256
        return ImageCertificate(
            original_sha256=before,
            result_sha256=after,
            original_pixels_sha256=before,
            result_pixels_sha256=after,
            model=self.model,
            floor=options.psnr,
            bits=self.network.bits,
            bit_errors=bit_errors,
            fidelity=fidelity(original, marked, protected=options.mask(marked.shape)),
            protected=None if options.region is None else options.region.place,
        )


def _taken_for_another(marked: Marked) -> bool:
    return marked.found is not None and marked.found.belongs is False


def _difficulty(tiles: float, mask: NDArray[np.bool_] | None, *, hopeless: bool) -> str:
    """Why a message may be hard to read in an image."""
    protected = 0.0 if mask is None else float(mask.mean())
    reasons = ["the image is small"] if tiles < 2 else []
    if protected > MUCH_PROTECTED:
        reasons.append(f"{100 * protected:.0f}% of it is protected")
    flat = "the image is too flat, too black or white, or nothing but noise"
    return " and ".join(reasons) or (flat if hopeless else "the floor is too high")
