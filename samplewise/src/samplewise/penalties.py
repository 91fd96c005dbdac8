"""What a violation costs. Each penalty is zero, with zero slope, wherever ``g <= 0``."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from samplewise.errors import finite_number


class Penalty(ABC):
    """A function of ``g`` that is zero where the constraint holds and grows with the violation."""

    kink: ClassVar[bool] = False
    """Whether the slope jumps at ``g = 0``, so that every multiplier between 0 and tau is right there."""

    @abstractmethod
    def value(self, g: Tensor) -> Tensor:
        """The penalty of each entry of ``g``, of the same shape."""

    @abstractmethod
    def slope(self, g: Tensor) -> Tensor:
        """The derivative of :meth:`value` at each entry of ``g``, of the same shape."""

    def __call__(self, g: Tensor) -> Tensor:
        """The penalty of each sample: ``(B,)``, or ``(B, m)`` summed over m, to ``(B,)``."""
        value = self.value(g)
        return value if value.ndim == 1 else value.sum(1)

    def multiplier(self, g: Tensor, tau: float | Tensor) -> Tensor:
        """The multiplier estimate ``tau * slope(g)``, of the shape of ``g`` (proof of Theorem 3)."""
        return tau * self.slope(g)


@dataclass(frozen=True)
class Linear(Penalty):
    """``max(0, g)``: what the paper's experiments use (section V).

    The multiplier estimate is ``tau`` where the constraint is violated and zero elsewhere. At ``g = 0`` every value in
    ``[0, tau]`` is a multiplier; a certificate picks the best of them.

    Example:
        >>> import torch
        >>> Linear()(torch.tensor([-1.0, 0.0, 2.0]))
        tensor([0., 0., 2.])
    """

    kink: ClassVar[bool] = True

    def value(self, g: Tensor) -> Tensor:
        return torch.relu(g)  # not clamp: its gradient at exactly zero is one, relu's is zero

    def slope(self, g: Tensor) -> Tensor:
        return (g > 0).to(g.dtype)


@dataclass(frozen=True)
class Quadratic(Penalty):
    """``max(0, g)^2 / 2``: the penalty of the paper's Definition 4, for which its theorems hold."""

    def value(self, g: Tensor) -> Tensor:
        return 0.5 * torch.relu(g).square()

    def slope(self, g: Tensor) -> Tensor:
        return torch.relu(g)


@dataclass(frozen=True)
class Huber(Penalty):
    """``g^2 / (2 delta)`` up to ``g = delta``, ``g - delta / 2`` beyond: smooth at the bound, no steeper than linear.

    The paper found the quadratic penalty less stable than the linear one (section V): its slope grows with the
    violation. This one keeps the quadratic's continuous slope at the bound and the linear's limit far from it.

    Example:
        >>> import torch
        >>> Huber(1.0)(torch.tensor([-1.0, 0.5, 2.0]))
        tensor([0.0000, 0.1250, 1.5000])
    """

    delta: float

    def __post_init__(self) -> None:
        finite_number(self.delta, "delta", above=0, advice="; Linear() is the limit delta -> 0")

    def value(self, g: Tensor) -> Tensor:
        violation = torch.relu(g)
        near = violation.clamp_max(self.delta)
        return near * (violation - 0.5 * near) / self.delta

    def slope(self, g: Tensor) -> Tensor:
        return torch.relu(g).clamp_max(self.delta) / self.delta


@dataclass(frozen=True)
class Logarithmic(Penalty):
    """``width * log(1 + g / width)``: linear at the bound, with a slope that falls with the violation.

    For problems where not every sample can meet the bound: the linear penalty pulls as hard on samples far beyond it,
    which hardly any weight brings back, as on those near it. ``width`` is the violation at which the slope is a half,
    in units of ``g``; about the size of the bound is a good first choice. It is not convex.

    Example:
        >>> import torch
        >>> Logarithmic(1.0)(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([0.0000, 0.0000, 0.6931])
    """

    width: float
    kink: ClassVar[bool] = True

    def __post_init__(self) -> None:
        finite_number(self.width, "width", above=0, advice="; Linear() is the limit width -> infinity")

    def value(self, g: Tensor) -> Tensor:
        return self.width * torch.log1p(torch.relu(g) / self.width)

    def slope(self, g: Tensor) -> Tensor:
        return (g > 0) / (1 + torch.relu(g) / self.width)
