from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from samplewise.errors import DataError
from studies.compression.blocks import NAMES, PICTURES, Blocks, embedded, load, strip_parts


def contents(samples: Blocks) -> set[bytes]:
    return {sample.numpy().tobytes() for sample in samples.pixels}


def write(folder: Path, name: str, seed: int, side: int = 48) -> None:
    folder.mkdir(exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / name)


def test_strips_cover_every_column_and_no_part_is_empty() -> None:
    for columns in range(10, 90):
        assert set(strip_parts(columns)) == {"train", "validation", "test"}


def test_the_embedded_pictures_need_no_download() -> None:
    pictures = dict(embedded())
    assert tuple(pictures) == NAMES
    assert all(picture.ndim == 2 and picture.dtype == np.uint8 for picture in pictures.values())


def test_no_block_that_is_trained_on_is_held_out() -> None:
    parts = load(PICTURES, 0, train=5000)
    held = contents(parts.tune) | contents(parts.test)
    assert len(parts.train) > 4500
    assert not contents(parts.train) & held
    assert len(contents(parts.tune)) == len(parts.tune)
    again = load(PICTURES, 1, train=5000)
    assert torch.equal(parts.test.pixels, again.test.pixels), "the same unseen blocks whatever the seed"
    assert not torch.equal(parts.train.pixels, again.train.pixels)


def test_of_the_picture_that_is_shown_nothing_is_trained_on() -> None:
    parts = load(PICTURES, 0, train=5000)
    shown = NAMES.index("astronaut")
    assert shown not in parts.train.source
    assert shown not in parts.tune.source
    assert shown in parts.test.source


def test_pictures_of_a_patient_stay_together(tmp_path: Path) -> None:
    for number in range(30):
        write(tmp_path / "xrays", f"{number // 3:08d}_{number % 3:03d}.png", number)
    parts = load(str(tmp_path / "xrays"), 0, train=1000)
    sources = [set(part.source.tolist()) for part in (parts.train, parts.tune, parts.test)]
    assert all(sources)
    assert not sources[0] & sources[1]
    assert not sources[2] & (sources[0] | sources[1])
    assert sum(map(len, sources)) == 10


def test_whole_pictures_are_samples_of_all_their_blocks(tmp_path: Path) -> None:
    for number in range(8):
        write(tmp_path / "same", f"{number}.png", number)
    parts = load(str(tmp_path / "same"), 0, train=1000, whole=True)
    assert parts.train.pixels.shape[1:] == (9, 256)
    write(tmp_path / "same", "other.png", 99, side=64)
    with pytest.raises(DataError, match="one size"):
        load(str(tmp_path / "same"), 0, train=1000, whole=True)


def test_what_is_no_picture_is_named(tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path / "some", f"{number}.png", number)
    (tmp_path / "some" / "broken.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"broken\.png"):
        load(str(tmp_path / "some"), 0, train=100)
