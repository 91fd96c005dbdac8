"""Objective and measures of every sample of a data set, as columns."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from samplewise.errors import ConfigurationError, MeasureError
from samplewise.problem import Evaluation, Problem, evaluation_mode, refuse_broadcast
from samplewise.samples import Feed, batch_size_of, in_order, to_device
from samplewise.storage import distributed
from samplewise.storage.sharding import has_shards

STRETCH = 2**20  # samples whose numbers are held at once
Visit = Callable[[Evaluation], object] | None


def check_given(problem: Problem, model: nn.Module, device: torch.device | None) -> torch.device:
    """Where to evaluate, where the model's parameters are if not given; or say what problem and model are instead."""
    for given, kind, what in ((problem, Problem, "a Problem"), (model, nn.Module, "the model as a torch.nn.Module")):
        if not isinstance(given, kind):
            raise ConfigurationError(
                f"expected {what}, got {type(given).__name__}: the arguments are problem, model, data, in this order"
            )
    return device or next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def evaluate_all(
    problem: Problem, model: nn.Module, feed: Feed, batch_size: int | None, device: torch.device, visit: Visit = None
) -> dict[str, Tensor]:
    """Objective (under the empty name) and measures of every sample in eval mode, on the CPU.

    Where samples have different numbers of values, or a mask leaves some out, NaN takes their place. ``visit`` gets the
    evaluation of each batch, with its graph. Under several processes each evaluates a part of the samples, and all get
    the whole.
    """
    length = feed.source.length
    mine = distributed.part_of(length)
    pieces: dict[str, list[Tensor]] = {}

    def keep(evaluation: Evaluation) -> None:
        if mine and visit is not None:
            visit(evaluation)
        for name, values in {"": evaluation.objective, **evaluation.measures}.items():
            found = values.detach().cpu()
            pieces.setdefault(name, []).append(found if found.is_floating_point() else found.float())

    for_each_batch(problem, model, feed, batch_size, device, keep, differentiable=visit is not None)
    return {name: _whole(name, parts, mine, length, device) for name, parts in pieces.items()}


def for_each_batch(
    problem: Problem,
    model: nn.Module,
    feed: Feed,
    batch_size: int | None,
    device: torch.device,
    visit: Callable[[Evaluation], object],
    *,
    differentiable: bool = False,
) -> None:
    """Evaluate this process's part of the samples in eval mode, each once and in order; ``visit`` gets each batch.

    A process without samples gets one, to know the shapes, which is not to count.
    """
    length, size = feed.source.length, batch_size_of(feed, batch_size)
    mine = distributed.part_of(length) or range(1)

    def first() -> Evaluation:
        return problem.evaluate(model, to_device(next(feed.source.batches([torch.arange(1)])), device))

    together = has_shards(model)  # then all processes must call the model, equally often
    calls = 0
    with evaluation_mode(model):
        one = first() if together else None
        # By stretches of whole batches, so that the numbers of all samples are never held at once.
        stretch = max(1, STRETCH // max(1, size)) * size or 1
        for start in range(mine.start, mine.stop, stretch):
            rows = range(start, min(start + stretch, mine.stop))
            for batch, index in in_order(feed, batch_size=size, device=device, rows=rows):
                with torch.set_grad_enabled(differentiable):
                    evaluation = problem.evaluate(model, batch, index.to(device))
                    evaluation.check_finite(problem.constraints)
                    if not calls:
                        refuse_broadcast(evaluation, first if one is None else lambda: one)
                    visit(evaluation)
                calls += 1
        if together:
            most = -(-length // distributed.replicas())  # samples of the first process, which no other has more of
            for _ in range(-(-most // size) - calls):
                first()


def _whole(name: str, parts: Sequence[Tensor], mine: range, length: int, device: torch.device) -> Tensor:
    """The column of all samples from the batches of ``mine``, as wide as the widest batch of any process."""
    several = parts[0].ndim > 1
    if sum(map(len, parts)) != max(len(mine), 1) or any((part.ndim > 1) is not several for part in parts):
        raise MeasureError(
            f"expected the measure {name!r} in every batch, either (B,) or (B, m) in all of them, got the shapes "
            f"{sorted({tuple(part.shape) for part in parts})} of {max(len(mine), 1)} samples"
        )
    width = torch.tensor(max(part.shape[1] if several else 1 for part in parts), device=device)
    # Every process fills rows of its own and leaves zeros elsewhere, so the sum is the whole: each sample counts once.
    column = parts[0].new_zeros((length, int(distributed.all_max_(width))) if several else length)
    start = mine.start
    for part in parts if mine else ():
        rows = column[start : start + len(part)]
        if several:
            rows[:, part.shape[1] :] = math.nan
            rows = rows[:, : part.shape[1]]
        rows.copy_(part)
        start += len(part)
    return distributed.all_sum_(column.to(device)).cpu() if distributed.replicas() > 1 else column
