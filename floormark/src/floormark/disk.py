"""Files written whole or not at all, folders that one process works in, JSON and secrets read with helpful errors."""

import contextlib
import csv
import errno
import io
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from floormark.errors import ConfigurationError, DataError, OutputError

PARTIAL = ".partial-"  # prefix of the names of incomplete files
FILE_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
SHELL_PIPES = ("/dev/fd/", "/proc/self/fd/", "/dev/stdin")  # opened by the shell for us, such as <(pass show key)
DECODE_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    csv.Error,
)
WRITE_ADVICE = {
    errno.ENOSPC: "the disk is full. Free some space and resume",
    errno.EDQUOT: "the quota is used up. Free some space and resume",
    errno.ENOENT: "its folder is gone, or takes no files. Was it moved or removed?",
    errno.ELOOP: "it is a link, which may lead anywhere. Remove it",
    errno.ENOTDIR: "a part of its path is a file. Choose another folder",
}


def cannot_write(path: Path, error: OSError) -> OutputError:
    """The error for a failed write, with advice."""
    advice = WRITE_ADVICE.get(error.errno or 0, f"{error.strerror or error}. Choose another folder")
    return OutputError(f"cannot write {path}: {advice}")


def check_regular(path: Path | str) -> None:
    """Raise an ``OSError`` unless it is a regular file: a pipe may block its reader, a device may never end."""
    mode = Path(path).stat().st_mode
    if not stat.S_ISREG(mode):
        kind = FILE_KINDS.get(stat.S_IFMT(mode), "a device")
        raise OSError(errno.EINVAL, f"expected a regular file, got {kind}", str(path))


def disk_error(error: BaseException | None) -> OSError | None:
    """The disk error that caused another error, such as one of pydicom; None if there is none."""
    while error is not None and not (isinstance(error, OSError) and error.errno):
        error = error.__cause__
    return error


def open_regular(path: Path | str) -> io.BufferedReader:
    """Open a regular file for reading."""
    check_regular(path)
    # If a pipe has taken its place meanwhile, opening it does not block either.
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0)))


def read_bytes(path: Path, *, largest: int) -> bytes:
    """The content of a regular file; a ``ValueError`` if it has more than ``largest`` bytes."""
    with open_regular(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > largest:
            raise ValueError(f"expected at most {largest:,} bytes, got {size:,}")
        return file.read(size)


def read_secret(what: str, file: Path | str | None = None, *, variable: str | None = None, most: int) -> bytes:
    """Up to ``most`` bytes from a file, from a pipe that the shell opened, or from an environment variable.

    Trailing line ends are not part of the secret.
    """
    if (file is None) == (variable is None):
        raise ConfigurationError(f"expected the {what} in a file or in an environment variable: give one of the two")
    if variable is not None:
        if variable not in os.environ:
            raise ConfigurationError(f"the environment variable {variable} is not set: it should hold the {what}")
        content = os.fsencode(os.environ[variable])
    else:
        assert file is not None
        try:
            with Path(file).open("rb") if str(file).startswith(SHELL_PIPES) else open_regular(file) as opened:
                content = opened.read(most + 1)
        except OSError as error:
            raise ConfigurationError(f"{file}: the {what} cannot be read: {error.strerror or error}") from error
    if len(content) > most:
        raise ConfigurationError(f"{file or variable}: expected a {what}, got more than {most} bytes")
    return content.rstrip(b"\r\n")


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; the file written there is renamed to ``path`` at the end, whole.

    It is in a folder of its own, since libraries put further files beside the one they write: whatever a killed process
    leaves behind has one name, which :func:`clear_partial` knows.
    """
    make_folder(path.parent)
    try:
        with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=path.parent) as folder:
            temporary = Path(folder) / path.name
            yield temporary
            _sync(temporary)
            os.umask(umask := os.umask(0))  # the umask can be read only by setting it
            temporary.chmod(0o666 & ~umask)  # some libraries write for the owner alone
            _replace(temporary, path)
    except OutputError:
        raise
    except OSError as error:
        raise cannot_write(path, error) from error


def rename(source: Path, target: Path) -> None:
    """Give a file a name on the same file system, safe from a power failure."""
    _sync(source)
    _replace(source, target)


def _replace(source: Path, target: Path) -> None:
    source.replace(target)
    with contextlib.suppress(OSError):  # some systems cannot sync folders, and need not
        _sync(target.parent)  # else the new name itself may be lost in a power failure


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def clear_partial(folder: Path) -> None:
    """Remove what killed processes left half written in ``folder``; links are not followed."""
    for left in folder.glob(f"{PARTIAL}*"):
        shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a second process out of ``folder`` (created if missing) until the block or this process ends."""
    make_folder(folder)
    path = folder / ".lock"
    try:
        # A link is not followed, and the file is not truncated: it may be someone's.
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except OSError as error:
        raise cannot_write(path, error) from error
    with os.fdopen(handle):  # closing it unlocks it: child processes do not inherit it
        try:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            pass  # Windows has no such lock
        except OSError:
            told = f"{folder}: another process is working on this folder; wait for it or end it"
            raise ConfigurationError(told) from None
        yield


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, unless they are there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from error


def write_json(path: Path, value: Any) -> None:
    """Write strict, indented JSON, whole or not at all."""
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8", newline="")


@contextlib.contextmanager
def decoding(path: Path, what: str) -> Iterator[None]:
    """Turn whatever goes wrong on a file that is missing, torn or foreign into one :class:`DataError`.

    It names the file and ``what`` it should be, such as ``a certificate``.
    """
    try:
        yield
    except DataError:
        raise
    except DECODE_ERRORS as error:
        why = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        if isinstance(error, AttributeError | LookupError | TypeError):  # their messages alone say little
            why = f"{type(error).__name__}: {error}"
        raise DataError(f"{path}: cannot be read as {what}: {why or error}") from error


def read_json(path: Path, what: str, *, largest: int) -> dict[str, Any]:
    """The object in a file of strict JSON of at most ``largest`` bytes, or an error as from :func:`decoding`."""

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is not strict JSON")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        # Of two entries of one name a person may see the first, while programs take the last.
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("an entry is there twice")
        return found

    with decoding(path, what):
        value = json.loads(read_bytes(path, largest=largest), parse_constant=refuse, object_pairs_hook=once)
        if not isinstance(value, dict):
            raise ValueError(f"expected an object, got {type(value).__name__}")
    return value
