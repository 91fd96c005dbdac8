"""Whether ``share=`` gives up the right samples: one weight whose best value is a quantile of the samples' bounds.

``min f(y)`` where f falls and at least a share of the samples must have ``y <= b_j``: the best y is the largest that
leaves that many. The constants of :mod:`samplewise.methods.coefficients` were chosen on the first set of problems (and
on uniform bounds); the second one shares no distribution, objective, share or recipe with it, and nothing was chosen
on it.

python benchmarks/exact_shares.py
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from common import begin, keep, options, table
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import TensorDataset

import samplewise as sw

SAMPLES, EPOCHS = 400, 60
Draw = Callable[[torch.Generator], Tensor]


@dataclass(frozen=True)
class Problems:
    """A set of problems: every combination is one."""

    bounds: dict[str, Draw]
    objectives: dict[str, Callable[[Tensor], Tensor]]
    shares: tuple[float, ...]
    recipes: tuple[tuple[float, float, int], ...]
    """First tau, growth and batch size."""


CHOSEN_ON = Problems(
    {
        "exponential": lambda draw: 0.3 + 0.4 * torch.empty(SAMPLES).exponential_(generator=draw),
        "lognormal": lambda draw: (0.5 * torch.randn(SAMPLES, generator=draw) - 0.2).exp(),
        "two clusters": lambda draw: (
            torch.where(torch.rand(SAMPLES, generator=draw) < 0.12, 0.3, 1.0)
            + 0.2 * torch.rand(SAMPLES, generator=draw)
        ),
    },
    {"square": lambda y: (y - 3) ** 2, "linear": lambda y: 3 - y},
    (0.6, 0.9),
    ((2.0, 1.1, 25), (20.0, 1.3, 100)),
)
FRESH = Problems(
    {
        "normal": lambda draw: 0.8 + 0.15 * torch.randn(SAMPLES, generator=draw),
        "gamma": lambda draw: 0.4 + 0.2 * -torch.rand(2, SAMPLES, generator=draw).log().sum(0),
        "three clusters": lambda draw: (
            0.5 + 0.3 * torch.randint(3, (SAMPLES,), generator=draw) + 0.1 * torch.rand(SAMPLES, generator=draw)
        ),
    },
    {"exponential": lambda y: 2 * (-y).exp(), "logarithm": lambda y: -y.log1p()},
    (0.75, 0.95),
    ((1.0, 1.15, 40), (10.0, 1.25, 80)),
)


def run(
    problems: Problems, bounds: str, objective: str, share: float, recipe: tuple[float, float, int], seed: int
) -> dict[str, Any]:
    tau0, growth, batch_size = recipe
    b = problems.bounds[bounds](torch.Generator().manual_seed(seed))
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)

    def evaluate(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        y = model(batch[0])[:, 0]
        return problems.objectives[objective](y), {"room": y - batch[1]}

    problem = sw.Problem(evaluate, [sw.AtMost("room", 0.0, share=share)])
    adam = torch.optim.Adam(model.parameters(), 1e-2)
    solution = sw.fit(
        problem,
        model,
        TensorDataset(torch.ones(SAMPLES, 1), b),
        method=sw.SequentialPenalty(problem.constraints, schedule=sw.Geometric(tau0, growth=growth)),
        optimizer=adam,
        scheduler=CosineAnnealingLR(adam, EPOCHS),
        epochs=EPOCHS,
        batch_size=batch_size,
        seed=seed,
        progress=False,
    )
    y = float(model.weight.detach())
    best = float(b.sort().values[SAMPLES - math.ceil(share * SAMPLES)])
    row = {"bounds": bounds, "objective": objective, "share": share, "tau0": tau0, "growth": growth}
    return {**row, "seed": seed, "y": y, "best": best, "off": 1 - y / best, "met": solution.audits["train"].met}


def summary(problems: Problems, rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    for bounds in problems.bounds:
        for share in problems.shares:
            here = [row for row in rows if (row["bounds"], row["share"]) == (bounds, share)]
            worst = max(here, key=lambda row: abs(row["off"]))
            what = f"{worst['objective']}, tau0 {worst['tau0']:g}, growth {worst['growth']:g}, seed {worst['seed']}"
            near = f"{sum(abs(row['off']) <= 0.02 for row in here)} of {len(here)}"
            met = f"{sum(row['met'] for row in here)} of {len(here)}"
            half = median(abs(row["off"]) for row in here)
            lines.append((bounds, f"{share:.0%}", near, met, f"{half:.2%}", f"{worst['off']:.1%} ({what})"))
    near, met = sum(abs(row["off"]) <= 0.02 for row in rows), sum(row["met"] for row in rows)
    return [
        *table(["bounds", "share", "within 2 %", "share met", "median off", "worst"], lines),
        "",
        f"All: {near} of {len(rows)} within 2 %, the share met in {met}.",
        "",
    ]


def main() -> None:
    chosen = begin(options(__doc__, seeds=4))
    rows = {
        name: [
            run(problems, bounds, objective, share, recipe, seed)
            for seed in range(chosen.seed, chosen.seed + chosen.seeds)
            for bounds in problems.bounds
            for objective in problems.objectives
            for share in problems.shares
            for recipe in problems.recipes
        ]
        for name, problems in (("chosen on", CHOSEN_ON), ("fresh", FRESH))
    }
    page = [
        f"One weight, {SAMPLES} samples, {EPOCHS} epochs of Adam: how far the weight is from the best one. Below zero: "
        "beyond the best, so fewer samples than asked for meet their bounds.",
        "",
        "## Fresh problems",
        "",
        *summary(FRESH, rows["fresh"]),
        "## Problems that the constants were chosen on",
        "",
        *summary(CHOSEN_ON, rows["chosen on"]),
    ]
    keep(__file__, chosen, rows, page)


if __name__ == "__main__":
    main()
