from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from natural_images import natural_image
from studies.pictures import prepare
from studies.watermark.ablations import ABLATIONS, BatchNorm, ConstantMap, SquaredError, run
from studies.watermark.recipe import SWIFT

SMALL = replace(SWIFT, bits=4, size=16, batch_size=4, steps_per_round=2, message_rounds=1, rounds=1, audit_images=4)


def test_the_variants_differ_from_ours_in_what_they_are_named_for() -> None:
    images, messages = torch.rand(2, 1, 16, 16), torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0]])
    constant = ConstantMap(4, size=16)
    # Moving a constant map by a cell changes nothing, away from the border, but the image itself.
    flat = torch.full((2, 1, 64, 64), 0.5)
    residual = constant.embed(flat, messages) - flat
    torch.testing.assert_close(residual[..., 24:32, 24:32], residual[..., 32:40, 32:40])
    assert constant.extract(images).shape == (2, 4)
    normalised = BatchNorm(4, size=16)
    kinds = {type(module) for module in normalised.modules()}
    assert nn.BatchNorm2d in kinds
    assert nn.GroupNorm not in kinds
    assert SquaredError(4, size=16).message_loss(messages - 0.5, messages).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", ["ours", "constraint from the start"])
def test_an_ablation_is_trained_as_long_as_ours(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for i in range(16):
        Image.fromarray(natural_image(height=16, width=16, seed=i)).save(folder / f"{i:02}.png")
    store = prepare(folder, tmp_path / "store", size=16)
    found = run(store, SMALL, name, tmp_path / "run")
    assert list(found["bit_error_by_round"]) == [2]
    assert found["hypothesis"] == ABLATIONS[name].hypothesis
    assert 0 <= found["bit_error"] <= 1
