"""Every image of a data set marked, written, attacked and read, by any watermarking network."""

from __future__ import annotations

import csv
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samplewise.data.pictures import PictureData
from samplewise.disk import atomic, ensure_writable
from samplewise.errors import ConfigurationError, DataError, MissingPackageError, NotFiniteError, OutputError, install
from samplewise.measures import SSIM_WINDOW, bit_error, max_difference, psnr, ssim
from samplewise.problem import evaluation_mode
from samplewise.samples import mix
from samplewise.watermark.attacks import Attack
from samplewise.watermark.messages import fixed_messages
from samplewise.watermark.networks import Network
from samplewise.watermark.pipeline import LEVELS

__all__ = ["Column", "Measured", "Pixels", "Watch", "as_images", "as_pixels", "mark", "measure"]

Column = NDArray[np.float64]
"""A number for each image, ``(N,)``."""
Pixels: TypeAlias = NDArray[np.uint8]
"""Images as files hold them, ``(B, H, W)`` or ``(B, H, W, 3)``."""
FileKind = Literal["grey", "rgb"]
Marked = tuple[Tensor, Tensor, Tensor]
"""Covers ``(B, C, H, W)`` as the network takes them, messages ``(B, L)``, and images with them, neither clamped nor
rounded."""
Watch = Callable[[int, int], None]
"""Called with how many images are done, and how many there are."""


@dataclass(frozen=True, eq=False)
class Measured:
    """What was measured on every image, in columns.

    There are up to three ways to take a marked image: the ``grey`` file, the ``rgb`` file of a network with three
    channels, and ``float``, the paper's, which is no file: all channels as the network gives them, neither clamped nor
    rounded.
    """

    bits: int
    names: tuple[str, ...]
    patients: tuple[str, ...]
    numbers: NDArray[np.int64]
    """The images' rows in their store."""
    columns: Mapping[str, Column]
    """By way and measure, such as ``grey/psnr``: psnr (dB), bit_error; of files also ssim, max_difference (grey
    levels), changed (share of the pixels), and after an attack ``grey/jpeg(75) bit_error``, NaN for images that were
    not attacked."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def ways(self) -> tuple[str, ...]:
        """How images were taken, files first."""
        return tuple(dict.fromkeys(key.partition("/")[0] for key in self.columns))

    @property
    def attacks(self) -> dict[tuple[str, str], Column]:
        """Bit error of the images that were attacked, by way and attack."""
        found = {key.partition("/")[::2]: values for key, values in self.columns.items() if key.endswith(" bit_error")}
        return {(way, name.removesuffix(" bit_error")): v[~np.isnan(v)] for (way, name), v in found.items()}

    def write(self, path: Path) -> None:
        """Write a table with a row for each image."""
        with atomic(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["name", "patient", "number", *self.columns])
            values = np.stack(list(self.columns.values()), axis=1)
            for place, name in enumerate(self.names):
                numbers = [None if np.isnan(value) else float(value) for value in values[place]]
                writer.writerow([name, self.patients[place], int(self.numbers[place]), *numbers])


def measure(
    network: Network,
    data: PictureData,
    *,
    attacks: Sequence[Attack] = (),
    attack_images: int | None = None,
    seed: int = 0,
    batch_size: int = 16,
    workers: int | None = None,
    keep: Path | None = None,
    watch: Watch | None = None,
) -> Measured:
    """Hide each image's own message in it, write the file, and measure what is read from it.

    Only numbers are kept for each image, so memory does not grow with the pictures.

    Args:
        network: on any device; it is used in eval mode and left as it was.
        data: grey pictures of the network's size.
        attacks: what is done to the files, one at a time.
        attack_images: how many of the images are attacked, evenly over all; all if None.
        seed: of the attacks' randomness, which differs by image and attack and not by batch.
        batch_size: images in a batch; it changes only speed and memory.
        workers: threads that write, read and attack files; one for each core if not given.
        keep: a folder where the files stay, below ``grey`` and ``rgb``; they are deleted if not given.
        watch: called as the work goes.

    Raises:
        DataError: the pictures are of another size than the network's.
        NotFiniteError: the network gives NaN or infinities.
    """
    if data.store.size != network.size:
        raise DataError(f"expected pictures of size {network.size}, as the network's, got {data.store.size}")
    if not len(data) or batch_size < 1:
        raise ConfigurationError(f"expected images and a batch size, got {len(data)} and {batch_size}")
    names, device = data.names, next(network.parameters()).device
    if len({_file_name(name) for name in names}) < len(names):
        raise DataError("two images would become the same PNG file; give them names that differ before the suffix")
    attacked = torch.zeros(len(data), dtype=torch.bool)
    attacked[data.spread_places(attack_images)] = True
    found: defaultdict[str, list[Column]] = defaultdict(list)
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(workers or os.cpu_count()))
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="samplewise-")) if keep is None else keep)
        files = _Files(ensure_writable(folder), keep is not None, pool)
        for index in torch.arange(len(data)).split(batch_size):
            images, numbers = data.take(index)
            with evaluation_mode(network):
                batch = mark(network, images.to(device), numbers.to(device))
                files.names = [names[i] for i in index.tolist()]
                columns = _columns(network, batch, files, numbers, attacks, attacked[index], seed)
            for key, values in columns.items():
                found[key].append(values)
            if watch is not None:
                watch(int(index[-1]) + 1, len(data))
    whole = {key: np.concatenate(values) for key, values in found.items()}
    return Measured(network.bits, names, data.patients, data.rows.numpy(), whole)


def mark(network: Network, images: Tensor, numbers: Tensor) -> Marked:
    """Hide each image's own message in it, without a gradient.

    Args:
        network: in eval mode.
        images: on its device, grey in [0, 1], shape ``(B, 1, H, W)``.
        numbers: the images' rows in their store, which their messages depend on, shape ``(B,)``.

    Raises:
        NotFiniteError: the network gives NaN or infinities, which no file holds.
    """
    messages = fixed_messages(numbers, network.bits)
    covers = images.expand(-1, network.channels, -1, -1)
    with torch.no_grad():
        marked = network.embed(covers, messages)
    finite = marked.isfinite().flatten(1).all(1)
    if not finite.all():
        rows = numbers[~finite].tolist()
        raise NotFiniteError(f"the network gives values that are not finite for images {rows}: its training diverged")
    return covers, messages, marked


def as_pixels(images: Tensor, kind: FileKind) -> Pixels:
    """What a file holds of images ``(B, C, H, W)``: clamped and rounded to 8 bits; grey is the channels' mean."""
    if kind == "grey":
        images = images.mean(1, keepdim=True)
    levels = (images.clamp(0.0, 1.0) * LEVELS).round().to(torch.uint8)
    pixels: Pixels = levels.permute(0, 2, 3, 1).cpu().numpy()
    return pixels[..., 0] if kind == "grey" else np.ascontiguousarray(pixels)


def as_images(pixels: Pixels, *, channels: int, device: torch.device | None = None) -> Tensor:
    """Pixels read from files as a network takes them: in [0, 1], ``(B, C, H, W)``, grey ones repeated."""
    images = torch.from_numpy(pixels).to(device)
    images = images.unsqueeze(1) if pixels.ndim == 3 else images.permute(0, 3, 1, 2)
    return images.float().div_(LEVELS).expand(-1, channels, -1, -1)


def _file_name(name: str) -> str:
    """The name under which a picture's marked PNG is kept."""
    return name if name.lower().endswith(".png") else f"{name}.png"


@dataclass
class _Files:
    """PNG files that are really written and read back, so that what is measured is what a user gets."""

    folder: Path
    keep: bool
    pool: Executor
    names: Sequence[str] = ()
    """Of the batch at hand."""

    def round_trip(self, pixels: Pixels, kind: FileKind) -> Pixels:
        """Write a batch, ``(B, H, W)`` or ``(B, H, W, 3)``, and return what is read from the files."""
        paths = [self.folder / kind / _file_name(name) for name in self.names]
        return np.stack(list(self.pool.map(self._one, paths, pixels)))

    def _one(self, path: Path, pixels: Pixels) -> Pixels:
        try:
            from PIL import Image
        except ImportError as error:
            raise MissingPackageError(f"files need pillow; {install('watermark')}") from error
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
            with Image.open(path) as picture:
                read = np.asarray(picture)
            if not self.keep:
                path.unlink()
        except OSError as error:
            raise OutputError(f"{path}: cannot be written and read back: {error.strerror or error}") from error
        return read


def _columns(
    network: Network,
    batch: Marked,
    files: _Files,
    numbers: Tensor,
    attacks: Sequence[Attack],
    attacked: Tensor,
    seed: int,
) -> dict[str, Column]:
    """All columns of one batch, within :func:`evaluation_mode`; those of attacks are NaN where nothing is attacked."""
    covers, messages, marked = batch
    device, chosen = covers.device, attacked.numpy()

    def errors(pixels: Pixels, messages: Tensor) -> Column:
        images = as_images(pixels, channels=network.channels, device=device)
        return _column(bit_error(network.extract(images), messages))

    columns: dict[str, Column] = {}
    kinds: tuple[FileKind, ...] = ("grey", "rgb") if network.channels == 3 else ("grey",)
    for kind in kinds:
        before = as_pixels(covers, kind)
        read = files.round_trip(as_pixels(marked, kind), kind)
        columns |= {f"{kind}/{name}": values for name, values in _quality(read, before).items()}
        columns[f"{kind}/bit_error"] = errors(read, messages)
        for attack in attacks:
            found = np.full(len(read), np.nan)
            if chosen.any():
                rngs = [np.random.default_rng(mix(seed, str(attack), number)) for number in numbers[attacked].tolist()]
                after = np.stack(list(files.pool.map(attack, read[chosen], rngs, before[chosen])))
                found[chosen] = errors(after, messages[attacked.to(device)])
            columns[f"{kind}/{attack} bit_error"] = found
    columns["float/psnr"] = _column(psnr(marked, covers))
    columns["float/bit_error"] = _column(bit_error(network.extract(marked), messages))
    return columns


def _quality(pixels: Pixels, covers: Pixels) -> dict[str, Column]:
    """How far files ``(B, H, W)`` or ``(B, H, W, 3)`` are from their covers."""
    image, cover = (torch.from_numpy(np.atleast_3d(stored).astype(np.float64)) for stored in (pixels, covers))
    changed = (pixels != covers).reshape(*pixels.shape[:3], -1).any(-1)
    quality = {
        "psnr": _column(psnr(image, cover, peak=LEVELS)),
        "ssim": np.full(len(pixels), np.nan),  # of images smaller than its window
        "max_difference": _column(max_difference(image, cover)),
        "changed": changed.mean((1, 2), dtype=np.float64),
    }
    if min(pixels.shape[1:3]) >= SSIM_WINDOW:
        # In single precision, right to four digits: in double it would take most of the time, and gigabytes.
        planes = [stored.view(*pixels.shape[:3], -1).permute(0, 3, 1, 2).float() for stored in (image, cover)]
        quality["ssim"] = _column(ssim(planes[0], planes[1], peak=LEVELS))
    return quality


def _column(values: Tensor) -> Column:
    return values.double().cpu().numpy()
