"""The first pages are short, and their numbers are those of the committed results."""

import json
import re
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from floormark import Watermarker
from samplewise.storage import from_plain
from studies.compression.arms import KINDS
from studies.compression.study import Row, bits_at, chosen

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
WORDS = " ".join(README.split())
PAGES = [ROOT / "docs" / name for name in ("compression.md", "compression-details.md")]
COMPRESSION = " ".join(" ".join(page.read_text(encoding="utf-8").split()) for page in PAGES)
OURS, ERROR, FOURTH, EIGHTH = (KINDS[kind].title for kind in ("penalty", "fixed", "fourth", "eighth"))


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
    rows = read("benchmarks/front_0.2.json")["rows"]
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
    card = (ROOT / "floormark" / "MODEL_CARD.md").read_text(encoding="utf-8")
    for text in (page, card):
        assert re.findall(r"^\| (?:40|45|50) .*", text, re.M) == wanted
    assert card.startswith(f"# Model card: the network `{found['model']}`")
    kinds = len(found["tools"]["samplewise, 45 dB"]["attacks"])
    assert f"on {found['images']} X-rays" in page
    assert f"after {kinds} attacks" in page


def test_the_messages_of_the_first_page_are_the_committed_ones() -> None:
    tool = read("watermark/at-45-dB/attacks.json")["tools"]["samplewise, 45 dB"]
    attacks = tool["attacks"].values()
    exact, images, wrong = (sum(each[what] for each in attacks) for what in ("exact", "images", "wrong"))
    assert not wrong
    assert tool["psnr"]["lowest"] >= 45
    measured = f"{tool['marked']} X-rays, {len(attacks)} attacks"
    assert f"every file; {exact:,} of {images:,} messages read ({measured}), none wrong" in cells("Watermark")[2]


def test_the_model_card_is_of_the_network_that_is_shipped() -> None:
    card = " ".join((ROOT / "floormark" / "MODEL_CARD.md").read_text(encoding="utf-8").split())
    assert f"the network `{Watermarker.load().model}`" in card
    runs = [read(f"watermark/lattice/result-{run}.json") for run in range(1, 7)]
    for run in runs:
        said = {"train": "training", "validation": "validation", "test": "tests"}
        assert all(f"{run['pictures'][part]:,} for {title}" in card for part, title in said.items())
        assert f"{run['parameters']:,} parameters" in card
    steps = (int(re.findall(r"--steps (\d+)", run["provenance"]["command"])[0]) for run in runs)
    hours, minutes = divmod(round(sum(run["seconds"] for run in runs) / 60), 60)
    assert f"{sum(steps):,} steps in all, {hours} h {minutes} min on one core" in card
    assert sum(run["selected"]["feasible"] for run in runs) == 1
    assert f"({runs[-1]['selected']['satisfied']:.2%} in the last)".replace("%", " %") in card
    attacks = read("watermark/attacks.json")["tools"]["samplewise, 50 dB"]["attacks"]
    weakest = sorted(each["exact"] for each in attacks.values())[:4]
    assert weakest == [25, 26, 26, 26]


def test_the_printed_output_is_what_the_lines_above_it_print(capsys: pytest.CaptureFixture[str]) -> None:
    names = {"__name__": "readme"}
    blocks = re.findall(r"```(?:python|text)\n(.*?)```", README, re.S)
    assert len(blocks) == 4
    for code, output in zip(blocks[::2], blocks[1::2], strict=True):
        exec(compile(code, "README.md", "exec"), names)
        assert capsys.readouterr().out == output


DATA = {"xrays": "X-rays", "pictures": "Pictures", "mnist": "MNIST"}
VERDICT = re.compile(
    r"a bound takes (\S+) bits a block; a fixed weight on the error takes (\S+): (.+?); "
    r"a fixed weight on its (\w+) power, the best of the powers, takes (\S+): (.+?)\.\*\*"
)


def section(data: str, words: str) -> str:
    """The part of the tables of compression whose title has these words."""
    text = (ROOT / "results" / "compression" / data / "table.md").read_text(encoding="utf-8")
    (found,) = (part for part in text.split("## ") if words in part.partition("\n")[0])
    return found


def arms(data: str, words: str) -> dict[str, list[str]]:
    """The cells of each arm in such a part."""
    lines = [line.strip("|").split("|") for line in section(data, words).splitlines() if line.startswith("|")]
    return {name.strip(): [cell.strip() for cell in rest] for name, *rest in lines[2:]}


def bits(data: str, words: str = "floor, in one pass") -> dict[str, list[float]]:
    """The bits of each arm for 90, 95, 99 and 99.9 %; NaN where that is not reached."""
    found = arms(data, words).items()
    return {
        arm: [float("nan") if cell == "not reached" else float(cell.split()[0]) for cell in cells]
        for arm, cells in found
    }


def unseen(data: str, arm: str) -> list[dict[str, Any]]:
    """What a run comes to on unseen samples in one pass, by seed."""
    rows = read(f"compression/{data}/rows.json")["rows"]
    return [row for row in rows if row["arm"] == arm and row["part"] == "test" and not row["searched"]]


def test_the_verdict_on_compression_is_that_of_its_tables() -> None:
    for data, title in DATA.items():
        for how, words in (("one pass", "floor, in one pass"), ("search", "with a search")):
            name = f"[{title}](../results/compression/{data}/table.md)" if how == "one pass" else title
            found = VERDICT.search(section(data, words))
            assert found
            ours, error, saved, power, best, more = found.groups()
            assert f"| {name}, {how} | {ours} | {error}: {saved} | {best} ({power}): {more} |" in COMPRESSION
        equal = arms(data, "equal bits")
        wanted = (f"{equal[arm][1]}, {equal[arm][2]} dB" for arm in (OURS, ERROR, FOURTH, EIGHTH))
        assert f"| {title} | {' | '.join(wanted)} |" in COMPRESSION
        worst = {arm: float(cells[2]) for arm, cells in equal.items() if cells[2] != "-"}
        assert worst[OURS] > worst[ERROR]
        assert (worst[EIGHTH] > worst[OURS]) == (data != "pictures")
    xrays, pictures, mnist = (bits(data) for data in DATA)
    assert saving(xrays[OURS][2], xrays[EIGHTH][2]) == saving(pictures[OURS][2], pictures[EIGHTH][2]) == 3
    assert saving(mnist[OURS][2], mnist[FOURTH][2]) == -1
    assert "3 % fewer bits than the best power on X-rays and pictures, 1 % more on MNIST" in WORDS
    assert "it saves 3 %; on MNIST the fourth power is 1 % better" in COMPRESSION
    left = []
    for data in DATA:
        taken = bits(data, "with a search")
        left.append(saving(taken[OURS][2], taken[ERROR][2]))
        assert abs(saving(taken[OURS][2], min(taken[FOURTH][2], taken[EIGHTH][2]))) <= 1, "within 1 %"
    assert f"against the error the bound saves {min(left)} to {max(left)} %" in COMPRESSION
    assert f"saves {saving(xrays[OURS][2], xrays[ERROR][2])} % of the bits against" in COMPRESSION
    assert (
        f"saves {saving(xrays[OURS][0], xrays[ERROR][0])} % of the bits for 90 % of the samples and "
        f"{saving(xrays[OURS][3], xrays[ERROR][3])} % for 99.9 % ({xrays[OURS][3]:.2f} against {xrays[ERROR][3]:.1f})"
    ) in COMPRESSION
    high = " and ".join(f"{saving(each[OURS][3], each[EIGHTH][3])}" for each in (xrays, pictures))
    assert f"fewer bits in every seed, and {high} % fewer for 99.9 %" in COMPRESSION
    for data in ("xrays", "pictures"):
        rows = [from_plain(Row, row) for row in read(f"compression/{data}/rows.json")["rows"]]
        for seed in range(3):
            bound, rival = (chosen(rows, kind, {seed: 0.99}, searched=False) for kind in ("penalty", "eighth"))
            assert bound
            assert rival
            assert bound.bits < rival.bits
    assert f"takes {-saving(xrays[OURS][2], bits('xrays', 'with a search')[OURS][2])} % more bits" in COMPRESSION
    assert all(min(mnist[FOURTH][i], mnist[EIGHTH][i]) < mnist[OURS][i] for i in range(4)), "a power is better"


def saving(ours: float, other: float) -> int:
    """Percents of the bits of another arm that are saved."""
    return round(100 * (1 - ours / other))


def test_what_is_said_of_other_arms_of_compression_is_what_their_runs_found() -> None:
    one_pass, searched = (arms("xrays", words) for words in ("floor, in one pass", "with a search"))
    for arm in set(one_pass) - {ERROR, FOURTH, EIGHTH, "fixed weight on its square", "fixed weight on its cube"}:
        assert f"| {arm} | {one_pass[arm][2]} | {searched[arm][2].split()[0]} |" in COMPRESSION
    found = bits("xrays")
    for arm in ("`AugmentedLagrangian`", "Cooper, augmented Lagrangian"):
        assert saving(found[OURS][2], found[arm][2]) == 2
        assert one_pass[arm][3] == one_pass["`Promise`"][3] == "not reached"
    told = "codec conditioned on its weight"
    assert -saving(found[told][2], found[ERROR][2]) == 4
    with_search = bits("xrays", "with a search")
    assert -saving(with_search[told][2], with_search[OURS][2]) == 4
    promised = {share: unseen("xrays", f"promise:{share}") for share in (0.9, 0.95, 0.98, 0.99, 0.995)}
    short = [row["share"] for share, rows in promised.items() for row in rows if row["share"] < share]
    assert [f"{share:.2%}" for share in short] == ["94.96%"]
    assert "94.96 % for 95 %" in COMPRESSION
    shares, costs = (sorted(row[name] for row in promised[0.99]) for name in ("share", "bits"))
    assert f"keeps {100 * shares[0]:.1f} to {100 * shares[-1]:.1f} %" in COMPRESSION
    assert f"at {costs[0]:.1f} to {costs[-1]:.1f} bits" in COMPRESSION


def test_what_a_knob_does_on_other_data_is_what_its_runs_found() -> None:
    lost = {}
    for arm in ("penalty:600", "penalty:300", "eighth:30", "fourth:30", "fixed:120"):
        shares, cells = [], []
        for data in DATA:
            rows = unseen(data, arm)
            shares += [100 * mean(row["share"] for row in rows)] if rows else []
            cells += [f"{shares[-1]:.1f} % at {mean(row['bits'] for row in rows):.1f} bits" if rows else "not run"]
            assert len(rows) in (0, 3)
        assert f"| `{arm}` | {' | '.join(cells)} |" in COMPRESSION
        lost[arm] = shares[0] - shares[1]
    assert (
        f"a tau of 300 loses {lost['penalty:300']:.1f} points, the weight on the eighth power {lost['eighth:30']:.1f}, "
        f"and the weight on the error {lost['fixed:120']:.0f}"
    ) in COMPRESSION


def test_what_is_said_of_whole_pictures_is_what_their_runs_found() -> None:
    for arm in ("penalty:600", "penalty:1200", "fixed:40", "eighth:30", "fourth:30"):
        rows = unseen("whole", arm)
        above, of = sum(round(row["share"] * row["blocks"]) for row in rows), sum(row["blocks"] for row in rows)
        assert f"| `{arm}` | {mean(row['bits'] for row in rows):.2f} | {above} of {of} |" in COMPRESSION
    taken = bits("whole", "with a search")
    said = f"bound {taken[OURS][2]} bits, weight on the error {taken[ERROR][2]}, on its eighth power {taken[EIGHTH][2]}"
    assert said in COMPRESSION
    assert all(cells[2].endswith(" at 100.00%") for cells in arms("whole", "with a search").values())
    assert arms("whole", "floor, in one pass")[OURS][2].endswith("2 of 3 seeds")


def test_what_is_said_of_promises_is_what_was_measured() -> None:
    page = " ".join((ROOT / "docs" / "guides" / "promise.md").read_text(encoding="utf-8").split())
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
    compared = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    said = f"{errors['objective, shifted']:.3f} at 95 %, a promise {errors['promise, first tau auto']:.3f}"
    assert said in compared
    assert f"best of eleven fixed weights, a factor of 1.26 apart, {errors['fixed weight, best of 11']:.3f}" in page
    fresh, grid = found["friedman"], found["runs"]["one weight"]
    assert f"in {sum(row['kept'] for row in fresh)} of {sum(row['runs'] for row in fresh)} at 90 and 95 %" in page
    for arm, said in (
        ("of all samples", "for the share of all samples"),
        ("in each group", "for that in each of two groups"),
    ):
        here = [row["kept"] for row in grid if row["arm"] == arm]
        assert f"{sum(here)} of {len(here)} {said}" in page
    above = {(row["share"], row["tune"], row["way"]): f"{100 * row['above']:.1f}" for row in found["choices"]}
    assert f"ends {above[0.9, 300, 'line']} points above it" in page
    assert f"({above[0.9, 300, 'one model']} if only one model is tested)" in page
    assert f"1,000 {above[0.9, 1000, 'line']} points ({above[0.9, 1000, 'one model']})" in page
