"""Which rows of the paper are beaten on both counts, accuracy and share satisfied, by one of ours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from samplewise.studies.mnist.paper import TABLE, Figures

__all__ = ["Beaten", "compare", "describe"]


@dataclass(frozen=True)
class Beaten:
    """A row of the paper and what is better."""

    row: str
    paper: Figures
    by: tuple[str, ...]
    """Names of our rows with both a higher accuracy and a higher share satisfied on the test set."""


def compare(ours: Mapping[str, tuple[float, float]]) -> list[Beaten]:
    """Hold every fixed and sequential row of Table I against ours.

    Args:
        ours: accuracy and share satisfied on the test set, by row. Rows of the paper's table are left out: they are
            its settings, not ours.
    """
    own = {name: found for name, found in ours.items() if name not in TABLE}
    return [
        Beaten(
            name,
            row.test,
            tuple(
                other
                for other, (accuracy, satisfied) in own.items()
                if accuracy > row.test.accuracy and satisfied > row.test.satisfied
            ),
        )
        for name, row in TABLE.items()
        if name != "classification"
    ]


def describe(found: Sequence[Beaten]) -> str:
    """The comparison as Markdown."""
    rows = ["| Row of the paper | Accuracy | Satisfied | Beaten on both by |", "|---|---|---|---|"]
    for each in found:
        better = ", ".join(f"`{name}`" for name in each.by) or "none"
        rows.append(f"| {each.row} | {each.paper.accuracy:.4f} | {each.paper.satisfied:.3f} | {better} |")
    beaten = sum(bool(each.by) for each in found)
    return "\n".join([*rows, "", f"{beaten} of {len(found)} rows are beaten on both counts."])
