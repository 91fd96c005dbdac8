"""Trainings on two processes, started by the tests.

torchrun --standalone --nproc-per-node=2 run_huggingface.py FOLDER
"""

import sys
from pathlib import Path
from typing import Any

import torch
from small_huggingface import arguments, make_trainer

from samplewise import distributed
from samplewise.checkpoint import save_state


def run(folder: Path, kind: str, *, resume: Path | None = None) -> dict[str, Any]:
    """Train on this process's half of every batch of forty and evaluate; what the process ends with."""
    options: dict[str, Any] = {"save_strategy": "epoch", "ddp_backend": "gloo", "per_device_train_batch_size": 20}
    trainer = make_trainer(arguments(folder, epochs=3, **options), kind, epochs_per_round=2)
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    trainer.evaluate()
    (found,) = (entry for entry in trainer.state.log_history if "running/objective" in entry)
    return {
        "model": dict(trainer.model.state_dict()),
        "samples": trainer.audits["eval"].samples,
        "round": {name: value for name, value in found.items() if "/" in name},
    }


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    results = {kind: run(folder / kind, kind) for kind in ("sequential", "lagrangian")}
    results["resumed"] = run(folder / "resumed", "sequential", resume=folder / "sequential" / "checkpoint-5")
    save_state(folder / f"{distributed.rank()}.safetensors", results)


if __name__ == "__main__":
    main()
