"""What the benchmarks share: turns and ratios, data to work on, and how a result is kept.

A benchmark writes its numbers to ``results/benchmarks/<its name>.json``, most a page for people beside them, both with
the command, the commit and the versions that made them.
"""

import argparse
import io
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import samplewise as sw
from samplewise.storage.disk import write_json, write_text
from samplewise.storage.origins import provenance
from studies.mnist.digit_network import DigitNetwork

__all__ = ["DigitNetwork"]  # for the others to import; all the rest is defined here

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "results" / "benchmarks"

Pixels = NDArray[np.uint8]
T = TypeVar("T")


def options(doc: str | None, **defaults: int | None) -> argparse.ArgumentParser:
    """A parser with what all benchmarks know, and an option for each number in ``defaults``."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results (results/benchmarks)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch (1)")
    for name, value in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value, help=f"({value})")
    return parser


def begin(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options, with threads and seeds set as they say."""
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(chosen.seed)
    random.seed(chosen.seed)
    return chosen


def keep(
    file: str,
    chosen: argparse.Namespace,
    content: Mapping[str, Any],
    page: Sequence[str] = (),
    packages: Iterable[str] = (),
) -> None:
    """Write a benchmark's numbers and, if it has one, its page.

    Args:
        file: of the benchmark, which gives the results their name.
        chosen: its options.
        content: its numbers.
        page: lines of its page; what made it is added.
        packages: whose versions matter beside the usual ones.
    """
    made = provenance(seed=chosen.seed)
    made["versions"] |= {name: metadata.version(name) for name in packages}
    place = chosen.out / Path(file).stem
    write_json(place.with_suffix(".json"), {**content, "provenance": made})
    if page:
        versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
        footer = f"`{made['command']}`, commit {made['commit']}, seed {chosen.seed}; {versions}."
        text = "\n".join([*page, "", footer, ""])
        write_text(place.with_suffix(".md"), text)
        print(text)


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """Lines of a Markdown table."""
    head = list(head)
    lines = (f"| {' | '.join(map(str, row))} |" for row in rows)
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *lines]


def take_turns(arms: Mapping[str, Callable[[int], T]], turns: int) -> dict[str, list[T]]:
    """What each arm returned in each turn, given the turn's number.

    In a turn all arms are called, in an order that changes. One turn before them warms up and is dropped.
    """
    found: dict[str, list[T]] = {name: [] for name in arms}
    for turn in range(turns + 1):
        for name in random.sample(list(arms), len(arms)):
            found[name].append(arms[name](turn))
    return {name: values[1:] for name, values in found.items()}


def timed(work: Callable[[int], object], clock: Callable[[], float] = time.perf_counter) -> Callable[[int], float]:
    """An arm that returns its seconds."""

    def arm(turn: int) -> float:
        began = clock()
        work(turn)
        return clock() - began

    return arm


def ratios(values: Sequence[float], reference: Sequence[float]) -> dict[str, float]:
    """The ratio of two arms in the same turn: median and quartiles over the turns."""
    low, middle, high = statistics.quantiles((a / b for a, b in zip(values, reference, strict=True)), n=4)
    return {"ratio": round(middle, 4), "ratio_quartile_low": round(low, 4), "ratio_quartile_high": round(high, 4)}


def quartiles(row: Mapping[str, float]) -> str:
    """The quartiles of :func:`ratios`, for a page."""
    return f"{row['ratio_quartile_low']:.3f} to {row['ratio_quartile_high']:.3f}"


def peak_megabytes() -> float:
    """The most memory that this process has had; of a program it started, only since it started."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def ended(command: Sequence[str]) -> dict[str, float]:
    """How a program ended, its peak of memory in megabytes, and its processor time.

    By a small process between: what a program begins with counts the memory of the one that starts it.
    """
    script = (
        "import json, os, subprocess, sys; child = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL); "
        "_, status, used = os.wait4(child.pid, 0); print(json.dumps({'exit': os.waitstatus_to_exitcode(status), "
        "'megabytes': used.ru_maxrss * 1024 / 1e6, 'seconds': used.ru_utime + used.ru_stime}))"
    )
    said = subprocess.run([sys.executable, "-c", script, *command], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(said.stdout)
    return found


def random_digits(samples: int, seed: int = 0) -> TensorDataset:
    """Images and labels of MNIST's shape: for what they cost, their content does not matter."""
    draw = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.rand(samples, 784, generator=draw), torch.randint(10, (samples,), generator=draw))


def digit_problem(bound: float) -> sw.Problem:
    """The problem of the paper's first study."""
    return sw.Problem(evaluate_digits, [sw.AtMost("reconstruction", bound)])


def evaluate_digits(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Cross entropy and reconstruction error, (B,) each, of images (B, 784) and labels (B,)."""
    images, labels = batch
    logits, pixels = model(images)
    error = (pixels - images).square().mean(1)
    return functional.cross_entropy(logits, labels, reduction="none"), {"reconstruction": error}


def xray_options(
    doc: str | None, *, split: bool = True, needed: bool = True, **defaults: int | None
) -> argparse.ArgumentParser:
    """A parser for benchmarks on X-rays that a network has not seen.

    ``split`` if they must say which it has, ``needed`` if there is nothing else to work on.
    """
    parser = options(doc, **defaults)
    parser.add_argument("--data", type=Path, required=needed, help="folder of grey PNG images")
    parser.add_argument(
        "--split", type=Path, required=split and needed, help="split.json of the store that was trained on"
    )
    return parser


def unseen_xrays(chosen: argparse.Namespace) -> list[Path]:
    """``--images`` files, drawn from those of patients that were not trained on."""
    trained = {_patient(name) for name in json.loads(chosen.split.read_text())["train"]} if chosen.split else set()
    unseen = [path for path in sorted(chosen.data.glob("*.png")) if _patient(path.name) not in trained]
    return random.Random(chosen.seed).sample(unseen, min(chosen.images, len(unseen)))


def _patient(file: str) -> str:
    """ChestX-ray8 names its files by patient and study: 00000011_003.png."""
    return Path(file).stem.partition("_")[0]


def grey(path: Path) -> Pixels:
    """A picture in grey."""
    with Image.open(path) as image:
        return np.asarray(image.convert("L"))


def enlarged(path: Path, size: int, seed: int) -> Pixels:
    """A picture scaled up to ``size`` x ``size``, with noise so that it is not smoother than a real one."""
    with Image.open(path) as image:
        large = np.asarray(image.convert("L").resize((size, size), Image.Resampling.BICUBIC), np.float64)
    noisy = large + np.random.default_rng(seed).normal(0.0, 1.5, large.shape)
    return np.clip(np.rint(noisy), 0, 255).astype(np.uint8)


def saved(kind: str, **settings: int) -> Callable[[Pixels], Pixels]:
    """Written to a file of this kind and read back."""

    def treat(pixels: Pixels) -> Pixels:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, kind, **settings)
        return np.asarray(Image.open(file))

    return treat


def resized(share: float) -> Callable[[Pixels], Pixels]:
    """Made smaller and brought back."""

    def treat(pixels: Pixels) -> Pixels:
        image = Image.fromarray(pixels)
        small = image.resize((round(share * image.width), round(share * image.height)), Image.Resampling.BICUBIC)
        return np.asarray(small.resize(image.size, Image.Resampling.BICUBIC))

    return treat


def psnr(original: Pixels, marked: Pixels) -> float:
    """By NumPy alone, so that it does not share a mistake with what it judges."""
    error = np.mean(np.square(original.astype(np.float64) - marked))
    return float(10.0 * np.log10(255.0**2 / error))
