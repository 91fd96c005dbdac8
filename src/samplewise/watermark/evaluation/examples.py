"""The images on which a network does worst, kept beside the numbers so that a report can show them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from samplewise.checkpoint import save_state
from samplewise.problem import evaluation_mode
from samplewise.watermark.evaluation.judged import Judged
from samplewise.watermark.evaluation.marking import Pixels, as_pixels, mark

__all__ = ["again", "keep_worst"]

KEPT = 6  # images of each kind


def again(one: Judged, places: Sequence[int]) -> tuple[Pixels, Pixels]:
    """Covers and marked images ``(K, H, W)`` as grey files hold them, marked once more as when they were judged.

    Args:
        one: a run and what was found of it.
        places: of the images among those that it was judged on.
    """
    images, numbers = one.data.take(torch.as_tensor(places))
    device = next(one.run.network.parameters()).device
    with evaluation_mode(one.run.network):
        made = mark(one.run.network, images.to(device), numbers.to(device))
    return as_pixels(made.covers, "grey"), as_pixels(made.images, "grey")


def keep_worst(path: Path, one: Judged) -> None:
    """Write the images with the lowest PSNR and, where bits were read wrong, those with the most bit errors."""
    measures = one.evaluation.measures
    error = measures["grey/bit_error"]
    worst = {
        "psnr": np.argsort(measures["grey/psnr"], kind="stable")[:KEPT].tolist(),
        "bit_error": [place for place in np.argsort(-error, kind="stable")[:KEPT].tolist() if error[place] > 0],
    }
    kept = {}
    for kind, places in worst.items():
        if places:
            covers, marked = again(one, places)
            kept[kind] = {
                "number": torch.from_numpy(one.evaluation.numbers[places]),
                "original": torch.from_numpy(covers),
                "marked": torch.from_numpy(marked),
            }
    save_state(path, kept)
