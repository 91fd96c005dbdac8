"""Parallel work in processes that end with their parent."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from copy import copy
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar

from floormark.errors import ProcessLostError
from floormark.threads import limit_threads

LOST = "a process was ended from outside, perhaps for want of memory"
QUEUED = 4  # items submitted for each process: enough that none idles, few enough for memory

Kept = TypeVar("Kept")
Item = TypeVar("Item")
Result = TypeVar("Result")


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers(Generic[Kept]):
    """A pool of processes, each of which keeps an object that all its work needs, such as a network."""

    def __init__(self, pool: ProcessPoolExecutor, count: int) -> None:
        self.pool, self.count = pool, count

    def submit(self, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Have ``function(kept, *arguments)`` called in one of the processes."""
        with _interrupts_held():  # the first work that is submitted starts the processes
            return self.pool.submit(_call, function, *arguments)

    def map(self, function: Callable[[Kept, Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """``function(kept, item)`` of each item, in order; only a few items are in flight at any moment.

        Raises:
            ProcessLostError: a process was killed; it says how many items were done.
        """
        left = iter(items)
        waiting: deque[Future[Result]] = deque()
        done = 0

        def hand_out(count: int) -> None:
            with suppress(BrokenProcessPool):  # results from before are still yielded
                waiting.extend(self.submit(function, item) for item in islice(left, count))

        hand_out(QUEUED * self.count)
        with suppress(BrokenProcessPool):
            while waiting:
                result = waiting.popleft().result()
                hand_out(1)
                done += 1
                yield result
        if done < len(items):
            raise ProcessLostError(
                f"{LOST}, when {done:,} of {len(items):,} were done: use fewer processes, and go on with resume"
            )


@contextmanager
def side_by_side(
    count: int, keep: Callable[[], Kept], *, threads: int | None = None, end_at_once: bool = False
) -> Iterator[Workers[Kept]]:
    """Start processes: fresh ones, not forks, since a fork may hang in the locks of other threads.

    Args:
        count: how many.
        keep: gives what each process keeps; called once in each, so it must be picklable.
        threads: threads of linear algebra libraries in each process; their default if not given.
        end_at_once: whether an error also ends running work, or only cancels what has not begun.
    """
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, context, initializer=_begin, initargs=(keep, threads))
    try:
        yield Workers(pool, count)
    except BaseException:
        if end_at_once:
            for process in multiprocessing.active_children():
                process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def each_of(
    items: Sequence[Item], function: Callable[[Kept, Item], Result], kept: Kept, *, workers: int
) -> Iterator[Result]:
    """``function(kept, item)`` of each item, in order; with one worker in this process."""
    if workers == 1:
        yield from (function(kept, item) for item in items)
        return
    # One thread each: the processes share the cores between them.
    with side_by_side(workers, partial(copy, kept), threads=1) as pool:
        yield from pool.map(function, items)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Block Ctrl-C in this block, and for good in processes started in it, so that none ends halfway."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_kept: Any = None  # of this process


def _begin(keep: Callable[[], object], threads: int | None) -> None:
    global _kept
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted too, and decides what to do
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _kept = keep()
    if threads is not None:
        limit_threads(threads)


def _end_with_parent() -> None:
    """Exit when the parent is killed: nobody would collect further results."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _call(function: Callable[..., Result], *arguments: Any) -> Result:
    return function(_kept, *arguments)
