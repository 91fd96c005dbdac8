"""Files written whole or not at all, folders that one process works in, errors that say what to do."""

import contextlib
import errno
import io
import json
import math
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from samplewise.errors import CheckpointError, OutputError
from samplewise.storage import distributed

PARTIAL = ".partial-"  # how the names of what is not yet whole begin
KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


def cannot_write(path: Path, error: OSError) -> OutputError:
    """The error for a failed write, with what to do about it."""
    advice = {
        errno.ENOSPC: "the disk is full. Free some space and resume",
        errno.EDQUOT: "the quota is used up. Free some space and resume",
        errno.ENOENT: "its folder is gone. Was it moved or removed?",
        errno.ELOOP: "it is a link, which may lead anywhere. Remove it",
        errno.ENOTDIR: "a part of its path is a file. Choose another folder",
    }.get(error.errno or 0, f"{error.strerror or error}. Choose another folder")
    return OutputError(f"cannot write {path}: {advice}")


def check_regular(path: Path | str) -> None:
    """Raise an ``OSError`` unless it is a regular file: a pipe may keep its reader waiting, a device may never end."""
    mode = Path(path).stat().st_mode
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "a device")
        raise OSError(errno.EINVAL, f"expected a regular file, got {kind}", str(path))


def open_regular(path: Path | str) -> io.BufferedReader:
    """Open a regular file for reading."""
    check_regular(path)
    # Should a pipe have taken its place meanwhile, nobody waits for it either.
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0)))


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Give a temporary place beside ``path``; the file or folder written there takes its name at the end, whole.

    It lies in a folder of its own, which :func:`clear_partial` removes after a kill with all that a library put there.
    """
    make_folder(path.parent)
    try:
        with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=path.parent) as folder:
            temporary = Path(folder) / path.name
            yield temporary
            if temporary.is_file():
                _sync(temporary)
                os.umask(umask := os.umask(0))  # it can be read only by setting it
                temporary.chmod(0o666 & ~umask)  # some libraries write for the owner alone
            temporary.replace(path)
        with contextlib.suppress(OSError):  # some systems cannot sync folders, and need not
            _sync(path.parent)  # else the new name itself may be lost in a power failure
    except OutputError:
        raise
    except OSError as error:
        raise cannot_write(path, error) from error


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def clear_partial(folder: Path) -> None:
    """Remove the remains of interrupted writes in ``folder``, and in the folders directly below it.

    Links are not followed: what lies behind them is not ours.
    """
    for base in (folder, *(below for below in folder.glob("*/") if not below.is_symlink())):
        for left in base.glob(f"{PARTIAL}*"):
            shutil.rmtree(left, ignore_errors=True)


def lock(path: Path, busy: str) -> int:
    """Keep other processes from the file ``path``, or raise :class:`CheckpointError` of the text ``busy``.

    The lock is lifted when the file that is returned is closed, or this process ends, however it ends.
    """
    try:
        # A link is not followed, and nothing is cut off: the file may be someone's.
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # Windows has no such lock
        pass
    except OSError:
        os.close(handle)
        raise CheckpointError(busy) from None
    return handle


@contextlib.contextmanager
def alone(folder: Path, what: str) -> Iterator[None]:
    """Keep a second run out of ``folder``, made if need be; of the processes of one run only the first locks it."""
    if distributed.rank() != 0:
        yield
        return
    make_folder(folder)
    handle = lock(folder / ".lock", f"{folder}: another process is working on this {what}; wait for it or end it")
    try:
        yield
    finally:
        with contextlib.suppress(ImportError):
            import fcntl

            # Not by closing it alone: a worker that was forked meanwhile, and has not ended yet, holds it open too.
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, unless they are there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno == errno.ENOENT:  # although those above it are made too: such as in /proc
            raise OutputError(f"cannot make {folder}: nothing can be written there. Choose another folder") from error
        raise cannot_write(folder, error) from error


def strict_json(value: Any) -> Any:
    """``value`` with NaN and infinities as null, which strict JSON asks for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): strict_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict_json(item) for item in value]
    return value


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with atomic(Path(path)) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def write_json(path: Path, value: Any) -> None:
    """Write strict, indented JSON, whole or not at all."""
    write_text(path, json.dumps(strict_json(value), indent=2, allow_nan=False) + "\n")


def ensure_writable(folder: Path, *, needed: int = 0) -> Path:
    """Make ``folder`` and try it for ``needed`` bytes: a run that cannot write says so at its start, not at its end."""
    folder = Path(folder)
    make_folder(folder)
    try:
        with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=folder) as probe:
            (Path(probe) / "probe").write_bytes(b"\0" * 4096)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise cannot_write(folder, error) from error
    if free < needed:
        raise OutputError(
            f"{folder} has {free / 1e6:.0f} MB free, but checkpoints will need {needed / 1e6:.0f} MB: free some space "
            "or choose another folder"
        )
    return folder


def write_tensors(path: Path, tensors: Mapping[str, Any], header: dict[str, str] | None = None) -> None:
    """Write tensors to a safetensors file, whole or not at all."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file  # here, so that what only writes JSON does without PyTorch

    try:
        with atomic(Path(path)) as temporary:
            save_file({name: value.contiguous() for name, value in tensors.items()}, temporary, metadata=header)
    except SafetensorError as error:  # which hides the system's own number of the error in its text
        code = errno.ENOSPC if "No space left" in str(error) else 0
        raise cannot_write(path, OSError(code, str(error))) from error
