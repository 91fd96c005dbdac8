"""What the commands found, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from floormark.errors import printable

if TYPE_CHECKING:
    from floormark.certificate import Fidelity
    from floormark.payload import Extracted
    from floormark.verify import Verification

BELONGS = {
    True: "it belongs to this image",
    False: "it belongs to another image and was copied",
    None: "whether it belongs to this image cannot be said",
}
SUREST = 0.9999999999
"""What a confidence is printed as at most."""


def message_text(found: Extracted) -> str:
    """The message, safe for a terminal, or that there is none."""
    message = found.message
    if message is None:
        return "no readable watermark"
    return message.hex() if isinstance(message, bytes) else printable(message)


def confidence(found: Extracted) -> str:
    """How sure it is that this is a message: never said to be all of it."""
    over = "over " if found.confidence > SUREST else ""
    return f"confidence {over}{min(found.confidence, SUREST):.8%}"


def signature_text(found: Verification) -> str:
    """Who signed the certificate, and whether that is who should have."""
    if found.certificate is None or found.certificate.signature is None:
        return "none: whoever can write the files can write the certificate"
    if found.signed_by is None:
        return "NOT VALID"
    return f"by {found.signed_by}, " + (
        "the key that was given" if found.trusted else "a key for which nobody vouched: give --public-key"
    )


def largest_change(measured: Fidelity) -> str:
    """The largest difference, in the unit of the modality too if it has one, and what it is to be seen against."""
    unit = f" ({measured.largest_change:g} {measured.unit})" if measured.unit else ""
    return f"{measured.max_difference}{unit} of {measured.shown:g}"


def decibels(psnr: float | None) -> str:
    """A PSNR, which is None where nothing changed."""
    return "infinite, no pixel changed" if psnr is None else f"{psnr:.3f} dB"
