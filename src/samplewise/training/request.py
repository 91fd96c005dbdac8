"""What is asked of a run as a whole: whether it fits together, and what makes it this run and no other."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from samplewise.batches import Feed, check_whole
from samplewise.errors import ConfigurationError
from samplewise.methods import Method
from samplewise.problem import Problem, check_same_constraints
from samplewise.training.loop import Training
from samplewise.training.settings import Settings

__all__ = ["check_together", "checkpoint_bytes", "identity"]


def check_together(
    settings: Settings,
    problem: Problem,
    model: nn.Module,
    method: Method,
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None,
    feed: Feed,
    splits: Mapping[str, Feed],
) -> None:
    """Say what does not fit together before anything is started or written."""
    for name, value, kind in (("method", method, Method), ("optimizer", optimizer, torch.optim.Optimizer)):
        if not isinstance(value, kind):
            raise ConfigurationError(f"expected {name} as a {kind.__name__}, made and ready, got {value!r}")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ConfigurationError("LBFGS evaluates the loss several times a step, which fit does not: use Adam or SGD")
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ConfigurationError("ReduceLROnPlateau needs a number at each step: use a schedule of the epoch or of tau")
    if settings.select_on not in splits:
        raise ConfigurationError(f"select_on={settings.select_on!r} is none of the data sets given: {list(splits)}")
    for split in splits.values():
        check_whole(split)
    check_same_constraints(problem, method.constraints)
    method.check_samples(feed.source.length)
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if not trained & {id(parameter) for parameter in model.parameters()}:
        raise ConfigurationError("the optimizer holds none of the model's parameters: build it from model.parameters()")
    if scheduler is not None and scheduler.optimizer is not optimizer:
        raise ConfigurationError("the scheduler drives another optimizer than the one given")


def identity(training: Training, problem: Problem, model: nn.Module) -> dict[str, Any]:
    """What makes a run this run and no other."""
    method, optimizer = training.method, training.engine.raw_optimizer
    described = {
        key: repr(value) for key, value in vars(method).items() if not key.startswith("_") and key != "training"
    }
    return {
        "samples": training.feed.source.length,
        "constraints": [repr(constraint) for constraint in problem.constraints],
        "method": {"type": type(method).__name__, **described},
        "model": {name: list(value.shape) for name, value in model.state_dict().items()},
        "optimizer": {"type": type(optimizer).__name__, **{k: repr(v) for k, v in optimizer.defaults.items()}},
        "scheduler": _kind(training.scheduler),
        "auxiliary": _kind(training.engine.auxiliary),
        "audited": {name: split.source.length for name, split in training.splits.items()},
        **training.settings.identity(),
    }


def _kind(value: object) -> str | None:
    return None if value is None else type(value).__name__


def checkpoint_bytes(model: nn.Module, method: Method) -> int:
    """About what a checkpoint takes: the weights, two moments of them, the best weights, and the method's state."""
    weights = sum(value.numel() * value.element_size() for value in model.parameters())
    kept: int = sum(value.numel() * value.element_size() for value in method.state_dict().values())
    return 4 * weights + kept
