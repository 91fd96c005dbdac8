"""A run's numbers and pictures for TensorBoard, in the run's own folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from samplewise.errors import MissingPackageError, install

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["to_tensorboard"]


@contextmanager
def to_tensorboard(fabric: Fabric, folder: Path | None) -> Iterator[None]:
    """Have what is trained inside also written as event files; one fabric may serve several runs, one after the other.

    Args:
        fabric: that the run is given.
        folder: of the run, which gets a folder ``tensorboard``; nothing is written if None.
    """
    if folder is None:
        yield
        return
    from lightning_fabric.loggers.tensorboard import TensorBoardLogger

    try:
        logger = TensorBoardLogger(root_dir=folder, name="tensorboard", version="")
    except ModuleNotFoundError as error:
        raise MissingPackageError(f"TensorBoard's files need tensorboard; {install('tensorboard')}") from error
    fabric.loggers.append(logger)
    try:
        yield
    finally:
        fabric.loggers.remove(logger)
        logger.finalize("ended")
