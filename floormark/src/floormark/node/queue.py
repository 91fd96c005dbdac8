"""The queue on the disk: what has been received and marked, until the target has it.

A file is in the queue when it has its name in ``outgoing``, whole and safe from a power failure, and no longer when it
has been removed from there. Its name is the SHA-256 of the file that was received: what a peer sends again, since it
got no answer, is the same file.
"""

import errno
import os
import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path
from threading import Condition

from floormark.certificate import certificate_path
from floormark.disk import atomic, cannot_write, clear_partial, make_folder, rename

SUFFIX = ".dcm"


class Queue:
    """Files that wait for the target, oldest first.

    Args:
        folder: where they lie; no other process may use it.
        limit: bytes from which on nothing more is taken.
        certificates: a folder that gets the certificates of what was sent; they are removed if not given.
    """

    def __init__(self, folder: Path, *, limit: int, certificates: Path | None = None) -> None:
        self.receiving, self.outgoing, self.failed = (folder / name for name in ("receiving", "outgoing", "failed"))
        self.limit, self.certificates = limit, certificates
        self.changed = Condition()
        self.bytes = self.count = self.failed_count = 0
        self._attempts: Counter[str] = Counter()

    def open(self) -> None:
        """Make the folders, and clear what a kill left in the middle of receiving, marking or removing."""
        shutil.rmtree(self.receiving, ignore_errors=True)
        for folder in (self.receiving, self.outgoing, self.failed, *filter(None, [self.certificates])):
            make_folder(folder)
            clear_partial(folder)
        for certificate in self.outgoing.glob(f"*{SUFFIX}.json"):
            if not certificate.with_suffix("").exists():
                certificate.unlink()
        self.waiting()

    @property
    def full(self) -> bool:
        """Whether nothing more is taken."""
        return self.bytes >= self.limit

    def place(self, sha256: str) -> Path:
        """Where the marked file lies of a received one with this hash."""
        return self.outgoing / f"{sha256}{SUFFIX}"

    def put(self, received: Path, sha256: str) -> None:
        """Take a received file as it is."""
        rename(received, self.place(sha256))
        self.added(sha256)

    def added(self, sha256: str) -> None:
        """Count a file that has taken its place, and wake who waits for it."""
        with self.changed:
            try:
                self.bytes += self.place(sha256).stat().st_size
            except FileNotFoundError:  # sent meanwhile
                return
            self.count += 1
            self.changed.notify_all()

    def waiting(self) -> list[Path]:
        """What waits: first what was tried least often, then what is oldest, so that no file holds up all others."""
        with self.changed:
            stats, failed = _files(self.outgoing), _files(self.failed)
            self.bytes = sum(stat.st_size for stat in (*stats.values(), *failed.values()))
            self.count, self.failed_count = len(stats), len(failed)
        return sorted(stats, key=lambda path: (self._attempts[path.name], stats[path].st_mtime_ns))

    def postpone(self, path: Path) -> None:
        """Let a file wait until others have been tried."""
        self._attempts[path.name] += 1

    def sent(self, path: Path, uid: str) -> None:
        """Remove a file that the target has; ``uid`` names the certificate that is kept.

        Raises:
            OutputError: the certificate cannot be kept; then the file stays in the queue.
        """
        certificate = certificate_path(path)
        if self.certificates is not None and certificate.exists():
            _move(certificate, self.certificates / f"{uid}.json")
        self._removed(path)
        path.unlink(missing_ok=True)
        certificate.unlink(missing_ok=True)

    def refused(self, path: Path) -> None:
        """Set a file aside that the target does not take; moved back to ``outgoing`` it is sent again."""
        self._removed(path, kept=True)
        certificate = certificate_path(path)
        for each in (certificate, path):
            with suppress(FileNotFoundError):
                rename(each, self.failed / each.name)

    def _removed(self, path: Path, *, kept: bool = False) -> None:
        with self.changed:
            self._attempts.pop(path.name, None)
            self.count -= 1
            if kept:
                self.failed_count += 1
            else:
                with suppress(FileNotFoundError):  # somebody removed it by hand
                    self.bytes -= path.stat().st_size


def _move(source: Path, target: Path) -> None:
    """Rename a file, which needs no room on a full disk, or copy it to another file system."""
    try:
        rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise cannot_write(target, error) from error
        with atomic(target) as temporary:
            shutil.copyfile(source, temporary)


def _files(folder: Path) -> dict[Path, os.stat_result]:
    """The images in a folder; some may be removed or moved by hand meanwhile."""
    with os.scandir(folder) as entries:
        found = {}
        for entry in entries:
            if entry.name.endswith(SUFFIX):
                with suppress(FileNotFoundError):
                    found[Path(entry)] = entry.stat()
        return found
