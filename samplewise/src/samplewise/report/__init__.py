"""Results for people: the style of all figures, what a report knows of a run, and pages."""

from samplewise.report.fits import read_certificate, read_curves, read_fit_within, read_multipliers
from samplewise.report.page import write_page
from samplewise.report.run import (
    Audited,
    Bars,
    Distribution,
    Finding,
    Gallery,
    Picture,
    Requirement,
    RunReport,
    Table,
    distribution,
)
from samplewise.report.style import (
    COLOURS,
    LINES,
    MARKERS,
    Line,
    bound_line,
    curve,
    histogram,
    label_points,
    legend_below,
    new_figure,
    save,
    series,
    styled,
)
from samplewise.report.tensorboard import in_lines, pictures, to_tensorboard
from samplewise.report.words import count, number, percent, share

# fmt: off
__all__ = [
    "COLOURS", "LINES", "MARKERS", "Audited", "Bars", "Distribution", "Finding", "Gallery", "Line", "Picture",
    "Requirement", "RunReport", "Table", "bound_line", "count", "curve", "distribution", "histogram", "in_lines",
    "label_points", "legend_below", "new_figure", "number", "percent", "pictures", "read_certificate", "read_curves",
    "read_fit_within", "read_multipliers", "save", "series", "share", "styled", "to_tensorboard",
    "write_page",
]
# fmt: on
