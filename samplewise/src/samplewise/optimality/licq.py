"""Whether the gradients of the active and violated constraints are linearly independent."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Licq:
    """The extended linear independence constraint qualification (Definition 3), as far as it was checked.

    Theorem 3 needs it of the limit point: without it a limit point may be infeasible, or have no multipliers.
    """

    constraints: int
    """``|I_+|``: pairs of constraint and sample that are active or violated."""
    parameters: int
    checked: int = 0
    """How many of them, drawn at random, were checked."""
    rank: int | None = None
    """Rank of their gradients; None where nothing was checked."""
    smallest: float | None = None
    """Smallest singular value of their gradients, each divided by its length."""
    largest: float | None = None

    @property
    def holds(self) -> bool | None:
        """Whether it holds; None where the gradients that were checked are independent, but others were not checked."""
        if self.constraints > self.parameters or (self.rank is not None and self.rank < self.checked):
            return False
        return True if self.checked == self.constraints else None

    def __str__(self) -> str:
        if not self.constraints:
            return "holds: no constraint is active or violated"
        if self.constraints > self.parameters:
            return f"cannot hold: {self.constraints:,} active or violated constraints, {self.parameters:,} parameters"
        verdict = {True: "holds", False: "fails", None: "not refuted"}[self.holds]
        return (
            f"{verdict}: rank {self.rank} of {self.checked} gradients checked, of {self.constraints:,}; smallest "
            f"singular value {self.smallest:.2g}, largest {self.largest:.2g}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain values."""
        return {**asdict(self), "holds": self.holds}


def check_licq(gradients: Tensor, total: int) -> Licq:
    """E-LICQ of ``total`` active and violated constraints, by the ``gradients`` ``(K, n)`` of some or all of them."""
    parameters = gradients.shape[1]
    if not total or total > parameters:
        return Licq(total, parameters)
    gram = torch.zeros(len(gradients), len(gradients), dtype=torch.float64)
    for piece in gradients.split(2**16, dim=1):  # so that no double-precision copy of all rows is made
        wide = piece.cpu().double()  # in this order: not every device has float64
        gram += wide @ wide.T
    norms = gram.diagonal().sqrt().clamp_min(torch.finfo(torch.float32).tiny)
    singular = torch.linalg.eigvalsh(gram / norms.outer(norms)).clamp_min(0.0).sqrt()
    # A smaller one is zero: rounding of the rows, and of their products, is below this.
    rank = int((singular > (1e-7 if gradients.dtype is torch.float64 else 1e-5)).sum())
    return Licq(total, parameters, len(gradients), rank, float(singular.min()), float(singular.max()))
