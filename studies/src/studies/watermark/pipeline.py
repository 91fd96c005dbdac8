"""From a batch of images to the objective and the measures of the watermarking problem (paper, section V-B).

With an adversary, HiDDeN's discriminator takes a step of its own before each one of the network.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from samplewise import AtLeast, AtMost, Constraint, Problem
from samplewise.measures import bit_error, mse, psnr
from samplewise.storage import distributed
from studies.watermark.networks import Network
from studies.watermark.noise import parse_noise
from studies.watermark.operators import LEVELS
from studies.watermark.patches import patch_room
from studies.watermark.recipe import Recipe

CONSTRAINT = "psnr"
DIAGNOSIS = "diagnosis"
"""The measure of how much a classifier's probabilities change, ``(B, m)``."""
PATCHES = "patches"
"""The measure of how many dB each patch is above its own floor, ``(B, patches)``."""
PATCHES_SCALE = 8.0
"""dB in one patch that weigh as one dB in the image."""
DIAGNOSIS_MARGIN = 0.25
"""Fraction of the bound on it that training keeps as a margin, for unseen images."""
COVER, MARKED = 1.0, 0.0  # the labels of the discriminator


class MarkedBatch(NamedTuple):
    """A batch after the forward pass, so that a step which needs it twice computes it once."""

    covers: Tensor
    """The images as the network takes them, ``(B, C, H, W)``."""
    messages: Tensor
    """Zeros and ones, ``(B, L)``."""
    marked: Tensor
    """The images that ship, ``(B, C, H, W)``."""
    logits: Tensor
    """The decoder's output after shipping and noise, ``(B, L)``."""
    adversarial: Tensor | None = None
    """Adversarial loss of each marked image, ``(B,)``; None without a discriminator."""


def written(images: Tensor) -> Tensor:
    """Images as an 8-bit file stores them, with a straight-through estimator for the rounding."""
    clamped = images.clamp(0.0, 1.0)
    return clamped + ((clamped * LEVELS).round() / LEVELS - clamped).detach()


def fixed_messages(numbers: Tensor, bits: int) -> Tensor:
    """The message of each image in tests, a function of its number alone, ``(B,)`` to ``(B, L)``."""
    rows = [hashlib.shake_256(f"message {number}".encode()).digest(-(-bits // 8)) for number in numbers.tolist()]
    packed = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1)
    return torch.from_numpy(np.unpackbits(packed, axis=1, count=bits)).float().to(numbers.device)


class Pipeline:
    """Embeds, ships and reads a batch, as a recipe says.

    In training every image gets a new message and goes through noise; otherwise its message is a function of its number
    and nothing disturbs it. The classifier, which the mark should not disturb, is frozen and takes images
    ``(B, C, H, W)`` to logits ``(B, m)``.
    """

    def __init__(self, recipe: Recipe, network: Network, classifier: nn.Module | None = None) -> None:
        self.recipe = recipe
        self.network = network
        self.classifier = classifier
        self.noise = None if recipe.noise == "identity" else parse_noise(recipe.noise)

    def problem(self) -> Problem:
        """The message read back as well as can be, subject to the recipe's PSNR floor for every image.

        With local floors every patch has one of its own too. With a bound on the diagnosis, no probability of the
        classifier may change by more, for any image.
        """
        floor, diagnosis = self.recipe.floor, self.recipe.diagnosis
        constraints: list[Constraint] = [AtLeast(CONSTRAINT, floor, margin=self.recipe.margin)]
        if self.recipe.local:
            constraints.append(AtLeast(PATCHES, 0.0, scale=PATCHES_SCALE, margin=self.recipe.margin))
        if diagnosis is not None:
            # Scaled so that a change of twice the bound weighs as much as an image one dB below its floor.
            constraints.append(AtMost(DIAGNOSIS, diagnosis, scale=diagnosis, margin=DIAGNOSIS_MARGIN * diagnosis))
        return Problem(self.evaluate, constraints)

    def embed(self, model: nn.Module, batch: Any) -> MarkedBatch:
        """Run the network over ``batch``: images ``(B, 1, H, W)`` in [0, 1] and their numbers ``(B,)``."""
        images, numbers = batch
        images = images.expand(-1, self.network.channels, -1, -1)
        bits, training = self.network.bits, model.training
        if training:
            messages = torch.randint(0, 2, (len(images), bits), device=images.device).float()
        else:
            messages = fixed_messages(numbers, bits)

        def channel(marked: Tensor, covers: Tensor) -> tuple[Tensor, Tensor]:
            shipped = written(marked) if self.recipe.rounded else marked
            return shipped, self.noise(shipped, covers) if training and self.noise is not None else shipped

        shipped, read = model(images, messages, channel)
        return MarkedBatch(images, messages, shipped, read)

    def evaluate(self, model: nn.Module, batch: Any) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Objective and measures of a batch, or of what an adversary has made of one already."""
        made = batch if isinstance(batch, MarkedBatch) else self.embed(model, batch)
        message_loss = self.network.message_loss(made.logits, made.messages)
        objective = message_loss
        if self.recipe.image_loss:
            objective = objective + self.recipe.image_loss * mse(made.marked, made.covers)
        if made.adversarial is not None:
            objective = objective + self.recipe.adversarial * made.adversarial
        with torch.no_grad():
            error = bit_error(made.logits, made.messages)
        measures = {
            CONSTRAINT: psnr(made.marked, made.covers),
            "message_loss": message_loss.detach(),
            "bit_error": error,
        }
        if self.recipe.local:
            measures[PATCHES] = patch_room(made.marked, made.covers, self.recipe.floor)
        if self.classifier is not None:
            with torch.no_grad():
                before = self.classifier(made.covers).sigmoid()
            measures[DIAGNOSIS] = (self.classifier(made.marked).sigmoid() - before).abs()
        return objective, measures


class Adversary:
    """The auxiliary step of ``fit`` that trains a discriminator and scores marked images with it (loss L_G).

    In each step, or micro-batch, the discriminator sees the covers and the marked images, one batch after the other
    since it has batch norm, and is updated. It then scores the marked images again, for the encoder, which runs once.
    All processes begin with the first one's discriminator.
    """

    def __init__(
        self, embed: Callable[[nn.Module, Any], MarkedBatch], *, discriminator: nn.Module, lr: float = 1e-4
    ) -> None:
        self.embed = embed
        self.discriminator = discriminator
        self.optimizer = torch.optim.Adam(discriminator.parameters(), lr=lr)
        for parameter in discriminator.parameters():
            distributed.from_first_(parameter.detach())

    def step(self, model: nn.Module, batch: Any) -> MarkedBatch:
        """Update the discriminator; returns the marked ``batch`` with its adversarial loss."""
        made = self.embed(model, batch)
        self._learn(made.covers, made.marked.detach())
        return made._replace(adversarial=self._score(made.marked))

    def _learn(self, covers: Tensor, marked: Tensor) -> None:
        self.optimizer.zero_grad()
        for images, label in ((covers, COVER), (marked, MARKED)):
            loss = _cross_entropy(self.discriminator(images), label).mean()
            torch.autograd.backward(loss)
        if (processes := distributed.world_size()) > 1:
            for parameter in self.discriminator.parameters():
                if parameter.grad is not None:
                    distributed.all_sum_(parameter.grad).div_(processes)
        self.optimizer.step()

    def _score(self, marked: Tensor) -> Tensor:
        """Adversarial loss of each marked image, ``(B,)``, with a gradient for the encoder alone."""
        self.discriminator.requires_grad_(False)
        try:
            return _cross_entropy(self.discriminator(marked), COVER)
        finally:
            self.discriminator.requires_grad_(True)

    def state_dict(self) -> dict[str, Any]:
        """The discriminator and its optimiser."""
        return {"discriminator": dict(self.discriminator.state_dict()), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        self.discriminator.load_state_dict(state["discriminator"])
        self.optimizer.load_state_dict(state["optimizer"])


def _cross_entropy(logits: Tensor, label: float) -> Tensor:
    return functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, label), reduction="none")
