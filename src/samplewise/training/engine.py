"""What runs on Lightning Fabric: the wrapped model and optimiser, one optimiser step, and their whole state."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from samplewise import distributed
from samplewise.batches import to_device
from samplewise.errors import ConfigurationError
from samplewise.methods import Method
from samplewise.problem import Problem
from samplewise.training.plan import MicroBatch

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Auxiliary", "Engine", "single_device"]

PAST_THE_MODEL = (
    "expected evaluate to call the model itself, model(x): a call of one of its parts or methods, such as "
    "model.encoder(x), goes past what shares gradients between processes and lowers the precision. Put it into forward"
)


class Auxiliary(Protocol):
    """A step of another network before each main one, such as a discriminator's.

    It owns its networks and optimisers; its state goes into the checkpoint.
    """

    def step(self, model: nn.Module, batch: Any) -> Any:
        """Take the step. What it returns replaces the batch that ``evaluate`` gets; None leaves it as it is."""

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""


def single_device() -> Fabric:
    """The best single device at hand, in full precision."""
    from lightning_fabric import Fabric  # a second to import, so only where training starts

    return Fabric(accelerator="auto", devices=1)


class Engine:
    """Takes optimiser steps.

    Args:
        fabric: devices, strategy and precision; launched already if it has several processes.
        problem: what to minimise and what must hold.
        model: the model to train.
        optimizer: over the model's parameters.
        auxiliary: a step before each main one.
        clip_norm: the gradient's norm is cut to this.
    """

    model: nn.Module
    """What the problem evaluates in training."""

    def __init__(
        self,
        fabric: Fabric,
        problem: Problem,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        auxiliary: Auxiliary | None = None,
        clip_norm: float | None = None,
    ) -> None:
        _check_precision(fabric)
        self.fabric = fabric
        self.problem = problem
        self.auxiliary = auxiliary
        self.clip_norm = clip_norm
        self.raw_model = model
        self.raw_optimizer = optimizer
        self.wrapped, self.optimizer = fabric.setup(model, optimizer)
        # With one process in full precision Fabric's wrapper has nothing to convert and nobody to talk to, and its
        # hooks on every output would cost more than the method does.
        self.model = model if _plain(fabric) else self.wrapped
        self._called = False  # whether the wrapped model was, since the last micro-batch began
        self.wrapped.register_forward_pre_hook(self._note_call)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.fabric.device

    @property
    def model_to_audit(self) -> nn.Module:
        """The model to evaluate alone, without the other processes where it is whole in this one."""
        return self.wrapped if self._sharded else self.raw_model

    def share_buffers(self) -> None:
        """Give all processes the first one's buffers: running statistics drift apart between training steps."""
        if distributed.world_size() > 1 and not self._sharded:
            for buffer in self.raw_model.buffers():
                distributed.from_first_(buffer)

    def step(self, method: Method, micro: list[MicroBatch], batches: Iterator[Any]) -> None:
        """One optimiser step over the micro-batches of this process."""
        last = len(micro) - 1
        for i, part in enumerate(micro):
            batch = to_device(next(batches), self.device)
            self._called = False
            if self.auxiliary is not None:
                handed_on = self.auxiliary.step(self.model, batch)
                batch = batch if handed_on is None else handed_on
            # Processes exchange gradients only once a step, at its last micro-batch.
            with self.fabric.no_backward_sync(self.wrapped, enabled=i < last), _explained():
                self.fabric.backward(self._loss(method, part, batch))
        if self.clip_norm is not None:
            self.fabric.clip_gradients(self.wrapped, self.optimizer, max_norm=self.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _note_call(self, *_: object) -> None:
        self._called = True

    def _loss(self, method: Method, part: MicroBatch, batch: Any) -> Tensor:
        index = part.index.to(self.device)
        weight = None if part.present is None else part.present.to(self.device, torch.float32)
        evaluation = self.problem.evaluate(self.model, batch, index)
        if self.model is self.wrapped and not self._called:
            raise ConfigurationError(PAST_THE_MODEL)
        loss: Tensor = method(evaluation.objective, index=index, sample_weight=weight, **evaluation.measures)
        return loss if part.factor == 1.0 else loss * part.factor

    def state(self) -> dict[str, Any]:
        """State of model, optimiser and auxiliary step, whole, wherever its parts are."""
        if self._sharded:
            from torch.distributed.checkpoint.state_dict import get_state_dict

            model, optimizer = get_state_dict(self.wrapped, self.raw_optimizer, options=_whole())
        else:
            model, optimizer = self.raw_model.state_dict(), self.raw_optimizer.state_dict()
        auxiliary = None if self.auxiliary is None else self.auxiliary.state_dict()
        scaler = self.fabric.strategy.precision.state_dict()  # of 16-mixed; nothing elsewhere
        return {"model": dict(model), "optimizer": optimizer, "auxiliary": auxiliary, "scaler": scaler}

    def load(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`state` gave."""
        if self._sharded:
            from torch.distributed.checkpoint.state_dict import set_state_dict

            set_state_dict(
                self.wrapped,
                self.raw_optimizer,
                model_state_dict=state["model"],
                optim_state_dict=state["optimizer"],
                options=_whole(),
            )
        else:
            self.raw_model.load_state_dict(state["model"])
            self.raw_optimizer.load_state_dict(state["optimizer"])
        if self.auxiliary is not None:
            self.auxiliary.load_state_dict(state["auxiliary"])
        if state.get("scaler"):
            self.fabric.strategy.precision.load_state_dict(state["scaler"])

    @property
    def _sharded(self) -> bool:
        from lightning_fabric.strategies.fsdp import FSDPStrategy
        from lightning_fabric.strategies.model_parallel import ModelParallelStrategy

        return isinstance(self.fabric.strategy, FSDPStrategy | ModelParallelStrategy)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Say what to do where DDP finds parameters that the loss does not reach, or Fabric a call past the model."""
    try:
        yield
    except RuntimeError as error:
        if "mark_forward_method" in str(error):
            raise ConfigurationError(PAST_THE_MODEL) from error
        if "find_unused_parameters" not in str(error):
            raise
        raise ConfigurationError(
            "some parameters do not reach the loss, which plain DDP does not allow: a method without constraints, or "
            "warm-up, leaves out what only the measures need. Use strategy='ddp_find_unused_parameters_true'"
        ) from error


def _check_precision(fabric: Fabric) -> None:
    from lightning_fabric.plugins.precision import DoublePrecision, HalfPrecision

    if isinstance(fabric.strategy.precision, DoublePrecision | HalfPrecision):
        raise ConfigurationError(
            "expected the precision 32-true, bf16-mixed or 16-mixed, in which the weights stay in float32, got "
            f"{fabric.strategy.precision.precision}"
        )


def _plain(fabric: Fabric) -> bool:
    """Whether there is one process and nothing to convert."""
    from lightning_fabric.plugins.precision.precision import Precision
    from lightning_fabric.strategies.single_device import SingleDeviceStrategy

    return isinstance(fabric.strategy, SingleDeviceStrategy) and type(fabric.strategy.precision) is Precision


def _whole() -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(full_state_dict=True, cpu_offload=True)
