"""Networks on disk: the name that their weights give them, and files that are refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from floormark import ConfigurationError, DataError, Watermarker
from floormark.network import Lattice, Network, load_network, network_name, save_network
from network_files import SMALL, rewritten

KINDS: dict[str, type[Network]] = {"lattice": Lattice}


class Stamp(Network):
    """Of another kind than the tool knows."""

    def embed(self, images: Tensor, messages: Tensor) -> Tensor:
        return images

    def extract(self, images: Tensor) -> Tensor:
        return images.new_zeros(len(images), self.bits)

    def message_loss(self, read: Tensor, messages: Tensor) -> Tensor:
        return (read - messages).square().mean(1)


def test_the_shipped_network_has_the_name_that_certificates_know() -> None:
    assert Watermarker.load().model == "lattice-67080c76c716"


def test_a_network_comes_back_from_its_file_and_from_the_folder_of_its_run(tmp_path: Path) -> None:
    save_network(tmp_path / "model.safetensors", SMALL)
    found = load_network(tmp_path / "model.safetensors", KINDS)
    assert found.arguments == SMALL.arguments
    assert not found.training
    for key, value in SMALL.state_dict().items():
        assert torch.equal(found.state_dict()[key], value)
    for path in (tmp_path, tmp_path / "model.safetensors"):
        assert Watermarker.load(path).model == network_name(SMALL)
    with pytest.raises(DataError, match="no such file"):
        Watermarker.load(tmp_path / "nothing")


def test_the_name_of_a_network_is_that_of_its_weights(tmp_path: Path) -> None:
    rewritten(tmp_path / "a")
    rewritten(tmp_path / "b", trained_by="somebody")  # another file, the same weights
    assert (tmp_path / "a").read_bytes() != (tmp_path / "b").read_bytes()
    assert Watermarker.load(tmp_path / "a").model == Watermarker.load(tmp_path / "b").model
    other = {key: value.clone() for key, value in SMALL.state_dict().items()}
    next(iter(other.values())).view(-1)[0] += 1
    rewritten(tmp_path / "c", weights=other)
    assert Watermarker.load(tmp_path / "c").model != network_name(SMALL)


def test_other_kinds_are_kept_under_the_names_that_are_given_and_refused_by_the_tool(tmp_path: Path) -> None:
    save_network(tmp_path / "stamp", Stamp(64, size=64))
    kinds: dict[str, type[Network]] = {"stamp": Stamp}
    found = load_network(tmp_path / "stamp", kinds)
    assert isinstance(found, Stamp)
    assert network_name(found).startswith("stamp-")
    with pytest.raises(DataError, match="kind lattice, got 'stamp'"):
        Watermarker.load(tmp_path / "stamp")
    other: Any = found
    with pytest.raises(ConfigurationError, match="Stamp"):
        Watermarker(other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arguments": {"width": 30_000}}, "size mismatch"),  # 65 GB
        ({"arguments": {"width": -8}}, "expected a width"),
        ({"arguments": {"depth": 8}}, "unexpected keyword"),
        ({"arguments": {"channels": 7}}, "1 or 3 channels"),
        ({"weights": {key: value.double() for key, value in SMALL.state_dict().items()}}, "type torch.float32"),
        ({"weights": {"strokes": torch.zeros(1)}}, "fine.0.weight"),
        ({"kind": "swift"}, "got 'swift'"),
        ({"format": "pt"}, "format"),
    ],
)
def test_files_that_do_not_fit_what_they_name_are_refused_before_memory_is_taken(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    rewritten(tmp_path / "a", **change)
    with pytest.raises(DataError, match=message):
        load_network(tmp_path / "a", KINDS)


def test_torn_and_foreign_files_are_refused(tmp_path: Path) -> None:
    save_network(tmp_path / "a", SMALL)
    content = (tmp_path / "a").read_bytes()
    damaged = bytearray(content)
    damaged[-5] ^= 1
    for name, wrong in {"torn": content[:-9], "damaged": bytes(damaged), "foreign": b"x" * 99, "empty": b""}.items():
        (tmp_path / name).write_bytes(wrong)
        with pytest.raises(DataError, match=r"cannot be read|checksum"):
            load_network(tmp_path / name, KINDS)
    with pytest.raises(DataError, match="a folder"):
        load_network(tmp_path, KINDS)
