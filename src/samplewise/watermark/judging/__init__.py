"""How good a trained network is on the files it writes: measured on every image, then summed up."""

from samplewise.watermark.judging.measure import Measured, measure
from samplewise.watermark.judging.shipped import measure_shipped
from samplewise.watermark.judging.summary import summarise

__all__ = ["Measured", "measure", "measure_shipped", "summarise"]
