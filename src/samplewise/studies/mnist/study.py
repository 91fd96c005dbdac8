"""One row of the study: its copy of the warm start, training, and the files it leaves behind."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

from samplewise import checkpoint, disk, distributed
from samplewise.audit import Audit, audit
from samplewise.constraints import Constraint
from samplewise.data import ImageData
from samplewise.errors import ConfigurationError
from samplewise.history import History
from samplewise.measures import mse
from samplewise.methods import Unconstrained
from samplewise.provenance import provenance
from samplewise.report.tensorboard import in_lines, pictures, to_tensorboard
from samplewise.samples import mix
from samplewise.studies.mnist import results
from samplewise.studies.mnist.digit_network import CONSTRAINT, DigitNetwork, study_problem
from samplewise.studies.mnist.rows import Row, make_method
from samplewise.studies.mnist.settings import StudySettings, row_folder
from samplewise.training import Solution, fit
from samplewise.training.step import single_device

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["is_complete", "run_row", "warm_start"]

EVALUATION_BATCH = 2000  # large enough that a batch's overhead vanishes, small enough for the processor's cache
SHOWN = 10  # pictures of each kind that are kept


def is_complete(out: Path, row: Row, seed: int) -> bool:
    """Whether the row has been run to its end."""
    return (row_folder(out, row, seed) / results.RESULT_FILE).exists()


def warm_start(
    settings: StudySettings, data: ImageData, seed: int, out: Path, *, fabric: Fabric | None = None
) -> DigitNetwork:
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
    with disk.alone(folder, "row"):
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
            audit_on={"train": DataLoader(data.train, batch_size=EVALUATION_BATCH)},
            audit_every=settings.warm_epochs,
            checkpoint=folder / "fit",
            fabric=fabric,
            progress=False,
        )
        if distributed.rank() == 0:
            checkpoint.save_state(kept, {"model": dict(model.state_dict())})
    return model


def run_row(
    settings: StudySettings,
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
        fabric: devices, strategy and precision; the best single device if not given.
        progress: show a progress bar; on a terminal only if None.
        resumable: keep checkpoints to go on from; a run of seconds does without.
        tensorboard: also write TensorBoard event files, with pictures, below ``fit``.

    Returns:
        The row's folder: fit's own in ``fit``, and beside it which row it is, the distribution of errors and pictures.
    """
    if row.options.margin >= settings.theta:
        raise ConfigurationError(f"expected a margin below theta = {settings.theta:g}, got {row.options.margin:g}")
    folder = row_folder(out, row, seed)
    if is_complete(out, row, seed):
        return folder
    model = warm_start(settings, data, seed, out, fabric=fabric)
    problem = study_problem(settings.theta, margin=row.options.margin)
    method = make_method(row, problem.constraints, samples=len(data.train))
    # Fused: the same algorithm in one pass over the weights, which saves time on a CPU too.
    optimizer = torch.optim.Adam(model.parameters(), lr=row.options.rate, weight_decay=row.options.decay, fused=True)
    splits = {"train": data.train, settings.held_out: data.test}
    fabric = fabric or single_device()
    with disk.alone(folder, "row"), to_tensorboard(fabric, folder / results.FIT if tensorboard else None):
        solution = fit(
            problem,
            model,
            data.train,
            method=method,
            optimizer=optimizer,
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            seed=seed,
            scheduler=CosineAnnealingLR(optimizer, T_max=settings.epochs) if row.options.lr == "cosine" else None,
            # The first decides: the row is selected by what holds on its training data.
            audit_on={name: DataLoader(images, batch_size=EVALUATION_BATCH) for name, images in splits.items()},
            checkpoint=folder / results.FIT if resumable else None,
            fabric=fabric,
            progress=progress,
            on_audit=pictures(fabric, splits, partial(_pictures, settings.shape)),
        )
        chosen = _selected(row, settings, solution, model)
        # Every process audits its share, so all of them must come here; only one writes.
        audits = {
            split: audit(study_problem(settings.theta), chosen.model, images, batch_size=EVALUATION_BATCH)
            for split, images in splits.items()
        }
        if distributed.rank() == 0:
            if not resumable:
                History(folder / results.FIT, solution.history.rows)
            _leave(folder, settings, row, seed, splits, chosen, audits)
    return folder


def _pictures(shape: tuple[int, int], model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Originals above their reconstructions, dark on light."""
    images, _ = batch
    _, reconstructions = model(images)
    originals, redrawn = (1 - pixels.view(len(pixels), 1, *shape) for pixels in (images, reconstructions))
    return {"original and reconstruction": in_lines(originals, redrawn)}


class _Chosen(NamedTuple):
    """The model of the selected epoch."""

    model: nn.Module
    epoch: int
    reason: str


def _selected(row: Row, settings: StudySettings, solution: Solution, last: nn.Module) -> _Chosen:
    if row.kind == "classification":
        # Nothing is trained to satisfy the constraint, so the most feasible epoch would be one of chance.
        return _Chosen(last, settings.epochs, "the last epoch: this row does not train the decoder")
    return _Chosen(solution.model, solution.selected.epoch, solution.selected.reason)


def _leave(
    folder: Path,
    settings: StudySettings,
    row: Row,
    seed: int,
    splits: dict[str, TensorDataset],
    chosen: _Chosen,
    audits: dict[str, Audit],
) -> None:
    """Write what fit's folder does not hold; the result last, since it says that the row is complete."""
    errors = {f"{split}/selected": found[CONSTRAINT].values for split, found in audits.items()}
    results.write_errors(folder, settings.theta, errors)
    results.write_examples(folder, _examples(chosen.model, splits, audits))
    checkpoint.save_state(folder / checkpoint.MODEL_FILE, {"model": dict(chosen.model.state_dict())})
    constraint = study_problem(settings.theta).constraints[0]
    results.write_result(
        folder,
        {
            "name": row.name,
            "row": row.text,
            "seed": seed,
            "samples": {split: len(images) for split, images in splits.items()},
            "selected": {"epoch": chosen.epoch, "reason": chosen.reason},
            "black_image": {split: _black(images, constraint) for split, images in splits.items()},
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
