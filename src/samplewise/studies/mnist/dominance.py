"""Which rows of the paper are beaten on both counts, accuracy and share satisfied, by one of ours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from samplewise.studies.mnist.table_one import TABLE_ONE, paper_number

__all__ = ["Beaten", "compare", "describe"]


@dataclass(frozen=True)
class Beaten:
    """A row of the paper and what is better."""

    row: str
    accuracy: float
    satisfied: float
    by: tuple[str, ...]
    """Names of our rows with both a higher accuracy and a higher share satisfied on the test set."""


def compare(ours: Mapping[str, tuple[float, float]]) -> list[Beaten]:
    """Hold every fixed and sequential row of Table I against ours.

    Args:
        ours: accuracy and share satisfied on the test set, by row. Rows of the paper's table are left out: they are
            its settings, not ours.
    """
    own = {name: found for name, found in ours.items() if name not in TABLE_ONE}
    found = []
    for row in TABLE_ONE:
        paper = [paper_number(row, "test", column) or 0.0 for column in ("accuracy", "satisfied")]
        if row != "classification":
            by = tuple(name for name, numbers in own.items() if all(x > y for x, y in zip(numbers, paper, strict=True)))
            found.append(Beaten(row, paper[0], paper[1], by))
    return found


def describe(found: Sequence[Beaten]) -> str:
    """The comparison as Markdown."""
    rows = ["| Row of the paper | Accuracy | Satisfied | Beaten on both by |", "|---|---|---|---|"]
    for each in found:
        better = ", ".join(f"`{name}`" for name in each.by) or "none"
        rows.append(f"| {each.row} | {each.accuracy:.4f} | {each.satisfied:.3f} | {better} |")
    beaten = sum(bool(each.by) for each in found)
    return "\n".join([*rows, "", f"{beaten} of {len(found)} rows are beaten on both counts."])
