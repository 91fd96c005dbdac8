"""How large tau must become, and how many rounds that takes, until the worst violation is small."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from samplewise.schedules import LARGEST

STAGES = (0.1, 0.01)
"""What the worst violation is to fall to next, as fractions of the first one seen: so the question has no units."""
FEWEST, MOST = 8, 200  # rounds; a trend is read from the later half of the last of them
FAR = 10_000  # rounds beyond which nothing is said
Kind = Literal["linear", "quadratic", "lagrangian"]


@dataclass(frozen=True)
class Forecast:
    """The tau and rounds until the worst violation of a constraint is at most ``worst``; None if unknown."""

    worst: float
    tau: float | None
    """The weight that it takes; None for an augmented Lagrangian, which needs none in particular."""
    rounds: int | None
    """Further rounds until then at the recent growth of tau, 0 if it is reached; None also where tau does not grow."""

    def __str__(self) -> str:
        asked = f"a worst violation of {self.worst:.2g}"
        if self.rounds == 0:
            return f"{asked} is reached"
        takes = "" if self.rounds is None else f"about {self.rounds:,} more round{'s' if self.rounds > 1 else ''}"
        if self.tau is not None:
            return f"{asked} needs tau of about {self.tau:.2g}, {takes or 'which tau does not grow to'}"
        return f"{asked} needs {takes}" if takes else f"{asked} is not in sight"


class _Law(NamedTuple):
    """Scales on which the violation ``g`` falls along a line."""

    across: Callable[[float], float]
    back: Callable[[float], float]
    up: Callable[[float], float]
    relative: Callable[[float], float]
    """The relative change of ``g`` for a small step up, in which laws are compared."""


SETTLING = _Law(float, float, lambda g: -1 / g, lambda g: g)
STRAIGHT = _Law(float, float, float, lambda g: 1 / g)
DECAY = _Law(float, float, math.log, lambda g: 1.0)
POWER = _Law(math.log, math.exp, math.log, lambda g: 1.0)


def forecast(
    rounds: Iterable[tuple[float, float]], kind: Kind, *, margin: float = 0.0, worst: float | None = None
) -> Forecast | None:
    """Extend the trend of the rounds so far to where the worst violation of a constraint is ``worst``.

    With a quadratic penalty the multipliers ``tau g`` settle: ``1 / g`` is a line over tau, exactly so with a quadratic
    objective and one set of active samples. With an augmented Lagrangian ``log g`` is a line over the rounds. With the
    linear penalty a sample's multiplier is tau until ``tau = lambda``, where it is met: ``g`` is a line over tau in the
    same case; networks rather follow a power of tau, so that is taken unless the line fits far better. A trend is
    extended no farther than it has been seen, unless the multipliers have settled.

    Args:
        rounds: tau and the worst violation of each round so far, in the measure's units.
        kind: the penalty, or the augmented Lagrangian.
        margin: of the constraint.
        worst: the violation asked about; a tenth of the first one that was seen, then a hundredth, if not given.

    Returns:
        The forecast, or None if there is nothing to forecast: too few rounds, or no violation.
    """
    seen = list(rounds)
    if len(seen) < FEWEST:
        return None
    (first, _), (tau, now) = seen[0], seen[-1]
    if worst is None:
        start = next((violation for _, violation in seen if violation > 0), 0.0)
        worst = start * next((stage for stage in STAGES if now > stage * start), STAGES[-1])
    if not worst:
        return None
    if now <= worst:
        return Forecast(worst, tau, 0)
    # As training sees them, with the margin; what was met holds no trend.
    late = seen[-min(MOST, len(seen)) // 2 :]
    taus, gs = [each for each, g in late if g > 0], [g + margin for _, g in late if g > 0]
    now, target = now + margin, worst + margin
    if kind == "lagrangian":
        _, ahead = _trend(DECAY, range(1 - len(gs), 1), gs, target)
        return Forecast(worst, None, max(1, math.ceil(ahead)) if ahead <= len(seen) else None)
    settles = kind == "quadratic"
    misfit, needed = _trend(SETTLING if settles else POWER, taus, gs, target)
    if not settles:
        least, straight = _trend(STRAIGHT, taus, gs, target)
        needed = straight if least < misfit / 2 else needed
    # The multipliers have settled where tau g is half its limit or more.
    settled = settles and 2 * tau * now * (1 / target - 1 / now) >= needed - tau
    if needed > (LARGEST if settled else tau * tau / first):
        return Forecast(worst, None, None)
    needed = max(tau, needed)
    return Forecast(worst, needed, _rounds_to(needed, [each for each, _ in late]))


def _trend(law: _Law, at: Sequence[float], gs: Sequence[float], target: float) -> tuple[float, float]:
    """How far the violations lie off the line of a law, and where it comes down to ``target``.

    The line is Theil's: its slope is the median of those from each point of the first half to its fellow in the second.
    Both are infinite if the violations do not clearly fall: at most a quarter of those slopes may rise.
    """
    x, y = [law.across(each) for each in at], [law.up(g) for g in gs]
    half = len(x) // 2
    pairs = zip(x, x[-half:], y, y[-half:], strict=False)
    slopes = sorted((late - early) / (right - left) for left, right, early, late in pairs if right != left)
    if not slopes or slopes[len(slopes) * 3 // 4] >= 0:
        return math.inf, math.inf
    slope = statistics.median(slopes)
    start = statistics.median(height - slope * place for place, height in zip(x, y, strict=True))
    off = [abs(h - start - slope * place) * law.relative(g) for place, h, g in zip(x, y, gs, strict=True)]
    reached = (law.up(target) - start) / slope
    return statistics.mean(off), law.back(reached) if reached < law.across(LARGEST) else math.inf


def _rounds_to(needed: float, taus: Sequence[float]) -> int | None:
    """Rounds until tau is ``needed`` if it goes on to grow as it did in the last rounds, ``taus``."""
    if needed <= taus[-1]:
        return 1
    growth = math.log(taus[-1] / taus[0]) / (len(taus) - 1)
    # A little less than exactly whole: rounding adds no round.
    ahead = math.ceil(math.log(needed / taus[-1]) / growth - 1e-9) if growth > 0 else FAR + 1
    return max(1, ahead) if ahead <= FAR else None
