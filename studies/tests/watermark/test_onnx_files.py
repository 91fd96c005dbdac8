"""The network as ONNX files: run by onnxruntime they say what floormark's own arithmetic says."""

import json
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from onnxruntime import InferenceSession

from floormark import Watermarker
from floormark.network import CELL, Lattice, pilot_tiles
from natural_images import natural_image
from studies.commands import main
from studies.watermark import networks
from studies.watermark.onnx_files import DECODER_FILE, ENCODER_FILE, export

AGREEMENT = 1e-4  # relative to the largest value
SHAPES = [(64, 64), (256, 256), (72, 200), (264, 312)]  # whole tiles and whole patches, and neither


@pytest.fixture(scope="module")
def network() -> Lattice:
    return Watermarker.load().network


@pytest.fixture(scope="module")
def sessions() -> dict[str, InferenceSession]:
    files = resources.files("floormark")
    return {name: InferenceSession((files / name).read_bytes()) for name in (ENCODER_FILE, DECODER_FILE)}


def agrees(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> bool:
    return found.shape == wanted.shape and bool(np.abs(found - wanted).max() < AGREEMENT * np.abs(wanted).max())


def test_the_shipped_files_are_those_of_the_shipped_network(network: Lattice, tmp_path: Path) -> None:
    for file in export(network, tmp_path):
        assert file.read_bytes() == (resources.files("floormark") / file.name).read_bytes()
        assert file.stat().st_size < 300_000


def test_the_command_writes_a_trained_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = networks.Lattice(128, size=64, width=8)
    networks.save_network(tmp_path / "model.safetensors", trained)
    assert main(["watermark", "export", str(tmp_path), "--out", str(tmp_path / "onnx"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["network"] == networks.network_name(trained)
    picture = np.random.default_rng(0).random((64, 64), np.float32)
    _, logits = InferenceSession(said["files"][1]).run(
        None, {"picture": picture, "weights": np.ones((8, 8), np.float32)}
    )
    with torch.no_grad():
        wanted = trained.eval().extract(torch.from_numpy(picture)[None, None])[0].numpy()
    assert agrees(logits, wanted)


def test_a_network_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watermark", "export", str(tmp_path), "--out", str(tmp_path / "onnx")]) == 2
    assert "model.safetensors" in capsys.readouterr().err
    assert not (tmp_path / "onnx").exists()


@pytest.mark.parametrize("shape", SHAPES)
def test_onnxruntime_draws_and_reads_what_floormark_does(
    shape: tuple[int, int], network: Lattice, sessions: dict[str, InferenceSession]
) -> None:
    rng = np.random.default_rng(0)
    picture = natural_image(height=shape[0], width=shape[1]).astype(np.float32) / np.float32(
        255
    )  # a corner of it is flat
    bits = rng.integers(0, 2, network.bits, dtype=np.uint8)
    emphasis = rng.uniform(0.5, 1.5, network.bits).astype(np.float32)
    (pilot,) = pilot_tiles([b"of this test"])
    drawn = network.draw(network.encode(picture, bits, pilot), emphasis)
    given = {"picture": picture, "bits": bits.astype(np.float32), "pilot": pilot, "emphasis": emphasis}
    (residual,) = sessions[ENCODER_FILE].run(None, given)
    assert agrees(residual, drawn)

    marked = np.clip(picture + drawn, 0, 1)
    weights = rng.random((shape[0] // CELL, shape[1] // CELL), np.float32)
    evidence, logits = sessions[DECODER_FILE].run(None, {"picture": marked, "weights": weights})
    assert agrees(evidence, network.evidence(marked, weights))
    assert agrees(logits, network.extract(marked, weights))
