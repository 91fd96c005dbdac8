"""The network of section V-A and the problem it solves."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from samplewise import AtMost, Problem
from samplewise.errors import ConfigurationError

Latent = Literal["linear", "relu"]
CONSTRAINT = "reconstruction"


class DigitNetwork(nn.Module):
    """An encoder to a small code, a classifier on the code, and a decoder back to the image (Figure 1).

    ``latent`` is the activation of the code: the paper says ReLU, its published numbers were made without ("linear").
    """

    def __init__(
        self, *, pixels: int = 784, classes: int = 10, hidden: int = 256, code: int = 20, latent: Latent = "linear"
    ) -> None:
        super().__init__()
        if latent not in get_args(Latent):
            raise ConfigurationError(f"expected latent as one of {', '.join(get_args(Latent))}, got {latent!r}")
        activation = [nn.ReLU()] if latent == "relu" else []
        self.encoder = nn.Sequential(nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, code), *activation)
        self.classifier = nn.Linear(code, classes)
        self.decoder = nn.Sequential(nn.Linear(code, hidden), nn.ReLU(), nn.Linear(hidden, pixels), nn.Sigmoid())

    def forward(self, images: Tensor, *, decode: bool = True) -> tuple[Tensor, Tensor]:
        """Class scores ``(B, classes)`` and reconstructions ``(B, D)``, or codes, of images ``(B, D)``."""
        code = self.encoder(images)
        return self.classifier(code), self.decoder(code) if decode else code


def evaluate(model: nn.Module, batch: Any) -> tuple[Tensor, Mapping[str, Tensor]]:
    """Cross entropy of each sample; its reconstruction error and, where nothing is trained, whether it is right."""
    images, labels = batch
    scores, reconstruction = model(images)
    objective = nn.functional.cross_entropy(scores, labels, reduction="none")
    # As samplewise.measures.mse, bit by bit, in one pass over the pixels.
    error = nn.functional.mse_loss(reconstruction, images, reduction="none").mean(1)
    measures = {CONSTRAINT: error}
    if not torch.is_grad_enabled():
        measures["accuracy"] = (scores.argmax(1) == labels).to(objective.dtype)
    return objective, measures


def classify(model: nn.Module, batch: Any) -> tuple[Tensor, Mapping[str, Tensor]]:
    """Cross entropy of each sample alone; the decoder is not run."""
    images, labels = batch
    scores, _ = model(images, decode=False)
    return nn.functional.cross_entropy(scores, labels, reduction="none"), {}


def study_problem(theta: float, *, margin: float = 0.0) -> Problem:
    """``min CE`` subject to ``MSE <= theta`` for every sample; ``margin`` tightens the bound in training."""
    return Problem(evaluate, [AtMost(CONSTRAINT, theta, margin=margin)])
