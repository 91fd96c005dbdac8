"""Whether the MNIST study's rows are quicker one after the other with all threads, or side by side with one each.

    python benchmarks/jobs_or_threads.py

Runs the study's own command line machinery, ``run_jobs``, on random images of MNIST's size: as many rows as cores, a
few epochs each with all audits, both ways in turn and repeated. The start of the processes is timed with it, as a user
would see it; its share falls with the epochs.
"""

import os
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from common import begin, keep, options, ratios, take_turns, timed

from studies.data import ImageData
from studies.mnist.rows import parse_row
from studies.mnist.settings import StudySettings
from studies.mnist.study import Job, run_jobs


def random_images(samples: int) -> tuple[ImageData, None]:
    generator = torch.Generator().manual_seed(0)

    def part(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
        images = torch.randint(256, (samples, 28, 28), generator=generator, dtype=torch.uint8)
        return images, torch.randint(10, (samples,), generator=generator)

    return ImageData.from_bytes("random", part(samples), part(samples // 6)), None


def way(settings: StudySettings, jobs: list[Job], samples: int, processes: int, threads: int) -> Callable[[int], float]:
    def work(turn: int) -> None:
        load = partial(random_images, samples)
        with tempfile.TemporaryDirectory() as folder:
            run_jobs(jobs, settings, Path(folder), load, processes=processes, threads=threads)

    return timed(work)


def main() -> None:
    chosen = begin(options(__doc__, samples=60_000, epochs=8, repeats=3))
    cores = os.cpu_count() or 1
    settings = StudySettings.of(random_images(chosen.samples)[0], epochs=chosen.epochs, warm_epochs=0)
    jobs = [Job(parse_row("penalty:100:1.01"), seed) for seed in range(cores)]
    each = partial(way, settings, jobs, chosen.samples)
    arms = {"side_by_side": each(cores, 1), "all_threads": each(1, cores)}
    seconds = take_turns(arms, chosen.repeats)
    epochs = chosen.epochs * len(jobs)
    result = {
        "rows": len(jobs),
        "epochs_of_each": chosen.epochs,
        "repeats": chosen.repeats,
        "seconds_an_epoch": {name: statistics.median(values) / epochs for name, values in seconds.items()},
        "side_by_side_over_all_threads": ratios(seconds["side_by_side"], seconds["all_threads"]),
    }
    keep(__file__, chosen, result)
    print(result)


if __name__ == "__main__":
    main()
