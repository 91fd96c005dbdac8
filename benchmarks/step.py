"""Cost of one training step: by hand, with this library, and with Cooper, on the network of the paper's first study.

Example:
    python benchmarks/step.py --repeats 60 --steps 40

All arms train one and the same network with one and the same optimiser, so none has luckier memory than another. They
alternate step by step, in an order that changes; a ratio compares the median steps of two arms in one turn, and the
result is the median over turns. The hand-written step runs twice: its second ratio shows what is noise.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from cooper.cmp import CMPState, ConstrainedMinimizationProblem
from cooper.constraints.constraint import Constraint
from cooper.constraints.constraint_state import ConstraintState
from cooper.formulations.formulations import AugmentedLagrangian, Formulation, QuadraticPenalty
from cooper.multipliers.multipliers import IndexedMultiplier
from cooper.optim.constrained_optimizers.simultaneous_optimizer import SimultaneousOptimizer
from cooper.optim.unconstrained_optimizer import UnconstrainedOptimizer
from cooper.penalty_coefficients.penalty_coefficients import DensePenaltyCoefficient
from cooper.utils.annotations import ConstraintType
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

import samplewise as sw
from samplewise.checkpoint import write_json
from samplewise.measures import mse
from samplewise.provenance import provenance
from samplewise.studies.mnist.network import Network

BOUND = 0.01
TAU = 100.0
BATCH = 128
SAMPLES = (10_000, 1_000_000, 10_000_000)

Batch = tuple[Tensor, Tensor, Tensor]
Step = Callable[[Batch], None]


def by_hand(model: nn.Module, optimizer: Optimizer) -> Step:
    """The linear penalty in plain PyTorch: no check, no statistics."""

    def step(batch: Batch) -> None:
        images, labels, _ = batch
        logits, pixels = model(images)
        error = (pixels - images).square().mean(1)
        loss = (functional.cross_entropy(logits, labels, reduction="none") + TAU * torch.relu(error - BOUND)).mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()

    return step


def lagrangian_by_hand(model: nn.Module, optimizer: Optimizer) -> Step:
    """The augmented Lagrangian in plain PyTorch: no check, no statistics."""
    table = torch.zeros(SAMPLES[0])

    def step(batch: Batch) -> None:
        images, labels, index = batch
        logits, pixels = model(images)
        g = (pixels - images).square().mean(1) - BOUND
        known = table[index]
        term = (torch.relu(known + TAU * g).square() - known.square()) / (2 * TAU)
        loss = (functional.cross_entropy(logits, labels, reduction="none") + term).mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        table[index] = torch.relu(known + TAU * g.detach())

    return step


def with_method(model: nn.Module, optimizer: Optimizer, method: sw.Method) -> Step:
    """This library: three lines of the hand-written step change."""

    def step(batch: Batch) -> None:
        images, labels, index = batch
        logits, pixels = model(images)
        objective = functional.cross_entropy(logits, labels, reduction="none")
        loss = method(objective, index=index, reconstruction=mse(pixels, images))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()

    return step


class CooperProblem(ConstrainedMinimizationProblem):
    """The same problem in Cooper, with one multiplier for each sample where the formulation has multipliers."""

    def __init__(self, model: nn.Module, formulation: type[Formulation]) -> None:
        super().__init__()
        self.model = model
        indexed = formulation.expects_multiplier
        self.reconstruction = Constraint(
            constraint_type=ConstraintType.INEQUALITY,
            formulation_type=formulation,
            multiplier=IndexedMultiplier(num_constraints=SAMPLES[0]) if indexed else None,
            penalty_coefficient=DensePenaltyCoefficient(torch.tensor(TAU)),
        )
        self.indexed = indexed

    def compute_cmp_state(self, batch: Batch) -> CMPState:
        images, labels, index = batch
        logits, pixels = self.model(images)
        g = (pixels - images).square().mean(1) - BOUND
        state = ConstraintState(
            violation=g,
            constraint_features=index if self.indexed else None,
            contributes_to_dual_update=self.indexed,
        )
        # Cooper adds the violations of a batch up, so the objective is added up too: the same problem, times 128.
        objective = functional.cross_entropy(logits, labels, reduction="sum")
        return CMPState(loss=objective, observed_constraints={self.reconstruction: state})


def with_cooper(model: nn.Module, primal: Optimizer, formulation: type[Formulation]) -> Step:
    problem = CooperProblem(model, formulation)
    if problem.indexed:
        dual = torch.optim.SGD(problem.dual_parameters(), lr=TAU, maximize=True)
        optimizer: Any = SimultaneousOptimizer(problem, primal, dual)
    else:
        optimizer = UnconstrainedOptimizer(problem, primal)

    def step(batch: Batch) -> None:
        optimizer.roll(compute_cmp_state_kwargs={"batch": batch})

    return step


def bounded() -> list[sw.Constraint]:
    return [sw.AtMost("reconstruction", BOUND)]


def lagrangian(samples: int) -> sw.Method:
    return sw.AugmentedLagrangian(bounded(), samples=samples, schedule=sw.Constant(TAU))


def batches(samples: int, count: int, generator: torch.Generator) -> list[Batch]:
    """Random images with many black pixels, as digits have; indices spread over all samples, none twice in a batch."""
    made = []
    for _ in range(count):
        images = torch.rand(BATCH, 784, generator=generator)
        images = torch.where(images > 0.8, images, torch.zeros(()))
        labels = torch.randint(10, (BATCH,), generator=generator)
        index = (torch.randperm(samples // 10, generator=generator)[:BATCH] * 10) % samples
        made.append((images, labels, index))
    return made


def take_turns(arms: dict[str, tuple[Step, list[Batch]]], repeats: int, steps: int) -> dict[str, list[float]]:
    """Median seconds per step of each arm in each turn; within a turn the arms alternate step by step."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    order = list(arms)
    for turn in range(repeats + 1):
        spent: dict[str, list[float]] = {name: [] for name in arms}
        for i in range(steps):
            random.shuffle(order)
            for name in order:
                step, feed = arms[name]
                start = time.perf_counter()
                step(feed[i % len(feed)])
                spent[name].append(time.perf_counter() - start)
        if turn:  # the first turn warms up
            for name in arms:
                seconds[name].append(statistics.median(spent[name]))
    return seconds


def summary(seconds: Sequence[float], reference: Sequence[float]) -> dict[str, float]:
    """Median time, and the ratio to the reference in the same turn: median and quartiles."""
    low, middle, high = statistics.quantiles((a / b for a, b in zip(seconds, reference, strict=True)), n=4)
    return {
        "milliseconds": round(1e3 * statistics.median(seconds), 4),
        "ratio": round(middle, 4),
        "ratio_quartile_low": round(low, 4),
        "ratio_quartile_high": round(high, 4),
    }


def compare(repeats: int, steps: int, seed: int) -> dict[str, dict[str, dict[str, float]]]:
    generator = torch.Generator().manual_seed(seed)
    model = Network(latent="relu")
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    feed = batches(SAMPLES[0], steps, generator)
    steps_by_arm = {
        "by hand": by_hand(model, adam),
        "by hand, again": by_hand(model, adam),
        "SequentialPenalty": with_method(model, adam, sw.SequentialPenalty(bounded(), schedule=sw.Constant(TAU))),
        "AugmentedLagrangian": with_method(model, adam, lagrangian(SAMPLES[0])),
        "augmented Lagrangian by hand": lagrangian_by_hand(model, adam),
        "Cooper QuadraticPenalty": with_cooper(model, adam, QuadraticPenalty),
        "Cooper AugmentedLagrangian": with_cooper(model, adam, AugmentedLagrangian),
    }
    seconds = take_turns({name: (step, feed) for name, step in steps_by_arm.items()}, repeats, steps)
    by_arm = {name: summary(values, seconds["by hand"]) for name, values in seconds.items()}
    sizes = {
        f"{samples:.0e}": (with_method(model, adam, lagrangian(samples)), batches(samples, steps, generator))
        for samples in SAMPLES
    }
    seconds = take_turns(sizes, repeats, steps)
    smallest = next(iter(seconds.values()))
    return {"step": by_arm, "samples": {name: summary(values, smallest) for name, values in seconds.items()}}


def table(title: str, rows: dict[str, dict[str, float]]) -> list[str]:
    lines = [f"| {title} | ms a step | ratio | quartiles |", "|---|---|---|---|"]
    for name, row in rows.items():
        quartiles = f"{row['ratio_quartile_low']:.3f} to {row['ratio_quartile_high']:.3f}"
        lines.append(f"| {name} | {row['milliseconds']:.3f} | {row['ratio']:.3f} | {quartiles} |")
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the cost of one training step.")
    parser.add_argument("--repeats", type=int, default=60, help="turns of each arm")
    parser.add_argument("--steps", type=int, default=40, help="steps in one turn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks"), help="folder of the result files")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    random.seed(options.seed)
    found = compare(options.repeats, options.steps, options.seed)
    source = provenance(seed=options.seed)
    settings = {"batch": BATCH, "repeats": options.repeats, "steps": options.steps}
    write_json(options.output / "step.json", {"settings": settings, **found, "provenance": source})
    versions = ", ".join(f"{name} {version}" for name, version in source["versions"].items())
    lines = [
        "# Cost of one training step",
        "",
        f"Network 784-256-20 with heads 10 and 256-784, batch {BATCH}, Adam, one thread, {options.repeats} turns of "
        f"{options.steps} steps. Ratios are medians over turns, to the hand-written step of the same turn.",
        "",
        *table("step", found["step"]),
        "AugmentedLagrangian by number of samples; ratios to the smallest.",
        "",
        *table("samples", found["samples"]),
        f"`{source['command']}`, commit {source['commit']}, seed {options.seed}; {versions}.",
        "",
    ]
    (options.output / "step.md").write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
