import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import laplace

from samplewise.errors import DataError
from studies.compression.bitstream import block_errors, compress, decode, decompress, encode
from studies.compression.blocks import Grey, cut, joined
from studies.compression.codec import LEVELS, PIXELS, Codec, enough_gain, laplace_bits, rounding_errors


def picture(height: int, width: int, roughness: float = 8.0, seed: int = 0) -> Grey:
    """Waves with noise: blocks that cost little and blocks that cost much."""
    rows, columns = np.mgrid[:height, :width]
    noise = np.random.default_rng(seed).normal(0, roughness, (height, width)) * (columns > width / 2)
    pixels: Grey = np.clip(128 + 90 * np.sin(rows / 19 + columns / 31) + noise, 0, 255).astype(np.uint8)
    return pixels


@pytest.fixture(scope="module")
def codec() -> Codec:
    torch.manual_seed(0)
    return Codec(cut(picture(128, 128)).reshape(-1, PIXELS), 32.0).ready()


@given(st.floats(-40, 40), st.floats(-3.5, 4))
def test_bits_are_those_of_the_distribution(x: float, log_scale: float) -> None:
    scale = math.exp(log_scale)
    probability = laplace.cdf(abs(x) + 0.5, scale=scale) - laplace.cdf(abs(x) - 0.5, scale=scale)
    if probability > 1e-5:  # below, the difference of two numbers near one is no oracle
        found = laplace_bits(torch.tensor(x, dtype=torch.float64), torch.tensor(log_scale, dtype=torch.float64))
        assert float(found) == pytest.approx(-math.log2(probability), rel=1e-4, abs=1e-9)


def test_bits_have_a_gradient_everywhere() -> None:
    x = torch.linspace(-3, 3, 61, dtype=torch.float64).requires_grad_()
    scale = torch.zeros(61, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(laplace_bits, (x + 0.013, scale))


def test_it_begins_as_its_transform(codec: Codec) -> None:
    blocks = cut(picture(64, 64, seed=1)).reshape(-1, PIXELS)
    coded = codec(blocks)
    pixels = blocks.double() / 255
    coefficients = (pixels - codec.mean) @ codec.analysis.T / codec.unit
    level = 16 + (enough_gain(rounding_errors(coefficients), torch.zeros(len(pixels))) - 16) / 2
    step = codec.unit * torch.exp((16 - level.round()) / 6).unsqueeze(1)
    wanted = ((pixels - codec.mean) @ codec.analysis.T / step).round() * step @ codec.synthesis.T + codec.mean
    wanted = wanted.mul(255).round().clamp(0, 255) / 255
    errors = (wanted - pixels).square().mean(1) / 10**-3.2
    assert torch.allclose(coded.error, errors, rtol=1e-4)


def test_enough_gain_is_where_the_error_of_rounding_crosses_what_is_allowed() -> None:
    coefficients = 40 * torch.randn(50, PIXELS, generator=torch.Generator().manual_seed(0)).double()
    errors = rounding_errors(coefficients)
    gains = torch.exp((torch.arange(LEVELS) - 16) / 6).double()
    for level, gain in enumerate(gains):
        rounded = (coefficients * gain).round() / gain
        assert torch.allclose(errors[:, level].exp(), 12 * (rounded - coefficients).square().mean(1))
    found = enough_gain(errors, torch.full((50,), 0.5))
    enough = (errors <= 0.5).long().argmax(1)  # these errors fall from level to level
    assert torch.equal(found.ceil().long(), enough)


def test_blocks_do_not_depend_on_each_other(codec: Codec) -> None:
    blocks = cut(picture(64, 80)).reshape(-1, PIXELS)
    alone = [codec(block.unsqueeze(0)) for block in blocks]
    together = codec(blocks)
    assert torch.allclose(torch.cat([each.bits for each in alone]), together.bits)
    assert torch.equal(torch.cat([each.symbols.coefficients for each in alone]), together.symbols.coefficients)


def test_what_was_encoded_is_decoded_in_as_many_bits_as_were_counted(codec: Codec) -> None:
    blocks = cut(picture(320, 320)).reshape(-1, PIXELS)
    coded = codec(blocks, torch.arange(len(blocks)).remainder(LEVELS).double())
    symbols = type(coded.symbols)(*(each.detach() for each in coded.symbols))
    words = encode(codec, symbols)
    assert all(torch.equal(found, sent) for found, sent in zip(decode(codec, words, len(blocks)), symbols, strict=True))
    assert 32 * len(words) == pytest.approx(float(coded.bits.detach().sum()), rel=0.01)


@given(st.integers(1, 70), st.integers(1, 70), st.sampled_from([0.0, 8.0, 300.0]), st.integers(0, 3))
def test_every_block_of_a_file_is_above_its_floor(
    codec: Codec, height: int, width: int, roughness: float, seed: int
) -> None:
    original = picture(height, width, roughness, seed)
    data, certificate = compress(codec, original)
    shown = decompress(codec, data)
    assert shown.shape == original.shape
    for top in range(0, height, 16):
        for left in range(0, width, 16):
            there = np.s_[top : top + 16, left : left + 16]
            error = np.mean((shown[there].astype(float) - original[there]) ** 2)
            assert error == 0 or 10 * math.log10(255**2 / error) >= 32.0
    assert certificate.file_bytes == len(data)
    assert certificate.lowest >= 32.0
    assert certificate.blocks == math.ceil(height / 16) * math.ceil(width / 16)


def test_blocks_that_no_gain_brings_above_the_floor_are_stored_raw(codec: Codec) -> None:
    original = np.random.default_rng(0).choice(np.array([0, 255], np.uint8), (48, 48))
    original[:16] = 128
    data, certificate = compress(codec, original)
    assert certificate.raw_blocks == 6
    assert np.array_equal(decompress(codec, data)[16:], original[16:])


def test_a_damaged_file_is_refused(codec: Codec) -> None:
    original = picture(40, 64)
    original[:16, :16] = np.random.default_rng(0).choice(np.array([0, 255], np.uint8), (16, 16))
    data, certificate = compress(codec, original)
    assert certificate.raw_blocks == 1
    rng = np.random.default_rng(0)
    for place in (*range(60), *rng.integers(60, len(data), 60)):
        wrong = bytearray(data)
        wrong[place] ^= int(rng.integers(1, 256))
        with pytest.raises(DataError):
            decompress(codec, bytes(wrong))
    for torn in (b"", data[:7], data[:30], data[:-4], data + b"more"):
        with pytest.raises(DataError):
            decompress(codec, torn)


def test_a_picture_of_any_length_is_not_believed(codec: Codec) -> None:
    data, _ = compress(codec, picture(16, 16))
    huge = data[:24] + (2**26).to_bytes(4, "little") + data[28:]
    with pytest.raises(DataError, match="at most"):
        decompress(codec, huge)


def test_another_codec_says_so(codec: Codec) -> None:
    data, _ = compress(codec, picture(32, 32))
    other = Codec(cut(picture(128, 128, seed=9)).reshape(-1, PIXELS), 32.0).ready()
    with pytest.raises(DataError, match="another codec"):
        decompress(other, data)


@given(st.integers(1, 50), st.integers(1, 50))
def test_blocks_make_up_the_picture_again(height: int, width: int) -> None:
    original = picture(height, width)
    assert np.array_equal(joined(cut(original), height, width), original)


def test_padding_does_not_count() -> None:
    original = picture(8, 8)
    real = cut(np.ones_like(original), fill=0).reshape(-1, PIXELS)
    shown = cut(original).reshape(-1, PIXELS).clone()
    shown[real == 0] = 0
    assert float(block_errors(shown, cut(original).reshape(-1, PIXELS), real)) == 0
