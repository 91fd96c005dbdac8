"""Evaluation of trained networks on the files they write: every image is measured, then all are summarised."""

from studies.watermark.evaluation.measure import Measured, measure
from studies.watermark.evaluation.shipped import measure_shipped
from studies.watermark.evaluation.summary import summarise

__all__ = ["Measured", "measure", "measure_shipped", "summarise"]
