"""The floors of patches in training, against those that the tool measures."""

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from floormark import patches as tool
from natural_images import natural_batch
from studies.watermark.patches import above_image, calmness, patch_psnr, patch_room

sides = st.integers(1, 100)


@settings(max_examples=30)
@given(sides, sides, st.integers(0, 99))
def test_floors_and_room_are_those_of_the_tool(height: int, width: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    cover = random.random((height, width)) * random.random((height, 1))
    marked = cover + random.normal(0.0, 0.01, cover.shape)
    first, second = (torch.from_numpy(each)[None, None] for each in (marked, cover))
    floors = tool.above_image(tool.calmness(cover))
    np.testing.assert_allclose(calmness(second)[0, 0].numpy(), tool.calmness(cover), atol=1e-5)
    np.testing.assert_allclose(above_image(calmness(second))[0, 0].numpy(), floors, atol=1e-5)
    reached = np.zeros_like(floors)
    for row, column in np.ndindex(*floors.shape):
        error = (marked - cover)[32 * row : 32 * row + 32, 32 * column : 32 * column + 32]
        reached[row, column] = -10.0 * math.log10(np.square(error).mean())
    np.testing.assert_allclose(patch_psnr(first, second)[0, 0].numpy(), reached, atol=1e-6)
    room = patch_room(first, second, 41.5)
    assert room.shape == (1, floors.size)
    np.testing.assert_allclose(room[0].numpy(), (reached - 41.5 - floors).ravel(), atol=1e-5)


def test_rooms_are_of_each_image_alone_and_of_the_grey_of_colours() -> None:
    covers = natural_batch(3, 3, height=64, width=96)
    marked = covers + 0.01 * torch.randn(3, 1, 64, 96)
    rooms = patch_room(marked, covers, 40.0)
    assert rooms.shape == (3, 6)
    for number in range(3):
        one, cover = (each[number : number + 1].mean(1, keepdim=True) for each in (marked, covers))
        torch.testing.assert_close(rooms[number], patch_room(one, cover, 40.0)[0])


def test_rooms_in_single_precision_are_those_of_the_tool_where_an_image_is_bright_and_calm() -> None:
    random = np.random.default_rng(0)
    levels = 255 - random.integers(0, 2, (64, 64))
    levels[:, :32] = random.integers(0, 256, (64, 32))
    change = random.integers(-1, 2, levels.shape)
    cover, marked = (torch.from_numpy(each / 255.0).float()[None, None] for each in (levels, levels + change))
    above = tool.above_image(tool.calmness(levels / 255.0))
    parts = (change / 255.0).reshape(2, 32, 2, 32)
    rooms = (-10.0 * np.log10(np.square(parts).mean((1, 3))) - 40.0 - above).ravel()
    np.testing.assert_allclose(patch_room(marked, cover, 40.0)[0].numpy(), rooms, atol=1e-3)


def test_a_patch_that_did_not_change_has_finite_room() -> None:
    covers = natural_batch(1, height=64, width=64)
    assert patch_room(covers, covers, 40.0).isfinite().all()
