import json
import re
from pathlib import Path

import pytest
from report_runs import made_up

import samplewise
from samplewise.report.charts import PALETTE, SeriesStyle, curve_charts, run_charts
from samplewise.report.run import RunReport

RUNS = [made_up("a"), made_up("b", epochs=3000)]


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("page", ["#ffffff", "#f6f7f9", "#14181d", "#1b2027"])
def test_every_colour_stands_out_on_every_page(page: str) -> None:
    for colour in PALETTE:
        light, dark = sorted((luminance(colour), luminance(page)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3.0, (colour, page)


def test_only_the_palette_names_colours() -> None:
    """What is drawn looks the same everywhere: the style sheet has the page's own colours, the palette all others."""
    root = Path(samplewise.__file__).parent
    paths = [path for kind in ("*.py", "*.js", "*.html") for path in root.rglob(kind)]
    named = re.compile(r"#[0-9a-fA-F]{3,8}['\"]|rgba?\(\d|color=['\"](?!inherit|none)[a-z]+['\"]")
    found = {path.name: named.findall(path.read_text()) for path in paths}
    assert {name: colours for name, colours in found.items() if colours} == {
        "charts.py": [f'{colour}"' for colour in PALETTE]
    }


@pytest.mark.parametrize("runs", [RUNS[:1], RUNS])
def test_every_chart_has_axes_lines_and_a_name_of_its_own(runs: list[RunReport]) -> None:
    styles = SeriesStyle(runs)
    charts = curve_charts(runs, styles)
    charts += [chart for kind in run_charts(RUNS[0], 0, styles).values() for chart in kind]
    assert len({chart.id for chart in charts}) == len(charts) == 6 + len(runs) - 1
    for chart in charts:
        assert {"x", "y", "lines"} <= set(chart.figure)
        assert all(len(line["x"]) == len(line["y"]) > 0 for line in chart.figure["lines"])
        json.dumps(chart.figure, allow_nan=False)


def test_one_run_is_coloured_by_data_set_and_several_by_run() -> None:
    one, several = SeriesStyle(RUNS[:1]), SeriesStyle(RUNS)
    assert one.colour(0, "train") != one.colour(0, "test")
    assert several.colour(0, "train") == several.colour(0, "test") != several.colour(1, "test")
    assert one.splits == ["train", "test", "while training"]
    assert one.hidden == {"while training"}


def test_long_runs_are_thinned_and_keep_their_ends() -> None:
    runs = [made_up(str(i), epochs=3000) for i in range(8)]
    charts = curve_charts(runs, SeriesStyle(runs))
    lines = [line for chart in charts for line in chart.figure["lines"] if len(line["x"]) > 1]
    assert sum(len(line["x"]) for line in lines) <= 20_000
    assert all((line["x"][0], line["x"][-1]) == (1, 3000) for line in lines)


def test_a_distribution_says_what_lies_beyond_its_scale() -> None:
    (chart,) = run_charts(RUNS[0], 0, SeriesStyle(RUNS[:1]))["distributions"]
    assert "error <= 0.5" in chart.caption
    assert "test 0 below and 2 above" in chart.caption
    low, high = chart.figure["x"]["range"]
    assert low < 0.0 < 0.5 < high
    assert [bound for bound, _ in chart.figure["rules"]] == [0.5]
    assert chart.figure["violated"] == [[0.5, high]]
    test = chart.figure["lines"][1]
    assert sum(test["y"]) == pytest.approx(198 / 200)
    assert test["x"] == [0.0, 0.0, 0.25, 0.5, 0.75, 1.0]  # the first and the last bar are as wide as the others
    assert (test["y"][0], test["y"][-1]) == (0, 0)
