"""A gradient that is no number while the loss still is one: found, located, and never saved."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import samplewise as sw
from samplewise.errors import NotFiniteError
from samplewise.storage.checkpoint import load_state
from small import fit, same_weights

X = torch.rand(64, 4, generator=torch.Generator().manual_seed(0))  # eight steps an epoch


def run(folder: Path | None, *, fault: int | None = None, **options: Any) -> tuple[nn.Module, sw.Solution]:
    """Three epochs; the step of number ``fault`` has a root at zero in it, whose slope is infinite."""
    steps = 0

    def evaluate(model: nn.Module, batch: tuple[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        nonlocal steps
        steps += model.training
        y = model(batch[0])
        objective = y.square().mean(1)
        if model.training and steps == fault:
            objective = objective + (y - y.detach()).square().sum(1).sqrt()
        return objective, {"error": (y - batch[0]).square().mean(1)}

    torch.manual_seed(0)
    model, problem = nn.Linear(4, 4), sw.Problem(evaluate, [sw.AtMost("error", 0.01)])
    method = sw.AugmentedLagrangian(problem.constraints, samples=64, schedule=sw.Constant(1.0))
    options |= {"method": method, "batch_size": 8, "audit_on": {"train": TensorDataset(X)}, "checkpoint": folder}
    return model, fit(problem, model, TensorDataset(X), **options)


@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize(
    ("fault", "checkpoint_steps"),
    [
        (11, None),
        (11, 1),
        (11, 3),  # seen at the next step, before the checkpoint after that one
        (12, 3),  # seen at the checkpoint
        (16, None),  # the last of an epoch: seen by the audit
        (24, 1),  # the last of all
        (1, None),  # before there was any checkpoint
    ],
)
def test_bad_weights_are_never_saved_and_the_run_goes_on_once_the_cause_is_mended(
    tmp_path: Path, fault: int, checkpoint_steps: int | None, clip_norm: float | None
) -> None:
    options: dict[str, Any] = {"checkpoint_steps": checkpoint_steps, "clip_norm": clip_norm}
    with pytest.raises(NotFiniteError, match=f"finite at step {fault}, .* gradient"):
        run(tmp_path / "run", fault=fault, **options)
    saved = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))
    assert bool(saved) == (fault > 1)
    for path in saved:
        assert all(value.isfinite().all() for value in load_state(path)["model"].values())
    if (tmp_path / "run" / "best.safetensors").exists():
        assert all(value.isfinite().all() for value in load_file(tmp_path / "run" / "best.safetensors").values())
    mended, solution = run(tmp_path / "run", **options)
    whole, expected = run(tmp_path / "whole", **options)
    assert same_weights(mended, whole)
    assert same_weights(solution.model, expected.model)
    assert solution.selected == expected.selected
    assert [row["train/objective"] for row in solution.history.rows] == expected.history.column("train/objective")


def test_without_a_folder_the_step_is_said_and_nothing_of_saving() -> None:
    with pytest.raises(NotFiniteError, match="finite at step 11"):
        run(None, fault=11)


def test_values_that_are_not_finite_while_the_weights_are_keep_their_own_message(tmp_path: Path) -> None:
    def evaluate(model: nn.Module, batch: tuple[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        y = model(batch[0])
        return y.square().mean(1) / (batch[0][:, 0] < 0.9), {}

    problem, data = sw.Problem(evaluate, []), TensorDataset(X)
    with pytest.raises(NotFiniteError, match=r"the objective .*sample index"):
        fit(problem, nn.Linear(4, 4), data, method=sw.Unconstrained([]), batch_size=8, checkpoint=tmp_path)
