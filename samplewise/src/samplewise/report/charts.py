"""The charts of a report as plain data, which the page's script draws; other colours come from its style sheet."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samplewise.errors import printable
from samplewise.report.run import TRAINING, Distribution, Multipliers, RunReport
from samplewise.report.words import count, objective

BUDGET = 20_000  # points of all curves together, about 300 kB
DESCRIBED = 12  # lines of a chart that are also told in words
STEEP = 4  # first epochs are left out at first if with them a chart spans more than this many times its second half
EARLY = 1 / 3  # of the epochs are left out at most
ORDER = ("Objective", "Share satisfied by all", "Share satisfied", "Mean violation", "τ")
"""How the titles of curves begin."""
# fmt: off
PALETTE = (
    "#2a7fca", "#cf6410", "#1b8f6a", "#c0579b", "#8568d6", "#a8730c",
    "#d24b4b", "#12899c", "#6f8a1d", "#7d8590", "#a06a4f", "#5a76e0",
)
# fmt: on
"""Each keeps a contrast of 3 to paper, to the light and to the dark page; the first ones stay apart for colour-blind
readers. Lines and points that may be printed without colour also differ in dash or symbol."""
DASHES = ("", "8 4", "3 3", "8 3 2 3", "12 4", "12 3 2 3")
"""Of lines as SVG takes them."""
SYMBOLS = "○◆■▲✚★"
"""Of points."""


def colour(number: int) -> str:
    """The colour of a series, by its number."""
    return PALETTE[number % len(PALETTE)]


@dataclass(frozen=True)
class Chart:
    """One chart of the page."""

    id: str
    title: str
    caption: str
    figure: Mapping[str, Any]
    """Axes ``x`` and ``y``, and ``lines`` of points; what else the script reads."""


class SeriesStyle:
    """Colour, dashes and symbol of each run and data set. Runs differ in colour; of one run the data sets do."""

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
        """The colour of a line."""
        return colour(run if self.several else self.place(split))

    def dashes(self, split: str) -> str:
        """The dashes of a line."""
        return DASHES[self.place(split) % len(DASHES)]

    def symbol(self, split: str) -> str:
        """The symbol of a point."""
        return SYMBOLS[self.place(split) % len(SYMBOLS)]

    def name(self, run: RunReport, split: str) -> str:
        """The name of a line or point in the legend."""
        return ", ".join(part for part in (run.name if self.several else "", split) if part) or run.name

    def place(self, split: str) -> int:
        """The number of a data set, from which its dashes, its symbol and, of one run, its colour follow."""
        return self.splits.index(split) if split in self.splits else 0


def _line(name: str, x: Iterable[float], y: Iterable[float | None], colour: str, **more: Any) -> dict[str, Any]:
    return {"name": printable(name), "x": [_short(v) for v in x], "y": [_short(v) for v in y], "colour": colour, **more}


def _axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": printable(title), **more}


def curve_charts(runs: Sequence[RunReport], styles: SeriesStyle) -> list[Chart]:
    """One chart for each title, with the curves of all runs; for several runs also their trade-off."""
    titles = dict.fromkeys(curve.title for run in runs for curve in run.curves)
    points = max(20, BUDGET // max(sum(len(run.curves) for run in runs), 1))
    selected = None if styles.several else runs[0].selected_epoch
    rules = [] if selected is None else [[selected, DASHES[2]]]
    caption = "Dotted: the selected epoch." if rules else ""
    charts = [_trade_off(runs, styles)] if styles.several else []
    for number, title in enumerate(sorted(titles, key=_order)):
        lines = []
        for place, run in enumerate(runs):
            for curve in (curve for curve in run.curves if curve.title == title):
                keep = _spread(len(curve.epochs), points)
                x, y, split = [curve.epochs[i] for i in keep], [curve.values[i] for i in keep], curve.split
                options = {"dashes": styles.dashes(split), "run": place, "split": printable(split)}
                lines.append(_line(styles.name(run, split), x, y, styles.colour(place, split), **options))
        share, tau = title.startswith("Share"), title.startswith("τ")
        axes = {"x": _axis("epoch", whole=True), "y": _axis("", percent=share, log=tau)}
        figure: dict[str, Any] = {**axes, "lines": lines, "rules": rules, "scalable": not (share or tau)}
        said = caption
        shown = [line for line in lines if line["split"] not in styles.hidden]
        if figure["scalable"] and (zoom := _where_it_varies(shown)) is not None:
            figure["zoom"] = zoom
            said = f"From epoch {zoom[0]:g}: the first ones would leave the others flat. {caption}".strip()
        charts.append(Chart(f"curve-{number}", title, said, figure))
    return charts


def _where_it_varies(lines: Sequence[Mapping[str, Any]]) -> list[float] | None:
    """The epochs to show at first, if the first of them would leave the rest flat."""
    points = sorted((x, y) for line in lines for x, y in zip(line["x"], line["y"], strict=True) if y is not None)
    epochs = sorted({x for x, _ in points})

    def spread(start: float) -> float:
        values: list[float] = [y for x, y in points if x >= start]
        return max(values) - min(values)

    late = spread(epochs[len(epochs) // 2]) if epochs else 0.0
    if not late or spread(epochs[0]) <= STEEP * late:
        return None
    early = epochs[: max(1, round(EARLY * len(epochs)))]
    start = next((epoch for epoch in early if spread(epoch) <= STEEP * late), early[-1])
    return [start, epochs[-1]] if start > epochs[0] else None


def _order(title: str) -> tuple[int, str]:
    return next((place for place, start in enumerate(ORDER) if title.startswith(start)), len(ORDER)), title


def _trade_off(runs: Sequence[RunReport], styles: SeriesStyle) -> Chart:
    """Objective against fraction satisfied, one point for each run and data set."""
    lines = [
        _line(
            styles.name(run, split.name),
            [split.objective],
            [split.satisfied],
            styles.colour(place, split.name),
            symbol=styles.symbol(split.name),
            run=place,
            split=printable(split.name),
        )
        for place, run in enumerate(runs)
        for split in run.splits
    ]
    axes = {"x": _axis(f"mean {objective(runs)}"), "y": _axis("share satisfied", percent=True)}
    marks = "; ".join(f"{styles.symbol(name)} {name}" for name in styles.audited)
    caption = f"The selected model of each run ({marks}). Better is up and to the left."
    return Chart("trade-off", "Trade-off", caption, {**axes, "lines": lines})


def run_charts(run: RunReport, place: int, styles: SeriesStyle) -> dict[str, list[Chart]]:
    """The charts of one run alone: how measures are spread, and the long tails of multipliers."""
    bounded = {requirement.measure for requirement in run.requirements}
    # A measure of two values is told by its mean.
    spreads = sorted((each for each in run.distributions if _values(each) > 2), key=lambda s: s.measure not in bounded)
    tails = [each for each in run.multipliers if each.ranks and not each.few]
    return {
        "distributions": [
            _distribution(run, each, f"run-{place}-spread-{n}", styles) for n, each in enumerate(spreads)
        ],
        "multipliers": [_multipliers(each, f"run-{place}-tail-{n}") for n, each in enumerate(tails)],
    }


def _distribution(run: RunReport, spread: Distribution, identity: str, styles: SeriesStyle) -> Chart:
    requirements = [each for each in run.requirements if each.measure == spread.measure]
    lower = [each.lower for each in requirements if each.lower is not None]
    upper = [each.upper for each in requirements if each.upper is not None]
    low, high = _occupied(spread, [*lower, *upper])
    lines, notes = [], []
    for split, counts in spread.counts.items():
        below, above = spread.beyond[split]
        total = sum(counts) + below + above
        if not total:
            continue
        # Steps that rise from nothing at the first edge and fall to it at the last.
        x, y = (spread.edges[0], *spread.edges), (0.0, *(each / total for each in counts), 0.0)
        numbers = [0, *map(int, counts), 0]
        shade = colour(styles.place(split))
        lines.append(_line(split, x, y, shade, steps=True, counts=numbers, split=printable(split)))
        if below or above:
            notes.append(f"{split} {count(below)} below and {count(above)} above")
    figure = {
        "x": _axis(spread.measure, range=[low, high]),
        "y": _axis("share of the samples", percent=True, zero=True),
        "lines": lines,
        "rules": [[bound, DASHES[1]] for bound in (*lower, *upper)],
        "violated": [[low, bound] for bound in lower] + [[bound, high] for bound in upper],
        "legend": styles.several,
    }
    said = "; ".join(dict.fromkeys(requirement.formula for requirement in requirements))
    caption = f"Dashed: the bound, {said}." if said else "No bound."
    if notes:
        caption += f" Beyond the scale: {'; '.join(notes)}."
    return Chart(identity, spread.measure, caption, figure)


def _values(spread: Distribution) -> int:
    """How many bins are not empty, tails included."""
    tails = [number for pair in spread.beyond.values() for number in pair]
    return sum(map(any, zip(*spread.counts.values(), strict=True))) + sum(map(bool, tails))


def _occupied(spread: Distribution, bounds: Iterable[float]) -> tuple[float, float]:
    """The range that shows all bins that are not empty, and the bounds."""
    edges = spread.edges
    full = [i for i, each in enumerate(zip(*spread.counts.values(), strict=True)) if any(each)]
    ends = [edges[i] for i in full] + [edges[i + 1] for i in full] + list(bounds) or [edges[0], edges[-1]]
    low, high = min(ends), max(ends)
    room = 0.03 * (high - low) or 0.5
    return low - room, high + room


def _multipliers(tail: Multipliers, identity: str) -> Chart:
    axes = {"x": _axis("rank", log=True), "y": _axis("multiplier", log=True)}
    lines = [_line(tail.constraint, tail.ranks, tail.values, colour(0), marks=len(tail.ranks) < 50)]
    return Chart(identity, tail.constraint, tail.sentence, {**axes, "lines": lines})


def described(chart: Chart) -> str:
    """Where the lines of a chart of curves begin and end, for those who do not see it."""
    said = []
    for line in chart.figure["lines"][:DESCRIBED]:
        known = [(x, y) for x, y in zip(line["x"], line["y"], strict=True) if y is not None]
        if known and not line.get("steps"):
            ends = [f"{_read_out(y, chart.figure['y'])} at {chart.figure['x']['title']} {x:g}" for x, y in known]
            said.append(f"{line['name']}: {' to '.join(dict.fromkeys((ends[0], ends[-1])))}.")
    return " ".join(said)


def _read_out(value: float, axis: Mapping[str, Any]) -> str:
    return f"{100 * value:.4g}%" if axis.get("percent") else f"{value:.4g}"


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


def _spread(length: int, points: int) -> list[int]:
    """At most ``points`` places of a list, evenly, both ends among them."""
    if length <= points:
        return list(range(length))
    return [round(i * (length - 1) / (points - 1)) for i in range(points)]
