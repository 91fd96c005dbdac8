"""A promised share of unseen samples: training steers tau and margins towards it, and a calibration set proves it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from samplewise.audits.audit import Audit, ConstraintAudit
from samplewise.audits.binomial import check, check_share, to_aim_at, violation_rate_upper
from samplewise.audits.monitor import Monitor
from samplewise.constraints import Constraint
from samplewise.errors import ConfigurationError, MeasureError
from samplewise.methods import Method
from samplewise.printed import Printed, Printout, percentage
from samplewise.samples import Data, Feed, Source

GAIN = 20.0  # over the number of audits: how much of what is short tau makes up for in one, as a logarithm
FASTER, SLOWER, FASTEST = 1.3, 0.5, 2.0  # the gain while the same side is missed, once the other one is, and at most
RISE, FALL = 1.0, 1.5  # by how much the logarithm of tau moves at most in an audit
LEAD = 3.0  # audits ahead for which it is foreseen how far the share is from its bounds, before tau moves
SPAN = 10_000.0  # how far from its first value tau may go, unless the schedule says
BAND = 0.1  # training samples under pressure beyond those that may violate, as a fraction: fewer are a poor estimate
LEARNED = 0.5  # the part of a run after which all that is asked for is due
SETTLED = 0.6  # the part of a run after which the model that just has the share is kept
CAREFUL = 0.65  # and after which the last ones have so much more than it that the proof will most likely succeed
CANDIDATES = 16  # steps from the last model back to that one


@dataclass(frozen=True)
class Promise:
    """A demand on a run: at least ``share`` of all unseen samples meet every constraint.

    During training ``tune_on`` is audited after each epoch, and steers tau and margin of each constraint
    (:func:`steer_`): first to just the share, and from three fifths of the epochs on to as much more as the proof most
    likely needs. The models at three fifths and at the end, and some between them by interpolation of their weights,
    are the candidates. At the end ``prove_on``, the calibration set, tests them, from the last one backwards, until one
    is not proved to have the share. This is fixed-sequence testing: whichever of those before it is taken, the promise
    is wrong with probability ``1 - confidence`` at most. Of these the one with the best objective on ``tune_on`` is
    taken.

    Args:
        share: of fresh samples that must meet all constraints, between 0 and 1.
        tune_on: samples like future ones, not among the training data; they steer and select. A few hundred are
            enough: give any others to ``prove_on``.
        prove_on: the calibration set: other such samples, neither among the training data nor in ``tune_on``. If
            neither is given, both are drawn from the training data.
        confidence: of the proof.
        groups: name of a measure with the number of each sample's group: the share must hold in each group, and all
            are proved at once (Bonferroni).
        sources: name of a measure with the number of each sample's source, such as the patient: only the first sample
            of each source counts in the proof, since samples of one source are not independent.
        rival: whether to compare it with what is often enough: the model of the objective alone, trained by the same
            recipe (twice the time), plus the least constant that proves the share (conformal calibration). Only where
            the model returns one number for each sample, and adding to it moves every measure one way.
        weights: fixed weights to compare it with too; each is trained by the same recipe.
    """

    share: float
    tune_on: Data | None = field(default=None, repr=False)
    prove_on: Data | None = field(default=None, repr=False)
    confidence: float = 0.95
    groups: str | None = None
    sources: str | None = None
    rival: bool = True
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check(self.confidence, 1)
        check_share(self.share)

    @property
    def held_out(self) -> tuple[Data, Data]:
        """``tune_on`` and ``prove_on``, once both are set."""
        assert self.tune_on is not None
        assert self.prove_on is not None
        return self.tune_on, self.prove_on


@dataclass(frozen=True)
class Rival:
    """What a promise is compared with, proved on the same samples, each by itself: choose before you look."""

    name: str
    kept: bool
    """Whether it is proved to have the share."""
    share_at_least: float
    objective: float
    """Mean on ``prove_on``."""
    shift: float
    """To add to the output."""
    weights: dict[str, Tensor] = field(repr=False)
    """For ``model.load_state_dict``."""

    def __str__(self) -> str:
        by = f" by {self.shift:.4g}" if self.shift else ""
        return f"{self.name}{by}: {'proved too' if self.kept else 'not proved'}, mean objective {self.objective:.4g}"

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("name", "kept", "share_at_least", "objective", "shift")}


@dataclass(frozen=True)
class Promised(Printed):
    """The outcome of a :class:`Promise`."""

    share: float
    """That was asked for."""
    kept: bool
    """Whether it is proved: ``share_at_least >= share``."""
    share_at_least: float
    """Of fresh samples that meet all constraints, with the promise's confidence. Where several models were tested, and
    the promise is kept, what was asked for: no more is proved of the one that was chosen."""
    margins: dict[str, float]
    """By which each constraint was tightened in the training of this model, in its measure's units."""
    taus: dict[str, float]
    """What a violation was weighted with then."""
    audit: Audit
    """Of the model on ``prove_on``; its bounds are corrected for all models that were tested."""
    achievable_bounds: dict[str, Constraint] | None
    """Where it is not kept, the tightest bounds that could be promised together for this share; None if that takes more
    samples."""
    reason: str = ""
    """Where it is not kept, why, and what would help; empty if it is."""
    groups: dict[float, float] = field(default_factory=dict)
    """``share_at_least`` of each group, where it was promised by groups."""
    rivals: tuple[Rival, ...] = ()
    """The objective's own model plus a constant, and the best fixed weight, where they were asked for."""
    no_rival: str = ""
    """Why the first of them is missing."""

    @property
    def comparison(self) -> str:
        """What the promise bought against them, in a sentence."""
        missing = f"Not compared with the objective alone plus a constant: {self.no_rival}." if self.no_rival else ""
        if not self.rivals:
            return missing
        others = "; ".join(map(str, self.rivals))
        return f"Mean objective {self.audit.objective:.4g} on prove_on; {others}. {missing}".rstrip()

    @property
    def message(self) -> str:
        """The outcome in one or two sentences."""
        found = self.audit
        where = " in every group" if self.groups else ""
        shown = (
            f"at least {percentage(self.share_at_least, math.floor, 2)} of fresh samples meet every constraint{where}"
        )
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
        return Printout(self.message, rows, [each for each in (self.reason, self.comparison) if each])

    def monitor(self, alarm: float = 0.05) -> Monitor:
        """A monitor of the samples after deployment: it raises an alarm when too few of them meet all constraints.

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
        plain = {
            name: getattr(self, name)
            for name in ("share", "kept", "share_at_least", "margins", "taus", "reason", "groups")
        }
        found = {"confidence": self.audit.confidence, "audit": self.audit.to_dict()}
        found |= {"comparison": self.comparison, "rivals": [each.to_dict() for each in self.rivals]}
        return {**plain, "message": self.message, "achievable_bounds": achievable, **found}


class Count(NamedTuple):
    """Of a group of samples, one of each source."""

    violated: int
    samples: int

    def upper(self, confidence: float, groups: int) -> float:
        """Bound on the violation rate of fresh samples; those of all groups hold at once."""
        return violation_rate_upper(self.violated, self.samples, confidence, groups)


def counts(promise: Promise, *audits: Audit) -> dict[float | None, Count]:
    """What audits of different samples show of each group; of all together, under None, where there are no groups."""
    violated, groups = [], []
    for found in audits:
        excess = torch.stack([part.excess for part in found.values()])
        counted = (excess > -math.inf).any(0)
        if promise.sources is not None:
            first = torch.zeros_like(counted)
            first[np.unique(_labels(found, promise.sources).numpy(), return_index=True)[1]] = True
            counted &= first
        violated.append((excess > 0).any(0)[counted])
        group = torch.zeros(len(counted)) if promise.groups is None else _labels(found, promise.groups)
        groups.append(group[counted])
    bad, group = torch.cat(violated), torch.cat(groups)
    if promise.groups is None:
        return {None: Count(int(bad.sum()), len(bad))}
    return {float(each): Count(int(bad[group == each].sum()), int((group == each).sum())) for each in group.unique()}


def _labels(found: Audit, name: str) -> Tensor:
    if name not in found.measures:
        raise MeasureError(
            f"the promise goes by the measure {name!r}, which was not given (given: {', '.join(found.measures)})"
        )
    return found.measures[name].flatten()


def outcome(promise: Promise, found: Audit, method: Method, why: str = "") -> Promised:
    """What ``found``, of the chosen model on ``prove_on``, says; ``why`` it would not be enough.

    If several models were tested, a proved one is proved to have the share, and no more than that.
    """
    uppers = _uppers(promise, found)
    kept, achievable = 1 - max(uppers.values()) >= promise.share, None
    at_least = {
        group: promise.share if kept and found.n_comparisons > 1 else 1 - upper for group, upper in uppers.items()
    }
    if not kept and promise.groups is None and promise.sources is None:  # for which it could not be said
        # A sample may miss any of the bounds: each takes its part of those that may. Of many there may be too few.
        with contextlib.suppress(ConfigurationError):
            achievable = replace(found, n_comparisons=1).suggest(1 - (1 - promise.share) / max(1, len(found)))
    return Promised(
        promise.share,
        kept,
        min(at_least.values()),
        method.margins,
        method.trained_taus,
        found,
        achievable,
        "" if kept else why,
        {group: each for group, each in at_least.items() if group is not None},
    )


def has_share(promise: Promise, *audits: Audit) -> bool:
    """Whether audits of different samples together prove the share, as if only one model had been tested."""
    return share_shown(promise, *audits) >= promise.share


def share_shown(promise: Promise, *audits: Audit) -> float:
    """The share, of the worst group, that audits of different samples together prove, as if of one model only."""
    return 1 - max(_uppers(promise, *audits).values())


def _uppers(promise: Promise, *audits: Audit) -> dict[float | None, float]:
    seen = counts(promise, *audits)
    return {group: each.upper(promise.confidence, len(seen)) for group, each in seen.items()}


def highest_aim(promise: Promise, tune: Audit, proving: int) -> float:
    """The share that ``tune_on`` must show so that ``proving`` other samples most likely prove the promise.

    Of the smallest group, where there are some, of which ``prove_on`` is thought to have as large a part.
    """
    seen = counts(replace(promise, sources=None), tune)
    least, total = min(each.samples for each in seen.values()), sum(each.samples for each in seen.values())
    confidence = 1 - (1 - promise.confidence) / len(seen)
    return to_aim_at(promise.share, least, max(1, proving * least // max(1, total)), confidence)


def aims(promise: Promise, highest: float, progress: float) -> tuple[float, float]:
    """The share that is due on ``tune_on`` now, and the one to aim at, at this part of the run, from 0 to 1.

    An untrained network violates most bounds, and learns to meet many by itself. So the due share rises to the required
    one, fast at first. If all of it were due at once, tau would grow before the objective is learned.
    """
    careful = min(1.0, max(0.0, (progress - SETTLED) / (CAREFUL - SETTLED)))
    aim = promise.share + careful * (highest - promise.share)
    return aim * (1 - max(0.0, 1 - progress / LEARNED) ** 3), aim


def steer_(method: Method, promise: Promise, tune: Audit, train: Audit, *, due: float, aim: float, audits: int) -> None:
    """Move tau and margin of each constraint towards the ``aim`` on unseen samples, at the least cost in objective.

    tau follows the ratio of the violated samples of ``tune`` to those that may be: it rises while fewer than are
    ``due`` meet all constraints, and falls while more than the ``aim`` do. Its logarithm moves by a part of that of the
    ratio, more while the same side is missed again and again, less after it turned; and less the sooner the share will
    be there by itself, as its last change foretells: weights lag behind tau (Adam moves them at about one speed,
    whatever tau is), and the share would swing. So first taus that are far apart lead to the same share, without a
    model of the training. Of several constraints those with the most violators rise the most; of several groups the one
    that is furthest from the aim counts. ``audits`` is how many there will be.

    The margin puts a fraction of the training samples under pressure, those that may violate and ``BAND`` more: it
    reaches down to that quantile of the excess on ``train``. Where that is inside of the bound, a linear penalty is,
    but for constants, the mean excess of the worst: their conditional value at risk (Rockafellar and Uryasev, 2000).
    With the violated ones alone each of them would be fitted, not what makes a sample likely to be violated. The
    fraction is larger where unseen samples violate more often than training ones, which ever higher taus would only fit
    more closely: at most all of them, as under a fixed weight.
    """
    seen = list(counts(replace(promise, sources=None), tune).values())
    behind, beyond = (max(_short(each, share) for each in seen) for share in (due, aim))
    short = behind if behind > 0 else min(0.0, beyond)
    edge = _edge(promise, tune, aim)
    moves = _moves(edge, float(method.coefficients.edge)) if edge * short > 0 else 1.0
    noise = 1 / math.sqrt((1 - aim) * min(each.samples for each in seen) + 0.5)
    most = max((part.violated for part in tune.values()), default=0)
    slowest = min(1.0, GAIN / audits)
    taus, margins, gains = {}, {}, {}
    for (name, part), rule in zip(tune.items(), method.coefficients.rules(), strict=True):
        gain = method.coefficients.gain(name)
        if gain * short < 0:
            gain *= SLOWER
        elif gain > 0 and short > noise:
            gain *= FASTER
        gains[name] = math.copysign(min(FASTEST, max(slowest, abs(gain))), short)
        moved = abs(gains[name]) * short * moves * (part.violated / most if short > 0 and most else 1.0)
        tau = method.taus[name] * math.exp(min(RISE, max(-FALL, moved)))
        taus[name] = min(max(tau, rule.first / SPAN), rule.highest(SPAN))
        pressed = (1 - promise.share + BAND) * max(1.0, _overfit(part, train[name]))
        inner = _reach(train[name].excess, max(0.0, 1 - pressed))
        margins[name] = min(max(0.0, -inner), part.constraint.reach) if math.isfinite(inner) else method.margins[name]
    method.coefficients.steer_(taus, margins, gains, edge)


def _overfit(tune: ConstraintAudit, train: ConstraintAudit) -> float:
    """The root of how many times more often unseen samples violate than training ones."""
    rates = [(part.violated + 0.5) / (part.samples + 0.5) for part in (tune, train)]
    return math.sqrt(rates[0] / rates[1])


def _edge(promise: Promise, tune: Audit, aim: float) -> float:
    """What the samples of the worst group stay within, but for those that may violate: their excess over all bounds."""
    excess = torch.stack([part.excess / part.constraint.scale for part in tune.values()]).amax(0)
    if promise.groups is None:
        return _reach(excess, aim)
    groups = _labels(tune, promise.groups)
    return max(_reach(excess[groups == each], aim) for each in groups.unique())


def _moves(edge: float, before: float) -> float:
    """How much of a step tau makes, from 0 to 1, where ``edge`` comes nearer to zero since the last audit.

    In tenths: of two numbers that are nearly the same the difference has few digits, and processes that add in another
    order would steer otherwise.
    """
    if not (math.isfinite(edge) and math.isfinite(before)):
        return 1.0
    return round(min(1.0, max(0.0, 1 + LEAD * (edge - before) / edge)), 1)


def _short(seen: Count, aim: float) -> float:
    """The logarithm of the violated samples over the allowed ones."""
    return math.log((seen.violated + 0.5) / ((1 - aim) * seen.samples + 0.5))


def why_not(method: Method, promise: Promise, tune: Audit, aim: float) -> str:
    """Why a promise may not be kept, after a run, and what would help."""
    seen = counts(replace(promise, sources=None), tune).values()
    least = min(1 - each.violated / max(1, each.samples) for each in seen)
    if least >= aim:
        shown = percentage(least, digits=2)
        return f"tune_on showed {shown}, enough for a proof in most cases: more samples in both sets would help."
    rules = zip(method.taus.items(), method.coefficients.rules(), strict=True)
    if all(tau >= rule.highest(SPAN) for (_, tau), rule in rules):
        return "tau was at its largest: these bounds may be out of reach for this model."
    return "tau was still rising when the run ended: about twice the epochs would help."


def _reach(excess: Tensor, share: float) -> float:
    """The quantile of the excess at this share, of the samples that have a value; -inf if none has."""
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
