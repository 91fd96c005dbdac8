"""A share promised of unseen samples: the run steers tau and margins towards it, and proves it at its end."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from samplewise.audits.audit import Audit, audit
from samplewise.audits.binomial import check, check_share
from samplewise.audits.monitor import Monitor
from samplewise.constraints import Constraint
from samplewise.errors import ConfigurationError
from samplewise.methods import Method
from samplewise.printed import Printed, Printout, percentage
from samplewise.problem import Problem
from samplewise.samples import Data, Feed, Source, source_of

GAIN = 8.0  # by how much the logarithm of tau moves for a share that is short by all of itself
STEP = math.log(2)  # by how much it moves at most in an audit
SPAN = 100.0  # how far above its first value tau may go unless the schedule says: beyond, only the objective suffers
LEAD = 3  # how fast the share that is due rises; it rises by itself about so at a constant tau and a cosine rate


@dataclass(frozen=True)
class Promise:
    """At least ``share`` of the samples that nobody has seen will meet every constraint: what a run is asked to keep.

    While the run goes on, ``tune_on`` is audited, and tau and margin of each constraint are steered by what it shows
    (:func:`steer_`); it also selects the epoch. At the end ``prove_on``, on which nothing was ever evaluated, gives
    the exact bound: where the promise is said to be kept, it is with probability ``confidence``.

    Args:
        share: of fresh samples that must meet all constraints, between 0 and 1.
        tune_on: samples like those to come, not among the training data; they steer and select.
        prove_on: other such samples, neither among the training data nor in ``tune_on``.
        confidence: of the proof.
    """

    share: float
    tune_on: Data = field(repr=False)
    prove_on: Data = field(repr=False)
    confidence: float = 0.95

    def __post_init__(self) -> None:
        check(self.confidence, 1)
        check_share(self.share)


@dataclass(frozen=True)
class Promised(Printed):
    """What came of a :class:`Promise`."""

    share: float
    """That was asked for."""
    kept: bool
    """Whether it is proved: ``share_at_least >= share``."""
    share_at_least: float
    """Of fresh samples that meet all constraints, with the promise's confidence."""
    margins: dict[str, float]
    """By which each constraint was tightened in training when the model was selected, in its measure's units."""
    taus: dict[str, float]
    """What a violation was weighted with then."""
    audit: Audit
    """Of the model on ``prove_on``."""
    achievable_bounds: dict[str, Constraint] | None
    """Where it is not kept, the tightest bounds that could be promised together for this share; None if that takes more
    samples."""

    @property
    def message(self) -> str:
        """The outcome in one or two sentences."""
        found = self.audit
        shown = f"at least {percentage(self.share_at_least, math.floor, 2)} of fresh samples meet every constraint"
        ground = f"{100 * found.confidence:.10g}% confidence, {found.counted:,} samples never used before"
        if self.kept:
            return f"Kept: {shown}, {self.share:.2%} were promised ({ground})."
        text = f"Not kept: {self.share:.2%} were asked for, but only this can be promised: {shown} ({ground})."
        if self.achievable_bounds:
            text += f" For {self.share:.2%} it could be {', '.join(map(str, self.achievable_bounds.values()))}."
        return text

    def printout(self) -> Printout:
        rows = [("constraint", "met", "violated", "margin", "tau")]
        for name, part in self.audit.items():
            trained = f"{self.margins.get(name, math.nan):.4g}", f"{self.taus.get(name, math.nan):.4g}"
            rows.append((str(part.constraint), percentage(part.satisfied, digits=2), f"{part.violated:,}", *trained))
        return Printout(self.message, rows)

    def monitor(self, alarm: float = 0.05) -> Monitor:
        """Watch the samples that come after deployment: an alarm is raised when too few of them meet all constraints.

        The share that is watched is the one that was asked for, where the promise is kept; where it is not,
        ``share_at_least``, which was proved.

        Args:
            alarm: probability of a false alarm, ever, however often the monitor is read.
        """
        share = self.share if self.kept else self.share_at_least
        if share <= 0:
            raise ConfigurationError("nothing was proved of this model, so there is no share to watch: train another")
        return Monitor(share, self.audit.bounds, alarm)

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain values."""
        bounds = self.achievable_bounds
        achievable = None if bounds is None else {name: str(each) for name, each in bounds.items()}
        plain = {name: getattr(self, name) for name in ("share", "kept", "share_at_least", "margins", "taus")}
        found = {"confidence": self.audit.confidence, "audit": self.audit.to_dict()}
        return {**plain, "message": self.message, "achievable_bounds": achievable, **found}


def prove(promise: Promise, problem: Problem, model: nn.Module, method: Method, *, batch_size: int) -> Promised:
    """What ``prove_on`` says of the selected model; ``method`` is as it was when the model was selected."""
    feed = source_of(promise.prove_on)
    found = audit(problem, model, feed, confidence=promise.confidence, batch_size=feed.batch_size or batch_size)
    at_least = 1 - found.violation_rate_upper
    kept, achievable = at_least >= promise.share, None
    if not kept:
        # A sample may miss any of the bounds: each takes its part of those that may. Of many there may be too few.
        with contextlib.suppress(ConfigurationError):
            achievable = found.suggest(1 - (1 - promise.share) / max(1, len(found)))
    return Promised(promise.share, kept, at_least, method.margins, method.trained_taus, found, achievable)


def steer_(method: Method, tune: Audit, train: Audit, *, aim: float, progress: float) -> None:
    """Move tau and margin of each constraint towards the ``aim`` on unseen samples, at the least cost in objective.

    The margin is what unseen samples lose: how much further the quantile ``aim`` of the excess lies on ``tune``, which
    was not trained on, than on ``train``, which was. It is averaged with the one before.

    tau grows while ``tune`` shows less than the share that is due at this part of the run, from 0 to 1, and falls
    while it shows more: dual ascent on the share, with the price set by samples that the weights cannot fit. The share
    rises while a network learns, fast at first; what is due rises likewise, so that tau is not driven up by what
    training alone will mend; below the aim tau stays at its first value or above. Of several constraints those with
    the most violators move the most.
    """
    due = aim * (1 - (1 - progress) ** LEAD)
    short = (due - tune.satisfied) / aim
    most = max((part.violated for part in tune.values()), default=0)
    taus, margins = {}, {}
    for (name, part), rule in zip(tune.items(), method.coefficients.rules(), strict=True):
        part_of_it = part.violated / most if short > 0 and most else 1.0
        moved = min(STEP, max(-STEP, GAIN * short * part_of_it))
        lowest = min(rule.first, method.taus[name]) if tune.satisfied < aim else 0.0
        taus[name] = max(lowest, min(method.taus[name] * math.exp(moved), rule.highest(SPAN)))
        gap = _reach(part.excess, aim) - _reach(train[name].excess, aim)
        lost = max(0.0, gap) if math.isfinite(gap) else 0.0  # no sample may have a value
        margin = (method.margins[name] + lost) / 2
        margins[name] = min(margin, part.constraint.reach)
    method.steer_(taus, margins)


def _reach(excess: Tensor, share: float) -> float:
    """The excess that this share of the samples with a value stays within; -inf if there is none."""
    there = excess[excess > -math.inf]
    return float(there.kthvalue(max(1, math.ceil(share * len(there)))).values) if len(there) else -math.inf


class Spread(Source):
    """A number of samples of another source, evenly spaced: its order may be by class."""

    def __init__(self, source: Source, samples: int) -> None:
        self.source, self.length = source, min(samples, source.length)

    def batches(self, indices: Sequence[Tensor], *, seed: int = 0, first: int = 0) -> Iterator[Any]:
        rows = [index * self.source.length // self.length for index in indices]
        return self.source.batches(rows, seed=seed, first=first)


def spread(feed: Feed, samples: int) -> Feed:
    """At most ``samples`` samples of a feed, evenly spaced."""
    return Feed(Spread(feed.source, samples), feed.batch_size)
