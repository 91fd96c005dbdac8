import gzip
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from idx_files import contents, described, write_folder
from samplewise.errors import ConfigurationError, DataError, OutputError
from studies.data import FILES, OWN, cache_folder, download, load_folder

FIRST = f"{FILES[0]}.gz"


class Mirror(ThreadingHTTPServer):
    """A web server on this machine that keeps a record of what was asked."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {f"/{name}.gz": gzip.compress(content, mtime=0) for name, content in files.items()}
        self.asked: list[str] = []
        self.cut = 0  # bytes after which the connection breaks, once

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    server: Mirror

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        cut, self.server.cut = self.server.cut, 0
        self.wfile.write(content[:cut] if cut else content)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the record is in the server."""


@pytest.fixture
def files() -> dict[str, bytes]:
    return contents(train=200)


@pytest.fixture
def mirror(files: dict[str, bytes]) -> Iterator[Mirror]:
    server = Mirror(files)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_all_files_come_and_are_kept(tmp_path: Path, files: dict[str, bytes], mirror: Mirror) -> None:
    known = described(files, (mirror.address,))
    folder = download(known, tmp_path / "cache")
    assert len(load_folder(folder, known).train) == 200
    assert {path.name for path in folder.iterdir()} == {f"{name}.gz" for name in FILES}
    count = len(mirror.asked)
    assert count == 4
    download(known, folder)
    assert len(mirror.asked) == count  # nothing is fetched twice


def test_a_download_that_breaks_off_leaves_nothing(tmp_path: Path, files: dict[str, bytes], mirror: Mirror) -> None:
    known = described(files, (mirror.address,))
    mirror.cut = 1000
    with pytest.raises(DataError, match=r"broke off"):
        download(known, tmp_path)
    assert not list(tmp_path.iterdir())
    download(known, tmp_path)
    assert (tmp_path / FIRST).read_bytes() == mirror.files[f"/{FIRST}"]


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"<html>welcome</html>", "is not a gzip file"),
        (gzip.compress(b"\0\0\x08\x03" + b"\0\0\0\1" * 3 + b"x", mtime=0), "another md5"),
    ],
)
def test_a_wrong_file_is_refused_and_nothing_is_kept(
    tmp_path: Path, files: dict[str, bytes], mirror: Mirror, sent: bytes, message: str
) -> None:
    known = described(files, (mirror.address,))
    mirror.files[f"/{FIRST}"] = sent
    with pytest.raises(DataError, match=f"could not download {FIRST} .*{message}"):
        download(known, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_next_mirror_is_tried(tmp_path: Path, files: dict[str, bytes], mirror: Mirror) -> None:
    bad = Mirror({})
    thread = threading.Thread(target=bad.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        download(described(files, (bad.address, mirror.address)), tmp_path)
    finally:
        bad.shutdown()
        thread.join()
        bad.server_close()
    assert len(bad.asked) == len(mirror.asked) == 4


def test_a_torn_file_in_the_cache_is_fetched_again(tmp_path: Path, files: dict[str, bytes], mirror: Mirror) -> None:
    (tmp_path / FIRST).write_bytes(mirror.files[f"/{FIRST}"][:50])
    download(described(files, (mirror.address,)), tmp_path)
    assert (tmp_path / FIRST).read_bytes() == mirror.files[f"/{FIRST}"]


def test_without_a_network_one_line_says_what_to_do(tmp_path: Path, files: dict[str, bytes]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        known = described(files, (f"http://127.0.0.1:{unused.getsockname()[1]}/",))
        with pytest.raises(DataError) as caught:
            download(known, tmp_path, timeout=2)
    message = str(caught.value)
    assert "\n" not in message
    assert all(f"{name}.gz" in message for name in FILES)
    assert f"into {tmp_path}" in message
    write_folder(tmp_path, files)  # put there by hand, even decompressed: no network is needed
    assert download(known, tmp_path) == tmp_path


def test_a_folder_that_cannot_be_made_is_an_output_error(tmp_path: Path, files: dict[str, bytes]) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="cannot write"):
        download(described(files, ("http://127.0.0.1:9/",)), tmp_path / "file" / "cache")


def test_data_of_ones_own_has_no_mirrors() -> None:
    with pytest.raises(ConfigurationError, match="cannot be downloaded"):
        download(OWN)


def test_the_cache_is_where_pytorch_has_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "samplewise"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert cache_folder() == tmp_path / ".cache" / "samplewise"
