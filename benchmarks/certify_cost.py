"""What ``certify`` costs beside one training epoch, on a network and a data set of the size of the MNIST study.

Run from the root of the repository::

    python benchmarks/certify_cost.py

Random images stand for the real ones: only their number and shape matter here. Writes ``results/theory/certify.json``.
"""

import argparse
import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from samplewise import AtMost, Constant, Linear, Problem, SequentialPenalty
from samplewise.certificate import certify
from samplewise.provenance import provenance

ROOT = Path(__file__).resolve().parent.parent


class Network(nn.Module):
    """The network of section V-A."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 20))
        self.classifier = nn.Linear(20, 10)
        self.decoder = nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 784), nn.Sigmoid())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        code = self.encoder(x)
        return self.classifier(code), self.decoder(code)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = torch.rand(arguments.samples, 784), torch.randint(10, (arguments.samples,))
    data, model = TensorDataset(x, y), Network()
    problem = Problem(evaluate, [AtMost("mse", 0.0834)])  # about half of the samples are violated
    method = SequentialPenalty(problem.constraints, penalty=Linear(), schedule=Constant(100.0))
    training = timed(lambda: epoch(problem, model, method, x, y), arguments.repeats)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # One per-sample gradient: what is left is the pass over the data.
    whole = timed(lambda: certify(problem, model, data, method, subset=1), arguments.repeats)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    full = timed(lambda: certify(problem, model, data, method), 1)
    certificate = certify(problem, model, data, method)
    result = {
        "samples": arguments.samples,
        "parameters": certificate.parameters,
        "epoch_seconds": training,
        "certify_seconds": whole,
        "ratio": whole / training,
        "licq_seconds": full - whole,
        "peak_memory_growth_mb": (after - before) / 1024,
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
