"""Where a result comes from: command, commit, versions, machine, seed."""

import contextlib
import datetime
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = """samplewise torch lightning-fabric numpy scipy safetensors scikit-learn matplotlib torchmetrics kornia
pillow pydicom cryptography monai cooper-optim"""


def versions() -> dict[str, str]:
    """Versions of Python, this package and those of its dependencies that are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES.split():
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def commit() -> str | None:
    """The commit this package runs from, with ``-dirty`` if its checkout differs from it; None outside a checkout.

    Files that git does not know count as a difference, for they may be imported. ``results`` and ``docs`` are left out:
    making a result changes them.
    """
    top = _checkout()
    if top is None:
        return None
    head = _git(top, "rev-parse", "HEAD")
    status = ("status", "--porcelain", "--untracked-files=normal", "--")
    changed = _git(top, *status, ":(top)", ":(exclude,top)results", ":(exclude,top)docs")
    return None if head is None or changed is None else head + ("-dirty" if changed else "")


def command() -> str:
    """The command line as one would type it at the top of the checkout; never an absolute path of the program."""
    return shlex.join([*_program(), *sys.argv[1:]])


def _program() -> list[str]:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None:  # python -m; argv then has the module's file
        return ["python", "-m", spec.name.removesuffix(".__main__")]
    program = Path(sys.argv[0])
    if program.name in ("", "-c", "-"):
        return ["python", *([program.name] if program.name else [])]
    if program.suffix != ".py":
        return [program.name]
    top, script = _checkout(), program.resolve()
    return ["python", script.relative_to(top).as_posix() if top and script.is_relative_to(top) else script.name]


def _checkout() -> Path | None:
    """The top of the checkout this package is part of, if it is: an environment may lie in someone else's."""
    here = Path(__file__).resolve()
    known = _git(here.parent, "ls-files", "--error-unmatch", here.name)
    top = _git(here.parent, "rev-parse", "--show-toplevel") if known else None
    return Path(top).resolve() if top else None


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def described(value: Any, within: tuple[int, ...] = ()) -> str:
    """A description of an object that is the same in every process: its ``repr``, unless that has its address.

    Then its type and its state, and so on for what it holds; of a function its name and what it closes over. ``within``
    are the addresses of what holds it.
    """
    if id(value) in within:
        return "..."  # it holds itself
    inside = (*within, id(value))
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {described(each, inside)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple | set | frozenset):
        parts = [described(each, inside) for each in value]
        opened, closed = ("[", "]") if isinstance(value, list) else ("(", ",)" if len(parts) == 1 else ")")
        return opened + ", ".join(sorted(parts) if isinstance(value, set | frozenset) else parts) + closed
    if " at 0x" not in (text := repr(value)):
        return text
    if isinstance(value, partial):
        return f"partial of {described((value.func, value.args, value.keywords), inside)}"
    named = value if hasattr(value, "__qualname__") else type(value)
    cells = getattr(value, "__closure__", None) or ()
    state = [cell.cell_contents for cell in cells] if named is value else value.__getstate__()
    return f"{named.__module__}.{named.__qualname__}" + (f" of {described(state, inside)}" if state else "")


def provenance(*, seed: int | None = None, device: str = "cpu") -> dict[str, Any]:
    """The provenance that every result file has beside its numbers."""
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
