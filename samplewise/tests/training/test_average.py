"""The average of the weights, which a run judges and ships in the place of the last ones."""

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import samplewise as sw
from samplewise.errors import ConfigurationError
from samplewise.samples import source_of
from samplewise.stopping import Verdict
from samplewise.training.average import Average
from samplewise.training.batching import epoch_order
from small import BOUND, OnAudit, fit, make_data, make_model, make_problem, of_last_step, same_weights

DECAY = 0.9


def run(**options: Any) -> tuple[nn.Module, sw.Solution]:
    model = make_model(dropout=0.0, norm=True)
    return model, fit(None, model, **{"batch_size": 32, "average": DECAY, "seed": 5, **options})


def test_it_is_the_average_that_a_loop_written_by_hand_makes(tmp_path: Path) -> None:
    data, by_hand = make_data(), make_model(dropout=0.0, norm=True)
    optimizer = torch.optim.Adam(by_hand.parameters(), lr=1e-2)
    averaged = {name: value.double() for name, value in by_hand.state_dict().items()}
    (x, y), steps = data.tensors, 0
    for epoch in range(4):
        tau = 0.0 if epoch == 0 else 2.0 * 1.1 ** ((epoch - 1) // 2)
        for index in torch.split(epoch_order(replace(source_of(data), shuffle=True), seed=5, epoch=epoch), 32):
            logits, decoded = by_hand(x[index])
            objective = functional.cross_entropy(logits, y[index], reduction="none")
            violation = torch.relu((decoded - x[index]).square().mean(1) - BOUND)
            loss = (objective + tau * violation).mean() if tau else objective.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            decay = min(DECAY, (1 + steps) / (10 + steps))
            for name, value in by_hand.state_dict().items():
                averaged[name] = decay * averaged[name] + (1 - decay) * value.double()
    _, solution = run(warmup_epochs=1, checkpoint=tmp_path)
    torch.testing.assert_close(of_last_step(tmp_path), dict(by_hand.state_dict()), rtol=0, atol=0)
    shipped = solution.model.state_dict()
    assert shipped.pop("norm.num_batches_tracked") == steps
    for name, found in shipped.items():
        torch.testing.assert_close(found.double(), averaged[name], rtol=1e-5, atol=1e-6)


def test_it_changes_nothing_in_the_training_itself(tmp_path: Path) -> None:
    (model, solution), (plain, without) = run(checkpoint=tmp_path), run(average=None)
    torch.testing.assert_close(of_last_step(tmp_path), dict(plain.state_dict()), rtol=0, atol=0)
    assert solution.model is model
    assert without.model is plain
    assert not same_weights(model, plain)
    assert solution.history.column("running/objective") == without.history.column("running/objective")


def test_what_is_audited_handed_out_selected_and_written_is_the_average(tmp_path: Path) -> None:
    seen: list[dict[str, Tensor]] = []
    handed: list[nn.Module] = []

    def keep(model: nn.Module, epoch: int, audits: Mapping[str, sw.Audit]) -> None:
        handed.append(model)
        seen.append(copy.deepcopy(model.state_dict()))

    test = make_data(51, seed=1)
    model, solution = run(
        audit_on={"test": test},
        callbacks=[OnAudit(keep)],
        checkpoint=tmp_path,
        validation=sw.Validation(select="objective"),
    )
    assert all(each is not model for each in handed)
    assert [row["epoch"] for row in solution.history.rows] == [1, 2, 3]
    for row, weights in zip(solution.history.rows, seen, strict=True):
        again = make_model(norm=True)
        again.load_state_dict(weights)
        assert sw.audit(make_problem(), again, test).objective == pytest.approx(row["test/objective"], rel=1e-6)
    again.load_state_dict(of_last_step(tmp_path))
    assert sw.audit(make_problem(), again, test).objective != pytest.approx(row["test/objective"], rel=1e-3)
    selected = seen[solution.selected.epoch - 1]
    torch.testing.assert_close(dict(solution.model.state_dict()), dict(selected), rtol=0, atol=0)
    torch.testing.assert_close(load_file(tmp_path / "best.safetensors"), dict(selected), rtol=0, atol=0)


def test_a_rule_ends_rounds_by_the_average() -> None:
    evaluated: list[nn.Module] = []

    class Rule(sw.GradientRule):
        def verdict(self, problem: sw.Problem, model: nn.Module, *data: Any, **options: Any) -> Verdict:
            evaluated.append(model)
            return super().verdict(problem, model, *data, **options)

    model, _ = run(round_rule=Rule(epsilon0=1e-6, max_epochs=10, batch_size=16))
    assert len(evaluated) == 3
    assert all(each is not model for each in evaluated)


class Normed(nn.Module):
    """Classifies and reconstructs digits through layers that all keep running statistics."""

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU()) for a, b in pairwise((64, 48, 48, 16)))
        self.encoder = nn.Sequential(*layers)
        self.classifier, self.decoder = nn.Linear(16, 10), nn.Linear(16, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        code = self.encoder(x)
        return self.classifier(code), self.decoder(code)


def recomputed(model: nn.Module, x: Tensor) -> nn.Module:
    """The model with the statistics that its weights have on the training data, by a pass over them."""
    model = copy.deepcopy(model).train()
    for part in model.modules():
        if isinstance(part, nn.BatchNorm1d):
            part.reset_running_stats()
            part.momentum = None  # the mean over all batches
    with torch.no_grad():
        for batch in x.split(64):
            model(batch)
    return model.eval()


def test_the_statistics_of_batch_norm_are_those_of_the_averaged_weights(tmp_path: Path) -> None:
    def evaluate(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        logits, decoded = model(batch[0])
        objective = functional.cross_entropy(logits, batch[1], reduction="none")
        return objective, {"error": sw.measures.mse(decoded, batch[0])}

    pixels, labels = (torch.from_numpy(each) for each in load_digits(return_X_y=True))
    pixels = (pixels / 16).float()
    train, test = TensorDataset(pixels[:1500], labels[:1500]), TensorDataset(pixels[1500:], labels[1500:])
    problem = sw.Problem(evaluate, [sw.AtMost("error", 0.02)])
    torch.manual_seed(0)
    model = Normed()
    options: dict[str, Any] = {"epochs": 20, "batch_size": 64, "average": 0.98, "checkpoint": tmp_path}
    solution = fit(problem, model, train, method=sw.FixedPenalty(problem.constraints, 100.0), **options)
    exact = recomputed(solution.model, pixels[:1500])
    of_last_steps, last = copy.deepcopy(solution.model), Normed()
    last.load_state_dict(of_last_step(tmp_path))
    buffers = dict(last.named_buffers())
    for name, buffer in of_last_steps.named_buffers():
        buffer.copy_(buffers[name])

    def apart(first: nn.Module, second: nn.Module) -> float:
        """By how much the errors of single unseen samples differ, beside their spread."""
        one, other = (sw.audit(problem, each, test)["error"].values for each in (first, second))
        return float((one - other).square().mean().sqrt() / other.std())

    usual = apart(last, recomputed(last, pixels[:1500]))
    ours, copied = apart(solution.model, exact), apart(of_last_steps, exact)
    assert ours < usual, "running statistics of any network are less exact"
    assert ours < copied / 3


def test_other_buffers_are_those_of_the_model() -> None:
    model, flags = nn.Linear(2, 2), torch.tensor([True, False])
    model.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))
    model.register_buffer("index", torch.arange(5000))
    model.register_buffer("flags", flags)
    average = Average(model, 0.9999)
    for step in range(20):
        flags[1] = step % 2 == 0
        average.update_(model)
        for name, buffer in model.named_buffers():
            assert torch.equal(average.model.get_buffer(name), buffer)


def test_tied_and_frozen_weights_stay_so() -> None:
    first, second, third = (nn.Linear(3, 3) for _ in range(3))
    second.weight = first.weight
    third.weight.requires_grad_(False)
    model = nn.Sequential(first, second, third)
    average = Average(model, DECAY)
    for _ in range(5):
        nn.init.normal_(first.weight)
        average.update_(model)
    shipped = dict(average.model.named_parameters(remove_duplicate=False))
    assert shipped["1.weight"] is shipped["0.weight"]
    assert not shipped["2.weight"].requires_grad
    assert torch.equal(shipped["2.weight"], third.weight)


@pytest.mark.parametrize("average", [0.0, 1.0, 1.5, -0.1, math.nan, "0.9", True])
def test_a_share_that_is_none_is_refused(average: Any) -> None:
    with pytest.raises(ConfigurationError, match="average"):
        run(average=average)
