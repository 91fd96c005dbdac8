"""The page as people see it, in a real browser."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from browser import Browser, needs_chromium
from report_runs import made_up

from samplewise.report.page import write_page
from samplewise.report.run import Bars, RunReport, Table

pytestmark = needs_chromium

CHARTS = "[...document.querySelectorAll('.chart')].filter(each => each.checkVisibility())"
LINES = "document.querySelectorAll('#curve-0 .trace').length"
ONE = (made_up(),)
SEVERAL = (made_up("first"), made_up("second", satisfied=0.7), made_up("third", satisfied=1.0))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


def page(folder: Path, runs: tuple[RunReport, ...]) -> Path:
    path = folder / "report.html"
    write_page(path, runs)
    return path


@pytest.mark.parametrize("runs", [ONE, SEVERAL], ids=["one", "several"])
def test_it_draws_every_chart_asks_nobody_and_fits(
    browser: Browser, tmp_path: Path, runs: tuple[RunReport, ...]
) -> None:
    path = page(tmp_path, runs)
    browser.open(path, width=390)
    drawn = f"{CHARTS}.map(each => each.querySelectorAll('.trace, .point').length > 0)"
    assert browser.run(drawn) == [True] * (6 if len(runs) == 1 else 5)
    furthest = f"Math.max(...{CHARTS}.map(each => each.querySelector('svg').getBoundingClientRect().right))"
    assert browser.run("document.documentElement.scrollWidth") <= 390
    assert browser.run(furthest) <= 390
    browser.resize(1280)
    browser.wait(f"{furthest} > 900")  # the charts follow
    assert browser.run("document.documentElement.scrollWidth") <= 1280
    assert browser.run(furthest) <= 1280
    assert browser.complaints() == []
    assert browser.requests() == [path.as_uri()]


def test_a_page_without_curves_shows_bars_and_their_numbers(browser: Browser, tmp_path: Path) -> None:
    names = tuple(f"attack {i} <b>" for i in range(20))
    bars = Bars("After attacks", "Mean.", "bit error", names, {"grey": (0.1,) * 20, "rgb": (0.2,) * 20})
    table = Table("Numbers", ("", "mean <i>"), (("first", "0.1"), ("second", "0.2")))
    run = replace(made_up(), curves=(), bars=(bars,), tables=(table,))
    path = page(tmp_path, (run,))
    for width in (390, 1280):
        browser.open(path, width=width)
        widths = "[...document.querySelectorAll('.bars div span')].map(each => each.getBoundingClientRect().width)"
        found = browser.run(widths)
        assert len(found) == 40
        assert found[0] == pytest.approx(found[1] / 2, rel=0.05)
        assert browser.run("[...document.querySelectorAll('.bars th')].map(each => each.textContent)") == list(names)
        assert browser.run("document.querySelector('.bars td').textContent") == "0.10.2"
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run("document.querySelectorAll('#course').length") == 0
    assert browser.run("[...document.querySelectorAll('th')].some(each => each.textContent === 'mean <i>')")
    assert len(browser.send("Page.printToPDF")["data"]) > 10_000
    assert browser.complaints() == []


def test_the_pages_own_policy_refuses_the_network(browser: Browser, tmp_path: Path) -> None:
    browser.open(page(tmp_path, ONE))
    assert browser.run("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')") == "refused"
    assert any("Content Security Policy" in entry for entry in browser.complaints())


def test_boxes_hide_and_show_runs_and_data(browser: Browser, tmp_path: Path) -> None:
    browser.open(page(tmp_path, SEVERAL))
    assert browser.run(LINES) == 6  # three runs on two data sets
    browser.run("document.querySelector('input[data-kind=run][data-key=\"1\"]').click()")
    browser.wait(f"{LINES} === 4")
    browser.run("document.querySelector('input[data-key=\"while training\"]').click()")
    browser.wait(f"{LINES} === 6")
    browser.run("document.querySelector('input[data-key=train]').click()")
    browser.wait(f"{LINES} === 4")
    assert browser.run("document.querySelectorAll('#trade-off .point').length") == 2
    assert browser.complaints() == []


def test_the_scale_can_be_logarithmic(browser: Browser, tmp_path: Path) -> None:
    browser.open(page(tmp_path, ONE))
    types = f"{CHARTS}.filter(each => each.id.startsWith('curve')).map(each => each.dataset.scale)"
    assert browser.run(types) == ["linear", "linear", "linear", "logarithmic"]  # tau always is
    browser.run("document.getElementById('logarithmic').click()")
    assert browser.run(types) == ["logarithmic", "linear", "logarithmic", "logarithmic"]  # shares never are
    assert browser.complaints() == []


def test_a_run_is_drawn_when_it_is_opened_or_linked_to(browser: Browser, tmp_path: Path) -> None:
    browser.open(page(tmp_path, SEVERAL))
    seen = "[...document.querySelectorAll('#{} .trace')].filter(each => each.checkVisibility()).length"
    assert browser.run(seen.format("run-1-spread-0")) == 0
    browser.run("document.querySelector('a[href=\"#run-1\"]').click()")
    browser.wait(f"{seen.format('run-1-spread-0')} === 2")
    assert browser.run("document.querySelector('#run-1').open")
    browser.run("document.querySelector('#run-2 summary').click()")
    browser.wait(f"{seen.format('run-2-tail-0')} === 1")


COLOURS = """[
    getComputedStyle(document.body).backgroundColor,
    getComputedStyle(document.querySelector('.chart .xtick')).fill,
    getComputedStyle(document.querySelector('.chart .line')).stroke,
]"""
LIGHT = ["rgb(255, 255, 255)", "rgb(27, 31, 36)", "rgb(217, 222, 228)"]
DARK = ["rgb(20, 24, 29)", "rgb(228, 232, 238)", "rgb(50, 58, 68)"]


def test_charts_follow_the_theme_of_the_system_and_of_the_reader(browser: Browser, tmp_path: Path) -> None:
    browser.open(page(tmp_path, ONE), dark=True)
    assert browser.run(COLOURS) == DARK
    choose = "theme = document.getElementById('theme'); theme.value = '{}'; theme.dispatchEvent(new Event('change'))"
    browser.run(choose.format("light"))
    assert browser.run(COLOURS) == LIGHT
    browser.prefer(dark=False)
    browser.run(choose.format("dark"))
    assert browser.run(COLOURS) == DARK
    browser.run(choose.format(""))
    assert browser.run(COLOURS) == LIGHT


def test_paper_is_light_has_no_controls_and_shows_every_run(browser: Browser, tmp_path: Path) -> None:
    browser.open(page(tmp_path, SEVERAL), dark=True)
    browser.prefer(dark=True, media="print")
    assert browser.run(COLOURS) == LIGHT
    shown = "[...document.querySelectorAll('select, input')].filter(each => each.checkVisibility()).length"
    assert browser.run(shown) == 0
    browser.prefer(dark=True)
    drawn = "[...document.querySelectorAll('.chart')].map(each => each.querySelectorAll('.trace').length > 0)"
    browser.run(f"addEventListener('beforeprint', () => {{ printed = {drawn}; }})")
    assert len(browser.send("Page.printToPDF")["data"]) > 10_000
    assert browser.run("printed") == [True] * 11  # five of all runs, two of each
    browser.wait("document.querySelectorAll('details.run[open]').length === 0")
    assert browser.complaints() == []


def test_a_pointer_shows_values_and_zooms(browser: Browser, tmp_path: Path) -> None:
    browser.open(page(tmp_path, ONE))
    browser.run("document.getElementById('curve-0').scrollIntoView()")
    box = browser.run("document.querySelector('#curve-0 .trace').getBoundingClientRect().toJSON()")
    left, middle = box["x"] + 10, box["x"] + box["width"] / 2

    def mouse(kind: str, x: float, y: float, clicks: int = 1) -> None:
        browser.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=clicks)

    # From epoch 1 to 30 and from 0.5 to 0.5 / 30: where epoch 15 is.
    x = box["x"] + box["width"] * 14 / 29
    y = box["y"] + box["height"] * (0.5 - 0.5 / 15) / (0.5 - 0.5 / 30)
    browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    browser.wait("document.querySelector('#curve-0 .note').textContent.includes('epoch 15, 0.033333')")
    ticks = "[...document.querySelectorAll('#curve-0 .xtick')].map(each => Number(each.textContent))"
    whole = browser.run(ticks)
    mouse("mousePressed", left, y)
    mouse("mouseMoved", middle, y)
    mouse("mouseReleased", middle, y)
    browser.wait(f"Math.max(...{ticks}) <= 16")
    for clicks in (1, 2):
        mouse("mousePressed", middle, y, clicks)
        mouse("mouseReleased", middle, y, clicks)
    browser.wait(f"Math.max(...{ticks}) === {max(whole)}")
    assert browser.complaints() == []


def test_what_a_run_is_called_is_text_and_nothing_else(browser: Browser, tmp_path: Path) -> None:
    evil = "</script><script>hacked = 1</script><img src=x onerror='hacked = 1'>\"'&<b>%{x}"
    runs = (made_up(evil, constraint=evil), made_up("other <b>"))
    browser.open(page(tmp_path, runs))
    browser.run("document.querySelector('#run-0').open = true")
    browser.wait("document.querySelectorAll('#run-0-spread-0 .trace').length === 2")
    assert browser.run("typeof hacked") == "undefined"
    assert browser.run("document.querySelector('#run-0 h3').textContent") == evil
    assert browser.run("document.querySelector('#run-0-spread-0 .xtitle').textContent") == evil
    assert browser.run("document.querySelectorAll('img[src=x], main b').length") == 0
    assert browser.complaints() == []
