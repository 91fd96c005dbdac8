"""Results for people: pages about runs, tables, and numbers in words."""

# ruff: noqa: I001 - few lines for each module
# fmt: off
from samplewise.report.charts import PALETTE
from samplewise.report.fits import keep_certificate, read_certificate, read_curves, read_fit, read_multipliers
from samplewise.report.forecast import Forecast, forecast
from samplewise.report.page import make_page, write_page
from samplewise.report.run import (
    Audited, Bars, Distribution, Finding, Gallery, Picture, Requirement, RunReport, Table, distribution,
)
from samplewise.report.tensorboard import Pictures, in_lines
from samplewise.report.words import comparison, count, number, percent, share, verdict

__all__ = [
    "PALETTE", "Audited", "Bars", "Distribution", "Finding", "Forecast", "Gallery", "Picture", "Pictures",
    "Requirement", "RunReport", "Table", "comparison", "count", "distribution", "forecast", "in_lines",
    "keep_certificate", "make_page", "number", "percent", "read_certificate", "read_curves", "read_fit",
    "read_multipliers", "share", "verdict", "write_page",
]
# fmt: on
