"""The multipliers of every sample, shared out over the processes."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from samplewise.errors import ConfigurationError, MeasureError
from samplewise.methods.base import Places
from samplewise.methods.tally import FullPrecision
from samplewise.storage import distributed


class MultiplierTable(FullPrecision):
    """One multiplier, or one for each of its m values, for each sample of one constraint, 4 bytes each.

    Each process holds those of its :func:`~samplewise.storage.distributed.part_of` of the samples; its state has only
    those that are not zero. ``what`` the constraint bounds is for messages.
    """

    values: Tensor

    def __init__(self, samples: int, what: str) -> None:
        super().__init__()
        self.samples, self.what = samples, what
        self.held = range(samples)
        # One row more than samples: padding is sent there, so that it needs no branch. It stays zero.
        self.register_buffer("values", torch.zeros(samples + 1, dtype=torch.float32), persistent=False)
        self._known: tuple[Tensor, Tensor] | None = None  # all that are not zero, with their samples
        self.whole: Tensor | None = None  # of all samples, while they are judged

    def known(self, places: Places, like: Tensor, *, trains: bool) -> Tensor:
        """The multipliers of a batch, of the shape of ``like``, ``(B,)`` or ``(B, m)``.

        The first batch of training says that shape. In training every process must call.
        """
        if trains:
            self._let_go_()
        had, width = self.values.shape[1:], like.shape[1:]
        if had != width:
            if had or bool(self.values.any()):
                raise MeasureError(
                    f"{self.what} had values of shape {tuple(had)} for each sample before and has {tuple(width)} now: "
                    "expected the same in every batch. Give this method the measure it was trained on; where samples "
                    "differ, fill all batches up to one width and give a mask"
                )
            if not trains:
                return torch.zeros_like(like)
            self.values = self.values.new_zeros(len(self.values), *width)
        if len(self.held) == self.samples:
            return self.values.index_select(0, places.own)
        if trains:
            # Of each sample one process knows the multiplier and all others add zero.
            known = distributed.all_sum_(self.values.index_select(0, self._rows(places.everyone)))
            return known.view(-1, len(like), *width)[distributed.replica()]
        if self.whole is None:
            raise ConfigurationError(
                "the multipliers are shared out over the processes: enter method.gathered() in every process, and take "
                "the loss of samples that are not trained on, or multipliers, within it"
            )
        return self.whole.index_select(0, places.own)

    def move_(self, places: Places, values: Tensor) -> None:
        """Put the values of this process's batch, and of all others', where they are held."""
        if places.present is not None:
            values = values.where(places.present if values.ndim == 1 else places.present.unsqueeze(1), 0.0)
        self.values.index_copy_(0, self._rows(places.everyone), distributed.all_gather(values.float()))
        if len(self.held) < self.samples:
            self.values[-1] = 0.0  # where those that others hold went
        self._known = None

    def everywhere(self) -> Tensor:
        """The multipliers of all samples, and the spare row; every process must call."""
        self._let_go_()
        if len(self.held) == self.samples:
            return self.values
        return torch.cat([distributed.all_parts(self.values[:-1], self.samples), self.values[-1:]])

    def gather_(self) -> None:
        """Tell the first process all that are not zero, so that its state is whole."""
        self._let_go_()
        rows, values = (distributed.to_first(each) for each in self._nonzero())
        self._known = (rows, values) if distributed.replica() == 0 else None

    def _let_go_(self) -> None:
        """Keep this process's share, if the processes have met since the method was made or loaded."""
        share = distributed.part_of(self.samples)
        if len(self.held) == self.samples and share != self.held:
            self.values = torch.cat([self.values[share.start : share.stop], self.values[-1:]])
            self.held = share

    def _rows(self, samples: Tensor) -> Tensor:
        if len(self.held) == self.samples:
            return samples
        held = (samples >= self.held.start) & (samples < self.held.stop)
        return torch.where(held, samples - self.held.start, len(self.held))

    def _nonzero(self) -> tuple[Tensor, Tensor]:
        values = self.values[:-1]
        rows = (values if values.ndim == 1 else values.abs().sum(1)).nonzero().flatten()
        return rows + self.held.start, values[rows]

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        covered = self.held if self._known is None else range(self.samples)
        rows, values = self._nonzero() if self._known is None else self._known
        destination[f"{prefix}covered"] = torch.tensor([covered.start, covered.stop, self.samples])
        destination[f"{prefix}rows"], destination[f"{prefix}values"] = rows, values

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *arguments: Any, **named: Any) -> None:
        *_, missing, _, errors = arguments
        values, rows = state_dict.get(f"{prefix}values"), state_dict.get(f"{prefix}rows")
        covered = state_dict.get(f"{prefix}covered")
        if rows is None and isinstance(values, Tensor):  # as it was written while every process held all
            rows, covered = torch.arange(len(values) - 1), torch.tensor([0, len(values) - 1, len(values) - 1])
            values = values[:-1]
        if values is None or rows is None or covered is None:
            missing.append(f"{prefix}values")
            return
        start, stop, samples = covered.tolist()
        if samples != self.samples or start > self.held.start or stop < self.held.stop:
            errors.append(
                f"{prefix}values: it has the multipliers of samples {start} to {stop - 1} of {samples}, expected those "
                f"of {self.held.start} to {self.held.stop - 1} of {self.samples}. Several processes call gather_() "
                "before the first one's state is taken"
            )
            return
        if len(rows) != len(values) or not bool(((rows >= 0) & (rows < samples)).all()):
            errors.append(
                f"{prefix}values: size mismatch, {len(values)} multipliers for {len(rows)} of {samples} samples"
            )
            return
        mine = (rows >= self.held.start) & (rows < self.held.stop)
        found = self.values.new_zeros(len(self.values), *values.shape[1:])
        self.values = found.index_copy_(0, (rows[mine] - self.held.start).to(found.device), values[mine].to(found))
        self._known = None
