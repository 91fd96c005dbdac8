"""The state: whole, exact, and refused where it does not belong."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from method_cases import METHODS, SAMPLES, Make, batch
from safetensors.torch import load_file, save_file

import samplewise as sw
from samplewise.errors import CheckpointError

every_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS.keys())
CONSTRAINTS: list[sw.Constraint] = [sw.AtMost("x", 1.0), sw.AtLeast("y", 0.7)]
SCHEDULES: list[sw.Schedule] = [
    sw.Geometric(1.0, growth=1.5, every=2, maximum=4.0),
    sw.FeasibilityDriven(1.0, growth=3.0, factor=0.99),
]
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: type(schedule).__name__)


def run(method: sw.Method, calls: range, width: int | None = None) -> list[object]:
    """Losses of the calls, with the rounds that end after every third."""
    trace: list[object] = []
    for i in calls:
        objective, x, index = batch(8, seed=i)
        trace.append(method(objective, x=x, y=batch(8, seed=i + 100, width=width)[1], index=index).item())
        if i % 3 == 2:
            trace.append(method.step())
            trace.append(method.taus)
    return trace


@every_method
@every_schedule
@pytest.mark.parametrize("stop", [3, 7, 8])  # at the end of a round, and twice inside one
@pytest.mark.parametrize("width", [None, 2])
def test_stopped_and_resumed_equals_uninterrupted(
    make: Make, schedule: sw.Schedule, stop: int, width: int | None, tmp_path: Path
) -> None:
    whole = make(CONSTRAINTS, schedule)
    expected = run(whole, range(16), width)

    first = make(CONSTRAINTS, schedule)
    trace = run(first, range(stop), width)
    save_file(first.state_dict(), tmp_path / "method.safetensors")
    second = make(CONSTRAINTS, schedule)
    second.load_state_dict(load_file(tmp_path / "method.safetensors"))
    assert second.taus == first.taus
    trace += run(second, range(stop, 16), width)

    assert trace == expected
    state = second.state_dict()
    for key, value in whole.state_dict().items():
        assert torch.equal(value.nan_to_num(), state[key].nan_to_num()), key


@pytest.mark.filterwarnings("ignore:step.. ends a round without a sample")
def test_tau_does_not_grow_twice_when_a_state_is_loaded_where_it_has_just_grown() -> None:
    method = sw.SequentialPenalty(CONSTRAINTS, schedule=sw.Geometric(1.0, growth=2.0, every=2))
    for _ in range(2):
        run(method, range(2))
        method.step()
    assert method.tau == 2.0
    for _ in range(3):
        state = method.state_dict()
        method = sw.SequentialPenalty(CONSTRAINTS, schedule=sw.Geometric(1.0, growth=2.0, every=2))
        method.load_state_dict(state)
    method.step()
    assert method.tau == 2.0
    method.step()
    assert (method.tau, method.rounds) == (4.0, 4)


@every_method
def test_the_state_is_plain_tensors(make: Make) -> None:
    method = make(CONSTRAINTS, SCHEDULES[1])
    run(method, range(5))
    assert all(isinstance(value, torch.Tensor) for value in method.state_dict().values())


@every_method
def test_a_state_travels_inside_a_larger_module(make: Make) -> None:
    first = torch.nn.ModuleDict({"net": torch.nn.Linear(2, 2), "method": make(CONSTRAINTS, SCHEDULES[0])})
    second = torch.nn.ModuleDict({"net": torch.nn.Linear(2, 2), "method": make(CONSTRAINTS, SCHEDULES[0])})
    one, other = first["method"], second["method"]
    assert isinstance(one, sw.Method)
    assert isinstance(other, sw.Method)
    run(one, range(7), width=2)
    second.load_state_dict(first.state_dict())
    assert run(other, range(7, 12), width=2) == run(one, range(7, 12), width=2)


@every_method
def test_a_copy_is_independent(make: Make) -> None:
    method = make(CONSTRAINTS, SCHEDULES[0])
    run(method, range(4))
    other = copy.deepcopy(method)
    expected = run(other, range(4, 9))
    assert run(method, range(4, 9)) == expected


@every_method
def test_a_foreign_state_is_refused_and_nothing_is_lost(make: Make) -> None:
    method = make(CONSTRAINTS, SCHEDULES[0])
    run(method, range(4))
    before = {key: value.clone() for key, value in method.state_dict().items()}
    other_methods = [other(CONSTRAINTS, SCHEDULES[0]) for other in METHODS.values()]
    foreign = [other.state_dict() for other in other_methods if type(other) is not type(method)]
    foreign += [
        make([sw.AtMost("x", 1.0)], SCHEDULES[0]).state_dict(),
        make([sw.AtMost("x", 1.0), sw.AtLeast("z", 0.7)], SCHEDULES[0]).state_dict(),
        make([sw.AtLeast("y", 0.7), sw.AtMost("x", 1.0)], SCHEDULES[0]).state_dict(),
        {},
        {**before, "more": torch.zeros(1)},
        {**before, "statistics.sums": "text"},
    ]
    for state in foreign:
        with pytest.raises(CheckpointError, match="another method"):
            method.load_state_dict(state)
        for key, value in method.state_dict().items():
            assert torch.equal(value.nan_to_num(), before[key].nan_to_num())


def test_a_state_of_another_data_set_is_refused_by_its_length() -> None:
    small = sw.AugmentedLagrangian(CONSTRAINTS, samples=10, schedule=SCHEDULES[0])
    method = METHODS["lagrangian"](CONSTRAINTS, SCHEDULES[0])
    run(method, range(4))
    before = method.state_dict()["stores.0.values"].clone()
    with pytest.raises(CheckpointError, match=rf"of 10, .* of {SAMPLES}"):
        method.load_state_dict(small.state_dict())
    assert torch.equal(method.state_dict()["stores.0.values"], before)


def test_bounds_and_schedules_may_change_between_save_and_load() -> None:
    first = sw.SequentialPenalty([sw.AtMost("x", 1.0)], schedule=sw.Constant(2.0))
    second = sw.SequentialPenalty([sw.AtMost("x", 0.5)], schedule=sw.Geometric(2.0, growth=2.0))
    second.load_state_dict(first.state_dict())
    assert second.tau == 2.0


@every_method
@pytest.mark.parametrize("cast", [torch.nn.Module.half, torch.nn.Module.double, lambda m: m.to(torch.bfloat16)])
def test_casts_leave_the_state_as_it_is(make: Make, cast: object) -> None:
    method = make(CONSTRAINTS, SCHEDULES[0])
    run(method, range(4))
    dtypes = {key: value.dtype for key, value in method.state_dict().items()}
    assert callable(cast)
    outer = cast(torch.nn.ModuleDict({"net": torch.nn.Linear(2, 2), "method": method}))
    assert outer["net"].weight.dtype != torch.float32
    assert {key: value.dtype for key, value in method.state_dict().items()} == dtypes


@every_method
def test_the_state_follows_to_another_device(make: Make) -> None:
    method = make(CONSTRAINTS, SCHEDULES[0]).to("meta")
    assert {buffer.device.type for buffer in method.buffers()} == {"meta"}


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda method: pickle.loads(pickle.dumps(method))])
def test_a_copy_in_the_middle_of_a_round_counts_for_itself(duplicate: Callable[[sw.Method], sw.Method]) -> None:
    method = sw.SequentialPenalty([sw.AtMost("x", 1.0)], schedule=sw.Constant(2.0))
    method(torch.zeros(3), x=torch.full((3,), 2.0))
    other = duplicate(method)
    other(torch.zeros(2), x=torch.zeros(2))
    again = sw.SequentialPenalty(method.constraints, schedule=sw.Constant(2.0))
    again.load_state_dict(other.state_dict())
    assert (again.step().samples, other.step().samples, method.step().samples) == (5, 5, 3)
