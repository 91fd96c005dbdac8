"""Our tool beside blind-watermark and invisible-watermark: same images, same eight bytes, same treatment of the files.

The peers take colour images only, so they are given the grey X-ray three times and their files are kept in colour,
which is kinder to them than what an archive would do. Both must be told the length of the message when they read. A
message counts as exact if all its bits are right, as wrong if others are returned with no word of doubt. Seconds are
processor time of one thread, without starting Python.

    python benchmarks/watermark_peers.py --data ChestX-ray8/px256/images --split chest.store/split.json
"""

import argparse
import contextlib
import io
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import samplewise as sw
from samplewise.checkpoint import write_json
from samplewise.errors import RefusedError
from samplewise.provenance import provenance

MESSAGE = b"patient4"
Pixels = NDArray[np.uint8]


def jpeg(quality: int) -> Callable[[Pixels], Pixels]:
    def attack(pixels: Pixels) -> Pixels:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=quality)
        return np.asarray(Image.open(file))

    return attack


def half_and_back(pixels: Pixels) -> Pixels:
    image = Image.fromarray(pixels)
    small = image.resize((image.width // 2, image.height // 2), Image.Resampling.BICUBIC)
    return np.asarray(small.resize(image.size, Image.Resampling.BICUBIC))


def saved(pixels: Pixels) -> Pixels:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return np.asarray(Image.open(file))


TREATMENTS: dict[str, Callable[[Pixels], Pixels]] = {
    "PNG": saved,
    "JPEG 90": jpeg(90),
    "JPEG 75": jpeg(75),
    "50% and back": half_and_back,
}


class Ours:
    """samplewise at one floor."""

    def __init__(self, floor: float) -> None:
        self.floor = floor
        self.marker = sw.watermark.Watermarker.load()

    def embed(self, grey: Pixels) -> Pixels | None:
        try:
            return self.marker.embed(grey, MESSAGE, psnr=self.floor).image
        except RefusedError:
            return None

    def extract(self, pixels: Pixels) -> bytes | None:
        message = self.marker.extract(pixels).message
        return message if isinstance(message, bytes) else None


class BlindWatermark:
    """blind-watermark with its default strength."""

    def embed(self, grey: Pixels) -> Pixels | None:
        marker = self._new()
        marker.read_img(img=np.dstack([grey] * 3).astype(np.float32))
        marker.read_wm(np.unpackbits(np.frombuffer(MESSAGE, np.uint8)).astype(bool).tolist(), mode="bit")
        marked: Pixels = np.clip(np.rint(marker.embed()), 0, 255).astype(np.uint8)
        return marked

    def extract(self, pixels: Pixels) -> bytes | None:
        found = self._new().extract(embed_img=pixels.astype(np.float32), wm_shape=8 * len(MESSAGE), mode="bit")
        return np.packbits(np.asarray(found) > 0.5).tobytes()

    @staticmethod
    def _new() -> Any:
        from blind_watermark import WaterMark

        return WaterMark(password_img=1, password_wm=1)


class InvisibleWatermark:
    """invisible-watermark with one of its methods."""

    def __init__(self, method: str) -> None:
        self.method = method

    def embed(self, grey: Pixels) -> Pixels | None:
        from imwatermark import WatermarkEncoder

        encoder = WatermarkEncoder()
        encoder.set_watermark("bytes", MESSAGE)
        return np.asarray(encoder.encode(np.dstack([grey] * 3), self.method), np.uint8)

    def extract(self, pixels: Pixels) -> bytes | None:
        from imwatermark import WatermarkDecoder

        return bytes(WatermarkDecoder("bytes", 8 * len(MESSAGE)).decode(pixels, self.method))


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

    def add(self, tool: Any, grey: Pixels) -> None:
        with self.timed("embed"):
            marked = tool.embed(grey)
        if marked is None:
            self.refused += 1
            return
        cover = grey if marked.ndim == 2 else np.dstack([grey] * 3)
        error = np.mean(np.square(marked.astype(np.float64) - cover))
        self.psnr.append(float(10 * np.log10(255.0**2 / error)))
        for name, treat in TREATMENTS.items():
            treated = treat(marked)
            with self.timed("extract"):
                found = tool.extract(treated)
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


def table(found: dict[str, dict[str, Any]], images: int, size: tuple[int, ...], made: dict[str, Any]) -> str:
    lines = [
        "# Our tool and two others on chest X-rays",
        "",
        f"{images} X-rays of {size[1]} x {size[0]} pixels, none of them used in training; {len(MESSAGE)} bytes in "
        "each. Share of the written files from which exactly the message is read; in brackets the share from which "
        "another is returned with no word of doubt. Seconds are processor time of one thread for one image; "
        "reading is the mean over the four treatments.",
        "",
        f"| Tool | PSNR, lowest | PSNR, median | Refused | {' | '.join(TREATMENTS)} | s to embed | s to extract |",
        "|---|---|---|---|" + "---|" * len(TREATMENTS) + "---|---|",
    ]
    for name, each in found.items():
        shares = " | ".join(f"{each['exact'][key]:.3f} ({each['wrong'][key]:.3f})" for key in TREATMENTS)
        lines.append(
            f"| {name} | {each['psnr']['lowest']:.2f} | {each['psnr']['median']:.2f} | {each['refused']} | {shares} | "
            f"{each['seconds']['embed']:.3f} | {each['seconds']['extract']:.3f} |"
        )
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    lines += ["", f"`{made['command']}`, commit {made['commit']}; {versions}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="our watermarking tool beside two others")
    parser.add_argument("--data", type=Path, required=True, help="folder of grey images")
    parser.add_argument("--split", type=Path, required=True, help="split.json of the store that was trained on")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("results/watermark"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    trained = set(json.loads(arguments.split.read_text())["train"])
    unseen = [path for path in sorted(arguments.data.glob("*.png")) if not trained & {path.name, path.stem}]
    chosen = random.Random(0).sample(unseen, min(arguments.images, len(unseen)))
    tools = {
        "samplewise, floor 50 dB": Ours(50.0),
        "samplewise, floor 45 dB": Ours(45.0),
        "samplewise, floor 40 dB": Ours(40.0),
        "blind-watermark": BlindWatermark(),
        "invisible-watermark, dwtDct": InvisibleWatermark("dwtDct"),
        "invisible-watermark, dwtDctSvd": InvisibleWatermark("dwtDctSvd"),
    }
    tallies = {name: Tally() for name in tools}
    size: tuple[int, ...] = ()
    for number, path in enumerate([chosen[0], *chosen]):
        grey = np.asarray(Image.open(path).convert("L"))
        size = grey.shape
        for name, tool in tools.items():
            with contextlib.redirect_stdout(io.StringIO()):  # a greeting
                (tallies[name] if number else Tally()).add(tool, grey)  # the first time is to get warm
    found = {name: tally.result(len(chosen)) for name, tally in tallies.items()}
    made = provenance(seed=0)
    for package in ("blind-watermark", "invisible-watermark", "opencv-python"):
        from importlib import metadata

        made["versions"][package] = metadata.version(package)
    write_json(arguments.out / "peers.json", {"images": len(chosen), "tools": found, "provenance": made})
    text = table(found, len(chosen), size, made)
    (arguments.out / "peers.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
