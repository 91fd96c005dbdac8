"""Which message ``watermark embed`` hides: one for all files, or one for each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samplewise.errors import ConfigurationError

if TYPE_CHECKING:
    from floormark.files.messages import Messages
    from floormark.payload import Payload

MessagesOption = Annotated[
    Path | None,
    typer.Option("--messages", help="A message for each file of a folder: CSV with a header, file,text."),
]
MessageFromOption = Annotated[
    str | None,
    typer.Option("--message-from", help="Message from each DICOM file's own attributes, such as '{PatientID}'."),
]


def chosen_message(
    source: Path,
    text: str | None,
    hexadecimal: str | None,
    bits: str | None,
    messages: Path | None,
    message_from: str | None,
) -> Payload | Messages:
    """The one that the options of ``embed`` name."""
    from floormark.files.messages import MessageTable, MessageTemplate
    from floormark.payload import Payload

    given = [each for each in (text, hexadecimal, bits, messages, message_from) if each is not None]
    if len(given) != 1:
        raise ConfigurationError(
            "expected one of --text, --hex, --bits, --messages and --message-from as the message, "
            f"got {len(given)} of them"
        )
    if messages is not None:
        if not source.is_dir():
            raise ConfigurationError("--messages is for folders; give a single image its message with --text")
        return MessageTable.read(messages)
    if message_from is not None:
        return MessageTemplate(message_from)
    makers = ((text, Payload.from_text), (hexadecimal, Payload.from_hex), (bits, Payload.from_bits))
    return next(make(value) for value, make in makers if value is not None)
