"""Rows side by side, each in a process of its own with its own share of the threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from samplewise.data import ImageData
from samplewise.data.processes import LOST, side_by_side
from samplewise.errors import SamplewiseError
from samplewise.studies.mnist.results import FIT
from samplewise.studies.mnist.rows import Row
from samplewise.studies.mnist.settings import StudySettings, row_folder
from samplewise.studies.mnist.study import is_complete, run_row, warm_start

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Job", "JobFailedError", "run_here", "run_jobs"]

Kept = tuple[ImageData, "Fabric | None"]
"""By each process: the data and its devices."""
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

    A row that fails does not stop the others. Rows that are complete are left alone. ``load`` and ``fabric`` give the
    data and the devices once in each process, so they must be picklable; ``watch`` is called about every second.

    Raises:
        JobFailedError: at least one row failed, after all the others were run.
    """
    todo = [job for job in jobs if not is_complete(out, job.row, job.seed)]
    if not todo:
        return
    failures: list[str] = []
    try:
        # Rows are safe to end at any moment, so an interrupt need not wait for them.
        with side_by_side(
            min(processes, len(todo)), partial(_load, load, fabric), threads=threads, end_at_once=True
        ) as pool:
            # Warm starts first: two rows of one seed must not make the same one at the same time.
            for warm in [pool.submit(_warm, settings, seed, out) for seed in {job.seed: None for job in todo}]:
                warm.result()
            running = {pool.submit(_run, settings, job, out, tensorboard): job for job in todo}
            while running:
                done, _ = wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
                if watch:
                    watch({job: _epochs_done(out, job) for job in running.values()})
                for future in done:
                    job, error = running.pop(future), future.exception()
                    if isinstance(error, BrokenProcessPool):
                        raise error
                    if error is not None:
                        failures.append(f"{job}: {error if isinstance(error, SamplewiseError) else repr(error)}")
            if watch:
                watch({})
    except BrokenProcessPool as error:
        complete = sum(is_complete(out, job.row, job.seed) for job in todo)
        raise JobFailedError(
            f"{LOST}, when {complete} of {len(todo)} rows were complete. Run again with --resume and fewer --jobs"
        ) from error
    if failures:
        raise JobFailedError(
            f"{len(failures)} of {len(todo)} rows failed: {'; '.join(failures)}. Run again with --resume to go on"
        )


def run_here(
    jobs: Sequence[Job], settings: StudySettings, out: Path, data: ImageData, fabric: Fabric, *, tensorboard: bool
) -> None:
    """Run the rows one after the other in this process, on all devices of ``fabric``, launched already."""
    for job in jobs:
        run_row(settings, data, job.row, job.seed, out, fabric=fabric, progress=None, tensorboard=tensorboard)


def _epochs_done(out: Path, job: Job) -> int:
    try:
        with (row_folder(out, job.row, job.seed) / FIT / "history.jsonl").open("rb") as file:
            return sum(1 for _ in file)
    except OSError:
        return 0


def _load(load: LoadData, fabric: MakeFabric | None) -> Kept:
    return load(), fabric() if fabric is not None else None


def _warm(kept: Kept, settings: StudySettings, seed: int, out: Path) -> None:
    data, fabric = kept
    warm_start(settings, data, seed, out, fabric=fabric)


def _run(kept: Kept, settings: StudySettings, job: Job, out: Path, tensorboard: bool) -> None:
    data, fabric = kept
    run_row(settings, data, job.row, job.seed, out, fabric=fabric, tensorboard=tensorboard)
