"""Trainings on two processes, started by the tests; the second process is started by Lightning from this file.

python run_lightning.py FOLDER
"""

import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from small_lightning import Module, make_audits, trainer
from torch.utils.data import DataLoader, DistributedSampler

from samplewise import distributed
from samplewise.checkpoint import save_state
from samplewise.integrations import Indexed
from samplewise.integrations.lightning import Rounds
from samplewise.methods import checks
from small import make_data

EPOCHS = 3


class Halves(Module):
    """Trains on this process's half of every batch of forty, in order; Lightning itself would shuffle."""

    def train_dataloader(self) -> DataLoader[Any]:
        dataset = Indexed(make_data())
        return DataLoader(dataset, batch_size=20, sampler=DistributedSampler(dataset, shuffle=False))


def run(folder: Path, module: Halves, *, resume: Path | None = None) -> dict[str, Any]:
    """Train and audit; what the process ends with."""
    audits = make_audits(batch_size=7)
    saved = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=5, save_top_k=-1)
    trainer(folder, Rounds(2), audits, saved, epochs=EPOCHS, strategy="ddp", devices=2).fit(module, ckpt_path=resume)
    return {
        "model": dict(module.model.state_dict()),
        "method": dict(module.method.state_dict()),
        "samples": audits.latest["val"].samples,
        "objective": audits.latest["val"].objective,
    }


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    results = {kind: run(folder / kind, Halves(kind)) for kind in ("sequential", "lagrangian")}
    results["resumed"] = run(folder / "resumed", Halves("sequential"), resume=folder / "sequential" / "step=5.ckpt")
    results["norm"] = run(folder / "norm", Halves("sequential", norm=True))
    checks.can_look = lambda values: False  # statistics in buffers, as on an accelerator
    results["buffers"] = run(folder / "buffers", Halves("sequential"))
    save_state(folder / f"{distributed.rank()}.safetensors", results)


if __name__ == "__main__":
    main()
