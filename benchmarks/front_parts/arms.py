"""The arms: each turns objective and requirement into steps of one and the same optimiser; and the loop they share."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from cooper.cmp import CMPState, ConstrainedMinimizationProblem
from cooper.constraints.constraint import Constraint
from cooper.constraints.constraint_state import ConstraintState
from cooper.formulations.formulations import AugmentedLagrangian, Lagrangian
from cooper.multipliers.multipliers import IndexedMultiplier
from cooper.optim.constrained_optimizers.simultaneous_optimizer import SimultaneousOptimizer
from cooper.optim.torch_optimizers.nupi_optimizer import nuPI
from cooper.penalty_coefficients.penalty_coefficients import DensePenaltyCoefficient
from cooper.utils.annotations import ConstraintType
from humancompatible.train.dual_optim import ALM
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader

import samplewise as sw
from front_parts.tasks import Parts, Setting, Task
from samplewise.samples import mix

GROWTH = 1.01**250
"""By how much tau grows in a run of the paper's first study: 1.01 in each of 250 epochs."""
LOOKS = 5  # epochs of a run that validation may choose from
AT_ONCE = 2000  # samples of an evaluation
CONFIDENCE = 0.95

Loss = Callable[[Tensor, Mapping[str, Tensor], Any, Tensor], Tensor]
"""Of objective (B,), measures, batch, and the samples' numbers (B,)."""


class Learner(NamedTuple):
    """An arm at work on one network."""

    step: Callable[[Any, Tensor], object]
    """Take the step of a batch, given its samples' numbers."""
    end_round: Callable[[], object] = lambda: None


class Run(NamedTuple):
    """What an arm has to work with."""

    task: Task
    setting: Setting
    """What the arm varies: one number, or two where a rate of multipliers goes with it."""
    model: nn.Module
    optimizer: Optimizer
    samples: int
    """In the training part."""

    def step(self, loss_of: Loss) -> Callable[[Any, Tensor], object]:
        """A step as everybody writes it."""

        def step(batch: Any, index: Tensor) -> None:
            objective, measures = self.evaluate(batch)
            self.optimizer.zero_grad()
            torch.autograd.backward(loss_of(objective, measures, batch, index))
            self.optimizer.step()

        return step

    def evaluate(self, batch: Any) -> tuple[Tensor, Mapping[str, Tensor]]:
        found = self.task.problem.evaluate(self.model, batch)
        return found.objective, found.measures

    def excess(self, measures: Mapping[str, Tensor]) -> Tensor:
        """The constraint function g (B,): beyond the bound where above zero."""
        constraint = self.task.constraint
        return constraint.g(measures[constraint.measure])

    @property
    def knob(self) -> float:
        assert isinstance(self.setting, float | int)
        return self.setting

    @property
    def pair(self) -> tuple[float, float]:
        assert isinstance(self.setting, tuple)
        return self.setting


def with_method(run: Run, method: sw.Method) -> Learner:
    names = {each.measure for each in method.constraints}

    def loss_of(objective: Tensor, measures: Mapping[str, Tensor], batch: Any, index: Tensor) -> Tensor:
        loss: Tensor = method(objective, index=index, **{name: measures[name] for name in names})
        return loss

    return Learner(run.step(loss_of), method.step)


def fixed(run: Run) -> Learner:
    """A regulariser of fixed weight on the measure itself. It varies the weight."""
    return with_method(run, sw.FixedPenalty([run.task.fixed_on or run.task.constraint], weight=run.knob))


def sequential(run: Run) -> Learner:
    """The paper's method as published: linear, no margin, tau from tau0 to twelve times that. It varies tau0."""
    schedule = sw.Geometric(run.knob, growth=GROWTH ** (1 / run.task.epochs))
    return with_method(run, sw.SequentialPenalty(run.task.problem.constraints, schedule=schedule))


def lagrangian(run: Run) -> Learner:
    """This library's augmented Lagrangian. It varies tau and how much of it multipliers rise by, times the excess."""
    tau, part = run.pair
    constraints, schedule = run.task.problem.constraints, sw.Constant(tau)
    method = sw.AugmentedLagrangian(constraints, samples=run.samples, multiplier_step=part * tau, schedule=schedule)
    return with_method(run, method)


class CooperProblem(ConstrainedMinimizationProblem):
    """The task in Cooper, with one multiplier for each sample.

    Cooper adds the violations of a batch up. So that they are averaged as the objective is, each is divided by the
    batch's size, and coefficient and multipliers' rate are multiplied by it.
    """

    def __init__(self, run: Run, coefficient: float | None = None) -> None:
        super().__init__()
        self.run = run
        multiplier = IndexedMultiplier(num_constraints=run.samples)
        kind = ConstraintType.INEQUALITY
        if coefficient is None:
            self.requirement = Constraint(constraint_type=kind, formulation_type=Lagrangian, multiplier=multiplier)
        else:
            self.requirement = Constraint(
                constraint_type=kind,
                formulation_type=AugmentedLagrangian,
                multiplier=multiplier,
                penalty_coefficient=DensePenaltyCoefficient(torch.tensor(coefficient * run.task.batch_size)),
            )

    def compute_cmp_state(self, batch: Any, index: Tensor) -> CMPState:
        objective, measures = self.run.evaluate(batch)
        violation = self.run.excess(measures) / self.run.task.batch_size
        state = ConstraintState(violation=violation, constraint_features=index)
        return CMPState(loss=objective.mean(), observed_constraints={self.requirement: state})


def cooper(run: Run) -> Learner:
    """Cooper's augmented Lagrangian. It varies the coefficient and what part of it multipliers rise by."""
    coefficient, part = run.pair
    problem = CooperProblem(run, coefficient)
    rate = part * coefficient * run.task.batch_size
    return by_cooper(run, problem, torch.optim.SGD(problem.dual_parameters(), lr=rate, maximize=True))


def nupi(run: Run) -> Learner:
    """Cooper's Lagrangian by nuPI, the controller that it recommends. It varies the rate and the proportional gain."""
    rate, gain = run.pair
    problem = CooperProblem(run)
    dual = nuPI(problem.dual_parameters(), lr=rate * run.task.batch_size, Kp=torch.tensor(gain), maximize=True)
    return by_cooper(run, problem, dual)


def by_cooper(run: Run, problem: CooperProblem, dual: Optimizer) -> Learner:
    optimizer: Any = SimultaneousOptimizer(problem, run.optimizer, dual)

    def step(batch: Any, index: Tensor) -> None:
        optimizer.roll(compute_cmp_state_kwargs={"batch": batch, "index": index})

    return Learner(step)


def by_multipliers(run: Run, moved: Callable[[Tensor, Tensor], Tensor]) -> Learner:
    """``f + lambda_j g_j``, with multipliers that are ``moved`` by g before each step."""
    multipliers = torch.zeros(run.samples)

    def loss_of(objective: Tensor, measures: Mapping[str, Tensor], batch: Any, index: Tensor) -> Tensor:
        g = run.excess(measures)
        raised = moved(multipliers[index], g.detach())
        multipliers[index] = raised
        return (objective + raised * g).mean()

    return Learner(run.step(loss_of))


def feasible(run: Run) -> Learner:
    """Resilient feasible learning (Ramirez et al., 2025, arXiv 2501.14912): slack of minimal norm on each requirement.

    ``min f + alpha / 2 |u|^2`` subject to ``g_j <= u_j``, by gradient descent and ascent. The best slack is
    ``lambda_j / alpha``, so a multiplier moves to ``max(0, lambda_j + step (g_j - lambda_j / alpha))``: it decays, as
    by the weight decay in the authors' code. The objective is the task's; theirs has none. It varies alpha, and the
    step as a part of it.
    """
    alpha, part = run.pair
    return by_multipliers(run, lambda known, g: (known + part * alpha * (g - known / alpha)).relu())


def everywhere(run: Run) -> Learner:
    """Everywhere learning (Boero et al., 2026, arXiv 2606.01557): an L1 price on how far each requirement is relaxed.

    ``min f + price |u|_1`` subject to ``g_j <= u_j`` and ``u_j >= 0``, by gradient descent and ascent: the price is the
    most that a multiplier may be. It varies the price, and the step of the multipliers as a part of it.
    """
    price, part = run.pair
    return by_multipliers(run, lambda known, g: (known + part * price * g / run.task.size).clamp(0.0, price))


def humancompatible(run: Run) -> Learner:
    """humancompatible-train's augmented Lagrangian (ALM, form HPR, its default) over groups of samples.

    It takes a fixed number of constraints, all of which every batch must estimate. So the requirement is one on the
    mean excess, in units of the bound, of each group: of each class, or of all. It varies the mean that is allowed, and
    the rate of its multipliers.
    """
    (allowed, rate), size = run.pair, run.task.size
    groups = run.task.groups or (lambda batch: (torch.zeros(len(batch[0]), dtype=torch.long), 1))
    dual: Any = None

    def loss_of(objective: Tensor, measures: Mapping[str, Tensor], batch: Any, index: Tensor) -> Tensor:
        nonlocal dual
        group, count = groups(batch)
        if dual is None:
            dual = ALM(m=count, lr=rate, penalty=1.0, is_ineq=True, dual_range=(0.0, 1e4))
        excess = run.excess(measures).relu() / size
        means = torch.zeros(count).index_add(0, group, excess) / torch.bincount(group, minlength=count).clamp(min=1)
        loss: Tensor = dual.forward_update(objective.mean(), means - allowed)
        return loss

    return Learner(run.step(loss_of))


def objective_alone(run: Run) -> Learner:
    """What is shifted afterwards."""
    return with_method(run, sw.Unconstrained(run.task.problem.constraints))


ARMS: dict[str, Callable[[Run], Learner]] = {
    "fixed": fixed,
    "sequential": sequential,
    "lagrangian": lagrangian,
    "cooper": cooper,
    "nupi": nupi,
    "feasible": feasible,
    "everywhere": everywhere,
    "humancompatible": humancompatible,
}
"""All but the promise and the shift."""
NAMES = {
    "fixed": "fixed weight",
    "sequential": "sequential penalty as published",
    "promise": "`Promise`",
    "shift": "objective alone, output shifted",
    "lagrangian": "`AugmentedLagrangian`",
    "cooper": "Cooper, augmented Lagrangian",
    "nupi": "Cooper, Lagrangian by nuPI",
    "feasible": "feasible learning with slack",
    "everywhere": "everywhere learning, L1 price",
    "humancompatible": "humancompatible-train, ALM",
}
KNOBS = {
    "fixed": "weight",
    "sequential": "first tau",
    "promise": "share",
    "shift": "share",
    "lagrangian": "tau, step of multipliers over tau",
    "cooper": "coefficient, rate of multipliers over it",
    "nupi": "rate of multipliers, proportional gain",
    "feasible": "alpha, step over alpha",
    "everywhere": "price, step over price",
    "humancompatible": "mean excess allowed, rate of multipliers",
}


def run_once(task: Task, parts: Parts, arm: str, setting: Setting, seed: int) -> dict[str, Any]:
    """Train once: what holds on each part at each epoch that may be selected."""
    began = time.process_time()  # of one thread: the same on a busy machine
    torch.manual_seed(mix("run", seed))
    model = task.make_model(seed)
    if arm == "promise":
        assert isinstance(setting, float)
        found = promised(task, parts, model, setting, seed)
    else:
        found = trained(task, parts, model, arm, setting)
    return {**found, "seconds": round(time.process_time() - began, 2)}


def trained(task: Task, parts: Parts, model: nn.Module, arm: str, setting: Setting) -> dict[str, Any]:
    """The recipe of all arms: Adam, the rate a cosine over all steps, the first epochs on the objective alone."""
    tensors = parts["train"].tensors
    samples = len(tensors[0])
    optimizer = task.optimizer(model)
    run = Run(task, setting, model, optimizer, samples)
    learner = objective_alone(run) if arm == "shift" else ARMS[arm](run)
    warm = run.step(lambda objective, measures, batch, index: objective.mean())
    last = task.warm_epochs + task.epochs
    scheduler = CosineAnnealingLR(optimizer, last * -(-samples // task.batch_size))
    candidates = []
    for epoch in range(1, last + 1):
        model.train()
        for index in torch.randperm(samples).split(task.batch_size):
            step = warm if epoch <= task.warm_epochs else learner.step
            step(tuple(tensor[index] for tensor in tensors), index)
            scheduler.step()
        if epoch > task.warm_epochs:
            learner.end_round()
            if (last - epoch) % max(1, task.epochs // LOOKS) == 0:
                candidates.append({"epoch": epoch, **held(task, parts, model)})
    if arm == "shift":  # by the order statistic of validation that just has the share
        errors = sw.audit(task.problem, model, parts["validation"], batch_size=AT_ONCE)[task.constraint.name].excess
        by = float(errors.sort().values[math.ceil(run.knob * len(errors)) - 1])
        with torch.no_grad():
            model[-1].bias += max(0.0, by) + 1e-6  # type: ignore[index]
        candidates = [{"epoch": last, **held(task, parts, model)}]
    return {"candidates": candidates}


def promised(task: Task, parts: Parts, model: nn.Module, share: float, seed: int) -> dict[str, Any]:
    """Ours: the share is named, tau and margin are steered on validation, calibration proves it. It varies the share.

    It selects its epoch itself, so there is one candidate. The recipe is that of the other arms.
    """
    optimizer = task.optimizer(model)
    steps = -(-len(parts["train"]) // task.batch_size)
    solution = sw.fit(
        task.problem,
        model,
        parts["train"],
        method=sw.SequentialPenalty(task.problem.constraints, schedule=sw.Constant("auto")),
        optimizer=optimizer,
        epochs=task.epochs,
        batch_size=task.batch_size,
        warmup_epochs=task.warm_epochs,
        seed=seed,
        scheduler=(CosineAnnealingLR(optimizer, (task.warm_epochs + task.epochs) * steps), "step"),
        promise=sw.Promise(
            share=share,
            tune_on=DataLoader(parts["validation"], batch_size=AT_ONCE),
            prove_on=DataLoader(parts["calibration"], batch_size=AT_ONCE),
            confidence=CONFIDENCE,
            rival=False,
        ),
        progress=False,
    )
    promise = solution.promise
    assert promise is not None, "since one was asked for"
    said = {"kept": promise.kept, "share_at_least": promise.share_at_least, "margins": dict(promise.margins)}
    candidate = {"epoch": solution.selected.epoch, **held(task, parts, solution.model)}
    return {"candidates": [candidate], "promise": said}


def held(task: Task, parts: Parts, model: nn.Module) -> dict[str, dict[str, float]]:
    """Share satisfied and score on validation and test; what is on test is read only of what is selected."""
    found = {}
    for name in ("validation", "test"):
        audit = sw.audit(task.problem, model, parts[name], batch_size=AT_ONCE)
        score = audit.means[task.score] if task.score else audit.objective
        found[name] = {"share": audit.satisfied, "score": score}
    return found
