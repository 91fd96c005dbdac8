"""Whether the MNIST study's rows are quicker one after the other with all threads, or side by side with one each.

Runs the study's own command line machinery, ``run_jobs``, on random images of MNIST's size: as many rows as cores, a
few epochs each with all audits, both ways in turn and repeated. The start of the processes is timed with it, as a user
would see it; its share falls with the epochs.

    python benchmarks/jobs_or_threads.py --out results/benchmarks
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch

from samplewise.checkpoint import write_json
from samplewise.data import ImageData
from samplewise.provenance import provenance
from samplewise.studies.mnist.jobs import Job, run_jobs
from samplewise.studies.mnist.rows import parse_row
from samplewise.studies.mnist.settings import Settings


def random_images() -> ImageData:
    generator = torch.Generator().manual_seed(0)

    def part(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
        images = torch.randint(256, (samples, 28, 28), generator=generator, dtype=torch.uint8)
        return images, torch.randint(10, (samples,), generator=generator)

    return ImageData.from_bytes("random", part(60_000), part(10_000))


def seconds(settings: Settings, jobs: list[Job], *, processes: int, threads: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run_jobs(jobs, settings, Path(folder), random_images, processes=processes, threads=threads)
        return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description="rows side by side against rows with all threads")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    arguments = parser.parse_args()
    cores = os.cpu_count() or 1
    settings = Settings.of(random_images(), epochs=arguments.epochs, warm_epochs=0)
    jobs = [Job(parse_row("penalty:100:1.01"), seed) for seed in range(cores)]
    ways = {"side_by_side": (cores, 1), "all_threads": (1, cores)}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(arguments.repeats):
        for name, (processes, threads) in ways.items():
            found[name].append(seconds(settings, jobs, processes=processes, threads=threads))
    ratios = sorted(a / b for a, b in zip(found["side_by_side"], found["all_threads"], strict=True))
    epochs = arguments.epochs * len(jobs)
    result = {
        "rows": len(jobs),
        "epochs_of_each": arguments.epochs,
        "repeats": arguments.repeats,
        "seconds_an_epoch": {name: statistics.median(times) / epochs for name, times in found.items()},
        "side_by_side_over_all_threads": statistics.median(ratios),
        "range": [ratios[0], ratios[-1]],
        "provenance": provenance(seed=0),
    }
    write_json(arguments.out / "jobs_or_threads.json", result)
    print(
        f"{len(jobs)} rows side by side take {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) of "
        f"the time of one after the other with {cores} threads"
    )


if __name__ == "__main__":
    main()
