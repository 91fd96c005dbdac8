"""How large tau must become, and how many rounds that takes, until the worst violation is small."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from samplewise.constraints import ViolationStats
from samplewise.errors import constraint_named
from samplewise.methods import AugmentedLagrangian, Method
from samplewise.penalties import Quadratic
from samplewise.schedules import LARGEST

STAGES = (0.1, 0.01)
"""What the worst violation is to fall to next, as shares of the first one seen: so the question has no units."""
FEWEST, MOST = 8, 200  # rounds; a trend is read from the later half of the last of them
FAR = 10_000  # rounds beyond which a schedule is not followed


@dataclass(frozen=True)
class Forecast:
    """What it takes until the worst violation of a constraint is at most ``worst``; None where that cannot be said."""

    worst: float
    tau: float | None
    """The weight that it takes; None for an augmented Lagrangian, which comes there at any weight."""
    rounds: int | None
    """Further rounds until then, 0 if it is reached; at least so many where a schedule waits for a lack of progress.
    None also if the schedule never gets to ``tau``.
    """


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
    method: Method, name: str, rounds: Iterable[tuple[float, float]], *, worst: float | None = None
) -> Forecast | None:
    """Extend the trend of the rounds so far to where the worst violation of the constraint ``name`` is ``worst``.

    With a quadratic penalty the multipliers ``tau g`` settle: ``1 / g`` is a line over tau, exactly so with a quadratic
    objective and one set of active samples. With an augmented Lagrangian ``log g`` is a line over the rounds. With the
    linear penalty a sample's multiplier is tau until ``tau = lambda``, where it is met: ``g`` is a line over tau in the
    same case; networks rather follow a power of tau, so that is taken unless the line fits far better. A trend is
    extended no farther than it has been seen, unless the multipliers have settled.

    Args:
        method: as it is after these rounds.
        name: of a constraint.
        rounds: tau and the worst violation of each round so far, in the measure's units.
        worst: the violation asked about; a tenth of the first one that was seen, then a hundredth, if not given.

    Returns:
        The forecast, or None if there is nothing to forecast: too few rounds, no violation, nothing enforced, or only a
        share of the samples is asked for, so that the worst one may stay where it is.
    """
    seen = list(rounds)
    constraint = constraint_named(name, {each.name: each for each in method.constraints})
    if len(seen) < FEWEST or not method.enforces or constraint.share < 1:
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
    taus, gs = [each for each, g in late if g > 0], [g + constraint.margin for _, g in late if g > 0]
    now, target = now + constraint.margin, worst + constraint.margin
    if isinstance(method, AugmentedLagrangian):
        _, ahead = _trend(DECAY, range(1 - len(gs), 1), gs, target)
        return Forecast(worst, None, max(1, math.ceil(ahead)) if ahead <= len(seen) else None)
    settles = isinstance(getattr(method, "penalty", None), Quadratic)
    misfit, needed = _trend(SETTLING if settles else POWER, taus, gs, target)
    if not settles:
        least, straight = _trend(STRAIGHT, taus, gs, target)
        needed = straight if least < misfit / 2 else needed
    # The multipliers have settled where tau g is half its limit or more.
    settled = settles and 2 * tau * now * (1 / target - 1 / now) >= needed - tau
    if needed > (LARGEST if settled else tau * tau / first):
        return Forecast(worst, None, None)
    needed = max(tau, needed)
    return Forecast(worst, needed, _rounds_to(method, name, needed))


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


def _rounds_to(method: Method, name: str, needed: float) -> int | None:
    """Rounds until the schedule has brought tau to ``needed``, if no round makes progress."""
    i = list(method.taus).index(name)
    tau, rule, grown = method.taus[name], method.coefficients.rules()[i], int(method.coefficients.growth_count[i])
    still = ViolationStats(samples=1, violated=1, total=1.0, worst=1.0)
    for ahead in range(1, FAR + 1):
        if tau >= needed:
            return ahead
        tau = rule.following(tau, grown + ahead, still, still)
    return None


def forecast_row(method: Method, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The forecast for each constraint from the rows of a history so far, as numbers by name."""
    row: dict[str, Any] = {}
    for name in method.taus:
        tau, worst = f"tau/{name}", f"running/{name}/worst"
        # Of the epochs of one round the last has seen all of it.
        rounds = {each["round"]: (each[tau], each[worst]) for each in rows if not each["warmup"]}
        found = forecast(method, name, rounds.values())
        row |= {} if found is None else {f"forecast/{name}/{key}": value for key, value in asdict(found).items()}
    return row


def in_words(name: str, row: Mapping[str, Any]) -> str:
    """The forecast for one constraint in a row of a history as a sentence; empty if the row has none."""
    worst, tau, rounds = (row.get(f"forecast/{name}/{key}") for key in ("worst", "tau", "rounds"))
    if worst is None:
        return ""
    asked = f"{name}: a worst violation of {worst:.2g}"
    if rounds == 0:
        return f"{asked} is reached"
    takes = "" if rounds is None else "one more round" if rounds == 1 else f"some {rounds:,} rounds"
    if tau is not None:
        return f"{asked} needs tau of about {tau:.2g}, {takes or 'which the schedule does not get to'}"
    return f"{asked} needs {takes}" if takes else f"{asked} is not in sight"
