"""The exponential average of a model's weights, which a run audits and returns in the place of the last ones."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from samplewise.storage.sharding import local, reshard_, reshard_like

STATISTICS = ("running_mean", "running_var")  # of batch norm, by the names that PyTorch gives them


class Average:
    """``a <- d a + (1 - d) w`` after step k, where ``d = min(decay, (1 + k) / (10 + k))`` and w are the weights.

    The rising d forgets the first weights, of which 0.999 would keep most in a short run. Every process has the same
    weights and so the same average: nothing is sent. Batch norm's running statistics are averaged like weights: those
    of the last steps are of other weights, and finding them anew would take a pass over the data. Other buffers are
    copied; PyTorch's AveragedModel would make NaN of a mask of infinities and round whole numbers down.

    Args:
        model: the average begins with its weights; it is left alone.
        decay: d once the run is long, between 0 and 1.
        copied: a copy of the model, where one cannot be made any more.
    """

    def __init__(self, model: nn.Module, decay: float, copied: nn.Module | None = None) -> None:
        self.decay, self.steps = decay, 0
        self.model = copy.deepcopy(model) if copied is None else copied
        if copied is not None:
            copied.load_state_dict(model.state_dict())

    def update_(self, model: nn.Module) -> None:
        """Take in the weights after a step."""
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        (averaged, copied), (weights, others) = _parts(self.model), _parts(model)
        get_ema_multi_avg_fn(decay)(averaged, weights, self.steps)
        for mine, its in zip(copied, others, strict=True):
            mine.copy_(its)

    def state_dict(self) -> dict[str, Any]:
        return {"model": dict(self.model.state_dict()), "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(reshard_like(state["model"], self.model.state_dict()))
        self.steps = state["steps"]


def between(first: Mapping[str, Tensor], last: Mapping[str, Tensor], part: float) -> dict[str, Tensor]:
    """Weights and buffers a ``part`` of the way from one state to another; those that are whole numbers are the last's.

    The first and the last ones are given back bit by bit.
    """
    found = {}
    for name, end in last.items():
        fixed = part == 1 or not end.is_floating_point() or name not in first
        found[name] = end if fixed else first[name] + part * (end - first[name])
    return found


def _parts(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """What is averaged of a model, and what is copied, as this process holds it."""
    reshard_(model)
    averaged: list[Tensor] = [local(weight.detach()) for weight in model.parameters()]
    copied: list[Tensor] = []
    for name, buffer in model.named_buffers():
        (averaged if name.rpartition(".")[2] in STATISTICS else copied).append(buffer)
    return averaged, copied
