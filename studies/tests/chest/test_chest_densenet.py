from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

from samplewise.errors import CheckpointError, DataError
from studies.chest.densenet import Classifier, load_classifier, load_pretrained, save_classifier


def weights_of_three_channels() -> dict[str, torch.Tensor]:
    """ImageNet's layout in MONAI's names: three channels, a thousand classes."""
    from monai.networks.nets.densenet import DenseNet121

    torch.manual_seed(3)
    network = DenseNet121(spatial_dims=2, in_channels=3, out_channels=1000)
    return dict(network.state_dict())


def as_torchvision(weights: dict[str, torch.Tensor], *, old: bool = False) -> dict[str, torch.Tensor]:
    """The same in torchvision's names, or those of the file that it downloads, which also counts no batches."""
    renamed = {}
    for name, value in weights.items():
        if old and name.endswith("num_batches_tracked"):
            continue
        name = name.replace(".layers.", ".").replace("class_layers.out", "classifier")
        for layer in ("norm1", "norm2", "conv1", "conv2"):
            if old and "denselayer" in name:
                name = name.replace(f".{layer}.", f".{layer[:-1]}.{layer[-1]}.")
        renamed[name] = value
    return renamed


@pytest.mark.parametrize("layout", ["monai", "torchvision", "old"])
def test_published_weights_see_a_grey_image_as_before(layout: str, tmp_path: Path) -> None:
    from monai.networks.nets.densenet import DenseNet121

    weights = weights_of_three_channels()
    coloured = DenseNet121(spatial_dims=2, in_channels=3, out_channels=1000)
    coloured.load_state_dict(weights)
    if layout == "monai":
        save_file(weights, path := tmp_path / "weights.safetensors")
    else:
        torch.save(as_torchvision(weights, old=layout == "old"), path := tmp_path / "weights.pth")
    classifier = Classifier(32).eval()
    load_pretrained(classifier, path)
    grey = torch.rand(2, 1, 32, 32)
    expected = coloured.eval().features(grey.expand(-1, 3, -1, -1))
    assert torch.allclose(classifier.densenet.features(grey), expected, atol=1e-4)


def test_a_classifier_goes_on_from_one_that_looks_at_smaller_images(tmp_path: Path) -> None:
    torch.manual_seed(4)
    small, large = Classifier(32).eval(), Classifier(48).eval()
    save_classifier(path := tmp_path / "model.safetensors", small)
    load_pretrained(large, path)
    images = torch.rand(2, 1, 48, 48)
    assert torch.equal(large.densenet.features(images), small.densenet.features(images))
    assert large.size == 48
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="cannot be read as weights"):
        load_pretrained(large, path)


def test_torchvisions_names_are_those_of_the_test() -> None:
    torchvision = pytest.importorskip("torchvision")
    own = torchvision.models.densenet121(weights=None).state_dict()
    assert {n: v.shape for n, v in as_torchvision(weights_of_three_channels()).items()} == {
        name: value.shape for name, value in own.items()
    }


def test_other_files_are_refused_in_a_line(tmp_path: Path) -> None:
    classifier = Classifier(32)
    path = tmp_path / "weights.pth"
    with pytest.raises(DataError, match="no such file"):
        load_pretrained(classifier, path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match="cannot be read as weights"):
        load_pretrained(classifier, path)
    torch.save([1, 2], path)
    with pytest.raises(DataError, match="expected tensors by name"):
        load_pretrained(classifier, path)
    torch.save({"features.conv0.weight": torch.zeros(64, 3, 7, 7)}, path)
    with pytest.raises(DataError, match="are missing"):
        load_pretrained(classifier, path)
    torch.save({**weights_of_three_channels(), "features.extra": torch.zeros(1)}, path)
    with pytest.raises(DataError, match=r"features\.extra"):
        load_pretrained(classifier, path)


def test_images_of_any_size_and_channels_are_looked_at_alike() -> None:
    classifier = Classifier(32).eval()
    grey = torch.rand(2, 1, 32, 32)
    with torch.no_grad():
        logits = classifier(grey)
        assert logits.shape == (2, 14)
        assert torch.allclose(classifier(grey.expand(-1, 3, -1, -1)), logits, atol=1e-5)
        large = torch.rand(2, 1, 64, 64)
        shrunk = functional.interpolate(large, (32, 32), mode="bilinear", antialias=True)
        assert torch.allclose(classifier(large), classifier(shrunk), atol=1e-5)


def test_a_classifier_is_read_as_it_was_written(tmp_path: Path) -> None:
    classifier = Classifier(40)
    classifier.thresholds.copy_(torch.linspace(0.1, 0.9, 14))
    save_classifier(tmp_path / "model.safetensors", classifier)
    read = load_classifier(tmp_path / "model.safetensors")
    assert read.size == 40
    assert all(torch.equal(value, read.state_dict()[name]) for name, value in classifier.state_dict().items())
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        load_classifier(tmp_path / "other.safetensors")
