"""A separate message for each file: from a table, or from attributes of a DICOM file."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import string
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Self

from floormark.disk import decoding, read_bytes
from floormark.errors import ConfigurationError, DataError, did_you_mean
from floormark.imageio import ImageFile

if TYPE_CHECKING:
    from pydicom import Dataset

COLUMNS = ["file", "text"]
MAX_TABLE = 1 << 27  # bytes
MAX_NAMED = 5  # files that are named in one error


@dataclass(frozen=True)
class MessageTable:
    """A text for each file of a folder."""

    texts: Mapping[str, str]  # by the file's name, relative to the folder

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a CSV file with the columns ``file`` and ``text``, and a header that says so."""
        with decoding(path, "a table of messages"):
            # File names are bytes: those that are not UTF-8 are kept as surrogate escapes, as in Python's paths.
            content = read_bytes(path, largest=MAX_TABLE).decode("utf-8-sig", "surrogateescape")
            rows = csv.reader(io.StringIO(content, newline=""), strict=True)
            if (header := next(rows, [])) != COLUMNS:
                raise ValueError(f"expected {','.join(COLUMNS)} as its first line, got {len(header)} other columns")
            texts: dict[str, str] = {}
            for row in filter(None, rows):
                if len(row) != len(COLUMNS):
                    raise ValueError(f"expected {len(COLUMNS)} entries in line {rows.line_num}, got {len(row)}")
                name = str(PurePath(row[0]))
                if name in texts:
                    raise ValueError(f"expected one row for each file, got one more for {name} in line {rows.line_num}")
                texts[name] = row[1]
        return cls(texts)

    @property
    def identity(self) -> str:
        """A fingerprint of these messages."""
        return hashlib.sha256(json.dumps(sorted(self.texts.items())).encode()).hexdigest()

    def text(self, image: ImageFile, name: str) -> str:
        """The text for an image, by its name relative to the folder."""
        if name not in self.texts:
            raise DataError(f"expected a row for {name} in the table of messages, got none")
        return self.texts[name]

    def check_files(self, names: Collection[str]) -> None:
        """Refuse a table that is not for these files."""
        missing, unknown = [name for name in names if name not in self.texts], sorted(set(self.texts) - set(names))
        told = [f"no row for {_some(missing)}"] if missing else []
        told += [f"rows for {_some(unknown)}, which are no images of the folder"] if unknown else []
        if told:
            raise ConfigurationError(f"expected one row in the table of messages for each image, got {'; '.join(told)}")


@dataclass(frozen=True)
class MessageTemplate:
    """A text with DICOM keywords in braces, such as ``{PatientID}``, which the file's values replace."""

    template: str

    def __post_init__(self) -> None:
        from pydicom.datadict import dictionary_keyword, keyword_dict, tag_for_keyword

        example = "expected DICOM keywords in braces, such as {PatientID}"
        try:
            parts = list(string.Formatter().parse(self.template))
        except ValueError as error:
            raise ConfigurationError(f"{example}, got {self.template!r}: {error}") from error
        keywords = [keyword for _, keyword, *_ in parts if keyword is not None]
        if not keywords or not all(keywords) or any(form or conversion for *_, form, conversion in parts):
            raise ConfigurationError(f"{example}, and other text, got {self.template!r}")
        for keyword in keywords:
            tag = tag_for_keyword(keyword)
            if tag is None or dictionary_keyword(tag) != keyword:
                raise ConfigurationError(f"{example}, got {keyword!r}.{did_you_mean(keyword, list(keyword_dict))}")

    @property
    def identity(self) -> str:
        """The template itself."""
        return self.template

    def text(self, image: ImageFile, name: str) -> str:
        """The text for an image, whatever its name; an error does not repeat values of the file."""
        if image.format.name != "dicom":
            raise DataError("expected a DICOM file, as the message comes from its attributes")
        from pydicom import dcmread

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings may name the patient
            said = dcmread(io.BytesIO(image.kept), stop_before_pixels=True)
            parts = string.Formatter().parse(self.template)
            texts = (text + (_shown(said, keyword) if keyword else "") for text, keyword, *_ in parts)
            return "".join(texts)


Messages = MessageTable | MessageTemplate  # they differ from file to file


def _shown(said: Dataset, keyword: str) -> str:
    """A value as text, or an error that does not show it."""
    from pydicom.multival import MultiValue
    from pydicom.sequence import Sequence

    try:
        value = said.get(keyword)
        several = value if isinstance(value, MultiValue) else [value]
        text = "\\".join(str(each).strip() for each in several if each is not None)
    except Exception as error:  # pydicom raises errors of any kind, and repeats the value
        raise DataError(f"expected a valid {keyword} for the message, got a bad one ({type(error).__name__})") from None
    if isinstance(value, bytes | Sequence):
        raise DataError(f"expected a text or a number as {keyword} for the message, got something else")
    if not text:
        raise DataError(f"expected a value of {keyword} for the message, got none")
    return text


def _some(names: list[str]) -> str:
    return ", ".join(names[:MAX_NAMED]) + (f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else "")
