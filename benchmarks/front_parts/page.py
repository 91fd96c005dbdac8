"""What the runs say: which one each arm would ship for a wanted share, in a table and a figure for each task."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import table

from front_parts.arms import KNOBS, NAMES
from front_parts.tasks import Setting, Task, regression_floor
from studies.drawing import FAINT, legend_below, new_figure, save, series, styled

Record = dict[str, Any]
Candidate = dict[str, Any]

RULE = (
    "For a wanted share each arm ships, of all its tries and of the epochs looked at in each, the model with the best "
    "score on validation among those whose share on validation is at least the wanted one. The table shows that "
    "model's share and score on test: mean over the seeds, range in brackets. **Against fixed**: its score minus that "
    "of the fixed weight chosen by the same rule for the same wanted share and seed. **At its own share**: its score "
    "minus that of the fixed front at the test share it really got: the test points of the fixed weights that no other "
    "one beats on validation, joined by straight lines, seed by seed; nothing is said beyond their ends. "
    "**Bold** is better than the fixed weight in every seed."
)

PILOTS = (
    "Where a method has a rate of multipliers, it is among the tries: two numbers joined by +, the second one the rate "
    "(of nuPI the gain). Each arm has five tries. The ranges were set before any of these runs, by those of earlier "
    "versions (`front_0.2.md`); the promise steers as it was found on other seeds of the last two tasks. The shift is "
    "of the model of the objective alone: its output is moved until just the share of validation meets the bound."
)


def shown(setting: Setting | list[float]) -> str:
    """A try, as it is named in files and on the page."""
    return "+".join(f"{each:g}" for each in (setting if isinstance(setting, tuple | list) else (setting,)))


class Runs:
    """The finished runs of some arms on one task."""

    def __init__(self, task: Task, records: Iterable[Record], arms: Sequence[str]) -> None:
        self.task = task
        self.records = [record for record in records if record["task"] == task.name and record["arm"] in arms]
        self.seeds = sorted({record["seed"] for record in self.records})
        self.arms = [arm for arm in arms if any(record["arm"] == arm for record in self.records)]
        self.sign = 1 if task.higher_is_better else -1

    def candidates(self, arm: str, seed: int) -> list[Candidate]:
        mine = [record for record in self.records if (record["arm"], record["seed"]) == (arm, seed)]
        return [candidate for record in mine for candidate in record["candidates"]]

    def pick(self, arm: str, seed: int, share: float) -> Candidate | None:
        """What the arm would ship for this share, by validation alone."""
        kept = [each for each in self.candidates(arm, seed) if each["validation"]["share"] >= share]
        return max(kept, key=lambda each: self.sign * each["validation"]["score"], default=None)

    def fixed_front(self, seed: int, share: float) -> float | None:
        """The fixed weight's score on test at a share on test, between its points that validation would ship."""
        wanted = [each["validation"]["share"] for each in self.candidates("fixed", seed)]
        picks = [pick for each in wanted if (pick := self.pick("fixed", seed, each)) is not None]
        points = sorted({(pick["test"]["share"], pick["test"]["score"]) for pick in picks})
        if not points or not points[0][0] <= share <= points[-1][0]:
            return None
        shares, scores = zip(*points, strict=True)
        return float(np.interp(share, shares, scores))

    def rows(self) -> list[dict[str, Any]]:
        """For each wanted share and arm what was shipped, seed by seed."""
        rows = []
        reached = max(each["validation"]["share"] for record in self.records for each in record["candidates"])
        for share in (share for share in self.task.shares if share <= reached):
            for arm in self.arms:
                picks = {seed: pick for seed in self.seeds if (pick := self.pick(arm, seed, share)) is not None}
                tests = {seed: pick["test"] for seed, pick in picks.items()}
                against, at_own = [], []
                for seed, test in tests.items():
                    if (fixed := self.pick("fixed", seed, share)) is not None:
                        against.append(self.sign * (test["score"] - fixed["test"]["score"]))
                    if (there := self.fixed_front(seed, test["share"])) is not None:
                        at_own.append(self.sign * (test["score"] - there))
                rows.append(
                    {
                        "wanted": share,
                        "arm": arm,
                        "seeds": sorted(picks),
                        "share": [test["share"] for test in tests.values()],
                        "score": [test["score"] for test in tests.values()],
                        "against_fixed": against,
                        "at_own_share": at_own,
                    }
                )
        return rows


def spread(values: Sequence[float], show: Callable[[float], str], *, all_of: int) -> str:
    """Mean and range, for a page; where not every seed has one, of how many."""
    if not values:
        return "-"
    text = show(statistics.fmean(values))
    if len(values) > 1:
        text += f" ({show(min(values))} to {show(max(values))})"
    return text if len(values) == all_of else f"{text}, {len(values)} of {all_of} seeds"


def section(runs: Runs, figure: str) -> list[str]:
    """A task's part of the page."""
    task, seeds = runs.task, len(runs.seeds)
    sizes = ", ".join(f"{size:,} {name}" for size, name in zip(task.sizes, PART_NAMES, strict=True))
    better = "higher" if task.higher_is_better else "lower"
    return [
        f"## {task.title}",
        "",
        f"Samples, at most: {sizes}. Epochs: {task.warm_epochs} on the objective alone, then {task.epochs}; batch "
        f"{task.batch_size}; Adam {task.rate:g} with a cosine, decay {task.decay:g}. Seeds: {seeds}. "
        f"The score: {task.score_name}, where {better} is better; a difference above zero is in the arm's favour.",
        "",
        f"![{task.title}]({figure})",
        "",
        *shipped(runs),
        "",
        *tried(runs),
        "",
    ]


def shipped(runs: Runs) -> list[str]:
    """For each wanted share what each arm would ship."""
    task, seeds = runs.task, len(runs.seeds)
    digits = ".4f"
    lines = []
    for row in runs.rows():
        differences = [
            spread(row[name], lambda value: f"{value:+{digits}}", all_of=seeds)
            for name in ("against_fixed", "at_own_share")
        ]
        if row["arm"] == "fixed":
            differences = ["", ""]
        for place, name in enumerate(("against_fixed", "at_own_share")):
            if row["arm"] != "fixed" and len(row[name]) == seeds and min(row[name]) > 0:
                differences[place] = f"**{differences[place]}**"
        held = (
            [
                spread(row["share"], "{:.1%}".format, all_of=seeds),
                spread(row["score"], f"{{:{digits}}}".format, all_of=seeds),
            ]
            if row["seeds"]
            else ["not reached", "-"]
        )
        lines.append((f"{row['wanted']:.0%}", NAMES[row["arm"]], *held, *differences))
    head = ["wanted", "arm", "share on test", f"{task.score_name} on test", "against fixed", "at its own share"]
    return table(head, lines)


PART_NAMES = ("trained on", "to select on", "to prove on", "tested on")


def tried(runs: Runs) -> list[str]:
    """What each arm was given to try, and what a run took."""
    lines = []
    for arm in runs.arms:
        mine = [record for record in runs.records if record["arm"] == arm]
        settings = ", ".join(dict.fromkeys(shown(record["setting"]) for record in mine))
        failed = sum("failed" in record for record in mine)
        note = f"{failed} diverged" if failed else ""
        if arm == "promise":
            kept = [record for record in mine if record["promise"]["kept"]]
            true = sum(record["candidates"][0]["test"]["share"] >= record["setting"] for record in kept)
            note = f"kept in {len(kept)} of {len(mine)} runs; in {true} of those the share held on test"
        seconds = statistics.median(record["seconds"] for record in mine)
        lines.append((NAMES[arm], KNOBS[arm], settings, len(mine), f"{seconds:.0f}", note))
    return table(["arm", "what it varies", "tries, each with every seed", "runs", "processor s a run", ""], lines)


def draw(runs: Runs, folder: Path) -> None:
    """Score against share on test: a point for what each seed would ship, a line through their means."""
    task = runs.task
    shares = [test for row in runs.rows() for test in row["share"]]
    with styled():
        figure, (axes,) = new_figure(1, 1, width=7.0, height=4.2)
        handles = []
        for arm in runs.arms:
            rows = [row for row in runs.rows() if row["arm"] == arm and row["seeds"]]
            colour, marker = series(tuple(NAMES).index(arm))
            for row in rows:
                axes.scatter(row["share"], row["score"], color=colour, marker=marker, s=9, alpha=0.35, linewidths=0)
            whole = [row for row in rows if len(row["seeds"]) == len(runs.seeds)]
            means = dict.fromkeys((statistics.fmean(row["share"]), statistics.fmean(row["score"])) for row in whole)
            if not means:
                continue
            x, y = zip(*means, strict=True)
            wide = 2.4 if arm in ("promise", "fixed") else 1.1
            name = NAMES[arm].replace("`", "")
            handles += axes.plot(x, y, color=colour, marker=marker, markersize=5, linewidth=wide, label=name)
        if task.name == "regression":
            handles += axes.plot(*regression_floor(), color=FAINT, linestyle="--", label="the least possible")
        if shares:
            room = 0.03 * (max(shares) - min(shares)) or 0.01
            axes.set_xlim(min(shares) - room, min(max(shares) + room, 1.005))
        axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g}%")
        axes.set_xlabel("share of unseen samples that meet the requirement")
        better = "higher" if task.higher_is_better else "lower"
        axes.set_ylabel(f"{task.score_name} ({better} is better)")
        axes.set_title(task.title)
        legend_below(figure, handles, columns=3)
        save(figure, folder, task.name)
