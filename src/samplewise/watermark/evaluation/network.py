"""Every image of a data set marked, written, attacked and read, by any watermarking network."""

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samplewise.batches import mix
from samplewise.data.pictures import PictureData
from samplewise.errors import ConfigurationError, DataError
from samplewise.measures import SSIM_WINDOW, bit_error, max_difference, psnr, ssim
from samplewise.problem import evaluation_mode
from samplewise.watermark.attacks import Attack
from samplewise.watermark.evaluation.files import Files
from samplewise.watermark.evaluation.marking import Marked, Pixels, as_images, as_pixels, file_kinds, mark
from samplewise.watermark.networks import Network
from samplewise.watermark.pipeline import LEVELS

__all__ = ["Column", "Evaluation", "evaluate_network"]

Column = NDArray[np.float64]
"""A number for each image, ``(N,)``."""
Watch = Callable[[int, int], None]
"""Called with how many images are done, and how many there are."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What was measured on every image.

    There are up to three ways to take a marked image: the ``grey`` file, the ``rgb`` file of a network with three
    channels, and ``float``, the paper's, which is no file: all channels as the network gives them, neither clamped nor
    rounded.
    """

    bits: int
    names: tuple[str, ...]
    patients: tuple[str, ...]
    numbers: NDArray[np.int64]
    """The images' rows in their store."""
    measures: Mapping[str, Column]
    """By way and measure, such as ``grey/psnr``: psnr (dB), bit_error; of files also ssim, max_difference (grey
    levels) and changed (share of the pixels)."""
    attacks: Mapping[str, Column]
    """Bit error by way and attack, such as ``grey/jpeg(75)``; NaN for images that were not attacked."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def ways(self) -> tuple[str, ...]:
        """How images were taken, files first."""
        return tuple(dict.fromkeys(key.partition("/")[0] for key in self.measures))


def evaluate_network(
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
) -> Evaluation:
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
    attacked = torch.zeros(len(data), dtype=torch.bool)
    attacked[data.spread_places(attack_images)] = True
    names = data.names
    found: defaultdict[str, list[Column]] = defaultdict(list)
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool, Files.open(keep, names, pool) as files:
        judge = _Judge(network, files, pool, attacks, seed)
        for index in torch.arange(len(data)).split(batch_size):
            with evaluation_mode(network):
                judged = judge(data, index, [names[i] for i in index.tolist()], attacked[index])
            for key, values in judged.items():
                found[key].append(values)
            if watch is not None:
                watch(int(index[-1]) + 1, len(data))
    columns = {key: np.concatenate(values) for key, values in found.items()}
    specs = {str(attack) for attack in attacks}
    return Evaluation(
        bits=network.bits,
        names=names,
        patients=data.patients,
        numbers=data.rows.numpy(),
        measures={key: values for key, values in columns.items() if key.partition("/")[2] not in specs},
        attacks={key: values for key, values in columns.items() if key.partition("/")[2] in specs},
    )


class _Judge:
    """Measures one batch after the other, within :func:`evaluation_mode`."""

    def __init__(self, network: Network, files: Files, pool: Executor, attacks: Sequence[Attack], seed: int) -> None:
        self.network = network
        self.files = files
        self.pool = pool
        self.attacks = attacks
        self.seed = seed
        self.device = next(network.parameters()).device

    def __call__(self, data: PictureData, index: Tensor, names: Sequence[str], attacked: Tensor) -> dict[str, Column]:
        """All columns of the samples ``index``; those of attacks are NaN where ``attacked`` is False."""
        images, numbers = data.take(index)
        marked = mark(self.network, images.to(self.device), numbers.to(self.device))
        columns: dict[str, Column] = {}
        for kind in file_kinds(self.network):
            covers = as_pixels(marked.covers, kind)
            read = self.files.round_trip(names, as_pixels(marked.images, kind), kind)
            for name, values in _quality(read, covers).items():
                columns[f"{kind}/{name}"] = values
            columns[f"{kind}/bit_error"] = self._bit_error(read, marked.messages)
            for attack in self.attacks:
                errors = np.full(len(read), np.nan)
                if attacked.any():
                    chosen = attacked.numpy()
                    after = self._attack(attack, read[chosen], covers[chosen], numbers[attacked])
                    errors[chosen] = self._bit_error(after, marked.messages[attacked.to(self.device)])
                columns[f"{kind}/{attack}"] = errors
        return columns | self._in_floats(marked)

    def _bit_error(self, pixels: Pixels, messages: Tensor) -> Column:
        images = as_images(pixels, channels=self.network.channels, device=self.device)
        return _column(bit_error(self.network.extract(images), messages))

    def _attack(self, attack: Attack, images: Pixels, covers: Pixels, numbers: Tensor) -> Pixels:
        def one(image: Pixels, cover: Pixels, number: int) -> Pixels:
            return attack(image, np.random.default_rng(mix(self.seed, str(attack), number)), cover)

        return np.stack(list(self.pool.map(one, images, covers, numbers.tolist())))

    def _in_floats(self, marked: Marked) -> dict[str, Column]:
        read = self.network.extract(marked.images)
        return {
            "float/psnr": _column(psnr(marked.images, marked.covers)),
            "float/bit_error": _column(bit_error(read, marked.messages)),
        }


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
