"""Which penalty goes with a promise: one run against one, each proved on the same samples.

Three tasks: the regression of ``promise_kept.py`` (errors below are bounded), that of ``front.py`` (errors on both
sides are bounded, some samples come late), and the digits. The penalties: linear; logarithmic, of the bound's width;
Huber's; and a ramp, which is flat from somewhere on, so that samples far beyond the bound cost no more.

python benchmarks/promise_penalties.py
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch
from common import DigitNetwork, begin, keep, options, table
from front_parts.tasks import LATE_BOUND, draw_late, evaluate_regression, make_forecaster
from promise_kept import (
    BOUND,
    FORECAST,
    LIMIT,
    draw_digits,
    draw_forecasts,
    forecaster,
)
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import Dataset, TensorDataset

import samplewise as sw
from samplewise.samples import mix
from studies.data import digits
from studies.mnist.digit_network import evaluate


@dataclass(frozen=True)
class Ramp(sw.Penalty):
    """``min(g, end)`` where ``g > 0``: further out, a sample costs no more."""

    end: float

    def value(self, g: Tensor) -> Tensor:
        return torch.relu(g).clamp_max(self.end)

    def slope(self, g: Tensor) -> Tensor:
        return ((g > 0) & (g < self.end)).to(g.dtype)


PENALTIES: dict[str, Callable[[float], sw.Penalty]] = {
    "linear": lambda bound: sw.Linear(),
    "logarithmic": sw.Logarithmic,
    "Huber's": lambda bound: sw.Huber(0.2 * bound),
    "ramp": lambda bound: Ramp(0.6 * bound),
}
"""Of the bound. They begin at the margin that a promise sets, about half of the bound inside of it."""


@dataclass(frozen=True)
class Task:
    """What is learned, from what, and how."""

    name: str
    problem: sw.Problem
    shares: tuple[float, ...]
    bound: float
    parts: Callable[[int], list[Dataset[Any]]]
    """Of a seed: to train, to tune, to prove on, and fresh ones."""
    model: Callable[[int], nn.Module]
    rate: float
    batch_size: int
    epochs: int
    score: str
    """A measure, or the objective if empty."""
    decay: float = 0.0
    warmup: int = 0


def seeded(make: Callable[[], nn.Module]) -> Callable[[int], nn.Module]:
    def made(seed: int) -> nn.Module:
        torch.manual_seed(mix("network", seed))
        return make()

    return made


def tasks() -> list[Task]:
    data = digits()

    def forecasts(seed: int) -> list[Dataset[Any]]:
        sizes = (3000, 1000, 1000)
        return [*(draw_forecasts(n, 1000 * seed + k) for k, n in enumerate(sizes)), draw_forecasts(60_000, 9)]

    def late(seed: int) -> list[Dataset[Any]]:
        drawn = [TensorDataset(*draw_late(n, mix("late", seed, k))) for k, n in enumerate((4000, 1000, 1000))]
        return [*drawn, TensorDataset(*draw_late(60_000, 9))]

    def digit_parts(seed: int) -> list[Dataset[Any]]:
        return list(draw_digits(data, seed))

    both_sides = sw.Problem(evaluate_regression, [sw.AtMost("error", LATE_BOUND)])
    reconstructed = sw.Problem(evaluate, [sw.AtMost("reconstruction", BOUND)])
    network = seeded(lambda: DigitNetwork(pixels=64, hidden=128, code=10))
    late_network = seeded(make_forecaster)
    return [
        Task("errors below", FORECAST, (0.95, 0.97), LIMIT, forecasts, forecaster, 3e-3, 64, 40, ""),
        Task("late samples", both_sides, (0.85, 0.9, 0.95), LATE_BOUND, late, late_network, 1e-3, 128, 40, "", 1e-4, 5),
        Task("digits", reconstructed, (0.9,), BOUND, digit_parts, network, 5e-3, 64, 60, "accuracy", 1e-4, 3),
    ]


def run(task: Task, penalty: str, share: float, seed: int, epochs: int) -> dict[str, Any]:
    train, tune, prove, fresh = task.parts(seed)
    model = task.model(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=task.rate, weight_decay=task.decay, fused=True)
    constraints = task.problem.constraints
    method = sw.SequentialPenalty(constraints, penalty=PENALTIES[penalty](task.bound), schedule=sw.Constant("auto"))
    solution = sw.fit(
        task.problem,
        model,
        train,
        method=method,
        optimizer=optimizer,
        scheduler=CosineAnnealingLR(optimizer, epochs + task.warmup),
        epochs=epochs,
        warmup_epochs=task.warmup,
        batch_size=task.batch_size,
        seed=seed,
        promise=sw.Promise(share, tune, prove, rival=False),
        progress=False,
    )
    assert solution.promise is not None
    found = sw.audit(task.problem, model, fresh, batch_size=4000)
    return {
        "task": task.name,
        "penalty": penalty,
        "share": share,
        "seed": seed,
        "kept": solution.promise.kept,
        "fresh": found.satisfied,
        "score": found.means[task.score] if task.score else found.objective,
    }


def main() -> None:
    chosen = begin(options(__doc__, seeds=5, epochs=0))
    rows = []
    for task in tasks():
        for seed in range(300 + chosen.seed, 300 + chosen.seed + chosen.seeds):
            rows += [
                run(task, penalty, share, seed, chosen.epochs or task.epochs)
                for share in task.shares
                for penalty in PENALTIES
            ]
            print(f"{task.name}, seed {seed}", flush=True)
    lines = []
    for task in tasks():
        for share in task.shares:
            for penalty in PENALTIES:
                wanted = (task.name, share, penalty)
                found = [row for row in rows if (row["task"], row["share"], row["penalty"]) == wanted]
                kept, fresh = sum(row["kept"] for row in found), mean(row["fresh"] for row in found)
                score = mean(row["score"] for row in found)
                lines.append(
                    (task.name, f"{share:.0%}", penalty, f"{kept} of {len(found)}", f"{fresh:.2%}", f"{score:.4f}")
                )
    page = [
        "Promises with one penalty or another; the same samples, network, steps and proof for all.",
        "",
        *table(["task", "share", "penalty", "kept", "fresh", "score"], lines),
        "",
        "Score: mean squared error of the regressions (lower is better), accuracy of the digits (higher is better), "
        "both on fresh samples; fresh: the share of these that meet the bound.",
    ]
    keep(__file__, chosen, {"runs": rows}, page)


if __name__ == "__main__":
    main()
