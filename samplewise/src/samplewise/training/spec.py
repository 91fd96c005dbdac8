"""The settings of a run, checked together before anything is started or written."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader

from samplewise.audits.binomial import to_aim_at
from samplewise.errors import ConfigurationError, finite_number, whole_number
from samplewise.methods import FixedPenalty, Method
from samplewise.problem import Problem
from samplewise.samples import Data, Feed, check_whole, source_of, stream_loader
from samplewise.stopping import GradientRule
from samplewise.storage.origins import described
from samplewise.training.batching import Stream
from samplewise.training.logging import Callback
from samplewise.training.overlap import Keys, copied, keys, refuse_overlap, shared
from samplewise.training.promise import SETTLED, Promise
from samplewise.training.state import OBJECTIVE, Validation

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from samplewise.training.step import Auxiliary

PARTS = {"training", "coefficients", "statistics"}  # of a method, which do not tell it from others of its kind
TUNE, PROVE = "tune_on", "prove_on"
LEAST = {
    "warmup_epochs": 0,
    **dict.fromkeys(("steps_per_epoch", "batch_size", "accumulate", "checkpoint_steps"), 1),
}


@dataclass(frozen=True)
class RunSpec:
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
    validation: Validation
    explain_infeasibility: bool
    checkpoint: str | Path | None
    checkpoint_steps: int | None
    fabric: Fabric | None
    callbacks: Sequence[Callback]
    progress: bool | None

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_data()
        self._check_training()
        self._check_audits()
        if self.promise is not None:
            self._check_promise(self.promise)

    # What follows from the arguments.

    @cached_property
    def feed(self) -> Feed | None:
        """The training data by number; None of a stream."""
        if stream_loader(self.train_data) is not None:
            return None
        feed = source_of(self.train_data)
        return replace(feed, shuffle=True) if feed.shuffle is None else feed

    @cached_property
    def size(self) -> int:
        """Samples in a step."""
        given = self.train_data.batch_size if isinstance(self.train_data, DataLoader) else None
        if given is None and self.batch_size is None:
            raise ConfigurationError("batch_size is missing: a data set, unlike a DataLoader, does not say it")
        if given is not None and self.batch_size not in (None, given):
            raise ConfigurationError(f"batch_size={self.batch_size}, but the DataLoader has {given}: give one of them")
        return given or self.batch_size or 0

    @cached_property
    def stream(self) -> Stream | None:
        """The training data as a stream, if its samples have no index."""
        if (loader := stream_loader(self.train_data)) is None:
            return None
        size, steps = self.size, self.steps_per_epoch
        return Stream(loader, size=size, accumulate=self.accumulate, seed=self.seed, steps_per_epoch=steps)

    @cached_property
    def samples(self) -> int | None:
        """How many samples are trained on; None of a stream."""
        return None if self.feed is None else self.feed.source.length

    @cached_property
    def audited(self) -> dict[str, Data]:
        """The data sets to audit, by name; the first selects."""
        tune = {} if self.promise is None else {TUNE: self.promise.held_out[0]}
        return {**tune, **(self.audit_on or {})} or {"train": self.train_data}

    @cached_property
    def splits(self) -> dict[str, Feed]:
        """The audited data sets as batches."""
        return {name: source_of(data) for name, data in self.audited.items()}

    @property
    def select_on(self) -> str:
        """Name of the data set whose audits select the epoch."""
        return next(iter(self.splits))

    @property
    def trained_on(self) -> str | None:
        """Name of the audited data set that is the training data, if there is one."""
        split = self.splits.get("train")
        return "train" if split is not None and split.source.length == self.samples else None

    @cached_property
    def known(self) -> frozenset[str]:
        """The audited data sets that allow no bound for unseen samples: they were trained on, or steer the training.

        By its name ``train`` is, or is a part of, the training data; others are compared with them.
        """
        known = {"train"} if self.promise is None else {"train", TUNE}
        others = {name: data for name, data in self.audited.items() if self.feed is not None and name not in known}
        trained = keys(self.train_data) if others else None
        return frozenset(known | {name for name, data in others.items() if trained and shared(trained, keys(data))})

    @cached_property
    def audit_every(self) -> int:
        """Epochs between audits; 0 if there is one after the last epoch only."""
        return 0 if self.audit_on is None and self.promise is None else self.validation.every

    @property
    def audited_epochs(self) -> set[int]:
        """The epochs that end with an audit, if the run is not stopped before them."""
        last = self.last_epoch
        return {*range(self.audit_every or last, last, self.audit_every or last), last}

    @cached_property
    def aim(self) -> float | None:
        """The fraction of ``tune_on`` that must meet all constraints so that ``prove_on`` most likely proves it."""
        if self.promise is None:
            return None
        return to_aim_at(self.promise.share, self.splits[TUNE].source.length, self.proving, self.promise.confidence)

    @property
    def proving(self) -> int:
        """Samples that prove a promise."""
        assert self.promise is not None
        return source_of(self.promise.held_out[1]).source.length

    @cached_property
    def settled_epoch(self) -> int:
        """Under a promise: the audited epoch after which the model that just has the share is kept."""
        return min(epoch for epoch in self.audited_epochs if self.progress_at(epoch) >= SETTLED)

    @property
    def selection_target(self) -> float | None:
        """What :meth:`samplewise.Audit.selection_loss` takes to order models as this run does."""
        return 0.0 if self.validation.select == OBJECTIVE else self.aim

    @cached_property
    def calibration(self) -> dict[str, Keys]:
        """Keys of the samples of a promise, by which overlaps are found; none without a promise.

        These are few and are read in any case: a copy is found among them whatever kind of data set it is in.
        """
        given = {} if self.promise is None else dict(zip((TUNE, PROVE), self.promise.held_out, strict=True))
        return {name: keys(data, read=True) for name, data in given.items()}

    @property
    def last_epoch(self) -> int:
        return self.warmup_epochs + self.epochs

    def progress_at(self, epoch: int) -> float:
        """The part of the epochs under the method that is complete at the end of this one, from 0 to 1."""
        return min(1.0, max(0.0, (epoch - self.warmup_epochs) / self.epochs))

    @property
    def lr_scheduler(self) -> LRScheduler | None:
        return self.scheduler[0] if isinstance(self.scheduler, tuple) else self.scheduler

    @property
    def scheduled_by(self) -> str:
        """When the learning rate's scheduler steps: after a step, an epoch or an audit."""
        if isinstance(self.lr_scheduler, ReduceLROnPlateau):
            return "audit"
        return self.scheduler[1] if isinstance(self.scheduler, tuple) else "epoch"

    def identity(self) -> dict[str, Any]:
        """The settings that identify a run; not its length, since a finished one may be continued."""
        method, optimizer = self.method, self.optimizer
        own = {key: value for key, value in vars(method).items() if key[0] != "_" and key not in PARTS}
        plain = ("seed", "steps_per_epoch", "warmup_epochs", "clip_norm", "accumulate", "average", "audit_every")
        return {
            "samples": self.samples,
            "batch_size": self.size,
            "constraints": [repr(constraint) for constraint in self.problem.constraints],
            "method": {"type": type(method).__name__, **{key: described(value) for key, value in own.items()}},
            "model": {name: list(value.shape) for name, value in self.model.state_dict().items()},
            "optimizer": {"type": type(optimizer).__name__, **{k: described(v) for k, v in optimizer.defaults.items()}},
            "scheduler": None if self.lr_scheduler is None else [type(self.lr_scheduler).__name__, self.scheduled_by],
            "auxiliary": None if self.auxiliary is None else type(self.auxiliary).__name__,
            "audited": {name: split.source.length for name, split in self.splits.items()},
            "shuffle": None if self.feed is None else self.feed.shuffle,
            "round_rule": None if self.round_rule is None else described(self.round_rule),
            "promise": None if self.promise is None else described(self.promise),
            "stop": self.validation.stop,
            "select": self.validation.select,
            **{name: getattr(self, name) for name in plain},
        }

    def checkpoint_bytes(self) -> int:
        """About what a checkpoint takes: the weights, two moments and any average of them, and the method's state."""
        kept: int = sum(value.nbytes for value in self.method.state_dict().values())
        copies = 3 if self.average is None else 4
        return copies * sum(value.nbytes for value in self.model.parameters()) + kept

    # What is wrong with them.

    def _check_numbers(self) -> None:
        for name, least in LEAST.items():
            if getattr(self, name) is not None:
                whole_number(getattr(self, name), name, least)
        if self.clip_norm is not None:
            finite_number(self.clip_norm, "clip_norm", above=0)
        if self.average is not None:
            finite_number(self.average, "average", above=0, below=1, advice=": give a decay such as 0.999")

    def _check_data(self) -> None:
        feed, size = self.feed, self.size
        if feed is None:
            if self.audit_on is None:
                raise ConfigurationError("audit_on is missing: a stream cannot be audited; give other data to audit")
            if self.round_rule is not None:
                raise ConfigurationError("round_rule draws batches by sample number, which a stream has not")
            assert self.stream is not None  # which says what else is wrong with it
            return
        sampler = feed.sampler
        drawn = feed.source.length if sampler is None else len(sampler) if isinstance(sampler, Sized) else math.inf
        if feed.drop_last and drawn < size:
            raise ConfigurationError(
                f"expected at least one batch of {size} samples, got {drawn} samples and drop_last=True: make the "
                "batch smaller, or leave out drop_last"
            )
        if self.steps_per_epoch is not None:
            raise ConfigurationError("steps_per_epoch is for a stream: data with numbers have epochs of their own")

    def _check_training(self) -> None:
        """Refuse a method, an optimiser or a scheduler that does not go with the rest."""
        scheduler, optimizer = self.lr_scheduler, self.optimizer
        for name, value, kind in (
            ("method", self.method, Method),
            ("optimizer", optimizer, torch.optim.Optimizer),
            ("scheduler", scheduler, LRScheduler | None),
        ):
            if not isinstance(value, kind):
                raise ConfigurationError(f"expected {name} made and ready, a {kind}, got {value!r}")
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ConfigurationError("LBFGS evaluates the loss several times a step, fit does it once: use Adam or SGD")
        trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if trained.isdisjoint(map(id, self.model.parameters())):
            raise ConfigurationError("the optimizer holds none of the model's parameters: make it from them")
        self.problem.check_method_over(self.method.constraints)
        if self.samples is not None:
            self.method.check_samples(self.samples)
        elif self.method.stateful:
            raise ConfigurationError(
                f"{type(self.method).__name__} keeps a state for each sample, but those of a stream have no number to "
                "find it by: use SequentialPenalty, or give a data set whose samples have numbers"
            )
        given = self.scheduler[1] if isinstance(self.scheduler, tuple) else "epoch"
        if given not in ("epoch", "step"):
            raise ConfigurationError(f"expected scheduler=(scheduler, 'step') or 'epoch', got {given!r}")
        if scheduler is not None and scheduler.optimizer is not optimizer:
            raise ConfigurationError("the scheduler drives another optimizer than the one given")
        if isinstance(scheduler, ReduceLROnPlateau):
            if not self.audit_every or given == "step":
                raise ConfigurationError(
                    "ReduceLROnPlateau is stepped after audits: give audit_on={...}, and no 'step'"
                )
            if scheduler.mode != "min":
                raise ConfigurationError("expected ReduceLROnPlateau(mode='min'): a lower selection loss is better")

    def _check_audits(self) -> None:
        audited = self.audit_on
        if audited is not None and (not isinstance(audited, Mapping) or not audited):
            raise ConfigurationError(f"expected audit_on as data sets by name, {{'test': data}}, got {audited!r}")
        for name in audited or ():
            if not isinstance(name, str) or not name:
                raise ConfigurationError(f"expected a name such as 'test' for each data set of audit_on, got {name!r}")
        if not isinstance(self.validation, Validation):
            raise ConfigurationError(f"expected validation=sw.Validation(every=1, ...), got {self.validation!r}")
        for name in ("stop", "patience"):
            if getattr(self.validation, name) and not self.audit_every:
                raise ConfigurationError(f"Validation({name}=...) needs audit_on={{...}}: without audits it never ends")
        for callback in self.callbacks:
            if not isinstance(callback, Callback):
                raise ConfigurationError(f"expected callbacks=[...] with each a sw.Callback, got {callback!r}")
        if self.explain_infeasibility and (self.feed is None or self.promise is not None):
            raise ConfigurationError("explain_infeasibility is about training samples: no stream, and no promise")
        advice = () if self.audit_every else ("give audit_on={'train': dataset}, the data to audit",)
        for split in self.splits.values():
            check_whole(split, *advice)

    def _check_promise(self, promise: Promise) -> None:
        kind = type(self.method).__name__
        for wrong, message in (
            (
                self.validation != Validation(every=self.validation.every),
                "a promise selects by itself, at the end of the run: give Validation(every=...) alone",
            ),
            (TUNE in (self.audit_on or {}), f"audit_on has a data set called {TUNE!r}, as the promise's is: rename it"),
            (self.feed is None, "a promise reads training samples again: give them as data with numbers, no stream"),
            (not self.method.enforces, f"{kind} enforces nothing, so a promise has no tau to change"),
            (
                isinstance(self.method, FixedPenalty),
                f"a promise changes tau, which {kind} holds fixed: take SequentialPenalty with Constant(weight)",
            ),
        ):
            if wrong:
                raise ConfigurationError(message)
        check_whole(source_of(promise.held_out[1]))
        assert self.aim is not None  # which says whether there are too few samples
        # What proves is used for nothing else, and what tunes is not trained on.
        trained = "the training data"
        others = {name: data for name, data in (self.audit_on or {}).items() if data is not self.train_data}
        known = {name: keys(data) for name, data in {trained: self.train_data, **others}.items()}
        pairs = [(trained, TUNE), *((name, PROVE) for name in (trained, TUNE, *others))]
        refuse_overlap(known | self.calibration, pairs)
        if promise.sources is None and (copies := copied(self.calibration[PROVE])):
            warnings.warn(
                f"{copies:,} of the {self.proving:,} samples of prove_on hold the same as another of them: copies of "
                "one sample count as so many independent ones, and the proof would be wrong more often than it says. "
                "Leave them out, or name a measure that tells what each is from, Promise(..., sources='patient')",
                stacklevel=4,
            )
