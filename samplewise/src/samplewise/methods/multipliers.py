"""The store of per-sample multipliers, sharded over the processes."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from samplewise.errors import ConfigurationError, MeasureError
from samplewise.methods.statistics import FullPrecision
from samplewise.storage import distributed


class MultiplierStore(FullPrecision):
    """One multiplier, or m of them, for each sample of one constraint, 4 bytes each.

    Each process holds a shard, the rows of its part of the samples (:func:`~samplewise.storage.distributed.part_of`).
    The state has only the multipliers that are not zero. ``what`` the constraint bounds is for messages.
    """

    values: Tensor

    def __init__(self, samples: int, what: str) -> None:
        super().__init__()
        self.samples, self.what = samples, what
        self.held, self.sharded = range(samples), False
        # One row more than samples: padding is sent there, so that it needs no branch. It stays zero.
        self.register_buffer("values", torch.zeros(samples + 1, dtype=torch.float32), persistent=False)
        self._gathered: tuple[Tensor, Tensor] | None = None  # in the first process: samples and values of all shards
        self.whole: Tensor | None = None  # the rows of all samples, within Method.gathered()

    def known(self, rows: Tensor, like: Tensor, *, trains: bool) -> Tensor:
        """The multipliers of this process's batch, of the shape of ``like``, ``(B,)`` or ``(B, m)``.

        ``rows`` are those of the batches of all processes if the call ``trains``, which every process must do then;
        otherwise of this process's. The first batch of training fixes m.
        """
        held: Any = self._buffers["values"]  # where it is found at once: nn.Module is slow to find its parts
        had, width = held.shape[1:], like.shape[1:]
        if had != width:
            if had or bool(held.any()):
                raise MeasureError(
                    f"{self.what} had values of shape {tuple(had)} for each sample before and has {tuple(width)} now: "
                    "expected the same in every batch. Give this method the measure it was trained on; where samples "
                    "differ, fill all batches up to one width and give a mask"
                )
            if not trains:
                return torch.zeros_like(like)
            self.values = held = held.new_zeros(len(held), *width)
        if not self.sharded:
            found: Tensor = held.index_select(0, rows)
            return found
        if trains:
            # Of each sample one process knows the multiplier and all others add zero.
            known = distributed.all_sum_(held.index_select(0, self._local(rows)))
            return known.view(-1, len(like), *width)[distributed.replica()]
        if self.whole is None:
            raise ConfigurationError(
                "the multipliers are sharded over the processes: enter method.gathered() in every process, and take "
                "the loss of samples that are not trained on, or multipliers, within it"
            )
        return self.whole.index_select(0, rows)

    def move_(self, rows: Tensor, values: Tensor) -> None:
        """Store the new ``values`` of this process's batch, and of all others', in the ``rows`` of all batches."""
        held: Any = self._buffers["values"]
        if self.sharded:
            held.index_copy_(0, self._local(rows), distributed.all_gather(values.float()))
            held[-1] = 0.0  # where the rows of other shards went
        else:
            held.index_copy_(0, rows, values.float())
        if self._gathered is not None:
            self._gathered = None

    def everywhere(self) -> Tensor:
        """The multipliers of all samples, and the spare row; every process must call."""
        self.shard_()
        if not self.sharded:
            return self.values
        return torch.cat([distributed.all_parts(self.values[:-1], self.samples), self.values[-1:]])

    def gather_(self) -> None:
        """Send all that are not zero to the first process, so that its state is whole."""
        self.shard_()
        rows, values = (distributed.to_first(each) for each in self._nonzero())
        self._gathered = (rows, values) if distributed.replica() == 0 else None

    def shard_(self) -> None:
        """Keep this process's shard, if there are several processes since the method was made or loaded."""
        if not self.sharded and distributed.replicas() > 1:
            self.held, self.sharded = distributed.part_of(self.samples), True
            self.values = torch.cat([self.values[self.held.start : self.held.stop], self.values[-1:]])

    def _local(self, rows: Tensor) -> Tensor:
        """The rows in this process's shard, the spare one for those of others."""
        held = (rows >= self.held.start) & (rows < self.held.stop)
        return torch.where(held, rows - self.held.start, len(self.held))

    def _nonzero(self) -> tuple[Tensor, Tensor]:
        values = self.values[:-1]
        rows = (values if values.ndim == 1 else values.abs().sum(1)).nonzero().flatten()
        return rows + self.held.start, values[rows]

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        covered = self.held if self._gathered is None else range(self.samples)
        rows, values = self._nonzero() if self._gathered is None else self._gathered
        destination[f"{prefix}covered"] = torch.tensor([covered.start, covered.stop, self.samples])
        destination[f"{prefix}rows"], destination[f"{prefix}values"] = rows, values

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *arguments: Any, **named: Any) -> None:
        *_, missing, _, errors = arguments
        names = [f"{prefix}{key}" for key in ("covered", "rows", "values")]
        if absent := [name for name in names if name not in state_dict]:
            missing += absent
            return
        covered, rows, values = (state_dict[name] for name in names)
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
        fresh = self.values.new_zeros(len(self.values), *values.shape[1:])
        self.values = fresh.index_copy_(0, (rows[mine] - self.held.start).to(fresh.device), values[mine].to(fresh))
        self._gathered = None
