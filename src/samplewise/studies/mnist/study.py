"""One row of the study: its copy of the warm start, training, and the files it leaves behind."""

from __future__ import annotations

import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler
from torch.utils.data import TensorDataset

from samplewise import checkpoint, distributed
from samplewise.audit import Audit, audit
from samplewise.batches import mix
from samplewise.constraints import Constraint
from samplewise.data import ImageData
from samplewise.errors import ConfigurationError
from samplewise.fit import Solution, fit
from samplewise.measures import mse
from samplewise.methods import Method, Unconstrained
from samplewise.provenance import provenance
from samplewise.stopping import inverse_tau
from samplewise.studies.mnist import results
from samplewise.studies.mnist.network import CONSTRAINT, Network, study_problem
from samplewise.studies.mnist.rows import Row, make_method
from samplewise.studies.mnist.settings import Settings, row_folder
from samplewise.training.live import in_lines

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["is_complete", "run_row", "warm_start"]

EVALUATION_BATCH = 2000  # large enough that a batch's overhead vanishes, small enough for the processor's cache
SHOWN = 10  # pictures of each kind that are kept


def is_complete(out: Path, row: Row, seed: int) -> bool:
    """Whether the row has been run to its end."""
    return (row_folder(out, row, seed) / results.RESULT_FILE).exists()


def warm_start(settings: Settings, data: ImageData, seed: int, out: Path, *, fabric: Fabric | None = None) -> Network:
    """The network after a few epochs of classification only, made once for each seed and kept.

    As in the published code: Adam with learning rate 1e-3 and no weight decay. The decoder is as initialised.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = settings.network()
    if not settings.warm_epochs:
        return model
    folder = out / "warm" / f"seed-{seed}"
    kept = folder / checkpoint.MODEL_FILE
    if kept.exists():
        model.load_state_dict(checkpoint.load_state(kept)["model"])
        return model
    with checkpoint.alone(folder, "row"):
        problem = study_problem(settings.theta)
        fit(
            problem,
            model,
            data.train,
            method=Unconstrained(problem.constraints),
            optimizer=torch.optim.Adam(model.parameters(), lr=1e-3, fused=True),
            epochs=settings.warm_epochs,
            batch_size=settings.batch_size,
            seed=mix("warm", seed),
            audit_on={"train": data.train},
            audit_every=settings.warm_epochs,
            audit_batch_size=EVALUATION_BATCH,
            checkpoint=folder / "fit",
            keep=1,
            fabric=fabric,
            progress=False,
        )
        if distributed.rank() == 0:
            checkpoint.save_state(kept, {"model": dict(model.state_dict())})
    return model


def run_row(
    settings: Settings,
    data: ImageData,
    row: Row,
    seed: int,
    out: Path,
    *,
    fabric: Fabric | None = None,
    progress: bool | None = False,
    resumable: bool = True,
    tensorboard: bool = False,
) -> Path:
    """Train one row from its own copy of the warm start; go on where an earlier call was interrupted.

    Args:
        settings: what all rows have in common.
        data: the images.
        row: which row.
        seed: of the initial weights and of the order of the samples.
        out: the run's folder.
        fabric: devices, strategy and precision; one CPU process if not given.
        progress: show a progress bar; on a terminal only if None.
        resumable: keep checkpoints to go on from; a run of seconds does without.
        tensorboard: also write TensorBoard event files, with pictures, below ``fit``.

    Returns:
        The row's folder, with ``result.json``, ``history.csv``, ``errors.csv`` and pictures in it.
    """
    if row.options.margin >= settings.theta:
        raise ConfigurationError(f"expected a margin below theta = {settings.theta:g}, got {row.options.margin:g}")
    folder = row_folder(out, row, seed)
    if is_complete(out, row, seed):
        return folder
    start = time.perf_counter()
    model = warm_start(settings, data, seed, out, fabric=fabric)
    problem = study_problem(settings.theta, margin=row.options.margin)
    method = make_method(row, problem.constraints, samples=len(data.train))
    # Fused: the same algorithm in one pass over the weights, which saves time on a CPU too.
    optimizer = torch.optim.Adam(model.parameters(), lr=row.options.rate, weight_decay=row.options.decay, fused=True)
    splits = {"train": data.train, settings.held_out: data.test}
    with checkpoint.alone(folder, "row"):
        solution = fit(
            problem,
            model,
            data.train,
            method=method,
            optimizer=optimizer,
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            seed=seed,
            scheduler=_scheduler(row, optimizer, method, settings.epochs),
            clip_norm=row.options.clip,
            audit_on=dict(splits),
            audit_batch_size=EVALUATION_BATCH,
            select_on="train",
            checkpoint=folder / "fit" if resumable else None,
            fabric=fabric,
            progress=progress,
            tensorboard=tensorboard,
            pictures=partial(_pictures, settings.shape) if tensorboard else None,
        )
        chosen = _selected(row, settings, solution, model)
        # Every process audits its share, so all of them must come here; only one writes.
        audits = {
            split: audit(study_problem(settings.theta), chosen.model, images, batch_size=EVALUATION_BATCH)
            for split, images in splits.items()
        }
        if distributed.rank() == 0:
            _leave(folder, settings, row, seed, splits, solution, chosen, audits, time.perf_counter() - start)
    return folder


def _pictures(shape: tuple[int, int], model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Originals above their reconstructions, dark on light."""
    images, _ = batch
    _, reconstructions = model(images)
    originals, redrawn = (1 - pixels.view(len(pixels), 1, *shape) for pixels in (images, reconstructions))
    return {"original and reconstruction": in_lines(originals, redrawn)}


def _scheduler(row: Row, optimizer: torch.optim.Optimizer, method: Method, epochs: int) -> LRScheduler | None:
    if row.options.lr == "cosine":
        return CosineAnnealingLR(optimizer, T_max=epochs)
    if row.options.lr == "inverse-tau":
        return inverse_tau(optimizer, method)
    return None


class _Chosen(NamedTuple):
    """The model of the selected epoch."""

    model: nn.Module
    epoch: int
    reason: str


def _selected(row: Row, settings: Settings, solution: Solution, last: nn.Module) -> _Chosen:
    if row.kind == "classification":
        # Nothing is trained to satisfy the constraint, so the most feasible epoch would be one of chance.
        return _Chosen(last, settings.epochs, "the last epoch: this row does not train the decoder")
    return _Chosen(solution.model, solution.selected.epoch, solution.selected.reason)


def _leave(
    folder: Path,
    settings: Settings,
    row: Row,
    seed: int,
    splits: dict[str, TensorDataset],
    solution: Solution,
    chosen: _Chosen,
    audits: dict[str, Audit],
    seconds: float,
) -> None:
    """Write what tables and figures are made of; the result last, since it says that the row is complete."""
    rows = solution.history.rows
    results.write_history(folder, rows)
    errors = {f"{split}/selected": found[CONSTRAINT].values for split, found in audits.items()}
    errors |= {f"{split}/last": solution.audits[split][CONSTRAINT].values for split in splits}
    results.write_errors(folder, settings.theta, errors)
    results.write_examples(folder, _examples(chosen.model, splits, audits))
    checkpoint.save_state(folder / checkpoint.MODEL_FILE, {"model": dict(chosen.model.state_dict())})
    constraint = study_problem(settings.theta).constraints[0]
    black = {split: _black(images, constraint) for split, images in splits.items()}
    results.write_result(
        folder,
        {
            "name": row.name,
            "row": row.text,
            "seed": seed,
            "settings": asdict(settings),
            "status": solution.status.name,
            "selected": {
                "epoch": chosen.epoch,
                "reason": chosen.reason,
                "metrics": {split: results.from_audit(found) for split, found in audits.items()},
            },
            "last": {
                "epoch": len(rows),
                "metrics": {split: results.from_audit(solution.audits[split]) for split in splits},
            },
            "black_image": black,
            "seconds": sum(entry["seconds"] for entry in rows),
            "seconds_this_call": seconds,
            "provenance": provenance(seed=seed, device=str(next(chosen.model.parameters()).device)),
        },
    )


def _black(images: TensorDataset, constraint: Constraint) -> dict[str, float]:
    """What an all-black picture would score: the paper's first row reports this in the place of a decoder."""
    pixels = images.tensors[0]
    error = mse(torch.zeros_like(pixels), pixels).double()
    excess = constraint.excess(error)
    return {
        "mse": float(error.mean()),
        "violation": float(torch.relu(excess).mean()),
        "satisfied": float((excess <= 0).double().mean()),
    }


def _examples(model: nn.Module, splits: dict[str, TensorDataset], audits: dict[str, Audit]) -> dict[str, Tensor]:
    """The first pictures of each split and its worst reconstructed ones, before and after."""
    found: dict[str, Tensor] = {}
    device = next(model.parameters()).device
    for split, images in splits.items():
        pixels = images.tensors[0]
        errors = audits[split][CONSTRAINT].values
        first = torch.arange(min(SHOWN, len(pixels)))
        for which, index in (("first", first), ("worst", errors.argsort(descending=True)[:SHOWN])):
            originals = pixels[index]
            model.eval()
            with torch.no_grad():
                _, reconstructions = model(originals.to(device))
            found[f"{split}/{which}/original"] = originals
            found[f"{split}/{which}/reconstruction"] = reconstructions.cpu()
            found[f"{split}/{which}/index"] = index
            found[f"{split}/{which}/error"] = errors[index].double()
    return found
