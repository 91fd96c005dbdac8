"""One optimiser step: model, average and optimiser on Lightning Fabric."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from samplewise import distributed
from samplewise.errors import CheckpointError, ConfigurationError
from samplewise.methods import Method
from samplewise.problem import Problem
from samplewise.samples import to_device
from samplewise.training.average import Average
from samplewise.training.plan import MicroBatch

if TYPE_CHECKING:
    from lightning_fabric import Fabric

PAST_THE_MODEL = (
    "expected evaluate to call the model itself, model(x): a call of one of its parts or methods, such as "
    "model.encoder(x), goes past what shares gradients between processes and lowers the precision. Put it into forward"
)


class Auxiliary(Protocol):
    """A step of another network before each backward pass of the main one, such as a discriminator's.

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

    if torch.distributed.is_torchelastic_launched() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigurationError(
            "torchrun started this process, but no fabric= was given, so each process would train alone: make one, "
            "fabric = Fabric(devices=..., strategy='ddp'), call fabric.launch(), and give it"
        )
    return Fabric(accelerator="auto", devices=1)


class Stepper:
    """Takes optimiser steps on a ``fabric``, launched already if it has several processes."""

    def __init__(
        self,
        fabric: Fabric,
        problem: Problem,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        auxiliary: Auxiliary | None = None,
        clip_norm: float | None = None,
        average: float | None = None,
    ) -> None:
        plain = _is_plain(fabric)
        self.device = fabric.device
        self.fabric, self.problem, self.auxiliary, self.clip_norm = fabric, problem, auxiliary, clip_norm
        self.raw_model, self.raw_optimizer = model, optimizer
        self.wrapped, self.optimizer = fabric.setup(model, optimizer)
        # With one process in full precision Fabric's wrapper has nothing to convert and nobody to talk to, and its
        # hooks on every output would cost more than the method does.
        self.model: nn.Module = model if plain else self.wrapped
        self._called = False  # whether the wrapped model was, since the last micro-batch began
        self.wrapped.register_forward_pre_hook(self._note_call)
        for holder in (model, self.optimizer):  # an earlier backward pass, or an interrupted run, may have left some
            holder.zero_grad()
        if average is not None and self.sharded:
            raise ConfigurationError(
                "average= needs the whole model in each process: leave it out, or use strategy='ddp'"
            )
        self.average = None if average is None else Average(model, average)

    @property
    def model_to_audit(self) -> nn.Module:
        """The model that the run is for: the average, if there is one."""
        return self.trained_model if self.average is None else self.average.model

    @property
    def trained_model(self) -> nn.Module:
        """The model that takes the steps, to evaluate without the other processes where it is whole in this one."""
        return self.wrapped if self.sharded else self.raw_model

    def share_buffers(self) -> None:
        """Give all processes the first one's running statistics, where each has a model of its own."""
        if not self.sharded:
            for model in dict.fromkeys((self.raw_model, self.model_to_audit)):
                distributed.share_buffers_(model)

    def step(self, method: Method, micro: list[MicroBatch], batches: Iterator[Any]) -> None:
        last = len(micro) - 1
        for i, part in enumerate(micro):
            batch = to_device(next(batches), self.device)
            if self.auxiliary is not None:
                handed_on = self.auxiliary.step(self.model, batch)
                batch = batch if handed_on is None else handed_on
            self._called = False
            # Processes exchange gradients only once a step, at its last micro-batch.
            with self.fabric.no_backward_sync(self.wrapped, enabled=i < last), _explained():
                self.fabric.backward(self._loss(method, part, batch))
        if self.clip_norm is not None:
            self.fabric.clip_gradients(self.wrapped, self.optimizer, max_norm=self.clip_norm, error_if_nonfinite=False)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.update_(self.raw_model)

    def _note_call(self, *_: object) -> None:
        self._called = True

    def _loss(self, method: Method, part: MicroBatch, batch: Any) -> Tensor:
        weight = None if part.present is None else part.present.to(self.device, torch.float32)
        evaluation = self.problem.evaluate(self.model, batch, part.index.to(self.device), weight)
        if self.model is self.wrapped and not self._called:
            raise ConfigurationError(PAST_THE_MODEL)
        with contextlib.nullcontext() if self.model is self.raw_model else _differentiating():
            loss = method.loss(evaluation)
        return loss if part.factor == 1.0 else loss * part.factor

    def is_finite(self, *, everywhere: bool) -> bool:
        weights = [parameter for parameter in self.raw_model.parameters() if parameter.requires_grad]
        finite = torch.stack([weight.detach().isfinite().all() for weight in weights]).all()
        bad = (~finite).float().to(self.device)
        return not (distributed.all_max_(bad) if everywhere else bad).item()

    def state(self) -> dict[str, Any]:
        """State of model, average, optimiser and auxiliary step, whole, wherever its parts are."""
        if self.sharded:
            from torch.distributed.checkpoint.state_dict import get_state_dict

            model, optimizer = get_state_dict(self.wrapped, self.raw_optimizer, options=_gathered())
        else:
            model, optimizer = self.raw_model.state_dict(), self.raw_optimizer.state_dict()
        auxiliary = None if self.auxiliary is None else self.auxiliary.state_dict()
        scaler = self.fabric.strategy.precision.state_dict()  # of 16-mixed; nothing elsewhere
        average = None if self.average is None else self.average.state_dict()
        return {
            "model": dict(model),
            "average": average,
            "optimizer": optimizer,
            "auxiliary": auxiliary,
            "scaler": scaler,
        }

    def weights_to_ship(self) -> dict[str, Tensor]:
        """Weights and buffers of :attr:`model_to_audit`, whole."""
        return dict(self.state()["model"] if self.average is None else self.average.model.state_dict())

    def load(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`state` gave, or say that it is another's."""
        try:
            if self.sharded:
                from torch.distributed.checkpoint.state_dict import set_state_dict

                states = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
                set_state_dict(self.wrapped, self.raw_optimizer, **states, options=_gathered())
            else:
                self.raw_model.load_state_dict(state["model"])
                self.raw_optimizer.load_state_dict(state["optimizer"])
                _check_moments(self.raw_optimizer)
            if self.average is not None:
                self.average.load_state_dict(state["average"])
            if self.auxiliary is not None:
                self.auxiliary.load_state_dict(state["auxiliary"])
            if state["scaler"]:
                self.fabric.strategy.precision.load_state_dict(state["scaler"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"the checkpoint does not fit this model and optimiser: {error}") from error

    @property
    def sharded(self) -> bool:
        """Whether each process holds but a part of the model."""
        from lightning_fabric.strategies.fsdp import FSDPStrategy
        from lightning_fabric.strategies.model_parallel import ModelParallelStrategy

        return isinstance(self.fabric.strategy, FSDPStrategy | ModelParallelStrategy)


def seed_device(seed: int, device: torch.device) -> None:
    """Seed the device's generator and the CPU's; torch.manual_seed visits every backend and costs a millisecond."""
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


def _check_moments(optimizer: torch.optim.Optimizer) -> None:
    """Refuse moments of other shapes than their weights', which PyTorch takes and stumbles over at the next step."""
    for weight, kept in optimizer.state.items():
        for name in ("exp_avg", "exp_avg_sq", "momentum_buffer"):  # those of Adam and SGD; others' may be factored
            value = kept.get(name)
            if isinstance(value, Tensor) and value.shape != weight.shape:
                raise ValueError(f"{name} of shape {tuple(value.shape)} for a weight of {tuple(weight.shape)}")


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


@contextlib.contextmanager
def _differentiating() -> Iterator[None]:
    """Where a method may look at gradients, as for tau0="auto": Fabric takes that for a forgotten fabric.backward."""
    from lightning_fabric import wrappers

    wrappers._in_fabric_backward = True
    try:
        yield
    finally:
        wrappers._in_fabric_backward = False


def _is_plain(fabric: Fabric) -> bool:
    """Whether there is one process and nothing to convert; a precision that weights cannot be in is refused."""
    from lightning_fabric.plugins.precision import DoublePrecision, HalfPrecision, Precision
    from lightning_fabric.strategies.single_device import SingleDeviceStrategy

    precision = fabric.strategy.precision
    if isinstance(precision, DoublePrecision | HalfPrecision):
        raise ConfigurationError(
            "expected the precision 32-true, bf16-mixed or 16-mixed, in which the weights stay in float32, got "
            f"{precision.precision}"
        )
    return isinstance(fabric.strategy, SingleDeviceStrategy) and type(precision) is Precision


def _gathered() -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(full_state_dict=True, cpu_offload=True)
