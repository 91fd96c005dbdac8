"""One optimiser step: model, average and optimiser on Lightning Fabric."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from samplewise.errors import CheckpointError, ConfigurationError, MeasureError
from samplewise.methods import Method
from samplewise.problem import Problem
from samplewise.samples import to_device
from samplewise.storage import distributed
from samplewise.storage.sharding import has_shards, local, reshard_like, unsharded
from samplewise.training.average import Average
from samplewise.training.batching import Part, Step

if TYPE_CHECKING:
    from lightning_fabric import Fabric

PAST_THE_MODEL = (
    "expected evaluate to call the model itself, model(x): a call of one of its parts or methods, such as "
    "model.encoder(x), bypasses the exchange of gradients and mixed precision. Put it into forward"
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
    Fabric = _import_fabric()
    if torch.distributed.is_torchelastic_launched() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigurationError(
            "torchrun started this process, but no fabric= was given, so each process would train alone: make one, "
            "fabric = Fabric(devices=..., strategy='ddp'), call fabric.launch(), and give it"
        )
    return Fabric(accelerator="auto", devices=1)


def _import_fabric() -> type[Fabric]:
    """Fabric's class, imported only where training starts and without the whole of torchmetrics.

    Fabric asks for that package's version by importing it, which with all that it finds installed takes seconds; an
    empty module in its place tells the version as well.
    """
    name = "torchmetrics"
    spec = None if name in sys.modules else importlib.util.find_spec(name)
    if spec is not None:
        sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        from lightning_fabric import Fabric
    finally:
        if spec is not None:
            del sys.modules[name]
    return Fabric


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
        self.sharded, self.plain = _is_sharded(fabric), _is_plain(fabric)
        self.device = fabric.device
        self.fabric, self.problem, self.auxiliary, self.clip_norm = fabric, problem, auxiliary, clip_norm
        copied = _copy(model) if self.sharded and average is not None else None
        self.wrapped, of_fabric = _set_up(fabric, model, optimizer)
        self.raw_model: nn.Module = self.wrapped.module
        self.raw_optimizer = optimizer
        # With one process in full precision Fabric's wrappers have nothing to convert and nobody to talk to, and their
        # hooks on every output would cost more than the method does.
        self.model: nn.Module = self.raw_model if self.plain else self.wrapped
        self.optimizer = optimizer if self.plain else of_fabric
        self._called = False  # whether the wrapped model was, since the last micro-batch began
        self.wrapped.register_forward_pre_hook(self._note_call)
        for holder in (model, self.optimizer):  # an earlier backward pass, or an interrupted run, may have left some
            holder.zero_grad()
        if copied is not None:
            fabric.setup_module(copied)
        self.average = None if average is None else Average(self.raw_model, average, copied)

    @property
    def model_to_audit(self) -> nn.Module:
        """The model that the run is for, without what Fabric wraps around it: the average, if there is one."""
        return self.raw_model if self.average is None else self.average.model

    def broadcast_buffers(self) -> None:
        """Copy the first process's running statistics to all."""
        for model in dict.fromkeys((self.raw_model, self.model_to_audit)):
            distributed.broadcast_buffers_(model)

    def step(self, method: Method, step: Step) -> None:
        """Take one optimiser step."""
        for part, given in step:
            batch = to_device(given, self.device)
            if self.auxiliary is not None:
                handed_on = self.auxiliary.step(self.model, batch)
                batch = batch if handed_on is None else handed_on
            if self.plain:
                torch.autograd.backward(self._loss(method, part, batch))
            else:
                self._backward_by_fabric(method, part, batch)
        if self.clip_norm is not None:
            self.fabric.clip_gradients(self.wrapped, self.optimizer, max_norm=self.clip_norm, error_if_nonfinite=False)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.update_(self.raw_model)

    def _backward_by_fabric(self, method: Method, part: Part, batch: Any) -> None:
        self._called = False
        # A method that takes gradients of its own, not in every process equally often, needs the model unsharded.
        alone = (
            unsharded(self.raw_model, steps=True)
            if method.coefficients.estimating and self.sharded
            else contextlib.nullcontext()
        )
        # Processes exchange gradients only once a step, at its last micro-batch.
        with alone, self.fabric.no_backward_sync(self.wrapped, enabled=not part.last), _explained():
            self.fabric.backward(self._loss(method, part, batch))

    def _note_call(self, *_: object) -> None:
        self._called = True

    def _loss(self, method: Method, part: Part, batch: Any) -> Tensor:
        weight = None if part.present is None else part.present.to(self.device, torch.float32)
        evaluation = self.problem.evaluate(self.model, batch, to_device(part.index, self.device), weight)
        if self.plain:
            loss = method.loss(evaluation)
        else:
            if not self._called:
                raise ConfigurationError(PAST_THE_MODEL)
            with _differentiating():
                loss = method.loss(evaluation)
        if not loss.requires_grad:
            raise MeasureError(
                "expected an objective and measures computed from the model's output, got a loss without a gradient: "
                "none reaches the model. Look in evaluate for detach(), torch.no_grad(), .item(), NumPy or rounding, "
                "and for weights that are all frozen"
            )
        return loss if part.factor == 1.0 else loss * part.factor

    def is_finite(self, *, everywhere: bool) -> bool:
        weights = [parameter for parameter in self.raw_model.parameters() if parameter.requires_grad]
        finite = torch.stack([local(weight.detach()).isfinite().all() for weight in weights]).all()
        bad = (~finite).float().to(self.device)
        return not (distributed.all_max_(bad) if everywhere else bad).item()

    def state(self) -> dict[str, Any]:
        """State of model, average, optimiser and auxiliary step, as this process holds it."""
        return {
            "model": dict(self.raw_model.state_dict()),
            "average": None if self.average is None else self.average.state_dict(),
            "optimizer": self.raw_optimizer.state_dict(),
            "auxiliary": None if self.auxiliary is None else self.auxiliary.state_dict(),
            "scaler": self.fabric.strategy.precision.state_dict(),  # of 16-mixed; nothing elsewhere
        }

    def ship_(self, weights: dict[str, Tensor]) -> None:
        """End the training: the model has these weights from now on, in the place of its own and of their average."""
        self.raw_model.load_state_dict(weights)
        self.average = None

    def weights_to_ship(self) -> dict[str, Tensor]:
        """Weights and buffers of :attr:`model_to_audit`, as this process holds them."""
        return dict(self.model_to_audit.state_dict())

    def load(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`state` gave, or say that it is another's; weights may be sharded in another way."""
        try:
            self.raw_model.load_state_dict(reshard_like(state["model"], self.raw_model.state_dict()))
            weights = dict(enumerate(weight for group in self.raw_optimizer.param_groups for weight in group["params"]))
            self.raw_optimizer.load_state_dict(reshard_like(state["optimizer"], {"state": weights}))
            _check_moments(self.raw_optimizer)
            if self.average is not None:
                self.average.load_state_dict(state["average"])
            if self.auxiliary is not None:
                self.auxiliary.load_state_dict(reshard_like(state["auxiliary"], None))
            if state["scaler"]:
                self.fabric.strategy.precision.load_state_dict(state["scaler"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"the checkpoint does not fit this model and optimiser: {error}") from error


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
    """Where a method may take gradients, as for tau0="auto": Fabric takes that for a forgotten fabric.backward."""
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


def _is_sharded(fabric: Fabric) -> bool:
    """Whether the weights are sharded over the processes; a strategy that was never tested is refused."""
    from lightning_fabric.strategies.fsdp import FSDPStrategy
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy

    if isinstance(fabric.strategy, FSDPStrategy):
        raise ConfigurationError(
            "expected ModelParallelStrategy with torch's fully_shard to shard weights, got FSDPStrategy: PyTorch "
            "deprecates the FSDP behind it, and no test here has run it. docs/guides/devices.md shows how"
        )
    mesh = fabric.strategy.device_mesh if isinstance(fabric.strategy, ModelParallelStrategy) else None
    # Processes of one tensor-parallel group hold one model together, and see the same samples.
    several = mesh is not None and mesh["tensor_parallel"].size() > 1
    distributed.split_samples_among(mesh["data_parallel"].get_group() if mesh is not None and several else None)
    return mesh is not None


def _copy(model: nn.Module) -> nn.Module:
    """A copy of a model whose weights will be sharded: afterwards none can be made."""
    from lightning_fabric.wrappers import is_wrapped

    if is_wrapped(model) or has_shards(model):
        raise ConfigurationError(
            "average= needs a copy of the model, and PyTorch makes none once its weights are sharded: give the model "
            "as it was before, fit has Fabric shard it"
        )
    return copy.deepcopy(model)


def _set_up(fabric: Fabric, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
    """Model and optimiser as Fabric wraps them; the model may be wrapped already, as for an optimiser made after it."""
    from lightning_fabric.wrappers import is_wrapped

    if is_wrapped(model):
        return model, optimizer if is_wrapped(optimizer) else fabric.setup_optimizers(optimizer)
    before = list(model.parameters())
    wrapped, of_fabric = fabric.setup(model, optimizer)
    now = list(wrapped.parameters())
    # Where weights are sharded new ones take their place, and an optimiser made before would go on with the old.
    instead = dict(zip(before, now, strict=True)) if len(before) == len(now) else {}
    for group in optimizer.param_groups:
        group["params"] = [instead.get(weight, weight) for weight in group["params"]]
    for old, new in instead.items():
        if old is not new and old in optimizer.state:
            optimizer.state[new] = reshard_like(optimizer.state.pop(old), new)
    trained = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    if trained.isdisjoint(map(id, now)):
        raise ConfigurationError(
            "the optimizer holds none of the weights that the model has now: shard the model first, "
            "model = fabric.setup_module(model), then make the optimizer, and give both"
        )
    return wrapped, of_fabric
