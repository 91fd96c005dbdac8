"""What the watermarking tool keeps of its promises on images it was not trained on: floors, payloads, false positives.

    python benchmarks/watermark_tool.py --data ChestX-ray8/px256/images --split chest.store/split.json

Runs the commands as a user would, ``floormark embed`` and ``extract`` on folders, and judges the files they
wrote by code of its own. Larger images are scaled up from smaller ones, and the result says so. Throughput is by the
clock, with starting the processes in it, and by processor time; memory is the largest peak of the processes.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import begin, ended, enlarged, keep, psnr, table, unseen_xrays, xray_options
from PIL import Image

TEXT = "patient 4711"
PROGRAM = [sys.executable, "-m", "floormark"]


def command(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Run ``floormark ... --json``; the exit code and what it printed."""
    done = subprocess.run([*PROGRAM, *arguments, "--json"], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1) or not done.stdout:
        raise SystemExit(f"floormark {arguments[0]} ended with {done.returncode}: {done.stderr[-500:]}")
    return done.returncode, json.loads(done.stdout)


def fill(folder: Path, files: list[Path], size: int) -> None:
    """Copies of ``files``, scaled up to ``size`` if they are smaller."""
    folder.mkdir()
    for number, path in enumerate(files):
        with Image.open(path) as image:
            small = image.width < size
        if small:
            Image.fromarray(enlarged(path, size, number)).save(folder / path.name)
        else:
            shutil.copyfile(path, folder / path.name)


def judge(source: Path, out: Path, floor: float) -> dict[str, Any]:
    """Embed a whole folder, then measure and read every file that was written."""
    before, began = _processor_seconds(), time.perf_counter()
    _, summary = command("embed", str(source), str(out), "--text", TEXT, "--psnr", str(floor))
    seconds, processor = time.perf_counter() - began, _processor_seconds() - before
    _, read = command("extract", str(out))
    quality = [psnr(*(np.asarray(Image.open(folder / name)) for folder in (source, out))) for name in read]
    images = len(list(source.iterdir()))
    return {
        "floor": floor,
        "images": images,
        "written": len(read),
        "refused": summary["refused"],
        "below_the_floor": sum(value < floor for value in quality),
        "psnr": {"lowest": min(quality), "highest": max(quality)},
        "exact": sum(found["message"] == TEXT for found in read.values()),
        "wrong": sum(found["message"] not in (None, TEXT) for found in read.values()),
        "corrected_bits": {"mean": float(np.mean([found["corrected_errors"] for found in read.values()]))},
        "images_a_second": images / seconds,
        "images_a_processor_second": images / processor,
        "peak_megabytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3,
    }


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def false_positives(folder: Path) -> dict[str, Any]:
    _, read = command("extract", str(folder))
    return {"images": len(read), "found": sum(found["message"] is not None for found in read.values())}


def page(found: dict[str, Any]) -> list[str]:
    rows = [
        (
            size,
            f"{run['floor']:g}",
            run["images"],
            run["refused"],
            run["below_the_floor"],
            f"{run['psnr']['lowest']:.3f}",
            f"{run['exact']} of {run['written']}",
            run["wrong"],
            f"{run['corrected_bits']['mean']:.2f}",
            f"{run['images_a_second']:.1f}",
            f"{run['images_a_processor_second']:.1f}",
        )
        for size, runs in found["sizes"].items()
        for run in runs
    ]
    counts = ["Images", "Refused", "Below the floor", "Lowest PSNR", "Exact message", "Wrong message", "Bits corrected"]
    none = found["false_positives"]
    lines = [
        "# What the tool keeps",
        "",
        f"`floormark embed` and `extract` on folders of X-rays that were not used in training, "
        f"{len(TEXT)} bytes of text, {os.cpu_count()} cores. Larger ones are scaled up from 256 x 256, with noise.",
        "",
        *table(["Size", "Floor, dB", *counts, "Images a second", "by processor time"], rows),
        "",
        f"Unmarked images that read as a message: {none['found']} of {none['images']:,}.",
    ]
    if "memory" in found:
        peaks = [f"{run['peak_megabytes']:.0f} MB with {run['images']:,} files" for run in found["memory"]]
        lines += ["", f"Largest peak of memory of a process: {', '.join(peaks)}."]
    return lines


def memory(files: list[Path], count: int, place: Path) -> dict[str, Any]:
    """The largest peak of a process that marks ``count`` files."""
    source = place / f"many{count}"
    source.mkdir()
    for number in range(count):
        os.link(files[number % len(files)], source / f"{number:06}.png")
    began = time.perf_counter()
    used = ended([*PROGRAM, "embed", str(source), f"{source}-marked", "--text", TEXT])
    seconds = time.perf_counter() - began
    shutil.rmtree(f"{source}-marked")
    return {"images": count, "peak_megabytes": used["megabytes"], "images_a_second": count / seconds}


def main() -> None:
    parser = xray_options(__doc__, images=500, large=60, unmarked=2000)  # large: images at each of the larger sizes
    parser.add_argument("--memory", type=int, nargs=2, metavar="FILES", help="also compare the memory of two runs")
    chosen = begin(parser)
    files = unseen_xrays(chosen)
    found: dict[str, Any] = {"sizes": {}}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for size, some in ((256, files), (512, files[: chosen.large]), (1024, files[: chosen.large])):
            fill(place / f"{size}", some, size)
            found["sizes"][f"{size} x {size}"] = [
                judge(place / f"{size}", place / f"{size}-{floor}", floor) for floor in (40.0, 45.0, 50.0)
            ]
        fill(place / "unmarked", sorted(chosen.data.glob("*.png"))[: chosen.unmarked], 0)
        found["false_positives"] = false_positives(place / "unmarked")
        if chosen.memory:
            copies = sorted((place / "256").iterdir())
            found["memory"] = [memory(copies, count, place) for count in chosen.memory]
    keep(__file__, chosen, found, page(found))


if __name__ == "__main__":
    main()
