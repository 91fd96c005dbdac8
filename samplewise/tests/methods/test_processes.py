"""Two processes give the rounds and the multipliers of one."""

from dataclasses import asdict
from typing import Any

import pytest
import torch
import torch.distributed as dist
from method_cases import METHODS, SAMPLES, batch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import samplewise as sw
from forked import two_processes
from samplewise.errors import CheckpointError, ConfigurationError, NotFiniteError, SampleIndexError
from samplewise.methods import base
from samplewise.storage import distributed

WORLD = 2
CONSTRAINTS: list[sw.Constraint] = [sw.AtMost("x", 1.0), sw.AtLeast("y", 0.7)]
NAMES = ["linear", "lagrangian", "slow lagrangian"]


def make(name: str) -> sw.Method:
    return METHODS[name](CONSTRAINTS, sw.FeasibilityDriven(2.0, growth=1.5, factor=0.99))


def call(method: sw.Method, i: int, rank: int, world: int) -> None:
    """The i-th batch, or this process's part of it. Batches of nine: the last part is padded."""
    objective, x, index = batch(9, seed=i)
    y = batch(9, seed=i + 100, width=2)[1]
    if world == 1:
        method(objective, x=x, y=y, index=index)
        return
    part = torch.arange(rank, 10, world) % 9
    weight = torch.ones(5)
    weight[-1] = float(rank == 0)  # the tenth sample is the first one again
    method(objective[part], x=x[part], y=y[part], index=index[part], sample_weight=weight)


def rounds(name: str, rank: int, world: int) -> tuple[sw.Method, list[dict[str, Any]]]:
    method, found = make(name), []
    for i in range(9):
        call(method, i, rank, world)
        if i % 3 == 2:
            found.append(asdict(method.step()) | {"taus": method.taus})
    return method, found


def interrupted(name: str, rank: int) -> sw.Round:
    """Save in the middle of a round, as a checkpoint does, and go on with what the first process saved."""
    method = make(name)
    call(method, 0, rank, WORLD)
    method.gather_()
    states = [{key: value.tolist() for key, value in method.state_dict().items() if "statistics" in key}]
    gathered: list[Any] = [None] * WORLD
    dist.all_gather_object(gathered, states[0])
    if rank == 0:
        assert gathered[0]["statistics.sums"][0] == 9
    assert not any(gathered[1]["statistics.sums"])
    assert method.trained_taus == method.taus  # in every process: the round is open, whoever keeps its sums
    call(method, 1, rank, WORLD)
    return method.step()


def errors(rank: int) -> list[str]:
    """What each process says when only one of them meets something bad."""
    said = []
    method = make("lagrangian")
    try:  # both hold sample 3
        method(torch.zeros(2), x=torch.zeros(2), y=torch.ones(2), index=torch.tensor([3, 10 + rank]))
    except SampleIndexError as error:
        said.append(str(error))
    method = make("linear")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "on_host", lambda values: False)  # as on an accelerator
        try:
            values = torch.zeros(2)
            values[1] = torch.nan if rank == 1 else 0.0
            method(values, x=torch.zeros(2), y=torch.ones(2), index=torch.tensor([2 * rank, 2 * rank + 1]))
            method.step()
        except NotFiniteError as error:
            said.append(str(error))
    return said


def work() -> dict[str, Any]:
    rank = dist.get_rank()
    assert (distributed.rank(), distributed.world_size()) == (rank, WORLD)
    report: dict[str, Any] = {
        "sum": distributed.all_sum_(torch.tensor([1.0 + rank])).tolist(),
        "max": distributed.all_max_(torch.tensor([1.0 + rank, -rank])).tolist(),
        "gather": distributed.all_gather(torch.tensor([[rank, 7]])).tolist(),
        "errors": errors(rank),
        "streamed": streamed(),
        "interrupted": asdict(interrupted("lagrangian", rank)),
        "rounds": {},
        "tables": {},
    }
    for name in NAMES:
        method, report["rounds"][name] = rounds(name, rank, WORLD)
        if isinstance(method, sw.AugmentedLagrangian):
            report["tables"][name] = dict(method.tables)
            report["shared out"] = shared_out(method)
    return report


def streamed() -> dict[str, Any]:
    """An audit of 41 samples in constant memory, as plain numbers."""

    def evaluate(model: nn.Module, batch: tuple[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return batch[0], {"x": batch[0]}

    data = TensorDataset(torch.rand(41, generator=torch.Generator().manual_seed(0)).round(decimals=1))
    found = sw.audit(
        sw.Problem(evaluate, [sw.AtMost("x", 0.6)]), nn.Identity(), data, keep_values=False, worst=9, batch_size=4
    )
    part = found["x"]
    numbers = {"violated": found.violated, "worst": part.worst, "upper": part.violation_rate_upper}
    sums = {"objective": found.objective, "total": part.total, "median": part.quantiles[0.5]}
    return {**numbers, **sums, **{f"worst {i}": sample for i, (sample, _) in enumerate(part.worst_violators(9))}}


def shared_out(method: sw.AugmentedLagrangian) -> dict[str, Any]:
    """What a process holds, and what is said where it is asked for more."""
    found: dict[str, Any] = {"held": len(method.get_buffer("stores.0.values")) - 1, "before": method.state_dict()}
    method.gather_()
    found["after"] = method.state_dict()
    x = torch.ones(SAMPLES)
    try:
        method.multipliers("x", x, torch.arange(SAMPLES))
    except ConfigurationError as error:
        found["alone"] = str(error)
    with method.gathered():
        found["multipliers"] = method.multipliers("x", x, torch.arange(SAMPLES))
    found["costs"] = method.costs("x", x)
    return found


@pytest.fixture(scope="module")
def reports() -> list[dict[str, Any]]:
    return two_processes(work)


def test_collective_operations(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        assert (report["sum"], report["max"], report["gather"]) == ([3.0], [2.0, 0.0], [[0, 7], [1, 7]])


def flat(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in flat(item, f"{path}/{key}").items()}
    return {path: value}


@pytest.mark.parametrize("name", NAMES)
def test_the_rounds_are_those_of_one_process(name: str, reports: list[dict[str, Any]]) -> None:
    _, expected = rounds(name, 0, 1)
    for report in reports:
        for found, one in zip(report["rounds"][name], expected, strict=True):
            assert flat(found) == pytest.approx(flat(one), rel=1e-5)
            assert found["samples"] == 27  # padding counts once


@pytest.mark.parametrize("name", NAMES[1:])
def test_the_multipliers_are_those_of_one_process(name: str, reports: list[dict[str, Any]]) -> None:
    method, _ = rounds(name, 0, 1)
    assert isinstance(method, sw.AugmentedLagrangian)
    first, second = (report["tables"][name] for report in reports)
    for key, table in method.tables.items():
        assert torch.equal(first[key], second[key])
        torch.testing.assert_close(first[key], table)


def test_an_audit_in_stream_is_that_of_one_process(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        assert report["streamed"] == pytest.approx(streamed(), rel=1e-12)


def test_each_process_holds_its_part_and_the_first_tells_the_whole(reports: list[dict[str, Any]]) -> None:
    alone, _ = rounds(NAMES[-1], 0, 1)
    x = torch.ones(SAMPLES)
    first, second = (report["shared out"] for report in reports)
    for found in (first, second):
        assert found["held"] == SAMPLES / WORLD
        assert "method.gathered() in every process" in found["alone"]
        torch.testing.assert_close(found["multipliers"], alone.multipliers("x", x, torch.arange(SAMPLES)))
        torch.testing.assert_close(found["costs"], alone.costs("x", x))
        with pytest.raises(CheckpointError, match=r"gather_\(\)"):
            make(NAMES[-1]).load_state_dict(found["before"])
    resumed = make(NAMES[-1])
    resumed.load_state_dict(first["after"])
    assert isinstance(resumed, sw.AugmentedLagrangian)
    assert isinstance(alone, sw.AugmentedLagrangian)
    torch.testing.assert_close(resumed.tables, alone.tables)


def test_a_round_that_is_saved_in_its_middle_ends_the_same(reports: list[dict[str, Any]]) -> None:
    method = make("lagrangian")
    for i in range(2):
        call(method, i, 0, 1)
    expected = flat(asdict(method.step()))
    for report in reports:
        assert flat(report["interrupted"]) == pytest.approx(expected, rel=1e-5)


def test_all_processes_raise_what_one_of_them_met(reports: list[dict[str, Any]]) -> None:
    first, second = reports
    assert first["errors"] == second["errors"]
    assert "got the sample index 3 twice" in first["errors"][0]
    assert "the objective is not finite for 1 sample at step 0 (sample index: 3)" in first["errors"][1]
