"""Pictures decoded side by side, a chunk at a time and in order, so that memory stays flat."""

import time
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from samplewise.data.pictures.decode import decode
from samplewise.data.pictures.listing import Picture
from samplewise.errors import DataError

__all__ = ["Chunk", "Decoders"]

CHUNK_PICTURES = 32
CHUNK_BYTES = 4 << 20
AHEAD = 2  # chunks for each worker that are decoded or wait to be written


@dataclass(frozen=True)
class Chunk:
    """What came of some files."""

    images: NDArray[np.uint8]
    """Those that were decoded, shape ``(n, H, W)``."""
    bad: dict[str, str]
    """Names of the others, with the reason."""
    converted: Counter[str]
    """Modes of the files that were not 8-bit grey."""


class Decoders:
    """Threads that decode. Pillow works outside Python's lock, so they do what processes would.

    Args:
        pool: the threads.
        workers: how many there are.
        size: height and width of the result.
    """

    def __init__(self, pool: ThreadPoolExecutor, workers: int, size: int) -> None:
        self.pool = pool
        self.workers = workers
        self.size = size

    @classmethod
    @contextmanager
    def start(cls, workers: int, size: int) -> Iterator["Decoders"]:
        """Start the threads; what they have not begun when an error comes is dropped."""
        from PIL import Image

        with warnings.catch_warnings(), ThreadPoolExecutor(workers, thread_name_prefix="decode") as pool:
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own bound is lower, and it refuses
            try:
                yield cls(pool, workers, size)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def seconds_each(self, pictures: Sequence[Picture], sample: int) -> float:
        """Measured time for a picture, from a few that are spread over all of them."""
        chosen = pictures[:: max(1, len(pictures) // sample)][:sample]
        began = time.monotonic()
        list(self.pool.map(lambda picture: self._decode([picture]), chosen))
        return (time.monotonic() - began) / max(1, len(chosen))

    def decode(self, pictures: Sequence[Picture]) -> Iterator[Chunk]:
        """All pictures in order, with only a few chunks in memory."""
        each = max(1, min(CHUNK_PICTURES, CHUNK_BYTES // self.size**2))
        running: deque[Future[Chunk]] = deque()
        for first in range(0, len(pictures), each):
            running.append(self.pool.submit(self._decode, pictures[first : first + each]))
            if len(running) >= AHEAD * self.workers:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()

    def _decode(self, pictures: Sequence[Picture]) -> Chunk:
        images = np.empty((len(pictures), self.size, self.size), np.uint8)
        kept = 0
        bad: dict[str, str] = {}
        converted: Counter[str] = Counter()
        for picture in pictures:
            try:
                images[kept], mode = decode(picture.path, self.size)
            except DataError as error:
                bad[picture.name] = str(error)
                continue
            kept += 1
            if mode != "L":
                converted[mode] += 1
        return Chunk(images[:kept], bad, converted)
