"""PNG files that are really written and read back, so that what is measured is what a user gets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from samplewise.checkpoint import ensure_writable
from samplewise.errors import DataError, MissingPackageError, OutputError
from samplewise.watermark.evaluation.marking import FileKind, Pixels

__all__ = ["Files", "file_name"]


def file_name(name: str) -> str:
    """The name under which a picture's marked PNG is kept."""
    return name if name.lower().endswith(".png") else f"{name}.png"


class Files:
    """A folder that marked images go through; see :meth:`open`.

    Args:
        folder: where they are written, below the name of their kind.
        keep: whether they stay there.
        pool: threads that write and read.
    """

    def __init__(self, folder: Path, *, keep: bool, pool: Executor) -> None:
        self.folder = folder
        self.keep = keep
        self.pool = pool

    @classmethod
    @contextmanager
    def open(cls, keep: Path | None, names: Sequence[str], pool: Executor) -> Iterator[Files]:
        """Use the folder ``keep``, or a temporary one whose files are deleted as soon as they are read.

        Args:
            keep: where the files stay; nowhere if None.
            names: of all images to come.
            pool: threads that write and read.
        """
        try:
            import PIL.Image  # noqa: F401
        except ImportError as error:
            raise MissingPackageError("files need pillow: pip install 'samplewise[watermark]'") from error
        if len({file_name(name) for name in names}) < len(names):
            raise DataError("two images would become the same PNG file; give them names that differ before the suffix")
        if keep is not None:
            yield cls(ensure_writable(keep), keep=True, pool=pool)
            return
        with TemporaryDirectory(prefix="samplewise-") as folder:
            yield cls(Path(folder), keep=False, pool=pool)

    def round_trip(self, names: Sequence[str], pixels: Pixels, kind: FileKind) -> Pixels:
        """Write a batch, ``(B, H, W)`` or ``(B, H, W, 3)``, and return what is read from the files."""
        paths = [self.folder / kind / file_name(name) for name in names]
        return np.stack(list(self.pool.map(self._one, paths, pixels)))

    def _one(self, path: Path, pixels: Pixels) -> Pixels:
        from PIL import Image

        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
            with Image.open(path) as picture:
                read = np.asarray(picture)
            if not self.keep:
                path.unlink()
        except OSError as error:
            raise OutputError(f"{path}: cannot be written and read back: {error.strerror or error}") from error
        return read
