"""The folder of a run: what was asked, where it stands, and its best model. Everything needed to go on or to report."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from samplewise import distributed
from samplewise.checkpoint import Checkpoints, atomic, ensure_writable, write_json
from samplewise.errors import CheckpointError, OutputError
from samplewise.history import History
from samplewise.provenance import provenance

__all__ = ["RunFolder"]

IDENTITY = "run.json"
BEST = "best.safetensors"
FINDINGS = "audit.json"


class RunFolder:
    """One run on disk.

    ``run.json`` says what was asked and where it was made, ``history.jsonl`` and ``history.csv`` hold the numbers of
    each epoch, ``checkpoints/`` the state to go on from, ``best.safetensors`` the selected model, ``audit.json`` what
    holds for it.

    Args:
        path: the folder.
        asked: what identifies the run; a folder of another run is refused.
        needed: bytes of one checkpoint.
        keep: how many checkpoints stay.
        resume: go on from what is there; otherwise the folder must not hold a run.
        device: where the run trains.
    """

    def __init__(
        self, path: Path, asked: dict[str, Any], *, needed: int, keep: int, resume: bool, device: str = "cpu"
    ) -> None:
        self.path = Path(path)
        self.checkpoints = Checkpoints(self.path / "checkpoints", keep=keep)
        self._writes = distributed.rank() == 0
        self._best: dict[str, torch.Tensor] | None = None
        if not self._writes:
            return
        ensure_writable(self.path, needed=needed * (keep + 1))  # one more while it is written
        identity = self.path / IDENTITY
        if identity.exists():
            if not resume:
                raise OutputError(f"{self.path} holds a run already: choose another folder, or resume it")
            self._compare(identity, asked)
        else:
            strangers = sorted(entry.name for entry in self.path.iterdir() if not entry.name.startswith("."))
            if {"checkpoints", BEST} & set(strangers):
                raise CheckpointError(
                    f"{self.path} holds checkpoints but no {IDENTITY}: it is not a run of this library"
                )
            write_json(identity, {"asked": asked, "provenance": provenance(seed=asked.get("seed"), device=device)})

    def _compare(self, identity: Path, asked: dict[str, Any]) -> None:
        try:
            found = json.loads(identity.read_text())["asked"]
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{identity} cannot be read as the description of a run: {error}") from error
        wanted = json.loads(json.dumps(asked))
        for key in {**wanted, **found}:
            if wanted.get(key) != found.get(key):
                raise CheckpointError(
                    f"{self.path} holds another run: its {key} is {found.get(key)!r}, now it is {wanted.get(key)!r}. "
                    "Choose another folder, or ask for the same"
                )

    def latest(self) -> dict[str, Any] | None:
        """The state to go on from, if there is one; what a kill left behind is cleared away."""
        if self._writes:
            self.checkpoints.clear_torn()
        return self.checkpoints.latest()

    def history(self, epochs: int) -> History:
        """The history of the first ``epochs`` epochs; what was written after the checkpoint will be made again."""
        rows = [row for row in History.read(self.path).rows if row["epoch"] <= epochs]
        return History(self.path if self._writes else None, rows)

    def save(
        self,
        step: int,
        state: dict[str, Any],
        best: dict[str, torch.Tensor] | None,
        findings: dict[str, Any] | None = None,
    ) -> None:
        """Write a checkpoint and, if it has changed, the selected model as plain safetensors and what holds for it.

        The checkpoint is whole by itself; the others stand beside it for whoever wants just them.
        """
        if not self._writes:
            return
        self.checkpoints.save(step, state)
        self.keep_best(best, findings)

    def keep_best(self, best: dict[str, torch.Tensor] | None, findings: dict[str, Any] | None) -> None:
        """Write the selected model and what holds for it, if they have changed."""
        if self._writes and best is not None and best is not self._best:
            with atomic(self.path / BEST) as temporary:
                save_file({name: value.contiguous() for name, value in best.items()}, temporary)
            if findings is not None:
                write_json(self.path / FINDINGS, findings)
            self._best = best
