"""A run in progress: its state, and the loop over epochs and rounds."""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch

from samplewise.audits.audit import Audit, audit
from samplewise.errors import CheckpointError, ConfigurationError, NotFiniteError
from samplewise.history import History, Streaks, audit_row, round_row
from samplewise.methods import Unconstrained
from samplewise.methods.base import CHECK_EVERY
from samplewise.optimality.feasibility import Infeasibility
from samplewise.problem import Evaluation, evaluation_mode, refuse_broadcast
from samplewise.samples import Feed, in_order, mix
from samplewise.storage import distributed
from samplewise.training.epoch import steps_left
from samplewise.training.folder import Best, RunFolder
from samplewise.training.growth import growth_row, look_at_gradient
from samplewise.training.odds import look_for_conflict
from samplewise.training.position import Position, Selection, Status, better, terminate
from samplewise.training.promise import spread, steer_
from samplewise.training.request import Request
from samplewise.training.step import Stepper, seed_device
from samplewise.training.watch import Watch


class Training:
    """The state of a run and the loop that moves it on."""

    def __init__(self, request: Request, stepper: Stepper, watch: Watch) -> None:
        self.request, self.stepper, self.watch = request, stepper, watch
        self.position = Position(planned=request.last_epoch)
        self.history, self.streaks = History(), Streaks()
        self.audits: dict[str, Audit] = {}  # of the last audited epoch; at the end of the selected one
        self.best: Best | None = None
        self.conflict: Infeasibility | None = None
        self.folder: RunFolder | None = None
        request.method.to(stepper.device)
        # Warm-up minimises the objective alone, but its rows in the history still say how the constraints fare.
        self._warmup = Unconstrained(request.method.constraints).to(stepper.device)

    def try_out(self) -> None:
        """Evaluate a few samples of each data set, so that what is wrong with one is said before any training."""
        for feed in self.request.splits.values():
            refuse_broadcast(self._first(feed, 2), partial(self._first, feed, 1))

    def _first(self, feed: Feed, samples: int) -> Evaluation:
        model, few = self.stepper.model_to_audit, range(min(samples, feed.source.length))
        ((batch, index),) = in_order(feed, batch_size=samples, device=self.stepper.device, rows=few)
        with evaluation_mode(model):
            return self.request.problem.evaluate(model, batch, index)

    @property
    def status(self) -> Status | None:
        """Why the run ends where it stands; None if it goes on."""
        asked, epochs, warmup = self.request, self.request.last_epoch, self.request.warmup_epochs
        return terminate(
            self.position, epochs=epochs, warmup=warmup, stop_at_target=asked.stop_at_target, patience=asked.patience
        )

    def loop(self) -> Status:
        while self.status is None:
            began = time.perf_counter()
            try:
                self._train_epoch()
                row = self._end_epoch()
            except NotFiniteError as error:
                self._check_weights(error)  # in this process alone: it may be the only one that met it
                raise
            row["seconds"] = time.perf_counter() - began
            self.history.append(row)
            self._save()
            self.watch.end_epoch(row, list(self.request.method.taus))
        if self.best is None:  # a run that is shorter now than when it was begun, or whose best model was lost
            if (lost := self.position.best) is not None:
                warnings.warn(f"the model of epoch {lost.epoch}, the best, is lost; taking the last one", stacklevel=2)
            self.position = replace(self.position, best=None)
            self.audits = self._audit()
            self._choose()
            self._save()
        status = self.status
        assert status is not None
        self._ship()
        if status is Status.UNFINISHED:
            self.conflict = look_for_conflict(self.request, self.stepper)
        return Status.INFEASIBLE if self.conflict is not None and self.conflict.is_infeasible else status

    def _ship(self) -> None:
        """Make model and method those of the selected epoch, and the audits what holds for it."""
        assert self.best is not None
        self.stepper.ship_(self.best.weights)
        self.request.method.load_state_dict(self.best.method)
        found = self.best.audits or self._audit()
        self.audits = {name: replace(each, n_comparisons=self._n_comparisons(name)) for name, each in found.items()}

    def _train_epoch(self) -> None:
        asked, rank, position = self.request, distributed.replica(), self.position
        total, left = steps_left(asked, position)
        method = self._warmup if position.epoch < asked.warmup_epochs else asked.method
        self.watch.start_epoch(total, position.step)
        for number, (micro, batches) in enumerate(left, position.step + 1):
            # Dropout and the like depend on the position in the run alone, so a resumed run draws the same.
            seed_device(mix(asked.seed, "step", position.epoch, number - 1, rank), self.stepper.device)
            self.stepper.step(method, micro, batches)
            if asked.scheduled_by == "step":
                self._schedule()
            self.position = replace(self.position, step=number, steps=self.position.steps + 1)
            self.watch.step()
            if self.position.steps % CHECK_EVERY == 0:
                method.check()
            if asked.checkpoint_steps and self.position.steps % asked.checkpoint_steps == 0 and number != total:
                self._save()

    def _end_epoch(self) -> dict[str, Any]:
        """Close the epoch and, at its end, the round; returns the epoch's row of the history."""
        asked, epoch = self.request, self.position.epoch + 1
        warming = epoch <= asked.warmup_epochs
        row: dict[str, Any] = {"epoch": epoch, "round": asked.method.rounds, "warmup": warming}
        if warming:
            summary = self._warmup.step()
        else:
            row |= look_at_gradient(asked, self.stepper, self.position)
            summary = asked.method.step() if self._round_ends(row) else asked.method.summary()
        row |= round_row(summary)
        row["lr"] = asked.optimizer.param_groups[0]["lr"]
        if asked.scheduled_by == "epoch":
            self._schedule()
        self.position = replace(self.position, epoch=epoch, step=0)
        if epoch in asked.audited_epochs:
            self.audits = self._audit()
            for split, found in self.audits.items():
                row |= audit_row(split, found, asked.target)
            self.watch.audited(self.audits, epoch)
            if asked.on_audit is not None:
                with evaluation_mode(self.stepper.model_to_audit):
                    asked.on_audit(self.stepper.model_to_audit, epoch, self.audits)
            candidate = self._choose()
            self.position = replace(self.position, reached=candidate.feasible and not warming)
            if asked.scheduled_by == "audit" and not warming:
                self._schedule(candidate.loss)
            if asked.promise is not None and not warming:
                row |= {f"margin/{name}": margin for name, margin in asked.method.margins.items()}
                if self.status is None:
                    self._steer()
        return row

    def _steer(self) -> None:
        """Move tau and margins towards what is promised."""
        asked, tune = self.request, self.audits[self.request.select_on]
        assert asked.target is not None, "which the promise says"
        assert asked.feed is not None, "since a promise takes no stream"
        seen = self._audit_of(spread(asked.feed, tune.samples), n_comparisons=math.inf)
        steer_(asked.method, tune, seen, aim=asked.target, progress=asked.behind(self.position.epoch))

    def _schedule(self, *numbers: float) -> None:
        scheduler, position, epochs = self.request.schedule, self.position, self.request.last_epoch
        if scheduler is None:
            return
        before = max(scheduler.get_last_lr())
        try:
            scheduler.step(*numbers)  # type: ignore[arg-type]  # none but the one that waits for a plateau
        except ValueError as error:
            raise ConfigurationError(f"the scheduler cannot go on: {error} Make it for all {epochs} epochs") from error
        if position.epoch >= position.planned and max(scheduler.get_last_lr()) > before:
            warnings.warn(
                f"the learning rate rises again: {type(scheduler).__name__} was made for the {position.planned} epochs "
                f"this run was begun for, and it goes on to {epochs}. For one falling rate over all of them begin a "
                "new run with a scheduler made for them",
                stacklevel=2,
            )

    def _round_ends(self, row: dict[str, Any]) -> bool:
        """Whether the epoch just complete is the last of its round; what the rule saw goes into ``row``."""
        asked, rule = self.request, self.request.round_rule
        if rule is None or asked.feed is None:
            return True
        epochs = self.position.round_epochs + 1
        self.stepper.share_buffers()
        model, seed = self.stepper.model_to_audit, mix(asked.seed, "rule")
        verdict = rule.verdict(asked.problem, model, asked.feed, asked.method, epochs=epochs, seed=seed)
        # One process decides for all: rounding may differ between them.
        ends = bool(distributed.from_first_(torch.tensor(float(verdict.done), device=self.stepper.device)))
        row["gradient/epsilon"] = verdict.epsilon
        row["gradient/norm"] = None if verdict.estimate is None else verdict.estimate.norm
        if verdict.estimate is not None and model is self.stepper.raw_model:
            row |= growth_row(verdict.estimate, rule.batch_size, asked.feed.source.length, asked.size)
        self.position = replace(self.position, round_epochs=0 if ends else epochs)
        return ends

    def _audit(self) -> dict[str, Audit]:
        self.stepper.share_buffers()
        return {name: self._audit_of(feed, self._n_comparisons(name)) for name, feed in self.request.splits.items()}

    def _audit_of(self, feed: Feed, n_comparisons: float) -> Audit:
        problem, model, size = self.request.problem, self.stepper.model_to_audit, feed.batch_size or self.request.size
        return audit(problem, model, feed, n_comparisons=n_comparisons, batch_size=size, device=self.stepper.device)

    def _n_comparisons(self, split: str) -> float:
        """How many models a data set compares, those to come too: a run may stop early because one looks good."""
        if self.request.holds_training_data(split):
            return math.inf
        if split != self.request.select_on:
            return 1
        made = {row["epoch"] for row in self.history.rows if f"{split}/satisfied" in row}
        return len(self.request.audited_epochs | made | {self.position.epoch})

    def _choose(self) -> Selection:
        """Let the epoch just audited take the place of the best one, if it is better."""
        asked = self.request
        decisive = self.audits[asked.select_on]
        self.streaks.update(decisive)
        numbers = ("satisfied", "objective", "failed", "violated", "mean_violation")
        found = {name: getattr(decisive, name) for name in numbers}
        candidate = Selection(self.position.epoch, asked.select_on, asked.target, **found)
        if better(candidate, self.position.best):
            self.position = replace(self.position, best=candidate)
            asked.method.gather_()
            kept = self.stepper.weights_to_ship(), asked.method.state_dict()
            weights, method = ({name: each.detach().cpu().clone() for name, each in part.items()} for part in kept)
            self.best = Best(weights, method, self.audits)
            if self.folder is not None:
                with asked.method.gathered():
                    self.folder.stage(self.best, candidate, self.audits, asked)
        return candidate

    def _check_weights(self, cause: NotFiniteError | None = None) -> None:
        """Refuse weights that are not numbers, so that they are never saved over good ones."""
        if self.stepper.is_finite(everywhere=cause is None):
            return
        saved = "" if self.folder is None else "; nothing was saved since, and the same call goes on from before it"
        raise NotFiniteError(
            f"the weights stopped being finite at step {self.position.steps}, whose loss still was: its gradient was "
            f"not{saved}. Look for a square root, a logarithm or a division at zero in evaluate, or lower the rate"
        ) from cause

    def _save(self) -> None:
        if self.folder is None:
            return
        self._check_weights()
        state = {"position": asdict(self.position), **self.stepper.state(), "streaks": self.streaks.state_dict()}
        for name, method in (("method", self.request.method), ("warmup", self._warmup)):
            method.gather_()
            state[name] = dict(method.state_dict())
        scheduler = self.request.schedule
        # Without the functions it may hold: they come with the resumed call.
        kept = {} if scheduler is None else scheduler.state_dict()
        state["scheduler"] = {key: value for key, value in kept.items() if not callable(value)}
        self.folder.save(self.position.steps, state, self.position.best)
        self.stepper.fabric.barrier()

    def open(self, folder: RunFolder) -> None:
        """Keep the run in ``folder`` and go on from what it holds."""
        self.folder = folder
        if (state := folder.checkpoints.latest()) is not None:
            try:
                self._load(state)
            except CheckpointError as error:
                raise CheckpointError(f"{folder.checkpoints.read}: {' '.join(str(error).split())}") from error
        folder.refuse_second_proof(self.request, self.position, goes_on=self.status is None)
        folder.tidy(self.position.best)
        self.stepper.fabric.barrier()
        if self.position.best is not None and not folder.comes_again(self.position.epoch):
            self.best = folder.best(self.stepper.weights_to_ship(), self.position.best, self.request)
            if self.best is None:
                self.position = replace(self.position, best=None)
        self.history = folder.history(self.position.epoch)
        if self.position.epoch > self.request.last_epoch:
            warnings.warn(
                f"{folder.path} holds a run of {self.position.epoch} epochs, more than the {self.request.last_epoch} "
                "asked for: it is returned as it stands",
                stacklevel=3,
            )

    def _load(self, state: dict[str, Any]) -> None:
        asked = self.request
        try:
            self.position = Position.of(state["position"])
            if self.position.best is not None:  # other samples to prove a promise on make another target of it
                self.position = replace(self.position, best=replace(self.position.best, target=asked.target))
            self.stepper.load(state)
            asked.method.load_state_dict(state["method"])
            self._warmup.load_state_dict(state["warmup"])
            if asked.schedule is not None:
                asked.schedule.load_state_dict(state["scheduler"])
            self.streaks.load_state_dict(state["streaks"], asked.splits[asked.select_on].source.length)
        except (KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"is of another version of this library: {error!r}") from error
