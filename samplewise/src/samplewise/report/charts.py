"""The charts of a report as plotly's plain figures; colours of text and grid come from the page's style sheet."""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samplewise.errors import printable
from samplewise.report.run import TRAINING, Bars, Distribution, Multipliers, RunReport
from samplewise.report.style import BEYOND, DASHES, INK, SYMBOLS, colour
from samplewise.report.words import count, objective

BUDGET = 60_000  # points of all curves together, about 1 MB
SHARE = {"tickformat": ".3~%", "autorangeoptions": {"clipmin": -0.05, "clipmax": 1.05}}
"""An axis of fractions, which shows none above all, even where all are the same."""
LOGARITHMIC = {"type": "log", "nticks": 6}
ORDER = ("Objective", "Share satisfied by all", "Share satisfied", "Mean violation", "τ")
"""How the titles of curves begin."""


@dataclass(frozen=True)
class Chart:
    """One figure of the page."""

    id: str
    title: str
    caption: str
    figure: Mapping[str, Any]
    height: int | None = None
    """In pixels, where what is shown decides it."""


class Look:
    """Which colour, dash and symbol stand for which run and data set: by run, or by data set if there is one run."""

    def __init__(self, runs: Sequence[RunReport]) -> None:
        curves = [curve for run in runs for curve in run.curves]
        names = [curve.split for curve in curves if curve.split not in ("", TRAINING)]
        names += [split.name for run in runs for split in run.splits]
        trained = {split.name for run in runs for split in run.splits if split.trained_on}
        self.audited = sorted(dict.fromkeys(names), key=lambda name: name not in trained)
        seen_in_training = any(curve.split == TRAINING for curve in curves)
        self.splits = [*self.audited, TRAINING] if seen_in_training else self.audited
        self.several = len(runs) > 1
        # What was seen while training is not shown at first, if audits of several epochs show the same.
        shown = any(curve.split in self.audited and len(curve.epochs) > 1 for curve in curves)
        self.hidden = {TRAINING} if shown else set()

    def colour(self, run: int, split: str) -> str:
        """Of a line among those of all runs."""
        return colour(run if self.several else self.place(split))

    def dash(self, split: str) -> str:
        """Of a line."""
        return DASHES[self.place(split) % len(DASHES)]

    def symbol(self, split: str) -> str:
        """Of a point."""
        return list(SYMBOLS)[self.place(split) % len(SYMBOLS)]

    def name(self, run: RunReport, split: str) -> str:
        """Of a line or point among those of all runs."""
        return ", ".join(part for part in (run.name if self.several else "", split) if part) or run.name

    def place(self, split: str) -> int:
        """Of a data set among all, from which its colour follows where only one run is shown."""
        return self.splits.index(split) if split in self.splits else 0


def _trace(name: str, x: Iterable[Any], y: Iterable[Any], hover: str, **more: Any) -> dict[str, Any]:
    trace = {"type": "scatter", "name": _verbatim(name), "x": list(x), "y": list(y), "hovertemplate": hover, "meta": {}}
    return trace | more


def _axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": _verbatim(title)}, **more}


def curve_charts(runs: Sequence[RunReport], look: Look) -> list[Chart]:
    """One chart for each title of a curve, all runs in it; of several runs also the trade-off."""
    titles = dict.fromkeys(curve.title for run in runs for curve in run.curves)
    points = max(20, BUDGET // max(sum(len(run.curves) for run in runs), 1))
    selected = None if look.several else runs[0].selected_epoch
    shapes = [] if selected is None else [_rule(selected, "dot")]
    caption = "Dotted: the selected epoch." if shapes else ""
    charts = [_trade_off(runs, look)] if look.several else []
    for number, title in enumerate(sorted(titles, key=_order)):
        # Where the scale is empty, the reader chooses it.
        scale = SHARE if title.startswith("Share") else LOGARITHMIC if title.startswith("τ") else {}
        traces = []
        for place, run in enumerate(runs):
            for curve in (curve for curve in run.curves if curve.title == title):
                keep = _spread(len(curve.epochs), points)
                values = [curve.values[i] for i in keep]
                shade = look.colour(place, curve.split)
                traces.append(
                    _trace(
                        look.name(run, curve.split),
                        (int(curve.epochs[i]) for i in keep),
                        # No tau is no point of a logarithmic axis.
                        (_short(value or None if scale is LOGARITHMIC else value) for value in values),
                        f"epoch %{{x}}: %{{y:{'.2%' if scale is SHARE else '.5g'}}}",
                        mode="lines" if len(keep) > 1 else "markers",
                        line={"color": shade, "dash": look.dash(curve.split), "width": 2},
                        marker={"color": shade, "size": 8},
                        meta={"run": place, "split": printable(curve.split)},
                        visible=curve.split not in look.hidden,
                    )
                )
        layout = {"xaxis": _axis("epoch"), "yaxis": scale, "shapes": shapes}
        figure = {"data": traces, "layout": layout, "scalable": not scale}
        charts.append(Chart(f"curve-{number}", title, caption, figure))
    return charts


def _order(title: str) -> tuple[int, str]:
    return next((place for place, start in enumerate(ORDER) if title.startswith(start)), len(ORDER)), title


def _trade_off(runs: Sequence[RunReport], look: Look) -> Chart:
    """Objective against fraction satisfied, one point for each run and data set."""
    traces = [
        _trace(
            look.name(run, split.name),
            [_short(split.objective)],
            [_short(split.satisfied)],
            f"{_verbatim(run.objective)} %{{x:.5g}}<br>satisfied %{{y:.2%}}",
            mode="markers",
            cliponaxis=False,
            marker={"color": look.colour(place, split.name), "symbol": look.symbol(split.name), "size": 12},
            meta={"run": place, "split": printable(split.name)},
        )
        for place, run in enumerate(runs)
        for split in run.splits
    ]
    layout = {"xaxis": _axis(f"mean {objective(runs)}"), "yaxis": _axis("share satisfied", **SHARE)}
    marks = "; ".join(f"{SYMBOLS[look.symbol(name)]}: {name}" for name in look.audited)
    caption = f"The selected model of each run ({marks}). Better is up and to the left."
    return Chart("trade-off", "Trade-off", caption, {"data": traces, "layout": layout})


def run_charts(run: RunReport, place: int, look: Look) -> dict[str, list[Chart]]:
    """The charts of one run alone: how measures are spread, bars, the long tails of multipliers."""
    bounded = {requirement.measure for requirement in run.requirements}
    # A measure of two values is told by its mean.
    spreads = sorted((each for each in run.distributions if _values(each) > 2), key=lambda s: s.measure not in bounded)
    tails = [each for each in run.multipliers if each.ranks]
    return {
        "distributions": [_distribution(run, each, f"run-{place}-spread-{n}", look) for n, each in enumerate(spreads)],
        "bars": [_bars(each, f"run-{place}-bars-{n}") for n, each in enumerate(run.bars)],
        "multipliers": [_multipliers(each, f"run-{place}-tail-{n}") for n, each in enumerate(tails)],
    }


def _distribution(run: RunReport, spread: Distribution, identity: str, look: Look) -> Chart:
    requirements = [each for each in run.requirements if each.measure == spread.measure]
    lower = [each.lower for each in requirements if each.lower is not None]
    upper = [each.upper for each in requirements if each.upper is not None]
    low, high = _occupied(spread, [*lower, *upper])
    traces, notes = [], []
    for split, counts in spread.counts.items():
        below, above = spread.beyond[split]
        total = sum(counts) + below + above
        if not total:
            continue
        shade = colour(look.place(split))
        traces.append(
            _trace(
                split,
                # Steps that rise from nothing at the first edge and fall to it at the last.
                (_short(edge) for edge in (spread.edges[0], *spread.edges)),
                [0, *(_short(each / total) for each in counts), 0],
                "from %{x:.4g}: %{y:.2%} (%{customdata})",
                mode="lines",
                customdata=[0, *(int(each) for each in counts), 0],
                line={"color": shade, "shape": "hv", "width": 1.5},
                fill="tozeroy",
                fillcolor=f"{shade}30",
                meta={"split": printable(split)},
            )
        )
        if below or above:
            notes.append(f"{split} {count(below)} below and {count(above)} above")
    violated = [(low, bound) for bound in lower] + [(bound, high) for bound in upper]
    layout = {
        "showlegend": look.several,
        "xaxis": _axis(spread.measure, range=[low, high]),
        "yaxis": _axis("share of the samples", tickformat=".3~%", rangemode="tozero"),
        "shapes": [*(_rule(bound, "dash") for bound in (*lower, *upper)), *(_area(*ends) for ends in violated)],
    }
    said = "; ".join(dict.fromkeys(requirement.formula for requirement in requirements))
    caption = f"Dashed: the bound, {said}." if said else "No bound."
    if notes:
        caption += f" Beyond the scale: {'; '.join(notes)}."
    return Chart(identity, spread.measure, caption, {"data": traces, "layout": layout})


def _values(spread: Distribution) -> int:
    """How many bins hold something, tails included."""
    tails = [number for pair in spread.beyond.values() for number in pair]
    return sum(map(any, zip(*spread.counts.values(), strict=True))) + sum(map(bool, tails))


def _occupied(spread: Distribution, bounds: Iterable[float]) -> tuple[float, float]:
    """From the first to the last bin that holds something, the bounds within."""
    edges = spread.edges
    full = [i for i, each in enumerate(zip(*spread.counts.values(), strict=True)) if any(each)]
    ends = [edges[i] for i in full] + [edges[i + 1] for i in full] + list(bounds) or [edges[0], edges[-1]]
    low, high = min(ends), max(ends)
    room = 0.03 * (high - low) or 0.5
    return low - room, high + room


def _multipliers(tail: Multipliers, identity: str) -> Chart:
    trace = _trace(
        tail.constraint,
        tail.ranks,
        map(_short, tail.values),
        "rank %{x}: %{y:.4g}",
        mode="lines+markers",
        line={"color": colour(0), "width": 2},
        marker={"color": colour(0), "size": 4},
    )
    layout = {"xaxis": _axis("rank", type="log", dtick=1), "yaxis": _axis("multiplier", **LOGARITHMIC)}
    caption = (
        f"{count(tail.positive)} of {count(tail.total)} multipliers are positive, the largest {tail.values[0]:.4g}: "
        "what each sample's bound costs, sorted."
    )
    return Chart(identity, tail.constraint, caption, {"data": [trace], "layout": layout})


def _bars(bars: Bars, identity: str) -> Chart:
    names = [_verbatim(each) for each in bars.names]  # the first on top
    bar = {"type": "bar", "orientation": "h"}
    traces = [
        _trace(name, map(_short, values), names, "%{y}: %{x:.4g}", marker={"color": colour(number)}, **bar)
        for number, (name, values) in enumerate(bars.series.items())
    ]
    layout = {
        "showlegend": len(traces) > 1,
        "xaxis": _axis(bars.unit, rangemode="tozero"),
        "yaxis": {"type": "category", "autorange": "reversed", "showgrid": False, "dtick": 1},
        "bargap": 0.35,
    }
    height = 90 + len(bars.names) * (12 + 8 * len(traces))
    return Chart(identity, bars.title, bars.caption, {"data": traces, "layout": layout}, height)


def _rule(value: float, dash: str) -> dict[str, Any]:
    """A vertical line."""
    ends = {"xref": "x", "yref": "paper", "x0": value, "x1": value, "y0": 0, "y1": 1}
    return {"type": "line", **ends, "line": {"color": INK, "width": 1.5, "dash": dash}}


def _area(left: float, right: float) -> dict[str, Any]:
    """Where a bound is violated."""
    ends = {"xref": "x", "yref": "paper", "x0": left, "x1": right, "y0": 0, "y1": 1}
    return {"type": "rect", **ends, "layer": "below", "line": {"width": 0}, "fillcolor": f"{BEYOND}17"}


def _verbatim(text: str) -> str:
    """A text for plotly, which reads tags and templates in its texts."""
    return html.escape(printable(text), quote=False).replace("%{", "%&#123;")


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


def _spread(length: int, points: int) -> list[int]:
    """At most ``points`` places of a list, evenly, both ends among them."""
    if length <= points:
        return list(range(length))
    return [round(i * (length - 1) / (points - 1)) for i in range(points)]
