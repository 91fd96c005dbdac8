"""Training on a stream: the steps are those of a data set with numbers, and a resumed run goes on where it was."""

import contextlib
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import samplewise as sw
from samplewise.errors import ConfigurationError, DataError
from samplewise.report.fits import read_fit
from samplewise.stopping import GradientRule
from samplewise.storage import distributed
from samplewise.training.batching import Stream
from samplewise.training.state import RunState
from small import At, fit, interrupt, make_data, make_method, make_model, make_problem, same_weights

Sample = tuple[Tensor, Tensor]


class Rows(IterableDataset[Sample]):
    """The rows of the small problem in order, those of a worker its own; from another one on in every epoch."""

    def __init__(self, samples: int = 200) -> None:
        self.data, self.epoch, self.told = make_data(samples), 0, list[int]()

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.told.append(epoch)

    def __iter__(self) -> Iterator[Sample]:
        info = get_worker_info()
        first, workers = (0, 1) if info is None else (info.id, info.num_workers)
        for row in range(first, len(self.data), workers):
            yield self.data[(row + 7 * self.epoch) % len(self.data)]


class Drawn(IterableDataset[Sample]):
    """Samples without end, by all three random generators."""

    def __iter__(self) -> Iterator[Sample]:
        while True:
            x = torch.randn(10) + 0.1 * random.random() + 0.1 * float(np.random.rand())
            yield x, (x[0] + x[1] > 0).long()


def run(data: Any, folder: Path | None = None, *, dropout: float = 0.2, **options: Any) -> sw.Solution:
    size = None if isinstance(data, DataLoader) else 32
    given = {"batch_size": size, "audit_on": {"test": make_data(51, seed=1)}, **options}
    return fit(None, make_model(dropout=dropout), data, checkpoint=folder, **given)


def rows(solution: sw.Solution) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in solution.history.rows]


class Fixed(Rows):
    """The same order in every epoch."""

    def set_epoch(self, epoch: int) -> None:
        self.told.append(epoch)


@pytest.mark.parametrize("kind", ["sequential", "unconstrained"])
@pytest.mark.parametrize("accumulate", [1, 4])  # the last step has eight samples: one micro-batch of four
def test_a_stream_gives_what_the_data_set_gives(kind: str, accumulate: int) -> None:
    options: dict[str, Any] = {"dropout": 0.0, "accumulate": accumulate}
    streamed = run(DataLoader(Fixed(), batch_size=32), method=make_method(kind), **options)
    numbered = run(DataLoader(make_data(), batch_size=32), method=make_method(kind), **options)
    torch.testing.assert_close(dict(streamed.model.state_dict()), dict(numbered.model.state_dict()))
    for ours, theirs in zip(rows(streamed), rows(numbered), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-5)


def test_the_first_tau_is_found_from_a_stream_too() -> None:
    def found(data: Any) -> float:
        method = sw.SequentialPenalty(make_problem().constraints, schedule=sw.Geometric("auto", growth=1.1))
        run(DataLoader(data, batch_size=32), method=method, dropout=0.0)
        return method.tau0s["reconstruction"]

    assert found(Fixed()) == pytest.approx(found(make_data()))


def test_each_pass_is_told_its_number_and_an_epoch_of_steps_goes_on_in_it() -> None:
    whole, parts = Rows(), Rows()
    run(whole, epochs=4)
    assert whole.told == [0, 1, 2, 3]
    run(parts, epochs=4, steps_per_epoch=3)  # of the seven in a pass
    assert parts.told == [0, 1]


def read(stream: Stream, state: RunState) -> list[list[int]]:
    """The rows of each step that is left of an epoch."""
    table = make_data().tensors[0]
    found = []
    for step in stream.steps_left(state):
        rows = torch.cat([batch[0] for _, batch in step])
        found.append([int((table == row).all(1).nonzero()) for row in rows])
    return found


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("steps_per_epoch", [None, 3, 16])
def test_wherever_a_run_goes_on_it_reads_what_it_would_have(workers: int, steps_per_epoch: int | None) -> None:
    make = partial(Stream, size=32, accumulate=2, seed=0, steps_per_epoch=steps_per_epoch)
    whole, steps, epochs = make(DataLoader(Rows(), batch_size=32, num_workers=workers)), 0, []
    for epoch in range(3):
        epochs.append(read(whole, RunState(3, epoch=epoch, steps=steps)))
        steps += len(epochs[-1])
    flat = [row for each in epochs for step in each for row in step]
    assert sorted(flat[:200]) == list(range(200)), "in one pass every sample comes once"
    for epoch, step in ((0, 2), (1, 1), (2, len(epochs[2]))):
        before = sum(map(len, epochs[:epoch])) + step
        resumed = make(DataLoader(Rows(), batch_size=32, num_workers=workers))
        assert read(resumed, RunState(3, epoch=epoch, step=step, steps=before)) == epochs[epoch][step:]


@pytest.mark.parametrize(
    ("make", "workers", "steps_per_epoch"), [(Rows, 0, None), (Rows, 0, 3), (Drawn, 0, 5), (Drawn, 2, 5)]
)
def test_a_resumed_run_ends_with_the_same_bits(
    make: type[IterableDataset[Sample]], workers: int, steps_per_epoch: int | None, tmp_path: Path
) -> None:
    def go(folder: str, at: int = -1) -> sw.Solution:
        data = DataLoader(make(), batch_size=32, num_workers=workers)
        options: dict[str, Any] = {"steps_per_epoch": steps_per_epoch, "checkpoint_steps": 2, "warmup_epochs": 1}
        return run(data, tmp_path / folder, epochs=2, auxiliary=At(at, interrupt), **options)

    whole = go("whole")
    for at in (3, 4):
        with contextlib.suppress(KeyboardInterrupt):  # and forgotten, so that its workers end
            go("resumed", at)
            pytest.fail("it was to end in the middle")
    torch.manual_seed(5)  # a resumed run depends on its seed alone
    resumed = go("resumed")
    assert same_weights(resumed.model, whole.model)
    assert rows(resumed) == rows(whole)


def test_the_callers_random_generators_are_left_alone() -> None:
    stream = Stream(DataLoader(Drawn()), size=4, accumulate=1, seed=0, steps_per_epoch=3)
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    list(stream.steps_left(RunState(1)))
    found = float(torch.rand(1)), float(np.random.rand()), random.random()
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    assert found == (float(torch.rand(1)), float(np.random.rand()), random.random())


def test_what_is_drawn_depends_on_the_seed() -> None:
    def first(seed: int) -> Tensor:
        stream = Stream(DataLoader(Drawn()), size=4, accumulate=1, seed=seed, steps_per_epoch=2)
        ((_, (drawn, *_)), *_), *_ = stream.steps_left(RunState(1))
        assert isinstance(drawn, Tensor)
        return drawn

    assert torch.equal(first(0), first(0))
    assert not torch.equal(first(0), first(1))


@pytest.mark.parametrize(("accumulate", "sizes"), [(1, [32] * 6), (2, [32] * 6), (4, [32] * 6)])
def test_a_smaller_last_step_is_dropped_where_the_loader_says_so(accumulate: int, sizes: list[int]) -> None:
    loader = DataLoader(Fixed(), batch_size=32, drop_last=True)
    stream = Stream(loader, size=32, accumulate=accumulate, seed=0, steps_per_epoch=None)
    assert [sum(len(part.index) for part, _ in step) for step in stream.steps_left(RunState(1))] == sizes


def test_the_report_of_a_run_says_that_it_was_a_stream(tmp_path: Path) -> None:
    run(Rows(), tmp_path)
    (report,) = read_fit(tmp_path) or ()
    assert report.problem == "Minimise the mean objective over a stream of training samples"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"method": make_method("lagrangian")}, "AugmentedLagrangian keeps a state for each sample.*SequentialPenalty"),
        ({"audit_on": None}, "audit_on is missing"),
        ({"explain_infeasibility": True}, "explain_infeasibility"),
        ({"audit_on": {"test": Rows()}}, "IterableDataset"),
        ({"round_rule": GradientRule(0.1)}, "round_rule"),
        ({"accumulate": 3}, "batch_size=32 is no multiple of accumulate=3"),
        ({"batch_size": None}, "batch_size is missing"),
        ({"data": DataLoader(Rows(), batch_size=None), "batch_size": 32}, "a DataLoader with a batch_size"),
        ({"data": make_data(), "steps_per_epoch": 3}, "steps_per_epoch is for a stream"),
        ({"steps_per_epoch": 0}, "steps_per_epoch as a whole number >= 1"),
    ],
)
def test_what_a_stream_cannot_do_is_said_at_once(options: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigurationError, DataError), match=complaint):
        run(**{"data": Rows(), **options}, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Once(Rows):
    """Hands out one iterator, and no other."""

    def __init__(self) -> None:
        super().__init__()
        self.only = super().__iter__()

    def __iter__(self) -> Iterator[Sample]:
        return self.only


@pytest.mark.parametrize(("stream", "number"), [(Rows(0), 1), (Once(), 2)])
def test_a_pass_without_a_sample_is_said(stream: Rows, number: int) -> None:
    with pytest.raises(DataError, match=f"{type(stream).__name__} .* pass {number}"):
        run(stream)


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    with pytest.raises(ConfigurationError, match="one process"):
        run(Rows())
