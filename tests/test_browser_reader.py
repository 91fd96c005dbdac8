"""The page that reads marks in a browser says what ``floormark extract`` says, and asks no other host for anything."""

import functools
import http.server
import importlib.util
import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from browser import Browser, needs_chromium
from floormark import Payload, Watermarker
from natural_images import natural_image

ROOT = Path(__file__).parents[1]
PACKAGES = ROOT / "build" / "npm" / "node_modules"
SIZES = [(256, 256), (300, 420), (512, 512), (700, 533), (1030, 1100)]
FILES = [("png", {}), ("jpg", {"quality": 75}), ("webp", {"quality": 80}), ("bmp", {})]
MESSAGES = [
    Payload.from_text("patient 4711"),
    Payload.from_text("Grüße <b>&"),
    Payload.from_hex("00ff17"),
    Payload.from_bits("0010110"),
    Payload.from_text("sixteen letters!"),
]


def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("browser_reader", ROOT / "docs" / "tools" / "browser_reader.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass
class Page:
    """The page in a browser, from a server of this test."""

    browser: Browser
    address: str

    def read(self, *files: Path) -> list[dict[str, Any]]:
        """State, name and message of each file, in the order in which they were given."""
        self.browser.send("DOM.enable")
        field = self.browser.send("Runtime.evaluate", expression="document.getElementById('files')")["result"]
        before = self.browser.run("document.querySelectorAll('#results li').length")
        self.browser.send("DOM.setFileInputFiles", files=[str(file) for file in files], objectId=field["objectId"])
        self.browser.wait(f"document.querySelectorAll('#results li').length === {before + len(files)}")
        self.browser.wait("!document.querySelector('#results li[data-state=reading]')")
        found: list[dict[str, Any]] = json.loads(
            self.browser.run(
                "JSON.stringify([...document.querySelectorAll('#results li')].map((item) => ({"
                "state: item.dataset.state, name: item.querySelector('.name').textContent, "
                "message: item.querySelector('.message').textContent, "
                "detail: item.querySelector('.detail').textContent})))"
            )
        )
        return found[: len(files)][::-1]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    site = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs" / "read", site / "read")
    if not hook().complete(site / "read", PACKAGES):
        pytest.skip("the packages of npm are not there: make docs fetches them")
    handler = functools.partial(Quiet, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    browser = Browser(tmp_path_factory.mktemp("profile"))
    try:
        opened = Page(browser, f"http://127.0.0.1:{server.server_port}/")
        browser.send("Page.navigate", url=f"{opened.address}read/index.html")
        browser.wait("document.documentElement?.dataset.ready !== undefined")
        yield opened
    finally:
        browser.close()
        server.shutdown()
        server.server_close()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def with_text(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    image = Image.fromarray(pixels)
    ImageDraw.Draw(image).rectangle((40, 40, 40 + image.width // 3, 90), fill=0)
    ImageDraw.Draw(image).text((50, 55), "L  supine", fill=255 if image.mode == "L" else (255, 255, 255))
    return np.asarray(image)


def saved(path: Path, pixels: NDArray[Any], **options: Any) -> Path:
    Image.fromarray(pixels).save(path, **options)
    return path


@pytest.mark.slow
@needs_chromium
def test_the_page_reads_what_the_tool_reads(page: Page, tmp_path: Path) -> None:
    """20 marked images in four formats and five sizes, grey and in colour, some with text on them; 5 plain ones."""
    marker = Watermarker.load()
    files: list[Path] = []
    messages: list[str | bytes | None] = []
    for number, (height, width) in enumerate(SIZES):
        for kind, (suffix, options) in enumerate(FILES):
            plain = natural_image((1, 3)[(number + kind) % 2], height=height, width=width, seed=7 * number + kind)
            message = MESSAGES[(number + kind) % len(MESSAGES)]
            marked = marker.embed(plain, message, psnr=42).image
            shown = with_text(marked) if kind in (0, number) else marked
            files.append(saved(tmp_path / f"{number}-{kind}.{suffix}", shown, **options))
            messages.append(message.value)
        files.append(saved(tmp_path / f"{number}-plain.png", natural_image(height=height, width=width, seed=number)))
        messages.append(None)
    by_the_tool = [marker.extract(np.asarray(Image.open(file))).message for file in files]
    assert by_the_tool == messages  # or the images are not what this test means them to be
    found = page.read(*files)
    assert [each["name"] for each in found] == [file.name for file in files]
    assert [each["message"] if each["state"] == "found" else None for each in found] == messages
    assert {each["state"] for each in found} == {"found", "nothing"}

    asked = page.browser.requests()
    assert any(address.endswith(".wasm") for address in asked)
    assert all(address.startswith(page.address) for address in asked)
    sent = [event["params"]["request"] for event in page.browser.events if "request" in event.get("params", {})]
    assert {each["method"] for each in sent} == {"GET"}
    assert page.browser.complaints() == []


@pytest.mark.slow
@needs_chromium
def test_the_page_reads_what_lies_under_stripes(page: Page, tmp_path: Path) -> None:
    """Of an image that the network reads only after what is flat was filled in."""
    marker = Watermarker.load()
    marked = marker.embed(natural_image(height=512, width=512), "under stripes", psnr=40).image
    for top in range(0, 512, 40):
        marked[top : top + 16] = 255
    assert marker.extract(marked).message == "under stripes"
    (found,) = page.read(saved(tmp_path / "striped.png", marked))
    assert found["message"] == "under stripes"


@pytest.mark.slow
@needs_chromium
def test_a_file_that_the_page_cannot_read_does_not_stop_the_others(page: Page, tmp_path: Path) -> None:
    image = natural_image(height=256, width=256)
    (tmp_path / "image.dcm").write_bytes(b"\0" * 128 + b"DICM" + b"\0" * 100)
    whole = saved(tmp_path / "whole.png", image).read_bytes()
    (tmp_path / "torn.png").write_bytes(whole[:900])
    deep = saved(tmp_path / "deep.png", image.astype(np.uint16) << 8)
    small = saved(tmp_path / "small.png", image[:40, :40])
    marked = saved(tmp_path / "marked.png", Watermarker.load().embed(image, "after all", psnr=42).image)
    found = page.read(tmp_path / "image.dcm", tmp_path / "torn.png", deep, small, marked)
    assert [each["state"] for each in found] == ["failed", "failed", "failed", "nothing", "found"]
    assert "DICOM" in found[0]["detail"]
    assert "16 bits" in found[2]["detail"]
    assert found[-1]["message"] == "after all"


def test_the_page_allows_nothing_but_its_own_files() -> None:
    html = (ROOT / "docs" / "read" / "index.html").read_text()
    assert "default-src 'none'" in html
    assert "unsafe-inline" not in html
    for file in (ROOT / "docs" / "read").iterdir():
        assert "https://" not in file.read_text(), f"{file.name} names another host"
