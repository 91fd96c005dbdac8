"""A run with what was found of it."""

from dataclasses import dataclass

from samplewise.data.pictures import PictureData
from samplewise.watermark.evaluation.network import Evaluation
from samplewise.watermark.evaluation.runs import Run
from samplewise.watermark.evaluation.summary import Summary

__all__ = ["Judged"]


@dataclass(frozen=True)
class Judged:
    """A run, the pictures it was judged on, and the findings."""

    run: Run
    data: PictureData
    evaluation: Evaluation
    summary: Summary
