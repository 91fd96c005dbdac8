"""The demo from its runs to its files: the tables, and what they say, whatever came out."""

import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from samplewise.errors import CheckpointError
from samplewise.report import markdown_table
from samplewise.storage import ensure_writable, provenance, write_json, write_text
from studies.demo.page import REPORT, draw, write_report
from studies.demo.runs import (
    AIM,
    BATCH,
    CODE,
    CONFIDENCE,
    DECAY,
    EPOCHS,
    PROVE,
    RATE,
    SHARE,
    SIZES,
    THETA,
    TRAIN,
    TUNE,
    UNSEEN,
    WARM_EPOCHS,
    WEIGHTS,
    Compared,
    Trained,
    compare,
)

DEMO_FILE = "demo.json"
PARTS_SHOWN = (TRAIN, TUNE, UNSEEN)
HEADINGS = (
    "Row",
    "Runs",
    *(f"{what}, {part}" for part in PARTS_SHOWN for what in ("Accuracy", "share")),
    "Share proved",
)


def run_demo(
    out: Path | str = "demo",
    *,
    seed: int = 0,
    seeds: int = 1,
    epochs: int = EPOCHS,
    weights: Sequence[float] = WEIGHTS,
    note: Callable[[str], None] = lambda text: None,
) -> tuple[dict[str, Any], str]:
    """Train every row, write the table, the figures and a page with all of it, and say what came out.

    An earlier demo in the folder is replaced; ``note`` is called with a line whenever a run begins.

    Args:
        out: folder of all that is written.
        seed: of the split of the digits, the first weights and the order of the samples.
        seeds: how many to run, from ``seed`` on; table of rows, figures and page are of the first.
        epochs: of each run, after those on the objective alone.
        weights: that the search tries.
        note: called with a line whenever a run begins.

    Returns:
        The table as plain values, and in words what it says.
    """
    start = time.perf_counter()
    out = Path(out)
    _clear(out, seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the matrices are too small for a second thread to help
    try:
        found = [compare(seed + i, epochs=epochs, weights=weights, note=note) for i in range(seeds)]
    finally:
        torch.set_num_threads(threads)
    first, said = found[0], [in_words(found[0])]
    draw(first, out / "figures")
    write_report(first, out / REPORT, said[0])
    tables = [markdown_table([HEADINGS, *_rows(first)])]
    if seeds > 1:
        said.append(over_seeds(found))
        tables += [f"## Over {seeds} seeds", markdown_table(_summary(found)), said[1], markdown_table(_by_seed(found))]
    recipe = (
        f"Digits in parts of {', '.join(f'{size} ({name})' for name, size in SIZES.items())}, by chance, anew with "
        f"each seed. The same for all rows: {WARM_EPOCHS} epochs on the cross entropy alone, then {epochs}, batch "
        f"{BATCH}, Adam {RATE:g} with a cosine, decay {DECAY:g}; `{TUNE}` selects the epoch, aiming at {AIM:.1%}. "
        f"The search ships the weight that is the most accurate on `{TUNE}` of those that reach the aim there."
    )
    title = f"# Digits: at least {SHARE:.0%} of unseen ones within an error (MSE) of {THETA:g}"
    write_text(
        out / "table.md", "\n\n".join([title, recipe, f"## Seed {seed}", tables[0], said[0], *tables[1:]]) + "\n"
    )
    seconds = time.perf_counter() - start
    made = provenance(seed=seed)
    table = {"share": SHARE, "confidence": CONFIDENCE, "aim": AIM, "seeds": [each.to_dict() for each in found]}
    write_json(out / "table.json", {**table, "provenance": made})
    write_json(out / DEMO_FILE, {**made, "seconds": seconds})
    heading = (
        f"Handwritten digits: classify each from a code of {CODE} numbers, from which at least {SHARE:.0%} of those "
        f"that nobody has seen must be redrawn with an error (MSE) of at most {THETA:g}."
    )
    closing = f"{seconds:.0f} s. Table and figures are in {out}; open {out / REPORT} in a browser."
    return {**table, "seconds": seconds}, "\n\n".join([heading, _plain(first), *said, closing])


def _clear(out: Path, seed: int) -> None:
    """Make room: remove what an earlier demo made, and nothing else."""
    if (out / DEMO_FILE).exists():
        for name in ("rows", "warm", "figures"):  # the first two were made by versions before this one
            shutil.rmtree(out / name, ignore_errors=True)
        (out / "table.csv").unlink(missing_ok=True)
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(f"{out}: exists and is not an earlier demo; choose another folder with --out")
    ensure_writable(out)
    write_json(out / DEMO_FILE, provenance(seed=seed))


def _rows(found: Compared) -> list[list[str]]:
    """A line for each run; how many it took stands where they end in something to ship."""
    lines = []
    for run in (found.promise, *found.search):
        took = {id(found.promise): "1", id(found.shipped): f"{len(found.search)}, shipped"}.get(id(run), "")
        numbers = [text for part in PARTS_SHOWN for text in _numbers(run, part)]
        lines.append([run.label, took, *numbers, f"{run.at_least:.1%}"])
    return lines


def _numbers(run: Trained, part: str) -> tuple[str, str]:
    audit = run.audits[part]
    return f"{audit.means['accuracy']:.4f}", f"{audit.satisfied:.1%}"


def _plain(found: Compared) -> str:
    """The table for a terminal, the parts above their columns."""
    head = ["row", "runs", *("accuracy", "share") * len(PARTS_SHOWN), f"at {CONFIDENCE:.0%}"]
    rows = _rows(found)
    wide = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    names = 2  # columns of text, which begin at the left
    above = [" " * (wide[0] + 2 + wide[1])]
    above += [part.center(wide[2 + 2 * i] + 2 + wide[3 + 2 * i]) for i, part in enumerate(PARTS_SHOWN)]
    lines = ["  ".join([*above, "proved"])]
    for row in (head, *rows):
        left = map(str.ljust, row[:names], wide[:names])
        lines.append("  ".join([*left, *map(str.rjust, row[names:], wide[names:])]))
    return "\n".join(line.rstrip() for line in lines)


def in_words(found: Compared) -> str:
    """What the runs of one seed say."""
    ours, theirs, runs = found.promise, found.shipped, len(found.search)
    ground = f"{CONFIDENCE:.0%} confidence, {SIZES[PROVE]} digits never used before"
    reached = (
        "" if theirs.audits[TUNE].satisfied >= AIM else f" (none reached the {AIM:.1%} that the proof needs on {TUNE})"
    )
    return "\n".join(
        [
            f"One run with a promise of {SHARE:.0%}: {_proved(ours)} ({ground}). {_on_unseen(ours)}",
            f"A search over {runs} fixed weights, {runs} runs, ships {theirs.weight:g}{reached}: {_proved(theirs)}. "
            f"{_on_unseen(theirs)}",
            f"On the {SIZES[UNSEEN]} unseen digits the one run has "
            f"{_more(_count(ours, 'right') - _count(theirs, 'right'), 'classified rightly', 'the search')} and "
            f"{_more(_count(ours, 'within') - _count(theirs, 'within'), 'within the bound')}.",
        ]
    )


def _proved(run: Trained) -> str:
    return f"{'kept' if run.kept else 'not kept'}, at least {run.at_least:.1%} is proved"


def _on_unseen(run: Trained) -> str:
    accuracy, share = _numbers(run, UNSEEN)
    return f"Unseen digits: accuracy {accuracy}, {share} within the bound."


def _count(run: Trained, what: str) -> int:
    """Of the unseen digits."""
    audit = run.audits[UNSEEN]
    return round(audit.means["accuracy"] * audit.samples) if what == "right" else audit.samples - audit.violated


def _more(difference: int, what: str, others: str = "") -> str:
    many = "as many" if difference == 0 else f"{abs(difference)} {'more' if difference > 0 else 'fewer'}"
    return f"{many} {what}" + (f" {'than' if difference else 'as'} {others}" if others else "")


def _arms(found: Sequence[Compared]) -> list[tuple[str, int, list[Trained]]]:
    """What is shipped with each seed, by one run and by the search, and how many runs that takes."""
    runs = len(found[0].search)
    return [
        ("One run with `Promise`", 1, [each.promise for each in found]),
        (f"Search over {runs} fixed weights", runs, [each.shipped for each in found]),
    ]


def _summary(found: Sequence[Compared]) -> list[list[str]]:
    rows = [["Unseen digits", "Runs", "Accuracy", "Within the bound", f"{SHARE:.0%} proved"]]
    for name, runs, shipped in _arms(found):
        accuracy = _spread([run.audits[UNSEEN].means["accuracy"] for run in shipped], "{:.4f}")
        share = _spread([run.audits[UNSEEN].satisfied for run in shipped], "{:.1%}")
        rows.append([name, str(runs), accuracy, share, f"{sum(run.kept for run in shipped)} of {len(shipped)}"])
    return rows


def _by_seed(found: Sequence[Compared]) -> list[list[str]]:
    what = ("accuracy", "share", "proved")
    rows = [["Seed", *(f"Promise: {name}" for name in what), "Weight shipped", *(f"Search: {name}" for name in what)]]
    for each in found:
        ours, theirs = ([*_numbers(run, UNSEEN), f"{run.at_least:.1%}"] for run in (each.promise, each.shipped))
        rows.append([str(each.seed), *ours, f"{each.shipped.weight:g}", *theirs])
    return rows


def _spread(values: Sequence[float], form: str) -> str:
    """Mean and range."""
    low, high = form.format(min(values)), form.format(max(values))
    return f"{form.format(statistics.fmean(values))} ({low} to {high})"


def over_seeds(found: Sequence[Compared]) -> str:
    """What several seeds say together: means, and how often which was ahead."""
    text = []
    for what, name in (("right", "accuracy"), ("within", "share within the bound")):
        differences = [_count(each.promise, what) - _count(each.shipped, what) for each in found]
        ahead, behind = sum(each > 0 for each in differences), sum(each < 0 for each in differences)
        mean = 100 * statistics.fmean(differences) / SIZES[UNSEEN]
        text.append(f"in {name} {mean:+.1f} points on average (ahead {ahead} times, behind {behind})")
    ours, theirs = (sum(run.kept for run in shipped) for _, _, shipped in _arms(found))
    proved = [run for _, _, shipped in _arms(found) for run in shipped if run.kept]
    wrong = sum(run.audits[UNSEEN].satisfied < SHARE for run in proved)
    return (
        f"Unseen digits, {len(found)} seeds, the one run against the search: {'; '.join(text)}. {SHARE:.0%} was proved "
        f"{ours} times by the one run and {theirs} times by the search; in {wrong} of these {len(proved)} cases fewer "
        "of the unseen digits kept the bound."
    )
