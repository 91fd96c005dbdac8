"""Cost of one training step: by hand, with this library, and with Cooper, on the network of the paper's first study.

    python benchmarks/step.py --repeats 60 --steps 40

All arms train one and the same network with one and the same optimiser, so none has luckier memory than another. They
alternate step by step, in an order that changes; a ratio compares the median steps of two arms in one turn, and the
result is the median over turns. The hand-written step runs twice: its second ratio shows what is noise.
"""

import statistics
from collections.abc import Callable
from typing import Any

import torch
from common import (
    DigitNetwork,
    begin,
    evaluate_digits,
    keep,
    options,
    quartiles,
    random_digits,
    ratios,
    table,
    take_turns,
    timed,
)
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
from torch.optim import Optimizer

import samplewise as sw

BOUND = 0.01
TAU = 100.0
BATCH = 128
SAMPLES = (10_000, 1_000_000, 10_000_000)

Batch = tuple[Tensor, Tensor, Tensor]
Step = Callable[[Batch], None]


def plain(optimizer: Optimizer, loss_of: Callable[[Batch], Tensor]) -> Step:
    """A step as everybody writes it."""

    def step(batch: Batch) -> None:
        loss = loss_of(batch)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()

    return step


def by_hand(model: nn.Module, optimizer: Optimizer) -> Step:
    """The linear penalty in plain PyTorch: no check, no statistics."""

    def loss_of(batch: Batch) -> Tensor:
        objective, measures = evaluate_digits(model, batch[:2])
        return (objective + TAU * torch.relu(measures["reconstruction"] - BOUND)).mean()

    return plain(optimizer, loss_of)


def lagrangian_by_hand(model: nn.Module, optimizer: Optimizer) -> Step:
    """The augmented Lagrangian in plain PyTorch: no check, no statistics."""
    multipliers = torch.zeros(SAMPLES[0])

    def loss_of(batch: Batch) -> Tensor:
        index = batch[2]
        objective, measures = evaluate_digits(model, batch[:2])
        known = multipliers[index]
        raised = torch.relu(known + TAU * (measures["reconstruction"] - BOUND))
        multipliers[index] = raised.detach()
        return (objective + (raised.square() - known.square()) / (2 * TAU)).mean()

    return plain(optimizer, loss_of)


def with_method(model: nn.Module, optimizer: Optimizer, method: sw.Method) -> Step:
    """This library: one line of the hand-written step changes."""

    def loss_of(batch: Batch) -> Tensor:
        objective, measures = evaluate_digits(model, batch[:2])
        loss: Tensor = method(objective, index=batch[2], **measures)
        return loss

    return plain(optimizer, loss_of)


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
        objective, measures = evaluate_digits(self.model, batch[:2])
        state = ConstraintState(
            violation=measures["reconstruction"] - BOUND,
            constraint_features=batch[2] if self.indexed else None,
            contributes_to_dual_update=self.indexed,
        )
        # Cooper adds the violations of a batch up, so the objective is added up too: the same problem, times 128.
        return CMPState(loss=objective.sum(), observed_constraints={self.reconstruction: state})


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


def batches(samples: int, count: int, seed: int) -> list[Batch]:
    """Random images with many black pixels, as digits have; indices spread over all samples, none twice in a batch."""
    draw = torch.Generator().manual_seed(seed)
    images, labels = random_digits(count * BATCH, seed).tensors
    images = torch.where(images > 0.8, images, 0.0)
    indices = [(torch.randperm(samples // 10, generator=draw)[:BATCH] * 10) % samples for _ in range(count)]
    return list(zip(images.split(BATCH), labels.split(BATCH), indices, strict=True))


def measure(arms: dict[str, tuple[Step, list[Batch]]], repeats: int, steps: int) -> dict[str, dict[str, float]]:
    """Time and ratio to the first arm, from the median step of each turn; in a turn the arms alternate step by step."""

    def arm(step: Step, feed: list[Batch]) -> Callable[[int], float]:
        return timed(lambda turn: step(feed[turn % len(feed)]))

    alternating = {name: arm(*given) for name, given in arms.items()}
    turns = [take_turns(alternating, steps) for _ in range(repeats)]
    seconds = {name: [statistics.median(turn[name]) for turn in turns] for name in arms}
    reference = next(iter(seconds.values()))
    return {
        name: {"milliseconds": round(1e3 * statistics.median(values), 4), **ratios(values, reference)}
        for name, values in seconds.items()
    }


def compare(repeats: int, steps: int, seed: int) -> dict[str, dict[str, dict[str, float]]]:
    model = DigitNetwork(latent="relu")
    adam = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)  # the honest baseline is the quickest one
    feed = batches(SAMPLES[0], steps, seed)
    by_arm = {
        "by hand": by_hand(model, adam),
        "by hand, again": by_hand(model, adam),
        "SequentialPenalty": with_method(model, adam, sw.SequentialPenalty(bounded(), schedule=sw.Constant(TAU))),
        "AugmentedLagrangian": with_method(model, adam, lagrangian(SAMPLES[0])),
        "augmented Lagrangian by hand": lagrangian_by_hand(model, adam),
        "Cooper QuadraticPenalty": with_cooper(model, adam, QuadraticPenalty),
        "Cooper AugmentedLagrangian": with_cooper(model, adam, AugmentedLagrangian),
    }
    by_size = {
        f"{samples:.0e}": (with_method(model, adam, lagrangian(samples)), batches(samples, steps, seed))
        for samples in SAMPLES
    }
    return {
        "step": measure({name: (step, feed) for name, step in by_arm.items()}, repeats, steps),
        "samples": measure(by_size, repeats, steps),
    }


def rows_of(found: dict[str, dict[str, float]]) -> list[tuple[str, ...]]:
    return [(name, f"{row['milliseconds']:.3f}", f"{row['ratio']:.3f}", quartiles(row)) for name, row in found.items()]


def main() -> None:
    chosen = begin(options(__doc__, repeats=60, steps=40))
    found = compare(chosen.repeats, chosen.steps, chosen.seed)
    settings = {"batch": BATCH, "repeats": chosen.repeats, "steps": chosen.steps}
    columns = ["ms a step", "ratio", "quartiles"]
    page = [
        "# Cost of one training step",
        "",
        f"Network 784-256-20 with heads 10 and 256-784, batch {BATCH}, Adam(fused=True), one thread, {chosen.repeats} "
        f"turns of {chosen.steps} steps. Ratios are medians over turns, to the hand-written step of the same turn.",
        "",
        *table(["step", *columns], rows_of(found["step"])),
        "",
        "AugmentedLagrangian by number of samples; ratios to the smallest.",
        "",
        *table(["samples", *columns], rows_of(found["samples"])),
    ]
    keep(__file__, chosen, {"settings": settings, **found}, page)


if __name__ == "__main__":
    main()
