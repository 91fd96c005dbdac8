"""The loop over epochs and rounds, which moves a run's state on."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from samplewise.audits.audit import Audit, audit
from samplewise.errors import CheckpointError, ConfigurationError, NotFiniteError, SamplewiseError
from samplewise.history import History, audit_row, round_row
from samplewise.methods import Unconstrained
from samplewise.methods.base import CHECK_EVERY
from samplewise.optimality.feasibility import Infeasibility, find_infeasibility
from samplewise.problem import Evaluation, evaluation_mode, refuse_broadcast
from samplewise.samples import Feed, in_order, mix, source_of
from samplewise.storage import distributed
from samplewise.training.average import between
from samplewise.training.batching import steps_left
from samplewise.training.folder import RunFolder
from samplewise.training.logging import RunLogger
from samplewise.training.promise import (
    CANDIDATES,
    Promise,
    Promised,
    aims,
    has_share,
    highest_aim,
    outcome,
    spread,
    steer_,
    why_not,
)
from samplewise.training.spec import RunSpec
from samplewise.training.state import RunState, Selection, Snapshot, Status
from samplewise.training.step import Stepper, seed_device


class Training:
    """A run in progress: ``state`` says where it stands, the stepper holds what is trained."""

    def __init__(self, spec: RunSpec, stepper: Stepper, logger: RunLogger) -> None:
        self.spec, self.stepper, self.logger = spec, stepper, logger
        self.state = RunState(planned=spec.last_epoch)
        self.history = History()
        self.folder: RunFolder | None = None
        if spec.promise is not None:
            spec.method.coefficients.cap_()
        spec.method.to(stepper.device)
        # Warm-up minimises the objective alone, but its rows in the history still say how the constraints fare.
        self._warmup = Unconstrained(spec.method.constraints).to(stepper.device)

    def try_out(self) -> None:
        """Evaluate a few samples of each data set, so that an error in one is found before training."""
        for feed in self.spec.splits.values():
            refuse_broadcast(self._first(feed, 2), partial(self._first, feed, 1))

    def _first(self, feed: Feed, samples: int) -> Evaluation:
        model, few = self.stepper.model_to_audit, range(min(samples, feed.source.length))
        ((batch, index),) = in_order(feed, batch_size=samples, device=self.stepper.device, rows=few)
        with evaluation_mode(model):
            return self.spec.problem.evaluate(model, batch, index)

    def terminate(self) -> Status | None:
        """The status if the run ends here; None if it goes on."""
        return self.state.terminate(self.spec.validation, epochs=self.spec.last_epoch, warmup=self.spec.warmup_epochs)

    def run(self) -> Status:
        """Train to the end; model and method are then those of the selected epoch."""
        while self.terminate() is None:
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
            for callback in (self.logger, *self.spec.callbacks):
                callback.on_epoch(row)
        if self.state.snapshot is None:  # a run shorter now than when it was begun, or one whose best model was lost
            if (lost := self.state.best) is not None:
                warnings.warn(f"the model of epoch {lost.epoch}, the best, is lost; taking the last one", stacklevel=2)
            self.state = replace(self.state, best=None)
            self._choose(self._audit())
            self._save()
        status = self.terminate()
        assert status is not None
        return status

    @property
    def selected(self) -> tuple[Selection, Snapshot]:
        """The selected epoch, once there is one, and its model."""
        best, snapshot = self.state.best, self.state.snapshot
        assert best is not None, "the last epoch is always audited"
        assert snapshot is not None
        return best, snapshot

    def ship(self) -> dict[str, Audit]:
        """Load the selected epoch into model and method; returns its audits by data set."""
        _, snapshot = self.selected
        self.stepper.ship_(snapshot.weights)
        self.spec.method.load_state_dict(snapshot.method)
        return {name: replace(each, n_comparisons=self._n_comparisons(name)) for name, each in snapshot.audits.items()}

    def prove(self, promise: Promise) -> tuple[Promised, dict[str, Audit]]:
        """Choose the model of a promise, load it, and return what is proved of it and its audits.

        Calling it again gives the same: the choice is in the run's folder, and training can go on from the last model.
        """
        spec, tune = self.spec, self.spec.splits[self.spec.select_on]
        tuned = self._audit_of(tune, math.inf)
        why = why_not(spec.method, promise, tuned, highest_aim(promise, tuned, spec.proving))
        proving = source_of(promise.held_out[1])

        def proof(tested: int) -> Audit:
            return replace(self._audit_of(proving, tested), confidence=promise.confidence)

        if self.selected[0].since is None:
            self._choose_proved(promise, partial(proof, 1), tune)
        audits = self.ship()
        return outcome(promise, proof(self.selected[0].tested), spec.method, why), audits

    def _choose_proved(self, promise: Promise, proof: Callable[[], Audit], tune: Feed) -> None:
        """Test the candidates from the last model to that at three fifths; keep the best before the first failure.

        The best one has the best objective on ``tune_on``, of those that it speaks for too: a proof may be luck. It is
        the last one, if none is proved.
        """
        spec, model, (best, settled) = self.spec, self.stepper.model_to_audit, self.selected
        weights, method = self._copies()
        steps = CANDIDATES if best.epoch < self.state.epoch else 0
        tested, part, objective = 0, 1.0, math.inf
        for step in range(steps + 1):
            candidate = 1 - step / max(1, steps)
            model.load_state_dict(between(settled.weights, weights, candidate))
            tested += 1
            if not has_share(promise, proved := proof()):
                break
            found = self._audit_of(tune, math.inf)
            if found.objective < objective and has_share(promise, proved, found):
                part, objective = candidate, found.objective
        model.load_state_dict(between(settled.weights, weights, part))
        spec.method.load_state_dict(between(settled.method, method, part))
        audits = self._audit()
        chosen = Selection.of(audits[spec.select_on], epoch=self.state.epoch, split=spec.select_on, aim=spec.aim)
        self._keep(replace(chosen, since=best.epoch, part=part, tested=tested), audits)
        model.load_state_dict(weights)
        spec.method.load_state_dict(method)
        self._save()

    def find_infeasibility(self) -> Infeasibility:
        """Whether the training samples that the selected model violates conflict with each other."""
        spec, stepper = self.spec, self.stepper
        assert spec.feed is not None, "a stream is refused"
        stepper.broadcast_buffers()
        return find_infeasibility(
            spec.problem, stepper.model_to_audit, spec.feed, batch_size=spec.size, device=stepper.device
        )

    def _train_epoch(self) -> None:
        spec, rank, start = self.spec, distributed.replica(), self.state
        total, left = steps_left(spec, start)
        method = self._warmup if start.epoch < spec.warmup_epochs else spec.method
        by_step = spec.scheduled_by == "step"
        self.logger.start_epoch(total, start.step)
        for number, step in enumerate(left, start.step + 1):
            # Dropout and the like depend on the position in the run alone, so a resumed run draws the same.
            seed_device(mix(spec.seed, "step", start.epoch, number - 1, rank), self.stepper.device)
            self.stepper.step(method, step)
            if by_step:
                self._schedule()
            steps = self.state.steps + 1
            self.state = replace(self.state, step=number, steps=steps)
            self.logger.step()
            if steps % CHECK_EVERY == 0:
                method.check()
            if spec.checkpoint_steps and steps % spec.checkpoint_steps == 0 and number != total:
                self._save()

    def _end_epoch(self) -> dict[str, Any]:
        """Close the epoch and, at its end, the round; returns the epoch's row of the history."""
        spec, epoch = self.spec, self.state.epoch + 1
        warming = epoch <= spec.warmup_epochs
        row: dict[str, Any] = {"epoch": epoch, "round": spec.method.rounds, "warmup": warming}
        if warming:
            summary = self._warmup.step()
        else:
            summary = spec.method.step() if self._round_ends(row) else spec.method.summary()
        row |= round_row(summary)
        row["lr"] = spec.optimizer.param_groups[0]["lr"]
        if spec.scheduled_by == "epoch":
            self._schedule()
        self.state = replace(self.state, epoch=epoch, step=0)
        if epoch in spec.audited_epochs:
            self._end_audited_epoch(row, warming)
        return row

    def _end_audited_epoch(self, row: dict[str, Any], warming: bool) -> None:
        """Audit, select and steer; the numbers go into ``row``."""
        spec, epoch, audits = self.spec, self.state.epoch, self._audit()
        for split, found in audits.items():
            row |= audit_row(split, found, spec.selection_target)
        with evaluation_mode(self.stepper.model_to_audit):
            for callback in (self.logger, *spec.callbacks):
                callback.on_audit(self.stepper.model_to_audit, epoch, audits)
        candidate = self._choose(audits)
        self.state = replace(self.state, reached=candidate.feasible and not warming)
        if spec.scheduled_by == "audit" and not warming:
            self._schedule(candidate.loss)
        if spec.promise is not None and not warming:
            row |= {f"margin/{name}": margin for name, margin in spec.method.margins.items()}
            if self.terminate() is None:
                self._steer(audits[spec.select_on])

    def _steer(self, tune: Audit) -> None:
        """Move tau and margins towards what is promised."""
        spec = self.spec
        assert spec.promise is not None
        assert spec.feed is not None, "since a promise takes no stream"
        trained = self._audit_of(spread(spec.feed, tune.samples), n_comparisons=math.inf)
        highest = highest_aim(spec.promise, tune, spec.proving)
        due, aim = aims(spec.promise, highest, spec.progress_at(self.state.epoch))
        audits = sum(epoch > spec.warmup_epochs for epoch in spec.audited_epochs)
        steer_(spec.method, spec.promise, tune, trained, due=due, aim=aim, audits=audits)

    def _schedule(self, *numbers: float) -> None:
        scheduler, state, epochs = self.spec.lr_scheduler, self.state, self.spec.last_epoch
        if scheduler is None:
            return
        before = max(scheduler.get_last_lr())
        try:
            scheduler.step(*numbers)  # type: ignore[arg-type]  # none but the one that waits for a plateau
        except ValueError as error:
            raise ConfigurationError(f"the scheduler cannot go on: {error} Make it for all {epochs} epochs") from error
        if state.epoch >= state.planned and max(scheduler.get_last_lr()) > before:
            warnings.warn(
                f"the learning rate rises again: {type(scheduler).__name__} was made for the {state.planned} epochs "
                f"this run was begun for, and it goes on to {epochs}. For one falling rate over all of them begin a "
                "new run with a scheduler made for them",
                stacklevel=2,
            )

    def _round_ends(self, row: dict[str, Any]) -> bool:
        """Whether the epoch just complete is the last of its round; what the rule found goes into ``row``."""
        spec, rule = self.spec, self.spec.round_rule
        if rule is None or spec.feed is None:
            return True
        epochs = self.state.round_epochs + 1
        self.stepper.broadcast_buffers()
        model, seed = self.stepper.model_to_audit, mix(spec.seed, "rule")
        verdict = rule.verdict(spec.problem, model, spec.feed, spec.method, epochs=epochs, seed=seed)
        # One process decides for all: rounding may differ between them.
        ends = bool(distributed.from_first_(torch.tensor(float(verdict.done), device=self.stepper.device)))
        row["gradient/epsilon"] = verdict.epsilon
        row["gradient/norm"] = None if verdict.estimate is None else verdict.estimate.norm
        self.state = replace(self.state, round_epochs=0 if ends else epochs)
        return ends

    def _audit(self) -> dict[str, Audit]:
        self.stepper.broadcast_buffers()
        return {name: self._audit_of(feed, self._n_comparisons(name)) for name, feed in self.spec.splits.items()}

    def _audit_of(self, feed: Feed, n_comparisons: float) -> Audit:
        problem, model, size = self.spec.problem, self.stepper.model_to_audit, feed.batch_size or self.spec.size
        return audit(problem, model, feed, n_comparisons=n_comparisons, batch_size=size, device=self.stepper.device)

    def _n_comparisons(self, split: str) -> float:
        """How many models a data set compares, future ones included: a run may stop early because one looks good."""
        if split in self.spec.known:
            return math.inf
        if split != self.spec.select_on:
            return 1
        made = {row["epoch"] for row in self.history.rows if f"{split}/satisfied" in row}
        return len(self.spec.audited_epochs | made | {self.state.epoch})

    def _choose(self, audits: dict[str, Audit]) -> Selection:
        """Let the epoch just audited take the place of the best one, if it is better."""
        spec, split = self.spec, self.spec.select_on
        candidate = Selection.of(
            audits[split], epoch=self.state.epoch, split=split, aim=spec.aim, select=spec.validation.select
        )
        if self._takes_its_place(candidate):
            self._keep(candidate, audits)
        return candidate

    def _takes_its_place(self, candidate: Selection) -> bool:
        """Whether the epoch just audited is kept: the best one; under a promise the one at which training settled."""
        if self.spec.promise is None:
            return candidate.better_than(self.state.best)
        kept = self.state.best
        proved, ended = kept is not None and kept.since is not None, kept is None and self.terminate() is not None
        return candidate.epoch == self.spec.settled_epoch or proved or ended

    def _keep(self, selection: Selection, audits: dict[str, Audit]) -> None:
        """Keep the present model as the best one."""
        snapshot = Snapshot(*self._copies(), audits)
        self.state = replace(self.state, best=selection, snapshot=snapshot)
        if self.folder is not None:
            with self.spec.method.gathered():
                self.folder.stage(selection, snapshot, self.spec)

    def _copies(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The weights to ship and the method's state, on the CPU."""
        self.spec.method.gather_()
        states = self.stepper.weights_to_ship(), self.spec.method.state_dict()
        weights, method = ({name: each.detach().cpu().clone() for name, each in state.items()} for state in states)
        return weights, method

    def _check_weights(self, cause: NotFiniteError | None = None) -> None:
        """Refuse weights that are not numbers, so that they are never saved over good ones."""
        if self.stepper.is_finite(everywhere=cause is None):
            return
        saved = "" if self.folder is None else "; nothing was saved since, and the same call goes on from before it"
        raise NotFiniteError(
            f"the weights stopped being finite at step {self.state.steps}, whose loss still was: its gradient was "
            f"not{saved}. Look for a square root, a logarithm or a division at zero in evaluate, or lower the rate"
        ) from cause

    def _save(self) -> None:
        if self.folder is None:
            return
        self._check_weights()
        state = {"run": self.state.to_dict(), **self.stepper.state()}
        for name, method in (("method", self.spec.method), ("warmup", self._warmup)):
            method.gather_()
            state[name] = dict(method.state_dict())
        scheduler = self.spec.lr_scheduler
        # Without the functions it may hold: they come with the resumed call.
        kept = {} if scheduler is None else scheduler.state_dict()
        state["scheduler"] = {key: value for key, value in kept.items() if not callable(value)}
        self.folder.save(self.state.steps, state, self.state.best)
        self.stepper.fabric.barrier()

    def open(self, folder: RunFolder) -> None:
        """Keep the run in ``folder`` and go on from what it holds."""
        self.folder = folder
        if (state := folder.checkpoints.latest()) is not None:
            try:
                self._load(state)
            except CheckpointError as error:
                raise CheckpointError(f"{folder.checkpoints.read}: {' '.join(str(error).split())}") from error
        folder.refuse_second_proof(self.spec, self.state, goes_on=self.terminate() is None)
        folder.tidy(best := self.state.best)
        self.stepper.fabric.barrier()
        if best is not None and not folder.comes_again(self.state.epoch):
            snapshot = folder.snapshot(self.stepper.weights_to_ship(), best, self.spec)
            self.state = replace(self.state, best=None if snapshot is None else best, snapshot=snapshot)
        self.history = folder.history(self.state.epoch)
        if self.state.epoch > self.spec.last_epoch:
            warnings.warn(
                f"{folder.path} holds a run of {self.state.epoch} epochs, more than the {self.spec.last_epoch} "
                "asked for: it is returned as it stands",
                stacklevel=3,
            )

    def _load(self, state: dict[str, Any]) -> None:
        spec = self.spec
        try:
            self.state = RunState.of(state["run"])
            if (best := self.state.best) is not None:  # other samples to prove a promise on change its aim
                self.state = replace(self.state, best=replace(best, aim=spec.aim))
            self.stepper.load(state)
            spec.method.load_state_dict(state["method"])
            self._warmup.load_state_dict(state["warmup"])
            if spec.lr_scheduler is not None:
                spec.lr_scheduler.load_state_dict(state["scheduler"])
        except SamplewiseError:
            raise  # also if the other processes did not answer
        except (KeyError, TypeError, AttributeError, RuntimeError, ValueError) as error:
            raise CheckpointError(f"does not fit this run, or is of another version: {error!r}") from error
