"""How many readings return a message that nobody wrote: from images that are unmarked, or moved, or not ours.

    python benchmarks/watermark_wrong.py --data ChestX-ray8/px1024/images --small ChestX-ray8/px256/images

A search over places and sizes is a search for a checksum that fits by accident, so this is counted and not only
computed. Every reading meets a case in turn, an image and a move, all drawn by its number; killed, it goes on where it
was, and with more ``--readings`` it adds to those that are there.
"""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from attack_kinds import GEOMETRY, KINDS, TOGETHER
from common import Pixels, begin, grey, keep, table, unseen_xrays, xray_options
from scipy.stats import beta
from workfile import Record, records, work_through

from floormark import RefusedError, Watermarker
from floormark.payload import Key

KEYS = {"none": None, "own": Key(b"of the owner of the images"), "other": Key(b"of somebody else altogether")}
MOVES = [kind for kind in KINDS.values() if kind.group in (GEOMETRY, TOGETHER)]
MESSAGE = b"patient 4711"
CASES = {
    "unmarked": ("", "none", False),
    "unmarked, moved": ("", "none", True),
    "unmarked, moved, read with a key": ("", "own", True),
    "unmarked small": ("small", "none", False),
    "unmarked small, moved": ("small", "none", True),
    "noise": ("noise", "none", False),
    "stripes and checks": ("pattern", "none", True),
    "marked with a key, moved, read with another": ("own", "other", True),
    "marked with a key, moved, read without": ("own", "none", True),
    "marked without a key, moved, read with one": ("none", "own", True),
    "marked, moved, read as it should be": ("own", "own", True),
}
"""What the image is, which key it is read with, and whether it is moved before."""
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Task:
    """Some readings by their numbers."""

    numbers: tuple[int, ...]
    large: tuple[Path, ...]
    small: tuple[Path, ...]
    floor: float
    seed: int


@lru_cache(maxsize=3)
def marker(key: str) -> Watermarker:
    return Watermarker.load(key=KEYS[key])


@lru_cache(maxsize=128)
def marked(path: Path, key: str, floor: float) -> Pixels | None:
    try:
        return np.asarray(marker(key).embed(grey(path), MESSAGE, psnr=floor).image, np.uint8)
    except RefusedError:
        return None


def pattern(rng: np.random.Generator) -> Pixels:
    """What repeats itself as a lattice does: two waves of any direction and length, cut off or not."""
    rows, columns = np.mgrid[:512, :512]
    angles, periods = rng.uniform(0, np.pi, 2), np.exp(rng.uniform(np.log(3), np.log(150), 2))
    waves = [
        np.sin(2 * np.pi * (np.cos(angle) * rows + np.sin(angle) * columns) / period)
        for angle, period in zip(angles, periods, strict=True)
    ]
    wave = np.sign(sum(waves)) if rng.random() < 0.5 else sum(waves) / 2
    noise = rng.normal(0, rng.uniform(0, 10), rows.shape)
    return np.asarray(np.rint(127.5 + rng.uniform(2, 120) * wave + noise).clip(0, 255), np.uint8)


def image_of(source: str, task: Task, rng: np.random.Generator) -> Pixels | None:
    """The image of a case; None if it could not be marked."""
    if source == "noise":
        return rng.integers(256, size=(512, 512), dtype=np.uint8)
    if source == "pattern":
        return pattern(rng)
    files = task.small if source == "small" and task.small else task.large
    path = files[rng.integers(len(files))]
    return marked(path, source, task.floor) if source in KEYS else grey(path)


def work(task: Task) -> Iterator[Record]:
    for number in task.numbers:
        case = list(CASES)[number % len(CASES)]
        source, key, moved = CASES[case]
        rng = np.random.default_rng([task.seed, number])
        image = image_of(source, task, rng)
        kind = MOVES[rng.integers(len(MOVES))] if moved else KINDS["none"]
        record = {"number": number, "case": case, "move": kind.name}
        if image is None:
            yield {**record, "refused": True}
            continue
        found = marker(key).extract(kind(image, str(number), task.seed)).message
        right = MESSAGE if source == key else None  # nothing else is there for this reader
        yield {**record, "read": found is not None, "wrong": found not in (None, right)}


def summary(found: list[Record]) -> dict[str, Any]:
    """Counts by case and in all; a rate of wrong messages is below its bound with 95 % confidence."""
    once = {each["number"]: each for each in found if "read" in each}
    cases = {case: [each for each in once.values() if each["case"] == case] for case in CASES}
    return {
        "all": _counts(list(once.values())),
        "cases": {case: _counts(some) for case, some in cases.items() if some},
        "wrong": [each for each in once.values() if each["wrong"]],
    }


def _counts(some: list[Record]) -> dict[str, Any]:
    wrong, count = sum(each["wrong"] for each in some), len(some)
    bound = float(beta.ppf(CONFIDENCE, wrong + 1, count - wrong)) if wrong < count else 1.0
    return {"readings": count, "read": sum(each["read"] for each in some), "wrong": wrong, "rate_below": bound}


def page(found: dict[str, Any]) -> list[str]:
    lines = {**found["cases"], "all": found["all"]}
    rows = [
        [case, f"{each['readings']:,}", f"{each['read']:,}", each["wrong"], f"{each['rate_below']:.2g}"]
        for case, each in lines.items()
    ]
    return [
        "# Messages that nobody wrote",
        "",
        f"The network {found['model']}; moves are those of `watermark_attacks`, drawn anew for each reading. The rate "
        f"of wrong messages is below its bound with {100 * CONFIDENCE:.0f} % confidence.",
        "",
        *table(["Case", "Readings", "Some message", "Wrong message", "Rate below"], rows),
    ]


def left(chosen: Namespace, files: tuple[Path, ...], done: list[Record]) -> list[Task]:
    """Readings that are still to be made, ten in a task."""
    there = {each["number"] for each in done}
    numbers = [number for number in range(chosen.readings) if number not in there]
    small = tuple(sorted(chosen.small.glob("*.png"))) if chosen.small else ()
    return [
        Task(tuple(numbers[start : start + 10]), files, small, chosen.floor, chosen.seed)
        for start in range(0, len(numbers), 10)
    ]


def main() -> None:
    parser = xray_options(__doc__, split=False, images=40, readings=10_000, workers=2)
    parser.add_argument("--small", type=Path, help="a folder of small images, which are not marked")
    parser.add_argument("--floor", type=float, default=45.0, help="in dB (45)")
    chosen = begin(parser)
    files = tuple(unseen_xrays(chosen))
    path = chosen.out / "watermark_wrong.work" / "readings.jsonl"
    model = marker("none").model
    settings = {"model": model, "seed": chosen.seed, "data": str(chosen.data), "small": str(chosen.small)}
    settings |= {"images": len(files), "floor": chosen.floor}
    work_through(path, work, left(chosen, files, records(path, settings)), chosen.workers)
    found = {"model": model, **summary(records(path, settings))}
    keep(__file__, chosen, found, page(found))


if __name__ == "__main__":
    main()
