"""The arms of the study: each makes one loss of the bits and errors of a batch; the recipe is the same for all."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import samplewise as sw
from samplewise.errors import ConfigurationError, did_you_mean
from studies.compression.blocks import Blocks, Parts
from studies.compression.codec import LEVELS, PIXELS, Codec
from studies.compression.convolutional import ConvolutionalCodec

STEPS, BATCH, ROUNDS, RATE = 2000, 128, 30, 2e-3
TRANSFORM_RATE = 0.02 * RATE
"""Learning rate of the transforms, which begin at the principal components, near where they end."""
TRAIN = 262_144
"""Blocks to train on at most: with few, each seen often, training blocks keep the floor more often than unseen ones."""
VISITED = 16_384
"""Blocks to train on where each has a multiplier, which moves only when its block comes again: 16 times in a run."""
FIRST = 20_000
"""Blocks whose principal components a codec begins with."""
CLIP = 50.0
"""Largest norm of the gradient: at the start one block can weigh more than all others."""
TAU0, GROWING, MARGIN = 40.0, 0.6, 0.1
"""The first tau; the part of the rounds in which tau grows; and how far inside of the floor training stays, as a
fraction of the error that the floor allows."""
RECIPE = f"batch {BATCH}, rate {RATE:g}, {TRAIN:,} blocks at most, {LEVELS} gains, tau from {TAU0:g}, margin {MARGIN:g}"
"""What the runs of one folder have in common, kept beside their rows."""
PROMISE_TAU0 = 200.0
MULTIPLIER_STEP = 1 / 20
"""The step of a multiplier, as a fraction of tau."""
WEIGHTS = 10.0, 1000.0
"""Between which a conditioned codec's weights are drawn."""
AT_ONCE = 1024 * PIXELS  # of an evaluation: what fits into a cache
CONSTRAINT = "error"

AnyCodec = Codec | ConvolutionalCodec


class Costs(NamedTuple):
    """Of each sample."""

    bits: Tensor
    """Of a block, ``(B,)``."""
    error: Tensor
    """``(B,)``, in units of what the floor allows: at most 1 is above the floor."""


class Loss(NamedTuple):
    """The loss of a batch from its costs and the samples' indices ``(B,)``, and the state of the arm."""

    of: Callable[[Costs, Tensor], Tensor]
    end_round: Callable[[], object] = lambda: None
    weights: Callable[[int], Tensor | None] = lambda samples: None
    """The weights that a conditioned codec gets, for so many samples."""


def _method(method: sw.Method, power: int = 1) -> Loss:
    def of(costs: Costs, index: Tensor) -> Tensor:
        return method(costs.bits, error=costs.error**power, index=index)

    return Loss(of, method.step)


def _fixed(power: int) -> Callable[[float, int], Loss]:
    """A fixed weight on a power of the error."""
    return lambda weight, samples: _method(sw.FixedPenalty([_at_floor(0.0)], weight), power)


def _at_floor(margin: float = MARGIN) -> sw.Constraint:
    return sw.AtMost(CONSTRAINT, 1.0, margin=margin)


def _penalty(tau: float, samples: int) -> Loss:
    growth = max(1.0, tau / TAU0) ** (1 / (GROWING * ROUNDS))
    schedule = sw.Geometric(min(tau, TAU0), growth=growth, maximum=tau)
    return _method(sw.SequentialPenalty([_at_floor()], schedule=schedule))


def _constant(tau: float, samples: int) -> Loss:
    return _method(sw.SequentialPenalty([_at_floor()], schedule=sw.Constant(tau)))


def _lagrangian(tau: float, samples: int) -> Loss:
    step = MULTIPLIER_STEP * tau
    return _method(
        sw.AugmentedLagrangian([_at_floor()], samples=samples, schedule=sw.Constant(tau), multiplier_step=step)
    )


def _one_multiplier(mean: float, samples: int) -> Loss:
    """One multiplier for the mean error, which moves in its logarithm (van Rozendaal et al., 2020)."""
    logarithm = torch.tensor(math.log(100.0))

    def of(costs: Costs, index: Tensor) -> Tensor:
        logarithm.add_(0.02 * (costs.error.detach().mean() / mean - 1).clamp(-1, 1))
        return (costs.bits + logarithm.exp() * costs.error).mean()

    return Loss(of)


def _cooper(coefficient: float, samples: int) -> Loss:
    """Cooper's augmented Lagrangian with a multiplier for each sample."""
    from cooper.cmp import CMPState, ConstrainedMinimizationProblem
    from cooper.constraints.constraint import Constraint
    from cooper.constraints.constraint_state import ConstraintState
    from cooper.formulations.formulations import AugmentedLagrangian
    from cooper.multipliers.multipliers import IndexedMultiplier
    from cooper.penalty_coefficients.penalty_coefficients import DensePenaltyCoefficient
    from cooper.utils.annotations import ConstraintType

    class Bits(ConstrainedMinimizationProblem):
        def __init__(self) -> None:
            super().__init__()
            self.floor = Constraint(
                constraint_type=ConstraintType.INEQUALITY,
                formulation_type=AugmentedLagrangian,
                multiplier=IndexedMultiplier(num_constraints=samples),
                penalty_coefficient=DensePenaltyCoefficient(torch.tensor(coefficient)),
            )

        def compute_cmp_state(self, costs: Costs, index: Tensor) -> CMPState:
            state = ConstraintState(violation=costs.error - 1 + MARGIN, constraint_features=index)
            return CMPState(loss=costs.bits.sum(), observed_constraints={self.floor: state})

    problem = Bits()
    dual = torch.optim.SGD(problem.dual_parameters(), lr=MULTIPLIER_STEP * coefficient, maximize=True)

    def of(costs: Costs, index: Tensor) -> Tensor:
        state = problem.compute_cmp_state(costs, index)
        dual.zero_grad()
        upward, downward = state.compute_dual_lagrangian().lagrangian, state.compute_primal_lagrangian().lagrangian
        assert upward is not None  # since there is a constraint
        assert downward is not None
        upward.backward()
        dual.step()
        for multiplier in problem.multipliers():
            multiplier.post_step_()
        return downward / len(index)  # Cooper sums over the batch

    return Loss(of)


def _conditioned(weight: float, samples: int) -> Loss:
    """A codec conditioned on the weight of the error: training draws weights, evaluation takes ``weight``."""
    drawn = torch.ones(1)

    def weights(count: int) -> Tensor:
        nonlocal drawn
        low, high = map(math.log, WEIGHTS)
        drawn = torch.exp(low + (high - low) * torch.rand(count))
        return drawn

    def of(costs: Costs, index: Tensor) -> Tensor:
        return ((costs.bits + drawn * costs.error) / drawn.sqrt()).mean()  # so that no weight outweighs the others

    return Loss(of, weights=weights)


class Kind(NamedTuple):
    """A kind of arm."""

    title: str
    """In tables."""
    knob: str
    """The meaning of its number."""
    tried: tuple[float, ...]
    """The numbers that the study tries, as many for each kind."""
    loss: Callable[[float, int], Loss] | None
    """Of knob and number of training samples; None for a whole run of ``fit``."""
    samples: int = TRAIN
    """Blocks to train on at most."""


TAUS, QUADRATIC_TAUS = (75.0, 150.0, 300.0, 600.0, 1200.0), (1000.0, 2500.0, 6000.0, 15000.0, 40000.0)
FIXED_WEIGHTS = (40.0, 70.0, 120.0, 200.0, 350.0)
KINDS = {
    "fixed": Kind("fixed weight on the error", "weight", FIXED_WEIGHTS, _fixed(1)),
    "square": Kind("fixed weight on its square", "weight", (15, 30, 60, 120, 240), _fixed(2)),
    "cube": Kind("fixed weight on its cube", "weight", (10, 20, 40, 80, 160), _fixed(3)),
    "fourth": Kind("fixed weight on its fourth power", "weight", (8, 15, 30, 60, 120), _fixed(4)),
    "eighth": Kind("fixed weight on its eighth power", "weight", (2, 5, 12, 30, 75), _fixed(8)),
    "conditioned": Kind("codec conditioned on its weight", "weight", FIXED_WEIGHTS, _conditioned),
    "rozendaal": Kind("one multiplier, on the mean error", "mean error", (0.5, 0.4, 0.3, 0.2, 0.12), _one_multiplier),
    "cooper": Kind("Cooper, augmented Lagrangian", "coefficient", QUADRATIC_TAUS, _cooper, VISITED),
    "lagrangian": Kind("`AugmentedLagrangian`", "tau", QUADRATIC_TAUS, _lagrangian, VISITED),
    "promise": Kind("`Promise`", "share", (0.9, 0.95, 0.98, 0.99, 0.995), None),
    "constant": Kind("linear penalty, tau constant", "tau", TAUS, _constant),
    "penalty": Kind("linear penalty, tau growing", "tau", TAUS, _penalty),
}


@dataclass(frozen=True)
class Arm:
    """One way to train: its kind and its number."""

    kind: str
    knob: float

    def __str__(self) -> str:
        return f"{self.kind}:{self.knob:.10g}"

    @classmethod
    def parse_all(cls, text: str) -> list[Self]:
        """An arm, or for ``kind:all`` all arms of that kind in the study."""
        kind, _, number = text.partition(":")
        if number == "all" and kind in KINDS:
            return [cls(kind, knob) for knob in KINDS[kind].tried]
        return [cls.parse(text)]

    @classmethod
    def parse(cls, text: str) -> Self:
        """An arm from ``kind:number``, such as ``penalty:300``."""
        kind, _, number = text.partition(":")
        if kind not in KINDS:
            raise ConfigurationError(f"expected an arm of {', '.join(KINDS)}, got {text!r}.{did_you_mean(kind, KINDS)}")
        try:
            knob = float(number)
        except ValueError:
            knob = math.nan
        if not 0 < knob < (1 if kind == "promise" else math.inf):
            raise ConfigurationError(f"expected {kind}:NUMBER, its {KINDS[kind].knob}, got {text!r}")
        return cls(kind, knob)

    @property
    def weight(self) -> float | None:
        """The weight that a conditioned codec gets at evaluation."""
        return self.knob if self.kind == "conditioned" else None


def train(arm: Arm, parts: Parts, floor: float, *, seed: int, steps: int = STEPS) -> Codec:
    """One run: the same first weights, optimiser and number of steps for every arm, and the same samples for most."""
    kind = KINDS[arm.kind]
    data = parts.train.pixels[: max(1, kind.samples // parts.train.pixels.shape[1])]
    torch.manual_seed(seed)
    codec = Codec(parts.train.pixels.reshape(-1, PIXELS)[:FIRST], floor, conditioned=arm.weight is not None)
    size = min(max(4, BATCH // data.shape[1]), len(data))
    optimise(codec, arm, data, parts, size=size, seed=seed, steps=steps)
    return codec.eval()


def optimise(codec: AnyCodec, arm: Arm, data: Tensor, parts: Parts, *, size: int, seed: int, steps: int) -> None:
    """Train a codec on ``data`` in batches of ``size``."""
    slow = codec.transforms()
    rest = [each for each in codec.parameters() if all(each is not other for other in slow)]
    groups = [{"params": slow, "lr": TRANSFORM_RATE}, {"params": rest, "lr": RATE}]
    optimizer = torch.optim.Adam(groups, fused=True)
    falling = OneCycleLR(optimizer, [TRANSFORM_RATE, RATE], total_steps=steps, pct_start=0.1)
    per_round, make_loss = max(1, steps // ROUNDS), KINDS[arm.kind].loss
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "tau of 'error' has reached its maximum")  # which is what the knob says
        if make_loss is not None:
            loss, order = make_loss(arm.knob, len(data)), torch.empty(0, dtype=torch.long)
            for step in range(1, steps + 1):
                if len(order) < size:
                    order = torch.randperm(len(data))  # and not after what is left: a batch has each sample once
                index, order = order[:size], order[size:]
                value = loss.of(code(codec, data[index], weight=loss.weights(size)), index)
                optimizer.zero_grad()
                value.backward()
                torch.nn.utils.clip_grad_norm_(codec.parameters(), CLIP)
                optimizer.step()
                falling.step()
                if step % per_round == 0:
                    loss.end_round()
            return
        # As many steps by ``fit`` with a promise; half of the tuning part tunes, the other half proves.
        trained, constraints = TensorDataset(parts.train.pixels), [_at_floor()]
        tune, prove = (TensorDataset(half) for half in parts.tune.pixels.chunk(2))
        sw.fit(
            sw.Problem(_evaluate, constraints),
            codec,
            DataLoader(trained, batch_size=size, sampler=RandomSampler(trained, num_samples=per_round * size)),
            method=sw.SequentialPenalty(constraints, schedule=sw.Constant(PROMISE_TAU0)),
            optimizer=optimizer,
            scheduler=(falling, "step"),
            epochs=min(steps, ROUNDS),
            clip_norm=CLIP,
            promise=sw.Promise(arm.knob, tune_on=tune, prove_on=prove),
            seed=seed,
            progress=False,
        )


def _evaluate(codec: AnyCodec, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    costs = code(codec, batch[0])
    return costs.bits, {CONSTRAINT: costs.error}


def code(codec: AnyCodec, samples: Tensor, *, level: float | None = None, weight: Tensor | None = None) -> Costs:
    """Code samples ``(B, n, pixels of a block)``: means over their blocks.

    ``level`` is a gain for all blocks in the place of what the codec chooses; a conditioned codec needs each sample's
    ``weight`` ``(B,)``.
    """
    count, each, _ = samples.shape
    levels = None if level is None else torch.full((count * each,), level, dtype=codec.mean.dtype)
    weights = None if weight is None else weight.to(codec.mean.dtype).repeat_interleave(each)
    coded = codec(samples.flatten(0, 1), levels, weights)
    return Costs(coded.bits.view(-1, each).mean(1), coded.error.view(-1, each).mean(1))


@torch.no_grad()
def measure(codec: AnyCodec, samples: Blocks, *, level: float | None = None, weight: float | None = None) -> Costs:
    """Costs of all samples, in one pass."""
    parts = samples.pixels.split(max(1, AT_ONCE // samples.pixels[0].numel()))
    found = [
        code(codec, part, level=level, weight=None if weight is None else torch.full((len(part),), weight))
        for part in parts
    ]
    return Costs(*(torch.cat(each) for each in zip(*found, strict=True)))


def measure_searched(codec: AnyCodec, samples: Blocks) -> Costs:
    """Costs with a search: of all gains the cheapest above the floor; the one of least error if none is above it.

    Of whole pictures all blocks have the same gain.
    """
    tried = [measure(codec, samples, level=float(level)) for level in range(LEVELS)]
    bits, errors = (torch.stack(each) for each in zip(*tried, strict=True))
    above = errors <= 1
    best = torch.where(above.any(0), torch.where(above, bits, math.inf).argmin(0), errors.argmin(0)).unsqueeze(0)
    return Costs(bits.gather(0, best)[0], errors.gather(0, best)[0])
