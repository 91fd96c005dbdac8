"""The sending side: what is in the queue goes to the target, by C-STORE or by STOW-RS, and then out of the queue."""

from __future__ import annotations

import socket
import ssl
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Condition, Event, current_thread
from typing import TYPE_CHECKING, Any

from pydicom import dcmread
from pydicom.dataset import FileMetaDataset
from pydicom.errors import InvalidDicomError
from pydicom.filereader import read_file_meta_info
from pydicom.uid import DeflatedExplicitVRLittleEndian, ExplicitVRLittleEndian, ImplicitVRLittleEndian
from pynetdicom import AE, _config, build_context, evt
from pynetdicom.association import Association
from pynetdicom.status import code_to_category

from floormark.errors import ConfigurationError, OutputError
from floormark.node.queue import Queue

if TYPE_CHECKING:
    from floormark.node.status import Journal

IDLE_SECONDS = 5.0  # after which an association that nobody uses is released
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # seconds between attempts to reach a target that is away; doubled each time
MAX_CONTEXTS = 60  # kinds of files in one association, each proposed in up to two of its 128 contexts
SEND_SECONDS = 120.0  # that the target may take for one image
TRY_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})  # HTTP: the fault is not the image's


def _without_delay(event: evt.Event) -> None:
    """Let what is sent leave at once, and acknowledge at once what comes: of both TCP makes small packets wait.

    A target that writes its answer in pieces, as dcmtk's, would otherwise cost tens of milliseconds an image.
    """
    connection: Any = event.assoc.dul.socket
    with suppress(AttributeError, OSError):  # it has been closed
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)  # which Linux alone knows, and forgets


WITHOUT_DELAY = ((evt.EVT_CONN_OPEN, _without_delay), (evt.EVT_DATA_SENT, _without_delay))


class _Checkpoint(Event):
    """Where an association's own thread stands while a message is sent, in place of pynetdicom's.

    There it may have been let go by the message before and not have run yet. Then it takes the target's answer, which
    it drops, and who sends waits for that answer until the target hangs up. So here :meth:`clear` returns when the
    thread stands here again.
    """

    def __init__(self, association: Association) -> None:
        super().__init__()
        self._changed, self._open, self._stands, self._thread = Condition(), True, False, association

    def set(self) -> None:
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def clear(self) -> None:
        with self._changed:
            self._open = False
            while not self._stands and self._thread.is_alive() and self._thread is not current_thread():
                self._changed.wait(1.0)

    def wait(self, timeout: float | None = None) -> bool:
        with self._changed:
            self._stands = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._open)
            self._stands = False
        return True


class TargetAway(Exception):
    """The target cannot be reached, or cannot store anything for now."""


class NotTaken(Exception):
    """The target refuses this image for good."""


class Target(ABC):
    """Where marked images go."""

    @abstractmethod
    def send(self, path: Path) -> None:
        """Have the target store one file, and return when it has.

        Raises:
            TargetAway: to be tried again.
            NotTaken: not to be tried again.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connection that is kept open between images."""


class StorageTarget(Target):
    """A DICOM storage SCP, named ``AET@host:port``."""

    def __init__(self, title: str, host: str, port: int, *, ae_title: str, tls: ssl.SSLContext | None = None) -> None:
        self.title, self.host, self.port, self.tls = title, host, port, tls
        self._ae = AE(ae_title)
        self._ae.dimse_timeout = self._ae.network_timeout = SEND_SECONDS
        self._ae.connection_timeout = self._ae.acse_timeout = LONGEST_WAIT
        self._kinds: dict[tuple[str, str], None] = {}  # of files that the association is for: class and syntax
        self._association: Association | None = None
        _config.STORE_SEND_CHUNKED_DATASET = True  # of the whole process, which is the node's own: files are streamed

    @classmethod
    def parse(cls, text: str, *, ae_title: str, tls: ssl.SSLContext | None = None) -> StorageTarget:
        """Read ``AET@host:port``."""
        title, at, place = text.partition("@")
        host, colon, port = place.rpartition(":")
        if not (at and colon and host and 1 <= len(title.strip()) <= 16 and title.isascii()):
            raise ConfigurationError(f"expected a target as AET@host:port, such as ARCHIVE@10.0.0.5:104, got {text!r}")
        if not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ConfigurationError(f"expected a port from 1 to 65535 in {text!r}")
        return cls(title.strip(), host.strip("[]"), int(port), ae_title=ae_title, tls=tls)

    def __str__(self) -> str:
        return f"{self.title}@{self.host}:{self.port}"

    def send(self, path: Path) -> None:
        meta = read_file_meta_info(path)
        association = self._associated(str(meta.MediaStorageSOPClassUID), str(meta.TransferSyntaxUID))
        try:
            accepted = {
                str(context.transfer_syntax[0])
                for context in association.accepted_contexts
                if context.abstract_syntax == meta.MediaStorageSOPClassUID
            }
            if meta.TransferSyntaxUID in accepted:
                status = association.send_c_store(path)
            elif ImplicitVRLittleEndian in accepted and _convertible(meta):
                status = association.send_c_store(dcmread(path))
            else:
                raise NotTaken(f"{self.title} accepts no {meta.TransferSyntaxUID.name} of this class")
        except RuntimeError as error:  # the association ended meanwhile
            raise TargetAway(f"{self}: {error}") from error
        except (AttributeError, ValueError) as error:
            raise NotTaken(f"cannot be sent ({type(error).__name__})") from error
        if "Status" not in status:
            self.close()
            raise TargetAway(f"{self} gave no answer")
        category = code_to_category(status.Status)
        if category not in ("Success", "Warning"):
            told = f"{self.title} answered {status.Status:04X}"
            raise TargetAway(told) if status.Status & 0xFF00 == 0xA700 else NotTaken(told)

    def _associated(self, sop_class: str, syntax: str) -> Association:
        """An association for files of this kind and those before."""
        if self._association is not None and self._association.is_established and (sop_class, syntax) in self._kinds:
            return self._association
        self.close()
        self._kinds[sop_class, syntax] = None
        if len(self._kinds) > MAX_CONTEXTS:
            self._kinds = {(sop_class, syntax): None}
        contexts = [build_context(*kind) for kind in self._kinds]
        plain = {sop_class for sop_class, _ in self._kinds if (sop_class, ImplicitVRLittleEndian) not in self._kinds}
        contexts += [build_context(each, ImplicitVRLittleEndian) for each in sorted(plain)]
        tls = None if self.tls is None else (self.tls, self.host)
        found = self._ae.associate(
            self.host, self.port, contexts, self.title, max_pdu=0, tls_args=tls, evt_handlers=[*WITHOUT_DELAY]
        )
        if not found.is_established:
            # Rejected for good or not: the target is asked again, as its list of titles may be mended.
            why = "rejected the association" if found.is_rejected else "cannot be reached"
            if found.acceptor.primitive is not None and not found.is_rejected and not found.accepted_contexts:
                raise NotTaken(f"{self.title} accepts none of the proposed contexts")
            raise TargetAway(f"{self} {why}")
        found._reactor_checkpoint = _Checkpoint(found)
        self._association = found
        return found

    def close(self) -> None:
        if self._association is not None and self._association.is_established:
            self._association.release()
        self._association = None


def _convertible(meta: FileMetaDataset) -> bool:
    """Whether pynetdicom writes such a file in implicit VR without touching the pixels."""
    return meta.TransferSyntaxUID in (ExplicitVRLittleEndian, DeflatedExplicitVRLittleEndian)


class WebTarget(Target):
    """A DICOMweb service, by STOW-RS.

    Args:
        url: of the service, such as ``https://archive/dicom-web``.
        authorization: the value of the header of that name, if there is one.
        authorities: a file of those that its certificate must be from; those of the system if not given.
    """

    def __init__(self, url: str, *, authorization: str | None = None, authorities: Path | None = None) -> None:
        from dicomweb_client.api import DICOMwebClient
        from requests import Session

        self.url, session = url, Session()
        self._session = session
        session.trust_env = authorization is None  # else a .netrc would take the place of the header
        if authorities is not None:
            if not authorities.is_file():
                raise ConfigurationError(f"{authorities}: expected a file of certificates, got none")
            # With each request: REQUESTS_CA_BUNDLE would take the place of the session's.
            session.request = partial(session.request, verify=str(authorities))  # type: ignore[method-assign]
        headers = None if authorization is None else {"Authorization": authorization}
        try:
            self._client = DICOMwebClient(url, session, headers=headers, timeout=SEND_SECONDS)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"expected the URL of a DICOMweb service, got {url!r}: {error}") from error
        self._client.set_http_retry_params(retry=False)  # the queue does that

    def __str__(self) -> str:
        return self.url

    def send(self, path: Path) -> None:
        from requests import HTTPError, RequestException

        try:
            answer = self._client.store_instances([dcmread(path)])
        except HTTPError as error:
            code = 0 if error.response is None else error.response.status_code
            told = f"{self.url} answered {code}"
            # Who is not let in is to be let in, not to lose images.
            raise TargetAway(told) if code in TRY_LATER or code in (401, 403, 404) else NotTaken(told) from error
        except RequestException as error:
            raise TargetAway(f"{self.url} cannot be reached ({type(error).__name__})") from error
        if answer.get("FailedSOPSequence"):
            raise NotTaken(f"{self.url} stored none, for the reason {answer.FailedSOPSequence[0].get('FailureReason')}")

    def close(self) -> None:
        self._session.close()


def forward(queue: Queue, target: Target, stop: Event, journal: Journal) -> None:
    """Send what comes into the queue until ``stop`` is set."""
    wait = FIRST_WAIT
    while not stop.is_set():
        files = queue.waiting()
        if not files:
            with queue.changed:
                came = queue.count or queue.changed.wait(IDLE_SECONDS)
            if not came:
                target.close()
            continue
        for path in files:
            if stop.is_set():
                break
            uid = ""
            try:
                uid = str(read_file_meta_info(path).MediaStorageSOPInstanceUID)
                target.send(path)
                queue.sent(path, uid)
                journal.tell("sent", id=path.stem, uid=uid, target=str(target))
            except (TargetAway, OutputError) as error:
                queue.postpone(path)
                event = "away" if isinstance(error, TargetAway) else "held"
                journal.tell(event, target=str(target), reason=str(error), waiting=queue.count, retry_seconds=wait)
                stop.wait(wait)
                wait = min(2 * wait, LONGEST_WAIT)
                break
            except NotTaken as error:
                queue.refused(path)
                journal.tell("failed", id=path.stem, uid=uid, target=str(target), reason=str(error))
            except FileNotFoundError:
                pass  # somebody removed it by hand
            except (InvalidDicomError, OSError) as error:
                queue.refused(path)
                journal.tell("failed", id=path.stem, uid=uid, reason=f"cannot be read ({type(error).__name__})")
            wait = FIRST_WAIT
    with suppress(Exception):  # the target may have gone
        target.close()
