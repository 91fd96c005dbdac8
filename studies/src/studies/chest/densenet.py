"""The pathology classifier: MONAI's DenseNet-121 over grey images of any size, its files and its predictions."""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from samplewise.errors import CheckpointError, DataError
from samplewise.problem import evaluation_mode
from samplewise.samples import in_order
from samplewise.storage import decoding, load_state, save_state
from studies.chest.auroc import Array
from studies.pictures import PATHOLOGIES, PictureData

FORMAT = "samplewise-classifier-1"
MEAN, DEVIATION = 0.449, 0.226  # of ImageNet's pixels over all channels, which published weights expect
LAST_LAYER = ("classifier.", "class_layers.")  # of a thousand other classes
# torchvision's name, and the one in the file that it downloads, of what MONAI keeps in `layers`.
LAYER = re.compile(r"(denselayer\d+)\.(norm|conv)\.?([12])\.")


class Classifier(nn.Module):
    """Logits of the 14 pathologies from images of any size, which are resized to ``size``, that of its training."""

    def __init__(self, size: int) -> None:
        super().__init__()
        from monai.networks.nets.densenet import DenseNet121

        self.size = size
        self.densenet = DenseNet121(spatial_dims=2, in_channels=1, out_channels=len(PATHOLOGIES))
        self.register_buffer("thresholds", torch.full((len(PATHOLOGIES),), 0.5))
        self.thresholds: Tensor
        """Operating points: the probability from which a pathology counts as found, ``(14,)``."""

    def forward(self, images: Tensor) -> Tensor:
        """Images in [0, 1], ``(B, C, H, W)``, to logits ``(B, 14)``."""
        grey = images.mean(1, keepdim=True)
        if grey.shape[2:] != (self.size, self.size):
            grey = functional.interpolate(grey, (self.size, self.size), mode="bilinear", antialias=True)
        logits: Tensor = self.densenet((grey - MEAN) / DEVIATION)
        return logits

    def start_at(self, prevalence: Tensor) -> None:
        """Let the network begin at the probabilities ``(14,)``, not at a half, which is far off for rare findings."""
        with torch.no_grad():
            self.densenet.get_parameter("class_layers.out.bias").copy_(prevalence.logit())


def load_pretrained(classifier: Classifier, path: Path) -> None:
    """Take all but the last layer from published ImageNet weights, in torchvision's or MONAI's names, or a classifier.

    The first convolution is summed over red, green and blue: what it gave for a grey image it gives for one channel.
    ``path`` is a safetensors file, one of ``torch.save`` with tensors alone, or one of :func:`save_classifier`.
    """
    weights = {
        LAYER.sub(r"\1.layers.\2\3.", name): value
        for name, value in _read_weights(path).items()
        if not name.startswith(LAST_LAYER)
    }
    first = weights.get("features.conv0.weight")
    if first is not None and first.ndim == 4:
        weights["features.conv0.weight"] = first.sum(1, keepdim=True)
    own = {name: value for name, value in classifier.densenet.state_dict().items() if not name.startswith(LAST_LAYER)}
    # Older files do not count batches, which nothing depends on here.
    missing = [name for name in own if name not in weights and not name.endswith("num_batches_tracked")]
    wrong = [name for name, value in weights.items() if name not in own or value.shape != own[name].shape]
    if missing or wrong:
        raise DataError(
            f"{path}: expected weights of DenseNet-121 in torchvision's or MONAI's names; {len(missing)} are missing "
            f"and {len(wrong)} do not fit, first {(missing + wrong)[0]}"
        )
    classifier.densenet.load_state_dict(weights, strict=False)


def _read_weights(path: Path) -> Mapping[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            with suppress(CheckpointError):
                return load_classifier(path).densenet.state_dict()
            return load_file(path)
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; expected weights of DenseNet-121") from None
    except Exception as error:  # of many kinds, from many layers
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path}: cannot be read as weights, a safetensors or torch.save file: {reason}") from error
    if not isinstance(weights, Mapping) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise DataError(f"{path}: expected tensors by name, as state_dict() gives them, got something else")
    return weights


def save_classifier(path: Path, classifier: Classifier) -> None:
    """Write the classifier, whole or not at all."""
    weights = {key: value.cpu() for key, value in classifier.state_dict().items()}
    save_state(path, {"format": FORMAT, "size": classifier.size, "labels": list(PATHOLOGIES), "model": weights})


def load_classifier(path: Path) -> Classifier:
    """Build the classifier that :func:`save_classifier` wrote: in eval mode, frozen."""
    state = load_state(path)
    if state.get("format") != FORMAT or state.get("labels") != list(PATHOLOGIES):
        raise CheckpointError(f"{path}: is not a classifier of this version of the library")
    with decoding(path, "a classifier"):
        classifier = Classifier(int(state["size"]))
        classifier.load_state_dict(state["model"])
    return classifier.eval().requires_grad_(False)


def probabilities(
    classifier: Classifier, data: PictureData, *, batch_size: int = 64, watch: Callable[[int, int], None] | None = None
) -> Array:
    """The predicted probabilities of every picture, ``(n, 14)``; ``watch`` gets the number done and of all."""
    device = next(classifier.parameters()).device
    found = []
    with evaluation_mode(classifier):
        for batch, index in in_order(data, batch_size=batch_size, device=device):
            found.append(classifier(batch[0]).sigmoid())
            if watch is not None:
                watch(int(index[-1]) + 1, len(data))
    return torch.cat(found).double().cpu().numpy()
