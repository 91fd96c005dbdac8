"""What a promise is compared with: the objective's own model plus a constant, and the best fixed weight."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from samplewise.audits.audit import Audit, audit
from samplewise.methods import FixedPenalty, Method, Unconstrained
from samplewise.samples import Feed, source_of
from samplewise.storage import distributed
from samplewise.training.promise import Promise, Rival, has_share, share_shown, spread
from samplewise.training.spec import RunSpec

FEW = 256  # samples on which it is found out whether a constant added to the output moves the measures one way
STEPS = 0.01, 0.1, 1.0  # how far it is moved for that, in the largest size of the excess
DOUBLINGS, HALVINGS = 40, 12  # the shift is found to a few thousandths of itself

Train = Callable[[Method, str], None]
"""Trains the model from where the run began under another method, by the same recipe; and a name for it."""


class Rivals:
    """Finds what a promise is compared with; made before the run, since it needs what the run begins with."""

    def __init__(self, spec: RunSpec, device: torch.device) -> None:
        self.spec, self.device = spec, device
        promise = spec.promise
        assert promise is not None
        self.reason, self.sign = "", 0
        if promise.rival:
            self.reason = self._why_none()
            if not self.reason:
                self.sign = self._direction(spread(spec.splits[spec.select_on], FEW))
                if not self.sign:
                    self.reason = "no constant added to the model's output moves every measure one way"
        wanted = self.sign or (promise.weights and not self._why_none())
        self.begin = States(spec) if wanted else None

    def _why_none(self) -> str:
        spec = self.spec
        if distributed.replicas() > 1:
            return "it is trained in one process only"
        if spec.auxiliary is not None or isinstance(spec.lr_scheduler, ReduceLROnPlateau):
            return "an auxiliary network, or a rate that waits for a plateau, cannot be begun anew"
        return ""

    def find(self, train: Train) -> tuple[Rival, ...]:
        """Train them, and prove them on the same samples as the promise; the model at hand stays as it is."""
        if self.begin is None:
            return ()
        spec, shipped = self.spec, States(self.spec)
        constraints, found = spec.problem.constraints, []
        assert spec.promise is not None
        try:
            if self.sign:
                self.begin.restore()
                train(Unconstrained(constraints), "objective")
                found.append(self._shifted(spec.promise))
            if spec.promise.weights:
                trials = []
                for weight in spec.promise.weights:
                    self.begin.restore()
                    train(FixedPenalty(constraints, weight), f"weight-{weight:g}")
                    trials.append(self._weighted(spec.promise, weight))
                # Of those that show on tune_on what a proof most likely takes the best, or else the nearest to that.
                found.append(min(trials, key=lambda each: each[0])[1])
        finally:
            shipped.restore()
        return tuple(found)

    def _audit(self, feed: Feed, by: float = 0.0) -> Audit:
        spec = self.spec
        with shifted(spec.model, by):
            size = feed.batch_size or spec.size
            return audit(spec.problem, spec.model, feed, n_comparisons=1, batch_size=size, device=self.device)

    def _direction(self, few: Feed) -> int:
        """1 or -1 if more added to the output, or taken from it, lowers each excess more; else 0."""
        before = _excesses(self._audit(few))
        size = float(before[before.isfinite()].abs().max()) if before.isfinite().any() else 0.0
        if not size:
            return 0
        for sign in (1, -1):
            line = [before, *(_excesses(self._audit(few, sign * step * size)) for step in STEPS)]
            falls = all(bool((b <= a + 1e-6 * size).all()) for a, b in pairwise(line))
            if falls and bool((line[-1] < before)[before > 0].all()) and bool((line[-1] < before).any()):
                return sign
        return 0

    def _shifted(self, promise: Promise) -> Rival:
        """The least constant that proves the share on all samples held out: the model was not chosen on any."""
        tune, prove = (source_of(data) for data in promise.held_out)

        def proved(by: float) -> bool:
            return has_share(promise, *(self._audit(each, self.sign * by) for each in (tune, prove)))

        low, high = 0.0, 0.0
        if not proved(0.0):
            high = max(1e-6, float(_excesses(self._audit(prove)).abs().max()))
            for _ in range(DOUBLINGS):
                if proved(high):
                    break
                low, high = high, 2 * high
            for _ in range(HALVINGS):
                middle = (low + high) / 2
                low, high = (low, middle) if proved(middle) else (middle, high)
        by = self.sign * high
        found = [self._audit(each, by) for each in (tune, prove)]
        return self._rival(promise, "the objective alone, its output moved", by, found, found[1])

    def _weighted(self, promise: Promise, weight: float) -> tuple[tuple[float, float], Rival]:
        tune, prove = (self._audit(source_of(data)) for data in promise.held_out)
        assert self.spec.aim is not None
        short = max(0.0, self.spec.aim - tune.satisfied)
        name = f"the best of {len(promise.weights)} fixed weights, {weight:g}"
        return (short, 0.0 if short else tune.objective), self._rival(promise, name, 0.0, [prove], prove)

    def _rival(self, promise: Promise, name: str, by: float, proofs: list[Audit], prove: Audit) -> Rival:
        weights = {key: each.detach().cpu().clone() for key, each in self.spec.model.state_dict().items()}
        at_least = share_shown(promise, *(replace(each, confidence=promise.confidence) for each in proofs))
        return Rival(name, at_least >= promise.share, at_least, prove.objective, by, weights)


class States:
    """Model, optimizer and scheduler as they are now."""

    def __init__(self, spec: RunSpec) -> None:
        parts: list[Any] = [spec.model, spec.optimizer, spec.lr_scheduler]
        self._held = [(each, copy.deepcopy(each.state_dict())) for each in parts if each is not None]

    def restore(self) -> None:
        for part, state in self._held:
            part.load_state_dict(copy.deepcopy(state))


@contextlib.contextmanager
def shifted(model: nn.Module, by: float) -> Iterator[None]:
    """Within it ``by`` is added to what the model returns, if that is one number for each sample."""

    def move(_module: nn.Module, _given: Any, out: Any) -> Any:
        one = isinstance(out, Tensor) and out.is_floating_point() and out.ndim > 0 and out.numel() == len(out)
        return out + by if one else out

    handle = model.register_forward_hook(move) if by else None
    try:
        yield
    finally:
        if handle is not None:
            handle.remove()


def _excesses(found: Audit) -> Tensor:
    """Of every constraint and sample ``(m, N)``, 0 where there is no value."""
    excess = torch.stack([part.excess for part in found.values()])
    return excess.where(excess > -math.inf, 0.0)
