"""What was asked of a run, checked together before anything is started or written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader

from samplewise.audits import check_target
from samplewise.audits.binomial import to_aim_at
from samplewise.errors import ConfigurationError, finite_number, whole_number
from samplewise.methods import FixedPenalty, Method
from samplewise.problem import Problem
from samplewise.samples import Data, check_whole, source_of
from samplewise.stopping import GradientRule
from samplewise.storage.provenance import described
from samplewise.training.epoch import Stream, streamed
from samplewise.training.overlap import keys, refuse_overlap, shared

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from samplewise.training.promise import Promise
    from samplewise.training.step import Auxiliary
    from samplewise.training.watch import OnAudit

TUNE, PROVE = "tune_on", "prove_on"
LEAST = {
    0: ("warmup_epochs",),
    1: ("epochs", "steps_per_epoch", "batch_size", "accumulate", "audit_every", "patience", "checkpoint_steps"),
}


@dataclass
class Request:
    """The arguments of :func:`samplewise.fit`, which says what each means, and what follows from them."""

    problem: Problem
    model: nn.Module
    train_data: Data
    method: Method
    optimizer: torch.optim.Optimizer
    epochs: int
    steps_per_epoch: int | None
    batch_size: int | None
    seed: int
    warmup_epochs: int
    round_rule: GradientRule | None
    scheduler: LRScheduler | tuple[LRScheduler, str] | None
    clip_norm: float | None
    accumulate: int
    average: float | None
    promise: Promise | None
    auxiliary: Auxiliary | None
    audit_on: Mapping[str, Data] | None
    audit_every: int
    """Later 0: after the last epoch only."""
    target: float | None
    stop_at_target: bool
    patience: int | None
    checkpoint: str | Path | None
    checkpoint_steps: int | None
    fabric: Fabric | None
    on_audit: OnAudit | None
    progress: bool | None

    def __post_init__(self) -> None:
        stream, audited = streamed(self.train_data), self.audit_on
        feed = None if stream is not None else source_of(self.train_data)
        if audited is not None and (not isinstance(audited, Mapping) or not audited):
            raise ConfigurationError(f"expected audit_on as data sets by name, {{'test': data}}, got {audited!r}")
        for name in audited or ():
            if not isinstance(name, str) or not name:
                raise ConfigurationError(f"expected a name such as 'test' for each data set of audit_on, got {name!r}")
        for least, name in ((least, name) for least, names in LEAST.items() for name in names):
            if getattr(self, name) is not None:
                whole_number(getattr(self, name), name, least)
        said = feed.batch_size if feed is not None else stream.batch_size if stream is self.train_data else None
        if said is None and self.batch_size is None:
            raise ConfigurationError("batch_size is missing: a data set, unlike a DataLoader, does not say it")
        self.size: int = said or self.batch_size or 0
        if self.batch_size not in (None, self.size):
            raise ConfigurationError(
                f"batch_size={self.batch_size}, but the DataLoader has {self.size}: give one of them"
            )
        self.feed = replace(feed, shuffle=True) if feed is not None and feed.shuffle is None else feed
        if feed is not None and feed.drop_last and (drawn := self._drawn()) < self.size:
            raise ConfigurationError(
                f"expected at least one batch of {self.size} samples, got {drawn} samples and drop_last=True: no step "
                "would be taken. Make the batch smaller, or leave out drop_last"
            )
        self.stream = None if stream is None else self._read(stream)
        if stream is None and self.steps_per_epoch is not None:
            raise ConfigurationError("steps_per_epoch is for a stream: data with numbers have epochs of their own")
        promised = {} if self.promise is None else {TUNE: self.promise.tune_on}
        by_name = {**promised, **(audited or {})} or {"train": self.train_data}
        self.splits = {name: source_of(data) for name, data in by_name.items()}
        self.audit_every = 0 if audited is None and self.promise is None else self.audit_every
        given = self.scheduler
        self.schedule, self.scheduled_by = given if isinstance(given, tuple) else (given, "epoch")
        if self.clip_norm is not None and not finite_number(self.clip_norm, "clip_norm") > 0:
            raise ConfigurationError(f"expected clip_norm > 0, got {self.clip_norm}")
        if self.average is not None and not 0 < finite_number(self.average, "average") < 1:
            raise ConfigurationError(
                f"expected 0 < average < 1, the share of the average that stays at each step, such as 0.999, got "
                f"{self.average}"
            )
        check_target(self.target)
        if self.stop_at_target and not self.audit_every:
            raise ConfigurationError("stop_at_target=True needs audit_on={...}: only an audit can meet the target")
        if self.patience is not None and not self.audit_every:
            raise ConfigurationError("patience needs audit_on={...}: only an audit can find a better model")
        self._check_parts()
        # Of these nothing follows for unseen samples; by its name "train" is, or is a part of, what is trained on.
        self.known = {"train"} if self.promise is None else {"train", TUNE}
        others = {name: data for name, data in by_name.items() if stream is None and name not in self.known}
        trained = keys(self.train_data) if others else None
        self.known |= {name for name, data in others.items() if trained and shared(trained, keys(data))}
        self.prove_on: list[str] = []  # what its samples hold
        if self.promise is not None:
            self._plan_promise(self.promise)

    def _plan_promise(self, promise: Promise) -> None:
        """What is aimed at on ``tune_on``, so that ``prove_on`` will prove the promise; refuses samples in both."""
        for wrong, message in (
            (self.target is not None, "the promise says what to reach: leave out target="),
            (TUNE in (self.audit_on or {}), f"audit_on has a data set called {TUNE!r}, as the promise's is: rename it"),
            (self.feed is None, "a promise looks at training samples again: give them as data with numbers, no stream"),
            (not self.method.enforces, f"{type(self.method).__name__} enforces nothing, so nothing can be steered"),
            (
                isinstance(self.method, FixedPenalty),
                "a promise moves the weights of the constraints, but those of FixedPenalty are fixed: leave out "
                "promise=, or take SequentialPenalty with schedule=Constant(weight), from which the promise starts",
            ),
        ):
            if wrong:
                raise ConfigurationError(message)
        proves = source_of(promise.prove_on)
        check_whole(proves)
        tunes = self.splits[TUNE].source.length
        self.target = to_aim_at(promise.share, tunes, proves.source.length, promise.confidence)
        trained = "the training data"
        looked_at = {trained: self.train_data, TUNE: promise.tune_on}
        looked_at |= {name: data for name, data in (self.audit_on or {}).items() if data is not self.train_data}
        pairs = [(trained, TUNE), *((name, PROVE) for name in looked_at)]
        self.prove_on = refuse_overlap({**looked_at, PROVE: promise.prove_on}, pairs)[PROVE]

    def _drawn(self) -> float:
        """How many samples an epoch draws, as far as a sampler of the user's own says."""
        assert self.feed is not None
        sampler = self.feed.sampler
        if sampler is None:
            return self.feed.source.length
        return len(sampler) if isinstance(sampler, Sized) else math.inf

    def _check_parts(self) -> None:
        scheduler, optimizer = self.schedule, self.optimizer
        for name, value, kind in (
            ("method", self.method, Method),
            ("optimizer", optimizer, torch.optim.Optimizer),
            ("scheduler", scheduler, LRScheduler | None),
        ):
            if not isinstance(value, kind):
                raise ConfigurationError(f"expected {name} made and ready, a {kind}, got {value!r}")
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ConfigurationError("LBFGS evaluates the loss several times a step, fit does it once: use Adam or SGD")
        if self.scheduled_by not in ("epoch", "step"):
            raise ConfigurationError(f"expected scheduler=(scheduler, 'step') or 'epoch', got {self.scheduled_by!r}")
        if isinstance(scheduler, ReduceLROnPlateau):
            self._check_plateau(scheduler)
        advice = () if self.audit_every else ("give audit_on={'train': dataset}, the data to audit",)
        for split in self.splits.values():
            check_whole(split, *advice)
        self.problem.check_method_over(self.method.constraints)
        if self.feed is not None:
            self.method.check_samples(self.feed.source.length)
        elif self.method.stateful:
            raise ConfigurationError(
                f"{type(self.method).__name__} keeps a state for each sample, but those of a stream have no number to "
                "find it by: use SequentialPenalty, or give a data set whose samples have numbers"
            )
        trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if trained.isdisjoint(map(id, self.model.parameters())):
            raise ConfigurationError(
                "the optimizer holds none of the model's parameters: make it of model.parameters()"
            )
        if scheduler is not None and scheduler.optimizer is not optimizer:
            raise ConfigurationError("the scheduler drives another optimizer than the one given")

    def _read(self, stream: DataLoader[Any]) -> Stream:
        if self.audit_on is None:
            raise ConfigurationError(
                "audit_on is missing: a stream cannot be judged, since its samples do not come back. Give a data set "
                "whose samples have numbers, audit_on={'validation': data}"
            )
        if self.round_rule is not None:
            raise ConfigurationError(
                "round_rule draws batches of its own by the samples' numbers, which a stream has not: leave it out"
            )
        named = {name: getattr(self, name) for name in ("size", "accumulate", "seed", "steps_per_epoch")}
        return Stream(stream, **named)

    def _check_plateau(self, scheduler: ReduceLROnPlateau) -> None:
        if not self.audit_every or self.scheduled_by == "step":
            raise ConfigurationError(
                "ReduceLROnPlateau waits for better audits, so it is stepped after each of them: give audit_on={...}, "
                "and the scheduler without 'step'"
            )
        if scheduler.mode != "min":
            raise ConfigurationError("expected ReduceLROnPlateau(mode='min'): the lower the selection loss the better")
        self.scheduled_by = "audit"

    @property
    def samples(self) -> int | None:
        """How many samples are trained on; None of a stream."""
        return None if self.feed is None else self.feed.source.length

    @property
    def last_epoch(self) -> int:
        return self.warmup_epochs + self.epochs

    def behind(self, epoch: int) -> float:
        """Which part of the epochs under the method lies behind at the end of this one."""
        return min(1.0, max(0.0, (epoch - self.warmup_epochs) / self.epochs))

    @property
    def select_on(self) -> str:
        return next(iter(self.splits))

    @property
    def audited_epochs(self) -> set[int]:
        """The epochs that end with an audit, if the run is not stopped before them."""
        last = self.last_epoch
        return {*range(self.audit_every or last, last, self.audit_every or last), last}

    def holds_training_data(self, split: str) -> bool:
        """Whether an audited data set shares samples with the training data, or steers the training."""
        return split in self.known

    @property
    def trained_on(self) -> str | None:
        """Name of the audited data set that is the training data, if there is one."""
        split = self.splits.get("train")
        return "train" if split is not None and split.source.length == self.samples else None

    def identity(self) -> dict[str, Any]:
        """What makes a run this run and no other: not its length, since a finished one may be continued."""
        method, optimizer = self.method, self.optimizer
        own = {key: value for key, value in vars(method).items() if key[0] != "_" and key != "training"}
        plain = ["seed", "steps_per_epoch", "warmup_epochs", "clip_norm", "accumulate", "average", "audit_every"]
        if self.promise is None:
            plain.append("target")  # which of a promise depends on prove_on, and a longer run has another
        return {
            "samples": self.samples,
            "batch_size": self.size,
            "constraints": [repr(constraint) for constraint in self.problem.constraints],
            "method": {"type": type(method).__name__, **{key: described(value) for key, value in own.items()}},
            "model": {name: list(value.shape) for name, value in self.model.state_dict().items()},
            "optimizer": {"type": type(optimizer).__name__, **{k: described(v) for k, v in optimizer.defaults.items()}},
            "scheduler": None if self.schedule is None else [type(self.schedule).__name__, self.scheduled_by],
            "auxiliary": None if self.auxiliary is None else type(self.auxiliary).__name__,
            "audited": {name: split.source.length for name, split in self.splits.items()},
            "shuffle": None if self.feed is None else self.feed.shuffle,
            "round_rule": None if self.round_rule is None else described(self.round_rule),
            "promise": None if self.promise is None else described(self.promise),
            **{name: getattr(self, name) for name in (*plain, "stop_at_target")},
        }

    def checkpoint_bytes(self) -> int:
        """About what a checkpoint takes: the weights, two moments and any average of them, and the method's state."""
        kept: int = sum(value.nbytes for value in self.method.state_dict().values())
        copies = 3 if self.average is None else 4
        return copies * sum(value.nbytes for value in self.model.parameters()) + kept
