"""What processes that torchrun started do together, and what they say when they do not."""

import json
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import samplewise as sw
from samplewise.errors import SamplewiseError
from samplewise.stopping import GradientRule
from samplewise.storage import distributed

DATA = TensorDataset(torch.rand(16, 3, generator=torch.Generator().manual_seed(0)))


def evaluate(model: nn.Module, batch: tuple[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Where a rule measures the gradient, that of the second process is larger, as if by rounding."""
    y = model(batch[0]).squeeze(1)
    measuring = torch.is_grad_enabled() and not model.training
    return y.square() * (1.0 + 1e6 * distributed.rank() * measuring), {"size": y.abs()}


def fit(fabric: Fabric | None) -> dict[str, Any]:
    """Three epochs under a rule that the first process finds met, and the second does not."""
    torch.manual_seed(0)
    model, problem = nn.Linear(3, 1), sw.Problem(evaluate, [sw.AtMost("size", 0.1)])
    method = sw.SequentialPenalty(problem.constraints, schedule=sw.Geometric(1.0, growth=2.0))
    solution = sw.fit(
        problem,
        model,
        DATA,
        method=method,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        epochs=3,
        batch_size=8,
        round_rule=GradientRule(100.0, max_epochs=3, batches=4, batch_size=4),
        fabric=fabric,
    )
    return {
        "rounds": solution.history.column("round"),
        "taus": method.taus,
        "ended": method.rounds,
        "weights": model.weight.tolist(),
    }


def said(action: Any) -> str:
    """The error that ``action`` ends with."""
    try:
        action()
    except SamplewiseError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def write_report(folder: Path) -> None:
    found: dict[str, Any] = {"no fabric": said(lambda: fit(None))}
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    found["together"] = fit(fabric)
    if distributed.rank() == 0:
        problem = sw.Problem(evaluate, [])
        found["alone"] = said(lambda: sw.audit(problem, nn.Linear(3, 1), DATA))  # the other process just ends
    rank = 0 if "alone" in found else 1
    (folder / f"{rank}.json").write_text(json.dumps(found))
