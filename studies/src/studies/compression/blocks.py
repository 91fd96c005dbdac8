"""Blocks of pictures in three parts: trained on, chosen on, and unseen."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from samplewise.errors import DataError
from studies.compression.codec import SIDE
from studies.data import load_folder
from studies.pictures import PARTS, Split, find

PICTURES = "pictures"
"""The name of the pictures that come with scikit-image."""
# fmt: off
NAMES = (
    "astronaut", "brick", "camera", "cell", "chelsea", "clock", "coffee", "coins", "grass", "gravel",
    "hubble_deep_field", "immunohistochemistry", "moon", "page", "retina", "rocket", "stereo_motorcycle", "text",
)
# fmt: on
STRIPS = ("train", "train", "validation", "train", "test")
"""Parts of the columns of blocks of a picture, from left to right, over and over."""
SHIFT = 4
SHOWN_PICTURE, SHOWN_DIGITS = "astronaut", 8
HELD_OUT = 6000, 12000
"""Blocks at most to choose on, and unseen ones."""

Grey = NDArray[np.uint8]


@dataclass(frozen=True)
class Blocks:
    """Samples: single blocks, or whole pictures, each given as all its blocks."""

    pixels: Tensor
    """``(N, n, side ** 2)`` of uint8, n blocks a sample."""
    source: Tensor
    """The picture's or the patient's number ``(N,)``: samples of one are not independent."""

    def __len__(self) -> int:
        return len(self.pixels)


@dataclass(frozen=True)
class Parts:
    """The three parts; no patient, picture or strip is in two of them."""

    train: Blocks
    tune: Blocks
    test: Blocks
    shown: Grey
    """A picture of which no block was trained on or chosen on."""


def cut(picture: Grey, *, fill: int | None = None, side: int = SIDE) -> Tensor:
    """A picture as blocks ``(rows, columns, side ** 2)``, filled up at right and below: with the edge if None."""
    height, width = picture.shape
    missing = ((0, -height % side), (0, -width % side))
    padded = np.pad(picture, missing, mode="edge") if fill is None else np.pad(picture, missing, constant_values=fill)
    rows, columns = padded.shape[0] // side, padded.shape[1] // side
    return torch.from_numpy(padded.reshape(rows, side, columns, side).swapaxes(1, 2).reshape(rows, columns, side**2))


def joined(blocks: Tensor, height: int, width: int) -> Grey:
    """The picture of blocks ``(rows, columns, SIDE ** 2)``."""
    rows, columns = blocks.shape[:2]
    whole = blocks.reshape(rows, columns, SIDE, SIDE).swapaxes(1, 2).reshape(rows * SIDE, columns * SIDE)
    return whole[:height, :width].numpy()


def load(
    data: str,
    seed: int,
    *,
    train: int,
    whole: bool = False,
    side: int = SIDE,
    held_out: tuple[int, int] = HELD_OUT,
) -> Parts:
    """Load the three parts of ``data``: scikit-image's pictures, a folder of pictures, or MNIST's files.

    The unseen part is the same for every seed.

    Args:
        data: ``pictures`` or a folder. A folder is split by patient where names are ChestX-ray8's, else by picture.
        seed: of what is drawn to train on.
        train: blocks to train on, at most.
        whole: make each picture a sample, in the place of each block.
        side: of a block, in pixels.
        held_out: blocks at most to choose on, and unseen ones.
    """
    folder = Path(data)
    if data == PICTURES:
        found, shown = _strips(side)
    elif any(folder.glob("train-images*ubyte*")):
        found, shown = _digits(folder, side)
    else:
        found, shown = _folder(folder, side)
    if any(not found[part] for part in PARTS):
        raise DataError(f"{data}: expected pictures of at least {side} x {side} pixels for three parts, got fewer")
    if whole and len({blocks.shape for part in PARTS for blocks, _ in found[part]}) > 1:
        raise DataError(f"{data}: expected pictures of one size, as whole pictures are the samples, got several sizes")
    tune, test = (_draw(found[part], count, 0, whole) for part, count in zip(PARTS[1:], held_out, strict=True))
    tune = _without(tune, set())  # a promise refuses samples, such as flat blocks, that two of its parts have
    known = {each.tobytes() for each in tune.pixels.numpy()}
    return Parts(_without(_draw(found["train"], train, seed, whole), known, repeated=True), tune, test, shown)


Found = dict[str, list[tuple[Tensor, int]]]
"""By part, the blocks ``(n, side ** 2)`` of each picture and the number of its source."""


def read_grey(path: Path, *, strict: bool = False) -> Grey:
    """The picture of a file in 8 bits of grey; with ``strict`` one that has nothing else, so that nothing is lost."""
    try:
        with Image.open(path) as image:
            if strict and image.mode not in ("L", "1"):
                raise DataError(
                    f"{path}: expected a picture in 8 bits of grey, got mode {image.mode}; convert it first"
                )
            if image.mode.startswith("I"):
                raise DataError(f"{path}: expected a picture in 8 bits, got one in 16; convert it first")
            return np.asarray(image.convert("L"))
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: expected a picture, but it cannot be read ({error})") from error


def embedded() -> Iterator[tuple[str, Grey]]:
    """The pictures that come with scikit-image, by name, in grey."""
    from skimage import data

    for name in NAMES:
        found = getattr(data, name)()
        picture = found[0] if isinstance(found, tuple) else found
        yield name, np.asarray(Image.fromarray(picture).convert("L"))


def strip_parts(columns: int, side: int = SIDE) -> NDArray[np.str_]:
    """The part of each column of blocks of a picture: strips of at least 32 pixels."""
    width = max(1, 2 * SIDE // side, columns // (2 * len(STRIPS)))
    return np.array([STRIPS[column // width % len(STRIPS)] for column in range(columns)])


def _strips(side: int) -> tuple[Found, Grey]:
    """Strips of the embedded pictures; of those trained on also blocks that are shifted, mirrored and turned.

    No block of the picture in the figure is in the training or the tuning part.
    """
    found: Found = {part: [] for part in PARTS}
    pictures = dict(embedded())
    for number, (name, whole) in enumerate(pictures.items()):
        picture = _cropped(whole, side)
        columns = strip_parts(picture.shape[1] // side, side)
        for part in PARTS if name != SHOWN_PICTURE else ("test",):
            rows = [
                _shifted(strip, side) if part == "train" else cut(strip, side=side).flatten(0, 1)
                for strip in _runs(picture, columns == part, side)
            ]
            found[part].append((torch.cat(rows), number))
    return found, pictures[SHOWN_PICTURE]


def _cropped(picture: Grey, side: int) -> Grey:
    """The part of a picture that whole blocks cover: padded blocks would need fewer bits than real ones."""
    return picture[: len(picture) // side * side, : picture.shape[1] // side * side]


def _whole_blocks(picture: Grey, side: int) -> Tensor:
    return cut(_cropped(picture, side), side=side).flatten(0, 1)


def _runs(picture: Grey, chosen: NDArray[np.bool_], side: int) -> Iterator[Grey]:
    """The strips of columns of blocks that are chosen, each as wide as it goes."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]]).astype(int)))
    for first, last in edges.reshape(-1, 2):
        yield picture[:, first * side : last * side]


def _shifted(strip: Grey, side: int) -> Tensor:
    """Blocks at every fourth pixel each way, by turns in one of eight orientations, ``(n, side ** 2)``."""
    windows = np.lib.stride_tricks.sliding_window_view(strip, (side, side))[::SHIFT, ::SHIFT].reshape(-1, side, side)
    turned = [np.rot90(windows[way::8], way % 4, (1, 2)) for way in range(8)]
    mirrored = [each.transpose(0, 2, 1) if way >= 4 else each for way, each in enumerate(turned)]
    return torch.from_numpy(np.concatenate([each.reshape(-1, side**2) for each in mirrored]))


def _folder(folder: Path, side: int) -> tuple[Found, Grey]:
    listing = find(folder)
    paths = {each.name: each.path for each in listing.pictures}
    patients = {each.name: each.patient for each in listing.pictures}
    split = Split.by_patient(list(patients), list(patients.values()))
    numbers = {patient: number for number, patient in enumerate(sorted(set(patients.values())))}
    found: Found = {
        part: [(_whole_blocks(read_grey(paths[name]), side), numbers[patients[name]]) for name in split.part(part)]
        for part in PARTS
    }
    return found, read_grey(paths[split.test[0]])


def _digits(folder: Path, side: int) -> tuple[Found, Grey]:
    data = load_folder(folder)
    chosen = data.with_validation(10_000)
    length = math.isqrt(data.pixels)
    found: Found = {}
    for part, images in zip(PARTS, (chosen.train, chosen.test, data.test), strict=True):
        pictures = images.tensors[0].mul(255).round().to(torch.uint8).view(-1, length, length).numpy()
        found[part] = [(cut(each, fill=0, side=side).flatten(0, 1), number) for number, each in enumerate(pictures)]
    return found, np.concatenate(list(pictures[:SHOWN_DIGITS]), 1)


def _draw(pictures: Sequence[tuple[Tensor, int]], count: int, seed: int, whole: bool) -> Blocks:
    """About ``count`` blocks drawn at random, equally many from each picture if it has enough."""
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for number in torch.randperm(len(pictures), generator=generator).tolist():
        blocks, source = pictures[number]
        if whole:
            samples = blocks.unsqueeze(0)
        else:
            each = -(-count // len(pictures))
            samples = blocks[torch.randperm(len(blocks), generator=generator)[:each]].unsqueeze(1)
        drawn.append((samples, torch.full((len(samples),), source)))
    pixels, sources = (torch.cat(each) for each in zip(*drawn, strict=True))
    rows = torch.randperm(len(pixels), generator=generator)[: max(1, count // pixels.shape[1])]
    return Blocks(pixels[rows], sources[rows])


def _without(samples: Blocks, known: set[bytes], *, repeated: bool = False) -> Blocks:
    """Samples whose content is not among ``known``; duplicates, such as flat blocks, once unless ``repeated``."""
    seen, rows = set(known), []
    for number, sample in enumerate(samples.pixels.numpy()):
        content = sample.tobytes()
        if content not in seen:
            rows.append(number)
            if not repeated:
                seen.add(content)
    return Blocks(samples.pixels[rows], samples.source[rows])
