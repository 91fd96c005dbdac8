"""The network in NumPy against closed forms, and networks on disk: their names, and files that are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import signal

from floormark import ConfigurationError, DataError, Watermarker
from floormark import network as network_module
from floormark.network import CELL, TILE, convolved, load_network, pilot_tiles, save_weights
from natural_images import natural_image
from network_files import SMALL, rewritten, save

PICTURE = natural_image(height=128, width=192).astype(np.float32) / np.float32(255)
BITS = np.random.default_rng(0).integers(0, 2, SMALL.bits, np.uint8)


@settings(max_examples=30)
@given(st.integers(1, 4), st.integers(1, 4), st.sampled_from([1, 3]), st.sampled_from([1, 2]), st.integers(2, 20))
def test_convolutions_are_those_of_scipy(inputs: int, outputs: int, side: int, stride: int, half: int) -> None:
    random, shape = np.random.default_rng(half), (2 * half, 2 * half + 2)
    values = random.standard_normal((inputs, *shape)).astype(np.float32)
    weight = random.standard_normal((outputs, inputs, side, side)).astype(np.float32)
    bias = random.standard_normal(outputs).astype(np.float32)
    expected = [
        bias[one] + sum(signal.correlate2d(values[other], weight[one, other], "same") for other in range(inputs))
        for one in range(outputs)
    ]
    found = convolved(values, weight, bias, stride)
    np.testing.assert_allclose(found, np.array(expected)[:, ::stride, ::stride], atol=1e-4)


def test_large_pictures_are_convolved_in_bands_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = SMALL.evidence(PICTURE)
    monkeypatch.setattr(network_module, "BAND_VALUES", 1000)
    np.testing.assert_allclose(SMALL.evidence(PICTURE), whole, atol=1e-5)


def test_a_message_is_drawn_with_the_signs_of_its_bits_in_every_tile() -> None:
    (pilot,) = pilot_tiles([b""])
    encoding = SMALL.encode(PICTURE, BITS, pilot)
    assert set(np.unique(encoding.signs)) == {-1.0, 1.0}
    cells = TILE // CELL
    np.testing.assert_array_equal(encoding.signs[:, :cells, :cells], encoding.signs[:, -cells:, -cells:])
    other = SMALL.encode(PICTURE, 1 - BITS, pilot)
    np.testing.assert_array_equal(encoding.signs, -other.signs)
    assert (encoding.gain > 0).all()
    # The residual is linear in the emphasis of bits, with the pilot beside them.
    one, double, none = (SMALL.draw(encoding, np.full(SMALL.bits, size, np.float32)) for size in (1.0, 2.0, 0.0))
    np.testing.assert_allclose(one, SMALL.draw(encoding), atol=1e-7)
    np.testing.assert_allclose(double - one, one - none, atol=1e-6)


def test_basis_patterns_of_all_cells_lie_where_a_tile_is_drawn() -> None:
    tiles = SMALL.basis_tiles()
    amounts = np.zeros((4, 24, 24), np.float32)
    amounts[2, 8 + 3, 8 + 5] = 1.0  # of the middle tile of nine
    drawn = SMALL._drawn(amounts)[TILE : 2 * TILE, TILE : 2 * TILE]
    np.testing.assert_allclose(drawn, np.roll(tiles[2], (3 * CELL, 5 * CELL), (0, 1)), atol=1e-6)


def test_cells_that_count_for_nothing_say_nothing() -> None:
    nothing = np.zeros((PICTURE.shape[0] // CELL, PICTURE.shape[1] // CELL), np.float32)
    assert not SMALL.extract(PICTURE, nothing).any()
    ones = np.ones_like(nothing)
    np.testing.assert_array_equal(SMALL.extract(PICTURE, ones), SMALL.extract(PICTURE))


def test_the_shipped_network_has_the_name_that_certificates_know() -> None:
    assert Watermarker.load().model == "lattice-67080c76c716"


def test_a_network_comes_back_from_its_file_and_from_the_folder_of_its_run(tmp_path: Path) -> None:
    save(tmp_path / "model.safetensors")
    found = load_network(tmp_path / "model.safetensors")
    assert found.arguments == SMALL.arguments
    for key, value in SMALL.weights.items():
        np.testing.assert_array_equal(found.weights[key], value)
    for path in (tmp_path, tmp_path / "model.safetensors"):
        assert Watermarker.load(path).model == SMALL.name
    with pytest.raises(DataError, match="no such file"):
        Watermarker.load(tmp_path / "nothing")


def test_the_name_of_a_network_is_that_of_its_weights(tmp_path: Path) -> None:
    rewritten(tmp_path / "a")
    rewritten(tmp_path / "b", trained_by="somebody")  # another file, the same weights
    assert (tmp_path / "a").read_bytes() != (tmp_path / "b").read_bytes()
    assert Watermarker.load(tmp_path / "a").model == Watermarker.load(tmp_path / "b").model
    other = {key: value.copy() for key, value in SMALL.weights.items()}
    other["strokes"][0, 0, 0, 0] += 1
    rewritten(tmp_path / "c", weights=other)
    assert Watermarker.load(tmp_path / "c").model != SMALL.name


def test_other_kinds_are_refused(tmp_path: Path) -> None:
    save_weights(tmp_path / "stamp", "stamp", SMALL.arguments, SMALL.weights)
    with pytest.raises(DataError, match="kind lattice, got 'stamp'"):
        Watermarker.load(tmp_path / "stamp")
    other: Any = SMALL.weights
    with pytest.raises(ConfigurationError, match="dict"):
        Watermarker(other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arguments": {"width": 30_000}}, "of shape"),
        ({"arguments": {"width": -8}}, "expected a width"),
        ({"arguments": {"depth": 8}}, "depth"),
        ({"arguments": {"bits": 12.5}}, "whole numbers"),
        ({"arguments": {"channels": 7}}, "1 or 3 channels"),
        ({"weights": {key: value.astype(np.float64) for key, value in SMALL.weights.items()}}, "type float32"),
        ({"weights": {"strokes": np.zeros(1, np.float32)}}, "coarse.0.bias"),
        ({"kind": "swift"}, "got 'swift'"),
        ({"format": "pt"}, "format"),
    ],
)
def test_files_that_do_not_fit_what_they_name_are_refused_before_memory_is_taken(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    rewritten(tmp_path / "a", **change)
    with pytest.raises(DataError, match=message):
        load_network(tmp_path / "a")


def test_torn_and_foreign_files_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "a")
    content = (tmp_path / "a").read_bytes()
    damaged = bytearray(content)
    damaged[-5] ^= 1
    for name, wrong in {"torn": content[:-9], "damaged": bytes(damaged), "foreign": b"x" * 99, "empty": b""}.items():
        (tmp_path / name).write_bytes(wrong)
        with pytest.raises(DataError, match=r"cannot be read|checksum"):
            load_network(tmp_path / name)
    with pytest.raises(DataError, match="a folder"):
        load_network(tmp_path)
