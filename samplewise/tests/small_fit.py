"""A real run of the small problem that the tests of reports share."""

from pathlib import Path

import torch

import samplewise as sw
from small import make_data, make_method, make_model, make_problem


def small_fit(folder: Path, kind: str = "sequential", epochs: int = 3) -> tuple[sw.Solution, sw.Method]:
    """A run of the small problem, audited on training and on test data."""
    model, method = make_model(), make_method(kind)
    solution = sw.fit(
        make_problem(),
        model,
        make_data(),
        method=method,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        epochs=epochs,
        batch_size=50,
        audit_on={"train": make_data(), "test": make_data(51, seed=1)},
        checkpoint=folder,
        progress=False,
    )
    return solution, method
