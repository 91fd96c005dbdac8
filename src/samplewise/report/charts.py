"""The charts of a report as plotly's plain figures; colours of text and grid come from the page's style sheet."""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samplewise.errors import printable
from samplewise.report.look import BEYOND, INK, SYMBOLS, Look, colour
from samplewise.report.run import TRAINING, Bars, Curve, Distribution, Multipliers, RunReport
from samplewise.report.words import count, objective

__all__ = ["Chart", "bar_charts", "curve_charts", "distribution_charts", "multiplier_charts"]

BUDGET = 60_000  # points of all curves together, about 1 MB
SHARE = {"tickformat": ".3~%", "autorangeoptions": {"clipmin": -0.05, "clipmax": 1.05}}
"""An axis of shares, which shows none above all, even where all are the same."""


@dataclass(frozen=True)
class Chart:
    """One figure of the page."""

    id: str
    title: str
    caption: str
    figure: Mapping[str, Any]
    height: int | None = None
    """In pixels, where what is shown decides it."""


def curve_charts(runs: Sequence[RunReport], look: Look) -> list[Chart]:
    """One chart for each title of a curve, all runs in it; of several runs also the trade-off."""
    titles = dict.fromkeys(curve.title for run in runs for curve in run.curves)
    total = sum(len(run.curves) for run in runs)
    points = max(20, BUDGET // max(total, 1))
    hidden = look.hidden(runs)
    charts = []
    for number, title in enumerate(sorted(titles, key=_order)):
        traces = [
            _line(look, place, run, curve, points, visible=curve.split not in hidden)
            for place, run in enumerate(runs)
            for curve in run.curves
            if curve.title == title
        ]
        shapes = []
        if not look.several and runs[0].selected_epoch is not None:
            shapes = [_rule("x", float(runs[0].selected_epoch), dash="dot")]
        layout = {"xaxis": {"title": {"text": "epoch"}}, "yaxis": _scale(title), "shapes": shapes}
        caption = "Dotted: the selected epoch." if shapes else ""
        figure = {"data": traces, "layout": layout, "scalable": not layout["yaxis"]}
        charts.append(Chart(f"curve-{number}", title, caption, figure))
    return ([_trade_off(runs, look)] if look.several else []) + charts


def _order(title: str) -> tuple[int, str]:
    starts = ("Objective", "Share satisfied by all", "Share satisfied", "Mean violation", "τ")
    return next((place for place, start in enumerate(starts) if title.startswith(start)), len(starts)), title


def _scale(title: str) -> dict[str, Any]:
    """The axis of a chart whose scale is not for the reader to choose."""
    if title.startswith("Share"):
        return SHARE
    return {"type": "log", "nticks": 6} if title.startswith("τ") else {}


def _line(look: Look, place: int, run: RunReport, curve: Curve, points: int, *, visible: bool) -> dict[str, Any]:
    keep = _spread(len(curve.epochs), points)
    shade, text = look.colour(place, curve.split), ".2%" if curve.title.startswith("Share") else ".5g"
    return {
        "type": "scatter",
        "mode": "lines" if len(keep) > 1 else "markers",
        "name": _name(look, run, curve.split),
        "x": [int(curve.epochs[i]) for i in keep],
        # No tau is no point of a logarithmic axis.
        "y": [_short(curve.values[i] if curve.split else curve.values[i] or None) for i in keep],
        "line": {"color": shade, "dash": look.dash(curve.split), "width": 2},
        "marker": {"color": shade, "size": 8},
        "hovertemplate": f"epoch %{{x}}: %{{y:{text}}}",
        "meta": {"run": place, "split": printable(curve.split)},
        "visible": visible,
    }


def _trade_off(runs: Sequence[RunReport], look: Look) -> Chart:
    """Objective against share satisfied, one point for each run and data set."""
    traces = [
        {
            "type": "scatter",
            "mode": "markers",
            "cliponaxis": False,
            "name": _name(look, run, split.name),
            "x": [_short(split.objective)],
            "y": [_short(split.satisfied)],
            "marker": {"color": look.colour(place, split.name), "symbol": look.symbol(split.name), "size": 12},
            "hovertemplate": f"{_verbatim(run.objective)} %{{x:.5g}}<br>satisfied %{{y:.2%}}",
            "meta": {"run": place, "split": printable(split.name)},
        }
        for place, run in enumerate(runs)
        for split in run.splits
    ]
    layout = {
        "xaxis": {"title": {"text": f"mean {_verbatim(objective(runs))}"}},
        "yaxis": {"title": {"text": "share satisfied"}, **SHARE},
    }
    names = [name for name in look.splits if name != TRAINING]
    marks = "; ".join(f"{SYMBOLS[look.symbol(name)]}: {name}" for name in names)
    caption = f"The selected model of each run ({marks}). Better is up and to the left."
    return Chart("trade-off", "Trade-off", caption, {"data": traces, "layout": layout})


def distribution_charts(run: RunReport, place: int, look: Look) -> list[Chart]:
    """How each measure is spread, its bounds marked; a measure of two values is told by its mean."""
    bounded = {requirement.measure for requirement in run.requirements}
    shown = [each for each in run.distributions if _values(each) > 2]
    shown.sort(key=lambda each: each.measure not in bounded)
    return [_distribution(run, each, f"run-{place}-spread-{number}", look) for number, each in enumerate(shown)]


def _distribution(run: RunReport, spread: Distribution, identity: str, look: Look) -> Chart:
    edges = spread.edges
    bounds = [
        (requirement, side, bound)
        for requirement in run.requirements
        if requirement.measure == spread.measure
        for side, bound in (("lower", requirement.lower), ("upper", requirement.upper))
        if bound is not None
    ]
    low, high = _occupied(spread, [bound for _, _, bound in bounds])
    traces, notes = [], []
    for split, counts in spread.counts.items():
        below, above = spread.beyond[split]
        total = sum(counts) + below + above
        if not total:
            continue
        shade = look.split_colour(split)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": _verbatim(split),
                # Steps that rise from nothing at the first edge and fall to it at the last.
                "x": [_short(edge) for edge in (edges[0], *edges)],
                "y": [0, *(_short(each / total) for each in counts), 0],
                "customdata": [0, *(int(each) for each in counts), 0],
                "line": {"color": shade, "shape": "hv", "width": 1.5},
                "fill": "tozeroy",
                "fillcolor": f"{shade}30",
                "hovertemplate": "from %{x:.4g}: %{y:.2%} (%{customdata})",
                "meta": {"split": printable(split)},
            }
        )
        if below or above:
            notes.append(f"{split} {count(below)} below and {count(above)} above")
    shapes = [_rule("x", bound, dash="dash") for _, _, bound in bounds]
    shapes += [_shade(side, bound, low, high) for _, side, bound in bounds]
    layout = {
        "showlegend": look.several,
        "xaxis": {"title": {"text": _verbatim(spread.measure)}, "range": [low, high]},
        "yaxis": {"title": {"text": "share of the samples"}, "tickformat": ".3~%", "rangemode": "tozero"},
        "shapes": shapes,
    }
    said = "; ".join(dict.fromkeys(requirement.formula for requirement, _, _ in bounds))
    caption = f"Dashed: the bound, {said}." if said else "No bound."
    if notes:
        caption += f" Beyond the scale: {'; '.join(notes)}."
    return Chart(identity, spread.measure, caption, {"data": traces, "layout": layout})


def multiplier_charts(run: RunReport, place: int) -> list[Chart]:
    """The long tail of each constraint's multipliers."""
    return [
        _multipliers(each, f"run-{place}-tail-{number}") for number, each in enumerate(run.multipliers) if each.ranks
    ]


def _multipliers(tail: Multipliers, identity: str) -> Chart:
    trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": _verbatim(tail.constraint),
        "x": list(tail.ranks),
        "y": [_short(value) for value in tail.values],
        "line": {"color": colour(0), "width": 2},
        "marker": {"color": colour(0), "size": 4},
        "hovertemplate": "rank %{x}: %{y:.4g}",
        "meta": {},
    }
    layout = {
        "xaxis": {"title": {"text": "rank"}, "type": "log", "dtick": 1},
        "yaxis": {"title": {"text": "multiplier"}, "type": "log", "nticks": 6},
    }
    caption = (
        f"{count(tail.positive)} of {count(tail.total)} multipliers are positive, the largest {tail.values[0]:.4g}: "
        "what each sample's bound costs, sorted."
    )
    return Chart(identity, tail.constraint, caption, {"data": [trace], "layout": layout})


def bar_charts(run: RunReport, place: int) -> list[Chart]:
    """Numbers by name, the first name on top."""
    return [_bars(each, f"run-{place}-bars-{number}") for number, each in enumerate(run.bars)]


def _bars(bars: Bars, identity: str) -> Chart:
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": _verbatim(name),
            "x": [_short(value) for value in values],
            "y": [_verbatim(each) for each in bars.names],
            "marker": {"color": colour(number)},
            "hovertemplate": "%{y}: %{x:.4g}",
            "meta": {},
        }
        for number, (name, values) in enumerate(bars.series.items())
    ]
    layout = {
        "showlegend": len(traces) > 1,
        "xaxis": {"title": {"text": _verbatim(bars.unit)}, "rangemode": "tozero"},
        "yaxis": {"type": "category", "autorange": "reversed", "showgrid": False, "dtick": 1},
        "bargap": 0.35,
    }
    height = 90 + len(bars.names) * (12 + 8 * len(traces))
    return Chart(identity, bars.title, bars.caption, {"data": traces, "layout": layout}, height)


def _values(spread: Distribution) -> int:
    """How many bins hold something, tails included."""
    tails = [number for pair in spread.beyond.values() for number in pair]
    bins = zip(*spread.counts.values(), strict=True)
    return sum(any(each) for each in bins) + sum(1 for number in tails if number)


def _occupied(spread: Distribution, bounds: Iterable[float]) -> tuple[float, float]:
    """From the first to the last bin that holds something, the bounds within."""
    edges = spread.edges
    full = [i for i, each in enumerate(zip(*spread.counts.values(), strict=True)) if any(each)]
    ends = [edges[i] for i in full] + [edges[i + 1] for i in full] + list(bounds) or [edges[0], edges[-1]]
    low, high = min(ends), max(ends)
    room = 0.03 * (high - low) or 0.5
    return low - room, high + room


def _shade(side: str, bound: float, low: float, high: float) -> dict[str, Any]:
    ends = {"x0": low, "x1": bound} if side == "lower" else {"x0": bound, "x1": high}
    shape = {"type": "rect", "xref": "x", "yref": "paper", "y0": 0, "y1": 1, "layer": "below", "line": {"width": 0}}
    return {**shape, **ends, "fillcolor": f"{BEYOND}17"}


def _rule(axis: str, value: float, *, dash: str) -> dict[str, Any]:
    shape = {"type": "line", "xref": axis, "yref": "paper", "x0": value, "x1": value, "y0": 0, "y1": 1}
    return {**shape, "line": {"color": INK, "width": 1.5, "dash": dash}}


def _name(look: Look, run: RunReport, split: str) -> str:
    name = ", ".join(part for part in (run.name if look.several else "", split) if part) or run.name
    return _verbatim(name)


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
