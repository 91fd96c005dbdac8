"""A marker of files, with the options of the embedding given by name beside its own."""

from dataclasses import fields
from typing import Any

from floormark import Watermarker
from floormark.files.marking import FileMarker
from floormark.files.messages import Messages
from floormark.options import EmbedOptions
from floormark.payload import Payload


def marking(marker: Watermarker, message: Payload | Messages, psnr: float, **options: Any) -> FileMarker:
    embedding = {field.name: options.pop(field.name) for field in fields(EmbedOptions) if field.name in options}
    return FileMarker(marker, message, EmbedOptions(psnr=psnr, **embedding), **options)
