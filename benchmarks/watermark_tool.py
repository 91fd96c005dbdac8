"""What the watermarking tool keeps of its promises on images it was not trained on: floors, payloads, false positives.

Runs the commands as a user would, ``samplewise watermark embed`` and ``extract`` on folders, and judges the files they
wrote by code of its own. Larger images are scaled up from smaller ones, and the result says so. Throughput is by the
clock, with starting the processes in it, and by processor time; memory is the largest peak of the processes.

    python benchmarks/watermark_tool.py --data ChestX-ray8/px256/images --split chest.store/split.json
"""

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from samplewise.checkpoint import write_json
from samplewise.provenance import provenance

TEXT = "patient 4711"


def command(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Run ``samplewise watermark ... --json``; the exit code and what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "samplewise.cli", "watermark", *arguments, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1) or not done.stdout:
        raise SystemExit(f"samplewise watermark {arguments[0]} ended with {done.returncode}: {done.stderr[-500:]}")
    return done.returncode, json.loads(done.stdout)


def fill(folder: Path, files: list[Path], size: int) -> None:
    """Copies of ``files``, scaled up to ``size`` if they are smaller, with noise so that none is smooth."""
    folder.mkdir()
    for number, path in enumerate(files):
        image = Image.open(path).convert("L")
        if image.width >= size:
            shutil.copyfile(path, folder / path.name)
            continue
        large = np.asarray(image.resize((size, size), Image.Resampling.BICUBIC), np.float64)
        noisy = large + np.random.default_rng(number).normal(0.0, 1.5, large.shape)
        Image.fromarray(np.clip(np.rint(noisy), 0, 255).astype(np.uint8)).save(folder / path.name)


def judge(source: Path, out: Path, floor: float) -> dict[str, Any]:
    """Embed a whole folder, then measure and read every file that was written."""
    before, began = _processor_seconds(), time.perf_counter()
    _, summary = command("embed", str(source), str(out), "--text", TEXT, "--psnr", str(floor))
    seconds, processor = time.perf_counter() - began, _processor_seconds() - before
    _, read = command("extract", str(out))
    psnr = []
    for name in read:
        original, marked = (np.asarray(Image.open(folder / name), np.float64) for folder in (source, out))
        psnr.append(float(10.0 * np.log10(255.0**2 / np.mean(np.square(original - marked)))))
    images = len(list(source.iterdir()))
    return {
        "floor": floor,
        "images": images,
        "written": len(read),
        "refused": summary["refused"],
        "below_the_floor": sum(value < floor for value in psnr),
        "psnr": {"lowest": min(psnr), "highest": max(psnr)},
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


def table(found: dict[str, Any]) -> str:
    lines = [
        "# What the tool keeps",
        "",
        f"`samplewise watermark embed` and `extract` on folders of X-rays that were not used in training, "
        f"{len(TEXT)} bytes of text, {os.cpu_count()} cores. Larger ones are scaled up from 256 x 256, with noise.",
        "",
        "| Size | Floor, dB | Images | Refused | Below the floor | Lowest PSNR | Exact message | Wrong message | "
        "Bits corrected | Images a second | by processor time |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for size, runs in found["sizes"].items():
        for run in runs:
            lines.append(
                f"| {size} | {run['floor']:g} | {run['images']} | {run['refused']} | {run['below_the_floor']} | "
                f"{run['psnr']['lowest']:.3f} | {run['exact']} of {run['written']} | {run['wrong']} | "
                f"{run['corrected_bits']['mean']:.2f} | {run['images_a_second']:.1f} | "
                f"{run['images_a_processor_second']:.1f} |"
            )
    none = found["false_positives"]
    lines += ["", f"Unmarked images that read as a message: {none['found']} of {none['images']:,}."]
    if "memory" in found:
        small, large = found["memory"]
        lines += [
            "",
            f"Largest peak of memory of a process: {small['peak_megabytes']:.0f} MB with {small['images']:,} files, "
            f"{large['peak_megabytes']:.0f} MB with {large['images']:,}.",
        ]
    made = found["provenance"]
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    lines += ["", f"`{made['command']}`, commit {made['commit']}; {versions}."]
    return "\n".join(lines) + "\n"


def memory(files: list[Path], count: int, place: Path) -> dict[str, Any]:
    """The largest peak of a process that marks ``count`` files; in a process of its own, as peaks only rise."""
    source = place / f"many{count}"
    source.mkdir()
    for number in range(count):
        os.link(files[number % len(files)], source / f"{number:06}.png")
    script = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=False); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    embed = [
        sys.executable,
        "-m",
        "samplewise.cli",
        "watermark",
        "embed",
        str(source),
        f"{source}-marked",
        "--text",
        TEXT,
    ]
    began = time.perf_counter()
    peak = subprocess.run([sys.executable, "-c", script, *embed], capture_output=True, text=True, check=True).stdout
    seconds = time.perf_counter() - began
    shutil.rmtree(f"{source}-marked")
    return {"images": count, "peak_megabytes": int(peak) / 1e3, "images_a_second": count / seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description="floors, payloads, false positives, speed and memory of the tool")
    parser.add_argument("--data", type=Path, required=True, help="folder of grey PNG images")
    parser.add_argument("--split", type=Path, required=True, help="split.json of the store that was trained on")
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--large", type=int, default=60, help="images at each of the larger sizes")
    parser.add_argument("--unmarked", type=int, default=2000)
    parser.add_argument("--memory", type=int, nargs=2, metavar="FILES", help="also compare the memory of two runs")
    parser.add_argument("--out", type=Path, default=Path("results/watermark"))
    arguments = parser.parse_args()
    trained = set(json.loads(arguments.split.read_text())["train"])
    everything = sorted(arguments.data.glob("*.png"))
    unseen = [path for path in everything if path.name not in trained]
    chosen = random.Random(0).sample(unseen, min(arguments.images, len(unseen)))
    found: dict[str, Any] = {"sizes": {}, "provenance": provenance(seed=0)}
    with tempfile.TemporaryDirectory(dir=arguments.out if arguments.out.exists() else None) as folder:
        place = Path(folder)
        for size, files in ((256, chosen), (512, chosen[: arguments.large]), (1024, chosen[: arguments.large])):
            fill(place / f"{size}", files, size)
            found["sizes"][f"{size} x {size}"] = [
                judge(place / f"{size}", place / f"{size}-{floor}", floor) for floor in (40.0, 45.0, 50.0)
            ]
        fill(place / "unmarked", everything[: arguments.unmarked], 0)
        found["false_positives"] = false_positives(place / "unmarked")
        if arguments.memory:
            copies = sorted((place / "256").iterdir())
            found["memory"] = [memory(copies, count, place) for count in arguments.memory]
    write_json(arguments.out / "tool.json", found)
    (arguments.out / "tool.md").write_text(table(found), encoding="utf-8")
    print(table(found))


if __name__ == "__main__":
    main()
