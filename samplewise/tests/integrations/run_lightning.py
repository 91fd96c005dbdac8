"""Trainings that the tests do on two processes."""

from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint
from small_lightning import Module, Resumable, make_audits, trainer
from torch.utils.data import DataLoader, DistributedSampler

from samplewise.integrations import Indexed
from samplewise.integrations.lightning import Rounds
from samplewise.methods import base
from small import make_data


class Halves(Module):
    """Trains on this process's half of every batch of forty, in order; Lightning itself would shuffle."""

    def train_dataloader(self) -> DataLoader[Any]:
        dataset = Indexed(make_data())
        return Resumable(dataset, batch_size=20, sampler=DistributedSampler(dataset, shuffle=False))


def train(folder: Path, module: Halves, *, resume: Path | None = None) -> dict[str, Any]:
    """Train two epochs and two batches, and audit; what the process ends with."""
    audits = make_audits(batch_size=7)
    saved = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=4, save_top_k=-1)
    run = trainer(folder, Rounds(), audits, saved, epochs=3, max_steps=12, strategy="ddp", devices=2)
    run.fit(module, ckpt_path=resume)
    return {
        "model": dict(module.model.state_dict()),
        "samples": audits.latest["val"].samples,
        "objective": audits.latest["val"].objective,
    }


def work(folder: Path) -> dict[str, Any]:
    results = {kind: train(folder / kind, Halves(kind)) for kind in ("sequential", "lagrangian")}
    results["resumed"] = train(folder / "resumed", Halves("sequential"), resume=folder / "sequential" / "step=4.ckpt")
    results["norm"] = train(folder / "norm", Halves("sequential", norm=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "on_host", lambda values: False)  # statistics in buffers, as on an accelerator
        results["buffers"] = train(folder / "buffers", Halves("sequential"))
    return results
