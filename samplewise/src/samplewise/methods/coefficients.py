"""The penalty coefficients: tau and margin of each constraint, how they change by rounds, and the first tau."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from samplewise.constraints import Constraint, ViolationStats, may_violate
from samplewise.errors import ConfigurationError
from samplewise.methods.statistics import TINY, FullPrecision, Histogram, fit_optional_
from samplewise.schedules import AUTO, Schedule
from samplewise.storage import distributed

MET = 3  # rounds in a row that a constraint must be met for its tau to be kept: one may be luck
LEAD = 3.0
"""Rounds ahead for which the quantile of g at the share is foreseen when tau follows it: tau changes how fast the
weights move rather than where they are, so without it tau would swing. This and the next two were chosen on one weight,
by ``benchmarks/exact_shares.py``."""
HORIZON = 20.0
"""Rounds within which weights that move towards the bound are waited for before tau falls."""
WIDTH = 0.3
"""The fraction of the samples allowed to violate whose spread of g is the unit of how far off a quantile is."""
SLACK = 2.0
"""How far beyond the quantile of its share a sample's g must be to get no penalty, in distances between that quantile
and the median of the samples within it. Without slack the share is missed: nothing would hold the weights there."""
UNKNOWN = [math.inf, math.inf, math.nan, 0.0, 0.0]  # what is known of a share before the first round
BATCHES = 16
"""Number of batches that tau0 is estimated from, if the first round has so many."""
START = 0.55
"""tau0 over the weight at which both gradients have the same norm: the objective leads at first, and tau grows. Chosen
by measurement: so the digits, MNIST and the watermark start within a factor of ten of what was chosen by hand."""


class Coefficients(FullPrecision):
    """tau and margin of each constraint, in the constraints' order. A schedule is a rule; its state is here.

    With ``follow_shares`` the tau of a constraint with a share below 1 follows that share both ways, and samples beyond
    a limit of g get no penalty.
    """

    def __init__(
        self, constraints: Sequence[Constraint], schedules: Sequence[Schedule], follow_shares: bool = False
    ) -> None:
        super().__init__()
        self.shared = [i for i, each in enumerate(constraints) if follow_shares and each.share < 1]
        self.constraints, self.schedules = tuple(constraints), tuple(schedules)
        taus = torch.tensor([schedule.first for schedule in schedules], dtype=torch.float64)
        self.rounds = nn.Buffer(torch.zeros((), dtype=torch.int64))  # that are complete
        self.taus = nn.Buffer(taus)
        self.margins = nn.Buffer(taus.new_tensor([each.margin for each in constraints]))
        # Of the last round that had samples: tau (0 before the first tau is known), and the fields of ViolationStats.
        self.last = nn.Buffer(torch.cat([taus.nan_to_num().unsqueeze(1), taus.new_zeros(len(taus), 4)], dim=1))
        self.growth_count = nn.Buffer(torch.zeros(len(taus), dtype=torch.int64))  # rounds after which tau could grow
        self.met_count = nn.Buffer(torch.zeros(len(taus), dtype=torch.int64))  # last rounds in a row that met it
        self.steered = nn.Buffer(torch.zeros((), dtype=torch.bool))  # whether steer_ sets tau and margin
        self.gains = nn.Buffer(torch.zeros_like(taus))  # of what steers: how fast, below zero where tau fell last
        self.edge = nn.Buffer(taus.new_tensor(math.inf))  # and how far the share was from its bounds
        if self.shared:
            # The limit of g beyond which a sample gets no penalty; that of the round before; in the last round the
            # quantile of g at the share; the last logarithm but zero that tau was to move by; its changes of sign.
            self.shares = nn.Buffer(taus.new_tensor([UNKNOWN] * len(taus)))
        self.initial = InitialTau(len(taus))
        self.auto = [i for i, schedule in enumerate(schedules) if schedule.tau0 == AUTO]
        # What every step asks for, as plain values: read from the tensors whenever these change.
        self.is_steered, self.estimating = False, bool(self.auto)
        self.tau_values, self.margin_values = self.taus.tolist(), self.margins.tolist()
        self.limit_values = [math.inf] * len(taus)
        # The function, not the bound method: a copy of this module refreshes itself.
        self.register_load_state_dict_post_hook(Coefficients._refresh_)  # type: ignore[no-untyped-call]

    def _refresh_(self, *_: object) -> None:
        self.tau_values, self.margin_values = self.taus.tolist(), self.margins.tolist()
        if self.shared:
            self.limit_values = self.shares[:, 0].tolist()
        self.is_steered = bool(self.steered)
        complete = self.initial.complete(int(self.rounds))
        self.estimating = bool(self.auto) and not self.is_steered and not complete

    def rules(self) -> list[Schedule]:
        """The schedules, with the estimated tau0 in place of ``"auto"`` where there is one."""
        rules = list(self.schedules)
        for i in self.auto:
            if not math.isnan(tau0 := self.initial.tau0(i)):
                given = rules[i].first  # NaN where it is "auto"
                rules[i] = rules[i].starting_at(min(tau0, tau0 if math.isnan(given) else given))
        return rules

    def cap_(self) -> None:
        """Begin with a tau0 that was given only if it is not above the estimate.

        Adam remembers the squares of the first gradients for thousands of steps: after a first tau that is far too
        large its steps stay small.
        """
        self.auto = list(range(len(self.constraints)))
        self._refresh_()

    def estimate_tau0_(self, objective: Tensor, costs: Iterable[tuple[int, Tensor, Tensor]]) -> None:
        """Set tau0 where it is ``"auto"``, from one batch more; the arguments are those of :meth:`InitialTau.add_`."""
        try:
            self.initial.add_(objective, costs)
        except ConfigurationError:
            self.auto = [i for i, schedule in enumerate(self.schedules) if schedule.tau0 == AUTO]
            if self.auto:
                raise
        for i, rule in enumerate(self.rules()):
            self.taus[i] = rule.first
        self._refresh_()

    def step_(self, round_stats: Iterable[ViolationStats], histograms: Mapping[int, Histogram]) -> None:
        """End a round with the violation statistics of each constraint: tau changes by the schedules.

        ``histograms`` are those of the constraints whose share is followed.
        """
        self.rounds.add_(1)
        for i, (rule, now) in enumerate(zip(self.rules(), round_stats, strict=True)):
            tau, (_, before) = float(self.taus[i]), self.last_round(i)
            if now.samples:
                self.met_count[i] = int(self.met_count[i]) + 1 if now.met else 0
                self.last[i] = self.last.new_tensor([tau, now.samples, now.violated, now.total, now.worst])
            if i in histograms:
                if now.samples and not self.is_steered:
                    self._follow_share_(i, rule, histograms[i], now, before)
            elif not self.is_steered and (int(self.met_count[i]) < MET or self.constraints[i].margin):
                self.growth_count[i] += 1
                self.taus[i] = rule.following(tau, int(self.growth_count[i]), now, before)
        self._refresh_()

    def _follow_share_(
        self, i: int, rule: Schedule, spread: Histogram, now: ViolationStats, before: ViolationStats | None
    ) -> None:
        """Move tau towards the value at which just the share is met, and drop outliers' penalty in the next round.

        The share is met where the quantile of g at the share is at most 0. tau moves by how far from 0 that will be
        some rounds ahead, on a logarithmic scale: at most one of the schedule's growth up and two down, over the root
        of how often it changed its direction (Kesten, 1958), so that it settles. It does not fall while
        the share is not met, nor if it would not be met within ``HORIZON`` rounds. g is of the bound with its margin.
        """
        limit, _, last, side, turns = self.shares[i].tolist()
        tau, allowed = float(self.taus[i]), may_violate(spread.samples, self.constraints[i].share)
        kept = spread.samples - allowed
        quantile = spread.smallest(kept)
        speed = 0.0 if math.isnan(last) else quantile - last
        few = min(math.ceil(WIDTH * allowed), kept - 1)
        # The smaller spread of two, since one side may be outliers; not zero, for samples that are all alike.
        unit = min(spread.smallest(kept + few) - quantile, quantile - spread.smallest(kept - few))
        unit = max(unit, abs(quantile) / 1e3, 2.0**-TINY)
        off = (quantile + LEAD * speed) / unit
        ahead = math.copysign(math.log1p(abs(off)), off)
        if ahead < 0 and (max(quantile, quantile + HORIZON * speed) > 0 or not allowed):
            ahead = 0.0
        turns += side * ahead < 0
        if ahead > 0 or int(self.met_count[i]) >= MET:  # that few are violated at first may be luck
            self.growth_count[i] += 1
            gain = max(1.0, turns) ** -0.5
            self.taus[i] = rule.towards_share(tau, int(self.growth_count[i]), ahead, gain, now, before)
        beyond = max(0.0, quantile)
        distance = beyond - spread.smallest((kept + 1) // 2)
        further = beyond + SLACK * distance if allowed and distance > 0 else math.inf
        self.shares[i] = self.shares.new_tensor([further, limit, quantile, ahead or side, turns])

    def steer_(
        self,
        taus: Mapping[str, float],
        margins: Mapping[str, float],
        gains: Mapping[str, float] | None = None,
        edge: float = math.inf,
    ) -> None:
        """Set tau and margin of every constraint, and what steers next; the schedules have no effect from now on."""
        for i, each in enumerate(self.constraints):
            self.taus[i], self.margins[i] = taus[each.name], margins[each.name]
            self.gains[i] = 0.0 if gains is None else gains[each.name]
        self.edge.fill_(edge)
        self.steered.fill_(True)
        if self.shared:
            self.shares[:, :2] = math.inf
        self._refresh_()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        fresh = self.taus.new_tensor([UNKNOWN] * len(self.taus)) if self.shared else None
        fit_optional_(state_dict, prefix + "shares", fresh)
        fit_optional_(state_dict, prefix + "edge", self.taus.new_tensor(math.inf))
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def gain(self, name: str) -> float:
        """How fast a constraint's tau is steered, negative if it fell last; zero if it was never steered."""
        return self.named(self.gains)[name]

    def last_round(self, i: int) -> tuple[float, ViolationStats | None]:
        """The tau and the violation statistics of constraint i in the last round that had samples."""
        tau, samples, violated, total, worst = self.last[i].tolist()
        stats = ViolationStats(int(samples), int(violated), total, worst, share=self.constraints[i].share)
        return tau, stats if samples else None

    def at_maximum(self) -> list[str]:
        """The constraints that were not met in the last round although tau was at its maximum."""
        last = map(self.last_round, range(len(self.constraints)))
        return [
            constraint.name
            for constraint, rule, (tau, stats) in zip(self.constraints, self.rules(), last, strict=True)
            if stats is not None and rule.exhausted(tau, stats)
        ]

    def named(self, values: Tensor) -> dict[str, float]:
        """One value of each constraint, by its name."""
        return {constraint.name: value for constraint, value in zip(self.constraints, values.tolist(), strict=True)}


class InitialTau(FullPrecision):
    """Estimates tau0 of each constraint from the gradients of the first batches of training.

    A batch, of all processes together, gives the ratio ``|grad f| / |grad p|`` of the mean objective f and the mean
    penalty p at tau = 1 over the violated samples. Where no sample is violated, p is taken over all of them, as if each
    were violated by its distance from the bound. The gradients are those of the weights that both depend on: on others
    the two do not compete. tau0 is ``START`` times the geometric mean over batches.
    """

    def __init__(self, constraints: int) -> None:
        super().__init__()
        self.sums = nn.Buffer(torch.zeros(constraints, 2, dtype=torch.float64))  # of the logarithms, and their number
        self.batches = nn.Buffer(torch.zeros((), dtype=torch.int64))

    def complete(self, rounds: int) -> bool:
        """Whether the estimate is final after ``rounds`` rounds: tau0 must not change once tau grew."""
        return int(self.batches) >= BATCHES or (rounds > 0 and int(self.batches) > 0)

    def tau0(self, i: int) -> float:
        """The estimate for constraint i; 1 if no batch had a usable ratio, NaN if there was no batch."""
        total, count = self.sums[i].tolist()
        return START * math.exp(total / count) if count else 1.0 if int(self.batches) else math.nan

    def add_(self, objective: Tensor, costs: Iterable[tuple[int, Tensor, Tensor]]) -> None:
        """Add a batch: its ``objective``, and of constraints i the penalty and the violation mask, ``(B,)`` each.

        Every process must call; absent samples are left out.
        """
        for i, cost, violated in costs:
            counts = self.sums.new_tensor([len(objective), len(cost), int(violated.sum())])
            samples, bounded, few = distributed.all_sum_(counts).tolist()
            penalty, over = (cost[violated], few) if few else (cost, bounded)
            ratio = _ratio(objective.sum(), penalty.sum()) * over / max(1.0, samples)
            if 0 < ratio < math.inf:
                self.sums[i] += self.sums.new_tensor([math.log(ratio), 1.0])
        self.batches.add_(1)


def _ratio(objective: Tensor, penalty: Tensor) -> float:
    """``|grad objective| / |grad penalty|`` over the weights that both depend on, or over all if there are none.

    The gradients are summed over the processes; a sum of no samples still says what it would depend on. A wrapper such
    as DDP joins all weights to all outputs: those without effect have a gradient of zero.
    """
    first, second = _leaves(objective), _leaves(penalty)
    common = [leaf for leaf in first if leaf in second]
    try:
        sizes = [_squared_norms(value, common or [*first, *second]) for value in (objective, penalty)]
    except RuntimeError as error:
        raise ConfigurationError(
            "tau0='auto' needs the separate gradients of objective and constraint in the first batches, and they "
            f"cannot be computed here: give tau0 as a number ({' '.join(str(error).split())})"
        ) from error
    pairs = [both for both in zip(*sizes, strict=True) if not common or min(both) > 0]
    above, below = (sum(each) for each in zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
    return math.sqrt(above / below) if below else 0.0


def _squared_norms(value: Tensor, leaves: Sequence[Tensor]) -> list[float]:
    """Those of the gradients by each of the leaves."""
    if not value.requires_grad:
        return [0.0] * len(leaves)
    parts = torch.autograd.grad(value, leaves, retain_graph=True, allow_unused=True, materialize_grads=True)
    # Copies, since a gradient may share its memory with the graph, and exchanged ones are changed in place.
    own = (part.detach().double().clone(memory_format=torch.contiguous_format) for part in parts)
    return [float(distributed.all_sum_(part).square().sum()) for part in own]


def _leaves(value: Tensor) -> dict[Tensor, None]:
    """The trained tensors that a value was computed from, in order of discovery."""
    if value.grad_fn is None:
        return {value: None} if value.requires_grad else {}
    found: dict[Tensor, None] = {}
    ahead, seen = [value.grad_fn], {value.grad_fn}
    while ahead:
        node = ahead.pop()
        if type(node).__name__ == "AccumulateGrad":
            found[node.variable] = None  # type: ignore[attr-defined]  # which such a node has
        for after, _ in node.next_functions:
            if after is not None and after not in seen:
                seen.add(after)
                ahead.append(after)
    return found
