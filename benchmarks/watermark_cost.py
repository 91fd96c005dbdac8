"""What marking and reading a file cost beside Pillow's own work on it, and the memory that the largest images take.

    python benchmarks/watermark_cost.py --data ChestX-ray8/px1024/images --split chest.store/split.json

Times are processor time of one process with one thread, the arms in turns; Pillow decodes the file and encodes the same
pixels again. X-rays of 2500 x 2500 are enlarged ones, with noise. A cold start is a whole process. Memory is the peak
of a process that runs the command on one image of as many pixels as are accepted.
"""

import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common import (
    begin,
    ended,
    enlarged,
    grey,
    keep,
    quartiles,
    ratios,
    table,
    take_turns,
    timed,
    unseen_xrays,
    xray_options,
)
from PIL import Image

from floormark import Watermarker
from floormark.files.folder import extract_file
from floormark.files.marking import FileMarker
from floormark.imageio.stored import MAX_BYTES, MAX_PIXELS
from floormark.options import EmbedOptions
from floormark.payload import Payload

TEXT = "patient 4711"
FLOOR = 45.0
SIZES = 1024, 2500
MEGABYTE = 1e6
PROGRAM = [sys.executable, "-m", "floormark"]


def decode_and_encode(source: Path, target: Path) -> None:
    """What no tool can do without."""
    with Image.open(source) as image:
        pixels = np.asarray(image)
    Image.fromarray(pixels).save(target)


def arms(files: list[Path], place: Path) -> dict[str, Callable[[int], object]]:
    """Pillow's work and ours on the file of a turn."""
    marker = Watermarker.load()
    marks = FileMarker(marker, Payload.of(TEXT), EmbedOptions(psnr=FLOOR), force=True)
    turned = {}
    for path in files:
        marks.mark_file(path, place / f"marked-{path.name}")
        with Image.open(place / f"marked-{path.name}") as image:
            turned[path] = place / f"turned-{path.name}"
            image.rotate(7.0, Image.Resampling.BICUBIC).save(turned[path])

    def each(work: Callable[[Path], object]) -> Callable[[int], object]:
        return lambda turn: work(files[turn % len(files)])

    return {
        "Pillow": each(lambda path: decode_and_encode(path, place / "again.png")),
        "embed": each(lambda path: marks.mark_file(path, place / "out.png")),
        "extract, unmoved": each(lambda path: extract_file(marker, place / f"marked-{path.name}")),
        "extract, turned by 7 degrees": each(lambda path: extract_file(marker, turned[path])),
        "extract, unmarked": each(partial(extract_file, marker)),
    }


def times(files: list[Path], turns: int, place: Path) -> dict[str, Any]:
    """Seconds of each arm, and how many times those of Pillow."""
    found = take_turns({name: timed(work, time.process_time) for name, work in arms(files, place).items()}, turns)
    return {
        name: {"seconds": float(np.median(values)), "most": max(values), **ratios(values, found["Pillow"])}
        for name, values in found.items()
    }


def cold(image: Path, turns: int) -> dict[str, Any]:
    """Seconds of a command in a process of its own, and how many times those of importing PyTorch alone."""
    commands = {
        "import torch": [sys.executable, "-c", "import torch"],
        "floormark extract": [*PROGRAM, "extract", str(image)],
    }

    def seconds(command: list[str], turn: int) -> float:
        return ended(command)["seconds"]

    found = take_turns({name: partial(seconds, command) for name, command in commands.items()}, turns)
    return {
        name: {"seconds": float(np.median(values)), "most": max(values), **ratios(values, found["import torch"])}
        for name, values in found.items()
    }


def large_images(path: Path, most: int, seed: int) -> Iterator[tuple[str, Any]]:
    """An X-ray of as many bytes as are accepted, in grey and in colour."""
    for name, each in (("8 bits", 1), ("12 bits", 2), ("RGB", 3)):
        pixels = enlarged(path, math.isqrt(min(MAX_PIXELS, MAX_BYTES // each, most)), seed)
        if name == "12 bits":
            last = np.random.default_rng(seed).integers(16, size=pixels.shape, dtype=np.uint16)
            pixels = pixels.astype(np.uint16) * 16 + last
        yield name, np.stack([pixels, pixels, np.flip(pixels)], axis=-1) if name == "RGB" else pixels


def memory(path: Path, most: int, seed: int, place: Path) -> dict[str, Any]:
    found = {}
    source, target = place / "large.tif", place / "marked.tif"
    for name, pixels in large_images(path, most, seed):
        Image.fromarray(pixels).save(source)
        embed = ended([*PROGRAM, "embed", str(source), str(target), "--text", TEXT, "--force"])
        extract = ended([*PROGRAM, "extract", str(target)])
        found[name] = {"embed": embed, "extract": extract, "side": len(pixels), "pixels": pixels.nbytes / MEGABYTE}
        print(name, found[name], flush=True)
    return found


def page(found: dict[str, Any]) -> list[str]:
    rows = [
        (f"{size} x {size}", name, f"{row['seconds']:.3f}", f"{row['most']:.3f}", f"{row['ratio']:.2f}", quartiles(row))
        for size, arm in found["times"].items()
        for name, row in arm.items()
    ]
    starts = [
        (name, f"{row['seconds']:.2f}", f"{row['most']:.2f}", f"{row['ratio']:.2f}", quartiles(row))
        for name, row in found["cold"].items()
    ]
    peaks = [
        (
            name,
            f"{each['side']} x {each['side']}",
            f"{each['pixels']:.0f}",
            work,
            f"{each[work]['megabytes']:.0f}",
            f"{each[work]['seconds']:.1f}",
        )
        for name, each in found["memory"].items()
        for work in ("embed", "extract")
    ]
    return [
        "# What marking and reading cost",
        "",
        f"{found['images']} X-rays, {len(TEXT)} bytes of text, a floor of {FLOOR:g} dB, the network {found['model']}. "
        "Seconds of processor time, files read and written; ratios are to Pillow, which decodes the same file and "
        "encodes it again, median and quartiles.",
        "",
        *table(["Size", "Work", "Seconds, median", "most", "Times Pillow", "quartiles"], rows),
        "",
        f"A process started for one marked image of {SIZES[0]} x {SIZES[0]}, beside one that only imports PyTorch:",
        "",
        *table(["Process", "Seconds, median", "most", "Times import torch", "quartiles"], starts),
        "",
        "Peak memory of the command on the largest images that are accepted:",
        "",
        *table(["Image", "Size", "MB of pixels", "Command", "MB", "Seconds"], peaks),
    ]


def main() -> None:
    chosen = begin(xray_options(__doc__, images=10, turns=20, most=MAX_PIXELS))  # most: pixels of the largest
    files = unseen_xrays(chosen)
    found: dict[str, Any] = {"images": len(files), "model": Watermarker.load().model}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        found["times"] = {}
        for size in SIZES:
            (place / f"{size}").mkdir()
            copies = [place / f"{size}" / path.name for path in files]
            for seed, (path, copy) in enumerate(zip(files, copies, strict=True)):
                pixels = enlarged(path, size, seed) if size != SIZES[0] else grey(path)
                Image.fromarray(pixels).save(copy)
            found["times"][size] = times(copies, chosen.turns, place)
            if size == SIZES[0]:
                found["cold"] = cold(place / f"marked-{files[0].name}", chosen.turns)
        found["memory"] = memory(files[0], chosen.most, chosen.seed, place)
    keep(__file__, chosen, found, page(found))


if __name__ == "__main__":
    main()
