"""Exact binomial bounds for unseen samples from a count on some, corrected for several comparisons."""

import math
from bisect import bisect_right

from samplewise.errors import ConfigurationError, finite_number


def violation_rate_upper(violated: int, samples: int, confidence: float, n_comparisons: float = 1) -> float:
    """Exact (Clopper-Pearson) one-sided upper bound on the probability that a fresh sample is violated.

    It holds with probability ``confidence``, such as 0.95, where ``violated`` of ``samples`` drawn in the same way, and
    not used in training, are violated.

    ``n_comparisons`` is the number of bounds that must hold simultaneously, such as one for each constraint, times the
    number of models that were compared on these samples: each bound takes an equal part of the risk (Bonferroni). With
    ``math.inf``, for samples that were trained on, the bound is 1: they say nothing about others.

    Example:
        >>> round(violation_rate_upper(0, 100, 0.95), 4)  # the "rule of three": about 3 / n
        0.0295
        >>> round(violation_rate_upper(0, 100, 0.95, n_comparisons=50), 4)
        0.0667
    """
    from scipy.special import betainccinv  # here, so that importing the library stays quick

    risk = (1 - confidence) / n_comparisons
    return 1.0 if violated >= samples else float(betainccinv(violated + 1, samples - violated, risk))


def comparisons_in_series(audits: int) -> int:
    """The number of comparisons to correct the last of ``audits`` audits for, where more of them may follow.

    1/2 + 1/6 + 1/12 + ... = 1: all bounds hold together, whenever the series ends and whichever model is chosen.
    """
    return audits * (audits + 1)


def must_hold(samples: int, share: float, confidence: float, n_comparisons: float = 1) -> int:
    """How many of ``samples`` must be within a bound to prove it for ``share`` of fresh ones with that confidence.

    It is the least number that leaves a :func:`violation_rate_upper` of at most ``1 - share``: the smallest k with
    ``P(Binomial(samples, share) <= k - 1) >= confidence``.

    Example:
        >>> must_hold(300, 0.95, 0.95)
        292
    """
    check(confidence, n_comparisons)
    check_share(share, "; what these samples meet is in quantiles and worst")

    def upper(violated: int) -> float:
        return violation_rate_upper(violated, samples, confidence, n_comparisons)

    found = bisect_right(range(samples), (1 - share) * (1 + 1e-9), key=upper)
    if found:
        return samples - (found - 1)
    if n_comparisons == math.inf:
        raise ConfigurationError("trained on, these samples prove nothing about others: audit samples that were not")
    needed = math.ceil(math.log((1 - confidence) / n_comparisons) / math.log(share) - 1e-9)
    at_once = f", {n_comparisons:g} bounds at once" if n_comparisons > 1 else ""
    raise ConfigurationError(
        f"{samples:,} samples are too few to promise a bound for {100 * share:.10g}% of all others "
        f"({100 * confidence:.10g}% confidence{at_once}): it takes {needed:,}, or a share of at most "
        f"{math.floor(1e4 * (1 - upper(0))) / 1e4:.2%}"
    )


def to_aim_at(share: float, tune: int, prove: int, confidence: float) -> float:
    """The share to aim at on ``tune`` samples, so that a proof of ``share`` on ``prove`` others most likely succeeds.

    This is the share that those others need by :func:`must_hold`, plus twice the standard deviation of the difference
    between the two shares, but at most three quarters of the way from there to 1. A model that meets it, and was not
    selected on these samples, is proved in about 97 of 100 cases; one that was, in fewer.

    Example:
        >>> round(to_aim_at(0.9, 1000, 1000, 0.95), 3)
        0.941
    """
    needed = must_hold(prove, share, confidence) / prove
    room = 2 * math.sqrt(needed * (1 - needed) * (1 / tune + 1 / prove))
    return needed + min(room, 0.75 * (1 - needed))


def check(confidence: float, n_comparisons: float) -> None:
    """Refuse a confidence or a number of comparisons that is out of range."""
    if not 0 < confidence < 1:
        raise ConfigurationError(f"expected a confidence between 0 and 1, such as 0.95, got {confidence}")
    if not n_comparisons >= 1:
        raise ConfigurationError(
            f"expected n_comparisons >= 1, the models compared on these samples, got {n_comparisons}"
        )


def check_share(share: float, instead: str = "") -> None:
    """Refuse a share of unseen samples that cannot be promised; for a share of 1 the message ends with ``instead``."""
    if 0 < finite_number(share, "share") < 1:
        return
    found = f"expected a share between 0 and 1, such as 0.95, got {share}"
    if share == 1:
        raise ConfigurationError(f"{found}: no number of samples promises a bound for all others{instead}")
    raise ConfigurationError(f"{found}" + (f": did you mean {share / 100:g}?" if 2 <= share < 100 else ""))
