from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from samplewise.samples import source_of
from samplewise.training.batching import Part, epoch_order, plan_epoch


def present(part: Part) -> Tensor:
    return part.index if part.present is None else part.index[part.present]


@given(
    samples=st.integers(1, 60),
    batch_size=st.integers(1, 17),
    accumulate=st.integers(1, 4),
    world=st.integers(1, 4),
)
def test_every_sample_counts_once_and_the_gradient_is_that_of_the_whole_batch(
    samples: int, batch_size: int, accumulate: int, world: int
) -> None:
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(samples))
    plans = [
        plan_epoch(order, batch_size=batch_size, accumulate=accumulate, world=world, rank=rank) for rank in range(world)
    ]
    values = torch.arange(samples, dtype=torch.float64)
    for step, expected in enumerate(torch.split(order, batch_size)):
        parts = [part for plan in plans for part in plan[step]]
        assert sorted(torch.cat([present(part) for part in parts]).tolist()) == sorted(expected.tolist())
        assert len({len(part.index) for part in parts}) == 1, "processes must stay in step"
        assert all([part.last for part in plan[step]] == [False] * (accumulate - 1) + [True] for plan in plans)
        means = [values[present(part)].mean() if len(present(part)) else torch.zeros(()) for part in parts]
        total = sum(part.factor * mean for part, mean in zip(parts, means, strict=True)) / world
        torch.testing.assert_close(total, values[expected].mean())


@given(
    samples=st.integers(1, 60),
    batch_size=st.integers(1, 17),
    worlds=st.permutations([1, 2, 3, 4]),
    stops=st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)),
)
def test_an_epoch_that_goes_on_in_other_numbers_of_processes_sees_every_sample_once(
    samples: int, batch_size: int, worlds: list[int], stops: tuple[float, ...]
) -> None:
    feed = replace(source_of(TensorDataset(torch.arange(float(samples)))), shuffle=True)
    steps = -(-samples // batch_size)
    edges = [0, *sorted(int(stop * steps) for stop in stops), steps]
    seen: list[int] = []
    for world, start, end in zip(worlds, edges[:-1], edges[1:], strict=True):
        order = epoch_order(feed, seed=3, epoch=5)  # anew, as each resumed process makes it
        for rank in range(world):
            plan = plan_epoch(order, batch_size=batch_size, world=world, rank=rank)
            seen += [int(sample) for (part,) in plan[start:end] for sample in present(part)]
    assert sorted(seen) == list(range(samples))


def test_a_single_process_needs_no_padding() -> None:
    plan = plan_epoch(torch.arange(10), batch_size=4)
    assert [len(step[0].index) for step in plan] == [4, 4, 2]
    assert all(part.present is None and part.factor == 1.0 for step in plan for part in step)


def test_drop_last_leaves_out_only_a_smaller_step() -> None:
    assert len(plan_epoch(torch.arange(10), batch_size=4, drop_last=True)) == 2
    assert len(plan_epoch(torch.arange(8), batch_size=4, drop_last=True)) == 2
    assert plan_epoch(torch.arange(3), batch_size=4, drop_last=True) == []


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    feed = source_of(TensorDataset(torch.arange(50.0)))
    first = epoch_order(replace(feed, shuffle=True), seed=0, epoch=0)
    torch.manual_seed(1)
    assert torch.equal(first, epoch_order(replace(feed, shuffle=True), seed=0, epoch=0))
    assert not torch.equal(first, epoch_order(replace(feed, shuffle=True), seed=0, epoch=1))
    assert not torch.equal(first, epoch_order(replace(feed, shuffle=True), seed=1, epoch=0))
    assert torch.equal(epoch_order(feed, seed=0, epoch=0), torch.arange(50))


def test_a_sampler_of_ones_own_draws_the_same_again() -> None:
    sampler = WeightedRandomSampler([0.0, 1.0, 3.0], num_samples=20)
    feed = source_of(DataLoader(TensorDataset(torch.arange(3.0)), batch_size=2, sampler=sampler))
    first = epoch_order(feed, seed=0, epoch=0)
    assert torch.equal(first, epoch_order(feed, seed=0, epoch=0))
    assert not torch.equal(first, epoch_order(feed, seed=0, epoch=1))
    assert set(first.tolist()) == {1, 2}
