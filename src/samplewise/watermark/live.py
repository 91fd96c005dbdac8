"""Pictures of a watermarking network while it is trained."""

from typing import Any

from torch import Tensor, nn

from samplewise.report.tensorboard import Draw, in_lines
from samplewise.watermark.pipeline import Pipeline

__all__ = ["marked_pictures"]

SHOWN = 4  # images side by side
GAIN = 20  # a change of 6 grey levels, which nobody sees, becomes half the scale


def marked_pictures(pipeline: Pipeline) -> Draw:
    """Draws originals, below them the marked images, and last what was changed, many times over, around grey.

    Args:
        pipeline: how images are embedded.
    """

    def draw(model: nn.Module, batch: Any) -> dict[str, Tensor]:
        images, numbers = batch
        made = pipeline.embed(model, (images[:SHOWN], numbers[:SHOWN]))
        change = 0.5 + GAIN * (made.marked - made.covers)
        return {f"original, marked, change x {GAIN}": in_lines(made.covers, made.marked, change)}

    return draw
