"""Networks whose every answer can be told beforehand."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from studies.pictures import Store, prepare
from studies.watermark.networks import Network

SIZE = 16


def make_store(folder: Path, count: int = 9, *, size: int = SIZE) -> Store:
    """Pictures of patients who have three each, none of them near black or white."""
    pictures = folder / "pictures"
    make_pictures(pictures, count, size=size)
    return prepare(pictures, folder / "store", size=size, workers=1)


def make_pictures(folder: Path, count: int, *, size: int = SIZE) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(count):
        pixels: NDArray[np.uint8] = rng.integers(90, 160, (size, size), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number // 3 + 1:08d}_{number % 3:03d}.png")


class Plain(Network):
    """Bit i is pixel i of the first row: ``high`` or ``low``, in the channels of ``where``; the rest stays.

    It reads the bit from the mean over these channels, minus that over the others.
    """

    def __init__(
        self,
        bits: int = 8,
        *,
        size: int = SIZE,
        channels: int = 1,
        low: float = 0.2,
        high: float = 0.8,
        where: tuple[int, ...] = (0,),
    ) -> None:
        super().__init__(bits, size=size, channels=channels, width=1)
        self.low, self.high, self.where = low, high, list(where)
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def embed(self, images: Tensor, messages: Tensor) -> Tensor:
        marked = images.clone()
        values = torch.where(messages > 0.5, self.high, self.low)
        marked[:, self.where, 0, : self.bits] = values[:, None]
        return marked + self.weight

    def extract(self, images: Tensor) -> Tensor:
        return images[:, self.where, 0, : self.bits].mean(1) - (self.low + self.high) / 2
