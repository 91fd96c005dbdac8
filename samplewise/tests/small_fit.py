"""A real run of the small problem that the tests of reports share."""

from pathlib import Path

import samplewise as sw
from small import fit, make_data


def small_fit(folder: Path, kind: str = "sequential", epochs: int = 3) -> tuple[sw.Solution, sw.Method]:
    """A run of the small problem, audited on training and on test data."""
    audited = {"train": make_data(), "test": make_data(51, seed=1)}
    solution = fit(kind=kind, epochs=epochs, audit_on=audited, checkpoint=folder, progress=False)
    return solution, solution.method
