"""Which attacks a message survives, by what is done to the image: values, what clinics do, geometry, and all together.

    python benchmarks/watermark_attacks.py --data ChestX-ray8/px1024/images --split chest.store/split.json
    python benchmarks/watermark_attacks.py --photos

X-rays, or the colour pictures that come with scikit-image and scikit-learn. Every image gets its own message of twelve
bytes at each floor, is attacked by real tools, and is read without a word about what happened to it. A message is exact
or wrong, or none is returned. Seconds are processor time of one thread. Other tools see the same images and attacks;
they are told the length of the message. Killed, it goes on where it was when it is called again.
"""

import contextlib
import hashlib
import io
import re
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from attack_kinds import DEEP, KINDS, deepened
from attacks_page import page, summary
from common import ROOT, Pixels, begin, grey, keep, psnr, unseen_xrays, xray_options
from markers import PEERS, in_colour
from numpy.typing import NDArray
from photos import PHOTOS
from workfile import Record, records, work_through

from floormark import RefusedError, Watermarker

LENGTH = 12
OURS = "samplewise"


@dataclass(frozen=True)
class Task:
    """One image marked once, and all that is to be done to it."""

    path: Path
    """Of an X-ray; for a photo its name."""
    tool: str
    floor: float
    """In dB; 0 for a tool that has none."""
    deep: bool
    kinds: tuple[str, ...]
    seed: int


def message_of(picture: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed} {picture}".encode(), digest_size=LENGTH).digest()


def picture(path: Path) -> Pixels:
    """An X-ray in grey, or a photo in colour."""
    return PHOTOS[path.name]() if path.name in PHOTOS else grey(path)


def work(task: Task) -> Iterator[Record]:
    """Mark an image, attack it, read it."""
    name = {"tool": task.tool, "floor": task.floor, "image": task.path.name}
    image: NDArray[Any] = deepened(grey(task.path)) if task.deep else picture(task.path)
    message = message_of(task.path.name, task.seed)
    if task.tool != OURS:
        message = message[: PEERS[task.tool].only]
    marking = f"marking {DEEP} bits" if task.deep else "marking"
    began = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):  # a peer greets
        marked, found = (mark_ours if task.tool == OURS else mark_peer)(task, image, message)
    yield {**name, "kind": marking, "seconds": time.process_time() - began, **found}
    if marked is None:
        return
    for kind in task.kinds:
        attacked = KINDS[kind](marked, task.path.name, task.seed)
        began = time.process_time()
        with contextlib.redirect_stdout(io.StringIO()):
            read = (read_ours if task.tool == OURS else read_peer)(task.tool, attacked, message)
        yield {**name, "kind": kind, "seconds": time.process_time() - began, **read}


@lru_cache(maxsize=1)
def our_marker() -> Watermarker:
    return Watermarker.load()


def mark_ours(task: Task, image: NDArray[Any], message: bytes) -> tuple[NDArray[Any] | None, Record]:
    try:
        marked = our_marker().embed(image, message, psnr=task.floor)
    except RefusedError:
        return None, {"refused": True}
    if task.deep:  # judged by those of 8 bits
        return marked.image, {}
    return marked.image, {
        "psnr": psnr(image, marked.image),
        "patch_psnr": marked.certificate.fidelity.min_adjusted_patch_psnr,
    }


def read_ours(tool: str, image: NDArray[Any], message: bytes) -> Record:
    found = our_marker().extract(image)
    return {
        "exact": found.message == message,
        "wrong": found.message not in (None, message),
        "chance": found.chance,
        "belongs": getattr(found, "belongs", None),
    }


def mark_peer(task: Task, image: NDArray[Any], message: bytes) -> tuple[NDArray[Any] | None, Record]:
    marked = PEERS[task.tool].embed(image, message)
    assert marked is not None  # peers refuse nothing
    return marked, {"psnr": psnr(in_colour(image), marked)}


def read_peer(tool: str, image: NDArray[Any], message: bytes) -> Record:
    try:
        found = PEERS[tool].extract(image, len(message))
    except Exception as error:  # whatever a peer raises, it has returned no message
        return {"exact": False, "wrong": False, "right_bits": 0, "bits": 8 * len(message), "error": str(error)[:100]}
    assert found is not None  # nor do they doubt
    right = np.unpackbits(np.frombuffer(found, np.uint8)) == np.unpackbits(np.frombuffer(message, np.uint8))
    return {"exact": found == message, "wrong": found != message, "right_bits": int(right.sum()), "bits": right.size}


def tasks(chosen: Namespace, files: list[Path], done: list[Record]) -> list[Task]:
    """What is left to do."""
    there = {(each["tool"], each["floor"], each["image"], each["kind"]) for each in done}
    refused = {(each["tool"], each["floor"], each["image"], each["kind"]) for each in done if each.get("refused")}
    wanted = [kind for kind in KINDS.values() if re.search(chosen.only, kind.name)]
    found = []
    for number, path in enumerate(files):
        depths = (False,) if chosen.photos else (False, True)
        arms = [(OURS, floor, deep) for floor in chosen.floors for deep in depths]
        arms += [(peer, 0.0, False) for peer in PEERS if number < chosen.peer_images]
        for tool, floor, deep in arms:
            own = (tool, floor, path.name)
            left = tuple(kind.name for kind in wanted if kind.deep == deep and (*own, kind.name) not in there)
            if left and (*own, f"marking {DEEP} bits" if deep else "marking") not in refused:
                found.append(Task(path, tool, floor, deep, left, chosen.seed))
    return found


def main() -> None:
    parser = xray_options(__doc__, needed=False, images=120, peer_images=10, workers=2)
    parser.set_defaults(out=ROOT / "results" / "watermark")
    parser.add_argument("--floors", type=float, nargs="+", default=[40.0, 45.0, 50.0], help="in dB (40 45 50)")
    parser.add_argument("--only", default="", metavar="REGEX", help="attacks whose name this finds (all)")
    parser.add_argument("--photos", action="store_true", help="colour pictures instead of X-rays")
    chosen = begin(parser)
    given = {chosen.data is not None, chosen.split is not None}
    if given != {not chosen.photos}:
        parser.error("expected X-rays by --data and --split, or --photos")
    files = [Path(name) for name in PHOTOS][: chosen.images] if chosen.photos else unseen_xrays(chosen)
    result = "attacks_on_photos" if chosen.photos else "attacks"
    path = chosen.out / f"{result}.work" / "readings.jsonl"
    settings = {"model": our_marker().model, "seed": chosen.seed, "data": str(chosen.data)}
    work_through(path, work, tasks(chosen, files, records(path, settings)), chosen.workers)
    found = summary(records(path, settings), OURS)
    shapes = sorted({picture(file).shape for file in files}, key=np.prod)
    found |= {"images": len(files), "smallest": shapes[0], "largest": shapes[-1], "bytes": LENGTH}
    found |= {"photos": chosen.photos, "model": settings["model"]}
    packages = (
        "blind-watermark",
        "invisible-watermark",
        "onnxruntime",
        "opencv-python",
        "scikit-image",
        "scikit-learn",
    )
    keep(result, chosen, found, page(found), packages)


if __name__ == "__main__":
    main()
