"""Runs of training, read from their folders to be judged."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from samplewise.checkpoint import MODEL_FILE
from samplewise.data.records import read_json
from samplewise.errors import CheckpointError, DataError
from samplewise.watermark.networks import Network, load_network
from samplewise.watermark.recipe import Recipe
from samplewise.watermark.training import RECIPE_FILE, RESULT_FILE

__all__ = ["Run", "read_trained"]


@dataclass(frozen=True)
class Run:
    """A finished run of training."""

    folder: Path
    name: str
    """The folder's name, with a number where two are alike."""
    label: str
    """What it is, in a few words."""
    recipe: Recipe
    network: Network
    result: dict[str, Any]
    """How the training ended; empty if it was killed right before it could say so."""

    @property
    def split(self) -> dict[str, Any] | None:
        """Rule and seed of the split that it was trained on, if the run says so."""
        split = self.result.get("split")
        return split if isinstance(split, dict) else None

    @property
    def split_seed(self) -> int:
        """The seed to split a folder of pictures by, so that its test part was not trained on."""
        return int((self.split or {}).get("seed", self.recipe.seed))


def read_trained(folders: Sequence[Path]) -> list[Run]:
    """Read finished runs; their names and labels differ from each other.

    Raises:
        DataError: a folder holds no run, or an unfinished one.
        CheckpointError: a file of it is torn, foreign or of another version.
    """
    runs = [_read(folder) for folder in folders]
    labels = Counter(run.label for run in runs)
    unique: dict[str, Run] = {}
    for run in runs:
        name, number = run.name, 1
        while name in unique or (number > 1 and any(name == other.name for other in runs)):
            number += 1
            name = f"{run.name}-{number}"
        label = run.label if labels[run.label] == 1 else f"{run.label} ({name})"
        unique[name] = replace(run, name=name, label=label)
    return list(unique.values())


def _read(folder: Path) -> Run:
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; expected one made by samplewise watermark train")
    recipe = RECIPE_FILE.read(folder)
    path = folder / MODEL_FILE
    if not path.exists():
        raise DataError(
            f"{folder}: its training is unfinished ({MODEL_FILE} is missing); go on with the command that began it "
            "and --resume"
        )
    network = load_network(path)
    if (network.bits, network.size) != (recipe.bits, recipe.size):
        raise CheckpointError(
            f"{path}: hides {network.bits} bits at size {network.size}, but the recipe beside it says {recipe.bits} "
            f"bits at size {recipe.size}; train anew"
        )
    result = folder / RESULT_FILE
    ended = read_json(result, "a result of watermark train") if result.exists() else {}
    goal = f"MSE x {recipe.image_loss:g}" if recipe.image_loss else f"C = {recipe.floor:g} dB"
    diagnosis = "" if recipe.diagnosis is None else f", diagnosis {recipe.diagnosis:g}"
    label = f"{recipe.network}, {goal}{diagnosis}" + ("" if recipe.noise == "identity" else ", noise")
    return Run(folder, folder.resolve().name, label, recipe, network, ended)
