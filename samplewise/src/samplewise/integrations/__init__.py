"""The methods inside other trainers: ``integrations.lightning`` and ``integrations.huggingface``."""

from collections.abc import Mapping
from typing import Any

from torch.utils.data import Dataset

__all__ = ["Indexed"]


class Indexed(Dataset[Any]):
    """A map-style data set whose samples say their number: at the end of a tuple, under ``"index"`` in a dictionary.

    ``fit`` does without; in another trainer's loop the augmented Lagrangian needs the number for its multipliers.

    Example:
        >>> Indexed([("a", 1), ("b", 2)])[1]
        ('b', 2, 1)
        >>> Indexed([{"x": 5}])[0]
        {'x': 5, 'index': 0}
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        sample = self.dataset[index]
        if isinstance(sample, Mapping):
            return {**sample, "index": index}
        return (*sample, index) if isinstance(sample, tuple) else (sample, index)
