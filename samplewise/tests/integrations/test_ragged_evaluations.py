"""Sequences of different lengths in Trainer and Lightning: what fills them up is never counted."""

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from run_ragged import make_ragged, work
from small_lightning import trainer
from torch import Tensor, nn

import samplewise as sw
from forked import two_processes
from ragged import LENGTHS, Scores, check_audit, loader, make_problem, one_by_one
from samplewise.errors import NotFiniteError
from samplewise.integrations.lightning import Audits, Rounds


@pytest.mark.parametrize("size", [1, 2, 4, 16])
def test_the_trainer_counts_nothing_that_fills_up(size: int, tmp_path: Path) -> None:
    run = make_ragged(tmp_path, per_device_eval_batch_size=size)
    metrics = run.evaluate()
    check_audit(run.audits["eval"], run.model)
    scores = torch.cat(one_by_one(run.model))
    assert metrics["eval_score"] == pytest.approx(float(scores.mean()))
    assert metrics["eval_score/worst"] == pytest.approx(max(0.0, 0.6 - float(scores.min())))
    objective, score, _ = run.predict(run.eval_dataset).predictions
    assert objective.shape == (len(LENGTHS),)
    np.testing.assert_array_equal(np.isfinite(score).sum(1), LENGTHS)


@pytest.mark.parametrize("bound", [sw.AtLeast("score", 0.0), sw.AtMost("score", 1.0)], ids=str)
def test_widths_that_differ_between_batches_need_no_mask(bound: sw.Constraint, tmp_path: Path) -> None:
    def evaluate(model: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        scores = model(inputs["x"])
        return scores.mean(1), {"score": scores}

    run = make_ragged(tmp_path, sw.Problem(evaluate, [bound]), per_device_eval_batch_size=1)
    assert run.evaluate()["eval_satisfied"] == 1.0, "a score is between 0 and 1"
    assert run.audits["eval"].means["score"] == pytest.approx(float(torch.cat(one_by_one(run.model)).mean()))


def test_minus_one_hundred_is_a_value_like_others(tmp_path: Path) -> None:
    def evaluate(model: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, dict[str, Any]]:
        scores = model(inputs["x"])
        return scores.mean(1), {"score": (0 * scores - 100, inputs["x"] > 0)}

    run = make_ragged(tmp_path, sw.Problem(evaluate, [sw.AtMost("score", -100.5)]))
    assert run.evaluate()["eval_satisfied"] == 0.0
    assert run.audits["eval"].means["score"] == -100.0


def test_each_sequence_may_have_a_bound_of_its_own(tmp_path: Path) -> None:
    def evaluate(model: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, dict[str, Any]]:
        there, scores = inputs["x"] > 0, model(inputs["x"])
        return scores.mean(1), {"score": (scores, there), "limit": there.sum(1) / 10}

    run = make_ragged(tmp_path, sw.Problem(evaluate, [sw.AtMost("score", "limit")]))
    run.evaluate()
    expected = [j for j, own in enumerate(one_by_one(run.model)) if float(own.max()) > len(own) / 10]
    assert run.audits["eval"]["score"].violators.tolist() == expected


def test_what_is_not_finite_is_found_behind_a_mask_too(tmp_path: Path) -> None:
    def evaluate(model: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, dict[str, Any]]:
        there, scores = inputs["x"] > 0, model(inputs["x"])
        bad = (there.sum(1, keepdim=True) == 5) | ~there
        return scores.mean(1).detach(), {"score": (torch.where(bad, torch.nan, scores), there)}

    run = make_ragged(tmp_path, sw.Problem(evaluate, [sw.AtMost("score", 1.0)]))
    with pytest.raises(NotFiniteError, match=rf"for 1 sample \(sample index: {LENGTHS.index(5)}\)"):
        run.evaluate()


def test_the_trainer_trains_on_them(tmp_path: Path) -> None:
    run = make_ragged(tmp_path, make_problem(sw.AtLeast("score", 0.9)), epochs=40)
    before = run.evaluate()["eval_score/violation"]
    run.train()
    assert run.evaluate()["eval_score/violation"] < before / 2


def test_two_processes_count_nothing_that_fills_up_either(tmp_path: Path) -> None:
    expected = sw.audit(make_problem(), Scores(), loader(1))
    for result in two_processes(work, tmp_path):
        torch.testing.assert_close(result["values"], expected["score"].values, equal_nan=True)
        torch.testing.assert_close(result["objectives"], expected.objectives)


class Sequences(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = Scores()
        self.problem = make_problem()
        self.method = sw.SequentialPenalty(self.problem.constraints, schedule=sw.Constant(1.0))

    def forward(self, x: Tensor) -> Any:
        return self.model(x)

    def training_step(self, batch: Any) -> Tensor:
        objective, given = self.problem.function(self, batch)
        measures: Any = given
        loss: Tensor = self.method(objective, **measures)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.1)


@pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:The '(train|val)_dataloader' does not have many workers")
def test_lightning_audits_them(tmp_path: Path) -> None:
    module = Sequences()
    audits = Audits(module.problem, {"val": loader(4)})
    trainer(tmp_path, Rounds(), audits, epochs=2).fit(module, loader(4))
    check_audit(audits.latest["val"], module.model)
