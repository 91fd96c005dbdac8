"""A store that is being written: pixels are appended, and a journal says how many of them count.

Nothing counts before the journal says so, and the journal says so only after the pixels are on disk. So a process may
end at any moment, and so may the machine.
"""

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from samplewise.checkpoint import atomic, lock
from samplewise.data.pictures.chunks import Chunk
from samplewise.data.pictures.store import IMAGES, JOURNAL
from samplewise.errors import CheckpointError

__all__ = ["Unfinished"]

FORMAT = "samplewise-pictures-unfinished-1"
COMMIT_SECONDS = 2.0


class Unfinished:
    """The files of an unfinished store, open for appending by one process at a time.

    Args:
        folder: where they are; :meth:`begin` makes them.
        fingerprint: of the listing.
        size: height and width of a picture.
    """

    def __init__(self, folder: Path, *, fingerprint: str, size: int) -> None:
        self.folder = folder
        self.size = size
        self.read = 0
        """How many files of the listing are done with."""
        self.kept = 0
        """How many of them are in the store."""
        self.bad: dict[str, str] = {}
        self.converted: Counter[str] = Counter()
        self._journal = (folder / JOURNAL).open("rb+")
        try:
            lock(self._journal, f"{folder}: another process is preparing this store; wait for it or end it")
            self._replay({"format": FORMAT, "fingerprint": fingerprint, "size": size})
            self._images = self._open_images(self.kept * size * size)
        except BaseException:
            self._journal.close()
            raise
        self._pending: dict[str, str] = {}
        self._committed = time.monotonic()

    @staticmethod
    def begin(folder: Path, *, fingerprint: str, size: int) -> None:
        """Make ``folder`` hold an unfinished store of no pictures."""
        header = {"format": FORMAT, "fingerprint": fingerprint, "size": size}
        with atomic(folder / JOURNAL) as temporary:
            temporary.write_text(json.dumps(header) + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._images.close()
        self._journal.close()

    def _replay(self, expected: dict[str, Any]) -> None:
        """Take up the state of the last whole line; one that a kill tore is cut off."""
        whole = 0
        for number, line in enumerate(self._journal.readlines()):
            try:
                entry = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                entry = None
            if entry is None:
                break
            whole += len(line)
            if number == 0:
                self._compare(entry, expected)
            else:
                self.read, self.kept = entry["read"], entry["kept"]
                self.bad.update(entry["bad"])
                self.converted = Counter(entry["converted"])
        if not whole:
            raise CheckpointError(f"{self.folder / JOURNAL}: is damaged; choose another folder, or remove this one")
        self._journal.truncate(whole)
        self._journal.seek(whole)

    def _compare(self, header: object, expected: dict[str, Any]) -> None:
        if header == expected:
            return
        found = header if isinstance(header, dict) else {}
        why = "of other pictures" if found.get("fingerprint") != expected["fingerprint"] else ""
        if found.get("size") != expected["size"]:
            why = f"of size {found.get('size')}, not {expected['size']}"
        if found.get("format") != FORMAT:
            why = "of another version of the library"
        raise CheckpointError(
            f"{self.folder}: holds an unfinished store {why}; choose another folder, or remove this one"
        )

    def _open_images(self, length: int) -> BinaryIO:
        """The pixels that count; what was written behind them is cut off."""
        images = (self.folder / IMAGES).open("ab")
        found = images.tell()
        if found < length:
            images.close()
            raise CheckpointError(
                f"{self.folder / IMAGES}: expected at least {length} bytes, got {found}; remove the folder"
            )
        images.truncate(length)
        return images

    def append(self, chunk: Chunk) -> None:
        """Add what came of the next files."""
        self._images.write(np.ascontiguousarray(chunk.images).data)
        self.read += len(chunk.images) + len(chunk.bad)
        self.kept += len(chunk.images)
        self.converted.update(chunk.converted)
        self.bad.update(chunk.bad)
        self._pending.update(chunk.bad)
        if time.monotonic() - self._committed > COMMIT_SECONDS:
            self.commit()

    def commit(self) -> None:
        """Bring the pixels to disk, then say so in the journal."""
        self._images.flush()
        os.fsync(self._images.fileno())
        entry = {"read": self.read, "kept": self.kept, "bad": self._pending, "converted": self.converted}
        self._journal.write(json.dumps(entry).encode() + b"\n")
        self._journal.flush()
        os.fsync(self._journal.fileno())
        self._pending = {}
        self._committed = time.monotonic()
