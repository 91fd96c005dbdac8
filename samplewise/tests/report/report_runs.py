"""A run for the tests of reports that is made up to hold everything."""

import math

import numpy as np

from samplewise.report.run import (
    Audited,
    Curve,
    Distribution,
    Finding,
    Gallery,
    Multipliers,
    Picture,
    Requirement,
    RunReport,
    Statement,
)


def split(name: str, satisfied: float, *, constraint: str = "error", samples: int = 200) -> Audited:
    finding = Finding(round((1 - satisfied) * samples), satisfied, 0.01, 0.2, violators=((7, 0.2), (3, 0.1)))
    n_comparisons = math.inf if name == "train" else 1
    return Audited(name, samples, 0.5, satisfied, {constraint: finding}, {"accuracy": 0.9}, n_comparisons=n_comparisons)


def made_up(name: str = "made up", *, constraint: str = "error", epochs: int = 30, satisfied: float = 0.9) -> RunReport:
    """A run with everything a page can show."""
    steps = tuple(float(i) for i in range(1, epochs + 1))
    titles = ("Objective", "Share satisfied", "Mean violation")
    splits = ("train", "test", "while training")
    curves = [Curve(title, part, steps, tuple(0.5 / i for i in steps)) for title in titles for part in splits]
    image = np.arange(64, dtype=np.uint8).reshape(8, 8)
    return RunReport(
        name=name,
        folder=f"runs/{name}",
        problem="Minimise the mean objective over 200 training samples",
        requirements=(Requirement(constraint, constraint, f"{constraint} <= 0.5", upper=0.5, margin=0.01),),
        method="SequentialPenalty",
        selected="epoch 3: the most satisfied",
        selected_epoch=3,
        splits=(split("train", 1.0, constraint=constraint), split("test", satisfied, constraint=constraint)),
        curves=(*curves, Curve("τ", "", steps, tuple(2.0 * i for i in steps))),
        distributions=(
            Distribution(
                constraint,
                edges=(0.0, 0.25, 0.5, 0.75, 1.0),
                counts={"train": (90.0, 110.0, 0.0, 0.0), "test": (80.0, 90.0, 20.0, 8.0)},
                beyond={"train": (0, 0), "test": (0, 2)},
            ),
        ),
        galleries=(
            Gallery("Largest errors on test", (Picture("sample 7: 0.7", {"original": image, "reconstructed": image}),)),
        ),
        multipliers=(Multipliers(constraint, 200, 3, (1, 2, 3), (9.0, 3.0, 0.1)),),
        certificate=Statement("Stationary to 0.01 relative, all 200 samples satisfied.", {"stationarity": 0.01}),
        settings={"batch_size": 50, "optimizer": {"type": "Adam"}},
        provenance={"command": "python train.py", "versions": {"torch": "2.13.0"}},
    )
