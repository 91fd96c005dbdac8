"""Which of several models is kept: one number for what an audit found, lower is better."""

import math
import sys

from samplewise.errors import ConfigurationError, finite_number

INFEASIBLE = 1e20
"""The selection loss of a model that misses its target is at least this, of one that meets it at most half of it."""


def selection_loss(feasible: bool, objective: float, violated: int, mean_violation: float) -> float:
    """One number that orders models as :func:`samplewise.fit` selects them, the lower the better.

    Feasible ones come first, by their objective, which is the number itself, so that tolerances such as a scheduler's
    ``threshold`` mean what they mean for a loss. Those that are not come after all of them, by the violated samples,
    1e20 for each, and where these are as many by the mean violation, which adds less than one sample more.
    """
    if feasible:
        return min(objective, INFEASIBLE / 2)
    # By its logarithm: a share of the mean violation itself would be lost beside the samples' number.
    size = math.log2(min(max(mean_violation, sys.float_info.min), sys.float_info.max))
    return INFEASIBLE * (violated + (size + 1023) / 2048)


def check_target(target: float | None) -> float | None:
    """The share of samples that must meet all constraints for a model to be feasible, or what is wrong with it."""
    if target is not None and not 0 <= finite_number(target, "target") <= 1:
        raise ConfigurationError(f"expected a target share in [0, 1], got {target}")
    return target
