"""Processes for the tests, forked from one that has imported what they need: that takes longer than most of their work.

What they do is a function of a module, which they find by its name.
"""

import gc
import importlib
import multiprocessing
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

SECONDS = 900  # of a machine that is busy with other work
Result = dict[str, Any]
MAIN = {"samplewise": "samplewise.cli", "floormark": "floormark.cli", "studies": "studies.commands"}

multiprocessing.get_context("forkserver").set_forkserver_preload(
    [
        "lightning.pytorch",
        "torch.distributed.run",
        "torch.distributed.fsdp",
        "torch.distributed.checkpoint.hf_storage",
        "samplewise.training",
        "samplewise.cli.app",
        "floormark.files.folder",
    ]
)


class Forked(ForkServerProcess):
    """A process that does ``work``, and ends with the code that it returns, if any.

    Args:
        work: what it does.
        arguments: of ``work``.
        told: a folder for what it says.
    """

    def __init__(self, work: Callable[..., object], *arguments: object, told: Path) -> None:
        super().__init__(target=_do, args=(told, work, arguments))
        self.told = told
        told.mkdir(parents=True, exist_ok=True)
        self.start()

    def finish(self) -> tuple[int, str, str]:
        """Wait for its end: its code, what it said and what it complained of."""
        self.join(SECONDS)
        self.kill()
        self.join()
        assert self.exitcode is not None
        out, err = ((self.told / name).read_text(encoding="utf-8") for name in ("out", "err"))
        return self.exitcode, out, err


def _do(told: Path, work: Callable[..., object], arguments: tuple[object, ...]) -> None:
    for name, stream in (("out", sys.stdout), ("err", sys.stderr)):
        with (told / name).open("wb") as file:
            os.dup2(file.fileno(), stream.fileno())
        stream.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore it, and hand that on
    torch.set_num_threads(1)
    gc.freeze()  # what was imported before the fork stays
    os.fsync = lambda fd: None
    _end_with(work, arguments)


def command(program: str, *arguments: str) -> int:
    """As ``python -W error -m program``."""
    sys.warnoptions.append("error")  # which the processes that it starts are given too
    warnings.simplefilter("error")
    code: int = importlib.import_module(MAIN[program]).main(arguments)
    return code


def two_processes(work: Callable[..., Result], *arguments: object) -> list[Result]:
    """Do ``work`` in two processes that meet over gloo: what each ends with."""
    return processes(2, work, *arguments)


def processes(count: int, work: Callable[..., Result], *arguments: object) -> list[Result]:
    """Do ``work`` in so many processes that meet over gloo: what each ends with."""
    from samplewise.storage.checkpoint import load_state  # here, so that tests of the tool do without the library

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        started = start(count, folder, work, *arguments)
        running = list(started)
        while running and not any(process.exitcode for process in started):
            ended = wait([process.sentinel for process in running], timeout=SECONDS)
            running = [process for process in running if process.exitcode is None] if ended else []
        for process in started:
            process.kill()  # it would wait for the one that failed
        for process in started:
            code, _, err = process.finish()
            assert code in (0, -signal.SIGKILL), err
        return [load_state(folder / f"{rank}.safetensors") for rank in range(count)]


def start(count: int, folder: Path, work: Callable[..., Result], *arguments: object) -> list[Forked]:
    """So many processes that meet over gloo to do ``work``; what they need to meet, and say, is in ``folder``."""
    return [Forked(_one, rank, count, folder, work, arguments, told=folder / str(rank)) for rank in range(count)]


def _one(rank: int, count: int, folder: Path, work: Callable[..., Result], arguments: tuple[object, ...]) -> None:
    from samplewise.storage.checkpoint import save_state

    size = str(count)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    # By a file, not by a port, which another program might take first.
    store = f"file://{folder / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=count)
    save_state(folder / f"{rank}.safetensors", work(*arguments))


def torchrun(work: Callable[..., object], *arguments: object) -> None:
    """What ``torchrun --standalone --nproc-per-node=2`` does, but with forks, which import nothing again."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        start_method="fork",
    )
    elastic_launch(config, _in_a_fork)(work, arguments)


def _in_a_fork(work: Callable[..., object], arguments: tuple[object, ...]) -> None:
    """Work in a process that ends when it is done, as a program does: those of the launcher wait for each other."""
    process = multiprocessing.get_context("fork").Process(target=_end_with, args=(work, arguments))
    process.start()
    process.join()
    assert process.exitcode == 0


def _end_with(work: Callable[..., object], arguments: tuple[object, ...]) -> None:
    code = work(*arguments)
    sys.exit(code if isinstance(code, int) else 0)
