"""The small problem of the tests as a Lightning module, and a trainer that keeps quiet."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loggers.logger import DummyLogger
from torch import Tensor
from torch.utils.data import DataLoader

import samplewise as sw
from samplewise.integrations import Indexed
from samplewise.integrations.lightning import Audits
from small import evaluate, make_data, make_method, make_model, make_problem


class Module(L.LightningModule):
    def __init__(self, kind: str = "sequential", *, norm: bool = False) -> None:
        super().__init__()
        self.model = make_model(dropout=0.0, norm=norm)
        self.method = make_method(kind)
        self.losses: list[float] = []

    def evaluate(self, batch: list[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        x, y, *_ = batch
        return evaluate(self.model, (x, y))

    def training_step(self, batch: list[Tensor]) -> Tensor:
        objective, measures = self.evaluate(batch)
        loss: Tensor = self.method(objective, index=batch[-1], **measures)
        self.losses.append(float(loss.detach()))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.model.parameters(), lr=1e-2)


class Validated(Module):
    """Also calls its method in validation, as users do for a validation loss; that must leave no trace."""

    def validation_step(self, batch: list[Tensor]) -> None:
        objective, measures = self.evaluate(batch)
        self.log("val/loss", self.method(objective, index=batch[-1], **measures))


class Recorder(DummyLogger):
    """Keeps what is logged, a row for each call."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, float]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None, **_: Any) -> None:
        self.rows.append(dict(metrics))

    def column(self, name: str) -> list[float]:
        return [row[name] for row in self.rows if name in row]


class Resumable(DataLoader[Any]):
    """Goes on within an epoch, by the two methods that Lightning asks for."""

    given = 0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names its own iterators
        self.given %= len(self)
        for batch in islice(super().__iter__(), self.given, None):
            self.given += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.given = state["given"]


def loader() -> DataLoader[Any]:
    return Resumable(Indexed(make_data()), batch_size=40)


def make_audits(samples: int = 51, **options: Any) -> Audits:
    """Audits of a module by its own ``evaluate``, under the name val."""
    evaluate_module: Any = Module.evaluate
    return Audits(sw.Problem(evaluate_module, make_problem().constraints), {"val": make_data(samples, 1)}, **options)


def trainer(folder: Path, *callbacks: L.Callback, epochs: int, logger: Any = False, **options: Any) -> L.Trainer:
    defaults: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "enable_checkpointing": any(isinstance(callback, Checkpoint) for callback in callbacks),
        "enable_model_summary": False,
        "enable_progress_bar": False,
        "log_every_n_steps": 1,
        "num_sanity_val_steps": 0,
    }
    return L.Trainer(
        **(defaults | options), max_epochs=epochs, default_root_dir=folder, callbacks=list(callbacks), logger=logger
    )
