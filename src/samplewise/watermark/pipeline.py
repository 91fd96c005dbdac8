"""From a batch of images to the objective and the measures of the watermarking problem (paper, section V-B)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from samplewise.constraints import AtLeast, AtMost, Constraint
from samplewise.measures import bit_error, mse, psnr
from samplewise.problem import Problem
from samplewise.watermark.messages import fixed_messages, random_messages
from samplewise.watermark.noise import Noise

__all__ = ["CONSTRAINT", "DIAGNOSIS", "LEVELS", "MarkedBatch", "Pipeline", "watermark_problem", "written"]

CONSTRAINT = "psnr"
DIAGNOSIS = "diagnosis"
"""The measure of how far a classifier's probabilities move, ``(B, m)``."""
DIAGNOSIS_MARGIN = 0.25
"""Share of the bound on it that is kept free in training, for images not seen there."""
LEVELS = 255
"""Steps between black and white in an 8-bit file."""


class MarkedBatch(NamedTuple):
    """A batch on its way through a network, so that a step which needs it twice computes it once."""

    covers: Tensor
    """The images as the network takes them, ``(B, C, H, W)``."""
    messages: Tensor
    """Zeros and ones, ``(B, L)``."""
    marked: Tensor
    """The images that ship, ``(B, C, H, W)``."""
    logits: Tensor
    """What the decoder read after shipping and noise, ``(B, L)``."""
    adversarial: Tensor | None = None
    """How far each marked image is from passing for a cover, ``(B,)``; None without a discriminator."""


def written(images: Tensor) -> Tensor:
    """Images as an 8-bit file stores them; gradients pass the rounding as if it were not there."""
    clamped = images.clamp(0.0, 1.0)
    return clamped + ((clamped * LEVELS).round() / LEVELS - clamped).detach()


@dataclass(frozen=True)
class Pipeline:
    """Embeds, ships and reads a batch.

    In training every image gets a new message and noise lies on the way; otherwise an image's message is a function
    of its number and nothing disturbs it.
    """

    bits: int
    channels: int
    """Of the images that the network takes; grey ones are repeated."""
    message_loss: Callable[[Tensor, Tensor], Tensor]
    """The network's own, of what was read and the messages."""
    rounded: bool
    """Whether images ship as 8-bit files, or unclamped in floating point as in the paper."""
    noise: Noise | None = None
    image_loss: float = 0.0
    """Weight of the mean squared error in the objective: the paper's baseline."""
    adversarial: float = 0.0
    """Weight of the discriminator's verdict in the objective."""
    diagnose: Callable[[Tensor], Tensor] | None = None
    """Logits of a frozen classifier that the mark should not disturb, ``(B, C, H, W)`` to ``(B, m)``."""

    def embed(self, model: nn.Module, batch: Any) -> MarkedBatch:
        """Run the network over ``batch``: images ``(B, 1, H, W)`` in [0, 1] and their numbers ``(B,)``."""
        images, numbers = batch
        images = images.expand(-1, self.channels, -1, -1)
        training = model.training
        if training:
            messages = random_messages(len(images), self.bits, device=images.device)
        else:
            messages = fixed_messages(numbers, self.bits)

        def channel(marked: Tensor, covers: Tensor) -> tuple[Tensor, Tensor]:
            shipped = written(marked) if self.rounded else marked
            return shipped, self.noise(shipped, covers) if training and self.noise is not None else shipped

        shipped, read = model(images, messages, channel)
        return MarkedBatch(images, messages, shipped, read)

    def evaluate(self, model: nn.Module, batch: Any) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Objective and measures of a batch, or of what an adversary has made of one already."""
        made = batch if isinstance(batch, MarkedBatch) else self.embed(model, batch)
        message_loss = self.message_loss(made.logits, made.messages)
        objective = message_loss
        if self.image_loss:
            objective = objective + self.image_loss * mse(made.marked, made.covers)
        if made.adversarial is not None:
            objective = objective + self.adversarial * made.adversarial
        with torch.no_grad():
            error = bit_error(made.logits, made.messages)
        measures = {
            CONSTRAINT: psnr(made.marked, made.covers),
            "message_loss": message_loss.detach(),
            "bit_error": error,
        }
        if self.diagnose is not None:
            with torch.no_grad():
                before = self.diagnose(made.covers).sigmoid()
            measures[DIAGNOSIS] = (self.diagnose(made.marked).sigmoid() - before).abs()
        return objective, measures


def watermark_problem(
    pipeline: Pipeline, floor: float | None, *, margin: float = 0.0, diagnosis: float | None = None
) -> Problem:
    """The message read back as well as can be, subject to a PSNR of at least ``floor`` dB for every image.

    Args:
        pipeline: how images are embedded and read.
        floor: in dB; None for the problem without the constraint.
        margin: how many dB above the floor to train for.
        diagnosis: how far no probability of the pipeline's classifier may move, for any image; None for any distance.
    """
    constraints: list[Constraint] = [] if floor is None else [AtLeast(CONSTRAINT, floor, margin=margin)]
    if diagnosis is not None:
        # As far beyond the bound as the bound itself weighs what one dB below the floor weighs.
        constraints.append(AtMost(DIAGNOSIS, diagnosis, scale=diagnosis, margin=DIAGNOSIS_MARGIN * diagnosis))
    return Problem(pipeline.evaluate, constraints)
