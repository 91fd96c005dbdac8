"""A real browser for the tests: headless Chromium over its debugging pipe, which needs no port and no package."""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed: apt-get install chromium")
# The browser reads commands from descriptor 3 and answers on 4.
LAUNCH = "import os, sys; os.dup2({}, 3); os.dup2({}, 4); os.execv(sys.argv[1], sys.argv[1:])"
SECONDS = 300  # of a machine that is busy with other work


class Browser:
    """One Chromium process with one tab.

    Args:
        profile: an empty folder for what the browser keeps.
    """

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        commands, self._to = _pipe()
        self._from, answers = _pipe()
        flags = (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
        )
        launch = LAUNCH.format(commands, answers)
        self._process = subprocess.Popen(
            [sys.executable, "-c", launch, CHROMIUM, *flags, "--hide-scrollbars", "about:blank"],
            pass_fds=(commands, answers),
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._stream = os.fdopen(self._from, "rb")
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait(timeout=SECONDS)
        os.close(self._to)
        self._stream.close()

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call one command of the protocol and wait for its answer; events on the way are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            piece = self._stream.read1(1 << 20)
            assert piece, "the browser has gone"
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        found = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until a JavaScript expression holds."""
        end = time.monotonic() + SECONDS
        while not self.run(condition):
            assert time.monotonic() < end, f"waited in vain for {condition}"
            time.sleep(0.02)

    def open(self, page: Path | str, *, width: int = 1280, dark: bool = False) -> None:
        """Show a page, of a file or at an address, and wait until it says that it is drawn."""
        address = page if isinstance(page, str) else page.as_uri()
        self.events.clear()
        self.resize(width)
        self.prefer(dark=dark)
        self.send("Page.navigate", url=address)
        shown = f"location.href === {json.dumps(address)}"
        self.wait(f"{shown} && document.documentElement?.dataset.ready !== undefined")

    def resize(self, width: int) -> None:
        """Make the window so many pixels wide."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)

    def prefer(self, *, dark: bool = False, media: str = "screen") -> None:
        """Be a system with a dark or a light theme, on a screen or on paper."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", media=media, features=[feature])

    def choose(self, field: str, file: Path) -> None:
        """Give a file to a field of the page, named by a selector, as its dialogue does."""
        root = self.send("DOM.getDocument")["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=root, selector=field)["nodeId"]
        self.send("DOM.setFileInputFiles", nodeId=node, files=[str(file)])

    def press(self, key: str, *, text: str = "", shift: bool = False) -> None:
        """Press and release one key, such as Tab."""
        code = {"Tab": 9, "Enter": 13, " ": 32, "ArrowRight": 39, "ArrowLeft": 37}.get(key, 0)
        parameters = {"key": key, "modifiers": 8 * shift, "windowsVirtualKeyCode": code}
        if text := text or {"Enter": "\r", " ": " "}.get(key, ""):
            parameters["text"] = text
        self.send("Input.dispatchKeyEvent", type="keyDown", **parameters)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key)

    def screenshot(self, file: Path) -> None:
        """Keep the whole page as a picture, to look at."""
        found = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(found["data"]))

    def complaints(self) -> list[str]:
        """Errors and warnings on the console, and exceptions."""
        wrong = [event for event in self.events if event["method"] == "Runtime.exceptionThrown"]
        for event in self.events:
            if event["method"] == "Runtime.consoleAPICalled" and event["params"]["type"] in ("error", "warning"):
                wrong.append(event)
            if event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] in ("error", "warning"):
                wrong.append(event)
        return [json.dumps(event["params"])[:500] for event in wrong]

    def requests(self) -> list[str]:
        """Addresses asked for, beyond the page itself and what it holds."""
        sent = [event["params"] for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [each["request"]["url"] for each in sent if not each["request"]["url"].startswith(("data:", "blob:"))]


def _pipe() -> tuple[int, int]:
    """A pipe whose ends stand clear of the descriptors that the browser will use."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]
