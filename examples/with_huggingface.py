"""Hugging Face: a small BERT that may not be unsure of any single example; a bound on every loss, not on their mean."""

import tempfile

import torch
from torch.nn.functional import cross_entropy
from transformers import BertConfig, BertForSequenceClassification, PrinterCallback, TrainingArguments, set_seed
from transformers.utils.logging import disable_progress_bar

import samplewise as sw
from samplewise.integrations.huggingface import ConstrainedTrainer

LENGTH = 6


def sequences(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Six digits each; the label says whether their sum is at least 27."""
    digits = torch.randint(10, (count, LENGTH), generator=torch.Generator().manual_seed(seed))
    large = (digits.sum(1) >= 27).long()
    return [{"input_ids": row, "labels": label} for row, label in zip(digits, large, strict=True)]


def evaluate(model, inputs):
    """Objective and measures of each sample."""
    logits = model(input_ids=inputs["input_ids"]).logits
    loss = cross_entropy(logits, inputs["labels"], reduction="none")
    return loss, {"surprise": loss, "accuracy": (logits.argmax(1) == inputs["labels"]).float()}


def main() -> None:
    """Train, and say what holds before and after."""
    set_seed(0)
    disable_progress_bar()
    train, test, validation = sequences(1000, seed=1), sequences(500, seed=2), sequences(500, seed=3)
    config = BertConfig(
        vocab_size=10,
        max_position_embeddings=LENGTH,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    problem = sw.Problem(evaluate, [sw.AtMost("surprise", 0.3)])
    with tempfile.TemporaryDirectory() as folder:
        trainer = ConstrainedTrainer(
            model=BertForSequenceClassification(config),
            args=TrainingArguments(
                folder,
                num_train_epochs=12,
                per_device_train_batch_size=32,
                learning_rate=2e-3,
                lr_scheduler_type="cosine",
                eval_strategy="epoch",
                save_strategy="epoch",
                load_best_model_at_end=True,
                metric_for_best_model="selection_loss",
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
            ),
            train_dataset=train,
            eval_dataset=validation,
            problem=problem,
            method=sw.SequentialPenalty(problem.constraints, schedule=sw.Geometric(2.0, growth=1.2)),
        )
        trainer.remove_callback(PrinterCallback)
        splits = {"train": train, "test": test}
        before = {name: trainer.evaluate(split)["eval_satisfied"] for name, split in splits.items()}
        trainer.train()
        for name, split in splits.items():
            after = trainer.evaluate(split, metric_key_prefix=name)[f"{name}_satisfied"]
            print(f"{name}: {before[name]:.1%} of the examples within the bound before, {after:.1%} after")
            print(trainer.audits[name], end="\n\n")


if __name__ == "__main__":
    main()
