"""A script for Orthanc's Python plug-in: every image that Orthanc receives is stored marked.

Orthanc's configuration names it, and its environment says what is to be done::

    "Plugins": ["/usr/share/orthanc/plugins/libOrthancPython.so"],
    "PythonScript": "/etc/orthanc/mark_received.py"

    FLOORMARK_TEXT="St. Elsewhere"      # the message, needed
    FLOORMARK_PSNR=45                   # the floor in dB
    FLOORMARK_ON_REFUSAL=reject         # or keep: store what cannot be marked as it is

The plug-in is under the AGPL; this script and floormark are not part of it. floormark must be installed for the Python
that the plug-in was built with, for example in an environment that PYTHONPATH names.
"""

import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import orthanc  # given by the plug-in

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
KEEP_UNMARKED = os.environ.get("FLOORMARK_ON_REFUSAL", "reject") == "keep"
ONE_AT_A_TIME = threading.Lock()  # Orthanc calls from several threads; a large image takes much memory


def mark_received(content: bytes, origin: Any) -> tuple[Any, bytes | None]:
    """What Orthanc stores instead of a file that it has received."""
    with ONE_AT_A_TIME, tempfile.TemporaryDirectory() as folder:
        received, marked = Path(folder) / "received.dcm", Path(folder) / "marked.dcm"
        received.write_bytes(content)
        try:
            MARKER.mark_file(received, marked)
        except FloormarkError as error:
            orthanc.LogWarning(f"not marked: {str(error).removeprefix(f'{received}: ')}")
            action = orthanc.ReceivedInstanceAction
            return (action.KEEP_AS_IS if KEEP_UNMARKED else action.DISCARD), None
        return orthanc.ReceivedInstanceAction.MODIFY, marked.read_bytes()


orthanc.RegisterReceivedInstanceCallback(mark_received)
