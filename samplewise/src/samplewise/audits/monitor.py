"""Whether a promised share still holds after deployment: a test by betting that may be read after every batch."""

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samplewise.audits.audit import Audit
from samplewise.audits.binomial import check_share
from samplewise.constraints import Constraint, check_constraints
from samplewise.errors import ConfigurationError, MeasureError, finite_number
from samplewise.printed import Printed, Printout, percentage
from samplewise.problem import parse
from samplewise.storage.disk import write_json
from samplewise.storage.records import decoding, from_plain, read_json

SHIFTS = tuple(2.0**power for power in range(-3, 4))
"""By how much each bet supposes the log odds of a violation to have risen; between two of them either grows at 8/9 of
the best rate or more."""
RESERVE = 50
"""Violations that the promise allows until half of the reserve is put on the bets."""
FORMAT, WHAT = "samplewise monitor 1", "a monitor's state"
Floats = NDArray[np.float64]


def reserve(share: float, samples: int) -> float:
    """The part of the first wealth that is not yet put on the bets after ``samples`` samples."""
    return 0.5 / (1 + (1 - share) * samples / RESERVE)


def first_bets(share: float) -> Floats:
    """The logarithm of the wealth on each bet before any sample, ``(7,)``."""
    return np.full(len(SHIFTS), math.log((1 - reserve(share, 0)) / len(SHIFTS)))


def play(logs: Floats, share: float, before: int, samples: int, violations: Any) -> Floats:
    """The logarithm of the wealth on each bet, ``(..., 7)``, after a batch: :class:`Monitor` says which bets.

    Args:
        logs: the same before it.
        share: of the samples that meet every constraint, by the hypothesis.
        before: samples before the batch.
        samples: in the batch.
        violations: how many of them violate a constraint, a number or ``(...)``.
    """
    rate = 1 - share
    rates = rate / (rate + share * np.exp(-np.array(SHIFTS)))
    violated = np.asarray(violations, np.float64)[..., None]
    logs = logs + violated * np.log(rates / rate) + (samples - violated) * np.log((1 - rates) / share)
    released = reserve(share, before) - reserve(share, before + samples)
    return np.logaddexp(logs, math.log(released / len(SHIFTS))) if released > 0 else logs


def log_evidence(logs: Floats, share: float, samples: int) -> Any:
    """The logarithm of the whole wealth, bets and reserve, ``(...)``."""
    return np.logaddexp(np.logaddexp.reduce(logs, axis=-1), math.log(reserve(share, samples)))


def log_wealth_above(share: Any, samples: Any, violations: Any) -> Any:
    """The logarithm of the wealth of a bettor against a share of at most ``share``, from the counts alone.

    The mixture of all bets on a larger share, by Jeffreys' prior; in closed form by the incomplete beta function.
    """
    from scipy.special import betaincc, betaln, xlog1py, xlogy  # here, so that importing the library stays quick

    met = np.asarray(samples) - violations
    prior, posterior = (0.5, 0.5), (met + 0.5, violations + 0.5)
    with np.errstate(divide="ignore"):  # far above what was seen the tail is 0, and so is the wealth
        tails = np.log(betaincc(*posterior, share)) - np.log(betaincc(*prior, share))
    return betaln(*posterior) - betaln(*prior) + tails - xlogy(met, share) - xlog1py(violations, -np.asarray(share))


@dataclass
class Monitor(Printed):
    """Tests whether a promised share still holds on the samples after deployment; :meth:`Promised.monitor` makes one.

    The hypothesis is that every sample meets all constraints with at least the probability ``share``, whatever came
    before it. A bettor against it begins with a wealth of 1, the :attr:`evidence`. Each bet pays so that the
    hypothesis loses nothing by it in expectation (Waudby-Smith and Ramdas 2024, "Estimating means of bounded random
    variables by betting"): a violation multiplies it by ``q / p``, a sample that meets all by ``(1 - q) / (1 - p)``,
    with ``p = 1 - share`` and a larger rate ``q``. While the hypothesis is true, the wealth ever reaches ``1 / risk``
    with probability ``risk`` at most (Ville's inequality), however often it is read. Then the alarm is raised, and it
    stays.

    Half of the wealth is bet from the first sample on, in equal parts, on seven rates q near and far. The rest follows
    little by little, so that a fall after many good samples is seen soon too. There is nothing to tune. The order of
    the samples within a batch does not matter.

    Args:
        share: of the samples that must meet all constraints.
        constraints: what they must meet.
        risk: probability of a false alarm, ever.
        samples: seen so far, of those that have a value of some constraint.
        violations: how many of them violate a constraint.
        alarm_after: number of samples at which the alarm was raised; None if it was not.
        log_bets: the logarithm of the wealth on each bet; a new bettor's if not given.
    """

    share: float
    constraints: tuple[Constraint, ...]
    risk: float = 0.05
    samples: int = 0
    violations: int = 0
    alarm_after: int | None = None
    log_bets: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_share(self.share)
        finite_number(self.risk, "alarm", above=0, below=1, advice=": give 0.05 for one false alarm in 20")
        self.constraints = check_constraints(self.constraints)
        self.log_bets = self.log_bets or tuple(first_bets(self.share).tolist())
        counts = 0 <= self.violations <= self.samples and 0 <= (self.alarm_after or 0) <= self.samples
        if not counts or len(self.log_bets) != len(SHIFTS):
            raise ConfigurationError(
                f"expected violations and alarm_after of at most {self.samples} samples and {len(SHIFTS)} bets, got "
                f"{self.violations}, {self.alarm_after} and {len(self.log_bets)}"
            )

    def update(self, found: Audit | Mapping[str, Any]) -> None:
        """Take in new samples, each once.

        Args:
            found: an audit of them by the same bounds, or the measures of each by name, as ``evaluate`` gives them;
                where samples have bounds of their own, these are among them.
        """
        seen = found if isinstance(found, Audit) else self._audit(found)
        if seen is None:
            return
        if set(map(_bound, seen.bounds)) != set(map(_bound, self.constraints)):
            raise ConfigurationError(
                f"expected an audit by {', '.join(map(str, self.constraints))}, as promised, got one by "
                f"{', '.join(map(str, seen.bounds)) or 'no constraint'}"
            )
        if seen.n_comparisons == math.inf:
            raise ConfigurationError("these samples were trained on, so they say nothing about others: give fresh ones")
        if not seen.counted:
            return
        logs = play(np.array(self.log_bets), self.share, self.samples, seen.counted, seen.violated)
        self.log_bets = tuple(logs.tolist())
        self.samples += seen.counted
        self.violations += seen.violated
        if self.alarm_after is None and self._log_evidence >= -math.log(self.risk):
            self.alarm_after = self.samples

    def _audit(self, measures: Mapping[str, Any]) -> Audit | None:
        """An audit made from the measures of some samples; None if there is no sample."""
        name, first = next(iter(measures.items()), ("", None)) if isinstance(measures, Mapping) else ("", measures)
        values = first[0] if isinstance(first, tuple) and first else first
        if not isinstance(values, Tensor) or not values.ndim or not name:
            raise MeasureError(
                "expected an Audit, or measures by name with a row for each sample, such as {'error': tensor of shape "
                f"(B,)}}, got {type(first).__name__}{f' as {name!r}' if name else ''}"
            )
        if not len(values):
            return None
        evaluation = parse(torch.zeros(len(values), device=values.device), measures, self.constraints)
        evaluation.check_finite(self.constraints)
        columns = {key: column.detach().cpu() for key, column in evaluation.measures.items()}
        return Audit(torch.zeros(len(values)), columns, self.constraints)

    @property
    def alarm(self) -> bool:
        """Whether the evidence has ever reached ``1 / risk``, so that the share has fallen below the promised one."""
        return self.alarm_after is not None

    @property
    def _log_evidence(self) -> float:
        return float(log_evidence(np.array(self.log_bets), self.share, self.samples))

    @property
    def evidence(self) -> float:
        """Against the promise: the bettor's wealth, an e-value; 1 at the beginning, the alarm is at ``1 / risk``."""
        return math.exp(min(self._log_evidence, math.log(sys.float_info.max)))

    @property
    def share_at_least(self) -> float:
        """Of all samples so far and such to come, as long as they come from one source, with probability 1 - risk.

        The lower end of a confidence sequence by betting: it holds at all times at once, whenever it is read.
        """
        from scipy.optimize import brentq

        met = self.samples - self.violations
        if not met:
            return 0.0

        def short(share: float) -> float:
            return float(log_wealth_above(share, self.samples, self.violations)) + math.log(self.risk)

        lowest, highest = 1e-15, met / self.samples if self.violations else 1 - 1e-12
        return float(brentq(short, lowest, highest, xtol=1e-12)) if short(lowest) > 0 else 0.0

    @property
    def message(self) -> str:
        """The state in two sentences."""
        verdict = f"Alarm after {self.alarm_after:,} samples" if self.alarm_after is not None else "No alarm"
        against = f"evidence {self.evidence:.3g} against the promised {percentage(self.share, digits=2)}"
        seen = f"{self.violations:,} of {self.samples:,} samples violated"
        at_least = percentage(self.share_at_least, math.floor, 2)
        sure = f"{100 * (1 - self.risk):.10g}% confidence at all times at once"
        return (
            f"{verdict}: {seen}, {against}, alarm at {1 / self.risk:.3g}. At least {at_least} meet every constraint "
            f"({sure})."
        )

    def printout(self) -> Printout:
        return Printout(self.message)

    def to_dict(self) -> dict[str, Any]:
        """The state as plain values for strict JSON, and what follows from it."""
        follows = ("alarm", "evidence", "share_at_least", "message")
        state = asdict(self) | {name: getattr(self, name) for name in follows}
        bounds = [{k: v for k, v in each.items() if v not in (math.inf, -math.inf)} for each in state["constraints"]]
        return {**state, "log_bets": list(self.log_bets), "constraints": bounds}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Monitor":
        """What :meth:`to_dict` gave."""
        return cls._of(stored, Path("the values"))

    @classmethod
    def _of(cls, stored: Mapping[str, Any], path: Path) -> "Monitor":
        with decoding(path, WHAT):
            if missing := {each.name for each in fields(cls)} - set(stored):
                raise ValueError(f"{', '.join(sorted(missing))} is missing")
            try:
                constraints = tuple(from_plain(Constraint, each) for each in stored["constraints"])
                return from_plain(cls, stored, constraints=constraints)
            except ConfigurationError as error:
                raise ValueError(str(error)) from error  # for decoding, which names the file

    def save(self, path: str | Path) -> None:
        """Write the state to a JSON file, whole or not at all."""
        write_json(Path(path), {"format": FORMAT, **self.to_dict()})

    @classmethod
    def load(cls, path: str | Path) -> "Monitor":
        """What :meth:`save` wrote; a damaged or foreign file is an error that says so."""
        return cls._of(read_json(Path(path), WHAT, format=FORMAT), Path(path))


def _bound(constraint: Constraint) -> tuple[str, float, float, str | None]:
    """The bound that a constraint sets for one sample; name, scale, margin and share do not change it."""
    return constraint.measure, constraint.lower, constraint.upper, constraint.reference
