"""Samples that stay violated round after round: the ones to look at when a problem will not become feasible."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from samplewise.audit import Audit
from samplewise.errors import CheckpointError, ConfigurationError, constraint_named


class Streaks:
    """How many audits in a row each sample has been violated: 6 bytes for each sample and constraint."""

    def __init__(self) -> None:
        self.audits = 0
        self._lengths: dict[str, Tensor] = {}
        self._excess: dict[str, Tensor] = {}  # in the last audit

    def update(self, audit: Audit) -> None:
        """Count one more audit of the same data set."""
        for name, part in audit.items():
            before = self._lengths.get(name, torch.zeros(audit.samples, dtype=torch.int16))
            # Saturating, since what matters is "at least r rounds".
            grown = before + (before < torch.iinfo(torch.int16).max).to(torch.int16)
            self._lengths[name] = torch.where(part.excess > 0, grown, 0)
            self._excess[name] = part.excess.float()
        self.audits += 1

    def persistent(self, name: str, *, rounds: int) -> list[tuple[int, float]]:
        """The samples that the constraint ``name`` found violated in each of the last ``rounds`` audits, worst first.

        As pairs of number and violation in the last audit, in the measure's units.
        """
        lengths: Tensor = constraint_named(name, self._lengths)
        if not 1 <= rounds <= self.audits:
            raise ConfigurationError(f"expected rounds from 1 to {self.audits}, the audits counted, got {rounds}")
        kept = torch.where(lengths >= rounds, self._excess[name], 0.0)
        order = kept.argsort(descending=True, stable=True)[: int((lengths >= rounds).sum())]
        return list(zip(order.tolist(), kept[order].tolist(), strict=True))

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs."""
        return {"lengths": dict(self._lengths), "excess": dict(self._excess), "audits": self.audits}

    def load_state_dict(self, state: Mapping[str, Any], samples: int) -> None:
        """Take back what :meth:`state_dict` gave, of a data set of so many samples."""
        for kept in (*state["lengths"].values(), *state["excess"].values()):
            if kept.shape != (samples,):
                raise CheckpointError(f"has streaks of {len(kept)} samples, expected {samples}")
        self._lengths, self._excess, self.audits = dict(state["lengths"]), dict(state["excess"]), int(state["audits"])
