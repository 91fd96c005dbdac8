"""Results for people: pages about runs, the style of all figures, tables, and numbers in words."""

# ruff: noqa: I001 - few lines for each module
# fmt: off
from samplewise.report.fits import (
    keep_certificate, read_certificate, read_curves, read_fit, read_fit_within, read_multipliers,
)
from samplewise.report.forecast import Forecast, forecast
from samplewise.report.page import make_page, write_page
from samplewise.report.run import (
    Audited, Bars, Distribution, Finding, Gallery, Picture, Requirement, RunReport, Table, distribution,
)
from samplewise.report.style import (
    COLOURS, FAINT, LINES, MARKERS, Line, bound_line, curve, histogram, label_points, legend_below, new_figure, save,
    series, styled,
)
from samplewise.report.tensorboard import Pictures, in_lines, to_tensorboard
from samplewise.report.words import comparison, count, markdown_table, number, percent, share, verdict

__all__ = [
    "COLOURS", "FAINT", "LINES", "MARKERS", "Audited", "Bars", "Distribution", "Finding", "Forecast", "Gallery", "Line",
    "Picture", "Pictures", "Requirement", "RunReport", "Table", "bound_line", "comparison", "count", "curve",
    "distribution", "forecast", "histogram", "in_lines", "keep_certificate", "label_points", "legend_below",
    "make_page", "markdown_table", "new_figure", "number", "percent", "read_certificate", "read_curves", "read_fit",
    "read_fit_within", "read_multipliers", "save", "series", "share", "styled", "to_tensorboard", "verdict",
    "write_page",
]
# fmt: on
