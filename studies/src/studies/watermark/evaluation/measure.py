"""Every image of a data set marked by a network's own residual, written, attacked and read, as the paper does it."""

from __future__ import annotations

import csv
import math
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from floormark.fidelity import Fidelity, fidelity
from floormark.imageio import StoredImage
from samplewise.errors import ConfigurationError, DataError, NotFiniteError, OutputError
from samplewise.measures import bit_error, psnr
from samplewise.problem import evaluation_mode
from samplewise.samples import mix
from samplewise.storage import atomic, decoding, ensure_writable
from studies.pictures import PictureData
from studies.watermark.networks import Network
from studies.watermark.noise import Chain
from studies.watermark.operators import FileKind, Pixels, as_images, as_pixels
from studies.watermark.pipeline import fixed_messages

Column = NDArray[np.float64]
"""A number for each image, ``(N,)``."""
Flags = NDArray[np.bool_]
ABOUT_COLUMNS = ("name", "patient", "number", "trained_on")
"""Columns of the table of images before those of numbers."""
REPRESENTATIONS = {"grey": "grey file", "rgb": "RGB file", "float": "floats, as in the paper"}
"""Representations of a marked image, and their names in figures and pages."""
EQUAL_PSNR = 120.0  # dB that stand for an image equal to its cover
Marked = tuple[Tensor, Tensor, Tensor]
"""Covers ``(B, C, H, W)`` as the network takes them, messages ``(B, L)``, and images with them, neither clamped nor
rounded."""
OnProgress = Callable[[int, int], None]
"""Called with how many images are done, and how many there are."""


@dataclass(frozen=True, eq=False)
class Measured:
    """Measurements of every image, in columns.

    A marked image has up to three representations: the ``grey`` file; the ``rgb`` file of a network with 3 channels;
    ``float``, the paper's, which is no file: all channels as the network gives them, neither clamped nor rounded.
    """

    bits: int
    names: tuple[str, ...]
    patients: tuple[str, ...]
    numbers: NDArray[np.int64]
    """The images' rows in their store."""
    columns: Mapping[str, Column]
    """Numbers by representation and measure, such as ``grey/psnr``.

    psnr (dB) and bit_error; of files also ssim, max_difference (grey levels), changed (fraction of the pixels), and
    after an attack ``grey/jpeg(75) bit_error``, NaN for images that were not attacked. Of files that the tool wrote
    also floor_kept (dB, that image and patches keep) and, beside each bit_error, message: 1 where it was read exactly.
    """
    trained_on: Flags | None = None
    """A mask of the images that the network was trained on, ``(N,)``; none of them if None."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def fresh(self) -> Flags:
        """A mask of the images that the network was not trained on, ``(N,)``."""
        return np.ones(len(self), np.bool_) if self.trained_on is None else ~self.trained_on

    @property
    def representations(self) -> tuple[str, ...]:
        """Those of the marked images, files first."""
        return tuple(dict.fromkeys(key.partition("/")[0] for key in self.columns))

    @property
    def attacks(self) -> list[tuple[str, str]]:
        """Representations and attacks after which messages were read."""
        found = [key.removesuffix(" bit_error").partition("/") for key in self.columns if key.endswith(" bit_error")]
        return [(representation, attack) for representation, _, attack in found]

    def reading(self, representation: str, attack: str = "") -> tuple[Column, Flags, Flags]:
        """Bit error of the images that were read, whether the message was right, and which of all images they are."""
        key = f"{representation}/{attack} " if attack else f"{representation}/"
        errors = self.columns[f"{key}bit_error"]
        read, right = ~np.isnan(errors), self.columns.get(f"{key}message", errors == 0)
        return errors[read], right[read] > 0, read

    def write(self, path: Path) -> None:
        """Write a table with a row for each image."""
        with atomic(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([*ABOUT_COLUMNS, *self.columns])
            values = np.stack(list(self.columns.values()), axis=1)
            for place, name in enumerate(self.names):
                numbers = [None if np.isnan(value) else float(value) for value in values[place]]
                trained = int(not self.fresh[place])
                writer.writerow([name, self.patients[place], int(self.numbers[place]), trained, *numbers])

    @classmethod
    def read(cls, path: Path, bits: int) -> Self:
        """Read what :meth:`write` wrote of messages of that length."""
        with decoding(path, "a list of evaluated images"):
            with path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            names, patients, numbers = ([row[key] for row in rows] for key in ABOUT_COLUMNS[:3])
            columns = {
                key: np.array([float(row[key] or "nan") for row in rows]) for key in rows[0] if key not in ABOUT_COLUMNS
            }
            trained = np.array([row.get(ABOUT_COLUMNS[3]) == "1" for row in rows], np.bool_)  # older tables do not say
            about = tuple(names), tuple(patients), np.array([int(each) for each in numbers])
            return cls(bits, *about, columns, trained)


def measure(
    network: Network,
    data: PictureData,
    *,
    attacks: Sequence[Chain] = (),
    attack_images: int | None = None,
    seed: int = 0,
    batch_size: int = 16,
    workers: int | None = None,
    keep: Path | None = None,
    watch: OnProgress | None = None,
) -> Measured:
    """Hide each image's own message in it, write the file, and measure what is read from it.

    Only numbers are kept for each image, so memory does not grow with the pictures.

    Args:
        network: on any device; it is used in eval mode and left as it was.
        data: grey pictures of the network's size.
        attacks: what is done to the files, one at a time; none may be geometric.
        attack_images: how many of the images are attacked, evenly over all; all if None.
        seed: of the attacks' randomness, which differs by image and attack and not by batch.
        batch_size: images in a batch; it changes only speed and memory.
        workers: threads that write, read and attack files; one for each core if not given.
        keep: a folder where the files stay, below ``grey`` and ``rgb``; they are deleted if not given.
        watch: called as the work goes.
    """
    if data.store.size != network.size:
        raise DataError(f"expected pictures of size {network.size}, as the network's, got {data.store.size}")
    if not len(data) or batch_size < 1:
        raise ConfigurationError(f"expected images and a batch size, got {len(data)} and {batch_size}")
    check_in_place(attacks)
    names, device = data.names, next(network.parameters()).device
    attacked = to_attack(data, attack_images)
    kinds: tuple[FileKind, ...] = ("grey", "rgb") if network.channels == 3 else ("grey",)
    found: defaultdict[str, list[Column]] = defaultdict(list)

    def errors(images: Tensor, messages: Tensor) -> Column:
        return _column(bit_error(network.extract(images), messages))

    def file_errors(pixels: Pixels, messages: Tensor) -> Column:
        return errors(as_images(pixels, channels=network.channels, device=device), messages)

    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(workers or os.cpu_count()))
        stack.enter_context(evaluation_mode(network))
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="studies-")) if keep is None else keep)
        ensure_writable(folder)
        trip = partial(round_trip, keep=keep is not None)
        for index in torch.arange(len(data)).split(batch_size):
            images, numbers = data.take(index)
            covers, messages, marked = mark(network, images.to(device), numbers.to(device))
            files, chosen = [file_name(names[i]) for i in index.tolist()], attacked[index.numpy()]
            for kind in kinds:
                before = as_pixels(covers, kind)
                paths = [folder / kind / name for name in files]
                read = np.stack(list(pool.map(trip, paths, as_pixels(marked, kind))))
                near = list(pool.map(fidelity, (StoredImage(one, 8) for one in before), read))
                for name in QUALITY:
                    found[f"{kind}/{name}"].append(np.array([quality(one)[name] for one in near], np.float64))
                found[f"{kind}/bit_error"].append(file_errors(read, messages))
                for attack in attacks:
                    after = np.full(len(read), np.nan)
                    if chosen.any():
                        rngs = [np.random.default_rng(mix(seed, str(attack), n)) for n in numbers[chosen].tolist()]
                        hit = np.stack(list(pool.map(attack, read[chosen], rngs, before[chosen])))
                        after[chosen] = file_errors(hit, messages[chosen])
                    found[f"{kind}/{attack} bit_error"].append(after)
            found["float/psnr"].append(_column(psnr(marked, covers)))
            found["float/bit_error"].append(errors(marked, messages))
            if watch is not None:
                watch(int(index[-1]) + 1, len(data))
    whole = {key: np.concatenate(values) for key, values in found.items()}
    return Measured(network.bits, names, data.patients, data.rows.numpy(), whole)


def check_in_place(attacks: Sequence[Chain]) -> None:
    """Refuse geometric attacks: a network by itself does not register the image."""
    if geometric := [str(attack) for attack in attacks if attack.geometric]:
        raise ConfigurationError(
            f"expected attacks that leave size and orientation as they are, got {geometric[0]!r}: only the whole tool "
            "registers an image, a network by itself does not; leave this attack out"
        )


def mark(network: Network, images: Tensor, numbers: Tensor) -> Marked:
    """Hide in grey images ``(B, 1, H, W)`` the messages of their numbers ``(B,)``, without a gradient."""
    messages = fixed_messages(numbers, network.bits)
    covers = images.expand(-1, network.channels, -1, -1)
    with torch.no_grad():
        marked = network.embed(covers, messages)
    finite = marked.isfinite().flatten(1).all(1)
    if not finite.all():
        rows = numbers[~finite].tolist()
        raise NotFiniteError(f"the network gives values that are not finite for images {rows}: its training diverged")
    return covers, messages, marked


QUALITY = ("psnr", "ssim", "max_difference", "changed")


def quality(one: Fidelity) -> dict[str, float]:
    """The columns of a file's quality; NaN where one is not defined."""
    psnr = EQUAL_PSNR if one.psnr is None else min(one.psnr, EQUAL_PSNR)
    ssim = math.nan if one.ssim is None else one.ssim
    return dict(zip(QUALITY, (psnr, ssim, float(one.max_difference), one.changed_share), strict=True))


def to_attack(data: PictureData, count: int | None) -> Flags:
    """A mask of the images that are attacked, ``(n,)``; names that would be one file are refused."""
    if len({file_name(name) for name in data.names}) < len(data):
        raise DataError("two images would become the same PNG file; give them names that differ before the suffix")
    attacked = np.zeros(len(data), np.bool_)
    attacked[data.spread_places(count).numpy()] = True
    return attacked


def file_name(name: str) -> str:
    """The name under which a picture's marked PNG is kept."""
    return name if name.lower().endswith(".png") else f"{name}.png"


def round_trip(path: Path, pixels: Pixels, *, keep: bool) -> Pixels:
    """The pixels read from a PNG file that was really written, so that the measurement is of what a user gets."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
        with Image.open(path) as picture:
            read = np.asarray(picture)
        if not keep:
            path.unlink()
    except OSError as error:
        raise OutputError(f"{path}: cannot be written and read back: {error.strerror or error}") from error
    return read


def _column(values: Tensor) -> Column:
    return values.double().cpu().numpy()
