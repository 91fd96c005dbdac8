"""Train the rows of the study, from the warm start to their result files, one by one or in parallel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

from floormark.processes import LOST, side_by_side
from samplewise import Problem, Unconstrained, Validation, audit, fit
from samplewise.errors import ConfigurationError, SamplewiseError
from samplewise.measures import mse
from samplewise.problem import evaluation_mode
from samplewise.report import Pictures, in_lines
from samplewise.samples import mix
from samplewise.storage import MODEL_FILE, Checkpoints, alone, distributed, load_state, provenance, save_state
from samplewise.training import Callback, single_device
from studies.data import ImageData
from studies.mnist.digit_network import CONSTRAINT, DigitNetwork, classify, study_problem
from studies.mnist.results import FIT, RESULT, write_row
from studies.mnist.rows import Row, make_method
from studies.mnist.settings import StudySettings, row_folder
from studies.options import to_tensorboard

if TYPE_CHECKING:
    from lightning_fabric import Fabric

EVALUATION_BATCH = 2000  # large enough that a batch's overhead vanishes, small enough for the processor's cache
EXAMPLES_KEPT = 10
Loaded = tuple[ImageData, "Fabric | None"]
"""The data, and the devices to train on, of each process."""
OnProgress = Callable[[int], None]
"""Called with the epochs of all rows that are done, after an epoch or about every second."""
POLL_SECONDS = 1.0


def is_complete(out: Path, row: Row, seed: int) -> bool:
    """Whether the row has been run to its end."""
    return (row_folder(out, row, seed) / RESULT).exists()


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
    kept = folder / MODEL_FILE
    if kept.exists():
        model.load_state_dict(load_state(kept)["model"])
        return model
    with alone(folder, "row"):
        fit(
            Problem(classify, []),
            model,
            data.train,
            method=Unconstrained(),
            optimizer=torch.optim.Adam(model.parameters(), lr=1e-3, fused=True),
            epochs=settings.warm_epochs,
            batch_size=settings.batch_size,
            seed=mix("warm", seed),
            # fit audits after its last epoch: here one sample, since a warm start's quality is not reported.
            audit_on={"train": TensorDataset(*(tensor[:1] for tensor in data.train.tensors))},
            validation=Validation(every=settings.warm_epochs),
            checkpoint=folder / FIT,
            fabric=fabric,
            progress=False,
        )
        if distributed.rank() == 0:
            save_state(kept, {"model": dict(model.state_dict())})
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
    tensorboard: bool = False,
    callbacks: Sequence[Callback] = (),
) -> None:
    """Train one row from its own copy of the warm start; go on where an earlier call was interrupted.

    ``progress`` and ``callbacks`` are those of ``fit``; ``tensorboard`` also writes event files, with pictures.
    """
    if row.options.margin >= settings.theta:
        raise ConfigurationError(f"expected a margin below theta = {settings.theta:g}, got {row.options.margin:g}")
    if is_complete(out, row, seed):
        return
    folder = row_folder(out, row, seed)
    model = warm_start(settings, data, seed, out, fabric=fabric)
    problem = study_problem(settings.theta, margin=row.options.margin)
    # Fused: the same algorithm in one pass over the weights, which saves time on a CPU too.
    optimizer = torch.optim.Adam(model.parameters(), lr=row.options.rate, weight_decay=row.options.decay, fused=True)
    splits = {"train": data.train, settings.held_out: data.test}
    fabric = fabric or single_device()
    with alone(folder, "row"), to_tensorboard(fabric, folder / FIT if tensorboard else None):
        solution = fit(
            problem,
            model,
            data.train,
            method=make_method(row, problem.constraints, samples=len(data.train)),
            optimizer=optimizer,
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            seed=seed,
            scheduler=CosineAnnealingLR(optimizer, T_max=settings.epochs) if row.options.lr == "cosine" else None,
            # The first decides: the row is selected by what holds on its training data.
            audit_on={name: DataLoader(images, batch_size=EVALUATION_BATCH) for name, images in splits.items()},
            average=row.options.average or None,
            checkpoint=folder / FIT,
            fabric=fabric,
            progress=progress,
            callbacks=[Pictures(fabric, splits, partial(_pictures, settings.shape)), *callbacks],
        )
        epoch, reason, audits, black = solution.selected.epoch, solution.selected.reason, solution.audits, {}
        if row.kind == "classification":  # its decoder is untrained: the most feasible epoch would be one of chance
            epoch, reason = settings.epochs, "the last epoch: this row does not train the decoder"
            model.load_state_dict((Checkpoints(folder / FIT / "checkpoints").latest() or {})["model"])
            # Every process audits a part, so all of them must come here; only one writes.
            audits = {name: audit(problem, model, part, batch_size=EVALUATION_BATCH) for name, part in splits.items()}
            black = {name: _black(images, settings.theta) for name, images in splits.items()}
        if distributed.rank() != 0:
            return
        errors = {name: found[CONSTRAINT].values for name, found in audits.items()}
        save_state(folder / MODEL_FILE, {"model": dict(model.state_dict())})
        content = {
            "name": row.name,
            "row": row.text,
            "seed": seed,
            "samples": {name: len(images) for name, images in splits.items()},
            "selected": {"epoch": epoch, "reason": reason},
            "black_image": black,
            "provenance": provenance(seed=seed, device=str(next(model.parameters()).device)),
        }
        write_row(folder, content, theta=settings.theta, errors=errors, examples=_worst(model, splits, errors))


def _pictures(shape: tuple[int, int], model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Originals above their reconstructions, dark on light."""
    images, _ = batch
    _, reconstructions = model(images)
    originals, reconstructed = (1 - pixels.view(len(pixels), 1, *shape) for pixels in (images, reconstructions))
    return {"original and reconstruction": in_lines(originals, reconstructed)}


def _black(images: TensorDataset, theta: float) -> dict[str, float]:
    """The scores of an all-black picture, which the paper's first row reports in the place of a decoder's."""
    pixels = images.tensors[0]
    error = mse(torch.zeros_like(pixels), pixels).double()
    excess = study_problem(theta).constraints[0].excess(error)
    return {
        "mse": float(error.mean()),
        "violation": float(torch.relu(excess).mean()),
        "satisfied": float((excess <= 0).double().mean()),
    }


def _worst(model: nn.Module, splits: dict[str, TensorDataset], errors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The pictures of each split that are reconstructed worst, before and after, as bytes."""
    found: dict[str, Tensor] = {}
    device = next(model.parameters()).device
    for split, images in splits.items():
        index = errors[split].argsort(descending=True)[:EXAMPLES_KEPT]
        pixels = images.tensors[0][index]
        with evaluation_mode(model):
            _, reconstructed = model(pixels.to(device))
        for what, values in (("original", pixels), ("reconstruction", reconstructed.cpu())):
            found[f"{split}/{what}"] = (values.clamp(0, 1) * 255).round().to(torch.uint8)
        found[f"{split}/index"] = index
        found[f"{split}/error"] = errors[split][index].double()
    return found


@dataclass(frozen=True)
class Job:
    """One row with one seed."""

    row: Row
    seed: int

    def __str__(self) -> str:
        return f"{self.row.name} (seed {self.seed})"


class JobFailedError(SamplewiseError, RuntimeError):
    """Some rows failed; the others are complete."""


class _EpochEnd(Callback):
    def __init__(self, tell: Callable[[], None]) -> None:
        self.tell = tell

    def on_epoch(self, row: Mapping[str, object]) -> None:
        self.tell()


def run_jobs(
    jobs: Sequence[Job],
    settings: StudySettings,
    out: Path,
    load: Callable[[], Loaded],
    *,
    processes: int = 1,
    threads: int | None = None,
    watch: OnProgress | None = None,
    tensorboard: bool = False,
) -> None:
    """Run the rows that are not complete, in this process or in several side by side.

    A row that fails does not stop the others. ``load`` is called once in each process that trains, so it must be
    picklable where there are several; ``threads`` are those of each process, PyTorch's choice if None.

    Raises:
        JobFailedError: at least one row failed, after all the others were run.
    """
    todo = [job for job in jobs if not is_complete(out, job.row, job.seed)]
    failures: dict[Job, BaseException] = {}

    def tell() -> None:
        if watch is not None:
            watch(sum(settings.epochs if is_complete(out, j.row, j.seed) else _epochs_done(out, j) for j in jobs))

    if min(processes, len(todo)) > 1:
        # Rows can be ended at any moment, so an interrupt need not wait for them.
        with side_by_side(min(processes, len(todo)), load, threads=threads, end_at_once=True) as pool:
            try:
                # Warm starts first: two rows of one seed must not make the same one at the same time.
                for warm in [pool.submit(_warm, settings, seed, out) for seed in {job.seed: None for job in todo}]:
                    warm.result()
                running = {pool.submit(_run, settings, job, out, tensorboard): job for job in todo}
                while running:
                    done, _ = wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
                    for future in done:
                        job, error = running.pop(future), future.exception()
                        if isinstance(error, BrokenProcessPool):
                            raise error
                        if error is not None:
                            failures[job] = error
                    tell()
            except BrokenProcessPool as error:
                complete = sum(is_complete(out, job.row, job.seed) for job in todo)
                raise JobFailedError(
                    f"{LOST}, when {complete} of {len(todo)} rows were complete. Run again with --resume and fewer "
                    "--jobs"
                ) from error
    elif todo:
        data, fabric = load()
        if threads is not None:
            torch.set_num_threads(threads)
        run = partial(run_row, fabric=fabric, tensorboard=tensorboard, callbacks=[_EpochEnd(tell)])
        for job in todo:
            try:
                run(settings, data, job.row, job.seed, out)
            except Exception as error:  # whatever it is, the other rows are run
                failures[job] = error
            tell()
    if failures:
        reasons = {
            job: str(each) if isinstance(each, SamplewiseError) else repr(each) for job, each in failures.items()
        }
        said = "; ".join(f"{job}: {reason}" for job, reason in reasons.items())
        raise JobFailedError(f"{len(failures)} of {len(todo)} rows failed: {said}. Run again with --resume to go on")


def _epochs_done(out: Path, job: Job) -> int:
    try:
        with (row_folder(out, job.row, job.seed) / FIT / "history.jsonl").open("rb") as file:
            return sum(1 for _ in file)
    except OSError:
        return 0


def _warm(loaded: Loaded, settings: StudySettings, seed: int, out: Path) -> None:
    data, fabric = loaded
    warm_start(settings, data, seed, out, fabric=fabric)


def _run(loaded: Loaded, settings: StudySettings, job: Job, out: Path, tensorboard: bool) -> None:
    data, fabric = loaded
    run_row(settings, data, job.row, job.seed, out, fabric=fabric, tensorboard=tensorboard)
