"""Sequences of different lengths, the loaders and models of the tests of them, and what a loop over samples finds."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import samplewise as sw

LENGTHS = (3, 1, 3, 2, 6, 5, 6, 1, 2, 2, 4)
BOUND = 0.6


class Scores(nn.Module):
    """A score in (0, 1) for each letter, whatever stands around it."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.letters = nn.Embedding(7, 2)
        self.head = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = torch.sigmoid(self.head(torch.tanh(self.letters(x))).squeeze(-1))
        return scores


def sequences(seed: int = 0) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [{"x": torch.randint(1, 7, (length,), generator=generator)} for length in LENGTHS]


def collate(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """A batch as wide as the longest of its sequences; letter 0 fills up."""
    return {"x": pad_sequence([row["x"] for row in rows], batch_first=True)}


def loader(batch_size: int = 4) -> DataLoader[Any]:
    return DataLoader(sequences(), batch_size=batch_size, collate_fn=collate)  # type: ignore[arg-type]


def evaluate(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Any]]:
    """The mean score of each sequence as objective; rubbish stands where a sequence is over."""
    there = batch["x"] > 0
    scores = model(batch["x"])
    objective = (scores * there).sum(1) / there.sum(1)
    rubbish = torch.where(torch.arange(there.shape[1]) % 2 == 0, math.nan, -math.inf)
    return objective, {"score": (torch.where(there, scores, rubbish), there), "mean": objective}


def make_problem(*bounds: sw.Constraint) -> sw.Problem:
    return sw.Problem(evaluate, bounds or [sw.AtLeast("score", BOUND)])


def one_by_one(model: nn.Module) -> list[Tensor]:
    """The scores of each sequence alone."""
    with torch.no_grad():
        return [model(row["x"]) for row in sequences()]


def check_audit(found: sw.Audit, model: nn.Module) -> None:
    """The audit of ``make_problem`` says what a loop over the samples finds."""
    scores = one_by_one(model)
    lacking = [max(0.0, float((BOUND - own).max())) for own in scores]
    part = found["score"]
    torch.testing.assert_close(part.values.isnan().sum(1), torch.tensor([max(LENGTHS) - len(own) for own in scores]))
    for own, row in zip(scores, part.values, strict=True):
        torch.testing.assert_close(row[: len(own)], own)
    assert part.violators.tolist() == [j for j, by in enumerate(lacking) if by > 0]
    assert abs(part.total - sum(lacking)) < 1e-5
    assert abs(part.worst - max(lacking)) < 1e-6
    assert abs(found.means["score"] - float(torch.cat(scores).mean())) < 1e-6
    assert abs(found.objective - sum(float(own.mean()) for own in scores) / len(scores)) < 1e-6
    middle = float(torch.cat(scores).double().quantile(0.5))
    assert abs(part.quantiles[0.5] - middle) < 1e-6
