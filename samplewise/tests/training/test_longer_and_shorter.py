"""The same run asked for with more epochs, or fewer, than it was begun with."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, CosineAnnealingWarmRestarts, LRScheduler, OneCycleLR, StepLR

import samplewise as sw
from samplewise.errors import ConfigurationError
from small import At, fit, interrupt, make_model

STEPS = 4  # in an epoch


def run(
    folder: Path, epochs: int, make: Callable[[Optimizer], LRScheduler] | None = None, by: str = "epoch", **options: Any
) -> sw.Solution:
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = None if make is None else (make(optimizer), by)
    return fit(None, model, optimizer=optimizer, scheduler=scheduler, epochs=epochs, checkpoint=folder, **options)


@pytest.mark.parametrize(("by", "steps"), [("epoch", 1), ("step", STEPS)])
def test_a_rate_that_rises_again_beyond_the_epochs_it_was_made_for_is_said(tmp_path: Path, by: str, steps: int) -> None:
    def cosine(optimizer: Optimizer) -> LRScheduler:
        return CosineAnnealingLR(optimizer, 3 * steps)

    run(tmp_path, 3, cosine, by)
    with pytest.warns(UserWarning, match="CosineAnnealingLR .* 3 epochs"):
        solution = run(tmp_path, 5, cosine, by)
    rates = solution.history.column("lr")
    assert rates[4] > rates[3] if by == "epoch" else rates[3] > rates[2], "the warning is right"


def test_a_rate_that_is_meant_to_rise_or_keeps_falling_is_not_warned_of(tmp_path: Path) -> None:
    run(tmp_path / "restarts", 3, lambda optimizer: CosineAnnealingWarmRestarts(optimizer, 2))  # warnings are errors
    for epochs in (2, 4):
        run(tmp_path / "falling", epochs, lambda optimizer: StepLR(optimizer, 1, gamma=0.5))
        run(tmp_path / "constant", epochs)


def test_an_interrupted_run_is_not_a_longer_one(tmp_path: Path) -> None:
    def restarts(optimizer: Optimizer) -> LRScheduler:
        return CosineAnnealingWarmRestarts(optimizer, 3)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, 5, restarts, auxiliary=At(2 * STEPS + 1, interrupt))
    assert len(run(tmp_path, 5, restarts, auxiliary=At(-1, interrupt)).history.rows) == 5


@pytest.mark.parametrize("folder", ["continued", "too short from the start"])
def test_a_schedule_that_ends_before_the_run_does_is_said(tmp_path: Path, folder: str) -> None:
    def one_cycle(optimizer: Optimizer) -> LRScheduler:
        return OneCycleLR(optimizer, 0.1, total_steps=2 * STEPS)

    if folder == "continued":
        run(tmp_path, 2, one_cycle, "step")
    with pytest.raises(ConfigurationError, match="4 epochs"):
        run(tmp_path, 4, one_cycle, "step")


def test_fewer_epochs_than_were_run_is_said(tmp_path: Path) -> None:
    first = run(tmp_path, 3)
    with pytest.warns(UserWarning, match="3 epochs, more than the 2"):
        again = run(tmp_path, 2)
    assert again.history.rows == first.history.rows
