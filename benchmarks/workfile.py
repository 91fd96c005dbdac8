"""Long benchmarks that can be killed: each finding is a line in a file, and what is there is not done again."""

import json
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from samplewise.storage.origins import commit

Task = TypeVar("Task")
Record = dict[str, Any]
Work = Callable[[Task], Iterator[Record]]
"""What a task finds; a function at the top of a module, so that other processes can have it."""
EVERY = 30.0  # seconds between two signs of life
COMMIT = commit()  # at the beginning: while a long run goes on, work in the checkout may too


def records(path: Path, settings: Record) -> list[Record]:
    """What has been found, empty at first; the file must come from the same ``settings`` and commit."""
    head = {"settings": settings, "commit": COMMIT}
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(head) + "\n")
    text = path.read_text()
    if not text.endswith("\n"):  # killed within a line, to which the next would be joined
        path.write_text(text + "\n")
    first, *rest = text.splitlines()
    if json.loads(first) != head:
        raise SystemExit(f"{path}: made with {first}, not with {json.dumps(head)}: delete it, or run what made it")
    return [record for line in rest if (record := _whole(line)) is not None]


def work_through(path: Path, work: Work[Task], tasks: Sequence[Task], workers: int) -> None:
    """Do the tasks in processes of one thread each and append what they find, as soon as it is found."""
    if not tasks:
        return
    began = said = time.monotonic()
    # Forked and not spawned: what blind-watermark does when it is imported fails in a process of a pool.
    with multiprocessing.get_context("fork").Pool(workers, torch.set_num_threads, (1,)) as pool:
        for done, _ in enumerate(pool.imap_unordered(partial(_append, path, work), tasks), 1):
            if time.monotonic() > said + EVERY:
                said = time.monotonic()
                print(f"{done} of {len(tasks)} tasks in {said - began:.0f} s", flush=True)


def _append(path: Path, work: Work[Task], task: Task) -> None:
    # One short write to a file opened for appending is never mixed with that of another process.
    with path.open("ab", buffering=0) as file:
        for record in work(task):
            file.write(json.dumps(record).encode() + b"\n")


def _whole(line: str) -> Record | None:
    """A line; None if it was being written when the process was killed."""
    try:
        found: Record = json.loads(line)
    except json.JSONDecodeError:
        return None
    return found
