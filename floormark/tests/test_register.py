"""The register: only added to, chained and signed, and in agreement with the files on the disk at every moment."""

import os
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image

from floormark import Watermarker
from floormark.certificate import ImageCertificate, sha256
from floormark.disk import clear_partial
from floormark.errors import ConfigurationError, DataError, FloormarkError
from floormark.files.marking import FileMarker
from floormark.options import EmbedOptions
from floormark.register import ABSENT, INTENDED, WRITTEN, Entry, Register
from floormark.signing import PublicKey, Signer
from forked import Forked
from natural_images import natural_image

SIDE = 192
CERTIFICATE = Watermarker.load().embed(natural_image(height=SIDE, width=SIDE), b"12345678", psnr=40).certificate


def record(register: Register, *, settle: bool = True, **facts: str) -> str:
    identifier = register.new_identifier()
    register.intend(Entry(identifier, CERTIFICATE, **facts))
    if settle:
        register.settle(identifier)
    return identifier.hex()


def filled(path: Path, signer: Signer | None = None) -> Register:
    register = Register.open(path, signer)
    for name in ("Ada", "Grace", "Erika"):
        record(register, owner=name, target=f"/nowhere/{name}.png")
    return register


def tampered(register: Register, *statements: str) -> Register:
    """What somebody with an editor for databases makes of it, leaving no trace in the schema."""
    with sqlite3.connect(register.path) as database:
        triggers = database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            database.execute(f"DROP TRIGGER {name}")
        for statement in (*statements, *(sql for _, sql in triggers)):
            database.execute(statement)
    database.close()
    return register


def rechained(register: Register, signer: Signer | None = None) -> Register:
    """What somebody who knows the format makes of rows that were changed: every hash, and signatures of another key."""
    with sqlite3.connect(register.path) as database:
        statements, above = [], ""
        from floormark.register import COLUMNS, Row

        for found in database.execute(f"SELECT {', '.join(COLUMNS)} FROM register ORDER BY number").fetchall():
            row = Row(*found)
            key = row.signed_by if signer is None else signer.public.raw.hex()
            row = replace(row, signed_by=key)
            above = row.chained(above)
            signature = row.signature if signer is None else signer.sign_bytes(f"floormark-register-1 {above}".encode())
            values = f"signed_by = '{key}', chain = '{above}', signature = '{signature}'"
            statements.append(f"UPDATE register SET {values} WHERE number = {row.number}")
    database.close()
    return tampered(register, *statements)


def test_what_is_recorded_is_found_by_identifier_and_by_every_hash(tmp_path: Path) -> None:
    register = Register.open(tmp_path / "r.db")
    identifier = record(register, owner="Ada", source="a.png", old_uid="1.2", new_uid="1.3", key="0f")
    assert (tmp_path / "r.db").stat().st_mode & 0o077 == 0
    found = Register.open(tmp_path / "r.db", create=False).find(identifier)
    assert found is not None
    row = found.row
    assert (found.state, row.owner, row.source, row.old_uid, row.new_uid, row.key) == (
        WRITTEN, "Ada", "a.png", "1.2", "1.3", "0f",
    )  # fmt: skip
    for name in ("original_sha256", "result_sha256", "original_pixels_sha256", "result_pixels_sha256"):
        assert register.find_hash(getattr(CERTIFICATE, name)) == [found]
    assert register.find("00" * 8) is None
    (tmp_path / "c.json").write_text(row.certificate)
    assert ImageCertificate.read(tmp_path / "c.json") == CERTIFICATE


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE register SET owner = 'me'",
        "DELETE FROM register WHERE number = 7",
        "INSERT OR REPLACE INTO register SELECT * FROM register WHERE number = 2",
        "UPDATE OR REPLACE register SET number = 1 WHERE number = 2",
    ],
)
def test_the_schema_itself_lets_nothing_be_changed(statement: str, tmp_path: Path) -> None:
    register = filled(tmp_path / "r.db")
    before = register.check()
    database = sqlite3.connect(register.path)
    with pytest.raises(sqlite3.IntegrityError, match="only added"):
        database.execute(statement)
    database.close()
    assert register.check() == before
    assert (before.rows, before.images, before.problems) == (7, 3, ())
    taken = bytes.fromhex(next(register.records()).row.identifier)
    with pytest.raises(ConfigurationError, match="once"):
        register.intend(Entry(taken, CERTIFICATE))


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("UPDATE register SET owner = 'me' WHERE number = 4", "row 4 does not fit"),
        ("UPDATE register SET time = '' WHERE number = 1", "row 1 does not fit"),
        ("DELETE FROM register WHERE number = 3", "row 3 is missing"),
        ("DELETE FROM register WHERE number = 1", "row 1 is missing"),
        ("UPDATE register SET chain = '' WHERE number = 7", "row 7 does not fit"),
        ("DROP INDEX by_owner_not", None),
        ("DROP INDEX by_identifier", "triggers are not those"),
    ],
)
def test_an_edited_register_is_found_out(statement: str, told: str | None, tmp_path: Path) -> None:
    register = filled(tmp_path / "r.db")
    if told is None:
        with pytest.raises(sqlite3.OperationalError):
            tampered(register, statement)
        return
    assert told in tampered(register, statement).check().problems[0]


def test_rows_of_other_types_and_keys_are_no_traceback(tmp_path: Path) -> None:
    for value in ("x'00ff'", "CAST(x'ff' AS TEXT)"):
        register = tampered(
            filled(tmp_path / f"{value[0]}.db"), f"UPDATE register SET owner = {value} WHERE number = 2"
        )
        with pytest.raises(FloormarkError):
            register.check()
    keys = tampered(filled(tmp_path / "keys.db"), "UPDATE register SET signed_by = 'no key', identifier = 'none'")
    assert "signed otherwise" in " ".join(keys.check().problems)
    assert keys.settle_pending(Path("/nowhere/Ada.png")) == 0


def test_a_register_without_its_triggers_is_found_out(tmp_path: Path) -> None:
    register = filled(tmp_path / "r.db")
    with sqlite3.connect(register.path) as database:
        database.execute("DROP TRIGGER no_update")
    database.close()
    (problem,) = register.check().problems
    assert "triggers" in problem


def test_rows_that_are_missing_at_the_end_are_found_out_by_a_head_that_was_kept_and_by_nothing_else(
    tmp_path: Path,
) -> None:
    signer = Signer.generate()
    register = filled(tmp_path / "r.db", signer)
    copy = (tmp_path / "r.db").read_bytes()
    early = register.check().head
    record(register)
    late = register.check().head
    assert register.check(head=early).problems == register.check(head=late).problems == ()
    register.path.write_bytes(copy)  # an old copy in its place
    assert register.check(keys=[signer.public]).problems == ()
    assert "rows 8 to 9 are missing" in register.check(head=late).problems[0]
    record(register)  # and gone on with
    assert "row 9 is not the one" in register.check(head=late).problems[0]
    with pytest.raises(ConfigurationError, match="NUMBER:HASH"):
        register.check(head="7")


def test_who_knows_the_format_but_has_not_the_key_is_found_out(tmp_path: Path) -> None:
    signer, thief = Signer.generate(), Signer.generate()
    change = "UPDATE register SET owner = 'me' WHERE number = 4"
    unsigned = rechained(tampered(filled(tmp_path / "plain.db"), change))
    assert unsigned.check().problems == ()  # which is why there are signatures
    register = filled(tmp_path / "r.db", signer)
    assert register.check(keys=[signer.public]).problems == ()
    rechained(tampered(register, change))
    assert "row 4 is signed otherwise" in register.check().problems[0]
    rechained(register, thief)
    assert register.check().problems == ()
    assert len(register.check(keys=[signer.public]).problems) == 7
    assert register.check(keys=[signer.public, thief.public]).problems == ()
    assert register.check().signed_by == (thief.public.fingerprint,)


def test_a_signed_register_takes_signed_rows_only_and_keys_may_follow_each_other(tmp_path: Path) -> None:
    first, second = Signer.generate(), Signer.generate()
    signed, plain = filled(tmp_path / "signed.db", first), filled(tmp_path / "plain.db")
    for register in (replace(signed, signer=None), replace(plain, signer=first)):
        with pytest.raises(ConfigurationError, match="signed"):
            record(register)
        with pytest.raises(ConfigurationError, match="signed"):  # before any image is marked
            FileMarker(Watermarker.load(), register=register)
    record(replace(signed, signer=second))
    assert signed.check(keys=[first.public, second.public]).problems == ()
    assert len(signed.check(keys=[second.public]).problems) == 7
    assert plain.check(keys=[PublicKey(bytes(32))]).problems[0].startswith("row 1 is signed by a key that was not")


def test_intentions_are_settled_by_what_lies_on_the_disk(tmp_path: Path) -> None:
    register = Register.open(tmp_path / "r.db")
    certificate = replace(CERTIFICATE, result_sha256=sha256_of(b"whole"))

    def intend(name: str) -> str:
        identifier = register.new_identifier()
        register.intend(Entry(identifier, certificate, target=str(tmp_path / name)))
        return identifier.hex()

    there, missing, other, far = (intend(name) for name in ("there", "missing", "other", "far/away"))
    (tmp_path / "there").write_bytes(b"whole")
    (tmp_path / "other").write_bytes(b"something else")
    assert len(register.check().pending) == 4

    def states() -> list[str]:
        return [found.state for each in (there, missing, other, far) if (found := register.find(each))]

    assert register.settle_pending(tmp_path / "missing") == 1
    assert states() == [INTENDED, ABSENT, INTENDED, INTENDED]
    assert register.settle_pending() == 2
    assert states() == [WRITTEN, ABSENT, ABSENT, INTENDED]  # a folder that is away may come back
    assert register.settle_pending() == 0
    (tmp_path / "missing").write_bytes(b"whole")  # by another process, which was about to
    assert register.settle_pending(tmp_path / "missing") == 1
    assert states()[1] == WRITTEN
    assert register.check().pending == (str(tmp_path / "far/away"),)


def sha256_of(content: bytes) -> str:
    import hashlib

    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0" + bytes(100)])
def test_another_file_is_no_register_and_stays_as_it_is(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    path.write_bytes(content)
    with pytest.raises(FloormarkError, match=r"r\.db"):
        Register.open(path, create=False)
    if content:
        with pytest.raises(FloormarkError, match=r"r\.db"):
            Register.open(path)
    assert path.read_bytes() == content
    with pytest.raises(DataError, match="no such register"):
        Register.open(tmp_path / "none.db", create=False)
    database = sqlite3.connect(tmp_path / "other.db")
    database.execute("CREATE TABLE register (x)")
    database.close()
    with pytest.raises(DataError, match="expected a register"):
        Register.open(tmp_path / "other.db")


def add_many(path: Path, owner: str, count: int) -> int:
    register = Register.open(path)
    for number in range(count):
        record(register, owner=f"{owner} {number}")
    return 0


def test_two_processes_write_at_once_into_one_that_neither_has_found(tmp_path: Path) -> None:
    path, count = tmp_path / "r.db", 8
    writers = [Forked(add_many, path, name, count, told=tmp_path / name) for name in ("a", "b")]
    assert [writer.finish()[0] for writer in writers] == [0, 0]
    register = Register.open(path, create=False)
    owners = {each.row.owner for each in register.records()}
    assert owners == {f"{name} {number}" for name in "ab" for number in range(count)}
    found = register.check()
    assert (found.rows, found.images, found.pending, found.problems) == (1 + 4 * count, 2 * count, (), ())


def cpu_seconds(process: psutil.Process) -> float:
    used = process.cpu_times()
    seconds: float = used.user + used.system
    return seconds


def kill_when(child: int, reached: Callable[[], bool], later: float) -> None:
    """Kill a child of this process so many seconds after a condition holds, or when it has ended."""
    while not reached() and os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        time.sleep(0.0001)
    time.sleep(later)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def killed_again_and_again(folder: Path, kills: int) -> int:
    """Mark in forks of this process, kill each of them, and look each time what it left.

    When a fork is killed is told by what it has done, as clocks say little on a busy machine: after a random part of
    the processor time that marking takes, when its row is in the register, when its file has its name, or just later.
    """
    register = Register.open(folder / "r.db")
    files = FileMarker(Watermarker.load(), options=EmbedOptions(psnr=40.0), register=register)
    files.mark_file(folder / "in.png", folder / "warm.png")
    before, begun = cpu_seconds(psutil.Process()), time.monotonic()
    files.mark_file(folder / "in.png", folder / "timed.png")
    cpu, elapsed = cpu_seconds(psutil.Process()) - before, time.monotonic() - begun
    draw, seen = random.Random(0), Counter[str]()
    for number in range(kills):
        target = folder / "out" / f"{number}.png"
        rows = register.path.stat().st_mtime_ns
        child = os.fork()
        if not child:
            files.mark_file(folder / "in.png", target)
            os._exit(0)
        process, most = psutil.Process(child), cpu * draw.random()
        moments: tuple[Callable[[], bool], ...] = (
            lambda: cpu_seconds(process) >= most,  # noqa: B023
            lambda: register.path.stat().st_mtime_ns != rows and not Path(f"{register.path}-journal").exists(),  # noqa: B023
            target.exists,
        )
        kill_when(child, moments[number % 3], draw.choice((0.0, elapsed * draw.random())))
        there = target.exists()
        states = [each.state for each in register.find_hash(sha256(target))] if there else []
        assert states in ([], [INTENDED], [WRITTEN])
        assert bool(states) == there, "a file has its row before it has its name"
        settled = register.settle_pending(target)
        seen[f"{'file' if there else 'no file'}, {'settled later' if settled else 'nothing open'}"] += 1
        clear_partial(target.parent)
    on_disk = {str(path): sha256(path) for path in folder.rglob("*.png") if path.name != "in.png"}
    records = list(register.records())
    assert {each.row.target: each.row.result_sha256 for each in records if each.state == WRITTEN} == on_disk
    assert Counter(each.state for each in records)[INTENDED] == 0
    assert register.check().problems == ()
    print(dict(seen))
    return 0


@pytest.mark.parametrize("kills", [25, pytest.param(1000, marks=pytest.mark.slow)])
def test_killed_at_any_moment_it_agrees_with_the_files_on_the_disk(kills: int, tmp_path: Path) -> None:
    Image.fromarray(np.asarray(natural_image(height=SIDE, width=SIDE))).save(tmp_path / "in.png")
    killing = Forked(killed_again_and_again, tmp_path, kills, told=tmp_path / "told")
    killing.join(5 * kills)  # on a machine that is busy with other work
    code, out, err = killing.finish()
    assert code == 0, err
    if kills == 1000:
        for moment in (
            "'no file, nothing open'",
            "'no file, settled later'",
            "'file, settled later'",
            "'file, nothing open'",
        ):
            assert moment in out


def killed_at(folder: Path, owner: type, name: str) -> None:
    """Mark a file, and end when a method is called, as by ``kill -9``."""
    plain = getattr(owner, name)

    def end(self: Any, *arguments: Any) -> Any:
        if arguments == (folder / "out.png.json",):  # the certificate takes its name first, by the same method
            return plain(self, *arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, end)
    register = Register.open(folder / "r.db")
    files = FileMarker(Watermarker.load(), options=EmbedOptions(psnr=40.0), register=register)
    files.mark_file(folder / "in.png", folder / "out.png")


@pytest.mark.parametrize(
    ("owner", "name", "left", "settled"),
    [
        (Register, "intend", [], []),
        (type(Path()), "replace", [INTENDED], [ABSENT]),  # the rename
        (Register, "settle", [INTENDED], [WRITTEN]),
    ],
)
def test_killed_right_there_it_says_so_and_looking_settles_it(
    owner: type, name: str, left: list[str], settled: list[str], tmp_path: Path
) -> None:
    Image.fromarray(np.asarray(natural_image(height=SIDE, width=SIDE))).save(tmp_path / "in.png")
    code, _, _ = Forked(killed_at, tmp_path, owner, name, told=tmp_path / "told").finish()
    assert code == -signal.SIGKILL
    register = Register.open(tmp_path / "r.db")
    assert [each.state for each in register.records()] == left
    assert (tmp_path / "out.png").exists() == (settled == [WRITTEN])
    register.settle_pending(tmp_path / "out.png")
    assert [each.state for each in register.records()] == settled
