"""What ``certify`` costs beside one training epoch, on a network and a data set of the size of the MNIST study.

    python benchmarks/certify_cost.py

Random images stand for the real ones: only their number and shape matter here. The peak memory of a whole process is
measured at two numbers of samples, each in a process of its own.
"""

import argparse
import json
import subprocess
import sys
from typing import Any

import torch
from common import (
    DigitNetwork,
    begin,
    digit_problem,
    evaluate_digits,
    keep,
    options,
    peak_megabytes,
    random_digits,
    take_turns,
    timed,
)
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from samplewise import Constant, Linear, Problem, SequentialPenalty
from samplewise.optimality import certify


class Drawn(Dataset[tuple[Tensor, Tensor]]):
    """Random samples that are drawn when they are asked for, so that the data themselves take no memory."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(i)
        return torch.rand(784, generator=draw), torch.randint(10, (), generator=draw)


def epoch(model: nn.Module, method: SequentialPenalty, data: TensorDataset) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.train()
    for index in torch.randperm(len(data)).split(128):
        objective, measures = evaluate_digits(model, data[index])
        optimizer.zero_grad()
        method(objective, **measures).backward()
        optimizer.step()


def setting() -> tuple[Problem, nn.Module, SequentialPenalty]:
    problem = digit_problem(0.0856)  # about a fifth of the samples are violated, as in the paper's Table I
    return problem, DigitNetwork(), SequentialPenalty(problem.constraints, penalty=Linear(), schedule=Constant(100.0))


def certify_drawn(samples: int) -> None:
    """Certify on so many samples and print this process's peak memory in MB: before, after the pass, and in all."""
    problem, model, method = setting()
    before = peak_megabytes()
    # One per-sample gradient, then as many as usual: their memory is fixed, and would hide what the pass takes.
    certify(problem, model, Drawn(samples), method, subset=1)
    after_pass = peak_megabytes()
    certify(problem, model, Drawn(samples), method)
    peaks = {"peak_before_mb": before, "peak_pass_mb": after_pass, "peak_mb": peak_megabytes()}
    print(json.dumps({"samples": samples, **peaks}))


def memory(samples: list[int]) -> dict[str, Any]:
    """Peak memory of fresh processes that certify on so many samples, and its growth from the first to the last."""
    runs: list[dict[str, Any]] = []
    for count in samples:
        call = [sys.executable, __file__, "--memory-of", str(count)]
        runs.append(json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout))
        print(runs[-1], flush=True)
    grown = {f"growth_{key}": runs[-1][key] - runs[0][key] for key in ("peak_pass_mb", "peak_mb")}
    return {"runs": runs, **grown, "values_growth_mb": 8 * (samples[-1] - samples[0]) / 2**20}


def main() -> None:
    parser = options(__doc__, samples=60_000, repeats=3)
    parser.add_argument("--memory-samples", type=int, nargs=2, default=[30_000, 120_000])
    parser.add_argument("--memory-of", type=int, help=argparse.SUPPRESS)
    chosen = begin(parser)
    if chosen.memory_of is not None:
        certify_drawn(chosen.memory_of)
        return
    peaks = memory(chosen.memory_samples)
    data = random_digits(chosen.samples)
    problem, model, method = setting()
    arms = {
        "epoch": timed(lambda turn: epoch(model, method, data)),
        # One gradient to see whether they are independent: what is left is the passes over the data.
        "pass": timed(lambda turn: certify(problem, model, data, method, subset=1)),
        "whole": timed(lambda turn: certify(problem, model, data, method)),
    }
    # The shortest of each: what the work takes when nothing else interferes.
    seconds = {name: min(values) for name, values in take_turns(arms, chosen.repeats).items()}
    certificate = certify(problem, model, data, method)
    result = {
        "samples": chosen.samples,
        "parameters": certificate.parameters,
        "epoch_seconds": seconds["epoch"],
        "certify_seconds": seconds["whole"],
        "ratio": seconds["whole"] / seconds["epoch"],
        "licq_seconds": seconds["whole"] - seconds["pass"],
        "memory": peaks,
        "certificate": certificate.to_dict(),
    }
    keep(__file__, chosen, result)
    print(certificate, {key: result[key] for key in ("epoch_seconds", "certify_seconds", "ratio", "licq_seconds")})


if __name__ == "__main__":
    main()
