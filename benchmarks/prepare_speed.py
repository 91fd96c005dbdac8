"""How fast ``prepare`` makes a store, beside Pillow alone on as many processes, and how much memory it takes.

Pillow alone opens, turns grey and resizes the same files in processes that were started before the clock, and drops the
result; ``prepare`` also lists the folder, checks the files, writes, syncs and indexes. The runs are interleaved and
repeated, and the result is the median of the ratios, since machines are noisy. The second part takes pictures scaled
up to 1024 x 1024, the size of the published ones: the same comparison, and ``prepare`` on two folders of different
length: the peak of memory must be the same, and the time that was projected from a sample near the time it took.

    python benchmarks/prepare_speed.py --data ChestX-ray8/px256 --out results/chest
"""

import argparse
import dataclasses
import multiprocessing
import os
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from samplewise.checkpoint import atomic, write_json
from samplewise.data.pictures import Listing, Progress, find, prepare
from samplewise.provenance import provenance

PUBLISHED = 112_120  # images of ChestX-ray8, of 1024 x 1024 pixels
LARGE = 1024
CHUNK = 32
GOAL = 0.8


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of one run."""

    seconds: float
    cpu: float
    """Of all processes and threads: what a busy machine changes least."""


def pillow_alone(paths: list[Path], size: int) -> float:
    began = time.process_time()
    for path in paths:
        with Image.open(path) as image:
            grey = image if image.mode == "L" else image.convert("L")
            np.asarray(grey.resize((size, size), Image.Resampling.BILINEAR))
    return time.process_time() - began


def cost_of_pillow(pool: ProcessPoolExecutor, listing: Listing, size: int) -> Cost:
    paths = [picture.path for picture in listing.pictures]
    chunks = [paths[first : first + CHUNK] for first in range(0, len(paths), CHUNK)]
    began = time.perf_counter()
    cpu = sum(pool.map(pillow_alone, chunks, [size] * len(chunks)))
    return Cost(time.perf_counter() - began, cpu)


def cost_of_prepare(listing: Listing, size: int, workers: int) -> Cost:
    with tempfile.TemporaryDirectory() as out:
        began, cpu = time.perf_counter(), time.process_time()
        limited = dataclasses.replace(find(listing.root), pictures=listing.pictures)
        prepare(limited, out, size=size, workers=workers, watch=lambda progress: None)
        return Cost(time.perf_counter() - began, time.process_time() - cpu)


def compare(listing: Listing, *, size: int, workers: int, repeats: int) -> dict[str, Any]:
    timings = []
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        cost_of_pillow(pool, listing, size)  # starts the processes and reads the files from disk once
        for _ in range(repeats):
            timings.append((cost_of_pillow(pool, listing, size), cost_of_prepare(listing, size, workers)))
    ratios = sorted(pillow.seconds / ours.seconds for pillow, ours in timings)
    cpu_ratios = sorted(pillow.cpu / ours.cpu for pillow, ours in timings)
    count = len(listing.pictures)
    return {
        "pictures": count,
        "size": size,
        "workers": workers,
        "repeats": repeats,
        "pillow_pictures_per_second": count / statistics.median(pillow.seconds for pillow, _ in timings),
        "prepare_pictures_per_second": count / statistics.median(ours.seconds for _, ours in timings),
        "speed_ratio": statistics.median(ratios),
        "speed_ratio_range": [ratios[0], ratios[-1]],
        "cpu_ratio": statistics.median(cpu_ratios),
        "cpu_ratio_range": [cpu_ratios[0], cpu_ratios[-1]],
        "load": os.getloadavg()[0],
        "goal": GOAL,
    }


def scale_up(listing: Listing, folder: Path, count: int) -> None:
    """Pictures as large as the published ones, with some noise so that their files are as long, too."""
    rng = np.random.default_rng(0)
    for picture in listing.pictures[:count]:
        with Image.open(picture.path) as image:
            large = np.asarray(image.convert("L").resize((LARGE, LARGE), Image.Resampling.BICUBIC)).astype(np.int16)
        noisy = np.clip(large + rng.integers(-2, 3, large.shape), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / f"{len(list(folder.iterdir())):06d}.png")


def prepare_large(folder: Path, size: int, workers: int) -> dict[str, Any]:
    seen: list[Progress] = []
    with tempfile.TemporaryDirectory() as out:
        began = time.perf_counter()
        prepare(folder, out, size=size, workers=workers, watch=seen.append)
        took = time.perf_counter() - began
    status = Path("/proc/self/status")
    peak = [line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM")]
    return {
        "pictures": seen[0].total,
        "projected_seconds": seen[0].seconds_left,
        "seconds": took,
        "peak_memory_megabytes": round(int(peak[0]) / 1024, 1),
    }


def large(listing: Listing, *, size: int, workers: int, count: int, times: int, repeats: int) -> dict[str, Any]:
    runs = []
    with tempfile.TemporaryDirectory() as place:
        once, often = Path(place, "once"), Path(place, "often")
        once.mkdir()
        often.mkdir()
        scale_up(listing, once, count)
        length = statistics.mean(path.stat().st_size for path in once.iterdir())
        for copy in range(times):
            for path in once.iterdir():
                (often / f"{copy:03d}-{path.name}").symlink_to(path)
        for folder in (once, often):
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:  # a peak of its own
                runs.append(pool.submit(prepare_large, folder, size, workers).result())
        speed = compare(find(often), size=size, workers=workers, repeats=repeats)
    return {
        "pixels": LARGE,
        "size": size,
        "workers": workers,
        "mean_file_bytes": round(length),
        "runs": runs,
        "speed": speed,
        "published_set_hours": PUBLISHED * runs[-1]["seconds"] / runs[-1]["pictures"] / 3600,
        "published_set_gigabytes": PUBLISHED * size * size / 1e9,
    }


def sentence(speed: dict[str, Any]) -> str:
    low, high = speed["speed_ratio_range"]
    return (
        f"{speed['pictures']:,} pictures to {speed['size']} x {speed['size']}, {speed['workers']} workers, "
        f"{speed['repeats']} interleaved repeats: Pillow alone {speed['pillow_pictures_per_second']:.0f} pictures a "
        f"second, prepare {speed['prepare_pictures_per_second']:.0f}; median ratio **{speed['speed_ratio']:.2f}** "
        f"({low:.2f} to {high:.2f}), goal {speed['goal']}. By processor time the ratio is **{speed['cpu_ratio']:.2f}**."
    )


def page(result: dict[str, Any]) -> str:
    speed, memory = result["speed"], result["large"]
    rows = [
        f"| {run['pictures']:,} | {run['projected_seconds']:.0f} | {run['seconds']:.0f} | "
        f"{run['peak_memory_megabytes']:.0f} |"
        for run in memory["runs"]
    ]
    return "\n".join(
        [
            "# Speed and memory of prepare",
            "",
            f"{sentence(speed)} Load of the machine: {speed['load']:.0f}.",
            "",
            f"Pictures of {LARGE} x {LARGE} (files of {memory['mean_file_bytes'] / 1e3:.0f} kB) to "
            f"{memory['size']} x {memory['size']}:",
            "",
            "| pictures | projected s | took s | peak memory MB |",
            "|---|---|---|---|",
            *rows,
            "",
            sentence(memory["speed"]),
            "",
            f"At this speed the published {PUBLISHED:,} images take {memory['published_set_hours']:.1f} h and "
            f"{memory['published_set_gigabytes']:.1f} GB.",
            "",
            f"Made by `{result['provenance']['command']}` at commit {result['provenance']['commit']}.",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder of pictures")
    parser.add_argument("--out", type=Path, default=Path("results/chest"))
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", type=int, default=1000, help="pictures in a run")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--large", type=int, default=100, help="pictures that are scaled up")
    parser.add_argument("--times", type=int, default=8, help="how many times as long the longer folder is")
    arguments = parser.parse_args()
    listing = find(arguments.data)
    listing = dataclasses.replace(listing, pictures=listing.pictures[: arguments.limit])
    common = {"size": arguments.size, "workers": arguments.workers}
    result = {
        "speed": compare(listing, **common, repeats=arguments.repeats),
        "large": large(listing, **common, count=arguments.large, times=arguments.times, repeats=arguments.repeats),
        "pillow": metadata.version("pillow"),
        "provenance": provenance(seed=0),
    }
    write_json(arguments.out / "prepare.json", result)
    text = page(result)
    with atomic(arguments.out / "prepare.md") as temporary:
        temporary.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
