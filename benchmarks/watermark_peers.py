"""Our tool beside blind-watermark and invisible-watermark: same images, same eight bytes, same treatment of the files.

    python benchmarks/watermark_peers.py --data ChestX-ray8/px256/images --split chest.store/split.json

The peers take colour images only, so they are given the grey X-ray three times and their files are kept in colour,
which is kinder to them than what an archive would do. Both must be told the length of the message when they read. A
message counts as exact if all its bits are right, as wrong if others are returned with no word of doubt. Seconds are
processor time of one thread, without starting Python.
"""

import contextlib
import io
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from common import Pixels, begin, keep, psnr, resized, saved, table, unseen_xrays, xray_options
from markers import PEERS, Marker, Ours
from PIL import Image

MESSAGE = b"patient4"
TREATMENTS = {
    "PNG": saved("PNG"),
    "JPEG 90": saved("JPEG", quality=90),
    "JPEG 75": saved("JPEG", quality=75),
    "50% and back": resized(0.5),
}


@dataclass
class Tally:
    """What one tool came to."""

    refused: int = 0
    psnr: list[float] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: {"embed": 0.0, "extract": 0.0})
    exact: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TREATMENTS, 0))
    wrong: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TREATMENTS, 0))

    @contextlib.contextmanager
    def timed(self, what: str) -> Iterator[None]:
        began = time.process_time()
        yield
        self.seconds[what] += time.process_time() - began

    def add(self, tool: Marker, grey: Pixels) -> None:
        with self.timed("embed"):
            marked = tool.embed(grey, MESSAGE)
        if marked is None:
            self.refused += 1
            return
        self.psnr.append(psnr(grey if marked.ndim == 2 else np.dstack([grey] * 3), marked))
        for name, treat in TREATMENTS.items():
            treated = treat(marked)
            with self.timed("extract"):
                found = tool.extract(treated, len(MESSAGE))
            self.exact[name] += found == MESSAGE
            self.wrong[name] += found not in (None, MESSAGE)

    def result(self, images: int) -> dict[str, Any]:
        written = len(self.psnr)
        return {
            "refused": self.refused,
            "psnr": {"lowest": min(self.psnr), "median": statistics.median(self.psnr)},
            "exact": {name: count / written for name, count in self.exact.items()},
            "wrong": {name: count / written for name, count in self.wrong.items()},
            "seconds": {
                "embed": self.seconds["embed"] / images,
                "extract": self.seconds["extract"] / (written * len(TREATMENTS)),
            },
        }


def page(found: dict[str, dict[str, Any]], images: int, size: tuple[int, ...]) -> list[str]:
    rows = [
        (
            name,
            f"{each['psnr']['lowest']:.2f}",
            f"{each['psnr']['median']:.2f}",
            each["refused"],
            *(f"{each['exact'][key]:.3f} ({each['wrong'][key]:.3f})" for key in TREATMENTS),
            f"{each['seconds']['embed']:.3f}",
            f"{each['seconds']['extract']:.3f}",
        )
        for name, each in found.items()
    ]
    return [
        "# Our tool and two others on chest X-rays",
        "",
        f"{images} X-rays of {size[1]} x {size[0]} pixels, none of them used in training; {len(MESSAGE)} bytes in "
        "each. Share of the written files from which exactly the message is read; in brackets the share from which "
        "another is returned with no word of doubt. Seconds are processor time of one thread for one image; "
        "reading is the mean over the four treatments.",
        "",
        *table(["Tool", "PSNR, lowest", "PSNR, median", "Refused", *TREATMENTS, "s to embed", "s to extract"], rows),
    ]


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    chosen = begin(xray_options(__doc__, images=200))
    files = unseen_xrays(chosen)
    tools: dict[str, Marker] = {
        "samplewise, floor 50 dB": Ours(50.0),
        "samplewise, floor 45 dB": Ours(45.0),
        "samplewise, floor 40 dB": Ours(40.0),
        **PEERS,
    }
    tallies = {name: Tally() for name in tools}
    size: tuple[int, ...] = ()
    for number, path in enumerate([files[0], *files]):
        grey = np.asarray(Image.open(path).convert("L"))
        size = grey.shape
        for name, tool in tools.items():
            with contextlib.redirect_stdout(io.StringIO()):  # a greeting
                (tallies[name] if number else Tally()).add(tool, grey)  # the first time is to get warm
    found = {name: tally.result(len(files)) for name, tally in tallies.items()}
    packages = ("blind-watermark", "invisible-watermark", "opencv-python")
    keep(__file__, chosen, {"images": len(files), "tools": found}, page(found, len(files), size), packages)


if __name__ == "__main__":
    main()
