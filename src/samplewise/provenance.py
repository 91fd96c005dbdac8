"""Where a result comes from: command, commit, versions, machine, seed."""

import datetime
import os
import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["commit", "provenance", "versions"]

PACKAGES = (
    "samplewise",
    "torch",
    "lightning-fabric",
    "numpy",
    "scipy",
    "safetensors",
    "scikit-learn",
    "matplotlib",
    "torchmetrics",
    "cooper-optim",
)


def versions() -> dict[str, str]:
    """Versions of Python, this package and those of its dependencies that are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The commit this package runs from, with ``-dirty`` if its files differ from it; None outside a checkout."""
    folder = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        head = git("rev-parse", "HEAD")
        return head + ("-dirty" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def command() -> str:
    """The command line as one would type it."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def provenance(*, seed: int | None = None, device: str = "cpu") -> dict[str, Any]:
    """What every result file holds beside its numbers."""
    import torch  # here, so that the commands that only print versions start quickly

    return {
        "command": command(),
        "commit": commit(),
        "seed": seed,
        "versions": versions(),
        "device": device,
        "threads": torch.get_num_threads(),
        "machine": {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()},
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
