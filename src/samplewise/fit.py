"""Whole runs: the paper's outer loop around any PyTorch optimiser (section III)."""

from __future__ import annotations

import contextlib
import copy
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

from samplewise import distributed
from samplewise.audit import Audit
from samplewise.batches import Data, Feed, source_of
from samplewise.checkpoint import alone
from samplewise.errors import ConfigurationError
from samplewise.history import History
from samplewise.methods import Method
from samplewise.problem import Problem
from samplewise.stopping import GradientRule
from samplewise.training.engine import Auxiliary, Engine, single_device
from samplewise.training.live import Live, Pictures
from samplewise.training.loop import Training
from samplewise.training.progress import Progress
from samplewise.training.request import check_together, checkpoint_bytes, identity
from samplewise.training.run import RunFolder
from samplewise.training.selection import Selection
from samplewise.training.settings import Settings
from samplewise.violators import Streaks

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Solution", "Status", "fit"]


class Status(enum.Enum):
    """How a run ended; the value is the message."""

    FEASIBLE = "every epoch was run; the selected model meets the feasibility target"
    TARGET_REACHED = "stopped early: the feasibility target is met"
    NO_LONGER_BETTER = "stopped early: the patience ended without a better model"
    INFEASIBLE = "every epoch was run; no audited model meets the feasibility target"

    @property
    def message(self) -> str:
        """The status in words."""
        return self.value


@dataclass(frozen=True)
class Solution:
    """What a run found."""

    model: nn.Module
    """The selected model. The model given to ``fit`` has the weights of the last epoch."""
    status: Status
    selected: Selection
    """Which epoch was selected, and why."""
    history: History
    audits: dict[str, Audit]
    """The audits of the last epoch by data set."""
    streaks: Streaks
    """Which samples of the deciding data set stayed violated, audit after audit."""


def fit(
    problem: Problem,
    model: nn.Module,
    train_data: Data,
    *,
    method: Method,
    optimizer: torch.optim.Optimizer,
    epochs: int,
    batch_size: int | None = None,
    seed: int = 0,
    shuffle: bool = True,
    epochs_per_round: int = 1,
    round_rule: GradientRule | None = None,
    warmup_epochs: int = 0,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
    scheduler_interval: Literal["epoch", "step"] = "epoch",
    clip_norm: float | None = None,
    accumulate: int = 1,
    auxiliary: Auxiliary | None = None,
    audit_on: Mapping[str, Data] | None = None,
    audit_every: int = 1,
    audit_batch_size: int | None = None,
    select_on: str | None = None,
    target: float = 1.0,
    stop_at_target: bool = False,
    patience: int | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_steps: int | None = None,
    keep: int = 2,
    resume: bool = True,
    num_workers: int = 0,
    fabric: Fabric | None = None,
    tensorboard: bool = False,
    pictures: Pictures | None = None,
    progress: bool | None = None,
) -> Solution:
    """Train a model under a method: rounds at one tau each, every round starting where the last one ended.

    With a checkpoint folder the run can be killed at any moment; the same call goes on from the last checkpoint and
    ends with bit-identical weights (on a CPU). PyTorch's randomness in training is a function of ``seed`` and the
    position in the run; so are NumPy's and Python's in loading the data.

    Args:
        problem: what to minimise and what must hold.
        model: trained in place.
        train_data: a map-style Dataset, or a DataLoader, whose batch size, order, collation and workers are taken over.
        method: over the problem's constraints.
        optimizer: over the model's parameters.
        epochs: passes over the data under the method.
        batch_size: samples in a step, over all devices and micro-batches together.
        seed: of the order of samples and of everything random in model and data.
        shuffle: a new order in each epoch.
        epochs_per_round: epochs at one tau.
        round_rule: end a round when the gradient is small enough instead, as the paper's theory asks.
        warmup_epochs: epochs before those, on the objective alone.
        scheduler: a learning-rate schedule of PyTorch over ``optimizer``.
        scheduler_interval: whether it is stepped after each epoch or each step.
        clip_norm: the gradient's norm is cut to this.
        accumulate: backward passes (micro-batches) in a step.
        auxiliary: a step before each main one, such as a discriminator's.
        audit_on: data sets to audit by name; the training data, after the last epoch only, if not given.
        audit_every: epochs between audits of ``audit_on``; the last epoch is always audited.
        audit_batch_size: samples in a batch of an audit; ``batch_size`` if not given.
        select_on: name of the data set whose audits select the best model; the first of ``audit_on`` if not given.
        target: share of its samples that must meet all constraints for an epoch to count as feasible.
        stop_at_target: end the run at the first audit that meets the target.
        patience: end the run when the selected epoch lies so many epochs back; warm-up does not count.
        checkpoint: folder of the run. Checkpoints are written after each epoch.
        checkpoint_steps: steps between further checkpoints within an epoch.
        keep: how many checkpoints stay.
        resume: go on from what the folder holds; if False it must not hold a run.
        num_workers: processes that load data, for a data set that is neither in memory nor batched by itself.
        fabric: devices, strategy and precision, launched; the best single device if not given. Tested with DDP; FSDP
            needs GPUs and has not been run.
        tensorboard: also write TensorBoard event files to the run's folder.
        pictures: drawn at each audit for TensorBoard: from the model and a batch of the first samples of an audited
            data set to images ``(H, W)`` or ``(C, H, W)`` by name, in [0, 1].
        progress: show a progress bar; on a terminal only if not given.

    Returns:
        The selected model, the status, the history and the audits of the last epoch. In the history ``running/...`` is
        what was seen while the weights moved, over the round so far; audits' numbers begin with the data set's name.

    Example:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from samplewise import AtMost, Geometric, Problem, SequentialPenalty
        >>> def evaluate_batch(model, batch):
        ...     (x,) = batch
        ...     y = model(x).squeeze(1)
        ...     return (y - 3.0).square(), {"size": y.abs()}  # wants 3, may have at most 1
        >>> problem = Problem(evaluate_batch, [AtMost("size", 1.0)])
        >>> model = torch.nn.Linear(1, 1)
        >>> solution = fit(
        ...     problem,
        ...     model,
        ...     TensorDataset(torch.zeros(64, 1)),
        ...     method=SequentialPenalty(problem.constraints, schedule=Geometric(5.0, growth=1.02)),
        ...     optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        ...     epochs=50,
        ...     batch_size=16,
        ... )
        >>> bool((solution.model.bias - 1.0).abs() < 0.2)
        True
    """
    feed = source_of(train_data, num_workers=num_workers)
    named = {"train": train_data} if audit_on is None else audit_on
    if not isinstance(named, Mapping) or not named:
        raise ConfigurationError(f"expected audit_on as data sets by name, {{'test': data}}, got {audit_on!r}")
    settings = Settings(
        epochs=epochs,
        batch_size=_batch_size(feed, batch_size),
        seed=seed,
        shuffle=shuffle if feed.shuffle is None else feed.shuffle,
        epochs_per_round=epochs_per_round,
        round_rule=round_rule,
        warmup_epochs=warmup_epochs,
        scheduler_interval=scheduler_interval,
        clip_norm=clip_norm,
        accumulate=accumulate,
        audit_every=audit_every if audit_on is not None else 0,
        audit_batch_size=audit_batch_size or _batch_size(feed, batch_size),
        select_on=select_on or next(iter(named)),
        target=target,
        stop_at_target=stop_at_target,
        patience=patience,
        checkpoint_steps=checkpoint_steps,
        keep=keep,
    )
    splits = {name: source_of(data, num_workers=num_workers) for name, data in named.items()}
    check_together(settings, problem, model, method, optimizer, scheduler, feed, splits)
    if tensorboard and checkpoint is None:
        raise ConfigurationError("tensorboard=True needs checkpoint=..., the folder to write to")
    fabric = fabric or single_device()
    live = Live.of(fabric, tensorboard=Path(checkpoint) if tensorboard and checkpoint else None, pictures=pictures)
    engine = Engine(fabric, problem, model, optimizer, auxiliary=auxiliary, clip_norm=clip_norm)
    training = Training(
        settings=settings,
        engine=engine,
        method=method,
        feed=feed,
        splits=splits,
        scheduler=scheduler,
        live=live,
    )
    training.try_out()
    shown = progress if distributed.rank() == 0 else False
    with contextlib.ExitStack() as stack:
        if checkpoint is not None:
            folder = RunFolder(
                Path(checkpoint),
                identity(training, problem, model),
                needed=checkpoint_bytes(model, method),
                keep=keep,
                resume=resume,
                device=str(engine.device),
            )
            stack.enter_context(alone(folder.path, "run"))
            training.open(folder)
        training.loop(stack.enter_context(Progress(settings.last_epoch, done=training.epoch, shown=shown)))
    return _solution(training, model)


def _solution(training: Training, model: nn.Module) -> Solution:
    best = training.best
    assert best is not None, "the last epoch is always audited"
    selected = model
    if best.epoch != training.epoch and training.best_weights is not None:
        selected = copy.deepcopy(model)
        selected.load_state_dict(training.best_weights)
    status = Status.FEASIBLE if best.feasible else Status.INFEASIBLE
    if training.stopped:
        reached = training.settings.stop_at_target and best.feasible
        status = Status.TARGET_REACHED if reached else Status.NO_LONGER_BETTER
    return Solution(selected, status, best, training.history, training.audits, training.streaks)


def _batch_size(feed: Feed, given: int | None) -> int:
    if feed.batch_size is not None:
        if given is not None and given != feed.batch_size:
            raise ConfigurationError(f"batch_size={given}, but the DataLoader has {feed.batch_size}: give one of them")
        return feed.batch_size
    if given is None:
        raise ConfigurationError("batch_size is missing: a Dataset, unlike a DataLoader, does not say it")
    return given
