"""How good a trained network is on the files it writes: measured on every image, then summed up."""

from studies.watermark.evaluation.measure import Measured, measure
from studies.watermark.evaluation.shipped import measure_shipped
from studies.watermark.evaluation.summary import summarise

__all__ = ["Measured", "measure", "measure_shipped", "summarise"]
