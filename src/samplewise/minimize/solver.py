"""``minimize``: the general problem min f(x) s.t. g(x) <= 0, h(x) = 0, by the paper's outer loop."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from samplewise.errors import ConfigurationError, did_you_mean, finite_number
from samplewise.minimize.functions import Array, Function, Functions, starting_point
from samplewise.minimize.kkt import Bounds, residuals, shaped, slopes
from samplewise.minimize.loop import Loop
from samplewise.minimize.result import MinimizeResult
from samplewise.schedules import FeasibilityDriven, Geometric, Schedule

__all__ = ["minimize"]

METHODS = ("sequential-penalty", "augmented-lagrangian")
# Beyond the maximum, rounding in g times tau is larger than any multiplier.
PENALTY = Geometric(10.0, growth=10.0, maximum=1e10)
LAGRANGIAN = FeasibilityDriven(10.0, growth=10.0, maximum=1e10, factor=0.5)


def minimize(
    f: Function,
    x0: Tensor | Sequence[float],
    *,
    constraints: Sequence[Function] | Function = (),
    equalities: Sequence[Function] | Function = (),
    bounds: tuple[Any, Any] | None = None,
    method: Literal["sequential-penalty", "augmented-lagrangian"] = "sequential-penalty",
    schedule: Schedule | None = None,
    tolerance: float = 1e-8,
    epsilon0: float = 1e-2,
    decay: float = 0.1,
    max_rounds: int = 40,
    max_inner: int = 2000,
    newton: bool = True,
    scale: bool = True,
) -> MinimizeResult:
    """Minimise ``f(x)`` subject to ``g_i(x) <= 0``, ``h_i(x) = 0`` and bounds (problem (2), section III).

    Round k minimises ``P_tau`` (Definition 4; an equality counts with ``h^2``) from where round k-1 ended, until the
    projected gradient is below eps_k; then tau grows and eps falls, as Theorem 3 asks. ``"augmented-lagrangian"``
    shifts the constraints by multipliers (Birgin and Martinez, 2014, algorithm 4.1) and lets tau grow only when the
    violation does not fall.

    The inner solver is scipy's L-BFGS-B: it keeps bounds exactly, which a penalty would not, its line search satisfies
    the strong Wolfe conditions, and a memory longer than the number of active constraints copes with the curvature of
    size tau that each of them adds. A pure penalty is infeasible by lambda / tau at every finite tau, so once a round
    is nearly feasible its end point and its multipliers ``lambda_i = tau max(0, g_i)`` start Newton's method on the
    KKT conditions. What that finds is taken only if it is near and passes the tolerance, otherwise the rounds go on.
    A KKT point where the Lagrangian curves downward along the constraints is left in that direction.

    Everything is computed in float64. Each function is divided by the largest entry of its gradient at x0 where that
    is above one; tau and epsilon refer to these scaled functions, everything in the result to the functions as given.

    Args:
        f: the objective, a scalar function of a tensor of the shape of ``x0``.
        x0: where to start, of floating point type; it is moved into the bounds first.
        constraints: functions of any shape, satisfied where every entry is ``<= 0``.
        equalities: functions of any shape, satisfied where every entry is 0.
        bounds: ``(lower, upper)``, each a number, values of the shape of ``x0``, or None.
        method: ``"sequential-penalty"`` or ``"augmented-lagrangian"``.
        schedule: tau_k; if not given, ``Geometric(10, growth=10)`` for the penalty method and ``FeasibilityDriven(10,
            growth=10, factor=0.5)`` for the other, both up to 1e10.
        tolerance: on each KKT residual (:meth:`Kkt.within`).
        epsilon0: eps_0, the accuracy of the first round.
        decay: eps_k = epsilon0 * decay^k, never below a tenth of the tolerance.
        max_rounds: how many outer iterations at most.
        max_inner: how many L-BFGS-B iterations at most in one round.
        newton: whether to try Newton's method; without it feasibility comes from tau alone.
        scale: whether to scale the functions as above.

    Example:
        >>> import torch
        >>> result = minimize(lambda x: x.sum(), torch.zeros(2), constraints=[lambda x: x.square().sum() - 2])
        >>> result.x.numpy().round(6), round(result.fun, 6), result.status.name
        (array([-1., -1.]), -2.0, 'CONVERGED')
        >>> round(result.multipliers.constraints[0].item(), 9)
        0.5
    """
    if method not in METHODS:
        raise ConfigurationError(
            f"expected method as one of {', '.join(METHODS)}, got {method!r}.{did_you_mean(str(method), METHODS)}"
        )
    for name, value in (("tolerance", tolerance), ("epsilon0", epsilon0)):
        if not finite_number(value, name) > 0:
            raise ConfigurationError(f"expected {name} > 0, got {value}")
    if not 0 < finite_number(decay, "decay") < 1:
        raise ConfigurationError(f"expected 0 < decay < 1, so that eps falls, got {decay}")
    for name, limit in (("max_rounds", max_rounds), ("max_inner", max_inner)):
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ConfigurationError(f"expected {name} as a whole number >= 1, got {limit!r}")
    if schedule is None:
        schedule = PENALTY if method == METHODS[0] else LAGRANGIAN
    if not isinstance(schedule, Schedule):
        raise ConfigurationError(
            f"expected schedule as one such as Geometric(10.0, growth=10.0), or None, got {schedule!r}"
        )
    start = starting_point(x0)
    box = _bounds(bounds, start)
    inside = torch.from_numpy(box.project(start.flatten().cpu().numpy())).view(start.shape).to(start.device)
    functions = Functions(f, _sequence(constraints, "constraints"), _sequence(equalities, "equalities"), inside, scale)
    loop = Loop(functions, box, schedule, tolerance, max_inner, newton, keeps_multipliers=method == METHODS[1])
    x, multipliers, status = loop.run(
        inside.flatten().cpu().numpy(), [max(0.1 * tolerance, epsilon0 * decay**k) for k in range(max_rounds)]
    )
    end = slopes(functions, x, multipliers)
    return MinimizeResult(
        x=torch.from_numpy(x).view(start.shape).to(start.device),
        fun=end.f,
        multipliers=shaped(functions, box, x, multipliers, end.lagrangian),
        kkt=residuals(functions, box, x, multipliers, end),
        status=status,
        history=tuple(loop.history),
        evaluations=functions.evaluations,
    )


def _sequence(functions: Sequence[Function] | Function, name: str) -> list[Function]:
    if callable(functions):
        return [functions]
    if isinstance(functions, str) or not isinstance(functions, Iterable):
        raise ConfigurationError(f"expected {name} as a function of a tensor or a list of them, got {functions!r}")
    return list(functions)


def _bounds(bounds: tuple[Any, Any] | None, x0: Tensor) -> Bounds:
    if bounds is None:
        bounds = (None, None)
    # Only a tuple: a list may be scipy's list of pairs, which for two variables would be read the other way round.
    if not isinstance(bounds, tuple) or len(bounds) != 2:
        raise ConfigurationError(
            "expected bounds as a tuple (lower, upper), each a number, values of the shape of x0, or None; for a list "
            "of pairs write bounds=([l1, l2, ...], [u1, u2, ...])"
        )
    lower, upper = (
        _bound(side, absent, x0, name)
        for side, absent, name in zip(bounds, (-math.inf, math.inf), ("lower", "upper"), strict=True)
    )
    if (lower > upper).any():
        where = int(np.flatnonzero(lower > upper)[0])
        raise ConfigurationError(
            f"expected lower <= upper, got {lower[where]} and {upper[where]} for entry {where} of x: nothing "
            "lies between"
        )
    return Bounds(lower, upper)


def _bound(side: Any, absent: float, x0: Tensor, name: str) -> Array:
    try:
        values = torch.as_tensor(absent if side is None else side, dtype=torch.float64).expand(x0.shape)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigurationError(
            f"expected the {name} bound as a number or of the shape {tuple(x0.shape)} of x0, got {side!r}"
        ) from error
    if bool(values.isnan().any()):
        raise ConfigurationError(f"the {name} bound is NaN; use None or infinity where there is no bound")
    return values.flatten().cpu().numpy().copy()
