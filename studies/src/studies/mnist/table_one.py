"""Table I of the paper (arXiv 2601.16812): its columns, which are ours too, and its numbers, transcribed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from studies.mnist.digit_network import CONSTRAINT


@dataclass(frozen=True)
class Column:
    """One number of every row: a new column takes an entry in :data:`COLUMNS` and nothing else."""

    name: str
    heading: str
    digits: int
    """Behind the point."""
    key: str
    """In the history of a run, behind the name of the data set."""

    def text(self, value: float) -> str:
        """The number as tables show it."""
        return f"{value:.{self.digits}f}"


COLUMNS = (
    Column("objective", "CE", 4, "objective"),
    Column("accuracy", "Accuracy", 4, "accuracy"),
    Column("mse", "MSE", 5, CONSTRAINT),
    Column("violation", "Violation", 5, f"{CONSTRAINT}/violation"),
    Column("satisfied", "Satisfied", 3, f"{CONSTRAINT}/satisfied"),
)
"""The paper's columns in its order; further ones of our own come after them."""
NAMES = tuple(column.name for column in COLUMNS)


def numbers_of(epoch: Mapping[str, Any], split: str) -> dict[str, float]:
    """The columns' numbers in one epoch of a history, for one data set."""
    return {column.name: float(epoch[f"{split}/{column.key}"]) for column in COLUMNS}


PUBLISHED = """
classification     0.039250 0.991400 0.112003 0.102003 0.000000  0.070265 0.978600 0.113958 0.103958 0.000000
fixed:10           0.045508 0.986683 0.018016 0.008508 0.167400  0.075963 0.975200 0.017502 0.008028 0.179600
fixed:100          0.061058 0.982800 0.008594 0.001452 0.685383  0.094645 0.969700 0.008547 0.001445 0.687500
fixed:1000         0.148642 0.955667 0.006322 0.000533 0.853300  0.150207 0.955800 0.006648 0.000701 0.828100
penalty:100:1.005  0.068917 0.980083 0.009030 0.001031 0.692967  0.093914 0.969400 0.009118 0.001212 0.680600
penalty:100:1.01   0.099660 0.970483 0.008142 0.000584 0.779433  0.113742 0.965600 0.008412 0.000917 0.739400
penalty:100:1.02   0.162459 0.951483 0.007706 0.000301 0.841500  0.158266 0.952600 0.008332 0.000911 0.741700
penalty:10:1.01    0.057573 0.984000 0.010872 0.002199 0.517933  0.091115 0.972500 0.010760 0.002182 0.533700
penalty:50:1.01    0.084600 0.975717 0.008681 0.000825 0.727467  0.106097 0.967500 0.008845 0.001072 0.704500
penalty:200:1.01   0.119088 0.964883 0.007960 0.000471 0.806517  0.126058 0.962300 0.008334 0.000876 0.750700
penalty:1000:1.01  0.184653 0.945317 0.007677 0.000273 0.845817  0.181098 0.947600 0.008324 0.000887 0.743500
"""
"""In the paper's order, of each row the five numbers for train and the five for test. In the first row the error is
that of an all-black image, not of a decoder."""


def _published(text: str) -> tuple[str, dict[str, dict[str, float]]]:
    row, *numbers = text.split()
    halves = (("train", numbers[:5]), ("test", numbers[5:]))
    return row, {split: dict(zip(NAMES, map(float, half), strict=False)) for split, half in halves}


TABLE_ONE = dict(map(_published, PUBLISHED.strip().splitlines()))
"""By row, data set and column."""
