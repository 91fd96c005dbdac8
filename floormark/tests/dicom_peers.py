"""The node and its real peers for tests: dcmtk's programs and Orthanc, each a process on a free port."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import pydicom
import pytest
from pydicom.uid import generate_uid

from dicom_files import make
from natural_images import natural_image

SECONDS = 120.0  # of a machine that is busy with other work
TEXT = "ward 7"
WARNINGS = ["-W", "error", "-W", "ignore::ResourceWarning"]  # pynetdicom leaves sockets to the garbage collector
PLUGINS = Path("/usr/share/orthanc/plugins")
Json = dict[str, Any]


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skip where a peer is not installed."""
    missing = [program for program in programs if shutil.which(program) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed")


def wait_for(condition: Callable[[], object], seconds: float = SECONDS) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def images(folder: Path, count: int, side: int = 128) -> list[Path]:
    """Small images, each another."""
    folder.mkdir(parents=True, exist_ok=True)
    study = {name: generate_uid() for name in ("StudyInstanceUID", "SeriesInstanceUID")}
    return [
        make(folder / f"{seed:04}.dcm", natural_image(height=side, width=side, seed=seed), PatientID="4711", **study)
        for seed in range(count)
    ]


def storescu(port: int, *arguments: str | Path, called: str = "FLOORMARK") -> subprocess.CompletedProcess[str]:
    """Send with dcmtk; it ends with 0 if all was stored."""
    command = ["storescu", "-v", "-aec", called, *map(str, arguments[:-1]), "127.0.0.1", str(port), str(arguments[-1])]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


class Process:
    """A program whose output goes to a file."""

    def __init__(self, command: list[str], log: Path, **options: Any) -> None:
        self.log = log
        with log.open("ab") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, **options)

    def end(self) -> int:
        """End it as an operator does."""
        self.process.terminate()
        return self.process.wait(SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Node(Process):
    """``floormark node``, ready for images; its log goes on in one file over restarts."""

    def __init__(self, folder: Path, *arguments: str | Path, port: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.queue = folder / "queue"
        command = [sys.executable, *WARNINGS, "-m", "floormark", "node", "--port", str(port), "--host", "127.0.0.1"]
        command += ["--queue", str(self.queue), "--status-port", "0", "--text", TEXT, "--psnr", "40", "--workers", "1"]
        self._begin = (folder / "log").stat().st_size if (folder / "log").exists() else 0
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        super().__init__([*command, *map(str, arguments)], folder / "log", env=environment)
        wait_for(lambda: self.events("started") or self.process.poll() is not None)
        assert self.process.poll() is None, self.log.read_text()
        (self.started,) = self.events("started")
        self.port: int = self.started["port"]

    def events(self, *names: str) -> list[Json]:
        """What this process has told, of these kinds."""
        with self.log.open("rb") as file:
            file.seek(self._begin)
            lines = [json.loads(line) for line in file.read().splitlines(keepends=True) if line.endswith(b"}\n")]
        return [line for line in lines if line["event"] in names or not names]

    def wait(self, name: str, count: int = 1) -> list[Json]:
        wait_for(lambda: len(self.events(name)) >= count)
        return self.events(name)

    def get(self, path: str) -> str:
        url = f"http://127.0.0.1:{self.started['status_port']}{path}"
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:
            text: str = answer.read().decode()
        return text

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Archive(Process):
    """dcmtk's ``storescp``, which keeps what it gets in a folder; its log has a line for each C-STORE."""

    def __init__(self, folder: Path, *arguments: str | Path, port: int | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.port = folder, port or free_port()
        command = ["storescp", "-v", "+B", "+xa", "-aet", "ARCHIVE", "-od", str(folder)]
        super().__init__([*command, *map(str, arguments), str(self.port)], folder.with_suffix(".log"))
        wait_for(lambda: answers(self.port))

    @property
    def target(self) -> str:
        return f"ARCHIVE@127.0.0.1:{self.port}"

    @property
    def received(self) -> list[Path]:
        return sorted(self.folder.iterdir())

    @property
    def requests(self) -> int:
        """C-STOREs so far."""
        return self.log.read_text(errors="replace").count("Received Store Request")


def sources(files: list[Path]) -> Counter[str]:
    """How many marked images there are of each original, by its SOP Instance UID."""
    found: Counter[str] = Counter()
    for path in files:
        dataset = pydicom.dcmread(path, stop_before_pixels=True)
        found[str(dataset.SourceImageSequence[-1].ReferencedSOPInstanceUID)] += 1
    return found


def uids(files: list[Path]) -> Counter[str]:
    """The SOP Instance UIDs of originals."""
    return Counter(str(pydicom.dcmread(path, stop_before_pixels=True).SOPInstanceUID) for path in files)


class Orthanc(Process):
    """Orthanc with DICOMweb, or with a Python script."""

    def __init__(self, folder: Path, *, modalities: Json | None = None, script: Path | None = None, **environment: Any):
        folder.mkdir(parents=True)
        self.port, self.http = free_port(), free_port()
        plugins = [str(PLUGINS / "libOrthancDicomWeb.so")]
        settings: Json = {
            "Name": folder.name,
            "StorageDirectory": str(folder / "storage"),
            "IndexDirectory": str(folder / "index"),
            "DicomAet": "ORTHANC",
            "DicomPort": self.port,
            "DicomCheckCalledAet": False,
            "HttpPort": self.http,
            "RemoteAccessAllowed": False,
            "AuthenticationEnabled": False,
            "OverwriteInstances": False,
            "DicomModalities": modalities or {},
            "DicomWeb": {"Enable": True, "Root": "/dicom-web/"},
        }
        if script is not None:
            plugins.append(str(PLUGINS / "libOrthancPython.so"))
            settings["PythonScript"] = str(script)
        settings["Plugins"] = plugins
        (folder / "orthanc.json").write_text(json.dumps(settings))
        command = ["Orthanc", str(folder / "orthanc.json")]
        super().__init__(command, folder / "log", env={**os.environ, **environment})
        wait_for(lambda: answers(self.http) or self.process.poll() is not None)
        assert self.process.poll() is None, (folder / "log").read_text()

    @property
    def target(self) -> str:
        return f"ORTHANC@127.0.0.1:{self.port}"

    @property
    def web(self) -> str:
        return f"http://127.0.0.1:{self.http}/dicom-web"

    def rest(self, path: str, body: bytes | Json | str | None = None) -> Any:
        """Its REST interface: GET, or POST of ``body``."""
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode() if isinstance(body, dict) else body
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}{path}", data, timeout=SECONDS) as answer:
            content = answer.read()
        return json.loads(content) if answer.headers["Content-Type"].startswith("application/json") else content

    def instances(self) -> list[str]:
        found: list[str] = self.rest("/instances")
        return found

    def fetch(self, folder: Path) -> list[Path]:
        """All its instances as files."""
        folder.mkdir()
        for each in self.instances():
            (folder / f"{each}.dcm").write_bytes(self.rest(f"/instances/{each}/file"))
        return sorted(folder.iterdir())


@contextmanager
def started(*processes: Process) -> Iterator[None]:
    with ExitStack() as stack:
        for each in processes:
            stack.enter_context(each)
        yield
