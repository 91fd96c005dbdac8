"""Whole runs: the paper's outer loop around any PyTorch optimiser (section III)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from samplewise.audits.audit import Audit
from samplewise.errors import ConfigurationError
from samplewise.history import History
from samplewise.methods import Method
from samplewise.optimality.feasibility import Infeasibility
from samplewise.printed import Printed, Printout, percentage
from samplewise.problem import Problem
from samplewise.samples import Data
from samplewise.stopping import GradientRule
from samplewise.training.folder import open_folder
from samplewise.training.logging import Callback, RunLogger
from samplewise.training.loop import Training
from samplewise.training.promise import Promise, Promised
from samplewise.training.recommended import fill_in
from samplewise.training.rivals import Rivals
from samplewise.training.spec import RunSpec
from samplewise.training.state import Selection, Status, Validation
from samplewise.training.step import Auxiliary, Stepper, single_device

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True)
class Solution(Printed):
    """What a run found."""

    model: nn.Module
    """The model that was given to ``fit``, always, with the weights of the selected epoch: the averaged ones if
    ``average`` was given. Those of the last step are in the run's newest checkpoint, from which a longer run goes on.
    """
    method: Method
    """The method that was given, as it was when that model was selected; a certificate of the model needs it."""
    status: Status
    """How the run ended and whether the selected model is what was asked for: of a promise, whether it is kept."""
    selected: Selection
    """Which epoch was selected, and why."""
    history: History
    audits: dict[str, Audit]
    """The audits of that model by data set. The bounds of the one that selects are corrected for all audits of the run;
    data that share samples with the training data have none, nor has a promise's ``tune_on``."""
    promise: Promised | None = None
    """The outcome of the promise, if one was asked for."""
    infeasibility: Infeasibility | None = None
    """With ``explain_infeasibility``, where the constraints do not hold as asked: which training samples conflict."""

    def printout(self) -> Printout:
        rows = [("data", "samples", "met", "violated", "mean objective", "unseen at most")]
        for name, found in self.audits.items():
            upper = percentage(found.violation_rate_upper, math.ceil, 2)
            upper = upper if found.n_comparisons < math.inf else "used in training"
            counts = f"{found.samples:,}", percentage(found.satisfied, digits=2), f"{found.violated:,}"
            rows.append((name, *counts, f"{found.objective:.6g}", upper))
        more = [f"{self.infeasibility}."] if self.infeasibility else []
        if self.promise:
            compared = self.promise.comparison if self.promise.rivals else ""
            more += [text for text in (self.promise.message, self.promise.reason, compared) if text]
        verdict = f"{self.status.name.replace('_', ' ').capitalize()}: {self.status.message}."
        return Printout(verdict, rows, [*more, f"Selected {self.selected.reason}."])


def fit(
    problem: Problem,
    model: nn.Module,
    train_data: Data,
    *,
    epochs: int,
    method: Method | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    steps_per_epoch: int | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    warmup_epochs: int = 0,
    round_rule: GradientRule | None = None,
    scheduler: LRScheduler | tuple[LRScheduler, str] | None = None,
    clip_norm: float | None = None,
    accumulate: int = 1,
    average: float | None = None,
    promise: Promise | float | None = None,
    auxiliary: Auxiliary | None = None,
    audit_on: Mapping[str, Data] | None = None,
    validation: Validation | None = None,
    explain_infeasibility: bool = False,
    checkpoint: str | Path | None = None,
    checkpoint_steps: int | None = None,
    fabric: Fabric | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
) -> Solution:
    """Train a model under a method: rounds at one tau each, every round starting where the last one ended.

    At the end model and method are those of the selected epoch, and the solution is about that model. Optimizer and
    scheduler are those of the last step.

    With a checkpoint folder the run can be killed at any moment; the same call goes on from the last checkpoint and
    ends with bit-identical weights (on a CPU). PyTorch's randomness in training is a function of ``seed`` and the
    position in the run; so are NumPy's and Python's in loading the data.

    ``sw.fit(problem, model, data, epochs=40, promise=0.95)`` is enough. What is not given is chosen (method, optimizer
    with a falling rate, batch size, samples held out for the promise) and printed on standard error.

    Args:
        problem: what to minimise and what must hold.
        model: trained in place; in the end it has the weights of the selected epoch.
        train_data: a data set, in a new order each epoch, or a DataLoader, whose batch size, order, collation and
            workers are taken over. Also a stream (``IterableDataset``, or a DataLoader of one), for methods without a
            state for each sample, in one process and with ``audit_on``.
        epochs: passes over the data under the method.
        method: over the problem's constraints; at the end its state is that of the selected epoch. If not given, the
            problem's own, or else a linear penalty whose first tau is estimated from the gradients.
        optimizer: over the model's parameters; if not given Adam, without a ``scheduler`` with a cosine rate.
        steps_per_epoch: for a stream that is endless or very long: the steps of an epoch, in the place of a pass.
        batch_size: samples in a step, over all devices and micro-batches together; about a fiftieth of the data, from
            16 to 128, if not given.
        seed: of the order of samples and of everything random in model and data.
        warmup_epochs: epochs before those, on the objective alone.
        round_rule: end a round when the gradient is small enough, as the paper's theory asks, not after each epoch.
        scheduler: a learning-rate schedule of PyTorch over ``optimizer``, stepped after each epoch; after each step
            if given as ``(scheduler, "step")``. ``ReduceLROnPlateau`` is stepped after each audit, except in warm-up,
            with the selection loss of the data set that selects.
        clip_norm: the gradient's norm is cut to this.
        accumulate: backward passes (micro-batches) in a step.
        average: the decay, such as 0.999, of an exponential average of the weights, which is audited, selected and
            returned. It spans about ``1 / (1 - average)`` steps, fewer at first; the steps of an epoch are a good
            start. Batch norm's statistics are averaged too.
        promise: a share of unseen samples that must meet all constraints, such as 0.95; or a :class:`Promise`, which
            may say more. A tenth of the data set is held out to tune on, and a fifth to prove on, unless they are
            given. ``tune_on`` is audited as the first data set, and steers tau and margins; ``prove_on`` then says
            whether the promise is kept.
        auxiliary: a step before each backward pass, such as a discriminator's.
        audit_on: data sets to audit by name, by batches of the DataLoader's size or ``batch_size``; the training data,
            after the last epoch only, if not given. Audits of the first one select the best model.
        validation: how often ``audit_on`` is audited, what selects the model and when to stop early; after each epoch,
            by feasibility and then objective, and never, if not given.
        explain_infeasibility: if the constraints do not hold as asked at the end, search for weights that meet them
            without the objective (:func:`samplewise.find_infeasibility`), in up to 60 passes over the
            training data; the status is INFEASIBLE if no first-order step helps.
        checkpoint: folder of the run, which goes on from what is there. A checkpoint is written after each epoch.
        checkpoint_steps: steps between further checkpoints within an epoch.
        fabric: devices, strategy, precision and loggers, launched; the best single device if not given. Tested with
            DDP and with weights sharded by torch's ``fully_shard`` (``ModelParallelStrategy``), on CPUs.
        callbacks: called after each audit and after each epoch, in every process.
        progress: show a progress bar, on standard error; if not given, on a terminal and in a notebook only. Elsewhere,
            such as in a file, ``True`` writes a line for each audit and a summary at the end.

    Returns:
        The selected model, its audits, the status and the history. In the history ``running/...`` is
        measured during training, over the round so far; audits' numbers begin with the data set's name.
    """
    arguments = locals() | {"validation": validation or Validation()}  # every argument by its name
    said = fill_in(arguments)
    spec = RunSpec(**arguments)
    method, optimizer, promise = spec.method, spec.optimizer, spec.promise
    fabric = fabric or single_device()
    logger = RunLogger(fabric, progress)
    logger.say(said)
    stepper = Stepper(fabric, problem, model, optimizer, auxiliary, clip_norm, average)
    training, outcome, infeasibility = Training(spec, stepper, logger), None, None
    if explain_infeasibility and stepper.sharded:
        raise ConfigurationError("explain_infeasibility needs a model that each process holds whole: leave it out")
    with contextlib.ExitStack() as stack:
        stack.enter_context(logger.logging())
        training.try_out()
        rivals = None if promise is None else Rivals(spec, fabric.device)
        if checkpoint is not None:
            training.open(stack.enter_context(open_folder(Path(checkpoint), spec, fabric.device)))
            stack.enter_context(_resumable(checkpoint))
        stack.enter_context(logger.bar(spec.last_epoch, training.state.epoch))
        status = training.run()
        if promise is None:
            audits = training.ship()
        else:
            assert rivals is not None
            outcome, audits = training.prove(promise)
            found = rivals.find(partial(_train_rival, arguments))
            outcome = replace(outcome, rivals=found, no_rival=rivals.reason)
            status = Status.KEPT if outcome.kept else Status.NOT_KEPT
            if training.folder is not None:
                training.folder.write_promise(outcome, spec, training.state.epoch)
        selected, _ = training.selected
        if explain_infeasibility and not selected.feasible:
            infeasibility = training.find_infeasibility()
            status = Status.INFEASIBLE if infeasibility.is_infeasible else status
            if training.folder is not None:
                training.folder.write_infeasibility(infeasibility, training.state.epoch)
    solution = Solution(model, method, status, selected, training.history, audits, outcome, infeasibility)
    logger.end(solution)
    return solution


def _train_rival(arguments: Mapping[str, Any], method: Method, name: str) -> None:
    """Train the model of a run under another method, in a folder of its own, so that it can be killed too."""
    alike = """problem model train_data epochs optimizer batch_size seed warmup_epochs scheduler clip_norm accumulate
    average checkpoint_steps fabric"""
    folder = arguments["checkpoint"]
    checkpoint = None if folder is None else Path(folder) / "rivals" / name
    fit(**{key: arguments[key] for key in alike.split()}, method=method, checkpoint=checkpoint, progress=False)


@contextlib.contextmanager
def _resumable(checkpoint: str | Path) -> Iterator[None]:
    """Have Ctrl-C say that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(f"{checkpoint} holds the run up to its last checkpoint: the same call goes on from there")
        raise
