"""Trainings that the tests do on two processes."""

from pathlib import Path
from typing import Any

from small_huggingface import arguments, make_trainer


def train(folder: Path, kind: str, *, resume: Path | None = None) -> dict[str, Any]:
    """Train on this process's half of every batch of forty and evaluate; what the process ends with."""
    options: dict[str, Any] = {"save_strategy": "epoch", "ddp_backend": "gloo", "per_device_train_batch_size": 20}
    trainer = make_trainer(arguments(folder, epochs=3, **options), kind, steps_per_round=10)
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    trainer.evaluate()
    (found,) = (entry for entry in trainer.state.log_history if "running/objective" in entry)
    return {
        "model": dict(trainer.model.state_dict()),
        "samples": trainer.audits["eval"].samples,
        "round": {name: value for name, value in found.items() if "/" in name},
    }


def work(folder: Path) -> dict[str, Any]:
    results = {kind: train(folder / kind, kind) for kind in ("sequential", "lagrangian")}
    results["resumed"] = train(folder / "resumed", "sequential", resume=folder / "sequential" / "checkpoint-5")
    return results
