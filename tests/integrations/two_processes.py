"""Trainings on two processes: a script does them in both, a test reads what each process ended with."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.spawn import start_processes

from samplewise.checkpoint import load_state, save_state

Work = Callable[[Path], dict[str, Any]]


def run(work: Work) -> None:
    """Do ``work`` in two processes, over the folder that the script was called with.

    They are forked where everything is imported and nothing was done yet: importing takes longer than the trainings.
    """
    torch.set_num_threads(1)
    start_processes(_one, (work, Path(sys.argv[1])), nprocs=2, start_method="fork")


def _one(rank: int, work: Work, folder: Path) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    # By a file, not by a port, which another program might take first.
    store = f"file://{folder / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    save_state(folder / f"{rank}.safetensors", work(folder))


def results_of(script: Path, folder: Path) -> list[dict[str, Any]]:
    """Run ``script`` over ``folder``: what each process ended with."""
    path = os.pathsep.join(filter(None, [str(script.parent.parent), os.environ.get("PYTHONPATH")]))
    command, environment = [sys.executable, str(script), str(folder)], os.environ | {"PYTHONPATH": path}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr
    return [load_state(folder / f"{rank}.safetensors") for rank in range(2)]
