"""Watermarks in medical images, with a quality floor under every image.

The names below are imported when they are first used, so that a command that needs no network does without PyTorch.
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

_MODULES = {
    "api": ("Embedded", "Watermarker"),
    "certificate": ("ImageCertificate",),
    "payload": ("Extracted", "Key", "Payload", "read_key"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = next((module for module, names in _MODULES.items() if name in names), "errors")
    found = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
    return found
