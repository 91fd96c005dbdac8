"""The first pages are short, and their numbers are those of the committed results."""

import json
import re
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from studies.compression.study import bits_at

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
WORDS = " ".join(README.split())


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "results" / name).read_text(encoding="utf-8"))
    return found


def cells(start: str) -> list[str]:
    """The row of the table of what holds where that begins so."""
    (line,) = (line for line in README.splitlines() if line.startswith(f"| {start}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_first_page_can_be_finished() -> None:
    assert len(README.splitlines()) <= 90


def test_the_picture_and_the_first_row_are_those_of_the_demo() -> None:
    found = read("demo/demo.json")
    ours, *fixed = found["rows"]
    (rival,) = (row for row in fixed if row["arm"] == found["rival"])
    assert f"Of {ours['blocks']:,} unseen blocks" in WORDS
    assert f"keeps {100 * ours['share']:.1f} % at {ours['bits']:.0f} bits a block" in WORDS
    assert f"nearest of five fixed weights keeps {100 * rival['share']:.1f} % at {rival['bits']:.0f}" in WORDS
    assert rival["bits"] > ours["bits"], "with fewer bits"
    needed = bits_at([(row["share"], row["bits"]) for row in fixed], ours["share"])
    share = f"{100 * ours['share']:.1f} %"
    mixed = f"{share} at {needed:.0f} bits, a mixture of two weights"
    assert cells("Compression")[2:] == [f"{share} at {ours['bits']:.0f} bits", mixed]


def test_what_is_said_of_digits_and_clothes_is_what_their_runs_found() -> None:
    rows = read("benchmarks/front.json")["rows"]
    for task, start in (("mnist", "MNIST"), ("fashion", "Fashion-MNIST")):
        said = []
        for arm in ("promise", "fixed"):
            (row,) = (row for row in rows[task] if row["arm"] == arm and row["wanted"] == 0.5)
            said.append(f"{mean(row['share']):.1%}, accuracy {mean(row['score']):.4f}".replace("%", " %"))
        assert cells(start)[2:] == said


def test_the_tables_of_the_watermarking_tool_are_the_committed_one() -> None:
    page = (ROOT / "floormark" / "README.md").read_text(encoding="utf-8")
    found, wanted = read("watermark/attacks.json"), []
    for floor in (40, 45, 50):
        tool = found["tools"][f"samplewise, {floor} dB"]
        attacks = tool["attacks"].values()
        exact, images, wrong = (sum(each[what] for each in attacks) for what in ("exact", "images", "wrong"))
        wanted.append(
            f"| {floor} | {tool['marked']} | {tool['refused']} | {tool['psnr']['lowest']:.2f} | "
            f"{tool['attacks']['none']['exact']} of {tool['marked']} | {exact:,} of {images:,} | {wrong} |"
        )
        if floor == 45:
            assert f"{exact:,} of {images:,} messages read" in cells("Watermark")[2]
    assert re.findall(r"^\| (?:40|45|50) .*", page, re.M) == wanted
    kinds = len(found["tools"]["samplewise, 45 dB"]["attacks"])
    assert f"on {found['images']} X-rays" in page
    assert f"after {kinds} attacks" in page


def test_the_printed_output_is_what_the_lines_above_it_print(capsys: pytest.CaptureFixture[str]) -> None:
    names = {"__name__": "readme"}
    blocks = re.findall(r"```(?:python|text)\n(.*?)```", README, re.S)
    assert len(blocks) == 4
    for code, output in zip(blocks[::2], blocks[1::2], strict=True):
        exec(compile(code, "README.md", "exec"), names)
        assert capsys.readouterr().out == output


def test_what_is_said_of_compression_is_what_its_tables_say() -> None:
    page = " ".join((ROOT / "docs" / "compression.md").read_text(encoding="utf-8").split())
    for data in ("xrays", "pictures"):
        table = (ROOT / "results" / "compression" / data / "table.md").read_text(encoding="utf-8")
        searched, one_pass = (line for line in table.splitlines() if line.startswith("**For 99%"))
        assert one_pass in page
        assert searched in page or data == "pictures"
        rows = read(f"compression/{data}/rows.json")["rows"]
        for arm in ("penalty:600", "penalty:300", "eighth:30", "fourth:30", "fixed:120"):
            first = next(row for row in rows if row["arm"] == arm and row["part"] == "test" and not row["searched"])
            assert f"{100 * first['share']:.1f} % at {first['bits']:.1f} bits" in page


def test_what_is_said_of_promises_is_what_was_measured() -> None:
    page = " ".join((ROOT / "docs" / "guides" / "out-of-sample.md").read_text(encoding="utf-8").split())
    found = read("benchmarks/promise_kept.json")
    promises = [row for row in found["regression"] if row["arm"].startswith("promise")]
    kept, runs = (sum(row[name] for row in promises) for name in ("kept", "runs"))
    assert f"{kept} of {runs} runs" in page
    assert not any(row["wrong"] for row in [*promises, *found["digits"]])
    first, second = found["digits"]
    assert f"{first['kept']} of {first['runs']} at 90 % and {second['kept']} of {second['runs']} at 92 %" in page
    errors = {row["arm"]: row["objective"] for row in found["regression"] if row["share"] == 0.95}
    assert f"squared error of {errors['objective, shifted']:.3f} at 95 %" in page
    assert f"promise has {errors['promise, first tau auto']:.3f}" in page
    assert f"fixed weights {errors['fixed weight, best of five']:.3f}" in page
    above = {(row["share"], row["tune"], row["way"]): f"{100 * row['above']:.1f}" for row in found["choices"]}
    assert f"ends {above[0.9, 300, 'line']} points above it" in page
    assert f"({above[0.9, 300, 'one model']} if only one model is tested)" in page
    assert f"1,000 {above[0.9, 1000, 'line']} points ({above[0.9, 1000, 'one model']})" in page
