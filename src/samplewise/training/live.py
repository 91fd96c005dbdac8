"""A run for whoever watches it: numbers, distributions and pictures, through Lightning Fabric's loggers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from samplewise import distributed
from samplewise.audit import Audit
from samplewise.batches import Feed, in_order
from samplewise.errors import ConfigurationError, MissingPackageError
from samplewise.problem import evaluation_mode
from samplewise.training.engine import Engine

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Live", "Pictures", "in_lines"]

Pictures: TypeAlias = Callable[[nn.Module, Any], Mapping[str, Tensor]]
"""Draws a batch by the model as it is: images ``(H, W)`` or ``(C, H, W)`` by name, in [0, 1] or as bytes."""

DRAWN = 8  # samples of each data set that are drawn: the first, so that one sees the same ones change


class Live:
    """What goes out while a run goes on. The first process writes; all of them draw, since a model may be spread.

    Args:
        loggers: of Lightning Fabric.
        pictures: draws a few samples of each audited data set.
    """

    def __init__(self, loggers: list[Any], pictures: Pictures | None = None) -> None:
        self.loggers = loggers if distributed.rank() == 0 else []
        self.pictures = pictures

    @classmethod
    def of(cls, fabric: Fabric, *, tensorboard: Path | None, pictures: Pictures | None) -> Live:
        """The fabric's own loggers, and TensorBoard in the folder ``tensorboard`` if there is one."""
        loggers: list[Any] = list(fabric.loggers)
        if tensorboard is not None:
            try:
                from lightning_fabric.loggers.tensorboard import TensorBoardLogger

                loggers.append(TensorBoardLogger(root_dir=tensorboard, name="tensorboard", version=""))
            except ModuleNotFoundError as error:
                raise MissingPackageError(
                    "tensorboard=True needs the extra: pip install 'samplewise[tensorboard]'"
                ) from error
        if pictures is not None and not loggers:
            raise ConfigurationError(
                "pictures=... needs somewhere to go: give tensorboard=True, or a fabric with a logger that shows images"
            )
        return cls(loggers, pictures)

    def numbers(self, row: Mapping[str, Any], epoch: int) -> None:
        """A row of the history."""
        numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
        for logger in self.loggers:
            logger.log_metrics(numbers, step=epoch)

    def distributions(self, audits: Mapping[str, Audit], epoch: int) -> None:
        """The distribution of each measure, to the loggers that can show one."""
        for draw in self._those_that("add_histogram"):
            for split, found in audits.items():
                for name, values in found.measures.items():
                    # Not the name of the mean: TensorBoard takes a name for one kind of data only.
                    draw(f"{split}/{name}/distribution", values, epoch)

    def images(self, engine: Engine, splits: Mapping[str, Feed], epoch: int) -> None:
        """The pictures of each data set, to the loggers that can show one."""
        for split, feed in splits.items():
            for name, image in self.draw(engine, feed).items():
                for show in self._those_that("add_image"):
                    show(f"{split}/{name}", image, epoch, dataformats="HW" if image.ndim == 2 else "CHW")

    def draw(self, engine: Engine, feed: Feed) -> dict[str, Tensor]:
        """The pictures of the first samples of a data set, checked."""
        if self.pictures is None:
            return {}
        model, few = engine.model_to_audit, range(min(DRAWN, feed.source.length))
        ((batch, _),) = in_order(feed, batch_size=len(few), device=engine.device, rows=few)
        with evaluation_mode(model):
            return {name: _checked(name, image) for name, image in self.pictures(model, batch).items()}

    def _those_that(self, can: str) -> list[Callable[..., None]]:
        return [getattr(each.experiment, can) for each in self.loggers if hasattr(each.experiment, can)]


def _checked(name: str, image: Any) -> Tensor:
    if not isinstance(image, Tensor) or image.ndim not in (2, 3) or (image.ndim == 3 and len(image) not in (1, 3)):
        got = tuple(image.shape) if isinstance(image, Tensor) else type(image).__name__
        raise ConfigurationError(f"expected the picture {name!r} as a tensor (H, W), (1, H, W) or (3, H, W), got {got}")
    shown: Tensor = image.detach().cpu()
    return shown.float() if shown.is_floating_point() else shown  # NumPy knows no bfloat16


def in_lines(*lines: Tensor) -> Tensor:
    """Batches of images ``(B, C, H, W)`` as one image: the images of a batch side by side, batch below batch."""
    return torch.cat([torch.cat(list(line), dim=-1) for line in lines], dim=-2)
