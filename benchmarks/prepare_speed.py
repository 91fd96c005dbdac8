"""How fast ``prepare`` makes a store, beside Pillow alone on as many processes, and how much memory it takes.

    python benchmarks/prepare_speed.py --data ChestX-ray8/px256

Pillow alone opens, turns grey and resizes the same files in processes that were started before the clock, and drops the
result; ``prepare`` also lists the folder, checks the files, writes, syncs and indexes. The runs are interleaved and
repeated, and the result is the median of the ratios, since machines are noisy. The second part takes pictures scaled
up to 1024 x 1024, the size of the published ones: the same comparison, and ``prepare`` on two folders of different
length: the peak of memory must be the same.
"""

import dataclasses
import multiprocessing
import os
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from common import begin, enlarged, keep, options, peak_megabytes, quartiles, ratios, table, take_turns
from PIL import Image

from studies.pictures import Listing, find, prepare

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
        prepare(limited, out, size=size, workers=workers)
        return Cost(time.perf_counter() - began, time.process_time() - cpu)


def compare(listing: Listing, *, size: int, workers: int, repeats: int) -> dict[str, Any]:
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        arms = {
            "pillow": lambda turn: cost_of_pillow(pool, listing, size),
            "prepare": lambda turn: cost_of_prepare(listing, size, workers),
        }
        costs = take_turns(arms, repeats)
    seconds = {name: [cost.seconds for cost in values] for name, values in costs.items()}
    cpu = {name: [cost.cpu for cost in values] for name, values in costs.items()}
    count = len(listing.pictures)
    return {
        "pictures": count,
        "size": size,
        "workers": workers,
        "repeats": repeats,
        "pictures_per_second": {name: count / statistics.median(values) for name, values in seconds.items()},
        "speed": ratios(seconds["pillow"], seconds["prepare"]),
        "cpu": ratios(cpu["pillow"], cpu["prepare"]),
        "load": os.getloadavg()[0],
        "goal": GOAL,
    }


def prepare_large(folder: Path, size: int, workers: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as out:
        began = time.perf_counter()
        pictures = len(prepare(folder, out, size=size, workers=workers))
        took = time.perf_counter() - began
    return {"pictures": pictures, "seconds": took, "peak_memory_megabytes": round(peak_megabytes(), 1)}


def large(listing: Listing, *, size: int, workers: int, count: int, times: int, repeats: int) -> dict[str, Any]:
    runs = []
    with tempfile.TemporaryDirectory() as place:
        once, often = Path(place, "once"), Path(place, "often")
        once.mkdir()
        often.mkdir()
        for number, picture in enumerate(listing.pictures[:count]):
            Image.fromarray(enlarged(picture.path, LARGE, number)).save(once / f"{number:06d}.png")
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
        "mean_file_bytes": round(length),
        "runs": runs,
        "speed": speed,
        "published_set_hours": PUBLISHED * runs[-1]["seconds"] / runs[-1]["pictures"] / 3600,
        "published_set_gigabytes": PUBLISHED * size * size / 1e9,
    }


def sentence(found: dict[str, Any]) -> str:
    pace = found["pictures_per_second"]
    return (
        f"{found['pictures']:,} pictures to {found['size']} x {found['size']}, {found['workers']} workers, "
        f"{found['repeats']} interleaved repeats: Pillow alone {pace['pillow']:.0f} pictures a second, prepare "
        f"{pace['prepare']:.0f}; median ratio **{found['speed']['ratio']:.2f}** (quartiles "
        f"{quartiles(found['speed'])}), goal {found['goal']}. By processor time the ratio is "
        f"**{found['cpu']['ratio']:.2f}**."
    )


def page(speed: dict[str, Any], memory: dict[str, Any]) -> list[str]:
    runs = [
        (f"{run['pictures']:,}", f"{run['seconds']:.0f}", f"{run['peak_memory_megabytes']:.0f}")
        for run in memory["runs"]
    ]
    return [
        "# Speed and memory of prepare",
        "",
        f"{sentence(speed)} Load of the machine: {speed['load']:.0f}.",
        "",
        f"Pictures of {LARGE} x {LARGE} (files of {memory['mean_file_bytes'] / 1e3:.0f} kB):",
        "",
        *table(["pictures", "took s", "peak memory MB"], runs),
        "",
        sentence(memory["speed"]),
        "",
        f"At this speed the published {PUBLISHED:,} images take {memory['published_set_hours']:.1f} h and "
        f"{memory['published_set_gigabytes']:.1f} GB.",
    ]


def main() -> None:
    # Pictures in a run, then how many are scaled up, and how many times as long the longer folder of these is.
    parser = options(__doc__, size=224, workers=2, limit=1000, repeats=7, large=100, times=8)
    parser.add_argument("--data", type=Path, required=True, help="a folder of pictures")
    chosen = begin(parser)
    listing = find(chosen.data)
    listing = dataclasses.replace(listing, pictures=listing.pictures[: chosen.limit])
    shared = {"size": chosen.size, "workers": chosen.workers, "repeats": chosen.repeats}
    speed = compare(listing, **shared)
    memory = large(listing, **shared, count=chosen.large, times=chosen.times)
    keep(__file__, chosen, {"speed": speed, "large": memory}, page(speed, memory))


if __name__ == "__main__":
    main()
