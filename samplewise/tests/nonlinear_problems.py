"""Nonlinear test problems with known optima.

``hs*`` are from Hock and Schittkowski, Test Examples for Nonlinear Programming Codes (1981), with their standard
starting points; the others have closed forms, given beside them. Inequalities are written ``g <= 0``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import optimize
from torch import Tensor

from samplewise.minimization import MinimizeResult, minimize

Function = Callable[[Tensor], Tensor]
INF = math.inf


@dataclass(frozen=True)
class NonlinearProblem:
    name: str
    f: Function
    x0: list[float]
    fun: float
    """The known optimal value."""
    g: Function | None = None
    """All inequalities, ``g <= 0``."""
    h: Function | None = None
    """All equalities."""
    lower: list[float] | float | None = None
    upper: list[float] | float | None = None
    others: tuple[float, ...] = ()
    """Values of other local minima the literature knows: a local method may end in any of them."""

    def error(self, fun: float) -> float:
        """Relative error, absolute for values below one."""
        return min(abs(fun - known) / max(1.0, abs(known)) for known in (self.fun, *self.others))

    @property
    def constraints(self) -> list[Function]:
        return [] if self.g is None else [self.g]

    @property
    def equalities(self) -> list[Function]:
        return [] if self.h is None else [self.h]

    @property
    def bounds(self) -> tuple[list[float] | float | None, list[float] | float | None]:
        return self.lower, self.upper

    def solve(self, **options: Any) -> MinimizeResult:
        own: dict[str, Any] = {"constraints": self.constraints, "equalities": self.equalities, "bounds": self.bounds}
        return minimize(self.f, self.x0, **own | options)


PROBLEMS: list[NonlinearProblem] = []


def add(*given: Any, **named: Any) -> None:
    PROBLEMS.append(NonlinearProblem(*given, **named))


def stack(*values: Tensor) -> Tensor:
    return torch.stack(values)


def rosenbrock(x: Tensor) -> Tensor:
    return 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2


add("hs1", rosenbrock, [-2.0, 1.0], 0.0, lower=[-INF, -1.5])
add("hs6", lambda x: (1 - x[0]) ** 2, [-1.2, 1.0], 0.0, h=lambda x: 10 * (x[1] - x[0] ** 2))
add(
    "hs7",
    lambda x: torch.log(1 + x[0] ** 2) - x[1],
    [2.0, 2.0],
    -math.sqrt(3),
    h=lambda x: (1 + x[0] ** 2) ** 2 + x[1] ** 2 - 4,
)
add(
    "hs9",
    lambda x: torch.sin(math.pi * x[0] / 12) * torch.cos(math.pi * x[1] / 16),
    [0.0, 0.0],
    -0.5,
    h=lambda x: 4 * x[0] - 3 * x[1],
)
add("hs10", lambda x: x[0] - x[1], [-10.0, 10.0], -1.0, g=lambda x: 3 * x[0] ** 2 - 2 * x[0] * x[1] + x[1] ** 2 - 1)
add("hs11", lambda x: (x[0] - 5) ** 2 + x[1] ** 2 - 25, [4.9, 0.1], -8.498464223, g=lambda x: x[0] ** 2 - x[1])
add(
    "hs12",
    lambda x: 0.5 * x[0] ** 2 + x[1] ** 2 - x[0] * x[1] - 7 * x[0] - 7 * x[1],
    [0.0, 0.0],
    -30.0,
    g=lambda x: 4 * x[0] ** 2 + x[1] ** 2 - 25,
)
add(
    "hs14",
    lambda x: (x[0] - 2) ** 2 + (x[1] - 1) ** 2,
    [2.0, 2.0],
    9 - 2.875 * math.sqrt(7),
    g=lambda x: 0.25 * x[0] ** 2 + x[1] ** 2 - 1,
    h=lambda x: x[0] - 2 * x[1] + 1,
)
add(
    "hs15",
    rosenbrock,
    [-2.0, 1.0],
    306.5,
    g=lambda x: stack(1 - x[0] * x[1], -x[0] - x[1] ** 2),
    upper=[0.5, INF],
    others=(360.3797672,),
)
add(
    "hs16",
    rosenbrock,
    [-2.0, 1.0],
    0.25,
    g=lambda x: stack(-x[0] - x[1] ** 2, -(x[0] ** 2) - x[1]),
    lower=[-0.5, -INF],
    upper=[0.5, 1.0],
    others=(23.14466094,),
)
add(
    "hs17",
    rosenbrock,
    [-2.0, 1.0],
    1.0,
    g=lambda x: stack(x[0] - x[1] ** 2, x[1] - x[0] ** 2),
    lower=[-0.5, -INF],
    upper=[0.5, 1.0],
)
add(
    "hs18",
    lambda x: 0.01 * x[0] ** 2 + x[1] ** 2,
    [2.0, 2.0],
    5.0,
    g=lambda x: stack(25 - x[0] * x[1], 25 - x[0] ** 2 - x[1] ** 2),
    lower=[2.0, 0.0],
    upper=50.0,
)
add(
    "hs19",
    lambda x: (x[0] - 10) ** 3 + (x[1] - 20) ** 3,
    [20.1, 5.84],
    -6961.813876,
    g=lambda x: stack(100 - (x[0] - 5) ** 2 - (x[1] - 5) ** 2, (x[1] - 5) ** 2 + (x[0] - 6) ** 2 - 82.81),
    lower=[13.0, 0.0],
    upper=100.0,
)
add(
    "hs20",
    rosenbrock,
    [-2.0, 1.0],
    81.5 - 25 * math.sqrt(3),
    g=lambda x: stack(-x[0] - x[1] ** 2, -(x[0] ** 2) - x[1], 1 - x[0] ** 2 - x[1] ** 2),
    lower=[-0.5, -INF],
    upper=[0.5, INF],
    others=(40.19872981,),
)
add(
    "hs21",
    lambda x: 0.01 * x[0] ** 2 + x[1] ** 2 - 100,
    [-1.0, -1.0],
    -99.96,
    g=lambda x: 10 + x[1] - 10 * x[0],
    lower=[2.0, -50.0],
    upper=50.0,
)
add(
    "hs22",
    lambda x: (x[0] - 2) ** 2 + (x[1] - 1) ** 2,
    [2.0, 2.0],
    1.0,
    g=lambda x: stack(x[0] + x[1] - 2, x[0] ** 2 - x[1]),
)
add(
    "hs23",
    lambda x: x.square().sum(),
    [3.0, 1.0],
    2.0,
    g=lambda x: stack(
        1 - x[0] - x[1], 1 - x[0] ** 2 - x[1] ** 2, 9 - 9 * x[0] ** 2 - x[1] ** 2, x[1] - x[0] ** 2, x[0] - x[1] ** 2
    ),
    lower=-50.0,
    upper=50.0,
)
add(
    "hs24",
    lambda x: ((x[0] - 3) ** 2 - 9) * x[1] ** 3 / (27 * math.sqrt(3)),
    [1.0, 0.5],
    -1.0,
    g=lambda x: stack(x[1] - x[0] / math.sqrt(3), -x[0] - math.sqrt(3) * x[1], x[0] + math.sqrt(3) * x[1] - 6),
    lower=0.0,
)
add(
    "hs26",
    lambda x: (x[0] - x[1]) ** 2 + (x[1] - x[2]) ** 4,
    [-2.6, 2.0, 2.0],
    0.0,
    h=lambda x: (1 + x[1] ** 2) * x[0] + x[2] ** 4 - 3,
)
add(
    "hs27",
    lambda x: 0.01 * (x[0] - 1) ** 2 + (x[1] - x[0] ** 2) ** 2,
    [2.0, 2.0, 2.0],
    0.04,
    h=lambda x: x[0] + x[2] ** 2 + 1,
)
add(
    "hs28",
    lambda x: (x[0] + x[1]) ** 2 + (x[1] + x[2]) ** 2,
    [-4.0, 1.0, 1.0],
    0.0,
    h=lambda x: x[0] + 2 * x[1] + 3 * x[2] - 1,
)
add(
    "hs29",
    lambda x: -x.prod(),
    [1.0, 1.0, 1.0],
    -16 * math.sqrt(2),
    g=lambda x: x[0] ** 2 + 2 * x[1] ** 2 + 4 * x[2] ** 2 - 48,
)
add(
    "hs30",
    lambda x: x.square().sum(),
    [1.0, 1.0, 1.0],
    1.0,
    g=lambda x: 1 - x[0] ** 2 - x[1] ** 2,
    lower=[1.0, -10.0, -10.0],
    upper=10.0,
)
add(
    "hs31",
    lambda x: 9 * x[0] ** 2 + x[1] ** 2 + 9 * x[2] ** 2,
    [1.0, 1.0, 1.0],
    6.0,
    g=lambda x: 1 - x[0] * x[1],
    lower=[-10.0, 1.0, -10.0],
    upper=[10.0, 10.0, 1.0],
)
add(
    "hs32",
    lambda x: (x[0] + 3 * x[1] + x[2]) ** 2 + 4 * (x[0] - x[1]) ** 2,
    [0.1, 0.7, 0.2],
    1.0,
    g=lambda x: 3 + x[0] ** 3 - 6 * x[1] - 4 * x[2],
    h=lambda x: 1 - x.sum(),
    lower=0.0,
)
add(
    "hs34",
    lambda x: -x[0],
    [0.0, 1.05, 2.9],
    -math.log(math.log(10)),
    g=lambda x: stack(torch.exp(x[0]) - x[1], torch.exp(x[1]) - x[2]),
    lower=0.0,
    upper=[100.0, 100.0, 10.0],
)
add(
    "hs35",
    lambda x: (
        9
        - 8 * x[0]
        - 6 * x[1]
        - 4 * x[2]
        + 2 * x[0] ** 2
        + 2 * x[1] ** 2
        + x[2] ** 2
        + 2 * x[0] * x[1]
        + 2 * x[0] * x[2]
    ),
    [0.5, 0.5, 0.5],
    1 / 9,
    g=lambda x: x[0] + x[1] + 2 * x[2] - 3,
    lower=0.0,
)
add(
    "hs36",
    lambda x: -x.prod(),
    [10.0, 10.0, 10.0],
    -3300.0,
    g=lambda x: x[0] + 2 * x[1] + 2 * x[2] - 72,
    lower=0.0,
    upper=[20.0, 11.0, 42.0],
)
add(
    "hs37",
    lambda x: -x.prod(),
    [10.0, 10.0, 10.0],
    -3456.0,
    g=lambda x: stack(x[0] + 2 * x[1] + 2 * x[2] - 72, -x[0] - 2 * x[1] - 2 * x[2]),
    lower=0.0,
    upper=42.0,
)
add(
    "hs38",
    lambda x: (
        100 * (x[1] - x[0] ** 2) ** 2
        + (1 - x[0]) ** 2
        + 90 * (x[3] - x[2] ** 2) ** 2
        + (1 - x[2]) ** 2
        + 10.1 * ((x[1] - 1) ** 2 + (x[3] - 1) ** 2)
        + 19.8 * (x[1] - 1) * (x[3] - 1)
    ),
    [-3.0, -1.0, -3.0, -1.0],
    0.0,
    lower=-10.0,
    upper=10.0,
)
add(
    "hs39",
    lambda x: -x[0],
    [2.0, 2.0, 2.0, 2.0],
    -1.0,
    h=lambda x: stack(x[1] - x[0] ** 3 - x[2] ** 2, x[0] ** 2 - x[1] - x[3] ** 2),
)
add(
    "hs40",
    lambda x: -x.prod(),
    [0.8, 0.8, 0.8, 0.8],
    -0.25,
    h=lambda x: stack(x[0] ** 3 + x[1] ** 2 - 1, x[0] ** 2 * x[3] - x[2], x[3] ** 2 - x[1]),
)
add(
    "hs41",
    lambda x: 2 - x[0] * x[1] * x[2],
    [2.0, 2.0, 2.0, 2.0],
    52 / 27,
    h=lambda x: x[0] + 2 * x[1] + 2 * x[2] - x[3],
    lower=0.0,
    upper=[1.0, 1.0, 1.0, 2.0],
)
add(
    "hs42",
    lambda x: (x - torch.arange(1.0, 5.0)).square().sum(),
    [1.0, 1.0, 1.0, 1.0],
    28 - 10 * math.sqrt(2),
    h=lambda x: stack(x[0] - 2, x[2] ** 2 + x[3] ** 2 - 2),
)
add(
    "hs43",
    lambda x: x[0] ** 2 + x[1] ** 2 + 2 * x[2] ** 2 + x[3] ** 2 - 5 * x[0] - 5 * x[1] - 21 * x[2] + 7 * x[3],
    [0.0, 0.0, 0.0, 0.0],
    -44.0,
    g=lambda x: stack(
        x.square().sum() + x[0] - x[1] + x[2] - x[3] - 8,
        x[0] ** 2 + 2 * x[1] ** 2 + x[2] ** 2 + 2 * x[3] ** 2 - x[0] - x[3] - 10,
        2 * x[0] ** 2 + x[1] ** 2 + x[2] ** 2 + 2 * x[0] - x[1] - x[3] - 5,
    ),
)
add("hs45", lambda x: 2 - x.prod() / 120, [2.0, 2.0, 2.0, 2.0, 2.0], 1.0, lower=0.0, upper=[1.0, 2.0, 3.0, 4.0, 5.0])
add(
    "hs46",
    lambda x: (x[0] - x[1]) ** 2 + (x[2] - 1) ** 2 + (x[3] - 1) ** 4 + (x[4] - 1) ** 6,
    [math.sqrt(2) / 2, 1.75, 0.5, 2.0, 2.0],
    0.0,
    h=lambda x: stack(x[0] ** 2 * x[3] + torch.sin(x[3] - x[4]) - 1, x[1] + x[2] ** 4 * x[3] ** 2 - 2),
)
add(
    "hs48",
    lambda x: (x[0] - 1) ** 2 + (x[1] - x[2]) ** 2 + (x[3] - x[4]) ** 2,
    [3.0, 5.0, -3.0, 2.0, -2.0],
    0.0,
    h=lambda x: stack(x.sum() - 5, x[2] - 2 * (x[3] + x[4]) + 3),
)
add(
    "hs51",
    lambda x: (x[0] - x[1]) ** 2 + (x[1] + x[2] - 2) ** 2 + (x[3] - 1) ** 2 + (x[4] - 1) ** 2,
    [2.5, 0.5, 2.0, -1.0, 0.5],
    0.0,
    h=lambda x: stack(x[0] + 3 * x[1] - 4, x[2] + x[3] - 2 * x[4], x[1] - x[4]),
)
add(
    "hs52",
    lambda x: (4 * x[0] - x[1]) ** 2 + (x[1] + x[2] - 2) ** 2 + (x[3] - 1) ** 2 + (x[4] - 1) ** 2,
    [2.0, 2.0, 2.0, 2.0, 2.0],
    1859 / 349,
    h=lambda x: stack(x[0] + 3 * x[1], x[2] + x[3] - 2 * x[4], x[1] - x[4]),
)
add(
    "hs53",
    lambda x: (x[0] - x[1]) ** 2 + (x[1] + x[2] - 2) ** 2 + (x[3] - 1) ** 2 + (x[4] - 1) ** 2,
    [2.0, 2.0, 2.0, 2.0, 2.0],
    176 / 43,
    h=lambda x: stack(x[0] + 3 * x[1], x[2] + x[3] - 2 * x[4], x[1] - x[4]),
    lower=-10.0,
    upper=10.0,
)
add(
    "hs56",
    lambda x: -x[0] * x[1] * x[2],
    [1.0, 1.0, 1.0] + [math.asin(math.sqrt(1 / 4.2))] * 3 + [math.asin(math.sqrt(5 / 7.2))],
    -3.456,
    h=lambda x: torch.cat(
        [x[:3] - 4.2 * torch.sin(x[3:6]) ** 2, (x[0] + 2 * x[1] + 2 * x[2] - 7.2 * torch.sin(x[6]) ** 2).view(1)]
    ),
)
add(
    "hs60",
    lambda x: (x[0] - 1) ** 2 + (x[0] - x[1]) ** 2 + (x[1] - x[2]) ** 4,
    [2.0, 2.0, 2.0],
    0.03256820025,
    h=lambda x: x[0] * (1 + x[1] ** 2) + x[2] ** 4 - 4 - 3 * math.sqrt(2),
    lower=-10.0,
    upper=10.0,
)
add(
    "hs61",
    lambda x: 4 * x[0] ** 2 + 2 * x[1] ** 2 + 2 * x[2] ** 2 - 33 * x[0] + 16 * x[1] - 24 * x[2],
    [0.0, 0.0, 0.0],
    -143.6461422,
    h=lambda x: stack(3 * x[0] - 2 * x[1] ** 2 - 7, 4 * x[0] - x[2] ** 2 - 11),
)
add(
    "hs63",
    lambda x: 1000 - x[0] ** 2 - 2 * x[1] ** 2 - x[2] ** 2 - x[0] * x[1] - x[0] * x[2],
    [2.0, 2.0, 2.0],
    961.7151721,
    h=lambda x: stack(8 * x[0] + 14 * x[1] + 7 * x[2] - 56, x.square().sum() - 25),
    lower=0.0,
)
add(
    "hs64",
    lambda x: 5 * x[0] + 50000 / x[0] + 20 * x[1] + 72000 / x[1] + 10 * x[2] + 144000 / x[2],
    [1.0, 1.0, 1.0],
    6299.842428,
    g=lambda x: 4 / x[0] + 32 / x[1] + 120 / x[2] - 1,
    lower=1e-5,
)
add(
    "hs65",
    lambda x: (x[0] - x[1]) ** 2 + (x[0] + x[1] - 10) ** 2 / 9 + (x[2] - 5) ** 2,
    [-5.0, 5.0, 0.0],
    0.9535288567,
    g=lambda x: x.square().sum() - 48,
    lower=[-4.5, -4.5, -5.0],
    upper=[4.5, 4.5, 5.0],
)
add(
    "hs66",
    lambda x: 0.2 * x[2] - 0.8 * x[0],
    [0.0, 1.05, 2.9],
    0.5181632741,
    g=lambda x: stack(torch.exp(x[0]) - x[1], torch.exp(x[1]) - x[2]),
    lower=0.0,
    upper=[100.0, 100.0, 10.0],
)
add(
    "hs71",
    lambda x: x[0] * x[3] * (x[0] + x[1] + x[2]) + x[2],
    [1.0, 5.0, 5.0, 1.0],
    17.0140173,
    g=lambda x: 25 - x.prod(),
    h=lambda x: x.square().sum() - 40,
    lower=1.0,
    upper=5.0,
)
add(
    "hs72",
    lambda x: 1 + x.sum(),
    [1.0, 1.0, 1.0, 1.0],
    727.6793564,
    g=lambda x: stack(
        4 / x[0] + 2.25 / x[1] + 1 / x[2] + 0.25 / x[3] - 0.0401,
        0.16 / x[0] + 0.36 / x[1] + 0.64 / x[2] + 0.64 / x[3] - 0.010085,
    ),
    lower=0.001,
    upper=[4e5, 3e5, 2e5, 1e5],
)
add(
    "hs73",
    lambda x: 24.55 * x[0] + 26.75 * x[1] + 39 * x[2] + 40.5 * x[3],
    [1.0, 1.0, 1.0, 1.0],
    29.89437816,
    g=lambda x: stack(
        5 - 2.3 * x[0] - 5.6 * x[1] - 11.1 * x[2] - 1.3 * x[3],
        21
        + 1.645 * torch.sqrt(0.28 * x[0] ** 2 + 0.19 * x[1] ** 2 + 20.5 * x[2] ** 2 + 0.62 * x[3] ** 2)
        - (12 * x[0] + 11.9 * x[1] + 41.8 * x[2] + 52.1 * x[3]),
    ),
    h=lambda x: x.sum() - 1,
    lower=0.0,
)
add(
    "hs76",
    lambda x: (
        x[0] ** 2
        + 0.5 * x[1] ** 2
        + x[2] ** 2
        + 0.5 * x[3] ** 2
        - x[0] * x[2]
        + x[2] * x[3]
        - x[0]
        - 3 * x[1]
        + x[2]
        - x[3]
    ),
    [0.5, 0.5, 0.5, 0.5],
    -4.681818181,
    g=lambda x: stack(x[0] + 2 * x[1] + x[2] + x[3] - 5, 3 * x[0] + x[1] + 2 * x[2] - x[3] - 4, 1.5 - x[1] - 4 * x[2]),
    lower=0.0,
)
add(
    "hs77",
    lambda x: (x[0] - 1) ** 2 + (x[0] - x[1]) ** 2 + (x[2] - 1) ** 2 + (x[3] - 1) ** 4 + (x[4] - 1) ** 6,
    [2.0, 2.0, 2.0, 2.0, 2.0],
    0.24150513,
    h=lambda x: stack(
        x[0] ** 2 * x[3] + torch.sin(x[3] - x[4]) - 2 * math.sqrt(2), x[1] + x[2] ** 4 * x[3] ** 2 - 8 - math.sqrt(2)
    ),
)


def _hs78(x: Tensor) -> Tensor:
    return stack(x.square().sum() - 10, x[1] * x[2] - 5 * x[3] * x[4], x[0] ** 3 + x[1] ** 3 + 1)


add("hs78", lambda x: x.prod(), [-2.0, 1.5, 2.0, -1.0, -1.0], -2.91970041, h=_hs78)
add(
    "hs79",
    lambda x: (x[0] - 1) ** 2 + (x[0] - x[1]) ** 2 + (x[1] - x[2]) ** 2 + (x[2] - x[3]) ** 4 + (x[3] - x[4]) ** 4,
    [2.0, 2.0, 2.0, 2.0, 2.0],
    0.0787768209,
    h=lambda x: stack(
        x[0] + x[1] ** 2 + x[2] ** 3 - 2 - 3 * math.sqrt(2),
        x[1] - x[2] ** 2 + x[3] + 2 - 2 * math.sqrt(2),
        x[0] * x[4] - 2,
    ),
)
add(
    "hs80",
    lambda x: torch.exp(x.prod()),
    [-2.0, 2.0, 2.0, -1.0, -1.0],
    0.0539498478,
    h=_hs78,
    lower=[-2.3, -2.3, -3.2, -3.2, -3.2],
    upper=[2.3, 2.3, 3.2, 3.2, 3.2],
)

_HS86_LINEAR = torch.tensor([-15.0, -27.0, -36.0, -18.0, -12.0], dtype=torch.float64)
_HS86_QUADRATIC = torch.tensor(
    [
        [30.0, -20.0, -10.0, 32.0, -10.0],
        [-20.0, 39.0, -6.0, -31.0, 32.0],
        [-10.0, -6.0, 10.0, -6.0, -10.0],
        [32.0, -31.0, -6.0, 39.0, -20.0],
        [-10.0, 32.0, -10.0, -20.0, 30.0],
    ],
    dtype=torch.float64,
)
_HS86_CUBIC = torch.tensor([4.0, 8.0, 10.0, 6.0, 2.0], dtype=torch.float64)
_HS86_ROWS = torch.tensor(
    [
        [-16.0, 2.0, 0.0, 1.0, 0.0],
        [0.0, -2.0, 0.0, 4.0, 2.0],
        [-3.5, 0.0, 2.0, 0.0, 0.0],
        [0.0, -2.0, 0.0, -4.0, -1.0],
        [0.0, -9.0, -2.0, 1.0, -2.8],
        [2.0, 0.0, -4.0, 0.0, 0.0],
        [-1.0, -1.0, -1.0, -1.0, -1.0],
        [-1.0, -2.0, -3.0, -2.0, -1.0],
        [1.0, 2.0, 3.0, 4.0, 5.0],
        [1.0, 1.0, 1.0, 1.0, 1.0],
    ],
    dtype=torch.float64,
)
_HS86_RIGHT = torch.tensor([-40.0, -2.0, -0.25, -4.0, -4.0, -1.0, -40.0, -60.0, 5.0, 1.0], dtype=torch.float64)
add(
    "hs86",
    lambda x: _HS86_LINEAR @ x + x @ _HS86_QUADRATIC @ x + _HS86_CUBIC @ x**3,
    [0.0, 0.0, 0.0, 0.0, 1.0],
    -32.34867897,
    g=lambda x: _HS86_RIGHT - _HS86_ROWS @ x,
    lower=0.0,
)
add(
    "hs100",
    lambda x: (
        (x[0] - 10) ** 2
        + 5 * (x[1] - 12) ** 2
        + x[2] ** 4
        + 3 * (x[3] - 11) ** 2
        + 10 * x[4] ** 6
        + 7 * x[5] ** 2
        + x[6] ** 4
        - 4 * x[5] * x[6]
        - 10 * x[5]
        - 8 * x[6]
    ),
    [1.0, 2.0, 0.0, 4.0, 0.0, 1.0, 1.0],
    680.6300573,
    g=lambda x: stack(
        2 * x[0] ** 2 + 3 * x[1] ** 4 + x[2] + 4 * x[3] ** 2 + 5 * x[4] - 127,
        7 * x[0] + 3 * x[1] + 10 * x[2] ** 2 + x[3] - x[4] - 282,
        23 * x[0] + x[1] ** 2 + 6 * x[5] ** 2 - 8 * x[6] - 196,
        4 * x[0] ** 2 + x[1] ** 2 - 3 * x[0] * x[1] + 2 * x[2] ** 2 + 5 * x[5] - 11 * x[6],
    ),
)


def _hs104(x: Tensor) -> Tensor:
    return 0.4 * x[0] ** 0.67 * x[6] ** -0.67 + 0.4 * x[1] ** 0.67 * x[7] ** -0.67 + 10 - x[0] - x[1]


add(
    "hs104",
    _hs104,
    [6.0, 3.0, 0.4, 0.2, 6.0, 6.0, 1.0, 0.5],
    3.951163439,
    g=lambda x: stack(
        0.0588 * x[4] * x[6] + 0.1 * x[0] - 1,
        0.0588 * x[5] * x[7] + 0.1 * x[0] + 0.1 * x[1] - 1,
        4 * x[2] / x[4] + 2 * x[2] ** -0.71 / x[4] + 0.0588 * x[2] ** -1.3 * x[6] - 1,
        4 * x[3] / x[5] + 2 * x[3] ** -0.71 / x[5] + 0.0588 * x[3] ** -1.3 * x[7] - 1,
        1 - _hs104(x),
        _hs104(x) - 4.2,
    ),
    lower=0.1,
    upper=10.0,
)
add(
    "hs106",
    lambda x: x[0] + x[1] + x[2],
    [5000.0, 5000.0, 5000.0, 200.0, 350.0, 150.0, 225.0, 425.0],
    7049.24802,
    g=lambda x: stack(
        0.0025 * (x[3] + x[5]) - 1,
        0.0025 * (x[4] + x[6] - x[3]) - 1,
        0.01 * (x[7] - x[4]) - 1,
        833.33252 * x[3] + 100 * x[0] - 83333.333 - x[0] * x[5],
        1250 * x[4] + x[1] * x[3] - 1250 * x[3] - x[1] * x[6],
        1250000 + x[2] * x[4] - 2500 * x[4] - x[2] * x[7],
    ),
    lower=[100.0, 1000.0, 1000.0] + [10.0] * 5,
    upper=[10000.0] * 3 + [1000.0] * 5,
)
add(
    "hs110",
    lambda x: (torch.log(x - 2) ** 2 + torch.log(10 - x) ** 2).sum() - x.prod() ** 0.2,
    [9.0] * 10,
    -45.77846971,
    lower=2.001,
    upper=9.999,
)
_HS112 = torch.tensor(
    [-6.089, -17.164, -34.054, -5.914, -24.721, -14.986, -24.100, -10.708, -26.662, -22.179], dtype=torch.float64
)
add(
    "hs112",
    lambda x: (x * (_HS112 + torch.log(x / x.sum()))).sum(),
    [0.1] * 10,
    -47.76109026,
    h=lambda x: stack(
        x[0] + 2 * x[1] + 2 * x[2] + x[5] + x[9] - 2,
        x[3] + 2 * x[4] + x[5] + x[6] - 1,
        x[2] + x[6] + x[7] + 2 * x[8] + x[9] - 1,
    ),
    lower=1e-6,
)
add(
    "hs113",
    lambda x: (
        x[0] ** 2
        + x[1] ** 2
        + x[0] * x[1]
        - 14 * x[0]
        - 16 * x[1]
        + (x[2] - 10) ** 2
        + 4 * (x[3] - 5) ** 2
        + (x[4] - 3) ** 2
        + 2 * (x[5] - 1) ** 2
        + 5 * x[6] ** 2
        + 7 * (x[7] - 11) ** 2
        + 2 * (x[8] - 10) ** 2
        + (x[9] - 7) ** 2
        + 45
    ),
    [2.0, 3.0, 5.0, 5.0, 1.0, 2.0, 7.0, 3.0, 6.0, 10.0],
    24.3062091,
    g=lambda x: stack(
        4 * x[0] + 5 * x[1] - 3 * x[6] + 9 * x[7] - 105,
        10 * x[0] - 8 * x[1] - 17 * x[6] + 2 * x[7],
        -8 * x[0] + 2 * x[1] + 5 * x[8] - 2 * x[9] - 12,
        3 * (x[0] - 2) ** 2 + 4 * (x[1] - 3) ** 2 + 2 * x[2] ** 2 - 7 * x[3] - 120,
        5 * x[0] ** 2 + 8 * x[1] + (x[2] - 6) ** 2 - 2 * x[3] - 40,
        0.5 * (x[0] - 8) ** 2 + 2 * (x[1] - 4) ** 2 + 3 * x[4] ** 2 - x[5] - 30,
        x[0] ** 2 + 2 * (x[1] - 2) ** 2 - 2 * x[0] * x[1] + 14 * x[4] - 6 * x[5],
        -3 * x[0] + 6 * x[1] + 12 * (x[8] - 8) ** 2 - 7 * x[9],
    ),
)


def _hs118(x: Tensor) -> Tensor:
    y = x.view(5, 3)
    steps = y[1:] - y[:-1] + 7
    demand = torch.tensor([60.0, 50.0, 70.0, 85.0, 100.0], dtype=x.dtype)
    most = torch.tensor([13.0, 14.0, 13.0], dtype=x.dtype)
    return torch.cat([-steps.flatten(), (steps - most).flatten(), demand - y.sum(1)])


add(
    "hs118",
    lambda x: (
        x.view(5, 3) @ x.new_tensor([2.3, 1.7, 2.2]) + x.view(5, 3) ** 2 @ x.new_tensor([1e-4, 1e-4, 1.5e-4])
    ).sum(),
    [20.0, 55.0, 15.0] + [20.0, 60.0, 20.0] * 4,
    664.8204500,
    g=_hs118,
    lower=[8.0, 43.0, 3.0] + [0.0] * 12,
    upper=[21.0, 57.0, 16.0] + [90.0, 120.0, 60.0] * 4,
)


def _tens_of_variables() -> None:
    """Problems of 30 to 60 variables with closed forms."""
    draw = np.random.default_rng(0)
    slope = torch.from_numpy(draw.normal(size=40))
    # A linear function over a ball: the centre less the radius times the unit gradient.
    add("ball", lambda x: slope @ x, [0.5] * 40, -3.0 * float(slope.norm()), g=lambda x: x.square().sum() - 9)
    # The smallest eigenvalue, started from another eigenvector, which is a saddle of the problem.
    matrix = draw.normal(size=(30, 30))
    values, vectors = np.linalg.eigh(matrix + matrix.T)
    symmetric = torch.from_numpy(matrix + matrix.T)
    add(
        "eigenvalue",
        lambda x: x @ symmetric @ x,
        vectors[:, 10].tolist(),
        float(values[0]),
        h=lambda x: x.square().sum() - 1,
    )
    # Projection onto the simplex, by the sorting rule.
    target = draw.normal(size=50)
    ordered = np.sort(target)[::-1]
    shift = (np.cumsum(ordered) - 1) / np.arange(1, 51)
    nearest = np.maximum(target - shift[np.flatnonzero(ordered > shift)[-1]], 0.0)
    wanted = torch.from_numpy(target)
    add(
        "simplex",
        lambda x: 0.5 * (x - wanted).square().sum(),
        [0.02] * 50,
        0.5 * float(np.square(nearest - target).sum()),
        h=lambda x: x.sum() - 1,
        lower=0.0,
    )
    # The distribution of largest entropy with a given mean: Gibbs, whose temperature is one scalar equation.
    levels = np.linspace(0.0, 1.0, 60)

    def gibbs(beta: float) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        weight = np.exp(-beta * levels)
        return np.asarray(weight / weight.sum())

    beta = float(optimize.brentq(lambda b: float(gibbs(b) @ levels) - 0.3, -50, 50, xtol=1e-14))
    energy = torch.from_numpy(levels)
    add(
        "entropy",
        lambda x: (x * torch.log(x)).sum(),
        [1 / 60] * 60,
        float((gibbs(beta) * np.log(gibbs(beta))).sum()),
        h=lambda x: stack(x.sum() - 1, energy @ x - 0.3),
        lower=1e-9,
    )
    # A curved valley in 30 dimensions, cut by a plane and a ball that both hold at its bottom.
    add(
        "valley",
        lambda x: (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum(),
        [0.0] * 30,
        0.0,
        g=lambda x: x.square().sum() - 30,
        h=lambda x: x.sum() - 30,
    )


def _degenerate() -> None:
    """Starts and solutions where the usual regularity fails."""
    # At the start the gradients of the objective and of the constraint both vanish.
    add("maximum start", lambda x: -x.square().sum(), [0.0, 0.0], -1.0, g=lambda x: x[0] ** 2 + 2 * x[1] ** 2 - 1)
    # At the start the gradient of the equality vanishes.
    add("flat equality", lambda x: (x[0] - 2) ** 2, [0.0], 1.0, h=lambda x: x[0] ** 2 - 1)
    # A constraint twice, and one that is the sum of two others: the multipliers are not unique.
    add(
        "repeated constraints",
        lambda x: (x[0] - 2) ** 2 + (x[1] - 2) ** 2,
        [0.0, 0.0],
        2.0,
        g=lambda x: stack(x[0] - 1, x[1] - 1, x[0] + x[1] - 2, x[0] - 1),
    )


def quadratic_program(units: Tensor) -> NonlinearProblem:
    """A convex one with dense matrices whose solution is chosen first, with each variable in a unit of its own."""
    n, m = len(units), 20
    draw = np.random.default_rng(0)
    root, rows = draw.normal(size=(n, n)), draw.normal(size=(m, n))
    solution, active = draw.normal(size=n), np.arange(m) < m // 2
    multipliers, slack = active * draw.random(m), ~active * draw.random(m)
    matrix, side = root @ root.T / n + np.eye(n), rows @ solution + slack
    slope = -matrix @ solution - rows.T @ multipliers
    a, b, c, d = (torch.from_numpy(array) for array in (matrix, slope, rows, side))
    return NonlinearProblem(
        "units of variables",
        lambda x: 0.5 * (units * x) @ a @ (units * x) + b @ (units * x),
        [0.0] * n,
        float(0.5 * solution @ matrix @ solution + slope @ solution),
        g=lambda x: c @ (units * x) - d,
    )


def linear_program(n: int, m: int) -> tuple[NonlinearProblem, "np.ndarray[tuple[int, int], np.dtype[np.float64]]"]:
    """One with dense rows, also given back, whose solution, a vertex, is chosen first; m >= n / 2."""
    draw = np.random.default_rng(0)
    rows, half = draw.normal(size=(m, n)), n // 2
    solution = np.append(draw.random(half), np.zeros(n - half)) + 0.0
    multipliers = np.append(0.1 + draw.random(half), np.zeros(m - half))
    side = rows @ solution + (multipliers == 0) * draw.random(m)
    cost = -rows.T @ multipliers + (solution == 0) * (0.1 + draw.random(n))
    a, b, c = (torch.from_numpy(array) for array in (rows, side, cost))
    problem = NonlinearProblem(
        "linear program", lambda x: c @ x, [0.0] * n, float(cost @ solution), g=lambda x: a @ x - b, lower=0.0
    )
    return problem, rows


CUSP = NonlinearProblem(
    "cusp",  # of Kuhn and Tucker: at its optimum (1, 0) there are no multipliers
    lambda x: -x[0],
    [-2.0, 4.0],
    -1.0,
    g=lambda x: stack(x[1] - (1 - x[0]) ** 3, -x[1]),
)

_tens_of_variables()
_degenerate()
PROBLEMS += [quadratic_program(torch.logspace(-2, 2, 50, dtype=torch.float64)), linear_program(60, 40)[0]]
