"""``embed --register`` and ``floormark register``; and images that were marked with keys of before."""

import csv
import io
import json
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dicom_files import make, opened
from floormark import Watermarker, cli, read_key
from floormark.certificate import sha256
from floormark.register import Register
from forked import Forked, command
from natural_images import natural_image

GREY = natural_image(height=256, width=264)


def main(*arguments: str | Path) -> int:
    return cli.main(list(map(str, arguments)))


def shown(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> str:
    capsys.readouterr()
    assert main(*arguments) == code
    return capsys.readouterr().out


def told(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> Any:
    return json.loads(shown(capsys, *arguments, "--json", code=code))


@pytest.fixture
def image(tmp_path: Path) -> Path:
    Image.fromarray(GREY).save(tmp_path / "xray.png")
    return tmp_path / "xray.png"


@pytest.fixture
def keys(tmp_path: Path) -> list[Path]:
    found = [tmp_path / f"{name}.key" for name in ("old", "new")]
    for path in found:
        path.write_text(f"{path.name} horse battery staple")
    return found


def test_the_image_holds_an_identifier_and_the_register_the_name(
    capsys: pytest.CaptureFixture[str], image: Path, tmp_path: Path
) -> None:
    marked, register = tmp_path / "marked.png", ("--register", tmp_path / "r.db")
    owner = "Erika Mustermann, born 1964, ward 12, much longer than a mark"
    written = told(capsys, "embed", image, marked, "--text", owner, "--psnr", "40", *register)
    identifier = written["identifier"]
    assert shown(capsys, "extract", marked) == f"{identifier}\n"
    assert b"Erika" not in marked.read_bytes() + (tmp_path / "marked.png.json").read_bytes()
    assert f"owner       {owner}\n" in shown(capsys, "register", "lookup", marked, *register)
    for wanted, how in (
        (identifier, "by the identifier"),
        (identifier.upper(), "by the identifier"),
        (str(marked), "by its mark"),
        (str(image), "by the hash of its file, as the original, before marking"),
    ):
        found = told(capsys, "register", "lookup", wanted, *register)
        assert found["found"] == how
        assert [each["owner"] for each in found["records"]] == [owner]
        assert found["records"][0]["state"] == "written"
    Image.fromarray(np.asarray(Image.open(image))).save(tmp_path / "again.tif")
    assert "hash of its pixels" in told(capsys, "register", "lookup", tmp_path / "again.tif", *register)["found"]
    Image.fromarray(natural_image(height=256, width=264, seed=5)).save(tmp_path / "other.png")
    for unknown in (tmp_path / "other.png", "00" * 8):
        assert told(capsys, "register", "lookup", unknown, *register, code=1)["records"] == []
    assert main("register", "lookup", tmp_path / "none.png", *register) == 2
    assert main("register", "lookup", marked, "--register", tmp_path / "none.db") == 2
    assert not (tmp_path / "none.db").exists()
    assert main("register", "lookup", marked, "--register", image) == 2


def test_a_mark_that_was_copied_does_not_tell_whose_an_image_is(
    capsys: pytest.CaptureFixture[str], image: Path, tmp_path: Path
) -> None:
    marked, register = tmp_path / "marked.png", ("--register", tmp_path / "r.db")
    assert main("embed", image, marked, "--text", "Ada", "--psnr", "38", *register) == 0
    other = natural_image(height=256, width=264, seed=6).astype(np.int16)
    copied = other + np.asarray(Image.open(marked)).astype(np.int16) - np.asarray(GREY).astype(np.int16)
    Image.fromarray(copied.clip(0, 255).astype(np.uint8)).save(tmp_path / "copied.png")
    found = told(capsys, "register", "lookup", tmp_path / "copied.png", *register, code=1)
    assert found["copied"]
    assert found["records"][0]["owner"] == "Ada"


@pytest.mark.usefixtures("forked_workers")
def test_a_folder_is_recorded_image_by_image_and_exported(
    capsys: pytest.CaptureFixture[str], keys: list[Path], tmp_path: Path
) -> None:
    scans, out, register = tmp_path / "scans", tmp_path / "out", ("--register", tmp_path / "r.db")
    scans.mkdir()
    patients = {"a.dcm": "=HYPERLINK(1)", "b.dcm": "Müller, \x1b[31mÄnne"}
    for name, patient in patients.items():
        make(scans / name, natural_image(height=256, width=264, seed=len(name)), PatientID=patient)
    embed = ("embed", scans, out, "--message-from", "{PatientID}", "--psnr", "40", *register, "--key", keys[0])
    assert main(*embed, "--workers", "2") == 0
    exported = shown(capsys, "register", "export", *register)
    assert "\x1b" not in exported
    rows = {row["source"]: row for row in csv.DictReader(io.StringIO(exported))}
    assert rows.keys() == patients.keys()
    for name, row in rows.items():
        assert row["old_uid"] == opened(scans / name).SOPInstanceUID
        assert row["new_uid"] == opened(out / name).SOPInstanceUID
        assert row["result_sha256"] == sha256(out / name)
        assert (row["state"], row["target"]) == ("written", str(out / name))
        assert json.loads(row["certificate"]) == json.loads((out / f"{name}.json").read_text())
        key = read_key(keys[0])
        assert key is not None
        assert row["key"] == key.fingerprint
    plain = told(capsys, "register", "export", *register)
    assert {each["owner"] for each in plain} == set(patients.values())
    assert shown(capsys, "register", "export", "--register", filled(tmp_path / "empty.db")).startswith("state,number,")
    # Gone on with: the same register, which does not record again what is done.
    assert main(*embed, "--resume", "--workers", "1") == 0
    assert told(capsys, "register", "check", *register)["images"] == 2
    other = ("--register", filled(tmp_path / "other.db"))
    assert main(*embed[:7], *other, "--key", keys[0], "--resume") == 2
    assert "register" in capsys.readouterr().err


def filled(path: Path) -> Path:
    return Register.open(path).path


def test_a_check_says_what_is_wrong_and_remembers_nothing_by_itself(
    capsys: pytest.CaptureFixture[str], image: Path, tmp_path: Path
) -> None:
    register, hospital, other = tmp_path / "r.db", tmp_path / "hospital", tmp_path / "other"
    for key in (hospital, other):
        assert main("keygen", key) == 0
    embed = ("embed", image, tmp_path / "a.png", "--text", "Ada", "--psnr", "40", "--register", register)
    assert main(*embed, "--sign", hospital) == 0
    check = ("register", "check", "--register", register)
    found = told(capsys, *check, "--public-key", f"{hospital}.pub")
    assert (found["satisfied"], found["rows"], found["images"], found["pending"]) == (True, 3, 1, [])
    assert f"head {found['head']}\n" in shown(capsys, *check)
    assert "nobody vouches" in (main(*check), capsys.readouterr().err)[1]
    assert main(*check, "--public-key", f"{other}.pub") == 1
    assert main(*check, "--public-key", f"{other}.pub", "--public-key", f"{hospital}.pub") == 0
    assert main(*check, "--head", found["head"]) == 0
    assert main(*check, "--head", "9:" + "0" * 64) == 1
    assert main(*check, "--head", "nonsense") == 2
    assert main(*embed[:2], tmp_path / "b.png", *embed[3:]) == 2  # not signed
    assert "is signed" in capsys.readouterr().err
    assert not (tmp_path / "b.png").exists()
    with sqlite3.connect(register) as database:
        database.execute("DROP TRIGGER no_update")
        database.execute("UPDATE register SET owner = 'me' WHERE number = 2")
    database.close()
    assert main(*check) == 1
    assert "problem: row 2 does not fit" in capsys.readouterr().err
    assert "owner       me" in shown(capsys, "register", "lookup", "--register", register, tmp_path / "a.png")


def test_a_run_that_was_killed_is_gone_on_with_and_every_file_is_recorded_once(tmp_path: Path) -> None:
    scans, out, path = tmp_path / "scans", tmp_path / "out", tmp_path / "r.db"
    scans.mkdir()
    for number in range(12):
        image = natural_image(height=192, width=192, seed=number % 3)
        Image.fromarray(image).save(scans / f"{number:02d}.png", compress_level=1)
    arguments = ["embed", str(scans), str(out), "--register", str(path), "--psnr", "40", "--workers", "1"]
    for wanted in (2, 5, 8):
        resume = ["--resume"] if out.exists() else []
        process = Forked(command, "floormark", *arguments, *resume, told=tmp_path / str(wanted))
        while len(list(out.glob("*.png"))) < wanted and process.is_alive():
            time.sleep(0.001)
        process.kill()
        process.join()
    assert 8 <= len(list(out.glob("*.png"))) < 12
    assert main(*arguments, "--resume") == 0
    register, marker = Register.open(path, create=False), Watermarker.load()
    written = {each.row.target: each.row for each in register.records() if each.state == "written"}
    assert written.keys() == {str(file) for file in out.glob("*.png")}
    assert len(written) == 12
    for file, row in written.items():
        assert row.result_sha256 == sha256(Path(file))
        assert marker.extract(np.asarray(Image.open(file))).message == row.identifier
    found = register.check()
    assert (found.pending, found.problems) == ((), ())
    assert main("register", "settle", "--register", path) == 0


def test_images_of_several_keys_are_read_with_all_of_them(
    capsys: pytest.CaptureFixture[str], image: Path, keys: list[Path], tmp_path: Path
) -> None:
    register, names = ("--register", tmp_path / "r.db"), [tmp_path / "old.png", tmp_path / "new.png"]
    for key, name in zip(keys, names, strict=True):
        assert main("embed", image, name, "--text", name.stem, "--psnr", "40", *register, "--key", key) == 0
    both = [word for key in reversed(keys) for word in ("--key", str(key))]
    for key, name in zip(keys, names, strict=True):
        known = read_key(key)
        assert known is not None
        assert told(capsys, "extract", name, *both)["key"] == known.fingerprint
        assert told(capsys, "register", "lookup", name, *register, *both)["records"][0]["owner"] == name.stem
        assert main("verify", image, name, *both) == 0
    assert main("extract", names[0], "--key", str(keys[1])) == 1
    capsys.readouterr()
    assert main("embed", image, tmp_path / "c.png", "--text", "c", *both) == 2
    assert "one key to write with" in capsys.readouterr().err
    # Also where it was cropped.
    cropped = tmp_path / "cropped.png"
    Image.fromarray(np.asarray(Image.open(names[0]))[13:250, 9:260]).save(cropped)
    assert told(capsys, "extract", cropped, *both)["key"] == told(capsys, "extract", names[0], *both)["key"]


def test_the_chance_counts_the_trials_of_every_key(keys: list[Path]) -> None:
    first, second = (read_key(path) for path in keys)
    assert first is not None
    assert second is not None
    marked = Watermarker.load(key=second).embed(GREY, "hello", psnr=40).image
    one = Watermarker.load(key=second).extract(marked)
    two = Watermarker.load(key=first, former_keys=[second]).extract(marked)
    assert (two.message, two.key) == ("hello", second.fingerprint)
    assert two.chance == pytest.approx(2 * one.chance)
    assert not Watermarker.load(key=first).extract(marked)


def test_a_command_does_not_import_what_it_was_not_asked_for() -> None:
    unwanted = ("sqlite3", "starlette", "uvicorn", "c2pa", "cryptography", "numpy", "floormark.register")
    code = f"import sys, floormark.cli.app; print([each for each in {unwanted} if each in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_a_register_that_cannot_be_written_ends_before_an_image_is(
    capsys: pytest.CaptureFixture[str], image: Path, tmp_path: Path
) -> None:
    for register, code in ((tmp_path / "none" / "r.db", 1), (tmp_path, 2), (image, 2)):
        assert main("embed", image, tmp_path / "out.png", "--register", register) == code
        assert capsys.readouterr().err.count("\n") == 1
        assert not (tmp_path / "out.png").exists()
    assert main("embed", image, tmp_path / "out.png") == 2
    assert "--register does without" in capsys.readouterr().err
    shutil.copy(image, tmp_path / "copy.png")
    assert main("register") == 0
    assert "lookup" in capsys.readouterr().out
