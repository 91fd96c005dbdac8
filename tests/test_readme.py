"""The README is short, and its numbers are those of the committed results."""

import json
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "results" / name).read_text(encoding="utf-8"))
    return found


def test_the_first_page_can_be_finished() -> None:
    assert len(README) <= 110


def shipped(place: int) -> list[dict[str, Any]]:
    """Of each seed of the demo the promise, or what the search ships."""
    return [[row for row in seed["rows"] if row["shipped"]][place] for seed in read("demo/table.json")["seeds"]]


def test_the_table_of_unseen_samples_is_that_of_the_demo() -> None:
    runs = len(read("demo/table.json")["seeds"][0]["rows"]) - 1
    wanted = []
    for place, name, took in ((0, "One run with `Promise`", 1), (1, f"Search over {runs} fixed weights", runs)):
        rows = shipped(place)
        accuracy, share = ([row["parts"]["unseen"][what] for row in rows] for what in ("accuracy", "share"))
        kept = sum(row["share_at_least"] >= 0.9 for row in rows)
        wanted.append(
            f"| {name} | {took} | {mean(accuracy):.4f} ({min(accuracy):.4f} to {max(accuracy):.4f}) | "
            f"{mean(share):.1%} ({min(share):.1%} to {max(share):.1%}) | {kept} of {len(rows)} |"
        )
    assert [line for line in README if line.startswith(("| One run", "| Search"))] == wanted
    assert f"{len(shipped(0))} seeds" in " ".join(README)


def test_the_words_below_it_count_who_was_ahead() -> None:
    for what, said in (("accuracy", "in accuracy on average"), ("share", "behind in share")):
        pairs = zip(shipped(0), shipped(1), strict=True)
        differences = [ours["parts"]["unseen"][what] - theirs["parts"]["unseen"][what] for ours, theirs in pairs]
        ahead, behind = sum(each > 0 for each in differences), sum(each < 0 for each in differences)
        text = " ".join(README)
        assert f"{said} (ahead {ahead} times, behind {behind})" in text
        assert f"{abs(100 * mean(differences)):.1f} {'points ahead' if what == 'accuracy' else 'behind'} in" in text


def test_what_is_said_of_the_front_is_what_its_runs_found() -> None:
    text, found = " ".join(README), read("benchmarks/front.json")
    ahead = {task: promised(rows) for task, rows in found["rows"].items() if task in ("mnist", "fashion")}
    mnist = [mean(row["at_own_share"]) for row in ahead["mnist"]]
    assert all(min(row["at_own_share"]) > 0 for row in ahead["mnist"])
    assert f"{100 * min(mnist):.1f} to {100 * max(mnist):.1f} points more accurate" in text
    *below, last = ahead["fashion"]
    assert all(min(row["at_own_share"]) < 0 < max(row["at_own_share"]) for row in below)
    gained = f"{100 * mean(last['at_own_share']):.1f} points"
    assert f"a tie up to {100 * below[-1]['wanted']:.0f} % and {gained} at {100 * last['wanted']:.0f} %" in text
    runs = [run for run in found["runs"] if run["arm"] == "promise"]
    kept = [run for run in runs if run["promise"]["kept"]]
    assert all(run["candidates"][0]["test"]["share"] >= run["setting"] for run in kept)
    assert f"of {len(runs)} promises" in text
    assert f"{len(kept)} were kept" in text


def promised(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["arm"] == "promise"]


def test_the_table_of_the_watermarking_tool_is_the_committed_one() -> None:
    found, wanted = read("watermark/attacks.json"), []
    for floor in (40, 45, 50):
        tool = found["tools"][f"samplewise, {floor} dB"]
        attacks = tool["attacks"].values()
        exact, images, wrong = (sum(each[what] for each in attacks) for what in ("exact", "images", "wrong"))
        wanted.append(
            f"| {floor} | {tool['marked']} | {tool['refused']} | {tool['psnr']['lowest']:.2f} | "
            f"{tool['attacks']['none']['exact']} of {tool['marked']} | {exact:,} of {images:,} | {wrong} |"
        )
    assert [line for line in README if line.startswith(("| 40 ", "| 45 ", "| 50 "))] == wanted
    kinds = len(found["tools"]["samplewise, 45 dB"]["attacks"])
    assert f"on {found['images']} X-rays" in " ".join(README)
    assert f"after {kinds} attacks" in " ".join(README)
