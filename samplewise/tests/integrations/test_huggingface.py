"""The Hugging Face Trainer gives the numbers of the plain loop, also with accumulation and after a resume."""

from pathlib import Path
from typing import Any

import pytest
import torch
from plain import plain, row, same_state
from run_huggingface import work
from small_huggingface import Dictionaries, arguments, evaluate_inputs, make_trainer
from transformers import BertConfig, BertForSequenceClassification

import samplewise as sw
from forked import two_processes
from samplewise.audits.audit import violation_rate_upper
from samplewise.errors import CheckpointError, ConfigurationError, MeasureError, NotFiniteError
from samplewise.integrations.huggingface import ConstrainedTrainer
from samplewise.storage.checkpoint import load_state
from small import make_data, make_method, make_problem, same_weights


def logged(trainer: Any) -> list[dict[str, float]]:
    """The rounds that were logged."""
    return [entry for entry in trainer.state.log_history if "running/objective" in entry]


@pytest.mark.parametrize(
    ("kind", "steps_per_round", "accumulate"), [("sequential", None, 1), ("sequential", 4, 3), ("lagrangian", None, 2)]
)
def test_the_numbers_are_those_of_the_plain_loop(
    kind: str, steps_per_round: int | None, accumulate: int, tmp_path: Path
) -> None:
    epoch = -(-5 // accumulate)
    rounds, method, model = plain(
        kind, steps=4 * epoch, steps_per_round=steps_per_round, accumulate=accumulate, exact_last_step=True
    )
    args = arguments(tmp_path, gradient_accumulation_steps=accumulate, eval_strategy="epoch")
    trainer = make_trainer(args, kind, steps_per_round=steps_per_round)
    trainer.train()
    assert same_weights(trainer.model, model)
    assert same_state(trainer.method, method)
    assert [{name: entry[name] for name in row(rounds[0])} for entry in logged(trainer)] == [
        pytest.approx(row(found)) for found in rounds
    ]
    length = steps_per_round or epoch
    assert [entry["step"] for entry in logged(trainer)] == list(range(length, 4 * epoch + 1, length))


def test_rounds_may_last_steps(tmp_path: Path) -> None:
    trainer = make_trainer(arguments(tmp_path, gradient_accumulation_steps=2), steps_per_round=4)
    trainer.train()  # three steps an epoch
    assert [entry["step"] for entry in logged(trainer)] == [4, 8, 12]
    assert trainer.method.rounds == 3
    assert [entry["tau/reconstruction"] for entry in logged(trainer)] == pytest.approx([2.0, 2.0, 2.2])


@pytest.mark.parametrize("kind", ["sequential", "lagrangian"])
def test_a_resumed_run_ends_as_one_that_went_through(kind: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"train_sampling_strategy": "random"}
    saving = arguments(tmp_path, epochs=3, save_strategy="steps", save_steps=2, **options)
    whole = make_trainer(saving, kind, dropout=0.2, steps_per_round=8)
    whole.train()
    for step in (6, 8, 10):  # within an epoch and a round, at the end of a round, at the end of an epoch
        resumed = make_trainer(arguments(tmp_path, epochs=3, **options), kind, dropout=0.2, steps_per_round=8)
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        assert same_weights(resumed.model, whole.model)
        assert same_state(resumed.method, whole.method)
        assert logged(resumed) == logged(whole)


def test_the_last_checkpoint_is_found_and_one_without_the_method_refused(tmp_path: Path) -> None:
    args = arguments(tmp_path, epochs=2, save_strategy="epoch")
    first = make_trainer(args)
    first.train()
    last = make_trainer(args)
    last.train(resume_from_checkpoint=True)
    assert same_state(last.method, first.method)
    with pytest.raises(CheckpointError, match="of another method"):
        make_trainer(args, "unconstrained").train(resume_from_checkpoint=True)
    (tmp_path / "checkpoint-10" / "method.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"method\.safetensors"):
        make_trainer(args).train(resume_from_checkpoint=True)


def test_an_evaluation_is_an_audit_and_chooses_the_best_model(tmp_path: Path) -> None:
    options: dict[str, Any] = {"metric_for_best_model": "satisfied", "load_best_model_at_end": True}
    # The least satisfied, since that is not the last one.
    args = arguments(tmp_path, eval_strategy="epoch", save_strategy="epoch", greater_is_better=False, **options)
    trainer = make_trainer(args)
    trainer.train()
    shares = [entry["eval_satisfied"] for entry in trainer.state.log_history if "eval_satisfied" in entry]
    audit = sw.audit(make_problem(), trainer.model, make_data(51, 1))
    assert audit.satisfied == min(shares) < shares[-1]
    made = len(shares)
    assert trainer.audits["eval"].n_comparisons == made * (made + 1), "whichever of them is chosen"
    before = {key: value.clone() for key, value in trainer.method.state_dict().items()}
    metrics = trainer.evaluate()
    found = trainer.audits["eval"]
    torch.testing.assert_close(found.measures, audit.measures)
    assert torch.equal(found["reconstruction"].violators, audit["reconstruction"].violators)
    assert metrics["eval_reconstruction/worst"] == pytest.approx(audit["reconstruction"].worst)
    assert metrics["eval_objective"] == pytest.approx(audit.objective)
    assert metrics["eval_accuracy"] == pytest.approx(audit.means["accuracy"])
    assert all(torch.equal(value, before[key]) for key, value in trainer.method.state_dict().items()), "no trace"
    expected = violation_rate_upper(found.violated, 51, 0.95, (made + 1) * (made + 2))
    assert metrics["eval_violation_rate_upper"] == pytest.approx(expected)
    trainer.evaluate(Dictionaries(51, 2), metric_key_prefix="test")
    assert trainer.audits["test"].n_comparisons == 1
    assert "train_violation_rate_upper" not in trainer.evaluate(Dictionaries(51, 2), metric_key_prefix="train")


@pytest.mark.parametrize(("metric", "expected"), [("satisfied", 2), ("selection_loss", 3)])
def test_of_epochs_that_are_all_satisfied_the_one_of_the_best_objective_is_kept(
    metric: str, expected: int, tmp_path: Path
) -> None:
    objectives, errors = [1.0, 1.536, 1.198, 1.3], [1.0, 0.0, 0.0, 0.0]  # as found after each epoch

    def evaluate(model: Any, inputs: Any) -> Any:
        objective, measures = evaluate_inputs(model, inputs)
        if model.training:
            return objective, measures
        epoch = round(trainer.state.epoch) - 1
        return 0 * objective + objectives[epoch], {"reconstruction": 0 * objective + errors[epoch]}

    options: dict[str, Any] = {"eval_strategy": "epoch", "save_strategy": "best", "metric_for_best_model": metric}
    problem = sw.Problem(evaluate, make_problem().constraints)
    trainer = make_trainer(arguments(tmp_path, **options), problem=problem)
    trainer.train()
    assert trainer.state.best_global_step == expected * 5


def test_a_measure_called_loss_leaves_the_trainers_own_number(tmp_path: Path) -> None:
    def evaluate(model: Any, inputs: Any) -> Any:
        return inputs["x"].sum(1), {"loss": inputs["x"].amax(1)}

    problem = sw.Problem(evaluate, [sw.AtMost("loss", 1.0)])
    trainer = make_trainer(arguments(tmp_path), problem=problem, method=sw.Unconstrained(problem.constraints))
    x = make_data(40, 1).tensors[0]
    metrics = trainer.evaluate(Dictionaries(40, 1))
    assert metrics["eval_loss"] == pytest.approx(float(x.sum(1).mean()), rel=1e-5)
    assert trainer.audits["eval"].means["loss"] == pytest.approx(float(x.amax(1).mean()))


def test_what_is_not_finite_in_an_evaluation_is_an_error_and_not_satisfied(tmp_path: Path) -> None:
    trainer, data = make_trainer(arguments(tmp_path)), Dictionaries(51, 1)
    data.tensors[0][7] = torch.nan
    with pytest.raises(NotFiniteError, match=r"sample index: 7"):
        trainer.evaluate(data)


def make_own(folder: Path, measure: Any) -> Any:
    """A trainer whose problem bounds ``measure(inputs, prediction)``, of a prediction (B, 1)."""

    def evaluate(model: Any, inputs: Any) -> Any:
        prediction = model(inputs["x"])[0][:, :1]
        return prediction.square().sum(1), {"size": measure(inputs, prediction)}

    problem = sw.Problem(evaluate, [sw.AtMost("size", 1.0)])
    method = sw.SequentialPenalty(problem.constraints, schedule=sw.Constant(1.0))
    return make_trainer(arguments(folder, epochs=1), problem=problem, method=method)


def test_a_measure_that_was_broadcast_is_refused(tmp_path: Path) -> None:
    trainer = make_own(tmp_path, lambda inputs, prediction: (prediction - inputs["labels"]).abs())  # (B, 1) - (B,)
    with pytest.raises(MeasureError, match=r"got \(B, B\) with B = 40"):
        trainer.train()
    with pytest.raises(MeasureError, match=r"got \(B, B\) with B = 20"):
        trainer.evaluate()


def test_as_many_values_as_samples_are_no_slip(tmp_path: Path) -> None:
    trainer = make_own(tmp_path, lambda inputs, prediction: prediction * inputs["x"][0, :1].expand(40))
    trainer.train()
    assert trainer.method.rounds == 1


def test_measures_of_one_and_of_several_values_in_one_evaluation_are_refused(tmp_path: Path) -> None:
    trainer = make_own(tmp_path, lambda inputs, prediction: prediction if len(prediction) == 20 else prediction[:, 0])
    with pytest.raises(MeasureError, match=r"'size': 2.*'size': 1"):
        trainer.evaluate()
    assert trainer.evaluate(Dictionaries(20, 1))["eval_size"] == pytest.approx(trainer.audits["eval"].means["size"])
    trainer.evaluate(Dictionaries(11, 1))  # another evaluation may have another shape


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The folder of a few trainings on two processes, and what each process ended with."""
    folder = tmp_path_factory.mktemp("processes")
    return folder, two_processes(work, folder)


@pytest.mark.parametrize("case", ["sequential", "lagrangian", "resumed"])
def test_two_processes_end_where_one_does(case: str, processes: tuple[Path, list[dict[str, Any]]]) -> None:
    kind = "lagrangian" if case == "lagrangian" else "sequential"
    rounds, method, model = plain(kind, steps=15, steps_per_round=10)
    folder, results = processes
    for result in results:
        torch.testing.assert_close(result[case]["model"], dict(model.state_dict()), rtol=1e-4, atol=1e-5)
        assert result[case]["samples"] == 51, "each sample is counted once"
        assert result[case]["round"] == pytest.approx(row(rounds[0]), rel=1e-4)
    saved = make_method(kind)
    saved.load_state_dict(load_state(folder / case / "checkpoint-15" / "method.safetensors"))
    assert saved.summary().samples == 200, "the checkpoint has the statistics of both processes"
    assert row(saved.summary()) == pytest.approx(row(method.summary()), rel=1e-4)
    for key, table in method.state_dict().items():
        if "multipliers" in key:
            torch.testing.assert_close(saved.state_dict()[key], table, rtol=1e-3, atol=1e-4)


def test_a_transformer_under_a_bound_on_every_loss(tmp_path: Path) -> None:
    def evaluate(model: Any, inputs: Any) -> Any:
        logits = model(input_ids=inputs["input_ids"]).logits
        loss = torch.nn.functional.cross_entropy(logits, inputs["labels"], reduction="none")
        return loss, {"loss": loss}

    torch.manual_seed(0)
    words = torch.randint(3, 20, (32, 8))
    data: Any = [{"input_ids": ids, "labels": int(ids[0] > 11)} for ids in words]
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    config = BertConfig(vocab_size=20, max_position_embeddings=8, **sizes)
    model = BertForSequenceClassification(config)  # type: ignore[no-untyped-call]  # it has no types
    problem = sw.Problem(evaluate, [sw.AtMost("loss", 0.5)])
    trainer = ConstrainedTrainer(
        model=model,
        args=arguments(tmp_path, epochs=20, per_device_train_batch_size=8),
        train_dataset=data,
        problem=problem,
        method=sw.SequentialPenalty(problem.constraints, schedule=sw.Geometric(1.0, growth=1.2)),
    )
    before = trainer.evaluate(data)["eval_satisfied"]
    trainer.train()
    assert before < trainer.evaluate(data)["eval_satisfied"] == 1.0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"steps_per_round": 0}, "expected steps_per_round as a whole number >= 1"),
        ({"method": sw.Unconstrained()}, "are not the problem's"),
        ({"compute_loss_func": print}, "compute_loss_func"),
    ],
)
def test_what_is_wrong_is_said_at_once(options: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        make_trainer(arguments(tmp_path), **options)


@pytest.mark.parametrize("option", [{"eval_do_concat_batches": False}, {"batch_eval_metrics": True}])
def test_arguments_that_would_be_ignored_are_refused(option: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(option))} is given"):
        make_trainer(arguments(tmp_path, **option))
