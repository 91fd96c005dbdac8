"""A script for Orthanc's Python plug-in: every image that Orthanc receives is stored marked.

Orthanc's configuration names it, and its environment says what is to be done::

    "Plugins": ["/usr/share/orthanc/plugins/libOrthancPython.so"],
    "PythonScript": "/etc/orthanc/mark_received.py"

    FLOORMARK_TEXT="St. Elsewhere"      # the message, needed
    FLOORMARK_PSNR=45                   # the floor in dB
    FLOORMARK_ON_REFUSAL=keep           # store what cannot be marked as it is; or discard it, see below

Orthanc answers with success what a script discards: the sender believes that the image is stored. Where that must not
be, let ``floormark node`` stand before Orthanc.

The plug-in is under the AGPL; this script and floormark are not part of it. floormark must be installed for the Python
that the plug-in was built with, in an environment whose site-packages PYTHONPATH names.
"""

import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import orthanc  # given by the plug-in

# ruff: noqa: E402
# Debian's own packages do not fit beside the newer ones of the environment, which import them where they find them.
sys.path[:] = [folder for folder in sys.path if not folder.endswith("dist-packages")]

import floormark.imageio.dicom  # noqa: F401 - what is missing is found out now, and not with the first image
from floormark import Watermarker
from floormark.errors import FloormarkError
from floormark.files.marking import FileMarker
from floormark.options import EmbedOptions
from floormark.payload import Payload

MARKER = FileMarker(
    Watermarker.load(),
    Payload.from_text(os.environ["FLOORMARK_TEXT"]),
    EmbedOptions(psnr=float(os.environ.get("FLOORMARK_PSNR", "45"))),
)
REFUSED = {"keep": orthanc.ReceivedInstanceAction.KEEP_AS_IS, "discard": orthanc.ReceivedInstanceAction.DISCARD}[
    os.environ.get("FLOORMARK_ON_REFUSAL", "keep")
]
ONE_AT_A_TIME = threading.Lock()  # Orthanc calls from several threads; a large image takes much memory


def mark_received(content: bytes, origin: Any) -> tuple[Any, bytes | None]:
    """What Orthanc stores instead of a file that it has received."""
    try:
        with ONE_AT_A_TIME, tempfile.TemporaryDirectory() as folder:
            received, marked = Path(folder) / "received.dcm", Path(folder) / "marked.dcm"
            received.write_bytes(content)
            MARKER.mark_file(received, marked)
            return orthanc.ReceivedInstanceAction.MODIFY, marked.read_bytes()
    except FloormarkError as error:
        reason = str(error)
        orthanc.LogWarning(f"not marked: {reason.partition('received.dcm: ')[2] or reason}")
    except Exception as error:  # Orthanc would store the image, whatever was asked for
        orthanc.LogError(f"not marked: {type(error).__name__}: {error}")
    return REFUSED, None


orthanc.RegisterReceivedInstanceCallback(mark_received)
