"""A run in progress: its position, its state, and the loop over epochs and rounds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from samplewise import distributed
from samplewise.audit import Audit, audit
from samplewise.batches import Feed, in_order, mix
from samplewise.errors import MeasureError
from samplewise.history import History, audit_row, round_row
from samplewise.methods import Method, Unconstrained
from samplewise.problem import evaluation_mode
from samplewise.training.engine import Engine
from samplewise.training.findings import findings
from samplewise.training.live import Live
from samplewise.training.plan import epoch_order, plan_epoch
from samplewise.training.progress import Progress
from samplewise.training.run import RunFolder
from samplewise.training.selection import Selection, better
from samplewise.training.settings import Settings
from samplewise.violators import Streaks

__all__ = ["Training"]

CHECK_EVERY = 100  # steps between looks at an accelerator's notes of values that are not finite


@dataclass
class Training:
    """The state of a run and the loop that moves it on."""

    settings: Settings
    engine: Engine
    method: Method
    feed: Feed
    splits: Mapping[str, Feed]
    scheduler: torch.optim.lr_scheduler.LRScheduler | None
    live: Live
    folder: RunFolder | None = None
    history: History = field(default_factory=History)
    streaks: Streaks = field(default_factory=Streaks)
    audits: dict[str, Audit] = field(default_factory=dict)
    best: Selection | None = None
    best_weights: dict[str, torch.Tensor] | None = None
    best_findings: dict[str, Any] | None = None
    """What the audits of the best epoch found, for the run's folder."""
    epoch: int = 0
    """Epochs complete."""
    position: int = 0
    """Steps complete in the present epoch."""
    steps: int = 0
    """Steps complete in all."""
    round_epochs: int = 0
    """Epochs complete in the present round."""
    reached: bool = False
    """Whether the last audit met the target."""
    stopped: bool = False

    def __post_init__(self) -> None:
        self.method.to(self.engine.device)
        # Warm-up minimises the objective alone, but its rows in the history still say how the constraints fare.
        self._warmup = Unconstrained(self.method.constraints).to(self.engine.device)

    def try_out(self) -> None:
        """Evaluate a few samples of each data set, so that what is wrong with one is said before any training."""
        for feed in self.splits.values():
            few = min(2, feed.source.length)
            for name, width in self._widths(feed, few).items():
                # As many values for a sample as there are samples, whatever their number, is a slip of broadcasting.
                if width == few == 2 and self._widths(feed, 1)[name] == 1:
                    raise MeasureError(
                        f"expected the measure {name!r} of shape (B,), got (B, B): (B, 1) and (B,) were broadcast. "
                        "Squeeze the model's output, model(x).squeeze(1)"
                    )
            self.live.draw(self.engine, feed)

    def _widths(self, feed: Feed, samples: int) -> dict[str, int]:
        """Evaluate the first samples of a data set; returns how many values a sample has of each ``(B, m)`` measure."""
        model, problem = self.engine.model_to_audit, self.engine.problem
        ((batch, index),) = in_order(feed, batch_size=samples, device=self.engine.device, rows=range(samples))
        with evaluation_mode(model):
            measures = problem.evaluate(model, batch, index).measures
        return {name: values.shape[1] for name, values in measures.items() if values.ndim == 2}

    def loop(self, progress: Progress) -> None:
        """Run the epochs that are left."""
        while self.epoch < self.settings.last_epoch and not self.stopped:
            began = time.perf_counter()
            self._train_epoch(progress)
            row = self._end_epoch()
            row["seconds"] = time.perf_counter() - began
            self._record(row)
            self._save()
            progress.end_epoch(self._note(row))
        if not self.audits:  # a run that was complete already, or is shorter now than when it was begun
            self.audits = self._audit()
        if self.best is None:
            self._choose()

    def _train_epoch(self, progress: Progress) -> None:
        settings, rank = self.settings, distributed.rank()
        order = epoch_order(self.feed, shuffle=settings.shuffle, seed=settings.seed, epoch=self.epoch)
        plan = plan_epoch(
            order,
            batch_size=settings.batch_size,
            accumulate=settings.accumulate,
            world=distributed.world_size(),
            rank=rank,
            drop_last=self.feed.drop_last,
        )
        left = plan[self.position :]
        batches = self.feed.source.batches(
            [part.index for step in left for part in step],
            seed=mix(settings.seed, "data", self.epoch, rank),
            first=self.position * settings.accumulate,
        )
        method = self._warmup if self.epoch < settings.warmup_epochs else self.method
        progress.start_epoch(len(plan), self.position)
        for step in left:
            # Dropout and the like depend on the position in the run alone, so a resumed run draws the same.
            _seed(mix(settings.seed, "step", self.epoch, self.position, rank), self.engine.device)
            self.engine.step(method, step, batches)
            if self.scheduler is not None and settings.scheduler_interval == "step":
                self.scheduler.step()
            self.position += 1
            self.steps += 1
            progress.step()
            if self.steps % CHECK_EVERY == 0:
                method.check()
            if settings.checkpoint_steps and self.steps % settings.checkpoint_steps == 0 and self.position < len(plan):
                self._save()

    def _end_epoch(self) -> dict[str, Any]:
        """Close the epoch and, at its end, the round; returns the epoch's row of the history."""
        settings = self.settings
        warming = self.epoch < settings.warmup_epochs
        self.epoch += 1
        self.position = 0
        row: dict[str, Any] = {"epoch": self.epoch, "round": self.method.rounds, "warmup": warming}
        if warming:
            summary = self._warmup.step()
        else:
            summary = self.method.step() if self._round_ends(row) else self.method.summary()
        row |= round_row(summary)
        row["lr"] = self.engine.raw_optimizer.param_groups[0]["lr"]
        if self.scheduler is not None and settings.scheduler_interval == "epoch":
            self.scheduler.step()
        every = settings.audit_every
        if self.epoch == settings.last_epoch or (every and self.epoch % every == 0):
            self.audits = self._audit()
            for split, found in self.audits.items():
                row |= audit_row(split, found)
            self.live.distributions(self.audits, self.epoch)
            self.live.images(self.engine, self.splits, self.epoch)
            self.reached = self._choose().feasible and not warming
            self.stopped = self._stops()
        return row

    def _stops(self) -> bool:
        """Whether to end here although epochs are left."""
        left = self.settings.last_epoch - self.epoch
        return left > 0 and ((self.settings.stop_at_target and self.reached) or self._out_of_patience())

    def _out_of_patience(self) -> bool:
        assert self.best is not None, "an epoch was just audited"
        patience, since = self.settings.patience, max(self.best.epoch, self.settings.warmup_epochs)
        return patience is not None and self.epoch - since >= patience

    def _round_ends(self, row: dict[str, Any]) -> bool:
        """Whether the epoch just complete is the last of its round; what the rule saw goes into ``row``."""
        rule = self.settings.round_rule
        self.round_epochs += 1
        if rule is None:
            ends = self.round_epochs >= self.settings.epochs_per_round
        else:
            self.engine.share_buffers()
            verdict = rule.verdict(
                self.engine.problem,
                self.engine.model_to_audit,
                self.feed,
                self.method,
                epochs=self.round_epochs,
                seed=mix(self.settings.seed, "rule"),
            )
            ends = verdict.done
            row["gradient/epsilon"] = verdict.epsilon
            row["gradient/norm"] = None if verdict.estimate is None else verdict.estimate.norm
        if ends:
            self.round_epochs = 0
        return ends

    def _audit(self) -> dict[str, Audit]:
        self.engine.share_buffers()
        model = self.engine.model_to_audit
        size = self.settings.audit_batch_size
        return {
            name: audit(self.engine.problem, model, feed, batch_size=size, device=self.engine.device)
            for name, feed in self.splits.items()
        }

    def _choose(self) -> Selection:
        """Let the epoch just audited take the place of the best one, if it is better."""
        settings = self.settings
        decisive = self.audits[settings.select_on]
        self.streaks.update(decisive)
        candidate = Selection.of(decisive, epoch=self.epoch, split=settings.select_on, target=settings.target)
        if better(candidate, self.best):
            self.best = candidate
            weights = self.engine.state()["model"]
            self.best_weights = {name: value.detach().cpu().clone() for name, value in weights.items()}
            if self.folder is not None:
                self.best_findings = findings(self.audits, candidate, self.method, trained_on=self._trained_on())
        return candidate

    def _trained_on(self) -> str | None:
        split = self.splits.get("train")
        return "train" if split is not None and split.source.length == self.feed.source.length else None

    def _record(self, row: dict[str, Any]) -> None:
        self.history.append(row)
        self.live.numbers(row, self.epoch)

    def _note(self, row: dict[str, Any]) -> str:
        shares = [f"{name} {row[f'running/{name}/satisfied']:.1%}" for name in self.method.taus]
        return f"objective {row['running/objective']:.4g}, satisfied: {', '.join(shares) or '-'}"

    def _save(self) -> None:
        if self.folder is None:
            return
        for method in (self.method, self._warmup):
            method.gather_()
        state = {
            **self.engine.state(),
            "method": dict(self.method.state_dict()),
            "warmup": dict(self._warmup.state_dict()),
            "scheduler": None if self.scheduler is None else _plain(self.scheduler.state_dict()),
            "streaks": self.streaks.state_dict(),
            "best": None if self.best is None else asdict(self.best),
            "best_weights": self.best_weights,
            "best_findings": self.best_findings,
            "epoch": self.epoch,
            "position": self.position,
            "steps": self.steps,
            "round_epochs": self.round_epochs,
            "reached": self.reached,
            "stopped": self.stopped,
        }
        self.folder.save(self.steps, state, self.best_weights, self.best_findings)
        self.engine.fabric.barrier()

    def open(self, folder: RunFolder) -> None:
        """Keep the run in ``folder`` and go on from what it holds."""
        self.folder = folder
        state = folder.latest()
        if state is not None:
            self._load(state)
            folder.keep_best(self.best_weights, self.best_findings)  # a kill may have come before it was written
        self.history = folder.history(self.epoch)

    def _load(self, state: dict[str, Any]) -> None:
        self.engine.load(state)
        for method, saved in ((self.method, state["method"]), (self._warmup, state["warmup"])):
            method.load_state_dict(saved)
            if distributed.rank() > 0:
                method.tally.reset_()  # the saved statistics are those of all processes: only the first keeps them
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self.streaks.load_state_dict(state["streaks"])
        self.epoch, self.position, self.steps = state["epoch"], state["position"], state["steps"]
        self.round_epochs, self.reached = state["round_epochs"], state.get("reached", False)
        self.best = None if state["best"] is None else Selection(**state["best"])
        self.stopped = state["stopped"] and self._stops()  # more patience lets an ended run go on
        self.best_weights, self.best_findings = state["best_weights"], state.get("best_findings")


def _seed(seed: int, device: torch.device) -> None:
    """Seed the device's generator and the CPU's; torch.manual_seed visits every backend and costs a millisecond."""
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    """A learning-rate scheduler's state without the functions it may hold: they come with the resumed call."""
    return {key: value for key, value in state.items() if not callable(value)}
