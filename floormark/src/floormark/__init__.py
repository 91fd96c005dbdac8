"""Watermarks in medical images, with a quality floor under every image.

The names below are imported when they are first used, so that each command imports what it needs and no more.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from floormark.api import Embedded, Watermarker
    from floormark.certificate import ImageCertificate
    from floormark.errors import (
        ConfigurationError,
        DataError,
        FloormarkError,
        OutputError,
        ProcessLostError,
        RefusedError,
    )
    from floormark.payload import Extracted, Key, Payload, read_key

__all__ = [
    "ConfigurationError",
    "DataError",
    "Embedded",
    "Extracted",
    "FloormarkError",
    "ImageCertificate",
    "Key",
    "OutputError",
    "Payload",
    "ProcessLostError",
    "RefusedError",
    "Watermarker",
    "read_key",
]


def __getattr__(name: str) -> Any:
    for module in ("errors", "certificate", "payload", "api") if name in __all__ else ():  # the quickest first
        if (found := vars(import_module(f"{__name__}.{module}")).get(name)) is not None:
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
