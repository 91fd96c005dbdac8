"""Whose image an identifier is: one SQLite file to which rows are only added, chained by hashes and signed.

An image holds nothing but a random identifier; whose it is stays in the register. Who writes marked files calls::

    register = Register.open(path, signer=signer)  # once; it may go to threads and other processes
    identifier = register.new_identifier()  # the message: Payload(Kind.HEX, identifier)
    register.intend(Entry(identifier, certificate, target=str(path.absolute())))  # whole, but without its name
    register.settle(identifier)  # the file has its name

So every file that has its name has a row, and a row of kind ``written`` has had its file. Whoever is killed between the
two calls leaves an intention, which :meth:`Register.settle_pending` settles by checking whether the file is there.
"""

import hashlib
import json
import os
import re
import secrets
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from floormark.certificate import ImageCertificate, sha256
from floormark.disk import cannot_write
from floormark.errors import ConfigurationError, DataError, OutputError
from floormark.signing import PublicKey, Signer

IDENTIFIER_BYTES = 8
"""Random bytes of an identifier: half of what a mark holds, so that more than twice as many bits are corrected."""
IDENTIFIER = re.compile(f"[0-9a-f]{{{2 * IDENTIFIER_BYTES}}}")
FORMAT = "floormark-register-1"
APPLICATION_ID = 0x464C524D  # by which SQLite and the command ``file`` know such a database
BUSY_SECONDS = 60.0  # that a writer waits for others
MAX_PROBLEMS = 20  # that a check names
OPENED, INTENDED, WRITTEN, ABSENT = "opened", "intended", "written", "absent"
"""Kinds of rows: the first; a file that is about to take its name; that has it; that is not there."""


@dataclass(frozen=True)
class Entry:
    """What is recorded of one marked image."""

    identifier: bytes
    certificate: ImageCertificate
    owner: str = ""
    """Whose it is, in words that only the register has."""
    source: str = ""
    """The name of the file that was marked."""
    target: str = ""
    """The absolute path of the marked file."""
    old_uid: str = ""
    new_uid: str = ""
    """SOP Instance UIDs of a DICOM file, before and after."""
    key: str = ""
    """The fingerprint of the key that it is marked with; empty without one."""


@dataclass(frozen=True)
class Row:
    """One row as it is stored; a text that does not apply is empty."""

    number: int
    kind: str
    time: str
    identifier: str = ""
    owner: str = ""
    source: str = ""
    target: str = ""
    old_uid: str = ""
    new_uid: str = ""
    original_sha256: str = ""
    result_sha256: str = ""
    original_pixels_sha256: str = ""
    result_pixels_sha256: str = ""
    key: str = ""
    certificate: str = ""
    signed_by: str = ""
    """The public key that signs the row, in hexadecimal digits."""
    chain: str = ""
    """SHA-256 of all before it in this row and of :attr:`chain` of the row above."""
    signature: str = ""
    """Of :attr:`chain`, and so of all rows up to this one."""

    def chained(self, above: str) -> str:
        """What :attr:`chain` should be."""
        return hashlib.sha256(json.dumps([FORMAT, above, *astuple(self)[:-2]]).encode()).hexdigest()


@dataclass(frozen=True)
class Record:
    """One marked image of the register, and what became of its file."""

    row: Row
    state: str
    """``written``, ``intended`` if that is not known yet, or ``absent``."""


@dataclass(frozen=True)
class RegisterCheck:
    """What a check of every row has shown."""

    rows: int
    images: int
    head: str
    """Number and hash of the last row, to be kept elsewhere: nothing else tells that rows are missing at the end."""
    signed_by: tuple[str, ...]
    """Fingerprints of the keys that signed rows."""
    pending: tuple[str, ...]
    """Files of which it is not known whether they took their names."""
    problems: tuple[str, ...]


COLUMNS = tuple(each.name for each in fields(Row))
INDEXED = ("identifier", "target", *(name for name in COLUMNS if name.endswith("sha256")))
REFUSED = "BEGIN SELECT RAISE(ABORT, 'rows are only added, one after the other, and an identifier once'); END"
SCHEMA = {
    "register": "CREATE TABLE register (number INTEGER PRIMARY KEY, "
    f"{', '.join(f'{name} TEXT NOT NULL' for name in COLUMNS[1:])})",
    "no_update": f"CREATE TRIGGER no_update BEFORE UPDATE ON register {REFUSED}",
    "no_delete": f"CREATE TRIGGER no_delete BEFORE DELETE ON register {REFUSED}",
    # INSERT OR REPLACE would delete without calling the trigger above.
    "in_order": "CREATE TRIGGER in_order BEFORE INSERT ON register WHEN NEW.number IS NOT "
    f"(SELECT COALESCE(MAX(number), 0) + 1 FROM register) {REFUSED}",
    "once": f"CREATE TRIGGER once BEFORE INSERT ON register WHEN NEW.kind = '{INTENDED}' AND EXISTS "
    f"(SELECT 1 FROM register WHERE identifier = NEW.identifier) {REFUSED}",
    **{f"by_{name}": f"CREATE INDEX by_{name} ON register ({name})" for name in INDEXED},
}


@dataclass(frozen=True)
class Register:
    """A register on the disk. Nothing is kept open, so that it can be handed to threads and processes."""

    path: Path
    signer: Signer | None = field(default=None, repr=False)
    identity: str = ""
    """Random digits by which two registers differ."""

    @classmethod
    def open(cls, path: Path | str, signer: Signer | None = None, *, create: bool = True) -> Self:
        """Open a register, or begin one, which nobody but its owner can read.

        Args:
            path: the file.
            signer: signs every row; a register is signed from its first row on, or never.
            create: whether to begin one if there is none.

        Raises:
            DataError: there is none, or the file is no register.
            OutputError: it cannot be written.
        """
        path = Path(path).absolute()
        found = cls(path, signer)
        if not create and not path.exists():
            raise DataError(f"{path}: no such register")
        if path.is_dir():
            raise DataError(f"{path}: expected the file of a register, got a folder")
        if create:
            try:
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            except OSError as error:
                raise cannot_write(path, error) from error
        with found._connected(write=create) as database:
            if create and not database.execute("SELECT 1 FROM sqlite_master").fetchone():
                database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                for statement in SCHEMA.values():
                    database.execute(statement)
                found._append(database, Row(0, OPENED, "", identifier=secrets.token_hex(16)))
            if database.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
                raise DataError(f"{path}: expected a register of floormark, got another file")
            first = next(_rows(database, "number = 1"), Row(1, OPENED, ""))  # which somebody may have removed
        return replace(found, identity=first.identifier)

    def check_signer(self) -> None:
        """Refuse, before any work, to add unsigned rows to signed ones, or the other way round."""
        with self._connected() as database:
            self._last(database)

    def new_identifier(self) -> bytes:
        """A new random identifier, to be the message of an image."""
        return secrets.token_bytes(IDENTIFIER_BYTES)

    def intend(self, entry: Entry) -> None:
        """Record an image whose file is whole and about to take its name."""
        told = json.dumps(entry.certificate.entries(), allow_nan=False)
        hashes = {name: getattr(entry.certificate, name) for name in COLUMNS if name.endswith("sha256")}
        same = {name: getattr(entry, name) for name in ("owner", "source", "target", "old_uid", "new_uid", "key")}
        printed = {name: _printed(value) for name, value in same.items()}
        row = Row(0, INTENDED, "", identifier=entry.identifier.hex(), **hashes, **printed, certificate=told)
        with self._connected(write=True) as database:
            self._append(database, row)

    def settle(self, identifier: bytes, *, written: bool = True) -> None:
        """Record that the file of an image took its name, or that it did not and never will."""
        self._settle(identifier.hex(), WRITTEN if written else ABSENT)

    def _settle(self, identifier: str, kind: str) -> None:
        with self._connected(write=True) as database:
            self._append(database, Row(0, kind, "", identifier=identifier))

    def settle_pending(self, target: Path | None = None) -> int:
        """Settle intentions, those for one target if given, by what lies on the disk; how many became settled.

        A file whose folder cannot be reached is left for later. What was absent once may be found later: another
        process may have been about to rename it.
        """
        where, value = ("target = ?", _printed(str(target.absolute()))) if target else ("kind = ?", INTENDED)
        with self._connected() as database:
            records = list(_records(database, where, value))
        settled = 0
        for record in records:
            state = record.state if record.state == WRITTEN else _state(record.row)
            if state != record.state and state != INTENDED:
                self._settle(record.row.identifier, state)
                settled += 1
        return settled

    def records(self) -> Iterator[Record]:
        """Every marked image, in the order in which they were recorded."""
        with self._connected() as database:
            yield from _records(database, "kind = ?", INTENDED)

    def find(self, identifier: str) -> Record | None:
        """The image of an identifier in hexadecimal digits."""
        with self._connected() as database:
            return next(_records(database, "kind = ? AND identifier = ?", INTENDED, identifier), None)

    def find_hash(self, sha256: str) -> list[Record]:
        """Images whose original or result is a file, or has the pixels, of that hash."""
        names = [name for name in INDEXED if name.endswith("sha256")]
        where = " OR ".join(f"{name} = ?" for name in names)
        with self._connected() as database:
            return list(_records(database, where, *([sha256] * len(names))))

    def check(self, *, keys: Collection[PublicKey] = (), head: str | None = None) -> RegisterCheck:
        """Check every row: was one changed, removed, put in, or signed by another key than one of ``keys``?

        Args:
            keys: who may have signed; without any, each row must be signed by the key that it names.
            head: that of an earlier check. Without it, rows that are missing at the end are not detected.
        """
        if head is not None and not re.fullmatch("[0-9]{1,18}:[0-9a-f]{64}", head):
            raise ConfigurationError(f"expected NUMBER:HASH as the head, as a check prints it, got {head!r}")
        kept = 0 if head is None else int(head.partition(":")[0])
        problems: list[str] = []
        signers: dict[str, None] = {}
        trusted = {key.raw.hex() for key in keys}
        images, last = 0, Row(0, "", "")
        with self._connected() as database:
            there = dict(database.execute("SELECT name, sql FROM sqlite_master"))
            if there != SCHEMA:
                problems.append("the tables, indexes or triggers are not those that floormark made")
            problems += [
                f"SQLite says: {told}" for (told,) in database.execute("PRAGMA integrity_check(5)") if told != "ok"
            ]
            for row in _rows(database, "1 ORDER BY number"):
                number, above = row.number, last
                wrong = {
                    f"row {above.number + 1} is missing": number != above.number + 1,
                    f"row {number} does not fit the one above: a row was changed, removed or put in": row.chain
                    != row.chained(above.chain),
                    f"row {number} is signed by a key that was not given": bool(trusted)
                    and row.signed_by not in trusted,
                    f"row {number} is signed otherwise than it says": not _signed(row),
                    f"row {number} is not signed, as others are": not row.signed_by and bool(signers),
                    f"row {number} is not the one of the head that was kept": number == kept
                    and head != f"{number}:{row.chain}",
                }
                problems += [problem for problem, found in wrong.items() if found]
                if row.signed_by:
                    signers[PublicKey(bytes.fromhex(row.signed_by)).fingerprint if _signed(row) else "?"] = None
                images += row.kind == INTENDED
                last = row
            pending = tuple(
                record.row.target for record in _records(database, "kind = ?", INTENDED) if record.state == INTENDED
            )
        if kept > last.number:
            missing = f"rows {last.number + 1} to {kept} are missing"
            problems.append(f"{missing}: the register was cut off, or is an old copy")
        more = len(problems) - MAX_PROBLEMS
        told = (*problems[:MAX_PROBLEMS], *([f"and {more:,} more"] if more > 0 else []))
        return RegisterCheck(last.number, images, f"{last.number}:{last.chain}", tuple(signers), pending, told)

    def _last(self, database: sqlite3.Connection) -> Row:
        """The last row, which must be signed if and only if this register's rows will be."""
        above = next(_rows(database, "1 ORDER BY number DESC LIMIT 1"), Row(0, "", ""))
        if above.number and bool(above.signed_by) != bool(self.signer):
            told = "is signed: give the key to sign with" if above.signed_by else "is not signed: begin another to sign"
            raise ConfigurationError(f"{self.path}: the register {told}")
        return above

    def _append(self, database: sqlite3.Connection, row: Row) -> None:
        above = self._last(database)
        key = "" if self.signer is None else self.signer.public.raw.hex()
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        row = replace(row, number=above.number + 1, time=now, signed_by=key)
        row = replace(row, chain=row.chained(above.chain))
        if self.signer is not None:
            row = replace(row, signature=self.signer.sign_bytes(_to_sign(row)))
        database.execute(f"INSERT INTO register VALUES ({', '.join('?' * len(COLUMNS))})", astuple(row))

    @contextmanager
    def _connected(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        """A connection for one transaction, which one that writes begins alone."""
        try:
            # Not WAL: a copy of the file is all of it, and it may lie on a network drive.
            database = sqlite3.connect(
                f"{self.path.as_uri()}?mode=rw", uri=True, timeout=BUSY_SECONDS, isolation_level=None
            )
            try:
                database.execute("PRAGMA synchronous = EXTRA")  # a power failure takes no row that was committed
                database.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                yield database
                database.execute("COMMIT")
            finally:
                database.close()  # which takes back what was not committed
        except sqlite3.IntegrityError as error:
            raise ConfigurationError(f"{self.path}: {error}") from error
        except sqlite3.OperationalError as error:
            raise OutputError(f"the register {self.path} cannot be used: {error}") from error
        except sqlite3.DatabaseError as error:
            raise DataError(
                f"{self.path}: expected a register of floormark, got another or a torn file: {error}"
            ) from error


def _printed(text: str) -> str:
    """Text that SQLite takes: names of files that are no UTF-8 are escaped."""
    return text.encode(errors="backslashreplace").decode()


def _rows(database: sqlite3.Connection, where: str, *values: str) -> Iterator[Row]:
    for found in database.execute(f"SELECT {', '.join(COLUMNS)} FROM register WHERE {where}", values):
        if any(type(value) is not (str if number else int) for number, value in enumerate(found)):
            raise DataError(f"expected a text in every column of row {found[0]} of the register, got something else")
        yield Row(*found)


def _records(database: sqlite3.Connection, where: str, *values: str) -> Iterator[Record]:
    for row in _rows(database, f"({where}) ORDER BY number", *values):
        said = [each.kind for each in _rows(database, "identifier = ? ORDER BY number", row.identifier)]
        yield Record(row, WRITTEN if WRITTEN in said else said[-1])


def _state(row: Row) -> str:
    """What the disk says of an intention."""
    if not row.target:  # an image that the page was to hand out, and did not
        return ABSENT
    target = Path(row.target)
    if not target.parent.is_dir():
        return INTENDED
    try:
        return WRITTEN if sha256(target) == row.result_sha256 else ABSENT
    except DataError as error:
        return ABSENT if isinstance(error.__cause__, FileNotFoundError) else INTENDED


def _to_sign(row: Row) -> bytes:
    return f"{FORMAT} {row.chain}".encode()


def _signed(row: Row) -> bool:
    """Whether a row is signed by the key that it names, or says that it is not signed."""
    if not row.signed_by:
        return not row.signature
    try:
        return PublicKey(bytes.fromhex(row.signed_by)).verifies(_to_sign(row), row.signature)
    except ValueError:
        return False
