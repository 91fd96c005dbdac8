"""``embed``, ``extract`` and ``verify`` as commands: exit codes, one line for an error, and what is printed."""

import json
import os
import re
import signal
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from floormark import cli
from floormark.errors import printable
from floormark.signing import Signer, write_keys
from natural_images import natural_image

SECRET = "correct horse battery staple"
GREY = natural_image(height=256, width=264)


def main(*arguments: str | Path) -> int:
    return cli.main(list(map(str, arguments)))


def shown(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> str:
    assert main(*arguments) == code
    return capsys.readouterr().out


def error(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 2) -> str:
    """The one line that a bad command ends with."""
    assert main(*arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("floormark: error: ")
    return err


@pytest.fixture
def image(tmp_path: Path) -> Path:
    Image.fromarray(GREY).save(tmp_path / "xray.png")
    return tmp_path / "xray.png"


def test_embed_extract_and_verify(capsys: pytest.CaptureFixture[str], image: Path, tmp_path: Path) -> None:
    marked = tmp_path / "marked.png"
    told = shown(capsys, "embed", image, marked, "--text", "patient 4711", "--psnr", "42")
    assert told.startswith(f"{marked}: PSNR 42.0")
    assert "(floor 42)" in told
    assert main("extract", marked) == 0
    out, err = capsys.readouterr()
    assert out == "patient 4711\n"
    assert "confidence over 99.99999999%, " in err
    told = shown(capsys, "verify", image, marked)
    assert "message         patient 4711\n" in told
    assert ", floor 42 dB of the certificate\n" in told
    assert "belongs         it belongs to this image\n" in told
    assert main("verify", image, marked, "--psnr", "60") == 1
    out, err = capsys.readouterr()
    assert ", floor 60 dB asked for" in out
    assert err.startswith("problem: PSNR of 42.0")
    assert ", floor 42 dB of the certificate\n" in shown(capsys, "verify", image, marked, "--psnr", "20")
    (tmp_path / "marked.png.json").unlink()
    assert main("verify", image, marked, "--psnr", "20") == 1
    assert capsys.readouterr().err.startswith("problem: no certificate beside the image")
    assert shown(capsys, "extract", image, code=1) == "no readable watermark\n"


def test_json_for_machines(capsys: pytest.CaptureFixture[str], image: Path, tmp_path: Path) -> None:
    marked = tmp_path / "marked.png"
    region = ("--protect", "100,100,40,40")
    written = json.loads(shown(capsys, "embed", image, marked, "--hex", "00FF17", *region, "--json"))
    assert written["certificate"]["satisfied"] is True
    assert written["certificate"]["fidelity"]["protected_pixels"] == 1600
    found = json.loads(shown(capsys, "extract", marked, "--json"))
    assert (found["message"], found["kind"]) == ("00ff17", "hex")
    assert (found["box"], found["others"]) == ([0, 0, *GREY.shape[::-1]], [])
    verified = json.loads(shown(capsys, "verify", image, marked, *region, "--json"))
    assert verified["satisfied"] is True
    assert verified["fidelity"] == written["certificate"]["fidelity"]
    assert verified["certificate"]["result_sha256"] == verified["result_sha256"]
    nothing = json.loads(shown(capsys, "extract", image, "--json", code=1))
    assert nothing == {
        **{"message": None, "kind": None, "confidence": 0.0, "corrected_errors": 0, "belongs": None},
        **{"box": None, "parts": [], "partial": False, "other_key": False, "key": None, "others": []},
    }
    assert "protected       1,600 pixels, unchanged" in shown(capsys, "verify", image, marked)
    mask = np.zeros(GREY.shape, np.uint8)
    mask[100:140, 100:140] = 1
    Image.fromarray(mask).save(tmp_path / "mask.png")
    shown(capsys, "embed", image, marked, "--text", "a", "--protect", tmp_path / "mask.png", "--force")
    assert main("verify", image, marked) == 0
    assert "to check it, give the same --protect" in capsys.readouterr().err
    assert main("verify", image, marked, *region) == 0
    assert capsys.readouterr().err == ""


def test_keys_come_from_files_or_the_environment_and_are_never_shown(
    capsys: pytest.CaptureFixture[str], image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, marked = tmp_path / "key.txt", tmp_path / "marked.png"
    key.write_text(f"{SECRET}\n")
    monkeypatch.setenv("WATERMARK_KEY", SECRET)
    (tmp_path / "short.txt").write_text(SECRET[:8])
    seen = ""
    for arguments, code in (
        (("embed", image, marked, "--bits", "0101", "--psnr", "42", "--key", key), 0),
        (("extract", marked, "--key", "env:WATERMARK_KEY"), 0),
        (("verify", image, marked, "--key", key, "--json"), 0),
        (("extract", marked), 1),
        (("verify", image, marked), 1),
        (("extract", marked, "--key", tmp_path / "short.txt"), 2),
        (("extract", marked, "--key", "env:NOT_SET"), 2),
        (("extract", marked, "--key", tmp_path / "nothing"), 2),
        (("extract", marked, "--key", SECRET), 2),
    ):
        assert main(*arguments) == code
        out, err = capsys.readouterr()
        seen += "" if SECRET in arguments else out + err  # whoever takes the option for the key itself has shown it
        if code == 2:
            assert err.count("\n") == 1
        if arguments[0] == "extract" and code == 0:
            assert out == "0101\n"
    assert SECRET[:8] not in seen
    for path in tmp_path.rglob("*"):
        assert path in (key, tmp_path / "short.txt") or SECRET.encode() not in path.read_bytes()


def test_text_cannot_play_with_the_terminal(capsys: pytest.CaptureFixture[str], image: Path, tmp_path: Path) -> None:
    marked, text = tmp_path / "marked.png", "\x1b[31mä\r\n\u202e"
    shown(capsys, "embed", image, marked, "--text", text, "--psnr", "40")
    assert shown(capsys, "extract", marked) == "\\x1b[31mä\\r\\n\\u202e\n"
    assert json.loads(shown(capsys, "extract", marked, "--json"))["message"] == text
    assert "\x1b" not in shown(capsys, "verify", image, marked)
    beside = tmp_path / "marked.png.json"
    beside.write_text(json.dumps(json.loads(beside.read_text()) | {"model": "swift-\x1b[31m"}))
    assert main("verify", image, marked) == 1
    told = capsys.readouterr()
    assert "swift-\\x1b[31m" in told.err
    assert "\x1b" not in told.err + told.out
    assert printable("a\udcffb\x07") == "a\\udcffb\\x07"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "expected one of --text, --hex, --bits, --messages and --message-from as the message, got 0"),
        (("--text", "a", "--bits", "1"), "got 2 of them"),
        (("--text", ""), "at least one byte"),
        (("--text", "x" * 17), "expected a payload of 1 to 16 bytes"),
        (("--bits", "0" * 128), "expected a payload of 1 to 16 bytes"),
        (("--hex", "0"), "expected pairs of hexadecimal digits"),
        (("--bits", "012"), "expected zeros and ones"),
        (("--text", "a", "--psnr", "nan"), "expected a finite number for the PSNR floor"),
        (("--text", "a", "--psnr", "5"), "expected a PSNR floor of 25 to 100 dB, got 5"),
        (("--text", "a", "--protect", "1,2,3"), "expected a region as x,y,width,height"),
        (("--text", "a", "--protect", "0,0,900,9"), "expected a region inside of 264 x 256 pixels"),
        (("--text", "a", "--resume"), "--resume is for folders"),
        (("--text", "a", "--model", "nothing"), "nothing: no such file; expected trained weights"),
        (("--text", "a", "--workers", "0"), "--workers"),
    ],
)
def test_bad_options_end_in_one_line(
    capsys: pytest.CaptureFixture[str], image: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    assert message in error(capsys, "embed", image, tmp_path / "b.png", *arguments)
    assert {path.name for path in tmp_path.iterdir()} == {"xray.png"}


def test_bad_files_end_in_one_line(capsys: pytest.CaptureFixture[str], image: Path, tmp_path: Path) -> None:
    Image.new("L", (1, 1)).save(tmp_path / "tiny.png")
    (tmp_path / "torn.png").write_bytes(image.read_bytes()[:1000])
    (tmp_path / "empty.dcm").touch()
    (tmp_path / "words.png").write_text("words")
    before = {path.name for path in tmp_path.iterdir()}
    out = tmp_path / "b.png"
    for name in ("tiny.png", "torn.png", "empty.dcm", "words.png", "nothing.png"):
        assert str(tmp_path / name) in error(capsys, "embed", tmp_path / name, out, "--text", "a")
    for name in ("torn.png", "empty.dcm", "words.png", "nothing.png"):
        assert str(tmp_path / name) in error(capsys, "extract", tmp_path / name)
        assert str(tmp_path / name) in error(capsys, "verify", image, tmp_path / name)
    torn = tmp_path / "torn.png"
    assert "is there already; choose another name or force" in error(capsys, "embed", image, torn, "--text", "a")
    assert "is the image that is read" in error(capsys, "embed", image, image, "--text", "a", "--force")
    assert "write .png, or allow it with lossy" in error(capsys, "embed", image, tmp_path / "b.jpg", "--text", "a")
    refused = error(capsys, "embed", image, out, "--text", "a", "--psnr", "90", code=1)
    assert "the highest floor that works is" in refused
    assert {path.name for path in tmp_path.iterdir()} == before


def test_force_replaces_and_lossy_allows_jpeg(capsys: pytest.CaptureFixture[str], image: Path, tmp_path: Path) -> None:
    marked = tmp_path / "marked.png"
    for text in ("first", "second"):
        shown(capsys, "embed", image, marked, "--text", text, "--force")
    assert shown(capsys, "extract", marked) == "second\n"
    jpeg = tmp_path / "marked.jpg"
    shown(capsys, "embed", image, jpeg, "--text", "jpeg", "--lossy", "--psnr", "36")
    assert shown(capsys, "extract", jpeg) == "jpeg\n"


def test_a_single_image_goes_into_a_folder_that_is_there(
    capsys: pytest.CaptureFixture[str], image: Path, tmp_path: Path
) -> None:
    out, photo = tmp_path / "out", tmp_path / "photo.jpg"
    out.mkdir()
    Image.fromarray(GREY).save(photo, quality=95)
    embed = ("--text", "a", "--psnr", "38")
    assert shown(capsys, "embed", image, out, *embed).startswith(f"{out / 'xray.png'}: ")
    assert shown(capsys, "embed", photo, out, *embed).startswith(f"{out / 'photo.png'}: ")
    assert "choose another name or force" in error(capsys, "embed", image, out, *embed)
    shown(capsys, "embed", image, out, *embed, "--force")
    assert "is the image that is read" in error(capsys, "embed", image, tmp_path, *embed, "--force")
    assert shown(capsys, "extract", out) == "photo.png: a\nxray.png: a\n"
    (out / "dir.png").mkdir()
    image.rename(tmp_path / "dir.png")
    for more in ((), ("--force",)):
        assert "is a folder" in error(capsys, "embed", tmp_path / "dir.png", out, *embed, *more)


PLACES = {
    "image to mark": ("embed", "HERE", "new.png", "--text", "a"),
    "mask": ("embed", "xray.png", "new.png", "--text", "a", "--protect", "HERE"),
    "key": ("embed", "xray.png", "new.png", "--text", "a", "--key", "HERE"),
    "private key": ("embed", "xray.png", "new.png", "--text", "a", "--sign", "HERE"),
    "passphrase": ("embed", "xray.png", "new.png", "--text", "a", "--sign", "key", "--passphrase", "HERE"),
    "network": ("embed", "xray.png", "new.png", "--text", "a", "--model", "HERE"),
    "messages": ("embed", "folder", "new", "--messages", "HERE"),
    "image to read": ("extract", "HERE"),
    "original": ("verify", "HERE", "marked.png"),
    "marked": ("verify", "xray.png", "HERE"),
    "certificate": ("verify", "xray.png", "marked.png"),
    "public key": ("verify", "xray.png", "marked.png", "--public-key", "HERE"),
    "new key": ("keygen", "HERE"),
    "passphrase of a new key": ("keygen", "new", "--passphrase", "HERE"),
}


@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_file_is_neither_read_nor_waited_for(
    capsys: pytest.CaptureFixture[str], image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def too_long(*_: object) -> None:
        raise AssertionError("the command waits")

    monkeypatch.chdir(tmp_path)
    write_keys(tmp_path / "key", Signer.generate())
    Image.fromarray(GREY).save(tmp_path / "marked.png")
    (tmp_path / "folder").mkdir()
    Image.fromarray(GREY).save(tmp_path / "folder" / "a.png")
    here = tmp_path / ("marked.png.json" if place == "certificate" else "here")
    previous = signal.signal(signal.SIGALRM, too_long)
    try:
        for kind in ("pipe", "socket", "device", "folder", "broken link", "loop"):
            if kind == "folder" and place in ("image to mark", "image to read"):
                continue  # which are many
            signal.alarm(60)
            listening = socket.socket(socket.AF_UNIX)
            if kind == "pipe":
                os.mkfifo(here)
            elif kind == "socket":
                listening.bind(here.name)
            elif kind == "folder":
                here.mkdir()
            else:
                here.symlink_to({"device": "/dev/zero", "broken link": "nowhere", "loop": here.name}[kind])
            told = error(capsys, *("here" if word == "HERE" else word for word in PLACES[place]))
            assert here.name in told
            listening.close()
            here.rmdir() if kind == "folder" else here.unlink()
            assert not {"new", "new.png"} & {path.name for path in tmp_path.iterdir()}
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


@pytest.fixture
def xrays(tmp_path: Path) -> Path:
    folder = tmp_path / "xrays"
    (folder / "sub").mkdir(parents=True)
    Image.fromarray(GREY).save(folder / "a.png")
    Image.fromarray(GREY).save(folder / "sub" / "b.jpg", quality=95)
    Image.fromarray(GREY).quantize(64).save(folder / "palette.png")
    (folder / "link.png").symlink_to(folder / "a.png")
    return folder


def test_a_folder(capsys: pytest.CaptureFixture[str], xrays: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    common: tuple[Any, ...] = ("embed", xrays, out, "--text", "all", "--psnr", "38", "--workers", "1")
    assert main(*common) == 0
    told, progress = capsys.readouterr()
    lowest = re.match(r"3 written; lowest PSNR ([\d.]+) dB", told)
    assert lowest is not None
    assert float(lowest[1]) >= 38
    assert "marking: 1 of 3 images\nmarking: 2 of 3 images\nmarking: 3 of 3 images\n" in progress
    assert "1 left alone, as links, hidden and other files are: link.png" in progress
    assert "note: palette turned into RGB, 8 bits (1 images)" in progress
    assert shown(capsys, "extract", out) == "a.png: all\npalette.png: all\nsub/b.png: all\n"
    assert "add --resume" in error(capsys, *common)
    (xrays / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\nrubbish")
    summary = json.loads(shown(capsys, *common, "--resume", "--json", code=1))
    assert (summary["written"], summary["done"], summary["refused"], summary["bad"]) == (0, 3, 0, 1)
    assert summary["failed"][0]["file"] == "bad.png"
    assert summary["left_alone"] == ["link.png"]
    found = json.loads(shown(capsys, "extract", xrays, "--json", code=1))
    assert found["a.png"]["message"] is None
    assert "torn or not a valid PNG" in found["bad.png"]["error"]


def test_folders_that_cannot_be_are_refused(capsys: pytest.CaptureFixture[str], xrays: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    text = ("--text", "all")
    assert "expected two folders apart" in error(capsys, "embed", xrays, xrays / "out", *text)
    assert "--force replaces single images" in error(capsys, "embed", xrays, tmp_path / "out", *text, "--force")
    (tmp_path / "empty").mkdir()
    assert "got none" in error(capsys, "embed", tmp_path / "empty", tmp_path / "out", *text)
    assert "got none" in error(capsys, "extract", tmp_path / "empty")
    Image.fromarray(np.zeros((9, 9), np.uint8)).save(xrays / "palette.jpg")
    assert "would both become palette.png: rename one" in error(capsys, "embed", xrays, tmp_path / "out", *text)
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "empty", xrays / "palette.jpg"])


@pytest.mark.parametrize("command", ["embed", "extract", "verify", "keygen"])
def test_help_has_an_example(capsys: pytest.CaptureFixture[str], command: str) -> None:
    told = shown(capsys, command, "--help")
    assert f"floormark {command} " in told.partition("example: ")[2]


def test_versions_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "--version").startswith("floormark 0.")
    assert json.loads(shown(capsys, "env", "--json")).keys() >= {"floormark", "python", "numpy"}
    assert "embed" in shown(capsys)  # alone, it shows its help


def test_the_spelling_of_before_runs_and_says_the_new_one(
    capsys: pytest.CaptureFixture[str], image: Path, tmp_path: Path
) -> None:
    marked = str(tmp_path / "marked.png")
    assert cli.formerly(["watermark", "embed", str(image), marked, "--text", "old"]) == 0
    assert "floormark embed" in capsys.readouterr().err.splitlines()[0]
    assert cli.formerly(["watermark", "extract", marked]) == 0
    out, err = capsys.readouterr()
    assert out == "old\n"
    assert "floormark extract" in err
    assert cli.formerly(["watermark", "extract", "nothing.png"]) == 2
