import json
from pathlib import Path

import hypothesis.extra.numpy as arrays
import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

import samplewise as sw
from samplewise.checkpoint import strict_json
from samplewise.training.findings import findings, long_tail
from samplewise.training.selection import Selection
from small import make_data, make_method, make_model, make_problem

FINITE = st.floats(-1e6, 1e6, width=32)


def found(values: torch.Tensor, constraint: sw.Constraint, method: sw.Method) -> dict[str, object]:
    problem = sw.Problem(lambda model, batch: (batch[0], {"value": batch[0]}), [constraint])
    audit = sw.audit(problem, torch.nn.Identity(), TensorDataset(values))
    selection = Selection.of(audit, epoch=1, split="train", target=1.0)
    kept = findings({"train": audit}, selection, method, trained_on="train")
    assert isinstance(kept, dict)
    assert json.loads(json.dumps(strict_json(kept), allow_nan=False)) == strict_json(kept)
    return kept


@given(values=arrays.arrays(np.float32, st.integers(1, 50), elements=FINITE), bound=FINITE)
def test_every_value_is_counted_once_and_the_bound_is_an_edge(values: NDArray[np.float32], bound: float) -> None:
    constraint = sw.AtMost("value", bound, margin=0.5)
    kept = found(torch.from_numpy(values), constraint, sw.Unconstrained([constraint]))
    shown = kept["distributions"]["value"]  # type: ignore[index]
    edges = np.array(shown["edges"])
    assert np.all(np.diff(edges) > 0)
    assert sum(shown["counts"]["train"]) + shown["below"]["train"] + shown["above"]["train"] == len(values)
    assert np.min(np.abs(edges - bound)) <= 1e-6 * max(1.0, abs(bound))
    assert kept["constraints"]["value"]["upper"] == bound  # type: ignore[index]  # the true one, without the margin


def test_values_that_are_all_the_same_have_one_bin() -> None:
    constraint = sw.AtLeast("value", 2.0)
    kept = found(torch.full((7,), 2.0), constraint, sw.Unconstrained([constraint]))
    assert kept["distributions"]["value"]["counts"]["train"] == [7]  # type: ignore[index]


def test_the_multipliers_are_the_methods_from_the_largest_down() -> None:
    constraint = sw.AtMost("value", 1.0)
    method = sw.SequentialPenalty([constraint], penalty=sw.Quadratic(), schedule=sw.Constant(3.0))
    kept = found(torch.tensor([0.0, 2.0, 1.0, 5.0, 3.0]), constraint, method)
    tail = kept["multipliers"]["value"]  # type: ignore[index]
    assert tail == {"total": 5, "positive": 3, "rank": [1, 2, 3], "value": [12.0, 6.0, 3.0]}
    assert kept["splits"]["train"]["violators"]["value"] == [[3, 4.0], [4, 2.0], [1, 1.0]]  # type: ignore[index]


@given(values=arrays.arrays(np.float64, st.integers(1, 1000), elements=st.floats(0, 1e6)))
def test_a_long_tail_keeps_its_ends_and_falls(values: NDArray[np.float64]) -> None:
    tail = long_tail(torch.from_numpy(values))
    ordered = np.sort(values[values > 0])[::-1]
    assert tail["positive"] == len(ordered)
    assert tail["value"] == [ordered[rank - 1] for rank in tail["rank"]]
    if len(ordered):
        assert (tail["rank"][0], tail["rank"][-1]) == (1, len(ordered))
        assert len(tail["rank"]) <= 200


def run(folder: Path, epochs: int) -> sw.Solution:
    model = make_model()
    return sw.fit(
        make_problem(),
        model,
        make_data(),
        method=make_method("lagrangian"),
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        epochs=epochs,
        batch_size=50,
        audit_on={"train": make_data(), "test": make_data(seed=1)},
        checkpoint=folder,
    )


def test_a_run_leaves_what_holds_for_its_selected_model(tmp_path: Path) -> None:
    solution = run(tmp_path / "whole", 6)
    kept = json.loads((tmp_path / "whole" / "audit.json").read_text())
    assert kept["selected"] == solution.selected.to_dict()
    again = sw.audit(make_problem(), solution.model, make_data(seed=1))
    assert kept["splits"]["test"]["satisfied"] == again.satisfied
    assert kept["splits"]["test"]["constraints"] == again.to_dict()["constraints"]
    assert set(kept["multipliers"]) == {"reconstruction"}


def test_a_resumed_run_leaves_the_same_even_if_it_was_lost(tmp_path: Path) -> None:
    run(tmp_path / "whole", 4)
    run(tmp_path / "parts", 3)
    (tmp_path / "parts" / "audit.json").unlink()
    run(tmp_path / "parts", 4)
    whole, parts = ((tmp_path / name / "audit.json").read_text() for name in ("whole", "parts"))
    assert whole == parts
