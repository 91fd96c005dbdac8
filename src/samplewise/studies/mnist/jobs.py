"""Rows side by side, each in a process of its own with its own share of the threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from samplewise.data import ImageData
from samplewise.data.processes import LOST, side_by_side
from samplewise.errors import SamplewiseError
from samplewise.studies.mnist.rows import Row, parse_row
from samplewise.studies.mnist.settings import StudySettings, row_folder
from samplewise.studies.mnist.study import is_complete, run_row, warm_start

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Job", "JobFailedError", "run_here", "run_jobs"]

LoadData = Callable[[], ImageData]
MakeFabric = Callable[[], "Fabric | None"]
Watch = Callable[[dict["Job", int]], None]
"""Called now and then with the epochs that each unfinished job has behind it."""

POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Job:
    """One row with one seed."""

    row: Row
    seed: int

    def __str__(self) -> str:
        return f"{self.row.name} (seed {self.seed})"


class JobFailedError(SamplewiseError, RuntimeError):
    """Some rows did not come to their end; the others did."""


def run_jobs(
    jobs: Sequence[Job],
    settings: StudySettings,
    out: Path,
    load: LoadData,
    *,
    processes: int = 1,
    threads: int | None = None,
    fabric: MakeFabric | None = None,
    watch: Watch | None = None,
    tensorboard: bool = False,
) -> None:
    """Run the rows, ``processes`` of them at a time, each from its own copy of its seed's warm start.

    A row that fails does not stop the others. Rows that are complete are left alone.

    Args:
        jobs: what to run.
        settings: what all rows have in common.
        out: the run's folder.
        load: gives the data; called once in each process, so it must be picklable.
        processes: how many rows run side by side.
        threads: of each process; PyTorch's choice if not given.
        fabric: makes the devices to train on, in each process; picklable too.
        watch: called about every second while rows run.
        tensorboard: also write TensorBoard event files for each row.

    Raises:
        JobFailedError: at least one row failed, after all the others were run.
    """
    todo = [job for job in jobs if not is_complete(out, job.row, job.seed)]
    if not todo:
        return
    failures: dict[str, str] = {}
    try:
        # Rows are safe to end at any moment, so an interrupt need not wait for them.
        with side_by_side(
            min(processes, len(todo)), partial(_load, load, fabric), threads=threads, end_at_once=True
        ) as pool:
            # Warm starts first: two rows of one seed must not make the same one at the same time.
            seeds = dict.fromkeys(job.seed for job in todo)
            for warm in [pool.submit(_warm, settings, seed, out) for seed in seeds]:
                warm.result()
            running = {pool.submit(_run, settings, job.row.name, job.seed, out, tensorboard): job for job in todo}
            _collect(running, failures, out, watch)
    except BrokenProcessPool as error:
        done = sum(is_complete(out, job.row, job.seed) for job in todo)
        raise JobFailedError(
            f"{LOST}, when {done} of {len(todo)} rows were complete. Run again with --resume and fewer --jobs"
        ) from error
    if failures:
        listed = "; ".join(f"{name}: {why}" for name, why in failures.items())
        raise JobFailedError(f"{len(failures)} of {len(todo)} rows failed: {listed}. Run again with --resume to go on")


def run_here(
    jobs: Sequence[Job],
    settings: StudySettings,
    out: Path,
    data: ImageData,
    fabric: Fabric,
    *,
    tensorboard: bool = False,
) -> None:
    """Run the rows one after the other in this process, on all devices of ``fabric``, launched already."""
    for job in jobs:
        run_row(settings, data, job.row, job.seed, out, fabric=fabric, progress=None, tensorboard=tensorboard)


def _collect(running: dict[Future[None], Job], failures: dict[str, str], out: Path, watch: Watch | None) -> None:
    while running:
        done, _ = wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
        if watch:
            watch({job: _epochs_done(out, job) for job in running.values()})
        for future in done:
            job = running.pop(future)
            error = future.exception()
            if isinstance(error, BrokenProcessPool):
                raise error
            if error is not None:
                failures[str(job)] = f"{error}" if isinstance(error, SamplewiseError) else f"{error!r}"
    if watch:
        watch({})


def _epochs_done(out: Path, job: Job) -> int:
    try:
        with (row_folder(out, job.row, job.seed) / "fit" / "history.jsonl").open("rb") as file:
            return sum(1 for _ in file)
    except OSError:
        return 0


def _load(load: LoadData, fabric: MakeFabric | None) -> tuple[ImageData, Fabric | None]:
    """What each process keeps: the data and its devices."""
    return load(), fabric() if fabric is not None else None


def _warm(kept: tuple[ImageData, Fabric | None], settings: StudySettings, seed: int, out: Path) -> None:
    data, fabric = kept
    warm_start(settings, data, seed, out, fabric=fabric)


def _run(
    kept: tuple[ImageData, Fabric | None], settings: StudySettings, row: str, seed: int, out: Path, tensorboard: bool
) -> None:
    data, fabric = kept
    run_row(settings, data, parse_row(row), seed, out, fabric=fabric, tensorboard=tensorboard)
