"""Rows side by side, each in a process of its own with its own share of the threads."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import TYPE_CHECKING

from samplewise.data import ImageData
from samplewise.errors import SamplewiseError
from samplewise.studies.mnist.rows import Row, parse_row
from samplewise.studies.mnist.settings import Settings, row_folder
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
    settings: Settings,
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
    with _pool(min(processes, len(todo)), load, threads, fabric) as pool:
        try:
            # Warm starts first: two rows of one seed must not make the same one at the same time.
            seeds = dict.fromkeys(job.seed for job in todo)
            for warm in [pool.submit(_warm, settings, seed, out) for seed in seeds]:
                warm.result()
            running = {pool.submit(_run, settings, job.row.name, job.seed, out, tensorboard): job for job in todo}
            _collect(running, failures, out, watch)
        except BrokenProcessPool:
            failures["a process"] = "was ended from outside (out of memory?)"
    if failures:
        listed = "; ".join(f"{name}: {why}" for name, why in failures.items())
        raise JobFailedError(f"{len(failures)} of {len(todo)} rows failed: {listed}. Run again with --resume to go on")


def run_here(
    jobs: Sequence[Job], settings: Settings, out: Path, data: ImageData, fabric: Fabric, *, tensorboard: bool = False
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


def _epochs_done(out: Path, job: Job) -> int:
    try:
        with (row_folder(out, job.row, job.seed) / "fit" / "history.jsonl").open("rb") as file:
            return sum(1 for _ in file)
    except OSError:
        return 0


@contextmanager
def _pool(
    processes: int, load: LoadData, threads: int | None, fabric: MakeFabric | None
) -> Iterator[ProcessPoolExecutor]:
    """Fresh processes, not forks: PyTorch's thread pools do not survive a fork."""
    pool = ProcessPoolExecutor(
        processes, multiprocessing.get_context("spawn"), initializer=_begin, initargs=(load, threads, fabric)
    )
    try:
        yield pool
    except BaseException:
        # Rows are safe to end at any moment, so an interrupt need not wait for them.
        for process in multiprocessing.active_children():
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    pool.shutdown()


_data: ImageData | None = None
_fabric: Fabric | None = None


def _begin(load: LoadData, threads: int | None, fabric: MakeFabric | None) -> None:
    """Set up a worker process."""
    global _data, _fabric
    import signal

    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    threading.Thread(target=_follow_parent, daemon=True).start()
    if threads is not None:
        torch.set_num_threads(threads)
    _data = load()
    _fabric = fabric() if fabric is not None else None


def _follow_parent() -> None:
    """End this process with its parent: nobody would collect the row, and a resumed run would find it busy."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)


def _warm(settings: Settings, seed: int, out: Path) -> None:
    assert _data is not None
    warm_start(settings, _data, seed, out, fabric=_fabric)


def _run(settings: Settings, row: str, seed: int, out: Path, tensorboard: bool) -> None:
    assert _data is not None
    run_row(settings, _data, parse_row(row), seed, out, fabric=_fabric, tensorboard=tensorboard)
