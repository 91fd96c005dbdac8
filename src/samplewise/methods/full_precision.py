"""Modules whose state keeps its precision, whatever the model around them is cast to."""

from collections.abc import Callable
from typing import Self

from torch import Tensor, nn

__all__ = ["FullPrecision"]


class FullPrecision(nn.Module):
    """Follows a move to another device, but no cast: sums and multipliers need their precision."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        super()._apply(move, recurse)  # type: ignore[no-untyped-call]  # torch leaves it without types
        return self
