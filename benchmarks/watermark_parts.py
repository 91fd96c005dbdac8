"""Whether a message is said to be of another image where a part of the image is another's, and only there.

    python benchmarks/watermark_parts.py --data ChestX-ray8/px1024/images --split chest.store/split.json

All marked at 45 dB, without a key. Pairs: a square of a tenth of the area, at a random place, is another X-ray's, in
turn one that is not marked and one that is marked with another message. Honest images: what people and programs do to
a marked image, nothing of which makes it another's. Killed, it goes on where it was.
"""

import itertools
import math
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from attack_kinds import KINDS
from common import Pixels, begin, grey, keep, table, unseen_xrays, xray_options
from workfile import Record, records, work_through

from floormark import Watermarker
from floormark.payload import Extracted

FLOOR = 45.0
REPLACED = 0.1  # part of the area that is another image's
PASTED = "of an unmarked image", "of a marked image"
HONEST = (
    "none",
    "JPEG 50",
    "JPEG 15",
    "JPEG 10",
    "noise of 10 levels",
    "resize to 25 %, JPEG 75",
    "cut to half the area",
    "rotation by 7",
    "width times 0.8",
    "bent by 4 pixels",
    "bent by 8 pixels",
    "bent by 16 pixels",
    "box over 30 %",
    "box over 50 %",
)
SAID = "False", "None", "True", "not read"


@dataclass(frozen=True)
class Task:
    """One marked image, and the images of which parts are put into it; honest changes if there are none."""

    files: tuple[Path, ...]
    image: int
    others: tuple[int, ...]
    seed: int


@lru_cache(maxsize=1)
def marker() -> Watermarker:
    return Watermarker.load()


@lru_cache(maxsize=128)
def marked(path: Path) -> Pixels:
    return np.asarray(marker().embed(grey(path), own_message(path), psnr=FLOOR).image, np.uint8)


def own_message(path: Path) -> bytes:
    return path.stem.encode()[-12:].rjust(12, b".")


def said(path: Path, found: Extracted) -> str:
    return str(found.belongs) if found.message == own_message(path) else "not read"


def work(task: Task) -> Iterator[Record]:
    path = task.files[task.image]
    image = marked(path)
    for number in task.others:
        rng = np.random.default_rng([task.seed, task.image, number])
        side = round(math.sqrt(REPLACED * image.size))
        top, left = (int(rng.integers(length - side + 1)) for length in image.shape)
        kind = PASTED[(task.image + number) % 2]
        other = (marked if kind == PASTED[1] else grey)(task.files[number])
        pasted = image.copy()
        pasted[top : top + side, left : left + side] = other[top : top + side, left : left + side]
        found = marker().extract(pasted)
        # Parts are of the same size all over; what is compared around one reaches a quarter of the square further.
        parts = np.array([list(row) for row in found.parts])
        middles = (np.argwhere(parts == "-") + 0.5) * image.shape / parts.shape if parts.size else np.zeros((0, 2))
        near = np.all(np.abs(middles - (top + side / 2, left + side / 2)) < 0.75 * side)
        yield {"case": kind, "image": task.image, "other": number, "said": said(path, found), "near": bool(near)}
    if not task.others:
        for kind in HONEST:
            attacked = KINDS[kind](image, path.name, task.seed)
            yield {"case": kind, "image": task.image, "said": said(path, marker().extract(attacked))}


def tasks(chosen: Namespace, files: tuple[Path, ...], done: list[Record]) -> list[Task]:
    """What is left to do."""
    there = {(each["image"], each.get("other"), each["case"]) for each in done}
    count, found = len(files), []
    # A few others for each image before more: whatever is done first is of all images.
    distances = itertools.product(range(1, count), range(count))
    pairs = itertools.islice(((image, (image + step) % count) for step, image in distances), chosen.pairs)
    others: dict[int, list[int]] = {}
    for image, other in pairs:
        if (image, other, PASTED[(image + other) % 2]) not in there:
            others.setdefault(image, []).append(other)
    for image in range(count):
        if image in others:
            found.append(Task(files, image, tuple(others[image]), chosen.seed))
        if (image, None, HONEST[-1]) not in there:
            found.append(Task(files, image, (), chosen.seed))
    return found


def summary(found: list[Record]) -> dict[str, Any]:
    """How often what was said, by case; what was read twice, because the first time was cut short, counts once."""
    once = {(each["image"], each.get("other"), each["case"]): each for each in found}
    cases = {name: [each for each in once.values() if each["case"] == name] for name in (*PASTED, *HONEST)}
    counts = {
        name: {"readings": len(some), **{word: Counter(each["said"] for each in some)[word] for word in SAID}}
        for name, some in cases.items()
        if some
    }
    told = [each for each in once.values() if "other" in each and each["said"] == "False"]
    return {"cases": counts, "told": len(told), "near": sum(each["near"] for each in told)}


def page(found: dict[str, Any]) -> list[str]:
    rows = [
        [f"a tenth {name}" if name in PASTED else name, *(f"{row[key]:,}" for key in ("readings", *SAID))]
        for name, row in found["cases"].items()
    ]
    return [
        "# Parts of another image",
        "",
        f"{found['images']} X-rays, marked at {FLOOR:g} dB, the network {found['model']}. What is said of whether the "
        "message belongs to the image: it should be False where a tenth of the area is another's, and never of an "
        f"honest image. Of {found['told']:,} readings of False {found['near']:,} showed no foreign part elsewhere "
        "than in or at the square that is.",
        "",
        *table(["What was done", "readings", *SAID], rows),
    ]


def main() -> None:
    parser = xray_options(__doc__, split=False, images=84, pairs=1000, workers=2)
    chosen = begin(parser)
    files = tuple(unseen_xrays(chosen))
    path = chosen.out / "watermark_parts.work" / "readings.jsonl"
    settings = {"model": marker().model, "seed": chosen.seed, "data": str(chosen.data), "images": len(files)}
    work_through(path, work, tasks(chosen, files, records(path, settings)), chosen.workers)
    found = {"images": len(files), "model": settings["model"], **summary(records(path, settings))}
    keep(__file__, chosen, found, page(found))


if __name__ == "__main__":
    main()
