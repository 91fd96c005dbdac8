import builtins
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_runs import made_up

from samplewise.errors import DataError, MissingPackageError
from samplewise.report import page
from samplewise.report.run import Gallery, Picture, RunReport

EVIL = "</script><script>alert(1)</script><!--<img src=x onerror=alert(1)>\"'&"


class Outline(HTMLParser):
    """What a page is made of; tags that do not match are an error."""

    VOID = ("meta", "input", "img", "line", "wbr")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def outline(*runs: RunReport) -> Outline:
    parser = Outline()
    parser.feed(page.make_page(runs))
    parser.close()
    assert parser.open == []
    return parser


@pytest.mark.parametrize("runs", [(made_up(),), (made_up("a"), made_up("b"))], ids=["one", "several"])
def test_the_page_is_whole_and_accessible(runs: tuple[RunReport, ...]) -> None:
    found = outline(*runs)
    tags = [tag for tag, _ in found.tags]
    assert (tags.count("h1"), tags.count("main"), tags.count("title")) == (1, 1, 1)
    assert ("html", {"lang": "en"}) in found.tags
    assert all(attributes.get("alt") for tag, attributes in found.tags if tag == "img")
    charts = [attributes for tag, attributes in found.tags if attributes.get("class") == "chart"]
    assert all(each["role"] == "img" and each["aria-label"] for each in charts)
    assert {each["id"] for each in charts} == set(figures(page.make_page(runs)))
    identities = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(identities) == len(set(identities))
    links = [attributes.get("src") or attributes.get("href") or "#" for _, attributes in found.tags]
    assert all(link.startswith(("#", "data:image/png;")) for link in links)


def figures(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="charts">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    read: dict[str, Any] = json.loads(found[1])
    return read


def test_texts_of_a_run_are_escaped_everywhere() -> None:
    plain = outline(made_up("a"), made_up("b"))
    evil = outline(made_up(EVIL, constraint=EVIL), made_up("b", constraint=EVIL))
    assert [tag for tag, _ in evil.tags] == [tag for tag, _ in plain.tags]
    assert EVIL in "".join(evil.text)


def test_no_text_of_a_run_turns_the_page_round_and_its_lines_can_still_be_hidden() -> None:
    hostile = "x\u202egnp\x1b[31m"
    plain = made_up("a")
    splits = (plain.splits[0], replace(plain.splits[1], name=hostile))
    curves = tuple(replace(each, split=hostile) if each.split == "test" else each for each in plain.curves)
    text = page.make_page([replace(made_up(hostile), splits=splits, curves=curves), plain], title=hostile)
    assert all(char.isprintable() or char == "\n" for char in text)
    found = Outline()
    found.feed(text)
    keys = {attributes.get("data-key") for _, attributes in found.tags} - {None}
    lines = [line for each in figures(text).values() for line in each["lines"]]
    assert {line["split"] for line in lines if line.get("split")} <= keys
    assert "x\\u202egnp\\x1b[31m" in keys


def test_the_confidence_is_that_of_the_audit() -> None:
    runs = [made_up("a"), made_up("b")]
    strict = [replace(run, splits=tuple(replace(each, confidence=0.999) for each in run.splits)) for run in runs]
    for found in (outline(*strict), outline(strict[0])):
        text = "".join(found.text)
        assert "99.9%" in text
        assert "95%" not in text
    mixed = "".join(outline(runs[0], strict[1]).text)
    assert "(95% confidence)" in mixed
    assert "(99.9% confidence)" in mixed


def test_an_objective_that_all_runs_share_is_named_though_their_bounds_differ() -> None:
    runs = [replace(made_up("a"), objective="bit error"), replace(made_up("b", constraint="x"), objective="bit error")]
    assert "mean bit error" in outline(*runs).text
    assert "mean objective" in outline(runs[0], replace(runs[1], objective="loss")).text


def test_the_numbers_are_in_the_page_without_any_script() -> None:
    text = re.sub(r"<script.*?</script>", "", page.make_page([made_up()]), flags=re.DOTALL)
    for said in (
        "200 unseen samples of test: 90.0% meet the bound",
        "error &lt;= 0.5",
        "python train.py",
        "2.13.0",
        "Stationary to 0.01",
        "0.2",
    ):
        assert said in text


def test_a_page_stays_small_whatever_the_runs(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (20, 100, 100), dtype=np.uint8)
    pictures = tuple(Picture(f"sample {i}", {"original": image}) for i, image in enumerate(noise))
    for galleries, largest in (((), 1_000_000), ((Gallery("worst", pictures),), 3_000_000)):
        runs = [replace(made_up(str(i), epochs=5000), galleries=galleries) for i in range(30)]
        page.write_page(tmp_path / "report.html", runs)
        assert (tmp_path / "report.html").stat().st_size <= largest
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_no_run_and_too_many_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="at least one run"):
        page.make_page([])
    monkeypatch.setattr(page, "LARGEST", 10_000)
    with pytest.raises(DataError, match="report on fewer runs"):
        page.write_page(tmp_path / "report.html", [made_up()])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["jinja2", "PIL"])
def test_a_missing_package_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    real = builtins.__import__

    def refuse(name: str, *more: Any, **options: Any) -> Any:
        if name.split(".")[0] == package:
            raise ImportError(f"No module named {name!r}", name=name)
        return real(name, *more, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingPackageError, match=r"pip install .*'jinja2>=.*' 'pillow>="):
        page.make_page([made_up()])
