"""The DICOM node, a process of its own, with dcmtk's programs and Orthanc at both sides."""

import datetime
import ipaddress
import os
import re
import socket
import ssl
import struct
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import certifi
import numpy as np
import psutil
import pydicom
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pydicom.uid import JPEG2000Lossless
from pynetdicom import AE, evt
from pynetdicom.dsutils import encode
from pynetdicom.pdu_primitives import P_DATA
from pynetdicom.presentation import StoragePresentationContexts

from dicom_files import SECONDARY_CAPTURE, make, real
from dicom_peers import (
    TEXT,
    Archive,
    Node,
    Orthanc,
    answers,
    free_port,
    images,
    needs,
    sources,
    storescu,
    uids,
    wait_for,
)
from floormark import Watermarker, cli
from floormark.certificate import sha256
from floormark.errors import ConfigurationError, OutputError
from floormark.files.folder import extract_file
from floormark.files.marking import FileMarker
from floormark.node.forward import StorageTarget, TargetAway, WebTarget
from floormark.node.pool import mark
from floormark.options import EmbedOptions
from floormark.register import ABSENT, WRITTEN, Register
from floormark.verify import verify_files
from small_disk import fill, small_disk

STUDY = ("StudyInstanceUID", "SeriesInstanceUID")

pytestmark = needs("storescu", "storescp", "echoscu")


def message(path: Path) -> object:
    return extract_file(Watermarker.load(), path)[0].message


def test_what_arrives_is_marked_once_and_sent_on(tmp_path: Path) -> None:
    files = images(tmp_path / "in", 3)
    certificates = tmp_path / "certificates"
    with (
        Archive(tmp_path / "archive") as archive,
        Node(tmp_path, "--forward", archive.target, "--certificates", certificates) as node,
    ):
        assert subprocess.run(["echoscu", "127.0.0.1", str(node.port)], check=False).returncode == 0
        for path in files:
            assert storescu(node.port, path).returncode == 0
        node.wait("sent", 3)
        assert sources(archive.received) == uids(files)
        by_uid = {pydicom.dcmread(path).SOPInstanceUID: path for path in archive.received}
        for told, original in zip(node.events("sent"), files, strict=True):
            marked = by_uid[told["uid"]]
            found = verify_files(
                original=original,
                marked=marked,
                marker=Watermarker.load(),
                certificate=certificates / f"{told['uid']}.json",
            )
            assert found.extracted.message == TEXT
            assert not [problem for problem in found.problems if "sha256" not in problem], found.problems

        # Who got no answer sends again: the archive gets the same instance.
        assert storescu(node.port, files[0]).returncode == 0
        node.wait("sent", 4)
        assert sources(archive.received) == uids(files)
        assert archive.requests == 4

        # What cannot be marked is refused with a status, and nothing of it is left.
        small = make(tmp_path / "small.dcm", np.full((40, 40), 7, np.uint8))
        for path in (small, real("rtplan.dcm"), archive.received[0]):
            sent = storescu(node.port, path)
            assert sent.returncode != 0
            assert "C00" in node.events("refused")[-1]["status"]
            assert "Store Response" in sent.stderr + sent.stdout
        assert len(node.events("refused")) == 3
        assert "CompressedSamples^RTPlan" not in node.log.read_text()  # the patient

        metrics = node.get("/metrics")
        counts = {name: float(value) for name, value in re.findall(r"^floormark_node_(\w+) ([\d.e+]+)$", metrics, re.M)}
        assert (counts["received_total"], counts["marked_total"], counts["refused_total"]) == (7, 4, 3)
        assert (counts["sent_total"], counts["queue_files"], counts["echo_total"]) == (4, 0, 1)
        assert "<td>7<" in node.get("/")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            node.get("/etc/passwd")
        for _ in range(20):  # somebody who does not wait for the answer
            with socket.create_connection(("127.0.0.1", node.started["status_port"])) as gone:
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                gone.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert "<td>7<" in node.get("/")
        assert "Traceback" not in node.log.read_text()
        assert node.end() == 0
    assert archive.requests == 4
    assert sum(1 for path in node.queue.rglob("*.dcm*")) == 0


def test_a_target_that_is_away_gets_all_when_it_is_back(tmp_path: Path) -> None:
    files = images(tmp_path / "in", 4)
    port = free_port()
    strange = real("rtplan.dcm")
    with Node(tmp_path, "--forward", f"ARCHIVE@localhost:{port}", "--on-refusal", "forward") as node:
        with ThreadPoolExecutor(5) as senders:  # several associations at once, two of them with the same image
            ended = senders.map(lambda path: storescu(node.port, path).returncode, [files[0], *files[:3], strange])
            assert list(ended) == [0] * 5
        assert [len(node.events(name)) for name in ("marked", "again", "unmarked")] == [3, 1, 1]
        node.wait("away", 2)
        assert node.events("unmarked")[0]["reason"]
        node.kill()  # what was answered with success is in the queue
    with (
        Archive(tmp_path / "archive", port=port) as archive,
        Node(tmp_path, "--forward", f"ARCHIVE@localhost:{port}") as node,
    ):
        assert node.started["waiting"] == 4
        node.wait("sent", 4)
        archive.end()
        assert storescu(node.port, files[3]).returncode == 0
        node.wait("away")
        with Archive(tmp_path / "archive", port=port) as again:
            node.wait("sent", 5)
            marked = [path for path in again.received if path.name.startswith("SC.")]  # secondary captures
            assert sources(marked) == uids(files)
            (plan,) = (path for path in again.received if path not in marked)
            assert pydicom.dcmread(plan).SOPInstanceUID == pydicom.dcmread(strange).SOPInstanceUID
        assert storescu(node.port, files[0]).returncode == 0
        assert node.end() == 0  # with something in the queue
    assert len(list((node.queue / "outgoing").glob("*.dcm"))) == 1


def test_only_those_on_the_lists_are_heard(tmp_path: Path) -> None:
    (path,) = images(tmp_path / "in", 1)
    lists = ["--allow-aet", "CT1", "--allow-address", "127.0.0.1"]
    with Node(tmp_path, "--forward", f"ARCHIVE@127.0.0.1:{free_port()}", *lists) as node:
        assert storescu(node.port, "-aet", "CT2", path).returncode != 0
        assert storescu(node.port, "-aet", "CT1", path, called="OTHER").returncode != 0
        assert {told["peer"] for told in node.wait("rejected", 2)} == {"CT1", "CT2"}
        assert storescu(node.port, "-aet", "CT1", path).returncode == 0
        assert len(node.events("marked")) == 1
    with Node(tmp_path, "--forward", f"ARCHIVE@127.0.0.1:{free_port()}", "--allow-address", "10.0.0.0/8") as node:
        assert storescu(node.port, path).returncode != 0
        assert node.wait("rejected")[0]["address"] == "127.0.0.1"
        assert not node.events("marked", "again", "refused")


def test_disk_and_memory_are_bounded_whatever_peers_do(tmp_path: Path) -> None:
    first, second = images(tmp_path / "in", 2)
    with Node(tmp_path, "--forward", f"ARCHIVE@127.0.0.1:{free_port()}", "--queue-limit", "0.00001") as node:
        # A peer dies in the middle of an image.
        sent = 0

        def die(event: Any) -> None:
            nonlocal sent
            sent += len(event.data)
            if sent > 1 << 20:
                event.assoc.dul.socket.socket.shutdown(socket.SHUT_RDWR)

        peer = AE("DYING")
        peer.add_requested_context(SECONDARY_CAPTURE)
        handlers: Any = [(evt.EVT_DATA_SENT, die)]
        association = peer.associate("127.0.0.1", node.port, ae_title="FLOORMARK", evt_handlers=handlers)
        association.send_c_store(pydicom.dcmread(make(tmp_path / "large.dcm", np.zeros((2048, 2048), np.uint8))))
        assert node.wait("broken_off")[0]["peer"] == "DYING"
        assert not any((node.queue / "receiving").iterdir())

        # A process that marks is killed: the peer is told to try again.
        (worker,) = [
            each for each in psutil.Process(node.process.pid).children() if "spawn_main" in str(each.cmdline())
        ]
        worker.kill()
        worker.wait()
        assert storescu(node.port, first).returncode != 0
        assert node.events("refused")[0]["status"] == "A700"

        # The queue is full after one image; what is in it already may come again.
        assert storescu(node.port, first).returncode == 0
        assert storescu(node.port, second).returncode != 0
        assert node.events("refused")[1]["status"] == "A700"
        assert storescu(node.port, first).returncode == 0
        assert len(node.events("again")) == 1

        other = subprocess.run(node.process.args, capture_output=True, text=True, check=False)
        assert other.returncode == 2
        assert "another process" in other.stderr


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, private = folder / "cert.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    encoded = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    private.write_bytes(encoded)
    return certificate, private


def test_what_is_no_dicom_ends_its_association_and_leaves_nothing(tmp_path: Path) -> None:
    command = pydicom.Dataset()
    command.CommandField, command.MessageID, command.CommandDataSetType = 0x0001, 1, 0x0000
    command.AffectedSOPClassUID, command.AffectedSOPInstanceUID, command.Priority = SECONDARY_CAPTURE, "1.2", 0
    command.CommandGroupLength = 0
    store = encode(command, True, True)
    assert store is not None
    with Node(tmp_path, "--forward", f"ARCHIVE@127.0.0.1:{free_port()}", "--associations", "1") as node:
        for wrong in (
            [(1, b"\x03" + b"garbage" * 9)],
            [(1, b"\x03" + store), (1, b"\x00" + bytes(5000)), (99, b"\x03" + store)],  # in the middle of an image
            [(99, b"\x03" + store)],
        ):
            peer = AE("ODD")
            peer.add_requested_context(SECONDARY_CAPTURE)
            association = peer.associate("127.0.0.1", node.port, ae_title="FLOORMARK")
            assert association.is_established, node.log.read_text()  # the only one that may be open
            for context, content in wrong:
                pdata = P_DATA()
                pdata.presentation_data_value_list = [[context, content]]  # type: ignore[list-item]
                association.dul.send_pdu(pdata)
            wait_for(lambda: not association.is_established)  # noqa: B023
        wait_for(lambda: not any((node.queue / "receiving").iterdir()))
        assert node.wait("invalid", 3)
        assert storescu(node.port, *images(tmp_path / "in", 1)).returncode == 0
        assert "Traceback" not in node.log.read_text()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as disk:
        yield disk


def test_a_full_disk_loses_nothing_and_is_gone_on_with_when_there_is_room(tmp_path: Path, disk: Path) -> None:
    first, second, third = images(tmp_path / "in", 3)
    port, database = free_port(), disk / "register.db"
    options: list[str | Path] = ["--queue", disk / "queue", "--register", database, "--certificates", disk / "kept"]
    with Node(tmp_path, "--forward", f"ARCHIVE@127.0.0.1:{port}", *options) as node:
        assert storescu(node.port, first).returncode == 0
        size = node.events("marked")[0]["bytes"]
        for leave in (0, size, 2 * size, 3 * size):  # it ends while arriving, marking, certifying or recording
            refused = len(node.events("refused"))
            fill(disk, leave=leave)
            storescu(node.port, "+sd", "-nh", tmp_path / "in")
            assert len(node.events("refused")) > refused, leave
        assert {told["status"] for told in node.events("refused")} == {"A700"}
        assert not any((disk / "queue" / "receiving").iterdir())
        ballast = fill(disk)
        with Archive(tmp_path / "archive", port=port) as archive:
            node.wait("sent")  # which needs no room
            fill(disk)
            assert storescu(node.port, second).returncode != 0
            ballast.unlink()
            for path in (first, second, third):
                assert storescu(node.port, path).returncode == 0
            wait_for(lambda: not any((disk / "queue" / "outgoing").iterdir()))
            assert sources(archive.received) == uids([first, second, third])
            arrived = {str(pydicom.dcmread(path).SOPInstanceUID) for path in archive.received}
        assert {path.name for path in (disk / "kept").iterdir()} == {f"{uid}.json" for uid in arrived}
        assert not node.events("invalid", "failed")
    register = Register.open(database, create=False)
    register.settle_pending()
    assert {each.row.new_uid for each in register.records() if each.state == WRITTEN} == arrived
    assert not register.check().problems


def test_a_register_that_is_full_after_a_file_has_its_name_takes_the_file_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = images(tmp_path / "in", 1)
    register = Register.open(tmp_path / "r.db")
    marker = FileMarker(Watermarker.load(), options=EmbedOptions(psnr=40.0), register=register, force=True)
    place = tmp_path / "outgoing" / f"{sha256(path)}.dcm"

    def full(*_: object) -> None:
        raise OutputError("database or disk is full")

    for settled in ([ABSENT], [WRITTEN]):
        with monkeypatch.context() as patch:
            if settled == [ABSENT]:
                patch.setattr(Register, "settle", full)
            outcome = mark(marker, path, place)
        assert outcome.status == (0xA700 if settled == [ABSENT] else 0)
        assert place.exists() == (settled == [WRITTEN])
        register.settle_pending()
        (record,) = register.records()  # and so the identifier is the same
        assert [record.state] == settled
    assert message(place) == record.row.identifier
    assert sha256(place) == record.row.result_sha256
    place.unlink()
    assert mark(replace(marker, options=EmbedOptions(psnr=41.0)), path, place).status == 0
    first, second = register.records()
    assert (first, message(place)) == (record, second.row.identifier)
    assert sha256(place) == second.row.result_sha256


def test_tls_on_both_sides(tmp_path: Path, pem: tuple[Path, Path]) -> None:
    certificate, key = pem
    (path,) = images(tmp_path / "in", 1)
    tls: list[str | Path] = ["--tls-cert", certificate, "--tls-key", key, "--tls-ca", certificate, "--forward-tls"]
    both: list[str | Path] = ["+tls", key, certificate, "+cf", certificate]
    with Archive(tmp_path / "archive", *both) as archive, Node(tmp_path, "--forward", archive.target, *tls) as node:
        assert storescu(node.port, path).returncode != 0  # in the clear
        assert storescu(node.port, "+tla", "-ic", path).returncode != 0  # without a certificate
        silent = [socket.create_connection(("127.0.0.1", node.port)) for _ in range(40)]
        assert storescu(node.port, *both, path).returncode == 0
        node.wait("sent")
        assert message(archive.received[0]) == TEXT
        node.wait("rejected", 2 + len(silent))  # one that says nothing is not waited for
        for each in silent:
            each.close()


def test_a_web_service_is_checked_by_the_authorities_that_were_given(
    tmp_path: Path, pem: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Busy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_error(503)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    (path,) = images(tmp_path / "in", 1)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Busy)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*pem)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"https://127.0.0.1:{server.server_address[1]}/dicom-web"
        for authorities, told in ((None, "SSLError"), (pem[0], "answered 503")):
            target = WebTarget(url, authorization="Bearer x", authorities=authorities)
            with pytest.raises(TargetAway, match=told):
                target.send(path)
            target.close()
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", certifi.where())  # which must not take their place
        with pytest.raises(TargetAway, match="answered 503"):
            WebTarget(url, authorities=pem[0]).send(path)
    finally:
        server.shutdown()
        server.server_close()
    with pytest.raises(ConfigurationError, match="certificates"):
        WebTarget(url, authorities=tmp_path)


def test_no_answer_of_the_target_is_lost_when_the_threads_of_the_node_are_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floormark.node.forward.SEND_SECONDS", 20.0)
    busy, (path,) = Event(), images(tmp_path / "in", 1, 16)

    def work() -> None:
        while not busy.is_set():
            sum(range(2000))

    with Archive(tmp_path / "archive", "--ignore") as archive:
        target = StorageTarget.parse(archive.target, ae_title="NODE")
        for _ in range(3):
            Thread(target=work, daemon=True).start()
        try:
            for _ in range(100):
                target.send(path)
        finally:
            busy.set()
        target.close()
        assert archive.requests == 100


def test_what_the_target_does_not_take_is_set_aside(tmp_path: Path) -> None:
    files = images(tmp_path / "in", 2)
    statuses = iter([0xA700, 0xA900, 0xB000, 0x0000])
    seen: list[str] = []

    def store(event: Any) -> int:
        seen.append(str(event.request.AffectedSOPInstanceUID))
        return next(statuses)

    archive = AE("ARCHIVE")
    archive.supported_contexts = StoragePresentationContexts  # uncompressed alone
    server: Any = archive.start_server(("127.0.0.1", 0), block=False, evt_handlers=[(evt.EVT_C_STORE, store)])
    jpeg = real("MR_small_jp2klossless.dcm")
    assert pydicom.dcmread(jpeg).file_meta.TransferSyntaxUID == JPEG2000Lossless
    try:
        target = f"ARCHIVE@127.0.0.1:{server.server_address[1]}"
        with Node(tmp_path, "--forward", target, "--on-refusal", "forward") as node:
            assert storescu(node.port, files[0]).returncode == 0
            (failed,) = node.wait("failed")  # tried again after A700
            assert len(node.events("away")) == 1
            assert "A900" in failed["reason"]
            aside = node.queue / "failed" / f"{failed['id']}.dcm"
            assert message(aside) == TEXT
            assert storescu(node.port, files[1]).returncode == 0  # stored with a warning
            node.wait("sent")
            assert storescu(node.port, "-xv", jpeg).returncode == 0
            assert "JPEG 2000" in node.wait("failed", 2)[1]["reason"]
            aside.rename(node.queue / "outgoing" / aside.name)  # by hand
            node.wait("sent", 2)
    finally:
        server.shutdown()
    assert seen[0] == seen[1] == seen[3] != seen[2]


@needs("Orthanc")
def test_orthanc_on_both_sides(tmp_path: Path) -> None:
    files = images(tmp_path / "in", 3)
    port = free_port()
    node_entry = {"node": {"AET": "FLOORMARK", "Host": "127.0.0.1", "Port": port}}
    with (
        Orthanc(tmp_path / "sender", modalities=node_entry) as sender,
        Orthanc(tmp_path / "archive") as archive,
        Node(tmp_path, "--forward", archive.target, port=port) as node,
    ):
        sender.rest("/modalities/node/echo", {})
        each = [sender.rest("/instances", path.read_bytes())["ID"] for path in files]
        for identifier in each[:2]:
            sender.rest("/modalities/node/store", identifier)
        node.wait("sent", 2)
        node.end()
        # The last one to the DICOMweb plug-in.
        with Node(tmp_path, "--stow", archive.web, port=port) as web:
            sender.rest("/modalities/node/store", each[2])
            web.wait("sent")
            archive.end()
            extra = images(tmp_path / "more", 4)[3]
            assert storescu(web.port, extra).returncode == 0
            web.wait("away")
            assert web.end() == 0
        with Orthanc(tmp_path / "archive2") as second, Node(tmp_path, "--stow", second.web) as web:
            web.wait("sent")
            assert sources(second.fetch(tmp_path / "second")) == uids([extra])
    assert answers(port) is False


@pytest.mark.parametrize(
    ("arguments", "token"),
    [
        ([], "--forward"),
        (["--forward", "A@b:1", "--stow", "http://x"], "--stow"),
        (["--forward", "A@b:1"], "--queue"),
        (["--forward", "b:1", "--queue", "q"], "AET@host:port"),
        (["--forward", "A@b:99999", "--queue", "q"], "65535"),
        (["--forward", "A@b:1", "--queue", "q", "--port", "-1"], "65535"),
        (["--forward", "A@b:1", "--queue", "q", "--allow-address", "10.0.0.1/8"], "10.0.0.0/24"),
        (["--forward", "A@b:1", "--queue", "q", "--queue-limit", "none"], "GB"),
        (["--forward", "A@b:1", "--queue", "q", "--tls-key", "k"], "--tls-cert"),
        (["--forward", "A@b:1", "--queue", "q", "--tls-cert", "missing"], "PEM"),
        (["--forward", "A@b:1", "--queue", "q", "--tls-cert", __file__], "private key"),
        (["--forward", "A@b:1", "--queue", "q", "--tls-ca", "ca"], "--tls-cert"),
        (["--forward", "A@b:1", "--queue", "q", "--register", "."], "folder"),
        (["--forward", "A@b:1", "--queue", "q", "--ae-title", "longer than sixteen"], "16"),
        (["--stow", "nonsense", "--queue", "q"], "URL"),
        (["--forward", "A@b:1", "--queue", "q", "--text", "x", "--hex", "00"], "--text"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], token: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = arguments if "--text" in arguments else [*arguments, "--text", TEXT]
    assert cli.main(["node", *given]) == 2
    assert token in capsys.readouterr().err


def test_a_register_gives_an_image_that_comes_again_the_same_identifier(tmp_path: Path) -> None:
    (path,) = images(tmp_path / "in", 1)
    database = tmp_path / "register.db"
    with (
        Archive(tmp_path / "archive") as archive,
        Node(tmp_path, "--forward", archive.target, "--register", database) as node,
    ):
        for count in (1, 2):
            assert storescu(node.port, path).returncode == 0
            node.wait("sent", count)
        assert node.end() == 0
        (arrived,) = archive.received
        register = Register.open(database, create=False)
        (record,) = register.records()
        assert (record.state, record.row.owner) == ("written", TEXT)
        assert record.row.new_uid == pydicom.dcmread(arrived).SOPInstanceUID
        assert message(arrived) == record.row.identifier
        assert not register.check().problems


@needs("Orthanc")
def test_orthanc_marks_what_it_receives_by_the_script(tmp_path: Path) -> None:
    first, second = images(tmp_path / "in", 2)
    refused = make(tmp_path / "flat.dcm", np.full((40, 40), 7, np.uint8), PatientID="1", **dict.fromkeys(STUDY, "1.2"))
    script = Path(__file__).parents[2] / "examples" / "orthanc" / "mark_received.py"
    settings: dict[str, Any] = {"FLOORMARK_TEXT": TEXT, "FLOORMARK_PSNR": "40", "PYTHONPATH": os.pathsep.join(sys.path)}
    with Orthanc(tmp_path / "discards", script=script, **settings, FLOORMARK_ON_REFUSAL="discard") as orthanc:
        assert storescu(orthanc.port, first, called="ORTHANC").returncode == 0
        storescu(orthanc.port, first, called="ORTHANC")
        orthanc.rest("/instances", second.read_bytes())
        storescu(orthanc.port, refused, called="ORTHANC")
        files = orthanc.fetch(tmp_path / "stored")
        assert sources(files) == uids([first, second])  # the same instance when it comes again
        assert [message(path) for path in files] == [TEXT, TEXT]
        assert "not marked" in orthanc.log.read_text()
    with Orthanc(tmp_path / "keeps", script=script, **settings) as orthanc:
        assert storescu(orthanc.port, refused, called="ORTHANC").returncode == 0
        assert uids(orthanc.fetch(tmp_path / "kept")) == uids([refused])
