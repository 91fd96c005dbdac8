"""Pictures of a run for TensorBoard, beside the numbers that ``fit`` logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from samplewise.audits.audit import Audit
from samplewise.samples import Data, in_order, source_of
from samplewise.training.logging import Callback

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Draw: TypeAlias = Callable[[nn.Module, Any], Mapping[str, Tensor]]
"""Draws a batch by the model as it is: images ``(C, H, W)`` by name, in [0, 1]."""
DRAWN = 8  # samples of each data set: the first, so that one sees the same ones change


class Pictures(Callback):
    """Draws the first samples of each data set by the model after each audit, for the loggers of ``fabric``."""

    def __init__(self, fabric: Fabric, splits: Mapping[str, Data], draw: Draw) -> None:
        self.fabric, self.splits, self.draw = fabric, splits, draw

    def on_audit(self, model: nn.Module, epoch: int, audits: Mapping[str, Audit]) -> None:
        loggers: list[Any] = self.fabric.loggers
        for split, data in self.splits.items() if loggers else ():
            few = range(min(DRAWN, source_of(data).source.length))
            ((batch, _),) = in_order(data, batch_size=DRAWN, device=self.fabric.device, rows=few)
            for name, image in self.draw(model, batch).items():  # in every process, since the model may be sharded
                for logger in loggers:
                    logger.experiment.add_image(f"{split}/{name}", image.detach().float().cpu(), epoch)


def in_lines(*lines: Tensor) -> Tensor:
    """Batches of images ``(B, C, H, W)`` as one image: the images of a batch side by side, batch below batch."""
    return torch.cat([torch.cat(list(line), dim=-1) for line in lines], dim=-2)
