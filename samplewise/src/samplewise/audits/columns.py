"""A model evaluated on every sample of a data set, batch by batch or as columns."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from samplewise.errors import ConfigurationError, DataError, MeasureError
from samplewise.problem import Evaluation, Problem, evaluation_mode, refuse_broadcast
from samplewise.samples import (
    Feed,
    batch_size_of,
    in_order,
    loader_like,
    mix,
    seeded_batches,
    source_of,
    stream_loader,
    stream_of,
    to_device,
)
from samplewise.storage import distributed
from samplewise.storage.sharding import has_shards

STRETCH = 2**20  # samples whose indices are held at once
Visit = Callable[[Evaluation], object]


def check_given(problem: Problem, model: nn.Module, device: torch.device | None = None) -> torch.device:
    """The device to evaluate on, that of the model's parameters if not given; refuses arguments of other types."""
    for given, kind, what in ((problem, Problem, "a Problem"), (model, nn.Module, "the model as a torch.nn.Module")):
        if not isinstance(given, kind):
            raise ConfigurationError(
                f"expected {what}, got {type(given).__name__}: the arguments are problem, model, data, in this order"
            )
    return device or next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def source_to_audit(data: Any, batch_size: int | None) -> Feed | DataLoader[Any]:
    """The samples of ``data`` by index or, for a stream, its loader; the default batch size is 256."""
    if (loader := stream_loader(data)) is None:
        return source_of(data)
    size = batch_size or (loader.batch_size if loader is data else 256)
    if size is None or distributed.world_size() > 1:
        raise ConfigurationError(
            f"expected a stream as a DataLoader with a batch_size, in one process, got batch_size={size} in "
            f"{distributed.world_size()}: give batch_size=..., or a data set whose samples have numbers"
        )
    return stream_of(loader, size)


def evaluate_all(
    problem: Problem,
    model: nn.Module,
    data: Feed | DataLoader[Any],
    batch_size: int | None,
    device: torch.device,
    visit: Visit | None = None,
) -> dict[str, Tensor]:
    """Objective (under the empty name) and measures of every sample in eval mode, on the CPU.

    Where samples have different numbers of values, or a mask leaves some out, NaN takes their place. ``visit`` gets the
    evaluation of each batch, with its graph. Under several processes each evaluates a part of the samples, and all get
    the whole columns.
    """
    pieces: dict[str, list[Tensor]] = {}

    def keep(evaluation: Evaluation, counts: bool) -> None:
        if counts and visit is not None:
            visit(evaluation)
        for name, values in {"": evaluation.objective, **evaluation.measures}.items():
            found = values.detach().cpu()
            pieces.setdefault(name, []).append(found if found.is_floating_point() else found.float())

    samples = for_each_batch(problem, model, data, batch_size, device, keep, differentiable=visit is not None)
    mine = distributed.part_of(samples)
    return {name: _column(name, parts, mine, samples, device) for name, parts in pieces.items()}


def for_each_batch(
    problem: Problem,
    model: nn.Module,
    data: Feed | DataLoader[Any],
    batch_size: int | None,
    device: torch.device,
    visit: Callable[[Evaluation, bool], object],
    *,
    differentiable: bool = False,
) -> int:
    """Evaluate this process's part of the samples in eval mode, once and in order; returns the number of all.

    ``visit`` gets the evaluation of each batch, and whether its samples count: a process without samples evaluates the
    first one, to know names and shapes. ``data`` may be the DataLoader of a stream, an IterableDataset.
    """
    # With shards of the model in all processes, all of them must call it, equally often. A stream has one process.
    together = has_shards(model) and not isinstance(data, DataLoader)

    def first() -> Evaluation:
        if isinstance(data, DataLoader):
            _, one = next(iter(loader_like(data, data.dataset, batch_size=1)))
        else:
            one = next(data.source.batches([torch.arange(1)]))
        return problem.evaluate(model, to_device(one, device))

    calls = seen = 0
    with evaluation_mode(model):
        alone = first() if together else None
        for batch, index, counts in _own_batches(data, batch_size):
            with torch.set_grad_enabled(differentiable):
                evaluation = problem.evaluate(model, to_device(batch, device), index.to(device))
                evaluation.check_finite(problem.constraints)
                if not calls:
                    refuse_broadcast(evaluation, first if alone is None else lambda: alone)
                visit(evaluation, counts)
            calls, seen = calls + 1, seen + len(index)
        if isinstance(data, DataLoader):
            if not calls:
                raise DataError(f"the stream {type(data.dataset).__name__} gave no sample: expected at least one")
            return seen
        length = data.source.length
        if together:
            most = -(-length // distributed.replicas())  # samples of the first process, which no other has more of
            for _ in range(-(-most // batch_size_of(data, batch_size)) - calls):
                first()
        return length


def _own_batches(feed: Feed | DataLoader[Any], batch_size: int | None) -> Iterator[tuple[Any, Tensor, bool]]:
    """The batches of this process's part, with their samples' indices and whether they count."""
    if isinstance(feed, DataLoader):
        yield from ((*each, True) for each in seeded_batches(feed, mix("audit")))
        return
    size, own = batch_size_of(feed, batch_size), distributed.part_of(feed.source.length)
    rows = own or range(1)
    # By stretches of whole batches, so that the indices of all samples are never held at once.
    stretch = max(1, STRETCH // max(1, size)) * size or 1
    for start in range(rows.start, rows.stop, stretch):
        some = range(start, min(start + stretch, rows.stop))
        for batch, index in in_order(feed, batch_size=size, rows=some):
            yield batch, index, bool(own)


def _column(name: str, parts: Sequence[Tensor], mine: range, length: int, device: torch.device) -> Tensor:
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
