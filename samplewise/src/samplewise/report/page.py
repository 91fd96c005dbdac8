"""One self-contained HTML page about one run or several, made from their :class:`RunReport` alone."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samplewise.errors import DataError, needed_for, printable
from samplewise.report import words
from samplewise.report.charts import SeriesStyle, colour, curve_charts, described, run_charts
from samplewise.report.run import RunReport
from samplewise.storage import disk
from samplewise.storage.origins import provenance

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

LARGEST = 5_000_000  # bytes of a page
PICTURES = 500_000  # bytes of all pictures together


def write_page(path: Path, runs: Sequence[RunReport], *, title: str | None = None) -> None:
    """Write the page, whole or not at all; see :func:`make_page`."""
    page = make_page(runs, title=title).encode("utf-8")
    if len(page) > LARGEST:
        raise DataError(f"the page of {len(runs)} runs would have {len(page) / 1e6:.1f} MB: report on fewer runs")
    with disk.atomic(path) as temporary:
        temporary.write_bytes(page)


def make_page(runs: Sequence[RunReport], *, title: str | None = None) -> str:
    """The page as text. It needs no network; only its charts need JavaScript.

    Args:
        runs: one or several.
        title: of the page; the run's name if not given.
    """
    if not runs:
        raise DataError("expected at least one run to report on")
    environment = _environment()
    styles = SeriesStyle(runs)
    curves, own = curve_charts(runs, styles), [run_charts(run, place, styles) for place, run in enumerate(runs)]
    of_runs = [chart for kinds in own for charts in kinds.values() for chart in charts]
    made = provenance()
    return environment.get_template("page.html").render(
        title=title or (runs[0].name if len(runs) == 1 else f"{len(runs)} runs"),
        views=[{"run": run, "charts": charts} for run, charts in zip(runs, own, strict=True)],
        curves=curves,
        zoomed=any("zoom" in chart.figure for chart in curves),
        pictures=_pictures_each(runs),
        swatches=_swatches(runs, styles),
        columns=_columns(runs, styles),
        comparison=words.comparison(runs),
        asked=runs[0] if words.same_problem(runs) else None,
        charts={chart.id: chart.figure for chart in (*curves, *of_runs)},
        made=f"Report by samplewise {made['versions']['samplewise']}, {made['date'][:10]}",
    )


def _swatches(runs: Sequence[RunReport], styles: SeriesStyle) -> dict[str, list[dict[str, Any]]]:
    """The legend: what can be shown and hidden, with its colour and its dash."""
    places = range(len(runs)) if styles.several else range(0)
    return {
        "Runs": [{"kind": "run", "key": i, "name": runs[i].name, "colour": styles.colour(i, "")} for i in places],
        "Data": [
            {
                "kind": "split",
                "key": split,
                "name": split,
                "dashes": styles.dashes(split),
                "colour": "" if styles.several else styles.colour(0, split),
                "hidden": split in styles.hidden,
            }
            for split in styles.splits
        ],
    }


def _columns(runs: Sequence[RunReport], styles: SeriesStyle) -> dict[str, Any]:
    """What a table of several runs compares: data sets, the measures without a bound that all runs have, and at which
    confidence, if that is the same for all.
    """
    found = [split for run in runs for split in run.splits]
    bounded = {requirement.measure for run in runs for requirement in run.requirements}
    common = set.intersection(*(set(split.means) for split in found)) if found else set()
    confidences = {run.unseen.confidence for run in runs if run.unseen is not None}
    return {
        "splits": styles.audited,
        "means": sorted(common - bounded),
        "objective": words.objective(runs),
        "confidence": confidences.pop() if len(confidences) == 1 else None,
    }


def _data_uri(image: Any) -> str:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(image).save(stream, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()


def _pictures_each(runs: Sequence[RunReport]) -> int:
    """How many pictures of each gallery fit, by their size before compression at worst."""
    galleries = [gallery.pictures for run in runs for gallery in run.galleries]
    most = max(map(len, galleries), default=0)
    for each in range(most, 1, -1):
        kept = [image for pictures in galleries for picture in pictures[:each] for image in picture.images.values()]
        if sum(4 * image.size / 3 + 100 for image in kept) <= PICTURES:
            return each
    return min(most, 1)


def _environment() -> Environment:
    with needed_for("a report", "report"):
        import PIL  # noqa: F401 - only whether it is there
        from jinja2 import Environment, PackageLoader, StrictUndefined
    # Every text of a run is escaped: what its files hold is not trusted.
    environment = Environment(
        loader=PackageLoader("samplewise.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = ("share", "at_least", "percent", "count", "number", "corrected", "asked", "outcome", "flat", "facts")
    environment.filters.update({name: getattr(words, name) for name in filters}, colour=colour, data_uri=_data_uri)
    environment.filters.update(breakable=_breakable, described=described)
    return environment


def _breakable(text: str) -> Markup:
    """A text that may break after the underscores of long names."""
    from markupsafe import Markup, escape

    return Markup(str(escape(printable(text))).replace("_", "_<wbr>"))


def _harmless(value: Any) -> Any:
    """Texts as :func:`samplewise.errors.printable` has them; our own style, script and charts are marked as safe."""
    return printable(value) if type(value) is str else value
