"""The page in a real browser, and what the server answers to those who should not ask."""

import http.client
import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from PIL import Image

from browser import SECONDS, Browser, needs_chromium
from dicom_files import make
from floormark import Watermarker, cli, read_key
from floormark.register import WRITTEN, Register
from floormark.serve import desk
from floormark.signing import Signer, write_keys
from forked import Forked, command
from natural_images import natural_image
from small_disk import fill, small_disk

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
GREY = natural_image(height=256, width=264)
KEY = "correct horse battery staple"
LIMIT = 3 << 20  # bytes


@dataclass(frozen=True)
class Served:
    """A server that runs, and the files that it was given."""

    address: str
    folder: Path

    @property
    def token(self) -> str:
        return parse_qs(urlsplit(self.address).query)["token"][0]

    def ask(
        self, path: str, body: bytes | Iterator[bytes] = b"", method: str = "POST", /, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        found = urlsplit(self.address)
        assert found.hostname
        connection = http.client.HTTPConnection(found.hostname, found.port, timeout=SECONDS)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, dict(answer.getheaders()), content

    def work(self, path: str, *files: tuple[str, str, bytes], **asked: Any) -> tuple[int, dict[str, Any], bytes]:
        """What the page sends, and the facts and the files of the answer."""
        line = {**asked, "files": [[role, name, len(content)] for role, name, content in files]}
        body = json.dumps(line).encode() + b"\n" + b"".join(content for *_, content in files)
        status, _, content = self.ask(path, body, authorization=f"Bearer {self.token}")
        facts, _, rest = content.partition(b"\n")
        return status, json.loads(facts), rest


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "key.txt").write_text(KEY)
    signer = Signer.generate()
    write_keys(folder / "hospital", signer)
    make(
        folder / "scan.dcm", GREY.astype(np.uint16) * 16, BitsStored=12, HighBit=11, WindowCenter=2000, WindowWidth=3000
    )
    Image.fromarray(GREY).save(folder / "plain.png")
    Image.fromarray(natural_image(height=256, width=264, seed=7)).save(folder / "other.png")
    common = ["--key", str(folder / "key.txt"), "--register", str(folder / "r.db"), "--sign", str(folder / "hospital")]
    embed = [
        "embed",
        str(folder / "scan.dcm"),
        str(folder / "marked.dcm"),
        "--text",
        "Ada <b>Lovelace</b>",
        "--psnr",
        "40",
    ]
    assert cli.main([*embed, *common]) == 0
    public = ("--public-key", str(folder / "hospital.pub"))
    options = ("--port", "0", "--max-mb", str(LIMIT >> 20), *public)
    with serving(folder, command, "floormark", "serve", *options, *common) as served:
        yield served
    assert list(Path("/dev/shm").glob("floormark-*")) == []


@contextmanager
def serving(folder: Path, work: Callable[..., int], *arguments: str) -> Iterator[Served]:
    """A server as a process, until Ctrl-C."""
    told = folder / "told"
    process = Forked(work, *arguments, told=told)
    end = time.monotonic() + SECONDS
    while not (found := re.search(r"http://\S+\n", (told / "out").read_text() if (told / "out").exists() else "")):
        assert process.is_alive(), (told / "err").read_text()
        assert time.monotonic() < end
        time.sleep(0.05)
    yield Served(found[0].strip(), folder)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    code, _, err = process.finish()
    assert (code, err) == (0, "Ctrl-C ends it\n")


def serve_in(place: str, *arguments: str) -> int:
    """A server that lays files out in another place."""
    desk.MEMORY = place
    return command("floormark", "serve", "--port", "0", *arguments)


def test_a_full_disk_is_said_and_gone_on_from_when_there_is_room(tmp_path: Path) -> None:
    Image.fromarray(GREY).save(tmp_path / "plain.png")
    image = ("image", "plain.png", (tmp_path / "plain.png").read_bytes())
    with small_disk(tmp_path / "disk") as disk:
        register = disk / "r.db"
        with serving(tmp_path, serve_in, str(disk), "--register", str(register)) as served:
            for leave in (0, len(image[2]), 2 * len(image[2])):  # as it comes, is marked, and is recorded
                ballast = fill(disk, leave=leave)
                status, facts, _ = served.work("/mark", image, message="Ada", psnr=40)
                assert status == 507, (leave, facts)
                assert "full" in facts["problem"]
            assert [path for path in disk.iterdir() if path not in (register, ballast)] == []
            ballast.unlink()
            assert served.work("/mark", image, message="Ada", psnr=40)[0] == 200
        found = Register.open(register)
        found.settle_pending()
        assert [each.state for each in found.records()][-1] == WRITTEN
        assert found.check().problems == found.check().pending == ()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


def choose(browser: Browser, role: str, file: Path) -> None:
    """Give the page a file, and wait for what it says of it."""
    browser.run("document.getElementById('status').textContent = 'waiting'")
    browser.choose(f"#{role}", file)
    browser.wait(DONE)


DONE = "!['waiting', 'Reading …', 'Marking …'].includes(document.getElementById('status').textContent)"
TEXT = "document.getElementById('{}').innerText"


def text(browser: Browser, identifier: str) -> str:
    found: str = browser.run(TEXT.format(identifier))
    return found


def mean(browser: Browser, identifier: str) -> float:
    """The mean grey level of a picture."""
    script = f"""(() => {{
        const canvas = document.getElementById('{identifier}');
        const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        return data.reduce((sum, value) => sum + value, 0) / data.length;
    }})()"""
    found: float = browser.run(script)
    return found


@needs_chromium
def test_it_says_what_a_dicom_file_says_and_whose_it_is_and_compares(browser: Browser, served: Served) -> None:
    browser.open(served.address)
    choose(browser, "image", served.folder / "marked.dcm")
    assert text(browser, "headline") == "Ada <b>Lovelace</b>"  # as text, not as HTML
    told = text(browser, "marks")
    row = next(Register.open(served.folder / "r.db").records()).row
    for part in (row.identifier, row.new_uid, row.old_uid, "to this image", "in the whole image", row.key):
        assert part in told
    assert "Green: the mark was read here" in text(browser, "legend")
    assert not browser.run("document.getElementById('canvas-original').checkVisibility()")
    choose(browser, "certificate", served.folder / "marked.dcm.json")
    assert "the certificate is of this file" in text(browser, "verdict")
    assert "which was given" in text(browser, "verdict")
    choose(browser, "original", served.folder / "scan.dcm")
    assert "was measured again and holds" in text(browser, "verdict")
    assert "floor 40 dB" in text(browser, "measured")
    assert browser.run("[...document.querySelectorAll('canvas')].every(each => each.checkVisibility())")
    darker = mean(browser, "canvas-image")
    browser.run(
        "centre = document.getElementById('centre'); centre.value = 4000; centre.dispatchEvent(new Event('input'))"
    )
    assert mean(browser, "canvas-image") < darker - 20
    browser.run("document.getElementById('reset').click()")
    assert mean(browser, "canvas-image") == pytest.approx(darker)
    choose(browser, "original", served.folder / "other.png")
    assert "expected an image as" in text(browser, "problem")
    assert browser.requests()[-1].startswith(served.address.partition("?")[0])
    assert {urlsplit(each).netloc for each in browser.requests()} == {urlsplit(served.address).netloc}


@needs_chromium
def test_an_image_is_marked_downloaded_recorded_and_true(browser: Browser, served: Served, tmp_path: Path) -> None:
    browser.open(served.address)
    browser.send("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    choose(browser, "image", served.folder / "plain.png")
    assert text(browser, "headline") == "No readable watermark"
    browser.run("document.getElementById('message').value = 'Grace Hopper'; document.getElementById('psnr').value = 40")
    browser.run("document.getElementById('mark').requestSubmit()")
    browser.wait("document.getElementById('downloads').checkVisibility()")
    assert text(browser, "headline") == "Grace Hopper"
    assert "was measured again and holds" in text(browser, "verdict")
    for link in ("image", "certificate"):
        browser.run(f"document.getElementById('download-{link}').click()")
    end = time.monotonic() + SECONDS
    while len(list(tmp_path.glob("plain.png*"))) < 2 or list(tmp_path.glob("*.crdownload")):
        assert time.monotonic() < end
        time.sleep(0.02)
    record = Register.open(served.folder / "r.db").records()
    (row,) = (each.row for each in record if each.row.owner == "Grace Hopper")
    marker = Watermarker.load(key=read_key(served.folder / "key.txt"))
    assert marker.extract(np.asarray(Image.open(tmp_path / "plain.png"))).message == row.identifier
    verify = ["verify", str(served.folder / "plain.png"), str(tmp_path / "plain.png")]
    public = ["--public-key", str(served.folder / "hospital.pub"), "--key", str(served.folder / "key.txt")]
    assert cli.main([*verify, *public]) == 0
    assert browser.complaints() == []
    choose(browser, "image", tmp_path / "plain.png.json")
    assert "expected a PNG" in text(browser, "problem")


@needs_chromium
def test_a_part_that_was_replaced_is_shown_in_red(browser: Browser, served: Served, tmp_path: Path) -> None:
    first, second = (natural_image(height=400, width=500, seed=seed) for seed in (5, 6))
    marker = Watermarker.load(key=read_key(served.folder / "key.txt"))
    spliced = marker.embed(first, "mine", psnr=38).image.copy()
    spliced[120:280, 200:380] = second[120:280, 200:380]
    Image.fromarray(spliced).save(tmp_path / "spliced.png")
    browser.open(served.address)
    choose(browser, "image", tmp_path / "spliced.png")
    assert text(browser, "headline").startswith("mine ")
    assert text(browser, "headline").endswith("but a part of the image was replaced")
    assert "Red: it is missing" in text(browser, "legend")
    assert "but missing in" in text(browser, "marks")


@needs_chromium
def test_where_a_picture_shows_a_marked_image_is_framed(browser: Browser, served: Served, tmp_path: Path) -> None:
    key = read_key(served.folder / "key.txt")
    marked = Watermarker.load(key=key).embed(natural_image(height=512, width=512, seed=5), "mine", psnr=38).image
    page = np.full((700, 900), 235, np.uint8)
    page[100:612, 200:712] = marked
    Image.fromarray(page).save(tmp_path / "page.png")
    browser.open(served.address)
    choose(browser, "image", tmp_path / "page.png")
    assert text(browser, "problem") == ""
    assert text(browser, "headline") == "mine"
    assert "pixels at" in text(browser, "marks")
    assert text(browser, "legend") == "Framed: here a mark was read."
    Image.fromarray(Watermarker.load().embed(GREY, "theirs", psnr=38).image).save(tmp_path / "other.png")
    choose(browser, "image", tmp_path / "other.png")
    assert text(browser, "problem") == ""
    assert "none of the keys reads it" in text(browser, "marks")


@needs_chromium
def test_it_is_used_with_the_keyboard_and_named_for_who_cannot_see_it(browser: Browser, served: Served) -> None:
    browser.open(served.address)
    choose(browser, "image", served.folder / "plain.png")
    browser.run("document.body.focus()")
    reached = []
    for _ in range(9):
        browser.press("Tab")
        reached.append(browser.run("document.activeElement.id || document.activeElement.tagName"))
    shown = ["image", "original", "certificate", "centre", "width", "reset", "message", "psnr", "BUTTON"]
    assert reached == shown  # the check box and the other pictures are not there yet
    browser.run("document.getElementById('centre').focus()")
    before = mean(browser, "canvas-image")
    for _ in range(3):
        browser.press("ArrowRight")
    assert mean(browser, "canvas-image") < before
    browser.run("document.getElementById('message').focus()")
    browser.send("Input.insertText", text="Erika")
    browser.press("Enter")
    browser.wait("document.getElementById('downloads').checkVisibility()")
    assert browser.run("document.activeElement.id") == "headline"
    assert browser.run("document.querySelector('[role=status]').textContent") == "Erika"
    nodes = browser.send("Accessibility.getFullAXTree")["nodes"]
    tree = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]
    named = {"button", "checkbox", "slider", "textbox", "link", "img", "spinbutton", "form", "image", "Canvas"}
    assert [role for role, name in tree if role in named and not name] == []
    names = {name for _, name in tree}
    assert {"Window centre", "Window width", "Show where the mark is", "The image that is marked"} <= names
    assert any(name.startswith("Image Drop") or name.startswith("Image plain.png") for name in names)


@needs_chromium
@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_and_keeps_its_contrast_in_light_and_dark(width: int, browser: Browser, served: Served) -> None:
    for dark in (False, True):
        browser.open(served.address, width=width, dark=dark)
        choose(browser, "image", served.folder / "marked.dcm")
        choose(browser, "original", served.folder / "scan.dcm")
        assert browser.run("document.documentElement.scrollWidth") <= width
        for selector in ("#marks dt", "#marks dd", ".drop .name", "figcaption", "#verdict li", "#reset"):
            assert contrast(browser, selector) >= 4.5, (selector, dark)
    assert browser.complaints() == []


def contrast(browser: Browser, selector: str) -> float:
    """As WCAG has it: of a text against what lies behind it."""
    script = f"""(() => {{
        let each = document.querySelector('{selector}');
        const colour = getComputedStyle(each).color;
        while (getComputedStyle(each).backgroundColor === 'rgba(0, 0, 0, 0)') each = each.parentElement;
        return [colour, getComputedStyle(each).backgroundColor];
    }})()"""
    bright = []
    for colour in browser.run(script):
        levels = [int(level) / 255 for level in re.findall(r"\d+", colour)[:3]]
        linear = [level / 12.92 if level <= 0.04045 else ((level + 0.055) / 1.055) ** 2.4 for level in levels]
        bright.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(bright) + 0.05) / (min(bright) + 0.05)


@needs_chromium
def test_the_policy_of_the_page_lets_nothing_else_run_or_be_asked(browser: Browser, served: Served) -> None:
    browser.open(served.address)
    assert browser.run("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')") == "refused"
    browser.run("document.body.append(Object.assign(document.createElement('script'), { textContent: 'hacked = 1' }))")
    assert browser.run("typeof hacked") == "undefined"


def test_only_who_has_the_token_and_means_this_machine_gets_an_answer(served: Served) -> None:
    good = served.address.rpartition("/")[2]
    found = urlsplit(served.address)
    for path, headers, status in (
        (f"/{good}", {}, 200),
        ("/", {}, 401),
        ("/?token=", {}, 401),
        (f"/?token={served.token[:-1]}", {}, 401),
        ("/?token=%C3%A4", {}, 401),
        (f"/{good}", {"host": "localhost:1"}, 200),  # as behind a tunnel
        (f"/{good}", {"host": "[::1]"}, 200),
        (f"/{good}", {"host": "evil.example"}, 421),
        (f"/{good}", {"host": f"127.0.0.1.evil.example:{found.port}"}, 421),
        ("/page.js", {}, 200),
        ("/page.js", {"host": "evil.example"}, 421),
        ("/desk.py", {}, 401),
        (f"/desk.py?token={served.token}", {}, 404),
        (f"/../desk.py?token={served.token}", {}, 404),
    ):
        got, answered, _ = served.ask(path, b"", "GET", **headers)
        assert got == status, (path, headers)
        assert "default-src 'none'" in answered["content-security-policy"]
        assert "access-control-allow-origin" not in answered
    for headers in ({}, {"authorization": "Bearer x"}):
        for path in ("/inspect", f"/inspect?token={served.token}"):  # where a form elsewhere could send it
            assert served.ask(path, b"{}", **headers)[0] == 401
    assert served.ask("/inspect", b"", "OPTIONS")[0] == 401


def test_what_is_too_large_torn_or_refused_is_said_and_not_kept(served: Served) -> None:
    grey = (served.folder / "plain.png").read_bytes()
    token = {"authorization": f"Bearer {served.token}"}
    assert served.ask("/inspect", bytes(LIMIT + 1), **token)[0] == 413
    assert served.ask("/inspect", iter([bytes(LIMIT), b"x"]), **token)[0] == 413  # in pieces
    found = urlsplit(served.address)
    with socket.create_connection((found.hostname, found.port)) as gone:  # in the middle of a file
        told = f"host: localhost\r\nauthorization: Bearer {served.token}\r\ncontent-length: 9999"
        gone.sendall(f"POST /inspect HTTP/1.1\r\n{told}\r\n\r\n".encode() + bytes(99))
    for body in (
        b"",
        b"\xff",
        b"{}",
        b'{"files": 3}',
        b'{"files": [["image", "a", 9]]}\n',
        b'{"files": []}\nmore',
        b"[" * 9999,
    ):
        status, _, content = served.ask("/inspect", body, **token)
        assert status == 422, body
        assert "problem" in json.loads(content)
    status, facts, _ = served.work("/inspect", ("image", "../../\x1b.png", b"no image"))
    assert (status, "floormark-" in facts["problem"]) == (422, False)
    assert "expected a PNG" in facts["problem"]
    assert served.work("/inspect", ("image", "a.png", grey), ("image2", "b", b""))[0] == 422
    assert served.work("/mark", ("image", "a.png", grey), message=7, psnr=40)[0] == 422
    assert served.work("/mark", ("image", "a.png", grey), message="x", psnr="high")[0] == 422
    assert served.work("/mark", ("image", "a.png", grey), message="x" * 2000, psnr=40)[0] == 422
    assert served.work("/mark", ("image", "a.png", grey), message="x", psnr=99)[0] == 409
    assert len({each.row.owner for each in Register.open(served.folder / "r.db").records()} & {"x"}) == 0


def test_a_certificate_alone_is_judged_by_what_it_can_tell(served: Served) -> None:
    marked, told = (served.folder / name for name in ("marked.dcm", "marked.dcm.json"))
    good, plain = told.read_bytes(), (served.folder / "plain.png").read_bytes()

    def verdict(image: bytes, certificate: bytes) -> list[tuple[bool | None, str]]:
        status, facts, _ = served.work("/inspect", ("image", "a", image), ("certificate", "c.json", certificate))
        assert status == 200
        return [(line["good"], line["text"]) for line in facts["verdict"]]

    assert [line[0] for line in verdict(marked.read_bytes(), good)] == [True, None, True]
    assert (False, "the certificate is of another image") in verdict(plain, good)
    other = json.dumps({**json.loads(good), "floor": 39.0}).encode()
    assert (False, "its signature is not valid") in verdict(marked.read_bytes(), other)
    unsigned = json.dumps({**json.loads(good), "signature": None}).encode()
    assert verdict(marked.read_bytes(), unsigned)[-1][1].startswith("it is not signed")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--port", "70000"), "port of 0 to 65535"),
        (("--max-mb", "0"), "at least 1"),
        (("--register", "/nowhere/r.db"), "cannot write"),
    ],
)
def test_what_cannot_be_served_is_one_line(
    arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["serve", *arguments]) in (1, 2)
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert told in err


def test_a_port_that_is_taken_is_one_line(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--port", str(urlsplit(served.address).port)]) == 1
    assert "--port 0" in capsys.readouterr().err
