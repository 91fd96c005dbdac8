"""Under torch.compile, where nothing can be read at once: what an accelerator does too."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from method_cases import METHODS, SAMPLES, Make, assert_rounds_close, batch

import samplewise as sw
from samplewise.errors import MeasureError, NotFiniteError, SampleIndexError

every_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS.keys())
CONSTRAINTS: list[sw.Constraint] = [sw.AtMost("x", 1.0), sw.AtLeast("y", 0.7, scale=0.5)]


class Counted:
    """A backend that counts the graphs it is given and runs them as they are."""

    graphs = 0

    def __call__(self, module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        self.graphs += 1
        return module.forward


@pytest.fixture
def backend() -> Iterator[Counted]:
    torch.compiler.reset()
    yield Counted()
    torch.compiler.reset()


@every_method
def test_one_graph_serves_all_rounds(make: Make, backend: Counted) -> None:
    schedule = sw.Geometric(2.0, growth=1.5)
    eager, method = make(CONSTRAINTS, schedule), make(CONSTRAINTS, schedule)
    compiled = torch.compile(method, backend=backend, fullgraph=True)
    for i in range(12):
        objective, x, index = batch(8, seed=i)
        y = batch(8, seed=i + 100)[1]
        inputs = [value.clone().requires_grad_() for value in (objective, x, y)]
        loss = compiled(inputs[0], x=inputs[1], y=inputs[2], index=index)
        expected_inputs = [value.clone().requires_grad_() for value in (objective, x, y)]
        expected = eager(expected_inputs[0], x=expected_inputs[1], y=expected_inputs[2], index=index)
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(
            torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True),
            torch.autograd.grad(expected, expected_inputs, allow_unused=True, materialize_grads=True),
        )
        if i % 3 == 2:
            assert_rounds_close(method.step(), eager.step())
            assert method.taus == eager.taus
    assert backend.graphs == 1
    if isinstance(method, sw.AugmentedLagrangian) and isinstance(eager, sw.AugmentedLagrangian):
        torch.testing.assert_close(method.tables, eager.tables)


@every_method
def test_padding(make: Make, backend: Counted) -> None:
    method, plain = (make([sw.AtMost("x", 1.0)], sw.Constant(2.0)) for _ in range(2))
    compiled = torch.compile(method, backend=backend, fullgraph=True)
    objective, x, index = batch(6)
    junk = torch.tensor([torch.nan, 5.0])
    weight = torch.tensor([1.0] * 6 + [0.0] * 2)
    repeated = torch.cat([index, torch.tensor([-7, int(index[0])])])
    for _ in range(2):
        loss = compiled(torch.cat([objective, junk]), x=torch.cat([x, junk]), index=repeated, sample_weight=weight)
        torch.testing.assert_close(loss, plain(objective, x=x, index=index))
    assert_rounds_close(method.step(), plain.step())  # which also checks for faults


@every_method
def test_a_value_that_is_not_finite_is_found_later_with_its_sample_and_step(make: Make, backend: Counted) -> None:
    method = make([sw.AtMost("x", 1.0), sw.AtLeast("y", 0.7, name="floor")], sw.Constant(2.0))
    compiled = torch.compile(method, backend=backend, fullgraph=True)
    objective, x, index = batch(8)
    y = torch.ones(8)
    for turn, bad in enumerate([torch.nan, torch.inf, -torch.inf]):
        for call in range(5):
            values = y.clone()
            if call >= 3:
                values[[2, 6]] = bad
            compiled(objective, x=x, y=values, index=index)
        with pytest.raises(NotFiniteError) as caught:
            method.check()
        what = f"the measure of the constraint 'floor' (y >= 0.7) is not finite for 2 samples at step {5 * turn + 3}"
        assert what in str(caught.value)
        assert f"(sample index: {index[2]}, ...)" in str(caught.value)
        method.check()  # says it once


def test_a_step_finds_it_too_and_without_index_names_the_position(backend: Counted) -> None:
    method = METHODS["linear"]([sw.AtMost("x", 1.0)], sw.Constant(2.0))
    compiled = torch.compile(method, backend=backend, fullgraph=True)
    x = torch.zeros(8, 2)
    compiled(torch.zeros(8), x=x)
    x[5, 0] = -torch.inf
    compiled(torch.zeros(8), x=x)
    with pytest.raises(NotFiniteError, match=r"'x' .* step 1 .*batch: 5"):
        method.step()


def test_the_step_counts_on_after_calls_that_were_not_compiled(backend: Counted) -> None:
    method = METHODS["linear"]([sw.AtMost("x", 1.0)], sw.Constant(2.0))
    for _ in range(4):
        method(torch.zeros(2), x=torch.zeros(2))
    compiled = torch.compile(method, backend=backend, fullgraph=True)
    compiled(torch.full((2,), torch.nan), x=torch.zeros(2))
    with pytest.raises(NotFiniteError, match=r"objective .* step 4"):
        method.check()


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([0, 1, 2, SAMPLES + 3], rf"expected sample indices from 0 to {SAMPLES - 1}, got {SAMPLES + 3} at step 1"),
        ([0, -2, 2, 3], rf"expected sample indices from 0 to {SAMPLES - 1}, got -2 at step 1"),
        ([0, 9, 2, 9], "expected each sample once in a batch, got the sample index 9 twice at step 1"),
    ],
)
def test_a_wrong_index_is_found_later_and_harms_no_other_sample(
    index: list[int], message: str, backend: Counted
) -> None:
    method = METHODS["lagrangian"]([sw.AtMost("x", 1.0)], sw.Constant(2.0))
    assert isinstance(method, sw.AugmentedLagrangian)
    compiled = torch.compile(method, backend=backend, fullgraph=True)
    compiled(torch.zeros(4), x=torch.full((4,), 2.0), index=torch.arange(4))
    compiled(torch.zeros(4), x=torch.full((4,), 2.0), index=torch.tensor(index))
    with pytest.raises(SampleIndexError, match=message):
        method.check()
    touched = {i for i in [0, 1, 2, 3, *index] if 0 <= i < SAMPLES}
    assert set(method.tables["x"].nonzero().flatten().tolist()) == touched


def test_several_values_after_one_step_that_is_not_compiled(backend: Counted) -> None:
    method, eager = (METHODS["lagrangian"]([sw.AtMost("x", 1.0)], sw.Constant(2.0)) for _ in range(2))
    objective, x, index = batch(8, width=3)
    torch.testing.assert_close(method(objective, x=x, index=index), eager(objective, x=x, index=index))
    compiled = torch.compile(method, backend=backend, fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(compiled(objective, x=x, index=index), eager(objective, x=x, index=index))
    assert_rounds_close(method.step(), eager.step())
    assert backend.graphs == 1


def test_a_measure_without_gradient_is_refused(backend: Counted) -> None:
    method = METHODS["linear"]([sw.AtMost("x", 1.0)], sw.Constant(2.0))
    compiled = torch.compile(method, backend=backend)
    objective, x, _ = batch(8)
    with pytest.raises(MeasureError, match="to carry a gradient"):
        compiled(objective.requires_grad_(), x=x)
    assert method.summary().samples == 0


def test_without_gradients_nothing_is_counted(backend: Counted) -> None:
    method = METHODS["lagrangian"]([sw.AtMost("x", 1.0)], sw.Constant(2.0))
    assert isinstance(method, sw.AugmentedLagrangian)
    compiled = torch.compile(method, backend=backend, fullgraph=True)
    objective, x, index = batch(8)
    for _ in range(2):
        with torch.no_grad():
            compiled(objective, x=x + 1.0, index=index)
    assert (method.summary().samples, int(method.tables["x"].count_nonzero())) == (0, 0)
    compiled(objective, x=x + 1.0, index=index)
    assert (method.summary().samples, int(method.tables["x"].count_nonzero())) == (8, 8)
