"""The small problem of the tests for the Hugging Face Trainer, and arguments that keep it quiet."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import TrainingArguments

import samplewise as sw
from samplewise.integrations import Indexed
from samplewise.integrations.huggingface import ConstrainedTrainer
from small import evaluate, make_data, make_method, make_model, make_problem


class Dictionaries(Dataset[Any]):
    """The data as the Trainer wants it."""

    def __init__(self, samples: int = 200, seed: int = 0) -> None:
        self.tensors = make_data(samples, seed).tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": self.tensors[0][index], "labels": self.tensors[1][index]}


def evaluate_inputs(model: nn.Module, inputs: Any) -> tuple[Tensor, dict[str, Tensor]]:
    return evaluate(model, (inputs["x"], inputs["labels"]))


def arguments(folder: Path, *, epochs: int = 4, **options: Any) -> TrainingArguments:
    defaults: dict[str, Any] = {
        "dataloader_pin_memory": False,
        "disable_tqdm": True,
        "learning_rate": 1e-2,
        "logging_strategy": "no",
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "per_device_eval_batch_size": 20,
        "per_device_train_batch_size": 40,
        "report_to": "none",
        "save_strategy": "no",
        "train_sampling_strategy": "sequential",
        "use_cpu": True,
    }
    return TrainingArguments(output_dir=str(folder), num_train_epochs=epochs, **(defaults | options))


def make_trainer(args: TrainingArguments, kind: str = "sequential", *, dropout: float = 0.0, **options: Any) -> Any:
    """The trainer; as Any, since by the types of Hugging Face it may have no model."""
    model = make_model(dropout=dropout)
    defaults: dict[str, Any] = {
        "problem": sw.Problem(evaluate_inputs, make_problem().constraints),
        "method": make_method(kind),
    }
    return ConstrainedTrainer(
        model=model,
        args=args,
        train_dataset=Indexed(Dictionaries()),
        eval_dataset=Dictionaries(51, 1),
        optimizers=(torch.optim.Adam(model.parameters(), lr=1e-2), None),
        **(defaults | options),
    )
