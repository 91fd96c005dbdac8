"""The general problem: min f(x) subject to g(x) <= 0, h(x) = 0 and bounds, by the paper's outer loop."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from samplewise.errors import ConfigurationError, NotFiniteError, finite_number, whole_number
from samplewise.minimization.loop import LagrangianRounds, Loop, MinimizeRound, MinimizeStatus, PenaltyRounds, Rounds
from samplewise.minimization.program import Function, Kkt, Multipliers, Program
from samplewise.problem import ByContent

__all__ = ["LagrangianRounds", "MinimizeResult", "MinimizeRound", "MinimizeStatus", "PenaltyRounds", "minimize"]
__all__ += ["Kkt", "Multipliers"]

UNREADABLE = (TypeError, ValueError, RuntimeError, OverflowError)  # what torch raises for what is no tensor


@dataclass(frozen=True, eq=False)
class MinimizeResult(ByContent):
    """What :func:`minimize` returns."""

    x: Tensor
    fun: float
    multipliers: Multipliers
    kkt: Kkt
    status: MinimizeStatus
    history: tuple[MinimizeRound, ...]
    evaluations: int
    """How often all functions were evaluated together."""

    @property
    def success(self) -> bool:
        """Whether the method converged."""
        return self.status is MinimizeStatus.CONVERGED


def minimize(
    f: Function,
    x0: Tensor | Sequence[float],
    *,
    constraints: Sequence[Function] | Function = (),
    equalities: Sequence[Function] | Function = (),
    bounds: tuple[Any, Any] | None = None,
    method: Rounds = PenaltyRounds(),  # noqa: B008  # it is frozen
    tolerance: float = 1e-8,
    max_inner: int = 2000,
    newton: bool = True,
    scale: bool = True,
) -> MinimizeResult:
    """Minimise ``f(x)`` subject to ``g_i(x) <= 0``, ``h_i(x) = 0`` and bounds (problem (2), section III).

    Round k minimises ``P_tau`` (Definition 4; an equality counts with ``h^2``) from where round k-1 ended, until the
    projected gradient is below eps_k; then tau grows and eps falls. Once a round is nearly feasible, Newton's method on
    the KKT conditions starts from its end; ``docs/minimize.md`` says how and why. All in float64.

    Args:
        f: the objective, a scalar function of a tensor of the shape of ``x0``.
        x0: where to start, of floating point type; it is moved into the bounds first.
        constraints: functions of any shape, satisfied where every entry is ``<= 0``.
        equalities: functions of any shape, satisfied where every entry is 0.
        bounds: ``(lower, upper)``, each a number, values of the shape of ``x0``, or None.
        method: :class:`PenaltyRounds` or :class:`LagrangianRounds`, which hold tau_k, eps_k and how many rounds.
        tolerance: on each KKT residual; they are free of the functions' units (:class:`Kkt`).
        max_inner: how many iterations at most in one round.
        newton: whether to try Newton's method on the KKT conditions; without it feasibility comes from tau alone.
        scale: whether to divide each function by the largest entry of its gradient near x0, so that its unit does not
            matter; tau, epsilon and the violations in the history refer to the scaled functions, the multipliers to
            the functions as given.

    Example:
        >>> import torch
        >>> result = minimize(lambda x: x.sum(), torch.zeros(2), constraints=[lambda x: x.square().sum() - 2])
        >>> result.x.numpy().round(6), round(result.fun, 6), result.status.name
        (array([-1., -1.]), -2.0, 'CONVERGED')
        >>> round(result.multipliers.constraints[0].item(), 9)
        0.5
    """
    if not isinstance(method, Rounds):
        raise ConfigurationError(f"expected method=PenaltyRounds() or method=LagrangianRounds(), got {method!r}")
    finite_number(tolerance, "tolerance", above=0)
    whole_number(max_inner, "max_inner", 1)
    start = _start(x0)
    box = _bounds(bounds, start)
    g, h = _functions(constraints, "constraints"), _functions(equalities, "equalities")
    program = Program(f, g, h, start.clamp(*box), box, scale)
    end, status = Loop(program, method, tolerance, max_inner, newton).run()
    return MinimizeResult(
        x=end.at.leaf.detach().view(start.shape),
        fun=end.at.fun,
        multipliers=program.own_units(end.at, end.estimate),
        kkt=program.kkt(end.at, end.estimate),
        status=status,
        history=end.history,
        evaluations=program.evaluations,
    )


def _start(x0: Any) -> Tensor:
    """``x0`` as a float64 tensor, or an error that says what is wrong with it."""
    try:
        point = torch.as_tensor(x0).detach()
    except UNREADABLE as error:
        raise ConfigurationError(f"expected x0 as a tensor of floating point type, got {type(x0).__name__}") from error
    if not point.is_floating_point():
        raise ConfigurationError(
            f"expected x0 of floating point type, got {point.dtype}: write 1.0 instead of 1, or x0.double()"
        )
    if not point.numel():
        raise ConfigurationError(f"expected x0 with at least one entry, got the shape {tuple(point.shape)}")
    if not bool(torch.isfinite(point).all()):
        raise NotFiniteError("x0 is not finite: start from a point where every entry is a number")
    return point.double()


def _functions(given: Sequence[Function] | Function, kind: str) -> dict[str, Function]:
    given = [given] if callable(given) else given
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigurationError(f"expected {kind} as a function of a tensor or a list of them, got {given!r}")
    return {f"{kind}[{i}]": function for i, function in enumerate(given)}


def _bounds(bounds: tuple[Any, Any] | None, start: Tensor) -> list[Tensor]:
    """The lower and the upper bounds, of the shape of ``start``, infinite where there is none."""
    # Only a tuple: a list may be scipy's list of pairs, which for two variables would be read the other way round.
    if bounds is not None and (not isinstance(bounds, tuple) or len(bounds) != 2):
        raise ConfigurationError(
            "expected bounds as a tuple (lower, upper), each a number, values of the shape of x0, or None; for a list "
            "of pairs write bounds=([l1, l2, ...], [u1, u2, ...])"
        )
    sides = []
    for side, absent, name in zip(bounds or (None, None), (-torch.inf, torch.inf), ("lower", "upper"), strict=True):
        try:
            values = torch.as_tensor(absent if side is None else side, dtype=start.dtype, device=start.device)
            sides.append(values.expand(start.shape))
        except UNREADABLE as error:
            raise ConfigurationError(
                f"expected the {name} bound as a number or of the shape {tuple(start.shape)} of x0, got {side!r}"
            ) from error
    crossed = torch.nonzero(~(sides[0] <= sides[1]).flatten())  # NaN is neither below nor above
    if len(crossed):
        lower, upper = (side.flatten()[crossed[0]].item() for side in sides)
        raise ConfigurationError(f"expected lower <= upper, got {lower} and {upper} for entry {crossed[0].item()} of x")
    return sides
