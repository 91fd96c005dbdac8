"""A run for whoever watches it: a progress bar, and numbers, distributions and pictures through Fabric's loggers."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from samplewise import distributed
from samplewise.audit import Audit
from samplewise.errors import ConfigurationError
from samplewise.samples import Feed
from samplewise.training.step import Stepper

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Pictures: TypeAlias = Callable[[nn.Module, Any], Mapping[str, Tensor]]
"""Draws a batch by the model as it is: images ``(H, W)`` or ``(C, H, W)`` by name, in [0, 1] or as bytes."""

DRAWN = 8  # samples of each data set that are drawn: the first, so that one sees the same ones change


class Watch:
    """What goes out while a run goes on. The first process writes; all of them draw, since a model may be spread."""

    def __init__(self, fabric: Fabric, pictures: Pictures | None, progress: bool | None) -> None:
        if pictures is not None and not fabric.loggers:
            raise ConfigurationError(
                "pictures=... needs somewhere to go: give a fabric with a logger that shows images, such as "
                "Fabric(loggers=TensorBoardLogger('run'))"
            )
        first = distributed.rank() == 0
        self.loggers: list[Any] = list(fabric.loggers) if first else []
        self.pictures = pictures
        self.shown = first and (sys.stderr.isatty() if progress is None else progress)
        self._bar: Any = None

    @contextlib.contextmanager
    def bar(self, epochs: int, done: int) -> Iterator[None]:
        """Show on standard error how far a run of ``epochs`` is, ``done`` of them behind it, if that is wanted."""
        if not self.shown:
            yield
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        note = TextColumn("{task.fields[note]}")
        with Progress(*columns, note, console=Console(stderr=True), refresh_per_second=4) as self._bar:
            self._epochs = self._bar.add_task("epochs", total=epochs, completed=done, note="")
            self._steps = self._bar.add_task("steps", total=None, note="")
            yield

    def start_epoch(self, steps: int, done: int) -> None:
        """A new epoch of ``steps`` steps, ``done`` of them behind it."""
        if self._bar is not None:
            self._bar.reset(self._steps, total=steps, completed=done)

    def step(self) -> None:
        """One step more."""
        if self._bar is not None:
            self._bar.advance(self._steps)

    def end_epoch(self, row: Mapping[str, Any], constraints: list[str]) -> None:
        """One epoch more, with its row of the history."""
        numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
        for logger in self.loggers:
            logger.log_metrics(numbers, step=row["epoch"])
        if self._bar is not None:
            shares = ", ".join(f"{name} {row[f'running/{name}/satisfied']:.1%}" for name in constraints) or "-"
            note = f"objective {row['running/objective']:.4g}, satisfied: {shares}"
            self._bar.update(self._epochs, advance=1, note=note)

    def audited(self, audits: Mapping[str, Audit], stepper: Stepper, splits: Mapping[str, Feed], epoch: int) -> None:
        """The distribution of each measure, and the pictures of each data set, to the loggers that can show them."""
        for split, found in audits.items():
            for show in self._those_that("add_histogram"):
                for name, values in found.measures.items():
                    # Not the name of the mean: TensorBoard takes a name for one kind of data only.
                    show(f"{split}/{name}/distribution", values, epoch)
            for name, image in self.draw(stepper, splits[split]).items():
                for show in self._those_that("add_image"):
                    show(f"{split}/{name}", image, epoch, dataformats="HW" if image.ndim == 2 else "CHW")

    def draw(self, stepper: Stepper, feed: Feed) -> dict[str, Tensor]:
        """The pictures of the first samples of a data set, checked."""
        if self.pictures is None:
            return {}
        with stepper.first(feed, DRAWN) as (model, batch, _):
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
