"""Hugging Face: the Trainer under a method. It ends rounds, keeps the method's state, and evaluates by an audit."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from samplewise.audits.audit import Audit
from samplewise.audits.binomial import comparisons_in_series
from samplewise.errors import CheckpointError, ConfigurationError, MeasureError, needed_for, whole_number
from samplewise.history import audit_row, round_row
from samplewise.methods import Method
from samplewise.methods.base import CHECK_EVERY
from samplewise.problem import Evaluation, Problem, evaluation_mode, refuse_broadcast
from samplewise.storage.checkpoint import load_state, save_state

with needed_for("this integration", "huggingface"):
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, EvalLoopOutput, get_last_checkpoint

__all__ = ["ConstrainedMixin", "ConstrainedTrainer"]

FILE = "method.safetensors"
INDEX = "index"

if TYPE_CHECKING:
    Base = Trainer
else:
    Base = object


class ConstrainedMixin(Base):
    """Goes before any Trainer class: ``class Mine(ConstrainedMixin, Seq2SeqTrainer)``. See :class:`ConstrainedTrainer`.

    Args:
        arguments: the Trainer's own, by name.
        problem: what to minimise and what must hold; its ``evaluate`` gets the model and the Trainer's inputs.
        method: over the problem's constraints.
        steps_per_round: optimiser steps in a round where epochs are long or have no end; one epoch if not given.
    """

    # The method's loss is the mean over a batch, so the Trainer has to divide by the number of batches in a step.
    loss_is_scaled_for_ga = False

    def __init__(
        self, *, problem: Problem, method: Method, steps_per_round: int | None = None, **arguments: Any
    ) -> None:
        if steps_per_round is not None:
            whole_number(steps_per_round, "steps_per_round", 1)
        problem.check_method_over(method.constraints)
        super().__init__(**arguments)
        for option, given in {
            "compute_loss_func": self.compute_loss_func is not None,
            "label_smoothing_factor": self.args.label_smoothing_factor != 0,
            "batch_eval_metrics": self.args.batch_eval_metrics,
            "eval_do_concat_batches": not self.args.eval_do_concat_batches,
        }.items():
            if given:
                raise ConfigurationError(
                    f"{option} is given, but the problem and the method say the loss, and an audit of the whole data "
                    "set what is evaluated: leave it out"
                )
        # What evaluate needs, the samples' numbers among it, is not what the model's forward takes.
        self.args.remove_unused_columns = False
        self.problem = problem
        self.method = method.to(self.args.device)
        self.audits: dict[str, Audit] = {}
        """The last audits by the prefix of their metrics, such as ``eval``."""
        self._dimensions: dict[str, int] = {}  # of the measures in the present evaluation
        self.add_callback(_Rounds(self, steps_per_round))

    def evaluation_of(self, model: nn.Module, inputs: dict[str, Any]) -> Evaluation:
        """Objective and measures of a batch as the Trainer hands it on; its ``index`` is for the method."""
        rest = {name: value for name, value in inputs.items() if name != INDEX}
        found = self.problem.evaluate(model, rest, inputs.get(INDEX))
        batch = found.objective.shape

        def first() -> Evaluation:
            one = {name: each[:1] if getattr(each, "shape", ())[:1] == batch else each for name, each in rest.items()}
            with evaluation_mode(model):
                return self.problem.evaluate(model, one)

        refuse_broadcast(found, first)
        return found

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The method's loss. Outputs are the measures of each sample."""
        found = self.evaluation_of(model, inputs)
        loss = self.method.loss(found)
        return (loss, dict(found.measures)) if return_outputs else loss

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Any, Any, Any]:
        """Objective and measures of each sample, ``(B,)`` or ``(B, m)``, in the place of logits; then their widths m,
        if there are any, beyond which the Trainer fills up.
        """
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            found = self.evaluation_of(model, inputs)
        dimensions = {name: values.ndim for name, values in found.measures.items()}
        if self._dimensions not in ({}, dimensions):
            raise MeasureError(
                "expected the same measures, each either (B,) or (B, m), in every batch of an evaluation, got "
                f"{self._dimensions} dimensions and then {dimensions}"
            )
        self._dimensions = dimensions
        predictions = [found.objective, *(_sealed(found, name, self.problem) for name in found.measures)]
        if widths := [values.shape[1] for values in found.measures.values() if values.ndim > 1]:
            predictions.append(torch.tensor([widths] * len(found.objective), device=found.objective.device))
        return found.objective.mean(), tuple(predictions), inputs.get("labels")

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """The Trainer's loop over a data set; its metrics also say what holds there."""
        self._dimensions = {}
        output = super().evaluation_loop(dataloader, description, False, ignore_keys, metric_key_prefix)
        found = map(torch.as_tensor, output.predictions)
        objective, *columns = (column if column.is_floating_point() else column.float() for column in found)
        several = [name for name, count in self._dimensions.items() if count > 1]
        widths = columns.pop().T if several else ()
        measures = dict(zip(self._dimensions, columns, strict=True))
        for name, width in zip(several, widths, strict=True):
            filled_up = torch.arange(measures[name].shape[1]) >= width.unsqueeze(1)
            measures[name] = measures[name].masked_fill(filled_up, math.nan)
        audit = Audit(
            objective, measures, self.problem.constraints, n_comparisons=self._n_comparisons(metric_key_prefix)
        )
        masks = {each.measure: ~measures[each.measure].isnan() for each in audit.bounds}
        Evaluation(objective, measures, torch.arange(len(objective)), masks=masks).check_finite(audit.bounds)
        self.audits[metric_key_prefix] = audit
        # The Trainer looks for eval_x when it chooses the best model, and shows it as eval/x, as our history calls it.
        row = audit_row("", audit)
        holds = {name.replace("/", f"{metric_key_prefix}_", 1): value for name, value in row.items()}
        predictions: Any = tuple(column.numpy() for column in (objective, *measures.values()))
        return output._replace(predictions=predictions, metrics=holds | (output.metrics or {}))

    def _n_comparisons(self, prefix: str) -> float:
        """How many models are compared by evaluations under one name, for its bounds to be corrected."""
        if prefix in ("train", "eval_train"):
            return math.inf
        before = sum(f"{prefix}_satisfied" in row for row in self.state.log_history)
        # A first one outside of training chooses nothing; any other may be one of a series that does.
        return comparisons_in_series(before + 1) if before or self.is_in_train else 1

    def train(self, resume_from_checkpoint: str | bool | None = None, *arguments: Any, **options: Any) -> Any:
        """The Trainer's; on a resume the method goes on too."""
        path = resume_from_checkpoint
        if path is True:
            path = get_last_checkpoint(self.args.output_dir)  # type: ignore[no-untyped-call]  # it has no types
        if path:
            if not (Path(path) / FILE).exists():
                raise CheckpointError(
                    f"{path} has no {FILE}, the state of the method: it was cut off, or another Trainer's. Resume from "
                    "another checkpoint"
                )
            self.method.load_state_dict(load_state(Path(path) / FILE))
        return super().train(resume_from_checkpoint, *arguments, **options)


def _sealed(found: Evaluation, name: str, problem: Problem) -> Tensor:
    """A measure in the form in which the Trainer joins batches and processes, where masks are lost.

    NaN stands for a missing value, so a bounded value that is NaN by a fault becomes infinite.
    """
    values = found.measures[name]
    if not any(name in (each.measure, each.reference) for each in problem.constraints):
        return values
    values = values if values.is_floating_point() else values.float()
    return values.masked_fill(values.isnan() & found.masks.get(name, True), math.inf)


class ConstrainedTrainer(ConstrainedMixin, Trainer):
    """The Trainer with a problem and a method in the place of a loss; ``examples/with_huggingface.py`` shows it.

    ``evaluate(model, inputs)`` gets a batch with all its columns, whatever the model takes. A method with a multiplier
    for each sample needs the samples' numbers: train on :class:`samplewise.integrations.Indexed` data.

    Rounds end after each epoch, or after so many steps, before the checkpoint of that step, and are logged under the
    names of :func:`samplewise.fit`'s history. The method's state is ``method.safetensors`` in each checkpoint;
    ``train(resume_from_checkpoint=...)`` goes on from it, also within a round.

    An evaluation is an audit, each sample once: ``eval_satisfied`` is the share of the samples that meet all
    constraints, ``eval_NAME/worst`` and so on follow, and ``trainer.audits["eval"]`` is the audit itself.
    ``metric_for_best_model="selection_loss"`` keeps the model that ``fit`` would. The audit's bounds are corrected for
    the evaluations under one name so far, and hold however many follow; ``train`` has none. ``eval_loss`` is the mean
    objective, since penalties cannot be compared between rounds: tau grows. Predictions are the objective and the
    measures of each sample, NaN where it has no value. ``compute_metrics`` gets them as the Trainer joins batches,
    filled up with -100, and then how many values each sample's batch had of each measure ``(B, m)``.
    """


class _Rounds(TrainerCallback):
    """Ends the rounds of a trainer's method and saves its state with the checkpoints."""

    def __init__(self, trainer: ConstrainedMixin, steps: int | None) -> None:
        self.trainer = trainer
        self.steps = steps

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        method = self.trainer.method
        # The epoch is a fraction within itself, and exactly whole at its end.
        if state.epoch % 1 == 0 if self.steps is None else state.global_step % self.steps == 0:
            self.trainer.log(round_row(method.step()))
        elif state.global_step % CHECK_EVERY == 0:
            method.check()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.trainer.method.gather_()
        if args.should_save:
            folder = Path(args.output_dir or ".") / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
            save_state(folder / FILE, dict(self.trainer.method.state_dict()))
