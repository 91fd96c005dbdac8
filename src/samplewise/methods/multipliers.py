"""Where the multipliers of every sample are kept, one table for each constraint."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from samplewise import distributed
from samplewise.errors import MeasureError
from samplewise.methods.base import Places
from samplewise.methods.tally import FullPrecision


class MultiplierTable(FullPrecision):
    """One multiplier, or one for each of its m values, for each sample of one constraint, 4 bytes each.

    All processes hold the same; ``what`` the constraint bounds is for messages.
    """

    values: Tensor

    def __init__(self, samples: int, what: str) -> None:
        super().__init__()
        self.what = what
        # One row more than samples: padding is sent there, so that it needs no branch. It stays zero.
        self.register_buffer("values", torch.zeros(samples + 1))

    def known(self, rows: Tensor, like: Tensor, *, make_room: bool) -> Tensor:
        """The multipliers of the rows ``(B,)``, of the shape of ``like``, ``(B,)`` or ``(B, m)``.

        The first batch of training, which is told by ``make_room``, says that shape.
        """
        had, width = self.values.shape[1:], like.shape[1:]
        if had != width:
            if had or bool(self.values.any()):
                raise MeasureError(
                    f"{self.what} had values of shape {tuple(had)} for each sample before and has {tuple(width)} now: "
                    "expected the same in every batch. Give this method the measure it was trained on"
                )
            if not make_room:
                return torch.zeros_like(like)
            self._widen_(width)
        return self.values.index_select(0, rows)

    def move_(self, places: Places, values: Tensor) -> None:
        """Put the values of this process's batch, and of all others', at their places."""
        if places.present is not None:
            values = values.where(places.present if values.ndim == 1 else places.present.unsqueeze(1), 0.0)
        self.values.index_copy_(0, places.everyone, distributed.all_gather(values.float()))

    def _widen_(self, width: torch.Size) -> None:
        self.values = self.values.new_zeros(len(self.values), *width)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *arguments: Any) -> None:
        saved = state_dict.get(f"{prefix}values")
        if isinstance(saved, Tensor) and len(saved) == len(self.values) and saved.shape[1:] != self.values.shape[1:]:
            self._widen_(saved.shape[1:])  # how many values a sample has may not be known here yet
        super()._load_from_state_dict(state_dict, prefix, *arguments)
