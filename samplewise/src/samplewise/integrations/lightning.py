"""Lightning: two callbacks, one that ends the rounds of a module's method, one that audits the module."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from samplewise.audits.audit import Audit, audit
from samplewise.audits.binomial import comparisons_in_series
from samplewise.errors import ConfigurationError, needed_for
from samplewise.history import audit_row, round_row
from samplewise.methods import Method
from samplewise.methods.base import CHECK_EVERY
from samplewise.problem import Measures, Problem
from samplewise.samples import Data
from samplewise.storage import distributed

with needed_for("this integration", "lightning"):
    import lightning as L

__all__ = ["Audits", "Rounds"]


class Rounds(L.Callback):
    """Ends a round of the module's method after each epoch, logs it, and keeps its state in the checkpoints.

    The module owns the method, ``self.method``, and calls it; ``examples/with_lightning.py`` shows it.

    The round ends after the last batch of the epoch, before validation and before any checkpoint of that epoch, so
    every checkpoint holds the tau that comes next and a resumed run goes on with it. It is logged under the names of
    :func:`samplewise.fit`'s history: ``tau/NAME``, ``running/objective``, ``running/NAME/satisfied`` and so on.

    A method with a multiplier for each sample needs ``index=``, with which batches of
    :class:`samplewise.integrations.Indexed` data end.
    """

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        found = [(name, part) for name, part in pl_module.named_modules() if isinstance(part, Method)]
        if len(found) != 1:
            raise ConfigurationError(
                f"expected one method in {type(pl_module).__name__}, found {[name for name, _ in found] or 'none'}: "
                "assign it in __init__, self.method = SequentialPenalty(...)"
            )
        ((self._name, self._method),) = found
        # DDP would give all processes the first one's buffers at every step, and with them its statistics.
        known = getattr(pl_module, "_ddp_params_and_buffers_to_ignore", ())
        own = [f"{self._name}.{buffer}" for buffer, _ in self._method.named_buffers()]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(pl_module, [*known, *own])

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.is_last_batch:
            row = round_row(self._method.step())
            pl_module.log_dict(row, on_step=False, on_epoch=True, sync_dist=True, batch_size=1)
        elif (batch_idx + 1) % CHECK_EVERY == 0:
            self._method.check()

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Put the statistics of all processes in the place of the first one's."""
        self._method.gather_()
        checkpoint["state_dict"] |= self._method.state_dict(prefix=f"{self._name}.")


class Audits(L.Callback):
    """Audits data sets whenever Lightning validates, or after each epoch where it does not, and logs what holds.

    It works for any module, with a method or without. The names are those of :func:`samplewise.fit`'s history, such as
    ``val/satisfied`` (the share of the samples that meet all constraints) and ``val/NAME/worst``. By
    ``val/selection_loss``, the lower the better, ``ModelCheckpoint`` keeps the model that ``fit`` would;
    ``EarlyStopping`` and ``ReduceLROnPlateau`` can follow it too.

    The model is audited as ``fit`` does it: in its weights' own precision, without autocast, each sample once; under
    several processes each audits a part, with the first one's running statistics.

    The bounds ``val/violation_rate_upper`` and ``val/NAME/violation_rate_upper`` are corrected for the models that were
    compared so far, and hold however long that goes on and whichever is kept; data called ``train`` have none.

    Args:
        problem: what to minimise and what must hold; its ``evaluate`` gets the module and a batch.
        data: data sets by name.
        confidence: of the upper bounds on the violation rate.
        batch_size: samples in a batch, as in :func:`samplewise.audits.audit`.
    """

    def __init__(
        self, problem: Problem, data: Mapping[str, Data], *, confidence: float = 0.95, batch_size: int | None = None
    ) -> None:
        if not isinstance(data, Mapping) or not data:
            raise ConfigurationError(f"expected data sets by name, {{'val': data}}, got {data!r}")
        self.problem = problem
        self.data = data
        self.confidence = confidence
        self.batch_size = batch_size
        self.made = 0
        """How many times the data sets were audited."""
        self.latest: dict[str, Audit] = {}
        """The last audits by the name of the data set."""

    def state_dict(self) -> dict[str, Any]:
        return {"made": self.made}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.made = max(self.made, int(state_dict["made"]))  # a checkpoint of the best model is older

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.sanity_checking:
            self._audit(trainer, pl_module)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.enable_validation:
            self._audit(trainer, pl_module)

    def _audit(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        def evaluate(module: L.LightningModule, batch: Any) -> tuple[Tensor, Measures]:
            return self.problem.function(module, trainer.precision_plugin.convert_input(batch))

        distributed.broadcast_buffers_(pl_module, but=Method)  # whose statistics are its own, not the model's
        problem = Problem(evaluate, self.problem.constraints)
        self.made += 1
        judge = partial(audit, problem, pl_module, confidence=self.confidence, batch_size=self.batch_size)
        for name, data in self.data.items():
            n_comparisons = math.inf if name == "train" else comparisons_in_series(self.made)
            found = self.latest[name] = judge(data, n_comparisons=n_comparisons)
            row = audit_row(name, found)
            # Lightning would keep float32, in which models that differ may look the same; MPS has nothing longer.
            dtype = torch.float32 if pl_module.device.type == "mps" else torch.float64
            values = {key: torch.tensor(value, dtype=dtype, device=pl_module.device) for key, value in row.items()}
            pl_module.log_dict(values, sync_dist=True)
