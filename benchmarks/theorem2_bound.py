"""How loose the iteration bound of Theorem 2 is, on a problem whose constants are all known.

    python benchmarks/theorem2_bound.py

N samples with ``f_j = (a_j x - 2)^2 / 2`` and ``a_j x <= 1``, the rows a_j independent and of length one: each can
be moved alone, so the strong growth condition holds with a known rho although every constraint is active. It also draws
``theorem2.png`` and ``.svg``.
"""

import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from common import ROOT, begin, keep, options
from numpy.typing import NDArray

from studies.theory import iteration_bound, smoothness

SAMPLES, WIDTH, WANTED, BOUND = 8, 10, 2.0, 1.0
TAUS = (1.0, 10.0, 100.0)
EPSILONS = (0.1, 0.05, 0.02)


@dataclass(frozen=True)
class Row:
    """What one tau and eps ask for, and what was needed."""

    tau: float
    epsilon: float
    growth: float
    smoothness: float
    lemma_smoothness: float
    gap: float
    bound: int
    """T of Theorem 2 with the exact L."""
    lemma_bound: int
    """T with L by Lemma 3."""
    needed: int | None
    """The first T after which ``E||grad P||`` of the drawn output stayed below eps."""
    at_bound: float | None
    """``E||grad P||`` of the drawn output at T = bound."""


def rows_of(seed: int) -> NDArray[np.float64]:
    draw = np.random.default_rng(seed)
    rows = np.linalg.qr(draw.normal(size=(WIDTH, SAMPLES)))[0].T + 0.1 * draw.normal(size=(SAMPLES, WIDTH))
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def measured(
    a: NDArray[np.float64], tau: float, step: float, iterations: int, runs: int, seed: int
) -> NDArray[np.float64]:
    """``E||grad P(x^T)||`` for T = 1 ... iterations: the mean over the iterates before T, and over the runs."""
    draw = np.random.default_rng(seed)
    z = np.zeros((runs, WIDTH))
    norms = np.empty(iterations)
    for t in range(iterations):
        values = z @ a.T
        slopes = values - WANTED + tau * np.maximum(values - BOUND, 0.0)
        norms[t] = np.linalg.norm(slopes @ a / SAMPLES, axis=1).mean()
        j = draw.integers(SAMPLES, size=runs)
        z = z - step * slopes[np.arange(runs), j][:, None] * a[j]
    return np.asarray(np.cumsum(norms) / np.arange(1, iterations + 1))


def study(tau: float, iterations: int, runs: int, seed: int) -> tuple[list[Row], NDArray[np.float64], float]:
    a = rows_of(seed)
    values = np.linalg.svd(a, compute_uv=False)
    growth = SAMPLES / values.min() ** 2
    exact = (1 + tau) * values.max() ** 2 / SAMPLES
    lemma = smoothness(
        values.max() ** 2 / SAMPLES, slopes=np.ones(SAMPLES).tolist(), violations=0.0, constraints=0.0, tau=tau,
        samples=SAMPLES,
    )  # fmt: skip
    gap = 0.5 * WANTED**2 - 0.5 * tau / (1 + tau) * (WANTED - BOUND) ** 2
    curve = measured(a, tau, 1 / (growth * exact), iterations, runs, seed)
    rows = []
    for epsilon in EPSILONS:
        above = np.flatnonzero(curve > epsilon)
        needed = int(above[-1]) + 2 if len(above) else 1
        bound = iteration_bound(growth=growth, smoothness=exact, gap=gap, epsilon=epsilon)
        rows.append(
            Row(
                tau=tau,
                epsilon=epsilon,
                growth=growth,
                smoothness=exact,
                lemma_smoothness=lemma,
                gap=gap,
                bound=bound,
                lemma_bound=iteration_bound(growth=growth, smoothness=lemma, gap=gap, epsilon=epsilon),
                needed=needed if needed <= iterations else None,
                at_bound=float(curve[bound - 1]) if bound <= iterations else None,
            )
        )
    return rows, curve, 2 * growth * exact * gap


def draw_figure(curves: dict[float, tuple[NDArray[np.float64], float]], folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "theorem2"  # the same picture gives the same file
    figure, axes = pyplot.subplots(figsize=(6.4, 4.0), layout="constrained")
    for tau, (curve, product) in curves.items():
        steps = np.unique(np.geomspace(1, len(curve), 200).astype(int))
        (line,) = axes.loglog(steps, curve[steps - 1], label=rf"measured, $\tau={tau:g}$")
        axes.loglog(steps, np.sqrt(product / steps), "--", color=line.get_color(), label=rf"bound, $\tau={tau:g}$")
    axes.set_xlabel("SGD steps T")
    axes.set_ylabel(r"$\mathbb{E}\,\|\nabla P_\tau(\hat x^T)\|$")
    axes.set_title("Theorem 2: what is proven and what happens")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, ncols=2)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "theorem2.png", dpi=160)
    figure.savefig(folder / "theorem2.svg", metadata={"Date": None})


def main() -> None:
    parser = options(__doc__, iterations=200_000, runs=64)
    parser.add_argument("--figures", type=Path, default=ROOT / "docs" / "images", help="folder of the figure")
    chosen = begin(parser)
    rows: list[Row] = []
    curves = {}
    for tau in TAUS:
        found, curve, product = study(tau, chosen.iterations, chosen.runs, chosen.seed)
        rows += found
        curves[tau] = (curve, product)
        for row in found:
            ratio = math.nan if row.needed is None else row.bound / row.needed
            print(f"tau {tau:g}, eps {row.epsilon:g}: T = {row.bound:,}, needed {row.needed}, {ratio:.1f} times less")
    keep(__file__, chosen, {"rows": [asdict(row) for row in rows]})
    draw_figure(curves, chosen.figures)


if __name__ == "__main__":
    main()
