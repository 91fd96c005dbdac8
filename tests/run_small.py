"""A run that the tests do in a process of its own, to be killed and resumed, and in several that train together."""

from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

import samplewise as sw
from small import make_data, make_method, make_model, make_problem


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
) -> dict[str, Any]:
    """Train, or go on; everything that the run ends with."""
    strategy = "ddp_find_unused_parameters_true" if devices > 1 else "auto"  # warm-up leaves the decoder out
    fabric = Fabric(accelerator="cpu", devices=devices, strategy=strategy)
    fabric.launch()
    problem, data, model = make_problem(), make_data(), make_model(dropout=dropout, norm=norm)
    method = make_method(kind)
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
        warmup_epochs=1,
        batch_size=batch,
        average=average,
        promise=promise,
        audit_on={"train": data, "test": make_data(51, seed=1)},
        checkpoint=folder,
        checkpoint_steps=2,
        fabric=fabric,
    )
    return {
        "model": dict(model.state_dict()),
        "method": dict(method.state_dict()),
        "shipped": dict(solution.model.state_dict()),
        "selected": solution.selected.epoch,
        "promised": 0.0 if solution.promise is None else solution.promise.share_at_least,
        "history": [{k: v for k, v in row.items() if k != "seconds"} for row in solution.history.rows],
        "violators": solution.audits["test"]["reconstruction"].violators,
        "objective": solution.audits["test"].objective,
        "samples": solution.audits["test"].samples,
    }
