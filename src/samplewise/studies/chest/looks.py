"""What the classifier has seen already, kept while a comparison is unfinished, so that it can go on."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from samplewise.checkpoint import load_state, save_state
from samplewise.errors import CheckpointError
from samplewise.studies.chest.auroc import Array

__all__ = ["Looks"]


@dataclass(frozen=True)
class Looks:
    """A file for each set of images that was looked at.

    Args:
        folder: where they are; made when the first is kept.
        about: what they are of, such as the fingerprints of classifier and pictures; others are not taken.
    """

    folder: Path
    about: Mapping[str, str]

    def take(self, of: str, look: Callable[[], Mapping[str, Array]]) -> Mapping[str, Array]:
        """What was kept of these images or, if nothing was, what ``look`` sees, which is kept.

        Args:
            of: what tells the images from others, such as the fingerprint of the network that marked them.
            look: gives arrays by name.
        """
        path = self.folder / f"{of}.safetensors"
        about = {**self.about, "of": of}
        if path.exists():
            with suppress(CheckpointError):  # torn or foreign: looked at again
                stored = load_state(path)
                if stored.get("about") == about:
                    return {name: values.numpy() for name, values in stored["arrays"].items()}
        found = look()
        save_state(path, {"about": about, "arrays": {name: torch.from_numpy(each) for name, each in found.items()}})
        return found
