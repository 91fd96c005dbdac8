"""A run that the tests do in a process of its own, to be killed and resumed, and in several that train together."""

import signal
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import samplewise as sw
from samplewise.storage.checkpoint import load_state
from samplewise.storage.sharding import reshard_like
from samplewise.training.folder import RunFolder
from small import make_data, make_method, make_model, make_problem


def shard(model: nn.Module, mesh: DeviceMesh) -> Any:
    """Each linear layer of the network, and what is left of it, as torch's FSDP shards them.

    Where processes share a replica, they split the encoder's layers by torch's tensor parallelism first.
    """
    if mesh["tensor_parallel"].size() > 1:
        plan = {"encoder.0": ColwiseParallel(), "encoder.3": RowwiseParallel()}
        parallelize_module(model, mesh["tensor_parallel"], plan)
    if mesh["data_parallel"].size() == 1 and mesh["tensor_parallel"].size() > 1:
        return model
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh["data_parallel"])
    return fully_shard(model, mesh=mesh["data_parallel"])


def in_full(model: nn.Module) -> dict[str, Tensor]:
    """Weights and buffers, of which each process may hold a part; every process must call."""
    state: dict[str, Any] = model.state_dict()
    return {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in state.items()}


def of_all_samples(method: sw.Method) -> dict[str, Tensor]:
    """A method's state with the multipliers of all samples, of which each process holds a part."""
    tables = method.tables if isinstance(method, sw.AugmentedLagrangian) else {}
    return {name: value for name, value in method.state_dict().items() if "stores" not in name} | tables


def train(
    folder: Path,
    kind: str,
    *,
    devices: int = 1,
    epochs: int = 6,
    dropout: float = 0.2,
    norm: bool = False,
    batch: int = 33,  # the last step has two samples
    average: float | None = None,
    share: float | None = None,
    sharded: bool = False,
    tensor_parallel: int = 1,
    optimizer_last: bool = False,
    certified: bool = False,
    warmup_epochs: int = 1,
    checkpoint_steps: int | None = 2,
    **further: Any,
) -> dict[str, Any]:
    """Train, or go on; everything that the run ends with."""
    # Warm-up leaves the decoder out.
    strategy: Any = "auto" if devices == 1 else "ddp_find_unused_parameters_true" if warmup_epochs else "ddp"
    if sharded:
        sizes: dict[str, Any] = {
            "data_parallel_size": devices // tensor_parallel,
            "tensor_parallel_size": tensor_parallel,
        }
        strategy = ModelParallelStrategy(shard, **sizes)
    fabric = Fabric(accelerator="cpu", devices=devices, strategy=strategy)
    fabric.launch()
    problem, data = make_problem(), make_data()
    model: nn.Module = make_model(dropout=dropout, norm=norm)
    method = make_method(kind)
    if kind == "auto":
        method = sw.SequentialPenalty(problem.constraints, schedule=sw.Geometric("auto", growth=1.1))
    if share is not None:
        method = sw.SequentialPenalty(problem.constraints, schedule=sw.Constant("auto"))
    if optimizer_last:
        model = fabric.setup_module(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    promise = None if share is None else sw.Promise(share, make_data(60, seed=2), make_data(60, seed=3))
    solution = sw.fit(
        problem,
        model,
        data,
        method=method,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
        epochs=epochs,
        warmup_epochs=warmup_epochs,
        batch_size=batch,
        average=average,
        promise=promise,
        audit_on={"train": data, "test": make_data(51, seed=1)},
        checkpoint=folder,
        checkpoint_steps=checkpoint_steps,
        fabric=fabric,
        **further,
    )
    certificate = sw.certify(problem, solution.model, data, solution.method) if certified else None
    return {
        "model": reshard_like(load_state(max((folder / "checkpoints").glob("*.safetensors")))["model"], None),
        "method": of_all_samples(method),
        "shipped": in_full(solution.model),
        "certificate": None if certificate is None else [certificate.stationarity, certificate.residual],
        "selected": solution.selected.epoch,
        "promised": 0.0 if solution.promise is None else solution.promise.share_at_least,
        "history": [{k: v for k, v in row.items() if k != "seconds"} for row in solution.history.rows],
        "violators": solution.audits["test"]["reconstruction"].violators,
        "objective": solution.audits["test"].objective,
        "samples": solution.audits["test"].samples,
    }


def train_and_be_killed(folder: Path, kind: str, *, saves: int, seconds: float, **options: Any) -> dict[str, Any]:
    """Train until so many seconds of its own time after that many saves, however busy the machine is."""
    runs: Any = RunFolder
    plain, left = runs.save, iter(range(saves - 1, -1, -1))

    def save(*arguments: Any) -> None:
        plain(*arguments)
        if next(left, None) == 0:
            signal.setitimer(signal.ITIMER_PROF, seconds)  # ends the process by SIGPROF, which nothing here handles

    runs.save = save
    return train(folder, kind, **options)
