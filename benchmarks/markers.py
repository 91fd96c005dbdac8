"""Watermarking tools that are installed by pip, behind one face. See ``watermark_attacks``."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
from common import Pixels


class Marker(Protocol):
    """What a tool can do; the peers take colour only, so they are given the grey image three times."""

    def embed(self, grey: Pixels, message: bytes) -> Pixels | None:
        """The marked image, or None if the tool refuses."""

    def extract(self, pixels: Pixels, length: int) -> bytes | None:
        """The bytes that the tool finds, which must be told how many there are."""


class BlindWatermark:
    """blind-watermark with its default strength."""

    def __init__(self) -> None:
        from blind_watermark import WaterMark  # here, as this fails once a pool has started its processes

        self.new: Callable[..., Any] = partial(WaterMark, password_img=1, password_wm=1)

    def embed(self, grey: Pixels, message: bytes) -> Pixels | None:
        marker = self.new()
        marker.read_img(img=np.dstack([grey] * 3).astype(np.float32))
        marker.read_wm(np.unpackbits(np.frombuffer(message, np.uint8)).astype(bool).tolist(), mode="bit")
        marked: Pixels = np.clip(np.rint(marker.embed()), 0, 255).astype(np.uint8)
        return marked

    def extract(self, pixels: Pixels, length: int) -> bytes | None:
        found = self.new().extract(embed_img=pixels.astype(np.float32), wm_shape=8 * length, mode="bit")
        return np.packbits(np.asarray(found) > 0.5).tobytes()


class InvisibleWatermark:
    """invisible-watermark with one of its methods."""

    def __init__(self, method: str) -> None:
        self.method = method

    def embed(self, grey: Pixels, message: bytes) -> Pixels | None:
        from imwatermark import WatermarkEncoder

        encoder = WatermarkEncoder()
        encoder.set_watermark("bytes", message)
        return np.asarray(encoder.encode(np.dstack([grey] * 3), self.method), np.uint8)

    def extract(self, pixels: Pixels, length: int) -> bytes | None:
        from imwatermark import WatermarkDecoder

        return bytes(WatermarkDecoder("bytes", 8 * length).decode(pixels, self.method))


PEERS: dict[str, Marker] = {
    "blind-watermark": BlindWatermark(),
    "invisible-watermark, dwtDct": InvisibleWatermark("dwtDct"),
    "invisible-watermark, dwtDctSvd": InvisibleWatermark("dwtDctSvd"),
}
"""The peers by name."""
