"""HiDDeN's discriminator, which tells covers from marked images, and its step before each one of the network."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from samplewise import distributed
from samplewise.errors import CheckpointError
from samplewise.watermark.networks.hidden import average_pool, block, channels_last
from samplewise.watermark.pipeline import MarkedBatch

__all__ = ["Adversary", "Discriminator"]

COVER, MARKED = 1.0, 0.0


class Discriminator(nn.Module):
    """Three blocks of ``width`` channels, their mean over the image, and a linear layer, as published."""

    def __init__(self, *, channels: int = 3, width: int = 64) -> None:
        super().__init__()
        self.features = nn.Sequential(block(channels, width), block(width, width), block(width, width))
        self.linear = nn.Linear(width, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Images ``(B, C, H, W)`` to logits ``(B,)``; above zero means a cover."""
        logits: Tensor = self.linear(average_pool(self.features(channels_last(images))))
        return logits.squeeze(1)


class Adversary:
    """The auxiliary step of ``fit`` that trains a discriminator and scores marked images with it (loss L_G).

    In each step the discriminator sees the covers and the marked images, one batch after the other since it has batch
    norm, and is updated. It then scores the marked images again, for the encoder. The encoder runs once. With
    micro-batches the discriminator is updated after each of them.

    Args:
        embed: a function of the model and a batch, as the data set gives it, that returns the :class:`MarkedBatch`.
        discriminator: moved to where the images are.
        lr: learning rate of its Adam.
    """

    def __init__(
        self, embed: Callable[[nn.Module, Any], MarkedBatch], *, discriminator: nn.Module, lr: float = 1e-4
    ) -> None:
        self.embed = embed
        self.discriminator = discriminator
        self.optimizer = torch.optim.Adam(discriminator.parameters(), lr=lr)
        self._device: torch.device | None = None

    def step(self, model: nn.Module, batch: Any) -> MarkedBatch:
        """Update the discriminator; returns the marked ``batch`` with its adversarial loss."""
        made = self.embed(model, batch)
        self._follow(made.covers.device)
        self._learn(made.covers, made.marked.detach())
        return made._replace(adversarial=self._score(made.marked))

    def _follow(self, device: torch.device) -> None:
        """Bring the discriminator to ``device``, and all processes to the first one's weights."""
        if device == self._device:
            return
        self.discriminator.to(device)
        self.optimizer.load_state_dict(self.optimizer.state_dict())  # takes its moments to where the weights are
        for parameter in self.discriminator.parameters():
            distributed.from_first_(parameter.detach())
        self._device = device

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
        """How far each marked image is from passing for a cover, ``(B,)``, with a gradient for the encoder alone."""
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
        try:
            self.discriminator.load_state_dict(state["discriminator"])
            self.optimizer.load_state_dict(state["optimizer"])
        except (KeyError, TypeError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise CheckpointError(
                f"expected the state of this discriminator, got another's ({reason}): build it with the same channels "
                "and width, or start a new run"
            ) from error


def _cross_entropy(logits: Tensor, label: float) -> Tensor:
    return functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, label), reduction="none")
