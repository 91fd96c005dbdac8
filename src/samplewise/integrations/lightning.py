"""Lightning: two callbacks, one that ends the rounds of a module's method, one that audits the module."""

from collections.abc import Mapping
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from samplewise import distributed
from samplewise.audit import Audit, audit
from samplewise.batches import Data
from samplewise.errors import ConfigurationError, MissingPackageError
from samplewise.history import audit_row, round_row
from samplewise.methods import Method
from samplewise.problem import Problem
from samplewise.training.loop import CHECK_EVERY

try:
    import lightning as L
except ImportError as error:
    raise MissingPackageError("Lightning is not installed: pip install 'samplewise[lightning]'") from error

__all__ = ["Audits", "Rounds"]


class Rounds(L.Callback):
    """Ends a round of the module's method every so many epochs, logs it, and keeps its state in the checkpoints.

    The module owns the method and calls it; nothing else changes::

        class Autoencoder(L.LightningModule):
            def __init__(self):
                ...
                self.method = sw.SequentialPenalty([sw.AtMost("error", 0.01)], schedule=sw.Geometric(1.0, growth=1.1))

            def training_step(self, batch):
                ...
                return self.method(objective, error=error)  # (B,) each

        L.Trainer(callbacks=[Rounds()], ...).fit(Autoencoder(), data)

    A method with a multiplier for each sample also needs ``index=``, the samples' numbers: train on
    ``Indexed(dataset)`` (:class:`samplewise.integrations.Indexed`), whose batches end with them.

    The round ends after the last batch of its last epoch, before validation and before any checkpoint of that epoch,
    so every checkpoint holds the tau that comes next and a resumed run goes on with it.

    With ``accumulate_grad_batches=n`` Lightning averages the gradients of n batches, each the gradient of a mean, so
    tau means what it means without. If the last step of an epoch has fewer than n batches, Lightning still divides by
    n: that step is shorter, objective and constraints alike. A method that keeps multipliers moves them at every batch.

    Under several processes the numbers are those of all together. A sample that Lightning's sampler repeats to fill
    the last batch counts twice in them; in :class:`Audits` each counts once. Tested with DDP; FSDP has not been run.

    Logged after each epoch, over the round so far, under the names of :func:`samplewise.fit`'s history: ``tau/NAME``,
    ``running/objective`` and ``running/NAME/satisfied``, ``/violation`` and ``/worst`` for each constraint.

    Args:
        epochs_per_round: epochs at one tau.
    """

    def __init__(self, epochs_per_round: int = 1) -> None:
        if isinstance(epochs_per_round, bool) or not isinstance(epochs_per_round, int) or epochs_per_round < 1:
            raise ConfigurationError(f"expected epochs_per_round as a whole number >= 1, got {epochs_per_round!r}")
        self.epochs_per_round = epochs_per_round

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        name, method = _method_of(pl_module)
        # DDP would give all processes the first one's buffers at every step, and with them its statistics.
        known = getattr(pl_module, "_ddp_params_and_buffers_to_ignore", ())
        own = [f"{name}.{buffer}" for buffer, _ in method.named_buffers()]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(pl_module, [*known, *own])

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.is_last_batch:
            _, method = _method_of(pl_module)
            ends = (trainer.current_epoch + 1) % self.epochs_per_round == 0
            row = round_row(method.step() if ends else method.summary())
            pl_module.log_dict(row, on_step=False, on_epoch=True, sync_dist=True, batch_size=1)
        elif (batch_idx + 1) % CHECK_EVERY == 0:
            _method_of(pl_module)[1].check()

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Put the statistics of all processes in the place of the first one's."""
        name, method = _method_of(pl_module)
        method.gather_()
        checkpoint["state_dict"] |= {f"{name}.{key}": value for key, value in method.state_dict().items()}

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        if distributed.rank() > 0:
            _method_of(pl_module)[1].tally.reset_()  # the saved statistics are those of all: only the first keeps them


class Audits(L.Callback):
    """Audits data sets whenever Lightning validates, or after each epoch where it does not, and logs what holds.

    The names are those of :func:`samplewise.fit`'s history, such as ``val/satisfied`` (the share of the samples that
    meet all constraints), ``val/NAME/satisfied`` and ``val/NAME/worst``, so the best model is kept by
    ``ModelCheckpoint(monitor="val/satisfied", mode="max")``. It works for any module, with a method or without::

        problem = sw.Problem(Autoencoder.evaluate, constraints)  # evaluate(self, batch) -> objective, {name: measure}
        L.Trainer(callbacks=[Rounds(), Audits(problem, {"val": val_data}), ModelCheckpoint(...)])

    Under several processes each audits a part, with the first one's running statistics.

    Args:
        problem: what to minimise and what must hold; its ``evaluate`` gets the module and a batch.
        data: data sets by name.
        confidence: of the upper bound on the violation rate.
        batch_size: samples in a batch; it changes only speed and memory.
    """

    latest: dict[str, Audit]
    """The last audits by the name of the data set."""

    def __init__(
        self, problem: Problem, data: Mapping[str, Data], *, confidence: float = 0.95, batch_size: int = 256
    ) -> None:
        if not isinstance(data, Mapping) or not data:
            raise ConfigurationError(f"expected data sets by name, {{'val': data}}, got {data!r}")
        self.problem = problem
        self.data = data
        self.confidence = confidence
        self.batch_size = batch_size
        self.latest = {}

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.sanity_checking:
            self._audit(trainer, pl_module)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.enable_validation:
            self._audit(trainer, pl_module)

    def _audit(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        _share_buffers(pl_module)
        for name, data in self.data.items():
            with trainer.precision_plugin.val_step_context():
                found = audit(self.problem, pl_module, data, confidence=self.confidence, batch_size=self.batch_size)
            self.latest[name] = found
            pl_module.log_dict(audit_row(name, found), sync_dist=True)


def _method_of(module: L.LightningModule) -> tuple[str, Method]:
    """The module's method and the name it has there."""
    found = [(name, part) for name, part in module.named_modules() if isinstance(part, Method)]
    if len(found) != 1:
        raise ConfigurationError(
            f"expected one method in {type(module).__name__}, found {[name for name, _ in found] or 'none'}: assign it "
            "in __init__, self.method = SequentialPenalty(...)"
        )
    return found[0]


def _share_buffers(module: L.LightningModule) -> None:
    """Give all processes the first one's running statistics, which drift apart; a method's are no part of the model."""
    kept = {id(buffer) for part in module.modules() if isinstance(part, Method) for buffer in part.buffers()}
    for buffer in module.buffers():
        if id(buffer) not in kept:
            distributed.from_first_(buffer)
