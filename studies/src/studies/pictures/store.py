"""Prepared pictures on disk, memory-mapped, and the data sets that are parts of them."""

import hashlib
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from samplewise.errors import CheckpointError, DataError
from samplewise.storage import decoding, from_plain, read_json, write_json
from studies.pictures.listing import PATHOLOGIES
from studies.pictures.split import Split

FORMAT = "samplewise-pictures-2"
INDEX, IMAGES, SPLIT = "index.json", "images.u8", "split.json"
"""The index is written last: without it, a store is unfinished."""


def content_of(pixels: NDArray[np.uint8]) -> str:
    """A short hash of the pixels of one picture, ``(H, W)``."""
    return hashlib.blake2b(np.ascontiguousarray(pixels).data, digest_size=8).hexdigest()


@dataclass(frozen=True, eq=False)
class Store:
    """Pictures of one size, ready to train on; made by :func:`prepare` and opened by :meth:`open`."""

    folder: Path
    size: int
    """Height and width of every picture."""
    fingerprint: str
    """Of the listing that it was made from."""
    names: tuple[str, ...]
    patients: tuple[str, ...]
    contents: tuple[str, ...]
    """:func:`content_of` each picture: it is the same for copies under other names and in other lossless formats."""
    findings: tuple[tuple[str, ...], ...] | None
    """By picture, of :data:`PATHOLOGIES`; None for pictures without labels."""
    bad: Mapping[str, str]
    """The pictures that were skipped, and why."""
    converted: Mapping[str, int]
    """Number of files of each kind other than 8-bit grey, which were turned into it."""
    versions: Mapping[str, str]

    def write_index(self) -> None:
        """Write all but the pixels as JSON, whole or not at all: with this file a store is complete."""
        stored = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "folder"}
        if self.findings is not None:
            stored["findings"] = ["|".join(names) for names in self.findings]
        write_json(self.folder / INDEX, {"format": FORMAT, **stored})

    @classmethod
    def open(cls, folder: Path | str) -> Self:
        """Open the store in ``folder``, or say that there is none, or that it is unfinished, damaged or foreign."""
        folder = Path(folder)
        path = folder / INDEX
        if not path.exists():
            if (folder / IMAGES).exists():
                raise CheckpointError(f"{folder}: the store is unfinished; prepare it again")
            raise DataError(f"{folder}: is not a store of pictures ({INDEX} is missing); prepare one first")
        stored = read_json(path, "a store", format=FORMAT)
        with decoding(path, "a store"):
            if (cells := stored["findings"]) is not None:
                stored["findings"] = [cell.split("|") if cell else [] for cell in cells]
            store = from_plain(cls, stored, folder=folder)
            labels = store.names if cells is None else cells
            columns = (store.names, set(store.names), store.patients, store.contents, labels)
            if len(set(map(len, columns))) > 1 or store.size < 1:
                raise ValueError("its parts do not belong together")
            if unknown := {name for names in store.findings or () for name in names} - set(PATHOLOGIES):
                raise ValueError(f"unknown labels {sorted(unknown)}")
        pixels, shape = folder / IMAGES, (len(store), store.size, store.size)
        with decoding(pixels, "the pixels of a store"):
            length = pixels.stat().st_size
        if length != math.prod(shape):
            raise CheckpointError(
                f"{pixels}: expected {' x '.join(map(str, shape))} bytes, got {length}; prepare the store anew"
            )
        return store

    @cached_property
    def images(self) -> NDArray[np.uint8]:
        """The pixels, uint8 of shape ``(N, H, W)``, mapped and not read."""
        return np.memmap(self.folder / IMAGES, np.uint8, "r", shape=(len(self), self.size, self.size))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).open, (self.folder,)  # another process maps the file itself; pixels are never sent

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def labels(self) -> NDArray[np.uint8]:
        """Zeros and ones of shape ``(N, 14)``."""
        if self.findings is None:
            raise DataError(f"{self.folder}: its pictures have no labels; prepare it with studies chest prepare")
        return np.array([[name in names for name in PATHOLOGIES] for names in self.findings], np.uint8)

    @cached_property
    def split(self) -> Split:
        """The split that was made with the store."""
        path = self.folder / SPLIT
        if not path.exists():
            raise DataError(f"{self.folder}: has no split, since it needs different pictures of 3 patients or more")
        return Split.read(path, self.names, self.patients)

    def select(self, part: str | None = None) -> "PictureData":
        """The pictures of one part of the store's split, or all, as a data set."""
        names = self.names if part is None else self.split.part(part)
        rows = {name: row for row, name in enumerate(self.names)}
        return PictureData(self, [rows[name] for name in names])


class PictureData(Dataset[tuple[Tensor, Tensor]]):
    """The pictures ``rows`` of a store as batches; satisfies :class:`samplewise.samples.BatchedDataset`.

    A sample is ``(image, number)``: float32 in [0, 1] of shape ``(1, H, W)``, and the picture's row in the store, which
    stays the same in every part and every run.
    """

    def __init__(self, store: Store, rows: Sequence[int]) -> None:
        self.store = store
        self.rows = torch.as_tensor(rows, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The samples ``index``, shape ``(B,)``, as images ``(B, 1, H, W)`` and numbers ``(B,)`` of int64."""
        numbers = self.rows[index]
        pixels = torch.from_numpy(self.store.images[numbers.numpy()])
        return pixels.unsqueeze(1).to(torch.float32).div_(255.0), numbers

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        images, numbers = self.take(torch.tensor([operator.index(index)]))
        return images[0], numbers[0]

    def spread(self, count: int | None) -> "PictureData":
        """``count`` of the pictures, evenly over all, so that not all are of a few patients; all if None or fewer."""
        return PictureData(self.store, self.rows[self.spread_places(count)].tolist())

    def spread_places(self, count: int | None) -> Tensor:
        """The places of the pictures that :meth:`spread` takes."""
        chosen = len(self) if count is None else min(count, len(self))
        return torch.arange(chosen) * len(self) // max(1, chosen)

    def _column(self, values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(values[row] for row in self.rows.tolist())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of these pictures."""
        return self._column(self.store.names)

    @property
    def patients(self) -> tuple[str, ...]:
        """The patient of each of these pictures."""
        return self._column(self.store.patients)

    @property
    def contents(self) -> tuple[str, ...]:
        """:func:`content_of` each of these pictures."""
        return self._column(self.store.contents)

    @property
    def labels(self) -> NDArray[np.uint8]:
        """Zeros and ones of shape ``(n, 14)``."""
        return cast(NDArray[np.uint8], self.store.labels[self.rows.numpy()])


@dataclass(frozen=True)
class Seen:
    """The pictures that a model was trained on, known by content and patient, whatever their file and name."""

    contents: tuple[str, ...]
    """At the size that the model saw them in."""
    patients: tuple[str, ...]
    """Patients, where they are known."""

    @classmethod
    def of(cls, data: PictureData) -> Self:
        """All pictures of ``data``."""
        known = {patient for patient, name in zip(data.patients, data.names, strict=True) if patient != name}
        return cls(tuple(sorted(set(data.contents))), tuple(sorted(known)))

    def __or__(self, other: "Seen") -> "Seen":
        both = ((*self.contents, *other.contents), (*self.patients, *other.patients))
        return Seen(*(tuple(sorted(set(each))) for each in both))

    def among(self, data: PictureData) -> NDArray[np.bool_]:
        """A mask of the pictures of ``data`` that are among them, or of one of their patients, ``(n,)``.

        A patient with one picture that was seen under another name is one of theirs.
        """
        contents = set(self.contents)
        found = [each in contents for each in data.contents]
        patients = {*self.patients, *(patient for patient, there in zip(data.patients, found, strict=True) if there)}
        return np.array([patient in patients for patient in data.patients], np.bool_)
