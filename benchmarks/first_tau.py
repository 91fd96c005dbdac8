"""Where ``tau0="auto"`` starts, beside the first tau that was chosen by hand for the digits, MNIST and the watermark.

python benchmarks/first_tau.py --mnist FOLDER --data FOLDER
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from common import begin, keep, options, table
from torch.utils.data import DataLoader, TensorDataset

import samplewise as sw
from samplewise.methods.coefficients import BATCHES
from studies.data import ImageData, digits, load_folder
from studies.mnist.digit_network import study_problem
from studies.mnist.rows import parse_row
from studies.mnist.settings import StudySettings
from studies.mnist.study import warm_start
from studies.pictures.decode import decode
from studies.watermark.pipeline import Pipeline
from studies.watermark.recipe import SWIFT
from studies.watermark.training import make_network


def found(problem: sw.Problem, model: torch.nn.Module, optimizer: torch.optim.Optimizer, data: Any) -> float:
    """The first tau after the first batches of ``data``, as they are met in training."""
    method = sw.SequentialPenalty(problem.constraints, schedule=sw.Constant("auto"))
    for _, (first, second) in zip(range(BATCHES), data, strict=False):
        evaluation = problem.evaluate(model, (first, second))
        optimizer.zero_grad()
        method.loss(evaluation).backward()
        optimizer.step()
    return method.tau


def on_digits(data: ImageData, settings: StudySettings, rate: float, seed: int) -> float:
    """After the study's warm start, by its Adam."""
    with tempfile.TemporaryDirectory() as folder:
        model = warm_start(settings, data, seed, Path(folder))
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    loader = DataLoader(data.train, batch_size=settings.batch_size, shuffle=True)
    return found(study_problem(settings.theta), model, optimizer, loader)


def on_watermark(folder: Path, images: int, size: int) -> float:
    """After the recipe's rounds on the message alone, at ``size`` pixels."""
    recipe = replace(SWIFT, size=size)
    pixels = [
        torch.from_numpy(decode(path, size)[0].copy()).float().div(255)
        for path in sorted(folder.glob("*.png"))[:images]
    ]
    data = TensorDataset(torch.stack(pixels).view(-1, 1, size, size), torch.arange(len(pixels)))
    network = make_network(recipe).train()
    optimizer = torch.optim.Adam(network.parameters(), lr=recipe.rate)
    problem = Pipeline(recipe, network).problem()
    message = recipe.message_rounds * (recipe.steps_per_round or 0)
    sampler = torch.utils.data.RandomSampler(data, num_samples=(message + BATCHES) * recipe.batch_size)
    batches = iter(DataLoader(data, batch_size=recipe.batch_size, sampler=sampler))
    for _ in range(message):
        optimizer.zero_grad()
        problem.evaluate(network, next(batches)).objective.mean().backward()
        optimizer.step()
    return found(problem, network, optimizer, batches)


def main() -> None:
    parser = options(__doc__, images=256, size=224)
    parser.add_argument("--mnist", type=Path, help="folder of the four MNIST files; left out if not given")
    parser.add_argument("--data", type=Path, required=True, help="folder of grey PNG images")
    chosen: argparse.Namespace = begin(parser)
    small = digits()
    settings = StudySettings.of(small, theta=0.02, code=10, batch_size=64)
    row = parse_row("penalty:20:1.02,lr=cosine,rate=2e-3,decay=1e-4")
    problems = [("digits", row.numbers[0], on_digits(small, settings, row.options.rate, chosen.seed))]
    if chosen.mnist is not None:
        data = load_folder(chosen.mnist)
        row = parse_row("penalty:100:1.01")
        problems.append(
            ("MNIST", row.numbers[0], on_digits(data, StudySettings.of(data), row.options.rate, chosen.seed))
        )
    problems.append((f"watermark, {chosen.size} px", SWIFT.tau, on_watermark(chosen.data, chosen.images, chosen.size)))
    rows = [{"problem": name, "by_hand": hand, "auto": tau, "ratio": tau / hand} for name, hand, tau in problems]
    lines = [(r["problem"], f"{r['by_hand']:g}", f"{r['auto']:.3g}", f"{r['ratio']:.2g}") for r in rows]
    keep(__file__, chosen, {"rows": rows}, table(["problem", "tau0 by hand", 'tau0="auto"', "ratio"], lines))


if __name__ == "__main__":
    main()
