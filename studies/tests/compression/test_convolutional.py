import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from samplewise.errors import ConfigurationError
from studies.commands import main
from studies.compression.arms import Arm, measure, measure_searched
from studies.compression.blocks import PICTURES, Blocks, Parts, load
from studies.compression.classic import FORMATS, evaluate_format, psnr, smallest_file
from studies.compression.codec import LARGEST, LEVELS, SMALLEST, STEP, UNIT_LEVEL, WIDTH
from studies.compression.convolutional import POSITIONS, TILE, ConvolutionalCodec
from studies.compression.tiles import TilePlan

FLOOR, STEPS = 30.0, 30


@pytest.fixture(scope="module")
def parts() -> Parts:
    return load(PICTURES, 0, train=400, side=TILE, held_out=(30, 40))


@pytest.fixture(scope="module")
def codec(parts: Parts) -> ConvolutionalCodec:
    trained = TilePlan(PICTURES, FLOOR, STEPS).train(Arm("penalty", 300.0), parts, 0)
    assert isinstance(trained, ConvolutionalCodec)
    return trained


def test_training_lowers_bits_and_error(parts: Parts, codec: ConvolutionalCodec) -> None:
    begun = measure(ConvolutionalCodec(parts.train.pixels[:, 0], FLOOR).ready(), parts.test)
    trained = measure(codec, parts.test)
    assert float((trained.bits + 40 * trained.error).mean()) < float((begun.bits + 40 * begun.error).mean())
    searched = measure_searched(codec, parts.test)
    assert float((searched.error <= 1).double().mean()) >= float((trained.error <= 1).double().mean())


@torch.no_grad()
def test_bits_are_those_of_rounded_symbols_under_the_laplace_model(parts: Parts, codec: ConvolutionalCodec) -> None:
    coded = codec(parts.test.pixels[:3, 0])
    level, hyper, latent = coded.symbols
    assert all(torch.equal(each, each.round()) for each in coded.symbols)
    assert level.min() >= 0
    assert level.max() < LEVELS
    gain = (level - UNIT_LEVEL)[:, None, None, None]
    seen = torch.cat([hyper, gain.expand(-1, 1, *hyper.shape[2:])], 1) / WIDTH
    scales = (codec.log_scales + STEP * gain + codec.spread(seen)).clamp(SMALLEST, LARGEST).exp()
    expected = torch.log2(torch.tensor(float(LEVELS))).repeat(3).double()
    for symbols, scale in ((latent, scales), (hyper, codec.hyper_log_scales.exp().expand_as(hyper))):
        model = stats.laplace(scale=scale.double().numpy())
        size = symbols.abs().double().numpy()  # by symmetry, and the upper tail is exact
        mass = model.sf(size - 0.5) - model.sf(size + 0.5)
        expected -= torch.from_numpy(np.log2(np.maximum(mass, 2.0**-24))).sum((1, 2, 3))
    assert torch.allclose(coded.bits.double() * POSITIONS, expected, rtol=1e-4)


@torch.no_grad()
def test_the_error_is_that_of_pixels_in_eight_bits(parts: Parts, codec: ConvolutionalCodec) -> None:
    errors = measure(codec, parts.test).error.double() * codec.allowed * 255**2 * TILE**2
    assert torch.allclose(errors, errors.round(), rtol=1e-4, atol=1e-2), "sums of squares of whole numbers"


def test_no_strip_of_tiles_is_in_two_parts(parts: Parts) -> None:
    tune, test = ({each.tobytes() for each in part.pixels.numpy()} for part in (parts.tune, parts.test))
    assert not tune & test
    assert parts.test.pixels.shape[1:] == (1, TILE**2)


def test_an_arm_that_tells_the_codec_its_weight_is_refused(parts: Parts) -> None:
    with pytest.raises(ConfigurationError, match="conditioned"):
        TilePlan(PICTURES, FLOOR, STEPS).train(Arm("conditioned", 100.0), parts, 0)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("floor", [25.0, 38.0])
def test_the_smallest_file_of_a_format_keeps_the_floor(name: str, floor: float, parts: Parts) -> None:
    form, pixels = FORMATS[name], parts.test.pixels[0].view(TILE, TILE).numpy()
    data = smallest_file(form, pixels, floor)
    assert data is not None
    assert psnr(pixels, form.decode(data)) >= floor
    some = [form.encode(pixels, setting) for setting in form.settings[:: max(1, len(form.settings) // 40)]]
    kept = [len(each) for each in some if psnr(pixels, form.decode(each)) >= floor]
    assert len(data) <= 1.05 * min(kept), "about what trying all settings finds"


def test_a_format_is_counted_with_and_without_its_header(parts: Parts) -> None:
    few = Blocks(parts.test.pixels[:3], parts.test.source[:3])
    row = evaluate_format("JPEG", few, FLOOR)
    assert row.worst_psnr >= FLOOR
    assert row.bits_with_header - row.bits == pytest.approx(8 * row.header_bytes / POSITIONS)
    assert evaluate_format("JPEG", few, 90.0).raw_samples > 0


def test_the_command_goes_on_where_it_was(
    tmp_path: Path, parts: Parts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = Blocks(parts.test.pixels[:4], parts.test.source[:4])
    monkeypatch.setattr(TilePlan, "load", lambda self, seed: Parts(parts.train, few, few, parts.shown))
    call = ["compression", "--convolutional", "--arm", "fixed:100", "--steps", "30", "--out", str(tmp_path / "run")]
    assert main(call) == 0
    table = (tmp_path / "run" / "table.md").read_text()
    assert "Bits a pixel" in table
    assert all(name in table for name in FORMATS)
    assert json.loads((tmp_path / "run" / "classic.json").read_text())["provenance"]["versions"]["torch"]
    capsys.readouterr()
    monkeypatch.setattr(TilePlan, "train", None)
    assert main([*call, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["blocks"] == 4
    assert main([*call, "--whole"]) == 2
    assert main([*call, "--compress", "a.png", "b"]) == 2
