"""What ``certify`` costs beside one training epoch, on a network and a data set of the size of the MNIST study.

Run from the root of the repository::

    python benchmarks/certify_cost.py

Random images stand for the real ones: only their number and shape matter here. The peak memory of a whole process is
measured at two numbers of samples, each in a process of its own. Writes ``results/theory/certify.json``.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from samplewise import AtMost, Constant, Linear, Problem, SequentialPenalty
from samplewise.certificate import certify
from samplewise.provenance import provenance
from samplewise.studies.mnist.network import Network

ROOT = Path(__file__).resolve().parent.parent


class Drawn(Dataset[tuple[Tensor, Tensor]]):
    """Random samples that are drawn when they are asked for, so that the data themselves take no memory."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(i)
        return torch.rand(784, generator=draw), torch.randint(10, (), generator=draw)


def evaluate(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    x, y = batch
    scores, images = model(x)
    return nn.functional.cross_entropy(scores, y, reduction="none"), {"mse": (images - x).square().mean(1)}


def epoch(problem: Problem, model: nn.Module, method: SequentialPenalty, x: Tensor, y: Tensor) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.train()
    for index in torch.randperm(len(x)).split(128):
        evaluation = problem.evaluate(model, (x[index], y[index]), index)
        loss = method(evaluation.objective, index=index, **evaluation.measures)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def timed(work: Callable[[], object], repeats: int) -> float:
    """The shortest of some runs: what the work takes when nothing else interferes."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def setting() -> tuple[Problem, nn.Module, SequentialPenalty]:
    problem = Problem(evaluate, [AtMost("mse", 0.0834)])  # about half of the samples are violated
    return problem, Network(), SequentialPenalty(problem.constraints, penalty=Linear(), schedule=Constant(100.0))


def certify_drawn(samples: int) -> None:
    """Certify on so many samples and print this process's peak memory in MB: before, after the pass, and in all."""
    problem, model, method = setting()
    before = peak_mb()
    # One per-sample gradient, then as many as usual: their memory is fixed, and would hide what the pass takes.
    certify(problem, model, Drawn(samples), method, subset=1)
    after_pass = peak_mb()
    certify(problem, model, Drawn(samples), method)
    peaks = {"peak_before_mb": before, "peak_pass_mb": after_pass, "peak_mb": peak_mb()}
    print(json.dumps({"samples": samples, **peaks}))


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def memory(samples: list[int]) -> dict[str, Any]:
    """Peak memory of fresh processes that certify on so many samples, and its growth from the first to the last."""
    runs: list[dict[str, Any]] = []
    for count in samples:
        call = [sys.executable, __file__, "--memory-of", str(count)]
        runs.append(json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout))
    grown = {f"growth_{key}": runs[-1][key] - runs[0][key] for key in ("peak_pass_mb", "peak_mb")}
    return {"runs": runs, **grown, "values_growth_mb": 8 * (samples[-1] - samples[0]) / 2**20}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory-samples", type=int, nargs=2, default=[30_000, 120_000])
    parser.add_argument("--memory-of", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if arguments.memory_of is not None:
        certify_drawn(arguments.memory_of)
        return
    # First, while this process is small: a child's peak begins with the size of the process that starts it.
    peaks = memory(arguments.memory_samples)
    for run in peaks["runs"]:
        print(
            f"{run['samples']:,} samples: peak {run['peak_before_mb']:.1f} MB before, {run['peak_pass_mb']:.1f} after "
            f"the pass, {run['peak_mb']:.1f} with the per-sample gradients",
            flush=True,
        )
    x, y = torch.rand(arguments.samples, 784), torch.randint(10, (arguments.samples,))
    data = TensorDataset(x, y)
    problem, model, method = setting()
    training = timed(lambda: epoch(problem, model, method, x, y), arguments.repeats)
    before = peak_mb()
    # One per-sample gradient: what is left is the pass over the data.
    whole = timed(lambda: certify(problem, model, data, method, subset=1), arguments.repeats)
    after = peak_mb()
    full = timed(lambda: certify(problem, model, data, method), 1)
    certificate = certify(problem, model, data, method)
    result = {
        "samples": arguments.samples,
        "parameters": certificate.parameters,
        "epoch_seconds": training,
        "certify_seconds": whole,
        "ratio": whole / training,
        "licq_seconds": full - whole,
        "peak_memory_growth_mb": after - before,
        "memory": peaks,
        "certificate": certificate.to_dict(),
    }
    print(certificate)
    print(
        f"epoch {training:.2f} s, certify {whole:.2f} s ({whole / training:.2f} epochs) + per-sample gradients "
        f"{full - whole:.2f} s; memory grew by {result['peak_memory_growth_mb']:.0f} MB in the pass"
    )
    folder = ROOT / "results" / "theory"
    folder.mkdir(parents=True, exist_ok=True)
    content = {"provenance": provenance(seed=0), **result}
    (folder / "certify.json").write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
