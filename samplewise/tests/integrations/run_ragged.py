"""Evaluations of sequences of different lengths that the tests do on one process and on two."""

from pathlib import Path
from typing import Any

from small_huggingface import arguments

import samplewise as sw
from ragged import Scores, collate, make_problem, sequences
from samplewise.integrations.huggingface import ConstrainedTrainer


def make_ragged(folder: Path, problem: sw.Problem | None = None, **options: Any) -> Any:
    problem, data = problem or make_problem(), sequences()
    chosen = {"per_device_eval_batch_size": 2, "per_device_train_batch_size": 4, "remove_unused_columns": False}
    return ConstrainedTrainer(
        model=Scores(),
        args=arguments(folder, **(chosen | options)),
        train_dataset=data,
        eval_dataset=data,
        data_collator=collate,
        problem=problem,
        method=sw.SequentialPenalty(problem.constraints, schedule=sw.Constant(1.0)),
    )


def work(folder: Path) -> dict[str, Any]:
    trainer = make_ragged(folder, ddp_backend="gloo")
    trainer.evaluate()
    found = trainer.audits["eval"]
    return {"values": found["score"].values, "objectives": found.objectives}
