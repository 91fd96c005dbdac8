"""From a run's folder to a :class:`RunReport`: one reader for each kind of run, asked in turn."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from samplewise.errors import DataError
from samplewise.report.run import TRAINING, Curve, Numbers, RunReport

__all__ = ["Reader", "number", "read_curves", "read_reports"]

Reader = Callable[[Path], Sequence[RunReport] | None]
"""Reads the runs of a folder, or gives None if the folder is of another kind."""

CURVES = {"objective": "Objective", "satisfied": "Share satisfied", "violation": "Mean violation"}


def read_reports(folders: Sequence[Path], readers: Sequence[Reader]) -> list[RunReport]:
    """All runs in the folders; where there are several folders, each run's name begins with its folder's.

    Args:
        folders: of runs, of any kind that one of the readers knows.
        readers: asked in turn.

    Raises:
        DataError: a folder is no run, or its files cannot be read.
    """
    found = [(Path(folder), _read(Path(folder), readers)) for folder in folders]
    names = _short_names([folder for folder, _ in found])
    if len(found) == 1:
        return found[0][1]
    return [
        replace(run, name=name if len(runs) == 1 else f"{name}: {run.name}")
        for name, (_, runs) in zip(names, found, strict=True)
        for run in runs
    ]


def _read(folder: Path, readers: Sequence[Reader]) -> list[RunReport]:
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder; give the folder of a run")
    for reader in readers:
        runs = reader(folder)
        if runs is not None:
            return list(runs)
    raise DataError(
        f"{folder}: holds no run that a report can be made of; give one that fit, mnist, watermark train, watermark "
        "evaluate or chest classifier wrote"
    )


def _short_names(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell the folders apart."""
    parts = [folder.resolve().parts[1:] for folder in folders]
    for length in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(set(parts)):
            break
    return names


def number(value: Any) -> float | None:
    """A number of a history; None where there is none, since what is not finite is written as nothing."""
    return None if value is None or value == "" else float(value)


def read_curves(rows: Sequence[Mapping[str, Any]], constraints: Sequence[str]) -> Iterator[Curve]:
    """The curves in a history: of each audited data set, of what was seen while training, and tau.

    Args:
        rows: of the history.
        constraints: their names.
    """
    columns = dict.fromkeys(name for row in rows for name in row)
    several = len(constraints) > 1
    taus = [_curve(rows, f"tau/{name}")[1] for name in constraints]
    one_tau = all(each == taus[0] for each in taus)
    for column in columns:
        split, _, rest = column.partition("/")
        shown = TRAINING if split == "running" else split
        constraint, _, what = rest.rpartition("/")
        if split == "tau":
            if not any(_curve(rows, column)[1]) or (one_tau and rest != constraints[0]):
                continue  # nothing was enforced, or the same is shown already
            title, shown = "τ" if one_tau else f"τ: {rest}", ""
        elif rest == "objective" or (rest == "satisfied" and several):
            title = CURVES[rest] + (" by all" if rest == "satisfied" else "")
        elif constraint in constraints and what in CURVES:
            title = f"{CURVES[what]}: {constraint}" if several else CURVES[what]
        else:
            continue
        yield Curve(title, shown, *_curve(rows, column))


def _curve(rows: Sequence[Mapping[str, Any]], column: str) -> tuple[tuple[float, ...], Numbers]:
    """Epochs and values where the history has the column."""
    points = [(float(row["epoch"]), number(row[column])) for row in rows if column in row]
    return tuple(epoch for epoch, _ in points), tuple(value for _, value in points)
