"""The runs of the demo: the digits in four parts, one recipe, and what each method comes to."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import TensorDataset

from samplewise import (
    Audit,
    Constant,
    FixedPenalty,
    Logarithmic,
    Method,
    Promise,
    SequentialPenalty,
    Solution,
    audit,
    fit,
)
from samplewise.training import to_aim_at
from studies.data import digits
from studies.mnist.digit_network import DigitNetwork, study_problem

SHARE, CONFIDENCE = 0.9, 0.95
THETA, CODE, HIDDEN, EPOCHS, WARM_EPOCHS, BATCH, RATE, DECAY = 0.03, 10, 128, 100, 5, 64, 5e-3, 1e-4
"""Chosen so that the share can be reached and proved: at bounds of 0.02 and 0.025 the aim was hardly reached in 60
epochs, in trials that were cut short. That was looked at on ``tune_on`` alone, with seeds 100 to 102, which no result
uses; a rate of 2e-3 and bounds of 0.035 and 0.04 with seed 100 only."""
WEIGHTS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
TRAIN, TUNE, PROVE, UNSEEN = "train", "tune_on", "prove_on", "unseen"
SIZES = {TRAIN: 900, TUNE: 300, PROVE: 300, UNSEEN: 297}
"""Samples of each part: trained on; steers and selects; proves, once; and what the claims are about."""
AIM = to_aim_at(SHARE, SIZES[TUNE], SIZES[PROVE], CONFIDENCE)
"""The share on ``tune_on`` that makes the proof of ``SHARE`` likely: ``fit`` aims at it, and so does the search."""

Parts = dict[str, TensorDataset]


@dataclass(frozen=True)
class Trained:
    """One run, and what holds for the model it selected."""

    weight: float | None
    """That was fixed; None for the promise."""
    solution: Solution
    audits: dict[str, Audit]
    """By part. That of ``prove_on`` gives the proof: those samples chose nothing, in no run."""

    @property
    def label(self) -> str:
        return "Promise" if self.weight is None else f"Fixed weight {self.weight:g}"

    @property
    def at_least(self) -> float:
        """The share of fresh samples within the bound that is proved."""
        return 1 - self.audits[PROVE].violation_rate_upper

    @property
    def kept(self) -> bool:
        return self.at_least >= SHARE

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain values."""
        return {
            "label": self.label,
            "weight": self.weight,
            "epoch": self.solution.selected.epoch,
            "parts": {
                name: {"accuracy": found.means["accuracy"], "share": found.satisfied, "objective": found.objective}
                for name, found in self.audits.items()
            },
            "share_at_least": self.at_least,
            "kept": self.kept,
        }


@dataclass(frozen=True)
class Compared:
    """The runs of one seed."""

    seed: int
    parts: Parts
    promise: Trained
    search: tuple[Trained, ...]
    """The fixed weights, every one a run."""

    @property
    def shipped(self) -> Trained:
        """What the search would ship: the most accurate on ``tune_on`` of those that reach the aim there.

        Of equally accurate ones that with the least cross entropy; if none reaches the aim, what comes nearest.
        """

        def worth(run: Trained) -> tuple[float, ...]:
            tune = run.audits[TUNE]
            return min(tune.satisfied, AIM), tune.means["accuracy"], -tune.objective

        return max(self.search, key=worth)

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain values."""
        runs = [
            {**run.to_dict(), "shipped": run in (self.promise, self.shipped)} for run in (self.promise, *self.search)
        ]
        return {"seed": self.seed, "rows": runs}


def split(seed: int) -> Parts:
    """The digits by chance in four parts."""
    data = digits()
    images, labels = (torch.cat(pair) for pair in zip(data.train.tensors, data.test.tensors, strict=True))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    pieces = order.split(list(SIZES.values()))
    return {name: TensorDataset(images[piece], labels[piece]) for name, piece in zip(SIZES, pieces, strict=True)}


def compare(seed: int, *, epochs: int, weights: Sequence[float], note: Callable[[str], None]) -> Compared:
    """One run that promises the share, then one for each fixed weight: the same data, first weights and recipe."""
    parts = split(seed)
    runs = []
    for number, weight in enumerate((None, *weights), start=1):
        named = "the promise" if weight is None else f"fixed weight {weight:g}"
        note(f"seed {seed}, run {number} of {1 + len(weights)}: {named}, {epochs} epochs")
        runs.append(_train(parts, seed, epochs, weight))
    return Compared(seed, parts, runs[0], tuple(runs[1:]))


def _train(parts: Parts, seed: int, epochs: int, weight: float | None) -> Trained:
    torch.manual_seed(seed)
    model = DigitNetwork(pixels=parts[TRAIN].tensors[0].shape[1], hidden=HIDDEN, code=CODE)
    # A fixed weight is selected by the share that the promise aims at.
    problem = study_problem(THETA, share=1.0 if weight is None else AIM)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, weight_decay=DECAY, fused=True)
    method: Method
    if weight is None:
        method = SequentialPenalty(problem.constraints, penalty=Logarithmic(THETA), schedule=Constant("auto"))
        asked: dict[str, Any] = {"promise": Promise(SHARE, parts[TUNE], parts[PROVE], CONFIDENCE)}
    else:
        method = FixedPenalty(problem.constraints, weight=weight)
        asked = {"audit_on": {TUNE: parts[TUNE]}}
    solution = fit(
        problem,
        model,
        parts[TRAIN],
        method=method,
        optimizer=optimizer,
        scheduler=CosineAnnealingLR(optimizer, WARM_EPOCHS + epochs),
        epochs=epochs,
        warmup_epochs=WARM_EPOCHS,
        batch_size=BATCH,
        seed=seed,
        progress=False,
        **asked,
    )
    n_comparisons = {TRAIN: math.inf, TUNE: WARM_EPOCHS + epochs}
    audits = {
        name: audit(
            study_problem(THETA), solution.model, part, confidence=CONFIDENCE, n_comparisons=n_comparisons.get(name, 1)
        )
        for name, part in parts.items()
    }
    return Trained(weight, solution, audits)
