"""Watermarking tools that are installed by pip, behind one face. See ``watermark_attacks``."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, Protocol

import numpy as np
from common import Pixels


class Marker(Protocol):
    """What a tool can do; the peers take colour only, so they are given a grey image three times."""

    only: int | None
    """Bytes of a message, if the tool takes one length alone."""

    def embed(self, image: Pixels, message: bytes) -> Pixels | None:
        """The marked image, or None if the tool refuses."""

    def extract(self, image: Pixels, length: int) -> bytes | None:
        """The bytes that the tool finds, which must be told how many there are."""


def in_colour(image: Pixels) -> Pixels:
    """The same in red, green and blue."""
    return np.dstack([image] * 3) if image.ndim == 2 else image


def _reversed(image: Pixels) -> Pixels:
    """Between the order of colours of Pillow and that of OpenCV, which the peers work in."""
    return np.ascontiguousarray(in_colour(image)[..., ::-1])


class BlindWatermark:
    """blind-watermark with its default strength."""

    only: int | None = None

    def __init__(self) -> None:
        from blind_watermark import WaterMark  # here, as this fails once a pool has started its processes

        self.new: Callable[..., Any] = partial(WaterMark, password_img=1, password_wm=1)

    def embed(self, image: Pixels, message: bytes) -> Pixels | None:
        marker = self.new()
        marker.read_img(img=_reversed(image).astype(np.float32))
        marker.read_wm(np.unpackbits(np.frombuffer(message, np.uint8)).astype(bool).tolist(), mode="bit")
        return _reversed(np.clip(np.rint(marker.embed()), 0, 255).astype(np.uint8))

    def extract(self, image: Pixels, length: int) -> bytes | None:
        given = _reversed(image).astype(np.float32)
        found = self.new().extract(embed_img=given, wm_shape=8 * length, mode="bit")
        return np.packbits(np.asarray(found) > 0.5).tobytes()


class InvisibleWatermark:
    """invisible-watermark with one of its methods."""

    def __init__(self, method: str, *, only: int | None = None) -> None:
        self.method, self.only = method, only

    def embed(self, image: Pixels, message: bytes) -> Pixels | None:
        from imwatermark import WatermarkEncoder

        _load_networks()
        encoder = WatermarkEncoder()
        encoder.set_watermark("bytes", message)
        return _reversed(np.asarray(encoder.encode(_reversed(image), self.method), np.uint8))

    def extract(self, image: Pixels, length: int) -> bytes | None:
        from imwatermark import WatermarkDecoder

        _load_networks()
        return bytes(WatermarkDecoder("bytes", 8 * length).decode(_reversed(image), self.method))


@cache
def _load_networks() -> None:
    """Those of rivaGan, which come with the package as ONNX; once in a process."""
    from imwatermark import WatermarkEncoder

    WatermarkEncoder.loadModel()


PEERS: dict[str, Marker] = {
    "blind-watermark": BlindWatermark(),
    "invisible-watermark, dwtDct": InvisibleWatermark("dwtDct"),
    "invisible-watermark, dwtDctSvd": InvisibleWatermark("dwtDctSvd"),
    "invisible-watermark, rivaGan": InvisibleWatermark("rivaGan", only=4),
}
"""The peers by name."""
