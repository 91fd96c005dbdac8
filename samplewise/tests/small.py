"""A small real problem that the tests of whole runs share: classify, and reconstruct within a bound."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import samplewise as sw
from samplewise.storage.checkpoint import load_state

BOUND = 0.6


class Network(nn.Module):
    """Classifies and reconstructs ten numbers from a code of four; dropout makes resuming hard."""

    def __init__(self, *, dropout: float = 0.2, norm: bool = False) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(10) if norm else nn.Identity()
        self.encoder = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 4))
        self.classifier = nn.Linear(4, 2)
        self.decoder = nn.Linear(4, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        code = self.encoder(self.norm(x))
        return self.classifier(code), self.decoder(code)


def evaluate(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    x, y = batch
    logits, decoded = model(x)
    return functional.cross_entropy(logits, y, reduction="none"), {
        "reconstruction": (decoded - x).square().mean(1),
        "accuracy": (logits.argmax(1) == y).float(),
    }


def make_problem(share: float = 1.0) -> sw.Problem:
    return sw.Problem(evaluate, [sw.AtMost("reconstruction", BOUND, share=share)])


def make_data(samples: int = 200, seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 10, generator=generator)
    return TensorDataset(x, (x[:, 0] + x[:, 1] > 0).long())


def make_model(*, dropout: float = 0.2, norm: bool = False, seed: int = 0) -> Network:
    torch.manual_seed(seed)
    return Network(dropout=dropout, norm=norm)


def make_method(kind: str, samples: int = 200, share: float = 1.0) -> sw.Method:
    constraints = make_problem(share).constraints
    if kind == "sequential":
        return sw.SequentialPenalty(constraints, schedule=sw.Geometric(2.0, growth=1.1, every=2))
    if kind == "lagrangian":
        return sw.AugmentedLagrangian(constraints, samples=samples, schedule=sw.FeasibilityDriven(2.0, growth=1.5))
    return sw.Unconstrained(constraints)


def fit(
    problem: sw.Problem | None = None,
    model: nn.Module | None = None,
    data: Any = None,
    *,
    kind: str = "sequential",
    share: float = 1.0,
    rate: float = 1e-2,
    **options: Any,
) -> sw.Solution:
    """A run of the small problem, three epochs of batches of fifty by Adam, but for what is given."""
    model = make_model() if model is None else model
    if "method" not in options:
        options["method"] = make_method(kind, share=share)
    if "optimizer" not in options:
        options["optimizer"] = torch.optim.Adam(model.parameters(), lr=rate)
    options = {"epochs": 3, "batch_size": 50} | options
    return sw.fit(problem or make_problem(share), model, make_data() if data is None else data, **options)


class At:
    """An auxiliary step that does something before one backward pass, counted from 0, and keeps no state."""

    def __init__(self, number: int, action: Callable[[], object]) -> None:
        self.left, self.action = number, action

    def step(self, model: nn.Module, batch: Any) -> Any:
        if self.left == 0:
            self.action()
        self.left -= 1

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == {}


def interrupt() -> None:
    """What a user's Ctrl-C does."""
    raise KeyboardInterrupt


class OnAudit(sw.Callback):
    """Has a function called after each audit."""

    def __init__(self, function: Callable[[nn.Module, int, Mapping[str, sw.Audit]], object]) -> None:
        self.function = function

    def on_audit(self, model: nn.Module, epoch: int, audits: Mapping[str, sw.Audit]) -> None:
        self.function(model, epoch, audits)


def of_last_step(folder: Path) -> dict[str, Tensor]:
    """The weights that a run goes on from: those of its last step, in its newest checkpoint."""
    weights: dict[str, Tensor] = load_state(max((folder / "checkpoints").glob("*.safetensors")))["model"]
    return weights


def same_weights(first: nn.Module, second: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def taus_after(method: sw.Method, *rounds: list[float]) -> list[float]:
    """The tau after each of the rounds, in which the samples had these values."""
    taus = []
    for x in rounds:
        method(torch.zeros(4), x=torch.tensor(x))
        method.step()
        taus.append(method.tau)
    return taus
