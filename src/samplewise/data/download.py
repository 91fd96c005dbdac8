"""Published data from the web: mirrors in turn, md5, resumed where it broke off, kept in the user's cache folder."""

import hashlib
import http.client
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from samplewise.data.folder import find
from samplewise.data.idx import read_bytes
from samplewise.data.published import FILES, Checksums, PublishedData
from samplewise.errors import ConfigurationError, DataError, OutputError

__all__ = ["cache_folder", "download"]

CHUNK = 1 << 16
RANGE_NOT_SATISFIABLE = 416
PARTIAL_CONTENT = 206

Report = Callable[[str, int, int | None], None]
"""Called with the file's name, the bytes so far and the bytes in all (None if the server does not say)."""


class _MirrorError(Exception):
    """This mirror failed; the next one may not."""


def cache_folder() -> Path:
    """Where downloads are kept, by the custom of the operating system."""
    home = Path.home()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or home / ".cache"
    return Path(base) / "samplewise"


def download(
    data: PublishedData, folder: Path | str | None = None, *, timeout: float = 20.0, report: Report | None = None
) -> Path:
    """Fetch the four files of ``data`` unless they are there already.

    Args:
        data: which data set.
        folder: where to keep them; a folder in the user's cache if not given.
        timeout: seconds a mirror may stay silent.
        report: called as bytes come in.

    Returns:
        The folder, for ``load_folder``.
    """
    if not data.mirrors:
        raise ConfigurationError(f"{data.name!r} data cannot be downloaded: give its folder")
    target = Path(folder) if folder is not None else cache_folder() / data.name
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            _fetch(data, name, target, timeout, report)
    except OSError as error:
        raise OutputError(f"{target}: cannot be written: {error.strerror or error}") from error
    return target


def _fetch(data: PublishedData, name: str, target: Path, timeout: float, report: Report | None) -> None:
    path = target / f"{name}.gz"
    expected = data.checksums[name].compressed
    if _present(target, name, data.checksums[name]):
        return
    part = path.with_name(path.name + ".part")
    failures = []
    for mirror in data.mirrors:
        try:
            _from_mirror(mirror + path.name, part, expected, timeout, report)
        except _MirrorError as error:
            failures.append(f"{mirror}: {error}")
        else:
            part.replace(path)
            return
    raise DataError(
        f"could not download {path.name} ({'; '.join(failures)}). Without a network, put "
        f"{', '.join(f'{file}.gz' for file in FILES)} into {target} and run again"
    )


def _present(target: Path, name: str, known: Checksums) -> bool:
    """Whether the file is there and right, as published, plain or compressed again by hand."""
    path = find(target, name)
    if path is None:
        return False
    if _md5(path) in (known.compressed, known.plain):
        return True
    try:
        return hashlib.md5(read_bytes(path), usedforsecurity=False).hexdigest() == known.plain
    except DataError:
        return False  # torn or corrupted: fetched again


def _from_mirror(url: str, part: Path, expected: str, timeout: float, report: Report | None) -> None:
    """Complete ``part`` from one mirror; a second time from the start if what was there before did not fit."""
    resumed = part.is_file() and part.stat().st_size > 0
    for _ in range(2 if resumed else 1):
        _transfer(url, part, timeout, report)
        if _md5(part) == expected:
            return
        part.unlink()
    raise _MirrorError(f"the file has another md5 than {expected}")


def _transfer(url: str, part: Path, timeout: float, report: Report | None) -> None:
    done = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "samplewise"})
    if done:
        request.add_header("Range", f"bytes={done}-")
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            if response.status != PARTIAL_CONTENT:
                done = 0  # this server always sends the whole file
            length = response.headers.get("Content-Length")
            total = done + int(length) if length else None
            _write(response, part, done, total, report)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == RANGE_NOT_SATISFIABLE and done:
            return  # nothing is left to send: the md5 decides whether the part is the file
        raise _MirrorError(f"HTTP {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise _MirrorError(str(error.reason)) from error
    except (http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise _MirrorError(f"broke off: {error}") from error


def _write(response: http.client.HTTPResponse, part: Path, done: int, total: int | None, report: Report | None) -> None:
    with part.open("ab" if done else "wb") as file:
        while chunk := response.read(CHUNK):
            file.write(chunk)
            done += len(chunk)
            if report:
                report(part.stem, done, total)
    if total is not None and done < total:
        raise _MirrorError(f"broke off after {done} of {total} bytes")


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
